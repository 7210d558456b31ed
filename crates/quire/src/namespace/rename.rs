//! Renaming: one transaction, whatever it moves, replaces or exchanges.
//!
//! Protocol. Between two directories the rename mutex is held: only its holder changes a directory's parent,
//! so the way from a directory to the root stands still, and with it the order in which directories are
//! locked (ancestors first, unrelated ones by number). Then the directories are entered, the entries read,
//! and everything that forbids the rename is checked before anything is reserved. A directory that is
//! replaced is held dead-exclusively, as in rmdir; one that is an ancestor of the source cannot be empty, and
//! is refused before it would be locked out of order.
//!
//! A whiteout that a rename leaves behind is made before, as an inode without a name, and gets the old name
//! in the rename's transaction.
//!
//! With `auto_da_alloc` the data of a file that is about to replace another is written back before any lock
//! is taken: after a crash the name stands for the old contents or for the new ones, never for an empty file.
//!
//! Invariants: a name that exists before and after exists throughout, for look-ups too
//! ([`super::directory::Moving`]); the replaced entry keeps its cookie.
//!
//! Neighbours: [`super::unlink`] for what is replaced.

use super::create::Create;
use super::directory::{Doomed, Entered, Moving, enter, enter_two};
use super::entry::{Found, Search, exists, not_found, shown};
use super::link::{ENTRY_BYTES_MAX, check_new_name};
use super::records::Records;
use super::unlink::{is_directory, not_directory};
use crate::engine::Engine;
use crate::inode::InodeRef;
use crate::store::transaction::{Cost, Depends, Transaction};
use quire_base::patience;
use quire_base::sync::Arc;
use quire_base::{Error, ErrorKind, InodeNo, Result};
use quire_format::dirent::{self, Entry};
use quire_format::inode::{FileType, INODE_BYTES};
use quire_format::key::Key;

bitflags::bitflags! {
    /// What a rename does when the new name exists, or must do.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// Fail if the new name exists (RENAME_NOREPLACE).
        const NOREPLACE = 1;
        /// Both names exist, and change places (RENAME_EXCHANGE).
        const EXCHANGE = 2;
        /// Leave a character device 0, 0 under the old name (RENAME_WHITEOUT): to overlayfs, a file that has
        /// been removed from a layer below. It belongs to user and group 0.
        const WHITEOUT = 4;
    }
}

/// A name in a directory.
#[derive(Clone, Copy)]
struct Name<'a> {
    directory: &'a InodeRef,
    name: &'a [u8],
    hash: u64,
}

/// A name with what it names.
struct Named<'a> {
    place: Name<'a>,
    found: Found,
    inode: InodeRef,
}

/// The ways from both directories of a rename to the root, each with the directory itself first. They stand
/// still while the rename mutex is held.
struct Ancestry {
    from: Vec<InodeNo>,
    to: Vec<InodeNo>,
}

impl Ancestry {
    /// True if the target's directory must be locked before the source's.
    fn target_first(&self) -> bool {
        let (from, to) = (self.from[0], self.to[0]);
        if self.from.contains(&to) {
            true
        } else if self.to.contains(&from) {
            false
        } else {
            to < from
        }
    }
}

impl Engine {
    /// Renames. Kinds: `NotFound`, `Exists` (NOREPLACE), `IsDirectory`, `NotDirectory`, `NotEmpty`, `Invalid`
    /// for a directory that would be moved below itself.
    pub(crate) fn rename(
        self: &Arc<Engine>,
        from: &InodeRef,
        from_name: &[u8],
        to: &InodeRef,
        to_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let _change = self.begin_change()?;
        let others = RenameFlags::NOREPLACE | RenameFlags::WHITEOUT;
        if flags.contains(RenameFlags::EXCHANGE) && flags.intersects(others)
            || flags.bits() & !RenameFlags::all().bits() != 0
        {
            return Err(Error::invalid(
                "a rename exchanges, or does not replace and leaves a whiteout, or neither",
            ));
        }
        from.names()?;
        to.names()?;
        dirent::check_name(from_name)?;
        if flags.contains(RenameFlags::NOREPLACE) {
            check_new_name(to, to_name)?;
        }
        dirent::check_name(to_name)?;
        self.help_reaper();
        let source = Name { directory: from, name: from_name, hash: self.store.name_hash(from_name) };
        let target = Name { directory: to, name: to_name, hash: self.store.name_hash(to_name) };
        if !flags.intersects(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE)
            && self.store.options.auto_da_alloc
        {
            self.write_back_before_replacing(source, target)?;
        }
        self.retry_without_space(|| self.rename_checked(source, target, flags))
    }

    fn rename_checked(
        self: &Arc<Engine>,
        source: Name<'_>,
        target: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let (from, to) = (source.directory, target.directory);
        if from.number() == to.number() {
            let _entered = enter_two(from, source.hash, target.hash)?;
            return self.rename_entered(source, target, None, flags);
        }
        let _rename = if patience::may_wait() {
            self.rename.lock()
        } else {
            // Its holder may wait for the device.
            let busy = || Error::new(ErrorKind::WouldBlock, "another rename is under way");
            self.rename.try_lock().ok_or_else(busy)?
        };
        let ancestry = Ancestry { from: self.way_to_root(from)?, to: self.way_to_root(to)? };
        let _entered = enter_both(source, target, ancestry.target_first())?;
        self.rename_entered(source, target, Some(&ancestry), flags)
    }

    /// Writes a file's data back if it is about to replace another file. What is found here may have changed
    /// by the time the rename is done, which then replaces something written by somebody else at the same
    /// time.
    fn write_back_before_replacing(self: &Arc<Engine>, source: Name<'_>, target: Name<'_>) -> Result<()> {
        let find = |place: Name<'_>| -> Result<Option<Found>> {
            let search = self.store.search_entry(place.directory.number(), place.hash, place.name)?;
            Ok(search.found.filter(|found| found.kind == FileType::Regular))
        };
        let Some(new) = find(source)? else { return Ok(()) };
        if find(target)?.is_some_and(|old| old.inode != new.inode) {
            match self.named_inode(&new) {
                Ok(inode) if patience::may_wait() => self.write_back_inode(&inode)?,
                Ok(inode) if self.has_nothing_to_write_back(&inode) => {}
                Ok(_) => patience::check("the file to be written back")?,
                // It went meanwhile; the rename will tell.
                Err(error) if error.kind() == ErrorKind::Stale => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The directories from one up to the root. The caller holds the rename mutex.
    fn way_to_root(self: &Arc<Engine>, directory: &InodeRef) -> Result<Vec<InodeNo>> {
        let mut way = vec![directory.number()];
        let mut current = directory.clone();
        // No way has more directories than the volume has inodes.
        let limit = self.store.applied_inodes.get().saturating_add(1);
        while current.number() != InodeNo::ROOT {
            if way.len() as u64 > limit {
                return Err(Error::corrupt(format!(
                    "the parents of directory {} lead in a circle; see: quire fsck",
                    directory.number()
                )));
            }
            current = self.parent(&current)?;
            way.push(current.number());
        }
        Ok(way)
    }

    /// The rename itself; the caller has entered both directories, and gives the ancestry if they are two.
    fn rename_entered<'a>(
        self: &Arc<Engine>,
        source: Name<'a>,
        target: Name<'a>,
        ancestry: Option<&Ancestry>,
        flags: RenameFlags,
    ) -> Result<()> {
        let search =
            |place: Name<'a>| self.store.search_entry(place.directory.number(), place.hash, place.name);
        let named = |place: Name<'a>, found: Found| -> Result<Named<'a>> {
            let Name { directory, name, .. } = place;
            Ok(Named { place, found, inode: self.entry_inode(directory, name, &found)? })
        };
        let source = named(source, search(source)?.required(source.directory, source.name)?)?;
        let at_target = search(target)?;
        let replaced = match at_target.found {
            None if flags.contains(RenameFlags::EXCHANGE) => {
                return Err(not_found(target.directory, target.name));
            }
            None => None,
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => {
                return Err(exists(target.directory, target.name));
            }
            Some(found) if found.inode == source.found.inode => return Ok(()),
            Some(found) => Some(named(target, found)?),
        };
        check_loops(&source, replaced.as_ref(), ancestry, flags)?;
        if let Some(other) = replaced.as_ref().filter(|_| flags.contains(RenameFlags::EXCHANGE)) {
            return self.exchange(&source, other);
        }
        let left = flags.contains(RenameFlags::WHITEOUT).then(|| self.whiteout(source.place.directory));
        let left = left.transpose()?;
        match replaced {
            None => self.move_entry(&source, target, &at_target, ancestry.is_some(), left.as_ref()),
            Some(old) => self.replace(&source, &old, ancestry.is_some(), left.as_ref()),
        }
    }

    /// Makes a whiteout for a name in a directory, without a name yet. The caller has entered the directory.
    fn whiteout(self: &Arc<Engine>, directory: &InodeRef) -> Result<InodeRef> {
        let create = Create { kind: FileType::CharDevice, rdev: 0, ..Create::file(0) };
        self.create_inode(self.new_inode(directory, &create)?, None)
    }

    /// Moves an entry to a name that is free.
    fn move_entry(
        self: &Arc<Engine>,
        source: &Named<'_>,
        target: Name<'_>,
        at_target: &Search,
        crosses: bool,
        left: Option<&InodeRef>,
    ) -> Result<()> {
        let cookie = at_target.vacant(target.directory, target.name)?;
        let from = source.place.directory;
        let to = target.directory;
        let moves_parent = crosses && source.inode.kind() == FileType::Directory;

        // Two entries, the inode, both directories, a whiteout and its orphan.
        let mut transaction = self.store.begin(Cost::new(7, 4 * INODE_BYTES + 2 * ENTRY_BYTES_MAX))?;
        let old_key = Key::entry(from.number(), source.found.cookie);
        let new_key = Key::entry(to.number(), cookie);
        transaction.warm(&[old_key, new_key, Key::inode(source.inode.number())])?;
        if moves_parent {
            transaction.warm(&[Key::inode(from.number()), Key::inode(to.number())])?;
        }
        let mut locks = vec![source.inode.arc()];
        if moves_parent {
            locks.extend([from.arc(), to.arc()]);
        }
        if let Some(left) = left {
            warm_first_name(&transaction, left)?;
            locks.push(left.arc());
        }
        let mut records = Records::lock(self, &locks);
        if moves_parent {
            records.add_links(from, -1)?;
            records.add_links(to, 1)?;
            records.edit(&source.inode).parent = to.number().0;
        }
        records.edit(&source.inode).ctime = self.store.options.clock.now();
        transaction.put(new_key, &entry(&source.inode, target.name));
        leave(&mut records, &mut transaction, old_key, source.place.name, left)?;
        self.finish(records, transaction, from, to, Depends::Nothing)
    }

    /// Puts an entry in the place of another, whose inode loses the name.
    fn replace(
        self: &Arc<Engine>,
        source: &Named<'_>,
        old: &Named<'_>,
        crosses: bool,
        left: Option<&InodeRef>,
    ) -> Result<()> {
        let (from, to) = (source.place.directory, old.place.directory);
        let moves = source.inode.kind() == FileType::Directory;
        let removes = old.inode.kind() == FileType::Directory;
        match (moves, removes) {
            (false, true) => return Err(is_directory(to, old.place.name)),
            (true, false) => return Err(not_directory(to, old.place.name)),
            _ => {}
        }
        let doomed = if removes { Some(Doomed::hold(&old.inode)?) } else { None };
        if removes {
            self.store.check_empty(&old.inode)?;
        }

        // Two entries, both inodes, both directories, the orphan, a whiteout and its orphan.
        let mut transaction =
            self.store.begin(Cost::new(9, 5 * INODE_BYTES + 2 * ENTRY_BYTES_MAX).critical())?;
        let old_key = Key::entry(from.number(), source.found.cookie);
        let new_key = Key::entry(to.number(), old.found.cookie);
        let (new, gone) = (&source.inode, &old.inode);
        transaction.warm(&[old_key, new_key, Key::inode(new.number()), Key::inode(gone.number())])?;
        transaction.warm_new_orphan(gone.number())?;
        let mut locks = vec![new.arc(), gone.arc()];
        if let Some(left) = left {
            warm_first_name(&transaction, left)?;
            locks.push(left.arc());
        }
        if removes {
            transaction.warm(&[Key::inode(from.number()), Key::inode(to.number())])?;
            locks.extend([from.arc(), to.arc()]);
        }
        let mut records = Records::lock(self, &locks);
        let now = self.store.options.clock.now();
        if removes {
            // The target's directory loses a subdirectory; what it gains, the source's loses.
            records.add_links(from, -1)?;
            if crosses {
                records.edit(new).parent = to.number().0;
            }
        }
        records.edit(new).ctime = now;
        if removes || records.record(gone).nlink <= 1 {
            records.make_orphan(gone, &mut transaction);
        } else {
            records.add_links(gone, -1)?;
        }
        records.edit(gone).ctime = now;
        transaction.put(new_key, &entry(new, old.place.name));
        leave(&mut records, &mut transaction, old_key, source.place.name, left)?;
        // The name may show the new contents or the old ones, so what was written back before comes first.
        self.finish(records, transaction, from, to, new.written())?;
        if let Some(doomed) = doomed {
            doomed.removed();
        }
        Ok(())
    }

    /// Makes two entries change places.
    fn exchange(self: &Arc<Engine>, one: &Named<'_>, other: &Named<'_>) -> Result<()> {
        let (from, to) = (one.place.directory, other.place.directory);
        let is_directory = |named: &Named<'_>| i64::from(named.inode.kind() == FileType::Directory);
        let crosses = from.number() != to.number();
        // Subdirectories that the target's directory gains.
        let gained = if crosses { is_directory(one) - is_directory(other) } else { 0 };

        // Two entries, both inodes, both directories.
        let mut transaction = self.store.begin(Cost::new(6, 4 * INODE_BYTES + 2 * ENTRY_BYTES_MAX))?;
        let one_key = Key::entry(from.number(), one.found.cookie);
        let other_key = Key::entry(to.number(), other.found.cookie);
        transaction.warm(&[
            one_key,
            other_key,
            Key::inode(one.inode.number()),
            Key::inode(other.inode.number()),
        ])?;
        let mut locks = vec![one.inode.arc(), other.inode.arc()];
        if gained != 0 {
            transaction.warm(&[Key::inode(from.number()), Key::inode(to.number())])?;
            locks.extend([from.arc(), to.arc()]);
        }
        let mut records = Records::lock(self, &locks);
        let now = self.store.options.clock.now();
        if gained != 0 {
            records.add_links(from, -gained)?;
            records.add_links(to, gained)?;
        }
        for (named, home) in [(one, to), (other, from)] {
            let record = records.edit(&named.inode);
            record.ctime = now;
            if crosses && named.inode.kind() == FileType::Directory {
                record.parent = home.number().0;
            }
        }
        transaction.put(one_key, &entry(&other.inode, one.place.name));
        transaction.put(other_key, &entry(&one.inode, other.place.name));
        self.finish(records, transaction, from, to, Depends::Nothing)
    }

    /// Commits, with look-ups warned for as long as it applies.
    fn finish<'a>(
        &self,
        mut records: Records<'a>,
        transaction: Transaction<'_>,
        from: &'a InodeRef,
        to: &'a InodeRef,
        depends: Depends,
    ) -> Result<()> {
        let moving = (Moving::announce(from), (from.number() != to.number()).then(|| Moving::announce(to)));
        for directory in [from, to] {
            records.changes_names_of(directory);
        }
        records.commit(transaction, depends)?;
        drop(moving);
        for directory in [from, to] {
            directory.touch_written();
        }
        Ok(())
    }
}

/// Enters two directories in the order given.
fn enter_both<'a>(source: Name<'a>, target: Name<'a>, target_first: bool) -> Result<[Entered<'a>; 2]> {
    let (first, second) = if target_first { (target, source) } else { (source, target) };
    Ok([enter(first.directory, first.hash)?, enter(second.directory, second.hash)?])
}

fn entry(inode: &InodeRef, name: &[u8]) -> Vec<u8> {
    Entry { inode: inode.number(), generation: inode.generation(), file_type: inode.kind(), name }.encode()
}

/// Errors if a directory would come to lie below itself, or if what is replaced holds the source.
fn check_loops(
    source: &Named<'_>,
    replaced: Option<&Named<'_>>,
    ancestry: Option<&Ancestry>,
    flags: RenameFlags,
) -> Result<()> {
    let Some(ancestry) = ancestry else { return Ok(()) };
    let below_itself = |place: Name<'_>| {
        Error::invalid(format!(
            "directory {:?} cannot be moved below itself, into directory {}",
            shown(place.name),
            place.directory.number()
        ))
    };
    if ancestry.to.contains(&source.inode.number()) {
        return Err(below_itself(source.place));
    }
    let Some(replaced) = replaced.filter(|old| ancestry.from.contains(&old.inode.number())) else {
        return Ok(());
    };
    if flags.contains(RenameFlags::EXCHANGE) {
        return Err(below_itself(replaced.place));
    }
    if source.inode.kind() != FileType::Directory {
        return Err(is_directory(replaced.place.directory, replaced.place.name));
    }
    Err(Error::new(
        ErrorKind::NotEmpty,
        format!("directory {} is not empty: it holds what is to replace it", replaced.inode.number()),
    ))
}

/// Loads what changes when an inode without a name gets one.
fn warm_first_name(transaction: &Transaction<'_>, inode: &InodeRef) -> Result<()> {
    transaction.warm(&[Key::inode(inode.number())])?;
    let state = inode.meta().orphan;
    transaction.warm_orphan(inode.number(), state)
}

/// The old name goes, or names what the rename leaves there.
fn leave(
    records: &mut Records<'_>,
    transaction: &mut Transaction<'_>,
    key: Key,
    name: &[u8],
    left: Option<&InodeRef>,
) -> Result<()> {
    let Some(left) = left else {
        transaction.delete(key);
        return Ok(());
    };
    records.add_name(left, transaction)?;
    transaction.put(key, &entry(left, name));
    Ok(())
}
