//! Extended attributes.
//!
//! An attribute is cut into pieces under consecutive keys (`format::xattr`). Attributes whose names have one
//! hash get different disambiguators, the lowest free one, which never changes while the attribute lives.
//!
//! Protocol. The inode's `meta` orders its attributes: a thread that changes one holds it from before it
//! looks until the transaction is applied, which takes out the old pieces and puts in the new ones at once. A
//! thread that reads one holds it too, so nobody sees half of two values. Pieces that will be read under
//! `meta` are read once without it before, so that they are in memory by then.
//!
//! Names: `user.` on files and directories, `trusted.` and `security.` on anything, and the two access
//! control lists, which are kept in step with the mode ([`crate::acl`]). `user.quire.` names properties,
//! which are kept in the inode's record ([`crate::properties`]). The front end decides who may do what.
//!
//! Invariants: the record's `xattr_bytes` is the sum of the names' and values' lengths; 0 means that there
//! are none.
//!
//! Neighbours: [`crate::namespace::records`], [`crate::namespace::create`].

use crate::acl::{self, Acl};
use crate::attributes::SETGID;
use crate::engine::Engine;
use crate::inode::{Inode, InodeRef};
use crate::namespace::directory::hold_creates;
use crate::namespace::records::Records;
use crate::properties::attribute::{self, Property};
use crate::store::transaction::{Cost, Depends, Transaction};
use quire_base::sync::Arc;
use quire_base::{Context, Error, ErrorKind, InodeNo, Result, Seq, patience};
use quire_format::inode::{FileType, INODE_BYTES};
use quire_format::key::{Key, KeyKind};
use quire_format::xattr::{self as format, Head, PIECES_MAX};
use std::ops::ControlFlow;

/// Rights that a program has by its file. They end when the file is written or truncated, or gets another
/// owner or group.
pub const CAPABILITIES: &[u8] = b"security.capability";

/// An attribute that need not exist.
pub(crate) fn or_none(value: Result<Vec<u8>>) -> Result<Option<Vec<u8>>> {
    match value {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NoAttribute => Ok(None),
        Err(error) => Err(error),
    }
}

bitflags::bitflags! {
    /// How an attribute is set.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct XattrFlags: u32 {
        /// Fail if it exists (XATTR_CREATE).
        const CREATE = 1;
        /// Fail if it does not exist (XATTR_REPLACE).
        const REPLACE = 2;
        /// With an access list: take the setgid bit away, since the caller is not of the file's group
        /// (FUSE_SETXATTR_ACL_KILL_SGID).
        const ACL_KILL_SGID = 4;
        /// With a property: fail with `NotPermitted` where this would turn `untorn` off or make it smaller,
        /// since the caller is neither the owner nor root.
        const KEEP_UNTORN = 8;
    }
}

/// An attribute as it is in the tree.
#[derive(Debug)]
pub(crate) struct Stored {
    disambiguator: u16,
    pub(crate) pieces: usize,
    pub(crate) value: Vec<u8>,
}

/// What looking for an attribute gave.
#[derive(Debug, Default)]
pub(crate) struct Search {
    pub(crate) found: Option<Stored>,
    free: u32,
}

impl Search {
    fn pieces(&self) -> usize {
        self.found.as_ref().map_or(0, |stored| stored.pieces)
    }
}

fn hash(engine: &Engine, name: &[u8]) -> u32 {
    format::name_hash(engine.store.superblock.hash_seed, name)
}

/// The keys that attributes of one hash can have, as (first, last).
fn keys_of_hash(inode: InodeNo, hash: u32) -> (Key, Key) {
    (Key::xattr(inode, hash, 0, 0), Key::xattr(inode, hash, u16::MAX, u16::MAX))
}

fn no_attribute(inode: &Inode, name: &[u8]) -> Error {
    Error::new(
        ErrorKind::NoAttribute,
        format!("inode {} has no attribute {:?}", inode.number, String::from_utf8_lossy(name)),
    )
}

/// Collects the attribute of one name from pieces given in the order of their keys.
struct Collector<'a> {
    name: &'a [u8],
    /// The disambiguator of the pieces that come now, and whether they are of our name.
    current: Option<(u16, bool)>,
    pieces: Vec<Vec<u8>>,
    ours: Option<u16>,
    free: u32,
}

impl Collector<'_> {
    fn piece(&mut self, offset: u64, value: &[u8]) -> Result<()> {
        let (_, disambiguator, piece) = format::split_offset(offset);
        if piece == 0 {
            let ours = Head::decode(value)?.name == self.name;
            self.current = Some((disambiguator, ours));
            if ours && self.ours.replace(disambiguator).is_some() {
                return Err(Error::corrupt("an attribute that is there twice"));
            }
            if u32::from(disambiguator) == self.free {
                self.free += 1;
            }
        }
        match self.current {
            Some((current, ours)) if current == disambiguator => {
                if ours {
                    if usize::from(piece) != self.pieces.len() || self.pieces.len() >= PIECES_MAX {
                        return Err(Error::corrupt(format!("an attribute with a stray piece {piece}")));
                    }
                    self.pieces.push(value.to_vec());
                }
                Ok(())
            }
            _ => Err(Error::corrupt(format!("an attribute without its first piece, but with piece {piece}"))),
        }
    }
}

impl Engine {
    /// Looks for an attribute in the tree. The caller holds the inode's `meta`, or only wants it in memory
    /// and an estimate.
    pub(crate) fn search_xattr(&self, inode: InodeNo, name: &[u8]) -> Result<Search> {
        let mut collector = Collector { name, current: None, pieces: Vec::new(), ours: None, free: 0 };
        let mut broken = Ok(());
        let (first, last) = keys_of_hash(inode, hash(self, name));
        self.store.tree.scan(first, last, &mut |key, value| {
            broken = collector.piece(key.offset, value);
            if broken.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        let damaged = || format!("attributes of inode {inode}");
        broken.context(damaged())?;
        let found = match collector.ours {
            Some(disambiguator) => {
                let (_, value) =
                    format::assemble(collector.pieces.iter().map(Vec::as_slice)).context(damaged())?;
                Some(Stored { disambiguator, pieces: collector.pieces.len(), value })
            }
            None => None,
        };
        Ok(Search { found, free: collector.free })
    }

    /// An attribute's value. `look` is told it under the inode's `meta`.
    pub(crate) fn read_xattr(
        &self,
        inode: &Inode,
        name: &[u8],
        look: impl FnOnce(Option<&[u8]>),
    ) -> Result<Option<Vec<u8>>> {
        let keys = keys_of_hash(inode.number, hash(self, name));
        self.with_attributes(inode, keys, |any| {
            let value = match any {
                true => self.search_xattr(inode.number, name)?.found.map(|stored| stored.value),
                false => None,
            };
            look(value.as_deref());
            Ok(value)
        })
    }

    /// Runs `read` under the inode's `meta`, with all attributes between two keys in memory if there are any
    /// at all, which it is told.
    fn with_attributes<T>(
        &self,
        inode: &Inode,
        (first, last): (Key, Key),
        read: impl FnOnce(bool) -> Result<T>,
    ) -> Result<T> {
        let mut loaded = None;
        loop {
            let meta = inode.meta();
            let any = meta.record.xattr_bytes != 0;
            if !any || loaded.is_some() {
                return read(any);
            }
            drop(meta);
            // While the ticket lives, what is read here stays in memory.
            loaded = Some(self.store.tree.ticket());
            self.store.tree.scan(first, last, &mut |_, _| ControlFlow::Continue(()))?;
        }
    }

    /// An attribute's value. Kinds: `NoAttribute`, `Unsupported` for a name of an unknown family.
    pub(crate) fn get_xattr(self: &Arc<Engine>, inode: &InodeRef, name: &[u8]) -> Result<Vec<u8>> {
        check_family(name)?;
        if let Some(property) = Property::of(name) {
            return property.value(inode.properties()).ok_or_else(|| no_attribute(inode, name));
        }
        self.read_xattr(inode, name, |_| ())?.ok_or_else(|| no_attribute(inode, name))
    }

    /// The names of an inode's attributes, in an order that stays the same while they stay.
    pub(crate) fn list_xattr(self: &Arc<Engine>, inode: &InodeRef) -> Result<Vec<Vec<u8>>> {
        let (first, last) =
            (Key::xattr(inode.number(), 0, 0, 0), Key::new(inode.number().0, KeyKind::Xattr, u64::MAX));
        self.with_attributes(inode, (first, last), |any| {
            let set = |property: &Property| property.value(inode.properties()).is_some();
            let properties = Property::ALL.into_iter().filter(set);
            let mut names: Vec<Vec<u8>> = properties.map(|property| property.name().to_vec()).collect();
            if !any {
                return Ok(names);
            }
            let mut broken = Ok(());
            self.store.tree.scan(first, last, &mut |key, value| {
                if format::split_offset(key.offset).2 == 0 {
                    match Head::decode(value) {
                        Ok(head) => names.push(head.name.to_vec()),
                        Err(error) => broken = Err(error),
                    }
                }
                if broken.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            broken.context(format_args!("attributes of inode {}", inode.number()))?;
            Ok(names)
        })
    }

    /// Sets an attribute. Kinds: `Exists` and `NoAttribute` as the flags ask, `TooLarge` over 64 KiB,
    /// `NotPermitted` for `user.` on what is neither file nor directory, `Unsupported` for a name of an
    /// unknown family, `Invalid` for what is no access control list.
    pub(crate) fn set_xattr(
        self: &Arc<Engine>,
        inode: &InodeRef,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.store.check_writable()?;
        check_may_have(inode, name)?;
        if flags.contains(XattrFlags::CREATE | XattrFlags::REPLACE) {
            return Err(Error::invalid("an attribute cannot be both created and replaced"));
        }
        attribute::check_name(name)?;
        if let Some(property) = Property::of(name) {
            return self.set_property(inode, property, Some(value), flags);
        }
        let _change = self.begin_change()?;
        let mut change = XattrChange { name, value: Some(value), flags, permissions: None };
        if !acl::is_acl_name(name) {
            return self.retry_without_space(|| self.change_xattr(inode, change)).map(drop);
        }
        let list = Acl::decode(value)?;
        if name == acl::DEFAULT && inode.kind() != FileType::Directory && list.is_some() {
            return Err(Error::new(
                ErrorKind::AccessDenied,
                format!("inode {} is no directory: it has no default list", inode.number()),
            ));
        }
        let bytes = list.as_ref().map(Acl::encode);
        change.value = bytes.as_deref();
        if name == acl::ACCESS {
            change.permissions = list.as_ref().map(Acl::permissions);
            if list.is_some_and(|list| list.is_only_a_mode()) {
                change.value = None;
            }
        }
        self.retry_without_space(|| self.change_xattr(inode, change)).map(drop)
    }

    /// Removes an attribute. Kinds: `NoAttribute`, and those of [`Engine::set_xattr`] for the name.
    pub(crate) fn remove_xattr(self: &Arc<Engine>, inode: &InodeRef, name: &[u8]) -> Result<()> {
        self.store.check_writable()?;
        check_may_have(inode, name)?;
        if let Some(property) = Property::of(name) {
            return self.set_property(inode, property, None, XattrFlags::REPLACE);
        }
        // Not to have a list is what its removal asks for.
        let flags = if acl::is_acl_name(name) { XattrFlags::empty() } else { XattrFlags::REPLACE };
        let _change = self.begin_change()?;
        self.take_xattr_away(inode, name, flags)
    }

    /// As [`Engine::remove_xattr`], for callers that have begun a change.
    fn take_xattr_away(self: &Arc<Engine>, inode: &InodeRef, name: &[u8], flags: XattrFlags) -> Result<()> {
        if name == CAPABILITIES {
            patience::check("the capabilities to be gone for good")?;
        }
        let change = XattrChange { name, value: None, flags, permissions: None };
        match self.change_xattr(inode, change)? {
            // Before whatever is written behind it, as `clear_privileges` does.
            Some(seq) if name == CAPABILITIES => self.store.force(seq),
            _ => Ok(()),
        }
    }

    /// Takes a program's capabilities away, for good, if it has any. The caller has begun a change.
    pub(crate) fn clear_capabilities(self: &Arc<Engine>, inode: &InodeRef) -> Result<()> {
        if !inode.may_have_capabilities() {
            return Ok(());
        }
        let note = |value: Option<&[u8]>| inode.note_capabilities(value.is_some());
        match self.read_xattr(inode, CAPABILITIES, note)? {
            Some(_) => self.take_xattr_away(inode, CAPABILITIES, XattrFlags::empty()),
            None => Ok(()),
        }
    }

    /// Gives the record, if something has changed.
    fn change_xattr(self: &Arc<Engine>, inode: &InodeRef, change: XattrChange<'_>) -> Result<Option<Seq>> {
        let _alone = if change.name == acl::DEFAULT { hold_creates(inode)? } else { None };
        let pieces = match change.value {
            Some(value) => format::encode(change.name, value)?,
            None => Vec::new(),
        };
        let mut old_pieces = self.search_xattr_loosely(inode, change.name)?;
        loop {
            let bytes = change.value.map_or(0, <[u8]>::len) + change.name.len() + pieces.len();
            let mut cost = Cost::new(1 + pieces.len().max(old_pieces), INODE_BYTES + 8 + bytes);
            if change.value.is_none() {
                cost = cost.critical();
            }
            let mut transaction = self.store.begin(cost)?;
            self.warm_xattr(&transaction, inode, change.name)?;
            let mut records = Records::lock(self, &[inode.arc()]);
            let search = match records.record(inode).xattr_bytes {
                0 => Search::default(),
                _ => self.search_xattr(inode.number(), change.name)?,
            };
            if search.pieces() > old_pieces {
                // It has grown since it was looked at: reserve for the largest there can be.
                old_pieces = PIECES_MAX;
                continue;
            }
            if !change.applies(inode, &search)? {
                return Ok(None);
            }
            change.edit(inode, &mut records, &search)?;
            if change.name == CAPABILITIES && change.value.is_some() {
                inode.note_capabilities(true);
            }
            if change.value.is_some() || search.found.is_some() {
                self.put_xattr(&mut transaction, inode.number(), change.name, &search, &pieces)?;
            }
            return records.commit(transaction, Depends::Nothing).map(Some);
        }
    }

    /// Pieces that an attribute has now, for a reservation. What is seen without the lock may be half of a
    /// change, which does not matter here.
    pub(crate) fn search_xattr_loosely(&self, inode: &Inode, name: &[u8]) -> Result<usize> {
        if inode.meta().record.xattr_bytes == 0 {
            return Ok(0);
        }
        match self.search_xattr(inode.number, name) {
            Ok(search) => Ok(search.pieces()),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(PIECES_MAX),
            Err(error) => Err(error),
        }
    }

    /// Loads what changing an attribute reads and writes; a transaction's ticket keeps it in memory.
    pub(crate) fn warm_xattr(&self, transaction: &Transaction<'_>, inode: &Inode, name: &[u8]) -> Result<()> {
        let (first, last) = keys_of_hash(inode.number, hash(self, name));
        transaction.warm(&[Key::inode(inode.number), first, last])?;
        self.store.tree.scan(first, last, &mut |_, _| ControlFlow::Continue(()))
    }

    /// Replaces the pieces that `search` found under `meta` by `pieces`; none removes the attribute.
    pub(crate) fn put_xattr(
        &self,
        transaction: &mut Transaction<'_>,
        inode: InodeNo,
        name: &[u8],
        search: &Search,
        pieces: &[Vec<u8>],
    ) -> Result<()> {
        let disambiguator = match &search.found {
            Some(stored) => stored.disambiguator,
            None => u16::try_from(search.free).map_err(|_| {
                Error::new(ErrorKind::NoSpace, format!("inode {inode} has too many attributes"))
            })?,
        };
        let hash = hash(self, name);
        for (number, piece) in pieces.iter().enumerate() {
            transaction.put(Key::xattr(inode, hash, disambiguator, number as u16), piece);
        }
        for number in pieces.len()..search.pieces() {
            transaction.delete(Key::xattr(inode, hash, disambiguator, number as u16));
        }
        Ok(())
    }

    /// The keys and values of attributes that a new inode starts with.
    pub(crate) fn first_xattrs(
        &self,
        inode: InodeNo,
        attributes: &[(&'static [u8], Vec<u8>)],
    ) -> Result<Vec<(Key, Vec<u8>)>> {
        let mut all = Vec::new();
        let mut hashes: Vec<u32> = Vec::new();
        for (name, value) in attributes {
            let hash = hash(self, name);
            let disambiguator = hashes.iter().filter(|&&other| other == hash).count() as u16;
            hashes.push(hash);
            for (number, piece) in format::encode(name, value)?.into_iter().enumerate() {
                all.push((Key::xattr(inode, hash, disambiguator, number as u16), piece));
            }
        }
        Ok(all)
    }
}

/// One attribute's change.
#[derive(Clone, Copy)]
struct XattrChange<'a> {
    name: &'a [u8],
    /// `None` removes it.
    value: Option<&'a [u8]>,
    flags: XattrFlags,
    /// Permission bits that an access list sets.
    permissions: Option<u32>,
}

impl XattrChange<'_> {
    /// False if there is nothing to do; an error if the flags forbid it.
    fn applies(&self, inode: &Inode, search: &Search) -> Result<bool> {
        match &search.found {
            Some(_) if self.flags.contains(XattrFlags::CREATE) => Err(Error::new(
                ErrorKind::Exists,
                format!("inode {} has an attribute {:?}", inode.number, String::from_utf8_lossy(self.name)),
            )),
            None if self.flags.contains(XattrFlags::REPLACE) => Err(no_attribute(inode, self.name)),
            None => Ok(self.value.is_some() || self.permissions.is_some()),
            Some(_) => Ok(true),
        }
    }

    fn edit(&self, inode: &Inode, records: &mut Records<'_>, search: &Search) -> Result<()> {
        let size = |value: &[u8]| (self.name.len() + value.len()) as u64;
        let before = u64::from(records.record(inode).xattr_bytes);
        let less = search.found.as_ref().map_or(0, |stored| size(&stored.value));
        let more = self.value.map_or(0, size);
        let after = before.checked_sub(less).ok_or_else(|| {
            Error::corrupt(format!(
                "inode {} has {before} bytes of attributes in its record, but more in the tree; see: quire fsck",
                inode.number
            ))
        })? + more;
        let after = u32::try_from(after).map_err(|_| {
            Error::new(ErrorKind::NoSpace, format!("inode {} has 4 GiB of attributes", inode.number))
        })?;
        let record = records.edit(inode);
        record.xattr_bytes = after;
        record.ctime = inode.engine.store.options.clock.now();
        if let Some(permissions) = self.permissions {
            record.mode = record.mode & !0o777 | permissions;
        }
        if self.name == acl::ACCESS && self.flags.contains(XattrFlags::ACL_KILL_SGID) {
            record.mode &= !SETGID;
        }
        Ok(())
    }
}

/// Errors unless the name is of a family that is kept.
pub(crate) fn check_family(name: &[u8]) -> Result<()> {
    format::check_name(name)?;
    let shown = || String::from_utf8_lossy(name).into_owned();
    if acl::is_acl_name(name) {
        return Ok(());
    }
    for family in [&b"user."[..], b"trusted.", b"security."] {
        match name.strip_prefix(family) {
            Some(b"") => {
                return Err(Error::invalid(format!("the attribute name {:?} ends with its family", shown())));
            }
            Some(_) => return Ok(()),
            None => {}
        }
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        format!("attribute {:?}: only user., trusted., security. and access control lists are kept", shown()),
    ))
}

/// Errors unless an inode may have an attribute of this name.
fn check_may_have(inode: &InodeRef, name: &[u8]) -> Result<()> {
    check_family(name)?;
    let kind = inode.kind();
    if name.starts_with(b"user.") && !matches!(kind, FileType::Regular | FileType::Directory) {
        return Err(Error::new(
            ErrorKind::NotPermitted,
            format!(
                "inode {} is a {kind:?}: only files and directories have user attributes",
                inode.number()
            ),
        ));
    }
    if acl::is_acl_name(name) && kind == FileType::Symlink {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("inode {} is a symbolic link: it has no access control list", inode.number()),
        ));
    }
    Ok(())
}
