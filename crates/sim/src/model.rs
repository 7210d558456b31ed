//! The reference file system: what every operation must answer, and what is there afterwards.
//!
//! One tree of maps, no cache, no journal, no blocks. It is meant to be believed by reading it: each
//! operation checks its errors in the order in which the engine's documentation lists them, then does its one
//! change.
//!
//! Two things go beyond an ordinary file system's state, for the oracle's sake:
//!
//! * a file has, besides its size, the *explicit* size (what truncate, allocate, collapse and insert last
//!   made it) and the writes that have grown it since; a crash may cut growth back, but never an explicit
//!   size (J6);
//! * contents are kept as pieces that name the operation that wrote them, and only if asked for: what many
//!   threads wrote is judged sector by sector in [`crate::data`], without an order of all operations.
//!
//! Inodes have the numbers that the engine gave them: they are part of the observed outcome.
//!
//! Neighbours: [`crate::operation`] lists the operations; [`crate::configurations`] explores orders of them.

use crate::contents::Contents;
use crate::image::shown;
use crate::operation::{GroupEnd, GroupWrite, Name, OpId, Operation, Outcome, Shape, group_patterns};
use quire::inodes::{FallocateMode, IoFlags, XattrFlags};
use quire::{ErrorKind, FileType, RenameFlags};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The root directory's inode number.
pub const ROOT: u64 = 1;

/// Bytes of a block.
pub const BLOCK: u64 = 4096;

/// Bytes above which the engine does a write in pieces, which end at multiples of this.
pub const PIECE: u64 = 1 << 20;

/// Bytes of blocks that a group may have on every volume of a run.
const GROUP_BYTES_SURE: u64 = 128 << 10;

/// A write that raised a file's size.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Growth {
    /// Which.
    pub op: OpId,
    /// The size that it met.
    pub from: u64,
    /// The size that it made.
    pub to: u64,
    /// Of a group: a record has it, and all of it.
    pub whole: bool,
}

/// What only files have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileState {
    /// Bytes, as a reader sees it.
    pub size: u64,
    /// Bytes, as the last explicit change made it.
    pub explicit: u64,
    /// Writes that have raised the size since, in order.
    pub growth: Vec<Growth>,
    /// Collapses and inserts, in order.
    pub shifts: Vec<OpId>,
    /// What it holds, if the model keeps contents.
    pub contents: Contents,
    /// A write failed in a way that may have left any part of it: nothing is known of size and contents until
    /// the file is cut to nothing.
    pub vague: bool,
}

/// One inode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inode {
    /// What names and stat show.
    pub shape: Shape,
    /// A directory's parent.
    pub parent: u64,
    /// Made without a name and not linked yet.
    pub never_named: bool,
    /// A file's data.
    pub file: FileState,
}

impl Inode {
    fn is_directory(&self) -> bool {
        self.shape.kind == FileType::Directory
    }
}

/// A snapshot. What it holds is no part of the model: [`crate::oracle`] asks which configuration it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotState {
    /// The number of its name.
    pub name: u8,
    /// It is being deleted.
    pub deleting: bool,
}

/// See the module's documentation. A clone shares every inode that neither changes afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Model {
    /// All inodes, those without a name included as long as somebody may have them open.
    pub inodes: BTreeMap<u64, Arc<Inode>>,
    /// Snapshots, by number. One that is being deleted may have gone.
    pub snapshots: BTreeMap<u32, SnapshotState>,
    /// The highest number that a snapshot has had.
    pub epoch: u32,
    /// One thread does everything: file contents are kept, and listings are exact.
    pub keeps_contents: bool,
    /// The volume may run out of space: such an error is an answer of all that may take some, and changes
    /// nothing.
    pub may_be_full: bool,
    /// Writes of data may fail: so may all but what only looks, and changes nothing.
    pub may_fail: bool,
    /// Operations may have to wait for room in the journal or the metadata pool.
    pub may_lack_room: bool,
}

/// Whether an inode of a type has an untorn unit.
fn has_unit(kind: FileType) -> bool {
    matches!(kind, FileType::Regular | FileType::Directory)
}

/// What an operation gave and what the model says, for people: of bytes their number, or where they differ.
fn difference(outcome: &Outcome, expected: &Outcome) -> String {
    if let (Outcome::Bytes(found), Outcome::Bytes(wanted)) = (outcome, expected)
        && found.len() == wanted.len()
        && let Some(at) = (0..found.len()).find(|at| found[*at] != wanted[*at])
    {
        return format!(
            "at byte {at} of {} {}, the model says {}",
            found.len(),
            shown(found, at),
            shown(wanted, at)
        );
    }
    let brief = |outcome: &Outcome| match outcome {
        Outcome::Bytes(bytes) => format!("{} bytes", bytes.len()),
        other => format!("{other:?}"),
    };
    format!("{}, the model says {}", brief(outcome), brief(expected))
}

/// The error that an operation must give.
type Answer<T> = Result<T, ErrorKind>;

impl Model {
    /// A file system with nothing but its root.
    pub fn new(keeps_contents: bool) -> Model {
        let root = Inode {
            shape: Shape { links: 2, ..Shape::new(FileType::Directory, 0o755) },
            parent: ROOT,
            never_named: false,
            file: FileState::default(),
        };
        Model {
            inodes: BTreeMap::from([(ROOT, Arc::new(root))]),
            snapshots: BTreeMap::new(),
            epoch: 0,
            keeps_contents,
            may_be_full: false,
            may_fail: false,
            may_lack_room: false,
        }
    }

    /// An inode that is there.
    pub fn inode(&self, number: u64) -> Option<&Inode> {
        self.inodes.get(&number).map(Arc::as_ref)
    }

    fn edit(&mut self, number: u64) -> &mut Inode {
        Arc::make_mut(self.inodes.get_mut(&number).expect("an inode that was looked at before"))
    }

    fn get(&self, number: u64) -> Answer<&Inode> {
        self.inode(number).ok_or(ErrorKind::Stale)
    }

    fn directory(&self, number: u64) -> Answer<&Inode> {
        let inode = self.get(number)?;
        if inode.is_directory() { Ok(inode) } else { Err(ErrorKind::NotDirectory) }
    }

    /// A directory that has not been removed.
    fn live_directory(&self, number: u64) -> Answer<&Inode> {
        let inode = self.directory(number)?;
        if inode.shape.links == 0 { Err(ErrorKind::NotFound) } else { Ok(inode) }
    }

    fn entry(&self, directory: u64, name: Name) -> Answer<u64> {
        self.live_directory(directory)?.shape.entries.get(&name).copied().ok_or(ErrorKind::NotFound)
    }

    fn file(&self, number: u64) -> Answer<&FileState> {
        match self.get(number)?.shape.kind {
            FileType::Regular => Ok(&self.get(number)?.file),
            FileType::Directory => Err(ErrorKind::IsDirectory),
            _ => Err(ErrorKind::Invalid),
        }
    }

    /// Does an operation that had this outcome; an error says why it cannot have had it here.
    pub fn apply(&mut self, id: OpId, operation: &Operation, outcome: &Outcome) -> Result<(), String> {
        let excused = match outcome {
            Outcome::Error(ErrorKind::NoSpace) => self.may_be_full && self.may_take_space(operation),
            Outcome::Error(ErrorKind::Io) => {
                self.may_fail && operation.may_meet_failed_write(self.may_lack_room)
            }
            Outcome::Error(ErrorKind::TooLarge) => match operation {
                Operation::Group { writes, .. } => self.group_bytes(writes) > GROUP_BYTES_SURE,
                _ => false,
            },
            // Another thread may have it open, or be about to delete it.
            Outcome::Error(ErrorKind::Busy) => {
                !self.keeps_contents && matches!(operation, Operation::DeleteSnapshot { .. })
            }
            // Another thread may have let go of an inode without a name just before.
            Outcome::Error(ErrorKind::Stale) => {
                let is_nameless = |inode: u64| self.inode(inode).is_some_and(|inode| inode.shape.links == 0);
                !self.keeps_contents && operation.subjects().into_iter().any(is_nameless)
            }
            _ => false,
        };
        if excused {
            if *outcome != Outcome::Error(ErrorKind::Stale) {
                self.fail(operation);
            }
            return Ok(());
        }
        if crate::operation::is_short(operation, outcome) && (self.may_be_full || self.may_fail) {
            return self.write_short(id, operation, outcome);
        }
        let expected = match self.answer(id, operation, outcome) {
            Ok(outcome) => outcome,
            Err(kind) => Outcome::Error(kind),
        };
        if expected == *outcome {
            Ok(())
        } else {
            Err(format!("{operation:?} gave {}", difference(outcome, &expected)))
        }
    }

    /// Whether a full volume may refuse it.
    fn may_take_space(&self, operation: &Operation) -> bool {
        match operation {
            // One that makes a file shorter zeroes the rest of the block in which it ends, which a snapshot
            // may have as well and keeps as it was.
            Operation::Truncate { inode, size } => {
                let cuts_shared = !size.is_multiple_of(BLOCK) && !self.snapshots.is_empty();
                let grows = |file: &FileState| *size > file.size || (file.vague && *size > 0);
                self.file(*inode).is_ok_and(|file| cuts_shared || grows(file))
            }
            other => other.may_take_space(),
        }
    }

    /// A write that goes to the device before it returns was done up to some byte; what is behind may be
    /// there in part. One that goes to the cache in pieces was done up to the end of one, and no further.
    fn write_short(&mut self, id: OpId, operation: &Operation, outcome: &Outcome) -> Result<(), String> {
        let refused = || Err(format!("{operation:?} gave {outcome:?}, which is short"));
        let (Operation::Write { inode, offset, length, flags }, Outcome::Written { at, count }) =
            (operation, outcome)
        else {
            return refused();
        };
        let Ok(file) = self.file(*inode) else { return refused() };
        let expected = if flags.contains(IoFlags::APPEND) { file.size } else { *offset };
        let ends_a_piece = *length > PIECE && (at + count).is_multiple_of(PIECE);
        let may_be_short = crate::operation::leaves_a_part(operation).is_some() || ends_a_piece;
        if !may_be_short || !(file.vague || *at == expected) {
            return refused();
        }
        self.write(id, *inode, *at, *count);
        self.fail(operation);
        Ok(())
    }

    /// Some operations may have left a part of themselves; all others leave everything as it was.
    fn fail(&mut self, operation: &Operation) {
        if let Some(inode) = crate::operation::leaves_a_part(operation)
            && self.file(inode).is_ok()
        {
            self.edit(inode).file.vague = true;
        }
    }

    fn answer(&mut self, id: OpId, operation: &Operation, observed: &Outcome) -> Answer<Outcome> {
        match *operation {
            Operation::Create { directory, name, kind, mode } => {
                self.check_vacant(directory, name)?;
                self.create(directory, Some(name), Shape::new(kind, mode), observed)
            }
            Operation::Symlink { directory, name, length } => {
                self.check_vacant(directory, name)?;
                let mut shape = Shape::new(FileType::Symlink, 0o777);
                shape.target = crate::operation::link_target(id, length);
                self.create(directory, Some(name), shape, observed)
            }
            Operation::TemporaryFile { directory, mode } => {
                self.live_directory(directory)?;
                self.create(directory, None, Shape::new(FileType::Regular, mode), observed)
            }
            Operation::Link { inode, directory, name } => {
                self.directory(directory)?;
                self.check_vacant(directory, name)?;
                if self.get(inode)?.is_directory() {
                    return Err(ErrorKind::NotPermitted);
                }
                let source = self.get(inode)?;
                if source.shape.links == 0 && !source.never_named {
                    return Err(ErrorKind::NotFound);
                }
                let source = self.edit(inode);
                source.shape.links += 1;
                source.never_named = false;
                self.edit(directory).shape.entries.insert(name, inode);
                Ok(Outcome::Done)
            }
            Operation::Unlink { directory, name } => {
                self.directory(directory)?;
                name.check()?;
                let inode = self.entry(directory, name)?;
                if self.get(inode)?.is_directory() {
                    return Err(ErrorKind::IsDirectory);
                }
                self.edit(directory).shape.entries.remove(&name);
                self.edit(inode).shape.links -= 1;
                Ok(Outcome::Done)
            }
            Operation::RemoveDirectory { directory, name } => {
                self.directory(directory)?;
                name.check()?;
                let inode = self.entry(directory, name)?;
                self.check_removable(inode)?;
                self.edit(directory).shape.entries.remove(&name);
                self.edit(directory).shape.links -= 1;
                self.edit(inode).shape.links = 0;
                Ok(Outcome::Done)
            }
            Operation::Rename { from, name, to, to_name, flags } => {
                self.rename(from, name, to, to_name, flags)?;
                Ok(Outcome::Done)
            }
            Operation::ChangeMode { inode, mode } => {
                if self.get(inode)?.shape.kind == FileType::Symlink {
                    return Err(ErrorKind::Unsupported);
                }
                self.edit(inode).shape.mode = mode;
                Ok(Outcome::Done)
            }
            Operation::ChangeOwner { inode, uid, gid } => {
                self.get(inode)?;
                let shape = &mut self.edit(inode).shape;
                (shape.uid, shape.gid) = (uid, gid);
                Ok(Outcome::Done)
            }
            Operation::SetXattr { inode, name, length, flags } => {
                self.check_xattrs(inode)?;
                let there = self.get(inode)?.shape.xattrs.contains_key(&name);
                if there && flags.contains(XattrFlags::CREATE) {
                    return Err(ErrorKind::Exists);
                }
                if !there && flags.contains(XattrFlags::REPLACE) {
                    return Err(ErrorKind::NoAttribute);
                }
                self.edit(inode).shape.xattrs.insert(name, (id, length));
                Ok(Outcome::Done)
            }
            Operation::RemoveXattr { inode, name } => {
                self.check_xattrs(inode)?;
                self.edit(inode).shape.xattrs.remove(&name).ok_or(ErrorKind::NoAttribute)?;
                Ok(Outcome::Done)
            }
            Operation::Lookup { directory, name } => {
                self.directory(directory)?;
                name.check()?;
                let found = self.directory(directory)?.shape.entries.get(&name);
                found.map(|inode| Outcome::Inode(*inode)).ok_or(ErrorKind::NotFound)
            }
            Operation::ReadDirectory { directory } => {
                let entries = &self.live_directory(directory)?.shape.entries;
                match observed {
                    // Names that come and go while a directory is listed may be listed or not.
                    Outcome::Entries(_) if !self.keeps_contents => Ok(observed.clone()),
                    _ => Ok(Outcome::Entries(entries.clone())),
                }
            }
            Operation::Attributes { inode } => self.attributes(inode, observed),
            Operation::Read { inode, offset, length, .. } => self.read(inode, offset, length, observed),
            Operation::Write { inode, offset, length, flags } => {
                let file = self.file(inode)?;
                let at = match observed {
                    _ if !flags.contains(IoFlags::APPEND) => offset,
                    Outcome::Written { at, .. } if file.vague => *at,
                    _ => file.size,
                };
                self.write(id, inode, at, length);
                Ok(Outcome::Written { at, count: length })
            }
            Operation::Group { ref writes, end } => {
                for write in writes {
                    self.file(write.inode)?;
                }
                if end != GroupEnd::Dropped {
                    self.write_group(id, writes);
                }
                Ok(Outcome::Done)
            }
            Operation::SetUntorn { inode, unit, .. } => {
                if !has_unit(self.get(inode)?.shape.kind) {
                    return Err(ErrorKind::Invalid);
                }
                self.edit(inode).shape.untorn = unit;
                Ok(Outcome::Done)
            }
            Operation::Truncate { inode, size } => {
                self.file(inode)?;
                self.set_size(inode, size);
                Ok(Outcome::Done)
            }
            Operation::Allocate { inode, mode, .. } if self.file(inode).is_ok_and(|file| file.vague) => {
                // What is beyond the end is refused; nobody knows where that is.
                if matches!(observed, Outcome::Error(ErrorKind::Invalid)) {
                    return Err(ErrorKind::Invalid);
                }
                if matches!(mode, FallocateMode::Collapse | FallocateMode::Insert) {
                    self.edit(inode).file.shifts.push(id);
                }
                Ok(Outcome::Done)
            }
            Operation::Allocate { inode, mode, offset, length } => {
                self.allocate(id, inode, mode, offset, length)?;
                Ok(Outcome::Done)
            }
            Operation::Fsync { .. }
            | Operation::FsyncMany { .. }
            | Operation::Sync
            | Operation::Checkpoint
            | Operation::Wait
            | Operation::Forget { .. } => Ok(Outcome::Done),
            Operation::TakeSnapshot { name } => self.take_snapshot(name, observed),
            Operation::ReadSnapshot { name } => {
                let number = self.snapshot(name)?;
                match observed {
                    Outcome::Kept(read, _) if *read == number => Ok(observed.clone()),
                    _ => Ok(Outcome::Taken(number)),
                }
            }
            Operation::DeleteSnapshot { name, .. } => {
                let number = self.snapshot(name)?;
                self.snapshots.insert(number, SnapshotState { name, deleting: true });
                Ok(Outcome::Done)
            }
            Operation::Remount => {
                self.inodes.retain(|_, inode| inode.shape.links > 0);
                Ok(Outcome::Done)
            }
        }
    }

    /// The number of a snapshot that can be opened.
    fn snapshot(&self, name: u8) -> Answer<u32> {
        let found = self.snapshots.iter().find(|(_, known)| known.name == name && !known.deleting);
        found.map(|(number, _)| *number).ok_or(ErrorKind::NotFound)
    }

    fn take_snapshot(&mut self, name: u8, observed: &Outcome) -> Answer<Outcome> {
        let is_named = |known: &SnapshotState| known.name == name;
        match observed {
            _ if self.snapshot(name).is_ok() => Err(ErrorKind::Exists),
            // Nobody knows when a deletion in the background ends.
            Outcome::Error(ErrorKind::Exists) if self.snapshots.values().any(is_named) => {
                Err(ErrorKind::Exists)
            }
            Outcome::Taken(number) if *number > self.epoch => {
                self.epoch = *number;
                self.snapshots.retain(|_, known| !is_named(known));
                self.snapshots.insert(*number, SnapshotState { name, deleting: false });
                Ok(observed.clone())
            }
            _ => Ok(Outcome::Taken(self.epoch + 1)),
        }
    }

    fn check_vacant(&self, directory: u64, name: Name) -> Answer<()> {
        self.directory(directory)?;
        name.check()?;
        match self.entry(directory, name) {
            Ok(_) => Err(ErrorKind::Exists),
            Err(ErrorKind::NotFound) => self.live_directory(directory).map(|_| ()),
            Err(other) => Err(other),
        }
    }

    fn check_removable(&self, directory: u64) -> Answer<()> {
        let inode = self.get(directory)?;
        if !inode.is_directory() {
            return Err(ErrorKind::NotDirectory);
        }
        if inode.shape.entries.is_empty() { Ok(()) } else { Err(ErrorKind::NotEmpty) }
    }

    fn check_xattrs(&self, inode: u64) -> Answer<()> {
        match self.get(inode)?.shape.kind {
            FileType::Regular | FileType::Directory => Ok(()),
            _ => Err(ErrorKind::NotPermitted),
        }
    }

    fn create(
        &mut self,
        directory: u64,
        name: Option<Name>,
        mut shape: Shape,
        observed: &Outcome,
    ) -> Answer<Outcome> {
        // Whatever number the engine gave is right, unless it is taken.
        let Outcome::Inode(number) = *observed else { return Ok(Outcome::Inode(0)) };
        if self.inodes.contains_key(&number) {
            return Err(ErrorKind::Exists);
        }
        let is_directory = shape.kind == FileType::Directory;
        if has_unit(shape.kind) {
            shape.untorn = self.get(directory)?.shape.untorn;
        }
        shape.links = match (is_directory, name) {
            (true, _) => 2,
            (false, Some(_)) => 1,
            (false, None) => 0,
        };
        let inode =
            Inode { shape, parent: directory, never_named: name.is_none(), file: FileState::default() };
        self.inodes.insert(number, Arc::new(inode));
        if let Some(name) = name {
            let parent = self.edit(directory);
            parent.shape.entries.insert(name, number);
            parent.shape.links += u32::from(is_directory);
        }
        Ok(Outcome::Inode(number))
    }

    /// Whether `directory` is `ancestor` or lies below it.
    fn lies_below(&self, directory: u64, ancestor: u64) -> bool {
        let mut at = directory;
        loop {
            if at == ancestor {
                return true;
            }
            match self.inode(at) {
                Some(inode) if at != ROOT => at = inode.parent,
                _ => return false,
            }
        }
    }

    fn rename(&mut self, from: u64, name: Name, to: u64, to_name: Name, flags: RenameFlags) -> Answer<()> {
        self.directory(from)?;
        self.directory(to)?;
        name.check()?;
        to_name.check()?;
        self.live_directory(from)?;
        self.live_directory(to)?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let source = self.entry(from, name)?;
        let target = self.entry(to, to_name).ok();
        match target {
            None if exchange => return Err(ErrorKind::NotFound),
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(ErrorKind::Exists),
            Some(target) if target == source => return Ok(()),
            _ => {}
        }
        let is_directory = |model: &Model, inode: u64| model.inodes[&inode].is_directory();
        if from != to {
            if is_directory(self, source) && self.lies_below(to, source) {
                return Err(ErrorKind::Invalid);
            }
            if let Some(target) = target
                && is_directory(self, target)
                && self.lies_below(from, target)
            {
                return Err(match (exchange, is_directory(self, source)) {
                    (true, _) => ErrorKind::Invalid,
                    (false, false) => ErrorKind::IsDirectory,
                    (false, true) => ErrorKind::NotEmpty,
                });
            }
        }
        if let (Some(target), false) = (target, exchange) {
            match (is_directory(self, source), is_directory(self, target)) {
                (false, true) => return Err(ErrorKind::IsDirectory),
                (true, false) => return Err(ErrorKind::NotDirectory),
                (true, true) => self.check_removable(target)?,
                (false, false) => {}
            }
        }

        self.detach(from, name, source);
        if let Some(target) = target {
            self.detach(to, to_name, target);
            if exchange {
                self.attach(from, name, target);
            } else {
                let gone = &mut self.edit(target).shape;
                gone.links = if gone.kind == FileType::Directory { 0 } else { gone.links - 1 };
            }
        }
        self.attach(to, to_name, source);
        Ok(())
    }

    fn detach(&mut self, directory: u64, name: Name, inode: u64) {
        let is_directory = self.inodes[&inode].is_directory();
        let parent = self.edit(directory);
        parent.shape.entries.remove(&name);
        parent.shape.links -= u32::from(is_directory);
    }

    fn attach(&mut self, directory: u64, name: Name, inode: u64) {
        let is_directory = self.inodes[&inode].is_directory();
        let parent = self.edit(directory);
        parent.shape.entries.insert(name, inode);
        parent.shape.links += u32::from(is_directory);
        if is_directory {
            self.edit(inode).parent = directory;
        }
    }

    /// Everything but the size is exact; the size too, unless a failed write left it open.
    fn attributes(&self, number: u64, observed: &Outcome) -> Answer<Outcome> {
        let inode = self.get(number)?;
        let mut shape = inode.shape.clone();
        (shape.entries, shape.xattrs, shape.target) = Default::default();
        if !self.keeps_contents {
            // The run asks for it apart.
            shape.untorn = 0;
        }
        let size = match (inode.file.vague, observed) {
            (true, Outcome::Attributes(_, size)) => *size,
            _ => inode.file.size,
        };
        Ok(Outcome::Attributes(shape, size))
    }

    fn read(&self, number: u64, offset: u64, length: u64, observed: &Outcome) -> Answer<Outcome> {
        let file = self.file(number)?;
        let end = (offset + length).min(file.size).max(offset);
        match observed {
            // A failed write left the size open, too.
            Outcome::Bytes(_) if file.vague => Ok(observed.clone()),
            // Each sector is judged apart ([`crate::reads`]).
            Outcome::Bytes(bytes) if !self.keeps_contents && bytes.len() as u64 == end - offset => {
                Ok(observed.clone())
            }
            _ => Ok(Outcome::Bytes(file.contents.read(offset, end))),
        }
    }

    fn write(&mut self, id: OpId, number: u64, at: u64, length: u64) {
        let keeps = self.keeps_contents;
        let file = &mut self.edit(number).file;
        if keeps {
            file.contents.write(at, at + length, id);
        }
        if at + length > file.size {
            file.growth.push(Growth { op: id, from: file.size, to: at + length, whole: false });
            file.size = at + length;
        }
    }

    /// Bytes of the units that a group touches, at most.
    fn group_bytes(&self, writes: &[GroupWrite]) -> u64 {
        let bytes = |write: &GroupWrite| {
            let unit = self.inode(write.inode).map_or(0, |inode| inode.shape.untorn).max(BLOCK);
            (write.offset + write.length).next_multiple_of(unit) - write.offset / unit * unit
        };
        writes.iter().map(bytes).sum()
    }

    fn write_group(&mut self, id: OpId, writes: &[GroupWrite]) {
        let keeps = self.keeps_contents;
        for (from, write) in group_patterns(writes) {
            if write.truncates() {
                self.set_size(write.inode, write.offset);
                continue;
            }
            let file = &mut self.edit(write.inode).file;
            let end = write.offset + write.length;
            if keeps {
                file.contents.write_part(write.offset, end, id, from);
            }
            if end > file.size {
                match file.growth.last_mut() {
                    Some(growth) if growth.op == id => growth.to = end,
                    _ => file.growth.push(Growth { op: id, from: file.size, to: end, whole: true }),
                }
                file.size = end;
            }
        }
    }

    fn set_size(&mut self, number: u64, size: u64) {
        let file = &mut self.edit(number).file;
        file.contents.clear(size, u64::MAX);
        (file.size, file.explicit) = (size, size);
        file.growth.clear();
        file.vague &= size > 0;
    }

    fn allocate(
        &mut self,
        id: OpId,
        number: u64,
        mode: FallocateMode,
        offset: u64,
        length: u64,
    ) -> Answer<()> {
        let size = self.file(number)?.size;
        let end = offset + length;
        let aligned = offset.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK);
        let moves = matches!(mode, FallocateMode::Collapse | FallocateMode::Insert);
        if length == 0 || (moves && !aligned) {
            return Err(ErrorKind::Invalid);
        }
        match mode {
            FallocateMode::KeepSize => {}
            FallocateMode::Allocate if end > size => self.set_size(number, end),
            FallocateMode::Allocate => {}
            FallocateMode::PunchHole => self.edit(number).file.contents.clear(offset, end.min(size)),
            FallocateMode::ZeroRange { keep_size } => {
                self.edit(number).file.contents.clear(offset, end.min(size));
                if !keep_size && end > size {
                    self.set_size(number, end);
                }
            }
            FallocateMode::Collapse => {
                if end >= size {
                    return Err(ErrorKind::Invalid);
                }
                self.edit(number).file.contents.collapse(offset, end);
                self.set_size(number, size - length);
                self.edit(number).file.shifts.push(id);
            }
            FallocateMode::Insert => {
                if offset >= size {
                    return Err(ErrorKind::Invalid);
                }
                self.edit(number).file.contents.insert(offset, length);
                self.set_size(number, size + length);
                self.edit(number).file.shifts.push(id);
            }
        }
        Ok(())
    }

    /// What a walk from the root finds: names, links, kinds, modes, owners, attributes, link targets.
    pub fn shapes(&self) -> BTreeMap<u64, &Shape> {
        self.inodes
            .iter()
            .filter(|(_, inode)| inode.shape.links > 0)
            .map(|(number, inode)| (*number, &inode.shape))
            .collect()
    }
}

#[cfg(test)]
mod tests;
