//! A volume, for `quire.Volume`, and `quire.mkfs`.

use crate::error::OrRaise;
use crate::file::{NativeFile, property_fields, stat_fields};
use crate::of_process::OfProcess;
use crate::path::{Name, Place, text};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use quire::{
    AccessTimes, FileTimes, FileType, FormatOptions, Metadata, OpenOptions, RenameFlags, ResizeOptions,
    Volume, VolumeInfo, VolumeOptions,
};
use quire_base::sync::Mutex;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A volume, until it is closed. `quire.Volume` is a subclass.
#[pyclass(frozen, subclass, module = "quire._native")]
pub struct NativeVolume {
    volume: OfProcess<Mutex<Option<Volume>>>,
}

impl NativeVolume {
    /// The volume; an exception if it is closed.
    pub fn open_volume(&self) -> PyResult<Volume> {
        let volume = self.volume.get()?.lock().clone();
        volume.ok_or_else(|| PyValueError::new_err("the volume is closed"))
    }

    /// Does something with the volume while others may run Python.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&Volume) -> quire::Result<T> + Send,
    ) -> PyResult<T> {
        self.at(py, [], |volume, []| act(volume))
    }

    fn metadata(&self, py: Python<'_>, path: &Place, follow_symlinks: bool) -> PyResult<Metadata> {
        self.at(py, [path], |volume, [path]| match follow_symlinks {
            true => volume.metadata(path),
            false => volume.symlink_metadata(path),
        })
    }

    /// Does something with paths of the volume while others may run Python.
    fn at<T: Send, const N: usize>(
        &self,
        py: Python<'_>,
        places: [&Place; N],
        act: impl FnOnce(&Volume, [&Path; N]) -> quire::Result<T> + Send,
    ) -> PyResult<T> {
        let mut paths = [Path::new(""); N];
        for (path, place) in paths.iter_mut().zip(places) {
            *path = place.within(py, self)?;
        }
        let volume = self.open_volume()?;
        let done = py.detach(|| {
            let done = act(&volume, paths);
            drop(volume);
            done
        });
        done.or_raise_at(py, &paths)
    }
}

/// A letter for a kind of file, as `quire.DirEntry` has it.
fn letter(kind: FileType) -> char {
    match kind {
        FileType::Regular => 'f',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        _ => 'o',
    }
}

/// Seconds since 1970.
fn seconds(time: impl Into<SystemTime>) -> f64 {
    match time.into().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs_f64(),
        Err(error) => -error.duration().as_secs_f64(),
    }
}

fn info_dict<'py>(py: Python<'py>, info: &VolumeInfo) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("uuid", PyBytes::new(py, &info.uuid))?;
    dict.set_item("label", &info.label)?;
    dict.set_item("version", info.version)?;
    dict.set_item("block_size", info.block_size)?;
    dict.set_item("blocks", info.blocks)?;
    dict.set_item("journal_blocks", info.journal_blocks)?;
    dict.set_item("free_blocks", info.free_blocks)?;
    dict.set_item("inodes", info.inodes)?;
    dict.set_item("clean", info.clean)?;
    dict.set_item("created", seconds(info.created))?;
    dict.set_item("mounted", seconds(info.mounted))?;
    Ok(dict)
}

/// Makes a volume in an image file or on a block device.
#[pyfunction]
#[pyo3(signature = (image, size, label, journal_bytes, force))]
pub fn mkfs<'py>(
    py: Python<'py>,
    image: Name,
    size: Option<u64>,
    label: String,
    journal_bytes: Option<u64>,
    force: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let mut options = FormatOptions::new().label(label).force(force);
    if let Some(size) = size {
        options = options.size(size);
    }
    if let Some(bytes) = journal_bytes {
        options = options.journal_bytes(bytes);
    }
    let info = py.detach(|| options.format(&image)).or_raise_at(py, &[image.as_ref()])?;
    info_dict(py, &info)
}

/// Makes a volume, or its journal, larger.
#[pyfunction]
#[pyo3(signature = (image, size, whole, journal_bytes))]
pub fn resize<'py>(
    py: Python<'py>,
    image: Name,
    size: Option<u64>,
    whole: bool,
    journal_bytes: Option<u64>,
) -> PyResult<Bound<'py, PyDict>> {
    let mut options = ResizeOptions::new();
    if let Some(size) = size {
        options = options.size(size);
    }
    if whole {
        options = options.whole();
    }
    if let Some(bytes) = journal_bytes {
        options = options.journal_bytes(bytes);
    }
    let info = py.detach(|| options.resize(&image)).or_raise_at(py, &[image.as_ref()])?;
    info_dict(py, &info)
}

/// Rolls a volume that nobody has open back to its newest snapshot.
#[pyfunction]
pub fn roll_back(py: Python<'_>, image: Name, name: String) -> PyResult<()> {
    py.detach(|| quire::roll_back(&image, &name)).map(drop).or_raise_at(py, &[image.as_ref()])
}

/// Changes the label of a volume.
#[pyfunction]
pub fn set_label<'py>(py: Python<'py>, image: Name, label: String) -> PyResult<Bound<'py, PyDict>> {
    let info = py.detach(|| quire::set_label(&image, &label)).or_raise_at(py, &[image.as_ref()])?;
    info_dict(py, &info)
}

fn time(nanos: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanos.unsigned_abs());
    if nanos < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

#[pymethods]
impl NativeVolume {
    #[new]
    #[pyo3(signature = (image, *, read_only = false, cache_bytes = None, node_cache_bytes = None, discard = false,
                        access_times = "relative", lazy_times = false, commit_seconds = 5, snapshot = None,
                        _beside = None))]
    #[allow(clippy::too_many_arguments)] // They are keywords.
    fn new(
        py: Python<'_>,
        image: Name,
        read_only: bool,
        cache_bytes: Option<u64>,
        node_cache_bytes: Option<u64>,
        discard: bool,
        access_times: &str,
        lazy_times: bool,
        commit_seconds: u32,
        snapshot: Option<String>,
        _beside: Option<PyRef<'_, NativeVolume>>,
    ) -> PyResult<NativeVolume> {
        if let (Some(beside), Some(name)) = (&_beside, &snapshot) {
            let volume = beside.with(py, |volume| volume.open_snapshot(name))?;
            return Ok(NativeVolume { volume: OfProcess::new(Mutex::new(Some(volume))) });
        }
        let access_times = match access_times {
            "relative" => AccessTimes::Relative,
            "never" => AccessTimes::Never,
            "strict" => AccessTimes::Strict,
            other => {
                return Err(PyValueError::new_err(format!(
                    "access_times={other:?}: the choices are relative, never and strict"
                )));
            }
        };
        let mut options = VolumeOptions::new()
            .read_only(read_only)
            .discard(discard)
            .access_times(access_times)
            .lazy_times(lazy_times)
            .commit_seconds(commit_seconds);
        if let Some(name) = &snapshot {
            options = options.read_only(true).snapshot(name);
        }
        if let Some(bytes) = cache_bytes {
            options = options.cache_bytes(bytes);
        }
        if let Some(bytes) = node_cache_bytes {
            options = options.node_cache_bytes(bytes);
        }
        let volume = py.detach(|| options.open(&image)).or_raise_at(py, &[image.as_ref()])?;
        Ok(NativeVolume { volume: OfProcess::new(Mutex::new(Some(volume))) })
    }

    /// Writes everything back and closes; a second time nothing happens.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(volume) = self.volume.get()?.lock().take() else { return Ok(()) };
        py.detach(|| volume.close()).or_raise()
    }

    /// Takes a snapshot.
    fn take_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.with(py, |volume| volume.take_snapshot(name).map(drop))
    }

    /// Deletes a snapshot; with `wait` its space is free when this returns.
    #[pyo3(signature = (name, *, wait = true))]
    fn delete_snapshot(&self, py: Python<'_>, name: &str, wait: bool) -> PyResult<()> {
        self.with(py, |volume| match wait {
            true => volume.delete_snapshot(name),
            false => volume.delete_snapshot_later(name),
        })
    }

    /// What `quire.Snapshot` is made of, the oldest first: name, number, seconds since 1970, whether it is
    /// being deleted.
    fn _snapshots(&self, py: Python<'_>) -> PyResult<Vec<(String, u32, f64, bool)>> {
        let all = self.with(py, |volume| volume.snapshots())?;
        let one =
            |info: quire::SnapshotInfo| (info.name, info.number, info.created.0 as f64 / 1e9, info.deleting);
        Ok(all.into_iter().map(one).collect())
    }

    /// False in a process that was forked off from the volume's.
    fn _of_this_process(&self) -> bool {
        self.volume.get().is_ok()
    }

    #[getter]
    fn closed(&self) -> PyResult<bool> {
        Ok(self.volume.get()?.lock().is_none())
    }

    #[getter]
    fn read_only(&self) -> PyResult<bool> {
        Ok(self.open_volume()?.is_read_only())
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Volume::sync)
    }

    fn _trim(&self, py: Python<'_>, start: u64, end: u64) -> PyResult<u64> {
        self.with(py, |volume| volume.trim(start..end))
    }

    fn _info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        info_dict(py, &self.open_volume()?.info())
    }

    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for metric in &self.open_volume()?.metrics() {
            dict.set_item(&metric.name, metric.value)?;
        }
        Ok(dict)
    }

    /// Blocks, free, available, inodes, free inodes, block size, longest name.
    fn _statfs(&self) -> PyResult<(u64, u64, u64, u64, u64, u32, u32)> {
        let s = self.open_volume()?.statfs();
        Ok((s.blocks, s.free, s.available, s.inodes, s.free_inodes, s.block_size, s.name_max))
    }

    #[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools)] // Called by `Volume.open` alone.
    fn _open(
        &self,
        py: Python<'_>,
        path: Place,
        read: bool,
        write: bool,
        append: bool,
        create: bool,
        create_new: bool,
        truncate: bool,
        direct: bool,
        sync: Option<&str>,
        permissions: u32,
    ) -> PyResult<NativeFile> {
        let (all, data) = match sync {
            None => (false, false),
            Some("all") => (true, false),
            Some("data") => (false, true),
            Some(other) => {
                return Err(PyValueError::new_err(format!("sync={other:?}: the choices are all and data")));
            }
        };
        let options = OpenOptions::new().read(read).write(write).append(append).create(create);
        let options = options.create_new(create_new).truncate(truncate).direct(direct).mode(permissions);
        let options = options.sync(all).data_sync(data);
        let file = self.at(py, [&path], |volume, [path]| options.open(volume, path))?;
        Ok(NativeFile::new(file, path.within(py, self)?, append))
    }

    fn _stat(&self, py: Python<'_>, path: Place, follow_symlinks: bool) -> PyResult<Py<PyAny>> {
        stat_fields(py, &self.metadata(py, &path, follow_symlinks)?)
    }

    /// When what a path leads to was created, in seconds since 1970.
    fn created(&self, py: Python<'_>, path: Place) -> PyResult<f64> {
        Ok(seconds(self.metadata(py, &path, true)?.created()))
    }

    /// The path as text; an exception if it belongs to another volume.
    fn _text<'py>(&self, py: Python<'py>, path: Place) -> PyResult<Bound<'py, PyAny>> {
        text(py, path.within(py, self)?.as_os_str())
    }

    /// Names, kinds and inode numbers of a directory's entries.
    fn _entries<'py>(&self, py: Python<'py>, path: Place) -> PyResult<Vec<(Bound<'py, PyAny>, char, u64)>> {
        let entries =
            self.at(py, [&path], |volume, [path]| volume.read_dir(path)?.collect::<quire::Result<Vec<_>>>())?;
        entries
            .iter()
            .map(|entry| Ok((text(py, &entry.file_name())?, letter(entry.file_type()), entry.ino().0)))
            .collect()
    }

    #[pyo3(signature = (path, mode = 0o755))]
    fn mkdir(&self, py: Python<'_>, path: Place, mode: u32) -> PyResult<()> {
        self.at(py, [&path], |volume, [path]| {
            volume.create_dir(path)?;
            if mode == 0o755 { Ok(()) } else { volume.set_permissions(path, Permissions::from_mode(mode)) }
        })
    }

    fn _makedirs(&self, py: Python<'_>, path: Place) -> PyResult<()> {
        self.at(py, [&path], |volume, [path]| volume.create_dir_all(path))
    }

    fn rmdir(&self, py: Python<'_>, path: Place) -> PyResult<()> {
        self.at(py, [&path], |volume, [path]| volume.remove_dir(path))
    }

    fn rmtree(&self, py: Python<'_>, path: Place) -> PyResult<()> {
        self.at(py, [&path], |volume, [path]| volume.remove_dir_all(path))
    }

    fn unlink(&self, py: Python<'_>, path: Place) -> PyResult<()> {
        self.at(py, [&path], |volume, [path]| volume.remove_file(path))
    }

    #[pyo3(signature = (source, target, *, replace = true))]
    fn rename(&self, py: Python<'_>, source: Place, target: Place, replace: bool) -> PyResult<()> {
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        self.at(py, [&source, &target], |volume, [source, target]| volume.rename_with(source, target, flags))
    }

    fn exchange(&self, py: Python<'_>, one: Place, other: Place) -> PyResult<()> {
        self.at(py, [&one, &other], |volume, [one, other]| {
            volume.rename_with(one, other, RenameFlags::EXCHANGE)
        })
    }

    fn link(&self, py: Python<'_>, source: Place, target: Place) -> PyResult<()> {
        self.at(py, [&source, &target], |volume, [source, target]| volume.hard_link(source, target))
    }

    fn symlink(&self, py: Python<'_>, source: Place, target: Place) -> PyResult<()> {
        self.at(py, [&source, &target], |volume, [source, target]| volume.symlink(source, target))
    }

    fn readlink<'py>(&self, py: Python<'py>, path: Place) -> PyResult<Bound<'py, PyAny>> {
        let target = self.at(py, [&path], |volume, [path]| volume.read_link(path))?;
        text(py, target.as_os_str())
    }

    fn copyfile(&self, py: Python<'_>, source: Place, target: Place) -> PyResult<u64> {
        self.at(py, [&source, &target], |volume, [source, target]| volume.copy(source, target))
    }

    fn chmod(&self, py: Python<'_>, path: Place, mode: u32) -> PyResult<()> {
        self.at(py, [&path], |volume, [path]| volume.set_permissions(path, Permissions::from_mode(mode)))
    }

    #[pyo3(signature = (path, uid = None, gid = None, *, follow_symlinks = true))]
    fn chown(
        &self,
        py: Python<'_>,
        path: Place,
        uid: Option<u32>,
        gid: Option<u32>,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        self.at(py, [&path], |volume, [path]| match follow_symlinks {
            true => volume.chown(path, uid, gid),
            false => volume.lchown(path, uid, gid),
        })
    }

    /// Sets times, in nanoseconds since 1970.
    fn _utime(&self, py: Python<'_>, path: Place, accessed: i64, modified: i64) -> PyResult<()> {
        let times = FileTimes::new().set_accessed(time(accessed)).set_modified(time(modified));
        self.at(py, [&path], |volume, [path]| volume.set_times(path, times))
    }

    fn _properties(&self, py: Python<'_>, path: Place) -> PyResult<(u64, bool)> {
        self.at(py, [&path], |volume, [path]| volume.properties(path)).map(property_fields)
    }

    /// The most bytes, in whole blocks, that a group of writes may have: the free space.
    #[getter]
    fn group_bytes_max(&self) -> PyResult<u64> {
        Ok(self.open_volume()?.group_bytes_max())
    }

    fn _getxattr<'py>(
        &self,
        py: Python<'py>,
        path: Place,
        name: Name,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.at(py, [&path], |volume, [path]| volume.get_xattr(path, name))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    fn setxattr(&self, py: Python<'_>, path: Place, name: Name, value: &[u8]) -> PyResult<()> {
        self.at(py, [&path], |volume, [path]| volume.set_xattr(path, name, value))
    }

    fn removexattr(&self, py: Python<'_>, path: Place, name: Name) -> PyResult<()> {
        self.at(py, [&path], |volume, [path]| volume.remove_xattr(path, name))
    }

    fn listxattr<'py>(&self, py: Python<'py>, path: Place) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let names = self.at(py, [&path], |volume, [path]| volume.list_xattrs(path))?;
        names.iter().map(|name| text(py, name)).collect()
    }
}

impl Drop for NativeVolume {
    /// The last handle closes the volume, which may take its time: Python's other threads need not wait.
    fn drop(&mut self) {
        let Ok(volume) = self.volume.get() else { return };
        let volume = volume.lock().take();
        if volume.is_some() {
            // Without an interpreter, at its end, there is nobody to wait for this thread.
            let _ = Python::try_attach(|py| py.detach(|| drop(volume)));
        }
    }
}
