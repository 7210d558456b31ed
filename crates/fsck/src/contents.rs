//! One inode and its contents: link target, entries, extents.
//!
//! Neighbours: [`crate::inodes`] feeds it the keys in order; [`crate::attributes`] has the extended
//! attributes.

use crate::attributes::Attributes;
use crate::fix::{Rebuild, whole_object};
use crate::inodes::{Contents, InodeInfo, NEVER_NAMED, Owned, ROOT_GENERATION};
use crate::issue::IssueKind;
use crate::report::{Findings, Place};
use crate::view::View;
use quire_base::{BlockNo, InodeNo, Result};
use quire_format::extent::{Extent, Run};
use quire_format::inode::{FileType, InodeRecord, SYMLINK_PIECE_MAX, SYMLINK_TARGET_MAX};
use quire_format::key::{Key, KeyKind};
use quire_format::properties::{PROPERTY_FLAGS, Properties};
use quire_format::superblock::Superblock;

enum Record {
    None,
    Damaged(String),
    Good(Box<InodeRecord>),
}

/// An inode whose keys go by.
pub(crate) struct Object {
    pub(crate) number: u64,
    record: Record,
    pub(crate) entries: u64,
    target: Target,
    pub(crate) attributes: Attributes,
    extents: u64,
    /// Where its extents begin in the list of all.
    first_extent: usize,
    /// Where the last extent ends in the file.
    file_end: u64,
    blocks: u64,
    overlaps: bool,
}

/// A link's target: the pieces that follow one another from the first.
#[derive(Default)]
struct Target {
    pieces: u64,
    bytes: u64,
    /// A piece shorter than the rest has come: it must be the last.
    ended: bool,
    broken: bool,
}

impl Object {
    pub(crate) fn new(number: u64, first_extent: usize) -> Object {
        Object {
            number,
            record: Record::None,
            entries: 0,
            target: Target::default(),
            attributes: Attributes::default(),
            extents: 0,
            first_extent,
            file_end: 0,
            blocks: 0,
            overlaps: false,
        }
    }

    pub(crate) fn record(&mut self, record: Result<InodeRecord>) {
        self.record = match record {
            Ok(record) => Record::Good(Box::new(record)),
            Err(error) => Record::Damaged(error.to_string()),
        };
    }

    pub(crate) fn symlink_piece(&mut self, key: Key, value: &[u8]) {
        let target = &mut self.target;
        if target.broken
            || target.ended
            || key.offset != target.pieces
            || value.is_empty()
            || value.len() > SYMLINK_PIECE_MAX
            || value.contains(&0)
            || target.bytes + value.len() as u64 > SYMLINK_TARGET_MAX as u64
        {
            target.broken = true;
            return;
        }
        target.pieces += 1;
        target.bytes += value.len() as u64;
        target.ended = value.len() < SYMLINK_PIECE_MAX;
    }

    /// The attributes of an inode without a name are freed in several transactions, of which the first sets
    /// their count to zero: a part of them may be gone.
    pub(crate) fn may_be_half_freed(&self) -> bool {
        matches!(&self.record, Record::Good(record) if is_half_freed(record))
    }

    pub(crate) fn extent(
        &mut self,
        view: &View<'_>,
        key: Key,
        value: &[u8],
        findings: &mut Findings,
        all: &mut Vec<Owned>,
    ) {
        let number = self.number;
        let extent = match Extent::decode(key.offset, value) {
            Ok(extent) => extent,
            Err(error) => {
                findings.add(
                    IssueKind::ExtentDamaged,
                    Place::inode(number),
                    format!("inode {number}: {error}; repair drops it, the file reads as zeros there"),
                );
                findings.fixes.drop_keys.push(key);
                return;
            }
        };
        self.extents += 1;
        self.blocks += u64::from(extent.len);
        if extent.file_block < self.file_end && !self.overlaps {
            self.overlaps = true;
            findings.add(
                IssueKind::ExtentOverlap,
                Place { inode: Some(number), block: Some(extent.disk_block.0) },
                format!(
                    "inode {number}: two extents cover file block {}: repair keeps the first",
                    extent.file_block
                ),
            );
            findings.fixes.disentangle.push(number);
        }
        self.file_end = self.file_end.max(extent.file_end());
        // By its birth the extent would be a file's alone: what replaces it would free what a snapshot has.
        let (epoch, newest) = (view.superblock.epoch, view.held.newest);
        let is_held = newest > 0 && extent.birth >= newest && view.is_held(extent.run());
        if extent.birth > epoch || is_held {
            findings.add(
                IssueKind::ExtentBirthWrong,
                Place { inode: Some(number), block: Some(extent.disk_block.0) },
                format!(
                    "inode {number}: the extent at file block {} was born in epoch {}, the volume is in epoch {epoch}{}",
                    extent.file_block,
                    extent.birth,
                    if is_held { ", and a snapshot has its blocks, too" } else { "" }
                ),
            );
            let born = Extent { birth: if is_held { 0 } else { epoch }, ..extent };
            findings
                .fixes
                .rewrite
                .push((Key::extent(InodeNo(number), extent.file_block), born.encode().to_vec()));
        }
        let (start, last) = (extent.disk_block.0, extent.disk_end().0);
        let parts = parts_for_files(view.superblock, start, last);
        if parts != [(start, last)] {
            let (data_start, end) = (view.superblock.data_start.0, view.superblock.data_end.0);
            let journal = match view.superblock.journal_has_moved() {
                true => format!(" without the journal at {}", view.superblock.journal_start),
                false => String::new(),
            };
            findings.add(
                IssueKind::ExtentOutOfRange,
                Place { inode: Some(number), block: Some(extent.disk_block.0) },
                format!(
                    "inode {number}: the extent at file block {} has {}, the data space is {data_start} to {}{journal}: \
                     repair drops what lies outside, the file reads as zeros there",
                    extent.file_block,
                    crate::fix::blocks(extent.run()),
                    end - 1
                ),
            );
            let mut at = start;
            for (from, to) in parts.iter().copied().chain([(last, last)]) {
                if at < from {
                    findings.fixes.punch.push((number, extent.file_block + (at - start), from - at));
                }
                at = to;
            }
        }
        all.extend(parts.into_iter().map(|(from, to)| Owned {
            start: from,
            inode: number,
            file_block: extent.file_block + (from - start),
            len: (to - from) as u32,
            unwritten: extent.unwritten,
            doubtful: false,
        }));
    }

    /// All keys have gone by.
    pub(crate) fn finish(mut self, findings: &mut Findings, contents: &mut Contents) {
        self.end_attribute(findings);
        contents.highest = contents.highest.max(self.number);
        let record = match std::mem::replace(&mut self.record, Record::None) {
            Record::Good(record) => record,
            Record::Damaged(why) => {
                contents.damaged_records += 1;
                return self.without_record(IssueKind::InodeDamaged, &why, findings);
            }
            Record::None => {
                return self.without_record(
                    IssueKind::InodeMissing,
                    "it has contents but no record",
                    findings,
                );
            }
        };
        let kind = self.judge(&record, findings);
        self.judge_target(&record, kind, findings);
        self.judge_counts(&record, findings);
        if record.blocks != self.blocks {
            contents.extents[self.first_extent..].iter_mut().for_each(|extent| extent.doubtful = true);
        }
        contents.inodes.push(InodeInfo {
            number: self.number,
            generation: record.generation,
            parent: record.parent,
            named_in: 0,
            named_at: 0,
            nlink: record.nlink,
            links: 0,
            subdirectories: 0,
            kind,
            has_entries: self.entries > 0,
            tracked: false,
            visited: 0,
        });
    }

    /// What the contents say that the inode is, if they are of one kind.
    fn kind_by_contents(&self) -> Option<FileType> {
        match (self.entries > 0, self.extents > 0, self.target.bytes > 0) {
            (true, false, false) => Some(FileType::Directory),
            (false, true, false) => Some(FileType::Regular),
            (false, false, true) => Some(FileType::Symlink),
            _ => None,
        }
    }

    fn without_record(&self, kind: IssueKind, why: &str, findings: &mut Findings) {
        let number = self.number;
        findings.add(
            kind,
            Place::inode(number),
            format!(
                "inode {number}: {why}; repair makes a new record from its contents and its name, if it can"
            ),
        );
        let by_contents = self.kind_by_contents();
        let (regular, symlink) =
            (by_contents == Some(FileType::Regular), by_contents == Some(FileType::Symlink));
        findings.fixes.rebuild.push(Rebuild {
            inode: number,
            kind: by_contents,
            generation: None,
            size: if regular {
                self.file_end << quire_base::BLOCK_SHIFT
            } else if symlink {
                self.target.bytes
            } else {
                0
            },
            blocks: self.blocks,
            xattr_bytes: u32::try_from(self.attributes.bytes).unwrap_or(0),
            orphan: false,
        });
    }

    /// Whether type and contents fit, and fields that only some types have. Gives the type after a repair.
    fn judge(&self, record: &InodeRecord, findings: &mut Findings) -> FileType {
        let (number, mut kind) = (self.number, record.file_type());
        let has = [
            (FileType::Directory, self.entries > 0, KeyKind::Entry, "entries"),
            (FileType::Regular, self.extents > 0, KeyKind::Extent, "extents"),
            (
                FileType::Symlink,
                self.target.pieces > 0 || self.target.broken,
                KeyKind::Symlink,
                "a link target",
            ),
        ];
        let foreign: Vec<_> = has.iter().filter(|(owner, has, ..)| *has && *owner != kind).collect();
        if !foreign.is_empty() {
            let own = has.iter().any(|(owner, has, ..)| *has && *owner == kind);
            // A record of anything else names no parent, so it was never a directory's: the entries are not
            // its own. The root is a directory.
            let may_become = !own && number != InodeNo::ROOT.0;
            let becomes = self.kind_by_contents().filter(|kind| may_become && *kind != FileType::Directory);
            let names: Vec<&str> = foreign.iter().map(|(.., name)| *name).collect();
            let remedy = match becomes {
                Some(becomes) => format!("repair makes it a {becomes:?}"),
                None => "repair drops them".into(),
            };
            findings.add(
                IssueKind::InodeContentWrong,
                Place::inode(number),
                format!("inode {number} is a {kind:?} with {}: {remedy}", names.join(" and ")),
            );
            match becomes {
                Some(becomes) => {
                    findings.fixes.patch(number).kind = Some(becomes);
                    kind = becomes;
                }
                None => {
                    for (_, _, key, _) in foreign {
                        let range = (Key::new(number, *key, 0), Key::new(number, *key, u64::MAX));
                        findings.fixes.drop_ranges.push(range);
                    }
                }
            }
        }
        let mut wrong = Vec::new();
        if !matches!(kind, FileType::Regular | FileType::Symlink) && record.size != 0 {
            wrong.push(format!("a size of {}", record.size));
            findings.fixes.patch(number).size = Some(0);
        }
        if !kind.is_device() && record.rdev != 0 {
            wrong.push(format!("the device number {:#x}", record.rdev));
            findings.fixes.patch(number).rdev = Some(0);
        }
        let mut flags = if record.nlink == 0 { NEVER_NAMED } else { 0 };
        if Properties::of_flags(record.flags).is_ok() {
            flags |= PROPERTY_FLAGS;
        }
        if record.flags & !flags != 0 {
            wrong.push(format!("the flags {:#x}", record.flags));
            findings.fixes.patch(number).flags = Some(record.flags & flags);
        }
        if number == InodeNo::ROOT.0 && record.generation != ROOT_GENERATION {
            wrong.push(format!("the generation {}, as no root has it", record.generation));
            findings.fixes.patch(number).generation = Some(ROOT_GENERATION);
        }
        if !wrong.is_empty() {
            findings.add(
                IssueKind::InodeFieldWrong,
                Place::inode(number),
                format!("inode {number} is a {kind:?} with {} links and {}", record.nlink, wrong.join(", ")),
            );
        }
        kind
    }

    fn judge_target(&self, record: &InodeRecord, kind: FileType, findings: &mut Findings) {
        let (number, target) = (self.number, &self.target);
        if kind != FileType::Symlink
            || record.nlink == 0
            || (!target.broken && target.bytes == record.size && target.bytes > 0)
        {
            return;
        }
        let remedy =
            if target.bytes > 0 { "repair keeps the part that is there" } else { "repair removes the link" };
        findings.add(
            IssueKind::SymlinkDamaged,
            Place::inode(number),
            format!(
                "inode {number}: {} bytes of the link's target are there, its size is {}: {remedy}",
                target.bytes, record.size
            ),
        );
        if target.bytes > 0 {
            findings.fixes.patch(number).size = Some(target.bytes);
            if target.broken {
                let rest = (
                    Key::new(number, KeyKind::Symlink, target.pieces),
                    Key::new(number, KeyKind::Symlink, u64::MAX),
                );
                findings.fixes.drop_ranges.push(rest);
            }
        } else if self.entries == 0 && self.extents == 0 {
            findings.fixes.drop_ranges.push(whole_object(number));
        }
    }

    fn judge_counts(&self, record: &InodeRecord, findings: &mut Findings) {
        let number = self.number;
        if record.blocks != self.blocks {
            findings.add(
                IssueKind::InodeBlocksWrong,
                Place::inode(number),
                format!("inode {number} counts {} blocks, its extents have {}", record.blocks, self.blocks),
            );
            findings.fixes.patch(number).blocks = Some(self.blocks);
        }
        if u64::from(record.xattr_bytes) != self.attributes.bytes && !is_half_freed(record) {
            findings.add(
                IssueKind::InodeXattrBytesWrong,
                Place::inode(number),
                format!(
                    "inode {number} counts {} bytes of extended attributes, there are {}",
                    record.xattr_bytes, self.attributes.bytes
                ),
            );
            findings.fixes.patch(number).xattr_bytes =
                Some(u32::try_from(self.attributes.bytes).unwrap_or(u32::MAX));
        }
    }
}

fn is_half_freed(record: &InodeRecord) -> bool {
    record.nlink == 0 && record.xattr_bytes == 0
}

/// The parts of the blocks from `start` to `end` that a file may have: in the data space, and not in a
/// journal that was moved there. The pool's blocks are compared with those of all files at once.
fn parts_for_files(superblock: &Superblock, start: u64, end: u64) -> Vec<(u64, u64)> {
    let (from, to) = (start.max(superblock.data_start.0), end.min(superblock.data_end.0));
    let journal =
        if superblock.journal_has_moved() { superblock.journal() } else { Run::new(BlockNo(to), 0) };
    let before = (from, to.min(journal.start.0));
    let behind = (from.max(journal.end().0), to);
    [before, behind].into_iter().filter(|(from, to)| from < to).collect()
}
