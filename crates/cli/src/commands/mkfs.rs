//! `quire mkfs`.

use std::path::Path;

use quire::{FormatOptions, Volume, VolumeInfo};

use crate::arguments::Mkfs;
use crate::exit::Outcome;
use crate::size;

/// Makes a volume and says what it became.
pub fn run(arguments: &Mkfs) -> Outcome {
    let info = make(arguments)?;
    if !arguments.quiet {
        println!("{}", describe(&arguments.volume, &info));
    }
    Ok(())
}

/// Makes a volume.
pub fn make(arguments: &Mkfs) -> Outcome<VolumeInfo> {
    let options = FormatOptions {
        size: arguments.size,
        label: arguments.label.clone(),
        journal_bytes: arguments.journal_size,
        force: arguments.force,
        ..FormatOptions::default()
    };
    Ok(Volume::format_image(&arguments.volume, &options)?)
}

fn describe(volume: &Path, info: &VolumeInfo) -> String {
    let block = u64::from(info.block_size);
    let label = if info.label.is_empty() { String::new() } else { format!(", label {}", info.label) };
    format!(
        "{}: volume of {}, journal {}{label}",
        volume.display(),
        size::show(info.blocks * block),
        size::show(info.journal_blocks * block)
    )
}
