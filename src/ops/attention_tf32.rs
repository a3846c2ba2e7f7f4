//! The kernels of [`attention_backward`](super::attention_backward) on tensor cores.

use super::attention_backward::Kernel;
use crate::device::arena::Program;

/// Rows that a workgroup owns, and rows of a tile that passes by, for heads of at most 64 chunks.
type Rows = [usize; 2];

const fn kept(chunks: usize) -> Rows {
    [64, 64 / chunks]
}

const fn queries(chunks: usize) -> Rows {
    [64 / chunks, 32]
}

const fn keys(chunks: usize) -> Rows {
    [32, 64 / chunks]
}

/// Bytes of shared memory of a workgroup on every card that multiplies TF32.
const LEAST_SHARED: usize = 99 << 10;

/// Bytes of `owned` tiles that stay, and of two stages of two tiles that pass by, rows padded by 4 numbers.
const fn shared(chunks: usize, owned: usize, [rows, passing]: Rows) -> u32 {
    let bytes = (owned * rows + 4 * passing) * (64 * chunks + 4) * size_of::<f32>();
    assert!(bytes <= LEAST_SHARED);
    bytes as u32
}

macro_rules! widths {
    ($name:ident, $entry:literal, $owned:literal, $rows:ident) => {
        /// For heads of at most 64 and 128 numbers.
        pub(super) static $name: [Kernel; 2] =
            [widths!($entry, 1, $owned, $rows), widths!($entry, 2, $owned, $rows)];
    };
    ($entry:literal, $chunks:literal, $owned:literal, $rows:ident) => {
        Kernel {
            rows: $rows($chunks)[0],
            program: cuda_program!(
                "attention_tf32",
                $entry,
                128,
                [
                    ("CHUNKS", $chunks),
                    ("KEPT_ROWS", kept($chunks)[0] as u32),
                    ("KEPT_COLS", kept($chunks)[1] as u32),
                    ("QUERY_ROWS", queries($chunks)[0] as u32),
                    ("QUERY_COLS", queries($chunks)[1] as u32),
                    ("KEY_ROWS", keys($chunks)[0] as u32),
                    ("KEY_COLS", keys($chunks)[1] as u32)
                ],
                shared($chunks, $owned, $rows($chunks))
            ),
        }
    };
}

widths!(KEPT, "attention_kept", 1, kept);
widths!(QUERIES, "attention_queries", 2, queries);
widths!(KEYS, "attention_keys", 2, keys);
