//! Perplexity of a model, and its divergence from the original. Reports only; the statistics are ops.

mod kl_base;
mod perplexity;
mod predictor;

pub use kl_base::{BaseInfo, HEAD, KlBase, KlBaseError};
pub use perplexity::{Divergence, EvalError, KlKind, Original, Scores, WindowScores, evaluate, evaluate_on};
