use faer::Accum;
use half::f16;

use crate::device::Bytes;
use crate::ops::dtype::{Dtype, dequantise};
use crate::ops::matmul::{matmul, rows, rows_mut};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 16;
const MAGIC: u8 = 0x4c;
const VERSION: u8 = 1;

/// A packed linear layer: `Ŵ = Σ_p diag(h_p) U_p diag(l_p) V_pᵀ diag(g_p)`, p = 1 or 1, 2; a checked view of its bytes.
///
/// Little-endian. Header: `u8 0x4C · u8 version 1 · u8 P · u8 0 · u32 r · u32 m · u32 n`. Then per path:
///
/// | part | bytes | meaning |
/// |---|---|---|
/// | h | 2m | f16 scales of outputs |
/// | g | 2n | f16 scales of inputs |
/// | l | 2r | f16 scales of latents |
/// | U | m·r/8 | row i is r/8 bytes; bit k of it is `byte[k/8] >> (k%8) & 1` |
/// | Vᵀ | r·n/8 | row k is n/8 bytes, same order |
///
/// Bit 1 is +1, bit 0 is −1. Valid: P in {1, 2}; r and n multiples of 8; 8 <= r <= min(m, n); this exact length; finite
/// scales. It is the layout of LittleBit (Lee et al., NeurIPS 2025) and dtype 19 of the CMF container.
#[derive(Clone, Debug)]
pub struct Payload {
    bytes: Bytes,
    shape: Shape,
}

/// What the header says: P, r, m and n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub paths: usize,
    pub rank: usize,
    pub rows: usize,
    pub cols: usize,
}

/// Why bytes are not a payload. The caller adds the file and the tensor.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PayloadError {
    #[error(
        "the payload has {0} bytes, fewer than its {HEADER_BYTES}-byte header: the file is cut off, copy or pack it again"
    )]
    NoHeader(usize),
    #[error("the payload starts with {found:02x?}, not 4c 01: these bytes are no `blr` payload of version 1")]
    Magic { found: [u8; 2] },
    #[error(
        "byte 3 of the payload's header is {0}, not 0: written by an unknown version, pack the layer again"
    )]
    Reserved(u8),
    #[error("the payload says {0} paths, only 1 or 2 exist: the header is damaged, pack the layer again")]
    Paths(usize),
    #[error(
        "the payload says rank {rank} for {rows} x {cols}: rank and columns must be multiples of 8, \
         and the rank from 8 to the smaller side"
    )]
    Shape { rank: usize, rows: usize, cols: usize },
    #[error(
        "the payload has {found} bytes, but {rows} x {cols} at rank {rank} with {paths} paths needs {needed}"
    )]
    Length { found: usize, needed: u128, paths: usize, rank: usize, rows: usize, cols: usize },
    #[error("scale {vector}[{index}] of path {path} is {value}: scales must be finite, pack the layer again")]
    Scale { path: usize, vector: char, index: usize, value: f16 },
    #[error("{part} of path {path} has {found} numbers, but its shape needs {needed}")]
    Part { path: usize, part: &'static str, found: usize, needed: usize },
}

impl Shape {
    /// Reads and checks a header.
    fn read(header: &[u8; HEADER_BYTES]) -> Result<Self, PayloadError> {
        if header[..2] != [MAGIC, VERSION] {
            return Err(PayloadError::Magic { found: [header[0], header[1]] });
        }
        if header[3] != 0 {
            return Err(PayloadError::Reserved(header[3]));
        }
        let word =
            |k: usize| u32::from_le_bytes([header[k], header[k + 1], header[k + 2], header[k + 3]]) as usize;
        let shape = Self { paths: header[2].into(), rank: word(4), rows: word(8), cols: word(12) };
        if !(1..=2).contains(&shape.paths) {
            return Err(PayloadError::Paths(shape.paths));
        }
        let Self { rank, rows, cols, .. } = shape;
        if !rank.is_multiple_of(8) || !cols.is_multiple_of(8) || rank < 8 || rank > rows.min(cols) {
            return Err(PayloadError::Shape { rank, rows, cols });
        }
        Ok(shape)
    }

    /// Bytes of the whole payload. Sides are below 2^32, so nothing overflows in 128 bits.
    fn total_bytes(self) -> u128 {
        let [paths, rank, rows, cols] =
            [self.paths, self.rank, self.rows, self.cols].map(|side| side as u128);
        HEADER_BYTES as u128 + paths * (2 * (rows + cols + rank) + rank / 8 * (rows + cols))
    }

    pub(super) fn path_bytes(self) -> usize {
        2 * (self.rows + self.cols + self.rank) + self.rank / 8 * (self.rows + self.cols)
    }
}

impl Payload {
    /// Checks `bytes` wholly, scales included, before anything is read from them.
    pub fn parse(bytes: Bytes) -> Result<Self, PayloadError> {
        let header = bytes.as_slice().first_chunk().ok_or(PayloadError::NoHeader(bytes.len()))?;
        let shape = Shape::read(header)?;
        let needed = shape.total_bytes();
        if needed != bytes.len() as u128 {
            let Shape { paths, rank, rows, cols } = shape;
            return Err(PayloadError::Length { found: bytes.len(), needed, paths, rank, rows, cols });
        }
        let payload = Self { bytes, shape };
        for (path, view) in payload.paths().enumerate() {
            for (vector, scales) in [('h', view.h), ('g', view.g), ('l', view.l)] {
                if let Some((index, value)) = scales.iter().enumerate().find(|(_, value)| !value.is_finite())
                {
                    return Err(PayloadError::Scale { path, vector, index, value });
                }
            }
        }
        Ok(payload)
    }

    /// Writes a payload of one or two paths of one rank.
    pub fn build(
        rows: usize,
        cols: usize,
        rank: usize,
        paths: &[PathParts<'_>],
    ) -> Result<Self, PayloadError> {
        let word = |side: usize| u32::try_from(side).map_err(|_| PayloadError::Shape { rank, rows, cols });
        let count = u8::try_from(paths.len()).map_err(|_| PayloadError::Paths(paths.len()))?;
        let mut bytes = vec![MAGIC, VERSION, count, 0];
        for side in [rank, rows, cols] {
            bytes.extend(word(side)?.to_le_bytes());
        }
        let header = bytes.first_chunk().ok_or(PayloadError::NoHeader(bytes.len()))?;
        let shape = Shape::read(header)?;
        for (path, parts) in paths.iter().enumerate() {
            parts.check(path, shape)?;
            for scale in parts.h.iter().chain(parts.g).chain(parts.l) {
                bytes.extend(scale.to_le_bytes());
            }
            bytes.extend(parts.u.chunks_exact(8).map(|signs| byte_of(|k| signs[k])));
            for k in 0..rank {
                bytes.extend((0..cols / 8).map(|byte| byte_of(|j| parts.v[(8 * byte + j) * rank + k])));
            }
        }
        Self::parse(bytes.into())
    }

    /// m, the width of the output.
    pub fn rows(&self) -> usize {
        self.shape.rows
    }

    /// n, the width of the input, padded to a multiple of 8.
    pub fn cols(&self) -> usize {
        self.shape.cols
    }

    /// r, latents a path.
    pub fn rank(&self) -> usize {
        self.shape.rank
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The payload as it is stored.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The paths in order.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = Path<'_>> {
        let size = self.shape.path_bytes();
        let body = &self.bytes.as_slice()[HEADER_BYTES..];
        (0..self.shape.paths).map(move |path| Path::at(&body[path * size..(path + 1) * size], self.shape))
    }

    /// Ŵ, row-major m x n.
    pub fn dequantise(&self) -> Vec<f64> {
        let Shape { rank, rows: m, cols: n, .. } = self.shape;
        let mut out = vec![0.0; m * n];
        for path in self.paths() {
            let scaled = |scale: f16, sign: f64| f64::from(scale) * sign;
            let left: Vec<f64> = (path.h.iter().enumerate())
                .flat_map(|(i, h)| {
                    signs(path.u_row(i)).zip(path.l.iter()).map(move |(s, l)| scaled(h, s) * f64::from(l))
                })
                .collect();
            let right: Vec<f64> = (0..rank)
                .flat_map(|k| signs(path.v_row(k)).zip(path.g.iter()).map(move |(s, g)| scaled(g, s)))
                .collect();
            matmul(rows_mut(&mut out, m, n), Accum::Add, rows(&left, m, rank), rows(&right, rank, n));
        }
        out
    }
}

/// One path of a payload.
#[derive(Clone, Copy)]
pub struct Path<'a> {
    /// m scales of outputs.
    pub h: Scales<'a>,
    /// n scales of inputs.
    pub g: Scales<'a>,
    /// r scales of latents.
    pub l: Scales<'a>,
    /// Signs of U: m rows of r/8 bytes.
    pub u: &'a [u8],
    /// Signs of Vᵀ: r rows of n/8 bytes.
    pub v: &'a [u8],
    shape: Shape,
}

impl<'a> Path<'a> {
    fn at(bytes: &'a [u8], shape: Shape) -> Self {
        let (h, bytes) = bytes.split_at(2 * shape.rows);
        let (g, bytes) = bytes.split_at(2 * shape.cols);
        let (l, bytes) = bytes.split_at(2 * shape.rank);
        let (u, v) = bytes.split_at(shape.rows * shape.rank / 8);
        Self { h: Scales(h), g: Scales(g), l: Scales(l), u, v, shape }
    }

    /// The r signs of output i, eight a byte.
    #[inline]
    pub fn u_row(&self, i: usize) -> &'a [u8] {
        let len = self.shape.rank / 8;
        &self.u[i * len..(i + 1) * len]
    }

    /// The n signs of latent k, eight a byte.
    #[inline]
    pub fn v_row(&self, k: usize) -> &'a [u8] {
        let len = self.shape.cols / 8;
        &self.v[k * len..(k + 1) * len]
    }
}

/// f16 scales as they are stored.
#[derive(Clone, Copy)]
pub struct Scales<'a>(&'a [u8]);

impl<'a> Scales<'a> {
    pub fn iter(self) -> impl ExactSizeIterator<Item = f16> + 'a {
        self.0.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b))
    }

    /// All of them in f32.
    pub fn to_f32(self) -> Vec<f32> {
        let mut out = vec![0.0; self.0.len() / 2];
        dequantise(Dtype::F16, self.0, &mut out);
        out
    }
}

/// The signs of packed bits as ±1.
pub fn signs(bits: &[u8]) -> impl Iterator<Item = f64> + '_ {
    bits.iter().flat_map(|byte| (0..8).map(move |k| if byte >> k & 1 == 1 { 1.0 } else { -1.0 }))
}

/// What one path is written from. An entry of `u` or `v` below zero is −1, any other +1.
#[derive(Clone, Copy, Debug)]
pub struct PathParts<'a> {
    /// m scales of outputs.
    pub h: &'a [f16],
    /// n scales of inputs.
    pub g: &'a [f16],
    /// r scales of latents.
    pub l: &'a [f16],
    /// U, m x r row-major.
    pub u: &'a [i8],
    /// V, n x r row-major.
    pub v: &'a [i8],
}

impl PathParts<'_> {
    fn check(&self, path: usize, shape: Shape) -> Result<(), PayloadError> {
        let Shape { rank, rows, cols, .. } = shape;
        let parts = [
            ("h", self.h.len(), rows),
            ("g", self.g.len(), cols),
            ("l", self.l.len(), rank),
            ("u", self.u.len(), rows * rank),
            ("v", self.v.len(), cols * rank),
        ];
        match parts.into_iter().find(|(_, found, needed)| found != needed) {
            Some((part, found, needed)) => Err(PayloadError::Part { path, part, found, needed }),
            None => Ok(()),
        }
    }
}

fn byte_of(sign: impl Fn(usize) -> i8) -> u8 {
    (0..8).fold(0, |byte, k| byte | u8::from(sign(k) >= 0) << k)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// 9 x 16 at rank 8: powers of two as scales, signs from a small rule.
    pub(in super::super) fn small(paths: usize) -> Payload {
        let power = |k: usize| f16::from_f32(2f32.powi((k % 5) as i32 - 2));
        let h: Vec<f16> = (0..9).map(power).collect();
        let g: Vec<f16> = (0..16).map(|j| power(j + 1)).collect();
        let l: Vec<f16> = (0..8).map(|k| power(k + 2)).collect();
        let sign = |k: usize| if k * k % 7 < 3 { 1 } else { -1 };
        let u: Vec<i8> = (0..72).map(sign).collect();
        let v: Vec<i8> = (0..128).map(|k| sign(k + 3)).collect();
        let parts = PathParts { h: &h, g: &g, l: &l, u: &u, v: &v };
        Payload::build(9, 16, 8, &vec![parts; paths]).unwrap()
    }

    #[test]
    fn bytes_lie_where_the_format_says() {
        let payload = small(1);
        let bytes = payload.bytes().as_slice();
        assert_eq!(bytes[..16], [0x4c, 1, 1, 0, 8, 0, 0, 0, 9, 0, 0, 0, 16, 0, 0, 0]);
        assert_eq!(bytes.len(), 16 + 2 * (9 + 16 + 8) + 9 + 16);
        assert_eq!(bytes[16..18], f16::from_f32(0.25).to_le_bytes(), "h[0] = 2^-2");
        assert_eq!(bytes[16 + 18..][..2], f16::from_f32(0.5).to_le_bytes(), "g[0] = 2^-1");
        assert_eq!(bytes[16 + 18 + 32..][..2], f16::from_f32(1.0).to_le_bytes(), "l[0] = 2^0");
        // u[0, k]: k² mod 7 is 0 1 4 2 2 4 1 0, so +1 at 0 1 3 4 6 7.
        assert_eq!(bytes[16 + 66], 0b1101_1011);
    }

    #[test]
    fn dequantised_is_the_formula() {
        for paths in [1, 2] {
            let payload = small(paths);
            let dense = payload.dequantise();
            let path = payload.paths().next().unwrap();
            for i in 0..9 {
                for j in 0..16 {
                    let h = f64::from(path.h.iter().nth(i).unwrap());
                    let g = f64::from(path.g.iter().nth(j).unwrap());
                    let term = |(k, l): (usize, f16)| {
                        let sign = |k: usize| if k * k % 7 < 3 { 1.0 } else { -1.0 };
                        f64::from(l) * sign(i * 8 + k) * sign(j * 8 + k + 3)
                    };
                    let exact = h * g * path.l.iter().enumerate().map(term).sum::<f64>() * paths as f64;
                    assert_eq!(dense[i * 16 + j], exact, "{i}, {j}, {paths} paths");
                }
            }
        }
    }

    #[test]
    fn damaged_bytes_are_refused_with_the_reason() {
        let good = small(2).bytes().as_slice().to_vec();
        let edit = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes
        };
        let huge =
            [&[0x4c, 1, 2, 0, 0xf8, 0xff, 0xff, 0xff], &[0xff; 4][..], &[0xf8, 0xff, 0xff, 0xff]].concat();
        let cases = [
            (good[..9].to_vec(), "9 bytes, fewer than"),
            (edit(0, 0x4d), "not 4c 01"),
            (edit(1, 2), "not 4c 01"),
            (edit(2, 3), "3 paths"),
            (edit(3, 1), "byte 3"),
            (edit(4, 9), "rank 9"),
            (edit(4, 16), "rank 16"),
            (edit(12, 17), "9 x 17"),
            (edit(8, 10), "10 x 16"),
            (good[..good.len() - 1].to_vec(), "needs"),
            ([&good[..], &[0]].concat(), "needs"),
            (huge, "needs 9223372"),
            (edit(16 + 18 + 3, 0x7c), "g[1] of path 0 is"),
        ];
        for (bytes, reason) in cases {
            let error = Payload::parse(bytes.into()).unwrap_err().to_string();
            assert!(error.contains(reason), "`{error}` should say `{reason}`");
        }
    }

    #[test]
    fn parts_of_the_wrong_length_are_refused() {
        let one = [f16::ONE; 8];
        let parts = PathParts { h: &one, g: &one, l: &one, u: &[1; 64], v: &[1; 63] };
        let error = Payload::build(8, 8, 8, &[parts]).unwrap_err();
        assert_eq!(error, PayloadError::Part { path: 0, part: "v", found: 63, needed: 64 });
        assert_eq!(Payload::build(8, 8, 8, &[]).unwrap_err(), PayloadError::Paths(0));
    }
}
