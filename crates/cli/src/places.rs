//! Which volume, which mount and which server a path stands for.
//!
//! Commands take a mount point, an image or a device where either makes sense.
//!
//! Neighbours: [`crate::image`] finds volumes by their paths, [`quire_fuse::mount`] reads the mount table,
//! [`crate::control`] reaches the server of a mount.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use quire_base::Result;
use quire_fuse::{MountEntry, mount as mounts};
use rustix::process::Pid;

use crate::exit::{self, Failure, Outcome};
use crate::{control, image};

/// The Quire mount at `dir`, which must be there.
pub fn mounted(dir: &Path) -> Outcome<MountEntry> {
    let dir = mounts::resolve(dir)?;
    mounts::mounted_at(&dir)?.filter(MountEntry::is_quire).ok_or_else(|| {
        Failure::new(exit::MISSING, format!("no Quire volume is mounted at {}", dir.display()))
    })
}

/// Where a volume is mounted that was named by its mount point or by its image or device.
pub fn mount_of(volume: &Path) -> Outcome<Option<PathBuf>> {
    if let Ok(entry) = mounted(volume) {
        return Ok(Some(entry.dir));
    }
    Ok(mounted_on(&image::find(volume)?)?)
}

/// Where a volume is mounted. The mount table may show another name for it (`fsname`); then it is the mount
/// of the server that has the volume on its command line.
pub fn mounted_on(volume: &Path) -> Result<Option<PathBuf>> {
    let mut mounts = mounts::mounts()?;
    mounts.retain(MountEntry::is_quire);
    let by_source = mounts.iter().find(|entry| entry.source == volume);
    let by_server = || {
        let server = server_of(volume)?;
        mounts.iter().find(|entry| control::server_of(entry) == Some(server))
    };
    Ok(by_source.or_else(by_server).map(|entry| entry.dir.clone()))
}

/// The path of a volume; a mount point is none, but is easily given for one.
pub fn unmounted(volume: &Path) -> Outcome<PathBuf> {
    let volume = image::find(volume)?;
    if volume.is_dir() {
        let why = match mounted(&volume) {
            Ok(_) => "is a mount point: give the image file or block device, while it is not mounted",
            Err(_) => {
                "is a directory with nothing mounted on it; a volume is an image file or a block device"
            }
        };
        return Err(Failure::new(exit::MISSING, format!("{} {why}", volume.display())));
    }
    Ok(volume)
}

/// The background server, not this process, that has a volume (an absolute path) on its command line.
pub fn server_of(volume: &Path) -> Option<Pid> {
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let number = entry.file_name().to_str()?.parse::<i32>().ok()?;
        let process = Pid::from_raw(number).filter(|process| *process != rustix::process::getpid())?;
        if !is_trusted(&entry.path()) {
            return None;
        }
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        let is_it = words.get(1) == Some(&b"mount".as_slice())
            && words.get(2) == Some(&b"--report".as_slice())
            && words.contains(&volume.as_os_str().as_bytes());
        is_it.then_some(process)
    })
}

/// Whether a process is root's or this user's: any other may have anything on its command line.
fn is_trusted(process: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    std::fs::metadata(process).is_ok_and(|found| [0, user].contains(&found.uid()))
}
