//! What belongs to one process ([`quire_base::process`]), with an exception for a child.

use pyo3::exceptions::PyRuntimeError;
use pyo3::{PyErr, PyResult};
use quire_base::process;

/// A value that only the process that made it may use and drop.
pub struct OfProcess<T>(process::OfProcess<T>);

impl<T> OfProcess<T> {
    pub fn new(value: T) -> OfProcess<T> {
        OfProcess(process::OfProcess::new(value))
    }

    /// The value; an exception in a process that was forked off.
    pub fn get(&self) -> PyResult<&T> {
        self.0.get().map_err(refused)
    }
}

#[cold]
fn refused(why: quire_base::Error) -> PyErr {
    PyRuntimeError::new_err(format!("{why}, or start processes with multiprocessing's method \"spawn\""))
}
