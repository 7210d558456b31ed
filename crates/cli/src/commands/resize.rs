//! `quire resize` and `quire label`: volumes that nobody has open.

use std::path::{Path, PathBuf};

use quire::{ResizeOptions, VolumeInfo};

use crate::arguments::{Label, NewSize, Resize};
use crate::exit::{Failure, Outcome};
use crate::{image, output};
use quire_base::size;

/// Resizes a volume and says what it became.
pub fn run(arguments: &Resize) -> Outcome {
    let volume = unmounted(&arguments.volume)?;
    let mut options = ResizeOptions::new();
    match arguments.size {
        Some(NewSize::Bytes(bytes)) => options = options.size(bytes),
        Some(NewSize::Max) => options = options.whole(),
        None => {}
    }
    if let Some(bytes) = arguments.journal_size {
        options = options.journal_bytes(bytes);
    }
    let info = options.resize(&volume)?;
    if !arguments.quiet {
        output::line(describe(&volume, &info));
    }
    Ok(())
}

/// Shows the label of a volume, or changes it.
pub fn label(arguments: &Label) -> Outcome {
    match &arguments.name {
        Some(name) => quire::set_label(unmounted(&arguments.volume)?, name).map(drop).map_err(Failure::from),
        None => {
            output::line(image::newest_superblock(&image::find(&arguments.volume)?)?.0.label());
            Ok(())
        }
    }
}

/// The path of a volume; a mount point is none, but is easily given for one.
fn unmounted(volume: &Path) -> Outcome<PathBuf> {
    let volume = image::find(volume)?;
    if volume.is_dir() {
        return Err(Failure::new(
            37,
            format!(
                "{} is a directory: give the image file or block device, while it is not mounted",
                volume.display()
            ),
        ));
    }
    Ok(volume)
}

fn describe(volume: &Path, info: &VolumeInfo) -> String {
    let bytes = |blocks: u64| size::show(blocks * u64::from(info.block_size));
    format!("{}: volume of {}, journal {}", volume.display(), bytes(info.blocks), bytes(info.journal_blocks))
}
