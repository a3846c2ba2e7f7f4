use std::sync::Mutex;

use super::{Buffer, Cuda, Precision, Solver, Stream, Symmetric};
use crate::device::DeviceError;

/// Matrices that a card works on at once. One leaves most of it idle, whatever its order: the reduction to a tridiagonal
/// matrix is a chain of small steps.
const LANES: usize = 8;

/// A symmetric matrix on the host, and then its eigenpairs.
#[derive(Clone, Debug)]
pub struct Eigenpairs {
    pub order: usize,
    /// n x n, column-major, the lower triangle read; then the eigenvectors, of 2-norm 1, one after another
    pub matrix: Vec<f64>,
    /// n, ascending
    pub values: Vec<f64>,
}

/// Symmetric eigenproblems in f64, several at once, each on a stream and a thread of its own.
pub struct EigenSolver {
    cuda: Cuda,
    lanes: Vec<Lane>,
}

struct Lane {
    solver: Solver,
    stream: Stream,
}

impl EigenSolver {
    pub fn new(cuda: &Cuda) -> Self {
        Self { cuda: cuda.clone(), lanes: Vec::new() }
    }

    /// Solves all of them; in each, `values` gets its length here.
    ///
    /// Errors: a solver that did not converge, and whatever the device says; the matrices are spoilt then.
    pub fn solve(&mut self, items: &mut [Eigenpairs]) -> Result<(), DeviceError> {
        while self.lanes.len() < items.len().min(LANES) {
            let stream = Stream::new(&self.cuda)?;
            self.lanes.push(Lane { solver: Solver::new(&stream)?, stream });
        }
        // The largest are taken first, from the end.
        let mut queue: Vec<&mut Eigenpairs> = items.iter_mut().collect();
        queue.sort_by_key(|item| item.order);
        let queue = Mutex::new(queue);
        let next = || queue.lock().unwrap_or_else(|e| e.into_inner()).pop();
        let work = |lane: &mut Lane| -> Result<(), DeviceError> {
            while let Some(item) = next() {
                lane.solve(item)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = self.lanes.iter_mut().map(|lane| scope.spawn(|| work(lane))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a lane does not panic"))
        })
    }
}

impl Lane {
    fn solve(&self, item: &mut Eigenpairs) -> Result<(), DeviceError> {
        let n = item.order;
        if item.matrix.len() != n * n {
            let got = item.matrix.len();
            return Err(DeviceError::Length { what: "a symmetric matrix", got, expected: n * n });
        }
        let cuda = self.stream.cuda();
        let matrix = Buffer::from_slice(&self.stream, &item.matrix)?;
        let values = Buffer::<f64>::new(cuda, n)?;
        let (matrices, places) = (matrix.address(), values.address());
        let problem = Symmetric { precision: Precision::F64, order: n, count: 1, matrices, values: places };
        let mut scratch = self.solver.eigen_scratch(problem)?;
        // SAFETY: the buffers are as long as the problem says, and are waited for below.
        unsafe { self.solver.eigen(problem, &mut scratch)? };
        matrix.download(&self.stream, &mut item.matrix)?;
        item.values = values.to_vec(&self.stream, n)?;
        match scratch.info.to_vec(&self.stream, 1)?[0] {
            0 => Ok(()),
            open => Err(DeviceError::Call {
                call: "cusolverDnXsyevd",
                code: format!("info {open}"),
                text: format!("{open} of {n} eigenvalues did not converge"),
            }),
        }
    }
}
