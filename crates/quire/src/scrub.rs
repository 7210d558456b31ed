//! Scrub: reading everything that the volume needs, while it is in use, before it is needed.
//!
//! All copies of all metadata are read: superblocks, the pool's manifest, orphan blocks and the journal
//! between two checkpoints ([`fixed`]), then the tree nodes, beside changes ([`quire_tree::scrub`]). Metadata
//! with a bad copy is written again: nodes by [`crate::store::heal`], the rest from memory by the next two
//! checkpoints, which also make a damaged stretch of the journal needless. On request the data of all files
//! is read as well ([`data`]). Their contents have no checksums, so only what the device cannot read is
//! found.
//!
//! Protocol. How far a scrub is stands in the engine, each checkpoint writes it into its superblock
//! ([`Kept`]), and a scrub asks for one now and then. So one that the end of the volume, or a crash, has
//! interrupted goes on with the next opening, from where the last checkpoint was. Nodes are read in the order
//! of keys and data in that of inodes, neither of which changes meanwhile: what is new behind the position
//! was written after the scrub began. What snapshots have is read from its beginning again.
//!
//! Invariants: the position never passes what has not been read; nothing relies on it otherwise.
//!
//! Neighbours: `quire scrub` runs this in the server of a mount.

mod data;
mod fixed;
mod kept;

use crate::engine::Engine;
use crate::volume::Volume;
use quire_base::sync::thread;
use quire_base::sync::time::{Duration, Instant};
use quire_base::{BLOCK_SIZE, Error, Result, Timestamp};
use quire_format::key::Key;
use quire_format::scrub::LastScrub as Kept;
use quire_format::scrub::ScrubPosition;
pub use quire_format::scrub::ScrubState;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Between two checkpoints that a scrub asks for.
const SAVE: Duration = Duration::from_secs(30);

/// What a scrub reads, and how fast; from [`ScrubOptions::new`].
#[derive(Clone, Debug, Default)]
pub struct ScrubOptions {
    data: bool,
    bytes_per_second: Option<u64>,
    resume: bool,
}

impl ScrubOptions {
    /// All metadata, as fast as the device goes.
    pub fn new() -> ScrubOptions {
        ScrubOptions::default()
    }

    /// Whether the data of all files is read as well.
    pub fn data(mut self, data: bool) -> ScrubOptions {
        self.data = data;
        self
    }

    /// How much is read in a second at most.
    pub fn bytes_per_second(mut self, bytes: u64) -> ScrubOptions {
        self.bytes_per_second = Some(bytes.max(1));
        self
    }

    /// Whether a scrub that was stopped or interrupted goes on where it was, and reads data if that one did.
    /// If there is none, it begins at the beginning.
    pub fn resume(mut self, resume: bool) -> ScrubOptions {
        self.resume = resume;
        self
    }
}

/// Data of a file that the device cannot read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// From the root of the volume; `#` and the inode's number while its path is not known yet, or if it has
    /// none any more.
    pub path: PathBuf,
    /// First byte.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Why the first of them cannot be read.
    pub why: String,
}

/// What a scrub has found so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Bytes of metadata read, all copies counted.
    pub metadata_bytes: u64,
    /// Bytes of files read, without holes.
    pub data_bytes: u64,
    /// Files whose data was read.
    pub files: u64,
    /// Pieces of metadata with a bad copy; one that the volume and a snapshot have in common counts for both.
    pub damaged: u64,
    /// Of these, pieces that were written anew or mended; none on a volume that is open for reading only.
    pub healed: u64,
    /// Pieces of metadata without a good copy: why, for each.
    pub lost: Vec<String>,
    /// Data that cannot be read.
    pub unreadable: Vec<Unreadable>,
    /// Pieces of metadata without a good copy that were found before this scrub was interrupted, and that the
    /// log named then.
    pub lost_before: u64,
    /// The same, of parts of files.
    pub unreadable_before: u64,
}

impl ScrubReport {
    /// Whether nothing is lost, and everything could be read.
    pub fn is_good(&self) -> bool {
        self.lost.is_empty() && self.unreadable.is_empty() && self.lost_before + self.unreadable_before == 0
    }
}

/// What a volume remembers of its last scrub, from [`Volume::last_scrub`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastScrub {
    /// Whether it has ended, and how.
    pub state: ScrubState,
    /// Whether it reads data as well.
    pub data: bool,
    /// How much it reads in a second at most.
    pub bytes_per_second: Option<u64>,
    /// When it was started first.
    pub started: Timestamp,
    /// When it ended, or was last heard of.
    pub ended: Timestamp,
    /// How long it has worked.
    pub spent: Duration,
    /// What it has found. The lists are empty: a volume keeps numbers only.
    pub report: ScrubReport,
}

fn report_of(kept: &Kept) -> ScrubReport {
    ScrubReport {
        metadata_bytes: kept.metadata_bytes,
        data_bytes: kept.data_bytes,
        files: kept.files,
        damaged: kept.damaged,
        healed: kept.healed,
        lost_before: kept.lost,
        unreadable_before: kept.unreadable,
        ..ScrubReport::default()
    }
}

/// Told now and then how far a scrub is; may break it off.
type Watch<'f> = dyn FnMut(&ScrubReport) -> ControlFlow<()> + 'f;

struct Scrub<'a> {
    engine: &'a Engine,
    options: ScrubOptions,
    report: ScrubReport,
    started: Instant,
    /// Bytes read by those before that this one continues.
    before: u64,
    /// As it is kept.
    last: Kept,
    /// Time spent before.
    spent: u64,
    saved: Instant,
    watch: &'a mut Watch<'a>,
}

impl Volume {
    /// Reads all copies of all metadata, that of snapshots too, and mends what has a good copy or is in
    /// memory; with [`ScrubOptions::data`] also all data. The volume stays in use meanwhile. `watch` is told
    /// now and then how far it is, and may break it off.
    ///
    /// Errors: those of mending. What cannot be read is no error, but in the report.
    ///
    /// ```
    /// # fn main() -> quire::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let image = directory.path().join("image");
    /// use quire::{FormatOptions, ScrubOptions, VolumeOptions};
    /// use std::ops::ControlFlow;
    ///
    /// FormatOptions::new().size(64 << 20).format(&image)?;
    /// let volume = VolumeOptions::new().open(&image)?;
    /// volume.write("letter", "dear reader")?;
    /// let report = volume.scrub(&ScrubOptions::new().data(true), &mut |_| ControlFlow::Continue(()))?;
    /// assert!(report.lost.is_empty() && report.unreadable.is_empty());
    /// # volume.close()
    /// # }
    /// ```
    pub fn scrub<'a>(&'a self, options: &'a ScrubOptions, watch: &'a mut Watch<'a>) -> Result<ScrubReport> {
        let engine = self.engine();
        let mut scrub = Scrub::start(engine, options, watch)?;
        let done = scrub.run(self.inodes());
        scrub.name_files(self.inodes());
        scrub.end(done)?;
        Ok(scrub.report)
    }

    /// The last scrub of the volume, this one included if one is running. [`ScrubState::Unfinished`] with
    /// none running is one that the end of the volume, or a crash, has interrupted.
    pub fn last_scrub(&self) -> Option<LastScrub> {
        let kept = self.engine().store.last_scrub.lock().clone()?;
        Some(LastScrub {
            state: kept.state,
            data: kept.data,
            bytes_per_second: Some(kept.bytes_per_second).filter(|bytes| *bytes > 0),
            started: kept.started,
            ended: kept.ended,
            spent: Duration::from_millis(kept.milliseconds),
            report: report_of(&kept),
        })
    }
}

impl<'a> Scrub<'a> {
    fn start(engine: &'a Engine, options: &ScrubOptions, watch: &'a mut Watch<'a>) -> Result<Scrub<'a>> {
        let now = engine.store.options.clock.now();
        let mut options = options.clone();
        let earlier = engine.store.last_scrub.lock().clone();
        let goes_on = |scrub: &Kept| options.resume && scrub.state != ScrubState::Finished;
        let mut last = earlier.filter(goes_on).unwrap_or(Kept {
            state: ScrubState::Unfinished,
            data: false,
            bytes_per_second: 0,
            started: now,
            ended: now,
            position: ScrubPosition::Metadata(Key::MIN),
            metadata_bytes: 0,
            data_bytes: 0,
            files: 0,
            damaged: 0,
            healed: 0,
            lost: 0,
            unreadable: 0,
            milliseconds: 0,
        });
        options.data |= last.data;
        (last.state, last.data) = (ScrubState::Unfinished, options.data);
        last.bytes_per_second = options.bytes_per_second.unwrap_or(0);
        let report = report_of(&last);
        let (started, saved, spent) = (Instant::now(), Instant::now(), last.milliseconds);
        let before = last.metadata_bytes.saturating_add(last.data_bytes);
        let mut scrub = Scrub { engine, options, report, started, before, last, spent, saved, watch };
        scrub.save()?;
        Ok(scrub)
    }

    fn run(&mut self, inodes: &crate::inodes::Inodes) -> Result<ControlFlow<()>> {
        let done = match self.last.position {
            ScrubPosition::Metadata(from) => match self.metadata(from)? {
                ControlFlow::Continue(()) => self.snapshots()?,
                done => done,
            },
            ScrubPosition::Data(..) => ControlFlow::Continue(()),
        };
        if done.is_break() || !self.options.data {
            return Ok(done);
        }
        self.data(inodes)
    }

    /// Notes how the scrub has ended.
    fn end(&mut self, done: Result<ControlFlow<()>>) -> Result<()> {
        let failure = self.engine.store.failure();
        if let (None, Ok(done)) = (&failure, &done) {
            self.last.state = if done.is_break() { ScrubState::Stopped } else { ScrubState::Finished };
        }
        let saved = self.save();
        match (done?, failure) {
            (ControlFlow::Break(()), Some(error)) => Err(error),
            _ => saved,
        }
    }

    /// Each step is counted as a change of the volume, so that closing it waits for the step and no
    /// checkpoint follows the last one.
    fn metadata(&mut self, from: Key) -> Result<ControlFlow<()>> {
        let engine = self.engine;
        let admission = || if engine.store.read_only { Ok(None) } else { engine.begin_change().map(Some) };
        let change = admission()?;
        engine.store.scrub_fixed(&mut self.report)?;
        drop(change);
        let copies = 1 + u64::from(engine.store.superblock.manifest.twin != quire_format::place::NO_TWIN);
        let mut from = Some(from);
        while let Some(key) = from {
            let change = admission()?;
            let step = engine.store.tree.scrub_from(key);
            self.report.metadata_bytes += step.nodes * copies * BLOCK_SIZE as u64;
            self.report.damaged += step.damaged;
            for error in &step.lost {
                tracing::error!(%error, "a scrub has found metadata without a good copy");
                self.report.lost.push(error.to_string());
            }
            if step.damaged > 0 && !engine.store.read_only {
                let (healed, lost) = engine.store.heal()?;
                // Others may have found some, too.
                self.report.healed += healed.min(step.damaged);
                self.report.lost.extend(lost.iter().map(Error::to_string));
            }
            drop(change);
            from = step.next;
            if let Some(next) = from {
                self.last.position = ScrubPosition::Metadata(next);
            }
            if self.pause()?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Tells how far it is, and waits until so much may have been read.
    fn pause(&mut self) -> Result<ControlFlow<()>> {
        if self.engine.store.failure().is_some() {
            return Ok(ControlFlow::Break(()));
        }
        if self.saved.elapsed() >= SAVE {
            self.save()?;
        } else {
            self.note();
        }
        if (self.watch)(&self.report).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let Some(rate) = self.options.bytes_per_second else { return Ok(ControlFlow::Continue(())) };
        let read = (self.report.metadata_bytes + self.report.data_bytes).saturating_sub(self.before);
        let due = Duration::from_secs_f64(read as f64 / rate as f64);
        while let Some(left) = due.checked_sub(self.started.elapsed()).filter(|left| !left.is_zero()) {
            thread::sleep(left.min(Duration::from_millis(100)));
            if self.engine.store.failure().is_some() || (self.watch)(&self.report).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The next checkpoint says how far it is.
    fn note(&mut self) {
        let report = &self.report;
        let last = &mut self.last;
        last.ended = self.engine.store.options.clock.now();
        (last.metadata_bytes, last.data_bytes) = (report.metadata_bytes, report.data_bytes);
        (last.files, last.damaged, last.healed) = (report.files, report.damaged, report.healed);
        last.lost = report.lost_before + report.lost.len() as u64;
        last.unreadable = report.unreadable_before + report.unreadable.len() as u64;
        last.milliseconds = self.spent.saturating_add(self.started.elapsed().as_millis() as u64);
        *self.engine.store.last_scrub.lock() = Some(last.clone());
    }

    /// Writes down how far it is; not on a volume that takes no changes.
    fn save(&mut self) -> Result<()> {
        self.note();
        self.saved = Instant::now();
        if self.engine.store.check_writable().is_err() {
            return Ok(());
        }
        match self.engine.begin_change() {
            Ok(_change) => self.engine.store.checkpoint_now(),
            // It is being closed: the last checkpoint says it.
            Err(_) => Ok(()),
        }
    }
}

/// Errors that are none, since the volume ends.
pub(super) fn is_over(engine: &Engine, error: &Error) -> bool {
    engine.store.failure().is_some() || error.kind() == quire_base::ErrorKind::Shutdown
}
