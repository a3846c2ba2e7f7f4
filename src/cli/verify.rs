use std::path::PathBuf;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result};

use lapidary::compress::verify::verify;

use super::{print, print_json};

/// Check a packed folder: structure, shapes, checksums
#[derive(clap::Args)]
pub struct Args {
    /// A folder that `pack` wrote
    folder: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let verification = verify(&args.folder).into_diagnostic()?;
    if args.json {
        print_json(&verification)?;
    } else {
        let mut lines = verification.faults.clone();
        lines.push(format!(
            "{}: {} files, {} linear layers, {}",
            args.folder.display(),
            verification.files,
            verification.tensors,
            match verification.faults.len() {
                0 => "no fault".to_owned(),
                1 => "1 fault".to_owned(),
                n => format!("{n} faults"),
            }
        ));
        print(&lines.join("\n"))?;
    }
    Ok(if verification.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
