//! `xfs`, `ext4`, `btrfs`: the kernel's file systems, each on a loop device with direct I/O over the image
//! file.
//!
//! Guards: [`Loop`] detaches the device, [`Mounted`] unmounts, in plain order first and lazily if something
//! still holds it. Once mounted, the device is set to vanish with its last user, so that not even a killed
//! run leaves more than a mount.

use super::system::{Behind, Snapshots, Source, System};
use super::{Spec, Workshop, skipped};
use crate::image::ZEROS;
use crate::outcome::{Outcome, Trouble, failed, os};
use crate::target::Target;
use quire_base::{Error, ErrorKind, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// One of the kernel's file systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// XFS.
    Xfs,
    /// ext4.
    Ext4,
    /// Btrfs.
    Btrfs,
}

impl FileSystem {
    fn name(self) -> &'static str {
        match self {
            FileSystem::Xfs => "xfs",
            FileSystem::Ext4 => "ext4",
            FileSystem::Btrfs => "btrfs",
        }
    }

    /// Arguments of its mkfs: overwrite, and no discards, which would punch holes all over the image.
    fn format_arguments(self) -> &'static [&'static str] {
        match self {
            FileSystem::Xfs => &["-q", "-f", "-K"],
            // Everything initialised now, and not by a thread in the background of the measurement.
            FileSystem::Ext4 => &["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"],
            FileSystem::Btrfs => &["-q", "-f", "-K"],
        }
    }

    /// Arguments for as many files; XFS and Btrfs make inodes as they need them.
    fn inode_arguments(self, files: u64) -> Vec<String> {
        // A few more than files: directories, and what the file system keeps for itself.
        match self {
            FileSystem::Ext4 if files > 0 => vec!["-N".into(), (files + files / 500 + 10_000).to_string()],
            _ => Vec::new(),
        }
    }
}

/// Formats and mounts.
pub fn set_up(file_system: FileSystem, spec: &Spec, workshop: &Workshop<'_>) -> Outcome<Box<dyn Target>> {
    let name = file_system.name();
    if !rustix::process::geteuid().is_root() {
        return Err(skipped(format!("{name} on a loop device needs root")));
    }
    let format = format!("mkfs.{name}");
    for tool in [format.as_str(), "losetup"] {
        if !is_installed(tool) {
            return Err(skipped(format!("the program {tool} is not installed")));
        }
    }
    let image = workshop.image()?;
    let device = Loop::attach(image.path())?;
    workshop.surroundings.interrupt.check()?;
    let inodes = file_system.inode_arguments(workshop.files);
    run(Command::new(&format).args(file_system.format_arguments()).args(inodes).arg(&device.path))?;
    // mkfs has the kernel zero its log or tables, which leaves holes in the image.
    image.fill_holes(ZEROS, workshop.surroundings)?;
    let dir = workshop.directory.join(name);
    std::fs::create_dir_all(&dir).map_err(os("making the mount point"))?;
    // Said either way: Btrfs discards by itself otherwise.
    let options = if spec.discard { c"discard" } else { c"nodiscard" };
    match mount(&device.path, &dir, name, MountFlags::NOATIME, options) {
        Ok(()) => {}
        Err(rustix::io::Errno::NODEV) => {
            return Err(skipped(format!("this kernel has no {name}")));
        }
        Err(error) => return Err(Error::os(format!("mounting {name}"), &error.into()).into()),
    }
    let statistics = device.statistics();
    let mounted = Mounted { dir: dir.clone(), device, file_system, mounted: true };
    mounted.device.vanish_when_unused();
    let system = System::new(dir, Some(Source::Block(statistics)), Box::new(mounted));
    Ok(Box::new(system.with_atomic(spec.atomic)))
}

/// Whether a program can be found; mkfs and losetup live where users do not always look.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    directories.into_iter().any(|directory| directory.join(program).is_file())
}

/// Runs a tool to its end, out of the reach of the terminal's Ctrl-C; its messages become the error.
fn run(command: &mut Command) -> Result<String, Trouble> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut path = path.to_owned();
    path.push(OsStr::new(":/usr/sbin:/sbin"));
    command.stdin(Stdio::null()).env("PATH", path).process_group(0);
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(os(format!("starting {name}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(failed(format!("{name} failed ({}): {said}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// What a program said, where the bench has begun: then anything that is missing is a failure.
fn said(outcome: Result<String, Trouble>) -> Result<String> {
    outcome.map_err(|trouble| match trouble {
        Trouble::Failed(error) => error,
        other => Error::new(ErrorKind::Io, other.to_string()),
    })
}

/// An attached loop device.
struct Loop {
    path: PathBuf,
    /// The file behind it, as the kernel names it; none once it was detached.
    backing: Option<String>,
}

impl Loop {
    fn attach(image: &Path) -> Outcome<Loop> {
        let attached = run(Command::new("losetup").args(["--direct-io=on", "--find", "--show"]).arg(image));
        match attached {
            Ok(path) if path.starts_with("/dev/") => {
                let mut device = Loop { path: path.into(), backing: None };
                device.backing = device.said("backing_file");
                if device.backing.is_none() {
                    device.vanish_when_unused();
                    return Err(failed(format!(
                        "nobody says which file is behind {}",
                        device.path.display()
                    )));
                }
                if device.said("dio").is_some_and(|is_direct| is_direct == "0") {
                    eprintln!(
                        "quire bench: {} refuses direct I/O, so its file system is cached twice",
                        device.path.display()
                    );
                }
                Ok(device)
            }
            Ok(said) => Err(failed(format!("losetup said '{said}' instead of a device"))),
            Err(Trouble::Failed(error)) => Err(skipped(format!("no loop device: {error}"))),
            Err(trouble) => Err(trouble),
        }
    }

    fn sysfs(&self) -> PathBuf {
        Path::new("/sys/block").join(self.path.file_name().unwrap_or_default())
    }

    fn statistics(&self) -> PathBuf {
        self.sysfs().join("stat")
    }

    /// What the kernel says of the device, while a file is behind it.
    fn said(&self, name: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.sysfs().join("loop").join(name)).ok()?;
        Some(text.strip_suffix('\n').unwrap_or(&text).to_owned())
    }

    /// Whether our file is behind it: another program may attach its own to a device that is free again.
    fn is_attached(&self) -> bool {
        let file = self.said("backing_file");
        let file = file.as_deref().map(|file| file.strip_suffix(" (deleted)").unwrap_or(file));
        file.is_some() && file == self.backing.as_deref()
    }

    /// Detaching a device in use makes the kernel do it at the last close.
    fn vanish_when_unused(&self) {
        let _ = run(Command::new("losetup").arg("--detach").arg(&self.path));
    }

    /// Detaches and waits until it is.
    fn detach(&mut self, patience: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            // While it is open, nobody can give the device another file between the look and the detaching.
            let held = std::fs::File::open(&self.path);
            if !self.is_attached() {
                self.backing = None;
                return Ok(());
            }
            self.vanish_when_unused();
            drop(held);
            if start.elapsed() > patience {
                return Err(Error::new(
                    quire_base::ErrorKind::Busy,
                    format!("{} is still in use and vanishes with its last user", self.path.display()),
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(error) = self.detach(Duration::from_secs(30)) {
            eprintln!("bench: {error}");
        }
    }
}

/// A mount, and the device under it.
struct Mounted {
    dir: PathBuf,
    device: Loop,
    file_system: FileSystem,
    mounted: bool,
}

impl Mounted {
    fn btrfs(&self, what: &[&str], paths: &[&Path]) -> Result<()> {
        self.btrfs_says(what, paths).map(drop)
    }

    fn btrfs_says(&self, what: &[&str], paths: &[&Path]) -> Result<String> {
        said(run(Command::new("btrfs").arg("subvolume").args(what).args(paths)))
    }

    fn unmount(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.mounted) {
            return Ok(());
        }
        let start = Instant::now();
        loop {
            match unmount(&self.dir, UnmountFlags::empty()) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::BUSY) if start.elapsed() < Duration::from_secs(5) => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => {
                    let doing = format!("unmounting {}", self.dir.display());
                    return unmount(&self.dir, UnmountFlags::DETACH)
                        .map_err(|_| Error::os(doing, &error.into()));
                }
            }
        }
    }
}

/// Of Btrfs, by its own program: a snapshot's time has the start of a process in it.
impl Snapshots for Mounted {
    fn take(&self, name: &str) -> Result<()> {
        self.btrfs(&["snapshot", "-r"], &[&self.dir, &self.dir.join(name)])
    }
    fn delete(&self, name: &str) -> Result<()> {
        self.btrfs(&["delete"], &[&self.dir.join(name)])?;
        // Btrfs cleans up behind commits, and one that is idle commits nothing.
        let nudge = self.dir.join("nudge");
        while self.btrfs_says(&["list", "-d"], &[&self.dir])?.contains("DELETED") {
            std::fs::write(&nudge, name).map_err(|error| Error::os("writing to Btrfs", &error))?;
            let mut sync = Command::new("btrfs");
            said(run(sync.args(["filesystem", "sync"]).arg(&self.dir)))?;
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Behind for Mounted {
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        (self.file_system == FileSystem::Btrfs).then_some(self as &dyn Snapshots)
    }
    fn take_down(mut self: Box<Self>) -> Result<()> {
        self.unmount()?;
        self.device.detach(Duration::from_secs(30))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("bench: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any file behind the device passed for the run's own: a device that had become free, and that another
    /// program then used, was detached from that program's file.
    #[test]
    fn a_device_with_another_file_is_left_alone() {
        let test = "a_device_with_another_file_is_left_alone";
        if !rustix::process::geteuid().is_root() || !is_installed("losetup") {
            return eprintln!("SKIPPED: {test}: needs root and losetup");
        }
        let directory = tempfile::tempdir().unwrap();
        let [ours, theirs] = ["ours", "theirs"].map(|name| directory.path().join(name));
        for file in [&ours, &theirs] {
            std::fs::write(file, vec![0; 1 << 20]).unwrap();
        }
        let device = match Loop::attach(&ours) {
            Ok(device) => device,
            Err(trouble) => return eprintln!("SKIPPED: {test}: {trouble}"),
        };
        assert!(device.is_attached());
        let path = device.path.clone();
        run(Command::new("losetup").arg("--detach").arg(&path)).unwrap();
        if let Err(trouble) = run(Command::new("losetup").arg(&path).arg(&theirs)) {
            return eprintln!("SKIPPED: {test}: the device is in use again: {trouble}");
        }
        drop(device);
        let mut device = Loop { path, backing: None };
        device.backing = Some(theirs.canonicalize().unwrap().display().to_string());
        let is_left = device.is_attached();
        device.detach(Duration::from_secs(10)).unwrap();
        assert!(is_left && !device.is_attached());
    }
}
