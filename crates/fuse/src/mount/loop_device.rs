//! A loop device as the source of a mount of type `fuseblk`.
//!
//! The kernel passes `syncfs` and `sync` on, and lets `umount` wait for the server, only where the source of
//! a mount is a block device. The device is the mount's source and nothing else: the server reads and writes
//! the volume through a descriptor of its own.
//!
//! Protocol: [`attach`] puts an unused loop device over the volume; the caller mounts it and drops it. The
//! device detaches itself when the last of its users is gone (`LO_FLAGS_AUTOCLEAR`): the mount, or, if the
//! mount fails or this process is killed, this process.
//!
//! Invariants: every mount gets a device of its own. The kernel knows a mounted file system by its device:
//! mounting a device again whose server is dead would give back the dead file system. Nothing here writes to
//! the device, so its page cache never holds anything that the volume does not. Block devices get a loop
//! device, too: the kernel claims a mount's source, and the server has claimed the volume itself.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

const CONTROL: &str = "/dev/loop-control";
/// Unused devices that are tried: others may take each of them first.
const ATTEMPTS: usize = 64;

/// From the kernel's `linux/loop.h`.
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
/// Sets a device up in one step (Linux 5.8).
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_config`, with `struct loop_info64` inside.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    /// `lo_device`, `lo_inode`, `lo_rdevice`, `lo_offset`, `lo_sizelimit`.
    numbers: [u64; 5],
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Config>() == 304);

/// A device that detaches itself once it is neither open nor mounted.
pub(super) struct LoopDevice {
    /// Its path.
    pub(super) path: PathBuf,
    _file: File,
}

/// Puts an unused loop device over `volume`. Errors say in a few words what cannot be had.
pub(super) fn attach(volume: &Path, read_only: bool) -> Result<LoopDevice, String> {
    let failed = |what: &dyn std::fmt::Display, error: &std::io::Error| format!("{what}: {error}");
    let open = |path: &Path, write| OpenOptions::new().read(true).write(write).open(path);
    let control = open(Path::new(CONTROL), true).map_err(|error| failed(&CONTROL, &error))?;
    let backing = open(volume, !read_only).map_err(|error| failed(&volume.display(), &error))?;
    let mut config = Config {
        fd: backing.as_raw_fd() as u32,
        block_size: 0,
        numbers: [0; 5],
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: LO_FLAGS_AUTOCLEAR | if read_only { LO_FLAGS_READ_ONLY } else { 0 },
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
        reserved: [0; 8],
    };
    // What `losetup` shows where it cannot read sysfs.
    for (to, from) in config.file_name[..63].iter_mut().zip(volume.as_os_str().as_bytes()) {
        *to = *from;
    }
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        // SAFETY: the request takes no argument and gives a number.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(failed(&"finding an unused loop device", &std::io::Error::last_os_error()));
        }
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let file = open(&path, true).map_err(|error| failed(&path.display(), &error))?;
        // SAFETY: the structure is the kernel's, initialised, and lives across the call; so does the
        // descriptor in it.
        if unsafe { libc::ioctl(file.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } == 0 {
            return Ok(LoopDevice { path, _file: file });
        }
        let error = std::io::Error::last_os_error();
        last = failed(&path.display(), &error);
        // Taken by another meanwhile.
        if error.raw_os_error() != Some(libc::EBUSY) {
            break;
        }
    }
    Err(last)
}

/// What a loop device lies over, as sysfs has it; `None` for what is no loop device, or lies over nothing.
pub(super) fn backing_of(device: &Path) -> Option<PathBuf> {
    let name = device.strip_prefix("/dev").ok()?;
    let mut bytes = std::fs::read(Path::new("/sys/block").join(name).join("loop/backing_file")).ok()?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    (!bytes.is_empty()).then(|| OsString::from_vec(bytes).into())
}
