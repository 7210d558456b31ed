//! Carrying one round's fixes out, as raw changes of the tree and the orphan slots.
//!
//! Changes gather in the session and are committed in small batches; a fix that reads what an earlier one may
//! have changed is preceded by a commit.
//!
//! Neighbours: [`super::extents`] for fixes of extents, [`super::lost_found`] for inodes without a name.

use crate::analysis::Analysis;
use crate::fix::{Fixes, Patch, Rebuild};
use crate::inodes::ROOT_GENERATION;
use crate::space;
use crate::view::View;
use quire::internals::orphan::Slot;
use quire::internals::repair::Session;
use quire_base::{InodeNo, Result};
use quire_device::Backend;
use quire_format::dirent::{self, DISAMBIGUATOR_MAX, Entry};
use quire_format::inode::{FileType, InodeRecord};
use quire_format::key::{Key, KeyKind};
use quire_format::xattr::{self, Head};
use std::ops::ControlFlow;

/// Changes that wait before they are committed.
const BATCH: usize = 128;
/// Keys that are collected before they are dropped.
const KEYS_AT_ONCE: usize = 1024;

pub(super) struct Mender<'a> {
    pub(super) backend: &'a dyn Backend,
    pub(super) session: &'a mut Session,
    pub(super) view: &'a View<'a>,
    pub(super) analysis: &'a Analysis,
    /// The number that the next inode made here gets.
    pub(super) next_inode: u64,
    /// What cannot be copied may be lost.
    pub(super) gives_up: bool,
}

impl<'a> Mender<'a> {
    pub(super) fn new(
        backend: &'a dyn Backend,
        session: &'a mut Session,
        view: &'a View<'a>,
        analysis: &'a Analysis,
        gives_up: bool,
    ) -> Mender<'a> {
        Mender { backend, session, view, analysis, next_inode: analysis.counters.next_inode, gives_up }
    }

    pub(super) fn put(&mut self, key: Key, value: &[u8]) -> Result<()> {
        self.session.put(key, value);
        self.commit_if_many()
    }

    pub(super) fn delete(&mut self, key: Key) -> Result<()> {
        self.session.delete(key);
        self.commit_if_many()
    }

    pub(super) fn commit_if_many(&mut self) -> Result<()> {
        if self.session.pending() >= BATCH { self.session.commit() } else { Ok(()) }
    }

    /// An inode's record as it is now, if there is one that decodes.
    pub(super) fn record(&self, inode: u64) -> Result<Option<InodeRecord>> {
        let value = self.view.tree.get(Key::inode(InodeNo(inode)))?;
        Ok(value.and_then(|value| InodeRecord::decode(&value).ok()))
    }

    /// All fixes but the accounts; blocks in use are marked first.
    pub(super) fn carry_out(&mut self, fixes: &Fixes) -> Result<()> {
        if fixes.mark_used {
            self.write_regions(false)?;
        }
        for key in &fixes.drop_keys {
            self.delete(*key)?;
        }
        for (key, value) in &fixes.rewrite {
            self.put(*key, value)?;
        }
        for (first, last) in &fixes.drop_ranges {
            self.drop_range(*first, *last)?;
        }
        self.session.commit()?;
        for rebuild in &fixes.rebuild {
            self.rebuild(rebuild)?;
        }
        if fixes.make_root {
            let root = InodeRecord {
                nlink: 2,
                parent: InodeNo::ROOT.0,
                ..self.new_record(FileType::Directory, 0o755)
            };
            self.put(
                Key::inode(InodeNo::ROOT),
                &InodeRecord { generation: ROOT_GENERATION, ..root }.encode(),
            )?;
        }
        self.session.commit()?;
        for (inode, patch) in &fixes.patches {
            self.patch(*inode, patch)?;
        }
        self.session.commit()?;
        self.mend_extents(fixes)?;
        for &(directory, cookie) in &fixes.rehash {
            self.rehash_entry(directory, cookie)?;
        }
        for &(inode, hash, disambiguator) in &fixes.rehash_xattrs {
            self.rehash_xattr(inode, hash, disambiguator)?;
        }
        for &(directory, cookie, kind) in &fixes.retype {
            self.retype(directory, cookie, kind)?;
        }
        self.session.commit()?;
        for &slot in &fixes.clear_slots {
            self.session.orphan_clear(Slot(slot));
            self.commit_if_many()?;
        }
        self.session.commit()?;
        for &inode in &fixes.track {
            self.track(InodeNo(inode))?;
        }
        self.session.commit()?;
        self.name_lost(&fixes.lost)?;
        self.session.commit()
    }

    /// Regions and counters as they truly are; nothing else is wrong any more.
    pub(super) fn settle_accounts(&mut self) -> Result<()> {
        self.write_regions(true)?;
        let counters = self.analysis.counters;
        self.session.set_counters(counters.free_blocks, counters.inodes, counters.next_inode);
        self.session.commit()
    }

    /// Writes every region that does not say what is used; unless `exact`, what is marked stays marked.
    fn write_regions(&mut self, exact: bool) -> Result<()> {
        let mut wrong = Vec::new();
        let extents = &self.analysis.contents.extents;
        let session = &mut *self.session;
        space::compare(self.view, extents, &mut |comparison| {
            let mut bits = comparison.used;
            match &comparison.marked {
                Ok(marked) if !exact => {
                    bits.iter_mut().zip(marked).for_each(|(bits, marked)| *bits |= marked)
                }
                _ => {}
            }
            if exact && comparison.marked_dead.as_ref().ok() != Some(&comparison.dead) {
                session.set_dead(comparison.region, &space::map_of(&comparison.dead)?);
                wrong.push(comparison.region);
            }
            if comparison.marked.as_ref().ok() != Some(&bits) {
                session.set_region(comparison.region, &space::map_of(&bits)?);
                wrong.push(comparison.region);
                if session.pending() >= BATCH {
                    session.commit()?;
                }
            }
            Ok(())
        })?;
        tracing::debug!(regions = wrong.len(), exact, "regions written");
        self.session.commit()
    }

    fn drop_range(&mut self, first: Key, last: Key) -> Result<()> {
        loop {
            let mut keys = Vec::new();
            self.view.tree.scan(first, last, &mut |key, _| {
                keys.push(key);
                if keys.len() < KEYS_AT_ONCE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            if keys.is_empty() {
                return Ok(());
            }
            for key in keys {
                self.delete(key)?;
            }
            self.session.commit()?;
        }
    }

    /// A record as an inode made by a repair gets: owned by user 0, closed to others.
    pub(super) fn new_record(&self, kind: FileType, mode: u32) -> InodeRecord {
        let now = self.view.superblock.checkpointed;
        InodeRecord {
            mode: kind.to_mode() | mode,
            flags: 0,
            uid: 0,
            gid: 0,
            nlink: 1,
            xattr_bytes: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            generation: self.view.superblock.incarnation << 40,
            rdev: 0,
            parent: 0,
        }
    }

    fn rebuild(&mut self, rebuild: &Rebuild) -> Result<()> {
        let kind = rebuild.kind.unwrap_or(FileType::Regular);
        let mode = match kind {
            FileType::Directory => 0o700,
            FileType::Symlink => 0o777,
            _ => 0o600,
        };
        let mut record = self.new_record(kind, mode);
        record.generation = rebuild.generation.unwrap_or(record.generation);
        record.size = if matches!(kind, FileType::Regular | FileType::Symlink) { rebuild.size } else { 0 };
        record.size = record.size.min(quire_format::inode::FILE_SIZE_MAX);
        record.blocks = rebuild.blocks;
        record.xattr_bytes = rebuild.xattr_bytes;
        record.nlink = match kind {
            _ if rebuild.orphan => 0,
            FileType::Directory => 2,
            _ => 1,
        };
        if rebuild.inode == InodeNo::ROOT.0 {
            (record.generation, record.parent) = (ROOT_GENERATION, InodeNo::ROOT.0);
        }
        self.put(Key::inode(InodeNo(rebuild.inode)), &record.encode())
    }

    fn patch(&mut self, inode: u64, patch: &Patch) -> Result<()> {
        let Some(mut record) = self.record(inode)? else { return Ok(()) };
        patch.apply(&mut record);
        self.put(Key::inode(InodeNo(inode)), &record.encode())
    }

    fn track(&mut self, inode: InodeNo) -> Result<()> {
        match self.session.claim_orphan_slot(inode) {
            Some(slot) => self.session.orphan_set(slot, inode),
            None => self.session.put(Key::orphan(inode), &[]),
        }
        self.commit_if_many()
    }

    /// The lowest cookie of a name that is free in a directory; `None` if it has all that there are.
    pub(super) fn free_cookie(&mut self, directory: InodeNo, name: &[u8]) -> Result<Option<u64>> {
        self.session.commit()?;
        let hash = dirent::name_hash(self.view.superblock.hash_seed, name);
        let (first, last) = dirent::cookies_of_hash(hash);
        let mut next = 0u32;
        self.view.tree.scan(Key::entry(directory, first), Key::entry(directory, last), &mut |key, _| {
            if u32::from(dirent::split_cookie(key.offset).1) == next {
                next += 1;
            }
            ControlFlow::Continue(())
        })?;
        let free = u16::try_from(next).ok().filter(|&free| free <= DISAMBIGUATOR_MAX);
        Ok(free.map(|free| dirent::cookie(hash, free)))
    }

    fn rehash_entry(&mut self, directory: u64, cookie: u64) -> Result<()> {
        let directory = InodeNo(directory);
        let key = Key::entry(directory, cookie);
        self.session.commit()?;
        let Some(value) = self.view.tree.get(key)? else { return Ok(()) };
        let Ok(entry) = Entry::decode(&value) else { return Ok(()) };
        // Without a free cookie the name goes; what it named is found without a name.
        if let Some(cookie) = self.free_cookie(directory, entry.name)? {
            self.session.put(Key::entry(directory, cookie), &value);
        }
        self.session.delete(key);
        self.session.commit()
    }

    fn retype(&mut self, directory: u64, cookie: u64, kind: FileType) -> Result<()> {
        let key = Key::entry(InodeNo(directory), cookie);
        let Some(value) = self.view.tree.get(key)? else { return Ok(()) };
        let Ok(entry) = Entry::decode(&value) else { return Ok(()) };
        self.put(key, &Entry { file_type: kind, ..entry }.encode())
    }

    fn rehash_xattr(&mut self, inode: u64, hash: u32, disambiguator: u16) -> Result<()> {
        let number = InodeNo(inode);
        self.session.commit()?;
        let mut pieces = Vec::new();
        let range =
            |hash, from, to| (Key::xattr(number, hash, from, 0), Key::xattr(number, hash, to, u16::MAX));
        let (first, last) = range(hash, disambiguator, disambiguator);
        self.view.tree.scan(first, last, &mut |key, value| {
            pieces.push((key, value.to_vec()));
            ControlFlow::Continue(())
        })?;
        let Some(head) = pieces.first().and_then(|(_, value)| Head::decode(value).ok()) else {
            return Ok(());
        };
        let right = xattr::name_hash(self.view.superblock.hash_seed, head.name);
        let mut next = 0u32;
        let (first, last) = range(right, 0, u16::MAX);
        self.view.tree.scan(first, last, &mut |key, _| {
            let (_, disambiguator, piece) = xattr::split_offset(key.offset);
            if piece == 0 && u32::from(disambiguator) == next {
                next += 1;
            }
            ControlFlow::Continue(())
        })?;
        let free = u16::try_from(next).ok();
        for (key, value) in &pieces {
            debug_assert_eq!(key.kind, KeyKind::Xattr);
            let (_, _, piece) = xattr::split_offset(key.offset);
            self.session.delete(*key);
            if let Some(free) = free {
                self.session.put(Key::xattr(number, right, free, piece), value);
            }
        }
        self.session.commit()
    }
}
