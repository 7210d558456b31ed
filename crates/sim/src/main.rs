//! The program `sim`: runs seeds until told to stop, says what was reached, and how to repeat what failed.

use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use quire_base::simulation::mistakes::{self, Mistake};
use sim::campaign::{self, command};
use sim::generate::Style;
use sim::levels::{Settings, Violation};
use std::num::ParseIntError;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Seeded simulation of Quire under power loss.
///
/// Each seed is one run: work on a small volume, crash, recover, compare with the reference model, work on.
/// The same arguments give the same run. Exit code 1: something was found that must not be. Exit code 2:
/// nothing was, but more than a twentieth could not be judged.
#[derive(Parser)]
#[command(name = "sim", version)]
struct Arguments {
    /// The only seed, or with --runs or --minutes the first one.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Seeds to run.
    #[arg(long, default_value_t = 1, value_parser = some::<u64>)]
    runs: u64,
    /// Run seeds until so many minutes have passed.
    #[arg(long)]
    minutes: Option<f64>,
    /// Operations of one level.
    #[arg(long, default_value_t = Settings::default().operations)]
    ops: usize,
    /// Threads that do them; 0: one to four, by the seed.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Crash images of one level, at least one: the next level begins with it.
    #[arg(long, default_value_t = Settings::default().images, value_parser = some::<usize>)]
    images: usize,
    /// Levels: a crash image of one is the start of the next.
    #[arg(long, default_value_t = Settings::default().levels, value_parser = some::<usize>)]
    levels: usize,
    /// What kind of work, whatever the seed says.
    #[arg(long, value_enum)]
    style: Option<StyleName>,
    /// Whether some writes of data fail, whatever the seed says.
    #[arg(long)]
    faults: Option<bool>,
    /// Only these steps, as level.thread.place.
    #[arg(long, value_delimiter = ',', value_parser = parse_step)]
    only: Option<Vec<(usize, usize, usize)>>,
    /// Make a deliberate mistake in the engine (see `mistakes/`); the run is to find it.
    #[arg(long, value_parser = |name: &str| Mistake::from_name(name).ok_or("no such mistake"))]
    mistake: Option<Mistake>,
    /// Runs at once.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Do not make a failing run smaller.
    #[arg(long)]
    no_shrink: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum StyleName {
    Mixed,
    Names,
    Data,
    Full,
    Wrap,
    Reshape,
    Forces,
    Shared,
    Logs,
    Atomic,
    Snapshots,
}

impl StyleName {
    fn style(self) -> Style {
        match self {
            StyleName::Mixed => Style::Mixed,
            StyleName::Names => Style::Names,
            StyleName::Data => Style::Data,
            StyleName::Full => Style::Full,
            StyleName::Wrap => Style::Wrap,
            StyleName::Reshape => Style::Reshape,
            StyleName::Forces => Style::Forces,
            StyleName::Shared => Style::Shared,
            StyleName::Logs => Style::Logs,
            StyleName::Atomic => Style::Atomic,
            StyleName::Snapshots => Style::Snapshots,
        }
    }
}

fn some<T: FromStr<Err = ParseIntError> + Default + PartialEq>(text: &str) -> Result<T, String> {
    match text.parse::<T>() {
        Ok(count) if count == T::default() => Err("at least one".to_owned()),
        count => count.map_err(|error| error.to_string()),
    }
}

fn parse_step(text: &str) -> Result<(usize, usize, usize), String> {
    let parts: Option<Vec<usize>> = text.split('.').map(|part| part.parse().ok()).collect();
    match parts.as_deref() {
        Some(&[level, thread, place]) => Ok((level, thread, place)),
        _ => Err("a step is level.thread.place, as in 0.0.17".to_owned()),
    }
}

impl Arguments {
    fn settings(&self, seed: u64) -> Settings {
        Settings {
            seed,
            operations: self.ops,
            // Not by the bits that decide on the metadata's copies and on what discarded blocks hold.
            threads: if self.threads == 0 { 1 + (seed / 2 % 4) as usize } else { self.threads },
            images: self.images,
            levels: self.levels,
            style: self.style.map(StyleName::style),
            faults: self.faults,
            only: self.only.clone(),
        }
    }
}

fn tell(settings: &Settings, violation: &Violation, arguments: &Arguments) {
    println!("\nVIOLATION, seed {}: {violation}", settings.seed);
    println!("repeat: {}", command(settings, arguments.mistake));
    let mut violation = violation.clone();
    if !arguments.no_shrink {
        println!("making it smaller ...");
        let (small, shown) = sim::shrink::shrink(settings, violation, Duration::from_secs(120));
        println!("smaller: {shown}\nrepeat: {}", command(&small, arguments.mistake));
        violation = shown;
    }
    for line in &violation.history {
        println!("  {line}");
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    mistakes::set(arguments.mistake);
    let started = Instant::now();
    let end = arguments.minutes.map(|minutes| started + Duration::from_secs_f64(minutes * 60.0));
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}").expect("a template"));
    let runs = if end.is_some() { u64::MAX } else { arguments.runs };
    let list = (0..runs).map(|run| arguments.settings(arguments.seed.wrapping_add(run)));
    let jobs = if runs > 1 { arguments.jobs } else { 1 };
    let campaign = campaign::run(list, jobs, |settings, campaign| {
        let images = campaign.coverage.images;
        let rate = images as f64 / started.elapsed().as_secs_f64();
        bar.set_message(format!("seed {}: {images} images, {rate:.0}/s", settings.seed));
        bar.tick();
        end.is_none_or(|end| Instant::now() < end)
    });
    bar.finish_and_clear();
    let images = campaign.coverage.images;
    print!("{}", campaign.coverage);
    println!("{:>10} runs, seeds from {}", campaign.runs, arguments.seed);
    println!("{:>10.1} images/s", images as f64 / started.elapsed().as_secs_f64());
    if arguments.mistake.is_some() {
        println!("{:>10} times the mistake was made", mistakes::reached());
    }
    match campaign.found {
        Some((settings, violation)) => {
            tell(&settings, &violation, &arguments);
            ExitCode::FAILURE
        }
        None if campaign.is_decided() => ExitCode::SUCCESS,
        None => {
            println!("more than a twentieth could not be judged");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::generate::Profile;
    use std::collections::BTreeSet;

    /// The seed's lowest bit decided on the number of threads, on the copies of metadata and on what
    /// discarded blocks hold: a soak never had one thread or three on a volume with two copies, nor two
    /// copies without foreign discards.
    #[test]
    fn consecutive_seeds_have_every_combination() {
        let arguments = Arguments::parse_from(["sim"]);
        let of = |seed| {
            let is_foreign = Profile::of(seed, None).discarded.is_some();
            (arguments.settings(seed).threads, sim::run::metadata_copies(seed), is_foreign)
        };
        assert_eq!((0..16).map(of).collect::<BTreeSet<_>>().len(), 4 * 2 * 2);
    }

    /// The run panicked, where it drew the image that the next level begins with.
    #[test]
    fn a_level_has_an_image() {
        assert!(Arguments::try_parse_from(["sim", "--images", "0"]).is_err());
        assert_eq!(Arguments::try_parse_from(["sim", "--images", "1"]).map(|all| all.images).ok(), Some(1));
    }

    /// A campaign that looked at nothing had found nothing, and succeeded.
    #[test]
    fn a_campaign_looks_at_something() {
        for nothing in ["--runs=0", "--levels=0"] {
            assert!(Arguments::try_parse_from(["sim", nothing]).is_err(), "{nothing}");
        }
        assert!(!campaign::run(std::iter::empty(), 1, |_, _| true).is_decided());
    }

    /// Shrinking may leave out every step. The command ended in a switch without its value then.
    #[test]
    fn a_run_without_steps_has_a_command() {
        let small = Settings { seed: 3, only: Some(Vec::new()), levels: 1, images: 2, ..Settings::default() };
        let command = command(&small, None);
        let (_, switches) = command.split_once(" -- ").expect("the switches of sim");
        let switches = std::iter::once("sim").chain(switches.split(' '));
        let again = Arguments::try_parse_from(switches).map(|parsed| parsed.settings(parsed.seed));
        let again = again.unwrap_or_else(|error| panic!("{command}: {error}"));
        let run = |settings| sim::levels::run(settings, &mut |_| true);
        assert_eq!(run(&again), run(&small));
    }
}
