use std::time::Instant;

use miette::{IntoDiagnostic, Result, miette};

use lapidary::model::{Cache, Decoder, Sampler, Tokenizer};

/// Writes on behind prompts, one token after the other.
pub struct Writer<'a> {
    pub decoder: &'a Decoder,
    pub tokenizer: &'a Tokenizer,
    pub sampler: Sampler,
    /// Tokens that end a text; they are not part of it.
    pub ends: Vec<u32>,
    /// Tokens to write at most.
    pub most: usize,
}

/// What was written, and how fast.
pub struct Written {
    pub prompt: Vec<u32>,
    pub tokens: Vec<u32>,
    pub text: String,
    pub stop: Stop,
    /// The token that ended the text, where one did.
    pub stop_token: Option<u32>,
    pub prompt_seconds: f64,
    pub seconds: f64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The model ended the text.
    End,
    /// As many tokens as were asked for.
    Limit,
    /// The model's context is full.
    Context,
}

impl Stop {
    pub fn name(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Limit => "limit",
            Self::Context => "context",
        }
    }

    pub fn explained(self) -> &'static str {
        match self {
            Self::End => "the model ended the text",
            Self::Limit => "the limit is reached (-n)",
            Self::Context => "the context is full",
        }
    }
}

impl Written {
    /// Tokens a second.
    pub fn rate(&self) -> f64 {
        self.tokens.len() as f64 / self.seconds
    }
}

impl Writer<'_> {
    /// Writes on behind `prompt`, which is not empty; `show` gets the text as it comes.
    pub fn write(&mut self, prompt: &[u32], show: &mut dyn FnMut(&str) -> Result<()>) -> Result<Written> {
        let config = self.decoder.config();
        let context = config.max_positions;
        if prompt.len() >= context {
            let n = prompt.len();
            return Err(miette!(
                "the prompt has {n} tokens, but the model's context is {context}; shorten it"
            ));
        }
        let most = self.most.min(context - prompt.len());
        let mut cache = Cache::new(config, prompt.len() + most);
        let began = Instant::now();
        let mut logits = self.decoder.next_logits(prompt, &mut cache).into_diagnostic()?;
        let prompt_seconds = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let stop = if most < self.most { Stop::Context } else { Stop::Limit };
        let mut written = Written {
            prompt: prompt.to_vec(),
            tokens: Vec::new(),
            text: String::new(),
            stop,
            stop_token: None,
            prompt_seconds,
            seconds: 0.0,
        };
        let mut stream = self.tokenizer.stream_after(prompt);
        while written.tokens.len() < most {
            let token = self.sampler.next(&logits);
            if self.ends.contains(&token) {
                (written.stop, written.stop_token) = (Stop::End, Some(token));
                break;
            }
            written.tokens.push(token);
            if let Some(piece) = stream.push(token).into_diagnostic()? {
                show(&piece)?;
                written.text += &piece;
            }
            if written.tokens.len() < most {
                logits = self.decoder.next_logits(&[token], &mut cache).into_diagnostic()?;
            }
        }
        if let Some(piece) = stream.finish().into_diagnostic()? {
            show(&piece)?;
            written.text += &piece;
        }
        written.seconds = began.elapsed().as_secs_f64();
        Ok(written)
    }
}
