//! Callers: programs that are killed while their request waits, and programs behind a mapping of owners.
//!
//! Needs root and `/dev/fuse`; says so and passes where they are missing.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::{Duration, Instant};

use quire::backend::{Backend, MemoryBackend};
use quire::{FormatOptions, Result, VolumeOptions};
use quire_base::BlockNo;
use quire_device::{Io, IoClass};
use quire_fuse::mount::{self, Unmount};
use quire_fuse::{MountFlags, ServeOptions, Session, TransportChoice, signals};
use rustix::mount::{MoveMountFlags, OpenTreeFlags};
use testkit::RingSwitch;

/// A device whose flushes wait while it is shut.
struct Gated {
    memory: MemoryBackend,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    shut: bool,
    waiting: usize,
}

impl Gated {
    fn shut(&self, shut: bool) {
        self.state.lock().unwrap().shut = shut;
        self.changed.notify_all();
    }
    fn waits(&self) -> bool {
        self.state.lock().unwrap().waiting > 0
    }
}

impl Backend for Gated {
    fn blocks(&self) -> u64 {
        self.memory.blocks()
    }
    fn name(&self) -> String {
        "gated memory".into()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.memory.read(class, at, buf)
    }
    fn write(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.memory.write(class, at, buf)
    }
    fn flush(&self) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        while state.shut {
            state = self.changed.wait(state).unwrap();
        }
        state.waiting -= 1;
        drop(state);
        self.memory.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.memory.discard(at, count)
    }
    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        self.memory.submit(class, ios);
    }
}

struct Mounted {
    directory: tempfile::TempDir,
    device: Arc<Gated>,
    server: Option<std::thread::JoinHandle<Result<()>>>,
}

impl Mounted {
    fn new(transport: TransportChoice) -> Option<Mounted> {
        Mounted::with(transport, MountFlags::default())
    }

    fn with(transport: TransportChoice, flags: MountFlags) -> Option<Mounted> {
        Mounted::serving(ServeOptions { transport, flags, ..ServeOptions::default() })
    }

    fn serving(options: ServeOptions) -> Option<Mounted> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            eprintln!("\n*** SKIPPED: needs root and /dev/fuse ***\n");
            return None;
        }
        signals::block();
        // Large enough for a journal that 1200 files do not fill: a full one has to wait for the device,
        // whatever the caller.
        let memory = MemoryBackend::new(128 << 10);
        let device = Arc::new(Gated { memory, state: Mutex::default(), changed: Condvar::new() });
        FormatOptions::new().format_backend(device.clone()).unwrap();
        let volume = VolumeOptions::new().open_backend(device.clone()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let flags = MountFlags { source: "test".into(), allow_other: true, ..options.flags };
        let transport = options.transport;
        let options = ServeOptions { flags, ..options };
        let switch = (transport == TransportChoice::Ring).then(RingSwitch::on);
        if matches!(switch, Some(None)) {
            eprintln!("\n*** SKIPPED: no FUSE over io_uring here ***\n");
            return None;
        }
        let session = Session::mount(volume, directory.path(), &options).unwrap();
        drop(switch);
        let server = std::thread::spawn(move || session.run());
        Some(Mounted { directory, device, server: Some(server) })
    }

    /// Fails if the change returns before the device has flushed it.
    fn assert_durable(&self, what: &str, change: &(dyn Fn() + Sync)) {
        self.device.shut(true);
        std::thread::scope(|scope| {
            let _open = Open(&self.device);
            let changing = scope.spawn(change);
            wait_until("nothing is flushed", || self.device.waits() || changing.is_finished());
            assert!(!changing.is_finished(), "{what} returned before it was durable");
        });
    }

    fn numbered(&self, number: usize) -> PathBuf {
        self.directory.path().join(format!("f{number}"))
    }

    /// A file of 100 bytes, each of them its number.
    fn new_file(&self, number: usize) -> std::fs::File {
        std::fs::write(self.numbered(number), [number as u8; 100]).unwrap();
        std::fs::File::open(self.numbered(number)).unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.device.shut(false);
        let dir = mount::resolve(self.directory.path()).unwrap();
        let start = Instant::now();
        while mount::unmount(&dir, Unmount::Plain).is_err() {
            if start.elapsed() > Duration::from_secs(10) || std::thread::panicking() {
                let _ = mount::unmount(&dir, Unmount::Detach);
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if !std::thread::panicking() {
            self.server.take().unwrap().join().unwrap().unwrap();
        }
    }
}

/// Ends the process whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Opens a device, also where a test fails: else the end of a scope would wait for what waits for the device.
struct Open<'a>(&'a Gated);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.shut(false);
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A program that waited in `fsync` for a device that did not answer could not be killed.
#[test]
fn a_killed_program_waits_for_no_device() {
    for transport in [TransportChoice::Device, TransportChoice::Ring] {
        let Some(mounted) = Mounted::new(transport) else { return };
        let file = mounted.directory.path().join("file");
        std::fs::write(&file, "there").unwrap();
        mounted.device.shut(true);
        let program = Command::new("dd")
            .args(["if=/dev/zero", "bs=4k", "count=1", "conv=fsync,notrunc"])
            .arg(format!("of={}", file.display()))
            .stderr(Stdio::null())
            .spawn();
        let mut program = Running(program.unwrap());
        wait_until("the program never came to its fsync", || mounted.device.waits());
        // Not deadly for it: it goes on to wait.
        let id = rustix::process::Pid::from_child(&program.0);
        rustix::process::kill_process(id, rustix::process::Signal::CHILD).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        assert!(program.0.try_wait().unwrap().is_none(), "a harmless signal ended an fsync");
        program.0.kill().unwrap();
        wait_until("a killed program still waits", || program.0.try_wait().unwrap().is_some());
        assert!(mounted.device.waits(), "the device has not answered yet");
        mounted.device.shut(false);
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 4096);
    }
}

/// Every `sync` of the machine waits for a server that waits for its device, so a device that does nothing (a
/// network that is gone) must not hold it for ever. One that is only slow may.
#[test]
fn a_device_that_does_nothing_fails_a_sync() {
    for transport in [TransportChoice::Device, TransportChoice::Ring] {
        // A loop device lies over something; what, nobody reads.
        let something = tempfile::NamedTempFile::new().unwrap();
        something.as_file().set_len(1 << 20).unwrap();
        let flags = MountFlags { volume: Some(something.path().to_owned()), ..MountFlags::default() };
        let sync_patience = Some(Duration::from_millis(500));
        let options = ServeOptions { transport, flags, sync_patience, ..ServeOptions::default() };
        let Some(mounted) = Mounted::serving(options) else { return };
        let syncfs = mount::syncfs_of(mounted.directory.path()).unwrap();
        if syncfs != "reaches the server" {
            eprintln!("\n*** SKIPPED: syncfs {syncfs} ***\n");
            return;
        }
        let directory = std::fs::File::open(mounted.directory.path()).unwrap();
        std::fs::write(mounted.directory.path().join("file"), "x").unwrap();
        rustix::fs::syncfs(&directory).unwrap();
        std::fs::write(mounted.directory.path().join("file"), "y").unwrap();
        mounted.device.shut(true);
        let open = Open(&mounted.device);
        let start = Instant::now();
        assert_eq!(rustix::fs::syncfs(&directory), Err(rustix::io::Errno::TIMEDOUT));
        assert!((500..10_000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
        let ioctl = mount::sync(mounted.directory.path()).unwrap_err();
        assert!(ioctl.to_string().contains("timed out"), "{ioctl}");
        // The mount serves on meanwhile.
        assert_eq!(std::fs::read(mounted.directory.path().join("file")).unwrap(), b"y");
        drop(open);
        rustix::fs::syncfs(&directory).unwrap();
        mount::sync(mounted.directory.path()).unwrap();
    }
}

/// `-o dirsync` was told to the kernel, which leaves it to the file system, and nobody did it: names were
/// durable some seconds after the call that made them.
#[test]
fn names_are_durable_at_once_where_that_is_promised() {
    let dir_sync = MountFlags { dir_sync: true, ..MountFlags::default() };
    for transport in [TransportChoice::Device, TransportChoice::Ring] {
        let Some(mounted) = Mounted::with(transport, dir_sync.clone()) else { return };
        let path = |name: &str| mounted.directory.path().join(name);
        std::fs::create_dir(path("a")).unwrap();
        std::fs::write(path("file"), "x").unwrap();
        let changes: [&(dyn Fn() + Sync); 5] = [
            &|| std::fs::create_dir(path("b")).unwrap(),
            &|| drop(std::fs::File::create(path("new")).unwrap()),
            &|| std::fs::rename(path("file"), path("a/file")).unwrap(),
            &|| std::fs::remove_file(path("a/file")).unwrap(),
            &|| std::fs::remove_dir(path("b")).unwrap(),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            mounted.assert_durable(&format!("change {number}"), change);
        }
    }
}

/// `-o sync` did for names what it says, and not for sizes and attributes: a crash right behind a cut, a new
/// mode or an extended attribute left the file as it was.
#[test]
fn sizes_and_attributes_are_durable_at_once_where_that_is_promised() {
    use rustix::fs::{Mode, XattrFlags};
    let sync = MountFlags { sync: true, ..MountFlags::default() };
    for transport in [TransportChoice::Device, TransportChoice::Ring] {
        let Some(mounted) = Mounted::with(transport, sync.clone()) else { return };
        let file = mounted.directory.path().join("file");
        std::fs::write(&file, vec![7; 5000]).unwrap();
        let mut writing = std::fs::OpenOptions::new();
        writing.write(true);
        let mut cutting = writing.clone();
        cutting.truncate(true);
        let changes: [(&str, &(dyn Fn() + Sync)); 5] = [
            ("a cut", &|| writing.open(&file).unwrap().set_len(77).unwrap()),
            ("opening with O_TRUNC", &|| drop(cutting.open(&file).unwrap())),
            ("a mode", &|| rustix::fs::chmod(&file, Mode::from_raw_mode(0o600)).unwrap()),
            ("an attribute", &|| rustix::fs::setxattr(&file, "user.a", b"1", XattrFlags::empty()).unwrap()),
            ("its removal", &|| rustix::fs::removexattr(&file, "user.a").unwrap()),
        ];
        for (what, change) in changes {
            mounted.assert_durable(what, change);
        }
    }
}

/// A copy within the mount did not heed `O_DSYNC`, nor `-o sync`: a crash right behind it left nothing of it.
/// Nor did an allocation.
#[test]
fn copies_and_allocations_are_durable_at_once_where_that_is_promised() {
    let sync = MountFlags { sync: true, ..MountFlags::default() };
    for transport in [TransportChoice::Device, TransportChoice::Ring] {
        for (flags, how) in [(MountFlags::default(), libc::O_DSYNC), (sync.clone(), 0)] {
            let Some(mounted) = Mounted::with(transport, flags) else { return };
            let path = |name: &str| mounted.directory.path().join(name);
            std::fs::write(path("source"), vec![7; 300_000]).unwrap();
            let source = std::fs::File::open(path("source")).unwrap();
            let mut options = std::fs::OpenOptions::new();
            let target = options.create_new(true).write(true).custom_flags(how).open(path("target")).unwrap();
            target.sync_all().unwrap();
            let copy = || {
                let (from, to) = (Some(&mut 0), Some(&mut 0));
                rustix::fs::copy_file_range(&source, from, &target, to, 300_000).unwrap();
            };
            let allocate = || {
                let how = rustix::fs::FallocateFlags::empty();
                rustix::fs::fallocate(&target, how, 300_000, 300_000).unwrap();
            };
            let changes: [(&str, &(dyn Fn() + Sync)); 2] = [("a copy", &copy), ("an allocation", &allocate)];
            for (what, change) in changes {
                mounted.assert_durable(what, change);
            }
        }
    }
}

/// Programs that wait for durability, more than a queue of the ring once had room for, held up all others of
/// their CPU.
#[test]
fn a_thousand_programs_in_fsync_hold_nobody_up() {
    const WAITING: usize = 1200;
    for transport in [TransportChoice::Device, TransportChoice::Ring] {
        let Some(mounted) = Mounted::new(transport) else { return };
        let path = |number: usize| mounted.numbered(number);
        let files: Vec<_> = (0..WAITING).map(|number| mounted.new_file(number)).collect();
        mounted.device.shut(true);
        let synced = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let _open = Open(&mounted.device);
            for file in &files {
                let body = || {
                    file.sync_all().unwrap();
                    synced.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                };
                std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, body).unwrap();
            }
            wait_until("nothing is flushed", || mounted.device.waits());
            let start = Instant::now();
            for number in 0..200 {
                assert_eq!(std::fs::read(path(number)).unwrap(), [number as u8; 100]);
                std::fs::write(mounted.directory.path().join("another"), "x").unwrap();
            }
            assert!(start.elapsed() < Duration::from_secs(20));
            assert_eq!(synced.load(std::sync::atomic::Ordering::Relaxed), 0, "the device was shut");
        });
        assert_eq!(synced.into_inner(), WAITING);
    }
}

/// Requests that came while a queue of the ring had no entry stayed in the kernel when it got new ones: a
/// program's open did, for as long as nobody else on its CPU was answered.
#[test]
fn a_burst_of_fsyncs_leaves_nobody_in_the_kernel() {
    const WAITING: usize = 600;
    let pin = |cpu: usize| {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set).unwrap();
    };
    let cpus = std::thread::available_parallelism().unwrap().get();
    for cpu in [0, 1, 0, 1].map(|cpu| cpu % cpus) {
        let Some(mounted) = Mounted::new(TransportChoice::Ring) else { return };
        let path = |number: usize| mounted.numbered(number);
        let files: Vec<_> = (0..WAITING).map(|number| mounted.new_file(number)).collect();
        mounted.device.shut(true);
        let start = Barrier::new(WAITING + 1);
        std::thread::scope(|scope| {
            let _open = Open(&mounted.device);
            let (done, is_done) = std::sync::mpsc::channel();
            let start = &start;
            for file in &files {
                let body = move || {
                    pin(cpu);
                    start.wait();
                    file.sync_all().unwrap();
                };
                std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, body).unwrap();
            }
            let path = &path;
            scope.spawn(move || {
                pin(cpu);
                start.wait();
                for number in 0..200 {
                    assert_eq!(std::fs::read(path(number)).unwrap(), [number as u8; 100]);
                }
                done.send(()).unwrap();
            });
            is_done
                .recv_timeout(Duration::from_secs(30))
                .expect("an open or a read waits for other programs");
        });
    }
}

/// A user namespace whose users 0 to 65535 are `first` and on outside.
fn user_namespace(first: u32) -> (Running, OwnedFd) {
    let holder = Command::new("unshare").args(["--user", "sleep", "60"]).stdin(Stdio::null()).spawn();
    let holder = Running(holder.unwrap());
    let process = format!("/proc/{}", holder.0.id());
    let ours = std::fs::read_link("/proc/self/ns/user").unwrap();
    let theirs = || std::fs::read_link(format!("{process}/ns/user")).unwrap();
    wait_until("no user namespace", || theirs() != ours);
    for map in ["uid_map", "gid_map"] {
        std::fs::write(format!("{process}/{map}"), format!("0 {first} 65536\n")).unwrap();
    }
    let namespace = std::fs::File::open(format!("{process}/ns/user")).unwrap();
    (holder, namespace.into())
}

/// `struct mount_attr` of `linux/mount.h`.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Shows what is at `from` at `to`, too, with owners as `namespace` maps them.
fn mount_mapped(from: &Path, to: &Path, namespace: &OwnedFd) -> std::io::Result<()> {
    const IDMAP: u64 = 0x0010_0000;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(rustix::fs::CWD, from, flags)?;
    let attributes = MountAttributes {
        set: IDMAP,
        clear: 0,
        propagation: 0,
        user_namespace: namespace.as_fd().as_raw_fd() as u64,
    };
    // SAFETY: the structure is the kernel's and lives across the call; the path is the empty one, which means
    // the tree.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if outcome != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let place = rustix::fs::CWD;
    Ok(rustix::mount::move_mount(&tree, "", place, to, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

#[test]
fn owners_behind_a_mapping() {
    for transport in [TransportChoice::Device, TransportChoice::Ring] {
        let Some(mounted) = Mounted::new(transport) else { return };
        let plain = mounted.directory.path();
        std::fs::write(plain.join("file"), "x").unwrap();
        std::os::unix::fs::chown(plain.join("file"), Some(5), Some(6)).unwrap();
        std::fs::set_permissions(plain, std::fs::Permissions::from_mode(0o777)).unwrap();
        let mapped = tempfile::tempdir().unwrap();
        std::fs::set_permissions(mapped.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let (_holder, namespace) = user_namespace(100_000);
        if let Err(error) = mount_mapped(plain, mapped.path(), &namespace) {
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{error}");
            eprintln!("\n*** SKIPPED: this kernel maps no owners of FUSE mounts ***\n");
            return;
        }
        let seen = std::fs::metadata(mapped.path().join("file")).unwrap();
        assert_eq!((seen.uid(), seen.gid()), (100_005, 100_006));
        let made = Command::new("setpriv")
            .args(["--reuid", "100007", "--regid", "100008", "--clear-groups", "mkdir"])
            .arg(mapped.path().join("made"))
            .status()
            .unwrap();
        assert!(made.success());
        let stranger = std::fs::write(mapped.path().join("strange"), "x");
        mount::unmount(&mount::resolve(mapped.path()).unwrap(), Unmount::Plain).unwrap();
        let owner = std::fs::metadata(plain.join("made")).unwrap();
        assert_eq!((owner.uid(), owner.gid()), (7, 8));
        assert_eq!(
            stranger.unwrap_err().raw_os_error(),
            Some(libc::EOVERFLOW),
            "root is nobody in that mapping"
        );
    }
}
