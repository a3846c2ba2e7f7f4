use lapidary::device::arena::View;
use lapidary::ops::spd_factor::{
    RIDGE, SpdFactor, SpdSolve, TriangularInverse, spd_factor, spd_gather, spd_solve_batch,
    triangular_inverse,
};

use super::{Given, Sheet, assert_close, on_every_device};

/// Orders around one, two and three panels.
const ORDERS: [usize; 6] = [1, 5, 64, 65, 150, 200];

/// Well-conditioned and symmetric, its unknowns of very different size.
fn spd(sheet: &mut Sheet, n: usize) -> Given {
    let x = sheet.random(n, n);
    let size = |i: usize| 10f64.powi((i % 7) as i32 - 3);
    sheet.matrix(n, n, |i, j| {
        let product: f64 = (0..n).map(|k| x.at(i, k) * x.at(j, k)).sum::<f64>() / n as f64;
        (product + if i == j { 1.0 } else { 0.0 }) * size(i) * size(j)
    })
}

fn problem(sheet: &mut Sheet, a: View) -> SpdFactor {
    let n = a.rows;
    let room = SpdFactor::blocks_len(n);
    SpdFactor {
        a,
        d: sheet.room(n),
        blocks: sheet.room(room),
        inverses: sheet.room(room),
        status: sheet.room(1),
        parts: View::EMPTY,
    }
}

/// L of D A D + ridge, row by row, in f64.
fn factor(a: &Given) -> Vec<Vec<f64>> {
    let n = a.view.rows;
    let d: Vec<f64> = (0..n).map(|i| a.at(i, i).sqrt().recip()).collect();
    let mut l = vec![vec![0.0; n]; n];
    for i in 0..n {
        for j in 0..=i {
            let entry = if i == j { 1.0 + f64::from(RIDGE) } else { d[i] * a.at(i, j) * d[j] };
            let rest = entry - (0..j).map(|k| l[i][k] * l[j][k]).sum::<f64>();
            l[i][j] = if i == j { rest.sqrt() } else { rest / l[j][j] };
        }
    }
    l
}

#[test]
fn factors_solutions_and_inverses() {
    on_every_device(|sheet| {
        let items: Vec<_> = ORDERS
            .map(|n| {
                let a = spd(sheet, n);
                let problem = problem(sheet, a.view);
                let solve = SpdSolve {
                    factor: problem,
                    b: sheet.vector(n).view.at,
                    x: sheet.room(n),
                    work: sheet.room(n),
                };
                let inverse =
                    TriangularInverse { factor: problem, out: sheet.blank(n, n), work: sheet.blank(n, n) };
                (a, problem, solve, inverse)
            })
            .into();
        let problems: Vec<_> = items.iter().map(|item| item.1).collect();
        spd_factor(&mut sheet.arena, &problems);
        spd_solve_batch(&mut sheet.arena, &items.iter().map(|item| item.2).collect::<Vec<_>>());
        spd_gather(&mut sheet.arena, &problems);
        triangular_inverse(&mut sheet.arena, &items.iter().map(|item| item.3).collect::<Vec<_>>());
        for (a, problem, solve, inverse) in &items {
            let (n, l) = (a.view.rows, factor(a));
            assert_eq!(sheet.read_vector(problem.status, 1), [0.0]);
            assert_close(&sheet.read(problem.a), problem.a, 1e-5, |i, j| l[i][j]);
            check_solution(sheet, a, solve);
            let m = sheet.read(inverse.out);
            for (i, j) in (0..n).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let one: f64 = (j..=i).map(|k| l[i][k] * m[k * n + j]).sum();
                assert!((one - if i == j { 1.0 } else { 0.0 }).abs() < 1e-4, "order {n} ({i}, {j}): {one}");
                assert!(j <= i || m[i * n + j] == 0.0, "order {n} ({i}, {j})");
            }
        }
    });
}

/// `D A D (x/D) = D b` to a part of the rounding and the ridge.
fn check_solution(sheet: &mut Sheet, a: &Given, solve: &SpdSolve) {
    let n = a.view.rows;
    let (x, b) = (sheet.read_vector(solve.x, n), sheet.read_vector(solve.b, n));
    for (i, b) in b.iter().enumerate() {
        let d = a.at(i, i).sqrt().recip();
        let product: f64 = (0..n).map(|j| a.at(i, j) * x[j]).sum();
        let size: f64 = (0..n).map(|j| (a.at(i, j) * x[j]).abs()).sum();
        assert!((product - b).abs() * d < 1e-4 * (size + b.abs()) * d, "order {n}, row {i}");
    }
}

#[test]
fn a_pivot_that_is_not_positive_is_told_and_nothing_is_solved() {
    on_every_device(|sheet| {
        let n = 150;
        let mut cases = Vec::new();
        for bad in [3, 100] {
            let a = spd(sheet, n);
            // Row `bad` repeats row 0 with a larger entry between them: indefinite, its diagonal positive.
            let large = 2.0 * (a.at(0, 0) * a.at(bad, bad)).sqrt();
            let between = |i: usize, j: usize| (i, j) == (bad, 0) || (i, j) == (0, bad);
            cases.push((sheet.fill(a.view, |i, j| if between(i, j) { large } else { a.at(i, j) }), bad));
        }
        for bad in [0, 149] {
            let a = spd(sheet, n);
            let value = if bad == 0 { -1.0 } else { f64::NAN };
            cases.push((
                sheet.fill(a.view, |i, j| if i == bad && j == bad { value } else { a.at(i, j) }),
                bad,
            ));
        }
        for (a, bad) in cases {
            let factor = problem(sheet, a.view);
            let (b, x, work) = (sheet.vector(n).view.at, sheet.matrix(1, n, |_, _| 0.25), sheet.room(n));
            spd_factor(&mut sheet.arena, &[factor]);
            spd_solve_batch(&mut sheet.arena, &[SpdSolve { factor, b, x: x.view.at, work }]);
            assert_eq!(sheet.read_vector(factor.status, 1), [(bad + 1) as f64]);
            assert_eq!(sheet.read_vector(x.view.at, n), vec![0.25; n]);
        }
    });
}
