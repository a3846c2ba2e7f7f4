use lapidary::atoms::{FitParams, fit, measure, zoo::Case};
use std::time::Instant;
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let seeds: u64 = args.get(1).map_or(3, |s| s.parse().unwrap());
    let first: u64 = args.get(2).map_or(0, |s| s.parse().unwrap());
    for case in Case::ALL.into_iter().filter(|c| args.is_empty() || args[0] == "all" || c.name() == args[0]) {
        for seed in first..first + seeds {
            let planted = case.plant(seed);
            let began = Instant::now();
            let params = FitParams { seed, ..FitParams::default() };
            match fit(planted.fit_rows(), planted.width, &params) {
                Ok(fit) => {
                    let seconds = began.elapsed().as_secs_f64();
                    let m = fit.dictionary.measure(planted.heldout_rows(), planted.width).unwrap();
                    let r = measure::recoveries(
                        &planted.shapes,
                        planted.heldout_truth(),
                        &fit.dictionary,
                        &m.codes,
                    );
                    let shapes: Vec<String> = fit
                        .dictionary
                        .atoms
                        .iter()
                        .map(|a| format!("{}({:.2},{:.2})", a.shape, a.activity, a.spread))
                        .collect();
                    println!(
                        "{} {seed}: {:?}/{:?} {} | ev {:.4} of {:.4}, l0 {:.2} | rec {:?} | sigma {:.4} | {seconds:.2} s, {:?}",
                        case.name(),
                        fit.certificate.outcome,
                        fit.certificate.ending,
                        shapes.join(" "),
                        m.explained,
                        planted.ceiling(),
                        m.l0,
                        r.iter().map(|r| (r * 1e4).round() / 1e4).collect::<Vec<_>>(),
                        fit.dictionary.noise.sqrt() * fit.dictionary.space.scale,
                        fit.certificate.work
                    );
                    for b in &fit.certificate.births {
                        println!("      {} {:?} {:.0}", b.atom, b.shape, b.advantage);
                    }
                }
                Err(e) => println!("{} {seed}: {e}", case.name()),
            }
        }
    }
}
