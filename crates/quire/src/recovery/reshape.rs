//! Changing the shape of a volume that nobody has open: a larger journal, a larger volume, another label or
//! uuid.
//!
//! A reshape is a recovery ([`super`]) whose checkpoint names another shape. Protocol:
//! 1. Replay in memory, and work out the new shape. What does not fit is refused here, before anything has
//!    been written.
//! 2. Recover as always, up to the point where both slots lead to the state that was found.
//! 3. Change the used space in memory, and write the new ring with zeros: what its blocks held before could
//!    be taken for records.
//! 4. Write the checkpoint, flush, and publish it, with the new shape, in one slot and then in the other.
//!    After the first of these writes the volume has its new shape, before it the old one.
//! 5. Flush, and only now discard what the old shape alone needed: the old ring, and the old end's second
//!    copies of the superblocks.
//!
//! Invariants: until step 5 nothing is written over what the old shape needs. A crash anywhere leaves a
//! volume of the old shape or of the new one; either has all of its space, since ring and used space change
//! with one superblock.
//!
//! Neighbours: [`crate::resize`] is the public face; `format::superblock::areas` has the rules of a moved
//! journal.

use super::load::{self, Loaded};
use super::unfinished;
use crate::mkfs::{JOURNAL_BYTES_MAX, VOLUME_BYTES_MAX, write_zeros};
use crate::options::{Reshape, VolumeOptions};
use crate::store::apply::change_regions;
use crate::store::pool_promise::standing_reserve;
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result, size};
use quire_device::{Backend, Device};
use quire_format::extent::Run;
use quire_format::key::Key;
use quire_format::region::{REGION_BLOCKS, RegionMap, region_of};
use quire_format::superblock::{FAR_BLOCKS, INCOMPAT_JOURNAL_MOVED, JOURNAL_START, Superblock};
use quire_tree::Tree;
use std::ops::ControlFlow;

/// A reshape of one volume, that fits it.
pub(crate) struct Plan {
    /// As the volume is to be, apart from what a checkpoint changes.
    shape: Superblock,
    /// The new ring and the old one, if the journal moves.
    moves: Option<(Run, Run)>,
    /// What the old shape alone needs.
    outdated: Vec<Run>,
}

impl Reshape {
    /// Works out the new shape. Changes nothing.
    ///
    /// Errors: `Invalid` for what no volume may have or what would make it smaller; `NoSpace` without room
    /// for the ring.
    pub(crate) fn plan(&self, device: &Device, loaded: &Loaded) -> Result<Plan> {
        self.plan_with_room(device, loaded, device.blocks())
    }

    /// Whether it would fit the volume if its device had so many blocks. Writes nothing.
    ///
    /// Errors: those of [`Reshape::plan`], and of recovery; `Busy` with an unfinished receive.
    #[cfg_attr(any(loom, shuttle), allow(dead_code))]
    pub(crate) fn check_with_room(&self, backend: Arc<dyn Backend>, blocks: u64) -> Result<()> {
        let device = Device::new(backend);
        let options = VolumeOptions::default();
        let loaded = load::load(&device, &options)?;
        unfinished::shown_instead(&device, &loaded.tree, &options)?;
        self.plan_with_room(&device, &loaded, blocks).map(drop)
    }

    fn plan_with_room(&self, device: &Device, loaded: &Loaded, room: u64) -> Result<Plan> {
        if let Some(because) = loaded.superblock.read_only_because() {
            return Err(because);
        }
        let mut plan = Plan { shape: loaded.superblock.clone(), moves: None, outdated: Vec::new() };
        if let Some(blocks) = self.blocks {
            plan.grow(device, room, blocks)?;
        }
        if let Some(bytes) = self.journal_bytes {
            plan.enlarge_journal(&loaded.tree, bytes)?;
        }
        if let Some(label) = self.label {
            plan.shape.label = label;
        }
        if let Some(uuid) = self.uuid {
            // Zeros stand for the volume's first one.
            plan.shape.changed_uuid = if uuid == plan.shape.uuid { [0; 16] } else { uuid };
        }
        if let Some(seed) = self.hash_seed {
            debug_assert_eq!(plan.shape.inode_count, 1);
            plan.shape.hash_seed = seed;
        }
        plan.shape.validate()?;
        Ok(plan)
    }
}

impl Plan {
    fn grow(&mut self, device: &Device, room: u64, blocks: u64) -> Result<()> {
        let shape = &mut self.shape;
        let old = shape.block_count;
        if blocks == old {
            return Ok(());
        }
        check_growth(device, old, blocks)?;
        check_room(device, room, blocks)?;
        self.outdated.push(Run::new(shape.data_end, old - shape.data_end.0));
        let data_end = BlockNo(blocks - FAR_BLOCKS);
        shape.free_blocks += data_end.0 - shape.data_end.0;
        (shape.block_count, shape.data_end) = (blocks, data_end);
        Ok(())
    }

    fn enlarge_journal(&mut self, tree: &Tree, bytes: u64) -> Result<()> {
        let shape = &mut self.shape;
        let (old, blocks) = (shape.journal(), bytes / BLOCK_SIZE as u64);
        let most = JOURNAL_BYTES_MAX.min(shape.block_count * BLOCK_SIZE as u64 / 4);
        if blocks == old.blocks {
            return Ok(());
        }
        if blocks < old.blocks {
            return Err(Error::invalid(format!(
                "the journal has {}: it cannot be made smaller ({} were asked for)",
                size::show(old.blocks * BLOCK_SIZE as u64),
                size::show(bytes)
            )));
        }
        if bytes > most {
            return Err(Error::invalid(format!(
                "a journal has at most 4 GiB and a quarter of the volume, here {}; {} were asked for",
                size::show(most),
                size::show(bytes)
            )));
        }
        let no_space = |why: String| Error::new(ErrorKind::NoSpace, why);
        let space = shape.data_space();
        // Not over the second superblocks of the smaller volume, which the old shape needs to the end.
        let parts = match self.outdated.first() {
            Some(run) => [space.start..run.start.0, run.end().0..space.end],
            None => [space.clone(), space.end..space.end],
        };
        let mut found = Err(0);
        for part in parts {
            if let Err(longest) = found {
                found = free_run(tree, part, blocks)?.map_err(|other| other.max(longest));
            }
        }
        let new = match found {
            Ok(new) => new,
            Err(longest) => {
                return Err(no_space(format!(
                    "the new journal needs {} of free space in one piece, the longest piece has {}",
                    size::show(bytes),
                    size::show(longest * BLOCK_SIZE as u64)
                )));
            }
        };
        let left = (shape.free_blocks + old.blocks).saturating_sub(new.blocks);
        let kept = standing_reserve(shape);
        if left < kept {
            return Err(no_space(format!(
                "beside the new journal {} would be free, metadata needs {}",
                size::show(left * BLOCK_SIZE as u64),
                size::show(kept * BLOCK_SIZE as u64)
            )));
        }
        shape.free_blocks = left;
        shape.feature_incompat |= INCOMPAT_JOURNAL_MOVED;
        shape.data_start = JOURNAL_START;
        (shape.journal_start, shape.journal_blocks) = (new.start, new.blocks);
        self.moves = Some((new, old));
        self.outdated.push(old);
        Ok(())
    }

    /// Step 3 of the protocol: the next checkpoint, by the superblock in `loaded`, publishes the new shape.
    pub(crate) fn apply(&self, device: &Device, loaded: &mut Loaded) -> Result<()> {
        if let Some((new, old)) = self.moves {
            change_regions(&loaded.tree, Key::region, &[new], RegionMap::set_used)?;
            change_regions(&loaded.tree, Key::region, &[old], RegionMap::set_free)?;
            write_zeros(device, new.start, new.blocks)?;
        }
        loaded.superblock = self.shape.clone();
        Ok(())
    }

    /// Step 5 of the protocol: nothing needs the old shape any more.
    pub(crate) fn published(&self, device: &Device) -> Result<()> {
        device.flush()?;
        self.outdated.iter().for_each(|run| device.try_discard(run.start, run.blocks));
        Ok(())
    }
}

/// Whether a volume of `old` blocks may have so many, which are others.
pub(crate) fn check_growth(device: &Device, old: u64, blocks: u64) -> Result<()> {
    let show = |blocks: u64| size::show(blocks.saturating_mul(BLOCK_SIZE as u64));
    if blocks < old {
        return Err(Error::invalid(format!(
            "{} has {}: a volume cannot be made smaller ({} were asked for)",
            device.name(),
            show(old),
            show(blocks)
        )));
    }
    // Else the new second copies of the superblocks would lie over the old ones.
    if blocks - old < FAR_BLOCKS {
        return Err(Error::invalid(format!("a volume grows by at least {}", show(FAR_BLOCKS))));
    }
    if blocks > VOLUME_BYTES_MAX / BLOCK_SIZE as u64 {
        let asked = show(blocks);
        return Err(Error::invalid(format!("a volume has at most 1 PiB, {asked} were asked for")));
    }
    Ok(())
}

/// Whether a device with room for so many blocks has room for a volume.
pub(crate) fn check_room(device: &Device, room: u64, blocks: u64) -> Result<()> {
    if blocks <= room {
        return Ok(());
    }
    let [room, blocks] = [room, blocks].map(|blocks| size::show(blocks.saturating_mul(BLOCK_SIZE as u64)));
    Err(Error::invalid(format!("{} has room for {room}, {blocks} were asked for", device.name())))
}

/// The first free run of so many blocks in a part of the data space; else the length of the longest one.
fn free_run(tree: &Tree, space: std::ops::Range<u64>, blocks: u64) -> Result<std::result::Result<Run, u64>> {
    let (mut at, mut longest) = (space.start, 0);
    let mut found = None;
    let mut look = |from: u64, to: u64| {
        let free = to.saturating_sub(from);
        longest = longest.max(free);
        if free >= blocks {
            found.get_or_insert(Run::new(BlockNo(from), blocks));
        }
        free >= blocks
    };
    let mut outcome = Ok(());
    let last = Key::region(region_of(BlockNo(space.end)));
    tree.scan(Key::region(region_of(BlockNo(space.start))), last, &mut |key, value| {
        let map = match RegionMap::decode(value) {
            Ok(map) => map,
            Err(error) => {
                outcome = Err(error.context(format!("region {}", key.offset)));
                return ControlFlow::Break(());
            }
        };
        for (start, len) in map.runs() {
            let start = key.offset * REGION_BLOCKS + u64::from(start);
            if look(at, start.min(space.end)) {
                return ControlFlow::Break(());
            }
            at = at.max(start + u64::from(len));
        }
        ControlFlow::Continue(())
    })?;
    outcome?;
    look(at, space.end);
    Ok(found.ok_or(longest))
}
