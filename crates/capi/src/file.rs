//! Open files: reads, writes, durability, size and allocation.
//!
//! Flags and their values are those of `open(2)`, `fallocate(2)`, `posix_fadvise(2)` and `copy_file_range(2)`
//! on this system, so that C programs use their own headers.
//!
//! Neighbours: [`crate::queue`] has the requests that hold no thread; [`crate::attributes`] and
//! [`crate::xattr`] what else a file has.

use crate::arguments::{buffers, buffers_mut, bytes, bytes_mut, path};
use crate::error::{count, quietly, status};
use crate::handle::{borrow, give, take};
use crate::volume::{Volume, give_out, volume};
use libc::iovec;
use quire::inodes::IoFlags;
use quire::{Advice, Error, OpenOptions, Result};
use std::ffi::{c_char, c_int};

/// An open file.
pub struct File {
    pub(crate) file: quire::File,
    /// Keeps the volume open, and has what is done by inode.
    pub(crate) volume: quire::Volume,
    /// As given to `quire_open`.
    pub(crate) flags: c_int,
}

impl File {
    /// Whether its reads and writes go past the cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.flags & libc::O_DIRECT != 0
    }

    /// Whether it was opened for reading.
    pub(crate) fn reads(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_WRONLY
    }

    /// Whether it was opened for writing.
    pub(crate) fn writes(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// How one write is done.
    pub(crate) fn io_flags(&self) -> IoFlags {
        let mut flags = IoFlags::empty();
        let has = |flag: c_int| self.flags & flag == flag;
        flags.set(IoFlags::DIRECT, has(libc::O_DIRECT));
        flags.set(IoFlags::APPEND, has(libc::O_APPEND));
        flags.set(IoFlags::SYNC, has(libc::O_SYNC));
        flags.set(IoFlags::DATASYNC, has(libc::O_DSYNC));
        flags
    }
}

/// The file behind a handle.
///
/// # Safety
/// As for [`borrow`].
pub(crate) unsafe fn file<'a>(handle: *const File) -> Result<&'a File> {
    // SAFETY: the caller's promise.
    unsafe { borrow(handle, "file") }
}

/// Opens a file.
///
/// `flags` are those of open(2): one of O_RDONLY, O_WRONLY and O_RDWR, and any of O_APPEND, O_CREAT, O_EXCL,
/// O_TRUNC, O_DIRECT, O_SYNC, O_DSYNC, O_DIRECTORY; O_CLOEXEC, O_NOCTTY and O_LARGEFILE change nothing.
/// Unlike open(2) it refuses O_CREAT and O_APPEND without O_WRONLY or O_RDWR, and O_TRUNC with O_APPEND, with
/// -EINVAL. `mode` has the permission bits of a file that is created; its owner and group are 0 until
/// quire_chown. A directory may be opened with O_RDONLY, for quire_fsync and its attributes. Nothing checks
/// permissions: the program owns the volume.
///
/// Returns: 0 and a handle in `*file`, which the caller gives to quire_close; or a negative error number, and
/// `*file` is NULL.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` is a text; a pointer may be written to `file`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_open(
    volume: *const Volume,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    file: *mut *mut File,
) -> c_int {
    let open = || {
        // SAFETY: the caller's promise.
        let (volume, path) = unsafe { (self::volume(volume)?, self::path(path)?) };
        if flags & libc::O_DIRECTORY != 0 && flags & libc::O_ACCMODE != libc::O_RDONLY {
            // Before anything is cut off.
            return Err(Error::invalid("O_DIRECTORY goes with O_RDONLY"));
        }
        let file = open_options(flags, mode)?.open(volume, path)?;
        if flags & libc::O_DIRECTORY != 0 && !file.metadata().is_dir() {
            return Err(Error::new(
                quire::ErrorKind::NotDirectory,
                format!("opening {}: it is no directory", path.display()),
            ));
        }
        Ok(give(File { file, volume: volume.clone(), flags }))
    };
    // SAFETY: the caller's promise.
    unsafe { give_out(file, "file", open) }
}

fn open_options(flags: c_int, mode: u32) -> Result<OpenOptions> {
    // The kernel's O_LARGEFILE where the C library's is 0. On arm and others that bit is O_NOFOLLOW.
    let large = 0o100_000 & !libc::O_NOFOLLOW;
    let ignored = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_LARGEFILE | large;
    let known = libc::O_ACCMODE
        | libc::O_APPEND
        | libc::O_CREAT
        | libc::O_EXCL
        | libc::O_TRUNC
        | libc::O_DIRECT
        | libc::O_SYNC
        | libc::O_DSYNC
        | libc::O_DIRECTORY
        | ignored;
    if flags & !known != 0 {
        return Err(Error::invalid(format!("quire_open does not know the flags {:#o}", flags & !known)));
    }
    let has = |flag: c_int| flags & flag == flag;
    let (read, write) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => return Err(Error::invalid("a file is opened with O_RDONLY, O_WRONLY or O_RDWR")),
    };
    if !write && (has(libc::O_APPEND) || has(libc::O_TRUNC) || has(libc::O_CREAT)) {
        return Err(Error::invalid("O_APPEND, O_TRUNC and O_CREAT go with O_WRONLY or O_RDWR"));
    }
    if has(libc::O_EXCL) && !has(libc::O_CREAT) {
        return Err(Error::invalid("O_EXCL goes with O_CREAT"));
    }
    // O_SYNC has the bit of O_DSYNC.
    let sync = has(libc::O_SYNC);
    Ok(OpenOptions::new()
        .read(read)
        .write(write)
        .append(has(libc::O_APPEND))
        .create(has(libc::O_CREAT))
        .create_new(has(libc::O_CREAT | libc::O_EXCL))
        .truncate(has(libc::O_TRUNC))
        .direct(has(libc::O_DIRECT))
        .sync(sync)
        .data_sync(has(libc::O_DSYNC) && !sync)
        .mode(mode & 0o7777))
}

/// Closes a file and frees the handle. Nothing becomes durable by it. Requests of a queue that work on the
/// file go on. NULL is fine.
///
/// Threads: any; no other call uses this handle then or later.
///
/// # Safety
/// `file` is NULL or a handle that has not been closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_close(file: *mut File) {
    // SAFETY: the caller's promise.
    quietly(|| drop(unsafe { take(file) }));
}

/// Reads up to `length` bytes at `offset`. No read sees half of a write.
///
/// Returns: how many bytes were read, fewer than asked for only at the end of the file, 0 behind it; or a
/// negative error number.
/// Threads: any, at the same time on one file.
///
/// # Safety
/// `file` is an open file; `length` bytes may be written to `buffer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_pread(
    file: *const File,
    buffer: *mut std::ffi::c_void,
    length: usize,
    offset: u64,
) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let (file, buffer) = unsafe { (self::file(file)?, bytes_mut(buffer.cast(), length)?) };
        file.file.read_at(buffer, offset).map(|count| count as u64)
    })
}

/// Writes `length` bytes at `offset`; at the end if the file was opened with O_APPEND. Readers see all of it
/// or nothing.
///
/// Returns: how many bytes were written, fewer than asked for only after an error midway in a write larger
/// than 1 MiB; or a negative error number.
/// Threads: any, at the same time on one file.
///
/// # Safety
/// `file` is an open file; `length` bytes may be read from `buffer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_pwrite(
    file: *const File,
    buffer: *const std::ffi::c_void,
    length: usize,
    offset: u64,
) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let (file, buffer) = unsafe { (self::file(file)?, bytes(buffer.cast(), length)?) };
        file.file.write_at(buffer, offset).map(|count| count as u64)
    })
}

/// Reads into several buffers as one operation, at most 1024.
///
/// Returns: as quire_pread.
/// Threads: any, at the same time on one file.
///
/// # Safety
/// `file` is an open file; `count` buffers at `vector` may be written and do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_preadv(
    file: *const File,
    vector: *const iovec,
    count: usize,
    offset: u64,
) -> i64 {
    self::count(|| {
        // SAFETY: the caller's promise.
        let (file, mut buffers) = unsafe { (self::file(file)?, buffers_mut(vector, count)?) };
        file.file.read_vectored_at(&mut buffers, offset).map(|count| count as u64)
    })
}

/// Writes several buffers as one operation, at most 1024.
///
/// Returns: as quire_pwrite.
/// Threads: any, at the same time on one file.
///
/// # Safety
/// `file` is an open file; `count` buffers at `vector` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_pwritev(
    file: *const File,
    vector: *const iovec,
    count: usize,
    offset: u64,
) -> i64 {
    self::count(|| {
        // SAFETY: the caller's promise.
        let (file, buffers) = unsafe { (self::file(file)?, buffers(vector, count)?) };
        file.file.write_vectored_at(&buffers, offset).map(|count| count as u64)
    })
}

/// Appends, however the file was opened for writing. Appends of several threads never mix.
///
/// Returns: the offset that the data got; or a negative error number: then a part of more than 1 MiB of data
/// may be at the end of the file. quire_pwrite in a file opened with O_APPEND gives the count instead.
/// Threads: any, at the same time on one file.
///
/// # Safety
/// `file` is an open file; `length` bytes may be read from `buffer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_append(
    file: *const File,
    buffer: *const std::ffi::c_void,
    length: usize,
) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let (file, buffer) = unsafe { (self::file(file)?, bytes(buffer.cast(), length)?) };
        file.file.append(buffer)
    })
}

/// Appends several buffers as one operation, at most 1024.
///
/// Returns: as quire_append.
/// Threads: any, at the same time on one file.
///
/// # Safety
/// `file` is an open file; `count` buffers at `vector` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_appendv(file: *const File, vector: *const iovec, count: usize) -> i64 {
    self::count(|| {
        // SAFETY: the caller's promise.
        let (file, buffers) = unsafe { (self::file(file)?, buffers(vector, count)?) };
        file.file.append_vectored(&buffers)
    })
}

/// Makes durable what had been written when it was called, with size and attributes, and the name by which
/// the file was made or last renamed.
///
/// Returns: 0 or a negative error number: then it is not durable, and the next call says so again.
/// Threads: any, at the same time on one file; threads that wait share the device's flushes.
///
/// # Safety
/// `file` is an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_fsync(file: *const File) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { self::file(file) }?.file.sync_all())
}

/// As quire_fsync, but of the attributes only those that reading the data back needs.
///
/// Returns: as quire_fsync.
/// Threads: as quire_fsync.
///
/// # Safety
/// `file` is an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_fdatasync(file: *const File) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { self::file(file) }?.file.sync_data())
}

/// Sets the size in bytes; what is gained reads as zeros.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `file` is an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_ftruncate(file: *const File, size: u64) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { self::file(file) }?.file.set_len(size))
}

/// Changes the allocation of a range. `mode` is that of fallocate(2): 0 or FALLOC_FL_KEEP_SIZE reserve
/// blocks, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE gives them back, FALLOC_FL_ZERO_RANGE makes zeros (the
/// file grows), FALLOC_FL_COLLAPSE_RANGE and FALLOC_FL_INSERT_RANGE move what follows.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `file` is an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_fallocate(file: *const File, mode: c_int, offset: u64, length: u64) -> c_int {
    const PUNCH: c_int = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    status(|| {
        // SAFETY: the caller's promise.
        let file = &unsafe { self::file(file) }?.file;
        match mode {
            0 => file.allocate(offset, length),
            libc::FALLOC_FL_KEEP_SIZE => file.allocate_keep_size(offset, length),
            PUNCH => file.punch_hole(offset, length),
            libc::FALLOC_FL_ZERO_RANGE => file.zero_range(offset, length),
            libc::FALLOC_FL_COLLAPSE_RANGE => file.collapse_range(offset, length),
            libc::FALLOC_FL_INSERT_RANGE => file.insert_range(offset, length),
            _ => Err(Error::new(
                quire::ErrorKind::Unsupported,
                format!("quire_fallocate has no mode {mode:#x}"),
            )),
        }
    })
}

/// The first byte of data at or behind `offset`.
///
/// Returns: its offset; -ENXIO if there is none; or another negative error number.
/// Threads: any.
///
/// # Safety
/// `file` is an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_seek_data(file: *const File, offset: u64) -> i64 {
    // SAFETY: the caller's promise.
    count(|| unsafe { self::file(file) }?.file.seek_data(offset)?.ok_or_else(|| behind(offset)))
}

/// The first byte of a hole at or behind `offset`; the end of the file counts as one.
///
/// Returns: its offset; -ENXIO behind the end of the file; or another negative error number.
/// Threads: any.
///
/// # Safety
/// `file` is an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_seek_hole(file: *const File, offset: u64) -> i64 {
    // SAFETY: the caller's promise.
    count(|| unsafe { self::file(file) }?.file.seek_hole(offset)?.ok_or_else(|| behind(offset)))
}

fn behind(offset: u64) -> Error {
    Error::new(quire::ErrorKind::NoData, format!("there is nothing of the kind at or behind offset {offset}"))
}

/// Copies up to `length` bytes from `offset` of a file to `to_offset` of another one or of the same, on one
/// volume. The ranges must not overlap.
///
/// Returns: how many bytes were copied, fewer at the end of the file; or a negative error number.
/// Threads: any.
///
/// # Safety
/// `file` and `to` are open files.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_copy_range(
    file: *const File,
    offset: u64,
    to: *const File,
    to_offset: u64,
    length: u64,
) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let (file, to) = unsafe { (self::file(file)?, self::file(to)?) };
        file.file.copy_range_to(offset, &to.file, to_offset, length)
    })
}

/// Takes advice about a range of a file: POSIX_FADV_NORMAL, _SEQUENTIAL, _RANDOM, _WILLNEED, _DONTNEED. A
/// length of 0 means to the end. Advice changes speed, never contents.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `file` is an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_fadvise(file: *const File, offset: u64, length: u64, advice: c_int) -> c_int {
    status(|| {
        let advice = match advice {
            libc::POSIX_FADV_NORMAL => Advice::Normal,
            libc::POSIX_FADV_SEQUENTIAL => Advice::Sequential,
            libc::POSIX_FADV_RANDOM => Advice::Random,
            libc::POSIX_FADV_WILLNEED => Advice::WillNeed,
            libc::POSIX_FADV_DONTNEED => Advice::DontNeed,
            _ => return Err(Error::invalid(format!("quire_fadvise has no advice {advice}"))),
        };
        // SAFETY: the caller's promise.
        unsafe { self::file(file) }?.file.advise(offset, length, advice)
    })
}

/// Another handle of the same file, opened as this one was.
///
/// Returns: 0 and a handle in `*copy`, which the caller gives to quire_close; or a negative error number, and
/// `*copy` is NULL.
/// Threads: any.
///
/// # Safety
/// `file` is an open file; a pointer may be written to `copy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_dup(file: *const File, copy: *mut *mut File) -> c_int {
    let open = || {
        // SAFETY: the caller's promise.
        let File { file, volume, flags } = unsafe { self::file(file) }?;
        Ok(give(File { file: file.try_clone()?, volume: volume.clone(), flags: *flags }))
    };
    // SAFETY: the caller's promise.
    unsafe { give_out(copy, "file", open) }
}
