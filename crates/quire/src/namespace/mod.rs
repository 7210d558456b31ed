//! Names: directories, and the operations that give inodes names and take them away.
//!
//! A directory's entries live in the tree under (directory, Entry, cookie); the cookie is the name's seeded
//! hash and a persistent disambiguator, so it also orders the directory and marks a place in it for good.
//!
//! Protocol of every change, in this order (the design's lock order):
//! 1. The rename mutex, if directories or parents may change places ([`rename`]).
//! 2. Each directory involved, ancestors before descendants, otherwise by number: its liveness (shared;
//!    exclusive where the directory itself goes), then the buckets of the names ([`directory`]). Now its
//!    entries are read: a bucket that is held keeps every entry of that hash as it is.
//! 3. The transaction's reservation; the leaves it will change are loaded.
//! 4. The attributes of the inodes involved, by number ([`records`]); then commit; then memory follows the
//!    journal; then everything is released.
//!
//! Invariants: an entry that can be read under its bucket names an inode that exists and has links; a
//! directory that is dead has no entries and gets none; an inode without links is an orphan, in the same
//! transaction. A directory's own times follow its changes in memory and are journaled later, in batches, so
//! that creates of different names in one directory change no common key; its link count is journaled with
//! the change.
//!
//! Look-ups take no lock. A change of one entry is one key of the tree; a rename changes two, and a
//! directory's *moving* word tells look-ups that one is under way ([`directory::Moving`]).
//!
//! Neighbours: [`crate::store::transaction`] commits, [`crate::inode_table`] finds inodes, [`crate::reaper`]
//! frees what has neither name nor user, [`crate::acl`] and [`crate::xattr`] give new inodes what they
//! inherit.

pub(crate) mod create;
pub(crate) mod directory;
pub(crate) mod entry;
pub(crate) mod link;
pub(crate) mod lookup;
pub(crate) mod readdir;
pub(crate) mod records;
pub(crate) mod rename;
pub(crate) mod symlink;
pub(crate) mod tmpfile;
pub(crate) mod unlink;

pub use create::{Caller, Create};
pub use readdir::DirectoryEntry;
pub use rename::RenameFlags;
