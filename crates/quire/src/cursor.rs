//! A position in an open file.
//!
//! Neighbours: [`File`] has everything that needs none.

use crate::file_handle::File;
use quire_base::{Error, ErrorKind};
use std::borrow::Borrow;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};

/// A position in a [`File`], for the traits of [`std::io`].
///
/// It works on a file, a reference to one, or an `Arc` of one; any number of cursors may share a file.
/// Nothing is buffered: wrap it in [`io::BufReader`] or [`io::BufWriter`] for small reads and writes. If the
/// file was opened for appending, writes go to its end, and the position then follows what was written.
///
/// ```
/// # use quire::{FormatOptions, Volume, VolumeOptions, backend::MemoryBackend};
/// use quire::OpenOptions;
/// use std::io::{BufRead, BufReader, Seek, Write};
///
/// # fn main() -> std::io::Result<()> {
/// # let device = std::sync::Arc::new(MemoryBackend::new(16384));
/// # FormatOptions::new().format_backend(device.clone())?;
/// # let volume = VolumeOptions::new().open_backend(device)?;
/// let file = OpenOptions::new().read(true).write(true).create(true).open(&volume, "names")?;
/// let mut cursor = file.cursor();
/// writeln!(cursor, "Ada")?;
/// writeln!(cursor, "Grace")?;
/// cursor.rewind()?;
/// let names: Vec<String> = BufReader::new(cursor).lines().collect::<Result<_, _>>()?;
/// assert_eq!(names, ["Ada", "Grace"]);
/// # drop(file);
/// # Ok(volume.close()?)
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Cursor<F> {
    file: F,
    position: u64,
}

impl<F: Borrow<File>> Cursor<F> {
    /// At the start of the file.
    pub fn new(file: F) -> Cursor<F> {
        Cursor { file, position: 0 }
    }

    /// The file.
    pub fn get_ref(&self) -> &File {
        self.file.borrow()
    }

    /// The file as it was given.
    pub fn into_inner(self) -> F {
        self.file
    }

    /// Where the next read begins, and the next write unless the file was opened for appending.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Sets it; it may be behind the end of the file.
    pub fn set_position(&mut self, position: u64) {
        self.position = position;
    }

    fn advance(&mut self, count: usize) -> usize {
        self.position += count as u64;
        count
    }

    /// Behind what was appended; where it was if that is nothing.
    fn appended(&mut self, offset: u64, count: usize) -> usize {
        if count > 0 {
            self.position = offset;
        }
        self.advance(count)
    }
}

impl<F: Borrow<File>> Read for Cursor<F> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.get_ref().read_at(buf, self.position)?;
        Ok(self.advance(count))
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let count = self.get_ref().read_vectored_at(bufs, self.position)?;
        Ok(self.advance(count))
    }
}

impl<F: Borrow<File>> Write for Cursor<F> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.get_ref().appends() {
            let (offset, count) = self.get_ref().append_some(buf)?;
            return Ok(self.appended(offset, count));
        }
        let count = self.get_ref().write_at(buf, self.position)?;
        Ok(self.advance(count))
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.get_ref().appends() {
            let (offset, count) = self.get_ref().append_some_vectored(bufs)?;
            return Ok(self.appended(offset, count));
        }
        let count = self.get_ref().write_vectored_at(bufs, self.position)?;
        Ok(self.advance(count))
    }

    /// Does nothing, as for [`std::fs::File`]: nothing is buffered here. [`File::sync_data`] makes data
    /// durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<F: Borrow<File>> Seek for Cursor<F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.get_ref().size().checked_add_signed(by),
        };
        self.position = position
            .filter(|&position| i64::try_from(position).is_ok())
            .ok_or_else(|| Error::new(ErrorKind::Invalid, format!("{to:?} is no position of a file")))?;
        Ok(self.position)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.position)
    }
}
