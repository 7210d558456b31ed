//! Recorded blocks under every interleaving:
//! `RUSTFLAGS="--cfg loom" cargo test -p quire-device --test it loom_recorded`.
//!
//! The medium is a model that keeps of each block the byte it is filled with. A record's content is its
//! number. The properties:
//!
//! * a read sees no version older than one recorded before it began, be it at home or laid over;
//! * a home is written only after `force` of its record's `Seq`;
//! * nothing recorded up to S waits when `write_home` with that S has returned;
//! * after `forget` and `await_batch`, no late home overwrites what the block's next owner writes.
//!
//! Checked by hand: the model fails without `force`, without the wait in `await_batch`, when two batches may
//! be under way at once, and when the end of a batch drops a version that was recorded meanwhile, or takes
//! the newest of several for the one that waits longest.

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use quire_base::{BlockNo, Result, Seq};
use quire_device::{Backend, Device, Io, IoClass, IoOp};
use std::sync::Arc;

const BS: usize = 4096;
const AT: BlockNo = BlockNo(3);
/// What the next owner of the block writes.
const OWNER: u64 = 200;

#[derive(Default)]
struct Medium {
    block: AtomicU64,
    /// Records up to this one are durable.
    forced: AtomicU64,
}

impl Medium {
    fn device() -> (Arc<Medium>, Arc<Device>) {
        let medium = Arc::new(Medium::default());
        (medium.clone(), Device::new(medium))
    }
}

impl Backend for Medium {
    fn blocks(&self) -> u64 {
        8
    }
    fn name(&self) -> String {
        "model".into()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read(&self, _: IoClass, _: BlockNo, buf: &mut [u8]) -> Result<()> {
        buf.fill(self.block.load(Ordering::SeqCst) as u8);
        Ok(())
    }
    fn write(&self, _: IoClass, _: BlockNo, buf: &[u8]) -> Result<()> {
        self.block.store(u64::from(buf[0]), Ordering::SeqCst);
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn discard(&self, _: BlockNo, _: u64) -> Result<()> {
        Ok(())
    }
    /// Only homes come here.
    fn submit(&self, _: IoClass, ios: Vec<Io>) {
        for io in ios {
            assert_eq!((io.op, io.at, io.segments.len()), (IoOp::Write, AT, 1));
            // SAFETY: the request's own memory, until `done` has run.
            let version = u64::from(unsafe { *io.segments[0].ptr() });
            assert!(self.forced.load(Ordering::SeqCst) >= version, "a home before its record is durable");
            self.block.store(version, Ordering::SeqCst);
            (io.done)(Ok(()));
        }
    }
}

fn record(device: &Device, version: u8) {
    device.recorded().record(Seq(u64::from(version)), AT, &vec![version; BS].into());
}

fn write_home(medium: &Medium, device: &Device, upto: u64) {
    let mut force = |seq: Seq| {
        medium.forced.fetch_max(seq.0, Ordering::SeqCst);
        Ok(())
    };
    device.recorded().write_home(device, Seq(upto), &mut force).unwrap();
}

fn write_home_beside(medium: &Arc<Medium>, device: &Arc<Device>, upto: u64) -> thread::JoinHandle<()> {
    let (medium, device) = (medium.clone(), device.clone());
    thread::spawn(move || write_home(&medium, &device, upto))
}

fn read(device: &Device) -> u64 {
    let mut buf = vec![0; BS];
    device.read(IoClass::Data, AT, &mut buf).unwrap();
    u64::from(buf[0])
}

fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

/// A second version is recorded, and read, while the first one is written home.
#[test]
fn reads_beside_homes() {
    model(|| {
        let (medium, device) = Medium::device();
        record(&device, 1);
        let home = {
            let (medium, device) = (medium.clone(), device.clone());
            thread::spawn(move || {
                write_home(&medium, &device, 1);
                assert!(medium.block.load(Ordering::SeqCst) >= 1, "record 1 has no home");
                device.recorded().passed(Seq(1));
            })
        };
        assert!(read(&device) >= 1, "older than what was recorded");
        record(&device, 2);
        assert_eq!(read(&device), 2, "older than what was recorded");
        home.join().unwrap();
        write_home(&medium, &device, 2);
        assert_eq!((device.recorded().pending_bytes(), read(&device)), (0, 2));
        assert!(device.recorded().covers(AT, 1), "a replay would put it back");
        device.recorded().passed(Seq(2));
        assert!(device.recorded().is_empty());
    });
}

/// Two checkpoints write home at once: each finds everything at home that it asked for.
#[test]
fn two_that_write_home() {
    model(|| {
        let (medium, device) = Medium::device();
        record(&device, 1);
        let home = {
            let (medium, device) = (medium.clone(), device.clone());
            thread::spawn(move || {
                write_home(&medium, &device, 1);
                assert!(medium.block.load(Ordering::SeqCst) >= 1, "record 1 has no home");
            })
        };
        record(&device, 2);
        write_home(&medium, &device, 2);
        assert_eq!(medium.block.load(Ordering::SeqCst), 2, "record 2 has no home, or an older one is late");
        home.join().unwrap();
        assert_eq!(medium.block.load(Ordering::SeqCst), 2, "a late home");
    });
}

/// Two records follow while a batch is under way, and a checkpoint lies between them.
#[test]
fn a_checkpoint_between_two_records() {
    model(|| {
        let (medium, device) = Medium::device();
        record(&device, 1);
        let home = write_home_beside(&medium, &device, 1);
        record(&device, 2);
        record(&device, 3);
        write_home(&medium, &device, 2);
        assert!(medium.block.load(Ordering::SeqCst) >= 2, "record 2 has no home");
        home.join().unwrap();
        assert!(medium.block.load(Ordering::SeqCst) >= 2, "a late home");
    });
}

/// The block is freed and has another owner while its version may be on its way home.
#[test]
fn reuse_beside_homes() {
    model(|| {
        let (medium, device) = Medium::device();
        record(&device, 1);
        let home = write_home_beside(&medium, &device, 1);
        device.recorded().forget(Seq(2), AT, 1);
        device.recorded().await_batch();
        device.write(IoClass::Data, AT, &vec![OWNER as u8; BS]).unwrap();
        assert_eq!(read(&device), OWNER);
        home.join().unwrap();
        assert_eq!(medium.block.load(Ordering::SeqCst), OWNER, "a late home");
        assert!(device.recorded().is_empty());
    });
}
