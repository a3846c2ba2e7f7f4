//! lapidary cuts a language model down to about one bit a weight and shows the facets that remain.
//!
//! The modules in reading order; data flows one way, from the top of this list to the bottom:
//!
//! | module | job |
//! |---|---|
//! | [`device`] | memory: where bytes live |
//! | [`ops`] | one op a file: its definition on the host, its tolerance |
//! | [`hub`] | models by their name on huggingface.co |
//! | [`arrow`] | the resident Newton solver for arrow-structured systems |
//! | [`atoms`] | dictionaries of typed shapes (circles, spheres ...) that explain activations |
//! | [`blr`] | the payload of one packed linear layer: bytes, rank rule, product with activations |
//! | [`model`] | checkpoints, tokenizers and the decoder with its capture points |
//! | [`compress`] | calibration, the encoder, and the pipeline that packs a model |
//! | [`explain`] | a model's activations, explained: words, texts, pictures |
//! | [`eval`] | perplexity and divergence from the original |

pub mod device;
pub mod hub;
pub mod ops;

pub mod arrow;
pub mod atoms;
pub mod blr;
pub mod model;

pub mod compress;
pub mod eval;
pub mod explain;

// Unit tests find devices as those in tests/ do, with tests/common.
#[cfg(test)]
extern crate self as lapidary;
