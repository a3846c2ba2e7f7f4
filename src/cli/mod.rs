//! The command line: one file a subcommand. The only place that knows clap, miette and indicatif.

mod bench;
mod demo;
mod device;
mod encode;
mod eval;
mod explain;
mod generate;
mod hub;
mod inspect;
mod pack;
mod profile;
mod progress;
mod solve;
mod sources;
mod sweep;
mod table;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use miette::{IntoDiagnostic, Result, WrapErr, miette};

use lapidary::model::{Checkpoint, Decoder};

use self::hub::local;

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
    Explain(Box<explain::Args>),
    Encode(encode::Args),
    Sweep(sweep::Args),
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
        Command::Explain(args) => explain::run(*args),
        Command::Encode(args) => encode::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Bench(args) => bench::run(args),
    };
    match run {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{}", explained(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes, a line each; a cause that the line above already tells is left out.
fn explained(error: &miette::Report) -> String {
    let mut lines: Vec<String> = Vec::new();
    for cause in error.chain().map(ToString::to_string) {
        if !lines.last().is_some_and(|last| last.contains(&cause)) {
            lines.push(if lines.is_empty() { format!("error: {cause}") } else { format!("  {cause}") });
        }
    }
    lines.join("\n")
}

/// Writes to stdout at once. When its reader has gone (`| head`), there is nothing left to do and the program ends.
fn write_out(text: &str) -> Result<()> {
    use std::io::{ErrorKind, Write};
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        written => written.into_diagnostic().wrap_err("stdout cannot be written"),
    }
}

/// A text to stdout, with a line break behind it.
fn print(text: &str) -> Result<()> {
    write_out(&format!("{text}\n"))
}

fn print_json(value: &impl serde::Serialize) -> Result<()> {
    print(&serde_json::to_string_pretty(value).into_diagnostic()?)
}

/// Refuses to write over what is there, a file, or a folder that holds something, and to begin where nothing can be written.
fn check_free(output: Option<&Path>) -> Result<()> {
    let Some(output) = output else { return Ok(()) };
    let empty = std::fs::read_dir(output).is_ok_and(|mut entries| entries.next().is_none());
    match output.symlink_metadata() {
        Ok(_) if !empty => {
            Err(miette!("{} exists already: choose another name, or move it away", output.display()))
        }
        _ => check_writable(output),
    }
}

/// Refuses an output in whose nearest folder no file can be made: it would be found out when all work is done.
fn check_writable(output: &Path) -> Result<()> {
    let named = output.ancestors().find(|folder| folder.symlink_metadata().is_ok());
    let folder = named.unwrap_or(Path::new("."));
    let probe = folder.join(format!(".lapidary-{}", std::process::id()));
    let tried = std::fs::File::create_new(&probe).and_then(|_| std::fs::remove_file(&probe));
    tried.map_err(|error| {
        let (output, folder) = (output.display(), folder.display());
        miette!("{output} cannot be written, since {folder} takes no file: {error}; choose an output that can be written")
    })
}

/// Says where something was written.
fn wrote(output: &Path) {
    eprintln!("written to {}", output.display());
}

fn open(path: &Path) -> Result<(Checkpoint, Decoder)> {
    let checkpoint = Checkpoint::open(local(path)?).into_diagnostic()?;
    let decoder =
        Decoder::load(&checkpoint).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
    Ok((checkpoint, decoder))
}

/// The text of a command that reads one.
#[derive(clap::Args)]
struct Texts {
    /// UTF-8 text file; several are concatenated in the order given
    #[arg(long = "text", value_name = "FILE", num_args = 1..)]
    files: Vec<PathBuf>,
}
