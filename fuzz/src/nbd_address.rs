//! Addresses of NBD exports: any name of a volume is a path, an address, or an address that is refused.
//!
//! Input: the name.

use quire_device::NbdAddress;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Runs one input.
pub fn run(input: &[u8]) {
    let volume = Path::new(OsStr::from_bytes(input));
    let address = NbdAddress::of(volume);
    assert_eq!(address.is_some(), NbdAddress::is_one(volume));
    let Some(Ok(address)) = address else { return };
    assert_eq!(address.text().as_bytes(), input, "messages show what was given");
    assert!(!address.uri().contains('\0'), "libnbd takes strings of C");
    let taken_out = NbdAddress::of(Path::new(address.uri())).expect("what libnbd gets is an address");
    let taken_out = taken_out.expect("a good one");
    assert_eq!(
        (taken_out.uri(), taken_out.reconnect),
        (address.uri(), None),
        "nothing of ours is left in it"
    );
}
