//! Quire's errors as Python's.
//!
//! An `OSError` with a number becomes the class that belongs to it: `FileNotFoundError`, `BlockingIOError`
//! and so on. Its text is Quire's. `filename` and `filename2` have the paths, which `str(error)` shows behind
//! the text.

use crate::path::text;
use pyo3::exceptions::PyOSError;
use pyo3::{PyErr, PyResult, Python};
use std::path::Path;

/// The exception for an error.
pub fn exception(error: &quire::Error) -> PyErr {
    PyOSError::new_err((error.errno(), error.to_string()))
}

/// The exception for an error of what was done to a path, or with two.
pub fn exception_at(py: Python<'_>, error: &quire::Error, paths: &[&Path]) -> PyErr {
    if paths.is_empty() {
        return exception(error);
    }
    let message = error.to_string();
    // Quire's text names the paths, too: once is enough.
    let cause = paths.iter().fold(message.as_str(), |rest, path| {
        rest.split_once(&format!(" {}: ", path.display())).map_or(rest, |(_, rest)| rest)
    });
    let name = |index: usize| {
        paths.get(index).map(|path| text(py, path.as_os_str()).map(|name| name.unbind())).transpose()
    };
    match (name(0), name(1)) {
        (Ok(first), Ok(second)) => {
            PyOSError::new_err((error.errno(), cause.to_string(), first, None::<i32>, second))
        }
        (Err(error), _) | (_, Err(error)) => error,
    }
}

/// Results on their way to Python.
pub trait OrRaise<T> {
    /// The value, or an exception.
    fn or_raise(self) -> PyResult<T>;
    /// The value, or an exception that has the paths.
    fn or_raise_at(self, py: Python<'_>, paths: &[&Path]) -> PyResult<T>;
}

impl<T> OrRaise<T> for quire::Result<T> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(|error| exception(&error))
    }

    fn or_raise_at(self, py: Python<'_>, paths: &[&Path]) -> PyResult<T> {
        self.map_err(|error| exception_at(py, &error, paths))
    }
}
