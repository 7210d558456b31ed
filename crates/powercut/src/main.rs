//! The program `powercut`: runs campaigns, and is its own server, writer and checker.

use clap::{Args, Parser, Subcommand, ValueEnum};
use powercut::backend::{Behaviour, Honesty};
use powercut::campaign::{self, Program, Report};
use powercut::failure::Failure;
use powercut::mariadb::{self, MariaDb};
use powercut::pages::Pages;
use powercut::postgres::{self, Postgres};
use powercut::serve;
use powercut::sqlite::{self, Mode, Sqlite};
use quire_fuse::{CacheMode, signals};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "Real databases on a Quire mount whose device loses its power")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Cut the power of a database many times, and check each time that nothing acknowledged is lost
    Run(Run),
    /// Serve a volume on a device that can lose its power: the line `cut` on standard input cuts it
    Serve(Serve),
    /// (for the harness) Make a SQLite database
    SqliteCreate(Database),
    /// (for the harness) Commit to a SQLite database and keep a ledger
    SqliteWrite(Write),
    /// (for the harness) Check a SQLite database
    SqliteCheck(Database),
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    Postgres,
    Mariadb,
    Sqlite,
    All,
}

/// To see that the checks fail.
#[derive(Args, Clone, Copy)]
struct Lies {
    /// The device's flushes do nothing, and a cut leaves any part of what was written
    #[arg(long, conflicts_with = "lies_in_order")]
    lies: bool,
    /// The device's flushes do nothing, and a cut leaves what was there some time ago
    #[arg(long)]
    lies_in_order: bool,
}

impl Lies {
    fn honesty(self) -> Honesty {
        match (self.lies, self.lies_in_order) {
            (true, _) => Honesty::Lies,
            (_, true) => Honesty::LiesInOrder,
            _ => Honesty::Honest,
        }
    }
}

#[derive(Args)]
struct Run {
    /// Power cuts for each program
    #[arg(default_value_t = 50)]
    cuts: u64,
    /// What to run
    #[arg(default_value = "all")]
    which: Which,
    /// Decides everything but threads and the host's pace
    #[arg(default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    lies: Lies,
    /// What keeps the pages of PostgreSQL and MariaDB whole
    #[arg(long, value_enum, default_value_t)]
    pages: Pages,
    /// Longest work between two cuts, milliseconds
    #[arg(long, default_value_t = 2500)]
    work_max: u64,
    /// Where the volume's folder is made
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    /// Say how each cut went
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Args)]
struct Serve {
    /// The image file
    image: PathBuf,
    /// The mount point
    dir: PathBuf,
    /// A file whose first byte becomes 0 when the power is cut
    #[arg(long)]
    power: PathBuf,
    /// Decides what a cut leaves, and the device's moods
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    lies: Lies,
    /// The cache of file data, as in `quire mount -o cache=`
    #[arg(long, default_value = "engine")]
    cache: CacheMode,
}

#[derive(Args)]
struct Database {
    /// Journal mode
    #[arg(value_parser = mode)]
    mode: Mode,
    /// The database
    path: PathBuf,
}

#[derive(Args)]
struct Write {
    #[command(flatten)]
    database: Database,
    #[arg(long)]
    client: usize,
    #[arg(long)]
    after: u64,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    power: PathBuf,
    #[arg(long)]
    ledger: PathBuf,
}

fn mode(name: &str) -> Result<Mode, String> {
    Mode::named(name).ok_or_else(|| format!("{name}: no such mode"))
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(run) => campaigns(&run),
        Command::Serve(serve) => said(serve::run(&serve::Options {
            image: serve.image,
            dir: serve.dir,
            power: serve.power,
            behaviour: Behaviour { seed: serve.seed, honesty: serve.lies.honesty() },
            cache: serve.cache,
        })),
        Command::SqliteCreate(database) => said(sqlite::writer::create(database.mode, &database.path)),
        Command::SqliteWrite(write) => said(sqlite::writer::run(&sqlite::writer::Options {
            mode: write.database.mode,
            database: write.database.path,
            client: write.client,
            after: write.after,
            seed: write.seed,
            power: write.power,
            ledger: write.ledger,
        })),
        Command::SqliteCheck(database) => {
            ExitCode::from(u8::from(!sqlite::check::run(database.mode, &database.path)))
        }
    }
}

fn said<E: std::fmt::Display>(outcome: Result<(), E>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("powercut: {error}");
            ExitCode::FAILURE
        }
    }
}

fn campaigns(run: &Run) -> ExitCode {
    let executable = match std::env::current_exe() {
        Ok(executable) => executable,
        Err(error) => return said(Err(error)),
    };
    let options = campaign::Options {
        cuts: run.cuts,
        seed: run.seed,
        honesty: run.lies.honesty(),
        work_max: Duration::from_millis(run.work_max),
        parent: run.folder.clone(),
        executable,
        is_verbose: run.verbose,
    };
    let stop = stop_on_signals();
    let mut is_good = true;
    let all = [Which::Sqlite, Which::Postgres, Which::Mariadb];
    for which in all.into_iter().filter(|which| run.which == Which::All || run.which == *which) {
        if stop.load(Ordering::Relaxed) {
            eprintln!("powercut: stopped before everything ran");
            return ExitCode::FAILURE;
        }
        let mut program: Box<dyn Program> = match program(which, run, &options) {
            Ok(program) => program,
            Err(missing) => {
                eprintln!("powercut: missing: {missing}");
                return ExitCode::FAILURE;
            }
        };
        let started = Instant::now();
        let report = campaign::run(&mut *program, &options, &stop);
        print(&report, started.elapsed(), run);
        is_good &= report.is_good();
    }
    ExitCode::from(u8::from(!is_good))
}

/// A program that is about to work; the error says what of it is missing.
fn program(which: Which, run: &Run, options: &campaign::Options) -> Result<Box<dyn Program>, String> {
    Ok(match which {
        Which::Postgres => Box::new(Postgres::new(postgres::cluster::Installation::find()?, run.pages)),
        Which::Mariadb => Box::new(MariaDb::new(mariadb::server::Installation::find()?, run.pages)),
        Which::Sqlite | Which::All => Box::new(Sqlite::new(&options.executable)),
    })
}

fn print(report: &Report, took: Duration, run: &Run) {
    let name = report.name;
    println!(
        "{name}: {} power cuts ({} of them during its recovery) from seed {}, {:.0} s",
        report.cuts,
        report.in_recovery,
        run.seed,
        took.as_secs_f64()
    );
    println!("{name}: {} acknowledged transactions checked, {} lost", report.acknowledged, report.lost);
    if run.pages != Pages::Logged && name != "sqlite" {
        println!("{name}: {} torn pages", report.torn_pages);
    }
    let fates = report.fates;
    println!(
        "{name}: unflushed writes at the cuts: {} lost, {} kept, {} torn; {} transactions of the volume replayed",
        fates.lost, fates.kept, fates.torn, report.replayed
    );
    println!(
        "{name}: mounting again {}; {name}'s own recovery {}",
        times(&report.mounts),
        times(&report.recoveries)
    );
    if let Some(failure) = &report.failure {
        println!("{name}: {failure}");
        if let Some(folder) = &report.kept {
            println!("{}", campaign::how_to_look(folder));
        }
        if !matches!(failure, Failure::Stopped) {
            let lies = run.lies.honesty().flag().map_or(String::new(), |flag| format!(" {flag}"));
            let pages = match run.pages {
                Pages::Logged => "",
                Pages::Untorn => " --pages untorn",
                Pages::Unprotected => " --pages unprotected",
            };
            println!(
                "again: scripts/powercut {} {name} {}{lies}{pages} --work-max {} --folder {}",
                run.cuts,
                run.seed,
                run.work_max,
                run.folder.display()
            );
        }
    }
}

/// Median and longest.
fn times(times: &[Duration]) -> String {
    let mut sorted = times.to_vec();
    sorted.sort();
    match sorted.last() {
        Some(longest) => format!(
            "{:.0} ms (longest {:.0} ms)",
            sorted[sorted.len() / 2].as_secs_f64() * 1e3,
            longest.as_secs_f64() * 1e3
        ),
        None => "never happened".into(),
    }
}

/// Becomes true at the first SIGINT, SIGTERM or SIGHUP: the run cleans up and ends.
fn stop_on_signals() -> Arc<AtomicBool> {
    signals::block();
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    std::thread::spawn(move || {
        while signals::wait().is_ok() {
            eprintln!("powercut: stopping");
            flag.store(true, Ordering::Relaxed);
        }
    });
    stop
}
