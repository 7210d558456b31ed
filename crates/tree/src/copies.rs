//! Reading what lies in two places: the first copy that can be read and checks serves.
//!
//! Neighbours: `manifest` and `load` read through this.

use quire_base::{BlockNo, Error, ErrorKind, Result};
use quire_device::{AlignedBuf, Device, IoClass};
use quire_format::place::Place;

/// Reads the copies in turn until one passes `check`.
///
/// Errors: the first copy's, unless that is one of reading and the second copy's is damage.
pub(crate) fn read_copies<T>(
    device: &Device,
    place: Place,
    check: &mut dyn FnMut(&[u8]) -> Result<T>,
) -> Result<T> {
    let mut buffer = AlignedBuf::blocks(1);
    let mut failed: Option<(BlockNo, Error)> = None;
    for at in place.copies() {
        match device.read(IoClass::Metadata, at, &mut buffer).and_then(|()| check(&buffer)) {
            Ok(value) => {
                if let Some((block, error)) = &failed {
                    tracing::warn!(%block, %error, "a copy of metadata is bad; the other one serves");
                }
                return Ok(value);
            }
            Err(error) => {
                let first = failed.take();
                let keep = first.filter(|(_, first)| {
                    first.kind() == ErrorKind::Corrupt || error.kind() != ErrorKind::Corrupt
                });
                failed = keep.or(Some((at, error)));
            }
        }
    }
    Err(failed.expect("a place has a block").1)
}
