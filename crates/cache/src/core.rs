//! State that the mappings of one cache share: limits, memory, the lists that background work follows.
//!
//! Locks, all leaves unless said otherwise: `mappings` (who is alive), `dirty` (mappings with unfinished
//! folios; taken under a mapping's list lock), the finisher's queue, the waiting rooms.
//!
//! Neighbours: [`crate::cache::Cache`] is the public handle; every mapping and every job in flight holds the
//! core.

use crate::arena::Arena;
use crate::budget::{Budget, Room};
use crate::config::CacheConfig;
use crate::dirty_line::DirtyLine;
use crate::finish::Finisher;
use crate::flusher::{self, Need};
use crate::folio::{FolioRef, Order, header_bytes};
use crate::ghosts::Ghosts;
use crate::index::{BLOCK_COST, ENTRY_BYTES};
use crate::mapping::Mapping;
use crate::metrics::Metrics;
use crate::nodes::NodeSlab;
use crate::park::Parking;
use crate::slab::Slab;
use crate::spares::Spares;
use quire_base::patience;
use quire_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use quire_base::sync::time::Instant;
use quire_base::sync::{Arc, Condvar, Mutex, RwLock, Weak};
use quire_base::{BLOCK_SIZE, Clock, Error, ErrorKind, Result, shard};
use quire_device::Device;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::time::Duration;

/// What one reclaim for a few blocks drops.
const RECLAIM_BYTES: u64 = 16 * BLOCK_COST;

/// How long a thread waits for memory or for the dirty limit before it gives up, while nothing at all gets
/// clean.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Looks without success after which a thread that has no background threads gives up.
const STEPS_MAX: u32 = 64;
/// How long a thread that waits for memory sleeps at a time.
const MEMORY_NAP: Duration = Duration::from_millis(10);

/// Since when nothing has become clean, as far as a waiting thread has seen.
#[derive(Default)]
pub(crate) struct Standstill(Option<(u64, Instant)>);

impl Standstill {
    /// How long it has lasted, now that so many blocks have become clean.
    pub fn look(&mut self, cleaned_blocks: u64, now: Instant) -> Duration {
        match self.0 {
            Some((before, since)) if before == cleaned_blocks => now.saturating_duration_since(since),
            _ => {
                self.0 = Some((cleaned_blocks, now));
                Duration::ZERO
            }
        }
    }
}

/// What an operation has met while it waited for memory.
#[derive(Default)]
pub(crate) struct MemoryWait {
    /// The arena has been short for it.
    was_short: bool,
    standstill: Standstill,
    /// Looks without success, where no background threads run.
    steps: u32,
}

/// See the module's documentation.
pub(crate) struct Core {
    pub config: CacheConfig,
    pub device: Arc<Device>,
    pub clock: Clock,
    pub metrics: Metrics,
    pub parking: Parking,
    pub arena: Arena,
    pub slab: Slab,
    pub spares: Spares,
    pub nodes: NodeSlab,
    pub budget: Budget,
    pub finisher: Finisher,
    /// Runs with requests at the device, or completed and not finished.
    pub runs: AtomicUsize,
    /// Blocks that are dirty or in writeback.
    pub unfinished_blocks: AtomicU64,
    /// Blocks that have become clean, ever.
    pub cleaned_blocks: AtomicU64,
    pub dirty_background_bytes: AtomicU64,
    pub dirty_limit_bytes: AtomicU64,
    /// Reclaim's hand, as a count of headers passed.
    pub hand: AtomicUsize,
    /// Advances with folios made; see [`crate::reclaim`].
    pub epoch: AtomicU32,
    pub births: AtomicU64,
    /// Bytes of data in folios that are proven.
    pub proven_bytes: AtomicU64,
    pub ghosts: Ghosts,
    /// Background threads run; else threads that wait do their work.
    pub running: AtomicBool,
    /// Times that homes were to be forgotten; see [`crate::homes`].
    pub homes: AtomicU64,
    mappings: RwLock<BTreeMap<u64, Weak<Mapping>>>,
    pub dirty: Mutex<DirtyLine<Weak<Mapping>>>,
    next_mapping: AtomicU64,
    inflight: Mutex<Inflight>,
    inflight_fell: Condvar,
    /// Threads that wait for memory or for blocks to become clean.
    waiting: Mutex<u32>,
    progress: Condvar,
    /// Bytes a second that became clean when background threads were last busy; 0 before.
    clean_rate: AtomicU64,
    sleepers: Mutex<()>,
    never: Condvar,
    /// Held by the thread that writes small files back in the background; see [`crate::flusher`].
    pub small_files: Mutex<()>,
    pub flusher: Mutex<FlusherSignal>,
    pub flusher_wake: Condvar,
}

/// Background writeback that is with the device, or is about to be handed over.
#[derive(Default)]
struct Inflight {
    requests: u32,
    blocks: u64,
}

impl Inflight {
    fn enter(&mut self, requests: u32, blocks: u64) {
        self.requests += requests;
        self.blocks += blocks;
    }
}

/// What background threads are told.
#[derive(Default)]
pub(crate) struct FlusherSignal {
    pub stop: bool,
    pub kicked: bool,
    /// A thread waits for memory.
    lacks_memory: bool,
}

impl FlusherSignal {
    /// What a background thread has been told, and does next.
    pub fn taken(&mut self) -> Need {
        self.kicked = false;
        if std::mem::take(&mut self.lacks_memory) { Need::Memory } else { Need::Due }
    }
}

impl Core {
    pub fn new(config: CacheConfig, device: Arc<Device>, clock: Clock) -> Core {
        let ghosts = Ghosts::new(config.limit_bytes);
        let budget = Budget::new(config.limit_bytes);
        budget.charge_fixed(ghosts.bytes());
        Core {
            device,
            clock,
            metrics: Metrics::default(),
            parking: Parking::default(),
            arena: Arena::new(config.limit_bytes),
            slab: Slab::default(),
            spares: Spares::default(),
            nodes: NodeSlab::default(),
            budget,
            finisher: Finisher::default(),
            runs: AtomicUsize::new(0),
            unfinished_blocks: AtomicU64::new(0),
            cleaned_blocks: AtomicU64::new(0),
            dirty_background_bytes: AtomicU64::new(config.dirty_background_bytes),
            dirty_limit_bytes: AtomicU64::new(config.dirty_limit_bytes),
            hand: AtomicUsize::new(0),
            epoch: AtomicU32::new(1),
            births: AtomicU64::new(0),
            proven_bytes: AtomicU64::new(0),
            ghosts,
            running: AtomicBool::new(false),
            homes: AtomicU64::new(0),
            mappings: RwLock::new(BTreeMap::new()),
            dirty: Mutex::new(DirtyLine::default()),
            next_mapping: AtomicU64::new(1),
            inflight: Mutex::new(Inflight::default()),
            inflight_fell: Condvar::new(),
            waiting: Mutex::new(0),
            progress: Condvar::new(),
            clean_rate: AtomicU64::new(0),
            sleepers: Mutex::new(()),
            never: Condvar::new(),
            small_files: Mutex::new(()),
            flusher: Mutex::new(FlusherSignal::default()),
            flusher_wake: Condvar::new(),
            config,
        }
    }

    // ---- mappings ----

    pub fn new_mapping_number(&self) -> u64 {
        self.next_mapping.fetch_add(1, Ordering::Relaxed)
    }

    pub fn register(&self, number: u64, mapping: Weak<Mapping>) {
        self.mappings.write().insert(number, mapping);
    }

    pub fn unregister(&self, number: u64) {
        self.mappings.write().remove(&number);
    }

    pub fn mapping(&self, number: u64) -> Option<Arc<Mapping>> {
        self.mappings.read().get(&number)?.upgrade()
    }

    /// Mappings with unfinished folios, by number.
    pub fn dirty_mappings(&self) -> Vec<Arc<Mapping>> {
        // Upgraded first and dropped by the caller: the last reference to a mapping may not go under the
        // lock.
        let mut mappings: Vec<Arc<Mapping>> = self.dirty.lock().all().filter_map(Weak::upgrade).collect();
        mappings.sort_unstable_by_key(|mapping| mapping.number);
        mappings
    }

    // ---- memory ----

    /// Fills `room` up to `bytes`, reclaiming, and waiting for writeback, as long as it takes within reason.
    /// The caller holds no segment and no index lock.
    pub fn fill_room(self: &Arc<Core>, room: &mut Room<'_>, bytes: u64) -> Result<()> {
        self.fill_room_or_spare(room, bytes, false)
    }

    /// As [`Core::fill_room`]. With `is_spare_enough`, for one block, the room stays as it is if there is a
    /// spare folio.
    pub fn fill_room_or_spare(
        self: &Arc<Core>,
        room: &mut Room<'_>,
        bytes: u64,
        is_spare_enough: bool,
    ) -> Result<()> {
        let mut wait = MemoryWait::default();
        loop {
            let lacking = bytes.saturating_sub(room.bytes());
            if lacking == 0 || is_spare_enough && self.spares.has_one(shard::current()) {
                return Ok(());
            }
            if self.budget.try_charge(lacking) {
                room.add(lacking);
                return Ok(());
            }
            if lacking > self.budget.limit() {
                break;
            }
            patience::check("memory of the cache")?;
            self.metrics.reclaim_direct.add(1);
            let freed = match crate::spares::most(self.budget.limit()) {
                most if is_spare_enough && most > 0 => crate::reclaim::reclaim_spares(self, most),
                _ => crate::reclaim::reclaim(self, lacking.max(RECLAIM_BYTES)),
            };
            if freed == 0 && !self.await_memory(&mut wait, false) {
                break;
            }
        }
        Err(Error::new(
            ErrorKind::NoMemory,
            format!(
                "the cache of {} bytes has no room for {bytes} more: nothing can be written or dropped",
                self.budget.limit()
            ),
        ))
    }

    /// After a folio could not be made from `room`: fills it up to `bytes`. If it had as much already, then
    /// the arena is what is short, and something must be reclaimed. `wait` is the operation's, from its first
    /// try to its last.
    pub fn refill_room(
        self: &Arc<Core>,
        room: &mut Room<'_>,
        bytes: u64,
        wait: &mut MemoryWait,
    ) -> Result<()> {
        if room.bytes() < bytes {
            return self.fill_room(room, bytes);
        }
        loop {
            patience::check("memory of the cache")?;
            // What is clean may be no more than the folios that this operation makes and lets go of again. So
            // from the second shortage on something has to be written.
            if std::mem::replace(&mut wait.was_short, true) && !self.await_memory(wait, true) {
                break;
            }
            if crate::reclaim::reclaim(self, bytes.max(1 << 20)) > 0 {
                return Ok(());
            }
        }
        Err(Error::new(
            ErrorKind::NoMemory,
            "the system has no memory for the cache, and nothing can be reclaimed",
        ))
    }

    /// Waits a little for something to become clean, as nothing can be dropped: the background threads write
    /// whatever is dirty. With `write` the caller writes. False: that is of no use any more.
    fn await_memory(self: &Arc<Core>, wait: &mut MemoryWait, write: bool) -> bool {
        self.metrics.memory_waits.add(1);
        let is_running = self.running.load(Ordering::Acquire);
        if write || !is_running {
            if flusher::write_some(self, Need::All) {
                *wait = MemoryWait { was_short: wait.was_short, ..MemoryWait::default() };
                return true;
            }
            if !is_running {
                wait.steps += 1;
                quire_base::sync::thread::yield_now();
                return wait.steps <= STEPS_MAX;
            }
        }
        self.tell_flusher(true);
        self.wait_for_progress(MEMORY_NAP);
        wait.standstill.look(self.cleaned_blocks.load(Ordering::Relaxed), Instant::now()) < PATIENCE
    }

    /// Makes a folio from `room`; `None` when room or arena are short.
    pub fn make_folio(
        &self,
        mapping: &Mapping,
        start: u64,
        order: Order,
        room: &mut Room<'_>,
    ) -> Option<FolioRef> {
        let data_bytes = (BLOCK_SIZE as u64) << order;
        if order == 0
            && room.bytes() < BLOCK_COST
            && let Some(folio) = self.spares.take(shard::current())
        {
            let memory = NonNull::new(folio.memory(0)).expect("a spare folio has memory");
            self.begin(mapping, folio, start, memory, folio.arena_number());
            return Some(folio);
        }
        let header = self.slab.recycle(order);
        let new_header = if header.is_some() { 0 } else { header_bytes(order) };
        let cost = data_bytes + ENTRY_BYTES + new_header;
        if !room.take(cost) {
            if let Some(header) = header {
                self.slab.give_back(header);
            }
            return None;
        }
        let Some(piece) = self.arena.alloc(order) else {
            room.add(cost);
            if let Some(header) = header {
                self.slab.give_back(header);
            }
            return None;
        };
        let folio = header.unwrap_or_else(|| {
            self.budget.fix(new_header);
            self.slab.create(order)
        });
        crate::reclaim::count_births(self, u64::from(folio.blocks()));
        self.begin(mapping, folio, start, piece.memory, piece.number);
        Some(folio)
    }

    /// Begins a life of a folio that is nobody's, with the memory and its number.
    fn begin(&self, mapping: &Mapping, folio: FolioRef, start: u64, memory: NonNull<u8>, number: u32) {
        let wanted_back = crate::reclaim::is_wanted_back(self, mapping.inode, start);
        let heat = crate::reclaim::newborn(self, wanted_back);
        folio.begin(mapping.number, start, memory, number, heat);
        crate::reclaim::prove(self, &folio, wanted_back);
        folio.segments(0, folio.blocks()).for_each(|segment| segment.unlock(&self.parking));
        self.metrics.folios_made.add(1);
    }

    /// Ends a folio's life: it is in no mapping, and the caller has locked all of its segments.
    pub fn retire(&self, folio: FolioRef) {
        crate::reclaim::prove(self, &folio, false);
        folio.end();
        self.give_back(folio);
    }

    /// As [`Core::retire`], but a single block is kept for threads of this shard if they lack spare ones.
    /// Whether it is.
    pub fn retire_to_spares(&self, folio: FolioRef) -> bool {
        crate::reclaim::prove(self, &folio, false);
        folio.end();
        let left = if folio.order() == 0 {
            self.spares.keep(shard::current(), folio, self.budget.limit())
        } else {
            Some(folio)
        };
        left.map(|folio| self.give_back(folio)).is_none()
    }

    /// Gives back what a folio between lives has: memory, header, charge.
    fn give_back(&self, folio: FolioRef) {
        let order = folio.order();
        self.arena.free(folio.arena_number(), order);
        self.slab.give_back(folio);
        self.budget.uncharge(((BLOCK_SIZE as u64) << order) + ENTRY_BYTES);
        self.notify_progress();
    }

    /// Gives all spare folios back; returns their bytes.
    pub fn drain_spares(&self) -> u64 {
        self.spares.drain().map(|folio| self.give_back(folio)).count() as u64 * BLOCK_SIZE as u64
    }

    /// Gives memory that nobody needs back to the system. While more is used than the limit allows, it does
    /// nothing.
    pub fn trim(&self) {
        if let Some(spare) = self.budget.limit().checked_sub(self.budget.used()) {
            self.arena.give_back(self.clock.now(), spare);
        }
    }

    // ---- waiting ----

    /// Wakes threads that wait for memory or for clean blocks, after these have become free or clean.
    pub fn notify_progress(&self) {
        if *self.waiting.lock() > 0 {
            self.progress.notify_all();
        }
    }

    /// Sleeps until something has become clean or free, at most `limit`.
    pub fn wait_for_progress(&self, limit: Duration) {
        self.wait_for_progress_while(limit, || true);
    }

    /// As [`Core::wait_for_progress`], but returns at once if `blocked` is false. A thread that changes that
    /// and then tells of progress wakes this one: either the look sees the change, or the other thread sees
    /// that somebody waits.
    pub fn wait_for_progress_while(&self, limit: Duration, blocked: impl FnOnce() -> bool) {
        let mut waiting = self.waiting.lock();
        *waiting += 1;
        if blocked() {
            self.progress.wait_for(&mut waiting, limit);
        }
        *waiting -= 1;
    }

    /// Lets a background thread look at once.
    pub fn kick_flusher(&self) {
        self.tell_flusher(false);
    }

    fn tell_flusher(&self, lacks_memory: bool) {
        let mut signal = self.flusher.lock();
        signal.lacks_memory |= lacks_memory;
        if !signal.kicked {
            signal.kicked = true;
            self.flusher_wake.notify_one();
        }
    }

    /// Bytes that are dirty or in writeback.
    pub fn dirty_bytes(&self) -> u64 {
        self.unfinished_blocks.load(Ordering::Relaxed) * BLOCK_SIZE as u64
    }

    /// Counts blocks as clean.
    pub fn cleaned(&self, blocks: u64) {
        if blocks > 0 {
            self.unfinished_blocks.fetch_sub(blocks, Ordering::Relaxed);
            self.cleaned_blocks.fetch_add(blocks, Ordering::Relaxed);
            self.notify_progress();
        }
    }

    /// Waits until one more request of background writeback, of `blocks`, may be with the device.
    pub fn enter_inflight(&self, blocks: u64) {
        let mut inflight = self.inflight.lock();
        while !self.has_place(&inflight, 1, blocks) {
            self.inflight_fell.wait(&mut inflight);
        }
        inflight.enter(1, blocks);
    }

    /// As [`Core::enter_inflight`], without waiting, and for `blocks` that join a request with no `requests`.
    pub fn try_enter_inflight(&self, requests: u32, blocks: u64) -> bool {
        let mut inflight = self.inflight.lock();
        let free = self.has_place(&inflight, requests, blocks);
        if free {
            inflight.enter(requests, blocks);
        }
        free
    }

    fn has_place(&self, inflight: &Inflight, requests: u32, blocks: u64) -> bool {
        inflight.requests == 0
            || (inflight.requests + requests <= self.config.inflight_max
                && inflight.blocks + blocks <= self.config.inflight_blocks_max)
    }

    /// A request of background writeback has ended.
    pub fn leave_inflight(&self, blocks: u64) {
        let mut inflight = self.inflight.lock();
        inflight.requests -= 1;
        inflight.blocks -= blocks;
        drop(inflight);
        self.inflight_fell.notify_all();
    }

    /// Blocks of the largest batch.
    pub fn batch_blocks(&self) -> u64 {
        self.config.batch_bytes.div_ceil(BLOCK_SIZE) as u64 + 1
    }

    // ---- pace ----

    /// Notes that `blocks` became clean within `nanos`.
    pub fn note_rate(&self, blocks: u64, nanos: i64) {
        if blocks < 256 || nanos <= 0 {
            return;
        }
        let rate = (blocks as f64 * BLOCK_SIZE as f64 / (nanos as f64 / 1e9)) as u64;
        let before = self.clean_rate.load(Ordering::Relaxed);
        let blended = if before == 0 { rate } else { before / 4 * 3 + rate / 4 };
        self.clean_rate.store(blended, Ordering::Relaxed);
    }

    /// How fast dirty data becomes clean, bytes a second, as last measured.
    pub fn clean_bytes_per_second(&self) -> u64 {
        match self.clean_rate.load(Ordering::Relaxed) {
            0 => 256 << 20,
            rate => rate,
        }
    }

    /// Sleeps for `time`, whatever happens.
    pub fn pause(&self, time: Duration) {
        let mut guard = self.sleepers.lock();
        self.never.wait_for(&mut guard, time);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// A look counted as ten milliseconds, however long it took and however soon it was woken.
    #[test]
    fn a_standstill_lasts_as_long_as_the_clock_says() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut standstill = Standstill::default();
        assert_eq!(standstill.look(7, at(0)), Duration::ZERO);
        assert_eq!(standstill.look(7, at(0)), Duration::ZERO);
        assert_eq!(standstill.look(7, at(25_000)), Duration::from_secs(25));
        assert_eq!(standstill.look(8, at(40_000)), Duration::ZERO);
        assert_eq!(standstill.look(8, at(70_000)), PATIENCE);
    }
}
