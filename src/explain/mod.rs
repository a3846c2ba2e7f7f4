//! Explaining a model's activations: reading them from the residual stream, fitting a dictionary, and showing it.
//!
//! | file | job |
//! |---|---|
//! | `words` | labelled words in sentences, and the residual stream at each |
//! | `stream` | the residual stream of a text; what a reconstruction in its place costs |
//! | `order` | in which order words lie on a circle, and controls |
//! | `report` | one page of HTML, complete in itself |
//! | [`sweep`] | batteries of fits, resumable |

mod error;
mod order;
mod report;
mod stream;
pub mod sweep;
mod words;

pub use error::ExplainError;
pub use order::{Order, coherence, control, cyclic_orders, word_angles};
pub use report::{Report, page};
pub use stream::{Recovered, loss_recovered, read_stream};
pub use words::{Centre, WordRows, WordSet, read_words, word_rows};
