//! Quire's errors as Python's.
//!
//! An `OSError` with a number becomes the class that belongs to it: `FileNotFoundError`, `BlockingIOError`
//! and so on. Its text is Quire's, which names the path.

use pyo3::exceptions::PyOSError;
use pyo3::{PyErr, PyResult};

/// The exception for an error.
pub fn exception(error: &quire::Error) -> PyErr {
    PyOSError::new_err((error.errno(), error.to_string()))
}

/// Results on their way to Python.
pub trait OrRaise<T> {
    /// The value, or an exception.
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for quire::Result<T> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(|error| exception(&error))
    }
}
