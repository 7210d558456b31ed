//! Reading snapshots of a volume that is in use.
//!
//! [`Volume::open_snapshot`] gives a second, read-only volume over the same device: the tree that the
//! snapshot keeps, opened beside the live one. It has a node cache of its own, and shares the page cache, so
//! that all that is open of a volume keeps to one limit. It needs no protocol with changes of the live
//! volume: what a snapshot names is neither overwritten nor freed while its key is there.
//!
//! So the key must stay. Readers are counted by the snapshot's name ([`SnapshotReaders`]). A deletion keeps
//! new readers out before it looks whether there are some, and until its record is durable. They wait for
//! that, and look then: a snapshot that a reader has not found is gone after a crash as well.
//!
//! A reader does not keep the live volume open. It goes on when that is closed, and holds the image or device
//! until it is closed itself.
//!
//! Neighbours: [`crate::snapshots`] deletes; [`crate::recovery`] loads trees of checkpoints.

use crate::options::VolumeOptions;
use crate::recovery;
use crate::volume::Volume;
use quire_base::sync::{Arc, Condvar, Mutex};
use quire_base::{Context, Error, ErrorKind, Result, patience};
use std::collections::BTreeMap;

/// A reader's limit for tree nodes is this part of the volume's.
const NODE_CACHE_SHARE: u64 = 8;
/// The least of it, in bytes.
const NODE_CACHE_BYTES_MIN: u64 = 1 << 20;

/// The snapshots of a volume that are open for reading, by name.
#[derive(Default)]
pub(crate) struct SnapshotReaders {
    by_name: Mutex<BTreeMap<String, Use>>,
    /// A deletion is durable, or has failed.
    opened: Condvar,
    /// Called before a snapshot is deleted.
    callbacks: Mutex<Vec<Callback>>,
}

type Callback = Arc<dyn Fn(&str) + Send + Sync>;

enum Use {
    /// So many readers have it open.
    Read(usize),
    /// It is about to be deleted; the record is not durable yet.
    Closed,
}

/// A reader, counted until this is dropped.
pub(crate) struct Reading {
    readers: Arc<SnapshotReaders>,
    name: String,
}

/// A snapshot that nobody reads, and nobody begins to read until this is dropped.
pub(crate) struct Unread {
    readers: Arc<SnapshotReaders>,
    name: String,
}

impl SnapshotReaders {
    /// Counts a reader, once no deletion begins.
    pub(crate) fn enter(self: &Arc<SnapshotReaders>, name: &str) -> Reading {
        let mut all = self.by_name.lock();
        while matches!(all.get(name), Some(Use::Closed)) {
            self.opened.wait(&mut all);
        }
        if let Use::Read(count) = all.entry(name.to_owned()).or_insert(Use::Read(0)) {
            *count += 1;
        }
        drop(all);
        Reading { readers: self.clone(), name: name.to_owned() }
    }

    /// Keeps readers out; an error of kind `Busy` if there are some.
    pub(crate) fn keep_out(self: &Arc<SnapshotReaders>, name: &str) -> Result<Unread> {
        let callbacks = self.callbacks.lock().clone();
        callbacks.iter().for_each(|callback| callback(name));
        let mut all = self.by_name.lock();
        match all.get(name) {
            None => {
                all.insert(name.to_owned(), Use::Closed);
                Ok(Unread { readers: self.clone(), name: name.to_owned() })
            }
            Some(Use::Read(count)) => Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "the snapshot {name:?} is open for reading ({count} times); close its files and leave its \
                     directories, then delete it again"
                ),
            )),
            Some(Use::Closed) => {
                Err(Error::new(ErrorKind::Busy, format!("the snapshot {name:?} is already being deleted")))
            }
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut all = self.readers.by_name.lock();
        if let Some(Use::Read(count)) = all.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.name);
            }
        }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.readers.by_name.lock().remove(&self.name);
        self.readers.opened.notify_all();
    }
}

impl Volume {
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
        if engine.store.options.snapshot.is_some() {
            let why = "a snapshot has no snapshots of its own; open those of the volume";
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        patience::check("the snapshot to be opened")?;
        let reading = engine.readers.enter(name);
        let (_, snapshot) = crate::snapshots::find(&engine.store.tree, name)?;
        let reader =
            recovery::open_beside(engine, snapshot.superblock, reader_options(&engine.store.options, name))
                .context(format_args!("snapshot {name:?}"))?;
        Volume::reader(reader, reading)
    }

    /// Whether this is a snapshot of a volume.
    pub fn is_snapshot(&self) -> bool {
        self.engine().store.options.snapshot.is_some()
    }

    /// Calls `callback` with the name of each snapshot that is about to be deleted. A front end that has it
    /// open and does not need it can close it there, and so lets it be deleted. The callback must not keep
    /// the volume open.
    pub fn before_deleting_snapshots(&self, callback: impl Fn(&str) + Send + Sync + 'static) {
        self.engine().readers.callbacks.lock().push(Arc::new(callback));
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
