//! `quire probe`: what the file system under a directory really promises, found out by racing it.

use quire_bench::arguments::Probe;
use quire_bench::interrupt::Interrupt;
use quire_bench::probe;
use quire_bench::progress::Progress;

use super::bench::failure;
use crate::exit::Outcome;
use crate::output;

/// Races.
pub fn race(arguments: &Probe) -> Outcome<probe::Findings> {
    let interrupt = Interrupt::on_signals();
    probe::probe(arguments, &interrupt, &Progress::new()).map_err(failure)
}

/// Races, and prints one table and what the file system promises (or JSON).
pub fn run(arguments: &Probe) -> Outcome {
    let findings = race(arguments)?;
    if arguments.json {
        output::line(format_args!("{:#}", findings.json()));
    } else {
        output::line(findings.table().trim_end());
        output::line(format_args!("\n{}", findings.promises.text().trim_end()));
    }
    Ok(())
}
