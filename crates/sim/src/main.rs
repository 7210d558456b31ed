//! The program `sim`: runs seeds until told to stop, says what was reached, and how to repeat what failed.

use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use quire_base::broken::{self, Broken};
use sim::coverage::Coverage;
use sim::generate::Style;
use sim::levels::{self, Settings, Violation};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Seeded simulation of Quire under power loss.
///
/// Each seed is one run: work on a small volume, crash, recover, compare with the reference model, work on. The same
/// arguments give the same run. Exit code 1: something was found that must not be.
#[derive(Parser)]
#[command(name = "sim", version)]
struct Arguments {
    /// The only seed, or with --runs or --minutes the first one.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Seeds to run.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Run seeds until so many minutes have passed.
    #[arg(long)]
    minutes: Option<f64>,
    /// Operations of one level.
    #[arg(long, default_value_t = Settings::default().operations)]
    ops: usize,
    /// Threads that do them; 0: one to four, by the seed.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Crash images of one level.
    #[arg(long, default_value_t = Settings::default().images)]
    images: usize,
    /// Levels: a crash image of one is the start of the next.
    #[arg(long, default_value_t = Settings::default().levels)]
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
    /// Make a deliberate mistake in the engine (see `quire_base::broken`); the run is to find it.
    #[arg(long, value_parser = |name: &str| Broken::from_name(name).ok_or("no such mistake"))]
    broken: Option<Broken>,
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
        }
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
            threads: if self.threads == 0 { 1 + (seed % 4) as usize } else { self.threads },
            images: self.images,
            levels: self.levels,
            style: self.style.map(StyleName::style),
            faults: self.faults,
            only: self.only.clone(),
        }
    }
}

/// The command that repeats a run.
fn command(settings: &Settings, mistake: Option<Broken>) -> String {
    let Settings { seed, operations, threads, images, levels, style, faults, only } = settings;
    let mut command = format!(
        "cargo run --release -p sim -- --seed {seed} --ops {operations} --threads {threads} --images {images} --levels {levels}"
    );
    if let Some(style) = style {
        command += &format!(" --style {}", format!("{style:?}").to_lowercase());
    }
    if let Some(mistake) = mistake {
        command += &format!(" --broken {}", mistake.name());
    }
    if let Some(faults) = faults {
        command += &format!(" --faults {faults}");
    }
    if let Some(only) = only {
        let steps: Vec<_> = only.iter().map(|(level, thread, at)| format!("{level}.{thread}.{at}")).collect();
        command += &format!(" --only {}", steps.join(","));
    }
    command
}

fn tell(settings: &Settings, violation: &Violation, arguments: &Arguments) {
    println!("\nVIOLATION, seed {}: {violation}", settings.seed);
    println!("repeat: {}", command(settings, arguments.broken));
    let mut violation = violation.clone();
    if !arguments.no_shrink {
        println!("making it smaller ...");
        let (small, shown) = sim::shrink::shrink(settings, violation, Duration::from_secs(120));
        println!("smaller: {shown}\nrepeat: {}", command(&small, arguments.broken));
        violation = shown;
    }
    for line in &violation.history {
        println!("  {line}");
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    broken::set(arguments.broken);
    let started = Instant::now();
    let end = arguments.minutes.map(|minutes| started + Duration::from_secs_f64(minutes * 60.0));
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}").expect("a template"));
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let total = Mutex::new(Coverage::default());
    let found = Mutex::new(None);
    let worker = || {
        loop {
            let run = next.fetch_add(1, Ordering::Relaxed);
            let over = match end {
                Some(end) => Instant::now() >= end,
                None => run >= arguments.runs,
            };
            if over || stop.load(Ordering::Relaxed) {
                return;
            }
            let settings = arguments.settings(arguments.seed + run);
            let outcome = levels::run(&settings, &mut |_| !stop.load(Ordering::Relaxed));
            let mut total = total.lock().expect("no panic");
            total.add(&outcome.coverage);
            let rate = total.images as f64 / started.elapsed().as_secs_f64();
            bar.set_message(format!("seed {}: {} images, {rate:.0}/s", settings.seed, total.images));
            bar.tick();
            if let Some(violation) = outcome.violation {
                stop.store(true, Ordering::Relaxed);
                found.lock().expect("no panic").get_or_insert((settings, violation));
            }
        }
    };
    std::thread::scope(|scope| {
        let jobs = if arguments.minutes.is_some() || arguments.runs > 1 { arguments.jobs.max(1) } else { 1 };
        for _ in 0..jobs {
            scope.spawn(worker);
        }
    });
    bar.finish_and_clear();
    let total = total.into_inner().expect("no panic");
    print!("{total}");
    println!("{:>10.1} images/s", total.images as f64 / started.elapsed().as_secs_f64());
    match found.into_inner().expect("no panic") {
        Some((settings, violation)) => {
            tell(&settings, &violation, &arguments);
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}
