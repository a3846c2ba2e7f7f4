use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::{CudaFrame, Layout, Slabs, Tuning};
use crate::arrow::frame::FrameError;
use crate::arrow::{Budget, Ridge, Vector};
use crate::device::cuda::Cuda;

/// One fit of a sweep: a system, its ridge and its right-hand side.
#[derive(Clone)]
pub struct Job<'a> {
    pub layout: Layout,
    pub slabs: Slabs<'a>,
    pub ridge: Ridge,
    pub rhs: &'a Vector,
}

/// Frames and solves many systems on one card, `lanes` at a time, each lane with its own stream, handles and buffers.
///
/// Results stand in the order of the jobs and are bit-identical for every number of lanes: no kernel and no library
/// call depends on what else runs. A job that fails leaves the others alone. `frames` is kept by the caller from
/// sweep to sweep, so that handles and buffers stay warm.
pub fn sweep(
    cuda: &Cuda,
    jobs: &[Job<'_>],
    lanes: usize,
    frames: &mut Vec<CudaFrame>,
) -> Vec<Result<Vector, FrameError>> {
    let next = AtomicUsize::new(0);
    let idle = Mutex::new(std::mem::take(frames));
    let results = Mutex::new((0..jobs.len()).map(|_| None).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for _ in 0..lanes.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Relaxed);
                    let Some(job) = jobs.get(at) else { break };
                    let mut frame = take(&idle, &job.layout);
                    let result = run(cuda, job, &mut frame);
                    locked(&idle).extend(frame);
                    locked(&results)[at] = Some(result);
                }
            });
        }
    });
    *frames = idle.into_inner().unwrap_or_else(|e| e.into_inner());
    results.into_inner().unwrap_or_else(|e| e.into_inner()).into_iter().flatten().collect()
}

fn run(cuda: &Cuda, job: &Job<'_>, slot: &mut Option<CudaFrame>) -> Result<Vector, FrameError> {
    let frame = match slot {
        Some(frame) => frame,
        None => slot.insert(CudaFrame::new(cuda, job.layout.clone(), Tuning::default(), Budget::Available)?),
    };
    frame.factor(job.slabs, job.ridge)?;
    frame.solve(job.rhs)
}

/// An idle frame of this layout.
fn take(idle: &Mutex<Vec<CudaFrame>>, layout: &Layout) -> Option<CudaFrame> {
    let mut idle = locked(idle);
    let at = idle.iter().position(|frame| frame.layout() == layout)?;
    Some(idle.swap_remove(at))
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
