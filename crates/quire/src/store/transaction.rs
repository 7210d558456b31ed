//! Transactions: reserve, prepare, append, apply.
//!
//! Protocol (the design's "Commit"):
//! 1. [`Store::begin`] reserves journal bytes and the worst number of tree nodes. Outer locks may be held,
//!    inner ones may not: it queues for room ([`super::room_queue`]), writes a checkpoint where that makes
//!    room, takes a chunk for the metadata pool if that has none, and else sleeps until others give back what
//!    they have reserved.
//! 2. The caller takes its inner locks, reads what it must and adds changes.
//! 3. [`Transaction::commit`] loads every leaf it will touch, enters the barrier (shared), appends the
//!    record, which gives its `Seq`, applies every change, leaves the barrier. From `Seq` to the last apply
//!    nothing blocks, reads or fails; if it fails all the same (a damaged node), the volume shuts down.
//!
//! Invariants: whatever orders a key is held by the caller from before `commit` until it returns. No holder
//! of a reservation waits for work that has yet to reserve: write back first, then begin. J1: a change of
//! extents is added only after their data was written, and the journal write that carries it follows a flush
//! of that data.
//!
//! # What a record depends on
//!
//! Each record names the data that must be durable before it ([`Depends`]). The journal write that carries
//! records follows a flush of everything that they name, so a force costs a second flush only for data.
//! Records reach the disk in their order: a record is never there without those before it, nor without what
//! these depend on. So a record names only the data that it is the first to show.
//!
//! | record | depends on | because without it a crash could show |
//! | --- | --- | --- |
//! | written extents; a larger size | data of the inode | what the blocks held before: foreign data (J1), or bytes that an earlier truncate cut off (J6) |
//! | extents that move (collapse, insert), with a size | data of the inode | growth that was written back just before, without its data |
//! | rename over another file | data of the renamed inode | neither the old contents nor the new ones (`auto_da_alloc` wrote the data back) |
//! | homes that hold durable zeros, with the size over them | nothing | zeros in growth that no fsync has confirmed |
//! | names, link counts, attributes, times | nothing | nothing: they show no block and no byte |
//! | frees (truncate, punch, reaper), a smaller size | nothing | less than before; the blocks get a new owner only when the free is durable (J2), and that owner's record names its data |
//! | unwritten extents | nothing | zeros |
//! | orphans, logged operations, chunks of the metadata pool | nothing | nothing |
//! | content of blocks | nothing | the content is in the record |
//!
//! Data that a checkpoint makes durable needs no such word: its own flush comes after all records up to its
//! S.
//!
//! Neighbours: [`super::apply`] applies a change, here and in replay; [`super::reservation`] owns what was
//! reserved.

use super::Store;
use super::orphan_slots::OrphanState;
use super::reservation::{Amount, Reservation, Shortage, Turn};
use super::snapshot_table::{Freed, SnapshotTable};
use quire_base::patience;
use quire_base::sync::atomic::Ordering;
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, InodeNo, Result, Seq};
use quire_format::extent::{Extent, Run};
use quire_format::inode::InodeRecord;
use quire_format::key::Key;
use quire_format::record::{self, Change, DATA_OVERHEAD_MAX};
use quire_format::region::split_by_region;
use quire_tree::{Class, Ticket};

/// Extents that one transaction of a long operation changes at most.
pub const EXTENTS_PER_TRANSACTION: usize = 64;
/// And where there is hardly any room.
pub(crate) const EXTENTS_LEAST: usize = 2;

/// Blocks that a full volume's pool grows by, from what was kept back for it.
pub(super) const PROMISED_CHUNK: u64 = 64;

/// Payload bytes of a transaction that lets the pool grow.
const POOL_GROW_BYTES: usize = 64;

/// Checkpoints written for a reservation while nobody else holds one, before the volume counts as full: far
/// more than the two that empty the journal and the dirty set.
const CHECKPOINTS_ALONE_MAX: u32 = 64;

/// Times that the first in the queue makes the metadata pool larger, or makes frees durable for that, before
/// the volume counts as full: others may free blocks all the time, and never enough in one piece.
const POOL_TRIES_MAX: u32 = 1000;

/// What a transaction may come to need.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Tree keys changed, each perhaps in a leaf of its own.
    pub keys: usize,
    /// Payload bytes.
    pub bytes: usize,
    /// Frees space or finishes what was promised: may use the reserve that ordinary transactions leave alone.
    pub critical: bool,
    /// Extents among what is changed.
    pub(crate) extents: usize,
}

impl Cost {
    /// Keys and the bytes of their values, records' own bytes added.
    pub fn new(keys: usize, value_bytes: usize) -> Cost {
        Cost { keys, bytes: value_bytes + 48 * keys + 64, critical: false, extents: 0 }
    }
    /// Adds the change of `extents` extents and of the regions that they may lie in.
    pub fn with_extents(self, extents: usize) -> Cost {
        Cost {
            keys: self.keys + 3 * extents,
            bytes: self.bytes + 64 * extents + 32,
            extents: self.extents + extents,
            ..self
        }
    }
    /// Adds the content of blocks, in so many runs on the device at most.
    pub fn with_data(self, blocks: usize, runs: usize) -> Cost {
        Cost { bytes: self.bytes + blocks * BLOCK_SIZE + runs * DATA_OVERHEAD_MAX, ..self }
    }
    /// See [`Cost::critical`].
    pub fn critical(self) -> Cost {
        Cost { critical: true, ..self }
    }
}

/// The data that must be durable before a record may be; see the module's documentation. To be asked for when
/// the record is complete: the caller holds `meta`, and what the record shows had its mark stored before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Depends {
    /// None: whatever data a crash loses, the record shows nothing that was not the file's.
    Nothing,
    /// All writes up to this mark of the device.
    Written(u64),
}

impl Depends {
    /// The device's mark that a flush must have covered.
    fn mark(self) -> u64 {
        match self {
            Depends::Written(mark) => mark,
            Depends::Nothing => 0,
        }
    }
}

/// A transaction with its reservations; dropped without commit it leaves no trace.
#[must_use]
pub struct Transaction<'a> {
    store: &'a Store,
    reservation: Reservation<'a>,
    ticket: Ticket<'a>,
    changes: Vec<Change>,
    reserved_bytes: usize,
}

impl Store {
    /// Reserves for a transaction. Waits for room; holds nothing while it waits. On a thread that may not
    /// wait it fails instead ([`patience`]).
    pub fn begin(&self, cost: Cost) -> Result<Transaction<'_>> {
        crate::lock_order::assert_may_reserve();
        let amount = self.amount(cost);
        if !self.room.is_ahead_of(amount.class) {
            match self.claim(amount, Turn::Newcomer) {
                Ok(reservation) => return Ok(Transaction::reserved(self, reservation, cost.bytes)),
                Err(Shortage::Failed(error)) => return Err(error),
                Err(Shortage::Room | Shortage::PoolFull) => {}
            }
        }
        let reservation = self.wait_for_room(amount)?;
        Ok(Transaction::reserved(self, reservation, cost.bytes))
    }

    fn amount(&self, cost: Cost) -> Amount {
        Amount {
            // Blocks of snapshots change another key of the regions that they lie in.
            nodes: self.tree.nodes_for(cost.keys + if self.snapshots.any() { 2 * cost.extents } else { 0 }),
            journal_bytes: cost.bytes,
            class: if cost.critical { Class::Critical } else { Class::Normal },
        }
    }

    /// Queues for room and, when first in the queue, makes it where a checkpoint or a larger pool can. Else
    /// it sleeps until others give theirs back. `NoSpace` only if nothing is reserved and checkpoints do not
    /// help.
    fn wait_for_room(&self, amount: Amount) -> Result<Reservation<'_>> {
        patience::check("room for a transaction")?;
        self.counters.room_waits.add(1);
        let mut place = self.room.join(amount.class);
        let mut tried = None;
        let (mut checkpoints_alone, mut pool_tries) = (0, 0);
        loop {
            let moment = place.await_turn(tried.take());
            let seen = self.checkpoint_number.load(Ordering::Acquire);
            let others = self.has_reservations();
            match self.claim(amount, Turn::Mine) {
                Ok(reservation) => return Ok(reservation),
                Err(Shortage::Failed(error)) => return Err(error),
                Err(Shortage::PoolFull) => match self.grow_pool(amount.class == Class::Critical) {
                    Ok(()) => {
                        pool_tries += 1;
                        if pool_tries < POOL_TRIES_MAX {
                            continue;
                        }
                    }
                    Err(error)
                        if error.kind() == ErrorKind::NoSpace && self.tree.checkpoint_frees_nodes() =>
                    {
                        self.make_room(seen)?;
                    }
                    Err(error) => return Err(error),
                },
                Err(Shortage::Room) if self.checkpoints_make_room(amount) => self.make_room(seen)?,
                Err(Shortage::Room) if others || self.has_reservations() => {
                    tried = Some(moment);
                    continue;
                }
                Err(Shortage::Room) => self.make_room(seen)?,
            }
            checkpoints_alone = if others { 0 } else { checkpoints_alone + 1 };
            if checkpoints_alone > CHECKPOINTS_ALONE_MAX || pool_tries >= POOL_TRIES_MAX {
                return Err(Error::new(
                    ErrorKind::NoSpace,
                    format!(
                        "no room for a transaction of {} journal bytes and {} tree nodes, even after checkpoints",
                        amount.journal_bytes, amount.nodes
                    ),
                ));
            }
        }
    }

    /// As [`Store::begin`], for those who hold segments: `None` where it would have to wait. A caller that
    /// `has_queued` for as much without segments, and could not keep it, does not queue behind others once
    /// more: threads that take turns in the queue would else refuse one another for ever.
    pub(crate) fn try_begin(&self, cost: Cost, has_queued: bool) -> Option<Transaction<'_>> {
        crate::lock_order::assert_may_reserve();
        let amount = self.amount(cost);
        if !has_queued && self.room.is_ahead_of(amount.class) {
            return None;
        }
        let reservation = self.claim(amount, Turn::Nonblocking).ok()?;
        Some(Transaction::reserved(self, reservation, cost.bytes))
    }

    /// Whether the metadata pool as it is has room for such a transaction, perhaps after a checkpoint.
    pub(crate) fn has_room(&self, cost: Cost) -> bool {
        self.has_room_with(0, cost)
    }

    /// The nodes of the pool's room that such a transaction needs free: it may change as many in each of two
    /// dirty sets, add as many, and leave as many to snapshots.
    pub(crate) fn room_for(&self, cost: Cost) -> u64 {
        4 * self.amount(cost).nodes as u64
    }

    fn has_room_with(&self, more: u64, cost: Cost) -> bool {
        let amount = self.amount(cost);
        self.tree.pool_has_room(more, amount.nodes, amount.class)
    }

    /// Reserves for as many extents as there is room for, of those that one transaction changes at most: on a
    /// small volume with a full metadata pool that may be few. `cost` says what a number of extents costs.
    pub(crate) fn begin_extents(&self, cost: impl Fn(usize) -> Cost) -> Result<(Transaction<'_>, usize)> {
        for extents in [EXTENTS_PER_TRANSACTION, EXTENTS_PER_TRANSACTION / 4] {
            // A small volume keeps its space for data: more transactions rather than a larger pool. How far
            // that may grow is looked up, under the pool's lock, only where it decides.
            if !self.has_room(cost(extents)) && !self.has_room_with(self.pool_may_grow_by(), cost(extents)) {
                continue;
            }
            match self.begin(cost(extents)) {
                Err(error) if error.kind() == ErrorKind::NoSpace => {}
                other => return other.map(|transaction| (transaction, extents)),
            }
        }
        self.begin(cost(EXTENTS_LEAST)).map(|transaction| (transaction, EXTENTS_LEAST))
    }

    /// Loads what freeing these runs reads and changes: maps of free space, and, where snapshots share
    /// blocks, of dead ones. It stays while the ticket lives.
    pub(crate) fn load_freed(&self, ticket: &Ticket<'_>, freed: impl Iterator<Item = Run>) -> Result<()> {
        let freed: Vec<Run> = freed.collect();
        let mut keys = Vec::new();
        for (region, ..) in freed.iter().copied().flat_map(split_by_region) {
            keys.push(Key::region(region));
            if self.snapshots.any() {
                keys.push(Key::dead(region));
            }
        }
        self.tree.prepare(ticket, &keys)?;
        self.alloc.ensure_loaded(&freed)
    }

    fn make_room(&self, seen: u64) -> Result<()> {
        patience::check("a checkpoint")?;
        self.counters.checkpoint_waits.add(1);
        self.checkpoint_beyond(seen)
    }

    /// Takes a chunk of data space for the metadata pool: a large one, or what there is.
    fn grow_pool(&self, critical: bool) -> Result<()> {
        patience::check("a larger metadata pool")?;
        let cancel = |run| self.alloc.cancel(&[run]).map(drop);
        for blocks in [1024, 256, 64] {
            match self.alloc.contiguous(blocks, 1) {
                Ok(run) => return self.grow_pool_or(run, cancel),
                Err(error) if error.kind() == ErrorKind::NoSpace => {}
                Err(error) => return Err(error),
            }
        }
        // Freed blocks may only wait for their transaction to become durable.
        if self.alloc.deferred_blocks() > 0 {
            return self.force_frees();
        }
        if let Some(run) = self.scattered_chunk(PROMISED_CHUNK)? {
            return self.grow_pool_or(run, cancel);
        }
        if critical && let Some(run) = self.promised_chunk(PROMISED_CHUNK)? {
            return self.grow_pool_or(run, |run| self.return_chunk(run));
        }
        let what = if critical { "the metadata reserve is used up" } else { "no room for metadata" };
        Err(Error::new(ErrorKind::NoSpace, format!("{what}: delete files or enlarge the volume")))
    }

    /// Makes the pool larger, or gives the chunk back.
    fn grow_pool_or(&self, run: Run, give_back: impl FnOnce(Run) -> Result<()>) -> Result<()> {
        match self.grow_pool_by(run, Turn::Mine) {
            Ok(true) => Ok(()),
            Ok(false) => give_back(run),
            Err(error) => give_back(run).and(Err(error)),
        }
    }

    /// False if a checkpoint had to be written instead: the caller starts over.
    pub(crate) fn grow_pool_by(&self, run: Run, turn: Turn) -> Result<bool> {
        let seen = self.checkpoint_number.load(Ordering::Acquire);
        let reservation = match self.claim(self.pool_grow_amount(), turn) {
            Ok(reservation) => reservation,
            Err(Shortage::Room) => {
                self.make_room(seen)?;
                return Ok(false);
            }
            Err(Shortage::Failed(error)) => return Err(error),
            Err(Shortage::PoolFull) => {
                return Err(Error::new(
                    ErrorKind::NoSpace,
                    "the metadata reserve is used up: delete files or enlarge the volume",
                ));
            }
        };
        let mut transaction = Transaction::reserved(self, reservation, POOL_GROW_BYTES);
        transaction.changes.push(Change::PoolGrow { start: run.start, blocks: run.blocks as u32 });
        transaction.commit(Depends::Nothing)?;
        self.counters.pool_growths.add(1);
        Ok(true)
    }

    fn pool_grow_amount(&self) -> Amount {
        Amount { nodes: self.tree.nodes_for(1), journal_bytes: POOL_GROW_BYTES, class: Class::Critical }
    }
}

impl<'a> Transaction<'a> {
    /// An empty one, with what was reserved for it: `bytes` of payload, and nodes.
    fn reserved(store: &'a Store, reservation: Reservation<'a>, bytes: usize) -> Transaction<'a> {
        Transaction {
            store,
            reservation,
            ticket: store.tree.ticket(),
            changes: Vec::with_capacity(8),
            reserved_bytes: bytes,
        }
    }
}

impl<'a> Transaction<'a> {
    /// What was used since it began stays in memory while it lives.
    pub(crate) fn ticket(&self) -> &Ticket<'a> {
        &self.ticket
    }
}

impl Transaction<'_> {
    /// Loads the leaves of `keys` now, so that reads under inner locks find them in memory.
    pub fn warm(&self, keys: &[Key]) -> Result<()> {
        self.store.tree.prepare(&self.ticket, keys)
    }

    /// Loads what naming an orphan may change: a key, if it may get no slot.
    pub(crate) fn warm_new_orphan(&self, inode: InodeNo) -> Result<()> {
        if self.store.orphans.may_run_out() { self.warm(&[Key::orphan(inode)]) } else { Ok(()) }
    }

    /// Loads what changes when an orphan that is tracked in this way gets a name, or goes.
    pub(crate) fn warm_orphan(&self, inode: InodeNo, state: OrphanState) -> Result<()> {
        if state == OrphanState::Key { self.warm(&[Key::orphan(inode)]) } else { Ok(()) }
    }

    /// Sets a key's value.
    pub fn put(&mut self, key: Key, value: &[u8]) {
        self.changes.push(Change::Put { key, value: value.to_vec() });
    }

    /// Sets an inode's record.
    pub fn put_inode(&mut self, inode: InodeNo, record: &InodeRecord) {
        self.put(Key::inode(inode), &record.encode());
    }

    /// Removes a key.
    pub fn delete(&mut self, key: Key) {
        self.changes.push(Change::Delete { key });
    }

    /// Replaces extents of an inode. Blocks of `removed` alone are freed, of `inserted` alone allocated.
    pub fn extents(&mut self, inode: InodeNo, removed: Vec<Extent>, inserted: Vec<Extent>) {
        if !removed.is_empty() || !inserted.is_empty() {
            self.changes.push(Change::Extents { inode, removed, inserted });
        }
    }

    /// Frees blocks that only a snapshot had.
    pub(crate) fn reclaim(&mut self, run: Run) {
        self.changes.push(Change::Reclaim { start: run.start, blocks: run.blocks as u32 });
    }

    /// Takes a chunk out of the metadata pool; it is free then. No checkpoint needs a block of it.
    pub(crate) fn shrink_pool(&mut self, chunk: Run) {
        self.changes.push(Change::PoolShrink { start: chunk.start, blocks: chunk.blocks as u32 });
    }

    /// Gives blocks of a file content, after all changes of extents. The caller holds the lock that orders
    /// that content.
    pub fn data(&mut self, start: BlockNo, bytes: std::sync::Arc<[u8]>) {
        self.changes.push(Change::Data { start, bytes });
    }

    /// Names an orphan in a claimed slot, or under a key where no slot was free.
    pub fn orphan_set(&mut self, slot: Option<super::orphan_slots::Slot>, inode: InodeNo) {
        match slot {
            Some(slot) => self.changes.push(Change::OrphanSet { slot: slot.0, inode }),
            None => self.put(Key::orphan(inode), &[]),
        }
    }

    /// Takes an orphan's slot or key away.
    pub fn orphan_clear(&mut self, slot: Option<super::orphan_slots::Slot>, inode: InodeNo) {
        match slot {
            Some(slot) => self.changes.push(Change::OrphanClear { slot: slot.0, inode }),
            None => self.delete(Key::orphan(inode)),
        }
    }

    /// True if nothing was added.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Appends and applies. On an error nothing has changed, or the volume is shut down.
    pub(crate) fn commit(self, depends: Depends) -> Result<Seq> {
        self.commit_by(depends, false, &mut |_| ())
    }

    /// As [`Transaction::commit`]; `appended` hears of the `Seq` before anybody can see what it changes.
    pub(crate) fn commit_telling(self, depends: Depends, appended: &mut dyn FnMut(Seq)) -> Result<Seq> {
        self.commit_by(depends, false, appended)
    }

    /// As [`Transaction::commit`], while no other change is between its `Seq` and its last apply: for what
    /// says how others are applied.
    pub(crate) fn commit_alone(self, depends: Depends) -> Result<Seq> {
        self.commit_by(depends, true, &mut |_| ())
    }

    fn commit_by(mut self, depends: Depends, alone: bool, appended: &mut dyn FnMut(Seq)) -> Result<Seq> {
        let store = self.store;
        let mut keys = Vec::with_capacity(self.changes.len() + 4);
        let mut freed = Vec::new();
        let mut encoder = record::Encoder::with_capacity(self.reserved_bytes);
        for change in &self.changes {
            touched_keys(change, &store.snapshots, &mut keys, &mut freed)?;
            encoder.push(change);
        }
        let payload = encoder.finish();
        if payload.len() > self.reserved_bytes {
            return Err(store.shut_down(&Error::new(
                ErrorKind::Corrupt,
                format!("a transaction of {} bytes had reserved {}", payload.len(), self.reserved_bytes),
            )));
        }
        store.tree.prepare(&self.ticket, &keys)?;
        store.alloc.ensure_loaded(&freed)?;
        store.check_writable()?;

        let journal = store.journal()?;
        let whole = alone.then(|| store.barrier.whole());
        let shared = (!alone).then(|| store.barrier.shared());
        let whole_or_none = HalfApplied(store);
        let seq = journal.append_after(&mut self.reservation.journal, &payload, depends.mark());
        appended(seq);
        for change in &self.changes {
            if let Err(error) = store.apply(change, seq) {
                return Err(store.shut_down(&error.context("applying a journaled change")));
            }
        }
        std::mem::forget(whole_or_none);
        drop((whole, shared));
        store.counters.transactions.add(1);
        // What it did not use is no reason for a checkpoint.
        drop(self.reservation);
        if store.wants_checkpoint(journal) {
            store.committer.want_checkpoint();
        }
        Ok(seq)
    }
}

/// Dropped by an error or a panic before the last apply: no checkpoint may take the tree as it is then. So
/// the volume shuts down while the barrier is still held.
struct HalfApplied<'a>(&'a Store);

impl Drop for HalfApplied<'_> {
    fn drop(&mut self) {
        self.0.shut_down(&Error::corrupt("a journaled change was applied in part"));
    }
}

/// The keys whose leaves applying a change needs, and the runs it frees.
fn touched_keys(
    change: &Change,
    snapshots: &SnapshotTable,
    keys: &mut Vec<Key>,
    freed: &mut Vec<Run>,
) -> Result<()> {
    let mut regions = |run: Run, key: fn(u64) -> Key| {
        keys.extend(split_by_region(run).map(|(region, ..)| key(region)));
    };
    match change {
        Change::Put { key, .. } | Change::Delete { key } => keys.push(*key),
        Change::Extents { inode, removed, inserted } => {
            let allocate = quire_format::extent::subtract(removed, inserted)?.1;
            let Freed { own: free, shared } = snapshots.freed(removed, inserted)?;
            free.iter().chain(&allocate).for_each(|run| regions(*run, Key::region));
            // Some may be free then, after all: a snapshot may be deleted in between.
            shared.iter().for_each(|run| {
                regions(*run, Key::region);
                regions(*run, Key::dead);
            });
            freed.extend(shared);
            keys.extend(removed.iter().chain(inserted).map(|extent| Key::extent(*inode, extent.file_block)));
            freed.extend(free);
        }
        Change::PoolGrow { start, blocks } => regions(chunk_run(*start, *blocks), Key::region),
        Change::PoolShrink { start, blocks } => {
            let run = chunk_run(*start, *blocks);
            regions(run, Key::region);
            freed.push(run);
        }
        Change::Reclaim { start, blocks } => {
            let run = chunk_run(*start, *blocks);
            regions(run, Key::region);
            regions(run, Key::dead);
            freed.push(run);
        }
        Change::OrphanSet { .. } | Change::OrphanClear { .. } | Change::Data { .. } => {}
    }
    Ok(())
}

/// The run of a pool chunk.
pub(crate) fn chunk_run(start: BlockNo, blocks: u32) -> Run {
    Run::new(start, u64::from(blocks))
}
