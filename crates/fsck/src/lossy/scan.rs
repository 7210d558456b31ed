//! Every node of the volume that can be read anywhere in its metadata pool, whether something names it or
//! not.
//!
//! Memory: about 130 bytes a node. Neighbours: [`super::remains`] chooses among them.

use crate::progress::Meter;
use quire_base::{BLOCK_SIZE, BlockNo};
use quire_device::{AlignedBuf, Device, IoClass};
use quire_format::extent::Run;
use quire_format::node::{Bounds, NodePage, NodeRef};
use std::collections::BTreeMap;

/// Blocks read at once.
const BATCH: u64 = 256;

/// A node that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) at: NodeRef,
    pub(super) bounds: Bounds,
    pub(super) incarnation: u64,
}

/// Looks at all blocks of the runs. A node that lies in both of its places is found once.
pub(super) fn scan(device: &Device, volume: u64, runs: &[Run], meter: &mut Meter<'_>) -> Vec<Found> {
    let mut found: BTreeMap<NodeRef, Found> = BTreeMap::new();
    let mut buffer = AlignedBuf::zeroed(BATCH as usize * BLOCK_SIZE);
    for run in runs {
        let end = run.end().0.min(device.blocks());
        let mut at = run.start.0;
        while at < end {
            let count = BATCH.min(end - at);
            let bytes = &mut buffer[..count as usize * BLOCK_SIZE];
            if device.read(IoClass::Metadata, BlockNo(at), bytes).is_err() {
                read_singly(device, at, bytes);
            }
            for (number, block) in (at..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
                if let Some((reference, page)) = NodePage::recognise(block, volume, BlockNo(number)) {
                    let node =
                        Found { at: reference, bounds: page.bounds(), incarnation: page.incarnation() };
                    found.insert(reference, node);
                }
            }
            meter.advance(count);
            at += count;
        }
    }
    found.into_values().collect()
}

/// Reads block by block; what cannot be read is shown as zeros.
fn read_singly(device: &Device, at: u64, bytes: &mut [u8]) {
    for (number, block) in (at..).zip(bytes.chunks_exact_mut(BLOCK_SIZE)) {
        if device.read(IoClass::Metadata, BlockNo(number), block).is_err() {
            block.fill(0);
        }
    }
}
