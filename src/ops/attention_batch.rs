use rayon::prelude::*;

use super::attention::{Heads, Mask, attention};
use crate::device::arena::{Arena, Memory, Program, Table, View, float_word};

/// The widest head that the kernels take; the host takes any.
pub const WIDEST_HEAD: usize = 256;

/// Queries of a tile; a tile of keys has as many.
pub const TILE: usize = 32;

macro_rules! widths {
    ($name:ident, $entry:literal) => {
        /// For heads of at most 128 and 256 numbers.
        pub(super) static $name: [Program; 2] = [
            program!("attention", $entry, 256, [("TILE", TILE as u32), ("WIDEST_HEAD", 128)]),
            program!("attention", $entry, 256, [("TILE", TILE as u32), ("WIDEST_HEAD", 256)]),
        ];
    };
}

widths!(ATTENTION, "attention");
widths!(ATTENTION_CACHED, "attention_cached");

/// One window of a batch: see [`attention`]. Rows of each matrix lie one after another.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// T x heads·d
    pub q: View,
    /// S x kv_heads·d, S >= T
    pub k: View,
    pub v: View,
    /// T x heads·d; overlaps nothing else.
    pub out: View,
}

/// Causal attention of all windows of an arena, over what `mask` shows: on a device, tiles of queries over tiles of keys with a running softmax
/// (Dao et al. 2022, algorithm 1), so memory does not grow with the window.
///
/// # Panics
/// When shapes contradict each other, or heads are wider than [`WIDEST_HEAD`] on a device.
pub fn attention_batch(arena: &mut Arena, heads: Heads, mask: Mask, items: &[Attention]) {
    for Attention { q, k, v, out } in items {
        let widths = [q.cols, k.cols, v.cols, out.cols];
        assert_eq!(widths, [heads.width(), heads.kv_width(), heads.kv_width(), heads.width()], "{heads:?}");
        assert!([q, k, v, out].iter().all(|x| x.stride == x.cols), "rows one after another");
        assert!(q.rows == out.rows && k.rows == v.rows && q.rows <= k.rows, "{} of {}", q.rows, k.rows);
    }
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| on_host(memory, heads, mask, item));
    }
    let Heads { heads: count, kv_heads, head_dim } = heads;
    let mut table = Table::new(11);
    for Attention { q, k, v, out } in items {
        let places = [q.at, k.at, v.at, out.at, q.rows, k.rows];
        let [a, b, c, d, queries, keys] = places;
        let (scale, reach) = (float_word(heads.scale()), mask.reach(k.rows));
        let words = [a, b, c, d, queries, keys, count, kv_heads, head_dim, scale, reach];
        table.push(q.rows.div_ceil(TILE) * count, &words);
    }
    arena.queue(program(&ATTENTION, heads), table);
}

/// One new position of each of many sequences, over the keys and values that each has in a cache.
#[derive(Clone, Copy, Debug)]
pub struct CachedAttention {
    /// N x heads·d, a row a sequence
    pub q: View,
    /// N·room x kv_heads·d: sequence s has rows s·room, s·room + 1, ...
    pub keys: View,
    pub values: View,
    /// Position of each query, stored as a number: it sees that many keys, or those of them that the mask shows, and its
    /// own behind them.
    pub positions: usize,
    /// N x heads·d; overlaps nothing else.
    pub out: View,
}

/// Attention of all sequences of all items. A sequence's result does not depend on the others.
///
/// # Panics
/// As [`attention_batch`].
pub fn attention_cached(arena: &mut Arena, heads: Heads, mask: Mask, items: &[CachedAttention]) {
    for CachedAttention { q, keys, values, out, .. } in items {
        let widths = [q.cols, keys.cols, values.cols, out.cols];
        assert_eq!(widths, [heads.width(), heads.kv_width(), heads.kv_width(), heads.width()], "{heads:?}");
        assert!([q, keys, values, out].iter().all(|x| x.stride == x.cols), "rows one after another");
        assert!(keys.rows == values.rows && keys.rows.is_multiple_of(q.rows), "room for each sequence");
    }
    if let Some(memory) = arena.memory() {
        return items.par_iter().for_each(|item| cached_on_host(memory, heads, mask, item));
    }
    let Heads { heads: count, kv_heads, head_dim } = heads;
    let mut table = Table::new(11);
    for CachedAttention { q, keys, values, positions, out } in items {
        let (room, scale) = (keys.rows / q.rows, float_word(heads.scale()));
        let (places, reach) = ([q.at, keys.at, values.at, out.at, *positions], mask.reach(room));
        let [a, b, c, d, at] = places;
        let words = [a, b, c, d, at, room, count, kv_heads, head_dim, scale, reach];
        table.push(q.rows * count, &words);
    }
    arena.queue(program(&ATTENTION_CACHED, heads), table);
}

fn program(programs: &'static [Program; 2], heads: Heads) -> &'static Program {
    assert!(heads.head_dim <= WIDEST_HEAD, "a head of {} numbers, at most {WIDEST_HEAD}", heads.head_dim);
    &programs[usize::from(heads.head_dim > 128)]
}

/// All of a view whose rows lie one after another.
///
/// # Safety
/// As [`Memory::row`].
unsafe fn whole<'a>(memory: Memory, view: View) -> &'a [f32] {
    // SAFETY: the caller vouches.
    unsafe { memory.row(View::vector(view.at, view.len()), 0) }
}

fn on_host(memory: Memory, heads: Heads, mask: Mask, item: &Attention) {
    // SAFETY: q, k and v are read only; the result is written by this item alone.
    unsafe {
        let out = memory.row_mut(View::vector(item.out.at, item.out.len()), 0);
        attention(heads, mask, whole(memory, item.q), whole(memory, item.k), whole(memory, item.v), out);
    }
}

fn cached_on_host(memory: Memory, heads: Heads, mask: Mask, item: &CachedAttention) {
    let room = item.keys.rows / item.q.rows;
    (0..item.q.rows).into_par_iter().for_each(|sequence| {
        // SAFETY: positions, queries and caches are read only; row `sequence` of the result is written here alone.
        unsafe {
            let position = *memory.pointer(View::vector(item.positions + sequence, 1)) as usize;
            let seen = |cache: View| {
                let rows = cache.part((sequence * room, 0), (position + 1, cache.cols));
                whole(memory, rows)
            };
            let (q, out) = (memory.row(item.q, sequence), memory.row_mut(item.out, sequence));
            attention(heads, mask, q, seen(item.keys), seen(item.values), out);
        }
    });
}
