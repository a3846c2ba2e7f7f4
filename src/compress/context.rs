use faer::linalg::triangular_inverse::invert_lower_triangular;
use faer::{Mat, MatRef, Side, get_global_parallelism};

/// Tries at most, each with ten times the damping of the one before.
const MAX_TRIES: usize = 10;

/// What the encoder needs to know about a layer's input; built once and shared by the layers that read that input.
///
/// | symbol | field | shape |
/// |---|---|---|
/// | H̃ = H + ρ·(tr H/n)·I | `damped` | n x n |
/// | L, H̃ = LLᵀ | `cholesky` | n x n lower |
/// | π | `order` | n; descending diagonal of H̃, ties by index |
/// | Rᵀ, (H̃_ππ)⁻¹ = RᵀR | `r_transposed` | n x n lower, rows and columns in the order π |
pub struct Context {
    pub damped: Mat<f64>,
    pub cholesky: Mat<f64>,
    pub order: Vec<usize>,
    pub r_transposed: Mat<f64>,
    /// The damping ρ that made H̃ positive definite.
    pub damping: f64,
    /// Tries it took; 1 when the first damping served.
    pub tries: usize,
}

#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum ContextError {
    #[error(
        "the Gram has a non-finite entry at ({row}, {col}); look for NaN or infinite activations in the calibration"
    )]
    NotFinite { row: usize, col: usize },
    #[error("the Gram is zero: the calibration text never reached this input")]
    Zero,
    #[error("the Gram is not positive definite after {tries} tries, the last with damping {damping:e}")]
    NotPositiveDefinite { tries: usize, damping: f64 },
}

impl Context {
    /// Factors the damped Gram, with growing damping where it is not positive definite.
    ///
    /// `gram` is n x n, symmetric; `damping` is ρ, relative to the mean of the diagonal. Cost: about n³.
    pub fn build(gram: &Mat<f64>, damping: f64) -> Result<Self, ContextError> {
        let factors = |damped: &Mat<f64>| {
            let order = descending_diagonal(damped);
            let cholesky = lower_cholesky(damped.as_ref())?;
            inverse_factor(damped, &order).map(|r_transposed| (cholesky, order, r_transposed))
        };
        let Damped { damped, factors, damping, tries, .. } = damp(gram, damping, factors)?;
        let (cholesky, order, r_transposed) = factors;
        Ok(Self { damped, cholesky, order, r_transposed, damping, tries })
    }

    /// The metric of the data-free baseline: H̃ = I.
    pub fn identity(n: usize) -> Self {
        let one = Mat::identity(n, n);
        Self {
            damped: one.clone(),
            cholesky: one.clone(),
            order: (0..n).collect(),
            r_transposed: one,
            damping: 0.0,
            tries: 1,
        }
    }

    pub fn width(&self) -> usize {
        self.order.len()
    }
}

/// H̃ = H + ridge·I, and what it was factored into.
pub(super) struct Damped<F> {
    pub damped: Mat<f64>,
    pub factors: F,
    /// ρ·tr H/n
    pub ridge: f64,
    pub damping: f64,
    pub tries: usize,
}

/// Damps a Gram until `factor` succeeds, with ten times the damping at each further try.
pub(super) fn damp<F>(
    gram: &Mat<f64>,
    damping: f64,
    factor: impl Fn(&Mat<f64>) -> Option<F>,
) -> Result<Damped<F>, ContextError> {
    let n = gram.nrows();
    for col in 0..n {
        if let Some(row) = gram.col(col).iter().position(|v| !v.is_finite()) {
            return Err(ContextError::NotFinite { row, col });
        }
    }
    let mean = (0..n).map(|j| gram[(j, j)]).sum::<f64>() / n as f64;
    if mean <= 0.0 {
        return Err(ContextError::Zero);
    }
    let mut rho = damping;
    for tries in 1..=MAX_TRIES {
        let ridge = rho * mean;
        let damped = Mat::from_fn(n, n, |i, j| gram[(i, j)] + if i == j { ridge } else { 0.0 });
        if let Some(factors) = factor(&damped) {
            return Ok(Damped { damped, factors, ridge, damping: rho, tries });
        }
        if tries < MAX_TRIES {
            rho = (rho * 10.0).max(1e-6);
        }
    }
    Err(ContextError::NotPositiveDefinite { tries: MAX_TRIES, damping: rho })
}

fn descending_diagonal(a: &Mat<f64>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..a.nrows()).collect();
    order.sort_by(|&i, &j| a[(j, j)].total_cmp(&a[(i, i)]));
    order
}

fn lower_cholesky(a: MatRef<'_, f64>) -> Option<Mat<f64>> {
    let l = a.llt(Side::Lower).ok()?.L().to_owned();
    let finite = (0..l.nrows()).all(|j| l[(j, j)].is_finite() && l[(j, j)] > 0.0);
    finite.then_some(l)
}

/// Rᵀ. With J the reversal, `J H̃_ππ J = C Cᵀ` gives `H̃_ππ = T Tᵀ` for the upper triangular `T = J C J`, so R = T⁻¹
/// and `Rᵀ = J C⁻ᵀ J`.
fn inverse_factor(damped: &Mat<f64>, order: &[usize]) -> Option<Mat<f64>> {
    let n = order.len();
    let reversed = Mat::from_fn(n, n, |i, j| damped[(order[n - 1 - i], order[n - 1 - j])]);
    let c = lower_cholesky(reversed.as_ref())?;
    let mut inverse = Mat::zeros(n, n);
    invert_lower_triangular(inverse.as_mut(), c.as_ref(), get_global_parallelism());
    Some(Mat::from_fn(n, n, |i, j| if i >= j { inverse[(n - 1 - j, n - 1 - i)] } else { 0.0 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gram(n: usize) -> Mat<f64> {
        let x =
            Mat::from_fn(n, 2 * n, |i, j| (((i * 29 + j * 31) % 17) as f64 - 8.0) / (1.0 + (i % 5) as f64));
        &x * x.transpose()
    }

    #[test]
    fn factors_reproduce_the_damped_gram_and_its_inverse() {
        let n = 12;
        let context = Context::build(&gram(n), 0.03).unwrap();
        let product = &context.cholesky * context.cholesky.transpose();
        let permuted = Mat::from_fn(n, n, |i, j| context.damped[(context.order[i], context.order[j])]);
        let r = context.r_transposed.transpose();
        let identity = permuted * (context.r_transposed.as_ref() * r);
        for i in 0..n {
            for j in 0..n {
                assert!((product[(i, j)] - context.damped[(i, j)]).abs() < 1e-11 * context.damped.norm_max());
                assert!((identity[(i, j)] - f64::from(u8::from(i == j))).abs() < 1e-10);
                assert!(i <= j || r[(i, j)] == 0.0);
            }
        }
        assert!(
            context.order.windows(2).all(|w| context.damped[(w[0], w[0])] >= context.damped[(w[1], w[1])])
        );
    }

    #[test]
    fn bad_grams_say_what_is_wrong() {
        let mut bad = gram(4);
        bad[(2, 1)] = f64::NAN;
        assert_eq!(Context::build(&bad, 0.03).err(), Some(ContextError::NotFinite { row: 2, col: 1 }));
        assert_eq!(Context::build(&Mat::zeros(4, 4), 0.03).err(), Some(ContextError::Zero));
        // Eigenvalue −4: the dampings 0.03, 0.3 and 3 do not reach it, 30 does.
        let mut indefinite = Mat::<f64>::identity(4, 4);
        indefinite[(0, 1)] = 5.0;
        indefinite[(1, 0)] = 5.0;
        let context = Context::build(&indefinite, 0.03).unwrap();
        assert_eq!((context.tries, context.damping), (4, 30.0));
    }

    #[test]
    fn dead_columns_are_carried_by_the_damping() {
        let mut dead = gram(8);
        for k in 0..8 {
            dead[(3, k)] = 0.0;
            dead[(k, 3)] = 0.0;
        }
        assert_eq!(Context::build(&dead, 0.03).unwrap().order[7], 3);
    }
}
