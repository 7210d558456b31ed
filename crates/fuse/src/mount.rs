//! Attaching a FUSE server to a mount point, and detaching it.
//!
//! Root calls `mount(2)` itself and needs no helper program. Everybody else goes through the set-uid
//! program `fusermount3`, which checks that the user may mount there and hands back the open `/dev/fuse`
//! descriptor over a socket.
//!
//! | type | source | for |
//! | --- | --- | --- |
//! | `fuseblk.quire` | a loop device over the volume ([`loop_device`]) | root, where loop devices can be had |
//! | `fuse.quire` | the volume's path, or the name given | all else |
//!
//! On a mount of type `fuseblk` the kernel sends `syncfs` and `sync` to the server (Linux 6.18 and later),
//! and `umount` returns when the server has answered DESTROY, the last request. A server that waits for its
//! own `umount` must therefore be able to answer, and must not be the one that waits: killed in between, its
//! threads could not end, and the descriptor that would release them would stay open. So it unmounts in a
//! child that has no descriptor of `/dev/fuse` ([`unmount_in_child`], [`abandon`]).
//!
//! Invariant: a server unmounts no mount but its own. A path says no more than what is topmost there, so a
//! server keeps the [`MountEntry`] of its mount, whose device number nobody else has.
//!
//! Nothing here follows a path *into* the mounted file system: its server may be dead, or be the very
//! process that asks. What is mounted where is read from `/proc/self/mountinfo`.

mod loop_device;

use std::ffi::{CString, OsStr, OsString};
use std::fs::OpenOptions;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::operations::ioctl::{SYNC, SYNCFS, TRANSPORT};
use quire_base::{Error, ErrorKind, Result};
use rustix::mount as sys;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// The file system type shown in mount tables, without the leading `fuse.` or `fuseblk.`.
pub const SUBTYPE: &str = "quire";
const FILE_SYSTEM_TYPE: &str = "fuse.quire";
const BLOCK_TYPE: &str = "fuseblk.quire";
const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
/// How long [`abandon`] looks whether the mount has left the tree.
const ABANDON_PATIENCE: Duration = Duration::from_secs(5);

/// The kernel's part of the mount options.
#[derive(Clone, Debug, Default)]
pub struct MountFlags {
    /// Shown as the source of a mount without a loop device; the volume's path.
    pub source: OsString,
    /// The volume's image or device. Root's mount then has a loop device over it as its source where one can
    /// be had.
    pub volume: Option<PathBuf>,
    /// The kernel refuses every change.
    pub read_only: bool,
    /// Users other than the one who mounts may use the mount.
    pub allow_other: bool,
    /// Ignore device nodes.
    pub no_dev: bool,
    /// Ignore set-user-id and set-group-id bits.
    pub no_suid: bool,
    /// Refuse to execute programs.
    pub no_exec: bool,
    /// Shown in the mount table; the engine keeps the access times.
    pub no_atime: bool,
    /// Every write and every change of names and attributes is made durable before it returns.
    pub sync: bool,
    /// Every change of names is made durable before it returns.
    pub dir_sync: bool,
}

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Where it is mounted.
    pub dir: PathBuf,
    /// The device number, `major:minor`, unique among the mounts that exist.
    pub device: String,
    /// The type, `fuse.quire` or `fuseblk.quire` for ours.
    pub kind: String,
    /// The source. For ours the volume's path, also where the mount table has a loop device over it.
    pub source: PathBuf,
    /// The options of the file system, with commas between them.
    pub options: String,
    /// The options of this mount of it, likewise.
    pub mount_options: String,
}

impl MountEntry {
    /// Whether a Quire server is (or was) behind it.
    pub fn is_quire(&self) -> bool {
        self.kind == FILE_SYSTEM_TYPE || self.is_block()
    }

    /// The user who mounted it, as the kernel numbers users.
    pub fn user(&self) -> Option<u32> {
        self.options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
    }

    /// What the kernel does on it at present, for [`remount`].
    pub fn flags(&self) -> MountFlags {
        let has = |options: &str, option| options.split(',').any(|one| one == option);
        let (mount, of_all) = (self.mount_options.as_str(), self.options.as_str());
        MountFlags {
            read_only: has(mount, "ro") || has(of_all, "ro"),
            no_dev: has(mount, "nodev"),
            no_suid: has(mount, "nosuid"),
            no_exec: has(mount, "noexec"),
            no_atime: has(mount, "noatime"),
            sync: has(of_all, "sync"),
            dir_sync: has(of_all, "dirsync"),
            ..MountFlags::default()
        }
    }

    /// Whether its source is a block device, so that unmounting it waits for the server.
    fn is_block(&self) -> bool {
        self.kind == BLOCK_TYPE
    }

    /// Its connection's directory, which has the device number as the kernel counts for a name. It is there
    /// as long as the file system is mounted anywhere.
    pub fn connection(&self) -> Option<PathBuf> {
        let (major, minor) = self.device.split_once(':')?;
        let number = major.parse::<u64>().ok()? << 20 | minor.parse::<u64>().ok()?;
        Some(Path::new("/sys/fs/fuse/connections").join(number.to_string()))
    }
}

/// The mount table of this process, in the order in which the mounts were made.
pub fn mounts() -> Result<Vec<MountEntry>> {
    let table = std::fs::read("/proc/self/mountinfo")
        .map_err(|error| Error::os("reading the mount table /proc/self/mountinfo", &error))?;
    let with_volume = |mut entry: MountEntry| {
        if entry.is_block()
            && let Some(volume) = loop_device::backing_of(&entry.source)
        {
            entry.source = volume;
        }
        entry
    };
    Ok(table.split(|&byte| byte == b'\n').filter_map(parse_entry).map(with_volume).collect())
}

/// The topmost mount whose mount point is exactly `dir` (an absolute path without symbolic links).
pub fn mounted_at(dir: &Path) -> Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rev().find(|entry| entry.dir == dir))
}

/// `36 35 98:0 /root /dir options [optional...] - type source super-options`
fn parse_entry(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = fields.nth(2)?;
    let dir = fields.nth(1)?;
    let mount_options = fields.next()?;
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = rest.next()?;
    let source = rest.next()?;
    Some(MountEntry {
        dir: PathBuf::from(unescape(dir)),
        device: String::from_utf8_lossy(device).into_owned(),
        kind: String::from_utf8_lossy(kind).into_owned(),
        source: PathBuf::from(unescape(source)),
        options: String::from_utf8_lossy(rest.next().unwrap_or_default()).into_owned(),
        mount_options: String::from_utf8_lossy(mount_options).into_owned(),
    })
}

/// The table writes space, tab, newline and backslash as a backslash and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let digits =
            field.get(at + 1..at + 4).filter(|digits| digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match digits {
            Some(digits) if field[at] == b'\\' => {
                let value = digits.iter().fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                bytes.push(value as u8);
                at += 4;
            }
            _ => {
                bytes.push(field[at]);
                at += 1;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// The absolute path of a mount point without symbolic links, found without touching what is mounted there
/// (whose server may be dead).
pub fn resolve(dir: &Path) -> Result<PathBuf> {
    let failed = |error: &std::io::Error| Error::os(format!("mount point {}", dir.display()), error);
    let absolute = std::path::absolute(dir).map_err(|error| failed(&error))?;
    let canonical = |path: &Path| path.canonicalize().map_err(|error| failed(&error));
    let plain = match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => canonical(parent)?.join(name),
        // It ends in "..".
        (Some(_), None) => return canonical(dir),
        (None, _) => PathBuf::from("/"),
    };
    // Something mounted exactly there is the answer; only otherwise is the last component looked at, since
    // it may be a symbolic link.
    if mounted_at(&plain)?.is_some() { Ok(plain) } else { canonical(dir) }
}

/// A mount that was made.
#[derive(Debug)]
pub struct Attached {
    /// The descriptor that the requests come from.
    pub device: OwnedFd,
    /// Why the mount's source is no block device; `None` if it is one.
    pub not_block: Option<String>,
    /// The mount as the mount table has it.
    pub entry: MountEntry,
}

/// Mounts at `dir` (from [`resolve`]).
pub fn mount(dir: &Path, flags: &MountFlags) -> Result<Attached> {
    let meta = std::fs::metadata(dir)
        .map_err(|error| Error::os(format!("mount point {}", dir.display()), &error))?;
    if !meta.is_dir() {
        return Err(Error::new(
            ErrorKind::NotDirectory,
            format!("mount point {} is not a directory", dir.display()),
        ));
    }
    if let Some(entry) = mounted_at(dir)? {
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "{} is already mounted at {} (type {}); unmount it first, or choose another directory",
                entry.source.display(),
                dir.display(),
                entry.kind
            ),
        ));
    }
    let directly = match rustix::process::geteuid().is_root() {
        true => mount_directly(dir, meta.mode(), flags)?,
        false => None,
    };
    let (device, not_block) = match directly {
        Some(mounted) => mounted,
        None => (mount_by_helper(dir, flags)?, Some("root did not mount it".into())),
    };
    let entry = mounts()
        .inspect_err(|_| drop(unmount(dir, Unmount::Detach)))?
        .into_iter()
        .rev()
        .find(|entry| entry.dir == dir && entry.is_quire())
        .ok_or_else(|| not_mounted(dir))?;
    Ok(Attached { device, not_block, entry })
}

/// The descriptor, and why the mount's source is no block device. `None`: not permitted although root (a
/// container without the capability), so the helper may try.
fn mount_directly(dir: &Path, mode: u32, flags: &MountFlags) -> Result<Option<(OwnedFd, Option<String>)>> {
    let not_block = match mount_block(dir, mode, flags)? {
        Ok(device) => return Ok(Some((device, None))),
        Err(why) => why,
    };
    let device = open_device()?;
    match mount_kernel(&flags.source, dir, FILE_SYSTEM_TYPE, &options(&device, mode, flags), flags)? {
        Ok(()) => Ok(Some((device, Some(not_block)))),
        Err(rustix::io::Errno::PERM) => Ok(None),
        Err(error) => Err(Error::os(format!("mounting at {}", dir.display()), &error.into())),
    }
}

/// Mounts a loop device over the volume; else says why that cannot be had.
fn mount_block(dir: &Path, mode: u32, flags: &MountFlags) -> Result<std::result::Result<OwnedFd, String>> {
    let Some(volume) = &flags.volume else {
        return Ok(Err("its source is a name: fsname=".into()));
    };
    let source = match loop_device::attach(volume, flags.read_only) {
        Ok(source) => source,
        Err(why) => return Ok(Err(format!("no loop device: {why}"))),
    };
    let device = open_device()?;
    // Blocks of 4096 bytes, as mounts without a device have them.
    let options = format!("{},blksize=4096", options(&device, mode, flags));
    let mounted = mount_kernel(source.path.as_os_str(), dir, BLOCK_TYPE, &options, flags)?;
    Ok(mounted.map(|()| device).map_err(|error| {
        let error = std::io::Error::from(error);
        format!("mounting {} as {BLOCK_TYPE}: {error}", source.path.display())
    }))
}

fn open_device() -> Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).open(DEVICE).map_err(|error| {
        let hint = if error.kind() == std::io::ErrorKind::NotFound {
            " (the kernel's FUSE module is not loaded: modprobe fuse)"
        } else {
            ""
        };
        Error::os(format!("opening {DEVICE}{hint}"), &error)
    })?;
    Ok(device.into())
}

/// The options that the kernel's client reads.
fn options(device: &OwnedFd, mode: u32, flags: &MountFlags) -> String {
    let mut options = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if flags.allow_other {
        options.push_str(",allow_other");
    }
    options
}

/// The flags of the system call.
fn bits(flags: &MountFlags) -> sys::MountFlags {
    let mut bits = sys::MountFlags::empty();
    for (set, bit) in [
        (flags.read_only, sys::MountFlags::RDONLY),
        (flags.no_dev, sys::MountFlags::NODEV),
        (flags.no_suid, sys::MountFlags::NOSUID),
        (flags.no_exec, sys::MountFlags::NOEXEC),
        (flags.no_atime, sys::MountFlags::NOATIME),
        (flags.sync, sys::MountFlags::SYNCHRONOUS),
        (flags.dir_sync, sys::MountFlags::DIRSYNC),
    ] {
        bits.set(bit, set);
    }
    bits
}

/// Has the kernel treat a mount by these flags from now on. Its source, who may use it, and what its server
/// does stay as they are. Once it is read-only, everything before is durable where `syncfs` reaches the
/// server.
pub fn remount(entry: &MountEntry, flags: &MountFlags) -> Result<()> {
    let doing = || format!("remounting {}", entry.dir.display());
    let now = entry.flags();
    // The server keeps these promises, too, and was told at its start.
    if flags.sync && !now.sync || flags.dir_sync && !now.dir_sync {
        let why = "sync and dirsync hold from the start of a mount; unmount, and mount with them";
        return Err(Error::new(ErrorKind::Unsupported, format!("{}: {why}", doing())));
    }
    match sys::mount_remount(&entry.dir, bits(flags), c"") {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => {
            Err(Error::new(ErrorKind::Busy, format!("{}: files there are open for writing", doing())))
        }
        Err(error) => Err(Error::os(doing(), &error.into())),
    }
}

/// The system call.
fn mount_kernel(
    source: &OsStr,
    dir: &Path,
    kind: &str,
    options: &str,
    flags: &MountFlags,
) -> Result<std::result::Result<(), rustix::io::Errno>> {
    let text = |bytes: &[u8]| {
        CString::new(bytes).map_err(|_| Error::invalid("a path with a zero byte cannot be mounted"))
    };
    let source = text(source.as_bytes())?;
    let options = text(options.as_bytes())?;
    Ok(sys::mount(source.as_c_str(), dir, kind, bits(flags), options.as_c_str()))
}

fn helper_missing(error: &std::io::Error) -> Error {
    Error::os(
        format!("running {HELPER} (it comes with the package fuse3; mounting without it needs root)"),
        error,
    )
}

fn mount_by_helper(dir: &Path, flags: &MountFlags) -> Result<OwnedFd> {
    let setup = |error: std::io::Error| Error::os(format!("preparing to run {HELPER}"), &error);
    let (ours, theirs) = UnixStream::pair().map_err(setup)?;
    let mut options = OsString::from("default_permissions,subtype=");
    options.push(SUBTYPE);
    options.push(",fsname=");
    options.push(escape_option(&flags.source));
    for (set, name) in [
        (flags.read_only, "ro"),
        (flags.allow_other, "allow_other"),
        (flags.no_dev, "nodev"),
        (flags.no_suid, "nosuid"),
        (flags.no_exec, "noexec"),
        (flags.no_atime, "noatime"),
        (flags.sync, "sync"),
        (flags.dir_sync, "dirsync"),
    ] {
        if set {
            options.push(",");
            options.push(name);
        }
    }
    // The helper finds the socket by number in its environment: its standard input is one that is inherited
    // without further ado.
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(options)
        .arg("--")
        .arg(dir)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| helper_missing(&error))?;
    let device = receive_descriptor(&ours);
    drop(ours);
    let output = child.wait_with_output().map_err(setup)?;
    match device {
        Ok(Some(device)) if output.status.success() => Ok(device),
        Err(error) => Err(error),
        Ok(_) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim();
            let hint = if said.contains("user_allow_other") {
                "; leave allow_other away, or have root put the line user_allow_other into /etc/fuse.conf"
            } else if said.contains(DEVICE) {
                "; users may mount only where /dev/fuse is open to them: as root, chmod 666 /dev/fuse"
            } else {
                ""
            };
            Err(Error::new(
                if refused(said) || !hint.is_empty() { ErrorKind::NotPermitted } else { ErrorKind::Io },
                format!("mounting at {} through {HELPER}: {said}{hint}", dir.display()),
            ))
        }
    }
}

/// Whether the helper's message says that the user may not.
fn refused(said: &str) -> bool {
    ["ermission", "ermitted", "not allowed", "only allowed", "no write access", "not owned"]
        .iter()
        .any(|words| said.contains(words))
}

/// The helper splits its options at commas unless they are escaped.
fn escape_option(value: &OsStr) -> OsString {
    let mut bytes = Vec::with_capacity(value.len());
    for &byte in value.as_bytes() {
        if byte == b',' || byte == b'\\' {
            bytes.push(b'\\');
        }
        bytes.push(byte);
    }
    OsString::from_vec(bytes)
}

/// `None` if the other end was closed without sending one.
fn receive_descriptor(socket: &UnixStream) -> Result<Option<OwnedFd>> {
    let mut byte = [0u8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        let mut parts = [IoSliceMut::new(&mut byte)];
        match recvmsg(socket.as_fd(), &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::os(format!("hearing from {HELPER}"), &error.into())),
        }
    }
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
            return Ok(descriptors.next());
        }
    }
    Ok(None)
}

/// How the requests of the mount at `dir` travel, as its server says: `ring`, or `dev` with the reason.
pub fn transport_of(dir: &Path) -> Result<String> {
    ask(dir, TRANSPORT)
}

/// Whether `syncfs` and `sync` reach the server of the mount at `dir`, in a few words of the server.
pub fn syncfs_of(dir: &Path) -> Result<String> {
    ask(dir, SYNCFS)
}

/// Has the server of the mount at `dir` make everything durable that was done there, as `syncfs` does where
/// the kernel passes that on. What the kernel itself keeps goes to the server first; that the server had no
/// room for some of it, at any time that nobody has been told of, is an error of kind `Io`.
pub fn sync(dir: &Path) -> Result<()> {
    let kept = std::fs::File::open(dir).and_then(|root| Ok(rustix::fs::syncfs(root)?)).map_err(|error| {
        let doing = format!("{}: the kernel gave pages up that it could not write back", dir.display());
        Error::os(doing, &error).with_kind(ErrorKind::Io)
    });
    control(dir, SYNC, &mut []).and(kept)
}

/// A question to a server, answered with text.
fn ask(dir: &Path, command: u32) -> Result<String> {
    // The command's number holds the size of its answer.
    let mut text = vec![0u8; (command >> 16 & 0x3fff) as usize];
    control(dir, command, &mut text)?;
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// A control request to a server. `answer` is as long as the command's number says.
fn control(dir: &Path, command: u32, answer: &mut [u8]) -> Result<()> {
    debug_assert_eq!(answer.len(), (command >> 16 & 0x3fff) as usize);
    let asking = |error: &std::io::Error| Error::os(format!("asking the server of {}", dir.display()), error);
    let directory = std::fs::File::open(dir).map_err(|error| asking(&error))?;
    // SAFETY: the kernel writes as many bytes as the command's number says, and that many are there.
    if unsafe { libc::ioctl(directory.as_raw_fd(), u64::from(command) as _, answer.as_mut_ptr()) } != 0 {
        return Err(asking(&std::io::Error::last_os_error()));
    }
    Ok(())
}

/// How an unmount treats a mount that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Fails with `Busy`.
    Plain,
    /// Disappears from the tree at once; the server goes on until the last user has closed.
    Detach,
}

/// Unmounts `dir` (from [`resolve`]).
pub fn unmount(dir: &Path, how: Unmount) -> Result<()> {
    let busy = || busy(dir);
    let flags = match how {
        Unmount::Plain => sys::UnmountFlags::NOFOLLOW,
        Unmount::Detach => sys::UnmountFlags::NOFOLLOW | sys::UnmountFlags::DETACH,
    };
    match sys::unmount(dir, flags) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::BUSY) => return Err(busy()),
        Err(rustix::io::Errno::PERM) => {}
        Err(rustix::io::Errno::INVAL) => return Err(not_mounted(dir)),
        Err(error) => return Err(Error::os(unmounting(dir), &error.into())),
    }
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if how == Unmount::Detach {
        command.arg("-z");
    }
    let output =
        command.arg("--").arg(dir).stdin(Stdio::null()).output().map_err(|error| helper_missing(&error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("busy") {
        return Err(busy());
    }
    let kind = if refused(&said) { ErrorKind::NotPermitted } else { ErrorKind::Io };
    // The helper knows only the caller's own mounts.
    let (kind, hint) = if said.contains("not found in /etc/mtab") {
        (ErrorKind::NotPermitted, "; only who mounted it, or root, may unmount it")
    } else {
        (kind, "")
    };
    Err(Error::new(kind, format!("{} through {HELPER}: {}{hint}", unmounting(dir), said.trim())))
}

fn not_mounted(dir: &Path) -> Error {
    Error::new(ErrorKind::NotFound, format!("nothing is mounted at {}", dir.display()))
}

fn unmounting(dir: &Path) -> String {
    format!("unmounting {}", dir.display())
}

fn busy(dir: &Path) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!(
            "{} is in use; see who with `fuser -vm {}`, or detach it with `quire umount --lazy`",
            dir.display(),
            dir.display()
        ),
    )
}

/// umount(8), which itself asks nothing of the mount. A child has none of this process's descriptors.
fn umount_program(dir: &Path, how: Unmount) -> Command {
    let mut command = Command::new("umount");
    command.args(["--internal-only", "--no-canonicalize"]);
    if how == Unmount::Detach {
        command.arg("--lazy");
    }
    command.arg("--").arg(dir).env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// An error unless `ours` is what a path to its mount point leads to.
fn check_topmost(ours: &MountEntry) -> Result<()> {
    let dir = &ours.dir;
    match mounted_at(dir)? {
        Some(top) if top.device == ours.device => Ok(()),
        Some(top) => {
            let what = format!("{} (type {}) is mounted over it", top.source.display(), top.kind);
            Err(Error::new(ErrorKind::NotPermitted, format!("{}: {what}", unmounting(dir))))
        }
        None => Err(not_mounted(dir)),
    }
}

/// As [`unmount`], for the server of the mount `ours`: a child waits for the answer to DESTROY, if it comes
/// to that. Another thread must be able to give that answer.
pub fn unmount_in_child(ours: &MountEntry, how: Unmount) -> Result<()> {
    check_topmost(ours)?;
    let dir = &ours.dir;
    if !ours.is_block() {
        return unmount(dir, how);
    }
    let output = match umount_program(dir, how).stderr(Stdio::piped()).output() {
        Ok(output) => output,
        // Without that program as well as it goes.
        Err(_) => return unmount(dir, how),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Ok(()),
        _ if said.contains("busy") => Err(busy(dir)),
        _ => Err(Error::new(ErrorKind::Io, format!("{}: {}", unmounting(dir), said.trim()))),
    }
}

/// Takes a mount out of the tree that this process has served, and will not serve any more. Does not wait for
/// DESTROY, which nobody would answer: it ends with this process.
pub fn abandon(ours: &MountEntry) {
    if let Err(error) = check_topmost(ours) {
        return tracing::warn!("{error}");
    }
    if !ours.is_block() {
        return drop(unmount(&ours.dir, Unmount::Detach));
    }
    let start = Instant::now();
    let mut program = umount_program(&ours.dir, Unmount::Detach);
    let Ok(mut child) = program.stderr(Stdio::null()).spawn() else { return };
    // It leaves the tree at once.
    while matches!(child.try_wait(), Ok(None))
        && check_topmost(ours).is_ok()
        && start.elapsed() < ABANDON_PATIENCE
    {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_table_lines() {
        let line =
            br"104 27 0:53 / /mnt/with\040space rw,relatime shared:5 - fuse.quire /a\134b.img rw,user_id=0";
        let entry = parse_entry(line).unwrap();
        assert_eq!(
            entry,
            MountEntry {
                dir: "/mnt/with space".into(),
                device: "0:53".into(),
                kind: "fuse.quire".into(),
                source: r"/a\b.img".into(),
                options: "rw,user_id=0".into(),
                mount_options: "rw,relatime".into(),
            }
        );
        assert!(entry.is_quire());
        let line = br"104 27 0:53 / /mnt ro,nosuid,noexec,noatime - fuse.quire /a rw,dirsync,user_id=0";
        let flags = parse_entry(line).unwrap().flags();
        assert!(flags.read_only && flags.no_suid && flags.no_exec && flags.no_atime && flags.dir_sync);
        assert!(!flags.no_dev && !flags.sync);
        let line = br"104 27 7:3 / /mnt rw,relatime - fuseblk.quire /dev/loop3 rw,user_id=0";
        let block = parse_entry(line).unwrap();
        assert!(block.is_quire() && block.is_block());
        let connection = |number: u64| Some(PathBuf::from(format!("/sys/fs/fuse/connections/{number}")));
        assert_eq!((entry.connection(), block.connection()), (connection(53), connection(7 << 20 | 3)));
        let plain = parse_entry(b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw").unwrap();
        assert_eq!(plain.dir, Path::new("/"));
        assert!(!plain.is_quire());
        assert_eq!(parse_entry(b""), None);
        assert_eq!(parse_entry(b"1 2 3:4"), None);
    }

    #[test]
    fn escapes_that_are_none_stay() {
        assert_eq!(unescape(br"a\9b\04"), OsString::from(r"a\9b\04"));
        assert_eq!(unescape(b"\\"), OsString::from("\\"));
        assert_eq!(escape_option(OsStr::new("a,b\\c")), OsString::from("a\\,b\\\\c"));
    }

    #[test]
    fn a_missing_or_unfit_mount_point_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("nowhere");
        let error = resolve(&missing).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("nowhere"), "{error}");
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = mount(&file, &MountFlags::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotDirectory);
        let error = unmount(&resolve(directory.path()).unwrap(), Unmount::Plain).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotPermitted), "{error:?}");
    }

    /// The way up from a directory led to the root of all.
    #[test]
    fn a_mount_point_may_end_in_dots() {
        let directory = tempfile::tempdir().unwrap();
        let sub = directory.path().join("sub");
        std::fs::create_dir(&sub).unwrap();
        assert_eq!(resolve(&sub.join("..")).unwrap(), directory.path().canonicalize().unwrap());
        assert_eq!(resolve(Path::new("/..")).unwrap(), Path::new("/"));
    }

    /// A stop signal took away what somebody else had mounted over the server's mount.
    #[test]
    fn a_server_unmounts_its_own_mount_alone() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("\n*** SKIPPED: needs root ***\n");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let dir = directory.path().canonicalize().unwrap();
        let mount = || {
            sys::mount("none", &dir, "tmpfs", sys::MountFlags::empty(), None).unwrap();
            mounted_at(&dir).unwrap().unwrap()
        };
        let ours = mount();
        let other = mount();
        let refused = unmount_in_child(&ours, Unmount::Detach);
        abandon(&ours);
        let topmost = mounted_at(&dir).unwrap();
        for _ in 0..2 {
            let _ = unmount_in_child(&mounted_at(&dir).unwrap().unwrap(), Unmount::Plain);
        }
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotPermitted);
        assert_eq!(topmost, Some(other));
        assert_eq!(unmount_in_child(&ours, Unmount::Plain).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(mounted_at(Path::new("/")).unwrap().is_some());
        assert_eq!(resolve(Path::new("/")).unwrap(), Path::new("/"));
    }
}
