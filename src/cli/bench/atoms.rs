use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, miette};

use lapidary::arrow::{self, Backend};
use lapidary::atoms::bench::{self, Trial};
use lapidary::atoms::zoo::Case;

/// Dictionaries of shapes on planted data: what is found, how well, how fast
#[derive(clap::Args)]
pub struct Args {
    /// Seeds 0 to N − 1
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,
    /// Only these cases [default: the whole zoo]
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    #[command(flatten)]
    output: super::Output,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let case = |name: &String| {
        Case::ALL.into_iter().find(|case| case.name() == name).ok_or_else(|| {
            let all: Vec<&str> = Case::ALL.iter().map(|case| case.name()).collect();
            miette!("there is no case `{name}`; there are: {}", all.join(", "))
        })
    };
    let cases = args.cases.iter().map(case).collect::<Result<Vec<_>>>()?;
    let cases = if cases.is_empty() { Case::ALL.to_vec() } else { cases };
    let trials = bench::run(&cases, args.seeds, &|trial| eprintln!("{}", line(trial))).into_diagnostic()?;
    args.output.show(&bench::figures(&trials), &arrow::bench::machine(&Backend::Host))?;
    Ok(ExitCode::SUCCESS)
}

fn line(trial: &Trial) -> String {
    let shapes: Vec<String> = trial.shapes.iter().map(ToString::to_string).collect();
    format!(
        "{} {}: {} [{}], recovery {:.4}, explained {:.4} of {:.4}, L0 {:.2}, {:?}, {:.2} s",
        trial.case.name(),
        trial.seed,
        if trial.succeeds() { "found" } else { "missed" },
        shapes.join(", "),
        trial.recovery(),
        trial.explained,
        trial.ceiling,
        trial.l0,
        trial.outcome,
        trial.seconds
    )
}
