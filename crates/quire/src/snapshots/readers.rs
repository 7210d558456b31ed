//! Who reads snapshots of a volume that is in use.
//!
//! What a snapshot names is neither overwritten nor freed while its key is there. So the key must stay while
//! somebody reads it. Readers are counted by the snapshot's name ([`SnapshotReaders`]). A deletion keeps
//! new readers out before it looks whether there are some, and until its record is durable. They wait for
//! that, and look then: a snapshot that a reader has not found is gone after a crash as well.
//!
//! A reader does not keep the live volume open. It goes on when that is closed, and holds the image or device
//! until it is closed itself.
//!
//! Neighbours: [`super::volumes`] opens snapshots; [`super::sweep`] deletes them.

use quire_base::sync::{Arc, Condvar, Mutex};
use quire_base::{Error, ErrorKind, Result};
use std::collections::BTreeMap;

/// The snapshots of a volume that are open for reading, by name.
#[derive(Default)]
pub(crate) struct SnapshotReaders {
    by_name: Mutex<BTreeMap<String, Use>>,
    /// A deletion is durable, or has failed.
    opened: Condvar,
    /// Called before a snapshot is deleted.
    callbacks: Mutex<Vec<Callback>>,
}

pub(super) type Callback = Arc<dyn Fn(&str) + Send + Sync>;

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

impl SnapshotReaders {
    /// Has `callback` called with the name of each snapshot that is about to be deleted.
    pub(super) fn before_deleting(&self, callback: Callback) {
        self.callbacks.lock().push(callback);
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
