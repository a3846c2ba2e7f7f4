use super::on_every_device;
use crate::compress::batch::CandidateError;
use crate::compress::batch::judge::judge;
use crate::compress::batch::refine::{Step, read_flips, settle};

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

#[test]
fn a_step_without_a_result_fails_its_candidate() {
    on_every_device(|candidate| {
        let last = candidate.job.shape.paths - 1;
        for (reached, flips) in [(0.1, None), (f64::NAN, Some(3)), (f64::INFINITY, Some(3))] {
            candidate.load(&candidate.layer.starts[last].paths);
            candidate.job.error = 1.0;
            std::mem::swap(&mut candidate.job.kept, &mut candidate.job.tried);
            settle(&mut candidate.job, Step::Columns, reached, flips);
            // A later step cannot make up for it.
            settle(&mut candidate.job, Step::Rows, 0.1, Some(3));
            assert_eq!((candidate.job.info.kept, candidate.job.info.row_flips), (0, 0));
            let judged = judge(&mut candidate.arena, &mut [&mut candidate.job], true).unwrap();
            assert!(matches!(judged[0], Err(CandidateError::NotFinite)), "{}", candidate.name);
        }
        candidate.load(&candidate.layer.starts[last].paths);
        candidate.job.error = 1.0;
        std::mem::swap(&mut candidate.job.kept, &mut candidate.job.tried);
        let judged = judge(&mut candidate.arena, &mut [&mut candidate.job], true).unwrap();
        assert!(judged[0].is_ok(), "{}", candidate.name);
    });
}
