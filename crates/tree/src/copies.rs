//! Reading what lies in two places: the first copy that can be read and checks serves.
//!
//! Neighbours: `manifest`, `load` and `scrub` read through this.

use quire_base::{BlockNo, Error, ErrorKind, Result};
use quire_device::{AlignedBuf, Device, IoClass};
use quire_format::place::Place;

/// How many copies are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Until one is good.
    UntilGood,
    /// All of them.
    AtAll,
}

/// Reads the copies in turn until one passes `check`, or all; says as well whether one of those was bad.
///
/// Errors, if none is good: the first copy's, unless that is one of reading and the second copy's is damage.
pub(crate) fn read_copies<T>(
    device: &Device,
    place: Place,
    look: Look,
    check: &mut dyn FnMut(&[u8]) -> Result<T>,
) -> Result<(T, bool)> {
    let mut buffer = AlignedBuf::blocks(1);
    let mut good = None;
    let mut bad: Option<(BlockNo, Error)> = None;
    for at in place.copies() {
        if good.is_some() && look == Look::UntilGood {
            break;
        }
        match device.read(IoClass::Metadata, at, &mut buffer).and_then(|()| check(&buffer)) {
            Ok(value) => good = Some(value),
            Err(error) => {
                let first = bad.take();
                let keep = first.filter(|(_, first)| {
                    first.kind() == ErrorKind::Corrupt || error.kind() != ErrorKind::Corrupt
                });
                bad = keep.or(Some((at, error)));
            }
        }
    }
    match (good, bad) {
        (Some(value), bad) => {
            if let Some((block, error)) = &bad {
                tracing::warn!(%block, %error, "a copy of metadata is bad; the other one serves");
            }
            Ok((value, bad.is_some()))
        }
        (None, bad) => Err(bad.expect("a place has a block").1),
    }
}
