//! The kernels of [`attention_backward`](super::attention_backward) on tensor cores.

use super::attention_backward::Kernel;
use crate::device::arena::Program;

/// How heads of some width are shared out.
struct Shape {
    /// Numbers of a head at most.
    dim: usize,
    /// Warps that share the numbers of 16 rows.
    slices: usize,
    /// For each kernel: rows that a workgroup owns, and rows of a tile that passes by.
    kept: [usize; 2],
    queries: [usize; 2],
    keys: [usize; 2],
}

const SHAPES: [Shape; 3] = [
    Shape { dim: 64, slices: 1, kept: [64, 64], queries: [64, 32], keys: [32, 64] },
    Shape { dim: 128, slices: 1, kept: [64, 32], queries: [32, 32], keys: [32, 32] },
    Shape { dim: 256, slices: 4, kept: [16, 16], queries: [16, 16], keys: [16, 16] },
];

/// Bytes of shared memory of a workgroup on every card that multiplies TF32.
const LEAST_SHARED: usize = 99 << 10;

/// Bytes of `owned` tiles that stay, and of two stages of two tiles that pass by, rows padded by 4 numbers.
const fn shared(dim: usize, owned: usize, [rows, passing]: [usize; 2]) -> u32 {
    let bytes = (owned * rows + 4 * passing) * (dim + 4) * size_of::<f32>();
    assert!(bytes <= LEAST_SHARED);
    bytes as u32
}

macro_rules! widths {
    ($name:ident, $entry:literal, $owned:literal, $rows:ident) => {
        /// For heads of at most 64, 128 and 256 numbers.
        pub(super) static $name: [Kernel; 3] = [
            widths!($entry, SHAPES[0], $owned, $rows),
            widths!($entry, SHAPES[1], $owned, $rows),
            widths!($entry, SHAPES[2], $owned, $rows),
        ];
    };
    ($entry:literal, $shape:expr, $owned:literal, $rows:ident) => {
        Kernel {
            rows: $shape.$rows[0],
            program: Program {
                name: "attention_tf32",
                entry: $entry,
                threads: 128,
                shared: shared($shape.dim, $owned, $shape.$rows),
                constants: &[
                    ("DIM", $shape.dim as u32),
                    ("SLICES", $shape.slices as u32),
                    ("KEPT_ROWS", $shape.kept[0] as u32),
                    ("KEPT_COLS", $shape.kept[1] as u32),
                    ("QUERY_ROWS", $shape.queries[0] as u32),
                    ("QUERY_COLS", $shape.queries[1] as u32),
                    ("KEY_ROWS", $shape.keys[0] as u32),
                    ("KEY_COLS", $shape.keys[1] as u32),
                ],
                cuda: concat!(include_str!("attention_tiles.cuh"), include_str!("attention_tf32.cu")),
                wgsl: "",
            },
        }
    };
}

widths!(KEPT, "attention_kept", 1, kept);
widths!(QUERIES, "attention_queries", 2, queries);
widths!(KEYS, "attention_keys", 2, keys);
