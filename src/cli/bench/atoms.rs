use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, miette};

use lapidary::arrow::{self, Backend};
use lapidary::atoms::bench::{self, Trial};
use lapidary::atoms::wide::bench::Size;
use lapidary::atoms::zoo::Case;

use crate::cli::device::DeviceArgs;

/// Dictionaries of shapes on planted data: what is found, how well, how fast
#[derive(clap::Args)]
pub struct Args {
    /// Seeds 0 to N − 1
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,
    /// Only these cases [default: the whole zoo]; large64, battery256, wide16k and wide1k are wide dictionaries on a device
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Time of each fit of wide16k and wide1k
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    seconds: f64,
    /// Of wide dictionaries; the zoo is fitted on the host
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    output: super::Output,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let size = |name: &String| Size::ALL.into_iter().find(|size| size.name() == name);
    let sizes: Vec<Size> = args.cases.iter().filter_map(size).collect();
    if sizes.is_empty() {
        return zoo(&args);
    }
    if sizes.len() < args.cases.len() {
        return Err(miette!("cases of the zoo and wide dictionaries are measured apart"));
    }
    let device = args.device.open()?;
    let mut figures = Vec::new();
    for size in sizes {
        figures.extend(size.measure(&device, args.seconds).into_diagnostic()?);
    }
    args.output.show(&figures, &super::machine_of(&device))?;
    Ok(ExitCode::SUCCESS)
}

fn zoo(args: &Args) -> Result<ExitCode> {
    let case = |name: &String| {
        Case::ALL.into_iter().find(|case| case.name() == name).ok_or_else(|| {
            let all =
                Case::ALL.iter().map(|case| case.name()).chain(Size::ALL.iter().map(|size| size.name()));
            let all: Vec<&str> = all.collect();
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
