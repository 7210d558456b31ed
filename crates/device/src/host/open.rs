//! Opening and creating volumes on the host, and opening those that a server exports.
//!
//! A volume opened for writing gets the `uring` backend; where the host refuses io_uring or direct I/O it
//! gets `file`, with one line in the log. A volume opened read-only gets `file`.

use super::file::FileBackend;
use super::mode::OpenMode;
use super::nbd::{self, NbdAddress};
use super::target::{Medium, Target};
use super::uring::UringBackend;
use crate::backend::Backend;
use quire_base::process::AtWork;
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result};
use std::path::Path;
use std::sync::Arc;

/// Opens and locks the image file or block device at `path`, or opens the export that it names
/// ([`NbdAddress`]), whose lock is a mark on it (`owner`). Do this after forking: a backend has a thread.
///
/// Errors: `NotFound`, `AccessDenied` and `ReadOnly` as the host says; `Busy` if it is open elsewhere (or,
/// for a block device, in use by the kernel; for an export, if it may be); `IsDirectory`; `NotAVolume` for
/// other kinds of file; `NotPermitted` in a child of a process that had a volume open.
pub fn open_image(path: &Path, mode: OpenMode) -> Result<Arc<dyn Backend>> {
    AtWork::check()?;
    if let Some(address) = NbdAddress::of(path) {
        return nbd::open(address?, mode);
    }
    let target = Target::open(path, mode)?;
    match mode {
        OpenMode::ReadWrite => Ok(best_backend(target)),
        OpenMode::ReadOnly | OpenMode::Look => Ok(Arc::new(FileBackend::new(target))),
    }
}

/// Makes an image file of `size` bytes (rounded down to whole blocks), sparse and all zero, locked and open.
/// An existing block device or an export is only opened; it must be at least as large.
///
/// An existing file that is not empty is replaced if `force` is set. Errors: as for [`open_image`]; `Exists`
/// without `force`; `Invalid` for a size of no block or larger than the block device.
pub fn create_image(path: &Path, size: u64, force: bool) -> Result<Arc<dyn Backend>> {
    AtWork::check()?;
    let blocks = size / BLOCK_SIZE as u64;
    let name = path.display();
    if blocks == 0 {
        return Err(Error::invalid(format!("creating {name}: {size} bytes is less than one block")));
    }
    let too_small =
        |bytes: u64| Err(Error::invalid(format!("{name} has {bytes} bytes, less than the {size} asked for")));
    if NbdAddress::is_one(path) {
        let backend = open_image(path, OpenMode::ReadWrite)?;
        return match backend.blocks() {
            has if has < blocks => too_small(has * BLOCK_SIZE as u64),
            _ => Ok(backend),
        };
    }
    let is_new = !path.try_exists().unwrap_or(true);
    let target = Target::open_or_create(path)?;
    match target.medium() {
        Medium::BlockDevice if target.blocks() < blocks => {
            return too_small(target.blocks() * BLOCK_SIZE as u64);
        }
        Medium::BlockDevice => {}
        Medium::Image if !target.is_empty_file()? && !force => {
            return Err(Error::new(ErrorKind::Exists, format!("{name} exists and is not empty")));
        }
        Medium::Image => {
            if let Err(error) = target.reset(blocks) {
                if is_new {
                    let _ = std::fs::remove_file(path);
                }
                return Err(error);
            }
            sync_parent(path)?;
        }
    }
    Ok(best_backend(target))
}

/// Makes the file's name durable.
fn sync_parent(path: &Path) -> Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match std::fs::File::open(parent).and_then(|directory| directory.sync_all()) {
        // A directory that we may write but not read, or a host that does not sync directories.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EINVAL | libc::EBADF)) => Ok(()),
        outcome => outcome.map_err(|e| Error::os(format_args!("syncing {}", parent.display()), &e)),
    }
}

fn best_backend(target: Target) -> Arc<dyn Backend> {
    match UringBackend::new(target) {
        Ok(backend) => Arc::new(backend),
        Err((target, reason)) => {
            tracing::warn!(volume = target.name(), %reason, "falling back to ordinary file I/O");
            Arc::new(FileBackend::new(target))
        }
    }
}
