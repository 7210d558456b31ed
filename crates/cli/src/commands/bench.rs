//! `quire bench`: the measurements of the crate `bench`, with this program behind the engines that are mounts.

use bench::arguments::Bench;
use bench::interrupt::Interrupt;
use bench::outcome::Trouble;
use bench::progress::Progress;
use bench::run::{self, Host};

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

/// A trouble of the crate `bench` with an exit code.
pub fn failure(trouble: Trouble) -> Failure {
    match trouble {
        Trouble::Usage(message) => Failure::usage(message),
        Trouble::Interrupted => Failure::new(INTERRUPTED, "interrupted"),
        Trouble::Failed(error) => Failure::from(error),
        Trouble::Skipped(why) => Failure::new(exit::FAILED, why),
    }
}
