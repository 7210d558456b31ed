//! The program `lab`: one subcommand for each experiment.

use clap::{Parser, Subcommand};
use lab::arguments::{Cores, Locks, Unlink};
#[cfg(target_arch = "x86_64")]
use lab::{arguments::Conflicts, conflicts};
use lab::{cores, locks, unlink};
use quire_bench::interrupt::Interrupt;
use quire_bench::progress::Progress;
use std::process::ExitCode;

/// Stands aside while an operation is traced.
#[cfg(target_arch = "x86_64")]
#[global_allocator]
static ALLOCATOR: conflicts::arena::Arena = conflicts::arena::Arena;

/// Experiments for developers of Quire.
#[derive(Parser)]
#[command(name = "lab", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The same mix of reads and writes over the locking schemes that a file could have
    Locks(Locks),
    /// Unlinking a million files and one of a tebibyte, and what others feel of it
    Unlink(Unlink),
    /// Cache lines that pairs of operations which commute would fight over
    #[cfg(target_arch = "x86_64")]
    Conflicts(Conflicts),
    /// What operations would do on more cores than this machine has: a simulation
    Cores(Cores),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.command {
        Command::Cores(arguments) => cores::run(arguments),
        Command::Unlink(arguments) => unlink::unlink(arguments),
        // The signals keep their effect for the others, which look at no flag.
        Command::Locks(arguments) => locks::run(arguments, &Interrupt::on_signals(), &Progress::new())
            .and_then(|findings| findings.show()),
        #[cfg(target_arch = "x86_64")]
        Command::Conflicts(arguments) => conflicts::command(arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            eprintln!("lab: {trouble}");
            ExitCode::FAILURE
        }
    }
}
