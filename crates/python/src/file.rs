//! An open file, for `quire.File`.
//!
//! Offsets are given, or the position is used: it is moved under its lock with the operation, so that threads
//! that share a file read each byte once. `bytes` that are read are filled in place.

use crate::error::OrRaise;
use crate::of_process::OfProcess;
use crate::path::{Name, text};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use quire::{Advice, File, Metadata, Properties};
use quire_base::sync::{Arc, Mutex};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A file, until it is closed.
#[pyclass(frozen, module = "quire._native")]
pub struct NativeFile {
    /// What it was opened as, for exceptions.
    path: PathBuf,
    file: OfProcess<Mutex<Option<Arc<File>>>>,
    position: Mutex<u64>,
}

/// What `os.stat_result` is made of, in its order.
pub fn stat_fields(py: Python<'_>, metadata: &Metadata) -> PyResult<Py<PyAny>> {
    let nanos = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    let atime = nanos(metadata.atime(), metadata.atime_nsec());
    let mtime = nanos(metadata.mtime(), metadata.mtime_nsec());
    let ctime = nanos(metadata.ctime(), metadata.ctime_nsec());
    let float = |nanos: i128| nanos as f64 / 1e9;
    let first = (
        metadata.mode(),
        metadata.ino().0,
        0u64,
        metadata.nlink(),
        metadata.uid(),
        metadata.gid(),
        metadata.len(),
    );
    let seconds = (metadata.atime(), metadata.mtime(), metadata.ctime());
    let floats = (float(atime), float(mtime), float(ctime));
    let nanos = (atime, mtime, ctime);
    let last = (quire::backend::BLOCK_SIZE, metadata.blocks(), metadata.rdev());
    let fields = PyList::empty(py);
    fields.call_method1("extend", (first,))?;
    fields.call_method1("extend", (seconds,))?;
    fields.call_method1("extend", (floats,))?;
    fields.call_method1("extend", (nanos,))?;
    fields.call_method1("extend", (last,))?;
    Ok(fields.into_any().unbind())
}

/// What `quire.Properties` is made of.
pub fn property_fields(properties: Properties) -> (u64, bool) {
    (properties.untorn.map_or(0, |unit| unit.bytes()), properties.cache_drop)
}

impl NativeFile {
    pub fn new(file: File, path: &Path, appends: bool) -> NativeFile {
        // As `open` of Python: programs ask whether they stand at the beginning.
        let position = if appends { file.metadata().len() } else { 0 };
        NativeFile {
            path: path.to_path_buf(),
            file: OfProcess::new(Mutex::new(Some(Arc::new(file)))),
            position: Mutex::new(position),
        }
    }

    /// What it was opened as.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file; an exception if it is closed.
    pub fn open_file(&self) -> PyResult<Arc<File>> {
        let file = self.file.get()?.lock().clone();
        file.ok_or_else(|| PyValueError::new_err("I/O operation on closed file."))
    }

    /// Does something with the file while others may run Python.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&File) -> quire::Result<T> + Send,
    ) -> PyResult<T> {
        let file = self.open_file()?;
        py.detach(|| act(&file)).or_raise_at(py, &[&self.path])
    }
}

/// Room behind the end of a file that grew while it was read.
const MORE_BYTES: u64 = 64 << 10;

/// `bytes` of at most `count` bytes that one call of `fill` reads. `there` tells how many bytes the file has
/// behind the offset, so that a large count costs no memory. `path` is for an exception.
pub fn read_bytes<'py>(
    py: Python<'py>,
    path: &Path,
    there: impl Fn() -> PyResult<u64>,
    count: u64,
    fill: impl Fn(&mut [u8]) -> quire::Result<usize> + Sync,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut more = 1;
    loop {
        // One byte more than the file has: a read that fills this has met a write that made the file longer,
        // and may have only a part of it. The next try leaves room for more such writes.
        let most = there()?.saturating_add(more).min(count) as usize;
        more = (2 * more).max(MORE_BYTES);
        let mut got = 0;
        let bytes = PyBytes::new_with(py, most, |buffer| {
            got = py.detach(|| fill(buffer)).or_raise_at(py, &[path])?;
            Ok(())
        })?;
        if most as u64 == count && got == most {
            return Ok(bytes);
        }
        if got < most {
            return Ok(PyBytes::new(py, &bytes.as_bytes()[..got]));
        }
    }
}

#[pymethods]
impl NativeFile {
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.file.get()?.lock().take();
        py.detach(|| drop(file));
        Ok(())
    }

    fn pread<'py>(&self, py: Python<'py>, count: u64, offset: u64) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.open_file()?;
        let there = || Ok(file.metadata().len().saturating_sub(offset));
        read_bytes(py, &self.path, there, count, |buffer| file.read_at(buffer, offset))
    }

    fn pwrite(&self, py: Python<'_>, data: &[u8], offset: u64) -> PyResult<usize> {
        self.with(py, |file| file.write_at(data, offset))
    }

    fn append(&self, py: Python<'_>, data: &[u8]) -> PyResult<u64> {
        self.with(py, |file| file.append(data))
    }

    /// Reads at the position; without a count to the end of the file.
    #[pyo3(signature = (count = None))]
    fn read<'py>(&self, py: Python<'py>, count: Option<u64>) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.open_file()?;
        let count = count.unwrap_or(u64::MAX);
        let there = || {
            let position = py.detach(|| *self.position.lock());
            Ok(file.metadata().len().saturating_sub(position))
        };
        read_bytes(py, &self.path, there, count, |buffer| {
            let mut position = self.position.lock();
            let done = file.read_at(buffer, *position)?;
            // What fills a buffer short of the count is read again.
            if done < buffer.len() || done as u64 == count {
                *position += done as u64;
            }
            Ok(done)
        })
    }

    /// Writes at the position, or at the end of a file that was opened for appending; gives the count, which
    /// is short only after an error in the midst of a large write.
    fn write(&self, py: Python<'_>, data: &[u8]) -> PyResult<usize> {
        self.with(py, |file| {
            let mut position = self.position.lock();
            let mut cursor = file.cursor();
            cursor.set_position(*position);
            let done = cursor.write(data).map_err(|error| match error.downcast::<quire::Error>() {
                Ok(error) => error,
                Err(error) => quire::Error::os("writing", &error),
            })?;
            *position = cursor.position();
            Ok(done)
        })
    }

    fn tell(&self, py: Python<'_>) -> u64 {
        py.detach(|| *self.position.lock())
    }

    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        self.with(py, |file| {
            let invalid = || quire::Error::invalid(format!("a seek by {offset} with whence {whence}"));
            let none = || {
                let text = format!("there is no data or hole behind offset {offset}");
                quire::Error::new(quire::ErrorKind::NoData, text)
            };
            let from = u64::try_from(offset).map_err(|_| none());
            let by = |base: u64| {
                let sum = base.checked_add_signed(offset).filter(|sum| i64::try_from(*sum).is_ok());
                sum.ok_or_else(invalid)
            };
            let mut position = self.position.lock();
            *position = match whence {
                0 => by(0)?,
                1 => by(*position)?,
                2 => by(file.metadata().len())?,
                3 => file.seek_data(from?)?.ok_or_else(none)?,
                4 => file.seek_hole(from?)?.ok_or_else(none)?,
                _ => return Err(invalid()),
            };
            Ok(*position)
        })
    }

    fn truncate(&self, py: Python<'_>, size: i64) -> PyResult<()> {
        let size = u64::try_from(size).map_err(|_| quire::Error::invalid(format!("a size of {size} bytes")));
        self.with(py, |file| file.set_len(size?))
    }

    fn sync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        self.with(py, |file| if data_only { file.sync_data() } else { file.sync_all() })
    }

    fn allocate(&self, py: Python<'_>, offset: u64, length: u64, keep_size: bool) -> PyResult<()> {
        self.with(py, |file| match keep_size {
            true => file.allocate_keep_size(offset, length),
            false => file.allocate(offset, length),
        })
    }

    fn punch_hole(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        self.with(py, |file| file.punch_hole(offset, length))
    }

    fn zero_range(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        self.with(py, |file| file.zero_range(offset, length))
    }

    fn collapse_range(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        self.with(py, |file| file.collapse_range(offset, length))
    }

    fn insert_range(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        self.with(py, |file| file.insert_range(offset, length))
    }

    fn copy_range_to(
        &self,
        py: Python<'_>,
        offset: u64,
        to: &NativeFile,
        to_offset: u64,
        length: u64,
    ) -> PyResult<u64> {
        let to = to.open_file()?;
        self.with(py, |file| file.copy_range_to(offset, &to, to_offset, length))
    }

    fn advise(&self, py: Python<'_>, offset: u64, length: u64, advice: &str) -> PyResult<()> {
        let advice = match advice {
            "normal" => Advice::Normal,
            "sequential" => Advice::Sequential,
            "random" => Advice::Random,
            "willneed" => Advice::WillNeed,
            "dontneed" => Advice::DontNeed,
            other => {
                return Err(PyValueError::new_err(format!(
                    "advice {other:?}: the choices are normal, sequential, random, willneed and dontneed"
                )));
            }
        };
        self.with(py, |file| file.advise(offset, length, advice))
    }

    fn stat(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        stat_fields(py, &self.open_file()?.metadata())
    }

    fn is_dir(&self) -> PyResult<bool> {
        Ok(self.open_file()?.metadata().is_dir())
    }

    fn properties(&self) -> PyResult<(u64, bool)> {
        Ok(property_fields(self.open_file()?.properties()))
    }

    fn getxattr<'py>(&self, py: Python<'py>, name: Name) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.with(py, |file| file.get_xattr(name.as_os_str()))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    fn setxattr(&self, py: Python<'_>, name: Name, value: &[u8]) -> PyResult<()> {
        self.with(py, |file| file.set_xattr(name.as_os_str(), value))
    }

    fn removexattr(&self, py: Python<'_>, name: Name) -> PyResult<()> {
        self.with(py, |file| file.remove_xattr(name.as_os_str()))
    }

    fn listxattr<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let names = self.with(py, File::list_xattrs)?;
        names.iter().map(|name| text(py, name)).collect()
    }
}
