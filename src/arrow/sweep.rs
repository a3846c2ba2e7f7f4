use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What the fits of a sweep gave, in their order.
#[derive(Debug)]
pub struct Sweep<R, E> {
    /// One result a fit: an error in one leaves the others alone.
    pub results: Vec<Result<R, E>>,
    pub lanes: usize,
    pub time: Duration,
}

impl<R, E> Sweep<R, E> {
    pub fn fits_per_second(&self) -> f64 {
        self.results.len() as f64 / self.time.as_secs_f64()
    }
}

/// Independent fits, several at once: each lane has its own state (on a device its stream and buffers) and takes the
/// next fit that is waiting.
///
/// | argument | meaning |
/// |---|---|
/// | `fits` | what differs between fits |
/// | `lanes` | fits at once; more than the fits are not started |
/// | `open` | makes the state of a lane |
/// | `run` | one fit; its result must depend on the fit alone, not on the lane's past |
///
/// Results come in the order of the fits, with the same bits for any number of lanes.
pub fn sweep<T: Sync, L, R: Send, E: Send>(
    fits: &[T],
    lanes: NonZero<usize>,
    open: impl Fn(usize) -> L + Sync,
    run: impl Fn(&mut L, &T) -> Result<R, E> + Sync,
) -> Sweep<R, E> {
    let began = Instant::now();
    let lanes = lanes.get().min(fits.len()).max(1);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(fits.len()));
    let work = |lane| {
        let mut state = open(lane);
        while let Some((index, fit)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            fits.get(index).map(|fit| (index, fit))
        } {
            let result = run(&mut state, fit);
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((index, result));
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        (1..lanes).for_each(|lane| drop(scope.spawn(move || work(lane))));
        work(0);
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    let results = done.into_iter().map(|(_, result)| result).collect();
    Sweep { results, lanes, time: began.elapsed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_order_and_errors_stay_apart() {
        let fits: Vec<u32> = (0..50).collect();
        let run = |seen: &mut u32, fit: &u32| {
            *seen += 1;
            if fit % 7 == 3 { Err(format!("fit {fit}")) } else { Ok(fit * fit) }
        };
        for lanes in [1, 3, 80] {
            let lanes = NonZero::new(lanes).unwrap();
            let swept = sweep(&fits, lanes, |_| 0, run);
            assert_eq!(swept.results.len(), 50);
            for (fit, result) in fits.iter().zip(&swept.results) {
                assert_eq!(*result, run(&mut 0, fit));
            }
        }
        assert!(sweep(&[] as &[u32], NonZero::<usize>::MIN, |_| 0, run).results.is_empty());
    }
}
