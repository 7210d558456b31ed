//! Applying the items of a stream to a volume.
//!
//! Items that change one key are one transaction, with the position. Those that need several apply what they
//! say step by step, and the last step moves the position: after a crash in between, the item comes again.
//!
//! Content. The blocks of the file that are there leave it first; then fresh blocks are written, and one
//! record gives them to the file. It depends on these writes (J1). The reads that a plan needs are of the
//! tree: nothing else changes it.
//!
//! Neighbours: [`super`] has the protocol.

use crate::engine::Engine;
use crate::store::transaction::{Cost, Depends, EXTENTS_PER_TRANSACTION, Transaction};
use quire_alloc::Funding;
use quire_base::BLOCK_SIZE;
use quire_base::{BlockNo, Context, Error, ErrorKind, InodeNo, Result};
use quire_device::{AlignedBuf, IoClass};
use quire_format::extent::{EXTENT_BLOCKS_MAX, Extent, Run, carve, extents_of_run};
use quire_format::inode::INODE_BYTES;
use quire_format::key::Key;
use quire_format::properties::Properties;
use quire_format::receive::{Position, UNFINISHED_BYTES_MAX, Unfinished};
use quire_format::stream::{Blocks, Item};
use std::ops::ControlFlow;

/// Keys that one transaction takes away at most.
const KEYS_PER_TRANSACTION: usize = 64;

/// A receive at work.
pub(super) struct Applier<'e> {
    engine: &'e Engine,
    /// As the key has it, or will have with the next transaction.
    pub(super) unfinished: Unfinished,
    /// Where the last content went.
    goal: Option<BlockNo>,
}

impl<'e> Applier<'e> {
    pub(super) fn new(engine: &'e Engine, unfinished: Unfinished) -> Applier<'e> {
        Applier { engine, unfinished, goal: None }
    }

    /// Applies an item; behind it the stream is at `position`.
    pub(super) fn apply(&mut self, item: &Item<'_>, position: Position) -> Result<()> {
        match item {
            Item::Inode(inode, record) => {
                if let Some(unit) = Properties::of_flags(record.flags)?.untorn {
                    // What is written to it could not be written back.
                    self.engine.check_unit(unit).context(format_args!(
                        "inode {inode} of the stream, which is to be given up (quire receive --abort)"
                    ))?;
                }
                let mut transaction = self.begin(1, INODE_BYTES)?;
                transaction.put_inode(*inode, record);
                self.commit(transaction, position, Depends::Nothing)
            }
            Item::Value(key, value) => {
                let mut transaction = self.begin(1, value.len())?;
                transaction.put(*key, value);
                self.commit(transaction, position, Depends::Nothing)
            }
            Item::NoValue(key) => {
                let mut transaction = self.begin(1, 0)?;
                transaction.delete(*key);
                self.commit(transaction, position, Depends::Nothing)
            }
            Item::Gone(inode) => {
                self.remove(*inode)?;
                let transaction = self.begin(0, 0)?;
                self.commit(transaction, position, Depends::Nothing)
            }
            Item::Hole(inode, blocks) => {
                self.punch(*inode, *blocks)?;
                let transaction = self.begin(0, 0)?;
                self.commit(transaction, position, Depends::Nothing)
            }
            Item::Unwritten(inode, blocks) => {
                self.punch(*inode, *blocks)?;
                let before = self.unfinished.position;
                let most = u64::from(EXTENT_BLOCKS_MAX);
                for start in (blocks.start..blocks.end()).step_by(most as usize) {
                    let part = Blocks { start, count: most.min(blocks.end() - start) };
                    let at = if part.end() == blocks.end() { position } else { before };
                    self.fill(*inode, part, None, at)?;
                }
                Ok(())
            }
            Item::Data { inode, file_block, bytes } => {
                let blocks = Blocks { start: *file_block, count: (bytes.len() / BLOCK_SIZE) as u64 };
                self.punch(*inode, blocks)?;
                self.fill(*inode, blocks, Some(bytes), position)
            }
            Item::End(_) => unreachable!("the end is not applied"),
        }
    }

    fn begin(&self, keys: usize, bytes: usize) -> Result<Transaction<'e>> {
        self.engine.store.begin(Cost::new(1 + keys, UNFINISHED_BYTES_MAX + bytes))
    }

    /// Commits what stands before a position.
    fn commit(
        &mut self,
        mut transaction: Transaction<'_>,
        position: Position,
        depends: Depends,
    ) -> Result<()> {
        let moved = Unfinished { position, ..self.unfinished.clone() };
        transaction.put(Key::RECEIVING, &moved.encode());
        transaction.commit(depends)?;
        self.unfinished = moved;
        Ok(())
    }

    /// Takes away all that an inode has.
    fn remove(&self, inode: InodeNo) -> Result<()> {
        self.punch(inode, Blocks { start: 0, count: quire_format::extent::FILE_BLOCKS_MAX })?;
        loop {
            let mut keys = Vec::new();
            self.engine.store.tree.scan(Key::inode(inode), Key::extent(inode, u64::MAX), &mut |key, _| {
                keys.push(key);
                if keys.len() < KEYS_PER_TRANSACTION {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
            if keys.is_empty() {
                return Ok(());
            }
            let mut transaction = self.engine.store.begin(Cost::new(keys.len(), 0))?;
            keys.into_iter().for_each(|key| transaction.delete(key));
            transaction.commit(Depends::Nothing)?;
        }
    }

    /// Takes blocks from a file.
    fn punch(&self, inode: InodeNo, blocks: Blocks) -> Result<()> {
        loop {
            let removed = self.extents(inode, blocks)?;
            if removed.is_empty() {
                return Ok(());
            }
            let left = carve(&removed, blocks.start, blocks.end());
            let cost = Cost::new(0, 0).with_extents(removed.len() + left.len());
            let mut transaction = self.engine.store.begin(cost)?;
            transaction.extents(inode, removed, left);
            transaction.commit(Depends::Nothing)?;
        }
    }

    /// The first extents that a file has in a range, whole, as many as one transaction changes.
    fn extents(&self, inode: InodeNo, blocks: Blocks) -> Result<Vec<Extent>> {
        let tree = &self.engine.store.tree;
        let mut found = Vec::new();
        let first = Key::extent(inode, blocks.start);
        if let Some((key, value)) = tree.last_at_or_before(first, Key::extent(inode, 0))? {
            found.push(Extent::decode(key.offset, &value)?);
            found.retain(|extent| extent.file_end() > blocks.start);
        }
        let mut outcome = Ok(());
        let (from, to) = (Key::extent(inode, blocks.start + 1), Key::extent(inode, blocks.end() - 1));
        tree.scan(from, to, &mut |key, value| {
            match Extent::decode(key.offset, value) {
                Ok(extent) => found.push(extent),
                Err(error) => outcome = Err(error),
            }
            let more = outcome.is_ok() && found.len() < EXTENTS_PER_TRANSACTION;
            if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        outcome.map(|()| found)
    }

    /// Gives blocks that a file does not have fresh homes, with this content or unwritten. The position moves
    /// with the last of them.
    fn fill(
        &mut self,
        inode: InodeNo,
        blocks: Blocks,
        bytes: Option<&[u8]>,
        position: Position,
    ) -> Result<()> {
        let engine = self.engine;
        let goal = self.goal.unwrap_or_else(|| engine.store.alloc.goal_for_inode(inode));
        let allocate = || engine.store.alloc.allocate(Funding::Unreserved, goal, blocks.count, blocks.count);
        let runs = match allocate() {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                engine.store.force_frees()?;
                allocate()?
            }
            other => other?,
        };
        self.goal = runs.last().map(|run| run.end());
        let filled = self.fill_runs(inode, blocks, &runs, bytes, position);
        if let Err(given) = filled {
            let (error, rest) = given;
            return engine.store.alloc.cancel(&rest).and(Err(error));
        }
        Ok(())
    }

    /// Writes and commits; an error comes with the runs that no record names.
    fn fill_runs(
        &mut self,
        inode: InodeNo,
        blocks: Blocks,
        runs: &[Run],
        bytes: Option<&[u8]>,
        position: Position,
    ) -> std::result::Result<(), (Error, Vec<Run>)> {
        let (engine, birth) = (self.engine, self.engine.store.snapshots.epoch());
        let mut at = blocks.start;
        for (number, some) in runs.chunks(EXTENTS_PER_TRANSACTION).enumerate() {
            let rest = || runs[number * EXTENTS_PER_TRANSACTION..].to_vec();
            let mut extents = Vec::new();
            for run in some {
                if let Some(bytes) = bytes {
                    let from = (at - blocks.start) as usize * BLOCK_SIZE;
                    let content = &bytes[from..from + run.blocks as usize * BLOCK_SIZE];
                    AlignedBuf::try_copy_of(content)
                        .and_then(|content| engine.store.device.write(IoClass::Data, run.start, &content))
                        .map_err(|error| (error, rest()))?;
                }
                extents.extend(extents_of_run(at, *run, bytes.is_none(), birth));
                at += run.blocks;
            }
            let cost = Cost::new(1, UNFINISHED_BYTES_MAX).with_extents(extents.len());
            let mut transaction = engine.store.begin(cost).map_err(|error| (error, rest()))?;
            transaction.extents(inode, Vec::new(), extents);
            let reached = if at == blocks.end() { position } else { self.unfinished.position };
            self.commit(transaction, reached, Depends::Written(engine.store.device.mark()))
                .map_err(|error| (error, rest()))?;
        }
        Ok(())
    }
}
