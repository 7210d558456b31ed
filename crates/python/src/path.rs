//! Paths and names from Python: text, bytes, or what `os.fspath` takes. A path in a volume may be a
//! `quire.Path`, too.

use crate::error::exception_at;
use crate::volume::NativeVolume;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyString, PyType};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The name of an attribute or of an image. Text that is not UTF-8 travels as `os.fsencode` has it.
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
        let bytes = if let Ok(bytes) = given.cast::<PyBytes>() {
            bytes.as_bytes().to_vec()
        } else if let Ok(text) = given.cast::<PyString>()
            && let Ok(text) = text.to_str()
        {
            text.as_bytes().to_vec()
        } else {
            let fsencode = FSENCODE.import(given.py(), "os", "fsencode")?;
            fsencode.call1((given,))?.cast::<PyBytes>()?.as_bytes().to_vec()
        };
        if bytes.contains(&0) {
            return Err(PyValueError::new_err("embedded null byte"));
        }
        Ok(Name(OsString::from_vec(bytes)))
    }
}

/// A path in a volume.
pub struct Place {
    name: Name,
    /// The volume of a `quire.Path`.
    volume: Option<Py<NativeVolume>>,
}

impl Place {
    /// The path in `volume`; an exception if it belongs to another one.
    pub fn within(&self, py: Python<'_>, volume: &NativeVolume) -> PyResult<&Path> {
        let path = self.name.as_ref();
        if self.volume.as_ref().is_none_or(|own| std::ptr::eq(own.get(), volume)) {
            return Ok(path);
        }
        let error = quire::Error::new(quire::ErrorKind::CrossDevice, "the path belongs to another volume");
        Err(exception_at(py, &error, &[path]))
    }
}

impl<'py> FromPyObject<'_, 'py> for Place {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Place> {
        static PATH: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        if given.is_instance_of::<PyString>()
            || !given.is_instance(PATH.import(given.py(), "quire._path", "Path")?)?
        {
            return Ok(Place { name: given.extract()?, volume: None });
        }
        let volume = given.getattr("volume")?.cast_into::<NativeVolume>()?.unbind();
        Ok(Place { name: given.str()?.extract()?, volume: Some(volume) })
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
