use rayon::prelude::*;

use super::scale::ENTRIES;
use crate::device::arena::{Arena, Program, Table, View};

pub(super) static POWERS: Program = cuda_program!("powers", "powers", 256, [("ENTRIES", ENTRIES as u32)]);

/// One matrix of a batch, entry by entry: `out ← A^power`; `out` may be A itself.
#[derive(Clone, Copy, Debug)]
pub struct Powers {
    pub a: View,
    pub out: View,
    /// 1 or more
    pub power: usize,
}

/// Computes all items.
pub fn powers(arena: &mut Arena, items: &[Powers]) {
    for Powers { a, out, .. } in items {
        assert_eq!((a.rows, a.cols), (out.rows, out.cols), "powers keep the shape");
    }
    if let Some(memory) = arena.memory() {
        return items.iter().for_each(|item| {
            (0..item.a.rows).into_par_iter().for_each(|i| {
                for j in 0..item.a.cols {
                    // SAFETY: row i of both is touched by this turn alone.
                    unsafe {
                        let a = *memory.pointer(item.a.part((i, j), (1, 1)));
                        *memory.pointer(item.out.part((i, j), (1, 1))) = a.powi(item.power as i32);
                    }
                }
            });
        });
    }
    let mut table = Table::new(7);
    for Powers { a, out, power } in items {
        table.push(a.len().div_ceil(ENTRIES), &[a.at, a.stride, out.at, out.stride, a.rows, a.cols, *power]);
    }
    arena.queue(&POWERS, table);
}
