use crate::device::Bytes;

/// A metadata value. Strings and arrays stay in the file; only their place is kept.
#[derive(Clone, Debug)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(Bytes),
    Array(Array),
}

/// An array whose elements have been walked once, so that reading them cannot fail.
#[derive(Clone, Debug)]
pub struct Array {
    kind: u32,
    len: usize,
    bytes: Bytes,
}

/// A place in a file that is read forward, never past its end.
pub(super) struct Cursor<'a> {
    file: &'a Bytes,
    bytes: &'a [u8],
    pub at: usize,
}

/// What was wrong, without the file's name.
pub(super) type Read<T> = Result<T, String>;

/// Arrays inside arrays inside arrays: deeper ones mean nothing to any reader.
const MAX_DEPTH: usize = 4;

const F32: u32 = 6;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

impl Array {
    /// The elements of an array of strings; `None` for other arrays.
    pub fn strings(&self) -> Option<impl Iterator<Item = String> + '_> {
        let mut cursor = Cursor::new(&self.bytes);
        (self.kind == STRING).then(|| (0..self.len).map_while(move |_| cursor.str().ok().map(str::to_owned)))
    }

    /// The elements of an array of whole numbers that are not negative; `None` for other arrays.
    pub fn unsigned(&self) -> Option<Vec<u64>> {
        let mut cursor = Cursor::new(&self.bytes);
        (0..self.len).map(|_| cursor.value(self.kind, 0).ok()?.unsigned()).collect()
    }

    /// The elements of an array of f32; `None` for other arrays.
    pub fn reals(&self) -> Option<Vec<f32>> {
        let (numbers, _) = self.bytes.as_slice().as_chunks::<4>();
        (self.kind == F32).then(|| numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }
}

impl Value {
    /// A whole number that is not negative, however it is stored.
    pub fn unsigned(&self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(*value),
            Self::Signed(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// A real number; an f32 becomes the shortest decimal that names it (1e-5, not 9.99999974e-6).
    pub fn real(&self) -> Option<f64> {
        match self {
            Self::F32(value) => value.to_string().parse().ok(),
            Self::F64(value) => Some(*value),
            _ => None,
        }
    }

    pub fn bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    pub fn str(&self) -> Option<&str> {
        match self {
            Self::String(bytes) => std::str::from_utf8(bytes.as_slice()).ok(),
            _ => None,
        }
    }

    pub fn array(&self) -> Option<&Array> {
        match self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }
}

impl<'a> Cursor<'a> {
    pub fn new(file: &'a Bytes) -> Self {
        Self { file, bytes: file.as_slice(), at: 0 }
    }

    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Read<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn str(&mut self) -> Read<&'a str> {
        let len = self.u64()?;
        let at = self.at;
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes).map_err(|error| format!("the text at byte {at} is not UTF-8: {error}"))
    }

    /// A count of things that each take at least `least` bytes, so at most as many as the file can still hold.
    pub fn count(&mut self, what: &str, least: usize) -> Read<usize> {
        let said = self.u64()?;
        let most = self.remaining() / least;
        match usize::try_from(said) {
            Ok(count) if count <= most => Ok(count),
            _ => Err(format!(
                "it says {said} {what}, but its {} remaining bytes hold at most {most}",
                self.remaining()
            )),
        }
    }

    /// A value of GGUF's type number `kind`; `depth` arrays are around it.
    pub fn value(&mut self, kind: u32, depth: usize) -> Read<Value> {
        Ok(match kind {
            0 => Value::Unsigned(self.array().map(u8::from_le_bytes)?.into()),
            1 => Value::Signed(self.array().map(i8::from_le_bytes)?.into()),
            2 => Value::Unsigned(self.array().map(u16::from_le_bytes)?.into()),
            3 => Value::Signed(self.array().map(i16::from_le_bytes)?.into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(self.array().map(i32::from_le_bytes)?.into()),
            F32 => Value::F32(self.array().map(f32::from_le_bytes)?),
            7 => match self.array()? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => return Err(format!("a truth value is {other}, neither 0 nor 1")),
            },
            STRING => {
                let start = self.at + 8;
                self.str()?;
                Value::String(self.slice(start))
            }
            ARRAY => Value::Array(self.array_value(depth)?),
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(self.array().map(i64::from_le_bytes)?),
            12 => Value::F64(self.array().map(f64::from_le_bytes)?),
            other => return Err(format!("value type {other} is unknown")),
        })
    }

    /// Walks over an array once, keeping only its place.
    fn array_value(&mut self, depth: usize) -> Read<Array> {
        if depth == MAX_DEPTH {
            return Err(format!("arrays are nested deeper than {MAX_DEPTH}"));
        }
        let kind = self.u32()?;
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            STRING | 10..=12 => 8,
            ARRAY => 12,
            other => return Err(format!("array element type {other} is unknown")),
        };
        let len = self.count("array elements", least)?;
        let start = self.at;
        for _ in 0..len {
            self.value(kind, depth + 1)?;
        }
        Ok(Array { kind, len, bytes: self.slice(start) })
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let bytes = self.take(N as u64)?;
        Ok(*bytes.first_chunk().expect("take returns the length asked for"))
    }

    fn take(&mut self, len: u64) -> Read<&'a [u8]> {
        let bytes = usize::try_from(len).ok().and_then(|len| self.bytes[self.at..].get(..len));
        let bytes = bytes.ok_or_else(|| {
            format!(
                "it ends too early: {len} bytes are needed at byte {}, {} are left",
                self.at,
                self.remaining()
            )
        })?;
        self.at += bytes.len();
        Ok(bytes)
    }

    fn slice(&self, start: usize) -> Bytes {
        self.file.slice(start..self.at).expect("the cursor never leaves the file")
    }
}
