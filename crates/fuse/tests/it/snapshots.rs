//! Snapshots under `.snapshots`: what programs see there, and that nothing there changes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quire::backend::MemoryBackend;
use quire::{ErrorKind, FormatOptions, Volume, VolumeOptions, take_snapshot_backend};
use quire_fuse::{CacheMode, ServeOptions, ShowSnapshots, TransportChoice};
use rustix::fs::{SeekFrom, XattrFlags};

use crate::mounted::{Map, Mounted, TRANSPORTS, code};

fn made() -> Arc<MemoryBackend> {
    let backend = Arc::new(MemoryBackend::new(64 << 10));
    FormatOptions::new().format_backend(backend.clone()).unwrap();
    backend
}

fn open(backend: &Arc<MemoryBackend>) -> Volume {
    VolumeOptions::new().cache_bytes(64 << 20).open_backend(backend.clone()).unwrap()
}

fn serve(
    backend: &Arc<MemoryBackend>,
    transport: TransportChoice,
    cache: CacheMode,
    snapshots: ShowSnapshots,
) -> Option<(Mounted, Volume)> {
    let volume = open(backend);
    let options = ServeOptions { cache, transport, snapshots, ..ServeOptions::default() };
    Mounted::serve(volume.clone(), options).map(|mounted| (mounted, volume))
}

/// Changes a volume through a mount, and takes a snapshot of it once that is gone.
fn with_snapshot(backend: &Arc<MemoryBackend>, name: &str, fill: impl Fn(&Path)) -> Option<()> {
    let (mounted, volume) = serve(backend, TransportChoice::Device, CacheMode::Engine, ShowSnapshots::Hide)?;
    fill(&mounted.path(""));
    drop((mounted, volume));
    take_snapshot_backend(backend.clone(), name).unwrap();
    Some(())
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn content(seed: u8) -> Vec<u8> {
    (0..300_000).map(|at| seed ^ (at / 4096) as u8 ^ (at % 251) as u8).collect()
}

fn fill(root: &Path) {
    fs::create_dir_all(root.join("dir/below")).unwrap();
    for number in 0..100 {
        fs::write(root.join(format!("dir/{number}")), content(number)).unwrap();
    }
    fs::hard_link(root.join("dir/7"), root.join("dir/below/seven")).unwrap();
    symlink("dir/7", root.join("link")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 1 << 20).unwrap();
    rustix::fs::setxattr(root.join("dir/1"), "user.note", b"kept", XattrFlags::empty()).unwrap();
    fs::set_permissions(root.join("dir/2"), fs::Permissions::from_mode(0o4751)).unwrap();
}

const EROFS: i32 = libc::EROFS;

#[test]
fn a_snapshot_shows_what_was_there() {
    for transport in TRANSPORTS {
        for cache in [CacheMode::Engine, CacheMode::Kernel] {
            let backend = made();
            let Some(()) = with_snapshot(&backend, "first", fill) else { return };
            let Some((mounted, volume)) = serve(&backend, transport, cache, ShowSnapshots::Hide) else {
                continue;
            };
            let (live, first) = (mounted.path("dir"), mounted.path(".snapshots/first"));
            let then = fs::metadata(live.join("2")).unwrap();
            fs::write(live.join("1"), "changed").unwrap();
            fs::remove_file(live.join("3")).unwrap();
            fs::remove_dir_all(live.join("below")).unwrap();
            fs::rename(live.join("4"), live.join("new")).unwrap();
            assert_eq!(names(&mounted.path("")), ["dir", "link", "sparse"]);
            assert_eq!(names(&mounted.path(".snapshots")), ["first"]);
            assert_eq!(names(&first), ["dir", "link", "sparse"]);
            assert_eq!(names(&first.join("dir")).len(), 101);
            for number in 0..100 {
                assert!(fs::read(first.join(format!("dir/{number}"))).unwrap() == content(number));
            }
            assert_eq!(fs::read_link(first.join("link")).unwrap(), Path::new("dir/7"));
            assert!(fs::read(first.join("link")).unwrap() == content(7));
            let seven = fs::metadata(first.join("dir/7")).unwrap();
            assert_eq!(fs::metadata(first.join("dir/below/seven")).unwrap().ino(), seven.ino());
            assert_ne!(fs::metadata(live.join("7")).unwrap().ino(), seven.ino());
            let two = fs::metadata(first.join("dir/2")).unwrap();
            assert_eq!((two.mode(), two.nlink(), two.len()), (then.mode(), then.nlink(), then.len()));
            assert_eq!((two.mtime(), two.mtime_nsec()), (then.mtime(), then.mtime_nsec()));
            let mut note = [0; 4];
            rustix::fs::getxattr(first.join("dir/1"), "user.note", &mut note).unwrap();
            assert_eq!(&note, b"kept");
            let sparse = File::open(first.join("sparse")).unwrap();
            assert_eq!(rustix::fs::seek(&sparse, SeekFrom::Data(0)).unwrap(), 1 << 20);
            let mapped = File::open(first.join("dir/5")).unwrap();
            let map = Map::new(&mapped, 300_000, libc::MAP_PRIVATE);
            assert!(map.get(0, 300_000) == content(5));
            drop((map, mapped, sparse));
            // Numbers in listings are those of stat; and up again.
            for entry in fs::read_dir(&first).unwrap().chain(fs::read_dir(first.join("dir")).unwrap()) {
                use std::os::unix::fs::DirEntryExt;
                let entry = entry.unwrap();
                assert_eq!(entry.ino(), entry.metadata().unwrap().ino(), "{:?}", entry.path());
            }
            let up = first.join("dir/../../../dir/new");
            assert!(fs::read(up).unwrap() == content(4));
            // Restored by an ordinary copy.
            fs::copy(first.join("dir/3"), live.join("3")).unwrap();
            assert!(fs::read(live.join("3")).unwrap() == content(3));
            drop((mounted, volume));
        }
    }
}

#[test]
fn nothing_in_a_snapshot_changes() {
    let backend = made();
    let Some(()) = with_snapshot(&backend, "first", fill) else { return };
    for transport in TRANSPORTS {
        let Some((mounted, _volume)) = serve(&backend, transport, CacheMode::Engine, ShowSnapshots::Hide)
        else {
            continue;
        };
        let (top, first) = (mounted.path(".snapshots"), mounted.path(".snapshots/first"));
        let file = first.join("dir/1");
        let changes: [(&str, io::Result<()>); 17] = [
            ("create", File::create(first.join("new")).map(drop)),
            ("open", File::options().write(true).open(&file).map(drop)),
            ("cut", File::options().write(true).truncate(true).open(&file).map(drop)),
            ("append", File::options().append(true).open(&file).map(drop)),
            ("mkdir", fs::create_dir(first.join("dir/new"))),
            ("remove", fs::remove_file(&file)),
            ("rmdir", fs::remove_dir(first.join("dir/below"))),
            ("rename", fs::rename(&file, first.join("dir/new"))),
            ("out", fs::rename(&file, mounted.path("new"))),
            ("in", fs::rename(mounted.path("sparse"), first.join("new"))),
            ("link", fs::hard_link(&file, mounted.path("new"))),
            ("symlink", symlink("x", first.join("new"))),
            ("chmod", fs::set_permissions(&file, fs::Permissions::from_mode(0o600))),
            ("xattr", rustix::fs::setxattr(&file, "user.x", b"y", XattrFlags::empty()).map_err(Into::into)),
            ("a snapshot", fs::create_dir(top.join("second"))),
            ("rmdir of a snapshot", fs::remove_dir(&first)),
            ("rmdir of all", fs::remove_dir(&top)),
        ];
        for (what, outcome) in changes {
            assert_eq!(code(outcome), EROFS, "{what}");
        }
        assert_eq!(code(fs::rename(mounted.path("dir"), &top)), EROFS);
        assert_eq!(code(fs::create_dir(&top)), libc::EEXIST);
        assert_eq!(code(fs::metadata(top.join("second"))), libc::ENOENT);
        // What needs no change works.
        File::open(&file).unwrap().sync_all().unwrap();
        assert!(fs::read(&file).unwrap() == content(1));
    }
}

/// What a name leads to that the kernel has looked up before is gone once it is deleted; a file that is open
/// holds it.
#[test]
fn snapshots_come_and_go() {
    let backend = made();
    for name in ["first", "second"] {
        let Some(()) = with_snapshot(&backend, name, |root| fs::write(root.join("name"), name).unwrap())
        else {
            return;
        };
    }
    for transport in TRANSPORTS {
        let Some((mounted, volume)) = serve(&backend, transport, CacheMode::Engine, ShowSnapshots::List)
        else {
            continue;
        };
        assert_eq!(names(&mounted.path("")), [".snapshots", "name"]);
        let top = mounted.path(".snapshots");
        let left = names(&top);
        for name in &left {
            assert_eq!(fs::read_to_string(top.join(name).join("name")).unwrap(), *name);
        }
        let gone = &left[0];
        let open = File::open(top.join(gone).join("name")).unwrap();
        assert_eq!(volume.delete_snapshot(gone).unwrap_err().kind(), ErrorKind::Busy);
        let mut start = [0; 1];
        open.read_exact_at(&mut start, 0).unwrap();
        drop(open);
        // The kernel tells of the close behind the program's back.
        let start = Instant::now();
        while let Err(error) = volume.delete_snapshot(gone) {
            assert!(error.kind() == ErrorKind::Busy && start.elapsed() < Duration::from_secs(10), "{error}");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(names(&top), left[1..]);
        std::thread::sleep(Duration::from_millis(1100));
        assert_eq!(code(fs::read(top.join(gone).join("name"))), libc::ENOENT);
    }
}

#[test]
fn a_file_of_that_name_is_shown_itself() {
    let backend = made();
    let volume = open(&backend);
    volume.write(".snapshots", "mine").unwrap();
    volume.close().unwrap();
    take_snapshot_backend(backend.clone(), "first").unwrap();
    let mounted = serve(&backend, TransportChoice::Device, CacheMode::Engine, ShowSnapshots::List);
    let Some((mounted, _volume)) = mounted else { return };
    assert_eq!(names(&mounted.path("")), [".snapshots"]);
    assert_eq!(fs::read_to_string(mounted.path(".snapshots")).unwrap(), "mine");
    fs::remove_file(mounted.path(".snapshots")).unwrap();
    assert!(!mounted.path(".snapshots").exists(), "from the next mount on");
    drop((mounted, _volume));
    let off = serve(&backend, TransportChoice::Device, CacheMode::Engine, ShowSnapshots::Off);
    let (mounted, _volume) = off.unwrap();
    assert!(!mounted.path(".snapshots").exists());
    fs::create_dir(mounted.path(".snapshots")).unwrap();
}

fn has(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(program).exists()));
    if !found {
        eprintln!("\n*** SKIPPED in part: needs the program {program} ***\n");
    }
    found
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).env("HOME", "/nonexistent").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {out}{err}");
    out
}

/// Every file below a directory with what it is.
fn tree(root: &Path) -> BTreeMap<PathBuf, (u32, u64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let data = if metadata.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            if metadata.is_dir() {
                directories.push(path.clone());
            }
            let times = metadata.mtime() as u64;
            found.insert(path.strip_prefix(root).unwrap().to_owned(), (metadata.mode(), times, data));
        }
    }
    found
}

/// Programs that copy, compare and check work on a snapshot as on any tree.
#[test]
fn programs_read_a_snapshot() {
    let backend = made();
    let has_git = has("git");
    let filled = with_snapshot(&backend, "first", |root| {
        fill(root);
        if has_git {
            let repository = root.join("repository");
            let at = repository.to_str().unwrap();
            run("git", &["init", "-q", at]);
            fs::write(repository.join("file"), content(1)).unwrap();
            run("git", &["-C", at, "add", "."]);
            let who = ["-c", "user.name=t", "-c", "user.email=t@example.org"];
            run("git", &[&["-C", at], &who[..], &["commit", "-qm", "first"]].concat());
        }
    });
    let Some(()) = filled else { return };
    for transport in TRANSPORTS {
        let Some((mounted, _volume)) = serve(&backend, transport, CacheMode::Engine, ShowSnapshots::Hide)
        else {
            continue;
        };
        let back = mounted.path(&format!("{transport:?}"));
        let _ = fs::remove_dir_all(mounted.path("dir"));
        let first = mounted.path(".snapshots/first");
        let (from, wanted) = (first.to_str().unwrap(), tree(&first));
        let outside = tempfile::tempdir().unwrap();
        let target = |name: &str| outside.path().join(name).to_str().unwrap().to_owned();
        run("cp", &["-a", from, &target("cp")]);
        run("cp", &["-a", from, back.to_str().unwrap()]);
        fs::create_dir(target("tar")).unwrap();
        run("tar", &["-C", from, "-cf", &target("archive"), "."]);
        run("tar", &["-C", &target("tar"), "-xpf", &target("archive")]);
        let mut copies = vec![target("cp"), target("tar"), back.to_str().unwrap().into()];
        if has("rsync") {
            run("rsync", &["-aH", &format!("{from}/"), &target("rsync")]);
            copies.push(target("rsync"));
        }
        for copy in copies {
            assert!(tree(Path::new(&copy)) == wanted, "{copy} differs");
            run("diff", &["-r", "--no-dereference", from, &copy]);
        }
        let found = run("find", &[from, "-mindepth", "1", "-printf", "%P\n"]);
        assert_eq!(found.lines().count(), wanted.len());
        if has_git {
            let repository = first.join("repository");
            let at = repository.to_str().unwrap();
            let safe = format!("safe.directory={at}");
            run("git", &["-c", &safe, "-C", at, "fsck", "--full"]);
            run("git", &["-c", &safe, "-C", at, "log", "--oneline"]);
        }
    }
}
