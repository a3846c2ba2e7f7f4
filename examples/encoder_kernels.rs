//! How fast the encoder's kernels run: `cargo run --release --example encoder_kernels -- [auto|cuda|wgpu|host]`.
//!
//! Prints a line for each kernel and shape: milliseconds, and what that is in operations, bytes or flips a second.

use std::time::Instant;

use lapidary::device::arena::{Arena, View};
use lapidary::device::{Device, DevicePolicy, select};
use lapidary::ops::column_search_batch::{ColumnSearchItem, column_search_batch};
use lapidary::ops::dots::{Dots, PARTS, col_dots, inner, row_dots};
use lapidary::ops::gather::{Gather, Order, gather};
use lapidary::ops::gemm::{Gemm, gemm};
use lapidary::ops::polar_batch::{Polar, polar_batch};
use lapidary::ops::rank_one_batch::{RankOne, rank_one_batch};
use lapidary::ops::row_flips::{RowFlips, row_flips_batch};
use lapidary::ops::scale::{Scale, scale};
use lapidary::ops::spd_factor::{SpdFactor, SpdSolve, spd_factor, spd_solve_batch};
use lapidary::ops::splitmix::SplitMix64;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Problems of one shape in a table: m x n of rank r.
struct Shape {
    m: usize,
    n: usize,
    r: usize,
    items: usize,
}

const SHAPES: [Shape; 5] = [
    Shape { m: 1536, n: 576, r: 392, items: 1 },
    Shape { m: 1536, n: 576, r: 392, items: 14 },
    Shape { m: 576, n: 1536, r: 192, items: 14 },
    Shape { m: 4096, n: 11008, r: 1400, items: 1 },
    Shape { m: 11008, n: 4096, r: 2960, items: 1 },
];

/// Random numbers that every arena starts from, repeated.
const NOISE: usize = 1 << 20;

fn main() -> Result<()> {
    let policy: DevicePolicy = std::env::args().nth(1).as_deref().unwrap_or("auto").parse()?;
    let device = select(policy)?.device;
    println!("{}", device.name());
    launches(&device)?;
    for shape in SHAPES {
        println!("# {} x {} of rank {}, {} at once", shape.m, shape.n, shape.r, shape.items);
        let mut bench = Bench::new(&device, shape)?;
        bench.products()?;
        bench.passes()?;
        bench.factors()?;
        bench.polar_factors()?;
        bench.rank_one_fits()?;
        bench.flips_of_rows()?;
        bench.column_searches()?;
    }
    Ok(())
}

/// What one launch costs the host, and what it costs replayed.
fn launches(device: &Device) -> Result<()> {
    let mut arena = Arena::new(device, 4096)?;
    let item = Scale::new(View::new(0, 8, 8), View::new(64, 8, 8));
    scale(&mut arena, &[item]);
    arena.finish()?;
    let count = 20_000;
    let start = Instant::now();
    (0..count).for_each(|_| scale(&mut arena, &[item]));
    let queued = start.elapsed();
    arena.finish()?;
    let done = start.elapsed();
    let start = Instant::now();
    arena.repeat(count, |arena| scale(arena, &[item]));
    arena.finish()?;
    let per_launch = |time: std::time::Duration| time.as_secs_f64() / count as f64 * 1e6;
    println!(
        "launch: {:.2} us to queue, {:.2} us to run, {:.2} us replayed",
        per_launch(queued),
        per_launch(done),
        per_launch(start.elapsed())
    );
    Ok(())
}

/// One arena with the operands of `items` problems.
struct Bench {
    arena: Arena,
    shape: Shape,
    len: usize,
    used: usize,
    /// Where large products take their operands apart.
    parts: View,
}

impl Bench {
    fn new(device: &Device, shape: Shape) -> Result<Self> {
        let Shape { m, n, r, items } = shape;
        let widest = m.max(n);
        let len = 3 * m * n + 2 * widest * widest + 6 * r * widest + 8 * r * r + 64 * widest;
        let mut random = SplitMix64::new(1);
        let noise: Vec<f32> = (0..NOISE).map(|_| random.signed() as f32).collect();
        let len = NOISE + len * items;
        let parts = View::vector(len.next_multiple_of(64), 2 * (m + n) * n + 128);
        let mut arena = Arena::new(device, parts.at + parts.len())?;
        arena.write(0, &noise);
        Ok(Self { arena, shape, len, used: 0, parts })
    }

    /// One matrix for each problem.
    fn views(&mut self, rows: usize, cols: usize) -> Vec<View> {
        (0..self.shape.items)
            .map(|_| {
                let view = View::new(self.used.next_multiple_of(4), rows, cols);
                self.used = view.at + view.len();
                view
            })
            .collect()
    }

    fn vectors(&mut self, len: usize) -> Vec<usize> {
        self.views(1, len).iter().map(|view| view.at).collect()
    }

    /// Fills the arena with noise again.
    fn free(&mut self) {
        self.used = NOISE;
        let noise = |at: usize, len: usize| View::new(at, 1, len);
        for at in (NOISE..self.len).step_by(NOISE) {
            let len = NOISE.min(self.len - at);
            scale(&mut self.arena, &[Scale::new(noise(0, len), noise(at, len))]);
        }
    }

    /// Milliseconds of one run, the mean of several after one that is not counted.
    fn time(&mut self, repeats: usize, run: impl Fn(&mut Arena)) -> Result<f64> {
        run(&mut self.arena);
        self.arena.finish()?;
        let start = Instant::now();
        (0..repeats).for_each(|_| run(&mut self.arena));
        self.arena.finish()?;
        Ok(start.elapsed().as_secs_f64() * 1e3 / repeats as f64)
    }

    fn products(&mut self) -> Result<()> {
        let Shape { m, n, r, items } = self.shape;
        self.free();
        let (w, h, out) = (self.views(m, n), self.views(n, n), self.views(m, n));
        let square = self.views(n, n);
        let (u, v, k) = (self.views(m, r), self.views(n, r), self.views(r, r));
        let ur = self.views(m, r);
        type Make<'a> = &'a dyn Fn(usize) -> Gemm;
        let cases: [(&str, usize, Make<'_>); 6] = [
            ("W H", m * n * n, &|i| Gemm::new(w[i], h[i], out[i])),
            ("W V", m * n * r, &|i| Gemm::new(w[i], v[i], ur[i])),
            ("U V'", m * n * r, &|i| Gemm::new(u[i], v[i], out[i]).b_transposed()),
            ("U'U", m * r * r, &|i| Gemm::new(u[i], u[i], k[i]).a_transposed()),
            ("U K, signs", m * r * r, &|i| Gemm::new(u[i], k[i], ur[i]).sign()),
            ("V V' o H, lower", n * n * r / 2, &|i| {
                Gemm::new(v[i], v[i], square[i]).b_transposed().hadamard(h[i]).lower()
            }),
        ];
        for (name, pairs, make) in cases {
            let products: Vec<_> = (0..items).map(make).collect();
            let apart: Vec<_> = products.iter().map(|product| product.in_parts(self.parts)).collect();
            let (whole, apart) =
                (self.time(5, |arena| gemm(arena, &products))?, self.time(5, |arena| gemm(arena, &apart))?);
            let rate = |ms: f64| 2e-9 * (pairs * items) as f64 / ms;
            println!(
                "gemm {name}: {whole:.3} ms, {:.1} TFLOP/s; in parts {apart:.3} ms, {:.1}",
                rate(whole),
                rate(apart)
            );
        }
        Ok(())
    }

    fn passes(&mut self) -> Result<()> {
        let Shape { m, n, items, .. } = self.shape;
        self.free();
        let (a, b, out) = (self.views(m, n), self.views(m, n), self.views(m, n));
        let (row, col, sums) = (self.vectors(m), self.vectors(n), self.vectors(m.max(n).max(PARTS)));
        let report = |name: &str, ms: f64, matrices: usize| {
            println!("{name}: {ms:.3} ms, {:.0} GB/s", 4e-6 * (matrices * m * n * items) as f64 / ms);
        };
        let all: Vec<_> = (0..items).collect();
        let scales: Vec<_> =
            all.iter().map(|i| Scale::new(a[*i], out[*i]).rows(row[*i]).cols(col[*i])).collect();
        report("scale", self.time(5, |arena| scale(arena, &scales))?, 2);
        let straight =
            |i: usize| Gather { a: a[i], out: out[i], rows: None, cols: None, order: Order::Straight };
        let gathers: Vec<_> = (0..items).map(straight).collect();
        report("gather", self.time(5, |arena| gather(arena, &gathers))?, 2);
        let turned = |g: &Gather| Gather { out: View::new(g.out.at, n, m), order: Order::Transposed, ..*g };
        let turns: Vec<_> = gathers.iter().map(turned).collect();
        report("gather, transposed", self.time(5, |arena| gather(arena, &turns))?, 2);
        let dots: Vec<_> = all.iter().map(|i| Dots { a: a[*i], b: b[*i], out: sums[*i] }).collect();
        report("row_dots", self.time(5, |arena| row_dots(arena, &dots))?, 2);
        report("col_dots", self.time(5, |arena| col_dots(arena, &dots))?, 2);
        report("inner", self.time(5, |arena| inner(arena, &dots))?, 2);
        Ok(())
    }

    fn factors(&mut self) -> Result<()> {
        let Shape { n, items, .. } = self.shape;
        self.free();
        let (start, a) = (self.views(n, n), self.views(n, n));
        let len = SpdFactor::blocks_len(n);
        let [d, b, x, work] = [(); 4].map(|()| self.vectors(n));
        let (blocks, inverses, status) = (self.vectors(len), self.vectors(len), self.vectors(1));
        let factors: Vec<_> = (0..items)
            .map(|i| SpdFactor {
                a: a[i],
                d: d[i],
                blocks: blocks[i],
                inverses: inverses[i],
                status: status[i],
                parts: self.parts,
            })
            .collect();
        let solves: Vec<_> =
            (0..items).map(|i| SpdSolve { factor: factors[i], b: b[i], x: x[i], work: work[i] }).collect();
        // A positive definite start: small noise and a diagonal of 2.
        let small: Vec<f32> = vec![0.1 / (n as f32).sqrt(); n];
        for (start, at) in start.iter().zip(&work) {
            self.arena.write(*at, &small);
            scale(&mut self.arena, &[Scale::new(*start, *start).rows(*at)]);
            let diagonal = View { rows: n, cols: 1, stride: n + 1, ..*start };
            self.arena.write(*at, &vec![2.0; n]);
            let twos = View { at: *at, rows: n, cols: 1, stride: 1 };
            scale(&mut self.arena, &[Scale::new(twos, diagonal)]);
        }
        let copies: Vec<_> = (0..items).map(|i| Scale::new(start[i], a[i])).collect();
        let copy = self.time(3, |arena| scale(arena, &copies))?;
        let ms = self.time(3, |arena| {
            scale(arena, &copies);
            spd_factor(arena, &factors);
        })? - copy;
        let flops = (n * n * n * items) as f64 / 3.0;
        println!("cholesky of order {n}: {ms:.3} ms, {:.1} TFLOP/s", flops * 1e-9 / ms);
        let ms = self.time(3, |arena| spd_solve_batch(arena, &solves))?;
        let bytes = 4.0 * (n * n) as f64;
        println!("spd_solve of order {n}: {ms:.3} ms, {:.0} GB/s each", bytes * 1e-6 / ms);
        let failed: Vec<f32> = status
            .iter()
            .map(|at| self.arena.read(*at, 1).map(|s| s[0]))
            .collect::<std::result::Result<_, _>>()?;
        assert!(failed.iter().all(|status| *status == 0.0), "{failed:?}");
        Ok(())
    }

    fn polar_factors(&mut self) -> Result<()> {
        let Shape { r, items, .. } = self.shape;
        self.free();
        let [a, x, y, m] = [(); 4].map(|()| self.views(r, r));
        let (done, status) = (self.vectors(1), self.vectors(1));
        status.iter().for_each(|at| self.arena.write(*at, &[0.0]));
        let items: Vec<_> = (0..items)
            .map(|i| Polar {
                a: a[i],
                x: x[i],
                y: y[i],
                m: m[i],
                done: done[i],
                status: status[i],
                parts: self.parts,
            })
            .collect();
        let ms = self.time(2, |arena| polar_batch(arena, &items))?;
        println!("polar factors of order {r}: {ms:.3} ms");
        let ms = self.time(1, |arena| arena.repeat(50, |arena| polar_batch(arena, &items)))?;
        println!("polar factors of order {r}, 50 times, replayed: {:.3} ms each", ms / 50.0);
        Ok(())
    }

    fn rank_one_fits(&mut self) -> Result<()> {
        let Shape { m, r, items, .. } = self.shape;
        self.free();
        let (a, x, lambda, next) = (self.views(m, r), self.vectors(m), self.vectors(r), self.vectors(r));
        let items: Vec<_> =
            (0..items).map(|i| RankOne { a: a[i], x: x[i], lambda: lambda[i], next: next[i] }).collect();
        let ms = self.time(2, |arena| rank_one_batch(arena, &items))?;
        println!("rank_one of {m} x {r}: {ms:.3} ms");
        Ok(())
    }

    /// Makes K = A'A/m of random A, with columns that get smaller.
    fn grams(&mut self, a: &[View], k: &[View]) {
        let r = self.shape.r;
        let decay: Vec<f32> = (0..r).map(|i| 1.0 / (1.0 + i as f32 / 16.0).sqrt()).collect();
        let at = self.vectors(r)[0];
        self.arena.write(at, &decay);
        let scales: Vec<_> = a.iter().map(|a| Scale::new(*a, *a).cols(at)).collect();
        scale(&mut self.arena, &scales);
        let products: Vec<_> = a
            .iter()
            .zip(k)
            .map(|(a, k)| Gemm::new(*a, *a, *k).a_transposed().alpha(1.0 / a.rows as f32))
            .collect();
        gemm(&mut self.arena, &products);
    }

    fn flips(&mut self, counts: &[usize], len: usize) -> Result<f64> {
        let mut sum = 0.0;
        for at in counts {
            sum += self.arena.read(*at, len)?.iter().map(|flips| f64::from(*flips)).sum::<f64>();
        }
        Ok(sum)
    }

    fn flips_of_rows(&mut self) -> Result<()> {
        let Shape { m, r, items, .. } = self.shape;
        self.free();
        let (a, q, c, sq) = (self.views(m, r), self.views(r, r), self.views(m, r), self.views(m, r));
        let (signs, scales, flips) = (self.views(m, r), self.vectors(m), self.vectors(m));
        self.grams(&a, &q);
        let starts: Vec<_> = (0..items).map(|i| Scale::new(signs[i], signs[i]).sign()).collect();
        scale(&mut self.arena, &starts);
        scales.iter().for_each(|at| self.arena.write(*at, &vec![1.0; m]));
        let problems: Vec<_> = (0..items)
            .map(|i| RowFlips {
                signs: signs[i],
                scale: scales[i],
                q: q[i],
                sq: sq[i],
                c: c[i],
                flips: flips[i],
            })
            .collect();
        let products: Vec<_> = (0..items).map(|i| Gemm::new(signs[i], q[i], sq[i])).collect();
        gemm(&mut self.arena, &products);
        self.arena.finish()?;
        let start = Instant::now();
        row_flips_batch(&mut self.arena, &problems);
        self.arena.finish()?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        let count = self.flips(&flips, m)?;
        let a_row = count / (m * items) as f64;
        println!("row_flips: {ms:.3} ms, {a_row:.0} a row, {:.1} flips/us", count * 1e-3 / ms);
        Ok(())
    }

    fn column_searches(&mut self) -> Result<()> {
        let Shape { m, n, r, items } = self.shape;
        self.free();
        let (a, k, b, ks) = (self.views(m, r), self.views(r, r), self.views(n, r), self.views(n, r));
        let (signs, errors) = (self.views(n, r), self.views(128, r));
        let (scales, flips, feedback) = (self.vectors(n), self.vectors(n), self.views(n, n));
        self.grams(&a, &k);
        let starts: Vec<_> = (0..items).map(|i| Scale::new(b[i], signs[i]).sign()).collect();
        scale(&mut self.arena, &starts);
        let tenth = vec![0.02; n];
        for (feedback, at) in feedback.iter().zip(&scales) {
            self.arena.write(*at, &tenth);
            scale(&mut self.arena, &[Scale::new(*feedback, *feedback).rows(*at)]);
            self.arena.write(*at, &vec![1.0; n]);
            let diagonal = View { rows: n, cols: 1, stride: n + 1, ..*feedback };
            scale(&mut self.arena, &[Scale::new(View { at: *at, rows: n, cols: 1, stride: 1 }, diagonal)]);
        }
        let problems: Vec<_> = (0..items)
            .map(|i| ColumnSearchItem {
                signs: signs[i],
                b: b[i],
                k: k[i],
                r_transposed: feedback[i],
                scale: scales[i],
                flips: flips[i],
                ks: ks[i],
                errors: errors[i],
                parts: self.parts,
            })
            .collect();
        self.arena.finish()?;
        for run in ["first", "again"] {
            let start = Instant::now();
            column_search_batch(&mut self.arena, &problems);
            self.arena.finish()?;
            let ms = start.elapsed().as_secs_f64() * 1e3;
            let count = self.flips(&flips, n)? / items as f64;
            println!(
                "column_search, {run}: {ms:.3} ms, {:.0} flips a column, {:.3} us a flip, {:.1} flips/us",
                count / n as f64,
                ms * 1e3 / count,
                count * items as f64 * 1e-3 / ms
            );
        }
        Ok(())
    }
}
