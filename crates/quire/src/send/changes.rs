//! The items of a stream: what differs between two trees of names.
//!
//! Keys come in ascending order, so all keys of an inode come together, its record first if that differs. The
//! record says what the inode is in a stream: one without a name does not exist there. An inode that has got
//! a name back is sent whole, whatever of it was there before.
//!
//! Extents wait until the keys have passed their beginning: what comes behind may lie beside them. Two short
//! queues do, whatever the file.
//!
//! Neighbours: [`super`].

use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, Error, ErrorKind, InodeNo, Result};
use quire_device::{AlignedBuf, Device, IoClass};
use quire_format::extent::Extent;
use quire_format::inode::InodeRecord;
use quire_format::key::{Key, KeyKind};
use quire_format::stream::{Blocks, DATA_BYTES_MAX, Item, StreamWriter};
use quire_tree::compare::compare;
use quire_tree::{NodeRef, Tree};
use std::collections::VecDeque;
use std::ops::ControlFlow;

/// A snapshot.
pub(crate) struct Side {
    /// To look inodes up.
    pub(crate) tree: Arc<Tree>,
    /// Its tree of names.
    pub(crate) root: NodeRef,
    pub(crate) volume: u64,
}

/// Gives a writer all items but the end. `tell` hears of bytes.
pub(crate) fn send_changes(
    device: &Device,
    older: Option<NodeRef>,
    newer: &Side,
    writer: &mut StreamWriter<'_>,
    tell: &mut dyn FnMut(u64),
) -> Result<()> {
    let mut changes = Changes {
        device,
        newer,
        writer,
        tell,
        object: 0,
        passed_over: true,
        old: VecDeque::new(),
        new: VecDeque::new(),
    };
    compare(device, newer.volume, older, newer.root, &mut |key, old, new| changes.visit(key, old, new))?;
    changes.extents_up_to(u64::MAX)
}

struct Changes<'a, 'w> {
    device: &'a Device,
    newer: &'a Side,
    writer: &'a mut StreamWriter<'w>,
    tell: &'a mut dyn FnMut(u64),
    /// Whose keys are at hand.
    object: u64,
    /// Whether these are not sent one by one.
    passed_over: bool,
    /// Extents of either side, from where they have not been compared on.
    old: VecDeque<Extent>,
    new: VecDeque<Extent>,
}

impl Changes<'_, '_> {
    fn visit(&mut self, key: Key, old: Option<&[u8]>, new: Option<&[u8]>) -> Result<()> {
        if key.object == 0 {
            if key.kind == KeyKind::LoggedOp && new.is_some() {
                let why = "the snapshot has half an operation in it, and cannot be sent: take another one";
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
            return Ok(());
        }
        if key.object != self.object {
            self.extents_up_to(u64::MAX)?;
            self.object = key.object;
            self.passed_over = self.begin(key, old, new)?;
        }
        if self.passed_over { Ok(()) } else { self.key(key, old, new) }
    }

    /// Begins an inode with the first of its keys that differ. True if the others are not wanted.
    fn begin(&mut self, key: Key, old: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool> {
        let inode = InodeNo(key.object);
        let named = |value: &[u8]| InodeRecord::decode(value).map(|record| record.nlink > 0);
        if key.kind != KeyKind::Inode {
            // The record is the same in both.
            let record = self.newer.tree.get(Key::inode(inode))?;
            return Ok(!record.as_deref().map(named).transpose()?.unwrap_or(false));
        }
        let (was, is) = (old.map(named).transpose()?, new.map(named).transpose()?);
        match (was, is) {
            (Some(true), Some(true)) | (None, Some(true)) => Ok(false),
            (Some(true), _) => {
                self.item(&Item::Gone(inode))?;
                Ok(true)
            }
            (Some(false), Some(true)) => {
                self.whole(inode)?;
                Ok(true)
            }
            (_, _) => Ok(true),
        }
    }

    /// Sends an inode as if there had been none.
    fn whole(&mut self, inode: InodeNo) -> Result<()> {
        let tree = self.newer.tree.clone();
        let mut outcome = Ok(());
        tree.scan(Key::inode(inode), Key::extent(inode, u64::MAX), &mut |key, value| {
            outcome = self.key(key, None, Some(value));
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        outcome?;
        self.extents_up_to(u64::MAX)
    }

    fn key(&mut self, key: Key, old: Option<&[u8]>, new: Option<&[u8]>) -> Result<()> {
        match (key.kind, new) {
            (KeyKind::Extent, _) => {
                self.extents_up_to(key.offset)?;
                let extent =
                    |value: Option<&[u8]>| value.map(|value| Extent::decode(key.offset, value)).transpose();
                self.old.extend(extent(old)?);
                self.new.extend(extent(new)?);
                Ok(())
            }
            (KeyKind::Inode, Some(value)) => {
                self.item(&Item::Inode(InodeNo(key.object), InodeRecord::decode(value)?))
            }
            (_, Some(value)) => self.item(&Item::Value(key, value)),
            (_, None) => self.item(&Item::NoValue(key)),
        }
    }

    /// Compares the extents at hand as far as this file block.
    fn extents_up_to(&mut self, limit: u64) -> Result<()> {
        let start = |queue: &VecDeque<Extent>| queue.front().map_or(u64::MAX, |extent| extent.file_block);
        loop {
            let (from_old, from_new) = (start(&self.old), start(&self.new));
            let at = from_old.min(from_new);
            if at >= limit {
                return Ok(());
            }
            let here =
                |queue: &VecDeque<Extent>| queue.front().filter(|extent| extent.file_block == at).copied();
            let (old, new) = (here(&self.old), here(&self.new));
            // Up to where one of them ends, or the other begins.
            let end = [old, new].iter().flatten().map(Extent::file_end).min().unwrap_or(limit);
            let end =
                [from_old, from_new].into_iter().filter(|start| *start > at).fold(end.min(limit), u64::min);
            match (old, new) {
                (Some(old), Some(new)) if same(&old, &new) => {}
                (_, Some(new)) => self.extent(&Extent { len: (end - at) as u32, ..new })?,
                (_, None) => {
                    self.item(&Item::Hole(InodeNo(self.object), Blocks { start: at, count: end - at }))?;
                }
            }
            for queue in [&mut self.old, &mut self.new] {
                if let Some(extent) = queue.pop_front()
                    && let Some(rest) = extent.clip(end, u64::MAX)
                {
                    queue.push_front(rest);
                }
            }
        }
    }

    /// Sends what an extent holds.
    fn extent(&mut self, extent: &Extent) -> Result<()> {
        let inode = InodeNo(self.object);
        if extent.unwritten {
            let blocks = Blocks { start: extent.file_block, count: extent.len.into() };
            return self.item(&Item::Unwritten(inode, blocks));
        }
        let most = DATA_BYTES_MAX / BLOCK_SIZE;
        for from in (0..extent.len as usize).step_by(most) {
            let count = most.min(extent.len as usize - from);
            if !self.writer.wants() {
                self.writer.left_out(count as u64)?;
                continue;
            }
            let mut bytes = AlignedBuf::try_zeroed(count * BLOCK_SIZE)?;
            self.device
                .read(IoClass::Data, extent.disk_block.offset(from as u64), &mut bytes)
                .map_err(|error| error.context(format!("content of inode {inode}")))?;
            self.item(&Item::Data { inode, file_block: extent.file_block + from as u64, bytes: &bytes })?;
        }
        Ok(())
    }

    fn item(&mut self, item: &Item<'_>) -> Result<()> {
        self.writer.item(item)?;
        (self.tell)(self.writer.position().bytes);
        Ok(())
    }
}

/// Whether extents that begin at the same file block have the same content there.
fn same(old: &Extent, new: &Extent) -> bool {
    old.unwritten == new.unwritten && (old.unwritten || old.disk_block == new.disk_block)
}
