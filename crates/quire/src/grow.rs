//! Growing a volume that is in use.
//!
//! Protocol:
//! 1. Work out the new size, and refuse what no volume may have. An image file is enlarged, durably; any
//!    other device must have grown before. The volume stays as it was: a device may be larger than its
//!    volume.
//! 2. From here to the end of step 3 no one else writes checkpoints. Change the size in memory, and count the
//!    new blocks as free ([`superblock_now`](crate::store::Store::superblock_now) has both); nobody has one
//!    of them.
//! 3. Write two checkpoints, so that both slots have the new size, and flush, so that their second copies at
//!    the new end are durable.
//! 4. Discard the second copies at the old end, and have the allocator give out the new blocks.
//!
//! So a record that names a new block lies behind a checkpoint of the new size in either slot, and no
//! recovery meets one that it calls outside of the volume. The first superblock of step 3 decides: a crash
//! before it leaves the old size, a crash behind it the new one, and either has all of its space. A
//! checkpoint needs no space, so a full volume grows like any other.
//!
//! Changes go on throughout. A freeze, a snapshot and another growth wait (`Engine::frozen` is held). A
//! failure of step 1 has changed nothing but the length of a file, a later one shuts the volume down (J7).
//!
//! Snapshots keep the size of their time in their own superblocks; what they have lies within it.
//!
//! Invariants: the size in memory never shrinks, and is that of both slots or about to be. What is bounded by
//! the size asks here, and never the superblock of the opening. The allocator's end of the data space follows
//! behind.
//!
//! Neighbours: [`crate::recovery::reshape`] resizes a volume that nobody has open;
//! [`crate::store::checkpoint`]; `quire_alloc::Allocator::grow`.

use crate::engine::Engine;
use crate::recovery::reshape::{check_growth, check_room};
use crate::volume::{Volume, VolumeInfo};
use quire_base::sync::atomic::Ordering;
use quire_base::{BLOCK_SIZE, Result};
use quire_format::extent::Run;

impl Volume {
    /// Makes the volume larger while it is in use: so many bytes, in whole blocks. An image file grows with
    /// it, a block device must have grown before. Others may use the volume meanwhile; the new space is there
    /// when this returns, and after a crash the volume has its old size or the new one. Nothing happens if it
    /// has that size.
    ///
    /// Errors: `Invalid` for less than the volume has, for fewer than 64 KiB more, for more than 1 PiB, and
    /// for more than the device has; `Busy` while the volume is frozen; `ReadOnly` and `Shutdown` as for
    /// changes; those of the device.
    ///
    /// ```
    /// # fn main() -> quire::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let image = directory.path().join("data.img");
    /// # quire::FormatOptions::new().size(64 << 20).format(&image)?;
    /// let volume = quire::Volume::open(&image)?;
    /// let before = volume.statfs().free;
    /// volume.grow(128 << 20)?;
    /// assert!(volume.statfs().free > before + 15_000, "most of 16,384 blocks are free");
    /// # volume.close()
    /// # }
    /// ```
    pub fn grow(&self, bytes: u64) -> Result<VolumeInfo> {
        self.engine().grow_volume(Some(bytes / BLOCK_SIZE as u64))?;
        Ok(self.info())
    }

    /// As [`Volume::grow`], to all that the file or device has by now.
    pub fn grow_whole(&self) -> Result<VolumeInfo> {
        self.engine().grow_volume(None)?;
        Ok(self.info())
    }
}

impl Engine {
    /// Makes the volume so many blocks large, or as large as its device.
    fn grow_volume(&self, blocks: Option<u64>) -> Result<()> {
        self.store.check_writable()?;
        let _not_frozen = self.not_frozen("it can grow")?;
        // Closing the volume waits for it. Nobody keeps changes back: that takes the mutex.
        let _change = self.begin_change()?;
        let old = self.store.block_count();
        let Some(blocks) = self.device_for(old, blocks)? else { return Ok(()) };

        let former = Run::new(self.store.data_end(), old - self.store.data_end().0);
        // What the device refuses ends this here, with nothing changed.
        self.write_homes()?;
        let mut state = self.store.checkpoint.lock();
        self.store.grown.fetch_add(blocks - old, Ordering::AcqRel);
        self.store.applied_free_blocks.add(blocks - old);
        let published = (0..2)
            .try_for_each(|_| self.store.write_checkpoint(&mut state, 0))
            .and_then(|()| self.store.device.flush());
        published.map_err(|error| self.store.shut_down(&error))?;
        drop(state);

        self.store.device.try_discard(former.start, former.blocks);
        self.store.alloc.grow(self.store.data_end()).map_err(|error| self.store.shut_down(&error))?;
        self.store.keep_standing_reserve()?;
        self.store.room.notify();
        tracing::info!(from = old, to = blocks, "the volume has grown");
        Ok(())
    }

    /// Step 1: the blocks that the volume is to have, if they are more than `old`. The device has them.
    fn device_for(&self, old: u64, wanted: Option<u64>) -> Result<Option<u64>> {
        let device = &self.store.device;
        let blocks = match wanted {
            Some(blocks) if blocks == old => return Ok(None),
            Some(blocks) => {
                check_growth(device, old, blocks)?;
                if blocks > device.blocks() {
                    device.grow(blocks)?;
                }
                blocks
            }
            None => match device.grow(0) {
                Err(error) if device.blocks() == old => return Err(error),
                // It may have been larger from the start.
                _ => device.blocks(),
            },
        };
        if blocks == old {
            return Ok(None);
        }
        check_growth(device, old, blocks)?;
        check_room(device, device.blocks(), blocks)?;
        Ok(Some(blocks))
    }
}
