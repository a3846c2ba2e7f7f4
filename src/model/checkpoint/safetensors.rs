use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::error::{Fault, shortened};
use super::stored::{Declared, Gaps, Stored, located};
use crate::device::Bytes;
use crate::ops::Dtype;

const SUPPORTED: &str = "F32, F16, BF16 and, for packed payloads, U8";

/// Tensors of a safetensors file: u64 length n, n bytes of JSON, then the data.
///
/// The header is read here and not by the `safetensors` crate, which keeps the last of two tensors of one name,
/// lets a sum of sizes wrap, and does not say which tensor is at fault. Format:
/// <https://github.com/huggingface/safetensors#format>.
pub(crate) fn parse(file: &Bytes) -> Result<BTreeMap<String, Stored>, Fault> {
    let bytes = file.as_slice();
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(Fault::File(format!("{} bytes are too few for a safetensors header", bytes.len())));
    };
    let said = u64::from_le_bytes(*len);
    let header = usize::try_from(said).ok().and_then(|len| rest.get(..len));
    let header = header.ok_or_else(|| {
        Fault::File(format!("its header says {said} bytes of JSON, but only {} bytes follow", rest.len()))
    })?;
    let data = file.slice(8 + header.len()..bytes.len()).expect("the header was just found inside the file");
    let header = std::str::from_utf8(header)
        .map_err(|error| Fault::File(format!("its header is not text: {error}")))?;
    let Header(entries) = serde_json::from_str(header)
        .map_err(|error| Fault::File(format!("its header is damaged: {error}")))?;
    let declared = entries.into_iter().map(|(name, info)| declare(name, info)).collect::<Result<_, _>>()?;
    located(declared, &data, Gaps::Refused)
}

fn declare(name: String, info: Info) -> Result<Declared, Fault> {
    let dtype = match info.dtype.as_str() {
        "F32" => Dtype::F32,
        "F16" => Dtype::F16,
        "BF16" => Dtype::Bf16,
        "U8" => Dtype::U8,
        other => return Err(Fault::dtype(&name, other, SUPPORTED)),
    };
    let [start, end] = info.data_offsets;
    Ok(Declared { name, dtype, shape: info.shape, start, end: Some(end) })
}

struct Header(Vec<(String, Info)>);

#[derive(Deserialize)]
struct Info {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object with one entry a tensor")
    }

    /// Keeps entries of one name apart, so that two of them are noticed later.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let info = map
                .next_value()
                .map_err(|error| A::Error::custom(format!("tensor `{}`: {error}", shortened(&name))))?;
            entries.push((name, info));
        }
        Ok(Header(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::safetensors::tensor::{Dtype as CrateDtype, TensorView, serialize};

    #[test]
    fn files_of_the_safetensors_crate_are_read() {
        let (a, b) = ([1u8, 2, 3, 4, 5, 6, 7, 8], [9u8, 10, 11]);
        let views = [
            ("a", TensorView::new(CrateDtype::F16, vec![2, 2], &a).unwrap()),
            ("b", TensorView::new(CrateDtype::U8, vec![3], &b).unwrap()),
        ];
        let file = Bytes::from(serialize(views, None).unwrap());
        let tensors = parse(&file).unwrap();
        assert_eq!((tensors["a"].dtype, tensors["a"].shape.as_slice()), (Dtype::F16, [2, 2].as_slice()));
        assert_eq!((tensors["a"].bytes.as_slice(), tensors["b"].bytes.as_slice()), (&a[..], &b[..]));
    }
}
