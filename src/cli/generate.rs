use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use miette::{IntoDiagnostic, Result, miette};

use lapidary::model::{Cache, Checkpoint, Decoder, SampleParams, Sampler, Tokenizer};

use super::open;

/// Continue a text, streaming
#[derive(clap::Args)]
pub struct Args {
    /// Hugging Face folder (packed or not) or GGUF file
    model: PathBuf,
    /// Text to continue
    #[arg(short, long, value_name = "TEXT")]
    prompt: String,
    /// Tokens to write at most
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    max_tokens: usize,
    /// 0 takes the most likely token
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Draw from the most likely tokens that together have this probability
    #[arg(long, default_value_t = 1.0)]
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
    let mut out = std::io::stdout().lock();
    let mut show = |piece: &str| out.write_all(piece.as_bytes()).and_then(|()| out.flush());
    show(&args.prompt).into_diagnostic()?;
    let run = continue_text(&checkpoint, &decoder, &tokenizer, &mut sampler, &args, &mut show)?;
    show("\n").into_diagnostic()?;
    if std::io::stderr().is_terminal() {
        eprintln!(
            "{} prompt tokens at {:.0}/s, {} tokens at {:.1}/s, {}",
            run.prompt, run.prefill_rate, run.written, run.rate, run.ended
        );
    }
    Ok(ExitCode::SUCCESS)
}

struct Finished {
    prompt: usize,
    prefill_rate: f64,
    written: usize,
    rate: f64,
    ended: &'static str,
}

fn continue_text(
    checkpoint: &Checkpoint,
    decoder: &Decoder,
    tokenizer: &Tokenizer,
    sampler: &mut Sampler,
    args: &Args,
    show: &mut dyn FnMut(&str) -> std::io::Result<()>,
) -> Result<Finished> {
    let config = checkpoint.config();
    let mut prompt: Vec<u32> = config.bos.filter(|_| config.add_bos).into_iter().collect();
    prompt.extend(tokenizer.encode(&args.prompt).into_diagnostic()?);
    if prompt.is_empty() {
        prompt.extend(config.eos.first().or(config.bos.as_ref()));
    }
    if prompt.is_empty() {
        return Err(miette!(
            "the prompt is empty and the model names no token to start from; give a prompt with -p"
        ));
    }
    let room = config.max_positions.saturating_sub(prompt.len());
    let most = args.max_tokens.min(room);
    let mut cache = Cache::new(config, prompt.len() + most);
    let began = Instant::now();
    let mut logits = decoder.next_logits(&prompt, &mut cache).into_diagnostic()?;
    let prefill_rate = prompt.len() as f64 / began.elapsed().as_secs_f64();
    let mut stream = tokenizer.stream();
    let (began, mut written) = (Instant::now(), 0);
    let mut ended =
        if most < args.max_tokens { "the model's context is full" } else { "the limit is reached (-n)" };
    while written < most {
        let token = sampler.next(&logits);
        if config.eos.contains(&token) {
            ended = "the model ended the text";
            break;
        }
        written += 1;
        if let Some(piece) = stream.push(token).into_diagnostic()? {
            show(&piece).into_diagnostic()?;
        }
        if written < most {
            logits = decoder.next_logits(&[token], &mut cache).into_diagnostic()?;
        }
    }
    if let Some(piece) = stream.finish().into_diagnostic()? {
        show(&piece).into_diagnostic()?;
    }
    Ok(Finished {
        prompt: prompt.len(),
        prefill_rate,
        written,
        rate: written as f64 / began.elapsed().as_secs_f64(),
        ended,
    })
}
