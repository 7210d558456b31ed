//! The program `bench`: what is for developers of Quire. Users have `quire bench` and `quire probe`.

use bench::arguments::Lab;
use bench::interrupt::Interrupt;
use bench::lab;
use bench::progress::Progress;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Measurements for developers of Quire.
#[derive(Parser)]
#[command(name = "bench", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The same mix of reads and writes over the locking schemes that a file could have
    Lab(Lab),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let interrupt = Interrupt::on_signals();
    let outcome = match &cli.command {
        Command::Lab(arguments) => {
            lab::lab(arguments, &interrupt, &Progress::new()).and_then(|findings| findings.show())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            eprintln!("bench: {trouble}");
            ExitCode::FAILURE
        }
    }
}
