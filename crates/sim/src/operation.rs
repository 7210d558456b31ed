//! What a run does: the operations, their outcomes, and the record of when each was under way.
//!
//! An operation names inodes by number and names by a small number of their own, so that it can be printed,
//! repeated and given to the model.
//!
//! Neighbours: [`crate::generate`] draws them, [`crate::run`] does them on a volume, [`crate::model`] says
//! what they must answer.

use crate::image::Kept;
use crate::model::BLOCK;
use quire::inodes::{FallocateMode, IoFlags, XattrFlags};
use quire::{ErrorKind, FileType, RenameFlags};
use std::collections::BTreeMap;

/// An operation's number, unique through all levels of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// A name in a directory, as a number; [`Name::text`] are its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub u16);

/// Names from here on are 255 bytes long.
const LONG_NAMES: u16 = 1000;
/// Names from here on are longer than any may be.
const TOO_LONG_NAMES: u16 = 2000;

impl Name {
    /// The bytes.
    pub fn text(self) -> Vec<u8> {
        let mut text = format!("n{}", self.0).into_bytes();
        if self.0 >= LONG_NAMES {
            text.resize(if self.0 >= TOO_LONG_NAMES { 256 } else { 255 }, b'x');
        }
        text
    }

    /// The name that has these bytes.
    pub fn from_text(text: &[u8]) -> Option<Name> {
        let text = text.strip_prefix(b"n")?;
        let digits: Vec<u8> = text.iter().copied().take_while(u8::is_ascii_digit).collect();
        let name = Name(String::from_utf8(digits).ok()?.parse().ok()?);
        (name.text()[1..] == *text).then_some(name)
    }

    /// Errors if no directory may hold this name.
    pub fn check(self) -> Result<(), ErrorKind> {
        if self.0 >= TOO_LONG_NAMES { Err(ErrorKind::NameTooLong) } else { Ok(()) }
    }
}

/// The bytes of an extended attribute that operation `op` sets.
pub fn xattr_value(op: OpId, length: u64) -> Vec<u8> {
    crate::contents::pattern(op, 0, length)
}

/// The target of a link that operation `op` makes.
pub fn link_target(op: OpId, length: u64) -> Vec<u8> {
    let mut target = format!("target-{}/", op.0).into_bytes();
    target.resize(length.max(1) as usize, b't');
    target
}

/// The name of a snapshot, from its number in operations.
pub fn snapshot_text(name: u8) -> String {
    format!("s{name}")
}

/// What names and stat show of an inode, but for its size.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// What it is.
    pub kind: FileType,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub links: u32,
    /// Extended attributes: who set each, and its length in bytes.
    pub xattrs: BTreeMap<u8, (OpId, u64)>,
    /// A symbolic link's.
    pub target: Vec<u8>,
    /// A directory's, without "." and "..".
    pub entries: BTreeMap<Name, u64>,
    /// Bytes of its untorn unit; 0: none.
    pub untorn: u64,
}

impl Shape {
    /// A new inode's.
    pub fn new(kind: FileType, mode: u32) -> Shape {
        Shape {
            kind,
            mode,
            uid: 0,
            gid: 0,
            links: 0,
            xattrs: BTreeMap::new(),
            target: Vec::new(),
            entries: BTreeMap::new(),
            untorn: 0,
        }
    }
}

/// One write of a group, or a truncate in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupWrite {
    /// The file.
    pub inode: u64,
    /// Where, in bytes; of a truncate, the size.
    pub offset: u64,
    /// How much, in bytes; 0: a truncate.
    pub length: u64,
}

impl GroupWrite {
    /// Whether it sets the file's size.
    pub fn truncates(&self) -> bool {
        self.length == 0
    }
}

/// Bytes of a file that a group gives, where no later step of the group covers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupPiece {
    /// The file.
    pub inode: u64,
    /// First byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
    /// Where `start` is in the pattern of the group's operation; `None`: these are the zeros of a truncate.
    pub from: Option<u64>,
}

/// Where each write of a group begins in the pattern of its operation.
pub fn group_patterns(writes: &[GroupWrite]) -> impl Iterator<Item = (u64, &GroupWrite)> {
    let mut from = 0;
    writes.iter().map(move |write| {
        let at = from;
        from += write.length.next_multiple_of(4096);
        (at, write)
    })
}

/// What a group's writes come to.
pub fn group_pieces(writes: &[GroupWrite]) -> Vec<GroupPiece> {
    let mut pieces: Vec<GroupPiece> = Vec::new();
    for (from, write) in group_patterns(writes) {
        let (start, end, from) = match write.truncates() {
            true => (write.offset, u64::MAX, None),
            false => (write.offset, write.offset + write.length, Some(from)),
        };
        let outside = |piece: &GroupPiece| {
            if piece.inode != write.inode {
                return [Some(*piece), None];
            }
            let part = |low: u64, high: u64| {
                (low < high).then(|| {
                    let from = piece.from.map(|from| from + (low.max(piece.start) - piece.start));
                    GroupPiece { start: low, end: high, from, ..*piece }
                })
            };
            [part(piece.start, piece.end.min(start)), part(piece.start.max(end), piece.end)]
        };
        pieces = pieces.iter().flat_map(outside).flatten().collect();
        pieces.push(GroupPiece { inode: write.inode, start, end, from });
    }
    pieces.sort_by_key(|piece| (piece.inode, piece.start));
    pieces
}

/// How a group ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupEnd {
    /// It is durable when it returns.
    Now,
    /// The same, by a force that others make within so many milliseconds.
    Lazy(u64),
    /// It is there as a whole or not at all.
    Ordered,
    /// It is dropped.
    Dropped,
}

impl GroupEnd {
    /// Whether it is durable when it returns.
    pub fn is_force(self) -> bool {
        matches!(self, GroupEnd::Now | GroupEnd::Lazy(_))
    }
}

/// How several fsyncs are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Many {
    /// By callbacks, one for each.
    Completions,
    /// As a future of all.
    Future,
    /// As a future of all that leaves the force to others for so many milliseconds.
    Lazy(u64),
    /// As a future that is dropped, after so many others have had their turn. It promises nothing.
    Withdrawn(u64),
}

impl Many {
    /// As the numbers of the inodes have it, so that runs of a seed differ in nothing else from those without
    /// this choice.
    pub fn of(inodes: &[u64]) -> Many {
        let sum = inodes.iter().fold(0, |sum: u64, inode| sum.wrapping_mul(31).wrapping_add(*inode));
        match sum % 6 {
            0 | 1 => Many::Completions,
            2 => Many::Future,
            3 => Many::Lazy(sum / 6 % 3 * 20),
            4 => Many::Lazy(6_000),
            _ => Many::Withdrawn(sum / 6 % 5 * 3),
        }
    }
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the arguments of the calls that the variants name")]
pub enum Operation {
    /// A file, directory, fifo or socket.
    Create { directory: u64, name: Name, kind: FileType, mode: u32 },
    /// A symbolic link.
    Symlink { directory: u64, name: Name, length: u64 },
    /// A file without a name.
    TemporaryFile { directory: u64, mode: u32 },
    /// A further name.
    Link { inode: u64, directory: u64, name: Name },
    /// A name less.
    Unlink { directory: u64, name: Name },
    /// A directory less.
    RemoveDirectory { directory: u64, name: Name },
    /// Moves, replaces, exchanges.
    Rename { from: u64, name: Name, to: u64, to_name: Name, flags: RenameFlags },
    /// chmod.
    ChangeMode { inode: u64, mode: u32 },
    /// chown.
    ChangeOwner { inode: u64, uid: u32, gid: u32 },
    /// setxattr.
    SetXattr { inode: u64, name: u8, length: u64, flags: XattrFlags },
    /// removexattr.
    RemoveXattr { inode: u64, name: u8 },
    /// One name.
    Lookup { directory: u64, name: Name },
    /// All names.
    ReadDirectory { directory: u64 },
    /// stat.
    Attributes { inode: u64 },
    /// pread.
    Read { inode: u64, offset: u64, length: u64, flags: IoFlags },
    /// pwrite, or an append.
    Write { inode: u64, offset: u64, length: u64, flags: IoFlags },
    /// Several writes, to one or several files.
    Group { writes: Vec<GroupWrite>, end: GroupEnd },
    /// Sets the untorn unit, in bytes; 0: none. `file`: it is a file's.
    SetUntorn { inode: u64, unit: u64, file: bool },
    /// ftruncate.
    Truncate { inode: u64, size: u64 },
    /// fallocate.
    Allocate { inode: u64, mode: FallocateMode, offset: u64, length: u64 },
    /// fsync and fdatasync; `anew`: of a file that was let go of and opened again for it.
    Fsync { inode: u64, datasync: bool, anew: bool },
    /// Several, queued at once and awaited together.
    FsyncMany { inodes: Vec<u64>, datasync: bool, how: Many },
    /// syncfs.
    Sync,
    /// A checkpoint, out of turn.
    Checkpoint,
    /// Time passes, and background work with it.
    Wait,
    /// The run lets go of its handle: an inode without a name is freed.
    Forget { inode: u64 },
    /// Closes the volume and opens it again.
    Remount,
    /// Takes a snapshot.
    TakeSnapshot { name: u8 },
    /// Opens a snapshot, reads all that it has, and closes it.
    ReadSnapshot { name: u8 },
    /// Deletes a snapshot; `later`: in the background.
    DeleteSnapshot { name: u8, later: bool },
}

impl Operation {
    /// The inode that it changes, or the directory whose names.
    pub fn changes(&self) -> Option<u64> {
        match self {
            Operation::Create { directory: inode, .. }
            | Operation::Symlink { directory: inode, .. }
            | Operation::Link { inode, .. }
            | Operation::Unlink { directory: inode, .. }
            | Operation::RemoveDirectory { directory: inode, .. }
            | Operation::Rename { to: inode, .. }
            | Operation::ChangeMode { inode, .. }
            | Operation::ChangeOwner { inode, .. }
            | Operation::SetXattr { inode, .. }
            | Operation::RemoveXattr { inode, .. }
            | Operation::Write { inode, .. }
            | Operation::SetUntorn { inode, .. }
            | Operation::Truncate { inode, .. }
            | Operation::Allocate { inode, .. } => Some(*inode),
            Operation::Group { writes, end } if *end != GroupEnd::Dropped => {
                writes.first().map(|write| write.inode)
            }
            _ => None,
        }
    }

    /// The inodes that it is called with.
    pub fn subjects(&self) -> Vec<u64> {
        match self {
            Operation::Create { directory: inode, .. }
            | Operation::Symlink { directory: inode, .. }
            | Operation::TemporaryFile { directory: inode, .. }
            | Operation::Unlink { directory: inode, .. }
            | Operation::RemoveDirectory { directory: inode, .. }
            | Operation::Lookup { directory: inode, .. }
            | Operation::ReadDirectory { directory: inode }
            | Operation::ChangeMode { inode, .. }
            | Operation::ChangeOwner { inode, .. }
            | Operation::SetXattr { inode, .. }
            | Operation::RemoveXattr { inode, .. }
            | Operation::Attributes { inode }
            | Operation::Read { inode, .. }
            | Operation::Write { inode, .. }
            | Operation::SetUntorn { inode, .. }
            | Operation::Truncate { inode, .. }
            | Operation::Allocate { inode, .. }
            | Operation::Fsync { inode, .. }
            | Operation::Forget { inode } => vec![*inode],
            Operation::Link { inode, directory, .. } => vec![*inode, *directory],
            Operation::Rename { from, to, .. } => vec![*from, *to],
            Operation::FsyncMany { inodes, .. } => inodes.clone(),
            Operation::Group { writes, .. } => writes.iter().map(|write| write.inode).collect(),
            Operation::Sync
            | Operation::Checkpoint
            | Operation::Wait
            | Operation::Remount
            | Operation::TakeSnapshot { .. }
            | Operation::ReadSnapshot { .. }
            | Operation::DeleteSnapshot { .. } => Vec::new(),
        }
    }

    /// Whether a full volume may refuse it. Never what only looks, and never what makes the volume less full:
    /// there would be no way back. (Which truncates may, the model says.)
    pub fn may_take_space(&self) -> bool {
        !matches!(
            self,
            Operation::Unlink { .. }
                | Operation::RemoveDirectory { .. }
                | Operation::DeleteSnapshot { .. }
                | Operation::Forget { .. }
                | Operation::Lookup { .. }
                | Operation::ReadDirectory { .. }
                | Operation::Attributes { .. }
                | Operation::Read { .. }
                | Operation::ReadSnapshot { .. }
        )
    }

    /// Whether a write of data that fails may make it fail: what writes data (a rename does, of the file that
    /// takes another's place), what waits until data is written, and a read past the cache, which writes back
    /// first. What changes names and attributes alone waits for no data, unless the journal or the metadata
    /// pool is full: a checkpoint makes room there, and first brings journaled data home.
    pub fn may_meet_failed_write(&self, may_lack_room: bool) -> bool {
        match self {
            Operation::Read { flags, .. } => flags.contains(IoFlags::DIRECT),
            Operation::Write { .. }
            | Operation::Group { .. }
            | Operation::SetUntorn { .. }
            | Operation::Truncate { .. }
            | Operation::Allocate { .. }
            | Operation::Rename { .. }
            | Operation::Fsync { .. }
            | Operation::FsyncMany { .. }
            | Operation::Sync
            | Operation::Checkpoint
            | Operation::Wait
            | Operation::Remount
            | Operation::TakeSnapshot { .. }
            | Operation::DeleteSnapshot { .. } => true,
            Operation::Create { .. }
            | Operation::Symlink { .. }
            | Operation::TemporaryFile { .. }
            | Operation::Link { .. }
            | Operation::Unlink { .. }
            | Operation::RemoveDirectory { .. }
            | Operation::ChangeMode { .. }
            | Operation::ChangeOwner { .. }
            | Operation::SetXattr { .. }
            | Operation::RemoveXattr { .. } => may_lack_room,
            Operation::Lookup { .. }
            | Operation::ReadDirectory { .. }
            | Operation::Attributes { .. }
            | Operation::ReadSnapshot { .. }
            | Operation::Forget { .. } => false,
        }
    }

    /// Whether a write is submitted and awaited by a callback: of the direct ones on block boundaries every
    /// other, as the numbers have it, so that runs of a seed differ in nothing else from those without this
    /// choice.
    pub fn is_submitted(&self) -> bool {
        match self {
            Operation::Write { offset, length, flags, .. } => {
                let is_direct = flags.contains(IoFlags::DIRECT) && !flags.contains(IoFlags::APPEND);
                let is_whole = offset.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK);
                is_direct && is_whole && ((offset + length) / BLOCK).is_multiple_of(2)
            }
            _ => false,
        }
    }

    /// Whether it makes things durable before it returns.
    pub fn is_force(&self) -> bool {
        match self {
            Operation::FsyncMany { how, .. } => !matches!(how, Many::Withdrawn(_)),
            Operation::Group { end, .. } => end.is_force(),
            Operation::SetUntorn { file, .. } => *file,
            Operation::Fsync { .. } | Operation::Sync | Operation::Checkpoint | Operation::Remount => true,
            Operation::TakeSnapshot { .. } | Operation::DeleteSnapshot { .. } => true,
            Operation::Write { flags, .. } => flags.intersects(IoFlags::SYNC | IoFlags::DATASYNC),
            _ => false,
        }
    }
}

/// The file that an operation may have changed in part, if it fails for want of space or because the device
/// failed: a write that goes to the device before it returns, or a zeroing that has done an edge.
pub fn leaves_a_part(operation: &Operation) -> Option<u64> {
    let through = IoFlags::DIRECT | IoFlags::SYNC | IoFlags::DATASYNC;
    match operation {
        Operation::Write { inode, flags, .. } if flags.intersects(through) => Some(*inode),
        Operation::Allocate {
            inode,
            mode: FallocateMode::PunchHole | FallocateMode::ZeroRange { .. },
            ..
        } => Some(*inode),
        _ => None,
    }
}

/// Whether a write was done up to some byte, and failed there.
pub fn is_short(operation: &Operation, outcome: &Outcome) -> bool {
    match (operation, outcome) {
        (Operation::Write { length, .. }, Outcome::Written { count, .. }) => (1..*length).contains(count),
        _ => false,
    }
}

/// What a call answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing but success.
    Done,
    /// An inode, made or found.
    Inode(u64),
    /// Where bytes were written, and how many.
    Written {
        /// Offset in bytes.
        at: u64,
        /// Bytes.
        count: u64,
    },
    /// What was read.
    Bytes(Vec<u8>),
    /// What a directory holds.
    Entries(BTreeMap<Name, u64>),
    /// What stat showed, with the size.
    Attributes(Shape, u64),
    /// A snapshot was taken, of this number.
    Taken(u32),
    /// What the snapshot of this number holds.
    Kept(u32, Kept),
    /// It failed.
    Error(ErrorKind),
}

/// One operation of a run, with the time that it took.
#[derive(Clone, Debug)]
pub struct Record {
    /// Which.
    pub id: OpId,
    /// What was called.
    pub operation: Operation,
    /// What it answered.
    pub outcome: Outcome,
    /// Moments of calls and returns, counted through all threads: call and return.
    pub ticks: (u64, u64),
    /// Device events that had happened by the call and by the return.
    pub events: (usize, usize),
}

impl Record {
    /// Whether it succeeded.
    pub fn succeeded(&self) -> bool {
        !matches!(self.outcome, Outcome::Error(_))
    }

    /// The file that it may have changed in part, if it failed, or failed midway.
    pub fn left_a_part(&self) -> Option<u64> {
        let failed = matches!(self.outcome, Outcome::Error(ErrorKind::Io | ErrorKind::NoSpace))
            || is_short(&self.operation, &self.outcome);
        leaves_a_part(&self.operation).filter(|_| failed)
    }

    /// Returned before the other was called.
    pub fn is_before(&self, other: &Record) -> bool {
        self.ticks.1 < other.ticks.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place in the pattern overflowed for what a truncate leaves of a write behind others: nothing.
    #[test]
    fn later_writes_of_a_group_cover_earlier_ones() {
        let write = |inode, offset, length| GroupWrite { inode, offset, length };
        let pieces = group_pieces(&[write(7, 0, 100), write(7, 40, 20), write(8, 50, 10), write(7, 90, 30)]);
        let piece = |inode, start, end, from| GroupPiece { inode, start, end, from: Some(from) };
        let wanted = [
            piece(7, 0, 40, 0),
            piece(7, 40, 60, 4096),
            piece(7, 60, 90, 60),
            piece(7, 90, 120, 3 * 4096),
            piece(8, 50, 60, 2 * 4096),
        ];
        assert_eq!(pieces, wanted);

        let cut = group_pieces(&[write(7, 0, 100), write(7, 30, 0), write(7, 60, 10)]);
        let zeros = |start, end| GroupPiece { inode: 7, start, end, from: None };
        assert_eq!(cut, [piece(7, 0, 30, 0), zeros(30, 60), piece(7, 60, 70, 4096), zeros(70, u64::MAX)]);

        let gone = group_pieces(&[write(7, 0, 10), write(7, 20, 10), write(7, 5, 0)]);
        assert_eq!(gone, [piece(7, 0, 5, 0), zeros(5, u64::MAX)]);
    }
}
