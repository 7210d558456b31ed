//! Direct I/O and memory: what it copies is counted against the cache's limit, and where memory is aligned
//! nothing is.

use crate::common::{file, options};
use quire::backend::Backend;
use quire::inodes::IoFlags;
use quire::{FormatOptions, Result, Volume};
use quire_base::BlockNo;
use quire_base::random::Random;
use quire_device::{AlignedBuf, Io, IoClass, MemoryBackend};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

const LEN: usize = 1 << 20;
const THREADS: usize = 40;

/// What a transfer of a file's contents was seen to use: the memory, and what the cache's limit had been
/// charged.
#[derive(Clone, Copy, Debug)]
struct Seen {
    address: usize,
    charged: u64,
}

/// Watches transfers of contents, of one volume.
struct Watched {
    memory: MemoryBackend,
    volume: OnceLock<Volume>,
    seen: Mutex<Vec<Seen>>,
}

impl Watched {
    fn look(&self, class: IoClass, address: *const u8) {
        if let (IoClass::Data, Some(volume)) = (class, self.volume.get()) {
            let seen = Seen { address: address.addr(), charged: used(volume) };
            self.seen.lock().unwrap().push(seen);
        }
    }

    fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

impl Backend for Watched {
    fn blocks(&self) -> u64 {
        self.memory.blocks()
    }
    fn name(&self) -> String {
        "watched memory".into()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.look(class, buf.as_ptr());
        self.memory.read(class, at, buf)
    }
    fn write(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.look(class, buf.as_ptr());
        self.memory.write(class, at, buf)
    }
    fn flush(&self) -> Result<()> {
        self.memory.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.memory.discard(at, count)
    }
    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        for io in &ios {
            self.look(class, io.segments[0].ptr());
        }
        self.memory.submit(class, ios);
    }
}

fn measure(volume: &Volume, name: &str) -> u64 {
    volume.metrics()[name]
}

fn used(volume: &Volume) -> u64 {
    measure(volume, "cache_used_bytes")
}

fn watched_volume(threads: bool) -> (Arc<Watched>, Volume) {
    let memory = MemoryBackend::new(32 << 10);
    let device = Arc::new(Watched { memory, volume: OnceLock::new(), seen: Mutex::default() });
    FormatOptions::new().seed(1).format_backend(device.clone()).unwrap();
    let volume = options().threads(threads).open_backend(device.clone()).unwrap();
    assert!(device.volume.set(volume.clone()).is_ok());
    (device, volume)
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::seeded(seed);
    (0..len).map(|_| random.next_u64() as u8).collect()
}

/// Direct I/O copied everything through buffers that no limit knew of: sixteen threads with requests of 4 MiB
/// had 64 MiB beside a cache of 6.
#[test]
fn what_is_copied_is_charged() {
    let (device, volume) = watched_volume(false);
    let inode = file(&volume, "f");
    let mut memory = AlignedBuf::zeroed(LEN + 4096);
    // Aligned to eight bytes only.
    let part = 8..8 + LEN;
    memory[part.clone()].copy_from_slice(&content(1, LEN));
    let before = used(&volume);
    volume.inodes().write_at(&inode, &memory[part.clone()], 0, IoFlags::DIRECT).unwrap();
    memory[part.clone()].fill(0);
    assert_eq!(volume.inodes().read_at(&inode, &mut memory[part.clone()], 0, IoFlags::DIRECT).unwrap(), LEN);
    assert!(memory[part] == content(1, LEN));
    let seen = device.take();
    assert!(seen.len() >= 2);
    for transfer in seen {
        assert!(transfer.charged >= before + 4096, "{transfer:?}, {before} before");
        assert!(transfer.address.is_multiple_of(4096));
    }
    assert_eq!(used(&volume), before, "everything was given back");
}

#[test]
fn aligned_memory_is_not_copied() {
    let (device, volume) = watched_volume(false);
    let inode = file(&volume, "f");
    let mut memory = AlignedBuf::copy_of(&content(2, LEN));
    let range = |memory: &AlignedBuf| -> Range<usize> {
        memory.as_ptr().addr()..memory.as_ptr().addr() + memory.len()
    };
    let before = used(&volume);
    volume.inodes().write_at(&inode, &memory, 0, IoFlags::DIRECT).unwrap();
    // The file ends inside a block; what is behind is nobody's.
    volume.inodes().set_len(&inode, LEN as u64 - 1000).unwrap();
    volume.inodes().fsync(&inode, false).unwrap();
    device.take();
    memory.fill(9);
    assert_eq!(volume.inodes().read_at(&inode, &mut memory, 0, IoFlags::DIRECT).unwrap(), LEN - 1000);
    assert!(memory[..LEN - 1000] == content(2, LEN)[..LEN - 1000]);
    assert!(memory[LEN - 1000..].iter().all(|byte| *byte == 0));
    for transfer in device.take() {
        assert!(range(&memory).contains(&transfer.address), "{transfer:?}");
        assert!(transfer.charged <= before + 8192, "{transfer:?}, {before} before");
    }
}

#[test]
fn many_at_a_time_stay_below_the_limit() {
    let (device, volume) = watched_volume(true);
    let limit = measure(&volume, "cache_limit_bytes");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let volume = &volume;
            scope.spawn(move || {
                let inode = file(volume, &format!("f{thread}"));
                let data = content(thread as u64, LEN + 8);
                let mut back = vec![0; LEN + 8];
                // One of the two is aligned to less than a block.
                for skip in [0, 8] {
                    volume.inodes().write_at(&inode, &data[skip..skip + LEN], 0, IoFlags::DIRECT).unwrap();
                    let read = volume
                        .inodes()
                        .read_at(&inode, &mut back[skip..skip + LEN], 0, IoFlags::DIRECT)
                        .unwrap();
                    assert_eq!(read, LEN);
                    assert!(back[skip..skip + LEN] == data[skip..skip + LEN]);
                }
            });
        }
    });
    assert!(device.take().iter().all(|seen| seen.charged <= limit));
}

/// A buffer for which there was no memory ended the process.
#[test]
fn a_buffer_that_cannot_be_had_is_an_error() {
    for len in [usize::MAX, usize::MAX / 2, 1 << 46] {
        let error = AlignedBuf::try_zeroed(len).unwrap_err();
        assert_eq!(error.kind(), quire::ErrorKind::NoMemory);
    }
    assert_eq!(AlignedBuf::try_copy_of(&[5; 5000]).unwrap()[..], [5; 5000]);
}
