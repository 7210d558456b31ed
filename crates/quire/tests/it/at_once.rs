//! Reads and writes that wait for nothing: what they do is what the waiting ones do, what they refuse has no
//! trace.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quire::backend::MemoryBackend;
use quire::inodes::IoFlags;
use quire::{FormatOptions, OpenOptions, Volume, VolumeOptions};

fn volume(options: VolumeOptions) -> (Volume, Arc<MemoryBackend>) {
    let backend = Arc::new(MemoryBackend::new(32 << 10));
    FormatOptions::new().format_backend(backend.clone()).unwrap();
    (options.open_backend(backend.clone()).unwrap(), backend)
}

#[test]
fn cached_data_is_read_and_overwritten_at_once() {
    let (volume, _) = volume(VolumeOptions::new());
    let file = OpenOptions::new().write(true).read(true).create(true).open(&volume, "file").unwrap();
    let inode = file.inode().clone();
    let mut seen = vec![0; 8192];
    assert!(
        !volume.inodes().try_write_at(&inode, b"past the end", 0, IoFlags::empty()),
        "growth is not for writes at once"
    );
    assert_eq!(
        volume.inodes().try_read_at(&inode, &mut seen, 0, IoFlags::empty()),
        Some(0),
        "an empty file is known to be empty"
    );
    file.write_at(&[1; 16384], 0).unwrap();
    assert!(
        volume.inodes().try_write_at(&inode, &[2; 20], 4090, IoFlags::empty()),
        "dirty blocks are where they are"
    );
    assert_eq!(volume.inodes().try_read_at(&inode, &mut seen[..20], 4090, IoFlags::empty()), Some(20));
    assert_eq!(seen[..20], [2; 20]);
    file.sync_all().unwrap();
    assert!(
        volume.inodes().try_write_at(&inode, &[3; 8192], 8192, IoFlags::empty()),
        "clean blocks with a home"
    );
    assert!(!volume.inodes().try_write_at(&inode, &[4; 8], 16380, IoFlags::empty()), "across the end");
    assert!(!volume.inodes().try_write_at(&inode, &[4; 8], u64::MAX - 3, IoFlags::empty()));
    assert_eq!(
        volume.inodes().try_read_at(&inode, &mut seen, 12288, IoFlags::empty()),
        Some(4096),
        "clipped at the end"
    );
    assert_eq!(seen[..4096], [3; 4096]);
    // A block without folio and home.
    file.set_len(1 << 20).unwrap();
    assert!(
        !volume.inodes().try_write_at(&inode, &[5; 4096], 512 << 10, IoFlags::empty()),
        "a hole needs space first"
    );
    assert_eq!(volume.inodes().try_read_at(&inode, &mut seen, 512 << 10, IoFlags::empty()), None);
    file.read_exact_at(&mut seen, 512 << 10).unwrap();
    assert_eq!(seen, [0; 8192]);
    let root = volume.inodes().root();
    assert_eq!(volume.inodes().try_read_at(&root, &mut seen, 0, IoFlags::empty()), None);
    assert!(!volume.inodes().try_write_at(&root, &[1], 0, IoFlags::empty()));
    drop((file, inode, root));
    volume.close().unwrap();
}

#[test]
fn what_was_written_at_once_is_durable_like_all_else() {
    let (volume, backend) = volume(VolumeOptions::new());
    let file = OpenOptions::new().write(true).read(true).create(true).open(&volume, "file").unwrap();
    file.write_at(&[1; 65536], 0).unwrap();
    file.sync_all().unwrap();
    assert!(volume.inodes().try_write_at(file.inode(), &[7; 4096], 4096, IoFlags::empty()));
    file.sync_data().unwrap();
    drop(file);
    volume.close().unwrap();
    let volume = VolumeOptions::new().read_only(true).open_backend(backend).unwrap();
    let file = volume.open_file("file").unwrap();
    let mut block = vec![0; 4096];
    file.read_exact_at(&mut block, 4096).unwrap();
    assert_eq!(block, [7; 4096]);
    assert!(
        !volume.inodes().try_write_at(file.inode(), &[9; 10], 0, IoFlags::empty()),
        "a read-only volume takes no changes"
    );
    drop(file);
    volume.close().unwrap();
}

/// On a thread that may not wait: what can be done at once is done as always, the rest fails without a trace.
#[test]
fn names_and_growth_at_once() {
    use quire::ErrorKind;
    use quire::inodes::Create;
    use quire_base::patience;
    let (volume, backend) = volume(VolumeOptions::new());
    let root = volume.inodes().root();
    let at_once = |write: &[u8], offset: u64, inode: &quire::inodes::InodeRef| {
        patience::at_once(|| volume.inodes().write_at(inode, write, offset, IoFlags::KEEP_PRIVILEGES))
    };
    let inode = patience::at_once(|| volume.inodes().create(&root, b"file", &Create::file(0o644))).unwrap();
    assert_eq!(
        patience::at_once(|| volume.inodes().lookup(&root, b"file")).unwrap().number(),
        inode.number()
    );
    assert_eq!(at_once(b"begun", 0, &inode).unwrap(), 5);
    assert_eq!(at_once(&[1; 10_000], 5, &inode).unwrap(), 10_000);
    assert_eq!(at_once(b"far", 1 << 20, &inode).unwrap_err().kind(), ErrorKind::WouldBlock, "a gap");
    assert_eq!(at_once(&vec![1; 2 << 20], 0, &inode).unwrap_err().kind(), ErrorKind::WouldBlock, "no batch");
    assert_eq!(volume.inodes().metadata(&inode).size(), 10_005);
    patience::at_once(|| volume.inodes().hard_link(&inode, &root, b"link")).unwrap();
    patience::at_once(|| volume.inodes().remove_file(&root, b"link")).unwrap();
    volume.sync().unwrap();
    drop((inode, root));
    volume.close().unwrap();

    // Nothing is in memory: each look-up and edge has to come from the device first.
    let volume = VolumeOptions::new().open_backend(backend).unwrap();
    let root = volume.inodes().root();
    let inode = volume.inodes().lookup(&root, b"file").unwrap();
    let edge =
        || patience::at_once(|| volume.inodes().write_at(&inode, b"edge", 10, IoFlags::KEEP_PRIVILEGES));
    assert_eq!(edge().unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut seen = vec![0; 20];
    assert_eq!(volume.inodes().read_at(&inode, &mut seen, 0, IoFlags::empty()).unwrap(), 20);
    assert_eq!(seen, b"begun\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01");
    assert_eq!(edge().unwrap(), 4, "now it is there");
    drop((inode, root));
    volume.close().unwrap();
}

/// Renames and removals of directories went to a second thread always, though nearly all need no waiting.
/// What does need it is refused, and leaves names and data as they are.
#[test]
fn renames_and_removed_directories_at_once() {
    use quire::inodes::Create;
    use quire::{ErrorKind, RenameFlags};
    use quire_base::patience;
    let (volume, _) = volume(VolumeOptions::new().threads(false));
    let root = volume.inodes().root();
    let directory = Create::directory(0o755);
    let one = volume.inodes().create(&root, b"one", &directory).unwrap();
    let two = volume.inodes().create(&root, b"two", &directory).unwrap();
    let rename = |from: &quire::inodes::InodeRef, name: &[u8], to: &quire::inodes::InodeRef, new: &[u8]| {
        patience::at_once(|| volume.inodes().rename(from, name, to, new, RenameFlags::empty()))
    };
    let file = volume.inodes().create(&one, b"file", &Create::file(0o644)).unwrap();
    volume.inodes().write_at(&file, b"new", 0, IoFlags::empty()).unwrap();
    rename(&one, b"file", &one, b"other").unwrap();
    rename(&one, b"other", &two, b"file").unwrap();
    rename(&root, b"two", &one, b"inner").unwrap();
    let below = rename(&root, b"one", &two, b"loop").unwrap_err();
    assert_eq!(below.kind(), ErrorKind::Invalid);

    // Over another file the data goes to the device first.
    volume.inodes().create(&two, b"old", &Create::file(0o644)).unwrap();
    assert_eq!(rename(&two, b"file", &two, b"old").unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(volume.inodes().lookup(&two, b"file").unwrap().number(), file.number(), "nothing has changed");
    assert_ne!(volume.inodes().lookup(&two, b"old").unwrap().number(), file.number());
    volume.sync().unwrap();
    rename(&two, b"file", &two, b"old").unwrap();
    assert_eq!(volume.inodes().lookup(&two, b"old").unwrap().number(), file.number());

    let remove = |parent: &quire::inodes::InodeRef, name: &[u8]| {
        patience::at_once(|| volume.inodes().remove_dir(parent, name))
    };
    assert_eq!(remove(&root, b"one").unwrap_err().kind(), ErrorKind::NotEmpty);
    volume.inodes().remove_file(&two, b"old").unwrap();
    remove(&one, b"inner").unwrap();
    remove(&root, b"one").unwrap();
    assert_eq!(volume.inodes().lookup(&root, b"one").unwrap_err().kind(), ErrorKind::NotFound);
    drop((root, one, two, file));
    volume.close().unwrap();
}

/// A thread that may not wait forced the journal itself when the journal's buffer was full: deleting a tree
/// of 20,000 files over a mount held a queue of requests at the device.
#[test]
fn a_full_journal_buffer_is_no_reason_to_wait() {
    use quire::ErrorKind;
    use quire::inodes::XattrFlags;
    use quire_base::patience;
    let (volume, _) = volume(VolumeOptions::new().threads(false));
    let root = volume.inodes().root();
    let (mut refused, mut made) = (0, 0);
    for number in 0..4000u32 {
        let value = vec![number as u8; 60_000];
        match patience::at_once(|| {
            volume.inodes().set_xattr(&root, b"user.large", &value, XattrFlags::empty())
        }) {
            Ok(()) => made += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                refused += 1;
                if refused == 3 {
                    break;
                }
                volume.sync().unwrap();
            }
        }
    }
    assert!(made > 0 && refused == 3, "{made} made, {refused} refused: the buffer was never full");
    drop(root);
    volume.close().unwrap();
}

/// Many threads make, extend and remove files, half of them without waiting where they can.
#[test]
fn both_kinds_of_threads_side_by_side() {
    use quire::ErrorKind;
    use quire::inodes::Create;
    use quire_base::patience;
    let (volume, backend) = volume(VolumeOptions::new().cache_bytes(8 << 20));
    let root = volume.inodes().root();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (volume, root) = (&volume, &root);
            scope.spawn(move || {
                fn either<T>(try_first: bool, work: impl Fn() -> quire::Result<T>) -> quire::Result<T> {
                    match if try_first { Some(patience::at_once(&work)) } else { None } {
                        Some(Err(error)) if error.kind() == ErrorKind::WouldBlock => work(),
                        Some(outcome) => outcome,
                        None => work(),
                    }
                }
                let quick = thread % 2 == 0;
                for number in 0..150u64 {
                    let name = format!("{thread}-{number}");
                    let data = vec![(number % 251) as u8 + 1; 3000 + 97 * number as usize];
                    let inode =
                        either(quick, || volume.inodes().create(root, name.as_bytes(), &Create::file(0o600)))
                            .unwrap();
                    for (piece, at) in data.chunks(1500).zip((0..).step_by(1500)) {
                        let write = || volume.inodes().write_at(&inode, piece, at, IoFlags::KEEP_PRIVILEGES);
                        assert_eq!(either(quick, write).unwrap(), piece.len());
                    }
                    let mut seen = vec![0; data.len() + 1];
                    assert_eq!(
                        volume.inodes().read_at(&inode, &mut seen, 0, IoFlags::empty()).unwrap(),
                        data.len()
                    );
                    assert!(seen[..data.len()] == data);
                    if number % 3 == 0 {
                        either(quick, || volume.inodes().remove_file(root, name.as_bytes())).unwrap();
                    }
                    if number % 40 == 7 {
                        volume.checkpoint().unwrap();
                    }
                }
            });
        }
    });
    drop(root);
    volume.close().unwrap();
    let volume = VolumeOptions::new().read_only(true).open_backend(backend).unwrap();
    let mut names = 0;
    volume
        .inodes()
        .read_dir(&volume.inodes().root(), 0, &mut |_| {
            names += 1;
            true
        })
        .unwrap();
    assert_eq!(names, 2 + 4 * 100);
    volume.close().unwrap();
}

/// Writers of both kinds beside a reader: each block always holds one write, whole.
#[test]
fn nothing_is_torn_beside_waiting_writers() {
    const PIECE: usize = 16384;
    let (volume, _) = volume(VolumeOptions::new());
    let file = OpenOptions::new().write(true).read(true).create(true).open(&volume, "file").unwrap();
    file.write_at(&[0; PIECE], 0).unwrap();
    let stop = AtomicBool::new(false);
    let at_once = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 1..=4u8 {
            let (volume, file, stop, at_once) = (&volume, &file, &stop, &at_once);
            scope.spawn(move || {
                let data = vec![writer; PIECE];
                while !stop.load(Ordering::Relaxed) {
                    if writer % 2 == 0
                        && volume.inodes().try_write_at(file.inode(), &data, 0, IoFlags::empty())
                    {
                        at_once.fetch_add(1, Ordering::Relaxed);
                    } else {
                        volume.inodes().write_at(file.inode(), &data, 0, IoFlags::KEEP_PRIVILEGES).unwrap();
                    }
                }
            });
        }
        let mut seen = vec![0; PIECE];
        for _ in 0..3000 {
            file.read_exact_at(&mut seen, 0).unwrap();
            if seen.iter().any(|byte| *byte != seen[0]) {
                stop.store(true, Ordering::Relaxed);
                panic!("half of a write was read");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(at_once.load(Ordering::Relaxed) > 0);
    drop(file);
    volume.close().unwrap();
}
