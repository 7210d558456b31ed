//! `raw`: the bare image file, O_DIRECT through one io_uring for each thread; "files" are ranges of it.
//!
//! A durable write is a write with an fdatasync linked behind it, one submission and one wait.
//!
//! It is no strict limit: the kernel gives each fsync of an io_uring to a worker thread, whose wake-up the
//! write waits for. A program that calls fdatasync in its own thread, as Quire does, can be quicker.

use crate::image::Image;
use crate::outcome::{Outcome, os};
use crate::target::{Counters, Handle, How, Piece, Target};
use io_uring::{IoUring, opcode, squeue, types};
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::sync::{Arc, Mutex};
use quire_base::{Error, ErrorKind, Result};
use quire_device::AlignedBuf;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// Opens the image past the page cache.
pub fn set_up(image: &Image) -> Outcome<Box<dyn Target>> {
    let doing = || os(format!("opening {}", image.path().display()));
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = match options.clone().custom_flags(libc::O_DIRECT).open(image.path()) {
        // A directory in memory has no O_DIRECT; the figures are then those of memory.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => options.open(image.path()),
        outcome => outcome,
    }
    .map_err(doing())?;
    let shared = Shared {
        file,
        bytes: image.bytes(),
        places: Mutex::default(),
        written: AtomicU64::new(0),
        flushes: AtomicU64::new(0),
    };
    Ok(Box::new(Raw(Arc::new(shared))))
}

struct Shared {
    file: File,
    bytes: u64,
    /// Where each path's range is: first byte, bytes, and the end of what was appended.
    places: Mutex<BTreeMap<String, Arc<Place>>>,
    written: AtomicU64,
    flushes: AtomicU64,
}

struct Place {
    start: u64,
    room: u64,
    end: AtomicU64,
}

struct Raw(Arc<Shared>);

struct Open {
    shared: Arc<Shared>,
    place: Arc<Place>,
    how: How,
}

thread_local! {
    static RING: RefCell<Option<IoUring>> = const { RefCell::new(None) };
}

/// Submits one or two linked requests and waits for both; gives the first one's count.
fn submit(entries: &[squeue::Entry]) -> Result<usize> {
    RING.with_borrow_mut(|slot| {
        let ring = match slot {
            Some(ring) => ring,
            None => slot.insert(IoUring::new(4).map_err(os("making an io_uring"))?),
        };
        // SAFETY: the caller's buffers and descriptor live until this function has seen every completion.
        unsafe { ring.submission().push_multiple(entries) }
            .map_err(|_| Error::invalid("the io_uring's queue is full"))?;
        let mut count = 0;
        let mut failure = None;
        let mut missing = entries.len();
        while missing > 0 {
            match ring.submit_and_wait(missing) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // Buffers may still be in use by the kernel: nothing sound is left to do.
                Err(error) => panic!("waiting for an io_uring: {error}"),
            }
            for entry in ring.completion() {
                missing -= 1;
                if entry.result() < 0 {
                    failure.get_or_insert(std::io::Error::from_raw_os_error(-entry.result()));
                } else if entry.user_data() == 0 {
                    count = entry.result() as usize;
                }
            }
        }
        failure.map_or(Ok(count), |error| Err(Error::os("I/O on the bare image", &error)))
    })
}

impl Open {
    fn descriptor(&self) -> types::Fd {
        types::Fd(self.shared.file.as_raw_fd())
    }

    fn flush_entry(&self) -> squeue::Entry {
        self.shared.flushes.fetch_add(1, Ordering::Relaxed);
        opcode::Fsync::new(self.descriptor()).flags(types::FsyncFlags::DATASYNC).build().user_data(1)
    }

    /// Writes at a place of the image; `durable`: with a flush linked behind it.
    fn put(&self, data: &[u8], at: u64, durable: bool) -> Result<()> {
        let aligned;
        let data = if (data.as_ptr() as usize).is_multiple_of(4096) {
            data
        } else {
            aligned = AlignedBuf::copy_of(data);
            &aligned
        };
        self.shared.written.fetch_add(data.len() as u64, Ordering::Relaxed);
        let write =
            opcode::Write::new(self.descriptor(), data.as_ptr(), data.len() as u32).offset(at).build();
        let count = match durable {
            true => submit(&[write.flags(squeue::Flags::IO_LINK), self.flush_entry()])?,
            false => submit(&[write])?,
        };
        match count == data.len() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Io, "a short write on the bare image")),
        }
    }

    /// Where a request goes in the image.
    fn locate(&self, offset: u64, len: usize) -> Result<u64> {
        offset
            .checked_add(len as u64)
            .filter(|&end| end <= self.place.room)
            .map(|_| self.place.start + offset)
            .ok_or_else(|| Error::new(ErrorKind::NoSpace, "past the range set aside on the bare image"))
    }
}

impl Handle for Open {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let at = self.locate(offset, buffer.len())?;
        let entry =
            opcode::Read::new(self.descriptor(), buffer.as_mut_ptr(), buffer.len() as u32).offset(at).build();
        submit(&[entry])
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let offset = match self.how.append {
            // Round and round: a log on a bare range has no other end.
            true => self.place.end.fetch_add(data.len() as u64, Ordering::Relaxed) % self.place.room,
            false => offset,
        };
        let at = self.locate(offset, data.len())?;
        self.put(data, at, self.how.data_sync)
    }
    fn sync(&self, _data_only: bool) -> Result<()> {
        submit(&[self.flush_entry()]).map(drop)
    }
    fn write_durably(&self, data: &[u8], offset: u64) -> Result<()> {
        self.put(data, self.locate(offset, data.len())?, true)
    }
    /// The limit of a group: its bytes in one piece, and a flush.
    fn group(&self, pieces: &[Piece<'_>]) -> Result<()> {
        let bytes: usize = pieces.iter().map(|(data, _)| data.len()).sum();
        let mut whole = AlignedBuf::zeroed(bytes.next_multiple_of(4096));
        let mut end = 0;
        for (data, _) in pieces {
            whole[end..end + data.len()].copy_from_slice(data);
            end += data.len();
        }
        let last = self.place.room.saturating_sub(whole.len() as u64);
        let offset = pieces.first().map_or(0, |&(_, offset)| offset).min(last);
        self.put(&whole, self.locate(offset, whole.len())?, true)
    }
}

impl Target for Raw {
    fn open(&self, path: &str, how: How) -> Result<Arc<dyn Handle>> {
        let mut places = self.0.places.lock();
        let place = match places.get(path) {
            Some(place) => place.clone(),
            None => {
                let start = places.values().map(|place| place.start + place.room).max().unwrap_or(0);
                let room = how.room.next_multiple_of(4096);
                if start + room > self.0.bytes {
                    return Err(Error::new(ErrorKind::NoSpace, "the image has no room for another range"));
                }
                let place = Arc::new(Place { start, room, end: AtomicU64::new(0) });
                places.insert(path.to_owned(), place.clone());
                place
            }
        };
        Ok(Arc::new(Open { shared: self.0.clone(), place, how }))
    }
    fn sync(&self) -> Result<()> {
        self.0.file.sync_data().map_err(os("fdatasync of the bare image"))
    }
    fn counters(&self) -> Counters {
        let written = Some(self.0.written.load(Ordering::Relaxed));
        Counters {
            device_bytes_written: written,
            data_bytes_written: written,
            device_flushes: Some(self.0.flushes.load(Ordering::Relaxed)),
            ..Counters::default()
        }
    }
}
