//! Dictionaries of shapes on planted data, on bad input, and as a program.

mod bad_input;
mod command;
mod failures;
mod invariance;
mod zoo;
