//! What a store in a directory does itself, beside the client of object stores.
//!
//! The client writes `OBJECT#NUMBER`, and then gives it the name of the object: so no reader sees a part of
//! an object. What is written here is written in the same way.
//!
//! Neighbour: [`crate::store`] decides when.

use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::path::Path;

use chrono::{DateTime, Utc};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::manifest::is_part;
use crate::store::MANIFEST;

/// Makes the directory of a store unless it is there. Its parent has to exist, so that a misspelt path is an
/// error.
pub fn make_durably(path: &Path) -> Result<()> {
    match std::fs::create_dir(path) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
        Err(error) => return Err(error),
    }
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    File::open(above.unwrap_or(".".as_ref()))?.sync_all()
}

/// The system's error behind one of the client.
fn errno(error: &object_store::Error) -> Option<Errno> {
    let causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
    causes.filter_map(|error| error.downcast_ref()).last().and_then(Errno::from_io_error)
}

/// Whether an error of the client is that of a file system without hard links.
pub fn has_no_links(error: &object_store::Error) -> bool {
    // EPERM of the kernel; the others of servers.
    matches!(errno(error), Some(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS))
}

/// Whether a read failed for a reason that is not the object's: the reader may not, or the directory or the
/// system is at fault.
pub fn is_of_the_reader(error: &object_store::Error) -> bool {
    use Errno as E;
    let passing = [E::ACCESS, E::PERM, E::MFILE, E::NFILE, E::NOMEM, E::STALE, E::NOTCONN];
    errno(error).is_some_and(|errno| passing.contains(&errno))
}

/// Writes a file durably, unless there is one of its name; says whether it did. Nobody sees a part of it.
pub fn publish(directory: &Path, name: &str, bytes: &[u8]) -> Result<bool> {
    let mut number = 1;
    let (mut file, staged) = loop {
        let staged = directory.join(format!("{name}#{number}"));
        match File::options().write(true).create_new(true).open(&staged) {
            Ok(file) => break (file, staged),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    };
    let renamed = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| {
        renameat_with(CWD, &staged, CWD, directory.join(name), RenameFlags::NOREPLACE).map_err(Error::from)
    });
    match renamed {
        Ok(()) => File::open(directory)?.sync_all().map(|()| true),
        Err(error) => {
            let _ = std::fs::remove_file(&staged);
            if error.kind() == ErrorKind::AlreadyExists { Ok(false) } else { Err(error) }
        }
    }
}

/// Removes the files that uploads have left which were killed before a time; says how many these are.
pub fn remove_staged(directory: &Path, before: DateTime<Utc>, dry_run: bool) -> Result<usize> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry?;
        if !entry.file_name().to_str().is_some_and(is_staged) {
            continue;
        }
        // Whoever has finished an upload meanwhile has renamed the file.
        let Ok(modified) = entry.metadata().and_then(|metadata| metadata.modified()) else { continue };
        if DateTime::<Utc>::from(modified) >= before {
            continue;
        }
        if !dry_run
            && let Err(error) = std::fs::remove_file(entry.path())
            && error.kind() != ErrorKind::NotFound
        {
            return Err(error);
        }
        removed += 1;
    }
    Ok(removed)
}

/// Whether a file is an upload that has not ended: `OBJECT#NUMBER`.
fn is_staged(file: &str) -> bool {
    file.rsplit_once('#').is_some_and(|(object, number)| {
        (is_part(object) || object == MANIFEST)
            && !number.is_empty()
            && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}
