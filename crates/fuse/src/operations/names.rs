//! Look-up, create, link, remove, rename, and reading directories.

use quire::inodes::{Create, InodeRef, SetAttributes};
use quire::{FileType, RenameFlags};
use quire_base::{Error, ErrorKind, InodeNo, Result, patience};

use super::data::Opened;
use super::snapshots::{self, DIRECTORY};
use super::{Caller, Entry, Operations};

/// Names read at once where each is looked up, too; about what the kernel's smallest request has room for.
const BATCH: usize = 32;

/// A node to be made.
#[derive(Clone, Copy, Debug)]
pub struct Make {
    /// File type and permission bits as in `mknod`.
    pub mode: u32,
    /// The caller's umask; a default ACL of the directory takes its place.
    pub umask: u32,
    /// Device number as in `stat`, for device nodes.
    pub rdev: u64,
    /// Who becomes the owner.
    pub caller: Caller,
}

impl Make {
    fn engine(&self) -> Result<Create> {
        let kind = match self.mode & libc::S_IFMT {
            libc::S_IFREG | 0 => FileType::Regular,
            libc::S_IFDIR => FileType::Directory,
            libc::S_IFIFO => FileType::Fifo,
            libc::S_IFSOCK => FileType::Socket,
            libc::S_IFCHR => FileType::CharDevice,
            libc::S_IFBLK => FileType::BlockDevice,
            other => return Err(Error::invalid(format!("cannot make a node of type {other:#o}"))),
        };
        Ok(Create {
            kind,
            mode: self.mode & 0o7777,
            umask: self.umask,
            rdev: self.rdev,
            caller: self.caller.engine(),
            properties: None,
        })
    }
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct Name {
    /// The name's bytes.
    pub name: Vec<u8>,
    /// What it names.
    pub node: u64,
    /// Its type.
    pub kind: FileType,
    /// Pass it to go on behind this entry.
    pub cookie: u64,
}

impl Operations {
    /// The entry called `name` in a directory.
    ///
    /// `.` and `..` are asked for by a file server that exports the mount, and then the node may be one the
    /// kernel has long forgotten.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<Entry> {
        if snapshots::is_node(parent) && (parent, name) != (DIRECTORY, b"..") {
            return self.snapshots.lookup(parent, name);
        }
        if self.snapshots.is_name(parent, name) {
            return self.snapshots.directory();
        }
        let parent = if parent == DIRECTORY { InodeNo::ROOT.0 } else { parent };
        let inode = match self.inode(parent) {
            Ok(dir) if name == b"." => dir,
            Ok(dir) => self.volume.inodes().lookup(&dir, name)?,
            Err(error) if error.kind() == ErrorKind::Stale && (name == b"." || name == b"..") => {
                let inode = self.volume.inodes().get(InodeNo(parent))?;
                if name == b"." { inode } else { self.volume.inodes().lookup(&inode, name)? }
            }
            Err(error) => return Err(error),
        };
        Ok(self.enter(inode))
    }

    /// Makes a file, directory, fifo, socket or device node.
    pub fn make(&self, parent: u64, name: &[u8], make: &Make) -> Result<Entry> {
        self.snapshots.check_name(parent, name)?;
        Ok(self.enter(self.volume.inodes().create(&self.inode(parent)?, name, &make.engine()?)?))
    }

    /// Makes a file without a name and opens it (`O_TMPFILE`); a link may name it later.
    pub fn make_unnamed(&self, parent: u64, make: &Make, flags: i32) -> Result<(Entry, Opened)> {
        let dir = self.inode(parent)?;
        self.check_units(&dir, flags)?;
        let inode = self.volume.inodes().tmpfile(&dir, &make.engine()?)?;
        self.enter_opened(inode, flags)
    }

    /// Makes a file and opens it. Without `O_EXCL` in `flags` one that is there is opened instead, and cut
    /// off if `flags` has `O_TRUNC`, since the kernel takes it for new; set-id bits then go if `kill_set_id`.
    pub fn create(
        &self,
        parent: u64,
        name: &[u8],
        make: &Make,
        flags: i32,
        kill_set_id: bool,
    ) -> Result<(Entry, Opened)> {
        self.snapshots.check_name(parent, name)?;
        let dir = self.inode(parent)?;
        self.check_units(&dir, flags)?;
        let inodes = self.volume.inodes();
        let inode = match inodes.create(&dir, name, &make.engine()?) {
            Err(error) if error.kind() == ErrorKind::Exists && flags & libc::O_EXCL == 0 => {
                let inode = inodes.lookup(&dir, name)?;
                if flags & libc::O_TRUNC != 0 && inode.kind() == FileType::Regular {
                    patience::check("what the file held to be dropped")?;
                    let kill_suid_sgid = kill_set_id;
                    let empty = SetAttributes { size: Some(0), kill_suid_sgid, ..SetAttributes::default() };
                    inodes.set_attributes(&inode, &empty)?;
                }
                inode
            }
            made => made?,
        };
        self.enter_opened(inode, flags)
    }

    /// As [`Operations::enter`], with the inode opened: counted first, since what opens it looks for it
    /// there.
    fn enter_opened(&self, inode: InodeRef, flags: i32) -> Result<(Entry, Opened)> {
        self.inodes.remember(inode.clone());
        match self.open_inode(inode.clone(), flags) {
            Ok(opened) => Ok((self.entry(&inode), opened)),
            Err(error) => {
                self.inodes.forget(inode.number().0, 1);
                Err(error)
            }
        }
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, parent: u64, name: &[u8], target: &[u8], caller: Caller) -> Result<Entry> {
        self.snapshots.check_name(parent, name)?;
        Ok(self.enter(self.volume.inodes().symlink(&self.inode(parent)?, name, target, caller.engine())?))
    }

    /// A symbolic link's target.
    pub fn readlink(&self, node: u64) -> Result<Vec<u8>> {
        let (inodes, inode) = self.readable(node)?;
        inodes.read_link(&inode)
    }

    /// One more name for an inode.
    pub fn link(&self, node: u64, parent: u64, name: &[u8]) -> Result<Entry> {
        self.snapshots.check_name(parent, name)?;
        let inode = self.inode(node)?;
        self.volume.inodes().hard_link(&inode, &self.inode(parent)?, name)?;
        Ok(self.enter(inode))
    }

    /// Removes a name that is not a directory's.
    pub fn unlink(&self, parent: u64, name: &[u8]) -> Result<()> {
        self.snapshots.check_name(parent, name)?;
        self.volume.inodes().remove_file(&self.inode(parent)?, name)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: u64, name: &[u8]) -> Result<()> {
        self.snapshots.check_name(parent, name)?;
        self.volume.inodes().remove_dir(&self.inode(parent)?, name)
    }

    /// Renames, replaces or exchanges, and may leave a whiteout; `flags` as in `renameat2`.
    pub fn rename(
        &self,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        let mut wanted = RenameFlags::empty();
        wanted.set(RenameFlags::NOREPLACE, flags & libc::RENAME_NOREPLACE != 0);
        wanted.set(RenameFlags::EXCHANGE, flags & libc::RENAME_EXCHANGE != 0);
        wanted.set(RenameFlags::WHITEOUT, flags & libc::RENAME_WHITEOUT != 0);
        if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT) != 0 {
            return Err(Error::invalid(format!("rename flags {flags:#x} are not supported")));
        }
        self.snapshots.check_name(parent, name).and(self.snapshots.check_name(new_parent, new_name))?;
        let (from, to) = (self.inode(parent)?, self.inode(new_parent)?);
        self.volume.inodes().rename(&from, name, &to, new_name, wanted)
    }

    /// The entries of a directory behind `after` (0: from the start), until `take` has enough.
    ///
    /// Stateless: cookies stay good while the directory changes, and across opens.
    pub fn read_directory(&self, node: u64, after: u64, take: impl FnMut(&Name) -> bool) -> Result<()> {
        if snapshots::is_node(node) {
            return self.snapshots.list(node, after, take);
        }
        if node == InodeNo::ROOT.0 {
            let mut take = self.snapshots.listed_in_root(after, take);
            let mut is_full = false;
            self.read_live_directory(node, after, |name| {
                is_full = !take(Some(name));
                !is_full
            })?;
            if !is_full {
                take(None);
            }
            return Ok(());
        }
        self.read_live_directory(node, after, take)
    }

    fn read_live_directory(&self, node: u64, after: u64, mut take: impl FnMut(&Name) -> bool) -> Result<()> {
        let dir = self.inode(node)?;
        let mut entry = Name { name: Vec::new(), node: 0, kind: FileType::Regular, cookie: 0 };
        self.volume.inodes().read_dir(&dir, after, &mut |found| {
            entry.name.clear();
            entry.name.extend_from_slice(found.name);
            entry.node = found.inode.0;
            entry.kind = found.kind;
            entry.cookie = found.cookie;
            take(&entry)
        })
    }

    /// As [`Operations::read_directory`], with what a look-up of each name gives. `take` gets the entry
    /// before it is counted, and says whether it fits; `.` and `..` are never counted. The snapshots in
    /// `.snapshots` come without: they are opened when somebody asks for one.
    pub fn read_directory_plus(
        &self,
        node: u64,
        after: u64,
        mut take: impl FnMut(&Name, Option<&Entry>) -> bool,
    ) -> Result<()> {
        let mut after = after;
        let mut names = Vec::with_capacity(BATCH);
        loop {
            // In batches: attributes are read after the directory's own locks are left.
            names.clear();
            self.read_directory(node, after, |name| {
                names.push(name.clone());
                names.len() < BATCH
            })?;
            for name in &names {
                after = name.cookie;
                if node == DIRECTORY {
                    if !take(name, None) {
                        return Ok(());
                    }
                    continue;
                }
                if snapshots::is_node(name.node) {
                    if !take(name, Some(&self.snapshots.entry(name.node)?)) {
                        return Ok(());
                    }
                    continue;
                }
                let inode: InodeRef = match self.volume.inodes().get(InodeNo(name.node)) {
                    Ok(inode) => inode,
                    // Removed since its name was read.
                    Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale) => continue,
                    // An operation on it is not finished. Its name is listed, as all others are.
                    Err(error) if error.kind() == ErrorKind::Busy => {
                        if !take(name, None) {
                            return Ok(());
                        }
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let entry = self.entry(&inode);
                if !take(name, Some(&entry)) {
                    return Ok(());
                }
                if name.name != b"." && name.name != b".." {
                    self.inodes.remember(inode);
                }
            }
            if names.len() < BATCH {
                return Ok(());
            }
        }
    }
}
