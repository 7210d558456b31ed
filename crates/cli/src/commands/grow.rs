//! `quire grow`: makes volumes larger, mounted or not. A mounted volume is made larger by its server.
//!
//! ```text
//!   grow BYTES   grow max   grow
//! ```
//!
//! The first two start a task and are answered with it ([`crate::server_task`]); the last is answered with
//! the size of the volume in bytes.
//!
//! Neighbours: [`crate::control`] hears the requests; [`crate::commands::resize`] for volumes that nobody has
//! open.

use std::path::Path;

use quire::{ResizeOptions, Volume};
use quire_base::size;

use crate::arguments::{Grow, NewSize};
use crate::commands::{resize, snapshot};
use crate::exit::{Failure, Outcome};
use crate::server_task::ServerTasks;
use crate::{control, output, server_task};

/// Makes a volume larger and says what it became.
pub fn run(arguments: &Grow) -> Outcome {
    let volume = &arguments.volume;
    let bytes = match snapshot::mount_of(volume)? {
        Some(dir) => {
            let wanted = match arguments.size {
                Some(NewSize::Bytes(bytes)) => bytes.to_string(),
                Some(NewSize::Max) | None => "max".into(),
            };
            server_task::wait(&dir, &format!("grow {wanted}"), &mut || Ok(()))?;
            size_of_mount(&dir)?
        }
        None => {
            let options = match arguments.size {
                Some(NewSize::Bytes(bytes)) => ResizeOptions::new().size(bytes),
                Some(NewSize::Max) | None => ResizeOptions::new().whole(),
            };
            let info = options.resize(resize::unmounted(volume)?)?;
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
        .map_err(|_| Failure::new(32, format!("the server of {} did not answer", dir.display())))
}

/// The server's side: answers what follows `grow` in a request.
pub fn answer(wanted: &str, volume: &Volume, tasks: &ServerTasks) -> Outcome<String> {
    let bytes = match wanted {
        "" => {
            let info = volume.info();
            return Ok(format!("{}\n", info.blocks * u64::from(info.block_size)));
        }
        "max" => None,
        bytes => {
            Some(bytes.parse().map_err(|_| Failure::usage(format!("'{bytes}' is not a number of bytes")))?)
        }
    };
    let volume = volume.clone();
    let number = tasks.start(move || {
        match bytes {
            Some(bytes) => volume.grow(bytes)?,
            None => volume.grow_whole()?,
        };
        Ok(())
    })?;
    tasks.answer(number)
}
