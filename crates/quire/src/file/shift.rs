//! Logged operations: what does not fit one transaction, with a cursor in the tree.
//!
//! Collapse and insert move every extent behind a point; a crash may cut that off anywhere. Protocol: write
//! back and drop everything from the point on; put the operation's key, and the size that growth has reached;
//! move extents in bounded transactions, each of which also moves the cursor; the last sets the size on disk
//! and deletes the key. The size that callers see changes with the first transaction: if one saw the old
//! size, after another operation returned, a crash must not show the new one without that operation.
//! (Contents wait for the gate.) Collapse goes upwards (the range is freed first), insert downwards, so that
//! no extent ever lands on one that has still to move. Then the journal is forced *before the gate opens*:
//! else a write in place could land in a block that a crash gives back to its old offset.
//!
//! Space. Moving changes every leaf behind the point. A snapshot keeps each of these as it was, and an
//! insertion may leave twice as many leaves as it found. So before the key is put, blocks are kept back with
//! which the metadata pool can grow by all that ([`Engine::keep_room_to_move`]). The steps take what they
//! need of these, and the rest goes back at the end. Without room the operation fails, and nothing has
//! changed.
//!
//! The same steps run live and, after a crash, from recovery.
//!
//! Neighbours: [`super::truncate`] logs long truncates; [`crate::reaper`] calls [`Engine::run_logged`] at
//! mount.

use super::range_end;
use crate::engine::Engine;
use crate::extent_map::Replacement;
use crate::inode::{Inode, InodeRef};
use crate::lease::moving::Moving;
use crate::store::transaction::{Cost, EXTENTS_LEAST};
use quire_alloc::SpaceReservation;
use quire_base::sync::time::Duration;
use quire_base::sync::{Arc, thread};
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Context, Error, ErrorKind, Result};
use quire_format::extent::{Extent, FILE_BLOCKS_MAX, check_list, merge_list};
use quire_format::key::Key;
use quire_format::logged::{LoggedKind, LoggedOp};
use quire_format::region::REGION_BLOCKS;

/// Nodes that moving extents changes beside those of the extents: above the inode and the logged operation,
/// and at the point where an extent is cut.
const NODES_ASIDE: u64 = 16;

/// How often an operation that has to succeed is tried again, and how long it waits before.
const RETRIES: u32 = 50;
const RETRY_PAUSE: Duration = Duration::from_millis(100);

impl Engine {
    /// Removes `len` bytes at `offset` and moves what follows down. Both are multiples of the block size and
    /// the range ends before the end of the file.
    pub(crate) fn collapse(
        self: &Arc<Engine>,
        moving: Moving<'_>,
        inode: &InodeRef,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let end = check_aligned(offset, len)?;
        self.shift(moving, inode, offset, |size| {
            if end >= size {
                return Err(Error::invalid(format!(
                    "collapse of {len} bytes at {offset} reaches the end of the file ({size} bytes): truncate instead"
                )));
            }
            Ok((LoggedKind::Collapse, size - len))
        }, len)
    }

    /// Opens a hole of `len` bytes at `offset` and moves what follows up. Both are multiples of the block
    /// size and the offset lies before the end of the file.
    pub(crate) fn insert(
        self: &Arc<Engine>,
        moving: Moving<'_>,
        inode: &InodeRef,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        check_aligned(offset, len)?;
        self.shift(
            moving,
            inode,
            offset,
            |size| {
                if offset >= size {
                    return Err(Error::invalid(format!(
                        "insert at {offset} is not before the end of the file ({size} bytes)"
                    )));
                }
                range_end(size.next_multiple_of(BLOCK_SIZE as u64), len)?;
                Ok((LoggedKind::Insert, size + len))
            },
            len,
        )
    }

    fn shift(
        self: &Arc<Engine>,
        mut moving: Moving<'_>,
        inode: &InodeRef,
        offset: u64,
        plan: impl Fn(u64) -> Result<(LoggedKind, u64)>,
        len: u64,
    ) -> Result<()> {
        inode.check_regular()?;
        self.clear_privileges(inode)?;
        let blocks = || offset / BLOCK_SIZE as u64..FILE_BLOCKS_MAX;
        let change = || self.shift_alone(inode, offset, &plan, len);
        // `NoSpace` is always from before the operation was logged.
        self.retry_without_space(|| self.exclusively_moving(inode, &mut moving, blocks, change))?;
        inode.touch_written();
        Ok(())
    }

    fn shift_alone(
        self: &Arc<Engine>,
        inode: &InodeRef,
        offset: u64,
        plan: impl Fn(u64) -> Result<(LoggedKind, u64)>,
        len: u64,
    ) -> Result<()> {
        let (kind, size) = plan(inode.size())?;
        let first = offset / BLOCK_SIZE as u64;
        // What follows the point, and growth that has not reached the disk, is settled before extents move.
        // So is all of the unit around the point: a crash would show the moved part of it beside the rest.
        let mapping = inode.mapping();
        let from = offset.min(inode.meta().record.size);
        mapping.write_back(inode.blocks_touched(from, from).start, u64::MAX)?;
        mapping.drop_written(first, u64::MAX);
        if kind == LoggedKind::Insert {
            self.check_has_place(inode, first, len)?;
        }
        let mut room = self.keep_room_to_move(inode, kind, first, len / BLOCK_SIZE as u64)?;

        let id = self.new_logged_id();
        let mut operation = self.logged_operation(inode, kind, first, first + len / BLOCK_SIZE as u64, size);
        let mut transaction = self.store.begin(Cost::new(2, 256))?;
        transaction.warm(&[Key::logged(id), Key::inode(inode.number)])?;
        let mut meta = inode.meta();
        transaction.put(Key::logged(id), &operation.encode());
        // All growth has been written: the size that the operation is logged with must not be ahead of the
        // one on disk for more than its own reason.
        let mut record = meta.record.clone();
        record.size = inode.size();
        if record != meta.record {
            transaction.put_inode(inode.number, &record);
        }
        transaction.commit(inode.written())?;
        meta.record = record;
        // From here on a crash finishes it.
        inode.size_sequence.settle(size);
        drop(meta);
        self.insist(|| self.run_logged(inode, id, &mut operation, room.as_mut()))?;
        self.store.force_all()
    }

    /// Keeps blocks back for all nodes by which the metadata pool may have to grow while the extents from
    /// `first` on move by `blocks` blocks; None where it need not grow. Counts rather too many.
    fn keep_room_to_move(
        &self,
        inode: &Inode,
        kind: LoggedKind,
        first: u64,
        blocks: u64,
    ) -> Result<Option<SpaceReservation<'_>>> {
        // Snapshots keep a node as it was when it changes, those that are being deleted too. None is taken
        // before this change has ended.
        let kept = u64::from(!self.store.snapshots.is_empty());
        // Extents that arrive from above, one below the other, fill leaves by halves.
        let halves = u64::from(kind == LoggedKind::Insert);
        if kept + halves == 0 {
            return Ok(None);
        }
        let (from, to) = (Key::extent(inode.number, first), Key::extent(inode.number, u64::MAX));
        let mut nodes = NODES_ASIDE + self.store.tree.nodes_between(from, to)?;
        if kind == LoggedKind::Collapse {
            // What is freed changes the map of its region, and that of the region's dead blocks.
            nodes += 2 * blocks.min(self.store.block_count().div_ceil(REGION_BLOCKS));
        }
        nodes *= kept + halves;
        if kept > 0 {
            // What others change snapshots keep too: it may use up the room of a step that the pool has now.
            nodes += self.store.room_for(moving_cost(EXTENTS_LEAST));
        }
        let room = self.store.keep_pool_room(nodes);
        room.map(Some).context("the metadata that a collapse or an insertion changes")
    }

    /// Runs an operation whose key was just committed. It cannot be left half done in a file that goes on
    /// being used: the next mount would finish it over newer data. So an error that stays shuts the volume
    /// down, and that mount finishes it. Errors of the device and a lack of space may pass: the device may
    /// refuse homes for a while, and the journal has no room until then. So the operation waits, and goes on
    /// from its cursor.
    pub(crate) fn run_logged_live(
        self: &Arc<Engine>,
        inode: &Arc<Inode>,
        id: u64,
        mut operation: LoggedOp,
    ) -> Result<()> {
        self.insist(|| self.run_logged(inode, id, &mut operation, None))
    }

    /// Takes away the key of an operation that is done.
    pub(crate) fn finish_logged_live(&self, inode: &Arc<Inode>, id: u64, operation: LoggedOp) -> Result<()> {
        self.insist(|| self.finish_logged(inode, id, operation))
    }

    /// Does what must not be left half done. After an error of the device, or for lack of space, it tries
    /// again for some seconds. An error that stays shuts the volume down.
    fn insist(&self, mut work: impl FnMut() -> Result<()>) -> Result<()> {
        let mut retries = 0..RETRIES;
        loop {
            let Err(error) = work() else { return Ok(()) };
            let may_pass = matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace);
            if !may_pass || self.store.failure().is_some() || retries.next().is_none() {
                return Err(self.store.shut_down(&error));
            }
            thread::sleep(RETRY_PAUSE);
        }
    }

    /// Runs a logged operation from its cursor to its end; after an error it can go on from there. Before
    /// each step the metadata pool takes from `room` what it lacks. Recovery has the volume to itself, and
    /// gives no room. The caller holds the gate exclusively, or is recovery.
    pub(crate) fn run_logged<'a>(
        self: &'a Arc<Engine>,
        inode: &Arc<Inode>,
        id: u64,
        operation: &mut LoggedOp,
        mut room: Option<&mut SpaceReservation<'a>>,
    ) -> Result<()> {
        let mut prepare_step = || match &mut room {
            Some(room) => self.store.grow_pool_from(room, moving_cost(EXTENTS_LEAST)),
            None => Ok(()),
        };
        if operation.generation == inode.generation {
            match operation.kind {
                LoggedKind::Truncate | LoggedKind::Free => self.free_extents_from(inode, operation.start)?,
                LoggedKind::Punch | LoggedKind::Zero => {
                    while self.free_some_extents(inode, operation.start, operation.end)? {}
                }
                LoggedKind::Collapse => {
                    // Until the first move the range still holds its own blocks; afterwards the moved ones.
                    if operation.cursor == operation.end {
                        while {
                            prepare_step()?;
                            self.free_some_extents(inode, operation.start, operation.end)?
                        } {}
                    }
                    while {
                        prepare_step()?;
                        self.move_some_down(inode, id, operation)?
                    } {}
                }
                LoggedKind::Insert => {
                    while {
                        prepare_step()?;
                        self.move_some_up(inode, id, operation)?
                    } {}
                }
            }
        }
        prepare_step()?;
        self.finish_logged(inode, id, *operation)
    }

    fn finish_logged(&self, inode: &Arc<Inode>, id: u64, operation: LoggedOp) -> Result<()> {
        let mut transaction = self.store.begin(Cost::new(2, 256).critical())?;
        transaction.warm(&[Key::logged(id), Key::inode(inode.number)])?;
        let mut meta = inode.meta();
        transaction.delete(Key::logged(id));
        let moves = matches!(operation.kind, LoggedKind::Collapse | LoggedKind::Insert);
        let mut record = meta.record.clone();
        if moves && operation.generation == inode.generation {
            record.size = operation.size;
            record.mtime = self.store.options.clock.now();
            record.ctime = record.mtime;
            transaction.put_inode(inode.number, &record);
        }
        let seq = transaction.commit(inode.written())?;
        inode.committed_data(seq);
        if moves {
            inode.set_size(&mut meta, record.size);
        }
        meta.record = record;
        Ok(())
    }

    /// An error if what follows a block, or reaches over it, has no place so many bytes further up: blocks
    /// that were allocated beyond the end of the file move too.
    fn check_has_place(&self, inode: &Inode, first: u64, len: u64) -> Result<()> {
        let (last, floor) = (Key::extent(inode.number, u64::MAX), Key::extent(inode.number, 0));
        let Some((key, value)) = self.store.tree.last_at_or_before(last, floor)? else { return Ok(()) };
        let end = Extent::decode(key.offset, &value)?.file_end();
        if end <= first {
            return Ok(());
        }
        range_end(end * BLOCK_SIZE as u64, len).map(drop)
    }

    fn move_some_down(&self, inode: &Arc<Inode>, id: u64, operation: &mut LoggedOp) -> Result<bool> {
        let by = operation.end - operation.start;
        self.move_some(inode, id, operation, |engine, operation, batch| {
            let from = operation.cursor;
            let found = engine.store.extents_in(inode, from, FILE_BLOCKS_MAX - from, batch)?;
            let moved = moved(&found, |file_block| file_block.checked_sub(by))?;
            let cursor = found.last().map_or(from, Extent::file_end);
            Ok((found, moved, cursor))
        })
    }

    fn move_some_up(&self, inode: &Arc<Inode>, id: u64, operation: &mut LoggedOp) -> Result<bool> {
        let by = operation.end - operation.start;
        self.move_some(inode, id, operation, |engine, operation, batch| {
            let (point, floor) = (operation.start, Key::extent(inode.number, 0));
            let mut found: Vec<Extent> = Vec::new();
            let mut below = operation.cursor;
            while below > point && found.len() < batch {
                let at = Key::extent(inode.number, below - 1);
                let Some((key, value)) = engine.store.tree.last_at_or_before(at, floor)? else { break };
                let extent = Extent::decode(key.offset, &value)?;
                if extent.file_end() <= point {
                    break;
                }
                found.push(extent);
                below = extent.file_block.max(point);
            }
            found.reverse();
            // Of an extent that reaches over the point the part before it stays. Writeback of blocks before
            // the point goes on, and may merge extents there at any time: so it is cut as it moves.
            let stays = found.first().and_then(|extent| extent.clip(0, point));
            let behind: Vec<Extent> =
                found.iter().filter_map(|extent| extent.clip(point, u64::MAX)).collect();
            let mut moved = moved(&behind, |file_block| file_block.checked_add(by))?;
            let cursor = behind.first().map_or(operation.cursor, |extent| extent.file_block);
            moved.splice(0..0, stays);
            Ok((found, moved, cursor))
        })
    }

    /// One bounded step: the extents that `choose` names move, and the cursor with them.
    fn move_some(
        &self,
        inode: &Arc<Inode>,
        id: u64,
        operation: &mut LoggedOp,
        choose: impl Fn(&Engine, &LoggedOp, usize) -> Result<(Vec<Extent>, Vec<Extent>, u64)>,
    ) -> Result<bool> {
        let (mut transaction, batch) = self.store.begin_extents(moving_cost)?;
        // Loads what is chosen again under `meta`, and where it goes.
        let (found, moved, _) = choose(self, operation, batch / 2)?;
        let mut keys = vec![Key::logged(id)];
        keys.extend(found.iter().chain(&moved).map(|extent| Key::extent(inode.number, extent.file_block)));
        transaction.warm(&keys)?;
        let _meta = inode.meta();
        let (found, mut moved, cursor) = choose(self, operation, batch / 2)?;
        if found.is_empty() {
            return Ok(false);
        }
        merge_list(&mut moved);
        let next = LoggedOp { cursor, ..*operation };
        let plan = Replacement { removed: found, inserted: moved };
        self.change_extents(&mut transaction, inode, plan);
        transaction.put(Key::logged(id), &next.encode());
        self.store.commit_extents(inode, transaction, inode.written())?;
        *operation = next;
        Ok(true)
    }
}

/// What a step costs that may move half so many extents. No other step of a collapse or an insertion costs
/// more.
fn moving_cost(extents: usize) -> Cost {
    Cost::new(2, 256).with_extents(extents + 4).critical()
}

/// The extents at other file blocks. Errors (kind `Corrupt`) if they have no place there: the operation was
/// read from disk and does not fit its file.
fn moved(extents: &[Extent], to: impl Fn(u64) -> Option<u64>) -> Result<Vec<Extent>> {
    let moved = extents.iter().map(|extent| {
        let file_block = to(extent.file_block)
            .ok_or_else(|| Error::corrupt("a logged operation moves extents out of their file"))?;
        Ok(Extent { file_block, ..*extent })
    });
    let moved = moved.collect::<Result<Vec<Extent>>>()?;
    check_list(&moved)?;
    Ok(moved)
}

fn check_aligned(offset: u64, len: u64) -> Result<u64> {
    let end = range_end(offset, len)?;
    if len == 0 || !offset.is_multiple_of(BLOCK_SIZE as u64) || !len.is_multiple_of(BLOCK_SIZE as u64) {
        return Err(Error::invalid(format!(
            "collapse and insert take whole blocks of {BLOCK_SIZE} bytes: offset {offset}, length {len}"
        )));
    }
    debug_assert!(blocks_for(end) <= FILE_BLOCKS_MAX);
    Ok(end)
}
