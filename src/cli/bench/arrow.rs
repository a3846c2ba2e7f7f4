use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result};

use lapidary::arrow::bench::{self, BenchParams};

use crate::cli::device::DeviceArgs;

/// The arrow solver: frames, solves, small systems, sweeps, bundle adjustment
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// Timed runs of a solve, after a warm-up that is not counted
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// A problem of "Bundle Adjustment in the Large" (its text format)
    #[arg(long, alias = "bundle", value_name = "FILE")]
    bal: Option<PathBuf>,
    /// Cells of the colour matrix in the sweep; each takes 230 MB
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(0..=32))]
    cells: u32,
    /// Fits of the sweep at once: 2 on the host, up to 4 on a card
    #[arg(long, value_name = "N")]
    lanes: Option<NonZero<usize>>,
    #[command(flatten)]
    output: super::Output,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let params = BenchParams {
        backend: args.device.arrow_backend()?,
        runs: args.runs as usize,
        bundle: args.bal,
        cells: args.cells as usize,
        lanes: args.lanes,
    };
    let mut figures = Vec::new();
    let measured = bench::run(&params, &mut figures, &|what| eprintln!("measuring: {what}"));
    args.output.show(&figures, &bench::machine(&params.backend))?;
    measured.into_diagnostic()?;
    Ok(ExitCode::SUCCESS)
}
