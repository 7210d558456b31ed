//! The allocator: loading groups and searching across them.
//!
//! Search, for a run of `want` blocks with at least `min`:
//! 1. exactly at the goal, if at least half of `want` is free there;
//! 2. a run of `want`, from the goal (or the group's cursor) on, in a few groups from the goal's on;
//! 3. the longest run that step 2 met, else the longest of the first group that has one of `min`;
//! 4. several runs, until there are `min` blocks;
//! 5. the same with every other allocation held up. The credit invariant says that this succeeds; blocks that
//!    move behind a searcher's back can make it fail before. If it does fail, the free count on disk was
//!    wrong.
//!
//! Loading a group: the tree is read without any lock, then the result is put in place unless another thread
//! was first. That is sound because the regions of a group that is not loaded do not change: blocks are
//! allocated only in loaded groups, and [`Allocator::ensure_loaded`] precedes every transaction that frees. A
//! slow loader that read regions while they changed finds the group loaded and drops what it read.
//!
//! Growing ([`Allocator::grow`]): the table of groups gets longer, the end of the data space moves, blocks
//! behind the old end become free in the group that it cut, and only then their credits are given out. The
//! end moves under that group's lock, and a loader puts a group in place only if the end is still the one
//! that it went by.

use crate::credits::Credits;
use crate::deferred::Deferred;
use crate::discarding::Discarding;
use crate::group::{GROUP_BLOCKS, GROUP_REGIONS, GroupMap, Piece};
use crate::groups::Groups;
use crate::reservation::SpaceReservation;
use crate::stats::Counts;
use quire_base::metrics::Counter;
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::sync::{Arc, Mutex, ShardedRwLock, WholeGuard};
use quire_base::{BlockNo, Error, InodeNo, Result};
use quire_device::Device;
use quire_format::extent::{Run, total_blocks};
use quire_format::region::{REGION_BLOCKS, RegionMap};
use std::ops::Range;

/// Groups searched for a run of the wanted length before a shorter one will do.
const PROBES: usize = 8;
/// The most blocks of data space: 1 PiB, beyond which the table of groups would be large.
const DATA_BLOCKS_MAX: u64 = 1 << 38;
/// Inodes with numbers in the same block of this size start in the same group, so that files made together
/// lie together.
const INODES_TOGETHER: u64 = 1024;

/// Where the used blocks of a region come from: the tree.
pub trait RegionSource: Send + Sync {
    /// The used blocks of a region. May do I/O.
    fn load(&self, region: u64) -> Result<RegionMap>;

    /// The used blocks of each region of a range that has any. To be overridden where one scan is cheaper.
    fn load_range(&self, regions: Range<u64>, each: &mut dyn FnMut(u64, RegionMap)) -> Result<()> {
        for region in regions {
            each(region, self.load(region)?);
        }
        Ok(())
    }
}

/// The device, as far as freed blocks are concerned. It is told that they hold nothing any more, and knows
/// when nothing is written to them any more.
pub trait Discard: Send + Sync {
    /// Waits for writes that began before and may reach blocks that were freed meanwhile. Waits for nothing
    /// else than the device.
    fn await_writes(&self) {}

    /// Discards `blocks` from `at`; returns when the device has done so.
    fn discard(&self, at: BlockNo, blocks: u64) -> Result<()>;
}

impl Discard for Device {
    fn await_writes(&self) {
        self.recorded().await_batch();
    }

    fn discard(&self, at: BlockNo, blocks: u64) -> Result<()> {
        Device::discard(self, at, blocks)
    }
}

/// What the allocator works on.
#[derive(Clone, Debug)]
pub struct AllocConfig {
    /// First block of the data space. Blocks before it are never given out, whatever the regions say.
    pub data_start: BlockNo,
    /// One behind the last block of the data space.
    pub data_end: BlockNo,
    /// Free blocks in the data space: those that no region uses.
    pub free_blocks: u64,
    /// Whether freed blocks are discarded.
    pub discard: bool,
}

/// What pays for an allocation.
#[derive(Debug)]
pub enum Funding<'r, 'a> {
    /// A reservation made before; it shrinks by what is allocated, and bounds it.
    Reserved(&'r mut SpaceReservation<'a>),
    /// Nothing yet.
    Unreserved,
}

/// Gives out the blocks of one volume. See the crate's documentation.
pub struct Allocator {
    pub(crate) data_start: BlockNo,
    /// One behind the last block of the data space; grows.
    data_end: AtomicU64,
    pub(crate) discard: bool,
    source: Arc<dyn RegionSource>,
    pub(crate) device: Arc<dyn Discard>,
    pub(crate) groups: Groups,
    /// Held while the data space grows.
    growing: Mutex<()>,
    pub(crate) credits: Credits,
    pub(crate) reserved: Counter,
    pub(crate) deferred: Deferred,
    pub(crate) discarding: Discarding,
    /// Shared by threads that set or clear busy bits; whole for a search that must not miss any.
    pub(crate) movement: ShardedRwLock,
    pub(crate) counts: Counts,
}

impl std::fmt::Debug for Allocator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Allocator({})", self.stats())
    }
}

impl Allocator {
    /// An allocator with nothing loaded; takes no time, whatever the size. Errors if the numbers contradict
    /// one another.
    pub fn new(
        config: AllocConfig,
        source: Arc<dyn RegionSource>,
        device: Arc<dyn Discard>,
    ) -> Result<Arc<Allocator>> {
        let AllocConfig { data_start, data_end, free_blocks, .. } = config;
        if data_start >= data_end || data_end.0 > DATA_BLOCKS_MAX {
            return Err(Error::invalid(format!("data space from block {data_start} to {data_end}")));
        }
        if free_blocks > data_end.0 - data_start.0 {
            return Err(Error::corrupt(format!(
                "{free_blocks} free blocks in a data space from block {data_start} to {data_end}"
            )));
        }
        Ok(Arc::new(Allocator {
            source,
            device,
            groups: Groups::new(data_end.0.div_ceil(GROUP_BLOCKS) as usize),
            growing: Mutex::new(()),
            credits: Credits::new(free_blocks),
            reserved: Counter::new(),
            deferred: Deferred::new(),
            discarding: Discarding::default(),
            movement: ShardedRwLock::new(),
            counts: Counts::default(),
            data_start,
            data_end: AtomicU64::new(data_end.0),
            discard: config.discard,
        }))
    }

    /// One behind the last block of the data space.
    pub fn data_end(&self) -> BlockNo {
        BlockNo(self.data_end.load(Ordering::Acquire))
    }

    /// How many groups the data space has, those before it included.
    pub(crate) fn group_count(&self) -> usize {
        self.data_end().0.div_ceil(GROUP_BLOCKS) as usize
    }

    /// Gives out the blocks up to a later end of the data space, too. No region says that one of them is
    /// used.
    ///
    /// Errors: `Invalid` for an end before the present one, or too far.
    pub fn grow(&self, end: BlockNo) -> Result<()> {
        let _growing = self.growing.lock();
        let old = self.data_end();
        if end < old || end.0 > DATA_BLOCKS_MAX {
            return Err(Error::invalid(format!("data space that ended at block {old} is to end at {end}")));
        }
        self.groups.extend(end.0.div_ceil(GROUP_BLOCKS) as usize);
        let moving = self.movement.shared();
        let move_end = || self.data_end.store(end.0, Ordering::Release);
        let within = (old.0 % GROUP_BLOCKS) as u32;
        if within == 0 {
            move_end();
        } else {
            let behind = within..(u64::from(within) + (end.0 - old.0)).min(GROUP_BLOCKS) as u32;
            self.groups[(old.0 / GROUP_BLOCKS) as usize].grow(move_end, behind)?;
        }
        drop(moving);
        self.credits.put(end.0 - old.0);
        Ok(())
    }

    /// A good goal for the first blocks of an inode: files made together lie together, others in other
    /// groups.
    pub fn goal_for_inode(&self, inode: InodeNo) -> BlockNo {
        let end = self.data_end();
        let first = self.data_start.0 / GROUP_BLOCKS;
        let count = end.0.div_ceil(GROUP_BLOCKS) - first;
        // Fibonacci hashing: neighbours are spread, and every group has its share.
        let mixed = (inode.0 / INODES_TOGETHER).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let number = first + ((u128::from(mixed) * u128::from(count)) >> 64) as u64;
        let block = number * GROUP_BLOCKS + u64::from(self.groups[number as usize].cursor());
        BlockNo(block.clamp(self.data_start.0, end.0 - 1))
    }

    /// Whether a block of the data space can be had now. Takes nothing. May do I/O to load its group.
    pub fn is_free(&self, block: BlockNo) -> Result<bool> {
        if block < self.data_start || block >= self.data_end() {
            return Ok(false);
        }
        let number = self.group_of(block);
        let at = (block.0 - number as u64 * GROUP_BLOCKS) as u32;
        self.change(number, |group| Ok(!group.free_at(at, 1).is_empty()))
    }

    /// An aligned run of `window` free blocks (a power of two) in the group of a block. Takes nothing. May do
    /// I/O to load the group.
    pub fn free_window(&self, near: BlockNo, window: u64) -> Result<Option<BlockNo>> {
        if near < self.data_start || near >= self.data_end() || window > GROUP_BLOCKS {
            return Ok(None);
        }
        let number = self.group_of(near);
        let base = number as u64 * GROUP_BLOCKS;
        let found = self.change(number, |group| Ok(group.find_aligned(window as u32, base, window)))?;
        Ok(found.map(|piece| BlockNo(base + u64::from(piece.start))))
    }

    /// Takes `want` blocks, or fewer but at least `min`, as near to `goal` as it can: in one run if there is
    /// one of `min`, else in several. They are busy from now on: used by an extent record, or given back by
    /// [`Allocator::cancel`]. May do I/O to load groups.
    ///
    /// Errors: `NoSpace` if unreserved and fewer than `min` are free; `Invalid` if `min` is 0, over `want`,
    /// or over the reservation; or what loading a group met.
    pub fn allocate(&self, funding: Funding<'_, '_>, goal: BlockNo, want: u64, min: u64) -> Result<Vec<Run>> {
        if min == 0 || min > want {
            return Err(Error::invalid(format!("an allocation of {min} to {want} blocks")));
        }
        match funding {
            Funding::Reserved(reservation) => {
                if reservation.blocks() < min {
                    let reserved = reservation.blocks();
                    return Err(Error::invalid(format!(
                        "an allocation of {min} blocks from {reserved} reserved"
                    )));
                }
                self.place(reservation, goal, want, min)
            }
            Funding::Unreserved => self.place(&mut self.reserve_between(min, want)?, goal, want, min),
        }
    }

    fn place(&self, from: &mut SpaceReservation<'_>, goal: BlockNo, want: u64, min: u64) -> Result<Vec<Run>> {
        let runs = self.search(goal, want.min(from.blocks()), min)?;
        from.spend(total_blocks(&runs));
        self.counts.allocations.add(1);
        Ok(runs)
    }

    /// Takes `blocks` in one run that starts at a multiple of `align` (a power of two): for metadata-pool
    /// chunks.
    ///
    /// Errors: `NoSpace` if no such run is free; `Invalid` for more than a group's blocks.
    pub fn contiguous(&self, blocks: u64, align: u64) -> Result<Run> {
        if blocks == 0 || blocks > GROUP_BLOCKS || !align.is_power_of_two() || align > GROUP_BLOCKS {
            return Err(Error::invalid(format!("a run of {blocks} blocks aligned to {align}")));
        }
        self.contiguous_from(&mut self.reserve(blocks)?, blocks, align)
    }

    /// As [`Allocator::contiguous`], paid for by `reservation`, which holds at least `blocks`.
    pub fn contiguous_from(
        &self,
        reservation: &mut SpaceReservation<'_>,
        blocks: u64,
        align: u64,
    ) -> Result<Run> {
        if blocks == 0 || blocks > GROUP_BLOCKS.min(reservation.blocks()) {
            return Err(Error::invalid(format!("a run of {blocks} blocks of {reservation:?}")));
        }
        if let Some(run) = self.search_aligned(blocks, align)? {
            reservation.spend(blocks);
            self.counts.allocations.add(1);
            return Ok(run);
        }
        self.counts.refusals.add(1);
        Err(self.no_space(format!("a run of {blocks} blocks aligned to {align} is needed and there is none")))
    }

    /// Takes an aligned run.
    fn search_aligned(&self, blocks: u64, align: u64) -> Result<Option<Run>> {
        for number in self.groups_from((self.data_start.0 / GROUP_BLOCKS) as usize) {
            if !self.groups[number].may_have_run(blocks as u32) {
                continue;
            }
            let base = number as u64 * GROUP_BLOCKS;
            let taken = self.change(number, |group| {
                let piece = group.find_aligned(blocks as u32, base, align);
                piece.map(|piece| group.take(piece.clone()).map(|()| piece)).transpose()
            })?;
            if let Some(piece) = taken {
                return Ok(Some(self.run_of(number, piece)));
            }
        }
        Ok(None)
    }

    /// Gives back runs that no applied transaction uses, as a reservation again: to be dropped, or kept by
    /// data that still has to be written.
    ///
    /// Errors (kind `Corrupt`) if a block is free already or is being freed; the part of the run in that
    /// group is then never given out again.
    pub fn cancel(&self, runs: &[Run]) -> Result<SpaceReservation<'_>> {
        let mut returned = SpaceReservation::of(self, 0);
        let mut result = Ok(());
        for run in runs {
            let (blocks, done) = self.clear(*run);
            self.reserved.add(blocks);
            returned.merge(SpaceReservation::of(self, blocks));
            result = result.and(done);
        }
        result.map(|()| returned)
    }

    /// Clears the busy bits of blocks that were never used; says for how many it could.
    pub(crate) fn clear(&self, run: Run) -> (u64, Result<()>) {
        let pieces = match self.pieces(run) {
            Ok(pieces) => pieces,
            Err(error) => return (0, Err(error)),
        };
        let (mut cleared, mut done) = (0, Ok(()));
        for (number, piece) in pieces {
            let blocks = piece.len() as u64;
            match self.change(number, |group| group.give_back(piece)) {
                Ok(()) => cleared += blocks,
                Err(error) => done = done.and(Err(error)),
            }
        }
        (cleared, done)
    }

    /// The groups and blocks within them that a run covers. Errors (kind `Corrupt`) if it leaves the data
    /// space.
    pub(crate) fn pieces(&self, run: Run) -> Result<impl Iterator<Item = (usize, Piece)> + use<>> {
        let (data_start, data_end) = (self.data_start, self.data_end());
        let inside =
            run.start >= data_start && run.start <= data_end && run.blocks <= data_end.0 - run.start.0;
        if !inside {
            return Err(Error::corrupt(format!(
                "blocks {}+{} are outside the data space from {data_start} to {data_end}",
                run.start, run.blocks
            )));
        }
        let mut at = run.start.0;
        let end = run.end().0;
        Ok(std::iter::from_fn(move || {
            (at < end).then(|| {
                let within = at % GROUP_BLOCKS;
                let blocks = (GROUP_BLOCKS - within).min(end - at);
                let part = ((at / GROUP_BLOCKS) as usize, within as u32..(within + blocks) as u32);
                at += blocks;
                part
            })
        }))
    }

    pub(crate) fn run_of(&self, group: usize, piece: Piece) -> Run {
        let start = BlockNo(group as u64 * GROUP_BLOCKS + u64::from(piece.start));
        Run::new(start, piece.len() as u64)
    }

    /// Loads a group unless it is loaded; see the module's documentation for why this may race.
    pub(crate) fn load(&self, number: usize) -> Result<()> {
        while !self.groups[number].is_loaded() {
            self.load_up_to(number, self.data_end())?;
        }
        Ok(())
    }

    /// Loads a group, unless another thread is first, or the data space grows meanwhile.
    fn load_up_to(&self, number: usize, data_end: BlockNo) -> Result<()> {
        let first = number as u64 * GROUP_REGIONS;
        let regions = first..(first + GROUP_REGIONS).min(data_end.0.div_ceil(REGION_BLOCKS));
        let mut maps = vec![RegionMap::new(); (regions.end - regions.start) as usize];
        self.source
            .load_range(regions.clone(), &mut |region, map| {
                if regions.contains(&region) {
                    maps[(region - first) as usize] = map;
                }
            })
            .map_err(|error| error.context(format!("loading allocation group {number}")))?;
        let outside = [Run::new(BlockNo(0), self.data_start.0), Run::new(data_end, GROUP_BLOCKS)];
        for run in &outside {
            for (region, map) in regions.clone().zip(&mut maps) {
                fill(map, region, *run)?;
            }
        }
        if self.groups[number].install(GroupMap::new(maps), || self.data_end() == data_end) {
            self.counts.loads.add(1);
        }
        Ok(())
    }

    /// Loads a group if need be and changes its bits.
    pub(crate) fn change<R>(&self, number: usize, act: impl FnOnce(&mut GroupMap) -> Result<R>) -> Result<R> {
        self.load(number)?;
        let _moving = self.movement.shared();
        self.change_held(number, act)
    }

    /// As [`Allocator::change`], for a loaded group and a caller that holds `movement`.
    fn change_held<R>(&self, number: usize, act: impl FnOnce(&mut GroupMap) -> Result<R>) -> Result<R> {
        self.groups[number]
            .with(act)
            .unwrap_or_else(|| Err(Error::invalid(format!("allocation group {number} is not loaded"))))
            .map_err(|error| error.context(format!("allocation group {number}")))
    }

    fn group_of(&self, block: BlockNo) -> usize {
        (block.0.clamp(self.data_start.0, self.data_end().0 - 1) / GROUP_BLOCKS) as usize
    }

    /// Every group that has data space, from one on and around.
    fn groups_from(&self, home: usize) -> impl Iterator<Item = usize> + use<> {
        let first = (self.data_start.0 / GROUP_BLOCKS) as usize;
        (home..self.group_count()).chain(first..home)
    }

    fn search(&self, goal: BlockNo, want: u64, min: u64) -> Result<Vec<Run>> {
        let home = self.group_of(goal);
        if min <= GROUP_BLOCKS {
            let want = want.min(GROUP_BLOCKS) as u32;
            if let Some(run) = self.search_one_run(home, goal, want, min as u32)? {
                return Ok(vec![run]);
            }
        }
        self.counts.scattered.add(1);
        let mut runs = Vec::new();
        match self.search_pieces(home, min, &mut runs) {
            Ok(()) => Ok(runs),
            Err(error) => {
                // The blocks alone: the caller's reservation, not spent, still pays for them.
                runs.iter().try_for_each(|run| self.clear(*run).1)?;
                Err(error)
            }
        }
    }

    fn search_one_run(&self, home: usize, goal: BlockNo, want: u32, min: u32) -> Result<Option<Run>> {
        let exact =
            (goal >= self.data_start && goal < self.data_end()).then_some((goal.0 % GROUP_BLOCKS) as u32);
        let (mut longest, mut longest_in) = (min - 1, None);
        let mut probes = 0;
        for number in self.groups_from(home) {
            if number != home && !self.groups[number].may_have_run(want) {
                continue;
            }
            let exact = exact.filter(|_| number == home);
            let (piece, taken) = self.change(number, |group| self.take_whole(group, exact, want, min))?;
            if taken {
                return Ok(Some(self.run_of(number, piece)));
            }
            if piece.len() as u32 > longest {
                (longest, longest_in) = (piece.len() as u32, Some(number));
            }
            probes += 1;
            if probes == PROBES {
                break;
            }
        }
        // Blocks may have gone since, so the group with the longest run is only the first to be tried.
        for number in longest_in.into_iter().chain(self.groups_from(home)) {
            if !self.groups[number].may_have_run(min) {
                continue;
            }
            let taken = self.change(number, |group| {
                let piece = group.find(group.cursor(), want).filter(|piece| piece.len() >= min as usize);
                piece.map(|piece| group.take(piece.clone()).map(|()| piece)).transpose()
            })?;
            if let Some(piece) = taken {
                if piece.len() < want as usize {
                    self.counts.shortened.add(1);
                }
                return Ok(Some(self.run_of(number, piece)));
            }
        }
        Ok(None)
    }

    /// Takes a run at the goal, or one as long as wanted. Gives the best it saw, and whether it took it.
    fn take_whole(
        &self,
        group: &mut GroupMap,
        exact: Option<u32>,
        want: u32,
        min: u32,
    ) -> Result<(Piece, bool)> {
        if let Some(at) = exact {
            let piece = group.free_at(at, want);
            if piece.len() >= min.max(want.div_ceil(2)) as usize {
                group.take(piece.clone())?;
                self.counts.at_goal.add(1);
                return Ok((piece, true));
            }
        }
        let piece = group.find(exact.unwrap_or(group.cursor()), want).unwrap_or(0..0);
        let whole = piece.len() == want as usize;
        if whole {
            group.take(piece.clone())?;
        }
        Ok((piece, whole))
    }

    /// Takes `blocks` in as many runs as it needs; on errors, `runs` is what it had taken.
    fn search_pieces(&self, home: usize, blocks: u64, runs: &mut Vec<Run>) -> Result<()> {
        let mut missing = blocks;
        for number in self.groups_from(home) {
            if missing > 0 && self.groups[number].free_count() != Some(0) {
                self.load(number)?;
                let _moving = self.movement.shared();
                self.take_pieces(number, &mut missing, runs)?;
            }
        }
        if missing > 0 {
            self.counts.exclusive.add(1);
            let _alone = self.load_all_and_stop()?;
            for number in self.groups_from(home) {
                self.take_pieces(number, &mut missing, runs)?;
            }
        }
        if missing > 0 {
            return Err(Error::corrupt(format!(
                "{missing} blocks that count as free are in no free-space map"
            )));
        }
        Ok(())
    }

    /// Loads every group and holds up all changes, growing included.
    pub(crate) fn load_all_and_stop(&self) -> Result<WholeGuard<'_>> {
        loop {
            let count = self.group_count();
            (0..count).try_for_each(|number| self.load(number))?;
            let alone = self.movement.whole();
            if self.group_count() == count {
                return Ok(alone);
            }
        }
    }

    fn take_pieces(&self, number: usize, missing: &mut u64, runs: &mut Vec<Run>) -> Result<()> {
        let pieces =
            self.change_held(number, |group| group.take_pieces((*missing).min(GROUP_BLOCKS) as u32))?;
        for piece in pieces {
            let run = self.run_of(number, piece);
            *missing -= run.blocks;
            match runs.last_mut().filter(|last| last.end() == run.start) {
                Some(last) => last.blocks += run.blocks,
                None => runs.push(run),
            }
        }
        Ok(())
    }
}

/// Marks the free blocks of a region that lie in a run.
fn fill(map: &mut RegionMap, region: u64, run: Run) -> Result<()> {
    let base = region * REGION_BLOCKS;
    let within = |block: BlockNo| block.0.saturating_sub(base).min(REGION_BLOCKS) as u32;
    let (mut at, end) = (within(run.start), within(run.end()));
    while let Some(start) = map.next_free(at).filter(|start| *start < end) {
        at = map.next_used(start).unwrap_or(REGION_BLOCKS as u32).min(end);
        map.set_used(start, at - start)?;
    }
    Ok(())
}
