mod chat;
mod writer;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, miette};
use serde_json::json;

use lapidary::model::{Checkpoint, SampleParams, Sampler, Tokenizer};

use self::writer::{Stop, Writer, Written};
use super::{open, print_json, write_out};

/// Continue a text or answer in a conversation, streaming
#[derive(clap::Args)]
pub struct Args {
    /// Hugging Face folder (packed or not) or GGUF file
    model: PathBuf,
    /// Text to continue; with --chat what the user says [with --chat and without it: a turn is read from each line of stdin]
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true, required_unless_present = "chat")]
    prompt: Option<String>,
    /// Answer as an assistant, through the model's own chat template
    #[arg(long)]
    chat: bool,
    /// What stands before the conversation, where the template has a place for it
    #[arg(long, value_name = "TEXT", requires = "chat", allow_hyphen_values = true)]
    system: Option<String>,
    /// Tokens to write at most
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    max_tokens: usize,
    /// 0 takes the most likely token
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f32,
    /// Draw from the most likely tokens that together have this probability
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f32,
    /// The same seed gives the same text
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print one JSON object when all is written: token ids, text, why it stopped, speed
    #[arg(long, requires = "prompt")]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let (checkpoint, decoder) = open(&args.model)?;
    let params = SampleParams { temperature: args.temperature, top_p: args.top_p, seed: args.seed };
    let sampler = Sampler::new(params).into_diagnostic()?;
    let tokenizer = checkpoint.tokenizer().into_diagnostic()?;
    let template = args.chat.then(|| checkpoint.chat(&tokenizer)).transpose().into_diagnostic()?;
    let ends = checkpoint.ends(&tokenizer);
    let mut writer =
        Writer { decoder: &decoder, tokenizer: &tokenizer, sampler, ends, most: args.max_tokens };
    match template {
        Some(template) => chat::run(&args, &template, &mut writer)?,
        None => {
            let prompt = args.prompt.as_deref().unwrap_or_default();
            let tokens = prompt_tokens(&checkpoint, &tokenizer, prompt)?;
            if !args.json {
                write_out(prompt)?;
            }
            let written = answer(&args, &mut writer, &tokens)?;
            report(&args, &writer, &written)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes on behind `prompt`, to stdout as it comes where no JSON is asked for.
fn answer(args: &Args, writer: &mut Writer, prompt: &[u32]) -> Result<Written> {
    let written = writer.write(prompt, &mut |piece| if args.json { Ok(()) } else { write_out(piece) })?;
    if !args.json {
        write_out("\n")?;
    }
    Ok(written)
}

/// JSON where it is asked for, else warnings, and speeds for a person.
fn report(args: &Args, writer: &Writer, written: &Written) -> Result<()> {
    if written.stop == Stop::Context {
        eprintln!("warning: the model's context of {} tokens is full", writer.decoder.config().max_positions);
    }
    if args.json {
        return print_json(&json!({
            "model": args.model.display().to_string(),
            "device": "host",
            "seed": args.seed,
            "temperature": args.temperature,
            "top_p": args.top_p,
            "prompt_tokens": written.prompt,
            "tokens": written.tokens,
            "text": written.text,
            "stop": written.stop.name(),
            "stop_token": written.stop_token.and_then(|id| writer.tokenizer.token(id)),
            "seconds": written.prompt_seconds + written.seconds,
            "prompt_tokens_per_second": written.prompt.len() as f64 / written.prompt_seconds,
            "tokens_per_second": written.rate(),
        }));
    }
    if std::io::stderr().is_terminal() {
        eprintln!(
            "{} prompt tokens at {:.0}/s, {} tokens at {:.1}/s, {}",
            written.prompt.len(),
            written.prompt.len() as f64 / written.prompt_seconds,
            written.tokens.len(),
            written.rate(),
            written.stop.explained()
        );
    }
    Ok(())
}

/// The prompt behind the start token that the model asks for; never empty.
fn prompt_tokens(checkpoint: &Checkpoint, tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>> {
    let config = checkpoint.config();
    let mut tokens: Vec<u32> = config.start_token().into_iter().collect();
    tokens.extend(tokenizer.encode(prompt).into_diagnostic()?);
    if tokens.is_empty() {
        tokens.extend(config.eos.first().or(config.bos.as_ref()));
    }
    if tokens.is_empty() {
        return Err(miette!(
            "the prompt is empty and the model names no token to start from; give a prompt with -p"
        ));
    }
    Ok(tokens)
}
