use std::path::Path;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, miette};

use lapidary::atoms::FitParams;
use lapidary::explain::{loss_recovered, read_stream};
use lapidary::model::text::{Text, Windows};

use super::activations::classes;
use super::{Args, HELD_OUT, explained, one_layer};
use crate::cli::open;

/// Tokens of a window.
pub const WINDOW: usize = 128;

/// Explains the residual stream of a text; every fifth window is held out, and there the loss is measured with the
/// reconstruction in the stream's place.
pub fn run(args: &Args, file: &Path, params: &FitParams) -> Result<ExitCode> {
    let (checkpoint, decoder) = open(&args.input)?;
    let layer = one_layer(args, decoder.config().layers)?;
    let tokenizer = checkpoint.tokenizer().into_diagnostic()?;
    let text = Text::read(&[file.to_owned()]).into_diagnostic()?;
    let start = checkpoint.config().start_token();
    let window = WINDOW.min(decoder.config().max_positions - usize::from(start.is_some()));
    let mut windows = Windows::cut(&text, &tokenizer, window, start).into_diagnostic()?;
    windows.truncate((args.tokens as usize / window).max(1));
    if windows.count() < 2 {
        return Err(miette!(
            "{}: {} tokens are too few; two windows of {window} are needed",
            file.display(),
            windows.text_tokens
        ));
    }
    let x = read_stream(&decoder, &windows, layer).into_diagnostic()?;
    let width = decoder.config().hidden;
    let a_window = windows.positions - 1;
    let mut labels = Vec::new();
    for index in 0..windows.count() {
        let tokens = windows.window(index)[1..].iter();
        labels.extend(tokens.map(|id| tokenizer.token(*id).unwrap_or_default()));
    }
    let of_row: Vec<&str> = labels.iter().map(String::as_str).collect();
    let title = format!(
        "{}, after block {}: {} tokens of {}",
        args.input.display(),
        layer + 1,
        labels.len(),
        file.display()
    );
    let every = HELD_OUT.min(windows.count());
    let is_held_out = |i: usize| (i / a_window) % every == every - 1;
    let mut explained = explained(title, (x, width), classes(&of_row), params, is_held_out)?;
    let mut held = Vec::new();
    for index in (0..windows.count()).filter(|index| index % every == every - 1) {
        held.extend_from_slice(windows.window(index));
    }
    let held = Windows::of(&held, windows.positions, None);
    explained.recovered =
        Some(loss_recovered(&decoder, &held, layer, &explained.fit.dictionary).into_diagnostic()?);
    explained.show(args)?;
    Ok(ExitCode::SUCCESS)
}
