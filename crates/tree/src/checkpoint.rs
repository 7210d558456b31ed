//! Checkpoints: freezing an epoch, writing it beside live changes, letting old blocks go.
//!
//! Protocol:
//! 1. [`Tree::freeze`], while nobody changes the tree: the epoch moves on, the roots and the nodes that the
//!    epoch removed are remembered. What is dirty in the frozen epoch is from now on saved before it changes.
//! 2. [`Tree::write_frozen`]: from the frozen roots down the dirty nodes, children first; each is written to
//!    a fresh place (both copies of it in one batch) with its children's new references. Then changed orphan
//!    blocks, then the pool's map and manifest. All I/O has completed when it returns; nothing is flushed.
//! 3. The caller flushes, writes a superblock that names the image, flushes, and says so:
//!    [`Tree::published`].
//!
//! An image that is not published yet may give way to one of the next epoch, under the same number, where
//! [`Tree::may_replace_unpublished`] says so: what either of them frees is needed until the checkpoint after
//! them is published.
//!
//! Invariants: a frozen epoch is written before the next freeze. Blocks that a checkpoint frees are handed
//! out only when both superblock slots have moved beyond the checkpoint that needs them. Memory beside the
//! saved nodes is bounded: the buffers of a few batches, which are written while the next one is filled.
//! After an error the tree takes no more checkpoints.
//!
//! Neighbours: `node` saves contents, `pool` hands out blocks, `manifest` encodes the map.

use crate::manifest::{self, Manifest};
use crate::node::{FrozenChild, Image, Node};
use crate::pin::pin;
use crate::tree::Tree;
use quire_base::sync::atomic::Ordering;
use quire_base::sync::time::{Duration, Instant};
use quire_base::sync::{Arc, thread};
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result};
use quire_device::{AlignedBuf, IoClass, StartedBatch};
use quire_format::node::{NodeIdentity, NodePage, NodeRef, Roots, TREES};
use quire_format::place::Place;
use quire_format::pool::{ManifestRef, OrphanRef, PageStamp};
use std::collections::VecDeque;

/// An orphan block's number and bytes.
pub type OrphanBlock = (u32, Box<[u8; BLOCK_SIZE]>);

/// A frozen epoch, to be given to [`Tree::write_frozen`].
#[must_use]
pub struct Frozen {
    epoch: u64,
    roots: [Arc<Node>; TREES],
    removed: Vec<Arc<Node>>,
    orphan_blocks: Vec<OrphanBlock>,
    /// Nodes of the frozen tree.
    nodes: u64,
    /// Nodes of its dirty set.
    dirty: u64,
}

/// What a superblock must name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointImage {
    /// The trees.
    pub roots: Roots,
    /// The pool's manifest.
    pub manifest: ManifestRef,
    /// Nodes written for it.
    pub nodes_written: u64,
    /// Blocks written for it, nodes and second copies included.
    pub blocks_written: u64,
}

/// What a checkpoint writes into every block: its number (higher than that of any published one), and the
/// life that the volume is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointStamp {
    /// The checkpoint's number.
    pub checkpoint: u64,
    /// The volume's incarnation.
    pub incarnation: u64,
}

/// What is known of checkpoints.
#[derive(Default)]
pub(crate) struct Versions {
    failure: Option<Error>,
    written: VecDeque<Written>,
}

/// An image that is written and not yet published.
struct Written {
    checkpoint: u64,
    /// Nodes of its tree.
    nodes: u64,
    /// Nodes of its dirty set, and places of what else it wrote.
    dirty: u64,
}

/// Blocks that are written at once.
const BATCH_BLOCKS: usize = 32;
/// Batches that are being written while another one is filled.
const BATCHES_STARTED_MAX: usize = 3;
/// What a gentle checkpoint leaves the device for others, in times of what it takes, and at most at once: it
/// sees only then that somebody waits for it.
const REST: u32 = 3;
const REST_MAX: Duration = Duration::from_millis(5);

impl Tree {
    /// Ends the epoch. The caller sees to it that no change of the tree runs, and that the epoch before is
    /// written. The changed orphan blocks belong to the same moment.
    pub fn freeze(&self, orphan_blocks: Vec<OrphanBlock>) -> Frozen {
        let roots = [0, 1].map(|at: usize| self.roots[at].node.read(&pin()).clone());
        let epoch = self.live_epoch();
        let removed = std::mem::take(&mut *self.removed.lock());
        let dirty = self.accounting.dirty();
        let nodes = self.accounting.freeze();
        self.epoch.store(epoch + 1, Ordering::Release);
        Frozen { epoch, roots, removed, orphan_blocks, nodes, dirty }
    }

    /// Whether the next image may have the number of those that are written and not yet published: whether
    /// all their dirty sets together are no more than one may be.
    pub fn may_replace_unpublished(&self) -> bool {
        let written: u64 = self.versions.lock().written.iter().map(|image| image.dirty).sum();
        let accounting = &self.accounting;
        written + accounting.dirty() + accounting.held() <= accounting.dirty_max()
    }

    /// Writes a frozen epoch as a checkpoint. Live changes go on. Where nothing has changed, the image is
    /// that of the checkpoint before.
    ///
    /// Errors: of writing; `NoSpace` where the pool is too small, which reservations prevent. After an error
    /// all further checkpoints fail with it.
    pub fn write_frozen(&self, frozen: Frozen, stamp: CheckpointStamp) -> Result<CheckpointImage> {
        self.write_frozen_gently(frozen, stamp, &|| false)
    }

    /// As [`Tree::write_frozen`]; while `may_rest` says so, one batch at a time is written, with pauses. A
    /// flush takes what was written before it along: so others' flushes have a batch to wait for, and not
    /// the checkpoint.
    pub fn write_frozen_gently(
        &self,
        frozen: Frozen,
        stamp: CheckpointStamp,
        may_rest: &dyn Fn() -> bool,
    ) -> Result<CheckpointImage> {
        let checkpoint = stamp.checkpoint;
        if let Some(error) = &self.versions.lock().failure {
            return Err(error.clone());
        }
        let (nodes, dirty) = (frozen.nodes, frozen.dirty);
        match self.write_image(frozen, stamp, may_rest) {
            Ok(image) => {
                let others = image.blocks_written / self.accounting.copies() - image.nodes_written;
                self.versions.lock().written.push_back(Written { checkpoint, nodes, dirty: dirty + others });
                self.evict_after_checkpoint();
                Ok(image)
            }
            Err(error) => {
                let error = error.context(format!("writing checkpoint {checkpoint}"));
                self.versions.lock().failure.get_or_insert(error.clone());
                Err(error)
            }
        }
    }

    /// A superblock that names checkpoint `checkpoint` is durable; the other slot may still name the one
    /// before it. What that one had freed can be used again.
    pub fn published(&self, checkpoint: u64) {
        self.release(checkpoint.saturating_sub(1));
        let mut versions = self.versions.lock();
        while versions.written.front().is_some_and(|image| image.checkpoint <= checkpoint) {
            if let Some(image) = versions.written.pop_front() {
                self.accounting.published(image.nodes);
            }
        }
    }

    /// Both slots durably name checkpoint `checkpoint`: only what it needs is needed.
    pub fn both_slots(&self, checkpoint: u64) {
        self.published(checkpoint);
        self.release(checkpoint);
    }

    /// Blocks that checkpoints up to this one freed can be used again.
    fn release(&self, checkpoint: u64) {
        let mut pool = self.pool.lock();
        pool.release(checkpoint);
        self.accounting.set_pool(pool.room(), pool.overhead());
    }

    fn write_image(
        &self,
        frozen: Frozen,
        stamp: CheckpointStamp,
        may_rest: &dyn Fn() -> bool,
    ) -> Result<CheckpointImage> {
        let epoch = frozen.epoch;
        if self.written.load(Ordering::Acquire) + 1 != epoch {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("epoch {epoch} cannot be written: the one before it was not"),
            ));
        }
        let mut writer = Writer::new(self, epoch, stamp, may_rest);
        let roots = [writer.node(&frozen.roots[0])?, writer.node(&frozen.roots[1])?];
        let mut orphans = Vec::with_capacity(frozen.orphan_blocks.len());
        for (index, bytes) in &frozen.orphan_blocks {
            let place = writer.place()?;
            writer.write(place, |out| out.copy_from_slice(&bytes[..]))?;
            let Place { block, twin } = place;
            orphans.push(OrphanRef { index: *index, crc: crc32c::crc32c(&bytes[..]), block, twin });
        }
        let removed = frozen.removed.iter().filter_map(|node| node.disk());
        writer.freed.extend(removed.flat_map(|at| at.place().copies()));
        let manifest = self.write_manifest(&mut writer, orphans)?;
        writer.finish()?;

        let nodes_written = writer.nodes.len() as u64;
        for (node, at) in writer.nodes.drain(..) {
            node.set_disk(at);
        }
        self.written.store(epoch, Ordering::Release);
        self.counters.nodes_written.add(nodes_written);
        self.counters.blocks_written.add(writer.blocks_written);
        Ok(CheckpointImage { roots, manifest, nodes_written, blocks_written: writer.blocks_written })
    }

    /// Gives the old blocks back, and describes what is left; or finds that the old description still holds.
    fn write_manifest(&self, writer: &mut Writer<'_>, orphans: Vec<OrphanRef>) -> Result<ManifestRef> {
        let (chunks, orphans, places) = {
            let mut pool = self.pool.lock();
            pool.give_back(std::mem::take(&mut writer.allocated).into_iter().flat_map(Place::copies));
            let unchanged = writer.nodes.is_empty()
                && writer.freed.is_empty()
                && orphans.is_empty()
                && !pool.changed_in(writer.epoch);
            if unchanged && let Some(manifest) = &pool.manifest {
                return Ok(manifest.at);
            }
            let mut freed = std::mem::take(&mut writer.freed);
            let old = pool.manifest.take().into_iter().flat_map(|manifest| manifest.pages);
            freed.extend(old.flat_map(Place::copies));
            for orphan in orphans {
                match pool.orphans.binary_search_by_key(&orphan.index, |old| old.index) {
                    Ok(at) => {
                        freed.extend(std::mem::replace(&mut pool.orphans[at], orphan).place().copies());
                    }
                    Err(at) => pool.orphans.insert(at, orphan),
                }
            }
            pool.free(freed, writer.stamp.checkpoint)?;
            pool.forget_removed(writer.epoch);
            let pages = manifest::page_count(pool.entries(writer.epoch).len(), pool.orphans.len());
            let places = pool.allocate(pages, writer.epoch)?;
            self.accounting.set_pool(pool.room(), pool.overhead());
            self.accounting.frozen_is_counted();
            // After the allocation: the map names its own pages.
            (pool.entries(writer.epoch), pool.orphans.clone(), places)
        };
        let CheckpointStamp { checkpoint: generation, incarnation } = writer.stamp;
        let stamp = PageStamp { generation, incarnation };
        let write = |place, encode: &dyn Fn(&mut [u8]) -> u32| writer.write(place, encode);
        let manifest: Manifest = manifest::encode(chunks, &orphans, places, self.volume, stamp, write)?;
        let at = manifest.at;
        self.pool.lock().manifest = Some(manifest);
        Ok(at)
    }
}

/// Writes one checkpoint.
struct Writer<'t> {
    tree: &'t Tree,
    epoch: u64,
    stamp: CheckpointStamp,
    may_rest: &'t dyn Fn() -> bool,
    /// Places taken from the pool and not yet used.
    allocated: VecDeque<Place>,
    batch: AlignedBuf,
    batch_places: Vec<Place>,
    /// Batches that are being written, the oldest first.
    started: VecDeque<StartedBatch>,
    /// Nodes with their new references, which become theirs when everything is written.
    nodes: Vec<(Arc<Node>, NodeRef)>,
    /// Where they were, and other blocks that the checkpoint does not need any more.
    freed: Vec<BlockNo>,
    blocks_written: u64,
}

impl<'t> Writer<'t> {
    fn new(tree: &'t Tree, epoch: u64, stamp: CheckpointStamp, may_rest: &'t dyn Fn() -> bool) -> Writer<'t> {
        Writer {
            tree,
            epoch,
            stamp,
            may_rest,
            allocated: VecDeque::new(),
            batch: AlignedBuf::zeroed(0),
            batch_places: Vec::new(),
            started: VecDeque::new(),
            nodes: Vec::new(),
            freed: Vec::new(),
            blocks_written: 0,
        }
    }

    /// Writes a node if it is dirty, its dirty children first. As deep as the tree is high.
    fn node(&mut self, node: &Arc<Node>) -> Result<NodeRef> {
        if !node.is_dirty_in(self.epoch) {
            return node.disk().ok_or_else(|| Error::corrupt("a clean tree node was never written"));
        }
        let (page, bounds) = match node.take_image(&pin(), self.epoch) {
            Image::Leaf(page, range) => (page, range),
            Image::Inner(entries, range) => {
                let mut page = NodePage::new(node.level);
                for (key, child) in entries {
                    let at = match child {
                        FrozenChild::Dirty(child) => self.node(&child)?,
                        FrozenChild::Written(at) => at,
                    };
                    page.push_child(key, &at);
                }
                (page, range)
            }
        };
        let place = self.place()?;
        let identity = NodeIdentity {
            volume: self.tree.volume,
            generation: self.stamp.checkpoint,
            incarnation: self.stamp.incarnation,
            birth: 0,
            place,
            bounds: bounds.into(),
        };
        let at = self.write(place, |out| page.seal(&identity, out))?;
        self.freed.extend(node.disk().into_iter().flat_map(|old| old.place().copies()));
        self.nodes.push((node.clone(), at));
        Ok(at)
    }

    /// A fresh place.
    fn place(&mut self) -> Result<Place> {
        if self.allocated.is_empty() {
            let mut pool = self.tree.pool.lock();
            // The last few blocks of a small pool come one by one.
            let some = pool.allocate(64, self.epoch).or_else(|_| pool.allocate(1, self.epoch))?;
            self.allocated = some.into();
        }
        Ok(self.allocated.pop_front().expect("places were just taken"))
    }

    /// Fills one block of the batch, and starts to write the batch when it is full.
    fn write<R>(&mut self, place: Place, fill: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        if self.batch.is_empty() {
            self.batch = AlignedBuf::blocks(BATCH_BLOCKS);
        }
        let at = self.batch_places.len() * BLOCK_SIZE;
        let result = fill(&mut self.batch[at..at + BLOCK_SIZE]);
        self.batch_places.push(place);
        if self.batch_places.len() == BATCH_BLOCKS {
            self.start()?;
        }
        Ok(result)
    }

    /// Starts to write the batch, both copies of everything.
    fn start(&mut self) -> Result<()> {
        let next = if self.started.len() < BATCHES_STARTED_MAX {
            AlignedBuf::zeroed(0)
        } else {
            self.started.pop_front().expect("there are some").wait()?
        };
        let full = std::mem::replace(&mut self.batch, next);
        let copies: Vec<(BlockNo, usize)> = self
            .batch_places
            .iter()
            .enumerate()
            .flat_map(|(at, place)| place.copies().map(move |block| (block, at)))
            .collect();
        self.blocks_written += copies.len() as u64;
        // Encoding takes a processor for milliseconds, and those who wait for an fsync need it for moments.
        thread::yield_now();
        let begun = Instant::now();
        self.started.push_back(self.tree.device.start_write_batch(IoClass::Metadata, &copies, full));
        self.batch_places.clear();
        if (self.may_rest)() {
            self.wait()?;
            thread::sleep((REST * begun.elapsed()).min(REST_MAX));
        }
        Ok(())
    }

    /// Writes what is left and waits for everything.
    fn finish(&mut self) -> Result<()> {
        if !self.batch_places.is_empty() {
            self.start()?;
        }
        self.wait()
    }

    fn wait(&mut self) -> Result<()> {
        self.started.drain(..).try_for_each(|batch| batch.wait().map(drop))
    }
}
