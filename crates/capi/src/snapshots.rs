//! Snapshots: taking, listing, reading and deleting them, of a volume that is in use; and going back to one.
//!
//! A snapshot is read through a volume handle of its own, read-only, which quire_volume_close closes. It
//! cannot be deleted before.
//!
//! Neighbours: [`crate::volume`].

use crate::arguments::{path, put, text};
use crate::error::{count, quietly, status};
use crate::handle::{borrow, give, take};
use crate::volume::{Volume, give_out, volume};
use libc::timespec;
use quire::{Error, Result};
use std::ffi::{CString, c_char, c_int};

/// A snapshot.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Snapshot {
    /// Its name, UTF-8. Belongs to the list that it came from.
    pub name: *const c_char,
    /// When it was taken.
    pub created: timespec,
    /// How many snapshots had ever been taken of the volume, with this one.
    pub number: u32,
    /// 1 if it is being deleted, and cannot be opened any more; else 0.
    pub deleting: u8,
    /// How much of the volume has been searched for its space then.
    pub deleted_percent: u8,
    /// Zero, for later versions.
    pub spare: [u8; 10],
}

/// The snapshots of a volume, as they were when the list was made.
pub struct Snapshots {
    all: Vec<(CString, quire::SnapshotInfo)>,
}

/// The name of a snapshot, which is UTF-8.
///
/// # Safety
/// `name` is a text.
unsafe fn snapshot_name<'a>(name: *const c_char) -> Result<&'a str> {
    // SAFETY: the caller's promise.
    unsafe { text(name, "name") }?
        .to_str()
        .ok_or_else(|| Error::invalid("the name of a snapshot is no UTF-8"))
}

/// Takes a snapshot of a volume in use. Changes that begin meanwhile wait for a moment, reads go on. It has
/// what all changes made that had returned before, and is durable.
///
/// Returns: 0; -EEXIST if there is one of that name; -EBUSY while the volume is frozen; or another negative
/// error number. There is no snapshot then.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `name` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_snapshot_take(volume: *const Volume, name: *const c_char) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, name) = unsafe { (self::volume(volume)?, snapshot_name(name)?) };
        volume.take_snapshot(name).map(drop)
    })
}

/// Deletes a snapshot, and returns when its space is free. Others that use the volume go on meanwhile.
///
/// Returns: 0; -ENOENT; -EBUSY while the snapshot is open; or another negative error number: then the
/// deletion may have begun, and goes on when the volume is opened for writing again.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `name` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_snapshot_delete(volume: *const Volume, name: *const c_char) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, name) = unsafe { (self::volume(volume)?, snapshot_name(name)?) };
        volume.delete_snapshot(name)
    })
}

/// Deletes a snapshot in the background: when this returns it cannot be opened any more, and will be deleted
/// whatever happens. Its space is free later; it is listed until then.
///
/// Returns: 0; -ENOENT; -EBUSY while the snapshot is open; or another negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `name` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_snapshot_delete_later(volume: *const Volume, name: *const c_char) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, name) = unsafe { (self::volume(volume)?, snapshot_name(name)?) };
        volume.delete_snapshot_later(name)
    })
}

/// Opens a snapshot of a volume for reading, while the volume is in use. It shares the volume's cache, and
/// stays open when the volume is closed.
///
/// Returns: 0 and a handle in `*snapshot`, which the caller gives to quire_volume_close; or a negative error
/// number, and `*snapshot` is NULL: -ENOENT if there is none of that name.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `name` is a text; a pointer may be written to `snapshot`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_snapshot_open(
    volume: *const Volume,
    name: *const c_char,
    snapshot: *mut *mut Volume,
) -> c_int {
    let open = || {
        // SAFETY: the caller's promise.
        let (volume, name) = unsafe { (self::volume(volume)?, snapshot_name(name)?) };
        Ok(give(Volume::of(volume.open_snapshot(name)?)))
    };
    // SAFETY: the caller's promise.
    unsafe { give_out(snapshot, "snapshot", open) }
}

/// Rolls the volume in an image file or on a block device, which nobody has open, back to its newest
/// snapshot. What was done since the snapshot is lost; the snapshot stays.
///
/// Returns: 0; -ENOENT; -EINVAL if there are newer snapshots; -EBUSY if the volume is open or has an
/// unfinished receive; or another negative error number. Nothing has changed then.
/// Threads: any.
///
/// # Safety
/// `image` and `name` are texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_roll_back(image: *const c_char, name: *const c_char) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (image, name) = unsafe { (path(image)?, snapshot_name(name)?) };
        quire::roll_back(image, name).map(drop)
    })
}

/// Lists the snapshots of a volume, the oldest first.
///
/// Returns: 0 and a list in `*snapshots`, which the caller gives to quire_snapshots_free; or a negative error
/// number, and `*snapshots` is NULL.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; a pointer may be written to `snapshots`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_snapshots(volume: *const Volume, snapshots: *mut *mut Snapshots) -> c_int {
    let list = || {
        // SAFETY: the caller's promise.
        let volume = unsafe { self::volume(volume) }?;
        let one = |info: quire::SnapshotInfo| {
            let name = CString::new(info.name.clone());
            Ok((name.map_err(|_| Error::invalid("the name of a snapshot has a zero"))?, info))
        };
        Ok(give(Snapshots { all: volume.snapshots()?.into_iter().map(one).collect::<Result<_>>()? }))
    };
    // SAFETY: the caller's promise.
    unsafe { give_out(snapshots, "snapshots", list) }
}

/// How many snapshots a list has.
///
/// Returns: the count, or a negative error number.
/// Threads: any.
///
/// # Safety
/// `snapshots` is a list that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_snapshots_count(snapshots: *const Snapshots) -> i64 {
    // SAFETY: the caller's promise.
    count(|| Ok(unsafe { borrow(snapshots, "list of snapshots") }?.all.len() as u64))
}

/// The snapshot at a place of the list, from 0 on. Its name belongs to the list.
///
/// Returns: 0; -EINVAL behind the end.
/// Threads: any.
///
/// # Safety
/// `snapshots` is a list that has not been freed; a structure may be written to `snapshot`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_snapshots_get(
    snapshots: *const Snapshots,
    place: usize,
    snapshot: *mut Snapshot,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let all = &unsafe { borrow(snapshots, "list of snapshots") }?.all;
        let (name, info) = all
            .get(place)
            .ok_or_else(|| Error::invalid(format!("snapshot {place} of {} does not exist", all.len())))?;
        let nanos = info.created.0;
        let found = Snapshot {
            name: name.as_ptr(),
            created: timespec {
                tv_sec: nanos.div_euclid(1_000_000_000),
                tv_nsec: nanos.rem_euclid(1_000_000_000),
            },
            number: info.number,
            deleting: info.deleting.into(),
            deleted_percent: info.deleted_percent,
            spare: [0; 10],
        };
        // SAFETY: the caller's promise.
        unsafe { put(snapshot, "snapshot", || Ok(found)) }
    })
}

/// Frees a list. NULL is fine.
///
/// Threads: any; no other call uses this list then or later.
///
/// # Safety
/// `snapshots` is NULL or a list that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_snapshots_free(snapshots: *mut Snapshots) {
    // SAFETY: the caller's promise.
    quietly(|| drop(unsafe { take(snapshots) }));
}
