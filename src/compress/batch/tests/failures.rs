use super::on_every_device;
use crate::compress::batch::refine::{Step, read_flips};

#[test]
fn a_candidate_whose_loops_were_cut_short_has_no_flips() {
    on_every_device(|candidate| {
        for (step, len) in [(Step::Rows, candidate.job.shape.m), (Step::Columns, candidate.job.shape.n)] {
            let mut flips = vec![2.0; len];
            candidate.write_vector(candidate.job.flips, &flips);
            assert_eq!(read_flips(&mut candidate.arena, &[&candidate.job], step).unwrap(), [Some(2 * len)]);
            flips[len - 1] = f64::NAN;
            candidate.write_vector(candidate.job.flips, &flips);
            assert_eq!(read_flips(&mut candidate.arena, &[&candidate.job], step).unwrap(), [None]);
        }
    });
}
