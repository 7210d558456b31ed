//! Listing a directory.
//!
//! Protocol: entries are read from the tree in batches, in the order of their cookies, from behind the last
//! cookie given; no lock is held and no latch, while the caller looks at them. A name that exists for the
//! whole listing and is not renamed meanwhile is listed once; one that comes or goes meanwhile may be listed
//! or not (as POSIX has it).
//!
//! Invariants: "." has the cookie 1, ".." 2, entries come behind; a cookie stays good for ever.
//!
//! Neighbours: `format::dirent` for cookies.

use super::directory::enter_live;
use crate::engine::Engine;
use crate::inode::InodeRef;
use quire_base::sync::Arc;
use quire_base::{Context, InodeNo, Result};
use quire_format::dirent::{self, COOKIE_DOT, COOKIE_DOT_DOT, Entry};
use quire_format::inode::FileType;
use quire_format::key::Key;
use std::ops::{ControlFlow, Range};

/// Entries that are read at once.
const BATCH_ENTRIES: usize = 128;

/// One line of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// The name.
    pub name: &'a [u8],
    /// What it names.
    pub inode: InodeNo,
    /// That inode's type.
    pub kind: FileType,
    /// Marks the place: a listing goes on behind this entry if it is given this cookie.
    pub cookie: u64,
}

/// Entries read and not yet given, their names in one buffer.
#[derive(Default)]
struct Batch {
    names: Vec<u8>,
    entries: Vec<(Range<usize>, InodeNo, FileType, u64)>,
}

impl Batch {
    fn push(&mut self, cookie: u64, value: &[u8]) -> Result<()> {
        dirent::check_cookie(cookie)?;
        let entry = Entry::decode(value)?;
        let start = self.names.len();
        self.names.extend_from_slice(entry.name);
        self.entries.push((start..self.names.len(), entry.inode, entry.file_type, cookie));
        Ok(())
    }
}

impl Engine {
    /// Lists a directory from behind the cookie `after` (0: from the start) until `visit` returns false or
    /// the end is reached. `visit` is called without any lock held. A removed directory gives `NotFound`.
    pub(crate) fn read_directory(
        self: &Arc<Engine>,
        directory: &InodeRef,
        after: u64,
        visit: &mut dyn FnMut(DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        drop(enter_live(directory)?);
        directory.touch_read();
        self.list_directory(directory, after, visit)
    }

    /// As [`Engine::read_directory`], also of one that is removed. Leaves no access time.
    pub(crate) fn list_directory(
        &self,
        directory: &InodeRef,
        after: u64,
        visit: &mut dyn FnMut(DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut dots = |name, inode, cookie| {
            after >= cookie || visit(DirectoryEntry { name, inode, kind: FileType::Directory, cookie })
        };
        if !dots(b".".as_slice(), directory.number(), COOKIE_DOT) {
            return Ok(());
        }
        let parent = InodeNo(directory.meta().record.parent);
        if !dots(b"..", parent, COOKIE_DOT_DOT) {
            return Ok(());
        }
        let mut after = after.max(COOKIE_DOT_DOT);
        let mut batch = Batch::default();
        loop {
            self.read_batch(directory.number(), after, &mut batch)?;
            for (name, inode, kind, cookie) in batch.entries.drain(..) {
                if !visit(DirectoryEntry { name: &batch.names[name], inode, kind, cookie }) {
                    return Ok(());
                }
                after = cookie;
            }
            if batch.names.is_empty() {
                return Ok(());
            }
        }
    }

    fn read_batch(&self, directory: InodeNo, after: u64, batch: &mut Batch) -> Result<()> {
        batch.names.clear();
        batch.entries.clear();
        let Some(first) = after.checked_add(1) else { return Ok(()) };
        let mut broken = Ok(());
        self.store.tree.scan(
            Key::entry(directory, first),
            Key::entry(directory, u64::MAX),
            &mut |key, value| {
                broken = batch.push(key.offset, value);
                if broken.is_err() || batch.entries.len() == BATCH_ENTRIES {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            },
        )?;
        broken.context(format_args!("listing directory {directory}"))
    }
}
