use std::path::PathBuf;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, miette};
use serde_json::json;

use lapidary::eval::{Scores, evaluate};
use lapidary::model::text::{Text, TextError, Windows};

use super::progress::bar;
use super::{Texts, open, print, print_json};

/// Tokens of a window, unless said otherwise.
const USUAL_WINDOW: usize = 2048;

/// Perplexity of a model on a text, and its divergence from the original
#[derive(clap::Args)]
pub struct Args {
    /// Hugging Face folder (packed or not) or GGUF file
    model: PathBuf,
    #[command(flatten)]
    texts: Texts,
    /// Tokens of a window [default: 2048, or the model's context if that is shorter]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    window: Option<u32>,
    /// Windows to score, from the start of the text [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    windows: Option<u32>,
    /// The original model, to measure the divergence from
    #[arg(long, value_name = "MODEL")]
    against: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    if args.texts.files.is_empty() {
        return Err(miette!("name a text to measure on with --text"));
    }
    let (checkpoint, model) = open(&args.model)?;
    let tokenizer = checkpoint.tokenizer().into_diagnostic()?;
    let original = match args.against.as_deref().map(open).transpose()? {
        Some((source, _)) if source.tokenizer().into_diagnostic()?.vocabulary() != tokenizer.vocabulary() => {
            return Err(miette!(
                "the two models have different vocabularies: their predictions cannot be compared"
            ));
        }
        other => other.map(|(_, decoder)| decoder),
    };
    let text = Text::read(&args.texts.files).into_diagnostic()?;
    let config = checkpoint.config();
    let bos = config.start_token();
    let room = config.max_positions - usize::from(bos.is_some());
    if room < 2 {
        return Err(miette!(
            "the model's context of {} positions has no room for a window of 2 tokens",
            config.max_positions
        ));
    }
    let window = args.window.map_or(room.min(USUAL_WINDOW), |tokens| tokens as usize);
    if window > room {
        return Err(miette!("--window {window} is longer than the model's context of {room} tokens"));
    }
    let mut windows = Windows::cut(&text, &tokenizer, window, bos).into_diagnostic()?;
    let wanted = args.windows.map_or(windows.count().max(1), |n| n as usize);
    if windows.count() < wanted {
        let what = format!("{wanted} windows of {} tokens", windows.len);
        let (tokens, needed) = (windows.text_tokens, wanted * windows.len);
        return Err(TextError::TooShort { tokens, needed, what }).into_diagnostic();
    }
    windows.truncate(wanted);

    let progress = bar(wanted as u64, "windows");
    let done = |scores: &Scores| {
        progress.set_message(format!("perplexity {:.3}", scores.perplexity));
        progress.inc(1);
    };
    let scores = evaluate(&model, original.as_ref(), &windows, &done).into_diagnostic()?;
    progress.finish_and_clear();

    let protocol = format!(
        "{} windows of {} tokens, {}, {} positions scored; text tokenised once, no special tokens; mean NLL, exp",
        scores.windows,
        scores.window,
        if bos.is_some() { "a start token before each" } else { "positions 2.. scored" },
        scores.scored
    );
    if args.json {
        let mut value = serde_json::to_value(&scores).into_diagnostic()?;
        value["model"] = json!(args.model.display().to_string());
        value["against"] = json!(args.against.map(|path| path.display().to_string()));
        value["texts"] = json!(text.files);
        value["protocol"] = json!(protocol);
        print_json(&value)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines = vec![format!("perplexity  {:.3}", scores.perplexity)];
    if let Some(divergence) = &scores.divergence {
        lines.push(format!("original    {:.3}", divergence.original_perplexity));
        lines.push(format!(
            "mean KL     {:.4} nats (99th percentile {:.4})",
            divergence.mean_kl, divergence.p99_kl
        ));
        lines.push(format!("top-1       {:.1} % agree", 100.0 * divergence.top1_agreement));
    }
    lines.push(format!("protocol    {protocol}"));
    print(&lines.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}
