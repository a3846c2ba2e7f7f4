use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;

use super::{Cuda, EigenScratch, Eigenproblem, Solver, Stream};
use crate::device::DeviceError;

/// Matrices that a card works on at once. One leaves most of it idle, whatever its order: the reduction to a tridiagonal
/// matrix is a chain of small steps.
const LANES: usize = 8;

/// Symmetric eigenproblems in f64, several at once, each on a stream and a thread of its own.
pub struct EigenSolver {
    cuda: Cuda,
    lanes: Vec<Lane>,
}

struct Lane {
    solver: Solver,
    /// Scratch by order: giving memory back would wait for the whole card.
    scratch: HashMap<usize, EigenScratch>,
    /// Last, so that everything above is still there while its destructor waits.
    stream: Stream,
}

impl EigenSolver {
    pub fn new(cuda: &Cuda) -> Self {
        Self { cuda: cuda.clone(), lanes: Vec::new() }
    }

    /// Solves all of them; for each, whether it converged. What it did not is spoilt.
    ///
    /// # Safety
    /// The addresses cover what the orders say, no two of them the same numbers, and nothing else uses them meanwhile.
    pub unsafe fn solve(&mut self, problems: &[Eigenproblem]) -> Result<Vec<bool>, DeviceError> {
        while self.lanes.len() < problems.len().min(LANES) {
            let stream = Stream::new(&self.cuda)?;
            self.lanes.push(Lane { solver: Solver::new(&stream)?, scratch: HashMap::new(), stream });
        }
        // The largest are taken first, from the end.
        let mut queue: Vec<usize> = (0..problems.len()).collect();
        queue.sort_by_key(|k| problems[*k].order);
        let queue = Mutex::new(queue);
        let converged = Mutex::new(vec![false; problems.len()]);
        let next = || queue.lock().unwrap_or_else(|e| e.into_inner()).pop();
        let work = |lane: &mut Lane| -> Result<(), DeviceError> {
            while let Some(k) = next() {
                // SAFETY: the caller's promise.
                let solved = unsafe { lane.solve(problems[k])? };
                converged.lock().unwrap_or_else(|e| e.into_inner())[k] = solved;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = self.lanes.iter_mut().map(|lane| scope.spawn(|| work(lane))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a lane does not panic"))
        })?;
        Ok(converged.into_inner().unwrap_or_else(|e| e.into_inner()))
    }
}

impl Lane {
    /// # Safety
    /// As for [`EigenSolver::solve`].
    unsafe fn solve(&mut self, problem: Eigenproblem) -> Result<bool, DeviceError> {
        let scratch = match self.scratch.entry(problem.order) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(self.solver.eigen_scratch(problem)?),
        };
        // SAFETY: the caller's promise; the scratch is waited for below.
        unsafe { self.solver.eigen(problem, scratch)? };
        Ok(scratch.info.to_vec(&self.stream, 1)?[0] == 0)
    }
}
