//! `quire bench`: the measurements of the crate `quire-bench`, with this program behind the engines that are
//! mounts.

use quire_bench::arguments::Bench;
use quire_bench::interrupt::Interrupt;
use quire_bench::outcome::Trouble;
use quire_bench::progress::Progress;
use quire_bench::run::{self, Host};

use crate::exit::{self, Failure, Outcome};

/// What shells expect of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Measures, prints a table, and writes what was asked for.
pub fn run(arguments: &Bench) -> Outcome {
    let host = Host {
        interrupt: Interrupt::on_signals(),
        program: std::env::current_exe().ok(),
        progress: Progress::new(),
    };
    run::bench(&arguments.workload, &host).map_err(failure)
}

/// A trouble of the crate `quire-bench` with an exit code.
pub fn failure(trouble: Trouble) -> Failure {
    match trouble {
        Trouble::Usage(message) => Failure::usage(message),
        Trouble::Interrupted => Failure::new(INTERRUPTED, "interrupted"),
        Trouble::Failed(error) => Failure::from(error),
        Trouble::Skipped(why) => Failure::new(exit::FAILED, why),
    }
}
