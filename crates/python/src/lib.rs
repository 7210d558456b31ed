//! The module `quire._native`: volumes and files for the Python package `quire`.
//!
//! This side has what needs the library: operations by path and by offset, without the interpreter's lock
//! while they run. What Python programs know from `io`, `pathlib` and `fsspec` is written in Python, in
//! `python/quire`, over these classes.
//!
//! Invariants:
//! * No lock of this crate is held while the interpreter's lock is waited for, or the other way round: locks
//!   are taken inside of `Python::detach`, or for a moment that calls nothing.
//! * No thread of the library runs Python code ([`completions`]).
//! * A process that was forked off neither uses nor drops what belongs to its parent ([`of_process`]).
//! * Only `bytes`, which nobody can change, are read from while the interpreter's lock is free.
//!
//! Neighbours: `quire` (package `quire-fs`) does everything.

mod completions;
mod error;
mod file;
mod group;
mod of_process;
mod path;
mod volume;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use crate::completions::Completions;
    #[pymodule_export]
    use crate::file::NativeFile;
    #[pymodule_export]
    use crate::group::NativeGroup;
    #[pymodule_export]
    use crate::volume::{NativeVolume, mkfs, resize, roll_back, set_label};
}
