//! Random 4 KiB overwrites, without a sync, of a file larger than the cache: how much memory that takes, how
//! fast it is, and how long a thread ever stops.
//!
//! `cargo run --release -p quire-fs --example overwrite -- IMAGE [CACHE_MIB] [THREADS] [SECONDS] [MIB_S]`
//!
//! IMAGE is made (five times the cache), filled with a file of four times the cache (256 MiB), overwritten by
//! THREADS (8) threads for SECONDS (10), and removed. MIB_S slows the device's writes down to that
//! rate (0: as it is). Resident memory is what the kernel says of this process, less what it was before the
//! volume was opened.

use quire::backend::Backend;
use quire::{AlignedBuf, FormatOptions, OpenOptions, Result, VolumeOptions};
use quire_base::random::Random;
use quire_base::{BlockNo, Error};
use quire_device::{Io, IoClass, IoOp, OpenMode, open_image};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A backend whose writes of data take as long as they would at a rate; in its own order, on a thread of its
/// own.
struct Slow {
    inner: Arc<dyn Backend>,
    nanos_per_block: u64,
    queue: Mutex<std::sync::mpsc::Sender<(IoClass, Io)>>,
}

impl Slow {
    fn new(inner: Arc<dyn Backend>, mib_per_second: u64) -> Slow {
        let (queue, waiting) = std::sync::mpsc::channel::<(IoClass, Io)>();
        let device = inner.clone();
        let nanos_per_block = 1_000_000_000 / (mib_per_second * 256);
        std::thread::spawn(move || {
            let mut free_at = Instant::now();
            for (class, io) in waiting {
                free_at = free_at.max(Instant::now()) + Duration::from_nanos(nanos_per_block * io.blocks());
                std::thread::sleep(free_at.saturating_duration_since(Instant::now()));
                device.submit(class, vec![io]);
            }
        });
        Slow { inner, nanos_per_block, queue: Mutex::new(queue) }
    }
}

impl Backend for Slow {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn name(&self) -> String {
        format!("slow {}", self.inner.name())
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.inner.read(class, at, buf)
    }
    fn write(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        std::thread::sleep(Duration::from_nanos(self.nanos_per_block * (buf.len() as u64 >> 12)));
        self.inner.write(class, at, buf)
    }
    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.inner.discard(at, count)
    }
    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        let (writes, reads): (Vec<Io>, Vec<Io>) = ios.into_iter().partition(|io| io.op == IoOp::Write);
        if !reads.is_empty() {
            self.inner.submit(class, reads);
        }
        let queue = self.queue.lock().expect("nobody panics with it");
        writes.into_iter().for_each(|io| drop(queue.send((class, io))));
    }
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let image = arguments.first().ok_or_else(|| Error::invalid("an image's path is needed"))?;
    let number = |at: usize, default: u64| {
        arguments.get(at).map_or(default, |text| text.parse().expect("arguments are numbers"))
    };
    let (cache, threads) = (number(1, 256) << 20, number(2, 8));
    let (seconds, rate) = (number(3, 10), number(4, 0));
    let size = 4 * cache;
    let format = FormatOptions::new().size(5 * cache + (256 << 20));
    format.format(image)?;
    let device: Arc<dyn Backend> = open_image(image.as_ref(), OpenMode::ReadWrite)?;
    let backend: Arc<dyn Backend> =
        if rate > 0 { Arc::new(Slow::new(device.clone(), rate)) } else { device.clone() };
    {
        // Filled at the device's own rate.
        let volume = VolumeOptions::new().open_backend(device)?;
        let file = OpenOptions::new().write(true).create(true).open(&volume, "file")?;
        let mut piece = AlignedBuf::zeroed(1 << 20);
        piece.fill(1);
        (0..size >> 20).try_for_each(|at| file.write_all_at(&piece, at << 20))?;
        file.sync_all()?;
        drop(file);
        volume.close()?;
    }
    let base = resident();
    let node_cache = 64 << 20;
    let options = VolumeOptions::new().cache_bytes(cache).node_cache_bytes(node_cache);
    let allowed = cache + node_cache + (64 << 20);
    let volume = options.open_backend(backend)?;
    let file = OpenOptions::new().read(true).write(true).open(&volume, "file")?;
    let (over, writes, longest) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut highest = 0;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (file, over, writes, longest) = (&file, &over, &writes, &longest);
            scope.spawn(move || {
                let mut random = Random::seeded(thread);
                let block = [thread as u8; 4096];
                let mut count = 0;
                while !over.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    file.write_all_at(&block, random.below(size >> 12) << 12).expect("the write succeeds");
                    longest.fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
                    count += 1;
                }
                writes.fetch_add(count, Ordering::Relaxed);
            });
        }
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(seconds) {
            highest = highest.max(resident().saturating_sub(base));
            std::thread::sleep(Duration::from_millis(20));
        }
        over.store(true, Ordering::Relaxed);
    });
    let written = writes.load(Ordering::Relaxed);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!("file {} MiB, cache {} MiB, {threads} threads, {seconds} s", size >> 20, cache >> 20);
    println!("writes/s {:.0}", written as f64 / seconds as f64);
    println!("longest stop of a thread {:.1} ms", longest.load(Ordering::Relaxed) as f64 / 1000.0);
    println!("highest resident {:.1} MiB of {:.1} allowed", mib(highest), mib(allowed));
    for metric in volume.metrics() {
        if metric.name.contains("throttle") || metric.name.contains("memory_waits") {
            println!("{} {}", metric.name, metric.value);
        }
    }
    let began = Instant::now();
    file.sync_all()?;
    println!("final fsync {:.2} s", began.elapsed().as_secs_f64());
    drop(file);
    drop(volume);
    let _ = std::fs::remove_file(image);
    Ok(())
}
