//! Giving a lease.
//!
//! 1. It is asked for, which marks the file ([`super::table`]). From here on a mover that begins waits for
//!    it.
//! 2. The gate, exclusively, for a moment: operations that have not seen the mark have ended.
//! 3. The range is written back and made durable. Recorded content goes home, by a checkpoint, since later
//!    writes in place are possible only behind one.
//! 4. Under `meta` the extents are read and the lease is granted. If content in the journal waits for its
//!    home again, or a mover has come, nothing is granted.
//! 5. The range is made durable once more: extents that others have journaled meanwhile are in the answer.
//!
//! So what the answer names is what the file has after a crash, too, as after an fsync at that moment.
//!
//! Neighbours: [`super::handle`] is what the caller gets.

use super::handle::{LayoutExtent, LayoutLease, Place};
use super::table::{LEASES_MAX, Lease, Refused};
use crate::engine::Engine;
use crate::gate::GateState;
use crate::inode::{Inode, InodeRef};
use quire_base::sync::Arc;
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result, patience};
use quire_format::extent::Extent;
use std::ops::Range;

/// Extents that a lease names at most, holes not counted: it ends before the next one.
pub const LEASE_EXTENTS_MAX: usize = 1024;

/// Times that content may get into the journal again while its home is written.
const TRIES: usize = 3;

/// A lease that is asked for; given back if nothing comes of it.
struct Asked<'a> {
    engine: &'a Engine,
    inode: &'a InodeRef,
    lease: Option<Arc<Lease>>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.engine.leases.give_back(&lease, &self.inode.marks);
        }
    }
}

impl Engine {
    /// Gives a lease of the layout of a range of bytes, as far as the file goes, with at most `most` extents.
    pub(crate) fn lease_layout(
        self: &Arc<Engine>,
        inode: &InodeRef,
        bytes: Range<u64>,
        most: usize,
    ) -> Result<LayoutLease> {
        inode.check_regular()?;
        self.store.check_writable()?;
        if bytes.start > bytes.end {
            return Err(Error::invalid(format!(
                "a lease of bytes {} to {}: it ends before it begins",
                bytes.start, bytes.end
            )));
        }
        patience::check("a file to be written back")?;
        let end = bytes.end.min(inode.size());
        let first = if bytes.start < end { bytes.start / BLOCK_SIZE as u64 } else { blocks_for(end) };
        let blocks = first..blocks_for(end);
        let lease = self.leases.ask(inode.number().0, &inode.marks, blocks.clone()).map_err(refused)?;
        let mut asked = Asked { engine: self, inode, lease: Some(lease.clone()) };
        drop(inode.gate.enter(GateState::Exclusive));
        let (start, len) = (first * BLOCK_SIZE as u64, (blocks.end - first) * BLOCK_SIZE as u64);
        for _ in 0..TRIES {
            self.sync_range(inode, start, len, true)?;
            // The first brings content home; behind the second it may be overwritten in place again, which
            // recalls no lease.
            for _ in 0..2 {
                if self.has_recorded(inode, first, blocks.end - first)? {
                    self.store.checkpoint_now()?;
                }
            }
            let Some((end, extents)) = self.look_and_grant(inode, &lease, blocks.clone(), most.max(1))?
            else {
                continue;
            };
            self.sync_range(inode, start, len, true)?;
            asked.lease = None;
            let range = start..end * BLOCK_SIZE as u64;
            return Ok(LayoutLease::new(
                self.clone(),
                inode.clone(),
                lease,
                range,
                layout(start, end, &extents),
            ));
        }
        Err(Error::new(
            ErrorKind::Busy,
            "the file is written through the journal all the time; try again later",
        ))
    }

    /// The end of what is leased, in blocks, and the extents up to there. `None`: the home of some content is
    /// to be written first.
    fn look_and_grant(
        &self,
        inode: &Inode,
        lease: &Arc<Lease>,
        blocks: Range<u64>,
        most: usize,
    ) -> Result<Option<(u64, Vec<Extent>)>> {
        let count = blocks.end - blocks.start;
        let recorded = self.store.device.recorded();
        self.store.with_extents(inode, blocks.start, count, most + 1, |mut found| {
            let end = match found.len() > most {
                true => found.pop().map_or(blocks.end, |next| next.file_block),
                false => blocks.end,
            };
            let is_at_home = |extent: &Extent| recorded.is_at_home(extent.disk_block, extent.len.into());
            if !found.iter().all(is_at_home) {
                return Ok(None);
            }
            if !self.leases.grant(lease, end) {
                return Err(refused(Refused::Barred));
            }
            Ok(Some((end, found)))
        })
    }
}

fn refused(why: Refused) -> Error {
    match why {
        Refused::Barred => Error::new(
            ErrorKind::Busy,
            "the file's layout is about to change: ask for the lease again when that is over",
        ),
        Refused::TooMany => {
            Error::new(ErrorKind::Busy, format!("the volume has {LEASES_MAX} leases, and takes no more"))
        }
        Refused::Closed => Error::new(ErrorKind::Shutdown, "the volume is being closed"),
    }
}

/// Extents and the holes between them, from a byte to a block.
fn layout(start: u64, end: u64, extents: &[Extent]) -> Vec<LayoutExtent> {
    let mut layout = Vec::with_capacity(2 * extents.len() + 1);
    let end = end * BLOCK_SIZE as u64;
    let mut at = start;
    let first = start / BLOCK_SIZE as u64;
    for extent in extents.iter().filter_map(|extent| extent.clip(first, end / BLOCK_SIZE as u64)) {
        let offset = extent.file_block * BLOCK_SIZE as u64;
        if at < offset {
            layout.push(LayoutExtent { offset: at, len: offset - at, place: Place::Hole });
        }
        let place = match extent.unwritten {
            true => Place::Unwritten,
            false => Place::Device(extent.disk_block.0 * BLOCK_SIZE as u64),
        };
        let len = u64::from(extent.len) * BLOCK_SIZE as u64;
        layout.push(LayoutExtent { offset, len, place });
        at = offset + len;
    }
    if at < end {
        layout.push(LayoutExtent { offset: at, len: end - at, place: Place::Hole });
    }
    layout
}
