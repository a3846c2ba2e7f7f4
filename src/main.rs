//! The program: parses the command line, runs one subcommand, shows errors.

mod cli;

fn main() -> std::process::ExitCode {
    // Mesa's choice of a device asks the desktop, and complains on stderr where there is none.
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
    cli::main()
}
