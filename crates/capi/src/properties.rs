//! Properties: what a program asks of a file or directory besides what it writes (docs/properties.md).
//!
//! Neighbours: [`crate::xattr`] has the same properties as attributes with the names `user.quire.*`, one at a
//! time.

use crate::arguments::{check_spare, path, put};
use crate::error::status;
use crate::file::{File, file};
use crate::volume::{Volume, check_flags, volume};
use quire::{Error, Properties, Result, Unit};
use std::ffi::{c_char, c_int};

/// For `quire_properties.flags`: what was read and written does not stay in the cache (`cache=drop`).
pub const QUIRE_CACHE_DROP: u32 = 1;

/// Properties of a file or directory.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FileProperties {
    /// The property `untorn`: bytes of the aligned units that a crash must not leave in part, a power of two
    /// from 4096 to 1 MiB; 0: none.
    pub untorn_bytes: u32,
    /// QUIRE_CACHE_DROP, or 0.
    pub flags: u32,
    /// For properties of later versions: as quire_get_properties gave them, or zeros.
    pub spare: [u64; 3],
}

impl From<Properties> for FileProperties {
    fn from(properties: Properties) -> FileProperties {
        FileProperties {
            untorn_bytes: properties.untorn.map_or(0, |unit| unit.bytes() as u32),
            flags: if properties.cache_drop { QUIRE_CACHE_DROP } else { 0 },
            spare: [0; 3],
        }
    }
}

/// The properties that C gives.
///
/// # Safety
/// `given` is NULL or leads to properties.
unsafe fn properties(given: *const FileProperties) -> Result<Properties> {
    // SAFETY: the caller's promise.
    let given = unsafe { given.as_ref() }.ok_or_else(|| Error::invalid("the properties are NULL"))?;
    check_flags(given.flags, QUIRE_CACHE_DROP, "setting properties")?;
    check_spare(&given.spare, "properties")?;
    let untorn = match given.untorn_bytes {
        0 => None,
        bytes => Some(Unit::from_bytes(bytes.into())?),
    };
    Ok(Properties { untorn, cache_drop: given.flags & QUIRE_CACHE_DROP != 0 })
}

/// Reads the properties of the file or directory that a path leads to.
///
/// Returns: 0 or a negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` is a text; a structure may be written to `properties`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_get_properties(
    volume: *const Volume,
    path: *const c_char,
    properties: *mut FileProperties,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path) = unsafe { (self::volume(volume)?, self::path(path)?) };
        // SAFETY: the caller's promise.
        unsafe { put(properties, "properties", || Ok(volume.properties(path)?.into())) }
    })
}

/// As quire_get_properties, of an open file.
///
/// Returns: as quire_get_properties.
/// Threads: any.
///
/// # Safety
/// `file` is an open file; a structure may be written to `properties`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_fget_properties(file: *const File, properties: *mut FileProperties) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let file = unsafe { self::file(file) }?;
        // SAFETY: the caller's promise.
        unsafe { put(properties, "properties", || Ok(file.file.properties().into())) }
    })
}

/// Gives the file or directory that a path leads to other properties, all of them: begin with those that
/// quire_get_properties gives. Files and directories that are created in a directory get its properties;
/// those that are there keep their own. Where a file's `untorn_bytes` change, the call waits for its readers
/// and writers, and what was written before is durable when it returns, as is the change.
///
/// Returns: 0; -EINVAL for a unit that is no power of two from 4096 to 1 MiB or is too large for the volume's
/// journal, and for what is neither file nor directory; or another negative error number.
/// Threads: any.
///
/// # Safety
/// `volume` is an open volume; `path` is a text; `properties` leads to properties.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_set_properties(
    volume: *const Volume,
    path: *const c_char,
    properties: *const FileProperties,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path) = unsafe { (self::volume(volume)?, self::path(path)?) };
        // SAFETY: the caller's promise.
        volume.set_properties(path, unsafe { self::properties(properties) }?)
    })
}

/// As quire_set_properties, of an open file.
///
/// Returns: as quire_set_properties.
/// Threads: any.
///
/// # Safety
/// `file` is an open file; `properties` leads to properties.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_fset_properties(
    file: *const File,
    properties: *const FileProperties,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (file, properties) = unsafe { (self::file(file)?, self::properties(properties)?) };
        file.file.set_properties(properties)
    })
}
