//! Layout leases on a real mount: the file read from the image, operations that wait for a holder, and
//! holders that are killed or do not answer.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use quire::{AlignedBuf, ErrorKind, FormatOptions, VolumeOptions};
use quire_fuse::lease::{
    HeldLease, LEASE, LEASE_RETURN, Lease, LeaseState, RECALLED, REVOKED, VALID, WRITTEN,
};
use quire_fuse::{ServeOptions, TransportChoice};

use super::mounted::{Mounted, TRANSPORTS};

const BLOCK: usize = 4096;
const LONG: Duration = Duration::from_secs(60);

/// A mount of an image in a file, whose operations wait so long for leases.
struct Leased {
    mounted: Mounted,
    image: PathBuf,
    _directory: tempfile::TempDir,
}

impl Leased {
    fn new(transport: TransportChoice, patience: Duration) -> Option<Leased> {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        FormatOptions::new().size(64 << 20).format(&image).unwrap();
        let options = VolumeOptions::new().cache_bytes(16 << 20).lease_recall_time(patience);
        let options = (options.open(&image).unwrap(), ServeOptions { transport, ..ServeOptions::default() });
        let mounted = Mounted::serve(options.0, options.1)?;
        Some(Leased { mounted, image, _directory: directory })
    }

    fn file(&self) -> File {
        fs::write(self.mounted.path("file"), content()).unwrap();
        OpenOptions::new().read(true).write(true).open(self.mounted.path("file")).unwrap()
    }
}

fn content() -> Vec<u8> {
    (0..10 * BLOCK).map(|at| (at / BLOCK) as u8 + 1).collect()
}

/// What the image has where a lease says, read past the page cache where the host can.
fn in_image(image: &Path, lease: &HeldLease<'_>) -> Vec<u8> {
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(image);
    let image = direct.or_else(|_| File::open(image)).unwrap();
    let mut bytes = vec![0; (lease.range().end - lease.range().start) as usize];
    for extent in lease.extents().iter().filter(|extent| extent.kind == WRITTEN) {
        let mut buffer = AlignedBuf::zeroed(extent.len as usize);
        image.read_exact_at(&mut buffer, extent.device).unwrap();
        let at = (extent.offset - lease.range().start) as usize;
        bytes[at..at + buffer.len()].copy_from_slice(&buffer);
    }
    bytes
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_program_reads_a_file_from_the_image() {
    for transport in TRANSPORTS {
        let Some(leased) = Leased::new(transport, LONG) else { continue };
        let file = leased.file();
        let lease = HeldLease::take(&file, 0..u64::MAX).unwrap();
        assert_eq!((lease.range(), lease.file_size()), (0..10 * BLOCK as u64, 10 * BLOCK as u64));
        assert!(in_image(&leased.image, &lease) == content());
        assert_eq!(lease.state().unwrap(), VALID);
        // Overwritten in place: the lease stays, the image has it after an fsync.
        file.write_all_at(&[0xaa; 3 * BLOCK], 2 * BLOCK as u64).unwrap();
        file.sync_all().unwrap();
        let mut expected = content();
        expected[2 * BLOCK..5 * BLOCK].fill(0xaa);
        assert!(in_image(&leased.image, &lease) == expected);
        assert_eq!(lease.state().unwrap(), VALID);
        std::thread::scope(|scope| {
            let cut = scope.spawn(|| file.set_len(5000).unwrap());
            eventually("no recall", || lease.state().unwrap() == RECALLED);
            assert!(in_image(&leased.image, &lease) == expected);
            assert!(lease.is_valid().unwrap() && !cut.is_finished());
            drop(lease);
            cut.join().unwrap();
        });
        let lease = HeldLease::take(&file, 4096..4097).unwrap();
        assert_eq!(lease.range(), 4096..8192);
        assert!(in_image(&leased.image, &lease)[..904] == expected[4096..5000]);
    }
}

/// A lease ends with the last close of its open file description, whoever has it and however that ends.
#[test]
fn a_holder_that_is_killed_returns_its_lease() {
    for transport in TRANSPORTS {
        let Some(leased) = Leased::new(transport, LONG) else { continue };
        let mut file = leased.file();
        file.seek(SeekFrom::Start(0)).unwrap();
        std::mem::forget(HeldLease::take(&file, 0..u64::MAX).unwrap());
        let mut holder =
            Command::new("sleep").arg("600").stdin(Stdio::from(file)).stdout(Stdio::null()).spawn().unwrap();
        let path = leased.mounted.path("file");
        std::thread::scope(|scope| {
            let cut = scope.spawn(|| OpenOptions::new().write(true).open(&path).unwrap().set_len(0));
            std::thread::sleep(Duration::from_millis(100));
            assert!(!cut.is_finished(), "the truncate did not wait");
            holder.kill().unwrap();
            holder.wait().unwrap();
            let started = Instant::now();
            cut.join().unwrap().unwrap();
            assert!(started.elapsed() < LONG / 2, "it waited for the time to run out");
        });
    }
}

#[test]
fn a_holder_that_does_not_answer_is_revoked() {
    for transport in TRANSPORTS {
        let Some(leased) = Leased::new(transport, Duration::from_millis(20)) else { continue };
        let file = leased.file();
        let lease = HeldLease::take(&file, 0..u64::MAX).unwrap();
        fs::write(leased.mounted.path("file"), b"other").unwrap();
        assert_eq!(lease.state().unwrap(), REVOKED);
        assert!(!lease.is_valid().unwrap());
        let next = HeldLease::take(&file, 0..u64::MAX).unwrap();
        assert!(next.is_valid().unwrap() && !lease.is_valid().unwrap());
    }
}

/// However many operations wait for a lease, its return gets through: they had all of the server's threads.
#[test]
fn waiting_operations_do_not_keep_the_return_back() {
    for transport in TRANSPORTS {
        let Some(leased) = Leased::new(transport, LONG) else { continue };
        let file = leased.file();
        let lease = HeldLease::take(&file, 0..u64::MAX).unwrap();
        std::thread::scope(|scope| {
            let paths: Vec<PathBuf> = (0..100)
                .map(|n| {
                    let path = leased.mounted.path(&format!("link{n}"));
                    fs::hard_link(leased.mounted.path("file"), &path).unwrap();
                    path
                })
                .collect();
            for path in paths {
                scope.spawn(move || {
                    OpenOptions::new().write(true).open(path).unwrap().set_len(10).unwrap();
                });
            }
            eventually("no recall", || lease.state().unwrap() == RECALLED);
            let started = Instant::now();
            drop(lease);
            eventually("the truncates go on", || file.metadata().unwrap().len() == 10);
            assert!(started.elapsed() < LONG / 2, "the return waited for the time to run out");
        });
    }
}

fn control<T>(file: &File, command: u32, argument: &mut T) -> Option<i32> {
    assert_eq!(size_of::<T>(), (command >> 16 & 0x3fff) as usize);
    // SAFETY: the argument is as long as the number says, and takes any bytes.
    match unsafe { libc::ioctl(file.as_raw_fd(), command as _, std::ptr::from_mut(argument)) } {
        0 => None,
        _ => io::Error::last_os_error().raw_os_error(),
    }
}

#[test]
fn what_is_wrong_is_refused() {
    let Some(leased) = Leased::new(TransportChoice::Device, LONG) else { return };
    let file = leased.file();
    let mut request = Lease::request(0..100);
    request.flags = 1;
    assert_eq!(control(&file, LEASE, &mut request), Some(libc::EINVAL));
    let mut backwards = Lease { start: 5, end: 4, ..Lease::request(0..0) };
    assert_eq!(control(&file, LEASE, &mut backwards), Some(libc::EINVAL));
    let mut unknown = LeaseState { id: 77, ..LeaseState::default() };
    assert_eq!(control(&file, LEASE_RETURN, &mut unknown), Some(libc::EINVAL));
    let mut request = Lease::request(0..100);
    assert_eq!(control(&file, LEASE, &mut request), None);
    let mut state = LeaseState { id: request.id, ..LeaseState::default() };
    let other = File::open(leased.mounted.path("file")).unwrap();
    assert_eq!(control(&other, LEASE_RETURN, &mut state), Some(libc::EINVAL), "another open file's");
    assert_eq!(control(&file, LEASE_RETURN, &mut state), None);
    assert_eq!(control(&file, LEASE_RETURN, &mut state), Some(libc::EINVAL), "twice");
    let elsewhere = tempfile::tempfile().unwrap();
    assert_eq!(HeldLease::take(&elsewhere, 0..1).unwrap_err().kind(), ErrorKind::Unsupported);
    // A reader that does not own the file holds nobody up.
    let refused = std::thread::spawn(move || {
        // SAFETY: a plain system call, which changes this thread only.
        unsafe { libc::syscall(libc::SYS_setfsuid, 65534) };
        control(&other, LEASE, &mut Lease::request(0..100))
    });
    assert_eq!(refused.join().unwrap(), Some(libc::EACCES));
    // An open file has so many at most.
    for _ in 0..256 {
        assert_eq!(control(&file, LEASE, &mut Lease::request(0..100)), None);
    }
    assert_eq!(control(&file, LEASE, &mut Lease::request(0..100)), Some(libc::EBUSY));
}
