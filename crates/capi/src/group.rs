//! Groups of writes: to one or several files of a volume, visible at once, and after a crash there as a whole
//! or not at all.
//!
//! A group collects bytes in memory until it is committed or freed. Calls on one group exclude each other
//! under its lock; a commit takes the group out of its handle, so it waits with no lock held.
//!
//! Neighbours: [`crate::queue`] commits without holding a thread; [`crate::file`] has the open files;
//! `quire::Group` does the work.

use crate::arguments::{bytes, bytes_mut};
use crate::error::{count, quietly, status};
use crate::file::{File, file};
use crate::handle::{borrow, give, take};
use crate::volume::{Volume, give_out, volume};
use quire::{Commit, Error, Result};
use quire_base::sync::Mutex;
use quire_base::sync::time::Duration;
use std::ffi::{c_int, c_void};

/// For `quire_group_commit`: it survives a crash when the call returns.
pub const QUIRE_COMMIT_NOW: u32 = 0;
/// For `quire_group_commit`: as QUIRE_COMMIT_NOW, but the call waits for a force that others make, and makes
/// one itself after so many milliseconds.
pub const QUIRE_COMMIT_LAZY: u32 = 1;
/// For `quire_group_commit`: the call waits for nothing. It is durable with the next force that anybody
/// makes, and not without what was committed before it.
pub const QUIRE_COMMIT_ORDERED: u32 = 2;

/// A group of writes that has not been committed.
pub struct Group {
    group: Mutex<quire::Group>,
}

/// The group behind a handle.
///
/// # Safety
/// As for [`borrow`].
unsafe fn group<'a>(handle: *const Group) -> Result<&'a Mutex<quire::Group>> {
    // SAFETY: the caller's promise.
    unsafe { borrow(handle, "group") }.map(|group| &group.group)
}

/// Begins a group of writes to files of a volume. It becomes visible to readers at once when it is committed,
/// and after a crash all of it is there or nothing. Until then it is kept in memory, and only
/// quire_group_pread and quire_group_size see it. The end of the process ends it as quire_group_free does.
///
/// Returns: 0 and a handle in `*group`, which the caller gives to quire_group_commit or quire_group_free; or
/// a negative error number, and `*group` is NULL.
/// Threads: any. Calls on one group wait for each other.
///
/// # Safety
/// `volume` is an open volume; a pointer may be written to `group`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_group_begin(volume: *const Volume, group: *mut *mut Group) -> c_int {
    // SAFETY: the caller's promise.
    let begin = || Ok(give(Group { group: Mutex::new(unsafe { self::volume(volume) }?.atomic()) }));
    // SAFETY: the caller's promise.
    unsafe { give_out(group, "group", begin) }
}

/// The most bytes that a group of a volume may write, as the volume is now: its free space, counted in whole
/// blocks of 4096 bytes (whole units in files with the property `untorn`). Groups of more than 2 MiB may
/// write 512 runs of blocks.
///
/// Returns: that number, or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_group_bytes_max(volume: *const Volume) -> i64 {
    // SAFETY: the caller's promise.
    count(|| Ok(unsafe { self::volume(volume) }?.group_bytes_max()))
}

/// Adds a write of `length` bytes at `offset`, which counts for a file opened with O_APPEND, too. The bytes
/// are copied; the file's handle may be closed before the commit. The file was opened for writing.
///
/// Returns: `length`; -ENOSPC or -E2BIG if the group would pass a limit, -EXDEV for a file of
/// another volume; or another negative error number. After an error the group is as it was. Only where the
/// volume could not take what no longer fits in memory (more than 2 MiB), later writes and the commit fail.
/// Threads: any.
///
/// # Safety
/// `group` and `file` are open; `length` bytes may be read from `buffer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_group_pwrite(
    group: *const Group,
    file: *const File,
    buffer: *const c_void,
    length: usize,
    offset: u64,
) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let (group, file) = unsafe { (self::group(group)?, self::file(file)?) };
        // SAFETY: the caller's promise.
        let data = unsafe { bytes(buffer.cast(), length) }?;
        group.lock().write_at(&file.file, data, offset)?;
        Ok(length as u64)
    })
}

/// Adds a change of a file's size in bytes: what lies beyond is gone, what is gained reads as zeros.
///
/// Returns: 0 or a negative error number, as quire_group_pwrite.
/// Threads: any.
///
/// # Safety
/// `group` and `file` are open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_group_ftruncate(group: *const Group, file: *const File, size: u64) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (group, file) = unsafe { (self::group(group)?, self::file(file)?) };
        group.lock().set_len(&file.file, size)
    })
}

/// Reads what the file will hold when the group has been committed, if nobody else writes to it.
///
/// Returns: as quire_pread; -EXDEV for a file of another volume.
/// Threads: any.
///
/// # Safety
/// `group` and `file` are open; `length` bytes may be written to `buffer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_group_pread(
    group: *const Group,
    file: *const File,
    buffer: *mut c_void,
    length: usize,
    offset: u64,
) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let (group, file) = unsafe { (self::group(group)?, self::file(file)?) };
        // SAFETY: the caller's promise.
        let buffer = unsafe { bytes_mut(buffer.cast(), length) }?;
        group.lock().read_at(&file.file, buffer, offset).map(|count| count as u64)
    })
}

/// The size that the file will have when the group has been committed, if nobody else changes it.
///
/// Returns: its bytes; -EXDEV for a file of another volume; or another negative error number.
/// Threads: any.
///
/// # Safety
/// `group` and `file` are open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_group_size(group: *const Group, file: *const File) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let (group, file) = unsafe { (self::group(group)?, self::file(file)?) };
        group.lock().size(&file.file)
    })
}

/// Commits a group, and frees the handle, also on failure. `how` is QUIRE_COMMIT_NOW, QUIRE_COMMIT_LAZY or
/// QUIRE_COMMIT_ORDERED; `lazy_ms` is for QUIRE_COMMIT_LAZY, and 0 for the others.
///
/// Returns: 0, or a negative error number: then nothing has changed, unless the volume has failed or could
/// not make the group durable (-EIO): readers may see it then, and a crash leaves all of it or nothing.
/// Threads: any; no other call uses this group then or later.
///
/// # Safety
/// `group` is a group that has not been committed or freed, or NULL (-EINVAL).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_group_commit(group: *mut Group, how: u32, lazy_ms: u32) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let group = unsafe { taken(group) }?;
        group.commit(commit(how, lazy_ms)?)
    })
}

/// The group itself, whose handle ends.
///
/// # Safety
/// As for [`take`].
pub(crate) unsafe fn taken(handle: *mut Group) -> Result<quire::Group> {
    // SAFETY: the caller's promise.
    let group = unsafe { take(handle) }?.ok_or_else(|| Error::invalid("the group is NULL"))?;
    match group.into_inner() {
        Some(group) => Ok(group.group.into_inner()),
        None => Err(Error::invalid("committing a group that another call is using")),
    }
}

/// How a group is committed, as C says it.
pub(crate) fn commit(how: u32, lazy_ms: u32) -> Result<Commit> {
    let commit = match how {
        QUIRE_COMMIT_NOW => Commit::Now,
        QUIRE_COMMIT_LAZY => return Ok(Commit::Lazy(Duration::from_millis(lazy_ms.into()))),
        QUIRE_COMMIT_ORDERED => Commit::Ordered,
        other => {
            return Err(Error::invalid(format!(
                "quire_group_commit: {other} is none of QUIRE_COMMIT_NOW, _LAZY and _ORDERED"
            )));
        }
    };
    match lazy_ms {
        0 => Ok(commit),
        _ => Err(Error::invalid("quire_group_commit: milliseconds are for QUIRE_COMMIT_LAZY")),
    }
}

/// Frees a group that was not committed: it leaves no trace. NULL is fine.
///
/// Threads: any; no other call uses this group then or later.
///
/// # Safety
/// `group` is NULL or a group that has not been committed or freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_group_free(group: *mut Group) {
    // SAFETY: the caller's promise.
    quietly(|| drop(unsafe { take(group) }));
}
