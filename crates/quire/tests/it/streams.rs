//! Streams: what is received is what was sent, key by key and byte by byte; what does not fit or breaks
//! leaves the target as it was. What crashes leave is in `crates/sim/tests/mistakes/streams.rs`.

use crate::common::{BLOCK, copy_of};
use quire::backend::{Backend, BlockNo, Io, IoClass, IoOp, MemoryBackend};
use quire::inodes::Create;
use quire::internals::inspect::Image;
use quire::internals::snapshots::table;
use quire::{
    AlignedBuf, Error, ErrorKind, FileType, FormatOptions, OpenOptions, Properties, ReceiveOptions,
    RenameFlags, ResizeOptions, Result, SendOptions, Volume, VolumeOptions, roll_back_backend,
    take_snapshot_backend as take_snapshot,
};
use quire_format::extent::Extent;
use quire_format::key::{Key, KeyKind};
use quire_format::stream::{HEADER_BYTES, StreamReader};
use quire_format::superblock::{SLOT_BLOCKS, Superblock};
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;

type Backing = Arc<MemoryBackend>;

fn made() -> Backing {
    let backend = Arc::new(MemoryBackend::new(128 * MIB / BLOCK as u64));
    FormatOptions::new().format_backend(backend.clone()).unwrap();
    backend
}

fn options() -> VolumeOptions {
    VolumeOptions::new().cache_bytes(16 * MIB)
}

fn open(backend: &Backing) -> Volume {
    options().open_backend(backend.clone()).unwrap()
}

fn bytes(seed: u8, blocks: usize) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| seed ^ (at / BLOCK) as u8 ^ (at % 251) as u8).collect()
}

/// A volume as its files are: each key but extents with its value, and each block of a file with its content,
/// or none if it is unwritten.
#[derive(Clone, Debug, Default, PartialEq)]
struct Dump {
    keys: BTreeMap<Key, Vec<u8>>,
    blocks: BTreeMap<(u64, u64), Option<Vec<u8>>>,
}

/// What a volume is that nobody has open.
fn dump(backend: &Backing) -> Dump {
    let mut dump = Dump::default();
    let image = Image::load(backend.clone()).unwrap();
    image
        .keys(&mut |key, value| {
            if key.kind == KeyKind::Extent {
                let extent = Extent::decode(key.offset, value).unwrap();
                for at in 0..u64::from(extent.len) {
                    let content = (!extent.unwritten).then(|| {
                        let mut block = vec![0; BLOCK];
                        backend.read(IoClass::Data, extent.disk_block.offset(at), &mut block).unwrap();
                        block
                    });
                    dump.blocks.insert((key.object, extent.file_block + at), content);
                }
            } else if key >= Key::NAMES {
                dump.keys.insert(key, value.to_vec());
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    dump
}

/// Files of a volume as a program sees them: what it is opened read-only for while a receive is unfinished.
fn seen(backend: &Backing) -> BTreeMap<String, Vec<u8>> {
    let volume = options().read_only(true).open_backend(backend.clone()).unwrap();
    let mut files = BTreeMap::new();
    let mut directories = vec![String::new()];
    while let Some(directory) = directories.pop() {
        for entry in volume.read_dir(format!("/{directory}")).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{directory}/{}", entry.file_name().to_string_lossy());
            let found = volume.symlink_metadata(&path).unwrap();
            if found.is_dir() {
                directories.push(path);
            } else if found.is_file() && found.len() < 64 * MIB {
                files.insert(path.clone(), volume.read(&path).unwrap());
            } else {
                files.insert(path, format!("{:?} of {}", found.file_type(), found.len()).into_bytes());
            }
        }
    }
    files
}

fn send(backend: &Backing, from: Option<&str>, name: &str) -> Result<Vec<u8>> {
    let volume = options().read_only(true).open_backend(backend.clone())?;
    let mut stream = Vec::new();
    let options = from.map_or(SendOptions::new(), |from| SendOptions::new().from(from));
    let sent = options.send(&volume, name, &mut stream, &mut |_| ())?;
    assert_eq!(sent.bytes, stream.len() as u64);
    Ok(stream)
}

fn receive(backend: &Backing, mut stream: &[u8]) -> Result<()> {
    ReceiveOptions::new().receive_backend(backend.clone(), &mut stream, &mut |_| ()).map(drop)
}

fn names(backend: &Backing) -> Vec<String> {
    let volume = options().read_only(true).open_backend(backend.clone()).unwrap();
    volume.snapshots().unwrap().into_iter().map(|snapshot| snapshot.name).collect()
}

/// Where the items of a stream end.
fn ends(stream: &[u8]) -> Vec<usize> {
    let mut input = stream;
    let (_, mut reader) = StreamReader::open(&mut input).unwrap();
    let mut ends = vec![HEADER_BYTES];
    while let Some((_, position)) = reader.next().unwrap() {
        ends.push(position.bytes as usize);
    }
    ends
}

/// One of everything.
fn fill(volume: &Volume) {
    for (seed, name) in ["whole", "parts", "cut", "gone", "old-name"].into_iter().enumerate() {
        volume.write(name, bytes(seed as u8, 64)).unwrap();
    }
    volume.write("small", "a few bytes").unwrap();
    volume.write("empty", "").unwrap();
    volume.write("large", bytes(9, 700)).unwrap();
    volume.create_dir_all("directory/below/it").unwrap();
    volume.create_dir("becomes-a-file").unwrap();
    volume.write("becomes-a-link", "no link yet").unwrap();
    volume.write("directory/below/file", bytes(10, 3)).unwrap();
    volume.hard_link("whole", "directory/another-name").unwrap();
    volume.hard_link("gone", "directory/stays").unwrap();
    volume.symlink("../whole", "directory/link").unwrap();
    volume.symlink("x".repeat(3000), "long-link").unwrap();
    let sparse = OpenOptions::new().write(true).create(true).open(volume, "sparse").unwrap();
    sparse.write_all_at(b"far away", 1 << 40).unwrap();
    sparse.write_all_at(&bytes(11, 5), 77 * BLOCK as u64).unwrap();
    sparse.allocate(200 * BLOCK as u64, 40 * BLOCK as u64).unwrap();
    sparse.allocate_keep_size((1 << 40) + 100 * BLOCK as u64, 9 * BLOCK as u64).unwrap();
    volume.set_xattr("whole", "user.short", b"value").unwrap();
    volume.set_xattr("whole", "user.long", bytes(12, 10)).unwrap();
    volume.set_xattr("directory", "user.of-a-directory", b"too").unwrap();
    let acl =
        [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 1, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255];
    let acl = [&acl[..], &[16, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255]].concat();
    volume.set_xattr("small", "system.posix_acl_access", acl).unwrap();
    let root = volume.inodes().root();
    for (name, kind, rdev) in [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("character", FileType::CharDevice, 0x0501),
        ("block", FileType::BlockDevice, 0x0802),
    ] {
        let node = Create { kind, rdev, ..Create::file(0o640) };
        volume.inodes().create(&root, name.as_bytes(), &node).unwrap();
    }
    volume.chown("small", Some(1000), Some(77)).unwrap();
}

/// Changes of every kind.
fn change(volume: &Volume, round: u8) {
    let open = |name: &str| OpenOptions::new().read(true).write(true).open(volume, name).unwrap();
    open("parts").write_all_at(&[round; 100], (5 * BLOCK + 7) as u64).unwrap();
    open("parts").punch_hole(20 * BLOCK as u64, 3 * BLOCK as u64).unwrap();
    open("parts").zero_range(30 * BLOCK as u64, 3 * BLOCK as u64).unwrap();
    open("cut").set_len((20 * BLOCK + 99 - usize::from(round)) as u64).unwrap();
    open("large").collapse_range(10 * BLOCK as u64, 2 * BLOCK as u64).unwrap();
    open("large").insert_range(50 * BLOCK as u64, 3 * BLOCK as u64).unwrap();
    open("sparse").write_all_at(&bytes(round, 2), 210 * BLOCK as u64).unwrap();
    volume.write(format!("new-{round}"), bytes(round, 20)).unwrap();
    volume.set_xattr("whole", "user.short", [round; 9]).unwrap();
    volume.write("small", vec![round; 33]).unwrap();
    if round > 0 {
        return;
    }
    volume.remove_file("gone").unwrap();
    volume.remove_file("fifo").unwrap();
    volume.remove_xattr("whole", "user.long").unwrap();
    volume.rename("old-name", "directory/new-name").unwrap();
    volume.rename("directory/below", "moved").unwrap();
    volume.rename_with("block", "character", RenameFlags::EXCHANGE).unwrap();
    volume.remove_dir("becomes-a-file").unwrap();
    volume.write("becomes-a-file", "now").unwrap();
    volume.remove_file("becomes-a-link").unwrap();
    volume.symlink("elsewhere", "becomes-a-link").unwrap();
    volume.remove_file("long-link").unwrap();
}

/// A volume with three snapshots, and what it was at each.
fn sample() -> (Backing, Vec<Dump>) {
    let backend = made();
    let mut dumps = Vec::new();
    for (round, name) in ["a", "b", "c"].into_iter().enumerate() {
        let volume = open(&backend);
        match round {
            0 => fill(&volume),
            round => change(&volume, round as u8 - 1),
        }
        volume.close().unwrap();
        take_snapshot(backend.clone(), name).unwrap();
        dumps.push(dump(&backend));
    }
    (backend, dumps)
}

fn assert_same(found: &Dump, expected: &Dump, what: &str) {
    for (key, value) in &expected.keys {
        assert_eq!(found.keys.get(key), Some(value), "{what}: {key:?}");
    }
    assert!(found.keys.len() == expected.keys.len(), "{what}: keys too many");
    for (at, content) in &expected.blocks {
        assert!(found.blocks.get(at) == Some(content), "{what}: inode and block {at:?}");
    }
    assert!(found.blocks.len() == expected.blocks.len(), "{what}: blocks too many");
}

#[test]
fn what_is_received_is_what_was_sent() {
    let (source, dumps) = sample();
    let target = made();
    for (round, (from, name)) in [(None, "a"), (Some("a"), "b"), (Some("b"), "c")].into_iter().enumerate() {
        receive(&target, &send(&source, from, name).unwrap()).unwrap();
        assert_same(&dump(&target), &dumps[round], name);
    }
    assert_eq!(names(&target), ["a", "b", "c"]);

    // Over several snapshots at once, and on from a copy.
    let other = made();
    receive(&other, &send(&target, None, "a").unwrap()).unwrap();
    receive(&other, &send(&source, Some("a"), "c").unwrap()).unwrap();
    assert_same(&dump(&other), &dumps[2], "a to c");

    // The copy is a volume like any other.
    let volume = open(&other);
    volume.write("one more", bytes(1, 40)).unwrap();
    volume.remove_file("large").unwrap();
    for name in ["a", "c"] {
        volume.delete_snapshot(name).unwrap();
    }
    volume.close().unwrap();
    assert_eq!(seen(&other)["/one more"], bytes(1, 40));
    assert!(names(&other).is_empty());
}

#[test]
fn a_stream_without_changes_is_a_header_and_an_end() {
    let (source, _) = sample();
    take_snapshot(source.clone(), "d").unwrap();
    let stream = send(&source, Some("c"), "d").unwrap();
    assert_eq!(ends(&stream).len(), 2);
    let target = made();
    receive(&target, &send(&source, None, "c").unwrap()).unwrap();
    receive(&target, &stream).unwrap();
    assert_eq!(names(&target), ["c", "d"]);
}

/// A snapshot that was open as a volume, and a volume with an unfinished receive, listed the snapshots of
/// their day. Some had been deleted since, and others' content was read and sent as theirs.
fn assert_has_no_snapshots(snapshot: &Volume) {
    assert!(snapshot.is_snapshot());
    assert_eq!(snapshot.snapshots().unwrap(), []);
    let refused = [
        snapshot.snapshot_space().map(drop),
        snapshot.open_snapshot("a").map(drop),
        SendOptions::new().send(snapshot, "a", &mut Vec::new(), &mut |_| ()).map(drop),
    ];
    for outcome in refused {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

#[test]
fn a_snapshot_has_no_snapshots() {
    let volume = options().read_only(true).open_backend(sample().0).unwrap();
    assert_eq!(volume.snapshots().unwrap().len(), 3);
    assert_has_no_snapshots(&volume.open_snapshot("b").unwrap());
}

/// Cut behind every item, and within one: the target reads as it was, refuses writing, and is as it was once
/// the receive is given up; the rest of the stream completes it.
#[test]
fn a_broken_stream_leaves_the_target_as_it_was() {
    let (source, dumps) = sample();
    let target = made();
    receive(&target, &send(&source, None, "a").unwrap()).unwrap();
    let (before, stream) = (seen(&target), send(&source, Some("a"), "b").unwrap());
    let ends = ends(&stream);
    for (number, end) in ends.iter().enumerate().take(ends.len() - 1).step_by(3) {
        let cut = end + number % 3 * 7;
        let copy = copy_of(&target);
        assert_eq!(receive(&copy, &stream[..cut]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(seen(&copy), before, "cut at {cut}");
        let unfinished = ReceiveOptions::unfinished_backend(copy.clone()).unwrap();
        if number == 0 {
            assert_eq!(unfinished, None);
            assert_same(&dump(&copy), &dumps[0], "nothing came");
            continue;
        }
        let unfinished = unfinished.unwrap();
        assert_eq!((unfinished.items, unfinished.bytes), (number as u64, *end as u64));
        assert_eq!(options().open_backend(copy.clone()).unwrap_err().kind(), ErrorKind::Busy);
        // It gave the receive up, without a word.
        assert_eq!(roll_back_backend(copy.clone(), "a").unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(receive(&copy, &stream).unwrap_err().kind(), ErrorKind::Busy);
        let shown = options().read_only(true).open_backend(copy.clone()).unwrap();
        assert_has_no_snapshots(&shown);
        drop(shown);

        let given_up = copy_of(&copy);
        assert!(ReceiveOptions::abort_backend(given_up.clone()).unwrap());
        assert!(!ReceiveOptions::abort_backend(given_up.clone()).unwrap());
        assert_same(&dump(&given_up), &dumps[0], "given up");
        assert_eq!(names(&given_up), ["a"]);

        let volume = options().read_only(true).open_backend(source.clone()).unwrap();
        let mut rest = Vec::new();
        SendOptions::resume(&volume, &unfinished.token, &mut rest, &mut |_| ()).unwrap();
        assert_eq!(rest[HEADER_BYTES..], stream[*end..]);
        receive(&copy, &rest).unwrap();
        assert_same(&dump(&copy), &dumps[1], "resumed");
        assert_eq!(names(&copy), ["a", "b"]);
    }
}

/// A stream that waits for a moment at one place, and behind it shows what a kill of the receiver would
/// leave.
struct Slow<'s> {
    stream: &'s [u8],
    at: usize,
    waits_at: usize,
    killed_at: usize,
    target: &'s Backing,
    left: Option<Arc<MemoryBackend>>,
}

impl Read for Slow<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.waits_at {
            std::thread::sleep(Duration::from_millis(1100));
        } else if self.at == self.killed_at {
            self.left = Some(copy_of(self.target));
        }
        let stops = [self.waits_at, self.killed_at, self.stream.len()];
        let stop = stops.into_iter().find(|stop| *stop > self.at).unwrap_or(self.at);
        let count = buf.len().min(stop - self.at);
        buf[..count].copy_from_slice(&self.stream[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// Only the end of a stream, or an error in it, made durable what had arrived: a receiver that was killed
/// after hours had nothing.
#[test]
fn a_killed_receiver_has_what_had_arrived() {
    let (source, dumps) = sample();
    let target = made();
    receive(&target, &send(&source, None, "a").unwrap()).unwrap();
    let stream = send(&source, Some("a"), "b").unwrap();
    let ends = ends(&stream);
    let (waits_at, killed_at) = (ends[3], ends[6]);
    let mut slow = Slow { stream: &stream, at: 0, waits_at, killed_at, target: &target, left: None };
    ReceiveOptions::new().receive_backend(target.clone(), &mut slow, &mut |_| ()).unwrap();
    let left = slow.left.unwrap();
    let unfinished = ReceiveOptions::unfinished_backend(left.clone()).unwrap().unwrap();
    assert!((4..=6).contains(&unfinished.items), "{unfinished:?}");

    let volume = options().read_only(true).open_backend(source.clone()).unwrap();
    let mut rest = Vec::new();
    SendOptions::resume(&volume, &unfinished.token, &mut rest, &mut |_| ()).unwrap();
    receive(&left, &rest).unwrap();
    assert_same(&dump(&left), &dumps[1], "resumed");
}

/// A rollback and the giving up of a receive opened a volume that must not be written, changed it in memory,
/// and said that they had succeeded.
#[test]
fn what_must_not_be_written_is_not_rolled_back() {
    let (source, _) = sample();
    let target = made();
    receive(&target, &send(&source, None, "a").unwrap()).unwrap();
    let stream = send(&source, Some("a"), "b").unwrap();
    receive(&target, &stream[..stream.len() - 1]).unwrap_err();
    let refuses = |backend: Arc<dyn Backend>, kind| {
        assert_eq!(roll_back_backend(backend.clone(), "a").unwrap_err().kind(), kind);
        assert_eq!(ReceiveOptions::abort_backend(backend).unwrap_err().kind(), ErrorKind::ReadOnly);
        assert!(ReceiveOptions::unfinished_backend(target.clone()).unwrap().is_some());
    };
    refuses(Arc::new(ReadOnly(target.clone())), ErrorKind::ReadOnly);
    for slot in SLOT_BLOCKS {
        let mut block = AlignedBuf::blocks(1);
        target.read(IoClass::Metadata, slot, &mut block).unwrap();
        let mut superblock = Superblock::decode(&block).unwrap();
        superblock.feature_ro_compat = 1 << 3;
        block.copy_from_slice(&superblock.encode());
        target.write(IoClass::Metadata, slot, &block).unwrap();
    }
    // That the receive is unfinished is found first.
    refuses(target.clone(), ErrorKind::Busy);
}

/// A device that cannot be written.
struct ReadOnly(Backing);

impl Backend for ReadOnly {
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }
    fn name(&self) -> String {
        "read-only".into()
    }
    fn is_read_only(&self) -> bool {
        true
    }
    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.0.read(class, at, buf)
    }
    fn write(&self, _: IoClass, _: BlockNo, _: &[u8]) -> Result<()> {
        panic!("a write to a device that cannot be written")
    }
    fn flush(&self) -> Result<()> {
        self.0.flush()
    }
    fn discard(&self, _: BlockNo, _: u64) -> Result<()> {
        panic!("a discard on a device that cannot be written")
    }
    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        self.0.submit(class, ios);
    }
}

/// A receive into an empty volume broke, and a kill interrupted the giving up while it deleted the base.
/// Every later stream was refused: the volume was "not empty", although it showed neither files nor
/// snapshots.
#[test]
fn a_base_that_is_half_deleted_is_in_nobodys_way() {
    let source = Arc::new(MemoryBackend::new(16 * MIB / BLOCK as u64));
    FormatOptions::new().journal_bytes(MIB).format_backend(source.clone()).unwrap();
    let target = copy_of(&source);
    let volume = open(&source);
    volume.write("file", bytes(1, 9)).unwrap();
    volume.close().unwrap();
    take_snapshot(source.clone(), "a").unwrap();
    let stream = send(&source, None, "a").unwrap();
    receive(&target, &stream[..stream.len() - 1]).unwrap_err();

    let mut half_deleted = 0;
    for writes in 0.. {
        let copy = copy_of(&target);
        let dying = Arc::new(Dying { inner: copy.clone(), writes_left: AtomicU64::new(writes) });
        let is_over = ReceiveOptions::abort_backend(dying).is_ok();
        let all = table(&Image::load(copy.clone()).unwrap().tree).unwrap();
        half_deleted += usize::from(all.iter().any(|(_, snapshot)| snapshot.deleting.is_some()));
        if ReceiveOptions::unfinished_backend(copy.clone()).unwrap().is_some() {
            assert!(ReceiveOptions::abort_backend(copy.clone()).unwrap());
        }
        receive(&copy, &stream).unwrap_or_else(|error| panic!("after {writes} writes: {error}"));
        assert_eq!(names(&copy), ["a"]);
        assert_eq!(seen(&copy)["/file"], bytes(1, 9));
        if is_over {
            break;
        }
    }
    assert!(half_deleted > 0);
}

/// A device whose program is killed after so many writes.
struct Dying {
    inner: Backing,
    writes_left: AtomicU64,
}

impl Dying {
    fn outcome_of_a_write(&self) -> Result<()> {
        let less = |left: u64| left.checked_sub(1);
        match self.writes_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::new(ErrorKind::Io, "killed")),
        }
    }
}

impl Backend for Dying {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn name(&self) -> String {
        "dying".into()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.inner.read(class, at, buf)
    }
    fn write(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.outcome_of_a_write()?;
        self.inner.write(class, at, buf)
    }
    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.inner.discard(at, count)
    }
    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        for io in ios {
            match if io.op == IoOp::Write { self.outcome_of_a_write() } else { Ok(()) } {
                Ok(()) => self.inner.submit(class, vec![io]),
                Err(error) => (io.done)(Err(error)),
            }
        }
    }
}

#[test]
fn flipped_bits_leave_the_target_as_it_was() {
    let (source, _) = sample();
    let target = made();
    let stream = send(&source, None, "a").unwrap();
    let items = ends(&stream);
    let middles = items.windows(2).map(|pair| usize::midpoint(pair[0], pair[1]));
    for at in middles.chain([3, 40, HEADER_BYTES - 1, stream.len() - 1]).step_by(3) {
        let mut broken = stream.clone();
        broken[at] ^= 4;
        let copy = copy_of(&target);
        receive(&copy, &broken).unwrap_err();
        assert!(seen(&copy).is_empty(), "byte {at}");
        ReceiveOptions::abort_backend(copy.clone()).unwrap();
        assert!(names(&copy).is_empty(), "byte {at}");
        receive(&copy, &stream).unwrap();
        assert_eq!(names(&copy), ["a"]);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (source, dumps) = sample();
    let whole = send(&source, None, "a").unwrap();
    let changes = send(&source, Some("a"), "b").unwrap();
    let refused = |target: &Backing, stream: &[u8], kind: ErrorKind, text: &str| {
        let before = dump(target);
        let error = receive(target, stream).unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(text), "{error}");
        assert_same(&dump(target), &before, text);
        open(target).close().unwrap();
    };
    let target = made();
    refused(&target, &changes, ErrorKind::Invalid, "does not have");
    refused(
        &target,
        b"something else that is long enough to be a header".repeat(20).as_slice(),
        ErrorKind::Invalid,
        "not a stream",
    );
    let mut newer = whole.clone();
    newer[8] += 1;
    refused(&target, &newer, ErrorKind::UnknownFormat, "version 2");
    let volume = open(&target);
    volume.write("in the way", "x").unwrap();
    volume.close().unwrap();
    refused(&target, &whole, ErrorKind::Invalid, "not empty");
    let small = Arc::new(MemoryBackend::new(16 * MIB / BLOCK as u64));
    FormatOptions::new().format_backend(small.clone()).unwrap();
    let large = made();
    let volume = open(&large);
    volume.write("large", bytes(0, 15 * 256)).unwrap();
    volume.close().unwrap();
    take_snapshot(large.clone(), "large").unwrap();
    refused(&small, &send(&large, None, "large").unwrap(), ErrorKind::NoSpace, "free");

    let target = made();
    receive(&target, &whole).unwrap();
    refused(&target, &whole, ErrorKind::Exists, "\"a\"");
    refused(&target, &send(&source, Some("b"), "c").unwrap(), ErrorKind::Invalid, "does not have");
    let volume = open(&target);
    volume.write("mine", "x").unwrap();
    volume.close().unwrap();
    refused(&target, &changes, ErrorKind::Invalid, "--force");
    let forced = ReceiveOptions::new().force(true);
    forced.receive_backend(target.clone(), &mut &changes[..], &mut |_| ()).unwrap();
    assert_same(&dump(&target), &dumps[1], "forced");
    take_snapshot(target.clone(), "own").unwrap();
    refused(&target, &send(&source, Some("b"), "c").unwrap(), ErrorKind::Invalid, "\"own\" is newer");
    assert_eq!(send(&source, Some("b"), "a").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(take_snapshot(source.clone(), ".before-receive").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(send(&source, None, "z").unwrap_err().kind(), ErrorKind::NotFound);
}

/// An inode without a name is not sent; one that gets a name again is sent whole.
#[test]
fn inodes_without_a_name_do_not_exist() {
    let source = made();
    let volume = open(&source);
    let inodes = volume.inodes();
    let unnamed = inodes.tmpfile(&inodes.root(), &Create::file(0o600)).unwrap();
    inodes.write_at(&unnamed, b"unnamed", 0, Default::default()).unwrap();
    volume.write("named", "n").unwrap();
    volume.sync().unwrap();
    drop(unnamed);
    volume.close().unwrap();
    take_snapshot(source.clone(), "a").unwrap();
    let target = made();
    receive(&target, &send(&source, None, "a").unwrap()).unwrap();
    assert_eq!(seen(&target).into_keys().collect::<Vec<_>>(), ["/named"]);
}

/// A snapshot had a file that was open and had no name. Rolling back to it frees the file, and the volume
/// then passed for changed since the snapshot: what the other side had done meanwhile was refused.
#[test]
fn freeing_what_had_no_name_is_no_change() {
    let (source, target) = (made(), made());
    let volume = open(&source);
    let inodes = volume.inodes();
    let unnamed = inodes.tmpfile(&inodes.root(), &Create::file(0o600)).unwrap();
    inodes.write_at(&unnamed, b"unnamed", 0, Default::default()).unwrap();
    volume.write("named", "n").unwrap();
    volume.take_snapshot("a").unwrap();
    volume.write("lost", "l").unwrap();
    drop(unnamed);
    volume.close().unwrap();
    receive(&target, &send(&source, None, "a").unwrap()).unwrap();
    roll_back_backend(source.clone(), "a").unwrap();

    let volume = open(&target);
    volume.write("back", "b").unwrap();
    volume.close().unwrap();
    take_snapshot(target.clone(), "b").unwrap();
    receive(&source, &send(&target, Some("a"), "b").unwrap()).unwrap();
    assert_eq!(seen(&source).into_keys().collect::<Vec<_>>(), ["/back", "/named"]);
}

/// Of 3000 files in 60 directories one in a hundred is changed: overwritten, removed, punched, renamed in
/// turn. The stream of that carries at most 2 % of the bytes.
#[test]
fn few_changes_are_a_short_stream() {
    let source = made();
    let volume = open(&source);
    let path = |number: usize| format!("d{}/f{number}", number % 60);
    (0..60).for_each(|number| volume.create_dir(format!("d{number}")).unwrap());
    for number in 0..3000 {
        volume
            .write(path(number), &bytes(number as u8, 1 + number % 12)[..100 + number % 12 * BLOCK])
            .unwrap();
    }
    volume.close().unwrap();
    take_snapshot(source.clone(), "a").unwrap();
    let volume = open(&source);
    for (turn, number) in (0..3000).step_by(100).enumerate() {
        let open = || OpenOptions::new().write(true).open(&volume, path(number)).unwrap();
        match turn % 4 {
            0 => open().write_all_at(b"changed", 50).unwrap(),
            1 => volume.remove_file(path(number)).unwrap(),
            2 => open().punch_hole(0, BLOCK as u64).unwrap(),
            _ => volume.rename(path(number), format!("d0/new-{number}")).unwrap(),
        }
    }
    volume.close().unwrap();
    take_snapshot(source.clone(), "b").unwrap();
    let (whole, changes) = (send(&source, None, "a").unwrap(), send(&source, Some("a"), "b").unwrap());
    println!("{} bytes of {}", changes.len(), whole.len());
    assert!(changes.len() * 50 <= whole.len(), "{} bytes of {}", changes.len(), whole.len());
    let target = made();
    receive(&target, &whole).unwrap();
    receive(&target, &changes).unwrap();
    assert_same(&dump(&target), &dump(&source), "b");
}

/// A stream brought files with units that the journal of the receiving volume does not take. What was written
/// to such a file later could never be written back.
#[test]
fn a_unit_that_the_journal_does_not_take_is_refused() {
    let blocks = 128 * MIB / BLOCK as u64;
    let source = Arc::new(MemoryBackend::new(blocks));
    FormatOptions::new().journal_bytes(8 * MIB).format_backend(source.clone()).unwrap();
    let volume = open(&source);
    let untorn = Properties { untorn: Some("1m".parse().unwrap()), ..Properties::default() };
    let file = OpenOptions::new().write(true).create(true).properties(untorn).open(&volume, "file").unwrap();
    file.write_all_at(&bytes(1, 256), 0).unwrap();
    drop(file);
    volume.close().unwrap();
    take_snapshot(source.clone(), "s").unwrap();
    let stream = send(&source, None, "s").unwrap();
    let target = Arc::new(MemoryBackend::new(blocks));
    FormatOptions::new().journal_bytes(MIB).format_backend(target.clone()).unwrap();
    let refused = receive(&target, &stream).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("quire resize --journal-size"), "{refused}");
    ReceiveOptions::abort_backend(target.clone()).unwrap();
    ResizeOptions::new().journal_bytes(8 * MIB).resize_backend(target.clone()).unwrap();
    receive(&target, &stream).unwrap();
    let volume = open(&target);
    assert_eq!(volume.properties("file").unwrap(), untorn);
    assert_eq!(volume.read("file").unwrap(), bytes(1, 256));
    volume.close().unwrap();
}
