//! Gradients of a whole block against central differences of the same block written plainly in f64, for every family.

use lapidary::compress::tune::block::{InputGradient, Sum, TunedBlock};
use lapidary::compress::tune::room::{Room, placed};
use lapidary::compress::tune::{Form, Rates};
use lapidary::device::Device;
use lapidary::device::arena::{Arena, Precision, View};
use lapidary::model::{Block, Config, Decoder, Family, Linear, LinearName, SplitMix64};
use lapidary::ops::adam::Adam;

use crate::plain::{Plain, dot, wide};
use crate::{common, tiny};

/// Largest error of a gradient relative to the largest of its kind in the layer: chained f32 sums of up to 88 products,
/// forward and back.
const TOLERANCE: f64 = 1e-4;

/// Step of a central difference in f64, relative to the number's size: its error is 1e-10 of the third derivative.
const STEP: f64 = 1e-5;

const TRAIN_ALL: Rates = Rates { scales: Some(1e-3), signs: Some(1e-3), dense: Some(1e-3) };

/// A block of random weights of a family; its layers are packed where `packed` says so.
fn random_block(family: Family, packed: impl Fn(LinearName) -> bool) -> (Config, Block) {
    let config = tiny::family(family);
    let checkpoint = tiny::checkpoint(&config, &tiny::stored(&tiny::weights(&config)));
    let mut block = Decoder::load(&checkpoint).unwrap().block(0).clone();
    let mut random = SplitMix64::new(5);
    for (k, name) in LinearName::ALL.into_iter().enumerate().filter(|(_, name)| packed(*name)) {
        let shape = name.shape(&config);
        let payload = tiny::payload(shape, 1 + k % 2, &mut random);
        block.set_linear(name, Linear::Packed { payload, in_features: shape[1] }).unwrap();
    }
    (config, block)
}

/// A block on a device, gone forward and back over two windows.
struct Differentiated {
    arena: Arena,
    items: Vec<Adam>,
    y: Vec<f32>,
    dx: Vec<f32>,
}

const WINDOW: usize = 25;

/// `at_once` of the two windows go through together.
fn differentiate(
    device: &Device,
    (config, block): (&Config, &Block),
    [x, dy]: [&[f32]; 2],
    at_once: usize,
) -> Differentiated {
    let place = |room: &mut Room| {
        TunedBlock::place(room, (config, 0), &Form::of(block), &TRAIN_ALL, (WINDOW, at_once))
    };
    let (placed, len) = placed(place).unwrap();
    let mut arena = Arena::new(device, len).unwrap();
    arena.write(0, &vec![f32::NAN; len]);
    let items = placed.load(&mut arena, block);
    let (rows, numbers) = (at_once * WINDOW, at_once * WINDOW * config.hidden);
    let (mut y, mut dx) = (Vec::new(), Vec::new());
    for (round, (x, dy)) in x.chunks(numbers).zip(dy.chunks(numbers)).enumerate() {
        let flow = *placed.flow();
        let read = |arena: &mut Arena, view: View| arena.read(view.at, numbers).unwrap();
        arena.write(flow.x.at, x);
        placed.forward(&mut arena, rows, Precision::F32);
        y.extend(read(&mut arena, flow.y));
        arena.write(flow.y.at, dy);
        let sum = if round == 0 { Sum::Begin } else { Sum::Continue };
        placed.backward(&mut arena, rows, Precision::F32, (sum, InputGradient::Wanted));
        dx.extend(read(&mut arena, flow.y));
    }
    placed.differentiate(&mut arena, Precision::F32);
    Differentiated { arena, items, y, dx }
}

fn check_gradients(family: Family, packed: fn(LinearName) -> bool) {
    let (config, block) = random_block(family, packed);
    let mut random = SplitMix64::new(11);
    let mut numbers =
        || (0..2 * WINDOW * config.hidden).map(|_| random.signed() as f32).collect::<Vec<f32>>();
    let (x, dy) = (numbers(), numbers());
    let (xs, slopes) = (wide(&x), wide(&dy));
    for (device, at_once) in common::tuning_devices().iter().flat_map(|device| [(device, 2), (device, 1)]) {
        let what = format!("{family:?} on {}, {at_once} at once", device.name());
        let mut plain = Plain::new(&config, &block);
        let mut found = differentiate(device, (&config, &block), [&x, &dy], at_once);
        let loss = |plain: &Plain, x: &[f64]| dot(&plain.forward(x, WINDOW), &slopes);
        let exact = plain.forward(&xs, WINDOW);
        assert_near(&format!("{what}: output"), &found.y, &exact, &(0..exact.len()).collect::<Vec<_>>());
        let by_input = |k: &usize| {
            let at = |by: f64| {
                let mut moved = xs.clone();
                moved[*k] += by;
                loss(&plain, &moved)
            };
            (at(STEP) - at(-STEP)) / (2.0 * STEP)
        };
        let some: Vec<usize> = (0..xs.len()).step_by(xs.len() / 12).collect();
        let expected: Vec<f64> = some.iter().map(by_input).collect();
        assert_near(&format!("{what}: input"), &found.dx, &expected, &some);
        for (index, item) in found.items.iter().enumerate() {
            let gradient = found.arena.read(item.gradient, item.len).unwrap();
            let some: Vec<usize> = (0..item.len).step_by(item.len / 5 + 1).collect();
            let mut difference = |k: &usize| {
                let start = plain.numbers(index)[*k];
                let step = STEP * start.abs().max(1e-3);
                let mut at = |by: f64| {
                    plain.numbers(index)[*k] = start + by;
                    loss(&plain, &xs)
                };
                let slope = (at(step) - at(-step)) / (2.0 * step);
                plain.numbers(index)[*k] = start;
                slope
            };
            let expected: Vec<f64> = some.iter().map(&mut difference).collect();
            assert_near(
                &format!("{what}: item {index} of {} numbers", item.len),
                &gradient,
                &expected,
                &some,
            );
        }
    }
}

/// `expected` are the numbers of `found` at some places.
fn assert_near(what: &str, found: &[f32], expected: &[f64], places: &[usize]) {
    let largest = found.iter().fold(0.0, |most: f64, x| most.max(f64::from(x.abs())));
    assert!(found.iter().all(|x| x.is_finite()) && largest > 0.0, "{what}: {largest}");
    for (place, expected) in places.iter().zip(expected) {
        let apart = (f64::from(found[*place]) - expected).abs() / largest;
        assert!(apart <= TOLERANCE, "{what}, number {place}: {}, expected {expected}", found[*place]);
    }
}

#[test]
fn gradients_of_dense_blocks_are_central_differences() {
    for family in Family::ALL {
        check_gradients(family, |_| false);
    }
}

#[test]
fn gradients_of_packed_blocks_are_central_differences() {
    for family in [Family::Llama, Family::Qwen3, Family::Gemma3] {
        check_gradients(family, |_| true);
        check_gradients(family, |name| matches!(name, LinearName::Q | LinearName::Up));
    }
}
