//! `quire grow`: makes volumes larger, mounted or not. A mounted volume is made larger by its server.
//!
//! Neighbours: [`crate::server::room`] grows mounted volumes; [`crate::commands::resize`] for volumes that
//! nobody has open.

use std::path::Path;

use quire::ResizeOptions;
use quire_base::size;

use crate::arguments::{Grow, NewSize};
use crate::exit::{self, Failure, Outcome};
use crate::places::{mount_of, unmounted};
use crate::{control, output, task};

/// Makes a volume larger and says what it became.
pub fn run(arguments: &Grow) -> Outcome {
    let volume = &arguments.volume;
    let bytes = match mount_of(volume)? {
        Some(dir) => {
            let wanted = match arguments.size {
                Some(NewSize::Bytes(bytes)) => bytes.to_string(),
                Some(NewSize::Max) | None => "max".into(),
            };
            task::wait(&dir, &format!("grow {wanted}"), &mut || Ok(()))?;
            size_of_mount(&dir)?
        }
        None => {
            let options = match arguments.size {
                Some(NewSize::Bytes(bytes)) => ResizeOptions::new().size(bytes),
                Some(NewSize::Max) | None => ResizeOptions::new().whole(),
            };
            let info = options.resize(unmounted(volume)?)?;
            info.blocks * u64::from(info.block_size)
        }
    };
    if !arguments.quiet {
        output::line(format!("{}: volume of {}", volume.display(), size::show(bytes)));
    }
    Ok(())
}

fn size_of_mount(dir: &Path) -> Outcome<u64> {
    let answer = control::ask(dir, "grow")?;
    answer
        .trim()
        .parse()
        .map_err(|_| Failure::new(exit::FAILED, format!("the server of {} did not answer", dir.display())))
}
