//! The readers of checkpoints, on good, bad and random files.

mod allocations;
mod bad_folder;
mod bad_gguf;
mod bad_input;
mod fixtures;
mod fuzz;
mod good_input;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;
