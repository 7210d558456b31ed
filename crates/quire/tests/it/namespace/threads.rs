//! Threads that meet in the same directories.

use super::*;
use quire::inodes::XattrFlags;
use quire::{FileType, RenameFlags};
use quire_base::random::Random;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const THREADS: u64 = 8;

/// Errors that operations on names may have when others are about.
const RACES: [ErrorKind; 9] = [
    ErrorKind::NotFound,
    ErrorKind::Exists,
    ErrorKind::NotEmpty,
    ErrorKind::IsDirectory,
    ErrorKind::NotDirectory,
    ErrorKind::Invalid,
    ErrorKind::NotPermitted,
    ErrorKind::Stale,
    ErrorKind::NoAttribute,
];

#[track_caller]
fn may_lose<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if RACES.contains(&error.kind()) => None,
        Err(error) => panic!("{error:?}"),
    }
}

fn run(count: u64, work: impl Fn(u64) + Sync) {
    thread::scope(|scope| {
        for n in 0..count {
            let work = &work;
            scope.spawn(move || work(n));
        }
    });
}

/// Anything, in a tree that all threads change.
fn scramble(volume: &Volume, seed: u64, steps: usize) {
    let mut random = Random::seeded(seed);
    let names: [&[u8]; 7] = [b"a", b"b", b"c", b"d", b"e", COLLIDING_NAMES[0][0], COLLIDING_NAMES[0][1]];
    let mut held: Vec<InodeRef> = Vec::new();
    for _ in 0..steps {
        let name = names[random.below(7) as usize];
        let other = names[random.below(7) as usize];
        let mut walk = || {
            let mut at = volume.inodes().root();
            while !random.one_in(3) {
                let name = names[random.below(7) as usize];
                match may_lose(volume.inodes().lookup(&at, name)) {
                    Some(inode) if inode.kind() == FileType::Directory => at = inode,
                    _ => break,
                }
            }
            at
        };
        let (at, to) = (walk(), walk());
        match random.below(16) {
            0..3 => held.extend(may_lose(volume.inodes().create(&at, name, &Create::file(0o644)))),
            3..5 => drop(may_lose(volume.inodes().create(&at, name, &Create::directory(0o755)))),
            5 => {
                let _ = may_lose(volume.inodes().remove_file(&at, name));
            }
            6 => {
                let _ = may_lose(volume.inodes().remove_dir(&at, name));
            }
            7..11 => {
                let flags = [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
                let flags = flags[random.below(3) as usize];
                let _ = may_lose(volume.inodes().rename(&at, name, &to, other, flags));
            }
            11 => {
                if let Some(inode) = may_lose(volume.inodes().lookup(&at, name)) {
                    let _ = may_lose(volume.inodes().hard_link(&inode, &to, other));
                }
            }
            12 => {
                let made = may_lose(volume.inodes().tmpfile(&at, &Create::file(0o600)));
                if let Some(inode) = made {
                    let _ = may_lose(volume.inodes().hard_link(&inode, &to, other));
                }
            }
            13 => {
                let _ = may_lose(volume.inodes().read_dir(&at, 0, &mut |_| true));
            }
            14 => {
                let value = vec![seed as u8; random.below(2500) as usize];
                let _ = may_lose(volume.inodes().set_xattr(&at, b"user.a", &value, XattrFlags::empty()));
                if let Some(value) = may_lose(volume.inodes().get_xattr(&at, b"user.a")) {
                    assert!(value.iter().all(|&byte| byte == value[0]), "a value in one piece");
                }
            }
            _ => held.clear(),
        }
    }
}

#[test]
fn whatever_threads_do_names_and_links_fit_together() {
    let backend = formatted();
    let volume = options(true).open_backend(backend.clone()).unwrap();
    run(THREADS, |n| scramble(&volume, n, 1500));
    consistency::check(&volume);
    volume.sync().unwrap();
    let recovered = options(false).open_backend(copy_of(&backend)).unwrap();
    consistency::check(&recovered);
    volume.close().unwrap();
    consistency::check(&options(false).open_backend(backend).unwrap());
}

#[test]
fn creates_in_one_directory_all_succeed() {
    let volume = options(true).open_backend(formatted()).unwrap();
    let root = volume.inodes().root();
    run(THREADS, |n| {
        for k in 0..300 {
            let name = format!("{n}-{k}");
            drop(file(&volume, &root, name.as_bytes()));
            if k % 3 == 0 {
                volume.inodes().remove_file(&root, name.as_bytes()).unwrap();
            }
        }
    });
    assert_eq!(names(&volume, &root).len() as u64, THREADS * 200);
    consistency::check(&volume);
}

/// One winner for each name, and one loser less than threads.
#[test]
fn one_thread_gets_each_name() {
    let volume = options(true).open_backend(formatted()).unwrap();
    let root = volume.inodes().root();
    let won = AtomicU64::new(0);
    run(THREADS, |_| {
        for k in 0..300 {
            match volume.inodes().create(&root, k.to_string().as_bytes(), &Create::file(0o644)) {
                Ok(_) => {
                    won.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Exists),
            }
        }
    });
    assert_eq!(won.into_inner(), 300);
    consistency::check(&volume);
}

/// A directory is not removed while something is made in it, nor is anything made in one that was removed.
#[test]
fn nothing_is_made_in_a_removed_directory() {
    let volume = options(true).open_backend(formatted()).unwrap();
    let root = volume.inodes().root();
    let made = AtomicU64::new(0);
    run(4, |n| {
        for k in 0..800 {
            if n % 2 == 0 {
                let _ = may_lose(volume.inodes().create(&root, b"d", &Create::directory(0o755)));
                let _ = may_lose(volume.inodes().remove_dir(&root, b"d"));
                continue;
            }
            let Some(d) = may_lose(volume.inodes().lookup(&root, b"d")) else { continue };
            let name = format!("{n}-{k}");
            if may_lose(volume.inodes().create(&d, name.as_bytes(), &Create::file(0o644))).is_some() {
                made.fetch_add(1, Ordering::Relaxed);
                volume.inodes().remove_file(&d, name.as_bytes()).unwrap();
            }
        }
    });
    consistency::check(&volume);
}

/// A file that moves on from name to name is never seen under two: who has found it under one, finds nothing
/// under the one before.
#[test]
fn a_renamed_file_is_never_seen_under_both_names() {
    let volume = options(true).open_backend(formatted()).unwrap();
    let root = volume.inodes().root();
    let places = [directory(&volume, &root, b"x"), directory(&volume, &root, b"y"), root.clone()];
    let place = |n: u64| &places[(n % 5 % 3) as usize];
    let name = |n: u64| format!("file{n}").into_bytes();
    file(&volume, place(0), &name(0));
    let (at, done) = (AtomicU64::new(0), AtomicBool::new(false));
    run(3, |thread| {
        if thread == 0 {
            for n in 0..3000 {
                volume
                    .inodes()
                    .rename(place(n), &name(n), place(n + 1), &name(n + 1), RenameFlags::empty())
                    .unwrap();
                at.store(n + 1, Ordering::Release);
            }
            done.store(true, Ordering::Release);
            return;
        }
        while !done.load(Ordering::Acquire) {
            let n = at.load(Ordering::Acquire) + 1;
            if volume.inodes().lookup(place(n), &name(n)).is_ok() {
                fails(volume.inodes().lookup(place(n - 1), &name(n - 1)), ErrorKind::NotFound);
            }
        }
    });
    consistency::check(&volume);
}

/// Two files that change places all the time are both always there.
#[test]
fn exchanged_names_are_always_there() {
    let volume = options(true).open_backend(formatted()).unwrap();
    let root = volume.inodes().root();
    let d = directory(&volume, &root, b"d");
    file(&volume, &root, b"one");
    directory(&volume, &d, b"two");
    let done = AtomicBool::new(false);
    run(3, |thread| {
        if thread == 0 {
            for _ in 0..2000 {
                volume.inodes().rename(&root, b"one", &d, b"two", RenameFlags::EXCHANGE).unwrap();
            }
            done.store(true, Ordering::Release);
            return;
        }
        while !done.load(Ordering::Acquire) {
            volume.inodes().lookup(&root, b"one").unwrap();
            volume.inodes().lookup(&d, b"two").unwrap();
        }
    });
    consistency::check(&volume);
}

/// A name that is replaced all the time is always there, and so is what it names while it is looked at.
#[test]
fn a_replaced_name_is_always_there() {
    let volume = options(true).open_backend(formatted()).unwrap();
    let root = volume.inodes().root();
    file(&volume, &root, b"current");
    let done = AtomicBool::new(false);
    run(3, |thread| {
        if thread == 0 {
            for _ in 0..1000 {
                file(&volume, &root, b"next");
                volume.inodes().rename(&root, b"next", &root, b"current", RenameFlags::empty()).unwrap();
            }
            done.store(true, Ordering::Release);
            return;
        }
        while !done.load(Ordering::Acquire) {
            let current = volume.inodes().lookup(&root, b"current").unwrap();
            assert!(volume.inodes().metadata(&current).nlink() <= 1);
        }
    });
    consistency::check(&volume);
    assert_eq!(volume.info().inodes, 2);
}
