//! Blocks kept back so that the metadata pool can grow when accepted data is written back.
//!
//! Delayed allocation accepts data before it has homes. Writing it back makes extent keys, at worst one a
//! block, and the tree nodes for them need pool blocks; on a volume that is full by then only blocks kept
//! back can provide them.
//!
//! Protocol. Every inode with `d` delayed blocks keeps `d / 32` blocks (rounded up) beside them: a leaf that
//! splits at worst into halves holds more than 40 extent keys; twice as many where nodes have two copies. A
//! standing reserve, kept from mount on, and larger when a small volume grows, covers the nodes that one
//! transaction may dirty. A critical transaction that finds the pool full, and no free space, takes a chunk
//! from what is kept ([`Store::promised_chunk`]). The chunk is a *debt*: promises that fall due pay it
//! before anything goes back to the allocator, and each checkpoint tries to pay the rest from free space.
//!
//! A node that a snapshot has, too, goes to another block with its first change, and the snapshot keeps the
//! old one, so removals and writeback need more of the pool although the tree grows by nothing. The standing
//! reserve therefore has another block for every block that the newest checkpoint shares with a kept one, and
//! room for the keys of dead blocks. A snapshot that cannot have that is refused. Each checkpoint counts
//! anew: what has been changed since is shared no longer.
//!
//! A long operation that must not stop halfway keeps blocks for all its steps, from before the first
//! ([`Store::keep_pool_room`]). Nobody borrows from these: the operation alone makes the pool larger with
//! them, before each step and by no more than the step needs ([`Store::grow_pool_from`]). What the pool has,
//! others may use up.
//!
//! The promises of the first two kinds lie in accounts ([`quire_alloc::SpaceAccount`]): that of the inode
//! ([`Delayed`]) has space for its data, that of the store has what is kept for the pool. Data has its
//! promise from the write to the writeback; a transaction reserves only when the data has been written
//! ([`super::reservation`]). Shared line: the pool's account, one word, written once in 32 blocks of a file
//! that become dirty without a home.
//!
//! An inode that leaves memory gives back what it still has; after a clean close all accounts are empty
//! ([`super::reservation`] checks that).
//!
//! Neighbours: `file/backing` promises and releases; [`super::transaction`] takes chunks;
//! [`super::checkpoint`] pays; [`super::pool_shrink`] gives back what the pool does not need any more.

use super::Store;
use super::reservation::Turn;
use super::transaction::{Cost, PROMISED_CHUNK};
use quire_alloc::{Allocator, SpaceAccount, SpaceReservation};
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result, size};
use quire_format::extent::Run;
use quire_format::region::REGION_BLOCKS;
use quire_format::superblock::Superblock;

/// Delayed blocks for which one block is kept back.
const BLOCKS_PER_PROMISE: u64 = 32;
/// The standing reserve, in blocks and as a part of the volume.
const STANDING_MAX: u64 = 1024;
const STANDING_PART: u64 = 32;
/// Blocks that are kept back for snapshots at most. It bounds what may be owed, where a full volume has
/// snapshots already.
const SNAPSHOTS_MAX: u64 = 1 << 22;

/// Keys of regions with dead blocks that a leaf has at least.
const DEAD_KEYS_PER_LEAF: u64 = 3;

/// The pool lists its chunks, and three checkpoints have such lists, in two copies. Where free space is
/// scattered, and each chunk is one block, the lists take this part of what the chunks have.
const CHUNK_LIST_PART: u64 = 4;

/// Chunks that are added to make checkpoints rarer, in blocks, and the part of the volume that they may take
/// beside what the tree has.
const CHUNK_BLOCKS: u64 = 1024;
const WIDENED_PART: u64 = 64;

/// What the dirty data of an inode was promised, and not given yet.
#[derive(Default)]
pub(crate) struct Delayed {
    /// Blocks that no record of the inode counts yet, those that are being written included; stat counts
    /// them.
    blocks: AtomicU64,
    /// Space for those of them that have not been placed.
    space: SpaceAccount,
}

impl Delayed {
    /// Dirty blocks that no record of the inode counts yet.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Promises `blocks` more from `alloc`, and to `pool` what it keeps beside them, for so many `copies` of
    /// a node.
    fn promise(&self, alloc: &Allocator, pool: &SpaceAccount, copies: u64, blocks: u64) -> Result<()> {
        let growth = |delayed| growth(copies, delayed, blocks);
        let expected = growth(self.blocks());
        let mut reservation = alloc.reserve(blocks + expected)?;
        let kept = growth(self.blocks.fetch_add(blocks, Ordering::AcqRel));
        if kept > expected {
            match alloc.reserve(kept - expected) {
                Ok(more) => reservation.merge(more),
                Err(error) => {
                    let before = self.blocks.fetch_sub(blocks, Ordering::AcqRel);
                    // Others came in between, and count on what these blocks were to bring: at most as much,
                    // since `kept` is the larger of the two values that a growth by `blocks` has. What is
                    // reserved may be less.
                    let stays = kept - growth(before - blocks);
                    pool.put_on_credit(reservation.split(stays), stays);
                    return Err(error);
                }
            }
        } else {
            drop(reservation.split(expected - kept));
        }
        pool.put(reservation.split(kept));
        self.space.put(reservation);
        Ok(())
    }

    /// Takes the promise of `blocks` that are to be placed; what is not used goes back with [`Delayed::put`].
    pub(crate) fn take<'a>(&self, alloc: &'a Allocator, blocks: u64) -> SpaceReservation<'a> {
        self.space.take(alloc, blocks)
    }

    /// Keeps the promise of blocks that are still to be placed.
    pub(crate) fn put(&self, reservation: SpaceReservation<'_>) {
        self.space.put(reservation);
    }
}

fn promise(delayed: u64) -> u64 {
    delayed.div_ceil(BLOCKS_PER_PROMISE)
}

/// What `more` delayed blocks add to the promise beside `delayed` ones, for so many `copies` of a node.
fn growth(copies: u64, delayed: u64, more: u64) -> u64 {
    copies * (promise(delayed + more) - promise(delayed))
}

/// The standing reserve of a volume, in blocks.
pub(crate) fn standing_reserve(superblock: &Superblock) -> u64 {
    u64::from(superblock.metadata_copies) * (superblock.block_count / STANDING_PART).min(STANDING_MAX)
}

impl Store {
    fn metadata_copies(&self) -> u64 {
        u64::from(self.superblock.metadata_copies)
    }

    fn growth(&self, delayed: u64, more: u64) -> u64 {
        growth(self.metadata_copies(), delayed, more)
    }

    /// The standing reserve for the volume as it is now, with what its snapshots may come to need.
    fn wanted_reserve(&self) -> u64 {
        let superblock = self.superblock_now();
        let regions = superblock.block_count.div_ceil(REGION_BLOCKS);
        let for_snapshots = match self.tree.pool_shared_blocks() {
            0 => 0,
            shared => shared + self.metadata_copies() * regions.div_ceil(DEAD_KEYS_PER_LEAF),
        };
        standing_reserve(&superblock) + for_snapshots.min(SNAPSHOTS_MAX)
    }

    /// Keeps the standing reserve back, as far as there is space, and pays what is owed. What cannot be had
    /// is owed from now on.
    pub(crate) fn keep_standing_reserve(&self) -> Result<()> {
        let mut standing = self.standing.lock();
        let wanted = self.wanted_reserve();
        let more = wanted.saturating_sub(*standing);
        self.pool_promise.put_on_credit(self.alloc.reserve_between(0, more)?, more);
        drop(self.pool_promise.take(&self.alloc, standing.saturating_sub(wanted)));
        *standing = wanted;
        drop(standing);
        self.pay_pool_debt();
        Ok(())
    }

    /// As [`Store::keep_standing_reserve`], but all of it.
    ///
    /// Errors: `NoSpace`; nothing has changed then.
    pub(crate) fn keep_whole_reserve(&self) -> Result<()> {
        let mut standing = self.standing.lock();
        let wanted = self.wanted_reserve();
        let more = wanted.saturating_sub(*standing);
        let lacks = more + self.pool_promise.owed();
        let Ok(mut room) = self.alloc.reserve(lacks) else {
            let show = |blocks: u64| size::show(blocks * BLOCK_SIZE as u64);
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "a snapshot needs {} of free space for metadata that changes behind it, {} are free: delete \
                     files or snapshots, or enlarge the volume",
                    show(lacks),
                    show(self.alloc.free_blocks())
                ),
            ));
        };
        self.pool_promise.put(room.split(more));
        self.pool_promise.repay(&mut room);
        *standing += more;
        Ok(())
    }

    /// Gives the standing reserve back.
    pub(crate) fn end_standing_reserve(&self) {
        drop(self.pool_promise.take(&self.alloc, std::mem::take(&mut *self.standing.lock())));
    }

    /// After a checkpoint: counts the standing reserve anew, if it is kept yet.
    pub(super) fn checkpoint_counts_reserve(&self) -> Result<()> {
        let is_kept = *self.standing.lock() > 0;
        if is_kept { self.keep_standing_reserve() } else { Ok(()) }
    }

    /// Whether blocks are promised to data that has no home yet.
    pub(crate) fn has_delayed(&self) -> bool {
        self.alloc.reserved_blocks() + self.pool_promise.owed() > self.pool_promise.due()
    }

    /// Pays back what chunks were taken for, as far as there is space.
    pub(crate) fn pay_pool_debt(&self) {
        let debt = self.pool_promise.owed();
        if debt > 0
            && let Ok(mut got) = self.alloc.reserve_between(1, debt)
        {
            self.pool_promise.repay(&mut got);
        }
    }

    /// Blocks of the pool up to which it is widened. What the tree has is on top: a tree that has outgrown
    /// the part would else leave room for a few dirty nodes, and one checkpoint would follow the other.
    pub(crate) fn widened_pool_max(&self) -> u64 {
        self.metadata_copies() * (self.block_count() / WIDENED_PART + self.tree.nodes())
    }

    /// Blocks by which a transaction that could be smaller may make the pool larger, in whole chunks: up to a
    /// quarter of the volume.
    pub(crate) fn pool_may_grow_by(&self) -> u64 {
        let room = (self.block_count() / 4).saturating_sub(self.tree.pool_blocks());
        room / CHUNK_BLOCKS * CHUNK_BLOCKS
    }

    /// Adds chunks to the pool while it, and not the node cache, bounds how much metadata may be dirty: at
    /// most as many as there are already, at most to a 64th of the volume beside what the tree and snapshots
    /// have of the pool, and only while an eighth of the volume is free.
    pub(crate) fn widen_pool(&self) -> Result<()> {
        let volume = self.block_count();
        let pool_max =
            (2 * self.tree.pool_blocks()).min(self.widened_pool_max() + self.tree.pool_kept_blocks());
        while self.tree.pool_lacks() >= CHUNK_BLOCKS
            && self.tree.pool_blocks() + CHUNK_BLOCKS <= pool_max
            && self.alloc.free_blocks() > volume / 8
        {
            let run = match self.alloc.contiguous(CHUNK_BLOCKS, 1) {
                Ok(run) => run,
                Err(error) if error.kind() == ErrorKind::NoSpace => break,
                Err(error) => return Err(error),
            };
            match self.grow_pool_by(run, Turn::Newcomer) {
                Ok(true) => {}
                Ok(false) => return self.alloc.cancel(&[run]).map(drop),
                Err(error) => {
                    drop(self.alloc.cancel(&[run])?);
                    // The pool that there is will do.
                    return if error.kind() == ErrorKind::NoSpace { Ok(()) } else { Err(error) };
                }
            }
        }
        Ok(())
    }

    /// Promises `blocks` to data that has no home yet, with what the pool may come to need for
    /// them.
    pub(crate) fn delay(&self, delayed: &Delayed, blocks: u64) -> Result<()> {
        delayed.promise(&self.alloc, &self.pool_promise, self.metadata_copies(), blocks)
    }

    /// `blocks` that were promised have homes, or are not needed any more. The blocks themselves
    /// are the caller's business, what was kept beside them goes back.
    pub(crate) fn release_promised(&self, delayed: &Delayed, blocks: u64) {
        let before = delayed.blocks.fetch_sub(blocks, Ordering::AcqRel);
        drop(self.pool_promise.take(&self.alloc, self.growth(before - blocks, blocks)));
    }

    /// An inode leaves memory: what its data was promised and never got goes back. There is some only where
    /// the volume was shut down by an error.
    pub(crate) fn end_delayed(&self, delayed: &Delayed) {
        let blocks = delayed.blocks.swap(0, Ordering::AcqRel);
        drop(self.pool_promise.take(&self.alloc, self.growth(0, blocks)));
        drop(delayed.take(&self.alloc, delayed.space.due()));
    }

    /// Keeps blocks back with which the pool can grow by `nodes` nodes, however scattered free space is.
    ///
    /// Errors: `NoSpace`.
    pub(crate) fn keep_pool_room(&self, nodes: u64) -> Result<SpaceReservation<'_>> {
        // What is owed of the standing reserve comes first.
        self.pay_pool_debt();
        let blocks = self.metadata_copies() * nodes;
        self.alloc.reserve(blocks + blocks / CHUNK_LIST_PART)
    }

    /// Makes the pool larger from `room` until a transaction of `cost` fits, or nothing is left in it.
    pub(crate) fn grow_pool_from<'a>(&'a self, room: &mut SpaceReservation<'a>, cost: Cost) -> Result<()> {
        while !self.has_room(cost)
            && let Some(run) = self.chunk_from(room, PROMISED_CHUNK)?
        {
            let grown = self.grow_pool_by(run, Turn::Newcomer);
            if !matches!(grown, Ok(true)) {
                room.merge(self.alloc.cancel(&[run])?);
            }
            grown?;
        }
        Ok(())
    }

    /// A run of at most `blocks` blocks for the metadata pool, from scattered free space.
    pub(crate) fn scattered_chunk(&self, blocks: u64) -> Result<Option<Run>> {
        match self.alloc.reserve_between(1, blocks) {
            Ok(mut reservation) => self.chunk_from(&mut reservation, blocks),
            Err(_) => Ok(None),
        }
    }

    /// A run of at most `blocks` blocks for the metadata pool, from what is kept back.
    pub(crate) fn promised_chunk(&self, blocks: u64) -> Result<Option<Run>> {
        let mut reservation = self.pool_promise.borrow(&self.alloc, blocks);
        let found = self.chunk_from(&mut reservation, blocks);
        self.pool_promise.repay(&mut reservation);
        found
    }

    /// A run of at most `blocks` blocks, out of a reservation: shorter where there is none of that length.
    fn chunk_from(&self, reservation: &mut SpaceReservation<'_>, blocks: u64) -> Result<Option<Run>> {
        let mut size = reservation.blocks().min(blocks);
        while size > 0 {
            match self.alloc.contiguous_from(reservation, size, 1) {
                Ok(run) => return Ok(Some(run)),
                Err(error) if error.kind() == ErrorKind::NoSpace => size /= 2,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Takes back a chunk that was not used after all.
    pub(crate) fn return_chunk(&self, run: Run) -> Result<()> {
        self.pool_promise.repay(&mut self.alloc.cancel(&[run])?);
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::store::transaction::Depends;
    use crate::{FormatOptions, VolumeOptions};
    use quire_base::InodeNo;
    use quire_base::sync::Arc;
    use quire_device::MemoryBackend;
    use quire_format::key::Key;

    /// A tree of millions of files outgrew the part of the volume that its pool was widened to. The pool then
    /// grew by what was needed at the moment, few nodes might be dirty, and one checkpoint followed the
    /// other.
    #[test]
    fn a_tree_that_outgrows_its_part_of_the_volume_keeps_its_room() {
        const BLOCKS: u64 = 256 << 10;
        const DIRTY_NODES: u64 = 1500;
        let backend = Arc::new(MemoryBackend::new(BLOCKS));
        let format = FormatOptions::new().seed(1).metadata_copies(1).journal_bytes(4 << 20);
        format.format_backend(backend.clone()).expect("a new volume");
        let options = VolumeOptions::new().threads(false);
        let options = options.node_cache_bytes(2 * DIRTY_NODES * quire_tree::NODE_MEMORY_BYTES);
        let volume = options.open_backend(backend).expect("a new volume opens");
        let store = &volume.engine().store;
        for hash in 0.. {
            if store.tree.stats().nodes > BLOCKS / WIDENED_PART * 3 / 2 {
                break;
            }
            let mut transaction = store.begin(Cost::new(1, 1000)).expect("there is room");
            transaction.put(Key::xattr(InodeNo(1 << 20), hash, 0, 0), &[1; 1000]);
            transaction.commit(Depends::Nothing).expect("the volume works");
            volume.background_step().expect("the volume works");
        }
        store.background_checkpoint().expect("the volume works");
        let stats = store.tree.stats();
        assert!(stats.dirty_nodes_max + CHUNK_BLOCKS / 2 > DIRTY_NODES, "{stats:?}");
        // What the pool was widened by it keeps.
        store.shrink_pool().expect("the volume works");
        assert_eq!(store.tree.stats().pool_blocks, stats.pool_blocks);
    }
}

/// Explored by loom: `RUSTFLAGS="--cfg loom" cargo test -p quire-fs --lib --release loom_promises`.
#[cfg(all(test, loom))]
mod loom_promises {
    use super::*;
    use quire_alloc::{AllocConfig, Discard, RegionSource};
    use quire_base::BlockNo;
    use quire_base::sync::{Arc, thread};
    use quire_format::region::RegionMap;

    const COPIES: u64 = 2;

    struct Nothing;

    impl RegionSource for Nothing {
        fn load(&self, _: u64) -> Result<RegionMap> {
            Ok(RegionMap::new())
        }
    }

    impl Discard for Nothing {
        fn discard(&self, _: BlockNo, _: u64) -> Result<()> {
            Ok(())
        }
    }

    struct World {
        alloc: Arc<Allocator>,
        pool: SpaceAccount,
        delayed: Delayed,
    }

    impl World {
        /// As many delayed blocks, and as many free ones.
        fn new(delayed: u64, free: u64) -> Arc<World> {
            let blocks = delayed + COPIES * promise(delayed) + free;
            let config = AllocConfig {
                data_start: BlockNo(16),
                data_end: BlockNo(16 + blocks),
                free_blocks: blocks,
                discard: false,
            };
            let alloc = Allocator::new(config, Arc::new(Nothing), Arc::new(Nothing)).unwrap();
            let world = World { alloc, pool: SpaceAccount::default(), delayed: Delayed::default() };
            world.delay(delayed).unwrap();
            Arc::new(world)
        }

        fn delay(&self, blocks: u64) -> Result<()> {
            self.delayed.promise(&self.alloc, &self.pool, COPIES, blocks)
        }
    }

    /// A write that was refused, since another had made what the pool is to keep larger meanwhile, gave less
    /// to the pool than its own part of that, when a third had come in between: its one block was all it had,
    /// and the pool has two copies of each node. Whoever was the last to take from the pool's account found
    /// it one block short.
    #[test]
    fn what_is_kept_is_what_the_delayed_blocks_need() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let world = World::new(31, 3);
            let other = world.clone();
            let thread = thread::spawn(move || (0..2).filter(|_| other.delay(1).is_ok()).count() as u64);
            let mine = u64::from(world.delay(1).is_ok());
            let delayed = 31 + mine + thread.join().unwrap();
            assert_eq!((world.delayed.blocks(), world.delayed.space.due()), (delayed, delayed));
            assert_eq!(world.pool.due(), COPIES * promise(delayed));
            assert_eq!(world.alloc.reserved_blocks() + world.pool.owed(), delayed + world.pool.due());
        });
    }
}
