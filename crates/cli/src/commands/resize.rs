//! `quire resize`, `quire label` and `quire uuid`: volumes that nobody has open.

use std::path::Path;

use quire::{ResizeOptions, VolumeInfo};

use crate::arguments::{Label, NewSize, Resize, Uuid};
use crate::commands::inspect;
use crate::exit::{Failure, Outcome};
use crate::places::unmounted;
use crate::{image, output};
use quire_base::size;

/// Resizes a volume and says what it became.
pub fn run(arguments: &Resize) -> Outcome {
    let volume = image::find_to_open(&unmounted(&arguments.volume)?, arguments.take_over)?;
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

/// Shows the uuid of a volume, or changes it.
pub fn uuid(arguments: &Uuid) -> Outcome {
    let shown = match arguments.uuid.as_deref() {
        None => image::newest_superblock(&image::find(&arguments.volume)?)?.0.shown_uuid(),
        Some("new") => quire::set_uuid(unmounted(&arguments.volume)?, None)?.uuid,
        Some(text) => {
            let uuid = uuid::Uuid::try_parse(text)
                .map_err(|error| Failure::usage(format!("'{text}' is neither `new` nor a uuid: {error}")))?;
            quire::set_uuid(unmounted(&arguments.volume)?, Some(uuid.into_bytes()))?.uuid
        }
    };
    output::line(inspect::uuid(&shown));
    Ok(())
}

fn describe(volume: &Path, info: &VolumeInfo) -> String {
    let bytes = |blocks: u64| size::show(blocks * u64::from(info.block_size));
    format!("{}: volume of {}, journal {}", volume.display(), bytes(info.blocks), bytes(info.journal_blocks))
}
