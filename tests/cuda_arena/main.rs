//! The encoder's ops on a CUDA card give what they give on the host.
#![cfg(feature = "cuda")]

#[path = "../common/mod.rs"]
mod common;
mod factors;

use lapidary::device::Device;
use lapidary::device::arena::{Arena, View};
use lapidary::device::cuda::{Buffer, EigenSolver, Eigenproblem, Stream};
use lapidary::ops::column_search_batch::{ColumnSearchItem, column_search_batch};
use lapidary::ops::dots::{Dots, PARTS, col_dots, inner, row_dots, total};
use lapidary::ops::gather::{Gather, Order, gather};
use lapidary::ops::gauge_rows::{GaugeRows, gauge_rows};
use lapidary::ops::gemm::{Gemm, gemm};
use lapidary::ops::gemm_library::parts_tolerance;
use lapidary::ops::pair_solve::{PairSolve, Unknown, pair_solve};
use lapidary::ops::polar_batch::{Polar, polar_batch};
use lapidary::ops::rank_one_batch::{RankOne, rank_one_batch};
use lapidary::ops::row_flips::{RowFlips, row_flips_batch};
use lapidary::ops::scale::{Scale, scale};
use lapidary::ops::spd_factor::{
    SpdFactor, SpdSolve, TriangularInverse, spd_factor, spd_gather, spd_solve_batch, triangular_inverse,
};

/// Inputs of a test: places in an arena, and what is there.
#[derive(Default)]
struct Layout {
    numbers: Vec<f32>,
    seed: u64,
}

impl Layout {
    /// A number in (-1, 1).
    fn random(&mut self) -> f32 {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.seed >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// A matrix whose rows are `gap` further apart than they are long, at a place that is no multiple of four where the
    /// gap is not.
    fn view(&mut self, rows: usize, cols: usize, gap: usize) -> View {
        self.numbers.resize(self.numbers.len().next_multiple_of(4) + gap % 4, 0.0);
        let view = View { at: self.numbers.len(), rows, cols, stride: cols + gap };
        for _ in 0..view.span() {
            let value = self.random();
            self.numbers.push(value);
        }
        view
    }

    fn vector(&mut self, len: usize) -> usize {
        self.view(1, len, 0).at
    }

    fn zeros(&mut self, len: usize) -> usize {
        let at = self.vector(len);
        self.numbers[at..at + len].fill(0.0);
        at
    }

    fn signs(&mut self, rows: usize, cols: usize) -> View {
        let view = self.view(rows, cols, 0);
        self.numbers[view.at..view.at + view.span()].iter_mut().for_each(|s| *s = s.signum());
        view
    }

    /// `Aᵀ·A/rows + shift·I` for a random A.
    fn spd(&mut self, n: usize, shift: f32) -> View {
        let a = self.view(2 * n, n, 0);
        let view = self.view(n, n, 0);
        let row = |i: usize| a.at + i * n..a.at + (i + 1) * n;
        let mut product = vec![0.0_f64; n * n];
        for i in 0..2 * n {
            let row = &self.numbers[row(i)];
            for j in 0..n {
                let x = f64::from(row[j]);
                product[j * n..(j + 1) * n].iter_mut().zip(row).for_each(|(p, y)| *p += x * f64::from(*y));
            }
        }
        for (k, p) in product.iter().enumerate() {
            self.numbers[view.at + k] = (p / n as f64) as f32 + if k / n == k % n { shift } else { 0.0 };
        }
        view
    }

    fn run(&self, device: &Device, ops: &impl Fn(&mut Arena)) -> Vec<f32> {
        let mut arena = Arena::new(device, self.numbers.len()).unwrap();
        arena.write(0, &self.numbers);
        ops(&mut arena);
        arena.read(0, self.numbers.len()).unwrap()
    }

    /// The whole arena after the ops, on the host and on the card.
    fn both(&self, card: &Device, ops: impl Fn(&mut Arena)) -> (Vec<f32>, Vec<f32>) {
        (self.run(&Device::Host, &ops), self.run(card, &ops))
    }
}

fn card() -> Option<Device> {
    common::cuda().map(Device::Cuda)
}

fn entries(numbers: &[f32], view: View) -> Vec<f32> {
    (0..view.rows)
        .flat_map(|i| &numbers[view.at + i * view.stride..view.at + i * view.stride + view.cols])
        .copied()
        .collect()
}

/// ‖a − b‖/‖a‖
fn difference(a: &[f32], b: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let apart = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    apart / norm(&mut a.iter().map(|a| f64::from(*a))).max(1e-30)
}

fn assert_near(what: &str, view: View, (host, card): &(Vec<f32>, Vec<f32>), tolerance: f64) {
    let apart = difference(&entries(host, view), &entries(card, view));
    assert!(apart <= tolerance, "{what} of {}x{}: {apart:.2e} apart", view.rows, view.cols);
}

#[test]
fn products_of_every_kind() {
    let Some(card) = card() else { return };
    for (m, n, k, gap) in
        [(5, 3, 7, 0), (64, 64, 64, 4), (130, 65, 33, 1), (576, 640, 100, 0), (700, 513, 129, 3)]
    {
        let mut layout = Layout::default();
        let mut cases = Vec::new();
        for kind in 0..4 {
            let a = if kind & 1 == 0 { layout.view(m, k, gap) } else { layout.view(k, m, gap) };
            let b = if kind & 2 == 0 { layout.view(k, n, gap) } else { layout.view(n, k, gap) };
            let (c, h) = (layout.view(m, n, gap), layout.view(m, n, gap));
            let plain = Gemm::new(a, b, c);
            let plain = if kind & 1 == 0 { plain } else { plain.a_transposed() };
            let plain = if kind & 2 == 0 { plain } else { plain.b_transposed() };
            cases.push(match kind {
                0 => (plain.alpha(-0.5).beta(2.0), c),
                1 => (plain.hadamard(h), c),
                2 => (plain.diagonal(1.5), c),
                _ => (plain.sign(), c),
            });
        }
        let skipped = layout.view(m, n, 0);
        let (a, one) = (layout.view(m, k, gap), layout.signs(1, 1));
        let items: Vec<_> = cases.iter().map(|(item, _)| *item).collect();
        let b = layout.view(k, n, 0);
        let results = layout.both(&card, |arena| {
            gemm(arena, &items);
            gemm(arena, &[Gemm::new(a, b, skipped).skip(one.at)]);
        });
        for (item, c) in &cases {
            let tolerance = if format!("{item:?}").contains("flags: 11") { 0.05 } else { 1e-5 };
            assert_near(&format!("{item:?}"), *c, &results, tolerance);
        }
        assert_eq!(entries(&results.1, skipped), entries(&layout.numbers, skipped));
    }
}

#[test]
fn a_lower_product_is_right_below_the_diagonal() {
    let Some(card) = card() else { return };
    for n in [70, 600] {
        let mut layout = Layout::default();
        let (a, c) = (layout.view(n, 64, 0), layout.view(n, n, 0));
        let (host, card) =
            layout.both(&card, |arena| gemm(arena, &[Gemm::new(a, a, c).b_transposed().lower()]));
        for i in 0..n {
            let row = c.part((i, 0), (1, i + 1));
            assert!(difference(&entries(&host, row), &entries(&card, row)) < 1e-5, "row {i}");
        }
    }
}

#[test]
fn results_do_not_depend_on_what_else_is_in_a_table() {
    let Some(card) = card() else { return };
    let mut layout = Layout::default();
    let sizes = [(60, 70, 80), (600, 520, 300), (512, 300, 700)];
    let items: Vec<_> = sizes
        .map(|(m, n, k)| {
            let c = layout.view(m, n, 0);
            (Gemm::new(layout.view(m, k, 0), layout.view(k, n, 0), c), c)
        })
        .into();
    let together =
        layout.run(&card, &|arena| gemm(arena, &items.iter().map(|item| item.0).collect::<Vec<_>>()));
    for (item, c) in &items {
        let alone = layout.run(&card, &|arena| gemm(arena, &[*item]));
        assert_eq!(entries(&alone, *c), entries(&together, *c));
    }
}

#[test]
fn entries_rows_and_columns() {
    let Some(card) = card() else { return };
    for (m, n, gap) in [(3, 5, 1), (100, 200, 0), (257, 129, 3)] {
        let mut layout = Layout::default();
        let [a, b, scaled, added, gathered, z, w] = [(); 7].map(|()| layout.view(m, n, gap));
        let turned = layout.view(n, m, gap);
        let (row, col) = (layout.vector(m), layout.vector(n));
        let (by_row, by_col, parts) = (layout.zeros(m), layout.zeros(n), layout.zeros(PARTS));
        let (rows, cols) = (layout.zeros(m), layout.zeros(n));
        (0..m).for_each(|i| layout.numbers[rows + i] = ((i * 7 + 3) % m) as f32);
        (0..n).for_each(|j| layout.numbers[cols + j] = (n - 1 - j) as f32);
        layout.numbers[a.at..a.at + n].fill(0.0);
        let results = layout.both(&card, |arena| {
            scale(
                arena,
                &[Scale::new(a, scaled).rows(row).cols(col).sign(), Scale::new(b, added).cols(col).add()],
            );
            let straight =
                Gather { a: b, out: gathered, rows: Some(rows), cols: Some(cols), order: Order::Straight };
            let turned =
                Gather { a: b, out: turned, rows: Some(cols), cols: Some(rows), order: Order::Transposed };
            gather(arena, &[straight, turned]);
            let dots = |out| [Dots { a, b, out }];
            row_dots(arena, &dots(by_row));
            col_dots(arena, &dots(by_col));
            inner(arena, &dots(parts));
            gauge_rows(arena, &[GaugeRows { a, weights: Some(row), normalised: z, weighted: w }]);
        });
        assert_near("scale", scaled, &results, 0.0);
        assert_near("scale, added", added, &results, 1e-7);
        assert_near("gather", gathered, &results, 0.0);
        assert_near("gather, transposed", turned, &results, 0.0);
        assert_near("row dots", View::vector(by_row, m), &results, 1e-6);
        assert_near("column dots", View::vector(by_col, n), &results, 1e-6);
        let sum = |numbers: &[f32]| total(&numbers[parts..parts + PARTS]);
        assert!((sum(&results.0) - sum(&results.1)).abs() < 1e-3, "inner products");
        assert_near("normalised rows", z, &results, 1e-6);
        assert_near("weighted rows", w, &results, 1e-6);
    }
}

#[test]
fn systems_of_order_one_and_two() {
    let Some(card) = card() else { return };
    let (mut layout, rows) = (Layout::default(), 1000);
    let [p, q, a, b, d, x, y, alone] = [(); 8].map(|()| layout.vector(rows));
    (0..rows).for_each(|i| layout.numbers[a + i] += 1.0 + f32::from(u8::from(i % 3 == 0)));
    let first = Unknown { rhs: p, diagonal: a, x };
    let second = Some((Unknown { rhs: q, diagonal: d, x: y }, b));
    let results = layout.both(&card, |arena| {
        let one = PairSolve { rows, first: Unknown { x: alone, ..first }, second: None };
        pair_solve(arena, &[PairSolve { rows, first, second }, one]);
    });
    for at in [x, y, alone] {
        assert_near("a solution", View::vector(at, rows), &results, 1e-3);
    }
}

/// Sums of products of random numbers, against the host's.
#[test]
fn large_products_in_parts_lose_what_tensor_cores_cut_off_and_no_more() {
    let Some(card) = card() else { return };
    let (m, n, k) = (1400, 1304, 1304);
    let mut layout = Layout::default();
    let (a, b, s) = (layout.view(m, k, 0), layout.view(k, n, 8), layout.signs(n, k));
    let [c, signed, h, masked, flipped] = [(); 5].map(|()| layout.view(m, n, 0));
    // Tall enough for bands.
    let (lower, left) = (layout.view(2112, 2112, 0), layout.view(2112, 512, 0));
    let room = 2 * (m + n) * k + 64;
    let parts = View::vector(layout.zeros(room), room);
    let results = layout.both(&card, |arena| {
        let product = |b: View, c: View| Gemm::new(a, b, c).in_parts(parts);
        let products = [
            product(b, c).alpha(0.5).beta(2.0),
            product(s, signed).b_transposed().b_signs(),
            product(b, masked).hadamard(h),
            product(b, flipped).sign(),
            Gemm::new(left, left, lower).b_transposed().lower().in_parts(parts),
        ];
        gemm(arena, &products);
    });
    for (what, view) in [("C", c), ("C of signs", signed), ("C o H", masked)] {
        assert_near(what, view, &results, parts_tolerance(k));
    }
    assert!(signs_apart(flipped, &results) < 1e-5);
    for i in (0..2112).step_by(37) {
        assert_near("a row of the lower product", lower.part((i, 0), (1, i + 1)), &results, 1e-5);
    }
}

#[test]
fn rank_one_fits() {
    let Some(card) = card() else { return };
    for (m, r) in [(9, 4), (600, 392), (300, 1100)] {
        let mut layout = Layout::default();
        let a = layout.view(m, r, 0);
        let (x, lambda, next) = (layout.zeros(m), layout.zeros(r), layout.zeros(r));
        let results = layout.both(&card, |arena| rank_one_batch(arena, &[RankOne { a, x, lambda, next }]));
        assert_near("x", View::vector(x, m), &results, 1e-5);
        assert_near("lambda", View::vector(lambda, r), &results, 1e-5);
    }
}

/// Share of signs that differ.
fn signs_apart(view: View, (host, card): &(Vec<f32>, Vec<f32>)) -> f64 {
    let (host, card) = (entries(host, view), entries(card, view));
    host.iter().zip(&card).filter(|(a, b)| a != b).count() as f64 / host.len() as f64
}

#[test]
fn flips_of_rows() {
    let Some(card) = card() else { return };
    for (m, r) in [(5, 8), (300, 192), (70, 392), (20, 700), (9, 1400), (3, 2100)] {
        let mut layout = Layout::default();
        let (q, c, signs) = (layout.spd(r, 0.0), layout.view(m, r, 0), layout.signs(m, r));
        let (sq, scale, flips) = (layout.view(m, r, 0), layout.vector(m), layout.zeros(m));
        let item = RowFlips { signs, scale, q, sq, c, flips };
        let results = layout.both(&card, |arena| {
            gemm(arena, &[Gemm::new(signs, q, sq)]);
            row_flips_batch(arena, &[item]);
        });
        assert!(results.0[flips..flips + m].iter().sum::<f32>() > 0.0);
        let apart = signs_apart(signs, &results);
        assert!(apart <= 1e-2, "{m}x{r}: {apart} of the signs differ");
    }
}

#[test]
fn column_searches() {
    let Some(card) = card() else { return };
    for (n, r) in [(5, 8), (200, 64), (140, 250), (130, 400), (20, 500), (12, 1000), (6, 1400), (3, 2100)] {
        let mut layout = Layout::default();
        let (k, b, signs) = (layout.spd(r, 0.0), layout.view(n, r, 0), layout.signs(n, r));
        let (ks, errors, r_transposed) = (layout.view(n, r, 0), layout.view(128, r, 0), layout.view(n, n, 0));
        for i in 0..n {
            for j in 0..n {
                let entry = &mut layout.numbers[r_transposed.at + i * n + j];
                *entry = if i == j { 1.0 + 0.5 * entry.abs() } else { *entry * 0.1 };
            }
        }
        let (scale, flips) = (layout.zeros(n), layout.zeros(n));
        let item =
            ColumnSearchItem { signs, b, k, r_transposed, scale, flips, ks, errors, parts: View::EMPTY };
        let results = layout.both(&card, |arena| column_search_batch(arena, &[item]));
        assert!(results.0[flips..flips + n].iter().sum::<f32>() > 0.0);
        let first = View { rows: 1, ..signs };
        assert!(signs_apart(first, &results) <= 1e-2, "the first column of {n}x{r}");
        // A column that went another way changes all later ones: what counts is the sum of the scales.
        let sum = |numbers: &[f32]| numbers[scale..scale + n].iter().map(|g| f64::from(*g)).sum::<f64>();
        let (host, card) = (sum(&results.0), sum(&results.1));
        assert!((host - card).abs() <= 0.02 * host.abs(), "scales of {n}x{r}: {host} and {card}");
    }
}

#[test]
fn repetitions_are_recorded_and_replayed() {
    let Some(card) = card() else { return };
    for times in [0, 1, 2, 7, 100, 301] {
        let mut layout = Layout::default();
        let (a, sum) = (layout.view(10, 10, 0), layout.zeros(100));
        let results = layout.both(&card, |arena| {
            arena.repeat(times, |arena| scale(arena, &[Scale::new(a, View::new(sum, 10, 10)).add()]));
        });
        assert_near("a sum", View::new(sum, 10, 10), &results, 1e-5);
    }
}

#[test]
fn eigenpairs_of_several_matrices() {
    let Some(cuda) = common::cuda() else { return };
    let mut layout = Layout::default();
    let mut solver = EigenSolver::new(&cuda);
    let orders = [1, 8, 100, 64, 100, 7, 33, 50, 100, 3];
    let starts: Vec<Vec<f64>> = (orders.iter())
        .map(|n| {
            let view = layout.spd(*n, 0.0);
            entries(&layout.numbers, view).into_iter().map(f64::from).collect()
        })
        .collect();
    let stream = Stream::new(&cuda).unwrap();
    let buffers: Vec<_> = (orders.iter().zip(&starts))
        .map(|(n, start)| {
            (Buffer::from_slice(&stream, start).unwrap(), Buffer::<f64>::new(&cuda, *n).unwrap())
        })
        .collect();
    let problems: Vec<_> = (orders.iter().zip(&buffers))
        .map(|(n, (matrix, values))| Eigenproblem {
            order: *n,
            matrix: matrix.address(),
            values: values.address(),
        })
        .collect();
    // SAFETY: each buffer has the length that its order says.
    assert!(unsafe { solver.solve(&problems) }.unwrap().iter().all(|converged| *converged));
    for ((n, start), (matrix, values)) in orders.iter().zip(&starts).zip(&buffers) {
        let (n, matrix) = (*n, matrix.to_vec(&stream, n * n).unwrap());
        let values = values.to_vec(&stream, n).unwrap();
        assert!(values.is_sorted());
        for (vector, value) in matrix.chunks(n).zip(&values) {
            for i in 0..n {
                let product: f64 = (0..n).map(|j| start[i.max(j) * n + i.min(j)] * vector[j]).sum();
                assert!((product - value * vector[i]).abs() < 1e-6, "order {n}");
            }
        }
    }
}

#[test]
fn many_tables_go_round_the_ring() {
    let Some(card) = card() else { return };
    let mut layout = Layout::default();
    let (a, sum) = (layout.view(4, 4, 0), View::new(layout.zeros(16), 4, 4));
    let items = vec![Scale::new(a, sum); 40_000];
    let one = layout.view(4, 4, 0);
    let results = layout.both(&card, |arena| {
        for _ in 0..40 {
            scale(arena, &items);
            scale(arena, &[Scale::new(one, sum).add()]);
        }
        arena.repeat(3, |arena| {
            for _ in 0..3 {
                scale(arena, &items);
            }
            scale(arena, &[Scale::new(one, sum).add()]);
        });
        // More than one chunk holds.
        scale(arena, &vec![Scale::new(one, one); 200_000]);
    });
    assert_near("a sum", sum, &results, 0.0);
}
