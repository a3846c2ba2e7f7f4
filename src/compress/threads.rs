use std::sync::{Mutex, MutexGuard};

use faer::{Par, get_global_parallelism, set_global_parallelism};

/// Threads from which on tensors that run side by side keep all cores busy without products that are split as well.
///
/// A block has seven tensors with up to two candidates each. Measured on 16 cores: split products leave them no faster
/// than two cores, since every product waits for its slowest part.
const MANY: usize = 8;

/// Runs that keep products whole, and what was set before the first of them.
static WHOLE: Mutex<(usize, Option<Par>)> = Mutex::new((0, None));

/// While it lives, faer's products stay on the thread that asks for them, where there are many threads; their results
/// do not depend on it.
pub(super) struct WholeProducts(());

impl WholeProducts {
    pub fn on_many_threads() -> Option<Self> {
        if rayon::current_num_threads() < MANY {
            return None;
        }
        let mut whole = whole();
        if whole.0 == 0 {
            whole.1 = Some(get_global_parallelism());
            set_global_parallelism(Par::Seq);
        }
        whole.0 += 1;
        Some(Self(()))
    }
}

impl Drop for WholeProducts {
    fn drop(&mut self) {
        let mut whole = whole();
        whole.0 -= 1;
        if whole.0 == 0
            && let Some(before) = whole.1.take()
        {
            set_global_parallelism(before);
        }
    }
}

fn whole() -> MutexGuard<'static, (usize, Option<Par>)> {
    WHOLE.lock().unwrap_or_else(|e| e.into_inner())
}
