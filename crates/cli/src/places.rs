//! Which volume, which mount and which server a path stands for.
//!
//! Commands take a mount point, an image or a device where either makes sense.
//!
//! Neighbours: [`crate::image`] finds volumes by their paths, [`quire_fuse::mount`] reads the mount table.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use quire_base::Result;
use quire_fuse::{MountEntry, mount as mounts};

use crate::exit::{Failure, Outcome};
use crate::image;

/// The Quire mount at `dir`, which must be there.
pub fn mounted(dir: &Path) -> Outcome<MountEntry> {
    let dir = mounts::resolve(dir)?;
    mounts::mounted_at(&dir)?
        .filter(MountEntry::is_quire)
        .ok_or_else(|| Failure::new(37, format!("no Quire volume is mounted at {}", dir.display())))
}

/// Where a volume is mounted that was named by its mount point or by its image or device.
pub fn mount_of(volume: &Path) -> Outcome<Option<PathBuf>> {
    if let Ok(entry) = mounted(volume) {
        return Ok(Some(entry.dir));
    }
    Ok(mounted_on(&image::find(volume)?)?)
}

/// Where a volume is mounted. The mount table may show another name for it (`fsname`); then its server's
/// command line tells.
pub fn mounted_on(volume: &Path) -> Result<Option<PathBuf>> {
    let dir = server_of(volume, None).and_then(|process| mount_point_of(&process));
    let is_it = |entry: &MountEntry| entry.source == volume || Some(&entry.dir) == dir.as_ref();
    let found = mounts::mounts()?.into_iter().find(|entry| entry.is_quire() && is_it(entry));
    Ok(found.map(|entry| entry.dir))
}

/// The path of a volume; a mount point is none, but is easily given for one.
pub fn unmounted(volume: &Path) -> Outcome<PathBuf> {
    let volume = image::find(volume)?;
    if volume.is_dir() {
        return Err(Failure::new(
            37,
            format!(
                "{} is a directory: give the image file or block device, while it is not mounted",
                volume.display()
            ),
        ));
    }
    Ok(volume)
}

/// The directory in `/proc` of the background server, not this process, that has `operand` (a volume or a
/// mount point, absolute) on its command line.
pub fn server_of(operand: &Path, owner: Option<u32>) -> Option<PathBuf> {
    std::fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path()).find(|process| {
        let number = process.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
        if number.is_none_or(|number| number == std::process::id()) || !is_trusted(process, owner) {
            return false;
        }
        let Ok(line) = std::fs::read(process.join("cmdline")) else { return false };
        let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        words.get(1) == Some(&b"mount".as_slice())
            && words.get(2) == Some(&b"--report".as_slice())
            && words.contains(&operand.as_os_str().as_bytes())
    })
}

/// Whether a process is root's, this user's or the owner's: any other may have anything on its command line.
fn is_trusted(process: &Path, owner: Option<u32>) -> bool {
    let user = rustix::process::geteuid().as_raw();
    std::fs::metadata(process).is_ok_and(|found| [Some(0), Some(user), owner].contains(&Some(found.uid())))
}

/// The mount point of a background server that [`server_of`] found.
pub fn mount_point_of(process: &Path) -> Option<PathBuf> {
    let line = std::fs::read(process.join("cmdline")).ok()?;
    let dir = line.split(|&byte| byte == 0).rfind(|word| !word.is_empty())?;
    Some(OsStr::from_bytes(dir).into())
}
