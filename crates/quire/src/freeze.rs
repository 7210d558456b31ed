//! Freezing: the device stays as it is for a while, so that it can be copied from outside.
//!
//! Protocol.
//! 1. Sync, checkpoint, both again, while changes go on: so little is left for step 3.
//! 2. Operations that change the volume are kept back where they begin, before they hold anything, and those
//!    under way end; so whoever reads never waits for one that waits.
//! 3. Everything is made durable. The engine is kept from freeing, and a checkpoint is written: a copy opens
//!    without a replay.
//! 4. The device's writes are held, which stops what the engine does by itself, whatever that is, and a flush
//!    follows.
//!
//! A thaw goes the other way.
//!
//! What is on the device then is a state that a power cut could have left, and holds all that had returned
//! before the freeze. Orphans that wait to be freed are in it: the engine frees them when the copy is opened.
//!
//! Neighbours: [`crate::changes`] keeps operations back, [`quire_device::Device`] writes; closing a volume
//! thaws it.

use crate::engine::Engine;
use crate::inodes::Inodes;
use crate::volume::Volume;
use quire_base::sync::Arc;
use quire_base::{Error, ErrorKind, Result};

/// A frozen volume; dropping it thaws the volume. From [`Volume::freeze`].
#[must_use = "the volume thaws when this is dropped"]
pub struct Frozen {
    engine: Arc<Engine>,
    /// The freeze that this ends, and no later one.
    number: u64,
}

/// The freezes of an open volume.
#[derive(Default)]
pub(crate) struct Freezes {
    /// How many have begun.
    begun: u64,
    /// Whether the last one has not ended.
    pub(crate) in_force: bool,
}

impl Volume {
    /// Makes everything durable and keeps the image or device as it is until the result is dropped, so that
    /// it can be copied from outside. Changes that begin meanwhile wait; reads go on. Closing the volume
    /// thaws it.
    ///
    /// The copy opens like a volume after a power cut. A thread that waits for a change of its own while the
    /// volume is frozen by itself waits for ever.
    ///
    /// Errors: `Busy` if the volume is frozen already, `ReadOnly` and `Shutdown` as for changes, and those of
    /// the device; the volume takes changes then.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let (image, copy) = (directory.path().join("image"), directory.path().join("copy"));
    /// # quire::FormatOptions::new().size(16 << 20).format(&image)?;
    /// let volume = quire::Volume::open(&image)?;
    /// volume.write("note", "kept")?;
    /// let frozen = volume.freeze()?;
    /// std::fs::copy(&image, &copy)?;
    /// drop(frozen);
    /// assert_eq!(quire::Volume::open(&copy)?.read("note")?, b"kept");
    /// # Ok(())
    /// # }
    /// ```
    pub fn freeze(&self) -> Result<Frozen> {
        let engine = self.engine();
        engine.store.check_writable()?;
        // Held to the end: a thaw waits for the freeze that is at work.
        let mut freezes = engine.frozen.lock();
        if freezes.in_force {
            return Err(Error::new(ErrorKind::Busy, "the volume is frozen already"));
        }
        let outcome = engine.hold_everything();
        *freezes = Freezes { begun: freezes.begun + 1, in_force: true };
        let frozen = Frozen { engine: engine.clone(), number: freezes.begun };
        drop(freezes);
        outcome.map(|()| frozen)
    }
}

impl Engine {
    fn hold_everything(self: &Arc<Engine>) -> Result<()> {
        self.sync_ahead()?;
        if !self.changes.hold() {
            return Err(Error::new(ErrorKind::Shutdown, "the volume is being closed"));
        }
        self.sync()?;
        let frees = self.store.frees.whole();
        self.store.checkpoint_now()?;
        self.store.device.hold_writes();
        drop(frees);
        self.store.device.flush()
    }

    /// Makes most of what there is durable while changes go on, so that a thread that then keeps them back
    /// has little left.
    pub(crate) fn sync_ahead(self: &Arc<Engine>) -> Result<()> {
        for _ in 0..2 {
            self.sync()?;
            self.store.checkpoint_now()?;
        }
        Ok(())
    }

    /// Ends a freeze, if one is in force.
    pub(crate) fn thaw(&self) {
        self.end_freeze(&mut self.frozen.lock());
    }

    fn end_freeze(&self, freezes: &mut Freezes) {
        if std::mem::take(&mut freezes.in_force) {
            self.store.device.release_writes();
            self.changes.release();
        }
    }
}

impl Inodes {
    /// Ends a freeze, if one is in force: changes that wait go on. For a front end that is to end, and waits
    /// for those changes before it closes the volume.
    pub fn thaw(&self) {
        self.engine().thaw();
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let mut freezes = self.engine.frozen.lock();
        if freezes.begun == self.number {
            self.engine.end_freeze(&mut freezes);
        }
    }
}

impl std::fmt::Debug for Frozen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "frozen volume on {}", self.engine.store.device.name())
    }
}
