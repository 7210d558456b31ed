//! The extended attributes of one inode, piece by piece as the keys go by: each must be whole, be where its
//! name's hash says, and have a name that volumes keep.
//!
//! Neighbours: [`crate::contents`] has the inode; [`crate::restore`] finds names of which one byte is wrong.

use crate::contents::Object;
use crate::issue::IssueKind;
use crate::report::{Findings, Place};
use crate::restore;
use crate::view::View;
use quire_format::key::Key;
use quire_format::xattr::{self, Head, PIECE_BYTES_MAX};
use std::collections::BTreeSet;

/// The attributes so far.
#[derive(Default)]
pub(crate) struct Attributes {
    any: bool,
    /// Names and values of those that are whole.
    pub(crate) bytes: u64,
    current: Option<Attribute>,
    /// Names with the hash of the current one.
    names: BTreeSet<Vec<u8>>,
}

struct Attribute {
    hash: u32,
    disambiguator: u16,
    keys: Vec<Key>,
    name: Vec<u8>,
    pieces: usize,
    bytes: u64,
    left: usize,
    broken: Option<String>,
    /// Whole, but not where its name's hash says.
    misplaced: bool,
}

impl Object {
    pub(crate) fn xattr_piece(&mut self, view: &View<'_>, key: Key, value: &[u8], findings: &mut Findings) {
        self.attributes.any = true;
        let (hash, disambiguator, piece) = xattr::split_offset(key.offset);
        let same = |current: &Attribute| (current.hash, current.disambiguator) == (hash, disambiguator);
        if !self.attributes.current.as_ref().is_some_and(same) {
            self.end_attribute(findings);
            if self.attributes.current.as_ref().is_none_or(|last| last.hash != hash) {
                self.attributes.names.clear();
            }
            let begun = Attribute::begin(view, (hash, disambiguator), piece, value);
            self.attributes.current = Some(if piece == 0 && !begun.is_right() {
                self.restore_attribute(view, key, value, findings).unwrap_or(begun)
            } else {
                begun
            });
        } else if let Some(current) = &mut self.attributes.current {
            current.go_on(piece, value);
        }
        if let Some(current) = &mut self.attributes.current {
            current.keys.push(key);
        }
    }

    /// The attribute with the name that its hash knows, where one byte is wrong.
    fn restore_attribute(
        &self,
        view: &View<'_>,
        key: Key,
        value: &[u8],
        findings: &mut Findings,
    ) -> Option<Attribute> {
        if !findings.may_try_to_restore() {
            return None;
        }
        let (hash, disambiguator, piece) = xattr::split_offset(key.offset);
        let restored = restore::attribute(view.superblock.hash_seed, hash, value)?;
        let attribute = Attribute::begin(view, (hash, disambiguator), piece, &restored);
        findings.add(
            IssueKind::XattrDamaged,
            Place::inode(self.number),
            format!(
                "inode {}: an extended attribute's name is damaged, its hash is that of {:?}: repair restores it",
                self.number,
                String::from_utf8_lossy(&attribute.name)
            ),
        );
        findings.fixes.rewrite.push((key, restored));
        Some(attribute)
    }

    /// Judges the attribute whose pieces have gone by; it stays as `current` without keys.
    pub(crate) fn end_attribute(&mut self, findings: &mut Findings) {
        let half_freed = self.may_be_half_freed();
        let attributes = &mut self.attributes;
        let Some(current) = &mut attributes.current else { return };
        if current.keys.is_empty() {
            return;
        }
        if current.broken.is_none() && current.keys.len() != current.pieces {
            current.broken = Some(format!("{} of {} pieces", current.keys.len(), current.pieces));
        }
        if current.broken.is_none() && attributes.names.contains(&current.name) {
            current.broken = Some("the name is there twice".into());
        }
        let keys = std::mem::take(&mut current.keys);
        let name = String::from_utf8_lossy(&current.name);
        match &current.broken {
            None if current.misplaced => {
                attributes.bytes += current.bytes;
                findings.add(
                    IssueKind::XattrDamaged,
                    Place::inode(self.number),
                    format!(
                        "inode {}: extended attribute {name:?} is not where its name's hash says: repair moves it",
                        self.number
                    ),
                );
                findings.fixes.rehash_xattrs.push((self.number, current.hash, current.disambiguator));
            }
            None => {
                attributes.bytes += current.bytes;
                attributes.names.insert(current.name.clone());
            }
            Some(_) if half_freed => {}
            Some(why) => {
                findings.add(
                    IssueKind::XattrDamaged,
                    Place::inode(self.number),
                    format!(
                        "inode {}: extended attribute {name:?} is damaged ({why}): repair drops it",
                        self.number
                    ),
                );
                findings.fixes.drop_keys.extend(keys);
            }
        }
    }
}

impl Attribute {
    fn begin(view: &View<'_>, (hash, disambiguator): (u32, u16), piece: u16, value: &[u8]) -> Attribute {
        let mut attribute = Attribute {
            hash,
            disambiguator,
            keys: Vec::new(),
            name: Vec::new(),
            pieces: 0,
            bytes: 0,
            left: 0,
            broken: None,
            misplaced: false,
        };
        if piece != 0 {
            attribute.broken = Some(format!("its first piece is {piece}"));
            return attribute;
        }
        match Head::decode(value) {
            Ok(head) => {
                attribute.name = head.name.to_vec();
                attribute.pieces = head.pieces();
                attribute.bytes = (head.name.len() + head.value_bytes) as u64;
                attribute.left = head.value_bytes - head.value_start.len();
                attribute.misplaced = xattr::name_hash(view.superblock.hash_seed, head.name) != hash;
                if !quire::internals::inspect::is_attribute_name(head.name) {
                    attribute.broken = Some("no volume keeps attributes of such a name".into());
                }
            }
            Err(error) => attribute.broken = Some(error.to_string()),
        }
        attribute
    }

    /// So far.
    fn is_right(&self) -> bool {
        self.broken.is_none() && !self.misplaced
    }

    fn go_on(&mut self, piece: u16, value: &[u8]) {
        let expected = self.left.min(PIECE_BYTES_MAX);
        if usize::from(piece) != self.keys.len() || expected == 0 || value.len() != expected {
            self.broken.get_or_insert_with(|| format!("piece {piece} has {} bytes", value.len()));
        }
        self.left -= expected.min(self.left);
    }
}
