//! Blocks whose newest content is a record of the journal, not yet (or only just) at home.
//!
//! Protocol
//! 1. [`RecordedBlocks::record`]: a journal record with the block's content has its `Seq`; whatever orders
//!    the block's contents (its segment, its writeback bit) is held. A later version takes the place of an
//!    earlier one.
//! 2. Reads of class Data see the recorded content: [`crate::Device`] takes it from here, and asks the medium
//!    for the blocks that are not recorded. What the medium has of the others may be unreadable. The versions
//!    are picked before the read is submitted, so a home that is written meanwhile takes nothing away.
//! 3. [`RecordedBlocks::write_home`] writes the newest versions home, a bounded batch at a time. It makes the
//!    records of a batch durable before it writes the batch: a torn home is always repaired by replay. One
//!    batch is under way at a time, so no block has two writes of homes in flight.
//! 4. A block at home stays known until the journal's tail has passed its record
//!    ([`RecordedBlocks::passed`]): until then a replay would put the record's content back, so the block may
//!    only be written through the journal ([`RecordedBlocks::covers`]).
//! 5. [`RecordedBlocks::forget`]: the block was freed, or reads as zeros from now on; replay drops its
//!    versions as well. Before anybody else gets the block, [`RecordedBlocks::await_batch`] waits for a batch
//!    that may still have it.
//!
//!    A checkpoint whose S lies before that record makes it durable before it publishes: else a crash could
//!    lose the record, and the content with it.
//!
//! A block that cannot be written stays as it is: reads see its content, and its record stays needed. All
//! others go home. The next thread that writes homes tries it again ([`RecordedBlocks::is_stuck`]).
//!
//! Invariants: of each block the newest version is kept, and no other. A checkpoint publishes only when no
//! record up to its S is without a home ([`RecordedBlocks::write_home`] with that S returned).
//!
//! Shared cache lines: `pending` and `known` are read by every data read and writeback; both are zero, and
//! never written, on a volume that journals no data. Versions lie in shards of 2 MiB of the device.
//!
//! Neighbours: the volume records, in live operation and in replay; [`crate::device`] reads.

use crate::aligned::AlignedBuf;
use crate::backend::{Done, Io, IoClass, Segment};
use crate::device::Device;
use quire_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_base::sync::{Arc, Condvar, Mutex};
use quire_base::{BLOCK_SIZE, BlockNo, Error, Result, Seq};
use std::collections::BTreeMap;
use std::ops::Range;

/// Shards, by 512 blocks of the device.
const SHARDS: usize = 64;
const SHARD_BLOCKS: u64 = 512;
/// Blocks that one batch of homes has at most.
const BATCH_BLOCKS: usize = 128;

/// Why homes could not be written.
#[derive(Debug)]
pub enum HomesError {
    /// Their records could not be made durable.
    Journal(Error),
    /// The device refused some. Their content stays where it is, and what could be written is at home.
    Device(Error),
}

impl HomesError {
    /// The error, without the difference.
    pub fn into_inner(self) -> Error {
        let (HomesError::Journal(error) | HomesError::Device(error)) = self;
        error
    }
}

/// A block's content within the bytes of its record.
#[derive(Clone)]
struct Content {
    bytes: Arc<[u8]>,
    at: usize,
}

impl Content {
    fn block(&self) -> &[u8] {
        &self.bytes[self.at..self.at + BLOCK_SIZE]
    }
}

struct Version {
    /// The record's.
    seq: Seq,
    /// No record of the block before this position waits for its home.
    waits_since: Seq,
    /// None once it is at home.
    content: Option<Content>,
}

/// See the module's documentation.
pub struct RecordedBlocks {
    /// Blocks that are not at home.
    pending: AtomicU64,
    /// Blocks with a version, at home or not.
    known: AtomicU64,
    /// The last record that made content void which was not at home.
    forgotten: AtomicU64,
    /// The last attempt to write homes left some undone.
    stuck: AtomicBool,
    shards: Box<[Mutex<BTreeMap<u64, Version>>]>,
    batch: Mutex<Batch>,
    batch_ended: Condvar,
    /// As in `batch`, to see it without the lock.
    is_writing: AtomicBool,
}

#[derive(Default)]
struct Batch {
    is_under_way: bool,
    /// Batches that have begun.
    number: u64,
}

impl Default for RecordedBlocks {
    fn default() -> RecordedBlocks {
        RecordedBlocks {
            pending: AtomicU64::new(0),
            known: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            stuck: AtomicBool::new(false),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            batch: Mutex::default(),
            batch_ended: Condvar::new(),
            is_writing: AtomicBool::new(false),
        }
    }
}

/// Parts of a run of blocks, each within a shard: first block and end.
fn parts(start: BlockNo, blocks: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = start.0.saturating_add(blocks);
    let mut at = start.0;
    std::iter::from_fn(move || {
        let part = (at, end.min((at / SHARD_BLOCKS + 1) * SHARD_BLOCKS));
        at = part.1;
        (part.0 < part.1).then_some(part)
    })
}

impl RecordedBlocks {
    fn shard(&self, block: u64) -> &Mutex<BTreeMap<u64, Version>> {
        &self.shards[(block / SHARD_BLOCKS) as usize % SHARDS]
    }

    /// Takes the content of whole blocks from `start` on, which the record that ends at `seq` carries.
    pub fn record(&self, seq: Seq, start: BlockNo, bytes: &Arc<[u8]>) {
        debug_assert!(bytes.len().is_multiple_of(BLOCK_SIZE));
        for (first, end) in parts(start, (bytes.len() / BLOCK_SIZE) as u64) {
            let mut versions = self.shard(first).lock();
            for block in first..end {
                let at = (block - start.0) as usize * BLOCK_SIZE;
                let content = Some(Content { bytes: bytes.clone(), at });
                let mut version = Version { seq, waits_since: seq, content };
                match versions.get_mut(&block) {
                    Some(before) => {
                        if before.content.is_some() {
                            version.waits_since = before.waits_since;
                        } else {
                            self.pending.fetch_add(1, Ordering::AcqRel);
                        }
                        *before = version;
                    }
                    None => {
                        self.known.fetch_add(1, Ordering::AcqRel);
                        self.pending.fetch_add(1, Ordering::AcqRel);
                        versions.insert(block, version);
                    }
                }
            }
        }
    }

    /// Drops the versions of a run of blocks: by the record that ends at `seq` they hold nothing any more.
    pub fn forget(&self, seq: Seq, start: BlockNo, blocks: u64) {
        if self.is_empty() {
            return;
        }
        for (first, end) in parts(start, blocks) {
            let mut versions = self.shard(first).lock();
            let gone: Vec<u64> = versions.range(first..end).map(|(block, _)| *block).collect();
            for block in gone {
                let version = versions.remove(&block).expect("it was there");
                if version.content.is_some() {
                    // With the shard locked, and before the counts fall: a thread that does not find the
                    // version any more, or none at all, sees this.
                    self.forgotten.fetch_max(seq.0, Ordering::AcqRel);
                    self.pending.fetch_sub(1, Ordering::AcqRel);
                }
                self.known.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Whether no block has a version.
    pub fn is_empty(&self) -> bool {
        self.known.load(Ordering::Acquire) == 0
    }

    /// Whether any of these blocks has a version that a replay would put back.
    pub fn covers(&self, start: BlockNo, blocks: u64) -> bool {
        !self.is_empty()
            && parts(start, blocks)
                .any(|(first, end)| self.shard(first).lock().range(first..end).next().is_some())
    }

    /// Whether the first of these blocks has such a version, and how many from it on are alike.
    pub fn covers_first(&self, start: BlockNo, blocks: u64) -> (bool, u64) {
        if self.is_empty() || blocks == 0 {
            return (false, blocks);
        }
        let covered = self.shard(start.0).lock().contains_key(&start.0);
        let mut at = start.0;
        for (first, end) in parts(start, blocks) {
            let versions = self.shard(first).lock();
            let mut known = versions.range(first..end).map(|(block, _)| *block);
            if !covered {
                match known.next() {
                    Some(block) => return (false, block - start.0),
                    None => continue,
                }
            }
            while at < end {
                if known.next() != Some(at) {
                    return (true, at - start.0);
                }
                at += 1;
            }
        }
        (covered, blocks)
    }

    /// Whether the device has the newest content of these blocks: none of them waits to be written home.
    pub fn is_at_home(&self, start: BlockNo, blocks: u64) -> bool {
        self.pending.load(Ordering::Acquire) == 0
            || parts(start, blocks).all(|(first, end)| {
                self.shard(first).lock().range(first..end).all(|(_, version)| version.content.is_none())
            })
    }

    /// Bytes that wait to be written home.
    pub fn pending_bytes(&self) -> u64 {
        self.pending.load(Ordering::Acquire) * BLOCK_SIZE as u64
    }

    /// Whether content waits for its home that the device refused when it was last written.
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Acquire)
    }

    /// The versions that a read of these blocks has to see, as it would be now.
    pub(crate) fn overlay(&self, start: BlockNo, blocks: u64) -> Overlay {
        let mut contents = Vec::new();
        if self.pending.load(Ordering::Acquire) > 0 {
            for (first, end) in parts(start, blocks) {
                let versions = self.shard(first).lock();
                contents.extend(versions.range(first..end).filter_map(|(block, version)| {
                    Some(((block - start.0) as usize * BLOCK_SIZE, version.content.clone()?))
                }));
            }
        }
        Overlay { contents }
    }

    /// Writes all versions home that records up to `upto` made necessary, without a flush. `force` makes the
    /// journal durable up to a position. A version that was forgotten before it was at home needs none if the
    /// record that made it void is durable; that is seen to as well.
    ///
    /// Errors: [`HomesError::Journal`] from `force`; else the first error of the device, once all that can be
    /// written is written.
    pub fn write_home(
        &self,
        device: &Device,
        upto: Seq,
        force: &mut dyn FnMut(Seq) -> Result<()>,
    ) -> Result<(), HomesError> {
        if self.is_empty() && self.forgotten.load(Ordering::Acquire) == 0 {
            self.stuck.store(false, Ordering::Release);
            return Ok(());
        }
        let (mut blocks, mut is_all) = (Vec::new(), true);
        for shard in &self.shards[..] {
            let versions = shard.lock();
            for (block, version) in versions.iter().filter(|(_, version)| version.content.is_some()) {
                if version.waits_since <= upto {
                    blocks.push(*block);
                } else {
                    is_all = false;
                }
            }
        }
        blocks.sort_unstable();
        let mut refused = None;
        for batch in blocks.chunks(BATCH_BLOCKS) {
            self.write_what_goes(device, batch, force, &mut refused)?;
        }
        // What was not tried may be what was refused before.
        if refused.is_some() || is_all {
            self.stuck.store(refused.is_some(), Ordering::Release);
        }
        if let Some(error) = refused {
            return Err(HomesError::Device(error));
        }
        match self.forgotten.load(Ordering::Acquire) {
            0 => Ok(()),
            forgotten => force(Seq(forgotten)).map_err(HomesError::Journal),
        }
    }

    /// Writes these blocks home but for those that the device refuses, of which it keeps the first error.
    fn write_what_goes(
        &self,
        device: &Device,
        blocks: &[u64],
        force: &mut dyn FnMut(Seq) -> Result<()>,
        refused: &mut Option<Error>,
    ) -> Result<(), HomesError> {
        match self.write_batch(device, blocks, force) {
            Err(HomesError::Device(error)) => {
                let (first, second) = blocks.split_at(blocks.len() / 2);
                if first.is_empty() {
                    let error = error.context(format!("writing block {} from the journal home", blocks[0]));
                    refused.get_or_insert(error);
                    return Ok(());
                }
                self.write_what_goes(device, first, force, refused)?;
                self.write_what_goes(device, second, force, refused)
            }
            other => other,
        }
    }

    /// Writes the newest versions of these blocks home.
    fn write_batch(
        &self,
        device: &Device,
        blocks: &[u64],
        force: &mut dyn FnMut(Seq) -> Result<()>,
    ) -> Result<(), HomesError> {
        let _batch = self.begin_batch();
        let versions: Vec<(u64, Seq, Content)> = blocks
            .iter()
            .filter_map(|block| {
                let versions = self.shard(*block).lock();
                let version = versions.get(block)?;
                Some((*block, version.seq, version.content.clone()?))
            })
            .collect();
        let Some(newest) = versions.iter().map(|(_, seq, _)| *seq).max() else { return Ok(()) };
        force(newest).map_err(HomesError::Journal)?;
        let buffer = AlignedBuf::try_zeroed(versions.len() * BLOCK_SIZE);
        let mut buffer = buffer.map_err(HomesError::Device)?;
        for (page, (_, _, content)) in buffer.chunks_exact_mut(BLOCK_SIZE).zip(&versions) {
            page.copy_from_slice(content.block());
        }
        let pages = buffer.chunks_exact(BLOCK_SIZE);
        let items: Vec<(BlockNo, &[u8])> =
            versions.iter().zip(pages).map(|((block, ..), page)| (BlockNo(*block), page)).collect();
        device.write_batch(IoClass::Data, &items).map_err(HomesError::Device)?;
        for (block, seq, _) in &versions {
            // One that was recorded meanwhile waits for the next batch.
            if let Some(version) = self.shard(*block).lock().get_mut(block) {
                if version.seq == *seq {
                    version.content = None;
                    self.pending.fetch_sub(1, Ordering::AcqRel);
                } else {
                    // Several may have been: all are newer than what is at home.
                    version.waits_since = Seq(seq.0 + 1);
                }
            }
        }
        Ok(())
    }

    fn begin_batch(&self) -> UnderWay<'_> {
        let mut batch = self.batch.lock();
        while batch.is_under_way {
            self.batch_ended.wait(&mut batch);
        }
        batch.is_under_way = true;
        batch.number += 1;
        // Before any version is looked at: a thread that has forgotten one since then sees it.
        self.is_writing.store(true, Ordering::SeqCst);
        UnderWay(self)
    }

    /// Waits for the batch of homes that is being written now, if there is one: what it writes may be blocks
    /// that were forgotten since it began.
    pub fn await_batch(&self) {
        if !self.is_writing.load(Ordering::SeqCst) {
            return;
        }
        let mut batch = self.batch.lock();
        let number = batch.number;
        while batch.is_under_way && batch.number == number {
            self.batch_ended.wait(&mut batch);
        }
    }

    /// Forgets everything: a replay starts from elsewhere.
    pub fn clear(&self) {
        for shard in &self.shards[..] {
            shard.lock().clear();
        }
        self.known.store(0, Ordering::Release);
        self.forgotten.store(0, Ordering::Release);
        self.pending.store(0, Ordering::Release);
    }

    /// The journal is needed from `tail` on only: blocks at home whose record lies before it may be written
    /// in any way again.
    pub fn passed(&self, tail: Seq) {
        if self.is_empty() {
            return;
        }
        for shard in &self.shards[..] {
            shard.lock().retain(|_, version| {
                let stays = version.content.is_some() || version.seq > tail;
                if !stays {
                    self.known.fetch_sub(1, Ordering::AcqRel);
                }
                stays
            });
        }
    }
}

/// A batch of homes is being written while it lives.
struct UnderWay<'a>(&'a RecordedBlocks);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut batch = self.0.batch.lock();
        batch.is_under_way = false;
        self.0.is_writing.store(false, Ordering::SeqCst);
        drop(batch);
        self.0.batch_ended.notify_all();
    }
}

/// Recorded versions for a read, by offset in its bytes, which ascends.
#[derive(Default)]
pub(crate) struct Overlay {
    contents: Vec<(usize, Content)>,
}

impl Overlay {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.contents.is_empty()
    }

    /// Where a read of so many bytes finds nothing here.
    pub(crate) fn gaps(&self, bytes: u64) -> Vec<Range<usize>> {
        let (mut gaps, mut start) = (Vec::new(), 0);
        for at in self.contents.iter().map(|(at, _)| *at).chain([bytes as usize]) {
            if start < at {
                gaps.push(start..at);
            }
            start = at + BLOCK_SIZE;
        }
        gaps
    }

    /// Puts them where a read of these segments wants them.
    pub(crate) fn apply(&self, segments: &[Segment]) {
        for (at, content) in &self.contents {
            // SAFETY: the memory is to be filled by this read (`Segment::new`).
            unsafe { copy_into(segments, *at, content.block()) };
        }
    }

    /// Puts them into the memory of a read, and gives the reads of the gaps. The request's `done` runs behind
    /// the last of these, with the first error; at once if there are none.
    pub(crate) fn read_the_rest(&self, io: Io) -> Vec<Io> {
        self.apply(&io.segments);
        let gaps = self.gaps(io.bytes());
        if gaps.is_empty() {
            (io.done)(Ok(()));
            return Vec::new();
        }
        let joined = Joined { left: gaps.len(), outcome: Ok(()), done: Some(io.done) };
        let joined = Arc::new(Mutex::new(joined));
        let part = |gap: &Range<usize>| {
            let joined = joined.clone();
            Io {
                op: io.op,
                at: io.at.offset((gap.start / BLOCK_SIZE) as u64),
                segments: part_of(&io.segments, gap),
                done: Box::new(move |outcome| {
                    let last = joined.lock().part_ended(outcome);
                    if let Some((done, outcome)) = last {
                        done(outcome);
                    }
                }),
            }
        };
        gaps.iter().map(part).collect()
    }
}

/// A request in parts.
struct Joined {
    /// Parts that have not ended.
    left: usize,
    /// The first error of those that have.
    outcome: Result<()>,
    done: Option<Done>,
}

impl Joined {
    /// Takes the outcome of a part; behind the last one gives what is to run, and with what.
    fn part_ended(&mut self, outcome: Result<()>) -> Option<(Done, Result<()>)> {
        self.left -= 1;
        if self.outcome.is_ok() {
            self.outcome = outcome;
        }
        if self.left > 0 {
            return None;
        }
        Some((self.done.take()?, std::mem::replace(&mut self.outcome, Ok(()))))
    }
}

/// The memory of some of the bytes (whole blocks) that segments make up.
pub(crate) fn part_of(segments: &[Segment], bytes: &Range<usize>) -> Vec<Segment> {
    let (mut part, mut start) = (Vec::new(), 0);
    for segment in segments {
        let end = start + segment.len();
        let (from, to) = (bytes.start.max(start), bytes.end.min(end));
        if from < to {
            // SAFETY: within the segment, and used no longer than it: the maker of the segment has promised
            // the rest until the whole request's `done` has run, which is behind that of the part.
            part.push(unsafe { Segment::new(segment.ptr().add(from - start), to - from) });
        }
        start = end;
    }
    part
}

/// Copies a block to byte `at` of the memory that segments (of whole blocks) make up.
///
/// # Safety
/// The memory is the caller's to write.
unsafe fn copy_into(segments: &[Segment], at: usize, block: &[u8]) {
    let mut start = 0;
    for segment in segments {
        if at < start + segment.len() {
            // SAFETY: the block lies within the segment, which is of whole blocks.
            unsafe { segment.ptr().add(at - start).copy_from_nonoverlapping(block.as_ptr(), block.len()) };
            return;
        }
        start += segment.len();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn runs_that_are_alike_end_where_records_do() {
        let recorded = RecordedBlocks::default();
        assert_eq!(recorded.covers_first(BlockNo(500), 30), (false, 30));
        // Over the border between two shards.
        recorded.record(Seq(1), BlockNo(510), &vec![1; 5 * BLOCK_SIZE].into());
        let alike = |start, blocks| recorded.covers_first(BlockNo(start), blocks);
        assert_eq!([alike(500, 30), alike(500, 10)], [(false, 10), (false, 10)]);
        assert_eq!([alike(510, 30), alike(512, 3), alike(513, 1)], [(true, 5), (true, 3), (true, 1)]);
        assert_eq!([alike(515, 600), alike(514, 2)], [(false, 600), (true, 1)]);
    }

    /// While a batch waited for the journal, its block was recorded twice more. Behind the batch the block
    /// waited since the second of them only: a checkpoint up to the first found nothing to write home, and a
    /// crash that lost the second showed what the batch had written.
    #[test]
    fn all_that_was_recorded_beside_a_batch_waits() {
        const AT: BlockNo = BlockNo(3);
        let medium = Arc::new(crate::memory::MemoryBackend::new(8));
        let device = Device::new(medium.clone());
        let recorded = device.recorded();
        let record = |version: u8| {
            recorded.record(Seq(version.into()), AT, &vec![version; BLOCK_SIZE].into());
        };
        let at_home = || {
            let mut block = vec![0; BLOCK_SIZE];
            crate::backend::Backend::read(&*medium, IoClass::Data, AT, &mut block).unwrap();
            block[0]
        };
        record(1);
        let mut beside = |_| {
            record(2);
            record(3);
            Ok(())
        };
        recorded.write_home(&device, Seq(1), &mut beside).unwrap();
        assert_eq!(at_home(), 1);
        recorded.write_home(&device, Seq(2), &mut |_| Ok(())).unwrap();
        assert!(at_home() >= 2, "the record behind the batch has no home");
    }

    /// A block that the device had refused was recorded again, and the attempt that followed did not reach
    /// that record: nobody tried the block any more, and small writes went on as if there were no error.
    #[test]
    fn what_was_refused_stays_stuck_until_it_is_tried() {
        let device = Device::new(Arc::new(crate::memory::MemoryBackend::new(8)));
        let recorded = device.recorded();
        recorded.record(Seq(5), BlockNo(3), &vec![5; BLOCK_SIZE].into());
        recorded.stuck.store(true, Ordering::Release);
        recorded.write_home(&device, Seq(4), &mut |_| Ok(())).unwrap();
        assert!(recorded.is_stuck());
        recorded.write_home(&device, Seq(5), &mut |_| Ok(())).unwrap();
        assert!(!recorded.is_stuck());
    }
}
