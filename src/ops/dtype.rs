use half::bf16;

use super::dtype_k::{q2_k, q3_k, q4_k, q5_k, q6_k};

/// How the numbers of a stored tensor are laid out. Block formats pack 32 or 256 numbers of one row together.
///
/// | format | block | bytes | value |
/// |---|---|---|---|
/// | `Q8_0` | 32 | 34 | f16 scale d, i8 q: `d·q` |
/// | `Q4_0` | 32 | 18 | f16 d, 4-bit q: `d·(q − 8)` |
/// | `Q4_1` | 32 | 20 | f16 d, f16 minimum m, 4-bit q: `d·q + m` |
/// | `Q5_0` | 32 | 22 | f16 d, 32 fifth bits, 4 low bits of q: `d·(q − 16)` |
/// | `Q5_1` | 32 | 24 | f16 d, f16 minimum m, 32 fifth bits, 4 low bits of q: `d·q + m` |
/// | `Q2_K` ... `Q6_K` | 256 | 84, 110, 144, 176, 210 | groups of 16 or 32 with scales of their own: [`dtype_k`](super::dtype_k) |
///
/// In the 4- and 5-bit formats byte k holds number k in its low half and number k + 16 in its high half
/// (ggml's block layouts, <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    /// Raw bytes: a packed payload, never a weight.
    U8,
}

impl Dtype {
    /// Numbers in one block; rows are whole blocks.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 | Self::U8 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 => 1,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Bytes of a row of `cols` numbers; `None` where `cols` is not whole blocks or the size overflows.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::U8 => "U8",
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Writes the numbers of `bytes` (whole blocks of `dtype`) to `out`, in f32.
///
/// # Panics
/// When the lengths do not belong together, or for [`Dtype::U8`]: the caller has checked both when it opened the tensor.
#[inline(always)]
pub fn dequantise(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(Some(bytes.len()), dtype.row_bytes(out.len()), "bytes of a {dtype} row of {}", out.len());
    match dtype {
        Dtype::F32 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *o = f32::from_le_bytes(*b);
            }
        }
        Dtype::F16 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *o = f16_value(u16::from_le_bytes(*b));
            }
        }
        Dtype::Bf16 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *o = bf16::from_le_bytes(*b).to_f32();
            }
        }
        Dtype::Q8_0 => blocks::<34>(bytes, out, |block, q| q.copy_from_slice(&block[2..]), |d, _| (d, 0.0)),
        Dtype::Q4_0 => blocks::<18>(bytes, out, |block, q| nibbles(&block[2..], 8, q), |d, _| (d, 0.0)),
        Dtype::Q4_1 => blocks::<20>(bytes, out, |block, q| nibbles(&block[4..], 0, q), |d, m| (d, m)),
        Dtype::Q5_0 => {
            blocks::<22>(bytes, out, |block, q| five_bits(&block[6..], &block[2..6], 16, q), |d, _| (d, 0.0))
        }
        Dtype::Q5_1 => {
            blocks::<24>(bytes, out, |block, q| five_bits(&block[8..], &block[4..8], 0, q), |d, m| (d, m));
        }
        Dtype::Q2K => large_blocks::<84>(bytes, out, q2_k),
        Dtype::Q3K => large_blocks::<110>(bytes, out, q3_k),
        Dtype::Q4K => large_blocks::<144>(bytes, out, q4_k),
        Dtype::Q5K => large_blocks::<176>(bytes, out, q5_k),
        Dtype::Q6K => large_blocks::<210>(bytes, out, q6_k),
        Dtype::U8 => panic!("U8 holds packed bytes, not numbers"),
    }
}

/// The f16 at byte `at` of a block.
#[inline(always)]
pub(super) fn f16_at(block: &[u8], at: usize) -> f32 {
    f16_value(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// An f16 in f32, in integer steps that become vector instructions (`half` asks for the CPU's features at every number).
/// Infinities and NaN are kept.
#[inline(always)]
fn f16_value(bits: u16) -> f32 {
    const REBIAS: u32 = (127 - 15) << 23;
    // 2^-14, the weight of the one that a subnormal number lacks.
    const SMALLEST_NORMAL: u32 = 113 << 23;
    let bits = u32::from(bits);
    let sign = (bits & 0x8000) << 16;
    let magnitude = (bits & 0x7fff) << 13;
    let normal = magnitude + REBIAS;
    let subnormal = (f32::from_bits(magnitude + SMALLEST_NORMAL) - f32::from_bits(SMALLEST_NORMAL)).to_bits();
    let finite = if magnitude < 1 << 23 { subnormal } else { normal };
    let value = if magnitude >= 0x1f << 23 { magnitude | 0xff << 23 } else { finite };
    f32::from_bits(value | sign)
}

/// Decodes blocks of 32 numbers `d·q + m`: `quants` writes the bytes of q, as i8, and `affine` makes (d, m) of the first
/// two halves of a block.
///
/// Eight blocks go through each step together: loops this long become vector instructions.
#[inline(always)]
fn blocks<const BYTES: usize>(
    bytes: &[u8],
    out: &mut [f32],
    quants: impl Fn(&[u8; BYTES], &mut [u8; 32]),
    affine: impl Fn(f32, f32) -> (f32, f32),
) {
    let mut q = [0; 256];
    for (blocks, out) in bytes.as_chunks::<BYTES>().0.chunks(8).zip(out.chunks_mut(256)) {
        for (block, q) in blocks.iter().zip(q.as_chunks_mut::<32>().0) {
            quants(block, q);
        }
        for (o, q) in out.iter_mut().zip(&q) {
            *o = f32::from(*q as i8);
        }
        for (block, out) in blocks.iter().zip(out.as_chunks_mut::<32>().0) {
            let (d, m) = affine(f16_at(block, 0), f16_at(block, 2));
            for o in out {
                *o = d * *o + m;
            }
        }
    }
}

/// The 4-bit numbers of a block, less `offset`.
#[inline(always)]
fn nibbles(packed: &[u8], offset: u8, q: &mut [u8; 32]) {
    let (low, high) = q.split_at_mut(16);
    for ((l, h), b) in low.iter_mut().zip(high).zip(packed) {
        *l = (b & 15).wrapping_sub(offset);
        *h = (b >> 4).wrapping_sub(offset);
    }
}

/// The 5-bit numbers of a block, less `offset`: the fifth bit of number k is bit k of `fifth`.
#[inline(always)]
fn five_bits(packed: &[u8], fifth: &[u8], offset: u8, q: &mut [u8; 32]) {
    nibbles(packed, 0, q);
    for (q, fifth) in q.as_chunks_mut::<8>().0.iter_mut().zip(fifth) {
        for (k, q) in q.iter_mut().enumerate() {
            *q = (*q | (fifth >> k & 1) << 4).wrapping_sub(offset);
        }
    }
}

/// Decodes blocks of 256 numbers one by one.
#[inline(always)]
fn large_blocks<const BYTES: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; 256]),
) {
    for (block, out) in bytes.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        decode(block, out);
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn block_formats_hold_what_their_layout_says() {
        let d = f16::from_f32(0.5).to_le_bytes();
        let m = f16::from_f32(-3.0).to_le_bytes();
        let quants: Vec<u8> = (0..16).map(|k| k | ((15 - k) << 4)).collect();
        let low_then_high = |value: fn(f32) -> f32| -> Vec<f32> {
            (0..16).map(|k| value(k as f32)).chain((0..16).map(|k| value(15.0 - k as f32))).collect()
        };
        // The fifth bits are set for even numbers of the low half and odd ones of the high half.
        let with_fifth_bits = |value: fn(f32) -> f32| -> Vec<f32> {
            let low = (0..16).map(|k| value((k + 16 * ((k + 1) % 2)) as f32));
            low.chain((0..16).map(|k| value((15 - k + 16 * (k % 2)) as f32))).collect()
        };
        let q8: Vec<u8> = (0..32).map(|k| (k as i8 - 16) as u8).collect();
        let cases = [
            (Dtype::Q4_0, [&d[..], &quants].concat(), low_then_high(|q| 0.5 * (q - 8.0))),
            (Dtype::Q4_1, [&d[..], &m, &quants].concat(), low_then_high(|q| 0.5 * q - 3.0)),
            (
                Dtype::Q5_0,
                [&d[..], &0xAAAA_5555u32.to_le_bytes(), &quants].concat(),
                with_fifth_bits(|q| 0.5 * (q - 16.0)),
            ),
            (
                Dtype::Q5_1,
                [&d[..], &m, &0xAAAA_5555u32.to_le_bytes(), &quants].concat(),
                with_fifth_bits(|q| 0.5 * q - 3.0),
            ),
            (Dtype::Q8_0, [&d[..], &q8].concat(), (0..32).map(|k| 0.5 * (k as f32 - 16.0)).collect()),
        ];
        for (dtype, bytes, expected) in cases {
            let mut out = vec![f32::NAN; 32];
            dequantise(dtype, &bytes, &mut out);
            assert_eq!(out, expected, "{dtype}");
        }
    }

    #[test]
    fn every_half_is_read_as_half_reads_it() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_value(bits), f16::from_bits(bits).to_f32_const());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#x}");
        }
    }

    #[test]
    fn halves_of_any_length_are_read() {
        for n in [1, 7, 255, 256, 257, 600] {
            let values: Vec<f32> = (0..n).map(|k| k as f32 * 0.25 - 3.0).collect();
            let f16s: Vec<u8> = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
            let bf16s: Vec<u8> = values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
            let mut out = vec![f32::NAN; n];
            dequantise(Dtype::F16, &f16s, &mut out);
            assert_eq!(out, values);
            dequantise(Dtype::Bf16, &bf16s, &mut out);
            let rounded: Vec<f32> = values.iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
            assert_eq!(out, rounded);
        }
    }
}
