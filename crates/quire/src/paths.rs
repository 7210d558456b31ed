//! The volume by paths, with the names of [`std::fs`].
//!
//! Each operation that changes names is one transaction: after a crash it has happened or not. The functions
//! that do several (`create_dir_all`, `remove_dir_all`, `write`, `copy`) may be cut short by a crash between
//! two of them.
//!
//! Neighbours: [`super::walk`] resolves paths; [`crate::inodes`] does the work.

use super::metadata::{FileTimes, Metadata};
use super::open_options::OpenOptions;
use super::read_dir::ReadDir;
use super::walk::{Purpose, Walk, with_path};
use crate::attributes::SetAttributes;
use crate::file_handle::File;
use crate::inode::InodeRef;
use crate::inodes::{Caller, Create, XattrFlags};
use crate::namespace::RenameFlags;
use crate::volume::Volume;
use crate::xattr::or_none;
use quire_base::{Error, ErrorKind, Result};
use quire_format::inode::FileType;
use quire_format::properties::Properties;
use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// # Files and directories by path
///
/// Paths start at the root of the volume, with a slash or without. `.`, `..` and symbolic links work as
/// everywhere. Nothing checks permissions: the program owns the volume.
impl Volume {
    /// Opens a file for reading, as [`std::fs::File::open`]. Everything else is the matter of
    /// [`OpenOptions`].
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).open(self, path)
    }

    /// Opens a file for writing, creates it or cuts it to nothing, as [`std::fs::File::create`].
    pub fn create_file(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(self, path)
    }

    /// The inode that a path leads to, for [`Volume::inodes`]; a link at its end is followed.
    pub fn resolve(&self, path: impl AsRef<Path>) -> Result<InodeRef> {
        self.walk_to(path.as_ref(), true, "looking up")
    }

    fn walk_to(&self, path: &Path, follow_last: bool, doing: &str) -> Result<InodeRef> {
        with_path(Walk::new(self.inodes(), path).and_then(|walk| walk.inode(follow_last)), doing, path)
    }

    /// Does `act` with the directory and the last name of a path, which is for `purpose`.
    fn at_name<T>(
        &self,
        path: &Path,
        doing: &str,
        purpose: Purpose,
        act: impl FnOnce(&InodeRef, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let done = Walk::new(self.inodes(), path)
            .and_then(|walk| walk.name(purpose))
            .and_then(|(directory, name)| act(&directory, &name));
        with_path(done, doing, path)
    }

    /// A file's whole contents; an error of kind `NoMemory` if there is too little memory for them.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let file = self.open_file(path)?;
        let mut contents = Vec::new();
        let reserve = |contents: &mut Vec<u8>, bytes: u64| {
            let reserved =
                usize::try_from(bytes).ok().filter(|more| contents.try_reserve_exact(*more).is_ok());
            let no_memory = || format!("reading {}: no memory for {bytes} bytes", path.display());
            reserved.ok_or_else(|| Error::new(ErrorKind::NoMemory, no_memory()))
        };
        // One byte more than there should be, so that the end is found without another buffer.
        reserve(&mut contents, file.size().saturating_add(1))?;
        loop {
            let rest = file.size().saturating_sub(contents.len() as u64).min(READ_BYTES) + 1;
            let rest = reserve(&mut contents, rest)?;
            let done = contents.len();
            contents.resize(done + rest, 0);
            let count = with_path(file.read_at(&mut contents[done..], done as u64), "reading", path)?;
            contents.truncate(done + count);
            if count == 0 {
                return Ok(contents);
            }
        }
    }

    /// A file's whole contents as text; an error of kind `Invalid` if they are not UTF-8.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        let path = path.as_ref();
        String::from_utf8(self.read(path)?)
            .map_err(|error| Error::invalid(format!("reading {} as text: {error}", path.display())))
    }

    /// Replaces a file's contents, and creates it if there is none. Not durable before [`Volume::sync`], and
    /// after a crash the file may be shorter: to replace a file at once, write another one, make it durable,
    /// and [`rename`](Volume::rename) it.
    pub fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        with_path(self.create_file(path)?.write_all_at(contents.as_ref(), 0), "writing", path)
    }

    /// Copies the contents and permissions of a file to another, which is created or replaced; gives the
    /// bytes copied. Holes stay holes. To copy a file to itself is an error of kind `Invalid`, and leaves it
    /// as it is.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let source = self.open_file(from)?;
        // Before the target loses what it has.
        with_path(source.inode().check_regular(), "copying", from)?;
        let permissions = source.metadata().permissions();
        let options = OpenOptions::new().write(true).create(true).mode(permissions.mode());
        let target = options.open(self, to)?;
        if target.inode().number() == source.inode().number() {
            return Err(Error::invalid(format!(
                "copying {}: {} is the same file",
                from.display(),
                to.display()
            )));
        }
        let copied = target.set_len(0).and_then(|()| {
            let copied = source.copy_data_to(&target)?;
            target.set_permissions(permissions).map(|()| copied)
        });
        copied.map_err(|error| error.context(format_args!("copying {} to {}", from.display(), to.display())))
    }

    /// Whether a path leads to something, as [`std::fs::exists`]: an error if that cannot be said.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        let path = path.as_ref();
        match with_path(Walk::new(self.inodes(), path).and_then(Walk::find), "looking up", path) {
            Ok(found) => Ok(found.is_some()),
            // A directory on the way.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What `stat` shows of what a path leads to.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        Ok(self.inodes().metadata(&self.resolve(path)?))
    }

    /// What `lstat` shows: of a link at the end of the path, the link itself.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        Ok(self.inodes().metadata(&self.walk_to(path.as_ref(), false, "looking up")?))
    }

    /// Creates a directory of mode 0o755; an error of kind `Exists` if the name is taken.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let create = |directory: &InodeRef, name: &[u8]| {
            self.inodes().create(directory, name, &Create::directory(0o755))
        };
        let purpose = Purpose::New { directory: true };
        self.at_name(path.as_ref(), "creating directory", purpose, create).map(drop)
    }

    /// Creates a directory and those above it that are missing.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        // Without a "." at its end.
        let path: PathBuf = path.as_ref().components().collect();
        let mut missing = Vec::new();
        for above in path.ancestors().filter(|above| !above.as_os_str().is_empty()) {
            match self.metadata(above) {
                Ok(found) if found.is_dir() => break,
                Ok(_) => {
                    let kind = if above == path { ErrorKind::Exists } else { ErrorKind::NotDirectory };
                    return Err(Error::new(
                        kind,
                        format!("creating directory {}: {} is no directory", path.display(), above.display()),
                    ));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => missing.push(above),
                Err(error) => return Err(error),
            }
        }
        for path in missing.into_iter().rev() {
            if let Err(error) = self.create_dir(path) {
                // Somebody else may have made it; a link that leads nowhere is none.
                let is_there = || self.metadata(path).is_ok_and(|found| found.is_dir());
                if error.kind() != ErrorKind::Exists || !is_there() {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let remove = |directory: &InodeRef, name: &[u8]| self.inodes().remove_dir(directory, name);
        self.at_name(path.as_ref(), "removing directory", Purpose::RemoveDirectory, remove)
    }

    /// Removes a directory and everything below it. Symbolic links are removed, not followed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let remove = |directory: &InodeRef, name: &[u8]| self.remove_tree(directory, name, path);
        self.at_name(path, "removing directory", Purpose::RemoveDirectory, remove)
    }

    fn remove_tree(&self, parent: &InodeRef, name: &[u8], path: &Path) -> Result<()> {
        let inodes = self.inodes();
        let top = inodes.lookup(parent, name)?;
        if top.kind() == FileType::Symlink {
            return inodes.remove_file(parent, name);
        }
        // The directories on the way down, with their names: a tree may be deeper than a thread's stack.
        let mut way = vec![(parent.clone(), name.to_vec(), top)];
        let mut passes = 0;
        while let Some((parent, name, directory)) = way.last() {
            let mut below = None;
            let entries = match ReadDir::new(inodes, directory.clone(), path) {
                // Somebody else has removed it.
                Err(error) if error.kind() == ErrorKind::NotFound && way.len() > 1 => {
                    way.pop();
                    continue;
                }
                entries => entries?,
            };
            for entry in entries {
                let entry = entry?;
                let child = entry.file_name().into_vec();
                if entry.file_type().is_dir() {
                    match inodes.lookup(directory, &child) {
                        Ok(inode) => below = Some((directory.clone(), child, inode)),
                        Err(error) if error.kind() == ErrorKind::NotFound => continue,
                        Err(error) => return Err(error),
                    }
                    break;
                }
                gone_or(inodes.remove_file(directory, &child))?;
            }
            match below {
                Some(step) => way.push(step),
                None => {
                    match inodes.remove_dir(parent, name) {
                        // Somebody has created something in it meanwhile, but not for ever, or put another in
                        // its place. An entry that is damaged may be listed and not be found.
                        Err(error) if error.kind() == ErrorKind::NotEmpty => {
                            let there = inodes.find(parent, name)?;
                            passes += 1;
                            if passes < PASSES_MAX
                                && there.is_none_or(|there| there.number() == directory.number())
                            {
                                continue;
                            }
                            return Err(error);
                        }
                        outcome => gone_or(outcome)?,
                    }
                    way.pop();
                    passes = 0;
                }
            }
        }
        Ok(())
    }

    /// Removes a file's name, or a link. The file is freed with its last name and its last [`File`].
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let remove = |directory: &InodeRef, name: &[u8]| self.inodes().remove_file(directory, name);
        self.at_name(path.as_ref(), "removing", Purpose::RemoveFile, remove)
    }

    /// Renames, atomically, over what has the new name if that may be replaced.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameFlags::empty())
    }

    /// Renames as the flags say: only to a new name, or so that two names change places.
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        flags: RenameFlags,
    ) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        self.at_name(from, "renaming", Purpose::From, |directory, name| {
            let is_directory = self.inodes().lookup(directory, name)?.kind() == FileType::Directory;
            self.at_name(to, "to", Purpose::To { directory: is_directory }, |to_directory, to_name| {
                self.inodes().rename(directory, name, to_directory, to_name, flags)
            })
        })
    }

    /// Gives the file `original` another name, `link`; a symbolic link at the end of `original` is not
    /// followed.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let inode = self.walk_to(original.as_ref(), false, "linking")?;
        let create = |directory: &InodeRef, name: &[u8]| self.inodes().hard_link(&inode, directory, name);
        self.at_name(link.as_ref(), "linking as", Purpose::New { directory: false }, create)
    }

    /// Creates a symbolic link at `link` that leads to `original`.
    pub fn symlink(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let target = original.as_ref().as_os_str().as_bytes();
        let create = |directory: &InodeRef, name: &[u8]| {
            self.inodes().symlink(directory, name, target, Caller::default()).map(drop)
        };
        self.at_name(link.as_ref(), "creating link", Purpose::New { directory: false }, create)
    }

    /// Where a symbolic link leads.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path.as_ref();
        let inode = self.walk_to(path, false, "reading link")?;
        let target = with_path(self.inodes().read_link(&inode), "reading link", path)?;
        Ok(PathBuf::from(OsString::from_vec(target)))
    }

    /// The entries of a directory, read as they are asked for.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let path = path.as_ref();
        let inode = self.walk_to(path, true, "listing")?;
        with_path(ReadDir::new(self.inodes(), inode, path), "listing", path)
    }

    fn change(&self, path: &Path, follow_last: bool, doing: &str, set: &SetAttributes) -> Result<()> {
        let inode = self.walk_to(path, follow_last, doing)?;
        with_path(self.inodes().set_attributes(&inode, set).map(drop), doing, path)
    }

    /// Changes permissions: the bits 0o7777 of their mode.
    pub fn set_permissions(&self, path: impl AsRef<Path>, permissions: Permissions) -> Result<()> {
        self.change(path.as_ref(), true, "changing permissions of", &SetAttributes::from(&permissions))
    }

    /// What is asked of a file or directory besides; a directory hands it to what is created in it.
    pub fn properties(&self, path: impl AsRef<Path>) -> Result<Properties> {
        Ok(self.inodes().properties(&self.resolve(path)?))
    }

    /// Gives a file or directory other properties; see [`File::set_properties`].
    pub fn set_properties(&self, path: impl AsRef<Path>, properties: Properties) -> Result<()> {
        let (path, doing) = (path.as_ref(), "changing the properties of");
        let inode = self.walk_to(path, true, doing)?;
        with_path(self.inodes().set_properties(&inode, properties), doing, path)
    }

    /// Changes owner and group, where given, as [`std::os::unix::fs::chown`].
    pub fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let set = SetAttributes { uid, gid, ..SetAttributes::default() };
        self.change(path.as_ref(), true, "changing the owner of", &set)
    }

    /// As [`Volume::chown`], but a link at the end of the path is not followed.
    pub fn lchown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let set = SetAttributes { uid, gid, ..SetAttributes::default() };
        self.change(path.as_ref(), false, "changing the owner of", &set)
    }

    /// Sets the times of the last access and the last change.
    pub fn set_times(&self, path: impl AsRef<Path>, times: FileTimes) -> Result<()> {
        self.change(path.as_ref(), true, "setting times of", &SetAttributes::from(times))
    }

    /// An extended attribute; `None` if there is none of that name.
    pub fn get_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Option<Vec<u8>>> {
        let (path, doing) = (path.as_ref(), "reading an attribute of");
        let inode = self.walk_to(path, true, doing)?;
        with_path(or_none(self.inodes().get_xattr(&inode, name.as_ref().as_bytes())), doing, path)
    }

    /// Sets an extended attribute, at most 64 KiB. Names begin with `user.`, `trusted.` or `security.`.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        let (path, doing) = (path.as_ref(), "setting an attribute of");
        let inode = self.walk_to(path, true, doing)?;
        let (name, value) = (name.as_ref().as_bytes(), value.as_ref());
        with_path(self.inodes().set_xattr(&inode, name, value, XattrFlags::empty()), doing, path)
    }

    /// The names of the extended attributes.
    pub fn list_xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        let (path, doing) = (path.as_ref(), "listing attributes of");
        let inode = self.walk_to(path, true, doing)?;
        let names = with_path(self.inodes().list_xattrs(&inode), doing, path)?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    /// Removes an extended attribute; an error of kind `NoAttribute` if there is none.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        let (path, doing) = (path.as_ref(), "removing an attribute of");
        let inode = self.walk_to(path, true, doing)?;
        with_path(self.inodes().remove_xattr(&inode, name.as_ref().as_bytes()), doing, path)
    }
}

/// Most bytes that [`Volume::read`] asks for at once.
const READ_BYTES: u64 = 16 << 20;
/// Times that a directory is emptied, and is not empty then.
const PASSES_MAX: u32 = 64;

/// Success for what somebody else has removed already.
fn gone_or(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}
