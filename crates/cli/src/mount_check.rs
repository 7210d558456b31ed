//! What a mount needs, looked at before a server is started: so that what is wrong is said to the caller.
//!
//! Neighbours: [`crate::commands::mount`] and the servers ([`crate::server`]) begin with it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quire_fuse::mount;

use crate::arguments::Mount;
use crate::exit::{self, Failure, Outcome};
use crate::image;
use crate::mount_options::MountOptions;

/// Arguments that have been looked at.
pub struct Checked {
    /// The volume's absolute path.
    pub volume: PathBuf,
    /// The mount point's absolute path.
    pub dir: PathBuf,
    /// The parsed options.
    pub options: MountOptions,
}

/// Looks at everything that can be wrong before a server is started.
pub fn check(arguments: &Mount) -> Outcome<Checked> {
    let options = MountOptions::parse(&arguments.options).map_err(Failure::usage)?;
    let volume = find(&arguments.volume, options.patience())?;
    let dir = mount::resolve(&arguments.dir)?;
    if let Some(entry) = mount::mounted_at(&dir)? {
        return Err(Failure::new(
            exit::BUSY,
            format!(
                "{} is already mounted at {}; unmount it first (`quire umount {}`), or choose another directory",
                entry.source.display(),
                dir.display(),
                dir.display()
            ),
        ));
    }
    if !dir.is_dir() {
        return Err(Failure::new(exit::MISSING, format!("mount point {} is not a directory", dir.display())));
    }
    // Not a volume, or of a newer format: said without starting anything.
    image::newest_superblock(&volume)?;
    Ok(Checked { volume, dir, options })
}

/// The volume's absolute path. One that a network brings may come later than its mount is asked for: until
/// then there is no such file, or a block device of size 0.
fn find(volume: &Path, patience: Duration) -> Outcome<PathBuf> {
    let start = Instant::now();
    loop {
        let found = image::find(volume);
        if found.as_deref().is_ok_and(image::is_connected) || start.elapsed() >= patience {
            return found;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
