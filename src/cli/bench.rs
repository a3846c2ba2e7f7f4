use std::fmt::Write;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, WrapErr};

use lapidary::arrow::bench::{self, BenchParams, Figure};

use super::device::DeviceArgs;
use super::table::Table;
use super::{print, print_json};

/// Measure this machine, answers checked first
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Arrow(Arrow),
}

/// The arrow solver: frames, solves, small systems, sweeps, bundle adjustment
#[derive(clap::Args)]
struct Arrow {
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
    /// Folder for figures.csv, command.txt and machine.txt
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let What::Arrow(args) = args.what;
    let params = BenchParams {
        backend: args.device.arrow_backend()?,
        runs: args.runs as usize,
        bundle: args.bal,
        cells: args.cells as usize,
        lanes: args.lanes,
    };
    let mut figures = Vec::new();
    let measured = bench::run(&params, &mut figures, &|what| eprintln!("measuring: {what}"));
    if let Some(folder) = &args.out {
        let machine = machine(&bench::machine(&params.backend), &figures);
        write(
            folder,
            &[("figures.csv", csv(&figures)), ("command.txt", command()), ("machine.txt", machine)],
        )?;
    }
    if args.json {
        print_json(&figures)?;
    } else {
        print(table(&figures).to_string().trim_end())?;
    }
    measured.into_diagnostic()?;
    Ok(ExitCode::SUCCESS)
}

fn write(folder: &Path, files: &[(&str, String)]) -> Result<()> {
    std::fs::create_dir_all(folder).into_diagnostic().wrap_err_with(|| folder.display().to_string())?;
    for (name, text) in files {
        let file = folder.join(name);
        std::fs::write(&file, text).into_diagnostic().wrap_err_with(|| file.display().to_string())?;
    }
    Ok(())
}

fn command() -> String {
    let words: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into()).collect();
    format!("lapidary {}\n", words.join(" "))
}

/// What the machine is, and the rates that were measured on it.
fn machine(parts: &[(&str, String)], figures: &[Figure]) -> String {
    let mut text = String::new();
    for (part, what) in parts {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{part}: {what}");
    }
    for Figure { name, value, unit, .. } in figures.iter().filter(|figure| figure.name.ends_with("_rate")) {
        let _ = writeln!(text, "{name}: {value:.1} {unit}");
    }
    text
}

fn csv(figures: &[Figure]) -> String {
    let mut text = "name,value,unit\n".to_owned();
    for Figure { name, value, unit, .. } in figures {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name},{value:e},{unit}");
    }
    text
}

fn table(figures: &[Figure]) -> Table {
    let mut table = Table::new(&["figure", "value", "unit", "floor", "of the floor", "residual", "note"]);
    for figure in figures {
        let floor = figure.floor.map(|(floor, _)| floor);
        table.row(vec![
            figure.name.clone(),
            number(figure.value),
            figure.unit.to_owned(),
            floor.map_or_else(String::new, number),
            floor.map_or_else(String::new, |floor| format!("{:.2}x", figure.value / floor)),
            figure.residual.map_or_else(String::new, |residual| format!("{residual:.1e}")),
            note(figure),
        ]);
    }
    table
}

fn note(figure: &Figure) -> String {
    let floor = figure.floor.map(|(_, what)| format!("floor: {what}"));
    floor.into_iter().chain(figure.note.clone()).collect::<Vec<_>>().join("; ")
}

fn number(value: f64) -> String {
    match value.abs() {
        small if small > 0.0 && small < 1e-3 => format!("{value:.2e}"),
        large if large >= 1e6 => format!("{value:.3e}"),
        _ => format!("{value:.4}"),
    }
}
