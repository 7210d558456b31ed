//! The superblocks on the device: two slots, each in two copies.
//!
//! Protocol. The first copy of a slot is written and flushed; then the second copy gets the same bytes. The
//! next flush of any kind makes it durable, at the latest the one before the other slot's first copy is
//! overwritten. So a second copy holds either what its first copy holds, or what the slot held before; and it
//! is never newer than what was durable in the first copy once.
//!
//! Of two copies that check, the newer one counts: an older second copy was caught between the two writes, an
//! older first copy has lost a write. A second copy alone serves as well, but not if neither slot's first
//! copy is that of a volume at all: something else may have been put there. `quire fsck --repair` puts both
//! back.
//!
//! Neighbours: [`crate::recovery`] reads, [`super::checkpoint`] and [`crate::mkfs`] publish.

use quire_base::{BLOCK_SIZE, BlockNo, Context, Error, ErrorKind, Result};
use quire_device::{AlignedBuf, Device, IoClass};
use quire_format::superblock::{FAR_BLOCKS, SLOT_BLOCKS, Superblock, far_slots};

/// What the two copies of a slot hold, each with the reason why it does not serve.
#[derive(Clone, Debug)]
pub struct SlotCopies {
    /// The copy at the volume's beginning.
    pub near: Result<Superblock>,
    /// The copy at its end.
    pub far: Result<Superblock>,
}

impl SlotCopies {
    /// The superblock that the slot stands for; else why the first copy does not serve.
    pub fn newest(&self) -> Result<Superblock> {
        match (&self.near, &self.far) {
            (Ok(near), Ok(far)) if far.checkpoint > near.checkpoint => Ok(far.clone()),
            (Err(error), _) if error.kind() == ErrorKind::UnknownFormat => Err(error.clone()),
            (Err(_), Ok(far)) => Ok(far.clone()),
            (near, _) => near.clone(),
        }
    }
}

/// Reads a block for [`read_with`].
pub type ReadBlock<'f> = dyn FnMut(BlockNo, &mut [u8]) -> Result<()> + 'f;

/// Reads all copies of both slots from something of `blocks` blocks.
pub fn read_with(blocks: u64, read: &mut ReadBlock<'_>) -> [SlotCopies; 2] {
    let [first, second] = SLOT_BLOCKS.map(|at| decode_at(blocks, read, at));
    // Of two sizes the newer one: the volume was about to grow, or one superblock has lost a write since.
    let known = [&first, &second].into_iter().filter_map(|read| read.as_ref().ok());
    let known = known.max_by_key(|superblock| superblock.checkpoint).cloned();
    let end = known.as_ref().map_or(blocks, |superblock| superblock.block_count);
    let mut far = |slot: usize| -> Result<Superblock> {
        if end < FAR_BLOCKS {
            return Err(Error::corrupt(format!("a volume of {end} blocks has no room for second copies")));
        }
        let far = decode_at(blocks, read, far_slots(end)[slot])?;
        let own = far.block_count == end && far.slot as usize == slot;
        if !own || known.as_ref().is_some_and(|known| known.uuid != far.uuid) {
            return Err(Error::corrupt("it belongs to another volume or slot"));
        }
        Ok(far)
    };
    [SlotCopies { near: first, far: far(0) }, SlotCopies { near: second, far: far(1) }]
}

fn decode_at(blocks: u64, read: &mut ReadBlock<'_>, at: BlockNo) -> Result<Superblock> {
    if at.0 >= blocks {
        return Err(Error::new(
            ErrorKind::NotAVolume,
            format!("it ends before block {at}: too small for a Quire volume"),
        ));
    }
    let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
    read(at, &mut block)?;
    Superblock::decode(&block)
}

/// Reads all copies of both slots.
pub(crate) fn read(device: &Device) -> [SlotCopies; 2] {
    read_with(device.blocks(), &mut |at, buf| device.read(IoClass::Metadata, at, buf))
}

/// The superblock of each slot, or why there is none; and a superblock whose first copy does not serve, with
/// the reason, if its second copy does.
pub(crate) fn newest(device: &Device) -> ([Result<Superblock>; 2], Option<String>) {
    let slots = read(device);
    let second_copy = slots.iter().zip(["A", "B"]).find_map(|(slot, name)| match (&slot.near, &slot.far) {
        (Err(error), Ok(_)) => Some(format!("superblock {name}: {error}")),
        _ => None,
    });
    if let Some(why) = &second_copy {
        tracing::warn!(%why, "a superblock is damaged; its copy at the volume's end serves");
    }
    (newest_of(slots), second_copy)
}

/// The superblock that each slot stands for, or why there is none.
pub fn newest_of(slots: [SlotCopies; 2]) -> [Result<Superblock>; 2] {
    let is_none =
        |read: &Result<Superblock>| read.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotAVolume);
    if slots.iter().any(|slot| !is_none(&slot.near)) {
        return slots.map(|slot| slot.newest());
    }
    let hint = slots.iter().any(|slot| slot.far.is_ok()).then_some(
        "; but the copies at the device's end are those of a Quire volume: if nothing else was put here since, \
         quire fsck --repair puts both superblocks back",
    );
    slots.map(|slot| match (slot.near, hint) {
        (Err(error), Some(hint)) => Err(Error::new(error.kind(), format!("{error}{hint}"))),
        (near, _) => near,
    })
}

/// Writes a superblock into a slot and makes it durable; then its second copy, which the next flush makes
/// durable.
///
/// Errors: those of the device; `Corrupt`, and nothing is written, for one that nobody could read again.
/// Damaged metadata leads to such counts.
pub(crate) fn publish(device: &Device, superblock: &Superblock, slot: usize) -> Result<()> {
    let mut superblock = superblock.clone();
    superblock.slot = slot as u32;
    superblock.validate().context("publishing a superblock")?;
    let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
    block.copy_from_slice(&superblock.encode());
    device.write(IoClass::Metadata, SLOT_BLOCKS[slot], &block)?;
    device.flush_to(device.mark())?;
    device.write(IoClass::Metadata, far_slots(superblock.block_count)[slot], &block)
}

/// Overwrites all copies with zeros, on a volume of so many blocks and at the end of the device, where those
/// of a larger volume may have been. Not flushed.
pub(crate) fn clear(device: &Device, block_count: u64) -> Result<()> {
    let zero = AlignedBuf::zeroed(BLOCK_SIZE);
    let ends = [block_count, device.blocks()].map(far_slots).concat();
    for at in SLOT_BLOCKS.into_iter().chain(ends) {
        device.write(IoClass::Metadata, at, &zero)?;
    }
    Ok(())
}

/// Whether there is a second copy of a superblock at the device's end.
pub(crate) fn has_far(device: &Device) -> bool {
    let end = device.blocks();
    let mut read = |at, buf: &mut [u8]| device.read(IoClass::Metadata, at, buf);
    end >= FAR_BLOCKS && far_slots(end).into_iter().any(|at| decode_at(end, &mut read, at).is_ok())
}
