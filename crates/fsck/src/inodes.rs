//! The first pass over all keys: every value must decode, and each inode must agree with what it has.
//!
//! All that belongs to an inode lies together in the key order, so an inode is checked by itself when its
//! last key has gone by. What has to be compared across inodes is kept: some words for each inode, and a list
//! of all extents.
//!
//! Neighbours: [`crate::contents`] judges the contents of one inode; [`crate::names`], [`crate::orphans`] and
//! [`crate::space`] take what was kept.

use crate::contents::Object;
use crate::issue::IssueKind;
use crate::progress::Meter;
use crate::report::{Findings, Place};
use crate::view::View;
use quire_base::Result;
use quire_format::inode::{FileType, InodeRecord};
use quire_format::key::{Key, KeyKind};
use quire_format::logged::LoggedOp;
use quire_format::receive::SnapshotId;
use std::ops::ControlFlow;

/// Inode flag: made without a name and never given one.
pub(crate) const NEVER_NAMED: u32 = 1;

/// The generation of the root directory, which is made with the volume.
pub(crate) const ROOT_GENERATION: u64 = 1;

/// What is remembered of an inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InodeInfo {
    pub(crate) number: u64,
    pub(crate) generation: u64,
    /// As its record says.
    pub(crate) parent: u64,
    /// The first directory that names it, and the entry's cookie; 0: none yet.
    pub(crate) named_in: u64,
    pub(crate) named_at: u64,
    pub(crate) nlink: u32,
    /// Entries that name it.
    pub(crate) links: u32,
    /// Directories that it names.
    pub(crate) subdirectories: u32,
    pub(crate) kind: FileType,
    pub(crate) has_entries: bool,
    /// A slot or key names it as an orphan.
    pub(crate) tracked: bool,
    /// State of the search for circles.
    pub(crate) visited: u8,
}

/// An extent with its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owned {
    pub(crate) start: u64,
    pub(crate) inode: u64,
    pub(crate) file_block: u64,
    pub(crate) len: u32,
    pub(crate) unwritten: bool,
    /// The inode counts another number of blocks: some of its extents are not what they were.
    pub(crate) doubtful: bool,
}

impl Owned {
    pub(crate) fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }
}

/// What the first pass keeps.
#[derive(Default)]
pub(crate) struct Contents {
    /// Ascending by number.
    pub(crate) inodes: Vec<InodeInfo>,
    pub(crate) extents: Vec<Owned>,
    pub(crate) logged: Vec<(u64, LoggedOp)>,
    pub(crate) orphan_keys: Vec<u64>,
    /// Records that do not decode, beside `inodes`.
    pub(crate) damaged_records: u64,
    /// The highest inode number of any key.
    pub(crate) highest: u64,
}

impl Contents {
    pub(crate) fn find(&self, number: u64) -> Option<usize> {
        self.inodes.binary_search_by_key(&number, |info| info.number).ok()
    }
}

/// Reads all keys. Errors: the tree cannot be read.
pub(crate) fn scan(view: &View<'_>, findings: &mut Findings, meter: &mut Meter<'_>) -> Result<Contents> {
    let mut contents = Contents::default();
    let mut current: Option<Object> = None;
    let regions = view.superblock.block_count.div_ceil(quire_format::region::REGION_BLOCKS);
    view.tree.scan(Key::MIN, Key::MAX, &mut |key, value| {
        if key.object == 0 {
            volume_key(key, value, regions, findings, &mut contents);
            return ControlFlow::Continue(());
        }
        if key.object == u64::MAX {
            // No inode can have the last number, since there is always a next one.
            unknown_key(key, findings);
            return ControlFlow::Continue(());
        }
        if current.as_ref().is_none_or(|object| object.number != key.object) {
            if let Some(done) = current.take() {
                done.finish(findings, &mut contents);
            }
            meter.advance(1);
            current = Some(Object::new(key.object, contents.extents.len()));
        }
        let object = current.as_mut().expect("it was just set");
        match key.kind {
            KeyKind::Inode if key.offset == 0 => object.record(InodeRecord::decode(value)),
            KeyKind::Symlink => object.symlink_piece(key, value),
            KeyKind::Xattr => object.xattr_piece(view, key, value, findings),
            KeyKind::Entry => object.entries += 1,
            KeyKind::Extent => object.extent(view, key, value, findings, &mut contents.extents),
            _ => unknown_key(key, findings),
        }
        ControlFlow::Continue(())
    })?;
    if let Some(done) = current {
        done.finish(findings, &mut contents);
    }
    let summary = &mut findings.summary;
    summary.extents = contents.extents.len() as u64;
    summary.inodes = contents.inodes.len() as u64;
    summary.logged_operations = contents.logged.len() as u64;
    let count = |kind: FileType| contents.inodes.iter().filter(|info| info.kind == kind).count() as u64;
    summary.directories = count(FileType::Directory);
    summary.files = count(FileType::Regular);
    summary.symlinks = count(FileType::Symlink);
    summary.others = summary.inodes - summary.directories - summary.files - summary.symlinks;
    Ok(contents)
}

fn unknown_key(key: Key, findings: &mut Findings) {
    findings.add(
        IssueKind::KeyUnknown,
        Place { inode: (key.object != 0).then_some(key.object), block: None },
        format!("the key {} {:?} {} means nothing: repair drops it", key.object, key.kind, key.offset),
    );
    findings.fixes.drop_keys.push(key);
}

fn volume_key(key: Key, value: &[u8], regions: u64, findings: &mut Findings, contents: &mut Contents) {
    match key.kind {
        // [`crate::space`] reads these.
        KeyKind::FreeSpace | KeyKind::Dead if key.offset < regions => {}
        // Those that cannot be read are reported where their blocks are looked for.
        KeyKind::Snapshot => {}
        // Where the unfinished receive can be read, nothing of this is looked at.
        KeyKind::Receive if key.offset != 0 && SnapshotId::decode(value).is_ok() => {}
        KeyKind::FreeSpace | KeyKind::Dead => {
            findings.add(
                IssueKind::RegionOutOfRange,
                Place::NONE,
                format!(
                    "region {} is marked, the volume has only {regions}: repair drops the mark",
                    key.offset
                ),
            );
            findings.fixes.drop_keys.push(key);
        }
        KeyKind::LoggedOp => match LoggedOp::decode(value) {
            Ok(operation) => contents.logged.push((key.offset, operation)),
            Err(error) => {
                findings.add(
                    IssueKind::LoggedOperationInvalid,
                    Place::NONE,
                    format!("logged operation {}: {error}; repair drops it", key.offset),
                );
                findings.fixes.drop_keys.push(key);
            }
        },
        KeyKind::OrphanKey if key.offset != 0 => {
            contents.orphan_keys.push(key.offset);
            if !value.is_empty() {
                findings.add(
                    IssueKind::OrphanKeyDamaged,
                    Place::inode(key.offset),
                    format!("the orphan key of inode {} has a value: repair drops the key", key.offset),
                );
                findings.fixes.drop_keys.push(key);
            }
        }
        _ => unknown_key(key, findings),
    }
}
