//! One inode of the volume, made anew in a directory of the host.
//!
//! Everything is made relative to an open directory, exclusively and without following links: a volume of
//! strangers cannot lead the copy out of its target. Attributes of a directory are set when all in it is
//! made.

use super::Salvaged;
use crate::Progress;
use crate::progress::Meter;
use quire::inodes::{InodeRef, Inodes, IoFlags};
use quire::{FileType, Volume};
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result};
use rustix::fs::{
    self, AtFlags, FileType as HostType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// The directory that files are copied into.
pub(super) struct Target {
    root: Rc<OwnedFd>,
    place: PathBuf,
    /// Whether owners can be set.
    privileged: bool,
}

/// What is still to be done.
enum Step {
    Make {
        inode: u64,
        parent: Rc<OwnedFd>,
        name: Vec<u8>,
        path: PathBuf,
    },
    /// All in the directory is made.
    Finish {
        inode: InodeRef,
        made: Rc<OwnedFd>,
        path: PathBuf,
    },
}

fn os(doing: &str, path: &Path, errno: Errno) -> Error {
    Error::os(format!("{doing} {}", path.display()), &errno.into())
}

impl Target {
    /// Opens the directory, or makes it; it must be empty.
    pub(super) fn open(path: &Path) -> Result<Target> {
        match fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(os("making", path, errno)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(path, flags, Mode::empty()).map_err(|errno| os("opening", path, errno))?;
        let entries = fs::Dir::read_from(&root).map_err(|errno| os("reading", path, errno))?;
        for entry in entries {
            let entry = entry.map_err(|errno| os("reading", path, errno))?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                return Err(Error::new(
                    ErrorKind::Exists,
                    format!(
                        "{} is not empty: salvage copies into an empty or a new directory",
                        path.display()
                    ),
                ));
            }
        }
        let privileged = rustix::process::geteuid().is_root();
        Ok(Target { root: Rc::new(root), place: path.to_owned(), privileged })
    }

    /// Copies the volume's tree of directories, and makes the copy durable. Errors: the target cannot be
    /// written, so that the copy ends in the middle.
    pub(super) fn copy_all(
        &self,
        volume: &Volume,
        salvaged: &mut Salvaged,
        progress: Option<&dyn Fn(Progress)>,
    ) -> Result<()> {
        let inodes = volume.inodes();
        let mut meter = Meter::start(progress, "copy", volume.statfs().inodes);
        // Where an inode with several names was made first.
        let mut made: HashMap<u64, PathBuf> = HashMap::new();
        let mut steps = Vec::new();
        self.enter(inodes, inodes.root(), self.root.clone(), PathBuf::from("/"), &mut steps, salvaged);
        while let Some(step) = steps.pop() {
            meter.advance(1);
            match step {
                Step::Finish { inode, made, path } => self.attributes(inodes, &inode, &made, &path, salvaged),
                Step::Make { inode, parent, name, path } => {
                    let inode = match inodes.get(quire_base::InodeNo(inode)) {
                        Ok(inode) => inode,
                        Err(error) => {
                            salvaged.problem(&path, error.to_string());
                            continue;
                        }
                    };
                    let outcome = if inode.kind() == FileType::Directory {
                        self.directory(&parent, &name)
                    } else {
                        self.other(inodes, &inode, &parent, &name, &path, &mut made, salvaged).map(|()| None)
                    };
                    match outcome {
                        Ok(Some(directory)) => {
                            salvaged.directories += 1;
                            self.enter(inodes, inode, Rc::new(directory), path, &mut steps, salvaged);
                        }
                        Ok(None) => {}
                        Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::IO)) => {
                            return Err(self.cannot_be_written(format_args!("at {}", path.display()), errno));
                        }
                        Err(errno) => salvaged.problem(&path, format!("it cannot be made: {errno}")),
                    }
                }
            }
        }
        fs::syncfs(&self.root).map_err(|errno| self.cannot_be_written("when all was made durable", errno))
    }

    fn cannot_be_written(&self, ended: impl std::fmt::Display, errno: Errno) -> Error {
        let doing = format!(
            "{} cannot be written, so the copy is not whole: copy into another directory, with more room if that was \
             missing; it ended {ended}",
            self.place.display()
        );
        Error::os(doing, &errno.into())
    }

    /// Plans what is in a directory.
    fn enter(
        &self,
        inodes: &Inodes,
        inode: InodeRef,
        made: Rc<OwnedFd>,
        path: PathBuf,
        steps: &mut Vec<Step>,
        salvaged: &mut Salvaged,
    ) {
        steps.push(Step::Finish { inode: inode.clone(), made: made.clone(), path: path.clone() });
        let read = inodes.read_dir(&inode, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                steps.push(Step::Make {
                    inode: entry.inode.0,
                    parent: made.clone(),
                    name: entry.name.to_vec(),
                    path: path.join(OsStr::from_bytes(entry.name)),
                });
            }
            true
        });
        if let Err(error) = read {
            salvaged.problem(&path, format!("not all of its names can be read: {error}"));
        }
    }

    fn directory(&self, parent: &OwnedFd, name: &[u8]) -> rustix::io::Result<Option<OwnedFd>> {
        fs::mkdirat(parent, name, Mode::RWXU)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::openat(parent, name, flags, Mode::empty()).map(Some)
    }

    #[expect(clippy::too_many_arguments, reason = "what a name needs, each once")]
    fn other(
        &self,
        inodes: &Inodes,
        inode: &InodeRef,
        parent: &OwnedFd,
        name: &[u8],
        path: &Path,
        made: &mut HashMap<u64, PathBuf>,
        salvaged: &mut Salvaged,
    ) -> rustix::io::Result<()> {
        let number = inode.number().0;
        if let Some(first) = made.get(&number) {
            match self.link(first, parent, name) {
                Ok(()) => {
                    salvaged.links += 1;
                    return Ok(());
                }
                Err(Errno::EXIST) => return Err(Errno::EXIST),
                Err(errno) => {
                    let what = format!("it is a copy, not a link to {}: {errno}", first.display());
                    salvaged.problem(path, what);
                }
            }
        }
        let metadata = inodes.metadata(inode);
        match inode.kind() {
            FileType::Regular => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?;
                if let Err(errno) = contents(inodes, inode, &file, path, salvaged) {
                    // A part of a file must not pass for the file.
                    let _ = fs::unlinkat(parent, name, AtFlags::empty());
                    return Err(errno);
                }
                self.attributes(inodes, inode, &file, path, salvaged);
                salvaged.files += 1;
            }
            FileType::Symlink => {
                match inodes.read_link(inode) {
                    Ok(target) => fs::symlinkat(&target[..], parent, name)?,
                    Err(error) => {
                        salvaged.problem(path, format!("its target cannot be read: {error}"));
                        return Ok(());
                    }
                }
                self.owner_and_times(inodes, inode, parent, name, path, salvaged);
                salvaged.others += 1;
            }
            kind => {
                let host = match kind {
                    FileType::Fifo => HostType::Fifo,
                    FileType::Socket => HostType::Socket,
                    FileType::CharDevice => HostType::CharacterDevice,
                    _ => HostType::BlockDevice,
                };
                let mode = Mode::from_raw_mode(metadata.permission_bits());
                fs::mknodat(parent, name, host, mode, metadata.rdev())?;
                self.owner_and_times(inodes, inode, parent, name, path, salvaged);
                let _ = fs::chmodat(parent, name, mode, AtFlags::empty());
                salvaged.others += 1;
            }
        }
        if metadata.nlink() > 1 {
            made.insert(number, path.to_owned());
        }
        Ok(())
    }

    /// Gives what was made first a further name. No link on the way is followed: another name of the volume
    /// may be one.
    fn link(&self, first: &Path, parent: &OwnedFd, name: &[u8]) -> rustix::io::Result<()> {
        let (Some(above), Some(last)) = (first.parent(), first.file_name()) else { return Err(Errno::INVAL) };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut directory = self.root.clone();
        // One name at a time: a path of the volume may be longer than the kernel takes.
        for name in above.iter().skip(1) {
            directory = Rc::new(fs::openat(&directory, name, flags, Mode::empty())?);
        }
        fs::linkat(&directory, last, parent, name, AtFlags::empty())
    }

    /// Of what cannot be opened.
    fn owner_and_times(
        &self,
        inodes: &Inodes,
        inode: &InodeRef,
        parent: &OwnedFd,
        name: &[u8],
        path: &Path,
        salvaged: &mut Salvaged,
    ) {
        let metadata = inodes.metadata(inode);
        let mut done = Ok(());
        if self.privileged {
            let (uid, gid) = (Uid::from_raw(metadata.uid()), Gid::from_raw(metadata.gid()));
            done = fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
        }
        done = done.and(fs::utimensat(parent, name, &times(&metadata), AtFlags::SYMLINK_NOFOLLOW));
        if let Err(errno) = done {
            salvaged.problem(path, format!("owner or times cannot be set: {errno}"));
        }
        let through = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(parent));
        let host = Path::new(&through).join(OsStr::from_bytes(name));
        each_xattr(inodes, inode, path, salvaged, |name, value| {
            fs::lsetxattr(&host, name, value, XattrFlags::empty())
        });
    }

    /// Of a file or directory that is open.
    fn attributes(
        &self,
        inodes: &Inodes,
        inode: &InodeRef,
        made: &OwnedFd,
        path: &Path,
        salvaged: &mut Salvaged,
    ) {
        let metadata = inodes.metadata(inode);
        let mut done = Ok(());
        if self.privileged {
            let (uid, gid) = (Uid::from_raw(metadata.uid()), Gid::from_raw(metadata.gid()));
            done = fs::fchown(made, Some(uid), Some(gid));
        }
        // A new owner takes a file's capabilities away.
        each_xattr(inodes, inode, path, salvaged, |name, value| {
            fs::fsetxattr(made, name, value, XattrFlags::empty())
        });
        let mode = Mode::from_raw_mode(metadata.permission_bits());
        done = done.and(fs::fchmod(made, mode)).and(fs::futimens(made, &times(&metadata)));
        if let Err(errno) = done {
            salvaged.problem(path, format!("owner, mode or times cannot be set: {errno}"));
        }
    }
}

fn times(metadata: &quire::Metadata) -> Timestamps {
    let time = |tv_sec: i64, tv_nsec: i64| Timespec { tv_sec, tv_nsec: tv_nsec as _ };
    Timestamps {
        last_access: time(metadata.atime(), metadata.atime_nsec()),
        last_modification: time(metadata.mtime(), metadata.mtime_nsec()),
    }
}

/// Sets each extended attribute of an inode.
fn each_xattr(
    inodes: &Inodes,
    inode: &InodeRef,
    path: &Path,
    salvaged: &mut Salvaged,
    set: impl Fn(&[u8], &[u8]) -> rustix::io::Result<()>,
) {
    let names = match inodes.list_xattrs(inode) {
        Ok(names) => names,
        Err(error) => {
            salvaged.problem(path, format!("its extended attributes cannot be read: {error}"));
            return;
        }
    };
    for name in names {
        let shown = String::from_utf8_lossy(&name).into_owned();
        match inodes.get_xattr(inode, &name) {
            Ok(value) => {
                if let Err(errno) = set(&name, &value) {
                    salvaged.problem(path, format!("the extended attribute {shown} cannot be set: {errno}"));
                }
            }
            Err(error) => {
                salvaged.problem(path, format!("the extended attribute {shown} cannot be read: {error}"));
            }
        }
    }
}

/// Copies what is not a hole; what cannot be read becomes one. Errors: the target cannot be written.
fn contents(
    inodes: &Inodes,
    inode: &InodeRef,
    file: &OwnedFd,
    path: &Path,
    salvaged: &mut Salvaged,
) -> rustix::io::Result<()> {
    let size = inode.size();
    fs::ftruncate(file, size)?;
    let mut buffer = vec![0; PIECE];
    let mut unreadable: Option<(u64, u64)> = None;
    let mut at = 0;
    while at < size {
        let start = match inodes.seek_data(inode, at) {
            Ok(start) => start,
            Err(error) if error.kind() == ErrorKind::NoData => break,
            Err(error) => {
                salvaged.problem(path, format!("what lies behind byte {at} cannot be found: {error}"));
                break;
            }
        };
        let end = inodes.seek_hole(inode, start).unwrap_or(size).min(size);
        if start >= size {
            break;
        }
        at = start;
        while at < end {
            let wanted = PIECE.min((end - at) as usize);
            let piece = &mut buffer[..wanted];
            let read = match inodes.read_at(inode, piece, at, IoFlags::empty()) {
                Ok(0) => break,
                Ok(read) => read,
                Err(_) => {
                    // One block at a time, to lose no more than must be.
                    let block = (BLOCK_SIZE - at as usize % BLOCK_SIZE).min(wanted);
                    match inodes.read_at(inode, &mut piece[..block], at, IoFlags::empty()) {
                        Ok(read) if read > 0 => read,
                        _ => {
                            let to = at + block as u64;
                            match &mut unreadable {
                                Some(last) if last.1 == at => last.1 = to,
                                _ => {
                                    tell_unreadable(unreadable, path, salvaged);
                                    unreadable = Some((at, to));
                                }
                            }
                            at = to;
                            continue;
                        }
                    }
                }
            };
            write_all(file, &buffer[..read], at)?;
            salvaged.bytes += read as u64;
            at += read as u64;
        }
        at = at.max(end);
    }
    tell_unreadable(unreadable, path, salvaged);
    Ok(())
}

fn tell_unreadable(range: Option<(u64, u64)>, path: &Path, salvaged: &mut Salvaged) {
    if let Some((from, to)) = range {
        salvaged.problem(path, format!("bytes {from} to {to} cannot be read: the copy has a hole there"));
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut at: u64) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::pwrite(file, bytes, at)?;
        bytes = &bytes[written..];
        at += written as u64;
    }
    Ok(())
}
