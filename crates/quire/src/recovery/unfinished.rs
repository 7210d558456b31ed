//! A receive that has not ended: what the volume has of it, and what it opens as meanwhile.
//!
//! Neighbours: [`crate::receive`] writes the key.

use crate::options::VolumeOptions;
use crate::snapshots::table::table;
use quire_base::{Error, ErrorKind, Result, size};
use quire_device::Device;
use quire_format::key::Key;
use quire_format::receive::Unfinished;
use quire_format::snapshot::Snapshot;
use quire_tree::Tree;

/// The unfinished receive that a volume has.
pub(crate) fn unfinished(tree: &Tree) -> Result<Option<Unfinished>> {
    tree.get_with(Key::RECEIVING, Unfinished::decode)?.transpose()
}

/// The snapshot that a volume with an unfinished receive opens as.
///
/// Errors: `Busy` for an opening that would write.
pub(crate) fn shown_instead(device: &Device, tree: &Tree, options: &VolumeOptions) -> Result<Option<String>> {
    if options.receiving || options.snapshot.is_some() {
        return Ok(None);
    }
    let Some(there) = unfinished(tree)? else { return Ok(None) };
    if !options.read_only && !device.is_read_only() {
        return Err(is_unfinished(&there).context(device.name()));
    }
    base_of(tree, &there).map(|(_, base)| Some(base.name))
}

/// The error that says what to do.
pub(crate) fn is_unfinished(there: &Unfinished) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!(
            "the volume has an unfinished receive of {:?}, {} of the stream are there: send the rest (quire receive \
             --resume-token shows how), or give it up with quire receive --abort; read-only it opens as it was",
            there.name,
            size::show(there.position.bytes)
        ),
    )
}

/// An error if an unfinished receive needs the snapshot at which it began. A key that makes no sense needs
/// nothing.
pub(super) fn check_none_needed(tree: &Tree) -> Result<()> {
    let there = tree.get_with(Key::RECEIVING, Unfinished::decode)?.and_then(Result::ok);
    let Some(there) = there else { return Ok(()) };
    match tree.get_with(Key::snapshot(there.base), Snapshot::decode)? {
        Some(Ok(base)) => Err(Error::new(
            ErrorKind::Busy,
            format!(
                "the volume has an unfinished receive of {:?}; the snapshot {:?} has the state before it, and would have \
                 to be given up",
                there.name, base.name
            ),
        )),
        _ => Ok(()),
    }
}

/// The snapshot at which it began.
pub(crate) fn base_of(tree: &Tree, there: &Unfinished) -> Result<(u32, Snapshot)> {
    let found = table(tree)?.into_iter().find(|(number, _)| *number == there.base);
    found.ok_or_else(|| Error::corrupt("the snapshot that an unfinished receive began at is no more"))
}
