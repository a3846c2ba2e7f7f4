//! ggml's K formats: blocks of 256 numbers in groups with scales of their own, decoded to f32.
//!
//! | format | bytes | groups | in a block, in this order | value |
//! |---|---|---|---|---|
//! | `Q2_K` | 84 | 16 of 16 | 16 bytes of 4-bit scale s and minimum m, 64 of 2-bit q, f16 d, f16 e | `d·s·q − e·m` |
//! | `Q3_K` | 110 | 16 of 16 | 32 bytes of third bits, 64 of low bits of q, 12 of 6-bit s, f16 d | `d·(s − 32)·(q − 4)` |
//! | `Q4_K` | 144 | 8 of 32 | f16 d, f16 e, 12 bytes of 6-bit s and m, 128 of 4-bit q | `d·s·q − e·m` |
//! | `Q5_K` | 176 | 8 of 32 | f16 d, f16 e, 12 bytes of 6-bit s and m, 32 of fifth bits, 128 of low bits of q | `d·s·q − e·m` |
//! | `Q6_K` | 210 | 16 of 16 | 128 bytes of low 4 bits of q, 64 of high 2 bits, 16 of i8 s, f16 d | `d·s·(q − 32)` |
//!
//! Layouts: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, ggml's `block_q*_K`.

use super::dtype::f16_at;

/// Numbers of a half block of 128: byte k of 32 holds two bits of numbers k, k + 32, k + 64 and k + 96.
const HALF: usize = 128;

#[inline(always)]
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, quants) = (&block[..16], &block[16..80]);
    let (d, e) = (f16_at(block, 80), f16_at(block, 82));
    for (half, (out, quants)) in out.chunks_exact_mut(HALF).zip(quants.chunks_exact(32)).enumerate() {
        for (group, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = scales[half * 8 + group];
            let (s, m) = (d * f32::from(scale & 15), e * f32::from(scale >> 4));
            let quants = &quants[group % 2 * 16..][..16];
            for (o, q) in out.iter_mut().zip(quants) {
                *o = s * f32::from(q >> (group / 2 * 2) & 3) - m;
            }
        }
    }
}

#[inline(always)]
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (thirds, quants, packed) = (&block[..32], &block[32..96], &block[96..108]);
    let d = f16_at(block, 108);
    for (half, (out, quants)) in out.chunks_exact_mut(HALF).zip(quants.chunks_exact(32)).enumerate() {
        for (group, out) in out.chunks_exact_mut(16).enumerate() {
            let s = d * f32::from(scale_of_q3(packed, half * 8 + group) - 32);
            let (bit, from) = (half * 4 + group / 2, group % 2 * 16);
            for (o, (q, third)) in out.iter_mut().zip(quants[from..].iter().zip(&thirds[from..])) {
                let q = (q >> (group / 2 * 2) & 3) | (third >> bit & 1) << 2;
                *o = s * f32::from(q as i8 - 4);
            }
        }
    }
}

/// Scale j of 16, of 6 bits: the low four in the halves of bytes 0..8, the high two in the quarters of bytes 8..12.
#[inline(always)]
fn scale_of_q3(packed: &[u8], j: usize) -> i8 {
    let low = packed[j % 8] >> (j / 8 * 4) & 15;
    let high = packed[8 + j % 4] >> (j / 4 * 2) & 3;
    (low | high << 4) as i8
}

#[inline(always)]
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, e) = (f16_at(block, 0), f16_at(block, 2));
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let [s, m] = scale_and_minimum(&block[4..16], group);
        let (s, m) = (d * f32::from(s), e * f32::from(m));
        for (o, q) in out.iter_mut().zip(&block[16 + group / 2 * 32..]) {
            *o = s * f32::from(q >> (group % 2 * 4) & 15) - m;
        }
    }
}

#[inline(always)]
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, e) = (f16_at(block, 0), f16_at(block, 2));
    let fifths = &block[16..48];
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let [s, m] = scale_and_minimum(&block[4..16], group);
        let (s, m) = (d * f32::from(s), e * f32::from(m));
        for (o, (q, fifth)) in out.iter_mut().zip(block[48 + group / 2 * 32..].iter().zip(fifths)) {
            let q = (q >> (group % 2 * 4) & 15) | (fifth >> group & 1) << 4;
            *o = s * f32::from(q) - m;
        }
    }
}

/// Scale and minimum j of 8, of 6 bits each. Those of the first four groups are the low six bits of bytes j and j + 4;
/// of the others, byte j + 4 holds the low four of both, and the top bits of bytes j − 4 and j the high two.
#[inline(always)]
fn scale_and_minimum(packed: &[u8], j: usize) -> [u8; 2] {
    if j < 4 {
        return [packed[j] & 63, packed[j + 4] & 63];
    }
    [(packed[j + 4] & 15) | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4]
}

#[inline(always)]
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = f16_at(block, 208);
    for (half, out) in out.chunks_exact_mut(HALF).enumerate() {
        let (low, high) = (&block[half * 64..][..64], &block[128 + half * 32..][..32]);
        for (group, out) in out.chunks_exact_mut(16).enumerate() {
            let s = d * f32::from(block[192 + half * 8 + group] as i8);
            let quarter = group / 2;
            let (from, low_from) = (group % 2 * 16, quarter % 2 * 32 + group % 2 * 16);
            for (o, (l, h)) in out.iter_mut().zip(low[low_from..].iter().zip(&high[from..])) {
                let q = (l >> (quarter / 2 * 4) & 15) | (h >> (quarter * 2) & 3) << 4;
                *o = s * f32::from(q as i8 - 32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    /// d = 0.5 and e = 0.25, as two halves.
    fn scales() -> [[u8; 2]; 2] {
        [0.5, 0.25].map(|v| f16::from_f32(v).to_le_bytes())
    }

    #[test]
    fn two_bits_by_hand() {
        let mut block = [0; 84];
        block[0] = 0x23; // group 0: s = 3, m = 2
        block[9] = 0x1F; // group 9, the second 16 of the second half: s = 15, m = 1
        block[16] = 0b10; // number 0: q = 2
        block[16 + 32 + 16] = 0b0000_0011; // number 144: q = 3
        let [d, e] = scales();
        block[80..82].copy_from_slice(&d);
        block[82..84].copy_from_slice(&e);
        let mut out = [f32::NAN; 256];
        q2_k(&block, &mut out);
        assert_eq!([out[0], out[1], out[16]], [0.5 * 3.0 * 2.0 - 0.5, -0.5, 0.0]);
        assert_eq!([out[144], out[145]], [0.5 * 15.0 * 3.0 - 0.25, -0.25]);
    }

    #[test]
    fn three_bits_by_hand() {
        let mut block = [0; 110];
        block[0] = 0b0010_0001; // third bits of number 0 and of number 160
        block[32] = 0b01; // number 0: q = 1 + 4
        block[32 + 32] = 0b0000_1000; // number 160 (second pair of bits of the second half): q = 2 + 4
        block[96] = 0x05; // group 0: low bits 5; group 8: 0
        block[96 + 2] = 0x70; // group 10: low bits 7
        block[104] = 0b11; // group 0: high bits 3
        block[106] = 0b10 << 4; // group 10: high bits 2
        block[108..110].copy_from_slice(&scales()[0]);
        let mut out = [f32::NAN; 256];
        q3_k(&block, &mut out);
        assert_eq!([out[0], out[1]], [0.5 * (53.0 - 32.0), 0.5 * (53.0 - 32.0) * -4.0]);
        assert_eq!([out[160], out[161]], [0.5 * (39.0 - 32.0) * 2.0, 0.5 * (39.0 - 32.0) * -4.0]);
    }

    #[test]
    fn four_and_five_bits_by_hand() {
        let [d, e] = scales();
        // Group 1: s = 33, m = 7. Group 6: s = 0b10_0011 = 35, m = 0b01_0100 = 20.
        let mut packed = [0u8; 12];
        packed[1] = 33;
        packed[5] = 7;
        packed[2] = 0b10 << 6;
        packed[6] = 0b01 << 6;
        packed[10] = 0x43;
        let mut block = [0; 144];
        block[..2].copy_from_slice(&d);
        block[2..4].copy_from_slice(&e);
        block[4..16].copy_from_slice(&packed);
        block[16] = 0xB0; // number 32: q = 11
        block[16 + 3 * 32 + 5] = 0x09; // number 197: q = 9
        let mut out = [f32::NAN; 256];
        q4_k(&block, &mut out);
        assert_eq!([out[0], out[32], out[33]], [0.0, 0.5 * 33.0 * 11.0 - 0.25 * 7.0, -1.75]);
        assert_eq!([out[197], out[198]], [0.5 * 35.0 * 9.0 - 5.0, -5.0]);

        let mut wider = [0; 176];
        wider[..16].copy_from_slice(&block[..16]);
        wider[48..].copy_from_slice(&block[16..]);
        wider[16] = 1 << 1; // number 32: fifth bit
        wider[16 + 5] = 1 << 6; // number 197: fifth bit
        q5_k(&wider, &mut out);
        assert_eq!([out[0], out[32], out[33]], [0.0, 0.5 * 33.0 * 27.0 - 0.25 * 7.0, -1.75]);
        assert_eq!([out[197], out[198]], [0.5 * 35.0 * 25.0 - 5.0, -5.0]);
    }

    #[test]
    fn six_bits_by_hand() {
        let mut block = [0; 210];
        block[0] = 0x05; // number 0: low bits 5
        block[64 + 32 + 3] = 0xA0; // number 128 + 96 + 3: low bits 10
        block[128] = 0b11; // number 0: high bits 3
        block[128 + 32 + 3] = 0b10 << 6; // number 227: high bits 2
        block[192] = -3i8 as u8;
        block[192 + 14] = 7;
        block[208..].copy_from_slice(&scales()[0]);
        let mut out = [f32::NAN; 256];
        q6_k(&block, &mut out);
        assert_eq!([out[0], out[1]], [0.5 * -3.0 * (53.0 - 32.0), 0.5 * -3.0 * -32.0]);
        assert_eq!([out[227], out[228]], [0.5 * 7.0 * (42.0 - 32.0), 0.5 * 7.0 * -32.0]);
    }
}
