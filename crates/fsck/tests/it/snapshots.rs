//! Volumes with snapshots: what is clean, what is found, what repair makes of it.

use crate::common::editor::Editor;
use crate::common::{BLOCKS, assert_clean, check, closed, device, options, repair};
use crate::repair::{Tree, walk_volume};
use quire::internals::inspect;
use quire::internals::repair::Session;
use quire::{FileType, OpenOptions, ReceiveOptions, SendOptions, Volume, take_snapshot_backend};
use quire_base::random::Random;
use quire_base::{BlockNo, Seq};
use quire_device::simulated::Image;
use quire_format::extent::Extent;
use quire_format::journal::{BlockHeader, PAYLOAD_BYTES, block_ceil};
use quire_format::key::{Key, KeyKind};
use quire_format::node::NodePage;
use quire_format::pool::{CHUNK_BYTES, ChunkEntry, HEADER_BYTES};
use quire_format::region::RegionMap;
use quire_format::snapshot::Snapshot;
use quire_format::superblock::{FAR_BLOCKS, SLOT_BLOCKS, Superblock};
use quire_fsck::{IssueKind, Options, check_backend};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

const LOSSY: Options<'_> = Options { repair: true, lossy: true, dry_run: false, progress: None };

/// A volume with two snapshots and dead blocks, closed in order.
fn with_snapshots() -> Image {
    let backend = device(&closed());
    for round in 0..2u8 {
        let volume = options().open_backend(backend.clone()).unwrap();
        volume.write("kept", vec![round; 300_000]).unwrap();
        volume.close().unwrap();
        take_snapshot_backend(backend.clone(), &format!("s{round}")).unwrap();
        let volume = options().open_backend(backend.clone()).unwrap();
        let file = OpenOptions::new().write(true).open(&volume, "kept").unwrap();
        file.write_all_at(&[9; 100_000], 5000).unwrap();
        drop(file);
        volume.close().unwrap();
    }
    backend.visible()
}

#[test]
fn snapshots_are_clean_and_dead_blocks_are_counted() {
    let image = with_snapshots();
    assert_clean(&image, "with snapshots");
    let mut editor = Editor::new(&image);
    let at = editor.of_kind(KeyKind::Dead)[0];
    let dead = RegionMap::decode(&editor.value(&at)).unwrap();
    assert!(dead.used_count() >= 25, "{dead:?}");

    // One less, one more.
    let mut wrong = dead.clone();
    let (first, _) = dead.runs().next().unwrap();
    wrong.set_free(first, 1).unwrap();
    wrong.set_used(dead.next_free(first).unwrap(), 1).unwrap();
    editor.put(at.key, &wrong.encode().unwrap());
    assert!(check(&editor.image).unwrap().has(IssueKind::DeadBlocksWrong));
    let (_, mended) = repair(&editor.image);
    assert_clean(&mended, "after repair");
    let editor = Editor::new(&mended);
    let after = editor.of_kind(KeyKind::Dead)[0];
    assert_eq!(RegionMap::decode(&editor.value(&after)).unwrap(), dead);
}

#[test]
fn damage_in_a_snapshot_is_found_and_deleting_it_is_enough() {
    let image = with_snapshots();
    let mut editor = Editor::new(&image);
    let at = editor.find(|at| at.key == Key::snapshot(1));
    let snapshot = Snapshot::decode(&editor.value(&at)).unwrap();
    assert!(SLOT_BLOCKS.iter().all(|slot| *slot != snapshot.superblock.root.block));
    editor.image.edit(snapshot.superblock.root.block, |block| block[500] ^= 1);
    let report = check(&editor.image).unwrap();
    assert!(report.has(IssueKind::SnapshotDamaged), "{:#?}", report.issues);
    assert!(
        report.issues.iter().all(|issue| issue.code == IssueKind::SnapshotDamaged),
        "{:#?}",
        report.issues
    );
    let backend = device(&editor.image);
    let volume = options().open_backend(backend.clone()).unwrap();
    volume.delete_snapshot("s0").unwrap();
    volume.close().unwrap();
    assert_clean(&backend.visible(), "without the snapshot");
}

/// A volume that is changed before each of so many snapshots, with what each has.
fn with_many_snapshots(count: u64) -> (Image, BTreeMap<String, Tree>) {
    let backend = device(&crate::common::format());
    let volume = options().open_backend(backend.clone()).unwrap();
    let mut random = Random::seeded(count);
    let mut contents = BTreeMap::new();
    volume.write("file", vec![0; 400 << 10]).unwrap();
    for number in 0..=count {
        volume.write(format!("of-{number}"), vec![number as u8; 50_000]).unwrap();
        if number > 1 {
            volume.remove_file(format!("of-{}", number - 2)).unwrap();
        }
        let file = OpenOptions::new().write(true).open(&volume, "file").unwrap();
        for block in (0..100).filter(|_| random.one_in(2)) {
            file.write_all_at(&[number as u8 + 1; 4096], block * 4096).unwrap();
        }
        drop(file);
        if number < count {
            let name = format!("s{number}");
            volume.take_snapshot(&name).unwrap();
            contents.insert(name.clone(), walk_volume(&volume.open_snapshot(&name).unwrap()));
        }
    }
    volume.close().unwrap();
    let image = backend.visible();
    contents.insert("now".into(), walk_volume(&options().open_backend(backend).unwrap()));
    (image, contents)
}

/// Makes the leaf unreadable that says which blocks a snapshot uses; gives the levels above it.
fn lose_space_of(image: &mut Image, number: u32) -> u8 {
    let editor = Editor::new(image);
    let superblock = Snapshot::decode(&editor.value(&editor.key(Key::snapshot(number)))).unwrap().superblock;
    let root = superblock.roots()[0];
    let mut at = root;
    while at.level > 0 {
        let page = NodePage::decode(&editor.block(at.block), superblock.volume_id(), &at).unwrap();
        at = page.child(0);
    }
    at.place().copies().for_each(|copy| image.set(copy, None));
    root.level
}

/// A node could not be read that said which blocks a snapshot uses. fsck said to delete the snapshot, but
/// neither it nor those around it could be deleted any more: they stayed in the list, and their space was not
/// free.
#[test]
fn a_snapshot_whose_space_cannot_be_read_is_deleted_and_so_are_others() {
    let orders: Vec<Vec<u32>> = (0..256u32)
        .map(|order| (0..4).map(|at| order >> (2 * at) & 3).collect::<Vec<u32>>())
        .filter(|order| order.iter().collect::<BTreeSet<_>>().len() == 4)
        .collect();
    assert_eq!(orders.len(), 24);
    let four = with_many_snapshots(4);
    for (damaged, order) in (0..4).flat_map(|damaged| orders.iter().map(move |order| (damaged, order))) {
        delete_all(&four, damaged, order);
    }
    // Nodes of several levels.
    let many = with_many_snapshots(14);
    for order in [[12, 11, 13], [11, 13, 12], [13, 12, 11]] {
        let rest = (0..11).rev();
        let level = delete_all(&many, 12, &order.into_iter().chain(rest).collect::<Vec<u32>>());
        assert!(level > 0);
    }
}

fn write_to_free_space(volume: &Volume) {
    volume.sync().unwrap();
    let free = volume.statfs().free * 4096;
    volume.write("fill", vec![0xee; free as usize - (1 << 20)]).unwrap();
    volume.sync().unwrap();
    volume.remove_file("fill").unwrap();
    volume.sync().unwrap();
}

fn delete_all((image, contents): &(Image, BTreeMap<String, Tree>), damaged: u32, order: &[u32]) -> u8 {
    let what = format!("damaged {damaged}, deleted {order:?}");
    let mut image = image.clone();
    let level = lose_space_of(&mut image, damaged + 1);
    let backend = device(&image);
    let volume = options().open_backend(backend.clone()).unwrap();
    for (at, number) in order.iter().enumerate() {
        let name = format!("s{number}");
        volume.delete_snapshot(&name).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
        write_to_free_space(&volume);
        for number in order[at + 1..].iter().filter(|number| **number != damaged) {
            let left = format!("s{number}");
            let found = walk_volume(&volume.open_snapshot(&left).unwrap());
            assert!(found == contents[&left], "{what}: {left} has changed with {name}");
        }
        assert!(walk_volume(&volume) == contents["now"], "{what}: the volume has changed with {name}");
    }
    volume.close().unwrap();
    // Nothing leaks.
    assert_clean(&backend.visible(), &what);
    level
}

/// A page of a snapshot's manifest could not be read. fsck said to delete the snapshot, but no volume with it
/// opened for writing. The lossy repair gave up all others with it, also where a node of one was lost.
#[test]
fn a_damaged_snapshot_is_given_up_alone() {
    let (image, contents) = with_many_snapshots(4);
    let editor = Editor::new(&image);
    let lost = |number: u32| {
        let key = editor.key(Key::snapshot(number));
        let superblock = Snapshot::decode(&editor.value(&key)).unwrap().superblock;
        let mut no_page = image.clone();
        superblock.manifest.place().copies().for_each(|copy| no_page.set(copy, None));
        let mut no_root = image.clone();
        superblock.root.place().copies().for_each(|copy| no_root.set(copy, None));
        let mut no_map = image.clone();
        lose_space_of(&mut no_map, number);
        [("page", no_page), ("root", no_root), ("map", no_map)]
    };
    for (number, (what, damaged)) in (1..=4).flat_map(|number| lost(number).map(|lost| (number, lost))) {
        let (own, what) = (format!("s{}", number - 1), format!("{what} of snapshot {number}"));
        assert_eq!(options().open_backend(device(&damaged)).is_err(), what.starts_with("page"), "{what}");
        let (report, _) = repair(&damaged);
        assert!(report.exit_code() == 4 && report.has(IssueKind::SnapshotDamaged), "{what}: {report:#?}");

        let backend = device(&damaged);
        let report = check_backend(backend.clone(), &LOSSY).unwrap();
        assert_eq!(report.exit_code(), 1, "{what}: {:#?}", report.issues);
        let told: Vec<&str> = report.losses.iter().map(|loss| loss.what.as_str()).collect();
        assert_eq!(told, [format!("the snapshot {own:?} is given up")], "{what}");
        assert_clean(&backend.visible(), &what);
        let volume = options().open_backend(backend.clone()).unwrap();
        write_to_free_space(&volume);
        for (name, content) in contents.iter().filter(|(name, _)| **name != own && *name != "now") {
            let found = walk_volume(&volume.open_snapshot(name).unwrap());
            assert!(found == *content, "{what}: {name} has changed");
            volume.delete_snapshot(name).unwrap();
        }
        assert!(walk_volume(&volume) == contents["now"], "{what}");
        assert!(volume.snapshots().unwrap().is_empty(), "{what}");
        volume.close().unwrap();
        assert_clean(&backend.visible(), &what);
    }
}

/// Four snapshots shared the leaf of an old file, and an extent in it was wrong. fsck read the leaf for the
/// first one only and took the others for whole. So the lossy repair gave up one snapshot at a time, came to
/// the end of its passes, and changed nothing.
#[test]
fn snapshots_that_share_a_wrong_extent_are_given_up_together() {
    let backend = device(&crate::common::format());
    let volume = options().open_backend(backend.clone()).unwrap();
    (0..400).for_each(|number| volume.write(format!("file-{number}"), vec![1; 20_000]).unwrap());
    volume.take_snapshot("before").unwrap();
    let old = volume.metadata("file-200").unwrap().ino();
    volume.close().unwrap();
    let mut session = Session::open(backend.clone()).unwrap();
    let wrong = Extent { file_block: 0, disk_block: BlockNo(1), len: 5, unwritten: false, birth: 0 };
    session.put(Key::extent(old, 0), &wrong.encode());
    session.close().unwrap();
    let volume = options().open_backend(backend.clone()).unwrap();
    for number in 0..4 {
        volume.write(format!("new-{number}"), vec![2; 20_000]).unwrap();
        volume.take_snapshot(&format!("s{number}")).unwrap();
    }
    volume.write("new-4", vec![2; 20_000]).unwrap();
    volume.close().unwrap();

    let report = check_backend(backend.clone(), &LOSSY).unwrap();
    assert_eq!(report.exit_code(), 1, "{:#?}", report.issues);
    for number in 0..4 {
        let told = format!("the snapshot \"s{number}\" is given up");
        assert!(report.losses.iter().any(|loss| loss.what == told), "{told}: {:#?}", report.losses);
    }
    assert_clean(&backend.visible(), "after the repair");
    let volume = options().open_backend(backend).unwrap();
    let left: Vec<String> = volume.snapshots().unwrap().into_iter().map(|snapshot| snapshot.name).collect();
    assert_eq!(left, ["before"]);
    assert!(volume.open_snapshot("before").unwrap().read("file-200").unwrap() == vec![1; 20_000]);
}

/// A part of a snapshot's map of space made no sense, under checksums that fitted. The repair knew that some
/// snapshot's blocks were unknown, but not whose, and gave up all snapshots.
#[test]
fn a_snapshot_whose_map_of_space_makes_no_sense_is_given_up_alone() {
    let (image, contents) = with_many_snapshots(4);
    let mut editor = Editor::new(&image);
    editor.edit_space_root(2, |page, block| {
        assert_eq!(page.level(), 0);
        let at = (0..page.count()).find(|at| page.key(*at).kind == KeyKind::FreeSpace).unwrap();
        let value = page.value(at);
        let start = block.windows(value.len()).rposition(|bytes| bytes == value).unwrap();
        block[start] = 0xff;
    });
    let report = check(&editor.image).unwrap();
    assert!(report.has(IssueKind::SnapshotDamaged), "{:#?}", report.issues);
    let backend = device(&editor.image);
    let report = check_backend(backend.clone(), &LOSSY).unwrap();
    assert_eq!(report.exit_code(), 1, "{:#?}", report.issues);
    let told: Vec<&str> = report.losses.iter().map(|loss| loss.what.as_str()).collect();
    assert_eq!(told, ["the snapshot \"s1\" is given up"]);
    assert_clean(&backend.visible(), "after the repair");
    let volume = options().open_backend(backend).unwrap();
    for name in ["s0", "s2", "s3"] {
        assert!(walk_volume(&volume.open_snapshot(name).unwrap()) == contents[name], "{name} has changed");
    }
}

/// The leaf that named the snapshots was lost: they went without a word in the list of losses.
#[test]
fn snapshots_whose_names_are_lost_are_told() {
    let image = with_snapshots();
    let editor = Editor::new(&image);
    let at = editor.key(Key::snapshot(1));
    let node = editor.nodes().into_iter().find(|node| node.block == at.node).unwrap();
    let mut damaged = image.clone();
    node.place().copies().for_each(|copy| damaged.set(copy, None));
    let backend = device(&damaged);
    let lossy = Options { repair: true, lossy: true, ..Options::default() };
    let report = check_backend(backend.clone(), &lossy).unwrap();
    assert!(report.losses.iter().any(|loss| loss.what.contains("snapshots")), "{:#?}", report.losses);
    assert_clean(&backend.visible(), "after the repair");
}

/// One wrong byte in the value of a snapshot, under checksums that fit, and the volume was refused: by a
/// mount for reading, by the lossy repair, and by a salvage.
#[test]
fn a_snapshot_that_makes_no_sense_does_not_keep_the_volume_from_being_read() {
    let image = with_snapshots();
    let read = |image: &Image| {
        let volume = options().read_only(true).open_backend(device(image)).unwrap();
        walk_volume(&volume)
    };
    let before = read(&image);
    for at in [16, 17, 18, 20 + 100, 420] {
        let mut editor = Editor::new(&image);
        let key = editor.key(Key::snapshot(1));
        let mut value = editor.value(&key);
        value[at] = 0xff;
        Snapshot::decode(&value).unwrap_err();
        editor.set_value(&key, &value);
        let damaged = editor.image;
        assert_eq!(read(&damaged), before, "byte {at}");
        // What it needs is not known.
        let refused = options().open_backend(device(&damaged)).map(drop).unwrap_err();
        assert!(refused.to_string().contains("snapshot 1"), "byte {at}: {refused}");
        let report = check(&damaged).unwrap();
        assert!(report.has(IssueKind::SnapshotDamaged), "byte {at}: {:#?}", report.issues);
        assert!(!report.has(IssueKind::VolumeRefused), "byte {at}: {:#?}", report.issues);

        let target = tempfile::tempdir().unwrap();
        let salvaged = quire_fsck::salvage_backend(device(&damaged), target.path(), None).unwrap();
        // The host may keep no attribute as large as one of these.
        assert!(salvaged.problems.iter().all(|problem| problem.path != "/"), "byte {at}: {salvaged:#?}");
        assert!(target.path().join("kept").exists(), "byte {at}");

        let backend = device(&damaged);
        let report = check_backend(backend.clone(), &LOSSY).unwrap();
        assert_eq!(report.exit_code(), 1, "byte {at}: {:#?}", report.issues);
        let told: Vec<&str> = report.losses.iter().map(|loss| loss.what.as_str()).collect();
        assert_eq!(told, ["the snapshot \"number 1\" is given up"], "byte {at}");
        assert_clean(&backend.visible(), "after the repair");
        assert_eq!(read(&backend.visible()), before, "byte {at}");
    }
}

/// A stranger's image had a snapshot with a forged superblock, whose checksum fitted. fsck called the image
/// clean, and reading a file of the snapshot said that the volume is damaged.
#[test]
fn a_forged_snapshot_is_found() {
    let image = with_snapshots();
    let forged = |change: &dyn Fn(&mut Superblock)| {
        let mut editor = Editor::new(&image);
        let at = editor.key(Key::snapshot(1));
        let mut snapshot = Snapshot::decode(&editor.value(&at)).unwrap();
        change(&mut snapshot.superblock);
        let value = snapshot.encode();
        Snapshot::decode(&value).expect("it does not contradict itself");
        editor.set_value(&at, &value);
        let report = check(&editor.image).unwrap();
        let (issues, others): (Vec<_>, Vec<_>) =
            report.issues.into_iter().partition(|issue| issue.code == IssueKind::SnapshotDamaged);
        assert!(others.is_empty(), "{others:#?}");
        issues.into_iter().map(|issue| issue.message).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(forged(&|_| ()), "");
    let data_start = |superblock: &mut Superblock| superblock.data_start.0 += 300;
    assert!(forged(&data_start).contains("(areas)"), "{}", forged(&data_start));
    type Change<'a> = &'a dyn Fn(&mut Superblock);
    let fields: [(&str, Change<'_>); 6] = [
        ("(time of making)", &|superblock| superblock.created.0 += 1),
        ("(size)", &|superblock| {
            superblock.block_count += 1;
            superblock.data_end.0 += 1;
        }),
        ("(hash seed)", &|superblock| superblock.hash_seed[0] ^= 1),
        ("(incarnation)", &|superblock| superblock.incarnation += 1000),
        ("(next inode)", &|superblock| superblock.next_inode += 1000),
        ("(epoch)", &|superblock| superblock.epoch += 1),
    ];
    for (name, change) in fields {
        let found = forged(change);
        assert!(found.contains(name), "{name}: {found}");
    }
    // A volume may have been smaller; but not as small as that, with the files that it had.
    let smaller = |superblock: &mut Superblock| {
        superblock.block_count = superblock.data_start.0 + 30;
        superblock.data_end = BlockNo(superblock.block_count - FAR_BLOCKS);
        superblock.free_blocks = 0;
    };
    let found = forged(&smaller);
    assert!(found.contains("which no file may have"), "{found}");
}

/// A copy of the first snapshot of a volume, and one that has received half of the second one, too.
fn in_mid_receive(volume: &Volume) -> (Image, Image) {
    let stream = |from: Option<&str>, name: &str| {
        let (mut stream, send) = (Vec::new(), SendOptions::new());
        let send = from.map_or(send.clone(), |from| send.from(from));
        send.send(volume, name, &mut stream, &mut |_| ()).unwrap();
        stream
    };
    let (true, first) = receive(&crate::common::format(), &stream(None, "s0")) else {
        panic!("it is refused")
    };
    let second = stream(Some("s0"), "s1");
    let (false, half) = receive(&first, &second[..second.len() / 2]) else { panic!("half was enough") };
    (first, half)
}

fn receive(target: &Image, mut bytes: &[u8]) -> (bool, Image) {
    let target = device(target);
    let done = ReceiveOptions::new().receive_backend(target.clone(), &mut bytes, &mut |_| ());
    (done.is_ok(), target.visible())
}

fn token(image: &Image) -> String {
    ReceiveOptions::unfinished_backend(device(image)).unwrap().expect("it is unfinished").token
}

/// The repair opened a volume for writing as a mount does, which refuses one with an unfinished receive: no
/// damage in it could be mended. What the lossy repair did then was worse: it gave up all snapshots, with the
/// one that the receive had begun at, and the volume had neither its old state nor its new one.
#[test]
fn an_unfinished_receive_is_left_as_it_is() {
    let source = device(&with_snapshots());
    let volume = options().read_only(true).open_backend(source.clone()).unwrap();
    let (first, half) = in_mid_receive(&volume);
    for lossy in [false, true] {
        let mut damaged = half.clone();
        damaged.edit(SLOT_BLOCKS[1], |block| block[100] ^= 1);
        let target = device(&damaged);
        let report =
            check_backend(target.clone(), &Options { repair: true, lossy, ..Options::default() }).unwrap();
        assert_eq!(report.exit_code(), 1, "lossy {lossy}: {:#?}", report.issues);
        // Nobody may take the volume for a checked one.
        assert!(report.has(IssueKind::ReceiveUnfinished));
        let mended = target.visible();
        assert_clean(&mended, "after the repair");
        assert_eq!(token(&mended), token(&half));

        let mut rest = Vec::new();
        SendOptions::resume(&volume, &token(&half), &mut rest, &mut |_| ()).unwrap();
        let (true, whole) = receive(&mended, &rest) else { panic!("lossy {lossy}: the rest is refused") };
        assert_clean(&whole, "after the receive");
        let received = options().read_only(true).open_backend(device(&whole)).unwrap();
        assert_eq!(received.snapshots().unwrap().len(), 2);
    }

    // What no repair without loss can mend: the snapshot stays, and so does what has been received.
    let editor = Editor::new(&first);
    let snapshot = Snapshot::decode(&editor.value(&editor.of_kind(KeyKind::Snapshot)[0])).unwrap();
    let mut damaged = half.clone();
    damaged.edit(snapshot.superblock.root.block, |block| block[500] ^= 1);
    let target = device(&damaged);
    let how = Options { repair: true, lossy: true, ..Options::default() };
    let report = check_backend(target.clone(), &how).unwrap();
    assert!(report.has(IssueKind::RepairFailed), "{:#?}", report.issues);
    assert_eq!(token(&target.visible()), token(&half));
}

/// A standby lost a leaf in the midst of a receive, or a part of its journal. The repair looked for an
/// unfinished receive only where recovery takes a volume: so the lossy one gave up the snapshot that the
/// receive had begun at, and the volume had half of the new state. A salvage copied that half.
/// A later one copied the snapshot. It said that this was all, and did not mention the journal.
#[test]
fn what_an_unfinished_receive_began_at_is_not_given_up() {
    let source = device(&with_snapshots());
    let volume = options().read_only(true).open_backend(source.clone()).unwrap();
    let (_, half) = in_mid_receive(&volume);
    let before = walk_volume(&volume.open_snapshot("s0").unwrap());
    let editor = Editor::new(&half);
    let superblock = editor.superblock(editor.newest());
    let base = Snapshot::decode(&editor.value(&editor.of_kind(KeyKind::Snapshot)[0])).unwrap().superblock;

    let mut no_leaf = half.clone();
    let names: Vec<BlockNo> =
        editor.keys().iter().filter(|at| at.key >= Key::NAMES).map(|at| at.node).collect();
    let leaf = editor
        .nodes()
        .into_iter()
        .find(|node| names.contains(&node.block) && node.generation > base.checkpoint)
        .unwrap();
    leaf.place().copies().for_each(|copy| no_leaf.set(copy, None));
    // A block behind the end of the journal says that more was durable than there is.
    let mut no_journal = half.clone();
    let end = inspect::journal(device(&half), &superblock, &mut |_, _| {}).unwrap().end;
    let position = block_ceil(end.0) + 2 * PAYLOAD_BYTES as u64;
    let header = BlockHeader {
        volume: superblock.volume_id(),
        incarnation: superblock.incarnation,
        position,
        durable: Seq(position),
        checkpoint: superblock.sequence,
        first_record: None,
    };
    let ring = position / PAYLOAD_BYTES as u64 % superblock.journal_blocks;
    no_journal.edit(superblock.journal_start.offset(ring), |block| header.seal(block));
    for (what, damaged) in [("a leaf", no_leaf), ("the journal", no_journal)] {
        let report = check(&damaged).unwrap();
        assert!(report.worst() > Some(quire_fsck::Severity::Error), "{what}: {:#?}", report.issues);
        let target = device(&damaged);
        let report = check_backend(target.clone(), &LOSSY).unwrap();
        assert!(report.has(IssueKind::RepairFailed), "{what}: {:#?}", report.issues);
        let after = target.visible();
        assert!((0..BLOCKS).all(|at| after.get(BlockNo(at)) == damaged.get(BlockNo(at))), "{what}");

        let copy = tempfile::tempdir().unwrap();
        let salvaged = quire_fsck::salvage_backend(device(&damaged), copy.path(), None).unwrap();
        assert!(salvaged.problems.iter().any(|problem| problem.path == "/"), "{what}: {salvaged:?}");
        let is_cut = salvaged.losses.iter().any(|loss| loss.what.contains("the journal is cut there"));
        assert_eq!(is_cut, what == "the journal", "{what}: {salvaged:?}");
        for (path, (_, content)) in before.iter().filter(|(_, (kind, _))| *kind == FileType::Regular as u8) {
            assert!(std::fs::read(copy.path().join(&path[1..])).unwrap() == *content, "{what}: {path}");
        }
    }
}

/// The map of the pool called a block of its own free, so recovery refused the volume. The repair wrote a new
/// map to blocks that it took for free, since it looked for snapshots only in a volume that recovery takes:
/// what they alone had was overwritten. And the lossy repair changed nothing.
#[test]
fn a_new_map_of_the_pool_spares_what_snapshots_have() {
    let image = with_snapshots();
    let read = |image: &Image| {
        let volume = options().read_only(true).open_backend(device(image)).unwrap();
        ["s0", "s1"].map(|name| walk_volume(&volume.open_snapshot(name).unwrap()))
    };
    let before = read(&image);
    let original = Editor::new(&image);
    let newest = original.newest();
    let (own, page) = original.manifest(newest);
    for block in [own].into_iter().chain(page.orphans.iter().map(|orphan| orphan.block)) {
        let mut editor = Editor::new(&image);
        let within =
            |chunk: &ChunkEntry| (chunk.start..chunk.start.offset(chunk.blocks.into())).contains(&block);
        let chunk = page.chunks.iter().position(within).unwrap();
        // The number of set bits stays.
        let used = |bit: usize| page.chunks[chunk].used[bit / 64] >> (bit % 64) & 1 == 1;
        let free = (0..page.chunks[chunk].blocks as usize).rfind(|bit| !used(*bit)).unwrap();
        let bit = (block.0 - page.chunks[chunk].start.0) as usize;
        editor.edit_manifest(newest, |block| {
            for bit in [bit, free] {
                block[HEADER_BYTES + chunk * CHUNK_BYTES + 16 + bit / 8] ^= 1 << (bit % 8);
            }
        });
        let report = check(&editor.image).unwrap();
        assert!(report.has(IssueKind::VolumeRefused), "block {block}: {:#?}", report.issues);
        for lossy in [false, true] {
            let target = device(&editor.image);
            let how = Options { repair: true, lossy, ..Options::default() };
            let report = check_backend(target.clone(), &how).unwrap();
            assert_eq!(report.exit_code(), 1, "block {block}, lossy {lossy}: {:#?}", report.issues);
            assert!(report.losses.is_empty(), "block {block}: {:#?}", report.losses);
            let mended = target.visible();
            assert_clean(&mended, "after the repair");
            assert!(read(&mended) == before, "block {block}, lossy {lossy}");
        }
    }
}

/// The repair gave an extent from a future epoch the newest one, by which its blocks were the file's alone:
/// the next write freed what a snapshot had. And one that said so by itself was not noticed.
#[test]
fn what_a_snapshot_has_is_not_called_new() {
    let image = with_snapshots();
    let epoch = Editor::new(&image).superblock(0).epoch;
    births_are_corrected(&image, epoch, [epoch, epoch + 1]);
}

/// A later snapshot had been deleted since. An extent of its epoch with blocks of the one before was called
/// right, though its blocks were the file's alone: the next write freed them.
#[test]
fn what_a_snapshot_has_is_not_called_newer_than_it_either() {
    let backend = device(&with_snapshots());
    let newest = Editor::new(&backend.visible()).superblock(0).epoch;
    take_snapshot_backend(backend.clone(), "later").unwrap();
    let volume = options().open_backend(backend.clone()).unwrap();
    volume.delete_snapshot("later").unwrap();
    volume.close().unwrap();
    let image = backend.visible();
    assert_clean(&image, "with the two older ones");
    assert_eq!(Editor::new(&image).superblock(0).epoch, newest + 1);
    births_are_corrected(&image, newest, [newest, newest + 1]);
}

/// Of what the newest snapshot has, also in a file, says that it was born later: that must be found and
/// corrected, and the snapshot keep what it has.
fn births_are_corrected(image: &Image, newest: u32, births: [u32; 2]) {
    let volume = options().read_only(true).open_backend(device(image)).unwrap();
    let kept = volume.open_snapshot("s1").unwrap().read("kept").unwrap();
    volume.close().unwrap();
    let editor = Editor::new(image);
    let old: Vec<_> = editor
        .of_kind(KeyKind::Extent)
        .into_iter()
        .map(|at| (at, Extent::decode(at.key.offset, &editor.value(&at)).unwrap()))
        .filter(|(_, extent)| extent.birth < newest)
        .collect();
    assert!(!old.is_empty());
    for birth in births {
        // Into nodes of its own: the snapshot has the others, too.
        let backend = device(image);
        let mut session = Session::open(backend.clone()).unwrap();
        for (at, extent) in &old {
            session.put(at.key, &Extent { birth, ..*extent }.encode());
        }
        session.commit().unwrap();
        session.close().unwrap();
        let (report, mended) = repair(&backend.visible());
        assert!(report.has(IssueKind::ExtentBirthWrong), "birth {birth}: {:#?}", report.issues);
        assert_clean(&mended, "after the repair");
        let backend = device(&mended);
        let volume = options().open_backend(backend.clone()).unwrap();
        volume.write("kept", vec![7; 300_000]).unwrap();
        volume.write("more", vec![8; 3_000_000]).unwrap();
        volume.sync().unwrap();
        assert_eq!(volume.open_snapshot("s1").unwrap().read("kept").unwrap(), kept, "birth {birth}");
        volume.close().unwrap();
        assert_clean(&backend.visible(), "after writing");
    }
}

/// Of two snapshots one could not be read, so the repair knew of neither's blocks. A damaged extent of a file
/// had blocks that the other snapshot has, too: they were freed. So were those of which a damaged value said
/// that only snapshots have them.
#[test]
fn a_snapshot_that_cannot_be_read_costs_no_blocks_of_another() {
    let image = with_snapshots();
    let contents = |image: &Image| {
        let volume = options().read_only(true).open_backend(device(image)).unwrap();
        ["s0", "s1"].map(|name| volume.open_snapshot(name).unwrap().read("kept").unwrap())
    };
    let before = contents(&image);
    let backend = device(&image);
    let volume = options().read_only(true).open_backend(backend.clone()).unwrap();
    let kept = volume.metadata("kept").unwrap().ino();
    volume.close().unwrap();
    let mut session = Session::open(backend.clone()).unwrap();
    let mut keys = Vec::new();
    let mut scan = |first, last| {
        let visit = &mut |key: Key, _: &[u8]| {
            keys.push(key);
            ControlFlow::Continue(())
        };
        session.tree().scan(first, last, visit).unwrap();
    };
    scan(Key::extent(kept, 0), Key::extent(kept, u64::MAX));
    scan(Key::dead(0), Key::dead(u64::MAX));
    keys.iter().for_each(|key| session.put(*key, &[0xff; 5]));
    session.close().unwrap();
    let mut editor = Editor::new(&backend.visible());
    let snapshot = Snapshot::decode(&editor.value(&editor.key(Key::snapshot(1)))).unwrap();
    let damaged = snapshot.superblock.space_root.block;
    editor.image.edit(damaged, |block| block[500] ^= 1);

    let (report, mended) = repair(&editor.image);
    assert!(report.has(IssueKind::ExtentDamaged) && report.has(IssueKind::DeadBlocksWrong));
    let left = check(&mended).unwrap().issues;
    assert!(left.iter().all(|issue| issue.code == IssueKind::SnapshotDamaged), "{left:#?}");
    let backend = device(&mended);
    let volume = options().open_backend(backend.clone()).unwrap();
    let files = (0..).take_while(|n| volume.write(format!("more-{n}"), vec![8; 100_000]).is_ok()).count();
    assert!(files > 100, "{files}");
    volume.sync().unwrap();
    volume.close().unwrap();
    // It can be read again.
    let mut full = backend.visible();
    full.edit(damaged, |block| block[500] ^= 1);
    assert!(contents(&full) == before);
}
