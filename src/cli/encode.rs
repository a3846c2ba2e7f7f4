use std::path::PathBuf;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, WrapErr};
use serde_json::json;

use lapidary::atoms::file;

use super::{check_free, print, print_json, wrote};

/// Apply a saved dictionary to activations: which atoms are on in each row, and where on them it lies
#[derive(clap::Args)]
pub struct Args {
    /// dictionary.safetensors of `lapidary explain`
    dictionary: PathBuf,
    /// Activations, .npy or .safetensors
    activations: PathBuf,
    /// The tensor of a safetensors file [default: its only one]
    #[arg(long, value_name = "NAME")]
    tensor: Option<String>,
    /// Write the codes here: row, atom, at, amplitude
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    check_free(args.output.as_deref())?;
    let dictionary = file::read_dictionary(&args.dictionary).into_diagnostic()?;
    let activations = file::read_activations(&args.activations, args.tensor.as_deref()).into_diagnostic()?;
    let measures = dictionary
        .measure(&activations.x, activations.width)
        .into_diagnostic()
        .wrap_err_with(|| args.activations.display().to_string())?;
    if let Some(output) = &args.output {
        file::write_codes(output, &measures.codes).into_diagnostic()?;
        wrote(output);
    }
    if args.json {
        print_json(&json!({
            "rows": measures.codes.len(),
            "explained": measures.explained,
            "l0": measures.l0,
            "coefficients": measures.coefficients,
            "alive": measures.alive,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let explained = match measures.explained.is_nan() {
        true => {
            "no explained variance, since they do not vary by more than rounding or are beyond f64".to_owned()
        }
        false => format!("explained variance {:.4}", measures.explained),
    };
    print(&format!(
        "{} rows: {explained}, {:.2} active atoms and {:.2} coefficients a row, {:.0} % of {} atoms alive",
        measures.codes.len(),
        measures.l0,
        measures.coefficients,
        100.0 * measures.alive,
        dictionary.atoms.len()
    ))?;
    Ok(ExitCode::SUCCESS)
}
