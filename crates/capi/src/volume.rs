//! Volumes: making, opening, closing, their space, and the numbers that a running one counts.
//!
//! Neighbours: [`crate::file`] and [`crate::names`] work in an open volume.

use crate::arguments::{Sized32, options, path, put, text};
use crate::error::{count, quietly, status};
use crate::handle::{borrow, give, take};
use quire::{AccessTimes, Error, ErrorKind, Result};
use std::ffi::{CString, c_char, c_int};

/// The version of the binary interface that this header describes. Within one version functions and fields
/// are added, and none changes or goes.
pub const QUIRE_ABI: u32 = 1;

/// For `quire_volume_options.flags`: take no changes; a journal is replayed in memory only.
pub const QUIRE_READ_ONLY: u32 = 1;
/// For `quire_volume_options.flags`: tell the device about freed blocks.
pub const QUIRE_DISCARD: u32 = 2;
/// For `quire_volume_options.flags`: keep changes of times alone in memory until something else is written.
pub const QUIRE_LAZY_TIMES: u32 = 4;
/// For `quire_volume_options.flags`: do not write data back before a rename over an existing file.
pub const QUIRE_NO_AUTO_DA_ALLOC: u32 = 8;

/// For `quire_volume_options.access_times`: when older than the last change, or than a day (the default).
pub const QUIRE_ACCESS_TIMES_RELATIVE: u32 = 0;
/// For `quire_volume_options.access_times`: never.
pub const QUIRE_ACCESS_TIMES_NEVER: u32 = 1;
/// For `quire_volume_options.access_times`: at every read.
pub const QUIRE_ACCESS_TIMES_STRICT: u32 = 2;

/// For `quire_format_options.flags`: overwrite what is there, whatever it is.
pub const QUIRE_FORCE: u32 = 1;

/// For `quire_metric.kind`: a number that only grows while the volume is open.
pub const QUIRE_COUNTER: u32 = 0;
/// For `quire_metric.kind`: how something is now.
pub const QUIRE_GAUGE: u32 = 1;

/// An open volume.
pub struct Volume {
    pub(crate) volume: quire::Volume,
}

/// How a volume is made. Set `size` to the structure's size; zero in any other field is the default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FormatOptions {
    /// sizeof(struct quire_format_options).
    pub size: u32,
    /// QUIRE_FORCE, or 0.
    pub flags: u32,
    /// Bytes of the volume; 0: the whole device or existing file. A file that does not exist needs them.
    pub bytes: u64,
    /// Bytes of the journal; 0: chosen by the size of the volume.
    pub journal_bytes: u64,
    /// A name for people, at most 64 bytes of UTF-8, or NULL.
    pub label: *const c_char,
}

// SAFETY: words, the first is the size; a pointer may have any value until it is used.
unsafe impl Sized32 for FormatOptions {
    const ZERO: FormatOptions =
        FormatOptions { size: 0, flags: 0, bytes: 0, journal_bytes: 0, label: std::ptr::null() };
}

/// How a volume is opened. Set `size` to the structure's size; zero in any other field is the default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct VolumeOptions {
    /// sizeof(struct quire_volume_options).
    pub size: u32,
    /// QUIRE_READ_ONLY, QUIRE_DISCARD, QUIRE_LAZY_TIMES, QUIRE_NO_AUTO_DA_ALLOC.
    pub flags: u32,
    /// Limit of the page cache; 0: a quarter of the machine's memory or of the lowest limit of the process's
    /// control groups, whichever is less. The pages are the process's own.
    pub cache_bytes: u64,
    /// Limit of the cache of metadata; 0: an eighth of the page cache's, at least 64 MiB (or as much as a
    /// smaller page cache has by default), at most 1 GiB.
    pub node_cache_bytes: u64,
    /// Seconds after which changes become durable without fsync; 0: 5.
    pub commit_seconds: u32,
    /// QUIRE_ACCESS_TIMES_RELATIVE, _NEVER or _STRICT.
    pub access_times: u32,
}

// SAFETY: words, the first is the size.
unsafe impl Sized32 for VolumeOptions {
    const ZERO: VolumeOptions = VolumeOptions {
        size: 0,
        flags: 0,
        cache_bytes: 0,
        node_cache_bytes: 0,
        commit_seconds: 0,
        access_times: 0,
    };
}

/// What a volume is.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct VolumeInfo {
    /// Its identity (RFC 9562).
    pub uuid: [u8; 16],
    /// The name for people, ended by a zero byte.
    pub label: [u8; 72],
    /// Major version of the format.
    pub version_major: u32,
    /// Minor version of the format.
    pub version_minor: u32,
    /// Bytes of a block.
    pub block_size: u32,
    /// Times it was opened for writing.
    pub mount_count: u32,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Blocks of the journal.
    pub journal_blocks: u64,
    /// Number of the newest checkpoint.
    pub checkpoint: u64,
    /// 1 if it takes no changes.
    pub read_only: u32,
    /// 1 if it has been shut down by an error: reads go on, every change and every fsync fails.
    pub failed: u32,
    /// Zeros, for later versions.
    pub spare: [u64; 8],
}

/// The space of a volume.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Space {
    /// Data blocks of the volume.
    pub blocks: u64,
    /// Free ones.
    pub free: u64,
    /// Those that can be promised now.
    pub available: u64,
    /// Inodes in use and inodes that would fit.
    pub inodes: u64,
    /// Inodes that would still fit.
    pub free_inodes: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Bytes of the longest name.
    pub name_max: u32,
    /// Zeros, for later versions.
    pub spare: [u64; 4],
}

/// One number that a running volume counts.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Metric {
    /// Its name, with the unit at the end. Belongs to the list that it came from.
    pub name: *const c_char,
    /// Its value.
    pub value: u64,
    /// QUIRE_COUNTER or QUIRE_GAUGE.
    pub kind: u32,
    /// Zero, for later versions.
    pub spare: u32,
}

/// The numbers of a volume, as they were when the list was made.
pub struct Metrics {
    numbers: Vec<(CString, u64, u32)>,
}

impl Volume {
    /// What a handle of a volume points to.
    pub(crate) fn of(volume: quire::Volume) -> Volume {
        Volume { volume }
    }

    /// The volume, for the other modules.
    pub(crate) fn get(&self) -> &quire::Volume {
        &self.volume
    }
}

/// The volume behind a handle.
///
/// # Safety
/// As for [`borrow`].
pub(crate) unsafe fn volume<'a>(handle: *const Volume) -> Result<&'a quire::Volume> {
    // SAFETY: the caller's promise.
    unsafe { borrow(handle, "volume") }.map(Volume::get)
}

/// An error if flags are given that are not known.
pub(crate) fn check_flags(given: u32, known: u32, what: &str) -> Result<()> {
    match given & !known {
        0 => Ok(()),
        unknown => Err(Error::invalid(format!("{what}: this library does not know the flags {unknown:#x}"))),
    }
}

/// The version of the library, as "0.1.0".
///
/// Returns: a text that is valid for ever.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn quire_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The version of the binary interface of the library that is loaded: QUIRE_ABI of its own header.
///
/// Returns: that number.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn quire_abi() -> u32 {
    QUIRE_ABI
}

/// Makes a volume in an image file or on a block device. Refuses to overwrite a file system unless forced;
/// creates the file, with mode 0600, if there is none and a size is given. `options` may be NULL.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `image` is a text; `options` is NULL or leads to options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_format(image: *const c_char, options: *const FormatOptions) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (image, given) = unsafe { (path(image)?, self::options(options, "format options")?) };
        check_flags(given.flags, QUIRE_FORCE, "quire_format")?;
        let mut format = quire::FormatOptions::new().force(given.flags & QUIRE_FORCE != 0);
        if given.bytes > 0 {
            format = format.size(given.bytes);
        }
        if given.journal_bytes > 0 {
            format = format.journal_bytes(given.journal_bytes);
        }
        if !given.label.is_null() {
            // SAFETY: the caller's promise.
            let label = unsafe { text(given.label, "label") }?;
            let label = label.to_str().ok_or_else(|| Error::invalid("the label is not UTF-8"))?;
            format = format.label(label);
        }
        format.format(image).map(drop)
    })
}

/// Gives a volume that nobody has open a journal of so many bytes: more than it has, at most a quarter of the
/// volume and 4 GiB. It needs as much free space in one piece (-ENOSPC). After a crash the volume has the old
/// journal or the new one.
///
/// Returns: 0 or a negative error number; then nothing has changed.
/// Threads: any.
///
/// # Safety
/// `image` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_resize_journal(image: *const c_char, bytes: u64) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let image = unsafe { path(image) }?;
        quire::ResizeOptions::new().journal_bytes(bytes).resize(image).map(drop)
    })
}

/// Makes a volume that nobody has open larger: `bytes` long, or as large as the device or file if that is 0.
/// An image file that is smaller grows, too. After a crash the volume has its old size or the new one.
///
/// Returns: 0 or a negative error number; then nothing has changed.
/// Threads: any.
///
/// # Safety
/// `image` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_resize(image: *const c_char, bytes: u64) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let image = unsafe { path(image) }?;
        let options = quire::ResizeOptions::new();
        let options = if bytes > 0 { options.size(bytes) } else { options.whole() };
        options.resize(image).map(drop)
    })
}

/// Gives a volume that nobody has open another name for people, at most 64 bytes of UTF-8.
///
/// Returns: 0 or a negative error number; then nothing has changed.
/// Threads: any.
///
/// # Safety
/// `image` and `label` are texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_set_label(image: *const c_char, label: *const c_char) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (image, label) = unsafe { (path(image)?, text(label, "label")?) };
        let label = label.to_str().ok_or_else(|| Error::invalid("the label is not UTF-8"))?;
        quire::set_label(image, label).map(drop)
    })
}

/// Opens the volume in an image file or on a block device. One process at a time has it open for writing
/// (-EBUSY); a child that `fork` makes cannot use it (-EPERM). `options` may be NULL.
///
/// Returns: 0 and a handle in `*volume`, which the caller gives to quire_volume_close; or a negative error
/// number, and `*volume` is NULL.
/// Threads: any.
///
/// # Safety
/// `image` is a text; `options` is NULL or leads to options; a pointer may be written to `volume`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_volume_open(
    image: *const c_char,
    options: *const VolumeOptions,
    volume: *mut *mut Volume,
) -> c_int {
    let opened = || {
        // SAFETY: the caller's promise.
        let (image, given) = unsafe { (path(image)?, self::options(options, "volume options")?) };
        let volume = volume_options(&given)?.open(image)?;
        Ok(give(Volume { volume }))
    };
    // SAFETY: the caller's promise.
    unsafe { give_out(volume, "volume", opened) }
}

/// Puts a new handle into `place`, NULL on failure.
///
/// # Safety
/// `place` is NULL, or a pointer may be written there.
pub(crate) unsafe fn give_out<T>(
    place: *mut *mut T,
    what: &str,
    make: impl FnOnce() -> Result<*mut T>,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        unsafe {
            put(place, what, || Ok(std::ptr::null_mut()))?;
            put(place, what, make)
        }
    })
}

fn volume_options(given: &VolumeOptions) -> Result<quire::VolumeOptions> {
    let known = QUIRE_READ_ONLY | QUIRE_DISCARD | QUIRE_LAZY_TIMES | QUIRE_NO_AUTO_DA_ALLOC;
    check_flags(given.flags, known, "quire_volume_open")?;
    let has = |flag: u32| given.flags & flag != 0;
    let mut options = quire::VolumeOptions::new()
        .read_only(has(QUIRE_READ_ONLY))
        .discard(has(QUIRE_DISCARD))
        .lazy_times(has(QUIRE_LAZY_TIMES))
        .auto_da_alloc(!has(QUIRE_NO_AUTO_DA_ALLOC))
        .access_times(match given.access_times {
            QUIRE_ACCESS_TIMES_RELATIVE => AccessTimes::Relative,
            QUIRE_ACCESS_TIMES_NEVER => AccessTimes::Never,
            QUIRE_ACCESS_TIMES_STRICT => AccessTimes::Strict,
            other => return Err(Error::invalid(format!("{other} is no choice of access times"))),
        });
    if given.cache_bytes > 0 {
        options = options.cache_bytes(given.cache_bytes);
    }
    if given.node_cache_bytes > 0 {
        options = options.node_cache_bytes(given.node_cache_bytes);
    }
    if given.commit_seconds > 0 {
        options = options.commit_seconds(given.commit_seconds);
    }
    Ok(options)
}

/// Closes a volume: writes everything back, marks it clean, and frees the handle, also on failure. Handles of
/// its files, groups and leases stay valid and must still be closed; changes through them fail with -EIO. The
/// image stays locked (-EBUSY) until the last of them is closed and the last completion of a request on them
/// has been reaped.
///
/// Returns: 0, or a negative error number: then not everything is durable. 0 for NULL.
/// Threads: any; no other call uses this handle then or later.
///
/// # Safety
/// `volume` is NULL or a handle that has not been closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_volume_close(volume: *mut Volume) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        match unsafe { take(volume) }? {
            Some(volume) => volume.get().clone().close(),
            None => Ok(()),
        }
    })
}

/// Makes everything in the volume durable (syncfs).
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_volume_sync(volume: *const Volume) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { self::volume(volume) }?.sync())
}

/// Makes the volume larger while it is in use: `bytes` long, or as large as the device or file has become if
/// that is 0. An image file that is smaller grows, too. After a crash the volume has its old size or the new
/// one.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_volume_grow(volume: *const Volume, bytes: u64) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let volume = unsafe { self::volume(volume) }?;
        if bytes > 0 { volume.grow(bytes) } else { volume.grow_whole() }.map(drop)
    })
}

/// Discards the free space between two offsets of the volume, in bytes; 0 and UINT64_MAX are all of it. Space
/// is free when its freeing is durable, so quire_volume_sync before includes all.
///
/// Returns: the number of bytes that were discarded, or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_volume_trim(volume: *const Volume, start: u64, end: u64) -> i64 {
    // SAFETY: the caller's promise.
    count(|| unsafe { self::volume(volume) }?.trim(start..end))
}

/// What the volume is, and whether an error has shut it down; quire_error_message has that error's text then.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; a structure may be written to `info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_volume_info(volume: *const Volume, info: *mut VolumeInfo) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let volume = unsafe { self::volume(volume) }?;
        let failure = volume.failure();
        // SAFETY: the caller's promise.
        unsafe { put(info, "info", || Ok(info_of(volume, failure.is_some()))) }?;
        if let Some(failure) = failure {
            crate::error::remember(&failure.to_string());
        }
        Ok(())
    })
}

fn info_of(volume: &quire::Volume, failed: bool) -> VolumeInfo {
    let info = volume.info();
    let mut label = [0; 72];
    let bytes = &info.label.as_bytes()[..info.label.len().min(label.len() - 1)];
    label[..bytes.len()].copy_from_slice(bytes);
    VolumeInfo {
        uuid: info.uuid,
        label,
        version_major: info.version.0,
        version_minor: info.version.1,
        block_size: info.block_size,
        mount_count: info.mount_count,
        blocks: info.blocks,
        journal_blocks: info.journal_blocks,
        checkpoint: info.checkpoint,
        read_only: volume.is_read_only().into(),
        failed: failed.into(),
        spare: [0; 8],
    }
}

/// The space of the volume (statfs).
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; a structure may be written to `space`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_volume_space(volume: *const Volume, space: *mut Space) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let now = unsafe { self::volume(volume) }?.statfs();
        let found = Space {
            blocks: now.blocks,
            free: now.free,
            available: now.available,
            inodes: now.inodes,
            free_inodes: now.free_inodes,
            block_size: now.block_size,
            name_max: now.name_max,
            spare: [0; 4],
        };
        // SAFETY: the caller's promise.
        unsafe { put(space, "space", || Ok(found)) }
    })
}

/// Changes the limit of the page cache; what is over it leaves soon.
///
/// Returns: 0; -EINVAL for a limit that the cache could not work in, and it stays as it was.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_volume_set_cache_bytes(volume: *const Volume, bytes: u64) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { self::volume(volume) }?.set_cache_bytes(bytes))
}

/// Reads the numbers that the volume counts: cache, journal, tree, space, device.
///
/// Returns: 0 and a list in `*metrics`, which the caller gives to quire_metrics_free; or a negative error
/// number, and `*metrics` is NULL.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; a pointer may be written to `metrics`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_volume_metrics(volume: *const Volume, metrics: *mut *mut Metrics) -> c_int {
    let read = || {
        // SAFETY: the caller's promise.
        let volume = unsafe { self::volume(volume) }?;
        let one = |metric: quire::Metric| {
            let kind = match metric.kind {
                quire::MetricKind::Counter => QUIRE_COUNTER,
                quire::MetricKind::Gauge => QUIRE_GAUGE,
            };
            let name = CString::new(metric.name).map_err(|_| Error::invalid("a metric's name has a zero"));
            Ok((name?, metric.value, kind))
        };
        Ok(give(Metrics { numbers: volume.metrics().into_iter().map(one).collect::<Result<_>>()? }))
    };
    // SAFETY: the caller's promise.
    unsafe { give_out(metrics, "metrics", read) }
}

/// How many numbers a list has.
///
/// Returns: the count, or a negative error number.
/// Threads: any.
///
/// # Safety
/// `metrics` is a list that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_metrics_count(metrics: *const Metrics) -> i64 {
    // SAFETY: the caller's promise.
    count(|| Ok(unsafe { borrow(metrics, "list of metrics") }?.numbers.len() as u64))
}

/// The number at a place of the list, from 0 on. Its name belongs to the list.
///
/// Returns: 0; -EINVAL behind the end.
/// Threads: any.
///
/// # Safety
/// `metrics` is a list that has not been freed; a structure may be written to `metric`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_metrics_get(
    metrics: *const Metrics,
    place: usize,
    metric: *mut Metric,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let numbers = &unsafe { borrow(metrics, "list of metrics") }?.numbers;
        let (name, value, kind) = numbers
            .get(place)
            .ok_or_else(|| Error::invalid(format!("metric {place} of {} does not exist", numbers.len())))?;
        let found = Metric { name: name.as_ptr(), value: *value, kind: *kind, spare: 0 };
        // SAFETY: the caller's promise.
        unsafe { put(metric, "metric", || Ok(found)) }
    })
}

/// The number of a name.
///
/// Returns: 0; -ENOENT if the list has no such name.
/// Threads: any.
///
/// # Safety
/// `metrics` is a list that has not been freed; `name` is a text; a number may be written to `value`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_metrics_find(
    metrics: *const Metrics,
    name: *const c_char,
    value: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (list, name) = unsafe { (borrow(metrics, "list of metrics")?, text(name, "name")?) };
        let found = list.numbers.iter().find(|(it, ..)| it.as_bytes() == name.as_encoded_bytes());
        let found = found.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("a volume has no metric {}", name.display()))
        })?;
        // SAFETY: the caller's promise.
        unsafe { put(value, "value", || Ok(found.1)) }
    })
}

/// Frees a list. NULL is fine.
///
/// Threads: any; no other call uses this list then or later.
///
/// # Safety
/// `metrics` is NULL or a list that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_metrics_free(metrics: *mut Metrics) {
    // SAFETY: the caller's promise.
    quietly(|| drop(unsafe { take(metrics) }));
}
