use super::Vector;
use crate::ops::splitmix::SplitMix64;

/// Condition below which the smallest pivot alone decides: the estimate may be too small by the order of the system,
/// and 1e3 times any order that fits in memory stays far from where a correction is needed.
const TRUST_PIVOTS: f64 = 1e3;

/// Condition from which triangular solves are followed by one correction. They are backward stable without it; the
/// correction keeps the residual small block by block where blocks differ in scale by as much as the condition.
const CORRECT_FROM: f64 = 1e8;

/// Steps of inverse iteration: the estimate is a lower bound, good to a factor of about 2 after three.
const STEPS: usize = 3;

/// What the estimate needs of a frame.
pub(super) trait Conditioned {
    /// The diagonal of H + ridge.
    fn diagonal(&self) -> Vector;
    /// The smallest squared pivot of the factor of H + ridge, in the order of elimination, relative to its diagonal
    /// entry: in (0, 1], and 1/κ is at most this.
    fn smallest_pivot(&self) -> f64;
    fn solve(&self, rhs: &Vector) -> Vector;
    fn apply(&self, z: &Vector) -> Vector;
}

/// Estimate of the 2-norm condition of `W·H·W` with `W = diag(H)^-½`: the reciprocal of the smallest pivot where that
/// is small, else power iteration for the largest and inverse iteration for the smallest eigenvalue.
pub(super) fn estimate(frame: &impl Conditioned) -> f64 {
    let from_pivots = 1.0 / frame.smallest_pivot();
    if from_pivots < TRUST_PIVOTS {
        return from_pivots;
    }
    let mut root = frame.diagonal();
    root.row.iter_mut().chain(&mut root.border).for_each(|h| *h = h.sqrt());
    let scale = |x: &mut Vector, up: f64| {
        let each = |(x, root): (&mut f64, &f64)| *x *= root.powf(up);
        x.row.iter_mut().zip(&root.row).for_each(each);
        x.border.iter_mut().zip(&root.border).for_each(each);
    };
    let iterate = |up: f64, product: &dyn Fn(&Vector) -> Vector| {
        let mut random = SplitMix64::new(0xC0DE);
        let mut x = root.clone();
        x.row.iter_mut().chain(&mut x.border).for_each(|x| *x = random.signed());
        let mut growth = 0.0;
        for _ in 0..STEPS {
            x = x.scaled(1.0 / x.norm());
            scale(&mut x, up);
            x = product(&x);
            scale(&mut x, up);
            growth = x.norm();
        }
        growth
    };
    let largest = iterate(-1.0, &|x| frame.apply(x));
    let inverse = iterate(1.0, &|x| frame.solve(x));
    // NaN is what an overflow on the way leaves behind.
    let estimate = super::vector::largest([largest * inverse, from_pivots]);
    if estimate.is_nan() { f64::INFINITY } else { estimate }
}

/// Correction steps after triangular solves.
pub(super) fn corrections(condition: f64) -> u32 {
    u32::from(condition >= CORRECT_FROM)
}
