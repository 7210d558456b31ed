//! Reads files from the image under a lease of their layout, while other threads do their best to move them.
//!
//! `cargo run --release -p quire-fuse --example leased_reads -- [SECONDS]`, as root: makes a small volume in
//! a temporary directory, mounts it, and races for ten seconds, or so many. Two files, one of them untorn,
//! are overwritten, cut off and grown again; other files come, take the blocks that these have left, and go;
//! snapshots are taken and deleted. Readers take leases over the mount and read the blocks from the image,
//! past the page cache. Some return a lease that is recalled, some never do.
//!
//! Every sector carries the file, the block and a version. What was read under a lease that is valid behind
//! the read must be of that file and block, no older than the last write that had returned when the lease was
//! asked for, and no newer than the last one that has begun.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quire::{AlignedBuf, ErrorKind, FormatOptions, VolumeOptions};
use quire_base::random::Random;
use quire_fuse::lease::{HeldLease, REVOKED, VALID, WRITTEN};
use quire_fuse::mount::{self, Unmount};
use quire_fuse::{MountFlags, ServeOptions, Session, signals};

const BLOCK: usize = 4096;
const SECTOR: usize = 512;
/// Blocks of a file that is leased.
const BLOCKS: u64 = 96;
/// How long what moves blocks waits for a reader.
const PATIENCE: Duration = Duration::from_millis(20);
/// The files that are leased have the numbers 0 and 1.
const FILES: [&str; 2] = ["plain", "untorn"];
const FOREIGN: u64 = 2;

/// What came of it.
#[derive(Debug, Default)]
struct Report {
    /// Leases that were given.
    leases: AtomicU64,
    /// Leases that were recalled, and returned by a reader.
    returned: AtomicU64,
    /// Leases that a reader found revoked.
    revoked: AtomicU64,
    /// Blocks that were read and counted.
    blocks: AtomicU64,
    /// Blocks that were read and did not count.
    dropped: AtomicU64,
    /// Those among them that held something else.
    wrong: AtomicU64,
    /// Cuts of files.
    cuts: AtomicU64,
    /// Snapshots that were taken.
    snapshots: AtomicU64,
}

/// The versions of a block: the last write that has begun, and the last that has returned.
#[derive(Default)]
struct Versions {
    writing: Mutex<()>,
    begun: AtomicU64,
    done: AtomicU64,
}

struct Race {
    image: PathBuf,
    dir: PathBuf,
    versions: [Vec<Versions>; 2],
    stop: AtomicBool,
    report: Report,
}

fn fill(block: &mut [u8], file: u64, number: u64, version: u64) {
    let tag = [file, number, version, !version].map(u64::to_le_bytes).concat();
    block.chunks_exact_mut(tag.len()).for_each(|part| part.copy_from_slice(&tag));
}

/// The version that a sector carries, if it is of this file and block.
fn version_of(sector: &[u8], file: u64, number: u64) -> Option<u64> {
    let words: Vec<u64> = sector
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .collect();
    let version = words[2];
    words.chunks_exact(4).all(|tag| tag == [file, number, version, !version]).then_some(version)
}

impl Race {
    fn runs(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn open(&self, file: usize) -> File {
        OpenOptions::new().read(true).write(true).open(self.dir.join(FILES[file])).expect("the file is there")
    }

    fn write(&self, file: usize, to: &File, number: u64) -> io::Result<()> {
        let versions = &self.versions[file][number as usize];
        let _writing = versions.writing.lock().expect("no writer panics");
        let version = versions.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let mut block = [0; BLOCK];
        fill(&mut block, file as u64, number, version);
        to.write_all_at(&block, number * BLOCK as u64)?;
        versions.done.store(version, Ordering::SeqCst);
        Ok(())
    }

    /// Overwrites a file, at random places.
    fn overwrite(&self, file: usize, seed: u64) -> io::Result<()> {
        let (to, mut random) = (self.open(file), Random::seeded(seed));
        while self.runs() {
            for _ in 0..8 {
                self.write(file, &to, random.below(BLOCKS))?;
            }
            if random.below(8) == 0 {
                to.sync_data()?;
            }
        }
        Ok(())
    }

    /// Cuts files off, and writes what they have lost.
    fn reshape(&self) -> io::Result<()> {
        let mut random = Random::seeded(7);
        while self.runs() {
            let file = random.below(2) as usize;
            let to = self.open(file);
            let keep = random.below(BLOCKS);
            to.set_len(keep * BLOCK as u64)?;
            self.report.cuts.fetch_add(1, Ordering::Relaxed);
            (keep..BLOCKS).try_for_each(|number| self.write(file, &to, number))?;
            std::thread::sleep(Duration::from_millis(random.below(30)));
        }
        Ok(())
    }

    /// Other files take the blocks that are free, and give them back.
    fn churn(&self) -> io::Result<()> {
        let mut bytes = vec![0; 64 * BLOCK];
        for number in 0.. {
            if !self.runs() {
                break;
            }
            for (n, block) in bytes.chunks_exact_mut(BLOCK).enumerate() {
                fill(block, FOREIGN, n as u64, number);
            }
            let path = self.dir.join(format!("other{}", number % 8));
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            fs::write(&path, &bytes)?;
            File::open(&path)?.sync_all()?;
        }
        Ok(())
    }

    /// Takes leases of a file, and reads its blocks from the image. One that `answers` returns a lease that
    /// is recalled.
    fn read(&self, file: usize, answers: bool) -> io::Result<()> {
        let source = self.open(file);
        let image = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&self.image);
        // A host's file system may have no direct I/O; the server's writes then go the same way.
        let image = image.or_else(|_| File::open(&self.image))?;
        while self.runs() {
            let least: Vec<u64> =
                self.versions[file].iter().map(|block| block.done.load(Ordering::SeqCst)).collect();
            let lease = match HeldLease::take(&source, 0..BLOCKS * BLOCK as u64) {
                Err(error) if error.kind() == ErrorKind::Busy => {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                lease => lease?,
            };
            self.report.leases.fetch_add(1, Ordering::Relaxed);
            let until = Instant::now() + 8 * PATIENCE;
            while Instant::now() < until {
                match self.read_once(file, &image, &lease, &least)? {
                    REVOKED => {
                        self.report.revoked.fetch_add(1, Ordering::Relaxed);
                        break;
                    }
                    VALID => {}
                    _ if answers => {
                        self.report.returned.fetch_add(1, Ordering::Relaxed);
                        break;
                    }
                    // Late enough for others to have the blocks.
                    _ => std::thread::sleep(2 * PATIENCE),
                }
            }
        }
        Ok(())
    }

    /// Reads all that a lease names; its state afterwards.
    fn read_once(&self, file: usize, image: &File, lease: &HeldLease<'_>, least: &[u64]) -> io::Result<u32> {
        let mut state = VALID;
        for extent in lease.extents().iter().filter(|extent| extent.kind == WRITTEN) {
            let mut bytes = AlignedBuf::zeroed(extent.len as usize);
            image.read_exact_at(&mut bytes, extent.device)?;
            state = lease.state()?;
            for (n, block) in bytes.chunks_exact(BLOCK).enumerate() {
                let number = extent.offset / BLOCK as u64 + n as u64;
                let most = self.versions[file][number as usize].begun.load(Ordering::SeqCst);
                let found: Vec<Option<u64>> = block
                    .chunks_exact(SECTOR)
                    .map(|sector| version_of(sector, file as u64, number))
                    .collect();
                let allowed = least[number as usize]..=most;
                let is_right =
                    found.iter().all(|version| version.is_some_and(|version| allowed.contains(&version)));
                if state == REVOKED {
                    self.report.dropped.fetch_add(1, Ordering::Relaxed);
                    self.report.wrong.fetch_add(u64::from(!is_right), Ordering::Relaxed);
                    continue;
                }
                assert!(
                    is_right,
                    "{}, block {number} at {}: {found:?} in place of {allowed:?}, and the lease is valid",
                    FILES[file],
                    extent.device + (n * BLOCK) as u64,
                );
                self.report.blocks.fetch_add(1, Ordering::Relaxed);
            }
            if state == REVOKED {
                break;
            }
        }
        Ok(state)
    }
}

/// Races for so long. Panics if a reader believes what it should not.
fn race(time: Duration) -> io::Result<Report> {
    let directory = tempfile::tempdir()?;
    let (image, dir) = (directory.path().join("image"), directory.path().join("mnt"));
    fs::create_dir(&dir)?;
    FormatOptions::new().size(64 << 20).format(&image)?;
    let options = VolumeOptions::new().cache_bytes(16 << 20).lease_recall_time(PATIENCE);
    let volume = options.open(&image)?;
    let beside = volume.clone();
    signals::block();
    let flags = MountFlags { source: "leased_reads".into(), ..MountFlags::default() };
    let session = Session::mount(volume, &dir, &ServeOptions { flags, ..ServeOptions::default() })?;
    let server = std::thread::spawn(move || session.run());
    let race = Race {
        image,
        dir: dir.clone(),
        versions: [(); 2].map(|()| (0..BLOCKS).map(|_| Versions::default()).collect()),
        stop: AtomicBool::new(false),
        report: Report::default(),
    };
    let outcome = run(&race, &beside, time);
    drop(beside);
    let dir = mount::resolve(&dir)?;
    let started = Instant::now();
    while let Err(error) = mount::unmount(&dir, Unmount::Plain) {
        if error.kind() != ErrorKind::Busy || started.elapsed() > Duration::from_secs(10) {
            mount::unmount(&dir, Unmount::Detach)?;
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    server.join().expect("the server does not panic")?;
    outcome.map(|()| race.report)
}

/// Ends the race when it is dropped, also when a thread panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn run(race: &Race, volume: &quire::Volume, time: Duration) -> io::Result<()> {
    for (file, name) in FILES.iter().enumerate() {
        fs::write(race.dir.join(name), b"")?;
        if *name == "untorn" {
            rustix::fs::setxattr(
                race.dir.join(name),
                "user.quire.untorn",
                b"8k",
                rustix::fs::XattrFlags::empty(),
            )?;
        }
        let to = race.open(file);
        (0..BLOCKS).try_for_each(|number| race.write(file, &to, number))?;
    }
    let until = Instant::now() + time;
    std::thread::scope(|scope| {
        let _stop = Stop(&race.stop);
        let mut threads: Vec<std::thread::ScopedJoinHandle<'_, io::Result<()>>> = Vec::new();
        for file in 0..FILES.len() {
            threads.push(scope.spawn(move || race.overwrite(file, file as u64)));
            for answers in [true, false] {
                threads.push(scope.spawn(move || race.read(file, answers)));
            }
        }
        threads.push(scope.spawn(|| race.reshape()));
        threads.push(scope.spawn(|| race.churn()));
        threads.push(scope.spawn(|| {
            while race.runs() {
                volume.take_snapshot("now")?;
                race.report.snapshots.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(50));
                volume.delete_snapshot("now")?;
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        }));
        while Instant::now() < until && threads.iter().all(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        race.stop.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

/// Whether this process can mount; says so if not.
fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !can {
        eprintln!("\n*** SKIPPED: a mount needs /dev/fuse and root ***\n");
    }
    can
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(10), |seconds| seconds.parse())?;
    if can_mount() {
        println!("{:#?}", race(Duration::from_secs(seconds))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_of_the_image_believe_nothing_wrong() {
        if can_mount() {
            println!("{:?}", race(Duration::from_millis(1500)).unwrap());
        }
    }
}
