//! The program `bench`: what is for developers of Quire. Users have `quire bench` and `quire probe`.

use bench::arguments::{Lab, Unlink};
use bench::interrupt::Interrupt;
use bench::lab;
use bench::progress::Progress;
#[cfg(target_arch = "x86_64")]
use bench::{arguments::Conflicts, conflicts};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Stands aside while an operation is traced.
#[cfg(target_arch = "x86_64")]
#[global_allocator]
static ALLOCATOR: conflicts::arena::Arena = conflicts::arena::Arena;

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
    /// Unlinking a million files and one of a tebibyte, and what others feel of it
    Unlink(Unlink),
    /// Cache lines that pairs of operations which commute would fight over
    #[cfg(target_arch = "x86_64")]
    Conflicts(Conflicts),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let interrupt = Interrupt::on_signals();
    let outcome = match &cli.command {
        Command::Unlink(arguments) => bench::unlink::unlink(arguments),
        Command::Lab(arguments) => {
            lab::lab(arguments, &interrupt, &Progress::new()).and_then(|findings| findings.show())
        }
        #[cfg(target_arch = "x86_64")]
        Command::Conflicts(arguments) => conflicts::command(arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            eprintln!("bench: {trouble}");
            ExitCode::FAILURE
        }
    }
}
