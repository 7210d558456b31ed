//! `quire freeze` and `quire thaw`: keeps the image or device of a mounted volume as it is, so that it can be
//! copied from outside.

use std::path::Path;
use std::time::Duration;

use quire_fuse::mount;

use crate::arguments::{Freeze, Thaw};
use crate::exit::{self, Failure, Outcome};
use crate::{control, output, places};

/// Between two looks at a freeze that has begun.
const LOOK: Duration = Duration::from_millis(10);

/// Freezes a mounted volume; returns when its image can be copied.
pub fn freeze(arguments: &Freeze) -> Outcome {
    let dir = places::mounted(&arguments.dir)?.dir;
    // Most of the work, while changes still go on.
    mount::sync(&dir)?;
    let mut phase = ask(&dir, &arguments.limit.to_string())?;
    while phase == "freezing" {
        std::thread::sleep(LOOK);
        phase = ask(&dir, "status")?;
    }
    if phase != "frozen" {
        let why = format!("{} is {phase} again: the time was over, or somebody thawed it", dir.display());
        return Err(Failure::new(exit::FAILED, why));
    }
    output::line(format_args!("{}: {phase} for at most {} s", dir.display(), arguments.limit));
    Ok(())
}

/// Lets changes go on.
pub fn thaw(arguments: &Thaw) -> Outcome {
    let dir = places::mounted(&arguments.dir)?.dir;
    let mut phase = ask(&dir, "end")?;
    while phase != "thawed" {
        std::thread::sleep(LOOK);
        phase = ask(&dir, "status")?;
    }
    output::line(format_args!("{}: thawed", dir.display()));
    Ok(())
}

/// An error if the volume mounted at `dir` is frozen, or about to be.
pub fn check_thawed(dir: &Path) -> Outcome {
    match control::ask(dir, "freeze status") {
        Ok(phase) if phase != "thawed\n" => {
            let why = format!("{} is frozen: quire thaw ends that", dir.display());
            Err(Failure::new(exit::BUSY, why))
        }
        // The last freeze failed.
        Err(failure) if failure.code == exit::FAILED => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// Waits without a limit: the server freezes the volume also if nobody waits for its answer.
fn ask(dir: &Path, request: &str) -> Outcome<String> {
    Ok(control::ask_patiently(dir, &format!("freeze {request}"))?.trim_end().to_owned())
}
