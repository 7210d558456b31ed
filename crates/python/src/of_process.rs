//! What belongs to one process.
//!
//! A volume has threads, and `fork` takes its memory without them: in a child, a call would wait for ever,
//! and closing would write to the image beside the parent. So a child is refused, and what it inherited is
//! never dropped in it.

use pyo3::exceptions::PyRuntimeError;
use pyo3::{PyErr, PyResult};
use std::mem::ManuallyDrop;

/// A value that only the process that made it may use and drop.
pub struct OfProcess<T> {
    process: u32,
    value: ManuallyDrop<T>,
}

impl<T> OfProcess<T> {
    pub fn new(value: T) -> OfProcess<T> {
        OfProcess { process: std::process::id(), value: ManuallyDrop::new(value) }
    }

    /// The value; an exception in a process that was forked off.
    pub fn get(&self) -> PyResult<&T> {
        if std::process::id() == self.process { Ok(&self.value) } else { Err(self.refused()) }
    }

    #[cold]
    fn refused(&self) -> PyErr {
        PyRuntimeError::new_err(format!(
            "the volume belongs to process {}, from which this one was forked; open it after the fork, in one process, \
             or start processes with multiprocessing's method \"spawn\"",
            self.process
        ))
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if std::process::id() == self.process {
            // SAFETY: the value is not used again: this is the end of its owner, which is the only access.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
