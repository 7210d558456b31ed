//! A group of writes, for `quire.Group` and `quire.FileGroup`.
//!
//! A group is in its handle until it is committed or aborted. Calls on one group exclude each other under the
//! handle's lock; a commit takes the group out first, so it waits with no lock held.

use crate::error::OrRaise;
use crate::file::{NativeFile, read_bytes};
use crate::of_process::OfProcess;
use crate::volume::NativeVolume;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use quire::{Commit, File, Group, Syncing};
use quire_base::sync::Mutex;
use std::time::Duration;

/// A group, until it has ended.
#[pyclass(frozen, module = "quire._native")]
pub struct NativeGroup {
    group: OfProcess<Mutex<Option<Group>>>,
    commit: Commit,
}

fn has_ended() -> PyErr {
    PyValueError::new_err("the group has been committed or aborted")
}

impl NativeGroup {
    /// Does something with the group and a file while others may run Python.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        file: &NativeFile,
        act: impl FnOnce(&mut Group, &File) -> quire::Result<T> + Send,
    ) -> PyResult<T> {
        let (slot, open) = (self.group.get()?, file.open_file()?);
        let outcome = py.detach(|| slot.lock().as_mut().map(|group| act(group, &open)));
        outcome.ok_or_else(has_ended)?.or_raise_at(py, &[file.path()])
    }

    /// Commits the group, which has then ended, also if that fails; gives its durability.
    pub fn commit_async(&self, py: Python<'_>) -> PyResult<Syncing> {
        let slot = self.group.get()?;
        let outcome = py.detach(|| {
            let group = slot.lock().take();
            group.map(|group| group.commit_async(self.commit))
        });
        outcome.ok_or_else(has_ended)?.or_raise()
    }
}

#[pymethods]
impl NativeGroup {
    #[new]
    fn new(volume: &NativeVolume, commit: &str, within: f64) -> PyResult<NativeGroup> {
        let commit = match commit {
            "now" => Commit::Now,
            "lazy" => Commit::Lazy(Duration::try_from_secs_f64(within).map_err(|error| {
                PyValueError::new_err(format!("within={within}: no time in seconds: {error}"))
            })?),
            "ordered" => Commit::Ordered,
            other => {
                return Err(PyValueError::new_err(format!(
                    "commit={other:?}: the choices are now, lazy and ordered"
                )));
            }
        };
        let group = volume.open_volume()?.atomic();
        Ok(NativeGroup { group: OfProcess::new(Mutex::new(Some(group))), commit })
    }

    fn pwrite(&self, py: Python<'_>, file: &NativeFile, data: &[u8], offset: u64) -> PyResult<usize> {
        self.with(py, file, |group, file| group.write_at(file, data, offset))?;
        Ok(data.len())
    }

    fn pread<'py>(
        &self,
        py: Python<'py>,
        file: &NativeFile,
        count: u64,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let there = || Ok(self.size(py, file)?.saturating_sub(offset));
        let (slot, open) = (self.group.get()?, file.open_file()?);
        read_bytes(py, file.path(), there, count, |buffer| match slot.lock().as_ref() {
            Some(group) => group.read_at(&open, buffer, offset),
            // Another thread has ended it just now: what it would have read is unknown.
            None => Err(quire::Error::invalid("the group has been committed or aborted")),
        })
    }

    fn truncate(&self, py: Python<'_>, file: &NativeFile, size: u64) -> PyResult<()> {
        self.with(py, file, |group, file| group.set_len(file, size))
    }

    fn size(&self, py: Python<'_>, file: &NativeFile) -> PyResult<u64> {
        self.with(py, file, |group, file| group.size(file))
    }

    /// Commits the group, which has then ended, also if that fails.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        let slot = self.group.get()?;
        let outcome = py.detach(|| {
            let group = slot.lock().take();
            group.map(|group| group.commit(self.commit))
        });
        outcome.ok_or_else(has_ended)?.or_raise()
    }

    /// Ends the group without a trace; nothing happens if it has ended.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let slot = self.group.get()?;
        py.detach(|| {
            let group = slot.lock().take();
            drop(group);
        });
        Ok(())
    }

    /// Whether it has been committed or aborted.
    #[getter]
    fn ended(&self, py: Python<'_>) -> PyResult<bool> {
        let slot = self.group.get()?;
        Ok(py.detach(|| slot.lock().is_none()))
    }
}
