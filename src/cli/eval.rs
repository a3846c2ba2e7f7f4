use std::path::{Path, PathBuf};
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, miette};
use serde_json::{Value, json};

use lapidary::device::Device;
use lapidary::eval::{BaseInfo, EvalError, HEAD, KlBase, KlKind, Original, Scores, evaluate_on};
use lapidary::model::on_device::DeviceForward;
use lapidary::model::text::{Text, TextError, Windows};
use lapidary::model::{Checkpoint, Decoder, Tokenizer};

use super::device::DeviceArgs;
use super::progress::bar;
use super::{Texts, local, open, print, print_json};

/// Tokens of a window, unless said otherwise.
const USUAL_WINDOW: usize = 2048;

/// Perplexity of a model on a text, and its divergence from the original
#[derive(clap::Args)]
#[command(override_usage = "lapidary eval <MODEL> --text <FILE>... [OPTIONS]")]
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
    /// File of the original's predictions: stored there (with --against) when it does not exist, then used in the place of
    /// the original; KL is then a lower bound, in which tokens outside of the original's 256 likeliest count as one
    #[arg(long, value_name = "FILE")]
    kl_base: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceArgs,
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
    let text = Text::read(&args.texts.files).into_diagnostic()?;
    let windows = cut(&args, &checkpoint, &tokenizer, &text)?;
    let device = args.device.open_for(|device| match device {
        Device::Host => Ok(()),
        _ => DeviceForward::fits(device, checkpoint.config(), (windows.positions, windows.count())),
    })?;
    let base = args.kl_base.as_ref().map(|file| kl_base(file, &args, &device, &tokenizer, &model, &windows));
    let base = base.transpose()?;
    let against = args.against.as_ref().filter(|_| base.is_none());
    let loaded = against.map(|path| open_original(path, &tokenizer)).transpose()?;
    let original = match (&base, &loaded) {
        (Some(base), _) => Some(Original::Stored(base)),
        (None, Some((_, decoder))) => Some(Original::Loaded(decoder)),
        (None, None) => None,
    };

    let progress = bar(windows.count() as u64, "windows");
    let done = |scores: &Scores| {
        progress.set_message(format!("perplexity {:.3}", scores.perplexity));
        progress.inc(1);
    };
    let scores = evaluate_on(&device, &model, original, &windows, &done).into_diagnostic()?;
    progress.finish_and_clear();

    let protocol = format!(
        "{} windows of {} tokens, {}, {} positions scored; text tokenised once, no special tokens; mean NLL, exp",
        scores.windows,
        scores.window,
        if windows.positions > windows.len { "a start token before each" } else { "positions 2.. scored" },
        scores.scored
    );
    match args.json {
        true => print_json(&as_json(&args, &scores, base.as_ref(), &text, &protocol, &device.name())?)?,
        false => print(&as_text(&scores, &protocol))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(
    args: &Args,
    scores: &Scores,
    base: Option<&KlBase>,
    text: &Text,
    protocol: &str,
    device: &str,
) -> Result<Value> {
    let shown = |path: &PathBuf| path.display().to_string();
    let mut value = serde_json::to_value(scores).into_diagnostic()?;
    value["device"] = json!(device);
    value["model"] = json!(shown(&args.model));
    value["against"] = json!(args.against.as_ref().map(shown));
    if let Some(base) = base {
        value["kl_base"] = json!({
            "file": args.kl_base.as_ref().map(shown),
            "model": base.info.model,
            "fingerprint": base.info.fingerprint,
            "definition": lower_bound(),
        });
    }
    value["texts"] = json!(text.files);
    value["protocol"] = json!(protocol);
    Ok(value)
}

fn as_text(scores: &Scores, protocol: &str) -> String {
    let mut lines = vec![format!("perplexity  {:.3}", scores.perplexity)];
    if let Some(divergence) = &scores.divergence {
        lines.push(format!("original    {:.3}", divergence.original_perplexity));
        let (bound, what) = match divergence.kl_kind {
            KlKind::Exact => ("", String::new()),
            KlKind::LowerBound => (">= ", format!("; {}", lower_bound())),
        };
        lines.push(format!(
            "mean KL     {bound}{:.4} nats (99th percentile {bound}{:.4}){what}",
            divergence.mean_kl, divergence.p99_kl
        ));
        lines.push(format!("top-1       {:.1} % agree", 100.0 * divergence.top1_agreement));
    }
    lines.push(format!("protocol    {protocol}"));
    lines.join("\n")
}

/// What the divergence from stored predictions is.
fn lower_bound() -> String {
    format!("a lower bound: tokens outside of the original's {HEAD} likeliest count as one")
}

/// The windows that are asked for.
fn cut(args: &Args, checkpoint: &Checkpoint, tokenizer: &Tokenizer, text: &Text) -> Result<Windows> {
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
    let mut windows = Windows::cut(text, tokenizer, window, bos).into_diagnostic()?;
    let wanted = args.windows.map_or(windows.count().max(1), |n| n as usize);
    if windows.count() < wanted {
        let (what, instead) = match wanted {
            1 => (format!("a window of {} tokens", windows.len), "a shorter --window"),
            _ => (format!("{wanted} windows of {} tokens", windows.len), "fewer --windows"),
        };
        let (tokens, needed) = (windows.text_tokens, wanted * windows.len);
        return Err(TextError::TooShort { tokens, needed, what, instead }).into_diagnostic();
    }
    windows.truncate(wanted);
    Ok(windows)
}

/// The original, which must have the model's tokenizer.
fn open_original(path: &Path, tokenizer: &Tokenizer) -> Result<(Checkpoint, Decoder)> {
    let (source, decoder) = open(path)?;
    if source.tokenizer().into_diagnostic()?.vocabulary() != tokenizer.vocabulary() {
        return Err(miette!(
            "the two models have different vocabularies: their predictions cannot be compared"
        ));
    }
    Ok((source, decoder))
}

/// The original's predictions in `file`, stored there first where there is no such file.
fn kl_base(
    file: &Path,
    args: &Args,
    device: &Device,
    tokenizer: &Tokenizer,
    model: &Decoder,
    windows: &Windows,
) -> Result<KlBase> {
    let vocab = model.config().vocab;
    let info = |source: Option<&Checkpoint>| {
        let name = source.and_then(|source| Some(source.path().file_name()?.to_string_lossy().into_owned()));
        let fingerprint = source.map(Checkpoint::fingerprint);
        BaseInfo::new(name.unwrap_or_default(), fingerprint.unwrap_or_default(), vocab, windows)
    };
    if file.exists() {
        // The original is asked for its fingerprint alone.
        let source = args.against.as_ref().map(|path| Checkpoint::open(local(path)?).into_diagnostic());
        return KlBase::open(file, &info(source.transpose()?.as_ref())).into_diagnostic();
    }
    let Some(path) = &args.against else {
        return Err(miette!(
            "{} does not exist: name the original with --against, and its predictions are stored there",
            file.display()
        ));
    };
    let (source, original) = open_original(path, tokenizer)?;
    if original.config().vocab != vocab {
        let (original, model) = (original.config().vocab, vocab);
        return Err(EvalError::Vocabulary { model, original }).into_diagnostic();
    }
    let info = info(Some(&source));
    let progress = bar(windows.count() as u64, "windows of the original");
    let done = |done| progress.set_position(done as u64);
    KlBase::store(device, file, &info, &original, windows, &done).into_diagnostic()?;
    progress.finish_and_clear();
    KlBase::open(file, &info).into_diagnostic()
}
