//! `quire salvage`.

use quire_base::ErrorKind;
use quire_fsck::Progress;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::fsck::BAR;
use crate::arguments::Salvage;
use crate::exit::{self, DAMAGED, Failure, Outcome};
use crate::{image, output};

/// Copies what can be read.
pub fn run(arguments: &Salvage) -> Outcome {
    let volume = image::find(&arguments.volume)?;
    // Each directory above the one that is being copied is open.
    let descriptors = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: descriptors.maximum, ..descriptors });
    let bar = output::bar(!arguments.json, BAR);
    let tell = |now: Progress| {
        bar.set_message(now.phase);
        bar.set_length(now.total);
        bar.set_position(now.done);
    };
    let salvaged = quire_fsck::salvage(&volume, &arguments.dir, Some(&tell));
    bar.finish_and_clear();
    let salvaged = salvaged.map_err(|error| match error.kind() {
        ErrorKind::NotAVolume => Failure::new(exit::NO_VOLUME, format!("{error}; nothing can be salvaged")),
        _ => Failure::from(error),
    })?;
    if arguments.json {
        output::line(format_args!("{:#}", serde_json::to_value(&salvaged).unwrap_or_default()));
    } else {
        for problem in &salvaged.problems {
            output::line(format_args!("{}: {}", problem.path, problem.what));
        }
        if salvaged.problems_omitted > 0 {
            output::line(format_args!("... and {} more", salvaged.problems_omitted));
        }
        for loss in &salvaged.losses {
            output::line(format_args!("lost {loss}"));
        }
        output::line(format_args!(
            "{}: {} files, {} directories and {} others copied to {}, {} bytes",
            volume.display(),
            salvaged.files,
            salvaged.directories,
            salvaged.others + salvaged.links,
            arguments.dir.display(),
            salvaged.bytes
        ));
    }
    if salvaged.is_complete() {
        return Ok(());
    }
    let count = salvaged.problems.len() as u64 + salvaged.problems_omitted + salvaged.losses.len() as u64;
    Err(Failure::new(
        DAMAGED,
        format!("what can be read was copied; {count} things are lost, or were not copied as they are"),
    ))
}
