use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, WrapErr};

use lapidary::atoms::{AtomsError, FitParams, file};

use super::{Args, HELD_OUT, explained};

/// Explains a file of activations; every fifth row is held out where there are enough of them.
pub fn run(args: &Args, params: &FitParams) -> Result<ExitCode> {
    let activations = file::read_activations(&args.input, args.tensor.as_deref()).into_diagnostic()?;
    let rows = activations.x.len() / activations.width;
    let (of_row, names) = match &args.labels {
        None => (Vec::new(), Vec::new()),
        Some(labels) => {
            let text = std::fs::read_to_string(labels)
                .into_diagnostic()
                .wrap_err_with(|| labels.display().to_string())?;
            let of_row: Vec<&str> = text.lines().collect();
            if of_row.len() != rows {
                return Err(AtomsError::Labels { got: of_row.len(), rows }).into_diagnostic();
            }
            classes(&of_row)
        }
    };
    let title = format!("{}: {rows} rows of {}", args.input.display(), activations.width);
    let holds = rows >= 10 * HELD_OUT;
    let is_held_out = |i: usize| holds && i % HELD_OUT == HELD_OUT - 1;
    explained(title, (activations.x, activations.width), (of_row, names), params, is_held_out)?.show(args)?;
    Ok(ExitCode::SUCCESS)
}

/// Labels numbered in the order in which they come.
pub fn classes(labels: &[&str]) -> (Vec<usize>, Vec<String>) {
    let mut names: Vec<String> = Vec::new();
    let mut seen = std::collections::HashMap::new();
    let number = |label: &&str| {
        *seen.entry((*label).to_owned()).or_insert_with(|| {
            names.push((*label).to_owned());
            names.len() - 1
        })
    };
    (labels.iter().map(number).collect(), names)
}
