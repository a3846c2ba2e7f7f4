use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, WrapErr};

use lapidary::arrow::Backend;
use lapidary::arrow::bench::Figure;
use lapidary::device::Device;

use super::table::Table;
use super::{print, print_json};

mod arrow;
mod atoms;
mod encode;
mod sweep;

/// Measure this machine, answers checked first
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Arrow(arrow::Args),
    Atoms(atoms::Args),
    Encode(encode::Args),
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.what {
        What::Arrow(args) => arrow::run(args),
        What::Atoms(args) => atoms::run(args),
        What::Encode(args) => encode::run(args),
    }
}

/// Where figures go.
#[derive(clap::Args)]
struct Output {
    /// Folder for figures.csv, command.txt and machine.txt
    #[arg(long, value_name = "FOLDER")]
    out: Option<std::path::PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Output {
    fn show(&self, figures: &[Figure], parts: &[(&str, String)]) -> Result<()> {
        if let Some(folder) = &self.out {
            let machine = machine(parts, figures);
            write(
                folder,
                &[("figures.csv", csv(figures)), ("command.txt", command()), ("machine.txt", machine)],
            )?;
        }
        if self.json { print_json(&figures) } else { print(table(figures).to_string().trim_end()) }
    }
}

fn write(folder: &Path, files: &[(&str, String)]) -> Result<()> {
    std::fs::create_dir_all(folder).into_diagnostic().wrap_err_with(|| folder.display().to_string())?;
    for (name, text) in files {
        let file = folder.join(name);
        std::fs::write(&file, text).into_diagnostic().wrap_err_with(|| file.display().to_string())?;
    }
    Ok(())
}

/// What the figures of a device were measured on.
fn machine_of(device: &Device) -> Vec<(&'static str, String)> {
    let backend = match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => Backend::Cuda(cuda.clone().into()),
        _ => Backend::Host,
    };
    lapidary::arrow::bench::machine(&backend)
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
