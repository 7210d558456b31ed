//! Power cut after power cut, with a program's promises checked after each.
//!
//! A round: switch on; start the program and check everything it ever acknowledged; let it work for a time
//! that the seed decides; see that it is still at work; cut; end its processes; fsck. One round in
//! `CUT_IN_RECOVERY` cuts while the program is still recovering from the cut before. After the last round:
//! check, orderly end, and the check once more.
//!
//! Neighbours: [`crate::machine`] has the power; [`crate::sqlite`] and [`crate::postgres`] are the programs.

use crate::backend::Honesty;
use crate::failure::{Failure, Outcome};
use crate::machine::{Cut, Machine, Wants};
use quire_base::random::Random;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Work in a row, as a multiple of the longest between two cuts, in which somebody must get on in each
/// database.
const BARREN_MAX: u32 = 8;

/// One round in so many has its cut during the program's recovery.
const CUT_IN_RECOVERY: u64 = 6;

/// A program that keeps promises on a mount.
pub trait Program {
    /// Its name, for the report.
    fn name(&self) -> &'static str;
    /// Bytes of the volume it wants.
    fn volume_bytes(&self) -> u64;
    /// Sets up its data on a fresh, mounted volume.
    fn create(&mut self, machine: &Machine, random: &mut Random) -> Outcome;
    /// Starts recovery and does not wait for it; the cut comes soon.
    fn begin_recovery(&mut self, machine: &Machine, random: &mut Random) -> Outcome;
    /// Starts, lets it recover, and checks all that was ever acknowledged. Gives how long recovery took.
    fn check(&mut self, machine: &Machine, random: &mut Random) -> Outcome<Duration>;
    /// Starts work, every acknowledgement of which is written down outside of the mount.
    fn work(&mut self, machine: &Machine, random: &mut Random) -> Outcome;
    /// Just before the cut: a process that has ended, and should not have, is a broken promise.
    fn look(&mut self, machine: &Machine) -> Outcome;
    /// After the cut: ends every process, reads the ledgers. Gives the transactions acknowledged since
    /// `work`, for each database.
    fn end(&mut self, machine: &Machine) -> Outcome<Vec<u64>>;
    /// Ends the program in order, the power being on.
    fn stop(&mut self, machine: &Machine) -> Outcome;
    /// Acknowledged transactions that the last check did not find.
    fn lost(&self) -> u64;
    /// Pages that were found torn so far; see [`crate::pages`].
    fn torn_pages(&self) -> u64 {
        0
    }
    /// Whether its files are untorn: then the kernel may not keep what it writes.
    fn has_units(&self) -> bool {
        false
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Power cuts.
    pub cuts: u64,
    /// Decides everything that is left to chance (threads and the host's pace are not).
    pub seed: u64,
    /// What the device's flushes are worth.
    pub honesty: Honesty,
    /// Longest work between two cuts.
    pub work_max: Duration,
    /// Where the machine's folder is made.
    pub parent: PathBuf,
    /// This crate's program.
    pub executable: PathBuf,
    /// Say how each round went.
    pub is_verbose: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The program.
    pub name: &'static str,
    /// Power cuts done.
    pub cuts: u64,
    /// Of these, how many during the program's recovery.
    pub in_recovery: u64,
    /// Transactions acknowledged, each of which was looked for after every later cut.
    pub acknowledged: u64,
    /// Acknowledged transactions that were gone.
    pub lost: u64,
    /// Pages of the program's files that cuts have torn, where they were counted.
    pub torn_pages: u64,
    /// Fates of writes not flushed at a cut.
    pub fates: Cut,
    /// Transactions of the volume that its recoveries replayed.
    pub replayed: u64,
    /// Switching on to a usable mount.
    pub mounts: Vec<Duration>,
    /// Program's start to its first answer.
    pub recoveries: Vec<Duration>,
    /// What stopped it.
    pub failure: Option<Failure>,
    /// What was kept to look at.
    pub kept: Option<PathBuf>,
}

impl Report {
    /// Whether every promise was kept, of those that there were, and nothing stopped the run.
    pub fn is_good(&self) -> bool {
        self.failure.is_none() && self.lost == 0 && self.acknowledged > 0
    }
}

/// Runs a program's campaign. `stop` ends it soon.
pub fn run(program: &mut dyn Program, options: &Options, stop: &AtomicBool) -> Report {
    let mut report = Report { name: program.name(), ..Report::default() };
    let wants = Wants { bytes: program.volume_bytes(), units: program.has_units() };
    let machine = Machine::new(&options.parent, &options.executable, wants, options.honesty);
    let mut machine = match machine {
        Ok(machine) => machine,
        Err(failure) => {
            report.failure = Some(failure);
            return report;
        }
    };
    let outcome = rounds(program, &mut machine, options, stop, &mut report);
    report.torn_pages = program.torn_pages();
    if let Err(failure) = outcome {
        report.lost = program.lost();
        // Nothing of the program may outlive the run; what it says now does not count.
        let _ = machine.cut_if_on();
        let _ = program.end(&machine);
        if !matches!(failure, Failure::Stopped) {
            machine.keep();
            report.kept = Some(machine.folder().to_owned());
        }
        report.failure = Some(failure);
    }
    report
}

fn rounds(
    program: &mut dyn Program,
    machine: &mut Machine,
    options: &Options,
    stop: &AtomicBool,
    report: &mut Report,
) -> Outcome {
    let mut random = Random::seeded(options.seed);
    machine.start(&mut random)?;
    program.create(machine, &mut random)?;
    // For each database.
    let (mut fresh, mut barren) = (true, Vec::new());
    while report.cuts < options.cuts {
        let mut random = Random::seeded(random.next_u64());
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::Stopped);
        }
        let mut worked = Duration::ZERO;
        if !fresh && random.one_in(CUT_IN_RECOVERY) {
            program.begin_recovery(machine, &mut random)?;
            wait(Duration::from_millis(random.below(600)), stop);
            report.in_recovery += 1;
        } else {
            if !fresh {
                report.recoveries.push(program.check(machine, &mut random)?);
            }
            program.work(machine, &mut random)?;
            let most = options.work_max.as_millis() as u64;
            worked = Duration::from_millis(20 + random.below(most.max(1)));
            wait(worked, stop);
        }
        fresh = false;
        program.look(machine)?;
        let cut = machine.cut()?;
        let by_database = program.end(machine)?;
        let acknowledged: u64 = by_database.iter().sum();
        report.cuts += 1;
        report.acknowledged += acknowledged;
        barren.resize(by_database.len().max(barren.len()), Duration::ZERO);
        for (database, (fresh, barren)) in by_database.iter().zip(&mut barren).enumerate() {
            *barren = if *fresh > 0 { Duration::ZERO } else { *barren + worked };
            if *barren > BARREN_MAX * options.work_max {
                let seconds = barren.as_secs_f64();
                return Err(Failure::Broken(format!(
                    "nobody got on in {seconds:.1} s of work on database {database}"
                )));
            }
        }
        report.fates.lost += cut.lost;
        report.fates.kept += cut.kept;
        report.fates.torn += cut.torn;
        machine.fsck()?;
        let started = machine.start(&mut random)?;
        report.mounts.push(started.took);
        report.replayed += started.replayed;
        if options.is_verbose {
            println!(
                "  {} cut {}: {acknowledged} acknowledged, {cut:?}, mounted in {:.0} ms",
                report.name,
                report.cuts,
                started.took.as_secs_f64() * 1e3
            );
        }
    }
    report.recoveries.push(program.check(machine, &mut random)?);
    program.stop(machine)?;
    machine.stop()?;
    machine.fsck()?;
    machine.start(&mut random)?;
    program.check(machine, &mut random)?;
    program.stop(machine)?;
    machine.stop()
}

fn wait(time: Duration, stop: &AtomicBool) {
    let until = Instant::now() + time;
    while !stop.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// The commands that look at what a failure left in `folder`.
pub fn how_to_look(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "quire fsck {folder}/crash.img         # as the last cut left it\n\
         quire mount {folder}/crash.img DIR    # recovered; volume.img is what came after\n\
         less {folder}/server.log              # and the program's own logs beside it"
    )
}
