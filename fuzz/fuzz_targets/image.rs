//! A real volume with bytes changed anywhere: opening it, walking and reading all of it, checking it and repairing it
//! give results or errors, and end.
//!
//! The input is a list of edits, eight bytes each: block (3), offset (2), length of a run (1), value (1), and whether the
//! block's checksum is made right again (1).
#![no_main]

use libfuzzer_sys::fuzz_target;
use quire::{Caller, Clock, Create, FileType, FormatOptions, IoFlags, Timestamp, Volume, VolumeOptions, XattrFlags};
use quire_device::SimulatedBackend;
use quire_device::simulated::{CrashPolicy, Image};
use std::sync::{Arc, OnceLock};

fn options(read_only: bool) -> VolumeOptions {
    let clock = Clock::simulated(Timestamp(1));
    VolumeOptions { threads: false, cache_bytes: Some(6 << 20), clock, read_only, ..VolumeOptions::default() }
}

/// A volume with a bit of everything, not closed, so that its journal is replayed.
fn base() -> &'static Image {
    static BASE: OnceLock<Image> = OnceLock::new();
    BASE.get_or_init(|| {
        let device = Arc::new(SimulatedBackend::new(8192));
        let format = FormatOptions { seed: Some(1), clock: options(false).clock, ..Default::default() };
        Volume::format_backend(device.clone(), &format).unwrap();
        let volume = Volume::open_backend(device.clone(), options(false)).unwrap();
        let caller = Caller { uid: 0, gid: 0 };
        let create = |kind, mode| Create { kind, mode, umask: 0, rdev: 0, caller };
        let folder = volume.create(&volume.root(), b"folder", &create(FileType::Directory, 0o755)).unwrap();
        for number in 0..60u32 {
            let name = format!("file{number}");
            let file = volume.create(&folder, name.as_bytes(), &create(FileType::Regular, 0o644)).unwrap();
            volume.write(&file, u64::from(number) * 3000, name.repeat(900).as_bytes(), IoFlags::empty()).unwrap();
            if number == 30 {
                volume.sync().unwrap();
                volume.checkpoint().unwrap();
            }
            if number % 7 == 0 {
                volume.set_xattr(&file, b"user.note", &[number as u8; 2000], XattrFlags::empty()).unwrap();
            }
        }
        volume.symlink(&volume.root(), b"link", b"folder/file1", caller).unwrap();
        let orphan = volume.lookup(&folder, b"file9").unwrap();
        volume.unlink(&folder, b"file9").unwrap();
        volume.sync().unwrap();
        let image = device.crash(CrashPolicy::LoseAll);
        drop(orphan);
        image
    })
}

fn walk(volume: &Volume) {
    let mut folders = vec![volume.root()];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        let mut names = Vec::new();
        let _ = volume.read_directory(&folder, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                names.push(entry.name.to_vec());
            }
            names.len() < 1000
        });
        for name in names {
            seen += 1;
            if seen > 2000 {
                return;
            }
            let Ok(inode) = volume.lookup(&folder, &name) else { continue };
            let _ = volume.attributes(&inode);
            for attribute in volume.list_xattr(&inode).unwrap_or_default() {
                let _ = volume.get_xattr(&inode, &attribute);
            }
            match inode.kind() {
                FileType::Directory => folders.push(inode),
                FileType::Symlink => drop(volume.readlink(&inode)),
                _ => {
                    let mut buffer = vec![0; 70_000];
                    let _ = volume.read(&inode, 0, &mut buffer, IoFlags::empty());
                    let _ = volume.read(&inode, inode.size().saturating_sub(9000), &mut buffer, IoFlags::DIRECT);
                }
            }
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let mut image = base().clone();
    for edit in input.chunks_exact(8).take(16) {
        let number = u64::from(edit[0]) | u64::from(edit[1]) << 8 | u64::from(edit[2] & 0x1f) << 16;
        let offset = (usize::from(edit[3]) | usize::from(edit[4]) << 8) % 4096;
        image.edit(quire_base::BlockNo(number % 8192), |block| {
            let end = (offset + usize::from(edit[5] % 32) + 1).min(4096);
            block[offset..end].fill(edit[6]);
            // Superblocks have theirs at 8; nodes, manifest pages and journal blocks at 4.
            let at = match edit[7] % 3 {
                0 => return,
                1 => 8,
                _ => 4,
            };
            block[at..at + 4].fill(0);
            let crc = crc32c::crc32c(&block[..]);
            block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        });
    }
    let device = || Arc::new(SimulatedBackend::from_image(image.clone()));
    if let Ok(volume) = Volume::open_backend(device(), options(true)) {
        walk(&volume);
    }
    if let Ok(volume) = Volume::open_backend(device(), options(false)) {
        walk(&volume);
        let _ = volume.sync();
        let _ = volume.close();
    }
    let device = device();
    let _ = quire_fsck::check_backend(device, &quire_fsck::Options { repair: true, progress: None });
});
