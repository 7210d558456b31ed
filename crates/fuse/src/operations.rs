//! What the requests of a mount mean, over a [`quire::Volume`] and free of any transport's types.
//!
//! A transport decodes a request, calls the function of the same name here, and encodes what it returns.
//! Nodes and open files are plain numbers here, as the kernel knows them: a node's number is its inode number
//! (the root is 1 for both).
//!
//! * [`inode_table`]: which inodes the kernel holds, and how often it has been told of them.
//! * [`file_table`]: the open files.
//! * [`names`]: look-up, create, link, remove, rename, reading directories.
//! * [`kept`]: which files the kernel keeps pages of.
//! * [`data`]: open, read, write, allocate, seek, copy, sync, close.
//! * [`attributes`]: stat and its setters.
//! * [`xattr`]: extended attributes and ACLs; [`properties`]: those that are properties.
//! * [`ioctl`]: control requests; [`lease`]: those for leases of layouts; [`trim`]: the one of `fstrim`.
//! * [`snapshots`]: the volume's snapshots under `.snapshots`.
//! * [`group`]: writes through one open file that take effect together.
//!
//! Invariants: an inode that the kernel knows (its count is not zero) stays alive, name or not, since the
//! table holds a reference. Every change to the tree of a mounted volume goes through its mount, and the
//! kernel updates or drops what it caches on each of its own requests, and is told of what a group changes;
//! so names and attributes may be cached for long ([`CACHE_TIME`]). Only the mode of a file with set-id bits
//! can change behind its back, so such attributes are not cached.

pub mod attributes;
pub mod data;
pub mod file_table;
pub mod group;
pub mod inode_table;
pub mod ioctl;
pub mod kept;
pub mod lease;
pub mod names;
pub mod properties;
pub mod snapshots;
mod trim;
pub mod xattr;

use std::str::FromStr;
use std::time::Duration;

use quire::inodes::InodeRef;
use quire::{Metadata, Statfs, Volume};
use quire_base::sync::Arc;
use quire_base::{Error, ErrorKind, Result};

use data::Opened;
use file_table::FileTable;
use inode_table::{InodeTable, Mark};
use kept::Kept;
use snapshots::{Of, ShowSnapshots, Snapshots};

/// How long the kernel may keep names, the absence of names, and attributes.
pub const CACHE_TIME: Duration = Duration::from_secs(3600);

/// Who caches file data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// The engine: reads and writes of one file run side by side, untorn. Pages of mapped files are cached by
    /// the kernel all the same.
    #[default]
    Engine,
    /// The kernel, as for its own file systems: quicker for a single reader of cached data, but writers of a
    /// file exclude one another and a read that races with a write may see half of it.
    Kernel,
    /// As [`CacheMode::Kernel`], and the kernel keeps what programs write until it writes it back, at the
    /// latest when a program syncs or closes the file. Sizes and times are the kernel's meanwhile.
    Writeback,
    /// The engine, but for files that nobody has open for writing: those who read them read the kernel's
    /// pages ([`kept`]).
    Auto,
}

impl FromStr for CacheMode {
    type Err = String;

    /// The value of the mount option `cache`.
    fn from_str(name: &str) -> std::result::Result<CacheMode, String> {
        match name {
            "engine" => Ok(CacheMode::Engine),
            "auto" => Ok(CacheMode::Auto),
            "kernel" => Ok(CacheMode::Kernel),
            "writeback" => Ok(CacheMode::Writeback),
            other => Err(format!(
                "cache={other}: the choices are cache=engine, cache=auto, cache=kernel and cache=writeback"
            )),
        }
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// User, as the kernel checks permissions for.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
}

impl Caller {
    fn engine(self) -> quire::inodes::Caller {
        quire::inodes::Caller { uid: self.uid, gid: self.gid }
    }
}

/// An inode as told to the kernel, counted in the inode table.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Tells a node from an earlier one of the same number.
    pub generation: u64,
    /// Includes the node's number.
    pub attributes: Metadata,
    /// How long the kernel may keep the name.
    pub name_time: Duration,
}

/// See the module's documentation.
pub struct Operations {
    volume: Volume,
    inodes: InodeTable,
    files: FileTable,
    cache: CacheMode,
    /// All files are written synchronously.
    sync: bool,
    kept: Arc<Kept>,
    snapshots: Snapshots,
}

impl Operations {
    /// Serves `volume`; with `sync` all files are written synchronously.
    pub fn new(volume: Volume, cache: CacheMode, sync: bool, show: ShowSnapshots) -> Operations {
        let inodes = InodeTable::new(volume.inodes().root());
        let (snapshots, kept) = (Snapshots::new(&volume, show), Arc::default());
        Operations { volume, inodes, files: FileTable::default(), cache, sync, kept, snapshots }
    }

    /// The volume served.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The cache that holds file data.
    pub fn cache(&self) -> CacheMode {
        self.cache
    }

    /// Which files the kernel keeps pages of.
    pub fn kept(&self) -> &Arc<Kept> {
        &self.kept
    }

    /// Sizes and counts of the volume.
    pub fn statfs(&self) -> Statfs {
        self.volume.statfs()
    }

    /// Whether the kernel keeps pages of a file that a write, or an open for writing, makes old.
    pub fn changes_kept_pages(&self, node: u64) -> bool {
        self.cache == CacheMode::Auto && self.inodes.is_marked(node, Mark::Paged)
    }

    /// Has `drop_pages` called, which makes the kernel drop all pages of a node, and notes that.
    pub fn drop_pages(&self, node: u64, drop_pages: impl FnOnce()) {
        if self.cache != CacheMode::Auto {
            return drop_pages();
        }
        let opens = self.inodes.opens(node);
        let events = opens.events();
        drop_pages();
        opens.dropped(events, || self.inodes.unmark(node, Mark::Paged));
    }

    /// The inode of a node the kernel holds, for a change or to find more by; an error of kind `ReadOnly` for
    /// a node in a snapshot.
    fn inode(&self, node: u64) -> Result<InodeRef> {
        if snapshots::is_node(node) {
            return Err(Error::new(ErrorKind::ReadOnly, "snapshots are read-only"));
        }
        self.inodes.get(node)
    }

    /// The inode of any node but `.snapshots`, to be read, and what it is of.
    fn readable(&self, node: u64) -> Result<(Of<'_>, InodeRef)> {
        if snapshots::is_node(node) {
            return self.snapshots.inode(node).map(|(volume, inode)| (Of::Snapshot(volume), inode));
        }
        Ok((Of::Live(&self.volume), self.inodes.get(node)?))
    }

    /// Counts one more time that the kernel is told of `inode`.
    fn enter(&self, inode: InodeRef) -> Entry {
        let entry = self.entry(&inode);
        self.inodes.remember(inode);
        entry
    }

    /// What the kernel is told of `inode`.
    fn entry(&self, inode: &InodeRef) -> Entry {
        let attributes = self.volume.inodes().metadata(inode);
        Entry { generation: inode.generation(), attributes, name_time: CACHE_TIME }
    }

    /// The kernel has dropped `count` of the times it was told of a node.
    pub fn forget(&self, node: u64, count: u64) {
        if !snapshots::is_node(node) {
            self.inodes.forget(node, count);
        }
    }

    /// The kernel is not told of an entry after all, nor of the file that was opened with it.
    pub fn take_back(&self, entry: &Entry, opened: Option<Opened>) {
        if let Some(opened) = opened {
            self.files.remove(opened.handle);
        }
        self.forget(entry.attributes.ino().0, 1);
    }

    /// Drops all references to inodes, at the end: the kernel does not say farewell to each.
    pub fn forget_everything(&self) {
        self.files.clear();
        self.inodes.clear();
        self.snapshots.clear();
    }
}
