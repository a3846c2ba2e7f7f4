//! Speed of the encoder's two costly kernels on a device: `cargo run --release --example kernel_speed -- wgpu`.

use std::time::Instant;

use lapidary::device::arena::{Arena, View};
use lapidary::device::{Device, DeviceError, DevicePolicy, select};
use lapidary::ops::column_search_batch::{ColumnSearchItem, column_search_batch};
use lapidary::ops::gemm::{Gemm, gemm};
use lapidary::ops::splitmix::SplitMix64;

/// Launches that a time is the mean of.
const TIMES: usize = 5;

fn main() -> Result<(), DeviceError> {
    let policy: DevicePolicy = std::env::args().nth(1).as_deref().unwrap_or("auto").parse()?;
    let device = select(policy)?.device;
    println!("{}", device.name());
    println!("largest arena: {} MiB", Arena::largest(&device)? >> 18);
    for (n, items) in [(256, 32), (1024, 1), (1024, 8), (2048, 1)] {
        products(&device, n, items)?;
    }
    for (n, r, items) in [(576, 192, 1), (576, 192, 8), (576, 392, 2), (576, 1024, 1)] {
        columns(&device, n, r, items)?;
    }
    Ok(())
}

fn products(device: &Device, n: usize, items: usize) -> Result<(), DeviceError> {
    let mut arena = Arena::new(device, 3 * n * n * items)?;
    arena.write(0, &noise(2 * n * n * items, 1));
    let matrix = |i: usize| View::new(i * n * n, n, n);
    for (name, turn) in [("A B", false), ("A B'", true)] {
        let product = |i: usize| Gemm::new(matrix(2 * i), matrix(2 * i + 1), matrix(2 * items + i));
        let product = |i: usize| if turn { product(i).b_transposed() } else { product(i) };
        let list: Vec<_> = (0..items).map(product).collect();
        gemm(&mut arena, &list);
        arena.finish()?;
        let began = Instant::now();
        arena.repeat(TIMES, |arena| gemm(arena, &list));
        arena.finish()?;
        let seconds = began.elapsed().as_secs_f64() / TIMES as f64;
        let flops = 2.0 * (n as f64).powi(3) * items as f64;
        println!("{items} x {name}, {n}: {:.3} ms, {:.1} GF/s", 1e3 * seconds, flops / seconds / 1e9);
    }
    Ok(())
}

fn columns(device: &Device, n: usize, r: usize, items: usize) -> Result<(), DeviceError> {
    let room = 3 * n * r + r * r + n * n + 2 * n + 128 * r;
    let mut arena = Arena::new(device, room * items + r * r)?;
    let lambda = View::new(room * items, r, r);
    arena.write(lambda.at, &noise(r * r, 2));
    let list: Vec<_> = (0..items).map(|i| problem(&mut arena, lambda, i * room, n, r)).collect();
    arena.finish()?;
    let began = Instant::now();
    column_search_batch(&mut arena, &list);
    arena.finish()?;
    let seconds = began.elapsed().as_secs_f64();
    let mut flips = 0.0;
    for item in &list {
        flips += arena.read(item.flips, n)?.iter().map(|flips| f64::from(*flips)).sum::<f64>();
    }
    println!(
        "{items} x columns, n {n}, r {r}: {:.1} ms, {flips:.0} flips, {:.3} flips/us",
        1e3 * seconds,
        flips / seconds / 1e6
    );
    Ok(())
}

fn problem(arena: &mut Arena, lambda: View, at: usize, n: usize, r: usize) -> ColumnSearchItem {
    let matrix = |skip: usize| View::new(at + skip, n, r);
    let k = View::new(at + 3 * n * r, r, r);
    let r_transposed = View::new(k.at + r * r, n, n);
    let scale = r_transposed.at + n * n;
    let errors = View::new(scale + 2 * n, 128, r);
    let (signs, b, ks) = (matrix(0), matrix(n * r), matrix(2 * n * r));
    let random = noise(2 * n * r, at as u64 + 3);
    let start: Vec<f32> = random[..n * r].iter().map(|value| value.signum()).collect();
    arena.write(signs.at, &start);
    arena.write(b.at, &random[n * r..]);
    gemm(arena, &[Gemm::new(lambda, lambda, k).a_transposed().diagonal(0.1 * r as f32)]);
    let mut feedback = noise(n * n, 5);
    for i in 0..n {
        feedback[i * n..][..n].iter_mut().enumerate().for_each(|(j, f)| *f *= if j < i { 0.02 } else { 0.0 });
        feedback[i * n + i] = 1.0;
    }
    arena.write(r_transposed.at, &feedback);
    ColumnSearchItem { signs, b, k, r_transposed, scale, flips: scale + n, ks, errors }
}

fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut random = SplitMix64::new(seed);
    (0..len).map(|_| random.signed() as f32).collect()
}
