//! The program `history`: runs seeds until told to stop, and says how to repeat what failed.

use clap::Parser;
use history::campaign::Campaign;
use history::generate::{Extent, Style};
use history::simulated::{self, Settings};
use history::threads::{self, Amount};
use quire_base::simulation::mistakes::{self, Mistake};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Concurrent histories of one file under a seeded scheduler, checked for one order that explains every read.
///
/// Each seed is one run of several files. The same arguments give the same run. Exit code 1: something was
/// found that must not be. Exit code 2: nothing was, but more than a twentieth could not be decided.
#[derive(Parser)]
#[command(name = "history", version)]
struct Arguments {
    /// The only seed, or with --runs or --minutes the first one.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Seeds to run.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Run seeds until so many minutes have passed.
    #[arg(long)]
    minutes: Option<f64>,
    /// Files of one run.
    #[arg(long, default_value_t = Settings::default().files, value_parser = clap::value_parser!(u64).range(1..))]
    files: u64,
    /// Threads of one file at most.
    #[arg(long, default_value_t = Settings::default().extent.threads)]
    threads: u64,
    /// Operations of a thread at most.
    #[arg(long, default_value_t = Settings::default().extent.operations)]
    ops: u64,
    /// Which operations meet, whatever the seed says.
    #[arg(long, value_parser = |name: &str| Style::from_name(name).ok_or("no such style"))]
    style: Option<Style>,
    /// Make a deliberate mistake in the engine (see `mistakes/`); the run is to find it.
    #[arg(long, value_parser = |name: &str| Mistake::from_name(name).ok_or("no such mistake"))]
    mistake: Option<Mistake>,
    /// Runs at once.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Threads of the system in place of simulated ones: what was found does not repeat. How much they do is
    /// fixed, and one run follows the other.
    #[arg(long, conflicts_with_all = ["files", "threads", "ops", "style", "jobs", "show"])]
    real: bool,
    /// Print the histories.
    #[arg(long)]
    show: bool,
}

impl Arguments {
    fn settings(&self) -> Settings {
        let extent = Extent { threads: self.threads, operations: self.ops };
        Settings { style: self.style, files: self.files, extent }
    }

    fn again(&self, seed: u64) -> String {
        let mut command = match self.real {
            true => format!("history --seed {seed} --real"),
            false => format!(
                "history --seed {seed} --files {} --threads {} --ops {}",
                self.files, self.threads, self.ops
            ),
        };
        if let Some(style) = self.style {
            command.push_str(&format!(" --style {}", style.name()));
        }
        if let Some(mistake) = self.mistake {
            command.push_str(&format!(" --mistake {}", mistake.name()));
        }
        command
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.show {
        return mistakes::with(arguments.mistake, || show(&arguments));
    }
    mistakes::with(arguments.mistake, || run(&arguments))
}

fn show(arguments: &Arguments) -> ExitCode {
    match simulated::histories(arguments.seed, &arguments.settings()) {
        Ok((histories, steps)) => {
            println!("{steps} points");
            for (style, events) in histories {
                println!("style {}", style.name());
                events.iter().for_each(|event| println!("  {event}"));
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the seeds; gives the program's exit code.
fn run(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let end = arguments.minutes.map(|minutes| started + Duration::from_secs_f64(minutes * 60.0));
    let last = arguments.seed.saturating_add(if end.is_some() { u64::MAX } else { arguments.runs });
    let settings = arguments.settings();
    let campaign = Campaign { seeds: arguments.seed..last, end, jobs: arguments.jobs };
    let result = match arguments.real {
        true => Campaign { jobs: 1, ..campaign }.run(|seed| threads::check(seed, &Amount::default())),
        false => campaign.run(|seed| simulated::check(seed, &settings)),
    };
    if let Some((seed, report)) = &result.found {
        let by_chance = if arguments.real { " (by chance)" } else { "" };
        println!("{report}again: {}{by_chance}", arguments.again(*seed));
    }
    println!(
        "{} runs, {} histories ({} undecided, {} by both checks), {} operations, {} points, {:.1} s",
        result.runs,
        result.tally.histories,
        result.tally.undecided,
        result.tally.graphs,
        result.tally.operations,
        result.tally.steps,
        started.elapsed().as_secs_f64()
    );
    match (&result.found, result.is_decided()) {
        (Some(_), _) => ExitCode::FAILURE,
        (None, true) => ExitCode::SUCCESS,
        (None, false) => {
            println!("more than a twentieth could not be decided");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A campaign without a history had found nothing, and succeeded.
    #[test]
    fn a_campaign_has_histories() {
        for nothing in ["--runs=0", "--files=0"] {
            assert!(Arguments::try_parse_from(["history", nothing]).is_err(), "{nothing}");
        }
        assert!(!Campaign::first(0).run(|_| unreachable!()).is_decided());
    }

    /// These were taken and had no effect.
    #[test]
    fn real_threads_refuse_what_they_do_not_look_at() {
        for other in ["--files=1", "--threads=2", "--ops=3", "--style=edge", "--jobs=1", "--show"] {
            assert!(Arguments::try_parse_from(["history", "--real", other]).is_err(), "{other}");
            assert!(Arguments::try_parse_from(["history", other]).is_ok(), "{other}");
        }
        assert!(Arguments::try_parse_from(["history", "--real", "--runs=4", "--minutes=1"]).is_ok());
    }
}
