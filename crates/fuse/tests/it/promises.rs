//! Mounts that promise durability (`-o sync`) on a device that fails.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quire::backend::{Backend, BlockNo, Io, IoClass, IoOp, MemoryBackend};
use quire::{FormatOptions, Result, VolumeOptions};
use quire_base::{Error, ErrorKind};
use quire_fuse::{MountFlags, ServeOptions, TransportChoice};

use super::mounted::{Mounted, TRANSPORTS, code, create};

/// A device whose writes of data fail on demand.
struct Failing {
    memory: MemoryBackend,
    fails: AtomicBool,
}

impl Failing {
    fn check(&self, class: IoClass) -> Result<()> {
        match class == IoClass::Data && self.fails.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Io, "as the test wants it")),
            false => Ok(()),
        }
    }
}

impl Backend for Failing {
    fn blocks(&self) -> u64 {
        self.memory.blocks()
    }
    fn name(&self) -> String {
        "failing memory".into()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.memory.read(class, at, buf)
    }
    fn write(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.check(class)?;
        self.memory.write(class, at, buf)
    }
    fn flush(&self) -> Result<()> {
        self.memory.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.memory.discard(at, count)
    }
    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        let (writes, reads) = ios.into_iter().partition(|io| io.op == IoOp::Write);
        self.memory.submit(class, reads);
        match self.check(class) {
            Ok(()) => self.memory.submit(class, writes),
            Err(_) => writes.into_iter().for_each(|io| (io.done)(self.check(class))),
        }
    }
}

fn served(transport: TransportChoice) -> Option<(Arc<Failing>, Mounted)> {
    let device = Arc::new(Failing { memory: MemoryBackend::new(16 << 10), fails: AtomicBool::new(false) });
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
        device.fails.store(true, Ordering::SeqCst);
        // More than goes through the journal.
        assert_eq!(code(file.write_all_at(&vec![1; 1 << 20], 0)), libc::EIO);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(code(fs::set_permissions(&path, Permissions::from_mode(0o640))), libc::EIO);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
        device.fails.store(false, Ordering::SeqCst);
        file.sync_all().unwrap();
    }
}
