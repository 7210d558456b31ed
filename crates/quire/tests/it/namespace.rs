//! Names, from outside: what each operation does and refuses, a random model with remounts and crashes in
//! between, and threads that meet in the same directories.

mod attributes;
mod consistency;
mod mix;
mod model;
mod operations;
mod paths;
mod threads;

use crate::common::copy_of;
use quire::backend::MemoryBackend;
use quire::inodes::{Create, InodeRef};
use quire::{Clock, ErrorKind, FormatOptions, Result, Timestamp, Volume, VolumeOptions};
use std::sync::Arc;

/// Bytes of a test volume.
const VOLUME_BYTES: u64 = 32 << 20;

/// Fixes the hash seed, on which the pairs of colliding names below rely.
const FORMAT_SEED: u64 = 7;

/// Names of one hash in a directory.
const COLLIDING_NAMES: [[&[u8]; 2]; 2] = [[b"n14106034", b"n22412507"], [b"n943113", b"n7265047"]];

/// Attribute names of one hash.
const COLLIDING_ATTRIBUTES: [[&[u8]; 2]; 2] =
    [[b"user.x228673", b"user.x387071"], [b"user.x5457", b"user.x161089"]];

fn options(threads: bool) -> VolumeOptions {
    VolumeOptions::new().threads(threads).cache_bytes(16 << 20).clock(if threads {
        Clock::System
    } else {
        Clock::simulated(Timestamp(1_000_000_000))
    })
}

fn formatted() -> Arc<MemoryBackend> {
    let backend = Arc::new(MemoryBackend::new(VOLUME_BYTES / 4096));
    let format = FormatOptions::new().seed(FORMAT_SEED);
    format.format_backend(backend.clone()).unwrap();
    backend
}

/// A fresh volume in memory, without background threads.
fn volume() -> Volume {
    options(false).open_backend(formatted()).unwrap()
}

#[track_caller]
fn fails<T>(result: Result<T>, kind: ErrorKind) {
    match result {
        Ok(_) => panic!("no error, {kind:?} was expected"),
        Err(error) => assert_eq!(error.kind(), kind, "{error}"),
    }
}

fn file(volume: &Volume, directory: &InodeRef, name: &[u8]) -> InodeRef {
    volume.inodes().create(directory, name, &Create::file(0o644)).unwrap()
}

fn directory(volume: &Volume, parent: &InodeRef, name: &[u8]) -> InodeRef {
    volume.inodes().create(parent, name, &Create::directory(0o755)).unwrap()
}

/// Names of a directory but for "." and "..", sorted.
fn names(volume: &Volume, directory: &InodeRef) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    volume
        .inodes()
        .read_dir(directory, 2, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .unwrap();
    names.sort();
    names
}

fn links(volume: &Volume, inode: &InodeRef) -> u32 {
    volume.inodes().metadata(inode).nlink()
}
