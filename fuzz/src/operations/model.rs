//! What a volume promises to hold, as simply as it can be said: inodes in a map, contents as bytes, errors by
//! kind.
//!
//! A copy costs one pointer for each inode, so that a history of states can be kept.
//!
//! Neighbours: [`super`] runs operations on this and on a volume.

use quire::inodes::{FallocateMode, XattrFlags};
use quire::{ErrorKind, FileType, RenameFlags};
use quire_base::BLOCK_SIZE;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What an operation gives on a volume that has room.
pub type Outcome<T = ()> = Result<T, ErrorKind>;

/// The root directory's number.
pub const ROOT: u64 = 1;

/// An inode, without times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    pub kind: FileType,
    pub mode: u32,
    pub links: u32,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// A directory's names.
    pub entries: BTreeMap<Vec<u8>, u64>,
    /// A directory's parent.
    pub parent: u64,
    /// A symbolic link's target.
    pub target: Vec<u8>,
    /// A file's contents.
    pub data: Rc<Vec<u8>>,
    /// Made without a name, and has not got one yet.
    pub never_named: bool,
}

impl Inode {
    pub fn new(kind: FileType, mode: u32) -> Inode {
        Inode {
            kind,
            mode,
            links: if kind == FileType::Directory { 2 } else { 1 },
            xattrs: BTreeMap::new(),
            entries: BTreeMap::new(),
            parent: ROOT,
            target: Vec::new(),
            data: Rc::new(Vec::new()),
            never_named: false,
        }
    }

    pub fn is_directory(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// Equal in everything that is journaled with names.
    pub fn same_but_for_data(&self, other: &Inode) -> bool {
        let named = |inode: &Inode| Inode { data: Rc::default(), parent: 0, ..inode.clone() };
        named(self) == named(other)
    }
}

/// A volume's state.
#[derive(Clone, Debug)]
pub struct Model {
    pub inodes: BTreeMap<u64, Rc<Inode>>,
}

impl Model {
    pub fn new() -> Model {
        let root = Inode::new(FileType::Directory, 0o755);
        Model { inodes: BTreeMap::from([(ROOT, Rc::new(root))]) }
    }

    pub fn get(&self, inode: u64) -> &Inode {
        &self.inodes[&inode]
    }

    pub fn edit(&mut self, inode: u64) -> &mut Inode {
        Rc::make_mut(self.inodes.get_mut(&inode).expect("the inode is there"))
    }

    /// The states that only names reach, as a volume shows them after a crash.
    pub fn without_orphans(&self) -> Model {
        let linked = self.inodes.iter().filter(|(_, inode)| inode.links > 0);
        Model { inodes: linked.map(|(number, inode)| (*number, inode.clone())).collect() }
    }

    /// Equal in everything that is journaled with names; orphans do not count.
    pub fn same_names(&self, other: &Model) -> bool {
        let (one, other) = (self.without_orphans(), other.without_orphans());
        one.inodes.len() == other.inodes.len()
            && one.inodes.iter().all(|(number, inode)| {
                other
                    .inodes
                    .get(number)
                    .is_some_and(|theirs| Rc::ptr_eq(inode, theirs) || inode.same_but_for_data(theirs))
            })
    }

    fn lives(&self, directory: u64) -> Outcome {
        if self.get(directory).links == 0 { Err(ErrorKind::NotFound) } else { Ok(()) }
    }

    pub fn lookup(&self, directory: u64, name: &[u8]) -> Outcome<u64> {
        self.get(directory).entries.get(name).copied().ok_or(ErrorKind::NotFound)
    }

    fn vacant(&self, directory: u64, name: &[u8]) -> Outcome {
        self.lives(directory)?;
        if self.lookup(directory, name).is_ok() { Err(ErrorKind::Exists) } else { Ok(()) }
    }

    /// Whether an inode can be made here.
    pub fn may_create(&self, directory: u64, name: &[u8]) -> Outcome {
        self.vacant(directory, name)
    }

    pub fn create(&mut self, directory: u64, name: &[u8], number: u64, mut inode: Inode) {
        inode.parent = directory;
        if inode.is_directory() {
            self.edit(directory).links += 1;
        }
        self.edit(directory).entries.insert(name.to_vec(), number);
        assert!(self.inodes.insert(number, Rc::new(inode)).is_none(), "inode numbers are never used again");
    }

    pub fn link(&mut self, inode: u64, directory: u64, name: &[u8]) -> Outcome {
        self.vacant(directory, name)?;
        if self.get(inode).is_directory() {
            return Err(ErrorKind::NotPermitted);
        }
        if self.get(inode).links == 0 && !self.get(inode).never_named {
            return Err(ErrorKind::NotFound);
        }
        let linked = self.edit(inode);
        linked.links += 1;
        linked.never_named = false;
        self.edit(directory).entries.insert(name.to_vec(), inode);
        Ok(())
    }

    pub fn unlink(&mut self, directory: u64, name: &[u8]) -> Outcome<u64> {
        self.lives(directory)?;
        let inode = self.lookup(directory, name)?;
        if self.get(inode).is_directory() {
            return Err(ErrorKind::IsDirectory);
        }
        self.edit(directory).entries.remove(name);
        self.edit(inode).links -= 1;
        Ok(inode)
    }

    pub fn rmdir(&mut self, directory: u64, name: &[u8]) -> Outcome<u64> {
        self.lives(directory)?;
        let inode = self.lookup(directory, name)?;
        if !self.get(inode).is_directory() {
            return Err(ErrorKind::NotDirectory);
        }
        if !self.get(inode).entries.is_empty() {
            return Err(ErrorKind::NotEmpty);
        }
        self.edit(directory).entries.remove(name);
        self.edit(directory).links -= 1;
        self.edit(inode).links = 0;
        Ok(inode)
    }

    fn is_below(&self, mut directory: u64, above: u64) -> bool {
        while directory != above {
            if directory == ROOT {
                return false;
            }
            directory = self.get(directory).parent;
        }
        true
    }

    /// Renames; the inodes whose names changed.
    pub fn rename(
        &mut self,
        (from, name): (u64, &[u8]),
        (to, to_name): (u64, &[u8]),
        flags: RenameFlags,
    ) -> Outcome<Vec<u64>> {
        if flags == RenameFlags::NOREPLACE | RenameFlags::EXCHANGE {
            return Err(ErrorKind::Invalid);
        }
        self.lives(from)?;
        self.lives(to)?;
        let moved = self.lookup(from, name)?;
        let target = self.lookup(to, to_name).ok();
        match target {
            None if flags == RenameFlags::EXCHANGE => return Err(ErrorKind::NotFound),
            Some(_) if flags == RenameFlags::NOREPLACE => return Err(ErrorKind::Exists),
            Some(target) if target == moved => return Ok(Vec::new()),
            _ => {}
        }
        if self.get(moved).is_directory() && self.is_below(to, moved) {
            return Err(ErrorKind::Invalid);
        }
        if let Some(target) = target
            && self.get(target).is_directory()
            && self.is_below(from, target)
        {
            return Err(match flags {
                RenameFlags::EXCHANGE => ErrorKind::Invalid,
                _ if !self.get(moved).is_directory() => ErrorKind::IsDirectory,
                _ => ErrorKind::NotEmpty,
            });
        }
        if flags == RenameFlags::EXCHANGE {
            let target = target.expect("it was looked for");
            self.put_name(from, name, target);
            self.put_name(to, to_name, moved);
            return Ok(vec![moved, target, from, to]);
        }
        if let Some(target) = target {
            match (self.get(moved).is_directory(), self.get(target).is_directory()) {
                (false, true) => return Err(ErrorKind::IsDirectory),
                (true, false) => return Err(ErrorKind::NotDirectory),
                (true, true) => drop(self.rmdir(to, to_name)?),
                (false, false) => drop(self.unlink(to, to_name)?),
            }
        }
        self.edit(from).entries.remove(name);
        if self.get(moved).is_directory() {
            self.edit(from).links -= 1;
            self.edit(to).links += 1;
        }
        self.edit(moved).parent = to;
        self.edit(to).entries.insert(to_name.to_vec(), moved);
        Ok([Some(moved), target, Some(from), Some(to)].into_iter().flatten().collect())
    }

    /// Gives a name that is in use to another inode, which has lost its own.
    fn put_name(&mut self, directory: u64, name: &[u8], inode: u64) {
        let old = self.lookup(directory, name).expect("the name is in use");
        if self.get(old).is_directory() {
            self.edit(directory).links -= 1;
        }
        if self.get(inode).is_directory() {
            self.edit(directory).links += 1;
        }
        self.edit(inode).parent = directory;
        self.edit(directory).entries.insert(name.to_vec(), inode);
    }

    pub fn write(&mut self, inode: u64, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let data = Rc::make_mut(&mut self.edit(inode).data);
        let end = offset + bytes.len();
        if data.len() < end {
            data.resize(end, 0);
        }
        data[offset..end].copy_from_slice(bytes);
    }

    pub fn truncate(&mut self, inode: u64, size: usize) {
        Rc::make_mut(&mut self.edit(inode).data).resize(size, 0);
    }

    pub fn allocate(&mut self, inode: u64, mode: FallocateMode, offset: usize, len: usize) -> Outcome {
        if len == 0 {
            return Err(ErrorKind::Invalid);
        }
        let size = self.get(inode).data.len();
        let shifts = matches!(mode, FallocateMode::Collapse | FallocateMode::Insert);
        if shifts && !(offset.is_multiple_of(BLOCK_SIZE) && len.is_multiple_of(BLOCK_SIZE)) {
            return Err(ErrorKind::Invalid);
        }
        let end = offset + len;
        let data = Rc::make_mut(&mut self.edit(inode).data);
        match mode {
            FallocateMode::Collapse if end >= size => return Err(ErrorKind::Invalid),
            FallocateMode::Insert if offset >= size => return Err(ErrorKind::Invalid),
            FallocateMode::Collapse => drop(data.drain(offset..end)),
            FallocateMode::Insert => drop(data.splice(offset..offset, std::iter::repeat_n(0, len))),
            FallocateMode::KeepSize => {}
            FallocateMode::Allocate => data.resize(size.max(end), 0),
            FallocateMode::PunchHole | FallocateMode::ZeroRange { .. } => {
                if mode == (FallocateMode::ZeroRange { keep_size: false }) {
                    data.resize(size.max(end), 0);
                }
                let end = end.min(data.len());
                if offset < end {
                    data[offset..end].fill(0);
                }
            }
        }
        Ok(())
    }

    pub fn set_xattr(&mut self, inode: u64, name: &[u8], value: &[u8], flags: XattrFlags) -> Outcome {
        if !matches!(self.get(inode).kind, FileType::Regular | FileType::Directory) {
            return Err(ErrorKind::NotPermitted);
        }
        if flags == XattrFlags::CREATE | XattrFlags::REPLACE {
            return Err(ErrorKind::Invalid);
        }
        if value.len() > 65536 {
            return Err(ErrorKind::TooLarge);
        }
        match (self.get(inode).xattrs.contains_key(name), flags) {
            (true, XattrFlags::CREATE) => Err(ErrorKind::Exists),
            (false, XattrFlags::REPLACE) => Err(ErrorKind::NoAttribute),
            _ => {
                self.edit(inode).xattrs.insert(name.to_vec(), value.to_vec());
                Ok(())
            }
        }
    }

    pub fn remove_xattr(&mut self, inode: u64, name: &[u8]) -> Outcome {
        if !matches!(self.get(inode).kind, FileType::Regular | FileType::Directory) {
            return Err(ErrorKind::NotPermitted);
        }
        self.edit(inode).xattrs.remove(name).map(|_| ()).ok_or(ErrorKind::NoAttribute)
    }
}
