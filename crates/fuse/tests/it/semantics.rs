//! What programs may expect of a mount, call by call, on a real mount of a volume in memory.
//!
//! All cache modes and both transports go through all of it.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quire_fuse::CacheMode;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, RenameFlags, SeekFrom, StatxFlags, XattrFlags};

use crate::mounted::{Map, Mounted, TRANSPORTS, as_nobody, code, create, on_all, program_file, run_program};

#[test]
fn mappings_and_calls_see_each_other() {
    on_all(|mounted| {
        run_program("semantics::program_that_maps", &mounted.path("mapped"));
        assert_eq!(&fs::read(mounted.path("mapped")).unwrap()[40000..40003], b"far");
    });
}

#[test]
#[ignore = "a program that mappings_and_calls_see_each_other starts"]
fn program_that_maps() {
    let path = program_file();
    let file = create(&path);
    file.set_len(65536).unwrap();
    let shared = Map::new(&file, 65536, libc::MAP_SHARED);
    shared.put(0, b"hello");
    shared.put(40000, b"far");
    let mut seen = [0; 5];
    file.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"hello", "a store is seen by read, without msync");
    file.write_all_at(b"WORLD", 100).unwrap();
    assert_eq!(shared.get(100, 5), b"WORLD", "a write is seen through the mapping");
    let private = Map::new(&file, 65536, libc::MAP_PRIVATE);
    assert_eq!(private.get(0, 5), b"hello");
    private.put(0, b"XXXXX");
    shared.sync();
    file.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"hello", "a private store stays private");
}

#[test]
fn appends_go_to_the_end() {
    on_all(|mounted| {
        let path = mounted.path("log");
        let open = || OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let first = open();
        (&first).write_all(b"one").unwrap();
        (&first).write_all(b"two").unwrap();
        first.write_all_at(b"three", 0).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"onetwothree");
        // Many at once: nothing lost, nothing interleaved.
        std::thread::scope(|scope| {
            for writer in b'a'..b'e' {
                let open = &open;
                scope.spawn(move || {
                    let file = open();
                    for _ in 0..100 {
                        (&file).write_all(&[writer; 1000]).unwrap();
                    }
                });
            }
        });
        let all = fs::read(&path).unwrap();
        assert_eq!(all.len(), 11 + 4 * 100 * 1000);
        assert!(all[11..].chunks(1000).all(|piece| piece.iter().all(|byte| *byte == piece[0])));
        // Larger than one request.
        let big = vec![7; 5 << 20];
        (&open()).write_all(&big).unwrap();
        assert_eq!(fs::read(&path).unwrap()[all.len()..], big);
    });
}

/// The kernel sends a large direct append as several requests at once. The one at the old end was made an
/// append by the server; where another one was quicker, it went behind that, and left a hole.
#[test]
fn the_pieces_of_a_direct_append_stay_in_order() {
    const PIECE: usize = 1 << 20;
    on_all(|mounted| {
        let path = mounted.path("log");
        let how = libc::O_APPEND | libc::O_DIRECT;
        let file = OpenOptions::new().write(true).create(true).custom_flags(how).open(&path).unwrap();
        let mut memory = vec![0; 9 * PIECE];
        let start = memory.as_ptr().align_offset(4096);
        let aligned = &mut memory[start..][..8 * PIECE];
        for round in 0..20u8 {
            let stamps: Vec<u8> = (0..8).map(|piece| 8 * round + piece).collect();
            for (piece, stamp) in aligned.chunks_mut(PIECE).zip(&stamps) {
                piece.fill(*stamp);
            }
            assert_eq!((&file).write(aligned).unwrap(), 8 * PIECE);
            let all = fs::read(&path).unwrap();
            assert_eq!(all.len(), 8 * PIECE, "round {round}");
            let found: Vec<u8> = all.chunks(PIECE).map(|piece| piece[0]).collect();
            assert_eq!(found, stamps, "round {round}");
            file.set_len(0).unwrap();
        }
    });
}

#[test]
fn holes_allocation_and_seeking() {
    on_all(|mounted| {
        let file = create(&mounted.path("sparse"));
        file.write_all_at(&[b'x'; 4096], 1 << 20).unwrap();
        if mounted.is_told_at_once() {
            assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(0)).unwrap(), 1 << 20);
            assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)).unwrap(), 0);
        }
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(2 << 20)).unwrap_err().raw_os_error(), libc::ENXIO);
        if mounted.is_told_at_once() {
            let blocks = file.metadata().unwrap().blocks();
            assert_eq!(blocks, 8, "space is counted before it is written back");
        }
        file.sync_all().unwrap();
        assert_eq!(file.metadata().unwrap().blocks(), 8);
        let end = (1 << 20) + 4096;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
        assert_eq!((file.metadata().unwrap().len(), file.metadata().unwrap().blocks()), (end, 2056));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 0, 1 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().blocks(), 8);
        rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 1 << 20, 2048).unwrap();
        let mut block = [1; 4096];
        file.read_exact_at(&mut block, 1 << 20).unwrap();
        assert!(block[..2048] == [0; 2048] && block[2048..] == [b'x'; 2048]);
        rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 4 << 20, 1 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), end);
        file.set_len(10).unwrap();
        file.set_len(5000).unwrap();
        let mut all = Vec::new();
        (&file).read_to_end(&mut all).unwrap();
        rustix::fs::seek(&file, SeekFrom::Start(0)).unwrap();
        assert_eq!(fs::read(mounted.path("sparse")).unwrap(), vec![0; 5000]);
    });
}

#[test]
fn copying_between_files() {
    on_all(|mounted| {
        let data: Vec<u8> = (0..300_000u32).map(|i| (i * 7 % 251) as u8).collect();
        fs::write(mounted.path("from"), &data).unwrap();
        let (from, to) = (File::open(mounted.path("from")).unwrap(), create(&mounted.path("to")));
        let (mut at, mut put) = (0, 0);
        while at < data.len() as u64 {
            let count =
                rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut put), 1 << 20).unwrap();
            assert_ne!(count, 0);
        }
        assert!(fs::read(mounted.path("to")).unwrap() == data);
    });
}

#[test]
fn names_and_their_errors() {
    on_all(|mounted| {
        let odd = mounted.path("").join(OsStr::from_bytes(b"\xff\xfe not utf-8 \x01"));
        fs::write(&odd, "x").unwrap();
        assert!(fs::read_dir(mounted.path("")).unwrap().any(|entry| entry.unwrap().path() == odd));
        assert_eq!(code(fs::create_dir(mounted.path(&"n".repeat(256)))), libc::ENAMETOOLONG);
        fs::create_dir(mounted.path(&"n".repeat(255))).unwrap();
        fs::create_dir(mounted.path("directory")).unwrap();
        fs::write(mounted.path("directory/file"), "").unwrap();
        fs::write(mounted.path("file"), "content").unwrap();
        assert_eq!(code(fs::create_dir(mounted.path("file"))), libc::EEXIST);
        assert_eq!(code(fs::remove_dir(mounted.path("file"))), libc::ENOTDIR);
        assert_eq!(code(fs::remove_dir(mounted.path("directory"))), libc::ENOTEMPTY);
        assert_eq!(code(fs::remove_file(mounted.path("nothing"))), libc::ENOENT);
        assert_eq!(code(fs::remove_file(mounted.path("directory"))), libc::EISDIR);
        assert_eq!(code(fs::rename(mounted.path("directory"), mounted.path("directory/in"))), libc::EINVAL);
        fs::hard_link(mounted.path("file"), mounted.path("second")).unwrap();
        assert_eq!(fs::metadata(mounted.path("file")).unwrap().nlink(), 2);
        fs::remove_file(mounted.path("second")).unwrap();
        assert_eq!(fs::metadata(mounted.path("file")).unwrap().nlink(), 1);
        // A name that was found missing, and then made.
        assert!(!mounted.path("later").exists());
        fs::write(mounted.path("later"), "here").unwrap();
        assert_eq!(fs::read(mounted.path("later")).unwrap(), b"here");
        let target = format!("some/{}", "x".repeat(3000));
        std::os::unix::fs::symlink(&target, mounted.path("link")).unwrap();
        assert_eq!(fs::read_link(mounted.path("link")).unwrap(), Path::new(&target));
        let (one, two) = (mounted.path("one"), mounted.path("two"));
        fs::write(&one, "1").unwrap();
        fs::write(&two, "2").unwrap();
        let rename = |flags| rustix::fs::renameat_with(CWD, &one, CWD, &two, flags);
        assert_eq!(rename(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
        rename(RenameFlags::EXCHANGE).unwrap();
        assert_eq!((fs::read(&one).unwrap(), fs::read(&two).unwrap()), (b"2".into(), b"1".into()));
        fs::rename(&one, &two).unwrap();
        assert_eq!(fs::read(&two).unwrap(), b"2");
        assert!(!one.exists());
    });
}

#[test]
fn a_file_without_a_name_lives_until_it_is_closed() {
    on_all(|mounted| {
        let file = create(&mounted.path("gone"));
        file.write_all_at(&[5; 1 << 20], 0).unwrap();
        fs::remove_file(mounted.path("gone")).unwrap();
        let mut back = vec![0; 1 << 20];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back == [5; 1 << 20]);
        assert_eq!(file.metadata().unwrap().nlink(), 0);
    });
}

#[test]
fn special_files() {
    on_all(|mounted| {
        let make = |name: &str, kind, device| {
            let path = mounted.path(name);
            rustix::fs::mknodat(CWD, &path, kind, Mode::from_raw_mode(0o600), device).unwrap();
            fs::metadata(&path).unwrap()
        };
        assert!(make("fifo", rustix::fs::FileType::Fifo, 0).file_type().is_fifo());
        for (major, minor) in [(1, 3), (259, 70_000)] {
            let device = rustix::fs::makedev(major, minor);
            let name = format!("device{major}");
            assert_eq!(make(&name, rustix::fs::FileType::CharacterDevice, device).rdev(), device);
        }
        fs::write(mounted.path("device1"), "into /dev/null").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(mounted.path("socket")).unwrap();
        assert!(fs::metadata(mounted.path("socket")).unwrap().file_type().is_socket());
    });
}

#[test]
fn extended_attributes() {
    on_all(|mounted| {
        let path = mounted.path("file");
        fs::write(&path, "").unwrap();
        let none = XattrFlags::empty();
        let get = |name: &str| {
            let mut room = vec![0u8; 65536];
            rustix::fs::getxattr(&path, name, &mut room).map(|length| room[..length].to_vec())
        };
        rustix::fs::setxattr(&path, "user.small", b"value", none).unwrap();
        rustix::fs::setxattr(&path, "user.large", &[b'v'; 60_000], none).unwrap();
        rustix::fs::setxattr(&path, "trusted.mine", b"root", none).unwrap();
        assert_eq!(get("user.small").unwrap(), b"value");
        assert_eq!(get("user.large").unwrap(), [b'v'; 60_000]);
        assert_eq!(get("user.none"), Err(rustix::io::Errno::NODATA));
        assert_eq!(rustix::fs::getxattr(&path, "user.small", &mut [0u8; 2]), Err(rustix::io::Errno::RANGE));
        let set = |flags| rustix::fs::setxattr(&path, "user.small", b"new", flags);
        assert_eq!(set(XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
        set(XattrFlags::REPLACE).unwrap();
        rustix::fs::removexattr(&path, "user.small").unwrap();
        assert_eq!(set(XattrFlags::REPLACE), Err(rustix::io::Errno::NODATA));
        let mut room = vec![0u8; 1000];
        let length = rustix::fs::listxattr(&path, &mut room).unwrap();
        let mut names: Vec<_> =
            room[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        assert_eq!(names, [b"trusted.mine".as_slice(), b"user.large"]);
    });
}

#[test]
fn times_to_the_nanosecond_also_before_1970() {
    on_all(|mounted| {
        let path = mounted.path("file");
        let file = create(&path);
        let times = rustix::fs::Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: 123_456_789, tv_nsec: 12_345_678 },
            last_modification: rustix::fs::Timespec { tv_sec: -2, tv_nsec: 750_000_000 },
        };
        rustix::fs::futimens(&file, &times).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.atime(), meta.atime_nsec()), (123_456_789, 12_345_678));
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (-2, 750_000_000));
        let before = meta.ctime_nsec();
        std::thread::sleep(Duration::from_millis(20));
        create(&path);
        let now = fs::metadata(&path).unwrap();
        assert!(now.mtime() > 0 && now.ctime_nsec() != before, "truncating, even of nothing, is a change");
        fs::write(&path, "read").unwrap();
        let read_at = || fs::metadata(&path).map(|meta| (meta.atime(), meta.atime_nsec())).unwrap();
        let before = read_at();
        // The server tries a read through its cache by another way; the last one is no backup's.
        for flags in [libc::O_NOATIME, libc::O_NOATIME | libc::O_DIRECT, libc::O_DIRECT] {
            let file = OpenOptions::new().read(true).custom_flags(flags).open(&path).unwrap();
            let mut room = vec![0; 8192];
            let from = room.as_ptr().align_offset(4096);
            assert_eq!(file.read_at(&mut room[from..from + 4096], 0).unwrap(), 4);
            assert_eq!(read_at() == before, flags & libc::O_NOATIME != 0, "flags {flags:#o}");
        }
        let directory = || fs::metadata(mounted.path("")).unwrap();
        let before = (directory().mtime(), directory().mtime_nsec());
        std::thread::sleep(Duration::from_millis(20));
        create(&mounted.path("other"));
        assert!((directory().mtime(), directory().mtime_nsec()) > before, "a new name changes the directory");
    });
}

#[test]
fn set_id_bits_and_permissions() {
    on_all(|mounted| {
        let path = mounted.path("program");
        let file = create(&path);
        let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
        let set = |bits| fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
        set(0o6755);
        std::os::unix::fs::fchown(&file, Some(1), Some(1)).unwrap();
        assert_eq!(mode(), 0o755, "a new owner clears them");
        set(0o6777);
        assert_eq!(as_nobody("echo x >> $1", &path), 0);
        assert_eq!(mode(), 0o777, "a write by another clears them");
        set(0o6777);
        assert_eq!(as_nobody("truncate -s 0 $1", &path), 0);
        assert_eq!(mode(), 0o777, "a truncate by another clears them");
        set(0o6777);
        file.set_len(10).unwrap();
        fs::File::options().write(true).truncate(true).open(&path).unwrap();
        assert_eq!(mode(), 0o6777, "root keeps them");
        set(0o600);
        assert_ne!(as_nobody("cat $1", &path), 0, "the mode keeps others out");
        assert_ne!(as_nobody("mkdir $1", &mounted.path("not-yours")), 0);
    });
}

/// After another user's write had cleared set-id bits, `stat -c %A` still showed them: a write makes the
/// kernel doubt size and times only, and it answered the mode from its cache.
#[test]
fn cleared_set_id_bits_are_not_seen_in_the_kernels_cache() {
    on_all(|mounted| {
        let path = mounted.path("program");
        create(&path);
        let mode = || {
            let stat = rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::MODE).unwrap();
            u32::from(stat.stx_mode) & 0o7777
        };
        for bits in [0o6777, 0o4777, 0o2777] {
            fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
            assert_eq!(mode(), bits);
            assert_eq!(as_nobody("printf x | dd of=$1 conv=notrunc status=none", &path), 0);
            assert_eq!(mode(), 0o777, "after a write, from {bits:o}");
            fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
            // The attributes come with a listing, too.
            assert_eq!(fs::read_dir(mounted.path("")).unwrap().flatten().count(), 1);
            assert_eq!(mode(), bits);
            assert_eq!(as_nobody("truncate -s 1 $1", &path), 0);
            assert_eq!(mode(), 0o777, "after a truncate, from {bits:o}");
        }
    });
}

/// The kernel leaves it to the server to take a program's capabilities away when it is written to. They
/// stayed, on whatever somebody with no more than the right to write had put there.
#[test]
fn capabilities_end_with_a_write() {
    on_all(|mounted| {
        let path = mounted.path("program");
        let file = create(&path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        rustix::fs::setxattr(&path, "user.note", b"stays", XattrFlags::empty()).unwrap();
        // `struct vfs_cap_data` of linux/capability.h: version 2, effective, CAP_SETUID permitted.
        let mut value = [0u8; 20];
        value[..4].copy_from_slice(&0x0200_0001u32.to_le_bytes());
        value[4..8].copy_from_slice(&(1u32 << 7).to_le_bytes());
        let give =
            || rustix::fs::setxattr(&path, "security.capability", &value, XattrFlags::empty()).unwrap();
        let has = |name: &str| rustix::fs::getxattr(&path, name, &mut [0u8; 64]).is_ok();
        give();
        assert!(has("security.capability"));
        assert_eq!(as_nobody("printf x | dd of=$1 conv=notrunc status=none", &path), 0);
        assert!(!has("security.capability"), "written by another");
        give();
        file.write_all_at(b"y", 0).unwrap();
        assert!(!has("security.capability"), "written by root");
        assert!(has("user.note"));
    });
}

/// An owner who is not of the file's group could keep the set-group-id bit beside an access list of their
/// own.
#[test]
fn an_access_list_takes_set_group_id_away() {
    on_all(|mounted| {
        let path = mounted.path("program");
        let file = create(&path);
        std::os::unix::fs::fchown(&file, Some(65534), Some(1)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o2755)).unwrap();
        assert_eq!(as_nobody("setfacl -m u:5:r $1", &path), 0);
        let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
        assert_eq!(mode & 0o2000, 0, "{mode:o}");
        // Root may keep it.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o2755)).unwrap();
        let status = std::process::Command::new("setfacl").args(["-m", "u:6:r"]).arg(&path).status();
        assert!(status.unwrap().success());
        assert_ne!(fs::metadata(&path).unwrap().mode() & 0o2000, 0);
    });
}

/// Starts a program that has just been written. Another test that starts one has every descriptor of this
/// process between its fork and its exec, the writer's too, and the program is busy for so long.
fn eventually_started(program: &mut std::process::Command) -> std::process::Child {
    for _ in 0..500 {
        match program.spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(Duration::from_millis(10));
            }
            outcome => return outcome.unwrap(),
        }
    }
    panic!("{program:?} stays busy");
}

#[test]
fn a_program_runs_as_it_was_last_written() {
    on_all(|mounted| {
        let path = mounted.path("program");
        for program in ["/bin/true", "/bin/false", "/bin/true"] {
            // In place: what the kernel kept of the last run must go.
            fs::write(&path, fs::read(program).unwrap()).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            for _ in 0..2 {
                let status = eventually_started(&mut std::process::Command::new(&path)).wait().unwrap();
                assert_eq!(status.success(), program == "/bin/true");
            }
        }
    });
}

/// The kernel may send a cut with the open (`FUSE_ATOMIC_O_TRUNC`), before it looks whether the file runs. An
/// open with `O_RDONLY | O_TRUNC` was then refused with `ETXTBSY`, but the program had been cut off, and
/// died.
#[test]
fn a_program_that_runs_is_not_cut_off() {
    on_all(|mounted| {
        let path = mounted.path("program");
        let program = fs::read("/bin/cat").unwrap();
        fs::write(&path, &program).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let mut running = std::process::Command::new(&path);
        running.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut running = eventually_started(&mut running);
        let cut = OpenOptions::new().read(true).custom_flags(libc::O_TRUNC).open(&path);
        assert_eq!(code(cut), libc::ETXTBSY);
        assert!(fs::read(&path).unwrap() == program, "the open that failed changed the file");
        drop(running.stdin.take());
        assert!(running.wait().unwrap().success());
    });
}

#[test]
fn direct_and_synchronous_calls() {
    on_all(|mounted| {
        let path = mounted.path("direct");
        let direct = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(libc::O_DIRECT)
            .open(&path)
            .unwrap();
        let mut room = vec![0u8; 8192 + 4096];
        let start = room.as_ptr().align_offset(4096);
        let buffer = &mut room[start..start + 8192];
        buffer.fill(b'D');
        direct.write_all_at(buffer, 0).unwrap();
        assert_eq!(fs::read(&path).unwrap(), [b'D'; 8192], "a direct write is seen by a cached read");
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"cached", 4096).unwrap();
        direct.read_exact_at(buffer, 0).unwrap();
        assert_eq!(&buffer[4096..4102], b"cached", "a cached write is seen by a direct read");
        for flag in [libc::O_SYNC, libc::O_DSYNC] {
            let path = mounted.path("sync");
            let file = OpenOptions::new().append(true).create(true).custom_flags(flag).open(&path).unwrap();
            (&file).write_all(b"kept").unwrap();
            file.sync_data().unwrap();
        }
        assert_eq!(fs::read(mounted.path("sync")).unwrap(), b"keptkept");
        File::open(mounted.path("")).unwrap().sync_all().unwrap();
    });
}

#[test]
fn large_directories() {
    on_all(|mounted| {
        let directory = mounted.path("many");
        fs::create_dir(&directory).unwrap();
        for number in 0..3000 {
            fs::write(directory.join(number.to_string()), "").unwrap();
        }
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 3000);
        let sizes = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        assert_eq!(sizes.sum::<u64>(), 0);
        let mut removed = 0;
        for entry in fs::read_dir(&directory).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
            removed += 1;
        }
        assert_eq!(removed, 3000, "removing while reading misses nothing");
        fs::remove_dir(&directory).unwrap();
    });
}

/// One write that reaches the server as one request is seen whole or not at all.
#[test]
fn a_read_never_sees_half_a_write() {
    for transport in TRANSPORTS {
        let Some(mounted) = Mounted::new(CacheMode::Engine, transport) else { return };
        a_read_never_sees_half_a_write_on(&mounted);
    }
}

fn a_read_never_sees_half_a_write_on(mounted: &Mounted) {
    let file = create(&mounted.path("torn"));
    file.write_all_at(&[0; 16384], 0).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 1..=2u8 {
            let (file, stop) = (&file, &stop);
            scope.spawn(move || {
                let mut value = writer;
                while !stop.load(Ordering::Relaxed) {
                    file.write_all_at(&[value; 16384], 0).unwrap();
                    value = value.wrapping_add(2);
                }
            });
        }
        let mut data = [0; 16384];
        for _ in 0..3000 {
            file.read_exact_at(&mut data, 0).unwrap();
            if data.iter().any(|byte| *byte != data[0]) {
                stop.store(true, Ordering::Relaxed);
                panic!("half of a write was read");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// More requests that wait (fsync, O_SYNC) than there are threads do not keep others from being answered.
#[test]
fn waiting_requests_hold_nobody_up() {
    for transport in TRANSPORTS {
        let Some(mounted) = Mounted::new(CacheMode::Engine, transport) else { return };
        waiting_requests_hold_nobody_up_on(&mounted);
    }
}

fn waiting_requests_hold_nobody_up_on(mounted: &Mounted) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..40 {
            let (stop, path) = (&stop, mounted.path(&format!("sync{writer}")));
            scope.spawn(move || {
                let file = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .custom_flags(libc::O_DSYNC)
                    .open(path)
                    .unwrap();
                while !stop.load(Ordering::Relaxed) {
                    file.write_all_at(&[1; 4096], 0).unwrap();
                    file.sync_all().unwrap();
                }
            });
        }
        for _ in 0..200 {
            assert!(fs::metadata(mounted.path("")).unwrap().is_dir());
            fs::write(mounted.path("quick"), "x").unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn files_that_start_without_a_name() {
    on_all(|mounted| {
        let open = |flags| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_TMPFILE | flags)
                .open(mounted.path(""))
        };
        let file = open(0).unwrap();
        file.write_all_at(b"unnamed", 0).unwrap();
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        assert_eq!(fs::read_dir(mounted.path("")).unwrap().count(), 0);
        let link = |file: &File, name: &str| {
            let from = format!("/proc/self/fd/{}", file.as_raw_fd());
            let to = mounted.path(name);
            rustix::fs::linkat(CWD, from, CWD, &to, rustix::fs::AtFlags::SYMLINK_FOLLOW)
        };
        link(&file, "named").unwrap();
        assert_eq!(fs::read(mounted.path("named")).unwrap(), b"unnamed");
        assert_eq!(file.metadata().unwrap().nlink(), 1);
        assert_eq!(link(&open(libc::O_EXCL).unwrap(), "never"), Err(rustix::io::Errno::NOENT));
    });
}

#[test]
fn birth_times() {
    on_all(|mounted| {
        let path = mounted.path("file");
        let before = std::time::SystemTime::now() - Duration::from_secs(1);
        fs::write(&path, "x").unwrap();
        let born = fs::metadata(&path).unwrap().created().unwrap();
        assert!(born > before && born <= std::time::SystemTime::now() + Duration::from_secs(1));
        std::thread::sleep(Duration::from_millis(20));
        fs::write(&path, "y").unwrap();
        let now = fs::metadata(&path).unwrap();
        assert_eq!(now.created().unwrap(), born);
        assert!(now.modified().unwrap() > born);
    });
}
