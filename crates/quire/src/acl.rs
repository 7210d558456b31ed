//! POSIX access control lists (IEEE 1003.1e draft 17, as Linux has them): their bytes, and what they do to
//! modes.
//!
//! They are kept as the attributes `system.posix_acl_access` and `system.posix_acl_default`, in Linux's
//! layout, little-endian: `version u32 = 2`, then per entry `tag u16 | permissions u16 | id u32`; ordered
//! user-object, users, group-object, groups, mask, other. Entries without an id have 0xffffffff there.
//!
//! Invariants: mode and access list never contradict one another: the owner's and others' entries are the
//! mode's, its group bits are the mask (or the group's entry where there is no mask); a list that says no
//! more than the mode is not stored. A change of mode changes the list in the same transaction, and the other
//! way round.
//!
//! Neighbours: [`crate::xattr`] stores them, [`crate::namespace::create`] hands them down,
//! [`crate::attributes`] changes modes. The front end decides who may do what.

use crate::engine::Engine;
use crate::inode::InodeRef;
use quire_base::sync::atomic::Ordering;
use quire_base::{Context, Error, ErrorKind, Result};
use quire_format::inode::FileType;

/// The attribute of the list that governs access.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of the list that new files in a directory start with.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
const NO_ID: u32 = u32::MAX;
const PERMISSIONS: u16 = 0o7;

/// True for the attribute names that hold access control lists.
pub(crate) fn is_acl_name(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// Whom an entry is about; the numbers are Linux's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
enum Tag {
    UserObject = 0x01,
    User = 0x02,
    GroupObject = 0x04,
    Group = 0x08,
    Mask = 0x10,
    Other = 0x20,
}

impl Tag {
    fn from_number(number: u16) -> Option<Tag> {
        use Tag::*;
        [UserObject, User, GroupObject, Group, Mask, Other].into_iter().find(|tag| *tag as u16 == number)
    }

    fn has_id(self) -> bool {
        matches!(self, Tag::User | Tag::Group)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    permissions: u16,
    id: u32,
}

/// A valid list: one entry each for user-object, group-object and other, at most one mask, and one if anybody
/// is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// Reads a list and checks it; `None` for one without entries, which means "no list". Kind `Invalid`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Acl>> {
        let bad = |what: String| Error::invalid(format!("access control list: {what}"));
        let Some((version, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(bad(format!("{} bytes are no list", bytes.len())));
        };
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            return Err(bad(format!("version {version}, only {VERSION} is known")));
        }
        let (entries, []) = rest.as_chunks::<ENTRY_BYTES>() else {
            return Err(bad(format!("{} bytes are no whole number of entries", rest.len())));
        };
        let mut list = Vec::with_capacity(entries.len());
        for entry in entries {
            let [tag_low, tag_high, permissions_low, permissions_high, id @ ..] = *entry;
            let tag = u16::from_le_bytes([tag_low, tag_high]);
            let tag = Tag::from_number(tag).ok_or_else(|| bad(format!("unknown tag {tag:#x}")))?;
            let permissions = u16::from_le_bytes([permissions_low, permissions_high]);
            if permissions & !PERMISSIONS != 0 {
                return Err(bad(format!("unknown permissions {permissions:#o}")));
            }
            let id = u32::from_le_bytes(id);
            if tag.has_id() && id == NO_ID {
                return Err(bad("a user or group without a number".into()));
            }
            list.push(Entry { tag, permissions, id: if tag.has_id() { id } else { NO_ID } });
        }
        if list.is_empty() {
            return Ok(None);
        }
        check_shape(&list).map_err(bad)?;
        Ok(Some(Acl { entries: list }))
    }

    /// The bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + ENTRY_BYTES * self.entries.len());
        out.extend(VERSION.to_le_bytes());
        for entry in &self.entries {
            out.extend((entry.tag as u16).to_le_bytes());
            out.extend(entry.permissions.to_le_bytes());
            out.extend(entry.id.to_le_bytes());
        }
        out
    }

    fn get(&mut self, tag: Tag) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.tag == tag)
    }

    /// The entry that the group bits of a mode stand for.
    fn group_class(&mut self) -> &mut Entry {
        let tag = if self.entries.iter().any(|entry| entry.tag == Tag::Mask) {
            Tag::Mask
        } else {
            Tag::GroupObject
        };
        self.get(tag).expect("a valid list has a group-object entry")
    }

    /// The permission bits (0o777) that the list amounts to.
    pub(crate) fn permissions(&self) -> u32 {
        let mut acl = self.clone();
        let group = acl.group_class().permissions;
        let mut of = |tag| acl.get(tag).map_or(0, |entry| u32::from(entry.permissions));
        of(Tag::UserObject) << 6 | u32::from(group) << 3 | of(Tag::Other)
    }

    /// True if the list says no more than its permission bits.
    pub(crate) fn is_only_a_mode(&self) -> bool {
        self.entries.len() == 3
    }

    /// Follows a change of mode.
    pub(crate) fn set_mode(&mut self, mode: u32) {
        let bits = |shift: u32| (mode >> shift) as u16 & PERMISSIONS;
        self.group_class().permissions = bits(3);
        for (tag, shift) in [(Tag::UserObject, 6), (Tag::Other, 0)] {
            if let Some(entry) = self.get(tag) {
                entry.permissions = bits(shift);
            }
        }
    }

    /// Turns a directory's default list into the access list of a new inode that was to have `mode`: each
    /// permits only what the other does. Gives the mode.
    pub(crate) fn hand_down(&mut self, mode: u32) -> u32 {
        let bits = |shift: u32| (mode >> shift) as u16 & PERMISSIONS;
        self.group_class().permissions &= bits(3);
        for (tag, shift) in [(Tag::UserObject, 6), (Tag::Other, 0)] {
            if let Some(entry) = self.get(tag) {
                entry.permissions &= bits(shift);
            }
        }
        mode & !0o777 | self.permissions()
    }
}

/// Order and number of the entries.
fn check_shape(entries: &[Entry]) -> Result<(), String> {
    if !entries.is_sorted_by_key(|entry| entry.tag) {
        return Err("the entries are out of order".into());
    }
    let count = |tag: Tag| entries.iter().filter(|entry| entry.tag == tag).count();
    for tag in [Tag::UserObject, Tag::GroupObject, Tag::Other] {
        if count(tag) != 1 {
            return Err(format!("{} entries {tag:?}, not one", count(tag)));
        }
    }
    let named = count(Tag::User) + count(Tag::Group);
    match count(Tag::Mask) {
        0 if named > 0 => Err("users or groups are named, but there is no mask".into()),
        0 | 1 => Ok(()),
        masks => Err(format!("{masks} masks")),
    }
}

/// Bits that the in-memory copy of a directory's mode has beyond the mode: whether it is known if the
/// directory has a default list, and whether it has one. Everything that publishes a mode clears them, under
/// `meta`; so does every change of the list.
const DEFAULT_KNOWN: u32 = 1 << 30;
const HAS_DEFAULT: u32 = 1 << 31;

impl Engine {
    /// The list that new inodes in a directory start with. Creates in a directory without one take no lock
    /// for it.
    pub(crate) fn default_acl(&self, directory: &InodeRef) -> Result<Option<Acl>> {
        debug_assert_eq!(directory.kind(), FileType::Directory);
        let seen = directory.mode.load(Ordering::Acquire);
        if seen & DEFAULT_KNOWN != 0 && seen & HAS_DEFAULT == 0 {
            return Ok(None);
        }
        let value = self.read_xattr(directory, DEFAULT, |value| {
            let known = if value.is_some() { DEFAULT_KNOWN | HAS_DEFAULT } else { DEFAULT_KNOWN };
            directory.mode.fetch_or(known, Ordering::AcqRel);
        })?;
        let Some(value) = value else { return Ok(None) };
        Acl::decode(&value)
            .map_err(|error| error.with_kind(ErrorKind::Corrupt))
            .context(format_args!("the default list of directory {}", directory.number()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            out.extend(tag.to_le_bytes());
            out.extend(permissions.to_le_bytes());
            out.extend(id.to_le_bytes());
        }
        out
    }

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl::decode(&bytes(entries)).unwrap().unwrap()
    }

    const WIDE: [(u16, u16, u32); 5] =
        [(1, 7, NO_ID), (2, 6, 1000), (4, 5, NO_ID), (0x10, 6, NO_ID), (0x20, 1, NO_ID)];

    #[test]
    fn round_trip_and_mode() {
        let list = acl(&WIDE);
        assert_eq!(list.encode(), bytes(&WIDE));
        assert_eq!(list.permissions(), 0o761);
        assert!(!list.is_only_a_mode());
        let plain = acl(&[(1, 6, 0), (4, 4, 0), (0x20, 0, 0)]);
        assert!(plain.is_only_a_mode());
        assert_eq!(plain.permissions(), 0o640);
        // Ids that mean nothing are not kept.
        assert_eq!(plain.encode(), bytes(&[(1, 6, NO_ID), (4, 4, NO_ID), (0x20, 0, NO_ID)]));
    }

    #[test]
    fn no_entries_mean_no_list() {
        assert_eq!(Acl::decode(&bytes(&[])).unwrap(), None);
    }

    #[test]
    fn a_mode_changes_the_mask_and_not_the_group() {
        let mut list = acl(&WIDE);
        list.set_mode(0o100_704);
        assert_eq!(
            list.encode(),
            bytes(&[(1, 7, NO_ID), (2, 6, 1000), (4, 5, NO_ID), (0x10, 0, NO_ID), (0x20, 4, NO_ID)])
        );
        assert_eq!(list.permissions(), 0o704);
        let mut plain = acl(&[(1, 6, 0), (4, 4, 0), (0x20, 0, 0)]);
        plain.set_mode(0o751);
        assert_eq!(plain.permissions(), 0o751);
    }

    #[test]
    fn handing_down_takes_the_smaller_of_both() {
        let mut list = acl(&WIDE);
        assert_eq!(list.hand_down(0o102_755), 0o102_741);
        assert_eq!(list.permissions(), 0o741);
        assert_eq!(list.entries[2].permissions, 5, "the group's own entry stays where there is a mask");
    }

    #[test]
    fn refuses_what_is_no_list() {
        let bad: [Vec<u8>; 11] = [
            vec![],
            vec![2, 0, 0],
            vec![1, 0, 0, 0],
            bytes(&WIDE)[..12 + 3].to_vec(),
            bytes(&[(1, 7, 0), (4, 5, 0)]),
            bytes(&[(1, 7, 0), (4, 5, 0), (0x20, 8, 0)]),
            bytes(&[(1, 7, 0), (0x20, 5, 0), (4, 5, 0)]),
            bytes(&[(1, 7, 0), (2, 5, 9), (4, 5, 0), (0x20, 0, 0)]),
            bytes(&[(1, 7, 0), (2, 5, NO_ID), (4, 5, 0), (0x10, 0, 0), (0x20, 0, 0)]),
            bytes(&[(1, 7, 0), (1, 7, 0), (4, 5, 0), (0x20, 0, 0)]),
            bytes(&[(1, 7, 0), (4, 5, 0), (0x10, 0, 0), (0x10, 0, 0), (0x20, 0, 0)]),
        ];
        for bytes in bad {
            assert_eq!(Acl::decode(&bytes).unwrap_err().kind(), ErrorKind::Invalid, "{bytes:?}");
        }
    }
}
