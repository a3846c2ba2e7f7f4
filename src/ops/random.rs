//! Random numbers where they are needed: each is SplitMix64's of a seed at its own place of a counter, so that any part of
//! a matrix is the same whoever makes it, and when.

use std::f32::consts::TAU;

use rayon::prelude::*;

use super::atom_lists::{index, set_index};
use super::scale::ENTRIES;
use super::splitmix::SplitMix64;
use super::top_atoms::MOST_ATOMS;
use crate::device::arena::{Arena, Memory, Program, Table, View, float_word};

const CONSTANTS: [(&str, u32); 2] = [("ENTRIES", ENTRIES as u32), ("MOST", MOST_ATOMS as u32)];

pub(super) static NORMAL: Program = cuda_program!("random", "random_normal", 256, CONSTANTS);
pub(super) static CODE: Program = cuda_program!("random", "random_code", 256, CONSTANTS);

/// Draws that each row of a random code may take from the counter: a draw that repeats an atom is thrown away.
const DRAWS: u64 = 256;

/// A matrix of independent normal numbers: entry (i, j) is number `(first + i)·cols + j` of the seed, by Box and Muller
/// from the two halves of its 64 bits, which differ by f32's roundings between devices.
#[derive(Clone, Copy, Debug)]
pub struct Normal {
    pub out: View,
    pub seed: u64,
    /// Number of the first row
    pub first: usize,
    /// Standard deviation
    pub deviation: f32,
}

/// Fills all items.
pub fn random_normal(arena: &mut Arena, items: &[Normal]) {
    if let Some(memory) = arena.memory() {
        return items.iter().for_each(|item| {
            (0..item.out.rows).into_par_iter().for_each(|i| {
                // SAFETY: a row of the result is touched by this turn alone.
                let row = unsafe { memory.row_mut(item.out, i) };
                let from = (item.first + i) as u64 * item.out.cols as u64;
                for (j, x) in row.iter_mut().enumerate() {
                    *x = item.deviation * normal(bits(item.seed, from + j as u64));
                }
            });
        });
    }
    let mut table = Table::new(8);
    for Normal { out, seed, first, deviation } in items {
        let [high, low] = halves(*seed);
        let words = [out.at, out.stride, out.rows, out.cols, high, low, *first, float_word(*deviation)];
        table.push(out.len().div_ceil(ENTRIES), &words);
    }
    arena.queue(&NORMAL, table);
}

/// Random sparse codes: each row has as many different atoms as its support has columns, evenly drawn, each at an even
/// phase: values (cos, sin).
#[derive(Clone, Copy, Debug)]
pub struct RandomCode {
    /// T x k indices
    pub support: View,
    /// T x 2k
    pub values: View,
    pub atoms: usize,
    pub seed: u64,
    /// Number of the first row
    pub first: usize,
}

/// Draws all items.
///
/// # Panics
/// When a row shall have more than [`MOST_ATOMS`] atoms, or more than half of all.
pub fn random_code(arena: &mut Arena, items: &[RandomCode]) {
    for RandomCode { support, atoms, .. } in items {
        assert!(
            support.cols <= MOST_ATOMS && 2 * support.cols <= *atoms,
            "{} of {atoms} atoms",
            support.cols
        );
    }
    if let Some(memory) = arena.memory() {
        return items.iter().for_each(|item| {
            (0..item.support.rows).into_par_iter().for_each(|i| draw(memory, item, i));
        });
    }
    let mut table = Table::new(10);
    for RandomCode { support: s, values: u, atoms, seed, first } in items {
        let [high, low] = halves(*seed);
        table.push(
            s.rows.div_ceil(CODE.threads as usize),
            &[s.at, s.stride, s.rows, s.cols, u.at, u.stride, *atoms, high, low, *first],
        );
    }
    arena.queue(&CODE, table);
}

fn draw(memory: Memory, item: &RandomCode, i: usize) {
    let mut at = (item.first + i) as u64 * DRAWS;
    // SAFETY: row i of support and values is touched by this turn alone.
    let values = unsafe { memory.row_mut(item.values, i) };
    for j in 0..item.support.cols {
        loop {
            let drawn = bits(item.seed, at);
            at += 1;
            let atom = (((drawn >> 32) * item.atoms as u64) >> 32) as usize;
            let known = (0..j).any(|before| index(memory, item.support, (i, before)) == atom);
            if !known {
                set_index(memory, item.support, (i, j), atom);
                let phase = TAU * uniform(drawn as u32);
                (values[2 * j], values[2 * j + 1]) = (phase.cos(), phase.sin());
                break;
            }
        }
    }
}

fn halves(seed: u64) -> [usize; 2] {
    [(seed >> 32) as usize, (seed & 0xffff_ffff) as usize]
}

/// Number `at` of SplitMix64 from a seed.
fn bits(seed: u64, at: u64) -> u64 {
    SplitMix64::new(seed.wrapping_add(at.wrapping_mul(0x9e37_79b9_7f4a_7c15))).next_u64()
}

/// In [0, 1), of 24 bits.
fn uniform(half: u32) -> f32 {
    (half >> 8) as f32 / (1 << 24) as f32
}

fn normal(drawn: u64) -> f32 {
    let (u, v) = (1.0 - uniform((drawn >> 32) as u32), uniform(drawn as u32));
    (-2.0 * u.ln()).sqrt() * (TAU * v).cos()
}
