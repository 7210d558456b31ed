//! Finding volumes, and reading their superblocks without opening them. A volume is named by a path, or by
//! the address of a server's export.

use std::fs::File;
use std::io::{self, Seek};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quire::internals::inspect::{self, SlotCopies};
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result};
use quire_device::{IoClass, NbdAddress, OpenMode, open_image};
use quire_format::journal::BlockHeader;
use quire_format::superblock::{FLAG_CLEAN, JOURNAL_START, Superblock};
use rustix::fs::FlockOperation;
use rustix::fs::OFlags;

use crate::exit::{self, Failure, Outcome};

/// The absolute path of a volume that must exist. An address stays as it is.
pub fn find(volume: &Path) -> Outcome<PathBuf> {
    if NbdAddress::is_one(volume) {
        return Ok(volume.to_owned());
    }
    volume.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::new(
            exit::MISSING,
            format!(
                "volume {} does not exist; make one with `quire mkfs --size 10G {}`",
                volume.display(),
                volume.display()
            ),
        ),
        io::ErrorKind::PermissionDenied => {
            Failure::new(exit::NOT_PERMITTED, format!("volume {}: {error}", volume.display()))
        }
        _ => Failure::new(exit::MISSING, format!("volume {}: {error}", volume.display())),
    })
}

/// The same, with the word that its owner is not respected if `takes_over`.
pub fn find_to_open(volume: &Path, takes_over: bool) -> Outcome<PathBuf> {
    let volume = find(volume)?;
    Ok(if takes_over { NbdAddress::taking_over(&volume)? } else { volume })
}

/// Whether there is something behind a path: a block device of size 0 waits for what it will show, as that of
/// a network block device without a connection does. Whether there is a server behind an address.
pub fn is_connected(volume: &Path) -> bool {
    if NbdAddress::is_one(volume) {
        return open_image(volume, OpenMode::Look).is_ok();
    }
    let is_device = volume.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
    !is_device
        || File::open(volume)
            .and_then(|mut device| device.seek(io::SeekFrom::End(0)))
            .is_ok_and(|size| size > 0)
}

fn open(volume: &Path) -> Result<File> {
    // Not blocking, in case it is a fifo.
    let file = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(volume)
        .map_err(|error| Error::os(format!("opening {}", volume.display()), &error))?;
    let kind = file
        .metadata()
        .map_err(|error| Error::os(format!("looking at {}", volume.display()), &error))?
        .file_type();
    if kind.is_file() || kind.is_block_device() {
        Ok(file)
    } else if kind.is_dir() {
        Err(Error::new(
            ErrorKind::IsDirectory,
            format!("{} is a directory; a volume is an image file or a block device", volume.display()),
        ))
    } else {
        Err(Error::new(
            ErrorKind::NotAVolume,
            format!("{} is neither an image file nor a block device", volume.display()),
        ))
    }
}

/// Both superblock slots of a volume, each in both copies. Takes no lock: a server that has the volume open
/// may be writing one of them. Of an address it makes a connection of its own.
fn copies(volume: &Path) -> Result<[SlotCopies; 2]> {
    if NbdAddress::is_one(volume) {
        let device = open_image(volume, OpenMode::Look)?;
        return Ok(inspect::read_with(device.blocks(), &mut |block, buf| {
            device.read(IoClass::Metadata, block, buf)
        }));
    }
    let mut file = open(volume)?;
    let bytes = file
        .seek(io::SeekFrom::End(0))
        .map_err(|error| Error::os(format!("looking at {}", volume.display()), &error))?;
    Ok(inspect::read_with(bytes / BLOCK_SIZE as u64, &mut |block, buf| {
        file.read_exact_at(buf, block.byte_offset())
            .map_err(|error| Error::os(format!("reading block {block} of {}", volume.display()), &error))
    }))
}

/// Both superblock slots of a volume, each decoded or with the reason why it is not.
pub fn superblocks(volume: &Path) -> Result<[Result<Superblock>; 2]> {
    copies(volume).map(inspect::newest_of)
}

/// The superblock that a mount would take, and the reason why another copy of one is not good, if so.
pub fn newest_superblock(volume: &Path) -> Result<(Superblock, Option<Error>)> {
    let slots = copies(volume)?;
    let bad = slots.iter().find_map(|copies| copies.near.as_ref().err()).cloned();
    let has_copies = slots.iter().any(|copies| copies.far.is_ok());
    match inspect::newest_of(slots) {
        [Ok(a), Ok(b)] => Ok((if a.checkpoint >= b.checkpoint { a } else { b }, bad)),
        [Ok(good), Err(bad)] | [Err(bad), Ok(good)] => Ok((good, Some(bad))),
        [Err(a), Err(b)] => {
            let none = ErrorKind::NotAVolume;
            Err(if a.kind() == none && b.kind() == none && !has_journal(volume)? {
                let volume = volume.display();
                // The reason speaks of these copies.
                Error::new(
                    none,
                    if has_copies {
                        format!("{volume}: {a}")
                    } else {
                        format!("{volume} holds no Quire volume")
                    },
                )
            } else {
                // A newer format is worth more than whatever the other slot suffers from.
                let kind = if a.kind() == ErrorKind::UnknownFormat { a.kind() } else { b.kind() };
                let kind = if kind == none { ErrorKind::Corrupt } else { kind };
                Error::new(kind, format!("both superblocks of {} are unusable: {a}; {b}", volume.display()))
            })
        }
    }
}

/// Whether a journal's first block is where that of a volume would be: then there was a volume.
fn has_journal(volume: &Path) -> Result<bool> {
    let mut bytes = vec![0; BLOCK_SIZE];
    if NbdAddress::is_one(volume) {
        let device = open_image(volume, OpenMode::ReadOnly)?;
        let read = device.read(IoClass::Metadata, JOURNAL_START, &mut bytes);
        return Ok(read.is_ok() && BlockHeader::decode(&bytes).is_ok());
    }
    let read = open(volume)?.read_exact_at(&mut bytes, JOURNAL_START.byte_offset());
    Ok(read.is_ok() && BlockHeader::decode(&bytes).is_ok())
}

/// Waits until no server has the volume open for writing any more; false when `patience` is over.
///
/// `slow` is called once if it takes longer than a second or two. A volume that cannot be looked at counts as
/// closed.
pub fn wait_until_closed(volume: &Path, patience: Duration, slow: impl FnOnce()) -> bool {
    let Ok(file) = open(volume) else { return true };
    let lock = || rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
    wait_until(|| lock() != Err(rustix::io::Errno::WOULDBLOCK), patience, slow)
}

/// Whether nobody has a volume open, and the last one that had it open for writing did not close it. False
/// where that cannot be told.
pub fn was_left_open(volume: &Path) -> bool {
    let file = Some(volume).filter(|volume| !NbdAddress::is_one(volume)).and_then(|volume| open(volume).ok());
    let lock = |file: &File| rustix::fs::flock(file, FlockOperation::NonBlockingLockShared);
    let is_open = || newest_superblock(volume).is_ok_and(|(newest, _)| newest.flags & FLAG_CLEAN == 0);
    // The lock keeps a new server out for this moment: only where there is something to tell.
    file.is_some_and(|file| is_open() && lock(&file).is_ok() && is_open())
}

/// Looks again and again; false if it was in vain for so long. After two seconds `slow` is called once.
pub fn wait_until(is_over: impl Fn() -> bool, patience: Duration, slow: impl FnOnce()) -> bool {
    let start = Instant::now();
    let mut slow = Some(slow);
    loop {
        if is_over() {
            return true;
        }
        if start.elapsed() > patience {
            return false;
        }
        if start.elapsed() > Duration::from_secs(2)
            && let Some(slow) = slow.take()
        {
            slow();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_volume_says_how_to_make_one() {
        let failure = find(Path::new("/nonexistent/a.img")).unwrap_err();
        assert_eq!(failure.code, 37);
        assert!(failure.message.contains("quire mkfs"), "{failure}");
    }

    #[test]
    fn what_is_no_volume() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(superblocks(directory.path()).unwrap_err().kind(), ErrorKind::IsDirectory);
        assert_eq!(superblocks(Path::new("/dev/null")).unwrap_err().kind(), ErrorKind::NotAVolume);
        let short = directory.path().join("short");
        std::fs::write(&short, b"hello").unwrap();
        assert_eq!(newest_superblock(&short).unwrap_err().kind(), ErrorKind::NotAVolume);
        let zeros = directory.path().join("zeros");
        std::fs::write(&zeros, vec![0; 64 << 10]).unwrap();
        assert_eq!(newest_superblock(&zeros).unwrap_err().kind(), ErrorKind::NotAVolume);
    }

    /// A volume whose beginning had been overwritten was to be made anew with `quire mkfs`, though its copies
    /// at the end were whole.
    #[test]
    fn copies_at_the_end_are_spoken_of() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.img");
        quire::FormatOptions::new().size(32 << 20).format(&path).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[0; 1 << 20], 0).unwrap();
        let error = newest_superblock(&path).unwrap_err();
        assert!(error.to_string().contains("quire fsck --repair"), "{error}");
        let failure = crate::exit::Failure::from(error);
        assert!(failure.code == 33 && !failure.message.contains("mkfs"), "{failure}");
    }

    #[test]
    fn a_locked_volume_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.img");
        std::fs::write(&path, b"x").unwrap();
        let server = File::open(&path).unwrap();
        rustix::fs::flock(&server, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(!wait_until_closed(&path, Duration::from_millis(50), || {}));
        drop(server);
        assert!(wait_until_closed(&path, Duration::from_millis(50), || {}));
    }
}
