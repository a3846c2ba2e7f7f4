use std::path::PathBuf;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, WrapErr};

use lapidary::explain::sweep::{Begin, Record, State, SweepFile, SweepParams, csv, page, run as sweep};

use super::device::DeviceArgs;
use super::table::Table;
use super::{print, print_json};

/// Fit a battery of dictionaries: atoms x shapes x layers x seeds, over files or a model
#[derive(clap::Args)]
pub struct Args {
    /// What is fitted to what (see docs/sweep.md)
    battery: PathBuf,
    /// Folder for finished fits, table.csv, table.json and report.html
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Go on with the fits that the folder lacks
    #[arg(long)]
    resume: bool,
    /// Where wide fits are made; races run on the host's threads
    #[command(flatten)]
    device: DeviceArgs,
    /// Memory that wide fits may take together [default: what the device has free]
    #[arg(long, value_name = "MIB")]
    memory: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let battery = SweepFile::read(&args.battery).into_diagnostic()?;
    let device = args.device.open()?;
    let memory = args.memory.map(|mib| mib.saturating_mul(1 << 20));
    let begin = if args.resume { Begin::Resume } else { Begin::Anew };
    let params = SweepParams { device: &device, memory, begin };
    let told = |done: usize, all: usize, record: &Record| eprintln!("{done}/{all} {}", line(record));
    let records = sweep(&battery, &args.output, &params, &told).into_diagnostic()?;
    let title = format!("{}: {} fits", args.battery.display(), records.len());
    let json = serde_json::to_string_pretty(&records).into_diagnostic()?;
    for (name, text) in
        [("table.csv", csv(&records)), ("table.json", json), ("report.html", page(&title, &records))]
    {
        let file = args.output.join(name);
        lapidary::device::write_durably(&file, |out| out.write_all(text.as_bytes()))
            .into_diagnostic()
            .wrap_err_with(|| file.display().to_string())?;
    }
    if args.json {
        print_json(&records)?
    } else {
        print(table(&records).to_string().trim_end())?
    }
    let failed = records.iter().all(|record| matches!(record.state, State::Failed { .. }));
    Ok(if failed && !records.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn line(record: &Record) -> String {
    let cell = &record.cell;
    let what = match &record.state {
        State::Fitted { outcome, explained, .. } => format!("explained {explained:.4}, {outcome}"),
        State::Failed { error } => format!("failed: {error}"),
    };
    format!("{} {} x {} seed {}: {what}", cell.rows, cell.atoms, cell.shapes, cell.seed)
}

fn table(records: &[Record]) -> Table {
    let mut table =
        Table::new(&["rows", "shapes", "atoms", "seed", "explained", "L0", "dead", "found", "outcome"]);
    for Record { cell, state } in records {
        let mut row =
            vec![cell.rows.clone(), cell.shapes.clone(), cell.atoms.to_string(), cell.seed.to_string()];
        row.extend(match state {
            State::Fitted { outcome, explained, l0, dead, found } => [
                format!("{explained:.4}"),
                format!("{l0:.2}"),
                format!("{:.1} %", 100.0 * dead),
                found.clone(),
                outcome.clone(),
            ],
            State::Failed { error } => {
                [String::new(), String::new(), String::new(), String::new(), error.clone()]
            }
        });
        table.row(row);
    }
    table
}
