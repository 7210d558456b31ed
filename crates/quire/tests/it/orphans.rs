//! Inodes without a name: more than there are slots, crashes, and what they cost
//! the journal.

use quire::backend::{Backend, MemoryBackend};
use quire::inodes::{Create, InodeRef, IoFlags};
use quire::internals::inspect::Image;
use quire::internals::orphan::SLOTS_PER_BLOCK;
use quire::{FormatOptions, Volume, VolumeOptions};
use quire_device::{AlignedBuf, IoClass};
use quire_format::key::KeyKind;
use std::ops::ControlFlow;
use std::sync::{Arc, Barrier};
use std::thread;

const BLOCK: usize = 4096;

fn formatted(bytes: u64) -> Arc<MemoryBackend> {
    let backend = Arc::new(MemoryBackend::new(bytes / BLOCK as u64));
    FormatOptions::new().seed(3).format_backend(backend.clone()).unwrap();
    backend
}

fn options() -> VolumeOptions {
    VolumeOptions::new().cache_bytes(32 << 20)
}

/// What the device holds now, as another one: a crash that loses nothing that was written.
fn crashed(backend: &MemoryBackend) -> Arc<MemoryBackend> {
    let copy = MemoryBackend::new(backend.blocks());
    let mut buffer = AlignedBuf::zeroed(16 * BLOCK);
    for block in (0..backend.blocks()).step_by(16) {
        let at = quire_base::BlockNo(block);
        backend.read(IoClass::Data, at, &mut buffer).unwrap();
        if buffer.iter().any(|&byte| byte != 0) {
            copy.write(IoClass::Data, at, &buffer).unwrap();
        }
    }
    Arc::new(copy)
}

/// Files that are made, opened and unlinked by so many threads at once; all stay in use.
fn unlinked(volume: &Volume, threads: usize, each: usize) -> Vec<InodeRef> {
    let start = Barrier::new(threads);
    let unlink = |thread: usize| {
        let root = volume.inodes().root();
        start.wait();
        let one = |n: usize| {
            let name = format!("{thread}-{n}");
            let file = volume.inodes().create(&root, name.as_bytes(), &Create::file(0o600)).unwrap();
            volume.inodes().remove_file(&root, name.as_bytes()).unwrap();
            file
        };
        (0..each).map(one).collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads).map(|thread| scope.spawn(move || unlink(thread))).collect();
        spawned.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Orphans on a device, in slots and under keys.
fn tracked(backend: &Arc<MemoryBackend>) -> (usize, usize) {
    let image = Image::load(crashed(backend)).unwrap();
    let mut keys = 0;
    image
        .keys(&mut |key, _| {
            keys += usize::from(key.kind == KeyKind::OrphanKey);
            ControlFlow::Continue(())
        })
        .unwrap();
    (image.orphans().len(), keys)
}

/// A table of two blocks and 128 threads: who finds no slot takes a key, and slots are used again when there
/// are some.
#[test]
fn a_full_table_overflows_into_keys_and_is_used_again() {
    let backend = formatted(64 << 20);
    let volume = options().open_backend(backend.clone()).unwrap();
    let slots = 2 * SLOTS_PER_BLOCK;
    assert_eq!(volume.info().orphan_blocks, 2);

    let held = unlinked(&volume, 128, 20);
    volume.sync().unwrap();
    assert_eq!(volume.metrics()["orphan_claims_total"], 128 * 20);
    assert_eq!(tracked(&backend), (slots, 128 * 20 - slots), "every slot, then keys");

    // A crash now: all of them are freed by the next mount, whatever tracks them.
    let after = crashed(&backend);
    let recovered = options().open_backend(after.clone()).unwrap();
    assert_eq!(recovered.recovery().orphans, slots);
    recovered.drain_orphans();
    assert_eq!(recovered.metrics()["orphans_freed_total"], 128 * 20);
    recovered.sync().unwrap();
    assert_eq!((tracked(&after), recovered.info().inodes), ((0, 0), 1));
    recovered.close().unwrap();

    drop(held);
    volume.drain_orphans();
    volume.sync().unwrap();
    assert_eq!(tracked(&backend), (0, 0));
    let again = unlinked(&volume, 16, slots / 16);
    volume.sync().unwrap();
    assert_eq!(tracked(&backend), (again.len(), 0), "slots are free again");
    drop(again);
    volume.close().unwrap();
    assert_eq!(tracked(&backend), (0, 0), "a clean unmount leaves none");
}

/// A mount after a crash made an inode in memory of every orphan before it returned, a million if there were
/// so many. Now each waits as a number for its turn, and nobody reaches it meanwhile.
#[test]
fn orphans_of_a_crash_wait_for_their_turn() {
    const ORPHANS: usize = 2000;
    let backend = formatted(64 << 20);
    let volume = options().open_backend(backend.clone()).unwrap();
    let held = unlinked(&volume, 4, ORPHANS / 4);
    volume.sync().unwrap();
    let after = crashed(&backend);
    let options = options().threads(false);

    let recovered = options.open_backend(after.clone()).unwrap();
    assert!(recovered.metrics()["inodes_cached"] < 10, "{} inodes", recovered.metrics()["inodes_cached"]);
    assert_eq!(recovered.info().inodes, 1 + ORPHANS as u64);
    let number = held[0].number();
    assert_eq!(recovered.inodes().get(number).unwrap_err().kind(), quire::ErrorKind::Stale);
    let own = unlinked(&recovered, 1, 100);
    recovered.sync().unwrap();
    // A crash before any was freed: all are found once more.
    assert_eq!(options.open_backend(crashed(&after)).unwrap().info().inodes, 2101);
    recovered.drain_orphans();
    assert_eq!((recovered.metrics()["orphans_freed_total"], recovered.info().inodes), (ORPHANS as u64, 101));
    drop(own);
    recovered.close().unwrap();
    assert_eq!(tracked(&after), (0, 0), "a clean unmount leaves none");
    assert_eq!(options.open_backend(after).unwrap().info().inodes, 1);
}

/// The same while orphans come and go on all threads at once, so that claims, releases and keys meet.
#[test]
fn orphans_that_come_and_go_leave_nothing() {
    let backend = formatted(64 << 20);
    let volume = options().open_backend(backend.clone()).unwrap();
    let held = unlinked(&volume, 8, 2 * SLOTS_PER_BLOCK / 8 - 16);
    for _ in 0..3 {
        drop(unlinked(&volume, 128, 8));
    }
    drop(held);
    volume.drain_orphans();
    let metrics = volume.metrics();
    assert_eq!(metrics["orphans_freed_total"], metrics["orphan_claims_total"]);
    assert_eq!(volume.info().inodes, 1);
    volume.close().unwrap();
    assert_eq!(tracked(&backend), (0, 0));
}

/// Unlinking faster than the reaper frees does not let what waits grow without bound.
#[test]
fn who_unlinks_much_helps_to_free() {
    let volume = options().open_backend(formatted(256 << 20)).unwrap();
    let root = volume.inodes().root();
    let names = |n: usize| format!("file-{n}");
    for n in 0..20_000 {
        drop(volume.inodes().create(&root, names(n).as_bytes(), &Create::file(0o600)).unwrap());
    }
    let mut most = 0;
    for n in 0..20_000 {
        volume.inodes().remove_file(&root, names(n).as_bytes()).unwrap();
        if n % 16 == 0 {
            let metrics = volume.metrics();
            most = most.max(metrics["orphan_claims_total"] - metrics["orphans_freed_total"]);
        }
    }
    assert!(most <= 600, "{most} unlinked files waited at once");
    volume.drain_orphans();
    assert_eq!(volume.info().inodes, 1);
    volume.close().unwrap();
}

/// Only unlinks helped to free. What waits grew without bound where programs replaced files by renames, and
/// where they made files without a name.
#[test]
fn renames_and_files_without_a_name_help_to_free() {
    let operations: [fn(&Volume); 2] = [
        |volume| {
            drop(volume.inodes().create(&volume.inodes().root(), b"new", &Create::file(0o600)).unwrap());
            volume.rename("new", "old").unwrap();
        },
        |volume| drop(volume.inodes().tmpfile(&volume.inodes().root(), &Create::file(0o600)).unwrap()),
    ];
    let waited = operations.map(|operation| {
        let volume = options().threads(false).open_backend(formatted(64 << 20)).unwrap();
        let mut most = 0;
        for _ in 0..10_000 {
            operation(&volume);
            let metrics = volume.metrics();
            most = most.max(metrics["orphan_claims_total"] - metrics["orphans_freed_total"]);
        }
        volume.close().unwrap();
        most
    });
    assert!(waited.iter().all(|most| (8..=300).contains(most)), "{waited:?} inodes waited at once");
}

/// Records stay small: what each operation appends to the journal, headers and alignment included.
#[test]
fn journal_records_of_names_and_sizes_are_small() {
    let options = options().threads(false);
    let volume = options.open_backend(formatted(64 << 20)).unwrap();
    let root = volume.inodes().root();
    let file = volume.inodes().create(&root, b"long", &Create::file(0o600)).unwrap();
    volume.inodes().write_at(&file, &[1; 64 * BLOCK], 0, IoFlags::empty()).unwrap();
    volume.sync().unwrap();
    let of = |what: &str, most: u64, operation: &dyn Fn(usize)| {
        const TIMES: usize = 32;
        let before = volume.metrics();
        (0..TIMES).for_each(operation);
        let after = volume.metrics();
        let bytes =
            (after["journal_record_bytes_total"] - before["journal_record_bytes_total"]) / TIMES as u64;
        println!("{what}: {bytes} bytes");
        // One more where the metadata pool grew.
        let records = after["journal_records_total"] - before["journal_records_total"];
        assert!((TIMES as u64..TIMES as u64 + 2).contains(&records), "{what}: {records} records");
        assert!(bytes <= most, "{what}: {bytes} bytes of journal");
    };
    let name = |n: usize| format!("name-{n:03}");
    of("create", 240, &|n| {
        drop(volume.inodes().create(&root, name(n).as_bytes(), &Create::file(0o600)).unwrap())
    });
    of("unlink", 200, &|n| volume.inodes().remove_file(&root, name(n).as_bytes()).unwrap());
    of("truncate", 240, &|n| volume.inodes().set_len(&file, ((63 - n) * BLOCK) as u64).unwrap());
    drop(file);
    volume.close().unwrap();
}
