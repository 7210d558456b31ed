//! `roll_back`: a volume that nobody has open goes back to its newest snapshot.
//!
//! Neighbours: [`crate::recovery::rolling_back`] does it.

use crate::options::VolumeOptions;
use crate::volume::{Volume, VolumeInfo};
use quire_base::Result;
use quire_base::sync::Arc;
use quire_device::Backend;

/// Rolls the volume in an image file or on a block device back to its newest snapshot. Nobody may have it
/// open. What was done since the snapshot is lost; the snapshot stays.
///
/// Errors: `NotFound`; `Invalid` if there are newer snapshots; `Busy`; `ReadOnly`, or what forbids to write
/// the volume. Nothing has changed then.
#[cfg(not(any(loom, shuttle)))]
pub fn roll_back(path: impl AsRef<std::path::Path>, name: &str) -> Result<VolumeInfo> {
    roll_back_backend(quire_device::open_image(path.as_ref(), quire_device::OpenMode::ReadWrite)?, name)
}

/// As [`roll_back`], for a volume on any backend.
pub fn roll_back_backend(backend: Arc<dyn Backend>, name: &str) -> Result<VolumeInfo> {
    roll_back_with(backend, name, &VolumeOptions::new())
}

/// As [`roll_back_backend`], with a cache and a clock of the caller's.
pub fn roll_back_with(backend: Arc<dyn Backend>, name: &str, options: &VolumeOptions) -> Result<VolumeInfo> {
    let options = VolumeOptions { threads: false, roll_back: Some(name.into()), ..options.clone() };
    let volume = Volume::open_with(backend, &options)?;
    let info = volume.info();
    volume.close()?;
    Ok(info)
}
