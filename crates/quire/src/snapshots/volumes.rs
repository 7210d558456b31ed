//! Snapshots as callers see them: of a volume that is open, and of one that nobody has open.
//!
//! [`Volume::open_snapshot`] gives a second, read-only volume over the same device: the tree that the
//! snapshot keeps, opened beside the live one. It has a node cache of its own, and shares the page cache, so
//! that all that is open of a volume keeps to one limit. It needs no protocol with changes of the live
//! volume: what a snapshot names is neither overwritten nor freed while its key is there.
//!
//! Neighbours: [`super::taking`], [`super::sweep`] and [`super::readers`] do the work.

use super::sweep::Left;
use super::table::{SnapshotInfo, find, table};
use crate::engine::Engine;
use crate::options::VolumeOptions;
use crate::recovery;
use crate::volume::Volume;
use quire_base::sync::{Arc, thread};
use quire_base::{Context, Error, ErrorKind, Result, patience};

/// A reader's limit for tree nodes is this part of the volume's.
const NODE_CACHE_SHARE: u64 = 8;
/// The least of it, in bytes.
const NODE_CACHE_BYTES_MIN: u64 = 1 << 20;

impl Volume {
    /// The volume's snapshots, the oldest first; none of a snapshot that is open as a volume.
    pub fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        if self.is_snapshot() {
            return Ok(Vec::new());
        }
        Ok(table(&self.engine().store.tree)?
            .iter()
            .map(|(number, snapshot)| SnapshotInfo::of(*number, snapshot))
            .collect())
    }

    /// Takes a snapshot. Others may use the volume: changes that begin meanwhile wait for a moment, reads go
    /// on. The snapshot has what all changes made that had returned before, and is durable.
    ///
    /// Errors: `Exists` if there is one of that name; `Invalid` if none can have it; `Busy` if the volume is
    /// frozen, or has an operation that a crash cut off and the opening had no room to finish; `NoSpace`;
    /// `ReadOnly` and `Shutdown` as for changes; those of the device. There is no snapshot then.
    ///
    /// ```
    /// # use quire::{FormatOptions, VolumeOptions, backend::MemoryBackend};
    /// # fn main() -> quire::Result<()> {
    /// # let device = std::sync::Arc::new(MemoryBackend::new(16384));
    /// # FormatOptions::new().format_backend(device.clone())?;
    /// # let volume = VolumeOptions::new().open_backend(device.clone())?;
    /// volume.write("note", "first")?;
    /// volume.take_snapshot("monday")?;
    /// volume.write("note", "second")?;
    /// volume.close()?;
    /// let monday = VolumeOptions::new().read_only(true).snapshot("monday").open_backend(device)?;
    /// assert_eq!(monday.read("note")?, b"first");
    /// # Ok(())
    /// # }
    /// ```
    pub fn take_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        let engine = self.engine();
        engine.retry_without_space(|| engine.take_snapshot(name))
    }

    /// Deletes a snapshot, and returns when its space is free. Others that use the volume go on meanwhile.
    ///
    /// Errors: `NotFound`; `Busy` while it is open ([`Volume::open_snapshot`]); `Shutdown` if the volume is
    /// closed before the end. After that, or after a crash, the next opening for writing goes on with the
    /// deletion.
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        let engine = self.engine();
        let number = engine.mark_deleted(name)?;
        while engine.store.snapshots.has(number) {
            let change = engine.begin_change()?;
            let left = engine.sweep_step()?;
            drop(change);
            if let Left::More(rest) = left
                && !rest.is_zero()
            {
                thread::sleep(rest);
            }
        }
        Ok(())
    }

    /// Deletes a snapshot in the background: it cannot be opened any more when this returns, and will be
    /// deleted whatever happens. Its space is free later, [`Volume::snapshots`] lists it until then.
    ///
    /// Errors: `NotFound`; `Busy` while it is open ([`Volume::open_snapshot`]).
    pub fn delete_snapshot_later(&self, name: &str) -> Result<()> {
        let engine = self.engine();
        engine.mark_deleted(name)?;
        engine.reaper.want_sweep();
        Ok(())
    }

    /// Opens a snapshot of this volume for reading, while the volume is in use. It has the page cache, and so
    /// the limit of memory, of this volume; its tree nodes take an eighth of this volume's node cache beside.
    ///
    /// The snapshot cannot be deleted until the last handle of the result is dropped. When this volume is
    /// closed, the result can still be read; the image or device stays open until it is dropped.
    ///
    /// Errors: `NotFound`; `Unsupported` if this is itself a snapshot.
    ///
    /// ```
    /// # use quire::{FormatOptions, Volume, take_snapshot};
    /// # fn main() -> quire::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let image = directory.path().join("image");
    /// # FormatOptions::new().size(64 << 20).format(&image)?;
    /// # let volume = Volume::open(&image)?;
    /// # volume.write("report", "as it was")?;
    /// # volume.close()?;
    /// take_snapshot(&image, "monday")?;
    /// let volume = Volume::open(&image)?;
    /// volume.write("report", "changed since")?;
    /// let monday = volume.open_snapshot("monday")?;
    /// volume.write("report", monday.read("report")?)?;
    /// drop(monday);
    /// volume.delete_snapshot("monday")?;
    /// # volume.close()
    /// # }
    /// ```
    pub fn open_snapshot(&self, name: &str) -> Result<Volume> {
        let engine = self.engine();
        engine.may_have_snapshots()?;
        patience::check("the snapshot to be opened")?;
        let reading = engine.readers.enter(name);
        let (_, snapshot) = find(&engine.store.tree, name)?;
        let reader =
            recovery::open_beside(engine, snapshot.superblock, reader_options(&engine.store.options, name))
                .context(format_args!("snapshot {name:?}"))?;
        Volume::reader(reader, reading)
    }

    /// Whether this is a snapshot of a volume. A volume with an unfinished receive opens as one, too: as it
    /// was before.
    pub fn is_snapshot(&self) -> bool {
        self.engine().store.options.snapshot.is_some()
    }

    /// Calls `callback` with the name of each snapshot that is about to be deleted. A front end that has it
    /// open and does not need it can close it there, and so lets it be deleted. The callback must not keep
    /// the volume open.
    pub fn before_deleting_snapshots(&self, callback: impl Fn(&str) + Send + Sync + 'static) {
        self.engine().readers.before_deleting(Arc::new(callback));
    }
}

impl Engine {
    /// The tree of a snapshot lists those of its day. What they had may be others' by now, and nobody keeps
    /// them while they are read.
    ///
    /// Errors: `Unsupported` if this is one.
    pub(crate) fn may_have_snapshots(&self) -> Result<()> {
        if self.store.options.snapshot.is_none() {
            return Ok(());
        }
        let why = "a snapshot has no snapshots of its own (open those of the volume), nor has a volume with an \
                   unfinished receive";
        Err(Error::new(ErrorKind::Unsupported, why))
    }
}

/// How a reader is opened, of a volume that was opened so.
fn reader_options(volume: &VolumeOptions, name: &str) -> VolumeOptions {
    let nodes = volume.node_cache_limit(recovery::default_cache_bytes) / NODE_CACHE_SHARE;
    VolumeOptions {
        read_only: true,
        discard: false,
        reshape: None,
        roll_back: None,
        snapshot: Some(name.to_owned()),
        node_cache_bytes: Some(nodes.max(NODE_CACHE_BYTES_MIN)),
        ..volume.clone()
    }
}

/// Takes a snapshot of the volume in an image file or on a block device. Nobody may have it open.
///
/// Errors: `Exists` if there is one of that name; `Invalid` if none can have it; `Busy` if the volume is
/// mounted or open elsewhere.
#[cfg(not(any(loom, shuttle)))]
pub fn take_snapshot(path: impl AsRef<std::path::Path>, name: &str) -> Result<SnapshotInfo> {
    take_snapshot_backend(quire_device::open_image(path.as_ref(), quire_device::OpenMode::ReadWrite)?, name)
}

/// As [`take_snapshot`], of a volume on any backend.
pub fn take_snapshot_backend(backend: Arc<dyn quire_device::Backend>, name: &str) -> Result<SnapshotInfo> {
    let volume = Volume::open_with(backend, &VolumeOptions { threads: false, ..VolumeOptions::new() })?;
    let taken = volume.take_snapshot(name);
    let closed = volume.close();
    taken.and_then(|taken| closed.map(|()| taken))
}

/// Deletes a snapshot of the volume in an image file or on a block device. Nobody may have it open.
///
/// Errors: `NotFound`; `Busy`.
#[cfg(not(any(loom, shuttle)))]
pub fn delete_snapshot(path: impl AsRef<std::path::Path>, name: &str) -> Result<()> {
    let backend = quire_device::open_image(path.as_ref(), quire_device::OpenMode::ReadWrite)?;
    let volume = Volume::open_with(backend, &VolumeOptions { threads: false, ..VolumeOptions::new() })?;
    let deleted = volume.delete_snapshot(name);
    let closed = volume.close();
    deleted.and(closed)
}
