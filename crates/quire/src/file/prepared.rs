//! Operations that drop or zero cached data: what can fail comes first.
//!
//! A truncate, a punch or a zeroing that fails must leave the file as it was, unsynced data included: the
//! caller is told of the failure, and a later fsync succeeds. So the first visible change
//! comes last. A [`Prepared`] is the proof that nothing is left that can fail, and it alone drops dirty
//! blocks.
//!
//! Order
//! 1. the edges: partial blocks, or parts of untorn units, that will be zeroed are read into memory and
//!    pinned ([`quire_cache::Zeroing`]);
//! 2. the tree leaves and allocation groups that the change needs are loaded, and stay while a ticket lives;
//! 3. writeback is held off the range, and what is under way there has ended ([`WritebackHold`]);
//! 4. the transaction reserves;
//! 5. what finishers of other blocks have changed meanwhile is loaded as well;
//! 6. [`Prepared::apply`]: edges are zeroed, blocks dropped, the transaction commits. An error here is one of
//!    the volume, which shuts down.
//!
//! Why 3 comes before 4: dropping a block waits for its writeback, and a finisher may have to reserve. A
//! holder of a reservation never waits for one (J9). Why 2 comes before 3: an fsync of the file waits for the
//! end of the hold, and so the hold should not last for reads of the device. Dirty limit and memory are
//! waited for in 1, without the hold.
//!
//! A change of more extents than one transaction takes is a logged operation: the transaction of step 6 logs
//! it, and from then on it is finished, by the caller or by the next mount.
//!
//! Neighbours: [`super::truncate`], [`super::fallocate`]; [`crate::store::transaction`] reserves.

use crate::engine::Engine;
use crate::inode::Inode;
use crate::store::transaction::{Cost, EXTENTS_PER_TRANSACTION, Transaction};
use quire_base::{BLOCK_SIZE, Result};
use quire_cache::{WritebackHold, Zeroing};
use quire_format::extent::FILE_BLOCKS_MAX;
use quire_format::key::Key;
use quire_tree::Ticket;
use std::ops::Range;

/// What is about to change.
pub(crate) struct Plan<'a> {
    /// Bytes that will read as zeros.
    pub(crate) bytes: Range<u64>,
    /// The whole blocks among them, which are dropped from the cache.
    pub(crate) blocks: Range<u64>,
    /// The partial blocks, or parts of units.
    pub(crate) edges: Vec<Zeroing<'a>>,
    /// A change of too many extents is to be logged; else the caller changes as many as there is room for.
    pub(crate) may_log: bool,
}

/// A change that cannot fail any more. See the module's documentation.
#[must_use]
pub(crate) struct Prepared<'a> {
    engine: &'a Engine,
    blocks: Range<u64>,
    edges: Vec<Zeroing<'a>>,
    hold: Option<WritebackHold<'a>>,
    transaction: Transaction<'a>,
    room: ChangeRoom,
}

/// What the transaction of a prepared change may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangeRoom {
    /// Extents that it changes at most.
    pub(crate) extents: usize,
    /// There are more: log the change under this id.
    pub(crate) logged: Option<u64>,
}

impl Engine {
    /// Does what can fail of a change. `cost` says what a number of extents costs. The caller holds the gate
    /// exclusively, or the size lock and changes nothing before the end of the file.
    pub(crate) fn prepare<'a>(
        &'a self,
        inode: &'a Inode,
        plan: Plan<'a>,
        cost: impl Fn(usize) -> Cost,
    ) -> Result<Prepared<'a>> {
        let Plan { bytes, blocks, edges, may_log } = plan;
        let early = self.store.tree.ticket();
        self.load_change(&early, inode, &blocks, EXTENTS_PER_TRANSACTION)?;
        let hold = inode.mapping.get().map(|mapping| {
            mapping.hold_writeback(bytes.start / BLOCK_SIZE as u64, bytes.end.div_ceil(BLOCK_SIZE as u64))
        });
        let (transaction, extents) = self.store.begin_extents(cost)?;
        let ticket = transaction.ticket();
        let mut room = ChangeRoom { extents, logged: None };
        if self.load_change(ticket, inode, &blocks, extents)? && may_log {
            let id = self.new_logged_id();
            room.logged = Some(id);
            self.store.tree.prepare(ticket, &[Key::logged(id)])?;
        }
        Ok(Prepared { engine: self, blocks, edges, hold, transaction, room })
    }

    /// Loads what changing the first `most` extents of a range of blocks reads and writes. It stays while the
    /// ticket lives. True if there are more extents.
    pub(crate) fn load_change(
        &self,
        ticket: &Ticket<'_>,
        inode: &Inode,
        blocks: &Range<u64>,
        most: usize,
    ) -> Result<bool> {
        // One block more on either side: extents merge with what they touch.
        let from = blocks.start.saturating_sub(1);
        let to = blocks.end.saturating_add(1).min(FILE_BLOCKS_MAX);
        let found = inode.read_extents(from, to - from, most + 3)?;
        let mut keys = vec![Key::inode(inode.number), Key::extent(inode.number, blocks.start)];
        let mut runs = Vec::with_capacity(found.len());
        let mut inside = 0;
        for extent in &found {
            keys.push(Key::extent(inode.number, extent.file_block));
            if let Some(part) = extent.clip(blocks.start, blocks.end) {
                inside += 1;
                keys.push(Key::extent(inode.number, part.file_block));
                if part.file_end() < FILE_BLOCKS_MAX {
                    keys.push(Key::extent(inode.number, part.file_end()));
                }
                runs.push(part.run());
            }
        }
        self.store.tree.prepare(ticket, &keys)?;
        self.store.load_freed(ticket, runs.into_iter())?;
        Ok(inside > most)
    }
}

impl<'a> Prepared<'a> {
    /// Zeroes the edges, drops the blocks, and runs `change`, which commits the transaction. What fails now
    /// shuts the volume down.
    pub(crate) fn apply<T>(self, change: impl FnOnce(Transaction<'a>, ChangeRoom) -> Result<T>) -> Result<T> {
        self.edges.into_iter().for_each(Zeroing::apply);
        if let Some(hold) = &self.hold {
            hold.discard(self.blocks.start, self.blocks.end);
        }
        let changed = change(self.transaction, self.room);
        // A block may be unwritten now, and what is written there next must not come before a home that is
        // being written.
        self.engine.store.device.recorded().await_batch();
        drop(self.hold);
        changed.map_err(|error| self.engine.store.shut_down(&error))
    }
}
