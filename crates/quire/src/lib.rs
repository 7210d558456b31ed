//! Quire: a crash-safe, journaling file system in user space, as a library.
//!
//! ```
//! use quire::{FormatOptions, OpenOptions, Volume, VolumeOptions};
//!
//! # fn main() -> quire::Result<()> {
//! let folder = tempfile::tempdir().unwrap();
//! let image = folder.path().join("data.img");
//! Volume::format_image(&image, &FormatOptions { size: Some(64 << 20), ..Default::default() })?;
//! let volume = Volume::open(&image, VolumeOptions::default())?;
//! let file = volume.open_file("log", OpenOptions::new().write(true).create(true))?;
//! file.write_at(b"hello", 0)?;
//! file.sync_all()?;
//! drop(file);
//! volume.close()
//! # }
//! ```
//!
//! | start here | for |
//! | --- | --- |
//! | [`Volume`] | inodes, names, attributes, data: what a front end needs |
//! | [`library`] | paths, files and directories on top of it |
//! | [`FormatOptions`], [`VolumeOptions`] | making and opening volumes |
//! | [`inspect`] | what `quire dump` and fsck look at |
//!
//! Inside: [`engine`] holds the parts; [`transaction`], [`apply`], [`checkpoint`] and [`recovery`] are the commit
//! protocol; [`inode`], [`inode_table`], [`orphan`] and [`reaper`] the life of an inode; `namespace` the names;
//! [`file`] the data; [`gate`] and [`lock_order`] the rules between them.

mod acl;
mod apply;
mod attribute_commit;
mod attributes;
mod background;
pub mod changes;
mod checkpoint;
pub mod dirty_inodes;
pub mod engine;
mod extent_map;
pub mod file;
pub mod gate;
pub mod inode;
mod inode_numbers;
mod inode_table;
pub mod inodes;
pub mod inspect;
pub mod library;
pub mod lock_order;
mod measures;
pub mod mkfs;
mod namespace;
mod options;
pub mod orphan;
mod pool_promise;
mod reap_queue;
mod reaper;
mod recovered_orphans;
pub mod recovery;
pub mod repair;
mod reservation;
pub mod room_queue;
pub mod seen;
pub mod transaction;
mod volume;
mod xattr;

pub use attributes::Attributes;
pub use file::advice::Advice;
pub use file::syncing::{Durability, SyncOptions, Syncing};
pub use library::{Directory, File, OpenOptions};
pub use measures::{Measure, MeasureKind};
pub use namespace::RenameFlags;
pub use options::{AccessTimes, FormatOptions, OrphanTracking, VolumeOptions};
pub use quire_base::{Clock, Error, ErrorKind, InodeNo, Result, Timestamp};
pub use quire_device::{AlignedBuf, Backend, MemoryBackend};
pub use quire_format::inode::FileType;
pub use recovery::RecoveryReport;
pub use volume::{Metrics, Statfs, Volume, VolumeInfo};
