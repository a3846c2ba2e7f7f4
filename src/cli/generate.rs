use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use miette::{IntoDiagnostic, Result, miette};

use lapidary::model::{Cache, Checkpoint, Decoder, SampleParams, Sampler, Tokenizer};

use super::{open, write_out};

/// Continue a text, streaming
#[derive(clap::Args)]
pub struct Args {
    /// Hugging Face folder (packed or not) or GGUF file
    model: PathBuf,
    /// Text to continue
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: String,
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
}

pub fn run(args: Args) -> Result<ExitCode> {
    let (checkpoint, decoder) = open(&args.model)?;
    let params = SampleParams { temperature: args.temperature, top_p: args.top_p, seed: args.seed };
    let mut sampler = Sampler::new(params).into_diagnostic()?;
    let tokenizer = checkpoint.tokenizer().into_diagnostic()?;
    let prompt = prompt_tokens(&checkpoint, &tokenizer, &args.prompt)?;
    write_out(&args.prompt)?;
    let run = continue_text(&decoder, &tokenizer, &mut sampler, &prompt, args.max_tokens)?;
    write_out("\n")?;
    if run.full {
        eprintln!("warning: the model's context of {} tokens is full", decoder.config().max_positions);
    }
    if std::io::stderr().is_terminal() {
        eprintln!(
            "{} prompt tokens at {:.0}/s, {} tokens at {:.1}/s, {}",
            prompt.len(),
            run.prefill_rate,
            run.written,
            run.rate,
            run.ended
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The prompt behind the start token that the model asks for; never empty, with room for one more token.
fn prompt_tokens(checkpoint: &Checkpoint, tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>> {
    let config = checkpoint.config();
    let mut tokens: Vec<u32> = config.start_token().into_iter().collect();
    tokens.extend(tokenizer.encode(prompt).into_diagnostic()?);
    if tokens.is_empty() {
        tokens.extend(config.eos.first().or(config.bos.as_ref()));
    }
    let most = config.max_positions;
    match tokens.len() {
        0 => Err(miette!(
            "the prompt is empty and the model names no token to start from; give a prompt with -p"
        )),
        n if n >= most => {
            Err(miette!("the prompt has {n} tokens, but the model's context is {most}; shorten it"))
        }
        _ => Ok(tokens),
    }
}

struct Finished {
    prefill_rate: f64,
    written: usize,
    rate: f64,
    ended: &'static str,
    /// The context ended the text before the limit did.
    full: bool,
}

fn continue_text(
    decoder: &Decoder,
    tokenizer: &Tokenizer,
    sampler: &mut Sampler,
    prompt: &[u32],
    max_tokens: usize,
) -> Result<Finished> {
    let config = decoder.config();
    let most = max_tokens.min(config.max_positions - prompt.len());
    let mut cache = Cache::new(config, prompt.len() + most);
    let began = Instant::now();
    let mut logits = decoder.next_logits(prompt, &mut cache).into_diagnostic()?;
    let prefill_rate = prompt.len() as f64 / began.elapsed().as_secs_f64();
    let mut stream = tokenizer.stream_after(prompt);
    let (began, mut written) = (Instant::now(), 0);
    let full = most < max_tokens;
    let mut ended = if full { "the context is full" } else { "the limit is reached (-n)" };
    while written < most {
        let token = sampler.next(&logits);
        if config.eos.contains(&token) {
            ended = "the model ended the text";
            break;
        }
        written += 1;
        if let Some(piece) = stream.push(token).into_diagnostic()? {
            write_out(&piece)?;
        }
        if written < most {
            logits = decoder.next_logits(&[token], &mut cache).into_diagnostic()?;
        }
    }
    if let Some(piece) = stream.finish().into_diagnostic()? {
        write_out(&piece)?;
    }
    let rate = written as f64 / began.elapsed().as_secs_f64();
    Ok(Finished { prefill_rate, written, rate, ended, full: full && written == most })
}
