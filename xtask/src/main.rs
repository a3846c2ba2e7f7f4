//! Chores of the repository. `cargo xtask` lists them.

mod figures;
mod record;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
cargo xtask check                      format, lints, documentation, README figures, tests
cargo xtask record TOPIC -- COMMAND    run a command and keep it under results/DATE-TOPIC with the machine
cargo xtask figures                    the current value of every figure, and the folder it comes from
cargo xtask readme [--check]           put the current figures into README.md, or fail where one is stale";

type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["check"] => check(),
        ["record", topic, "--", command @ ..] if !command.is_empty() => record::run(&root(), topic, command),
        ["figures"] => figures::list(&root()),
        ["readme"] => figures::splice(&root()),
        ["readme", "--check"] => figures::check(&root()),
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn check() -> Result<()> {
    cargo(&["fmt", "--all", "--check"], &[])?;
    cargo(&["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
    cargo(&["clippy", "--release", "--all-targets", "--features", "hub", "--", "-D", "warnings"], &[])?;
    cargo(
        &["doc", "--release", "--no-deps", "--document-private-items"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    )?;
    figures::check(&root())?;
    cargo(&["test", "--release", "--workspace"], &[])?;
    cargo(&["test", "--release", "--features", "hub", "--test", "hub"], &[])
}

fn cargo(args: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let status =
        Command::new("cargo").args(args).envs(environment.iter().copied()).current_dir(root()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cargo {} failed: {status}", args.join(" "))),
        Err(error) => Err(format!("cargo {}: {error}", args.join(" "))),
    }
}

/// The repository's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}
