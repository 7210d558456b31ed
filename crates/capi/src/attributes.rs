//! What `stat` shows, and what may be changed of it.
//!
//! Neighbours: [`crate::xattr`] for extended attributes.

use crate::arguments::{path, put};
use crate::error::status;
use crate::file::{File, file};
use crate::volume::{Volume, volume};
use libc::timespec;
use quire::inodes::{InodeRef, SetAttributes, SetTime};
use quire::{Error, FileType, Metadata, Result, Timestamp};
use std::ffi::{c_char, c_int};

/// What stat(2) shows.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Stat {
    /// Number of the inode; never used again on this volume.
    pub ino: u64,
    /// With `ino` it names a file for ever.
    pub generation: u64,
    /// Bytes.
    pub bytes: u64,
    /// Allocated units of 512 bytes.
    pub blocks: u64,
    /// Device number, of a device.
    pub rdev: u64,
    /// Type (S_IFMT) and permission bits.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: timespec,
    /// Last change of the contents.
    pub mtime: timespec,
    /// Last change of anything.
    pub ctime: timespec,
    /// Creation.
    pub btime: timespec,
    /// Zeros, for later versions.
    pub spare: [u64; 4],
}

fn time(seconds: i64, nanoseconds: i64) -> timespec {
    timespec { tv_sec: seconds, tv_nsec: nanoseconds }
}

fn stat_of(metadata: &Metadata) -> Stat {
    Stat {
        ino: metadata.ino().0,
        generation: metadata.generation(),
        bytes: metadata.len(),
        blocks: metadata.blocks(),
        rdev: metadata.rdev(),
        mode: metadata.mode(),
        nlink: metadata.nlink(),
        uid: metadata.uid(),
        gid: metadata.gid(),
        atime: time(metadata.atime(), metadata.atime_nsec()),
        mtime: time(metadata.mtime(), metadata.mtime_nsec()),
        ctime: time(metadata.ctime(), metadata.ctime_nsec()),
        btime: time(metadata.btime(), metadata.btime_nsec()),
        spare: [0; 4],
    }
}

/// What stat(2) shows of what a path leads to.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` is a text; a structure may be written to `stat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_stat(volume: *const Volume, path: *const c_char, stat: *mut Stat) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let found = self::volume(volume)?.metadata(self::path(path)?)?;
            put(stat, "stat", || Ok(stat_of(&found)))
        }
    })
}

/// As quire_stat, but of a symbolic link at the end of the path the link itself.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// As for quire_stat.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_lstat(volume: *const Volume, path: *const c_char, stat: *mut Stat) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let found = self::volume(volume)?.symlink_metadata(self::path(path)?)?;
            put(stat, "stat", || Ok(stat_of(&found)))
        }
    })
}

/// As quire_stat, of an open file.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `file` is an open file; a structure may be written to `stat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_fstat(file: *const File, stat: *mut Stat) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let found = self::file(file)?.file.metadata();
            put(stat, "stat", || Ok(stat_of(&found)))
        }
    })
}

/// Changes attributes of what a path leads to.
///
/// # Safety
/// `volume` is an open volume; `path` is a text.
unsafe fn change(volume: *const Volume, path: *const c_char, set: &SetAttributes, doing: &str) -> Result<()> {
    // SAFETY: the caller's promise.
    let (volume, path) = unsafe { (self::volume(volume)?, self::path(path)?) };
    set_attributes(volume, &volume.resolve(path)?, set)
        .map_err(|error| error.context(format_args!("{doing} {}", path.display())))
}

fn set_attributes(volume: &quire::Volume, inode: &InodeRef, set: &SetAttributes) -> Result<()> {
    volume.inodes().set_attributes(inode, set).map(drop)
}

/// Changes permissions: the bits 07777 of `mode`.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_chmod(volume: *const Volume, path: *const c_char, mode: u32) -> c_int {
    let set = SetAttributes { mode: Some(mode & 0o7777), ..SetAttributes::default() };
    // SAFETY: the caller's promise.
    status(|| unsafe { change(volume, path, &set, "changing permissions of") })
}

/// As quire_chmod, of an open file.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `file` is an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_fchmod(file: *const File, mode: u32) -> c_int {
    let set = SetAttributes { mode: Some(mode & 0o7777), ..SetAttributes::default() };
    status(|| {
        // SAFETY: the caller's promise.
        let file = unsafe { self::file(file) }?;
        set_attributes(&file.volume, file.file.inode(), &set)
    })
}

fn owners(uid: u32, gid: u32) -> SetAttributes {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    SetAttributes { uid: given(uid), gid: given(gid), ..SetAttributes::default() }
}

/// Changes owner and group; (uint32_t)-1 leaves one as it is.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_chown(
    volume: *const Volume,
    path: *const c_char,
    uid: u32,
    gid: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { change(volume, path, &owners(uid, gid), "changing the owner of") })
}

/// As quire_chown, but a symbolic link at the end of the path is not followed.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_lchown(
    volume: *const Volume,
    path: *const c_char,
    uid: u32,
    gid: u32,
) -> c_int {
    let SetAttributes { uid, gid, .. } = owners(uid, gid);
    // SAFETY: the caller's promise.
    status(|| unsafe { self::volume(volume)?.lchown(self::path(path)?, uid, gid) })
}

/// As quire_chown, of an open file.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `file` is an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_fchown(file: *const File, uid: u32, gid: u32) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let file = unsafe { self::file(file) }?;
        set_attributes(&file.volume, file.file.inode(), &owners(uid, gid))
    })
}

/// # Safety
/// `times` is NULL, or two of them may be read.
unsafe fn times(times: *const timespec) -> Result<SetAttributes> {
    let one = |given: timespec| match given.tv_nsec {
        libc::UTIME_OMIT => Ok(None),
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        nanos @ 0..1_000_000_000 => Ok(Some(SetTime::At(Timestamp::from_parts(given.tv_sec, nanos as u32)))),
        nanos => Err(Error::invalid(format!("no second has {nanos} nanoseconds"))),
    };
    let (atime, mtime) = if times.is_null() {
        (Some(SetTime::Now), Some(SetTime::Now))
    } else {
        // SAFETY: the caller's promise.
        let [atime, mtime] = unsafe { times.cast::<[timespec; 2]>().read() };
        (one(atime)?, one(mtime)?)
    };
    Ok(SetAttributes { atime, mtime, ..SetAttributes::default() })
}

/// Sets the times of the last access, `times[0]`, and of the last change, `times[1]`, as utimensat(2) does:
/// UTIME_NOW, UTIME_OMIT; NULL sets both to now.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` is a text; `times` is NULL or leads to two times.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_utimens(
    volume: *const Volume,
    path: *const c_char,
    times: *const timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { change(volume, path, &self::times(times)?, "setting times of") })
}

/// As quire_utimens, of an open file.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `file` is an open file; `times` is NULL or leads to two times.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_futimens(file: *const File, times: *const timespec) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (file, set) = unsafe { (self::file(file)?, self::times(times)?) };
        set_attributes(&file.volume, file.file.inode(), &set)
    })
}

// The numbers of types are those of `readdir(3)`.
const _: () = assert!(
    FileType::Regular as u32 == libc::DT_REG as u32
        && FileType::Directory as u32 == libc::DT_DIR as u32
        && FileType::Symlink as u32 == libc::DT_LNK as u32
);
