//! `quire dump`: a volume's parts, readable or as JSON.

use std::io::{BufWriter, ErrorKind, Write};

use crate::arguments::{Dump, Part};
use crate::commands::inspect;
use crate::exit::{self, Failure, Outcome};
use crate::image;

/// Prints a part of a volume.
pub fn run(arguments: &Dump) -> Outcome {
    let volume = image::find(&arguments.volume)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let json = arguments.json;
    let mut broken = None;
    // A reader that has seen enough (`| head`) is no failure.
    let mut line = |text: String| match writeln!(out, "{text}") {
        Ok(()) => true,
        Err(error) => {
            broken.get_or_insert(error);
            false
        }
    };
    match arguments.part {
        Part::Superblock => inspect::superblock(&volume, json, &mut line)?,
        Part::Journal => inspect::journal(&volume, json, &mut line)?,
        Part::Tree => inspect::tree(&volume, json, &mut line)?,
        Part::Inode => {
            let number = arguments
                .number
                .ok_or_else(|| Failure::usage("which inode? `quire dump VOLUME inode NUMBER`"))?;
            inspect::inode(&volume, number, json, &mut line)?;
        }
    }
    let flushed = out.flush();
    match broken.or(flushed.err()) {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(exit::FAILED, format!("writing the dump: {error}")))
        }
        _ => Ok(()),
    }
}
