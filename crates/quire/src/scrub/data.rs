//! Reading the data of all files, inode by inode.
//!
//! Inodes are taken in the order of their numbers, not by their names: so a scrub that goes on after an
//! interruption misses no file that was moved meanwhile, and reads none twice. What cannot be read is named
//! by a walk through the names, once, at the end.
//!
//! Neighbours: [`super`] reads the metadata first.

use super::{Scrub, ScrubPosition, Unreadable, is_over};
use crate::inode::InodeRef;
use crate::inodes::Inodes;
use quire_base::{BLOCK_SIZE, Error, ErrorKind, InodeNo, Result};
use quire_device::AlignedBuf;
use quire_format::inode::FileType;
use quire_format::key::{Key, KeyKind};
use std::collections::HashMap;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Bytes of data read at once.
const PIECE: usize = 1 << 20;

impl Scrub<'_> {
    /// Reads data, from the position on.
    pub(super) fn data(&mut self, inodes: &Inodes) -> Result<ControlFlow<()>> {
        let (mut from, mut at) = match self.last.position {
            ScrubPosition::Metadata(_) => (InodeNo::ROOT, 0),
            ScrubPosition::Data(inode, at) => (inode, at),
        };
        let mut failures = 0;
        loop {
            self.last.position = ScrubPosition::Data(from, at);
            if self.pause()?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let number = match self.next_inode(from) {
                Ok(Some(number)) => number,
                Ok(None) => return Ok(ControlFlow::Continue(())),
                Err(error) if is_over(self.engine, &error) => return Ok(ControlFlow::Break(())),
                // The metadata's part has told it. Behind it there is more.
                Err(_) => {
                    failures += 1;
                    let skip = 1 + failures / 64;
                    if skip > 1 << 20 || from.0 >= self.engine.store.inode_numbers.end() {
                        return Ok(ControlFlow::Continue(()));
                    }
                    (from, at) = (InodeNo(from.0 + skip), 0);
                    continue;
                }
            };
            failures = 0;
            let start = if number == from { at } else { 0 };
            // Removed meanwhile, or without a name, or not readable, which the metadata's part has told.
            if let Ok(inode) = inodes.get(number)
                && inode.kind() == FileType::Regular
                && self.file(inodes, number, &inode, start)?.is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
            let Some(next) = number.0.checked_add(1) else { return Ok(ControlFlow::Continue(())) };
            (from, at) = (InodeNo(next), 0);
        }
    }

    /// The first inode from this number on.
    fn next_inode(&self, from: InodeNo) -> Result<Option<InodeNo>> {
        let mut found = None;
        self.engine.store.tree.scan(Key::inode(from), Key::MAX, &mut |key, _| {
            // Contents without an inode belong to nobody.
            if key.kind == KeyKind::Inode {
                found = Some(InodeNo(key.object));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    fn file(
        &mut self,
        inodes: &Inodes,
        number: InodeNo,
        inode: &InodeRef,
        mut at: u64,
    ) -> Result<ControlFlow<()>> {
        if at == 0 {
            self.report.files += 1;
        }
        let mut buffer = AlignedBuf::zeroed(PIECE);
        // What is appended meanwhile was written just now: a file may grow faster than it is read.
        let size = inode.size();
        while at < size {
            let start = match inodes.seek_data(inode, at) {
                Ok(start) if start < size => start,
                Err(error) if is_over(self.engine, &error) => return Ok(ControlFlow::Break(())),
                Err(error) if error.kind() != ErrorKind::NoData => {
                    self.tell_unreadable(number, at, size - at, &error);
                    break;
                }
                _ => break,
            };
            let hole = inodes.seek_hole(inode, start).unwrap_or(start);
            let end = hole.min(size).max(start + BLOCK_SIZE as u64);
            let mut from = start / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
            while from < end {
                let bytes = (end - from).min(PIECE as u64) as usize;
                self.read(inodes, number, inode, &mut buffer[..bytes.next_multiple_of(BLOCK_SIZE)], from);
                if self.engine.store.failure().is_none() {
                    from += bytes as u64;
                    self.last.position = ScrubPosition::Data(number, from);
                }
                if self.pause()?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            at = end;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Reads a piece past the cache, without an access time; block by block, if it cannot be read as a whole.
    fn read(&mut self, inodes: &Inodes, number: InodeNo, inode: &InodeRef, into: &mut [u8], at: u64) {
        match inodes.engine().read_direct(inode, at, into) {
            Ok(bytes) => self.report.data_bytes += bytes as u64,
            Err(_) if into.len() > BLOCK_SIZE => {
                let blocks = into.chunks_mut(BLOCK_SIZE).zip((at..).step_by(BLOCK_SIZE));
                blocks.for_each(|(block, at)| self.read(inodes, number, inode, block, at));
            }
            // Closed, or shut down.
            Err(_) if self.engine.store.failure().is_some() => {}
            // The cache has newer bytes, which the device refuses. The old ones do not matter.
            Err(_) if cannot_be_written(inode, at) => {}
            // It may have taken them this time.
            Err(_) => match inodes.engine().read_direct(inode, at, into) {
                Ok(bytes) => self.report.data_bytes += bytes as u64,
                Err(error) => self.tell_unreadable(number, at, into.len() as u64, &error),
            },
        }
    }

    fn tell_unreadable(&mut self, number: InodeNo, at: u64, bytes: u64, error: &Error) {
        let path = unnamed(number);
        match self.report.unreadable.last_mut() {
            Some(last) if last.path == path && last.offset + last.bytes == at => last.bytes += bytes,
            _ => {
                tracing::error!(inode = %number, offset = at, %error, "a scrub cannot read data of a file");
                let why = error.to_string();
                self.report.unreadable.push(Unreadable { path, offset: at, bytes, why });
            }
        }
    }

    /// Finds the paths of the files that have parts which cannot be read.
    pub(super) fn name_files(&mut self, inodes: &Inodes) {
        if self.report.unreadable.is_empty() || self.engine.store.failure().is_some() {
            return;
        }
        let mut wanted: HashMap<PathBuf, Option<PathBuf>> =
            self.report.unreadable.iter().map(|part| (part.path.clone(), None)).collect();
        let mut left = wanted.len();
        let mut ahead = vec![(PathBuf::from("/"), inodes.root())];
        while let Some((path, directory)) = ahead.pop() {
            for (name, number, kind) in names(inodes, &directory) {
                let child = path.join(OsString::from_vec(name.clone()));
                match kind {
                    FileType::Directory => {
                        ahead.extend(inodes.lookup(&directory, &name).ok().map(|inode| (child, inode)));
                    }
                    FileType::Regular => {
                        if let Some(found @ None) = wanted.get_mut(&unnamed(number)) {
                            *found = Some(child);
                            left -= 1;
                        }
                    }
                    _ => {}
                }
            }
            if left == 0 {
                break;
            }
        }
        for part in &mut self.report.unreadable {
            if let Some(Some(path)) = wanted.get(&part.path) {
                tracing::error!(path = %path.display(), offset = part.offset, "a scrub could not read a part of this");
                part.path.clone_from(path);
            }
        }
    }
}

/// Whether the block at this byte is dirty and cannot be written back.
fn cannot_be_written(inode: &InodeRef, at: u64) -> bool {
    let block = at / BLOCK_SIZE as u64;
    inode.mapping.get().is_some_and(|mapping| mapping.write_back(block, block + 1).is_err())
}

/// What stands for a path that is not known.
fn unnamed(number: InodeNo) -> PathBuf {
    Path::new(&format!("#{number}")).to_owned()
}

/// The entries of a directory, as far as they can be read.
fn names(inodes: &Inodes, directory: &InodeRef) -> Vec<(Vec<u8>, InodeNo, FileType)> {
    let mut names = Vec::new();
    let _ = inodes.engine().list_directory(directory, 0, &mut |entry| {
        if !matches!(entry.name, b"." | b"..") {
            names.push((entry.name.to_vec(), entry.inode, entry.kind));
        }
        true
    });
    names
}
