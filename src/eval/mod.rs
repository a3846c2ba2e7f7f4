//! Perplexity of a model, and its divergence from the original. Reports only; the statistics are ops.

mod perplexity;

pub use perplexity::{Divergence, EvalError, Scores, evaluate};
