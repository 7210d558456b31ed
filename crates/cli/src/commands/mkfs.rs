//! `quire mkfs`.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use quire::inodes::SetAttributes;
use quire::{ErrorKind, FormatOptions, Volume, VolumeInfo};

use crate::arguments::Mkfs;
use crate::exit::{Failure, Outcome};
use crate::output;
use quire_base::size;

/// Makes a volume and says what it became.
pub fn run(arguments: &Mkfs) -> Outcome {
    let info = make(arguments)?;
    if let Some(mode) = open_to_others(&arguments.volume) {
        eprintln!(
            "quire: warning: {0} has the mode {mode:04o}: others get past the permissions of the files in it; \
             chmod 600 {0}",
            arguments.volume.display()
        );
    }
    if !arguments.quiet {
        output::line(describe(&arguments.volume, &info));
    }
    Ok(())
}

/// The mode of an image that was there before and that not only its owner can use. (A new one is made with
/// 0600.)
fn open_to_others(volume: &Path) -> Option<u32> {
    let metadata = std::fs::metadata(volume).ok().filter(std::fs::Metadata::is_file)?;
    let mode = metadata.mode() & 0o777;
    (mode & 0o077 != 0).then_some(mode)
}

/// Makes a volume whose root directory belongs to the user who makes it.
pub fn make(arguments: &Mkfs) -> Outcome<VolumeInfo> {
    let mut options = FormatOptions::new().label(&arguments.label).force(arguments.force);
    if let Some(bytes) = arguments.size {
        options = options.size(bytes);
    }
    if let Some(bytes) = arguments.journal_size {
        options = options.journal_bytes(bytes);
    }
    if let Some(copies) = arguments.metadata_copies {
        options = options.metadata_copies(copies);
    }
    let info = options.format(&arguments.volume).map_err(|error| {
        let there = error.kind() == ErrorKind::Exists;
        let Failure { code, message } = error.into();
        Failure::new(code, if there { format!("{message} (--force overwrites it)") } else { message })
    })?;
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if !user.is_root() {
        // Otherwise the user could not write to the new volume.
        let volume = Volume::open(&arguments.volume)?;
        let owner =
            SetAttributes { uid: Some(user.as_raw()), gid: Some(group.as_raw()), ..SetAttributes::default() };
        volume.inodes().set_attributes(&volume.inodes().root(), &owner)?;
        volume.close()?;
    }
    Ok(info)
}

fn describe(volume: &Path, info: &VolumeInfo) -> String {
    let block = u64::from(info.block_size);
    let label = if info.label.is_empty() { String::new() } else { format!(", label {}", info.label) };
    format!(
        "{}: volume of {}, journal {}, {}{label}",
        volume.display(),
        size::show(info.blocks * block),
        size::show(info.journal_blocks * block),
        if info.metadata_copies == 1 { "one copy of metadata" } else { "two copies of metadata" }
    )
}
