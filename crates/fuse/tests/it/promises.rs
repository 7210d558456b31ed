//! Mounts that promise durability (`-o sync`) on a device that fails.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::Arc;

use quire::{FormatOptions, VolumeOptions};
use quire_device::simulated::{Fault, FaultOp};
use quire_device::{IoClass, SimulatedBackend};
use quire_fuse::{MountFlags, ServeOptions, TransportChoice};

use super::mounted::{Mounted, TRANSPORTS, code, create};

fn served(transport: TransportChoice) -> Option<(Arc<SimulatedBackend>, Mounted)> {
    let device = Arc::new(SimulatedBackend::new(16 << 10));
    FormatOptions::new().format_backend(device.clone()).unwrap();
    let volume = VolumeOptions::new().open_backend(device.clone()).unwrap();
    let flags = MountFlags { sync: true, ..MountFlags::default() };
    let options = ServeOptions { transport, flags, ..ServeOptions::default() };
    Some((device, Mounted::serve(volume, options)?))
}

/// A `chmod` that was made but was not durable failed, and `stat` showed the old mode for an hour.
#[test]
fn attributes_are_as_the_volume_has_them_when_a_promise_fails() {
    for transport in TRANSPORTS {
        let Some((device, mounted)) = served(transport) else { return };
        let path = mounted.path("file");
        let file = create(&path);
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        device.inject(Fault::on(FaultOp::Write).class(IoClass::Data).times(u64::MAX));
        // More than goes through the journal.
        assert_eq!(code(file.write_all_at(&vec![1; 1 << 20], 0)), libc::EIO);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(code(fs::set_permissions(&path, Permissions::from_mode(0o640))), libc::EIO);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
        device.clear_faults();
        file.sync_all().unwrap();
    }
}
