//! Reading what lies in two places: the first copy that can be read and checks serves.
//!
//! Neighbours: `manifest`, `load`, `scrub` and `kept` read through this.

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
    /// All of them; a good one's bytes are written over a bad one. Only for blocks that nothing else is
    /// written to meanwhile.
    Mend,
}

/// Reads the copies in turn until one passes `check`, or all; says as well whether one of those is bad, and
/// still is afterwards.
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
            Ok(value) => good = Some((at, value)),
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
        (Some((_, value)), None) => Ok((value, false)),
        (Some((serves, value)), Some((block, error))) => {
            tracing::warn!(%block, %error, "a copy of metadata is bad; the other one serves");
            if look != Look::Mend {
                return Ok((value, true));
            }
            let mended = device
                .read(IoClass::Metadata, serves, &mut buffer)
                .and_then(|()| check(&buffer))
                .and_then(|_| device.mend(IoClass::Metadata, block, &buffer));
            if let Err(error) = &mended {
                tracing::warn!(%block, %error, "a bad copy of metadata could not be overwritten");
            }
            Ok((value, mended.is_err()))
        }
        (None, bad) => Err(bad.expect("a place has a block").1),
    }
}
