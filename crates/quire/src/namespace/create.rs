//! Making inodes: with a name, or (for [`super::tmpfile`]) without.
//!
//! Protocol: what a new inode starts with is worked out first (mode, owner, what it inherits, its pieces in
//! the tree); then the reservation; then its number. It enters the inode table before its transaction
//! commits, with its attributes locked, so that a thread that finds the new entry finds this inode and waits.
//! If the commit fails it is marked as freed and leaves the table: nobody can have learnt its number.
//!
//! Inheritance: in a setgid directory the group, and setgid itself for directories; the directory's default
//! access list, if it has one, in place of the umask; files and directories get the directory's properties.
//!
//! Neighbours: [`crate::acl`], [`crate::xattr`], [`super::symlink`].

use super::directory::enter;
use super::link::{ENTRY_BYTES_MAX, check_new_name};
use super::records::{INODE_NEVER_NAMED, Records};
use crate::acl;
use crate::attributes::SETGID;
use crate::engine::Engine;
use crate::inode::{Inode, InodeRef};
use crate::properties::has_properties;
use crate::store::orphan_slots::OrphanState;
use crate::store::transaction::{Cost, Depends, Transaction};
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_base::{Error, InodeNo, Result, Seq};
use quire_format::dirent::Entry;
use quire_format::inode::{FileType, INODE_BYTES, InodeRecord, MODE_PERMISSION_MASK, SYMLINK_PIECE_MAX};
use quire_format::key::Key;
use quire_format::properties::Properties;
use quire_format::xattr::piece_count;

/// On whose behalf something is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Becomes the owner.
    pub uid: u32,
    /// Becomes the group, unless the directory hands down its own.
    pub gid: u32,
}

/// What to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create {
    /// Anything but a symbolic link.
    pub kind: FileType,
    /// Permission, setuid, setgid and sticky bits; others are ignored.
    pub mode: u32,
    /// Permission bits to leave out, unless the directory has a default access list.
    pub umask: u32,
    /// Device number, of a device.
    pub rdev: u64,
    /// On whose behalf.
    pub caller: Caller,
    /// Those of a file or directory, in place of what it inherits.
    pub properties: Option<Properties>,
}

impl Create {
    /// A regular file of a mode, owned by user and group 0.
    pub fn file(mode: u32) -> Create {
        Create {
            kind: FileType::Regular,
            mode,
            umask: 0,
            rdev: 0,
            caller: Caller::default(),
            properties: None,
        }
    }

    /// A directory of a mode, owned by user and group 0.
    pub fn directory(mode: u32) -> Create {
        Create { kind: FileType::Directory, ..Create::file(mode) }
    }
}

/// What a new inode starts with.
pub(super) struct NewInode {
    record: InodeRecord,
    /// A symbolic link's.
    target: Vec<u8>,
    attributes: Vec<(&'static [u8], Vec<u8>)>,
}

/// The name that a new inode gets.
pub(super) struct Naming<'a> {
    pub(super) directory: &'a InodeRef,
    pub(super) name: &'a [u8],
    pub(super) cookie: u64,
}

impl NewInode {
    fn target_pieces(&self) -> usize {
        self.target.len().div_ceil(SYMLINK_PIECE_MAX)
    }

    /// Inode, entry, parent, orphan, and the pieces.
    fn cost(&self) -> Cost {
        let mut keys = 4 + self.target_pieces();
        let mut bytes = 2 * INODE_BYTES + ENTRY_BYTES_MAX + self.target.len();
        for (name, value) in &self.attributes {
            keys += piece_count(name.len(), value.len());
            bytes += name.len() + value.len() + 8;
        }
        Cost::new(keys, bytes)
    }

    /// The keys and values that go with the record.
    fn pieces(&self, engine: &Engine, number: InodeNo) -> Result<Vec<(Key, Vec<u8>)>> {
        let target = self.target.chunks(SYMLINK_PIECE_MAX).zip(0..);
        let mut pieces: Vec<_> =
            target.map(|(piece, at)| (Key::symlink(number, at), piece.to_vec())).collect();
        pieces.extend(engine.first_xattrs(number, &self.attributes)?);
        Ok(pieces)
    }
}

impl Engine {
    /// Makes a file, directory, fifo, socket or device. Kinds: `Exists`, `NotFound` if the directory is
    /// removed, `Invalid` for a symbolic link, and for a unit that the journal does not take.
    pub(crate) fn create(
        self: &Arc<Engine>,
        directory: &InodeRef,
        name: &[u8],
        create: &Create,
    ) -> Result<InodeRef> {
        if create.kind == FileType::Symlink {
            return Err(Error::invalid("a symbolic link is made with its target"));
        }
        self.make_named(directory, name, || self.new_inode(directory, create))
    }

    /// Makes what `new` says under a name, if that is free.
    pub(super) fn make_named(
        self: &Arc<Engine>,
        directory: &InodeRef,
        name: &[u8],
        new: impl Fn() -> Result<NewInode>,
    ) -> Result<InodeRef> {
        let _change = self.begin_change()?;
        directory.names()?;
        check_new_name(directory, name)?;
        let hash = self.store.name_hash(name);
        self.retry_without_space(|| {
            let _entered = enter(directory, hash)?;
            let cookie = self.store.search_entry(directory.number(), hash, name)?.vacant(directory, name)?;
            self.create_inode(new()?, Some(&Naming { directory, name, cookie }))
        })
    }

    /// What a new inode in a directory starts with.
    pub(super) fn new_inode(&self, directory: &InodeRef, create: &Create) -> Result<NewInode> {
        let kind = create.kind;
        let mut mode = create.mode & MODE_PERMISSION_MASK;
        let mut gid = create.caller.gid;
        if directory.mode.load(Ordering::Acquire) & SETGID != 0 {
            gid = directory.meta().record.gid;
            if kind == FileType::Directory {
                mode |= SETGID;
            }
        }
        let mut attributes = Vec::new();
        if kind != FileType::Symlink {
            match self.default_acl(directory)? {
                None => mode &= !(create.umask & 0o777),
                Some(default) => {
                    let mut access = default.clone();
                    mode = access.hand_down(mode);
                    if !access.is_only_a_mode() {
                        attributes.push((acl::ACCESS, access.encode()));
                    }
                    if kind == FileType::Directory {
                        attributes.push((acl::DEFAULT, default.encode()));
                    }
                }
            }
        }
        let properties = match has_properties(kind) {
            true => create.properties.unwrap_or_else(|| directory.properties()),
            false => Properties::default(),
        };
        if let Some(unit) = properties.untorn {
            self.check_unit(unit)?;
        }
        let now = self.store.options.clock.now();
        let record = InodeRecord {
            mode: kind.to_mode() | mode,
            flags: properties.put_into(0),
            uid: create.caller.uid,
            gid,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            xattr_bytes: attributes.iter().map(|(name, value)| (name.len() + value.len()) as u32).sum(),
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            generation: 0,
            rdev: if kind.is_device() { create.rdev } else { 0 },
            parent: if kind == FileType::Directory { directory.number().0 } else { 0 },
        };
        Ok(NewInode { record, target: Vec::new(), attributes })
    }

    /// What a new symbolic link starts with.
    pub(super) fn new_symlink(
        &self,
        directory: &InodeRef,
        target: &[u8],
        caller: Caller,
    ) -> Result<NewInode> {
        let create = Create { kind: FileType::Symlink, caller, ..Create::file(0o777) };
        let mut new = self.new_inode(directory, &create)?;
        new.record.size = target.len() as u64;
        new.target = target.to_vec();
        Ok(new)
    }

    /// Makes an inode, under a name or as an orphan. The caller holds the name's bucket, or the directory's
    /// liveness.
    pub(super) fn create_inode(
        self: &Arc<Engine>,
        new: NewInode,
        naming: Option<&Naming<'_>>,
    ) -> Result<InodeRef> {
        let transaction = self.store.begin(new.cost())?;
        let number = self.store.new_inode_number();
        let mut record = new.record.clone();
        record.generation = self.store.new_generation();
        if naming.is_none() {
            record.nlink = 0;
            record.flags |= INODE_NEVER_NAMED;
        }
        let pieces = new.pieces(self, number)?;
        let mut keys: Vec<Key> = pieces.iter().map(|(key, _)| *key).collect();
        keys.push(Key::inode(number));
        if let Some(naming) = naming {
            keys.push(Key::entry(naming.directory.number(), naming.cookie));
            if record.file_type() == FileType::Directory {
                keys.push(Key::inode(naming.directory.number()));
            }
        }
        transaction.warm(&keys)?;
        if naming.is_none() {
            transaction.warm_new_orphan(number)?;
        }

        let inode = self.inodes.insert(Inode::new(self, number, record, OrphanState::Named));
        match self.commit_new(transaction, &inode, pieces, naming) {
            Ok(_) => Ok(inode),
            Err(error) => {
                inode.meta().freed = true;
                self.inodes.remove(number);
                Err(error)
            }
        }
    }

    fn commit_new(
        self: &Arc<Engine>,
        mut transaction: Transaction<'_>,
        inode: &InodeRef,
        pieces: Vec<(Key, Vec<u8>)>,
        naming: Option<&Naming<'_>>,
    ) -> Result<Seq> {
        let is_directory = inode.kind() == FileType::Directory;
        let mut locks = vec![inode.arc()];
        if let (Some(naming), true) = (naming, is_directory) {
            locks.push(naming.directory.arc());
        }
        let mut records = Records::lock(self, &locks);
        for (key, value) in &pieces {
            transaction.put(*key, value);
        }
        records.makes(inode);
        let Some(Naming { directory, name, cookie }) = naming else {
            records.make_orphan(inode, &mut transaction);
            return records.commit(transaction, Depends::Nothing);
        };
        let entry =
            Entry { inode: inode.number(), generation: inode.generation(), file_type: inode.kind(), name };
        transaction.put(Key::entry(directory.number(), *cookie), &entry.encode());
        records.changes_names_of(directory);
        if is_directory {
            records.add_links(directory, 1)?;
            let now = self.store.options.clock.now();
            let parent = records.edit(directory);
            (parent.mtime, parent.ctime) = (now, now);
            return records.commit(transaction, Depends::Nothing);
        }
        let seq = records.commit(transaction, Depends::Nothing)?;
        directory.touch_written();
        Ok(seq)
    }
}
