//! Writes that are durable as a whole, by system calls.
//!
//! * [`Groups::Requests`]: the requests of F2FS for atomic writes, which a mount of Quire has.
//! * [`Groups::Journal`]: what a database does elsewhere, as SQLite's rollback journal does it. The old
//!   contents go to a journal, which is made durable; the new ones go to the file, which is made durable;
//!   the journal is unlinked and its directory made durable. A lock on the file keeps transactions apart.
//! * [`Atomic`]: single writes that the kernel promises to keep whole, for direct I/O.
//!
//! The journal is written in one call and made durable once, so this is the least that such a journal costs.
//! SQLite has two fsyncs for the journal and one for its directory while it makes it.

use crate::outcome::os;
use crate::target::Piece;
use quire_base::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FlockOperation, StatxFlags, flock, statx};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use std::fs::File;
use std::io::{IoSlice, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// `F2FS_IOC_START_ATOMIC_WRITE`.
const START: u32 = 0xf501;
/// `F2FS_IOC_COMMIT_ATOMIC_WRITE`.
const COMMIT: u32 = 0xf502;
/// `F2FS_IOC_ABORT_VOLATILE_WRITE`.
const ABORT: u32 = 0xf505;

/// Bytes of the journal's header: a sector.
const HEADER: usize = 512;

/// How groups of writes are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Groups {
    /// Requests on the descriptor.
    Requests,
    /// A rollback journal beside the file.
    Journal,
}

impl Groups {
    /// Writes all pieces to `file`, which is at `path`; durable as a whole.
    pub fn write(self, file: &File, path: &Path, pieces: &[Piece<'_>]) -> Result<()> {
        match self {
            Groups::Requests => by_requests(file, pieces),
            Groups::Journal => {
                flock(file, FlockOperation::LockExclusive).map_err(|e| os("locking the file")(e.into()))?;
                let outcome = by_journal(file, path, pieces);
                let unlocked = flock(file, FlockOperation::Unlock);
                outcome.and(unlocked.map_err(|error| os("unlocking the file")(error.into())))
            }
        }
    }
}

fn write_all(file: &File, pieces: &[Piece<'_>]) -> Result<()> {
    pieces.iter().try_for_each(|(data, offset)| file.write_all_at(data, *offset).map_err(os("writing")))
}

fn request(file: &File, command: u32, doing: &str) -> Result<()> {
    // SAFETY: these requests have no argument.
    match unsafe { libc::ioctl(file.as_raw_fd(), u64::from(command) as _, 0) } {
        0 => Ok(()),
        _ => Err(os(doing)(std::io::Error::last_os_error())),
    }
}

fn by_requests(file: &File, pieces: &[Piece<'_>]) -> Result<()> {
    request(file, START, "beginning a group")?;
    let written = write_all(file, pieces);
    match written {
        Ok(()) => request(file, COMMIT, "committing a group"),
        // The write's error says more than one of the abort would.
        Err(error) => request(file, ABORT, "discarding a group").and(Err(error.clone())).or(Err(error)),
    }
}

fn by_journal(file: &File, path: &Path, pieces: &[Piece<'_>]) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push("-journal");
    let mut content = vec![0; HEADER];
    content[..8].copy_from_slice(&(pieces.len() as u64).to_ne_bytes());
    for (data, offset) in pieces {
        let start = content.len() + 8;
        content.extend_from_slice(&offset.to_ne_bytes());
        content.resize(start + data.len(), 0);
        file.read_exact_at(&mut content[start..], *offset).map_err(os("reading what a journal keeps"))?;
    }
    let mut journal = File::create(&name).map_err(os("making a journal"))?;
    journal.write_all(&content).map_err(os("writing a journal"))?;
    journal.sync_data().map_err(os("fsync of a journal"))?;
    write_all(file, pieces)?;
    file.sync_data().map_err(os("fsync"))?;
    drop(journal);
    std::fs::remove_file(&name).map_err(os("unlinking a journal"))?;
    let directory = path.parent().unwrap_or(Path::new("."));
    let directory = File::open(directory).map_err(os("opening the directory"))?;
    directory.sync_all().map_err(os("fsync of the directory"))
}

/// `STATX_WRITE_ATOMIC`: the limits of untorn direct writes.
const WRITE_ATOMIC: StatxFlags = StatxFlags::from_bits_retain(0x1_0000);
/// `RWF_ATOMIC`: the kernel keeps the write whole, or refuses it.
const ATOMIC: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x40);

/// The sizes that a file takes as untorn direct writes, smallest and largest, in bytes, if it takes any and
/// the kernel says so.
pub fn atomic_units(file: &File) -> Option<(u64, u64)> {
    let about = statx(file, "", AtFlags::EMPTY_PATH, WRITE_ATOMIC).ok()?;
    let known = about.stx_mask & WRITE_ATOMIC.bits() != 0 && about.stx_atomic_write_unit_max > 0;
    known.then(|| (about.stx_atomic_write_unit_min.into(), about.stx_atomic_write_unit_max.into()))
}

/// A file opened with O_DIRECT.
pub struct Atomic<'a>(pub &'a File);

impl Atomic<'_> {
    /// Why it does not take writes of so many bytes. Tries one at its start.
    pub fn refuses(&self, bytes: u64) -> Option<String> {
        match atomic_units(self.0) {
            None => return Some("this kernel or file system has no untorn direct writes (statx)".into()),
            Some((least, most)) if !(least..=most).contains(&bytes) || !bytes.is_power_of_two() => {
                return Some(format!(
                    "untorn direct writes have {least} to {most} bytes here, a power of two, and not {bytes}"
                ));
            }
            Some(_) => {}
        }
        let block = quire_device::AlignedBuf::zeroed(bytes as usize);
        match self.try_write(&block, 0) {
            Ok(_) => None,
            Err(error) => Some(format!("an untorn direct write of {bytes} bytes is refused: {error}")),
        }
    }

    fn try_write(&self, data: &[u8], offset: u64) -> std::result::Result<usize, Errno> {
        pwritev2(self.0, &[IoSlice::new(data)], offset, ATOMIC | ReadWriteFlags::DSYNC)
    }

    /// Writes all of `data`, durable and whole.
    pub fn write(&self, data: &[u8], offset: u64) -> Result<()> {
        match self.try_write(data, offset) {
            Ok(count) if count == data.len() => Ok(()),
            Ok(count) => Err(Error::new(
                ErrorKind::Io,
                format!("an untorn direct write of {} bytes ended after {count}", data.len()),
            )),
            Err(error) => Err(os("an untorn direct write")(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollback_journal_leaves_the_new_contents_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db");
        std::fs::write(&path, [1; 3 * 4096]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        Groups::Journal.write(&file, &path, &[(&[2; 4096], 0), (&[3; 4096], 8192)]).unwrap();
        let content = std::fs::read(&path).unwrap();
        assert!(content[..4096].iter().all(|&byte| byte == 2));
        assert!(content[4096..8192].iter().all(|&byte| byte == 1));
        assert!(content[8192..].iter().all(|&byte| byte == 3));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        // Nothing to roll back to: refused before the file is touched.
        assert!(Groups::Journal.write(&file, &path, &[(&[4; 4096], 1 << 20)]).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }

    #[test]
    fn a_file_without_groups_says_so() {
        let file = tempfile::tempfile().unwrap();
        let error = Groups::Requests.write(&file, Path::new("f"), &[(b"x", 0)]).unwrap_err();
        assert!(error.to_string().contains("beginning a group"), "{error}");
        assert_eq!(file.metadata().unwrap().len(), 0);
    }
}
