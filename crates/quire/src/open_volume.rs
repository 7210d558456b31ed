//! What the handles of an open volume share: the engine, its threads, and the end.
//!
//! Protocol of a close: refuse changes, and wait for those under way; end leases and a freeze; free orphans
//! and sync; stop the threads; sync what they have left; write the last checkpoint, marked clean; shut the
//! engine down. The last handle that is dropped does the same.
//!
//! Invariants: a close is `Ok` only if all that the volume had accepted is durable. All closes have one
//! outcome: the first does the work, others wait for it.
//!
//! Neighbours: [`crate::volume`] and [`crate::inodes`] are its faces; [`crate::recovery`] makes the engine.

use crate::background::Threads;
use crate::engine::Engine;
use crate::inode::InodeRef;
use crate::options::VolumeOptions;
use crate::recovery::{self, RecoveryReport};
use crate::snapshots::readers::Reading;
use quire_base::process::AtWork;
use quire_base::sync::{Arc, Mutex};
use quire_base::{Error, ErrorKind, InodeNo, Result};
use quire_device::Backend;

/// What the clones of a volume share.
pub(crate) struct OpenVolume {
    pub(crate) engine: Arc<Engine>,
    threads: Threads,
    pub(crate) recovery: RecoveryReport,
    /// How the close went. Held for all of it, outside of every other lock.
    closed: Mutex<Option<Result<()>>>,
    /// Keeps the root directory in memory.
    root: InodeRef,
    /// Of a snapshot that is read beside its volume: keeps it from being deleted.
    _reading: Option<Reading>,
    _at_work: AtWork,
}

impl OpenVolume {
    /// Opens a volume.
    pub(crate) fn open(backend: Arc<dyn Backend>, options: &VolumeOptions) -> Result<OpenVolume> {
        let at_work = AtWork::begin()?;
        let threads = options.threads;
        let (mut engine, recovery) = recovery::open(backend.clone(), options.clone())?;
        if engine.store.shows_half_an_operation() {
            drop(engine);
            let settled = settled_in_memory(backend, options)?;
            (engine, _) = recovery::open(settled, options.clone())?;
        }
        let root = root_of(&engine)?;
        let volume = OpenVolume {
            engine,
            threads: Threads::default(),
            recovery,
            closed: Mutex::new(None),
            root,
            _reading: None,
            _at_work: at_work,
        };
        if threads {
            volume.engine.cache.start()?;
            if !volume.engine.store.read_only {
                volume.threads.start(&volume.engine)?;
            }
        }
        Ok(volume)
    }

    /// The volume of an engine that reads a snapshot beside its volume.
    pub(crate) fn reader(engine: Arc<Engine>, reading: Reading) -> Result<OpenVolume> {
        let at_work = AtWork::begin()?;
        let root = root_of(&engine)?;
        Ok(OpenVolume {
            engine,
            threads: Threads::default(),
            recovery: RecoveryReport::default(),
            closed: Mutex::new(None),
            root,
            _reading: Some(reading),
            _at_work: at_work,
        })
    }

    pub(crate) fn root(&self) -> InodeRef {
        self.root.clone()
    }

    /// Closes the volume, once; all callers get the outcome.
    pub(crate) fn close(&self) -> Result<()> {
        let mut closed = self.closed.lock();
        if let Some(outcome) = &*closed {
            return outcome.clone();
        }
        // What others get if this one panics.
        *closed = Some(Err(Error::new(ErrorKind::Shutdown, "closing the volume did not come to its end")));
        let outcome = self.close_once();
        *closed = Some(outcome.clone());
        outcome
    }

    fn close_once(&self) -> Result<()> {
        let engine = &self.engine;
        let mut outcome = Ok(());
        let is_sound = !engine.store.read_only && engine.store.failure().is_none();
        if is_sound {
            engine.changes.refuse();
        }
        // Operations that wait for leases are no changes under way; they go on, and find the volume closing.
        engine.leases.close();
        engine.thaw();
        if is_sound {
            engine.drain_reaper();
            outcome = engine.sync();
        }
        self.threads.stop(engine);
        engine.released.drop_all();
        if !engine.beside {
            engine.cache.stop();
        }
        match engine.store.failure() {
            _ if engine.store.read_only => {}
            // What was accepted before the failure may be lost.
            Some(failure) => outcome = outcome.and(Err(failure)),
            None => {
                // What the threads have left, and what had been admitted to be made durable.
                outcome = outcome.and_then(|()| engine.sync()).and_then(|()| engine.store.checkpoint_clean());
                if outcome.is_ok() {
                    engine.store.discard_the_rest();
                    engine.store.check_nothing_reserved();
                }
                let error = Error::new(ErrorKind::Shutdown, "the volume is closed");
                engine.store.shut_down_quietly(&error);
            }
        }
        engine.inodes.clear();
        outcome
    }
}

impl Drop for OpenVolume {
    fn drop(&mut self) {
        let is_closed = self.closed.lock().is_some();
        if is_closed {
            // What was looked up since the close holds the engine, which holds it.
            self.engine.inodes.clear();
        } else if let Err(error) = self.close() {
            tracing::error!(%error, "closing the volume");
        }
    }
}

/// The root directory, in memory. On an error the engine ends with its last user.
fn root_of(engine: &Arc<Engine>) -> Result<InodeRef> {
    engine.inode(InodeNo::ROOT).map_err(|error| {
        // The volume is not opened, and inodes that recovery has loaded hold the engine.
        engine.inodes.clear();
        match error.kind() {
            // A volume whose root directory is gone, unlinked or no inode is damaged, whatever the lookup
            // calls it.
            ErrorKind::Stale | ErrorKind::NotFound => {
                error.with_kind(ErrorKind::Corrupt).context("root directory")
            }
            _ => error,
        }
    })
}

/// The volume as it will be when the operation that a crash cut in two is finished, if there is room for
/// that; the device stays as it is.
fn settled_in_memory(backend: Arc<dyn Backend>, options: &VolumeOptions) -> Result<Arc<dyn Backend>> {
    tracing::info!("finishing in memory what a crash cut in two: the volume is opened read-only");
    let overlay: Arc<dyn Backend> = Arc::new(quire_device::OverlayBackend::new(backend));
    let options = VolumeOptions { read_only: false, threads: false, ..options.clone() };
    recovery::settle(overlay.clone(), options)?;
    Ok(overlay)
}
