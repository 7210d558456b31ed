//! The pair of superblocks: each by itself, and one against the other.
//!
//! Both are written in turn, so they differ by at most one checkpoint, and whatever mkfs fixed is the same in
//! both. A volume that was closed in order has two that name the same tree.
//!
//! Neighbours: [`crate::checkpoint`] looks at what each of them names.

use crate::issue::IssueKind;
use crate::report::{Findings, Place};
use quire::internals::inspect::SlotCopies;
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result};
use quire_format::superblock::{
    FAR_BLOCKS, FLAG_CLEAN, FLAG_ERRORS, JOURNAL_START, SLOT_BLOCKS, Superblock, far_slots,
};

/// The names of the slots, as messages have them.
pub(crate) const SLOT_NAMES: [&str; 2] = ["A", "B"];

/// The superblocks that check, the newest first, with their slots.
pub(crate) struct Pair {
    pub(crate) usable: Vec<(usize, Superblock)>,
    /// They differ in what mkfs has fixed: one of them is wrong, and not by its age.
    pub(crate) contradiction: bool,
}

impl Pair {
    pub(crate) fn newest(&self) -> Option<&(usize, Superblock)> {
        self.usable.first()
    }
}

/// Checks both slots. Errors (a volume that no check can say anything about): `NotAVolume`, `UnknownFormat`,
/// `Io`.
pub(crate) fn check(slots: [SlotCopies; 2], device_blocks: u64, findings: &mut Findings) -> Result<Pair> {
    let mut usable = Vec::new();
    let mut reasons: Vec<(usize, Error)> = Vec::new();
    for (slot, copies) in slots.iter().enumerate() {
        match copies.newest() {
            Ok(superblock) => usable.push((slot, superblock)),
            Err(error) => reasons.push((slot, error)),
        }
    }
    check_copies(&slots, device_blocks, findings);
    // A newer quire has written to one slot: the other may be readable, but is not to be acted on.
    if let Some((slot, error)) = reasons.iter().find(|(_, error)| error.kind() == ErrorKind::UnknownFormat) {
        return Err(error.context(format!("superblock {}", SLOT_NAMES[*slot])));
    }
    if usable.is_empty() {
        if let Some((_, error)) = reasons.iter().find(|(_, error)| error.kind() == ErrorKind::Io) {
            return Err(error.clone());
        }
        if reasons.iter().all(|(_, error)| error.kind() == ErrorKind::NotAVolume) {
            return Err(reasons.swap_remove(0).1);
        }
    }
    for (slot, error) in &reasons {
        let (name, at) = (SLOT_NAMES[*slot], SLOT_BLOCKS[*slot]);
        let other = SLOT_NAMES[1 - *slot];
        let message = if usable.is_empty() {
            format!("superblock {name} (block {at}) does not check: {error}")
        } else {
            format!(
                "superblock {name} (block {at}) does not check: {error}; superblock {other} serves, repair rewrites it"
            )
        };
        let kind =
            if usable.is_empty() { IssueKind::SuperblocksDamaged } else { IssueKind::SuperblockDamaged };
        findings.add(kind, Place::block(at.0), message);
        findings.fixes.superblocks = true;
    }
    usable.sort_by_key(|(_, superblock)| std::cmp::Reverse(superblock.checkpoint));
    for (slot, superblock) in &usable {
        check_alone(*slot, superblock, device_blocks, findings);
    }
    let mut contradiction = false;
    if let [(_, newer), (_, older)] = &usable[..] {
        contradiction = check_pair(newer, older, findings);
    }
    Ok(Pair { usable, contradiction })
}

/// Slots that stand by one of their two copies alone.
fn check_copies(slots: &[SlotCopies; 2], device_blocks: u64, findings: &mut Findings) {
    let gone = |copies: &SlotCopies| {
        copies.near.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotAVolume) && copies.far.is_ok()
    };
    let all_gone = slots.iter().all(|copies| copies.near.is_err()) && slots.iter().any(gone);
    for (slot, copies) in slots.iter().enumerate() {
        let (name, at) = (SLOT_NAMES[slot], SLOT_BLOCKS[slot]);
        match (&copies.near, &copies.far) {
            (Err(error), Ok(_)) if error.kind() != ErrorKind::UnknownFormat => {
                let kind =
                    if all_gone { IssueKind::SuperblocksDamaged } else { IssueKind::SuperblockDamaged };
                let message = format!(
                    "superblock {name} (block {at}) does not check: {error}; its copy at the volume's end serves, \
                     repair rewrites it"
                );
                findings.add(kind, Place::block(at.0), message);
                findings.fixes.superblocks = true;
                findings.fixes.restore_superblocks |= all_gone;
            }
            (Ok(near), Ok(far)) if far.checkpoint > near.checkpoint => {
                let message = format!(
                    "superblock {name} (block {at}) is of checkpoint {}, its copy at the volume's end of {}: the device \
                     has lost a write; the copy serves, repair rewrites it",
                    near.checkpoint, far.checkpoint
                );
                findings.add(IssueKind::SuperblockDamaged, Place::block(at.0), message);
                findings.fixes.superblocks = true;
            }
            _ => {}
        }
    }
    // A crash may leave a second copy torn, or not yet written; but not that of the older superblock of a
    // volume that was closed.
    let [Ok(a), Ok(b)] = [&slots[0].near, &slots[1].near] else { return };
    let truncated = a.block_count.max(b.block_count) > device_blocks;
    if truncated || a.flags & b.flags & FLAG_CLEAN == 0 || a.checkpoint == b.checkpoint {
        return;
    }
    let (slot, near) = if a.checkpoint < b.checkpoint { (0, a) } else { (1, b) };
    let wrong = match &slots[slot].far {
        Ok(far) if far == near || far.checkpoint > near.checkpoint => return,
        Ok(far) if far.checkpoint == near.checkpoint => "it differs from the first one".to_string(),
        Ok(far) => format!("it is of checkpoint {}, the first one of {}", far.checkpoint, near.checkpoint),
        Err(error) => error.to_string(),
    };
    let at = far_slots(near.block_count)[slot];
    let message = format!("the second copy of superblock {} (block {at}): {wrong}", SLOT_NAMES[slot]);
    findings.add(IssueKind::SuperblockCopyDamaged, Place::block(at.0), message);
    findings.fixes.superblocks = true;
}

/// Whether journal, first pool chunks and data space follow one another without a gap, as every new volume
/// has them; or, where the journal has been moved, whether the data space has all.
pub(crate) fn areas_join(superblock: &Superblock) -> bool {
    let in_order = superblock.journal_start == JOURNAL_START
        && superblock.pool_start == superblock.journal_end()
        && superblock.data_start == superblock.pool_start.offset(superblock.pool_blocks);
    let all_in_data = superblock.journal_has_moved() && superblock.data_start == JOURNAL_START;
    (in_order || all_in_data)
        && superblock.data_end.0 + FAR_BLOCKS == superblock.block_count
        && (superblock.metadata_copies > 1) == (superblock.mirror_blocks > 0)
}

fn check_alone(slot: usize, superblock: &Superblock, device_blocks: u64, findings: &mut Findings) {
    let (name, place) = (SLOT_NAMES[slot], Place::block(SLOT_BLOCKS[slot].0));
    if superblock.slot as usize != slot {
        findings.add(
            IssueKind::SuperblockMismatch,
            place,
            format!("superblock {name} says that it belongs into slot {}", superblock.slot),
        );
        findings.fixes.superblocks = true;
    }
    if superblock.block_count > device_blocks {
        findings.add(
            IssueKind::VolumeTruncated,
            place,
            format!(
                "superblock {name}: the volume has {} blocks, the device only {device_blocks}: make a copy of it that is as long \
                 as the volume (truncate -s {}), and give that to `quire fsck --repair` or `quire salvage`",
                superblock.block_count,
                superblock.block_count.saturating_mul(BLOCK_SIZE as u64)
            ),
        );
    }
    if !areas_join(superblock) {
        findings.add(
            IssueKind::SuperblockGeometry,
            place,
            format!(
                "superblock {name}: journal at {}+{}, metadata pool at {}+{} and data space from {} do not join; repair \
                 writes only by a superblock where they do",
                superblock.journal_start,
                superblock.journal_blocks,
                superblock.pool_start,
                superblock.pool_blocks,
                superblock.data_start
            ),
        );
        findings.fixes.superblocks = true;
    }
    if superblock.flags & !(FLAG_CLEAN | FLAG_ERRORS) != 0 {
        findings.add(
            IssueKind::SuperblockMismatch,
            place,
            format!("superblock {name} has unknown flags ({:#x})", superblock.flags),
        );
        findings.fixes.superblocks = true;
    }
    if superblock.flags & FLAG_ERRORS != 0 {
        findings.add(
            IssueKind::ErrorFlagSet,
            place,
            format!("superblock {name}: an error was met while the volume was in use"),
        );
        findings.fixes.clear_error_flag = true;
    }
}

/// True if they differ in what mkfs has fixed.
fn check_pair(newer: &Superblock, older: &Superblock, findings: &mut Findings) -> bool {
    let mut different: Vec<&str> = Vec::new();
    let mut compare = |name: &'static str, same: bool| {
        if !same {
            different.push(name);
        }
        !same
    };
    // A crash in the midst of a resize: its checkpoint is the first one of a life, and has another shape.
    let resized = newer.checkpoint == older.checkpoint + 1
        && newer.incarnation == older.incarnation + 1
        && newer.flags & FLAG_CLEAN == 0
        && newer.block_count >= older.block_count
        && newer.journal_blocks >= older.journal_blocks;
    // One in the midst of a growth in use: a checkpoint like any other, and only the end has moved.
    let grown = newer.checkpoint == older.checkpoint + 1
        && newer.incarnation == older.incarnation
        && newer.flags & FLAG_CLEAN == 0
        && newer.block_count > older.block_count;
    let moved_end = |superblock: &Superblock| match grown {
        true => Superblock { data_end: newer.data_end, ..superblock.clone() },
        false => superblock.clone(),
    };
    let mut contradiction = compare("uuid", newer.uuid == older.uuid);
    contradiction |= compare("size", resized || grown || newer.block_count == older.block_count);
    contradiction |= compare("journal", resized || journal(newer) == journal(older));
    let same_areas = areas(newer) == areas(&moved_end(older));
    contradiction |= compare("pool and data space", resized || same_areas);
    contradiction |= compare("orphan blocks", newer.orphan_blocks == older.orphan_blocks);
    // A receive begins with the seed of the stream, where nothing has been hashed yet.
    let nothing_hashed = resized && older.inode_count <= 1;
    contradiction |= compare("hash seed", nothing_hashed || newer.hash_seed == older.hash_seed);
    compare("label", resized || newer.label == older.label);
    compare("changed uuid", resized || newer.changed_uuid == older.changed_uuid);
    compare("format version", newer.version == older.version);
    compare("features", resized || features(newer) == features(older));
    compare("time of making", newer.created == older.created);
    // What only grows.
    compare("incarnation", newer.incarnation >= older.incarnation);
    compare("journal position", newer.sequence >= older.sequence);
    compare("next inode", newer.next_inode >= older.next_inode);
    compare("mounts", newer.mount_count >= older.mount_count);
    compare("epoch", newer.epoch >= older.epoch);
    let both_clean = newer.flags & older.flags & FLAG_CLEAN != 0;
    if newer.checkpoint == older.checkpoint || both_clean {
        compare("tree", newer.roots() == older.roots());
        compare("position of the closed journal", newer.sequence == older.sequence);
        compare("lives", (newer.incarnation, newer.mount_count) == (older.incarnation, older.mount_count));
        compare("counts", counts(newer) == counts(older));
        compare("epoch of the closed volume", newer.epoch == older.epoch);
        compare("time of mounting", newer.mounted == older.mounted);
    }
    if newer.checkpoint == older.checkpoint {
        compare("manifest", newer.manifest == older.manifest);
        compare("flags", newer.flags == older.flags);
        compare("time of the checkpoint", newer.checkpointed == older.checkpointed);
    } else {
        compare("checkpoint", both_clean_distance(newer, older, both_clean));
    }
    if !different.is_empty() {
        let by =
            if contradiction { "the one that the rest of the volume agrees with" } else { "the newer one" };
        findings.add(
            IssueKind::SuperblockMismatch,
            Place::NONE,
            format!("the superblocks contradict one another ({}): repair goes by {by}", different.join(", ")),
        );
        findings.fixes.superblocks = true;
    }
    contradiction
}

/// Closing writes two checkpoints, one after the other.
fn both_clean_distance(newer: &Superblock, older: &Superblock, both_clean: bool) -> bool {
    !both_clean || newer.checkpoint - older.checkpoint == 1
}

fn features(superblock: &Superblock) -> [u64; 3] {
    [superblock.feature_compat, superblock.feature_ro_compat, superblock.feature_incompat]
}

fn journal(superblock: &Superblock) -> (u64, u64) {
    (superblock.journal_start.0, superblock.journal_blocks)
}

fn areas(superblock: &Superblock) -> [u64; 7] {
    [
        superblock.pool_start.0,
        superblock.pool_blocks,
        superblock.data_start.0,
        superblock.data_end.0,
        superblock.mirror_start.0,
        superblock.mirror_blocks,
        superblock.metadata_copies.into(),
    ]
}

fn counts(superblock: &Superblock) -> [u64; 3] {
    [superblock.free_blocks, superblock.inode_count, superblock.next_inode]
}
