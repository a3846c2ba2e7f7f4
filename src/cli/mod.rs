//! The command line: one file a subcommand. The only place that knows clap, miette and indicatif.

mod bench;
mod demo;
mod device;
mod eval;
mod generate;
mod inspect;
mod pack;
mod progress;
mod solve;
mod table;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use miette::{IntoDiagnostic, Result, WrapErr};

use lapidary::model::{Checkpoint, Decoder};

/// Cuts a language model down to about one bit a weight and shows the facets that remain.
#[derive(Parser)]
#[command(name = "lapidary", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Pack(pack::Args),
    Eval(eval::Args),
    Generate(generate::Args),
    Inspect(inspect::Args),
    Verify(verify::Args),
    Demo(demo::Args),
    Solve(solve::Args),
    Bench(bench::Args),
}

pub fn main() -> ExitCode {
    let run = match Cli::parse().command {
        Command::Pack(args) => pack::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Solve(args) => solve::run(args),
        Command::Bench(args) => bench::run(args),
    };
    match run {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

/// The reader of our output went away (`| head`): no fault of ours, and nothing more to say.
fn is_broken_pipe(error: &miette::Report) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// A text to stdout, with a line break behind it.
fn print(text: &str) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush())
        .into_diagnostic()
}

fn print_json(value: &impl serde::Serialize) -> Result<()> {
    print(&serde_json::to_string_pretty(value).into_diagnostic()?)
}

fn open(path: &Path) -> Result<(Checkpoint, Decoder)> {
    let checkpoint = Checkpoint::open(path).into_diagnostic()?;
    let decoder =
        Decoder::load(&checkpoint).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
    Ok((checkpoint, decoder))
}

/// Paths of text files, at least one.
#[derive(clap::Args)]
struct Texts {
    /// UTF-8 text file; several are concatenated in the order given
    #[arg(long = "text", value_name = "FILE", num_args = 1..)]
    files: Vec<PathBuf>,
}
