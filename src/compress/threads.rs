use faer::{Par, get_global_parallelism, set_global_parallelism};

/// Threads from which on tensors that run side by side keep all cores busy without products that are split as well.
///
/// A block has seven tensors with up to two candidates each. Measured on 16 cores: split products leave them no faster
/// than two cores, since every product waits for its slowest part.
const MANY: usize = 8;

/// While it lives, faer's products stay on the thread that asks for them, where there are many threads; their results
/// do not depend on it.
pub(super) struct WholeProducts {
    before: Par,
}

impl WholeProducts {
    pub fn on_many_threads() -> Self {
        let before = get_global_parallelism();
        if rayon::current_num_threads() >= MANY {
            set_global_parallelism(Par::Seq);
        }
        Self { before }
    }
}

impl Drop for WholeProducts {
    fn drop(&mut self) {
        set_global_parallelism(self.before);
    }
}
