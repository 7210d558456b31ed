//! Scrub: reading everything that the volume needs, while it is in use, before it is needed.
//!
//! All copies of all metadata are read: tree nodes beside changes ([`quire_tree::scrub`]); the superblocks,
//! the pool's manifest, the orphan blocks and the journal between two checkpoints, which are kept out
//! meanwhile. Metadata with a bad copy is written again: nodes by [`crate::heal`], the rest from memory by
//! the next two checkpoints, which also make a damaged stretch of the journal needless. On request the data
//! of all files is read as well. Their contents have no checksums, so only what the device cannot read is
//! found.
//!
//! Neighbours: `quire scrub` runs this in the server of a mount.

use crate::checkpoint::CheckpointState;
use crate::engine::Engine;
use crate::inode::InodeRef;
use crate::inodes::{Inodes, IoFlags};
use crate::superblocks;
use crate::volume::Volume;
use quire_base::sync::atomic::Ordering;
use quire_base::sync::thread;
use quire_base::sync::time::{Duration, Instant};
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result};
use quire_device::AlignedBuf;
use quire_format::inode::FileType;
use quire_format::key::Key;
use quire_format::superblock::Superblock;
use quire_journal::{ReplayConfig, replay};
use quire_tree::PoolState;
use quire_tree::copies::Look;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Bytes of data read at once.
const PIECE: usize = 1 << 20;

/// What a scrub reads, and how fast; from [`ScrubOptions::new`].
#[derive(Clone, Debug, Default)]
pub struct ScrubOptions {
    data: bool,
    bytes_per_second: Option<u64>,
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
}

/// Data of a file that the device cannot read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// From the root of the volume.
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
    /// Pieces of metadata with a bad copy.
    pub damaged: u64,
    /// Of these, pieces that were written anew; none on a volume that is open for reading only.
    pub healed: u64,
    /// Pieces of metadata without a good copy: why, for each.
    pub lost: Vec<String>,
    /// Data that cannot be read.
    pub unreadable: Vec<Unreadable>,
}

/// Told now and then how far a scrub is; may break it off.
type Watch<'f> = dyn FnMut(&ScrubReport) -> ControlFlow<()> + 'f;

struct Scrub<'a> {
    engine: &'a Engine,
    options: &'a ScrubOptions,
    report: ScrubReport,
    started: Instant,
    watch: &'a mut Watch<'a>,
}

impl Volume {
    /// Reads all copies of all metadata, and mends what has a good copy or is in memory; with
    /// [`ScrubOptions::data`] also all data. The volume stays in use meanwhile. `watch` is told now and then
    /// how far it is, and may break it off.
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
        let (report, started) = (ScrubReport::default(), Instant::now());
        let mut scrub = Scrub { engine, options, report, started, watch };
        let mut done = scrub.metadata()?;
        if options.data && done.is_continue() {
            done = scrub.files(self.inodes());
        }
        match engine.failure() {
            Some(error) if done.is_break() => Err(error),
            _ => Ok(scrub.report),
        }
    }
}

impl Scrub<'_> {
    /// Each step is counted as a change of the volume, so that closing it waits for the step and no
    /// checkpoint follows the last one.
    fn metadata(&mut self) -> Result<ControlFlow<()>> {
        let engine = self.engine;
        let admission = || if engine.read_only { Ok(None) } else { engine.begin_change().map(Some) };
        let change = admission()?;
        engine.scrub_fixed(&mut self.report)?;
        drop(change);
        let copies = 1 + u64::from(engine.superblock.manifest.twin != quire_format::place::NO_TWIN);
        let mut from = Some(Key::MIN);
        while let Some(key) = from {
            let change = admission()?;
            let step = engine.tree.scrub_from(key);
            self.report.metadata_bytes += step.nodes * copies * BLOCK_SIZE as u64;
            self.report.damaged += step.damaged;
            self.report.lost.extend(step.lost.iter().map(Error::to_string));
            if step.damaged > 0 && !engine.read_only {
                engine.heal()?;
                self.report.healed += step.damaged;
            }
            drop(change);
            if self.pause().is_break() {
                return Ok(ControlFlow::Break(()));
            }
            from = step.next;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn files(&mut self, inodes: &Inodes) -> ControlFlow<()> {
        let mut ahead = vec![(PathBuf::from("/"), inodes.root())];
        while let Some((path, inode)) = ahead.pop() {
            match inode.kind() {
                FileType::Directory => {
                    let mut names = Vec::new();
                    let listed = inodes.read_dir(&inode, 0, &mut |entry| {
                        if !matches!(entry.name, b"." | b"..") {
                            names.push(entry.name.to_vec());
                        }
                        true
                    });
                    if let Err(error) = listed {
                        self.report.lost.push(format!("{}: {error}", path.display()));
                    }
                    for name in names {
                        match inodes.lookup(&inode, &name) {
                            Ok(child) => ahead.push((path.join(OsString::from_vec(name)), child)),
                            // Removed meanwhile.
                            Err(error) if error.kind() == ErrorKind::NotFound => {}
                            Err(error) => self.report.lost.push(format!("{}: {error}", path.display())),
                        }
                    }
                }
                FileType::Regular => self.file(inodes, &path, &inode)?,
                _ => {}
            }
            self.pause()?;
        }
        ControlFlow::Continue(())
    }

    fn file(&mut self, inodes: &Inodes, path: &Path, inode: &InodeRef) -> ControlFlow<()> {
        self.report.files += 1;
        let mut buffer = AlignedBuf::zeroed(PIECE);
        let mut at = 0;
        while let Ok(start) = inodes.seek_data(inode, at) {
            let end = inodes.seek_hole(inode, start).unwrap_or(start).max(start + 1);
            let mut from = start / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
            while from < end {
                let bytes = (end - from).min(PIECE as u64) as usize;
                self.read(inodes, path, inode, &mut buffer[..bytes.next_multiple_of(BLOCK_SIZE)], from);
                from += bytes as u64;
                self.pause()?;
            }
            at = end;
        }
        ControlFlow::Continue(())
    }

    /// Reads a piece past the cache; block by block, if it cannot be read as a whole.
    fn read(&mut self, inodes: &Inodes, path: &Path, inode: &InodeRef, into: &mut [u8], at: u64) {
        match inodes.read_at(inode, into, at, IoFlags::DIRECT) {
            Ok(bytes) => self.report.data_bytes += bytes as u64,
            Err(_) if into.len() > BLOCK_SIZE => {
                let blocks = into.chunks_mut(BLOCK_SIZE).zip((at..).step_by(BLOCK_SIZE));
                blocks.for_each(|(block, at)| self.read(inodes, path, inode, block, at));
            }
            // Closed, or shut down.
            Err(_) if self.engine.failure().is_some() => {}
            Err(error) => {
                let bytes = into.len() as u64;
                match self.report.unreadable.last_mut() {
                    Some(last) if last.path == path && last.offset + last.bytes == at => last.bytes += bytes,
                    _ => self.report.unreadable.push(Unreadable {
                        path: path.to_owned(),
                        offset: at,
                        bytes,
                        why: error.to_string(),
                    }),
                }
            }
        }
    }

    /// Tells how far it is, and waits until so much may have been read.
    fn pause(&mut self) -> ControlFlow<()> {
        if self.engine.failure().is_some() {
            return ControlFlow::Break(());
        }
        (self.watch)(&self.report)?;
        let Some(rate) = self.options.bytes_per_second else { return ControlFlow::Continue(()) };
        let read = self.report.metadata_bytes + self.report.data_bytes;
        let due = Duration::from_secs_f64(read as f64 / rate as f64);
        while let Some(left) = due.checked_sub(self.started.elapsed()).filter(|left| !left.is_zero()) {
            thread::sleep(left.min(Duration::from_millis(100)));
            (self.watch)(&self.report)?;
        }
        ControlFlow::Continue(())
    }
}

impl Engine {
    /// Looks at what lies at places of its own; keeps checkpoints out meanwhile. What is bad is written anew
    /// from memory.
    fn scrub_fixed(&self, report: &mut ScrubReport) -> Result<()> {
        let state = self.checkpoint.lock();
        let slots = superblocks::read(&self.device);
        report.metadata_bytes += 4 * BLOCK_SIZE as u64;
        let copies = slots.iter().flat_map(|slot| [&slot.near, &slot.far]);
        let errors = copies.filter_map(|copy| copy.as_ref().err());
        let mut bad =
            errors.inspect(|error| tracing::warn!(%error, "a copy of a superblock is bad")).count() as u64;
        // One without a good copy has been counted, and is replaced.
        if let Ok(superblock) = slots[state.slot].newest() {
            bad += self.look_at_pool(&superblock, report);
        }
        bad += self.look_at_journal(&state, report);
        drop(state);
        report.damaged += bad;
        if bad == 0 || self.read_only {
            return Ok(());
        }
        self.rewrite_pool.store(true, Ordering::Release);
        // Both slots.
        self.checkpoint_now()?;
        self.checkpoint_now()?;
        report.healed += bad;
        tracing::info!(bad, "damaged superblocks, pool pages or journal blocks are replaced");
        Ok(())
    }

    fn look_at_pool(&self, superblock: &Superblock, report: &mut ScrubReport) -> u64 {
        let volume = superblock.volume_id();
        let blocks = superblock.block_count;
        let loaded = PoolState::load_with(&self.device, volume, superblock.manifest, blocks, Look::AtAll);
        let mut pool = match loaded {
            Ok(pool) => pool,
            Err(error) => {
                tracing::warn!(%error, "the metadata pool's manifest is bad");
                return 1;
            }
        };
        let mut bad = 0;
        for index in 0..superblock.orphan_blocks {
            bad += u64::from(pool.load_orphan_block(&self.device, index, Look::AtAll).is_err());
        }
        let pages = u64::from(superblock.manifest.count) + u64::from(superblock.orphan_blocks);
        report.metadata_bytes += pages * pool.copies() * BLOCK_SIZE as u64;
        bad + u64::from(pool.is_damaged())
    }

    /// Reads the records behind the newest checkpoint, as a recovery would.
    fn look_at_journal(&self, state: &CheckpointState, report: &mut ScrubReport) -> u64 {
        let Some(journal) = &self.journal else { return 0 };
        let durable = journal.durable();
        let superblock = &self.superblock;
        let config = ReplayConfig {
            start: superblock.journal_start,
            blocks: superblock.journal_blocks,
            volume: superblock.volume_id(),
            incarnation: superblock.incarnation,
            from: state.sequence,
        };
        report.metadata_bytes += durable.0.saturating_sub(state.sequence.0);
        match replay(&self.device, &config, &mut |_, _| Ok(())) {
            Ok(end) if end.end >= durable => 0,
            Ok(end) => {
                tracing::warn!(end = end.end.0, durable = durable.0, "the journal is damaged before its end");
                1
            }
            Err(error) => {
                tracing::warn!(%error, "the journal is damaged");
                1
            }
        }
    }
}
