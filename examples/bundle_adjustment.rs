//! Bundle adjustment with the Newton loop: `cargo run --release --example bundle_adjustment -- problem-49-7776-pre.txt`.
//!
//! Files: <https://grail.cs.washington.edu/projects/bal/>, unpacked.

use lapidary::arrow::bundle;
use lapidary::arrow::{Problem, Try, newton};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: bundle_adjustment FILE")?;
    let (mut problem, start) = bundle::read(path.as_ref())?;
    println!(
        "{} cameras, {} points, {} observations",
        problem.cameras(),
        problem.points(),
        problem.observations().len()
    );
    println!("cost before  {:.2}", problem.objective(&start));
    let summary = newton(&mut problem, start, &bundle::params())?;
    for step in &summary.trace {
        let Try { ridge, actual, predicted, gradient_norm, accepted } = step;
        println!(
            "  gradient {gradient_norm:.1e}  ridge {ridge:.1e}  actual {actual:.3e}  predicted {predicted:.3e}  {accepted}"
        );
    }
    println!("cost after   {:.6}", summary.objective);
    println!("gradient     {:.2e}", summary.gradient_norm);
    println!(
        "{:?} after {} tries, {} accepted, {} frames; {:.2} s, {:.0} ms a try",
        summary.outcome,
        summary.tries,
        summary.accepts,
        summary.builds,
        summary.time.as_secs_f64(),
        1e3 * summary.time.as_secs_f64() / f64::from(summary.tries.max(1))
    );
    Ok(())
}
