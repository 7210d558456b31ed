//! `quire ctl`: asks a running server for something, or tells it something.

use crate::arguments::{Control, Ctl};
use crate::exit::Outcome;
use crate::{control, output, places};
use quire_fuse::mount;

/// Does it.
pub fn run(arguments: &Ctl) -> Outcome {
    match &arguments.what {
        Control::Metrics { dir } => {
            output::line(control::ask(&mount::resolve(dir)?, "metrics")?.trim_end());
            Ok(())
        }
        Control::Sync { dir } => Ok(mount::sync(&places::mounted(dir)?.dir)?),
        Control::CacheSize { dir, size } => control::set_cache_size(&mount::resolve(dir)?, *size),
    }
}
