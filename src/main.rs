//! The program: parses the command line, runs one subcommand, shows errors.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
