//! Paths and names from Python: text, bytes, or what `os.fspath` takes.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyString};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// A path inside a volume, or the name of an attribute. Text that is not UTF-8 travels as `os.fsencode` has
/// it.
pub struct Name(OsString);

impl Name {
    pub fn as_os_str(&self) -> &OsStr {
        &self.0
    }
}

impl AsRef<Path> for Name {
    fn as_ref(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl AsRef<OsStr> for Name {
    fn as_ref(&self) -> &OsStr {
        &self.0
    }
}

impl<'py> FromPyObject<'_, 'py> for Name {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Name> {
        static FSENCODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let bytes = match given.cast::<PyBytes>() {
            Ok(bytes) => bytes.as_bytes().to_vec(),
            Err(_) => {
                let fsencode = FSENCODE.import(given.py(), "os", "fsencode")?;
                fsencode.call1((given,))?.cast::<PyBytes>()?.as_bytes().to_vec()
            }
        };
        if bytes.contains(&0) {
            return Err(PyValueError::new_err("embedded null byte"));
        }
        Ok(Name(OsString::from_vec(bytes)))
    }
}

/// Text for Python, as `os.fsdecode` makes it.
pub fn text<'py>(py: Python<'py>, name: &OsStr) -> PyResult<Bound<'py, PyAny>> {
    static FSDECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    match name.to_str() {
        Some(text) => Ok(PyString::new(py, text).into_any()),
        None => FSDECODE.import(py, "os", "fsdecode")?.call1((PyBytes::new(py, name.as_bytes()),)),
    }
}
