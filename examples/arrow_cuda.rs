//! Checks and then times the arrow solver on an NVIDIA card: `cargo run --release --example arrow_cuda [sweep]`.
//!
//! Every answer is checked by the operator residual before anything is timed; each figure is the median of at least
//! 50 runs after warm-up, and stands beside the floor that bytes over the copy rate of the same run set.

#[cfg(feature = "cuda")]
#[path = "arrow_cuda/run.rs"]
mod run;

#[cfg(feature = "cuda")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    run::run()
}

#[cfg(not(feature = "cuda"))]
fn main() {
    eprintln!("this example needs the feature cuda");
}
