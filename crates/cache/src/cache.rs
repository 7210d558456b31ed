//! The public handle of a volume's cache.

use crate::backing::Backing;
use crate::budget::Room;
use crate::config::CacheConfig;
use crate::core::Core;
use crate::finish;
use crate::flusher;
use crate::index::BLOCKS_END;
use crate::mapping::Mapping;
use crate::metrics::Metrics;
use crate::outbox::{Outbox, Queue};
use crate::snapshot::Snapshot;
use quire_base::sync::atomic::Ordering;
use quire_base::sync::{Arc, Mutex, Weak, thread};
use quire_base::{BLOCK_SIZE, Clock, Error, ErrorKind, InodeNo, Result};
use quire_device::Device;

/// A volume's cache. Its background threads end when it is dropped; its memory goes when the last mapping has
/// gone.
pub struct Cache {
    core: Arc<Core>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

/// What a cache holds, in bytes but for the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheUsage {
    /// Charged against the limit: data, headers, index.
    pub used_bytes: u64,
    /// The limit.
    pub limit_bytes: u64,
    /// Dirty or in writeback.
    pub dirty_bytes: u64,
    /// Memory of the arena that the system may have given, counted in whole chunks of 2 MiB: a chunk of which
    /// parts have been given back counts until all of it is free.
    pub resident_bytes: u64,
    /// Headers there are, in use or free.
    pub headers: u64,
}

impl Cache {
    /// A cache in front of `device`. Without [`Cache::start`] nothing happens in the background: who meets a
    /// limit writes back itself, and a simulator calls [`Cache::background_step`].
    pub fn new(config: CacheConfig, device: Arc<Device>, clock: Clock) -> Result<Arc<Cache>> {
        config.check()?;
        Ok(Arc::new(Cache {
            core: Arc::new(Core::new(config, device, clock)),
            threads: Mutex::new(Vec::new()),
        }))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// A mapping for a file. The cache does not keep the file in memory: its owner writes back before it
    /// goes.
    pub fn new_mapping(&self, inode: InodeNo, backing: Weak<dyn Backing>) -> Arc<Mapping> {
        Mapping::new(self.core.clone(), inode, backing)
    }

    /// Starts the background threads.
    pub fn start(&self) -> Result<()> {
        let mut threads = self.threads.lock();
        if !threads.is_empty() {
            return Ok(());
        }
        self.core.flusher.lock().stop = false;
        self.core.finisher.set_stop(false);
        let spawn = |name: &str, body: fn(&Arc<Core>)| {
            let core = self.core.clone();
            thread::Builder::new()
                .name(name.to_string())
                .spawn(move || body(&core))
                .map_err(|error| Error::new(ErrorKind::NoMemory, format!("starting thread {name}: {error}")))
        };
        for _ in 0..self.core.config.finishers {
            threads.push(spawn("quire-finish", |core| core.finisher.work())?);
        }
        for _ in 0..self.core.config.flushers {
            threads.push(spawn("quire-flush", flusher::work)?);
        }
        self.core.arena.stop_ahead(false);
        threads.push(spawn("quire-memory", |core| core.arena.work_ahead())?);
        self.core.running.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends the background threads after the step they are in, and waits for writes that the device still
    /// has. Dirty data stays dirty.
    pub fn stop(&self) {
        let mut threads = self.threads.lock();
        self.core.running.store(false, Ordering::Release);
        self.core.flusher.lock().stop = true;
        self.core.flusher_wake.notify_all();
        self.core.finisher.set_stop(true);
        self.core.arena.stop_ahead(true);
        for handle in threads.drain(..) {
            let _ = handle.join();
        }
        finish::finish_all(&self.core);
    }

    /// One step of background work, on this thread: old or too much dirty data is written, memory reclaimed
    /// ahead. True if it did something.
    pub fn background_step(&self) -> bool {
        flusher::step(&self.core)
    }

    /// Writes everything back that is dirty now, in all files, and waits for it. The first error is returned,
    /// after everything has been tried.
    pub fn write_back_all(&self) -> Result<()> {
        let mappings = self.core.dirty_mappings();
        let mut snapshots: Vec<Snapshot> =
            mappings.iter().map(|mapping| mapping.snapshot(0, BLOCKS_END)).collect();
        self.start_snapshots(snapshots.iter_mut());
        let waited: Vec<Result<()>> = snapshots.iter_mut().map(Snapshot::wait).collect();
        waited.into_iter().collect()
    }

    /// Starts writing what is dirty of these snapshots, and does not wait until it is written. It may wait
    /// for homes to be read, for room in the journal, and for others that journal units of the same file.
    /// Files are allocated in this order, and what lies together on the device is one request whichever it
    /// belongs to.
    pub fn start_snapshots<'a>(&self, snapshots: impl Iterator<Item = &'a mut Snapshot>) {
        let mut outbox = Outbox::new(self.core.clone(), Queue::Forced);
        snapshots.for_each(|snapshot| snapshot.gather(&mut outbox, true));
    }

    /// Files with blocks that are dirty or in writeback, by the order they came into the cache.
    pub fn dirty_mappings(&self) -> Vec<Arc<Mapping>> {
        self.core.dirty_mappings()
    }

    /// Changes the byte limit, and the dirty limits in proportion to what it leaves for folios. What is over
    /// it leaves soon. Refuses a limit that leaves too little: the tables that the cache has made so far
    /// stay.
    pub fn set_limit(&self, limit_bytes: u64) -> Result<()> {
        let fixed = self.core.budget.fixed();
        let mut config = CacheConfig::new(limit_bytes.saturating_sub(fixed));
        config.batch_bytes = self.core.config.batch_bytes;
        let least = fixed + config.limit_bytes_min();
        if limit_bytes < least {
            return Err(Error::invalid(format!(
                "a cache of {limit_bytes} bytes is too small: it needs at least {least}, {fixed} of them for its tables"
            )));
        }
        config.check()?;
        self.core.dirty_background_bytes.store(config.dirty_background_bytes, Ordering::Relaxed);
        self.core.dirty_limit_bytes.store(config.dirty_limit_bytes, Ordering::Relaxed);
        self.core.budget.set_limit(limit_bytes);
        self.core.arena.set_limit(limit_bytes);
        let over = self.core.budget.used().saturating_sub(limit_bytes);
        if over > 0 {
            crate::reclaim::reclaim(&self.core, over);
            self.core.kick_flusher();
        }
        self.core.trim();
        Ok(())
    }

    /// Counts a buffer that is not the cache's against its limit: `bytes` if they fit, else fewer, at least a
    /// block. Waits for memory as a write does. The caller holds nothing; what is charged goes back when the
    /// room is dropped.
    pub fn room_for_buffer(&self, bytes: u64) -> Result<Room<'_>> {
        let mut room = Room::empty(&self.core.budget);
        let mut bytes = bytes.next_multiple_of(BLOCK_SIZE as u64);
        let mut is_first = true;
        while bytes > BLOCK_SIZE as u64 {
            if self.core.budget.try_charge(bytes) {
                room.add(bytes);
                return Ok(room);
            }
            if std::mem::take(&mut is_first) {
                quire_base::patience::check("memory of the cache")?;
                crate::reclaim::reclaim(&self.core, bytes);
            } else {
                bytes = (bytes / 2).next_multiple_of(BLOCK_SIZE as u64);
            }
        }
        self.core.fill_room(&mut room, BLOCK_SIZE as u64)?;
        Ok(room)
    }

    /// Drops clean folios until about `bytes` are free; returns how many were freed.
    pub fn reclaim(&self, bytes: u64) -> u64 {
        crate::reclaim::reclaim(&self.core, bytes)
    }

    /// Lets completed writeback finish on this thread, where no background threads run.
    pub fn finish_some(&self) {
        finish::help(&self.core, || false);
    }

    /// Charges memory of the volume that is not the cache's own to its limit. The caller sees to it that it
    /// is no more than [`Cache::spare_bytes`] in all.
    pub fn charge(&self, bytes: u64) {
        self.core.budget.charge_over(bytes);
    }

    /// Takes back what [`Cache::charge`] charged.
    pub fn uncharge(&self, bytes: u64) {
        self.core.budget.uncharge(bytes);
        self.core.notify_progress();
    }

    /// What the limit leaves beside the cache's tables and the least that its operations need, in bytes.
    pub fn spare_bytes(&self) -> u64 {
        let needed = self.core.budget.fixed() + self.core.config.limit_bytes_min();
        self.core.budget.limit().saturating_sub(needed)
    }

    /// Largest write or read that is one batch, in bytes.
    pub fn batch_bytes(&self) -> usize {
        self.core.config.batch_bytes
    }

    /// What it holds.
    pub fn usage(&self) -> CacheUsage {
        CacheUsage {
            used_bytes: self.core.budget.used(),
            limit_bytes: self.core.budget.limit(),
            dirty_bytes: self.core.dirty_bytes(),
            resident_bytes: self.core.arena.resident_bytes(),
            headers: self.core.slab.len() as u64,
        }
    }

    /// The limit in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.core.budget.limit()
    }

    /// Counters.
    pub fn metrics(&self) -> &Metrics {
        &self.core.metrics
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.stop();
    }
}
