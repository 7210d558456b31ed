//! A file in front of a memory device that fails when told to: what the tests put behind a mapping.
#![allow(dead_code)] // Models and an example use a part of it.

use quire_base::patience;
use quire_base::sync::{Arc, Weak};
use quire_base::{BLOCK_SIZE, BlockNo, Clock, Error, ErrorKind, InodeNo, Result, Timestamp};
use quire_cache::{
    BLOCKS_END, Backing, Cache, CacheConfig, Home, Mapping, PlacedRun, Placement, Run, Zeroing,
};
use quire_device::{Backend, Device, Io, IoClass, IoOp, MemoryBackend};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

pub const BS: u64 = BLOCK_SIZE as u64;

/// A memory device with switches, and a check that no block is ever in two writes at a time.
pub struct Faulty {
    inner: MemoryBackend,
    pub fail_reads: AtomicBool,
    /// A block that cannot be read.
    pub bad_block: AtomicU64,
    pub fail_writes: AtomicBool,
    /// Completions run on a thread of their own, late.
    pub slow: AtomicBool,
    /// Requests are kept back until they are released.
    pub hold: AtomicBool,
    held: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
    writing: Mutex<BTreeMap<u64, u64>>,
    pub overlaps: AtomicU32,
    pub write_bytes: AtomicU64,
    pub writes: AtomicU64,
    /// Of these, by the threads that asked for them.
    pub writes_inline: AtomicU64,
}

/// What a request takes on a slow device.
const SLOW: std::time::Duration = std::time::Duration::from_micros(200);

impl Faulty {
    pub fn new(blocks: u64) -> Arc<Faulty> {
        Arc::new(Faulty {
            inner: MemoryBackend::new(blocks),
            fail_reads: AtomicBool::new(false),
            bad_block: AtomicU64::new(u64::MAX),
            fail_writes: AtomicBool::new(false),
            slow: AtomicBool::new(false),
            hold: AtomicBool::new(false),
            held: Mutex::new(Vec::new()),
            writing: Mutex::new(BTreeMap::new()),
            overlaps: AtomicU32::new(0),
            write_bytes: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            writes_inline: AtomicU64::new(0),
        })
    }

    /// Lets those go that were kept back, on this thread.
    pub fn release_held(&self) {
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        held.into_iter().for_each(|go| go());
    }

    fn has_bad_block(&self, at: u64, blocks: u64) -> bool {
        (at..at + blocks).contains(&self.bad_block.load(Ordering::SeqCst))
    }

    fn fails(&self, op: IoOp, at: u64, blocks: u64) -> bool {
        match op {
            IoOp::Read => self.fail_reads.load(Ordering::SeqCst) || self.has_bad_block(at, blocks),
            IoOp::Write => self.fail_writes.load(Ordering::SeqCst),
        }
    }

    /// A request begins, or fails.
    fn begin(&self, op: IoOp, at: u64, blocks: u64) -> Result<()> {
        if self.fails(op, at, blocks) {
            return Err(Error::new(ErrorKind::Io, format!("injected: {op:?} at {at}")));
        }
        if op == IoOp::Write {
            self.writes.fetch_add(1, Ordering::Relaxed);
            self.write_bytes.fetch_add(blocks * BS, Ordering::Relaxed);
            let mut writing = self.writing.lock().unwrap();
            for block in at..at + blocks {
                if writing.insert(block, 1).is_some() {
                    self.overlaps.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
        Ok(())
    }

    /// One that began has ended.
    fn end(&self, op: IoOp, at: u64, blocks: u64) {
        if op == IoOp::Write {
            let mut writing = self.writing.lock().unwrap();
            (at..at + blocks).for_each(|block| assert!(writing.remove(&block).is_some()));
        }
    }
}

/// The device wants ownership of its backend; tests want to keep a hand on it.
pub struct Shared(pub Arc<Faulty>);

impl Backend for Shared {
    fn blocks(&self) -> u64 {
        self.0.inner.blocks()
    }
    fn name(&self) -> String {
        "faulty memory".into()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        match self.0.has_bad_block(at.0, buf.len() as u64 / BS) {
            true => Err(Error::new(ErrorKind::Io, "a bad block")),
            false => self.0.inner.read(class, at, buf),
        }
    }
    fn write(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        let blocks = buf.len() as u64 / BS;
        self.0.begin(IoOp::Write, at.0, blocks)?;
        self.0.writes_inline.fetch_add(1, Ordering::Relaxed);
        if self.0.slow.load(Ordering::Relaxed) {
            std::thread::sleep(SLOW);
        }
        let outcome = self.0.inner.write(class, at, buf);
        self.0.end(IoOp::Write, at.0, blocks);
        outcome
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn discard(&self, _at: BlockNo, _count: u64) -> Result<()> {
        Ok(())
    }
    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        for mut io in ios {
            let (op, at, blocks) = (io.op, io.at.0, io.blocks());
            if let Err(error) = self.0.begin(op, at, blocks) {
                (io.done)(Err(error));
                continue;
            }
            let faulty = self.0.clone();
            let done = std::mem::replace(&mut io.done, Box::new(|_| ()));
            let slow = faulty.slow.load(Ordering::Relaxed);
            let finish = move |outcome: Result<()>| {
                faulty.end(op, at, blocks);
                done(outcome);
            };
            io.done = if slow {
                Box::new(move |outcome| {
                    std::thread::spawn(move || {
                        std::thread::sleep(SLOW);
                        finish(outcome);
                    });
                })
            } else {
                Box::new(finish)
            };
            let backend = self.0.clone();
            let go = move || backend.inner.submit(class, vec![io]);
            match self.0.hold.load(Ordering::Relaxed) {
                true => self.0.held.lock().unwrap().push(Box::new(go)),
                false => go(),
            }
        }
    }
}

#[derive(Default)]
pub struct FileState {
    /// Homes: device block, and whether written.
    pub extents: BTreeMap<u64, (u64, bool)>,
    /// Placements under way by their first block: blocks with a new home.
    pending: BTreeMap<u64, Vec<(u64, u64)>>,
    pub reserved: u64,
    pub space: u64,
    /// What becomes space for those who wait for the device.
    pub freed: u64,
    /// How often that was done.
    pub freed_waits: u32,
    /// Homes before this block belong to a snapshot, too.
    shared_before: u64,
}

pub struct FakeFile {
    pub number: u64,
    pub state: Mutex<FileState>,
    pub size: AtomicU64,
    next_home: Arc<AtomicU64>,
    /// Every other new block is placed apart, so that requests break.
    pub scatter: AtomicBool,
    /// The next so many calls of `place` are refused.
    pub refuse: AtomicU32,
    /// Waiting for room fails.
    pub fail_room: AtomicBool,
    pub fail_written: AtomicBool,
    pub waits: AtomicU32,
    pub mapping: std::sync::OnceLock<Arc<Mapping>>,
}

impl FakeFile {
    pub fn mapping(&self) -> &Arc<Mapping> {
        self.mapping.get().unwrap()
    }

    pub fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut buf = vec![0xCC; len];
        let count = self.mapping().read(offset, &mut buf, &|| self.size())?;
        buf.truncate(count);
        Ok(buf)
    }

    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset.saturating_add(data.len() as u64);
        self.mapping().write(offset, data, &mut || {
            self.size.fetch_max(end, Ordering::Release);
        })
    }

    pub fn truncate(&self, size: u64) -> Result<()> {
        if size < self.size() {
            let end = size.next_multiple_of(BS);
            let edge = if size < end { self.mapping().prepare_zero(size, end)? } else { None };
            let hold = self.mapping().hold_writeback(size / BS, BLOCKS_END);
            let first = size / BS;
            assert_eq!(self.mapping().first_dirty(first), self.mapping().first_unfinished(first));
            edge.into_iter().for_each(Zeroing::apply);
            hold.discard(end / BS, BLOCKS_END);
            let mut state = self.state.lock().unwrap();
            let gone = state.extents.split_off(&(end / BS));
            state.space += gone.len() as u64;
        }
        self.size.store(size, Ordering::Release);
        Ok(())
    }

    /// A punch that fails has changed nothing.
    pub fn punch(&self, start: u64, end: u64) -> Result<()> {
        let (first, last) = (start.div_ceil(BS), end / BS);
        if first > last {
            return self.mapping().zero(start, end);
        }
        let mut edges = Vec::new();
        for (from, to) in [(start, first * BS), (last * BS, end)] {
            if from < to {
                edges.extend(self.mapping().prepare_zero(from, to)?);
            }
        }
        let hold = self.mapping().hold_writeback(start / BS, end.div_ceil(BS));
        edges.into_iter().for_each(Zeroing::apply);
        hold.discard(first, last);
        let mut state = self.state.lock().unwrap();
        let before = state.extents.len() as u64;
        state.extents.retain(|block, _| !(first..last).contains(block));
        state.space += before - state.extents.len() as u64;
        Ok(())
    }

    /// Unwritten homes for holes of the range.
    pub fn preallocate(&self, first: u64, last: u64) {
        let mut state = self.state.lock().unwrap();
        for block in first..last {
            if !state.extents.contains_key(&block) && state.pending.is_empty() {
                let home = self.next_home.fetch_add(1, Ordering::Relaxed);
                state.extents.insert(block, (home, false));
            }
        }
    }

    /// The homes of its written blocks, with what the device has there.
    pub fn on_device(&self, world: &World) -> Vec<(u64, Vec<u8>)> {
        let extents = self.state.lock().unwrap().extents.clone();
        let homes = extents.values().filter(|(_, written)| *written);
        homes.map(|(home, _)| (*home, world.block(*home))).collect()
    }

    /// From now on all blocks belong to a snapshot, too. Nothing is dirty or being written.
    pub fn share_all(&self) {
        self.state.lock().unwrap().shared_before = self.next_home.load(Ordering::Relaxed);
    }

    pub fn reserved(&self) -> u64 {
        self.state.lock().unwrap().reserved
    }
}

impl Backing for FakeFile {
    fn inode(&self) -> InodeNo {
        InodeNo(self.number)
    }

    fn map(&self, block: u64, count: u64) -> Result<Vec<Run>> {
        let state = self.state.lock().unwrap();
        // A long answer comes in parts, and one block more than was asked for.
        Ok((block..block + count.min(9) + 1)
            .map(|file_block| {
                let home = match state.extents.get(&file_block) {
                    None => Home::Hole,
                    Some((home, true)) if *home < state.shared_before => Home::Shared(BlockNo(*home)),
                    Some((home, false)) if *home < state.shared_before => Home::Hole,
                    Some((home, true)) => Home::Written(BlockNo(*home)),
                    Some((home, false)) => Home::Unwritten(BlockNo(*home)),
                };
                Run { file_block, count: 1, home }
            })
            .collect())
    }

    fn reserve(&self, blocks: u64) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.space < blocks && patience::may_wait() {
            state.space += std::mem::take(&mut state.freed);
            state.freed_waits += 1;
        }
        if state.space < blocks {
            return Err(Error::new(ErrorKind::NoSpace, "full"));
        }
        state.space -= blocks;
        state.reserved += blocks;
        Ok(())
    }

    fn unreserve(&self, blocks: u64) {
        let mut state = self.state.lock().unwrap();
        state.space += blocks;
        state.reserved = state.reserved.checked_sub(blocks).expect("unreserved more than reserved");
    }

    fn place(&self, block: u64, count: u64) -> Result<Placement> {
        if self.refuse.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
            return Err(Error::new(ErrorKind::WouldBlock, "no journal space"));
        }
        let mut state = self.state.lock().unwrap();
        let mut runs: Vec<PlacedRun> = Vec::new();
        let mut fresh = Vec::new();
        for file_block in block..block + count {
            let home = match state.extents.get(&file_block) {
                Some((home, _)) if *home >= state.shared_before => *home,
                _ => {
                    state.reserved = state.reserved.checked_sub(1).expect("placed without a reservation");
                    let step =
                        if self.scatter.load(Ordering::Relaxed) && file_block % 2 == 0 { 2 } else { 1 };
                    let home = self.next_home.fetch_add(step, Ordering::Relaxed);
                    fresh.push((file_block, home));
                    home
                }
            };
            let is_fresh = fresh.last() == Some(&(file_block, home));
            match runs.last_mut() {
                Some(run) if run.home.0 + run.count == home && run.is_fresh == is_fresh => run.count += 1,
                _ => runs.push(PlacedRun { file_block, count: 1, home: BlockNo(home), is_fresh }),
            }
            // Sometimes only a part is placed.
            if self.scatter.load(Ordering::Relaxed) && file_block % 7 == 6 {
                break;
            }
        }
        assert!(state.pending.insert(block, fresh).is_none(), "block {block} is placed twice");
        Ok(Placement { runs })
    }

    fn written(&self, placement: Placement, outcome: Result<()>) -> Result<()> {
        let outcome = match self.fail_written.load(Ordering::SeqCst) {
            true => outcome.and(Err(Error::new(ErrorKind::Io, "injected: apply"))),
            false => outcome,
        };
        let mut state = self.state.lock().unwrap();
        let fresh = state.pending.remove(&placement.runs[0].file_block).expect("a placement is told of once");
        match &outcome {
            Ok(()) => {
                for (block, home) in fresh {
                    let before = state.extents.insert(block, (home, true));
                    assert!(before.is_none_or(|(home, _)| home < state.shared_before));
                }
                for run in &placement.runs {
                    for block in run.file_block..run.file_block + run.count {
                        state.extents.get_mut(&block).unwrap().1 = true;
                    }
                }
            }
            Err(_) => state.reserved += fresh.len() as u64,
        }
        outcome
    }

    fn wait_for_room(&self, _: u64) -> Result<()> {
        self.waits.fetch_add(1, Ordering::SeqCst);
        match self.fail_room.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Io, "injected: no room any more")),
            false => Ok(()),
        }
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }
}

pub struct World {
    pub faulty: Arc<Faulty>,
    pub device: Arc<Device>,
    pub clock: Clock,
    pub cache: Arc<Cache>,
    next_home: Arc<AtomicU64>,
    next_file: AtomicU64,
}

impl World {
    pub fn new(config: CacheConfig) -> World {
        World::with_clock(config, Clock::simulated(Timestamp(1_000_000_000)))
    }

    pub fn with_clock(config: CacheConfig, clock: Clock) -> World {
        let faulty = Faulty::new(1 << 24);
        let device = Device::new(Arc::new(Shared(faulty.clone())));
        let cache = Cache::new(config, device.clone(), clock.clone()).unwrap();
        World {
            faulty,
            device,
            clock,
            cache,
            next_home: Arc::new(AtomicU64::new(100)),
            next_file: AtomicU64::new(1),
        }
    }

    /// What the device has in a block.
    pub fn block(&self, at: u64) -> Vec<u8> {
        let mut bytes = vec![0; BS as usize];
        self.device.read(IoClass::Data, BlockNo(at), &mut bytes).unwrap();
        bytes
    }

    pub fn file(&self) -> Arc<FakeFile> {
        let file = Arc::new(FakeFile {
            number: self.next_file.fetch_add(1, Ordering::Relaxed),
            state: Mutex::new(FileState { space: 1 << 22, ..FileState::default() }),
            size: AtomicU64::new(0),
            next_home: self.next_home.clone(),
            scatter: AtomicBool::new(false),
            refuse: AtomicU32::new(0),
            fail_room: AtomicBool::new(false),
            fail_written: AtomicBool::new(false),
            waits: AtomicU32::new(0),
            mapping: std::sync::OnceLock::new(),
        });
        let backing: Arc<dyn Backing> = file.clone();
        let weak: Weak<dyn Backing> = Arc::downgrade(&backing);
        let _ = file.mapping.set(self.cache.new_mapping(InodeNo(file.number), weak));
        file
    }
}

/// Limits as small as they may be.
pub fn tiny() -> CacheConfig {
    let mut config = CacheConfig::new(320 << 10);
    config.batch_bytes = 64 << 10;
    config.dirty_limit_bytes = 96 << 10;
    config.dirty_background_bytes = 32 << 10;
    config
}

/// Bytes that tell where and when they were written.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (seed.wrapping_mul(31) ^ (i * 7) ^ (i >> 8)) as u8 | 1).collect()
}
