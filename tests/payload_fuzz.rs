//! Damaged payloads are refused, never read past: `LAPIDARY_FUZZ_CASES` cases (10,000 unless set).

use half::f16;
use lapidary::blr::payload::PathParts;
use lapidary::blr::{Payload, apply};
use proptest::prelude::*;

fn cases() -> u32 {
    match std::env::var("LAPIDARY_FUZZ_CASES") {
        Ok(count) => count.parse().expect("LAPIDARY_FUZZ_CASES is a number"),
        Err(_) => 10_000,
    }
}

fn good(paths: usize) -> Vec<u8> {
    let scales = [f16::from_f32(0.5); 24];
    let signs = [1i8; 24 * 8];
    let parts = PathParts { h: &scales[..9], g: &scales[..24], l: &scales[..8], u: &signs[..72], v: &signs };
    Payload::build(9, 24, 8, &vec![parts; paths]).unwrap().bytes().as_slice().to_vec()
}

#[derive(Clone, Debug)]
enum Damage {
    Byte {
        at: usize,
        value: u8,
    },
    /// One of the header's four-byte numbers, near an interesting value.
    Word {
        at: usize,
        value: u32,
    },
    Cut {
        len: usize,
    },
    Grow {
        by: usize,
    },
}

fn damage() -> impl Strategy<Value = Damage> {
    let edges =
        prop::sample::select(vec![0, 7, 8, 9, 16, 24, 1 << 16, 1 << 28, 1 << 31, u32::MAX - 7, u32::MAX]);
    prop_oneof![
        (0usize..400, any::<u8>()).prop_map(|(at, value)| Damage::Byte { at, value }),
        (1usize..4, edges).prop_map(|(word, value)| Damage::Word { at: 4 * word, value }),
        (0usize..400).prop_map(|len| Damage::Cut { len }),
        (1usize..64).prop_map(|by| Damage::Grow { by }),
    ]
}

fn apply_damage(bytes: &mut Vec<u8>, damage: &Damage) {
    match *damage {
        Damage::Byte { at, value } => bytes.iter_mut().skip(at).take(1).for_each(|b| *b = value),
        Damage::Word { at, value } => {
            bytes.iter_mut().skip(at).zip(value.to_le_bytes()).for_each(|(b, value)| *b = value);
        }
        Damage::Cut { len } => bytes.truncate(len),
        Damage::Grow { by } => bytes.extend(std::iter::repeat_n(0xa5, by)),
    }
}

/// Whatever is accepted can be read to its last byte.
fn read_all(payload: &Payload) {
    let x = vec![1.0; payload.cols()];
    let mut y = vec![f32::NAN; payload.rows()];
    apply::matvec(payload, &x, &mut y);
    assert!(y.iter().all(|y| y.is_finite()), "{y:?} from finite scales");
    assert!(payload.dequantise().iter().all(|w| w.is_finite()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_payloads_never_panic(paths in 1usize..=2, damages in prop::collection::vec(damage(), 0..4)) {
        let mut bytes = good(paths);
        damages.iter().for_each(|damage| apply_damage(&mut bytes, damage));
        match Payload::parse(bytes.into()) {
            Ok(payload) => read_all(&payload),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Payload::parse(bytes.into()).is_err());
    }

    /// Any bits are signs and any finite halves are scales: a random body behind a true header is read wholly.
    #[test]
    fn random_bodies_are_read(paths in 1usize..=2, rank in 1usize..=3, more in 0usize..9, wide in 0usize..3, seed in any::<u64>()) {
        let (rank, rows, cols) = (8 * rank, 8 * rank + more, 8 * (rank + wide));
        let mut bytes = vec![0x4c, 1, paths as u8, 0];
        for side in [rank, rows, cols] {
            bytes.extend((side as u32).to_le_bytes());
        }
        let mut random = lapidary::model::SplitMix64::new(seed);
        let body = paths * (2 * (rows + cols + rank) + rank / 8 * (rows + cols));
        // Without this bit the exponent of a half is never 31, so no scale is an infinity or a NaN.
        bytes.extend((0..body).map(|_| random.next_u64() as u8 & 0xfb));
        read_all(&Payload::parse(bytes.into()).unwrap());
    }
}
