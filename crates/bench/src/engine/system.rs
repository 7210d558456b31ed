//! System calls on a directory.

use super::group::{Atomic, Groups};
use crate::drive::InTime;
use crate::outcome::{Outcome, failed, os};
use crate::target::{Counters, Handle, How, Piece, Target};
use io_uring::{IoUring, opcode, types};
use quire_base::sync::Arc;
use quire_base::{Error, Result};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// `dir:PATH`: works in a directory of its own there, removed at the end.
pub fn set_up(path: &Path) -> Outcome<Box<dyn Target>> {
    if !path.is_dir() {
        return Err(failed(format!("{} is not a directory", path.display())));
    }
    let own = tempfile::Builder::new()
        .prefix("quire-bench-")
        .tempdir_in(path)
        .map_err(os(format!("making a directory in {}", path.display())))?;
    let statistics = own
        .path()
        .metadata()
        .ok()
        .map(|metadata| metadata.dev())
        .map(|device| format!("/sys/dev/block/{}:{}/stat", libc::major(device), libc::minor(device)).into())
        .filter(|file: &PathBuf| file.exists());
    let directory = own.path().to_owned();
    Ok(Box::new(System::new(directory, statistics.map(Source::Block), Box::new(own))))
}

/// Where bytes at the device are counted.
pub enum Source {
    /// A `stat` file of the block layer.
    Block(PathBuf),
    /// What the kernel counts for a process (a FUSE server).
    Process(u32),
}

impl Source {
    fn counters(&self) -> Counters {
        match self {
            Source::Block(file) => block_counters(&std::fs::read_to_string(file).unwrap_or_default()),
            Source::Process(id) => {
                let text = std::fs::read_to_string(format!("/proc/{id}/io")).unwrap_or_default();
                let bytes = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
                Counters {
                    device_bytes_written: bytes.and_then(|bytes| bytes.trim().parse().ok()),
                    ..Counters::default()
                }
            }
        }
    }
}

/// The block layer's statistics: fields 7 (sectors of 512 bytes written) and 16 (flushes).
fn block_counters(text: &str) -> Counters {
    let field = |n: usize| text.split_ascii_whitespace().nth(n).and_then(|value| value.parse::<u64>().ok());
    Counters {
        device_bytes_written: field(6).map(|sectors| sectors * 512),
        device_flushes: field(15),
        ..Counters::default()
    }
}

/// A directory, and what stands behind it.
pub struct System {
    directory: PathBuf,
    source: Option<Source>,
    /// How groups of writes are made.
    groups: Groups,
    /// Whether durable writes carry RWF_ATOMIC.
    atomic: bool,
    /// What must be taken down at the end: its own `Drop`, or [`Behind::take_down`] for errors to be heard.
    behind: Box<dyn Behind>,
}

/// What stands behind a directory.
pub trait Behind: Send + Sync {
    /// What takes its snapshots, if something does.
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        None
    }
    /// Takes it down in order.
    fn take_down(self: Box<Self>) -> Result<()>;
}

/// Snapshots of what stands behind a directory.
pub trait Snapshots {
    /// Takes one.
    fn take(&self, name: &str) -> Result<()>;
    /// Deletes one; returns when its space is free.
    fn delete(&self, name: &str) -> Result<()>;
}

impl Behind for tempfile::TempDir {
    fn take_down(self: Box<Self>) -> Result<()> {
        (*self).close().map_err(os("removing the directory of the run"))
    }
}

impl System {
    /// A target in `directory`, with the rollback journal of a database for groups of writes.
    pub fn new(directory: PathBuf, source: Option<Source>, behind: Box<dyn Behind>) -> System {
        System { directory, source, groups: Groups::Journal, atomic: false, behind }
    }

    /// With the requests that a mount of Quire has for groups of writes.
    pub fn with_requests(self) -> System {
        System { groups: Groups::Requests, ..self }
    }

    /// With files opened with O_DIRECT, durable writes with RWF_ATOMIC and RWF_DSYNC, if `atomic`.
    pub fn with_atomic(self, atomic: bool) -> System {
        System { atomic, ..self }
    }

    fn open_file(&self, path: &str, how: How) -> Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(how.create).append(how.append);
        let direct = if how.direct || self.atomic { libc::O_DIRECT } else { 0 };
        let data_sync = if how.data_sync { libc::O_DSYNC } else { 0 };
        options.custom_flags(direct | data_sync);
        options.open(self.directory.join(path)).map_err(os(format!("opening {path}")))
    }
}

struct Open {
    file: File,
    path: PathBuf,
    groups: Groups,
    atomic: bool,
}

impl Handle for Open {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(buffer, offset).map_err(os("reading"))
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.file.write_all_at(data, offset).map_err(os("writing"))
    }
    fn sync(&self, data_only: bool) -> Result<()> {
        if data_only { self.file.sync_data() } else { self.file.sync_all() }.map_err(os("fsync"))
    }
    fn truncate(&self, size: u64) -> Result<()> {
        self.file.set_len(size).map_err(os("truncating"))
    }
    fn write_durably(&self, data: &[u8], offset: u64) -> Result<()> {
        match self.atomic {
            true => Atomic(&self.file).write(data, offset),
            false => self.write_at(data, offset).and_then(|()| self.sync(true)),
        }
    }
    fn refuses_durable(&self, bytes: u64) -> Option<String> {
        if self.atomic { Atomic(&self.file).refuses(bytes) } else { None }
    }
    fn group(&self, pieces: &[Piece<'_>]) -> Result<()> {
        self.groups.write(&self.file, &self.path, pieces)
    }
}

impl Target for System {
    fn open(&self, path: &str, how: How) -> Result<Arc<dyn Handle>> {
        let file = self.open_file(path, how)?;
        let path = self.directory.join(path);
        Ok(Arc::new(Open { file, path, groups: self.groups, atomic: self.atomic }))
    }
    fn make_directory(&self, path: &str) -> Result<()> {
        std::fs::create_dir(self.directory.join(path)).map_err(os(format!("making the directory {path}")))
    }
    fn remove_directory(&self, path: &str) -> Result<()> {
        std::fs::remove_dir(self.directory.join(path)).map_err(os(format!("removing the directory {path}")))
    }
    fn size_of(&self, path: &str) -> Result<u64> {
        let metadata = std::fs::symlink_metadata(self.directory.join(path));
        metadata.map(|metadata| metadata.len()).map_err(os(format!("looking at {path}")))
    }
    fn unlink(&self, path: &str) -> Result<()> {
        std::fs::remove_file(self.directory.join(path)).map_err(os(format!("unlinking {path}")))
    }
    fn sync(&self) -> Result<()> {
        let directory = File::open(&self.directory).map_err(os("opening the directory"))?;
        rustix::fs::syncfs(&directory).map_err(|error| Error::os("syncfs", &error.into()))
    }
    fn sync_many(
        &self,
        paths: &mut dyn Iterator<Item = String>,
        window: usize,
        durable: &InTime,
    ) -> Result<()> {
        let open = |path: String| self.open_file(&path, How::default());
        sync_many(&mut paths.map(open), window.clamp(1, RING_MAX), durable)
    }
    fn has_snapshots(&self) -> bool {
        self.behind.snapshots().is_some()
    }
    fn snapshot(&self, name: &str) -> Result<()> {
        self.behind.snapshots().map_or_else(no_snapshots, |behind| behind.take(name))
    }
    fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.behind.snapshots().map_or_else(no_snapshots, |behind| behind.delete(name))
    }
    fn process(&self) -> u32 {
        match self.source {
            Some(Source::Process(id)) => id,
            _ => std::process::id(),
        }
    }
    fn counters(&self) -> Counters {
        self.source.as_ref().map(Source::counters).unwrap_or_default()
    }
    fn finish(self: Box<Self>) -> Result<()> {
        self.behind.take_down()
    }
}

fn no_snapshots() -> Result<()> {
    Err(quire_base::Error::new(quire_base::ErrorKind::Unsupported, "this engine has no snapshots"))
}

/// Most fsyncs in one ring.
const RING_MAX: usize = 1024;

/// Makes files durable through an io_uring, `window` at a time; each is closed when its fsync is done.
fn sync_many(files: &mut dyn Iterator<Item = Result<File>>, window: usize, durable: &InTime) -> Result<()> {
    let mut ring = IoUring::new(window as u32).map_err(os("making an io_uring"))?;
    let mut flying: Vec<Option<File>> = (0..window).map(|_| None).collect();
    let mut free: Vec<usize> = (0..window).collect();
    let mut first_error = None;
    let mut more = true;
    loop {
        while more && !free.is_empty() {
            match files.next() {
                Some(Ok(file)) => {
                    let Some(slot) = free.pop() else { break };
                    let entry =
                        opcode::Fsync::new(types::Fd(file.as_raw_fd())).build().user_data(slot as u64);
                    flying[slot] = Some(file);
                    // SAFETY: an fsync has no buffers; its descriptor stays open in `flying` until it
                    // completes.
                    let pushed = unsafe { ring.submission().push(&entry) };
                    pushed.map_err(|_| Error::invalid("the io_uring's queue is full"))?;
                }
                Some(Err(error)) => {
                    first_error.get_or_insert(error);
                    more = false;
                }
                None => more = false,
            }
        }
        let under_way = window - free.len();
        if under_way == 0 {
            return first_error.map_or(Ok(()), Err);
        }
        // While more files wait, go on as soon as a batch of slots is free.
        let wanted = if more { under_way.min(window / 4 + 1) } else { under_way };
        match ring.submit_and_wait(wanted) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::os("waiting for fsyncs", &error)),
        }
        let completed: Vec<_> = ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        for (slot, result) in completed {
            flying[slot as usize] = None;
            free.push(slot as usize);
            if result < 0 {
                let error = std::io::Error::from_raw_os_error(-result);
                first_error.get_or_insert(Error::os("fsync", &error));
                more = false;
            } else {
                durable.add();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_layer_is_read() {
        let text = "  1 2 3 4 5 6 70 8 9 10 11 12 13 14 15 160 17\n";
        let counters = block_counters(text);
        assert_eq!((counters.device_bytes_written, counters.device_flushes), (Some(70 * 512), Some(160)));
        assert_eq!(block_counters("").device_bytes_written, None);
    }

    #[test]
    fn many_fsyncs_through_a_small_ring() {
        let directory = tempfile::tempdir().unwrap();
        let target = set_up(directory.path()).unwrap();
        for n in 0..50 {
            target.open(&format!("f{n}"), How::create(0)).unwrap().write_at(b"x", 0).unwrap();
        }
        let durable = InTime::default();
        target.sync_many(&mut (0..50).map(|n| format!("f{n}")), 7, &durable).unwrap();
        assert_eq!(durable.count(), 50);
        let with_a_bad_one = &mut ["f1".to_owned(), "none".to_owned()].into_iter();
        assert!(target.sync_many(with_a_bad_one, 7, &durable).is_err());
        target.finish().unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
