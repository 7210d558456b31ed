//! A volume of which no copy of a superblock can be read, for a salvage: a superblock in memory, made up from
//! the nodes that can be found anywhere on the device.
//!
//! Where journal, pool and data space were, nothing says any more. So all of the device is data space, in
//! which nodes lie, and a new journal and pool lie behind its end, in memory. The journal that is somewhere
//! is not replayed: what the last checkpoint did not have is lost. The key of the hash of names is another
//! one, so each name is found at a wrong place, and is moved.
//!
//! Neighbours: [`super`] gathers the tree from the nodes, as it does when its root is lost;
//! [`crate::salvage`] is the only user.

use super::{Loss, Tell};
use crate::progress::Meter;
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, BlockNo, InodeNo, Result, Seq, Timestamp};
use quire_device::{AlignedBuf, Backend, IoClass, OverlayBackend};
use quire_format::node::{NodePage, NodeRef};
use quire_format::place::NO_TWIN;
use quire_format::pool::ManifestRef;
use quire_format::superblock::{
    FAR_BLOCKS, FORMAT_MAJOR, FORMAT_MINOR, INCOMPAT_JOURNAL_MOVED, JOURNAL_START, SLOT_BLOCKS, Superblock,
};
use std::collections::BTreeMap;

/// Blocks read at once.
const BATCH: u64 = 256;
/// Blocks of the new journal.
const JOURNAL_BLOCKS: u64 = 1024;
/// Blocks of the new pool, and of its second half, besides those for the nodes that were found.
const POOL_BLOCKS: u64 = 4096;

/// Nodes with the same number of a volume.
#[derive(Default)]
struct Nodes {
    count: u64,
    checkpoint: u64,
    incarnation: u64,
    level: u8,
    twins: u64,
}

/// The device with a superblock in front and room behind, in memory, and what that means; `None` if there are
/// no nodes either.
pub(super) fn stand_in(
    backend: &Arc<dyn Backend>,
    tell: Tell<'_>,
) -> Result<Option<(Arc<dyn Backend>, Loss)>> {
    let found = find(&**backend, tell);
    // Another volume that was here once has left fewer.
    let Some((volume, nodes)) = found.into_iter().max_by_key(|(_, nodes)| nodes.count) else {
        return Ok(None);
    };
    let pool_blocks = POOL_BLOCKS + 4 * nodes.count;
    let more = JOURNAL_BLOCKS + 2 * pool_blocks + FAR_BLOCKS;
    let above = OverlayBackend::with_more_blocks(backend.clone(), more);
    let superblock = superblock(volume, &nodes, backend.blocks(), pool_blocks);
    superblock.validate()?;
    let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
    block.copy_from_slice(&superblock.encode());
    above.write(IoClass::Metadata, SLOT_BLOCKS[0], &block)?;
    let what = "no superblock can be read: what was changed since the last checkpoint is lost, and some names and \
                contents may be older than they were";
    Ok(Some((Arc::new(above), Loss { path: None, inode: None, what: what.into() })))
}

/// All nodes on the device, by volume.
fn find(backend: &dyn Backend, tell: Tell<'_>) -> BTreeMap<u64, Nodes> {
    let mut found: BTreeMap<u64, Nodes> = BTreeMap::new();
    let mut meter = Meter::start(tell, "search", backend.blocks());
    let mut buffer = AlignedBuf::zeroed(BATCH as usize * BLOCK_SIZE);
    let mut at = 0;
    while at < backend.blocks() {
        let count = BATCH.min(backend.blocks() - at);
        let bytes = &mut buffer[..count as usize * BLOCK_SIZE];
        if backend.read(IoClass::Metadata, BlockNo(at), bytes).is_err() {
            for (number, block) in (at..).zip(bytes.chunks_exact_mut(BLOCK_SIZE)) {
                if backend.read(IoClass::Metadata, BlockNo(number), block).is_err() {
                    block.fill(0);
                }
            }
        }
        for (number, block) in (at..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            let volume = u64::from_le_bytes(block[8..16].try_into().expect("8 bytes"));
            if let Some((reference, page)) = NodePage::recognise(block, volume, BlockNo(number)) {
                let nodes = found.entry(volume).or_default();
                nodes.count += 1;
                nodes.twins += u64::from(reference.twin != NO_TWIN);
                nodes.checkpoint = nodes.checkpoint.max(reference.generation);
                nodes.incarnation = nodes.incarnation.max(page.incarnation());
                nodes.level = nodes.level.max(reference.level);
            }
        }
        meter.advance(count);
        at += count;
    }
    found
}

fn superblock(volume: u64, nodes: &Nodes, device_blocks: u64, pool_blocks: u64) -> Superblock {
    let journal_start = BlockNo(device_blocks);
    let pool_start = journal_start.offset(JOURNAL_BLOCKS);
    let second = pool_start.offset(pool_blocks);
    let data_end = second.offset(pool_blocks);
    let mirrored = nodes.twins * 2 > nodes.count;
    // The number of a volume is one half of this and the other.
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&volume.to_le_bytes());
    // Blocks that nothing has written to: they cannot be read as what they should be.
    let twin = if mirrored { second } else { NO_TWIN };
    let root = |number| NodeRef {
        block: pool_start.offset(number),
        twin: if mirrored { twin.offset(number) } else { NO_TWIN },
        generation: nodes.checkpoint,
        crc: 0,
        level: nodes.level + 1,
    };
    Superblock {
        version: (FORMAT_MAJOR, FORMAT_MINOR),
        flags: 0,
        feature_compat: 0,
        feature_ro_compat: 0,
        feature_incompat: INCOMPAT_JOURNAL_MOVED,
        uuid,
        changed_uuid: [0; 16],
        label: [0; quire_format::superblock::LABEL_BYTES],
        block_count: data_end.0 + FAR_BLOCKS,
        slot: 0,
        checkpoint: nodes.checkpoint,
        incarnation: nodes.incarnation,
        journal_start,
        journal_blocks: JOURNAL_BLOCKS,
        sequence: Seq(0),
        root: root(0),
        manifest: ManifestRef { block: pool_start, twin, crc: 0, count: 1 },
        orphan_blocks: 2,
        mount_count: 0,
        pool_start,
        pool_blocks,
        data_start: JOURNAL_START,
        data_end,
        mirror_start: if mirrored { second } else { NO_TWIN },
        mirror_blocks: if mirrored { pool_blocks } else { 0 },
        free_blocks: 0,
        inode_count: 1,
        next_inode: InodeNo::ROOT.0 + 1,
        hash_seed: [0; 2],
        created: Timestamp(0),
        mounted: Timestamp(0),
        checkpointed: Timestamp(0),
        metadata_copies: if mirrored { 2 } else { 1 },
        epoch: 0,
        space_root: root(1),
        scrub: None,
    }
}
