//! A volume on a simulated device, without threads and with a clock that stands: what happens is what the
//! test does.

use quire::inodes::{Create, InodeRef};
use quire::internals::repair::Session;
use quire::{Clock, FormatOptions, InodeNo, Timestamp, Volume, VolumeOptions};
use quire_base::BlockNo;
use quire_device::simulated::Event;
use quire_device::{Backend, IoClass, MemoryBackend, SimulatedBackend};
use quire_format::extent::FILE_BLOCKS_MAX;
use quire_format::inode::InodeRecord;
use quire_format::key::Key;
use quire_format::logged::{LoggedKind, LoggedOp};
use std::sync::Arc;

/// Bytes of a block.
pub const BLOCK: usize = 4096;

/// A clock that stands.
pub fn clock() -> Clock {
    Clock::simulated(Timestamp(1_000_000_000))
}

/// No threads, the smallest cache, one moment for ever.
pub fn options() -> VolumeOptions {
    VolumeOptions::new().threads(false).cache_bytes(6 << 20).clock(clock())
}

/// A new volume of so many blocks, whose journal has a MiB, on a device that remembers which writes are safe.
pub fn new_volume(blocks: u64) -> (Arc<SimulatedBackend>, Volume) {
    let device = Arc::new(SimulatedBackend::new(blocks));
    let format = FormatOptions::new().seed(1).journal_bytes(1 << 20).clock(clock());
    format.format_backend(device.clone()).unwrap();
    let volume = options().open_backend(device.clone()).unwrap();
    (device, volume)
}

/// A new, empty file in the root.
pub fn file(volume: &Volume, name: &str) -> InodeRef {
    volume.inodes().create(&volume.inodes().root(), name.as_bytes(), &Create::file(0o644)).unwrap()
}

/// Flushes that a device has done behind its first `from` events.
pub fn flushes(device: &SimulatedBackend, from: usize) -> usize {
    let events = device.events(from..usize::MAX);
    events.iter().filter(|event| matches!(event, Event::FlushCompleted { .. })).count()
}

/// A copy of a device as it is at one moment, though threads of a volume may write to it: two readings with
/// nothing changed in between. A copy that took what a checkpoint wrote in the middle of it was no state that
/// a crash could have left, and one test in fifty failed.
pub fn copy_of(backend: &MemoryBackend) -> Arc<MemoryBackend> {
    let (mut bytes, mut again) = (reading_of(backend), reading_of(backend));
    while bytes != again {
        (bytes, again) = (again, reading_of(backend));
    }
    let copy = MemoryBackend::new(backend.blocks());
    for (at, piece) in &bytes {
        copy.write(IoClass::Data, BlockNo(*at), piece).unwrap();
    }
    Arc::new(copy)
}

/// The pieces of a device that are not all zeros.
fn reading_of(backend: &MemoryBackend) -> Vec<(u64, Vec<u8>)> {
    let mut pieces = Vec::new();
    for at in (0..backend.blocks()).step_by(256) {
        let mut piece = vec![0; (backend.blocks() - at).min(256) as usize * BLOCK];
        backend.read(IoClass::Data, BlockNo(at), &mut piece).unwrap();
        if piece.iter().any(|&byte| byte != 0) {
            pieces.push((at, piece));
        }
    }
    pieces
}

/// Logs an insertion of a block at the front of a file, on a volume that nobody has open: as a crash leaves
/// it that comes before the first step.
pub fn log_insertion<B: Backend + 'static>(device: &Arc<B>, inode: InodeNo) {
    let mut session = Session::open(device.clone()).unwrap();
    let value = session.tree().get(Key::inode(inode)).unwrap().unwrap();
    let record = InodeRecord::decode(&value).unwrap();
    let operation = LoggedOp {
        kind: LoggedKind::Insert,
        inode,
        generation: record.generation,
        start: 0,
        end: 1,
        cursor: FILE_BLOCKS_MAX,
        size: record.size + BLOCK as u64,
    };
    session.put(Key::logged(7), &operation.encode());
    session.close().unwrap();
}
