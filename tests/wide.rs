//! Wide dictionaries on every device that has their kernels: planted circles in a bulk are found, batteries are what their
//! fits are alone, what does not fit is read again, and one bad fit spoils no other.

mod common;

use lapidary::atoms::AtomsError;
use lapidary::atoms::wide::{
    Battery, Heap, Job, Kind, Planted, Source, WideFit, WideOutcome, WideParams, fit_battery,
    predicted_bytes, recoveries,
};
use lapidary::device::Device;

const PLANTED: Planted = Planted {
    rows: 5120,
    width: 96,
    atoms: 12,
    active: 2,
    bulk: 24,
    bulk_share: 0.5,
    noise_share: 0.05,
    seed: 3,
};
const FIT: usize = 4096;

fn params() -> WideParams {
    WideParams { atoms: 12, active: 2, stages: 2, bulk: 24, rounds: 12, ..WideParams::default() }
}

fn run(device: &Device, jobs: &[Job<'_>]) -> Battery {
    fit_battery(device, jobs, None, &|_, _| ())
}

fn one(device: &Device, source: &dyn Source, params: WideParams) -> WideFit {
    let mut battery = run(device, &[Job { source, fit: FIT, params }]);
    battery.fits.remove(0).unwrap()
}

fn found(fit: &WideFit) -> usize {
    let truth = PLANTED.truth(FIT, PLANTED.rows - FIT).unwrap();
    recoveries(&truth, &fit.codes, PLANTED.atoms).iter().filter(|r| **r >= 0.95).count()
}

#[test]
fn planted_circles_are_found_and_beat_a_linear_dictionary() {
    for device in common::tuning_devices() {
        let fit = one(&device, &PLANTED, params());
        println!(
            "{}: {:?} {:?} {:?} paired {:?}",
            device.name(),
            fit.outcome,
            fit.explained,
            fit.heldout,
            fit.paired
        );
        assert_eq!(found(&fit), 12, "on {}", device.name());
        assert_eq!((fit.paired, fit.dead), (Some(12), 0.0));
        assert!(fit.heldout.unwrap() > 0.94, "{:?}", fit.heldout);
        let rays = WideParams { kind: Kind::Ray, atoms: 24, ..params() };
        let linear = one(&device, &PLANTED, rays);
        println!("rays {:?} {:?} {:?}", linear.outcome, linear.explained, linear.heldout);
        assert!(linear.heldout < fit.heldout, "{:?}", linear.heldout);
    }
}

#[test]
fn a_battery_is_what_its_fits_are_alone_and_one_bad_fit_spoils_none() {
    let planted: Vec<Planted> = (0..5)
        .map(|seed| Planted {
            rows: 700 + 100 * seed as usize,
            width: 32 + 4 * seed as usize,
            atoms: 4,
            bulk: 8,
            seed,
            ..PLANTED
        })
        .collect();
    let mut broken = vec![0.5; 64 * 20];
    broken[37 * 20 + 3] = f32::NAN;
    let (broken, constant) = (Heap::new(broken, 20).unwrap(), Heap::new(vec![1.0; 400], 20).unwrap());
    for device in common::tuning_devices() {
        let params = WideParams { atoms: 4, bulk: 6, rounds: 3, ..params() };
        let rays = WideParams { kind: Kind::Ray, atoms: 40, active: 5, ..params };
        let mut jobs: Vec<Job<'_>> = (planted.iter().enumerate())
            .map(|(k, source)| Job { source, fit: 600 + k, params: if k % 2 == 0 { params } else { rays } })
            .collect();
        jobs.insert(1, Job { source: &broken, fit: 64, params });
        jobs.insert(3, Job { source: &constant, fit: 20, params });
        let together = run(&device, &jobs);
        assert_eq!((together.fits.len(), together.usage.arenas), (7, 1));
        for (k, fit) in together.fits.iter().enumerate() {
            let alone = run(&device, &jobs[k..k + 1]).fits.remove(0);
            match (fit, alone) {
                (Ok(fit), Ok(alone)) => assert!(*fit == alone, "fit {k} on {}", device.name()),
                (Err(AtomsError::NonFinite { row: 37, column: 3, .. }), Err(_)) => assert_eq!(k, 1),
                (Err(AtomsError::Constant { rows: 20 }), Err(_)) => assert_eq!(k, 3),
                (fit, alone) => panic!("fit {k}: {fit:?}, alone {alone:?}"),
            }
        }
    }
}

#[test]
fn rows_that_have_no_room_are_read_again() {
    let params = WideParams {
        kind: Kind::Ray,
        atoms: 80,
        active: 2,
        stages: 2,
        rank: 96,
        rounds: 4,
        settled: 0.0,
        ..params()
    };
    let planted = Planted { rows: 20_000, ..PLANTED };
    let job = Job { source: &planted, fit: 18_000, params };
    for device in common::tuning_devices() {
        let all = predicted_bytes(&job, &Device::Host, usize::MAX).unwrap();
        // Two of the three batches of rows, 8,192 rows of 96 numbers each, have no room.
        let memory = all - 2 * 8192 * 96 * 4;
        let streamed = fit_battery(&device, std::slice::from_ref(&job), Some(memory), &|_, _| ());
        assert!(streamed.usage.arena <= memory, "{} of {memory}", streamed.usage.arena);
        let whole = run(&device, std::slice::from_ref(&job)).fits.remove(0).unwrap();
        let streamed = streamed.fits.into_iter().next().unwrap().unwrap();
        println!("streamed {:?}, kept {:?}", streamed.heldout, whole.heldout);
        // They begin at other rows; what they are worth is alike.
        assert!((streamed.heldout.unwrap() - whole.heldout.unwrap()).abs() < 0.02);
        let refused = run_with(&device, &job, all / 4).unwrap_err();
        assert!(matches!(refused, AtomsError::Device(_)), "{refused}");
    }
}

fn run_with(device: &Device, job: &Job<'_>, memory: u64) -> Result<WideFit, AtomsError> {
    fit_battery(device, std::slice::from_ref(job), Some(memory), &|_, _| ()).fits.remove(0)
}

#[test]
fn a_fit_ends_in_time_and_says_so() {
    let params = WideParams { seconds: Some(0.0), settled: 0.0, ..params() };
    let fit = one(&Device::Host, &PLANTED, params);
    assert_eq!((fit.outcome, fit.explained.len()), (WideOutcome::TimeLimit, 1));
    let fit = one(&Device::Host, &PLANTED, WideParams { rounds: 2, settled: 0.0, ..self::params() });
    assert_eq!((fit.outcome, fit.explained.len()), (WideOutcome::RoundLimit, 2));
}

#[test]
fn what_cannot_be_asked_for_is_refused_by_name() {
    for (params, what) in [
        (WideParams { active: 65, atoms: 100, ..params() }, "active = 65"),
        (WideParams { active: 13, ..params() }, "1 to 12 of 12"),
        (WideParams { stages: 3, ..params() }, "stages = 3"),
        (WideParams { bulk: 96, ..params() }, "bulk of 96"),
        (WideParams { spread: 0.5, ..params() }, "spread = 0.5"),
    ] {
        let error =
            run(&Device::Host, &[Job { source: &PLANTED, fit: FIT, params }]).fits.remove(0).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
}
