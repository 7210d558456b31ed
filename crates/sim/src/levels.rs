//! One whole run: work, crash, recover, work on, crash again.
//!
//! Each level begins with an image, is worked on, and many crash images are cut from its history: at random
//! moments, some within the opening (which is the recovery of the crash before), under all crash policies.
//! Each is recovered and judged. One of them, recovered, is the start of the next level: what recovery gave
//! is durable from then on, and the base of that level's oracle.
//!
//! A killed process leaves its drive's cache alone. So one kill of each level is recovered on the device that
//! lives on, and the power goes meanwhile or afterwards. Until that recovery's first flush has
//! ended, a cut leaves what a cut at the moment of the kill may leave; from then on, what was recovered. (The
//! next level may begin with all of an image safe: after that flush there is no difference.)
//!
//! Neighbours: [`crate::run`] works, [`crate::image`] recovers, [`crate::oracle`] judges, [`crate::shrink`]
//! makes a failing run small.

use crate::configurations::{self, Unexplained, hash_of};
use crate::coverage::{Coverage, Moments};
use crate::generate::{Profile, Step, Style, steps};
use crate::image::{self, State, Thoroughness};
use crate::model::{FileState, Inode, Model, PIECE, SnapshotState};
use crate::operation::Operation;
use crate::oracle::Oracle;
use crate::run::{self, Worked};
use quire::FileType;
use quire_base::random::Random;
use quire_device::SimulatedBackend;
use quire_device::simulated::{CrashPolicy, Event, Image};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What a run is made of; the same settings are the same run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Decides everything.
    pub seed: u64,
    /// Operations of one level.
    pub operations: usize,
    /// Threads that do them.
    pub threads: usize,
    /// Crash images of one level.
    pub images: usize,
    /// Levels.
    pub levels: usize,
    /// What kind of run; `None`: the seed's.
    pub style: Option<Style>,
    /// Whether some writes of data fail; `None`: as the seed says.
    pub faults: Option<bool>,
    /// The steps that are done, by level, thread and place; `None`: all.
    pub only: Option<Vec<(usize, usize, usize)>>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            seed: 0,
            operations: 60,
            threads: 1,
            images: 12,
            levels: 5,
            style: None,
            faults: None,
            only: None,
        }
    }
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What.
    pub what: String,
    /// The level that it was seen at.
    pub level: usize,
    /// The crash that showed it, if one did: events before it, and the policy.
    pub crash: Option<(usize, CrashPolicy)>,
    /// What had been done at that level.
    pub history: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "level {}: ", self.level)?;
        if let Some((event, policy)) = &self.crash {
            write!(f, "crash after event {event}, {policy:?}: ")?;
        }
        f.write_str(&self.what)
    }
}

/// Crash images of one rollback.
const IMAGES_OF_ROLLBACK: usize = 4;

/// Power cuts that are examined in the recovery behind a kill.
const IMAGES_AFTER_KILL: usize = 4;

/// Device events that a violation shows.
const DEVICE_EVENTS_SHOWN: usize = 60;

/// What came of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// What was reached, up to the violation if there is one.
    pub coverage: Coverage,
    /// The first violation.
    pub violation: Option<Violation>,
    /// A hash of all that happened: of each level the operations with their outcomes, and the device's
    /// events.
    pub history: u64,
}

/// Does a run. `tick` is called after each image; if it gives false, the run ends early. A panic is a
/// violation.
pub fn run(settings: &Settings, tick: &mut dyn FnMut(&Coverage) -> bool) -> Outcome {
    let mut outcome = Outcome::default();
    // Runs of one thread go on outside the scheduler. Which shard their thread got depends on what ran
    // before.
    quire_base::shard::set(0);
    let done = catch_unwind(AssertUnwindSafe(|| run_levels(settings, &mut outcome, tick)));
    if let Err(panic) = done {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let what = format!("panicked: {}", text.unwrap_or_default());
        let level = settings.levels.saturating_sub(1);
        outcome.violation = Some(Violation { what, level, crash: None, history: Vec::new() });
    }
    outcome
}

fn run_levels(settings: &Settings, outcome: &mut Outcome, tick: &mut dyn FnMut(&Coverage) -> bool) {
    let mut profile = Profile::of(settings.seed, settings.style);
    profile.faults = settings.faults.unwrap_or(profile.faults);
    let mut random = Random::seeded(settings.seed ^ 0xc4a5_4e5d);
    let start = run::format(&profile, settings.seed).and_then(|image| {
        let thoroughness = Thoroughness { fsck_before: true, again: true, ..Thoroughness::default() };
        image::recover(&image, thoroughness).map(|snapshot| (image, snapshot))
    });
    let (mut image, mut base) = match start {
        Ok(start) => start,
        Err(what) => {
            outcome.violation = Some(Violation { what, level: 0, crash: None, history: Vec::new() });
            return;
        }
    };
    let mut first_op = 0;
    for level in 0..settings.levels {
        let steps = chosen_steps(settings, level);
        let mut run = Level { settings, profile, level, outcome: &mut *outcome, base: &base };
        match run.go(&image, &steps, first_op, &mut random, tick) {
            Ok(Some((next_image, next_base, operations))) => {
                (image, base) = (next_image, next_base);
                first_op += operations;
                let mut between = Level { settings, profile, level, outcome: &mut *outcome, base: &base };
                match between.roll_back(&image) {
                    Ok(None) => {}
                    Ok(Some(next)) => (image, base) = next,
                    Err(violation) => {
                        outcome.violation = Some(violation);
                        break;
                    }
                }
            }
            Ok(None) => break,
            Err(violation) => {
                outcome.violation = Some(violation);
                break;
            }
        }
    }
}

fn chosen_steps(settings: &Settings, level: usize) -> Vec<Vec<Step>> {
    let seed = settings.seed.wrapping_mul(1_000_003).wrapping_add(level as u64);
    let mut all = steps(seed, settings.threads, settings.operations);
    if let Some(only) = &settings.only {
        for (thread, steps) in all.iter_mut().enumerate() {
            let mut place = 0;
            steps.retain(|_| {
                place += 1;
                only.contains(&(level, thread, place - 1))
            });
        }
    }
    all
}

/// The model that a level begins with.
pub fn base_model(base: &State, keeps_contents: bool, profile: &Profile) -> Model {
    let mut model = Model::new(keeps_contents);
    model.may_be_full = profile.style == Style::Full;
    model.may_fail = profile.faults;
    // Large attributes, groups whose homes the device refuses, or no space for a larger metadata pool.
    model.may_lack_room = matches!(profile.style, Style::Wrap | Style::Forces | Style::Atomic | Style::Full);
    model.inodes.clear();
    let kept = base.kept.iter().map(|(number, kept)| (number, &kept.name, false));
    for (number, name, deleting) in
        kept.chain(base.deleting.iter().map(|(number, name)| (number, name, true)))
    {
        let name = name[1..].parse().expect("a name that a run gives");
        model.snapshots.insert(*number, SnapshotState { name, deleting });
    }
    model.epoch = model.snapshots.keys().last().copied().unwrap_or(0);
    let mut parents = std::collections::BTreeMap::new();
    for (number, found) in &base.inodes {
        for child in found.shape.entries.values() {
            parents.insert(*child, *number);
        }
    }
    for (number, found) in &base.inodes {
        let mut file = FileState { size: found.size, explicit: found.size, ..FileState::default() };
        if keeps_contents && found.shape.kind == FileType::Regular {
            file.contents = crate::contents::Contents::from_base(found.contents.clone());
        }
        let inode = Inode {
            shape: found.shape.clone(),
            parent: parents.get(number).copied().unwrap_or(*number),
            never_named: false,
            file,
        };
        model.inodes.insert(*number, Arc::new(inode));
    }
    model
}

struct Level<'a> {
    settings: &'a Settings,
    profile: Profile,
    level: usize,
    outcome: &'a mut Outcome,
    base: &'a State,
}

/// The next level's image, what is recovered from it, and the operations done so far.
type Next = Option<(Image, State, u64)>;

impl Level<'_> {
    fn violation(&self, what: String, worked: Option<&Worked>) -> Violation {
        Violation { what, level: self.level, crash: None, history: worked.map(history).unwrap_or_default() }
    }

    fn go(
        &mut self,
        image: &Image,
        steps: &[Vec<Step>],
        first_op: u64,
        random: &mut Random,
        tick: &mut dyn FnMut(&Coverage) -> bool,
    ) -> Result<Next, Violation> {
        let schedule = random.next_u64();
        let worked =
            self.work(image, steps, first_op, schedule).map_err(|what| self.violation(what, None))?;
        self.outcome.history = hash_of(&(self.outcome.history, history_hash(&worked)));
        self.outcome.coverage.operations +=
            worked.threads.iter().map(|records| records.len() as u64).sum::<u64>();
        self.outcome.coverage.broken_connections += u64::from(worked.breaks);
        self.outcome.coverage.server_losses += u64::from(worked.server_losses);
        image::no_violations(&worked.device).map_err(|what| self.violation(what, Some(&worked)))?;
        let model = base_model(self.base, steps.len() == 1, &self.profile);
        let configurations = match configurations::explore(model, &worked.threads) {
            Ok(configurations) => configurations,
            Err(Unexplained::TooWide) => {
                self.outcome.coverage.undecided += 1;
                return Ok(None);
            }
            Err(Unexplained::Wrong(what)) => {
                return Err(self.violation(format!("the live volume: {what}"), Some(&worked)));
            }
        };
        self.outcome.coverage.configurations += configurations.all.len() as u64;
        let oracle = Oracle::new(self.base, &worked.threads, &configurations);
        self.count_operations(&worked);
        let reads = oracle.judge_reads();
        self.outcome.coverage.snapshots_read +=
            reads.map_err(|what| self.violation(format!("the live volume: {what}"), Some(&worked)))?;
        let moments = Moments::of(&worked);
        let chosen = random.below(self.settings.images as u64) as usize;
        let mut next = None;
        for number in 0..self.settings.images {
            let (event, policy) = self.crash(&worked, &moments, number == chosen, random);
            let image = worked.device.crash_at(event, policy).expect("an event of the level");
            let unsafe_writes = worked.device.unsafe_writes_at(event).unwrap_or(0);
            moments.count(event, self.level, unsafe_writes, &mut self.outcome.coverage);
            let thoroughness = Thoroughness {
                fsck_before: random.one_in(2),
                again: random.one_in(4),
                either_slot: random.one_in(3) || moments.is_in_checkpoint(event) || number == chosen,
                delete_all: event.is_multiple_of(4),
                damaged: event.is_multiple_of(3).then_some(event as u64 ^ self.settings.seed),
            };
            let judged = image::recover(&image, thoroughness)
                .and_then(|found| self.judge(&oracle, event < worked.opened, event, &found).map(|()| found));
            let found = judged.map_err(|what| {
                let mut violation = self.violation(what, Some(&worked));
                violation.history.extend(device_history(&worked.device, event));
                Violation { crash: Some((event, policy)), ..violation }
            })?;
            self.outcome.coverage.orphans += u64::from(found.waiting.orphans > 0);
            self.outcome.coverage.healed += u64::from(found.damaged > 0);
            self.outcome.coverage.snapshots_judged += found.kept.len() as u64;
            self.outcome.coverage.in_deletion += u64::from(!found.deleting.is_empty());
            self.outcome.coverage.half_done += u64::from(found.waiting.operations > 0);
            if number == chosen {
                let operations = worked.threads.iter().map(|records| records.len() as u64).sum();
                next = Some((image, found, operations));
            }
            if !tick(&self.outcome.coverage) {
                return Ok(None);
            }
        }
        self.after_kill(&worked, &moments, &oracle)?;
        self.outcome.coverage.undecided_units += oracle.undecided_units();
        Ok(next)
    }

    /// Kills the process at some moment, and recovers the volume on the device that lives on, with what no
    /// flush had made safe in its cache. Cuts the power meanwhile and afterwards, and judges what that
    /// leaves.
    fn after_kill(
        &mut self,
        worked: &Worked,
        moments: &Moments,
        oracle: &Oracle<'_>,
    ) -> Result<(), Violation> {
        let random = &mut Random::seeded(self.settings.seed ^ 0x1f7e_2c11 ^ (self.level as u64) << 32);
        let event = match random.below(6) {
            0 => None,
            1 => Some(random.below(worked.opened as u64 + 1) as usize),
            _ => moments.behind_journal_write(random),
        };
        let event = event.unwrap_or_else(|| random.below(worked.ended as u64 + 1) as usize);
        let seed = random.next_u64();
        let killed = |what: String, history: Vec<String>| {
            let mut violation = self.violation(what, Some(worked));
            violation.history.extend(device_history(&worked.device, event));
            violation.history.extend(history);
            Violation { crash: Some((event, CrashPolicy::Killed { seed })), ..violation }
        };
        let device = Arc::new(worked.device.killed_at(event, seed).expect("an event of the level"));
        if device.unsafe_writes() == 0 {
            return Ok(());
        }
        let is_opening = event < worked.opened;
        let thoroughness = Thoroughness { either_slot: random.one_in(2), ..Thoroughness::default() };
        let found = image::recover(&device.visible(), thoroughness)
            .and_then(|found| self.judge(oracle, is_opening, event, &found).map(|()| found))
            .map_err(|what| killed(what, Vec::new()))?;
        let (opened, ended) = image::recover_on(&device)
            .map_err(|error| killed(format!("on the device that lives on: {error}"), Vec::new()))?;
        let is_flush = |event: &Event| matches!(event, Event::FlushCompleted { .. });
        let flushed = device.events(0..ended).iter().position(is_flush).map_or(ended, |at| at + 1);
        for number in 0..IMAGES_AFTER_KILL {
            let power = CrashPolicy::Power { seed: random.next_u64() };
            let (cut, policy) = match number {
                0 => (opened, CrashPolicy::LoseAll),
                1 => (random.below(ended as u64 + 1) as usize, power),
                _ => (random.below(flushed as u64 + 1) as usize, power),
            };
            let image = device.crash_at(cut, policy).expect("an event of the recovery");
            let thoroughness = Thoroughness { fsck_before: random.one_in(2), ..thoroughness };
            let judged = image::recover(&image, thoroughness).and_then(|left| match cut < flushed {
                true => self.judge(oracle, is_opening, event, &left),
                false => unchanged_by_recovery(&found, &left),
            });
            judged.map_err(|what| {
                let what = format!("then {policy:?} after event {cut} of its recovery: {what}");
                killed(what, device_history(&device, cut))
            })?;
        }
        self.outcome.coverage.after_kill += IMAGES_AFTER_KILL as u64;
        Ok(())
    }

    fn count_operations(&mut self, worked: &Worked) {
        let coverage = &mut self.outcome.coverage;
        for record in worked.threads.iter().flatten().filter(|record| record.succeeded()) {
            coverage.writes_submitted += u64::from(record.operation.is_submitted());
            match record.operation {
                Operation::Write { length, .. } => coverage.writes_in_pieces += u64::from(length > PIECE),
                Operation::TakeSnapshot { .. } => coverage.snapshots_taken += 1,
                Operation::DeleteSnapshot { .. } => coverage.snapshots_deleted += 1,
                _ => {}
            }
        }
    }

    /// Now and then rolls the volume back that the next level is to begin with; gives that level's beginning
    /// then. A crash meanwhile leaves the volume as it was, or rolled back; one behind it, rolled back.
    fn roll_back(&mut self, image: &Image) -> Result<Option<(Image, State)>, Violation> {
        let (base, level) = (self.base, self.level);
        let random = &mut Random::seeded(self.settings.seed ^ 0x0110_bac4 ^ (self.level as u64) << 32);
        let one_in = if self.profile.style == Style::Snapshots { 2 } else { 3 };
        let Some((number, kept)) = base.newest_snapshot().filter(|_| random.one_in(one_in)) else {
            return Ok(None);
        };
        let told = |what: String| {
            let what = format!("rolling back to {:?}: {what}", kept.name);
            Violation { what, level, crash: None, history: Vec::new() }
        };
        let device = Arc::new(SimulatedBackend::from_image(image.clone()));
        image::roll_back(&device, &kept.name).map_err(|error| told(error.to_string()))?;
        image::no_violations(&device).map_err(told)?;
        let target = base.rolled_back(number);
        let thoroughness = Thoroughness {
            fsck_before: true,
            again: random.one_in(3),
            either_slot: true,
            delete_all: random.one_in(3),
            damaged: random.one_in(3).then(|| random.next_u64()),
        };
        let after = device.visible();
        let found = image::recover(&after, thoroughness).map_err(told)?;
        let difference = found.each().find_map(|found| target.difference(found));
        difference.map_or(Ok(()), |difference| Err(told(difference)))?;
        let events = device.event_count();
        // The next level begins with the whole rollback: a crash in its recovery is judged by either slot,
        // too.
        let next = (after, found);
        for number in 0..IMAGES_OF_ROLLBACK {
            let (event, policy) = match number {
                0 => (events, CrashPolicy::LoseAll),
                _ => (random.below(events as u64 + 1) as usize, crash_policy(random)),
            };
            let crashed = device.crash_at(event, policy).expect("an event of the rollback");
            // The two slots lead to different states while one of them is rolled back: either one alone, and
            // the older one where a superblock's only copy is damaged, may give the other state.
            let thoroughness = Thoroughness {
                fsck_before: random.one_in(2),
                either_slot: false,
                damaged: None,
                ..thoroughness
            };
            let judged = image::recover(&crashed, thoroughness).and_then(|found| {
                let may_be_before = |found: &State| event < events && base.difference(found).is_none();
                let is_one = |found: &State| target.difference(found).is_none() || may_be_before(found);
                let is_right = found.each().all(is_one);
                match is_right {
                    true => Ok(()),
                    false => Err(format!(
                        "not rolled back ({:?}), and before the end of the rollback not as before ({:?})",
                        target.difference(&found),
                        base.difference(&found)
                    )),
                }
            });
            judged.map_err(|what| Violation { crash: Some((event, policy)), ..told(what) })?;
            self.outcome.coverage.in_rollback += 1;
        }
        self.outcome.coverage.rolled_back += 1;
        Ok(Some(next))
    }

    fn work(
        &self,
        image: &Image,
        steps: &[Vec<Step>],
        first_op: u64,
        schedule: u64,
    ) -> Result<Worked, String> {
        match steps {
            [alone] => run::work_alone(image, &self.profile, alone, first_op),
            several => run::work_together(image, &self.profile, several, first_op, schedule),
        }
    }

    /// A moment of the level, with a policy: often one at which much depends on what is kept. One that the
    /// next level begins with lies mostly behind the opening.
    fn crash(
        &self,
        worked: &Worked,
        moments: &Moments,
        is_next: bool,
        random: &mut Random,
    ) -> (usize, CrashPolicy) {
        let policy = crash_policy(random);
        let opening = random.one_in(if is_next { 8 } else { 5 });
        if opening || worked.ended <= worked.opened {
            return (random.below(worked.opened as u64 + 1) as usize, policy);
        }
        if random.one_in(4)
            && let Some(event) = moments.at_snapshot(random)
        {
            return (event, policy);
        }
        let anywhere = worked.opened + 1 + random.below((worked.ended - worked.opened) as u64) as usize;
        let draw = random.below(12);
        let special = match draw {
            0 => moments.in_checkpoint(random),
            1 => moments.in_journal_writes(random).or_else(|| moments.in_journal_write(random)),
            2 | 3 => moments.in_journal_write(random),
            4 | 5 => moments.at_force_beside_failure(random).or_else(|| moments.at_force(random)),
            6 => moments.at_quiet_force(random).or_else(|| moments.at_force(random)),
            7 => moments.at_force(random),
            _ => None,
        };
        match special {
            // What was forced is there even if all that may go is gone.
            Some(event) if draw > 3 && random.one_in(2) => (event, CrashPolicy::LoseAll),
            Some(event) => (event, policy),
            None => (anywhere, policy),
        }
    }

    /// While the volume is opened, nothing is lost or gained; afterwards the oracle decides. Until the
    /// opening has written both slots anew, one alone may lead to what it led to before.
    fn judge(&self, oracle: &Oracle<'_>, opening: bool, event: usize, found: &State) -> Result<(), String> {
        match opening {
            true => unchanged_by_recovery(self.base, found),
            false => found.each().try_for_each(|found| oracle.judge(event, found)),
        }
    }
}

/// A recovery of `base` that was cut off, or had ended, has left it as it was.
fn unchanged_by_recovery(base: &State, found: &State) -> Result<(), String> {
    let changed = base.difference(found).or_else(|| {
        let by_slot = |found: &&State| base.each().all(|base| base.difference(found).is_some());
        found.by_slot.iter().find(by_slot).and_then(|found| base.difference(found))
    });
    if let Some(difference) = changed {
        return Err(format!("recovery changes the volume: {difference}"));
    }
    let deletes_more =
        |found: &&State| found.deleting.keys().any(|number| !base.deleting.contains_key(number));
    let deletes = found.each().find(deletes_more);
    deletes.map_or(Ok(()), |found| Err(format!("recovery deletes snapshots {:?}", found.deleting)))
}

fn crash_policy(random: &mut Random) -> CrashPolicy {
    match random.below(8) {
        0 => CrashPolicy::LoseAll,
        1 => CrashPolicy::KeepAll,
        2 => CrashPolicy::Killed { seed: random.next_u64() },
        _ => CrashPolicy::Power { seed: random.next_u64() },
    }
}

/// What was done, for people.
fn history(worked: &Worked) -> Vec<String> {
    let mut records: Vec<_> = worked
        .threads
        .iter()
        .enumerate()
        .flat_map(|(thread, records)| records.iter().map(move |record| (thread, record)))
        .collect();
    records.sort_by_key(|(_, record)| record.ticks.0);
    let mut lines = vec![format!("events 0..{}: the volume is opened", worked.opened)];
    lines.extend(records.into_iter().map(|(thread, record)| {
        let mut outcome = format!("{:?}", record.outcome);
        outcome.truncate(outcome.char_indices().nth(120).map_or(outcome.len(), |(at, _)| at));
        format!(
            "{} thread {thread}, events {}..{}: {:?} = {outcome}",
            record.id.0, record.events.0, record.events.1, record.operation
        )
    }));
    lines
}

/// The device's last events before a crash, for people.
fn device_history(device: &SimulatedBackend, event: usize) -> Vec<String> {
    let first = event.saturating_sub(DEVICE_EVENTS_SHOWN);
    let line = |(index, event): (usize, Event)| {
        let what = match event {
            Event::WriteSubmitted { id, class, at, contents } => {
                let class = class.map_or("discard".to_owned(), |class| format!("write of {class}"));
                format!("{class} {id} begins at block {at}, {} blocks", contents.len())
            }
            Event::WriteCompleted { id } => format!("write {id} has ended"),
            Event::WriteFailed { id } => format!("write {id} has failed"),
            Event::FlushSubmitted { id } => format!("flush {id} begins"),
            Event::FlushCompleted { id } => format!("flush {id} has ended"),
            Event::FlushFailed { id } => format!("flush {id} has failed"),
            Event::Rotted { at, .. } => format!("block {at} rots"),
            Event::PowerLost { policy } => format!("power is lost and comes back: {policy:?}"),
            Event::Note(remark) => format!("remark {remark}"),
        };
        format!("event {}: {what}", first + index)
    };
    device.events(first..event).into_iter().enumerate().map(line).collect()
}

fn history_hash(worked: &Worked) -> u64 {
    let operations: Vec<_> = worked
        .threads
        .iter()
        .flatten()
        .map(|record| {
            let what = format!("{:?} {:?}", record.operation, record.outcome);
            (record.id, what, record.ticks, record.events)
        })
        .collect();
    let events: Vec<_> = worked.device.events(0..usize::MAX).iter().map(event_hash).collect();
    hash_of(&(operations, events))
}

fn event_hash(event: &Event) -> u64 {
    match event {
        Event::WriteSubmitted { id, class, at, contents } => {
            let blocks: Vec<_> =
                contents.iter().map(|block| block.as_ref().map(|bytes| hash_of(&**bytes))).collect();
            hash_of(&(*id, class.map(|class| class.index()), at.0, blocks))
        }
        Event::WriteCompleted { id } => hash_of(&(1, *id)),
        Event::WriteFailed { id } => hash_of(&(2, *id)),
        Event::FlushSubmitted { id } => hash_of(&(3, *id)),
        Event::FlushCompleted { id } => hash_of(&(4, *id)),
        Event::FlushFailed { id } => hash_of(&(5, *id)),
        Event::Rotted { at, block } => hash_of(&(6, at.0, hash_of(&**block))),
        Event::Note(remark) => hash_of(&(7, *remark)),
        Event::PowerLost { policy } => hash_of(&(8, format!("{policy:?}"))),
    }
}
