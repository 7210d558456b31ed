//! Properties: what they are after a crash, who inherits them, and the extended attributes that show them.

use crate::common::{BLOCK, file, new_volume, options};
use quire::inodes::{Create, Inodes, IoFlags, XattrFlags};
use quire::internals::repair::Session;
use quire::{ErrorKind, FileType, OpenOptions, Properties, Result, Volume};
use quire_device::simulated::{CrashPolicy, Event};
use quire_device::{IoClass, SimulatedBackend};
use quire_format::inode::InodeRecord;
use quire_format::key::Key;
use std::sync::Arc;

const UNTORN: &[u8] = b"user.quire.untorn";
const CACHE: &[u8] = b"user.quire.cache";

fn untorn(unit: &str) -> Properties {
    Properties { untorn: Some(unit.parse().unwrap()), ..Properties::default() }
}

fn kind<T: std::fmt::Debug>(outcome: Result<T>) -> ErrorKind {
    outcome.unwrap_err().kind()
}

/// Only a change of properties asked what the journal takes. What was written to a file that had been created
/// with a larger unit could never be written back: each fsync failed, and a close lost it.
#[test]
fn a_unit_that_the_journal_does_not_take_is_refused_at_creation() {
    let (_device, volume) = new_volume(16384);
    let inodes = volume.inodes();
    let large = Some(untorn("1m"));
    let file = Create { properties: large, ..Create::file(0o600) };
    let directory = Create { properties: large, ..Create::directory(0o700) };
    assert_eq!(kind(inodes.create(&inodes.root(), b"file", &file)), ErrorKind::Invalid);
    assert_eq!(kind(inodes.create(&inodes.root(), b"directory", &directory)), ErrorKind::Invalid);
    assert_eq!(kind(inodes.tmpfile(&inodes.root(), &file)), ErrorKind::Invalid);
    assert_eq!(kind(inodes.lookup(&inodes.root(), b"file")), ErrorKind::NotFound);
    let fifo = Create { kind: FileType::Fifo, ..file };
    inodes.create(&inodes.root(), b"fifo", &fifo).unwrap();
    volume.close().unwrap();
}

#[test]
fn kept_over_a_close_and_handed_down() {
    let (device, volume) = new_volume(16384);
    volume.create_dir_all("db/below").unwrap();
    volume.write("db/old", "before").unwrap();
    let both = Properties { cache_drop: true, ..untorn("16k") };
    volume.set_properties("db", both).unwrap();
    volume.create_dir_all("db/new/deep").unwrap();
    volume.write("db/new/deep/file", "data").unwrap();
    volume.symlink("old", "db/link").unwrap();
    let inodes = volume.inodes();
    let db = volume.resolve("db").unwrap();
    let unnamed = inodes.tmpfile(&db, &Create::file(0o600)).unwrap();
    assert_eq!(inodes.properties(&unnamed), both);
    let fifo = inodes.create(&db, b"fifo", &Create { kind: FileType::Fifo, ..Create::file(0o600) }).unwrap();
    assert_eq!(inodes.properties(&fifo), Properties::default());
    assert_eq!(kind(inodes.set_properties(&fifo, both)), ErrorKind::Invalid);
    let own = OpenOptions::new().write(true).create(true).properties(untorn("4k"));
    assert_eq!(own.open(&volume, "db/own").unwrap().properties(), untorn("4k"));
    volume.rename("db/old", "db/new/moved").unwrap();
    drop((unnamed, fifo, db));
    volume.close().unwrap();

    let volume = options().open_backend(device).unwrap();
    for (path, expected) in [
        ("db", both),
        ("db/new", both),
        ("db/new/deep", both),
        ("db/new/deep/file", both),
        ("db/own", untorn("4k")),
        ("db/below", Properties::default()),
        ("db/new/moved", Properties::default()),
    ] {
        assert_eq!(volume.properties(path).unwrap(), expected, "{path}");
    }
    let link = volume.inodes().lookup(&volume.resolve("db").unwrap(), b"link").unwrap();
    assert_eq!(volume.inodes().properties(&link), Properties::default());
    volume.close().unwrap();
}

/// A change of `untorn` returns when what was written before, and the change, survive a power cut; the data
/// is at home before the record is in the journal.
#[test]
fn a_change_of_untorn_is_durable_behind_the_data() {
    let (device, volume) = new_volume(16384);
    let table = file(&volume, "table");
    volume.inodes().write_at(&table, &[1; 4 * BLOCK], 0, IoFlags::empty()).unwrap();
    volume.sync().unwrap();
    volume.inodes().write_at(&table, &[2; 4 * BLOCK], 0, IoFlags::empty()).unwrap();
    let before = device.event_count();
    volume.inodes().set_properties(&table, untorn("8k")).unwrap();
    let events = device.events(before..device.event_count());
    let flush = events.iter().position(|event| matches!(event, Event::FlushCompleted { .. })).unwrap();
    let is_journal =
        |event: &Event| matches!(event, Event::WriteSubmitted { class: Some(IoClass::Journal), .. });
    assert!(flush < events.iter().position(is_journal).unwrap(), "{events:?}");

    let image = SimulatedBackend::from_image(device.crash(CrashPolicy::LoseAll));
    let after = options().open_backend(Arc::new(image)).unwrap();
    assert_eq!(after.properties("table").unwrap(), untorn("8k"));
    assert_eq!(after.read("table").unwrap(), [2; 4 * BLOCK]);
    // Nothing to do, nothing done.
    let before = device.event_count();
    volume.inodes().set_properties(&table, untorn("8k")).unwrap();
    assert_eq!(device.event_count(), before);
}

/// An append dirtied the last block of a unit in which the file ended on disk, and a small forced write to
/// another unit took the size up to that block: a crash left the unit with a new size and without the append.
#[test]
fn a_size_on_disk_stays_out_of_a_unit_that_is_dirty() {
    let (device, volume) = new_volume(16384);
    let table = file(&volume, "table");
    volume.inodes().set_properties(&table, untorn("16k")).unwrap();
    let write = |data: &[u8], block: usize, flags: IoFlags| {
        volume.inodes().write_at(&table, data, (block * BLOCK) as u64, flags).unwrap();
    };
    write(&[1; 5 * BLOCK], 0, IoFlags::DIRECT);
    volume.inodes().fsync(&table, false).unwrap();
    write(&[2; BLOCK], 7, IoFlags::empty());
    write(&[3; 10], 0, IoFlags::DATASYNC);
    let image = SimulatedBackend::from_image(device.crash(CrashPolicy::LoseAll));
    let after = options().open_backend(Arc::new(image)).unwrap();
    let mut wanted = vec![1; 5 * BLOCK];
    wanted[..10].fill(3);
    let seen = after.read("table").unwrap();
    assert!(seen == wanted, "{} blocks: the unit holds no value that it had", seen.len() / BLOCK);
}

#[test]
fn shown_as_attributes_where_set() {
    let (_device, volume) = new_volume(16384);
    let inodes = volume.inodes();
    let table = file(&volume, "table");
    let set = |name: &[u8], value: &[u8]| inodes.set_xattr(&table, name, value, XattrFlags::empty());
    assert_eq!(kind(inodes.get_xattr(&table, UNTORN)), ErrorKind::NoAttribute);
    assert_eq!(kind(inodes.remove_xattr(&table, UNTORN)), ErrorKind::NoAttribute);
    set(b"user.mine", b"x").unwrap();
    set(UNTORN, b"8192").unwrap();
    set(CACHE, b"drop").unwrap();
    assert_eq!(inodes.get_xattr(&table, UNTORN).unwrap(), b"8k");
    assert_eq!(inodes.get_xattr(&table, CACHE).unwrap(), b"drop");
    let mut names = inodes.list_xattrs(&table).unwrap();
    names.sort();
    assert_eq!(names, [b"user.mine", CACHE, UNTORN]);
    assert_eq!(inodes.properties(&table), Properties { cache_drop: true, ..untorn("8k") });

    for (name, value) in
        [(UNTORN, &b"yes"[..]), (UNTORN, b"3k"), (UNTORN, b"2m"), (UNTORN, b""), (CACHE, b"never")]
    {
        assert_eq!(kind(set(name, value)), ErrorKind::Invalid);
    }
    assert_eq!(kind(set(b"user.quire.other", b"8k")), ErrorKind::Invalid);
    assert_eq!(kind(inodes.set_xattr(&table, UNTORN, b"8k", XattrFlags::CREATE)), ErrorKind::Exists);
    let keep = XattrFlags::KEEP_UNTORN;
    for less in [&b"off"[..], b"4k"] {
        assert_eq!(kind(inodes.set_xattr(&table, UNTORN, less, keep)), ErrorKind::NotPermitted);
    }
    inodes.set_xattr(&table, UNTORN, b"64k", keep).unwrap();
    inodes.set_xattr(&table, CACHE, b"keep", keep).unwrap();
    inodes.remove_xattr(&table, UNTORN).unwrap();
    assert_eq!(inodes.list_xattrs(&table).unwrap(), [b"user.mine"]);
    assert_eq!(kind(inodes.set_xattr(&table, UNTORN, b"8k", XattrFlags::REPLACE)), ErrorKind::NoAttribute);
    assert_eq!(inodes.properties(&table), Properties::default());
}

/// Two threads that each set another property of one file both succeed.
#[test]
fn changes_side_by_side_lose_nothing() {
    let (_device, volume) = new_volume(16384);
    let table = file(&volume, "table");
    let flip = |inodes: &Inodes, name: &[u8], value: &[u8]| {
        inodes.set_xattr(&table, name, value, XattrFlags::empty()).unwrap();
    };
    std::thread::scope(|scope| {
        let each = [(UNTORN, [&b"8k"[..], b"64k"]), (CACHE, [&b"drop"[..], b"keep"])];
        for (name, values) in each {
            let (inodes, flip, table) = (volume.inodes(), &flip, &table);
            scope.spawn(move || {
                for round in 0..200 {
                    flip(inodes, name, values[round % 2]);
                    if round % 2 == 0 {
                        assert_eq!(inodes.get_xattr(table, name).unwrap(), values[0]);
                    }
                }
            });
        }
        for byte in 0..100 {
            volume.inodes().write_at(&table, &[byte; 3 * BLOCK], 0, IoFlags::empty()).unwrap();
        }
    });
    assert_eq!(volume.inodes().properties(&table), untorn("64k"));
    assert_eq!(volume.read("table").unwrap(), [99; 3 * BLOCK]);
}

#[test]
fn a_thread_that_may_not_wait_changes_nothing() {
    let (_device, volume) = new_volume(16384);
    let table = file(&volume, "table");
    let change = || volume.inodes().set_properties(&table, untorn("8k"));
    assert_eq!(kind(quire_base::patience::at_once(change)), ErrorKind::WouldBlock);
    assert_eq!(volume.inodes().properties(&table), Properties::default());
    change().unwrap();
}

/// A record with a unit that cannot be is damage, and says so.
#[test]
fn impossible_units_are_corrupt() {
    let (device, volume) = new_volume(16384);
    let number = file(&volume, "table").number();
    volume.close().unwrap();
    let mut session = Session::open(device.clone()).unwrap();
    let mut record = session.tree().get(Key::inode(number)).unwrap().unwrap();
    record[5] |= 0xf;
    session.put(Key::inode(number), &record);
    session.close().unwrap();
    let volume = options().open_backend(device).unwrap();
    assert_eq!(kind(volume.inodes().get(number)), ErrorKind::Corrupt);
    volume.close().unwrap();
}

/// A file that has a larger unit than the journal takes, as earlier versions created them, could not get
/// another property: what was refused was the unit that it had.
#[test]
fn a_unit_that_stays_is_no_obstacle() {
    let (device, volume) = new_volume(16384);
    let number = file(&volume, "table").number();
    volume.close().unwrap();
    let mut session = Session::open(device.clone()).unwrap();
    let record = session.tree().get(Key::inode(number)).unwrap().unwrap();
    let mut record = InodeRecord::decode(&record).unwrap();
    record.flags = untorn("1m").put_into(record.flags);
    session.put(Key::inode(number), &record.encode());
    session.close().unwrap();
    let volume = options().open_backend(device).unwrap();
    let inodes = volume.inodes();
    let table = inodes.get(number).unwrap();
    inodes.set_xattr(&table, CACHE, b"drop", XattrFlags::empty()).unwrap();
    let both = Properties { cache_drop: true, ..untorn("1m") };
    assert_eq!(inodes.properties(&table), both);
    assert_eq!(kind(inodes.set_properties(&table, untorn("512k"))), ErrorKind::Invalid);
    inodes.set_properties(&table, untorn("8k")).unwrap();
    assert_eq!(kind(inodes.set_properties(&table, both)), ErrorKind::Invalid);
    volume.close().unwrap();
}

#[test]
fn a_read_only_volume_refuses() {
    let (device, volume) = new_volume(16384);
    volume.write("table", "x").unwrap();
    volume.set_properties("table", untorn("64k")).unwrap();
    volume.close().unwrap();
    let volume: Volume = options().read_only(true).open_backend(device).unwrap();
    assert_eq!(volume.properties("table").unwrap().untorn, untorn("64k").untorn);
    assert_eq!(kind(volume.set_properties("table", Properties::default())), ErrorKind::ReadOnly);
}
