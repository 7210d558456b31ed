//! Quire: a crash-safe, journaling file system in user space, as a library.
//!
//! A volume is an image file or a block device. A program opens it by itself, without a mount or privileges,
//! and finds in it what it knows from [`std::fs`]:
//!
//! ```
//! use quire::{FormatOptions, OpenOptions, Volume};
//!
//! # fn main() -> quire::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let image = directory.path().join("data.img");
//! FormatOptions::new().size(64 << 20).format(&image)?;
//! let volume = Volume::open(&image)?;
//!
//! volume.create_dir_all("logs/2026")?;
//! let log = OpenOptions::new().append(true).create(true).open(&volume, "logs/2026/events")?;
//! log.append(b"started\n")?; // from any number of threads; gives the offset that the record got
//! log.sync_data()?; // durable when it returns
//! assert_eq!(volume.read_to_string("logs/2026/events")?, "started\n");
//!
//! for entry in volume.read_dir("logs")? {
//!     println!("{}", entry?.file_name().display());
//! }
//! # drop(log);
//! volume.close()
//! # }
//! ```
//!
//! | start here | for |
//! | --- | --- |
//! | [`Volume`] | files and directories by path, as the functions of [`std::fs`] |
//! | [`File`], [`OpenOptions`] | reading and writing at offsets, appends, allocation, durability |
//! | [`Cursor`] | [`std::io::Read`], [`Write`](std::io::Write) and [`Seek`](std::io::Seek) on a file |
//! | [`FormatOptions`], [`VolumeOptions`] | making and opening volumes |
//! | [`Properties`] | what a file is to be besides: untorn over a crash, not kept in the cache |
//! | [`SyncOptions`], [`Syncing`], [`DirectIo`] | fsyncs and direct I/O that hold no thread |
//! | [`inodes`] | the volume by inode number, for front ends |
//! | [`backend`] | volumes on something else than a file or a device |
//!
//! # Conventions
//!
//! Everything is [`Send`] and [`Sync`]; any function may be called from any thread. Handles keep the volume
//! open: it is closed by [`Volume::close`], or with the last of them.
//!
//! Options are values whose methods give them back changed; what they are for is their last method: `format`,
//! `open`. A call whose name ends in `_async` is the one without that ending as a future. These futures need
//! no runtime, begin when they are made, and have a `wait` for threads.
//!
//! An [`Error`] has a kind, and a text that says what was being done to what. It becomes a [`std::io::Error`]
//! of the fitting kind with `?`.
//!
//! # What a crash leaves
//!
//! Each operation on names is atomic and ordered. Data is durable when [`File::sync_data`] or
//! [`File::sync_all`] has returned, or a few seconds later in any case. `docs/durability.md` has the promises
//! and the exceptions.
#![deny(missing_docs)]

mod acl;
mod attribute_commit;
mod attributes;
mod background;
mod changes;
mod cursor;
mod direct_io;
mod dirty_inodes;
mod engine;
mod extent_map;
mod file;
mod file_handle;
mod freeze;
mod gate;
mod group;
mod group_handle;
mod grow;
mod inode;
mod inode_table;
pub mod inodes;
mod inspect;
mod lease;
mod lock_order;
mod metadata;
mod metrics;
mod mkfs;
mod namespace;
mod open_options;
mod open_volume;
mod opening;
mod options;
mod paths;
mod properties;
mod read_dir;
mod reaper;
mod receive;
mod recovery;
mod repair;
mod resize;
mod rollback;
mod scrub;
mod send;
mod size_sequence;
mod snapshots;
mod store;
mod trim;
mod volume;
mod walk;
mod xattr;

pub use cursor::Cursor;
pub use direct_io::DirectIo;
pub use file::advice::Advice;
pub use file::syncing::{Durability, SyncOptions, Syncing};
pub use file_handle::File;
pub use freeze::Frozen;
pub use group::Commit;
pub use group_handle::{FileGroup, Group};
pub use lease::grant::LEASE_EXTENTS_MAX;
pub use lease::handle::{LayoutExtent, LayoutLease, Place, Recalled};
pub use metadata::{FileTimes, Metadata};
pub use metrics::{Metric, MetricKind, Metrics};
pub use namespace::RenameFlags;
pub use open_options::OpenOptions;
pub use options::{AccessTimes, FormatOptions, VolumeOptions};
pub use quire_base::{Clock, Error, ErrorKind, InodeNo, Result, Timestamp};
pub use quire_device::AlignedBuf;
pub use quire_format::inode::FileType;
pub use quire_format::properties::{Properties, Unit};
pub use read_dir::{DirEntry, ReadDir};
pub use receive::{ReceiveOptions, Received, UnfinishedReceive};
pub use recovery::RecoveryReport;
pub use resize::ResizeOptions;
#[cfg(not(any(loom, shuttle)))]
pub use resize::{set_label, set_uuid};
#[cfg(not(any(loom, shuttle)))]
pub use rollback::roll_back;
pub use rollback::roll_back_backend;
pub use scrub::{LastScrub, ScrubOptions, ScrubReport, ScrubState, Unreadable};
pub use send::{SendOptions, Sent, StreamProgress};
pub use snapshots::space::{SnapshotSpace, SnapshotsSpace};
pub use snapshots::table::SnapshotInfo;
pub use snapshots::volumes::take_snapshot_backend;
#[cfg(not(any(loom, shuttle)))]
pub use snapshots::volumes::{delete_snapshot, take_snapshot};
pub use volume::{Statfs, Volume, VolumeInfo};

pub mod backend {
    //! What a volume lives on: memory, or whatever implements [`Backend`].
    //!
    //! ```
    //! use quire::backend::MemoryBackend;
    //! use quire::{FormatOptions, VolumeOptions};
    //! use std::sync::Arc;
    //!
    //! # fn main() -> quire::Result<()> {
    //! let memory = Arc::new(MemoryBackend::new(16384)); // blocks of 4096 bytes
    //! FormatOptions::new().format_backend(memory.clone())?;
    //! let volume = VolumeOptions::new().open_backend(memory)?;
    //! volume.write("note", "gone when the program ends")?;
    //! # volume.close()
    //! # }
    //! ```

    pub use quire_base::{BLOCK_SIZE, BlockNo};
    pub use quire_device::{Backend, Done, Io, IoClass, IoOp, MemoryBackend, Segment};
}

#[doc(hidden)]
pub mod internals {
    //! For the parts of Quire itself that look behind the library: fsck, the simulator, measurements and
    //! models. Anything here may change at any time.

    /// See the module of this name.
    pub mod dirty_inodes {
        pub use crate::dirty_inodes::*;
    }
    /// See the module of this name.
    pub mod gate {
        pub use crate::gate::*;
    }
    /// See the module of this name.
    pub mod snapshots {
        pub use crate::rollback::roll_back_with;
        pub use crate::snapshots::table::{BASE_NAME, Held, known_held, table};
    }
    /// See the module of this name.
    pub mod inspect {
        pub use crate::inspect::*;
    }
    /// See the module of this name.
    pub mod lease {
        pub use crate::lease::marks::*;
        pub use crate::lease::table::*;
    }
    /// See the module of this name.
    pub mod orphan {
        pub use crate::store::orphan_slots::*;
    }
    /// See the module of this name.
    pub mod range_lock {
        pub use crate::file::range_lock::*;
    }
    /// See the module of this name.
    pub mod repair {
        pub use crate::repair::*;
    }
    /// See the module of this name.
    pub mod room_queue {
        pub use crate::store::room_queue::*;
    }
    /// See the module of this name.
    pub mod size_sequence {
        pub use crate::size_sequence::*;
    }
    /// See the module of this name.
    pub mod sync_queue {
        pub use crate::file::sync_queue::*;
    }
}

/// The first program of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
