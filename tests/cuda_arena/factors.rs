//! Factors, solutions, inverses and polar factors.

use super::*;

#[test]
fn factors_solutions_and_inverses() {
    let Some(card) = card() else { return };
    // From 1,536 on by blocks of panels.
    for n in [1, 63, 64, 65, 200, 577, 1537, 1664] {
        let mut layout = Layout::default();
        let (a, out, work) = (layout.spd(n, 0.1), layout.view(n, n, 0), layout.view(n, n, 0));
        let len = SpdFactor::blocks_len(n);
        let factor = SpdFactor {
            a,
            d: layout.zeros(n),
            blocks: layout.zeros(len),
            inverses: layout.zeros(len),
            status: layout.zeros(1),
            parts: View::EMPTY,
        };
        let (b, x, scratch) = (layout.vector(n), layout.zeros(n), layout.zeros(n));
        let results = layout.both(&card, |arena| {
            spd_factor(arena, &[factor]);
            spd_solve_batch(arena, &[SpdSolve { factor, b, x, work: scratch }]);
            spd_gather(arena, &[factor]);
            triangular_inverse(arena, &[TriangularInverse { factor, out, work }]);
        });
        assert_eq!(results.1[factor.status], 0.0);
        assert_near("L", a, &results, 1e-5);
        assert_near("a solution", View::vector(x, n), &results, 1e-4);
        assert_near("the inverse of L", out, &results, 1e-4);
    }
}

#[test]
fn a_matrix_without_a_factor_says_so_and_leaves_the_solution() {
    let Some(card) = card() else { return };
    let (mut layout, n) = (Layout::default(), 150);
    let a = layout.spd(n, 0.1);
    // Off-diagonal entries that no positive definite matrix has.
    layout.numbers[a.at + 100 * n + 3] = 50.0;
    let len = SpdFactor::blocks_len(n);
    let [d, blocks, inverses, status] = [n, len, len, 1].map(|len| layout.zeros(len));
    let factor = SpdFactor { a, d, blocks, inverses, status, parts: View::EMPTY };
    let (b, x, work) = (layout.vector(n), layout.vector(n), layout.zeros(n));
    let (host, card) = layout.both(&card, |arena| {
        spd_factor(arena, &[factor]);
        spd_solve_batch(arena, &[SpdSolve { factor, b, x, work }]);
    });
    assert!(host[status] > 0.0 && card[status] > 0.0);
    assert_eq!(card[x..x + n], layout.numbers[x..x + n]);
}

#[test]
fn polar_factors_are_orthogonal() {
    let Some(card) = card() else { return };
    for r in [8, 100, 392] {
        let mut layout = Layout::default();
        let [a, x, y, m] = [(); 4].map(|()| layout.view(r, r, 0));
        (0..r).for_each(|i| layout.numbers[a.at + i * r + i] += 2.0);
        let (done, status) = (layout.zeros(1), layout.zeros(1));
        let results = layout.both(&card, |arena| {
            polar_batch(arena, &[Polar { a, x, y, m, done, status, parts: View::EMPTY }])
        });
        assert_eq!((results.1[done], results.1[status]), (1.0, 0.0));
        assert_near("the polar factor", x, &results, 1e-3);
    }
}

#[test]
fn polar_factors_that_fill_a_card_are_orthogonal() {
    let Some(card) = card() else { return };
    let r = 1304;
    let mut layout = Layout::default();
    let [a, x, y, m] = [(); 4].map(|()| layout.view(r, r, 0));
    (0..r).for_each(|i| layout.numbers[a.at + i * r + i] += 8.0);
    let (done, status) = (layout.zeros(1), layout.zeros(1));
    let parts = View::vector(layout.zeros(4), 4);
    let polar = Polar { a, x, y, m, done, status, parts };
    let results = layout.both(&card, |arena| {
        polar_batch(arena, &[polar]);
        gemm(arena, &[Gemm::new(x, x, m).a_transposed()]);
    });
    assert_eq!((results.1[done], results.1[status]), (1.0, 0.0));
    // Steps in TF32 leave the rotation off by their rounding, its columns orthogonal.
    assert_near("the polar factor", x, &results, 5e-3);
    let apart = |(i, j): (usize, usize)| results.1[m.at + i * r + j] - if i == j { 1.0 } else { 0.0 };
    let sum: f32 = (0..r * r).map(|k| apart((k / r, k % r)).powi(2)).sum();
    assert!(sum.sqrt() <= 1e-5 * (r as f32).sqrt(), "{}", sum.sqrt());
}
