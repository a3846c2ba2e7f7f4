use faer::Accum;

use super::payload::{Path, Payload};
use crate::ops::matmul::matmul_streamed;
use crate::ops::sign_matvec::sign_matvec;

/// One activation: `y = Σ_p diag(h_p) U_p diag(l_p) V_pᵀ diag(g_p) x`, from the packed bits.
///
/// | symbol | argument | shape |
/// |---|---|---|
/// | x | `x` | at most n; numbers that are missing are 0 |
/// | y | `y` | m |
///
/// Cost: about `P·r(m + n)/8` additions. Paths and rows run in parallel; every sum has a fixed order.
///
/// # Panics
/// When `x` is longer than n or `y` is not m long.
pub fn matvec(payload: &Payload, x: &[f32], y: &mut [f32]) {
    assert!(x.len() <= payload.cols(), "{} inputs of at most {}", x.len(), payload.cols());
    assert_eq!(y.len(), payload.rows(), "outputs");
    let paths: Vec<Path<'_>> = payload.paths().collect();
    match paths[..] {
        [only] => path_matvec(only, x, y),
        [first, second] => {
            let mut other = vec![0.0; y.len()];
            rayon::join(|| path_matvec(first, x, y), || path_matvec(second, x, &mut other));
            y.iter_mut().zip(other).for_each(|(y, other)| *y += other);
        }
        _ => unreachable!("a payload has one path or two"),
    }
}

fn path_matvec(path: Path<'_>, x: &[f32], y: &mut [f32]) {
    let mut inputs = path.g.to_f32();
    let true_width = x.len();
    inputs[..true_width].iter_mut().zip(x).for_each(|(g, x)| *g *= x);
    inputs[true_width..].fill(0.0);
    let mut latents = vec![0.0; path.l.iter().len()];
    sign_matvec(path.v, &inputs, &mut latents);
    latents.iter_mut().zip(path.l.to_f32()).for_each(|(t, l)| *t *= l);
    sign_matvec(path.u, &latents, y);
    y.iter_mut().zip(path.h.to_f32()).for_each(|(y, h)| *y *= h);
}

/// Many activations: `Y = X·Ŵᵀ`, two GEMMs a path; signs are expanded tile by tile.
///
/// | symbol | argument | shape |
/// |---|---|---|
/// | X | `x`, rows of `width` <= n numbers | T x width |
/// | Y | `y` | T x m |
///
/// # Panics
/// When `width` is above n or the slices are not T whole rows.
pub fn matmul(payload: &Payload, x: &[f32], width: usize, y: &mut [f32]) {
    assert!(width <= payload.cols(), "{width} inputs of at most {}", payload.cols());
    let (rank, rows) = (payload.rank(), payload.rows());
    let mut latents = vec![0.0; x.len() / width * rank];
    for (p, path) in payload.paths().enumerate() {
        let (h, g, l) = (path.h.to_f32(), path.g.to_f32(), path.l.to_f32());
        let ones = vec![1.0; rank];
        matmul_streamed(
            x,
            width,
            #[inline(always)]
            |k, out| scaled_signs(path.v_row(k), &g, l[k], out),
            &mut latents,
            rank,
            Accum::Replace,
        );
        matmul_streamed(
            &latents,
            rank,
            #[inline(always)]
            |i, out| scaled_signs(path.u_row(i), &ones, h[i], out),
            y,
            rows,
            if p == 0 { Accum::Replace } else { Accum::Add },
        );
    }
}

/// `out_j = ±scale·scales_j` for as many j as `out` holds.
#[inline(always)]
fn scaled_signs(bits: &[u8], scales: &[f32], scale: f32, out: &mut [f32]) {
    for ((out, scales), byte) in out.chunks_mut(8).zip(scales.chunks(8)).zip(bits) {
        let minus = !u32::from(*byte);
        for (k, (out, s)) in out.iter_mut().zip(scales).enumerate() {
            *out = f32::from_bits((scale * s).to_bits() ^ (minus >> k & 1) << 31);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blr::payload::PathParts;
    use half::f16;

    /// Largest error of an output relative to `Σ_j |Ŵ_ij x_j|` bounded by the latents' sizes: two chained f32 sums.
    const TOLERANCE: f64 = 1e-5;

    fn payload(rows: usize, cols: usize, rank: usize, paths: usize) -> Payload {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let mut scales = |len: usize| (0..len).map(|_| f16::from_f32(next())).collect::<Vec<_>>();
        let vectors: Vec<_> = (0..paths).map(|_| [scales(rows), scales(cols), scales(rank)]).collect();
        let mut signs =
            |len: usize| scales(len).iter().map(|s| if s.is_sign_negative() { -1 } else { 1 }).collect();
        let factors: Vec<[Vec<i8>; 2]> =
            (0..paths).map(|_| [signs(rows * rank), signs(cols * rank)]).collect();
        let parts = vectors.iter().zip(&factors);
        let parts: Vec<_> = parts.map(|([h, g, l], [u, v])| PathParts { h, g, l, u, v }).collect();
        Payload::build(rows, cols, rank, &parts).unwrap()
    }

    #[test]
    fn both_products_equal_the_dense_one() {
        // (rows, cols, rank, paths, true width)
        let cases = [(8, 8, 8, 1, 8), (13, 40, 8, 2, 37), (300, 576, 120, 2, 576), (64, 296, 64, 1, 290)];
        for (rows, cols, rank, paths, width) in cases {
            let payload = payload(rows, cols, rank, paths);
            let dense = payload.dequantise();
            let count = 5;
            let x: Vec<f32> = (0..count * width).map(|k| ((k * 37) % 19) as f32 * 0.1 - 0.9).collect();
            let mut many = vec![f32::NAN; count * rows];
            matmul(&payload, &x, width, &mut many);
            for (x, many) in x.chunks_exact(width).zip(many.chunks_exact(rows)) {
                let mut one = vec![f32::NAN; rows];
                matvec(&payload, x, &mut one);
                for (i, row) in dense.chunks_exact(cols).enumerate() {
                    let exact: f64 = row.iter().zip(x).map(|(w, x)| w * f64::from(*x)).sum();
                    let slack = TOLERANCE * (rank * paths) as f64 * (width as f64).sqrt();
                    for y in [one[i], many[i]] {
                        assert!((f64::from(y) - exact).abs() <= slack, "{rows} x {cols}, {i}: {y}, {exact}");
                    }
                }
            }
        }
    }
}
