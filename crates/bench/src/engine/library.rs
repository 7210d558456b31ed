//! `quire`: the library in this process.

use super::counted::{Counted, Totals};
use super::{Medium, Spec, Workshop};
use crate::arguments::Orphans;
use crate::drive::InTime;
use crate::outcome::{Outcome, Trouble};
use crate::target::{Counters, Handle, How, Piece, Target};
use quire::{Commit, File, FormatOptions, OpenOptions, Properties, SyncOptions, Volume, VolumeOptions};
use quire_base::sync::{Arc, Condvar, Mutex};
use quire_base::{BLOCK_SIZE, Error, Result};
use quire_device::{Backend, MemoryBackend, OpenMode, open_image};
use std::time::{Duration, Instant};

/// Formats the image (or a device in memory) and opens the volume.
pub fn set_up(spec: &Spec, workshop: &Workshop<'_>) -> Outcome<Box<dyn Target>> {
    if spec.whole_folios || spec.orphans != Orphans::Lockless {
        let why = "this program has nothing to compare with; build one: scripts/comparisons";
        return Err(Trouble::Skipped(why.into()));
    }
    let backend: Arc<dyn Backend> = match &spec.medium {
        Medium::File => open_image(workshop.image()?.path(), OpenMode::ReadWrite)?,
        Medium::Export(address) => open_image(address, OpenMode::ReadWrite)?,
        Medium::Memory => Arc::new(MemoryBackend::new(workshop.device_bytes / BLOCK_SIZE as u64)),
    };
    let mut format = FormatOptions::new().force(true);
    if let Some(copies) = spec.copies {
        format = format.metadata_copies(copies);
    }
    format.format_backend(backend.clone())?;
    let totals = Arc::new(Totals::default());
    let mut options = VolumeOptions::new().cache_bytes(workshop.cache_bytes(spec)).discard(spec.discard);
    if let Some(bytes) = spec.folio {
        options = options.folio_bytes(bytes);
    }
    let volume = options.open_backend(Arc::new(Counted::new(backend.clone(), totals.clone())))?;
    let properties = Properties { untorn: spec.untorn, ..Properties::default() };
    Ok(Box::new(Library { volume, backend, totals, properties }))
}

struct Library {
    volume: Volume,
    backend: Arc<dyn Backend>,
    totals: Arc<Totals>,
    /// Of the files that it makes.
    properties: Properties,
}

struct Open(File);

impl Handle for Open {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.0.read_at(buffer, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.0.write_all_at(data, offset)
    }
    fn sync(&self, data_only: bool) -> Result<()> {
        if data_only { self.0.sync_data() } else { self.0.sync_all() }
    }
    fn group(&self, pieces: &[Piece<'_>]) -> Result<()> {
        let mut group = self.0.atomic();
        pieces.iter().try_for_each(|&(data, offset)| group.write_at(data, offset))?;
        group.commit(Commit::Now)
    }
    fn truncate(&self, size: u64) -> Result<()> {
        self.0.set_len(size)
    }
}

impl Library {
    fn open_file(&self, path: &str, how: How) -> Result<File> {
        let options = OpenOptions::new().read(true).write(true).create(how.create).append(how.append);
        let options = options.direct(how.direct).data_sync(how.data_sync);
        options.properties(self.properties).open(&self.volume, path)
    }
}

impl Target for Library {
    fn open(&self, path: &str, how: How) -> Result<Arc<dyn Handle>> {
        Ok(Arc::new(Open(self.open_file(path, how)?)))
    }
    fn make_directory(&self, path: &str) -> Result<()> {
        self.volume.create_dir(path)
    }
    fn remove_directory(&self, path: &str) -> Result<()> {
        self.volume.remove_dir(path)
    }
    fn size_of(&self, path: &str) -> Result<u64> {
        Ok(self.volume.metadata(path)?.size())
    }
    fn unlink(&self, path: &str) -> Result<()> {
        self.volume.remove_file(path)
    }
    fn sync(&self) -> Result<()> {
        self.volume.sync()
    }
    fn settle(&self) -> Result<()> {
        self.volume.sync()?;
        self.volume.checkpoint()
    }
    fn opening(&self) -> Result<Option<Duration>> {
        self.settle()?;
        let start = Instant::now();
        let opened =
            VolumeOptions::new().read_only(true).threads(false).open_backend(self.backend.clone())?;
        let took = start.elapsed();
        opened.close()?;
        Ok(Some(took))
    }
    fn sync_many(
        &self,
        paths: &mut dyn Iterator<Item = String>,
        window: usize,
        durable: &InTime,
    ) -> Result<()> {
        let flight = Arc::new(Flight::new(window));
        let mut outcome = Ok(());
        for path in paths {
            flight.begin();
            let started = self.open_file(&path, How::default()).map(|file| {
                let (inode, flight, durable) = (file.inode().clone(), flight.clone(), durable.clone());
                // The file is closed when its fsync is done.
                let done = move |outcome: Result<()>| {
                    drop(file);
                    if outcome.is_ok() {
                        durable.add();
                    }
                    flight.end(outcome);
                };
                self.volume.inodes().fsync_then(&inode, &SyncOptions::new(), Box::new(done));
            });
            if let Err(error) = started {
                flight.end(Ok(()));
                outcome = Err(error);
                break;
            }
        }
        outcome.and(flight.wait())
    }
    fn has_snapshots(&self) -> bool {
        true
    }
    fn snapshot(&self, name: &str) -> Result<()> {
        self.volume.take_snapshot(name).map(drop)
    }
    fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.volume.delete_snapshot(name)
    }
    fn counters(&self) -> Counters {
        let metrics = self.volume.metrics();
        Counters {
            orphan_claims: Some(metrics["orphan_claims_total"]),
            snapshot_hold_us: Some(metrics["snapshot_hold_us_total"]),
            ..self.totals.read()
        }
    }
    fn finish(self: Box<Self>) -> Result<()> {
        self.volume.close()
    }
}

/// Operations under way: how many, and the first error.
struct Flight {
    state: Mutex<(usize, Option<Error>)>,
    changed: Condvar,
    /// Under way at most.
    window: usize,
}

impl Flight {
    fn new(window: usize) -> Flight {
        Flight { state: Mutex::default(), changed: Condvar::new(), window: window.max(1) }
    }
    /// When the window is full, goes on as soon as a quarter of it is free, as the driver of system calls
    /// does.
    fn begin(&self) {
        let mut state = self.state.lock();
        if state.0 >= self.window {
            while state.0 > self.refill() {
                self.changed.wait(&mut state);
            }
        }
        state.0 += 1;
    }
    fn refill(&self) -> usize {
        self.window - (self.window / 4 + 1).min(self.window)
    }
    fn end(&self, outcome: Result<()>) {
        let mut state = self.state.lock();
        state.0 -= 1;
        if let Err(error) = outcome {
            state.1.get_or_insert(error);
        }
        let wakes = state.0 == self.refill() || state.0 == 0;
        drop(state);
        if wakes {
            self.changed.notify_all();
        }
    }
    fn wait(&self) -> Result<()> {
        let mut state = self.state.lock();
        while state.0 > 0 {
            self.changed.wait(&mut state);
        }
        state.1.take().map_or(Ok(()), Err)
    }
}
