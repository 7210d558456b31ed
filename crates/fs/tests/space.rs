//! Volumes that are full: what was accepted is written, and what is deleted comes back.

mod common;

use common::{file, options};
use quire::{ErrorKind, FormatOptions, IoFlags, Volume, VolumeOptions};
use quire_device::MemoryBackend;
use std::sync::Arc;

fn new_volume(blocks: u64) -> Volume {
    let device = Arc::new(MemoryBackend::new(blocks));
    Volume::format_backend(device.clone(), &FormatOptions { seed: Some(1), ..Default::default() }).unwrap();
    // All of it fits into memory, so that nothing gets a home before the volume is full.
    let options = VolumeOptions { cache_bytes: Some(3 * blocks * 4096), ..options() };
    Volume::open_backend(device, options).unwrap()
}

/// Delayed allocation promised data blocks to dirty data, but no tree nodes. A volume filled to its last block by
/// writes that each need an extent of their own had no block left for the metadata pool when they were written back:
/// accepted data stayed dirty, and every fsync failed.
#[test]
fn what_was_accepted_can_be_written_however_scattered() {
    for (blocks, files, stride) in [(16384, 1, 2), (16384, 50, 2), (8192, 3, 3), (65536, 7, 2)] {
        let volume = new_volume(blocks);
        let inodes: Vec<_> = (0..files).map(|n| file(&volume, &format!("f{n}"))).collect();
        let mut written = Vec::new();
        'full: for round in 0.. {
            for (n, inode) in inodes.iter().enumerate() {
                let at = round * stride * 4096;
                let tag = [(n as u8) ^ (round as u8).wrapping_mul(31) | 1; 4096];
                match volume.write(inode, at, &tag, IoFlags::empty()) {
                    Ok(_) => written.push((n, at, tag[0])),
                    Err(error) if error.kind() == ErrorKind::NoSpace => break 'full,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        assert!(written.len() as u64 > blocks / 2, "only {} blocks were accepted", written.len());
        volume.sync().unwrap_or_else(|error| panic!("{blocks} blocks, {files} files: {error}"));
        for (n, at, tag) in &written {
            let mut block = [0; 4096];
            assert_eq!(volume.read(&inodes[*n], *at, &mut block, IoFlags::DIRECT).unwrap(), 4096);
            assert!(block.iter().all(|byte| byte == tag));
        }
        for (n, _) in inodes.iter().enumerate() {
            volume.unlink(&volume.root(), format!("f{n}").as_bytes()).unwrap();
        }
    }
}
