//! The program: arguments, then the window or a subcommand.

fn main() -> std::process::ExitCode {
    headscope::cli::main()
}
