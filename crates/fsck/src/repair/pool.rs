//! The pool's map and damaged orphan blocks, written anew.
//!
//! Opening a volume writes a checkpoint to blocks that the pool's map calls free, so a map that misses a
//! block in use must be mended before. The new manifest says what the walk over the checkpoint found; it goes
//! to blocks that neither superblock leads to, and becomes visible with one superblock: that of the
//! checkpoint it describes, under a new number, in the slot of the other. Orphan blocks that do not check are
//! replaced by empty ones; the inodes that they named are found as untracked afterwards.
//!
//! Neighbours: [`crate::checkpoint`] has walked; `format::pool` has the bytes.

use super::slot::publish;
use crate::checkpoint::Checkpoint;
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result};
use quire_device::{AlignedBuf, Backend, IoClass};
use quire_format::extent::Run;
use quire_format::orphan::{self, SLOTS};
use quire_format::place::Place;
use quire_format::pool::{
    BITMAP_WORDS, BODY_BYTES, CHUNK_BYTES, ChunkEntry, ManifestPage, ManifestRef, NextPage, ORPHAN_BYTES,
    OrphanRef, PageIdentity, PageStamp,
};
use std::collections::BTreeSet;

/// Whether a block that is free in the map is to be left alone.
pub(crate) type Avoid<'f> = &'f dyn Fn(BlockNo) -> bool;

/// Writes the manifest of the chosen checkpoint anew, without the blocks in `release`; into none of the
/// blocks to `avoid`.
pub(crate) fn rewrite(
    backend: &dyn Backend,
    checkpoints: &[&Checkpoint],
    chosen: usize,
    release: &[Run],
    avoid: Avoid<'_>,
) -> Result<()> {
    let checkpoint = checkpoints[chosen];
    let superblock = &checkpoint.superblock;
    let number = checkpoints.iter().map(|other| other.superblock.checkpoint).max().unwrap_or(0) + 1;
    let volume = superblock.volume_id();

    let missing: Vec<u32> = (0..superblock.orphan_blocks)
        .filter(|index| !checkpoint.orphans.iter().any(|orphan| orphan.index == *index))
        .collect();
    let orphan_count = checkpoint.orphans.len() + missing.len();
    let chunks = remaining(checkpoint, release);
    let pages = pages(chunks.len(), orphan_count);
    let copies = superblock.metadata_copies as usize;
    let fresh = fresh_blocks(checkpoints, &chunks, copies * (missing.len() + pages), avoid)?;
    let places = places(&fresh, copies);
    let fresh = BTreeSet::from_iter(fresh);
    let (orphan_places, page_places) = places.split_at(missing.len());

    let mut orphans = checkpoint.orphans.clone();
    for (&index, &place) in missing.iter().zip(orphan_places) {
        let bytes = orphan::encode(index.into(), &[0; SLOTS]);
        for at in place.copies() {
            backend.write(IoClass::Metadata, at, &AlignedBuf::copy_of(&bytes[..]))?;
        }
        let Place { block, twin } = place;
        orphans.push(OrphanRef { index, crc: crc32c::crc32c(&bytes[..]), block, twin });
    }
    orphans.sort_by_key(|orphan| orphan.index);

    let pages = paginate(used_chunks(checkpoint, &chunks, &orphans, &fresh), &orphans);
    debug_assert_eq!(pages.len(), page_places.len());
    let count = pages.len() as u32;
    let stamp = PageStamp { generation: number, incarnation: superblock.incarnation };
    let mut next = None;
    for (index, mut page) in pages.into_iter().enumerate().rev() {
        page.next = next;
        let place = page_places[index];
        let mut bytes = AlignedBuf::zeroed(BLOCK_SIZE);
        let identity = PageIdentity { volume, place, index: index as u32, count };
        let crc = page.encode(&identity, stamp, &mut bytes);
        for at in place.copies() {
            backend.write(IoClass::Metadata, at, &bytes)?;
        }
        next = Some(NextPage { place, crc });
    }
    let NextPage { place: Place { block, twin }, crc } = next.expect("a manifest has a page");
    backend.flush()?;

    let mut mended = superblock.clone();
    mended.checkpoint = number;
    mended.manifest = ManifestRef { block, twin, crc, count };
    publish(backend, &mended, 1 - checkpoint.slot)
}

/// Places of so many copies, the copies as far apart as the blocks permit.
pub(crate) fn places(blocks: &[BlockNo], copies: usize) -> Vec<Place> {
    let mut sorted = blocks.to_vec();
    sorted.sort_unstable();
    let (first, second) = sorted.split_at(blocks.len() / copies);
    if copies == 1 {
        return first.iter().map(|&block| Place::single(block)).collect();
    }
    first.iter().zip(second).map(|(&block, &twin)| Place { block, twin }).collect()
}

/// The chunks without the runs in `release`.
fn remaining(checkpoint: &Checkpoint, release: &[Run]) -> Vec<Run> {
    let mut chunks = checkpoint.chunk_runs();
    for gone in release {
        chunks = chunks
            .into_iter()
            .flat_map(|chunk| {
                let part = |from: u64, to: u64| (from < to).then(|| Run::new(BlockNo(from), to - from));
                let (start, end) = (chunk.start.0, chunk.end().0);
                [part(start, end.min(gone.start.0)), part(start.max(gone.end().0), end)]
            })
            .flatten()
            .collect();
    }
    chunks
}

/// Blocks of the pool that neither superblock leads to and neither map calls used, as far as there are
/// enough.
pub(crate) fn fresh_blocks(
    checkpoints: &[&Checkpoint],
    chunks: &[Run],
    count: usize,
    avoid: Avoid<'_>,
) -> Result<Vec<BlockNo>> {
    let marked = |checkpoint: &Checkpoint, block: BlockNo| {
        checkpoint
            .place(block)
            .is_some_and(|(chunk, word, mask)| checkpoint.chunks[chunk].used[word] & mask != 0)
    };
    let mut fresh = BTreeSet::new();
    // First what is free by all accounts; if the maps leave too little, what no walk has found. From both
    // ends in turn, so that copies lie apart.
    for careful in [true, false] {
        let all: Vec<BlockNo> =
            chunks.iter().flat_map(|chunk| (0..chunk.blocks).map(|at| chunk.start.offset(at))).collect();
        let (low, high) = all.split_at(all.len().div_ceil(2));
        let mut high = high.iter().rev();
        for &low in low {
            for block in std::iter::once(low).chain(high.next().copied()) {
                if fresh.len() == count {
                    return Ok(fresh.into_iter().collect());
                }
                let taken = checkpoints
                    .iter()
                    .any(|checkpoint| checkpoint.is_found(block) || (careful && marked(checkpoint, block)));
                if !taken && !avoid(block) {
                    fresh.insert(block);
                }
            }
        }
    }
    if fresh.len() == count {
        return Ok(fresh.into_iter().collect());
    }
    Err(Error::new(ErrorKind::NoSpace, "the metadata pool has no room for a new map"))
}

/// The chunks with what the new manifest's checkpoint needs: nodes, orphan blocks, the new blocks. The old
/// manifest's pages are needed no more.
fn used_chunks(
    checkpoint: &Checkpoint,
    chunks: &[Run],
    orphans: &[OrphanRef],
    fresh: &BTreeSet<BlockNo>,
) -> Vec<ChunkEntry> {
    // Blocks that the manifest names as orphan blocks, but which do not check.
    let stale_orphans = BTreeSet::from_iter(&checkpoint.damaged_orphans);
    let pages = BTreeSet::from_iter(&checkpoint.manifest_blocks);
    let gone = |block: BlockNo| pages.contains(&block) || !checkpoint.is_found(block);
    chunks
        .iter()
        .map(|chunk| {
            let mut used = [0; BITMAP_WORDS];
            for bit in 0..chunk.blocks {
                let block = chunk.start.offset(bit);
                let needed = !gone(block)
                    && (!stale_orphans.contains(&block)
                        || orphans.iter().any(|orphan| orphan.place().contains(block)));
                if needed || fresh.contains(&block) {
                    used[bit as usize / 64] |= 1 << (bit % 64);
                }
            }
            ChunkEntry { start: chunk.start, blocks: chunk.blocks as u32, used }
        })
        .collect()
}

fn pages(chunks: usize, orphans: usize) -> usize {
    let chunk = || ChunkEntry { start: BlockNo(1), blocks: 1, used: [0; BITMAP_WORDS] };
    let orphan = OrphanRef { index: 0, crc: 0, block: BlockNo(1), twin: BlockNo(0) };
    paginate((0..chunks).map(|_| chunk()).collect(), &vec![orphan; orphans]).len()
}

/// Fills pages one after the other; there is at least one.
fn paginate(chunks: Vec<ChunkEntry>, orphans: &[OrphanRef]) -> Vec<ManifestPage> {
    let mut pages: Vec<ManifestPage> = chunks
        .chunks(BODY_BYTES / CHUNK_BYTES)
        .map(|part| ManifestPage { chunks: part.to_vec(), ..Default::default() })
        .collect();
    for orphan in orphans {
        match pages.last_mut().filter(|page| page.body_bytes() + ORPHAN_BYTES <= BODY_BYTES) {
            Some(page) => page.orphans.push(*orphan),
            None => pages.push(ManifestPage { orphans: vec![*orphan], ..Default::default() }),
        }
    }
    if pages.is_empty() {
        pages.push(ManifestPage::default());
    }
    pages
}
