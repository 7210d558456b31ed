//! Repair: what is mended stays mended, nothing else is lost, and a crash in its midst does no harm.

use crate::common::editor::{Editor, Location};
use crate::common::*;
use quire::inodes::{InodeRef, IoFlags};
use quire::internals::repair::Session;
use quire::{FileType, FormatOptions, Volume};
use quire_base::random::Random;
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, BlockNo, ErrorKind, InodeNo};
use quire_device::simulated::{CrashPolicy, Image, SimulatedBackend};
use quire_format::dirent::Entry;
use quire_format::extent::Extent;
use quire_format::inode::InodeRecord;
use quire_format::key::{Key, KeyKind};
use quire_format::place::Place;
use quire_format::pool::HEADER_BYTES;
use quire_format::region::RegionMap;
use quire_format::superblock::{FLAG_ERRORS, SLOT_BLOCKS, Superblock, far_slots};
use quire_fsck::{Issue, IssueKind, Options, Report, Severity, check_backend};
use std::collections::BTreeMap;

/// Repairs; all must be mended, a second check clean, and a second repair must change nothing.
pub fn mend(image: &Image, what: &str) -> (Report, Image) {
    let (report, after) = repair(image);
    assert!(!report.issues.is_empty(), "{what}: not noticed");
    assert_eq!(report.exit_code(), 1, "{what}: {:#?}", report.issues);
    assert_clean(&after, what);
    let (again, _) = repair(&after);
    assert!(again.issues.is_empty(), "{what}: {:#?}", again.issues);
    (report, after)
}

/// Every path below the root with its type and contents, and all contents whatever their names.
pub fn walk(image: &Image) -> Tree {
    let volume = options().open_backend(device(image)).unwrap();
    let all = walk_volume(&volume);
    volume.close().unwrap();
    all
}

/// By path: type and contents.
pub type Tree = BTreeMap<String, (u8, Vec<u8>)>;

pub fn walk_volume(volume: &Volume) -> Tree {
    let mut all = BTreeMap::new();
    let mut pending = vec![(String::new(), volume.inodes().root())];
    while let Some((path, directory)) = pending.pop() {
        let mut names = Vec::new();
        volume
            .inodes()
            .read_dir(&directory, 0, &mut |entry| {
                if !matches!(entry.name, b"." | b"..") {
                    names.push(entry.name.to_vec());
                }
                true
            })
            .unwrap();
        for name in names {
            let inode: InodeRef = volume.inodes().lookup(&directory, &name).unwrap();
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            let contents = match inode.kind() {
                FileType::Regular => {
                    let mut bytes = vec![0; inode.size() as usize];
                    let read = volume.inodes().read_at(&inode, &mut bytes, 0, IoFlags::empty()).unwrap();
                    assert_eq!(read, bytes.len());
                    bytes
                }
                FileType::Symlink => volume.inodes().read_link(&inode).unwrap(),
                _ => Vec::new(),
            };
            all.insert(path.clone(), (inode.kind() as u8, contents));
            if inode.kind() == FileType::Directory {
                pending.push((path, inode));
            }
        }
    }
    all
}

/// How many of the contents that were there before are gone.
fn lost(before: &BTreeMap<String, (u8, Vec<u8>)>, after: &BTreeMap<String, (u8, Vec<u8>)>) -> usize {
    let mut left: BTreeMap<&(u8, Vec<u8>), usize> = BTreeMap::new();
    for contents in after.values() {
        *left.entry(contents).or_default() += 1;
    }
    before
        .values()
        .filter(|contents| match left.get_mut(contents) {
            Some(count) if *count > 0 => {
                *count -= 1;
                false
            }
            _ => true,
        })
        .count()
}

fn one_of_each_kind(editor: &Editor) -> Vec<Location> {
    let mut chosen: BTreeMap<(u8, u32), Location> = BTreeMap::new();
    for at in editor.keys() {
        let value = editor.value(&at);
        let shape = match at.key.kind {
            KeyKind::Inode => {
                InodeRecord::decode(&value).unwrap().mode >> 12 << 1 | u32::from(value[16] == 0)
            }
            KeyKind::Symlink | KeyKind::Xattr => u32::from(at.key.offset as u16),
            KeyKind::Entry => Entry::decode(&value).unwrap().file_type as u32,
            _ => 0,
        };
        chosen.entry((at.key.kind as u8, shape)).or_insert(at);
    }
    chosen.into_values().collect()
}

#[test]
fn every_generated_damage_of_a_value_is_mended() {
    let original = Editor::new(&closed());
    let before = walk(&original.image);
    let mut random = Random::seeded(17);
    let mut tried = 0;
    for at in one_of_each_kind(&original) {
        let value = original.value(&at);
        for byte in 0..value.len() {
            if (byte > 40 && !random.one_in(4)) || (byte > 100 && !random.one_in(8)) {
                continue;
            }
            let mut editor = Editor::new(&original.image);
            let mut damaged = value.clone();
            damaged[byte] ^= 1 << random.below(8);
            editor.set_value(&at, &damaged);
            if check(&editor.image).unwrap().issues.is_empty() {
                continue;
            }
            tried += 1;
            let what = format!("{:?} byte {byte}: {value:02x?} became {damaged:02x?}", at.key);
            let (_, after) = mend(&editor.image, &what);
            let gone = lost(&before, &walk(&after));
            // One file's contents may be damaged, and links count once for each of their names.
            assert!(gone <= 3, "{what}: {gone} contents are lost");
        }
    }
    assert!(tried > 200, "{tried}");
}

#[test]
fn every_missing_key_is_mended() {
    let original = Editor::new(&closed());
    let before = walk(&original.image);
    for at in one_of_each_kind(&original) {
        let mut editor = Editor::new(&original.image);
        editor.remove(at.key);
        if at.key.kind == KeyKind::LoggedOp {
            continue;
        }
        let (_, after) = mend(&editor.image, &format!("{:?} removed", at.key));
        let gone = lost(&before, &walk(&after));
        assert!(gone <= 3, "{:?} removed: {gone} contents are lost", at.key);
    }
}

#[test]
fn a_damaged_superblock_is_rewritten_from_the_other() {
    for slot in SLOT_BLOCKS {
        let mut editor = Editor::new(&closed());
        editor.image.edit(slot, |block| block[200] ^= 1);
        let (report, after) = mend(&editor.image, "superblock");
        assert!(report.has(IssueKind::SuperblockDamaged));
        let editor = Editor::new(&after);
        assert_eq!(editor.superblock(0).uuid, editor.superblock(1).uuid);
    }
    let mut editor = Editor::new(&closed());
    editor.set_superblock(0, |superblock| superblock.flags |= FLAG_ERRORS);
    mend(&editor.image, "error flag");
    let mut editor = Editor::new(&closed());
    editor.set_superblock(1, |superblock| superblock.mount_count += 1);
    mend(&editor.image, "contradiction");
}

/// Of every piece of metadata, one copy or the other: each is reported and gets the bytes of the good one.
#[test]
fn damaged_copies_get_the_bytes_of_the_good_ones() {
    let backend = Arc::new(SimulatedBackend::new(BLOCKS));
    FormatOptions::new().seed(7).metadata_copies(2).format_backend(backend.clone()).unwrap();
    let volume = options().open_backend(backend.clone()).unwrap();
    drop(populate(&volume));
    volume.close().unwrap();
    let original = backend.visible();
    assert_clean(&original, "two copies");
    let contents = walk(&original);
    let editor = Editor::new(&original);
    let (newest, (_, page)) = (editor.newest(), editor.manifest(editor.newest()));
    let mut places = vec![editor.superblock(newest).manifest.place()];
    places.extend(page.orphans.iter().map(|orphan| orphan.place()));
    places.extend(editor.nodes().iter().map(|node| Place { block: node.block, twin: node.twin }));
    for second in [false, true] {
        let mut damaged = original.clone();
        for place in &places {
            damaged.edit(if second { place.twin } else { place.block }, |block| block[100] ^= 1);
        }
        let (report, after) = mend(&damaged, "copies");
        let told = report.issues.iter().filter(|issue| issue.code == IssueKind::CopyDamaged).count();
        assert_eq!((told, report.issues.len()), (places.len(), places.len()), "{:#?}", report.issues);
        for place in &places {
            let (one, other) =
                (Editor::new(&after).block(place.block), Editor::new(&after).block(place.twin));
            assert!(one == other && one == editor.block(place.block), "block {}", place.block);
        }
        assert_eq!(walk(&after), contents);
    }
}

fn resize(superblock: &mut Superblock, by: i64) {
    superblock.block_count = superblock.block_count.strict_add_signed(by);
    superblock.data_end.0 = superblock.data_end.0.strict_add_signed(by);
}

#[test]
fn the_superblock_that_makes_sense_wins() {
    let original = closed();
    let before = walk(&original);
    let slot = Editor::new(&original).newest();
    let changes: [fn(&mut Superblock); 6] = [
        |superblock| superblock.hash_seed[0] ^= 4,
        |superblock| superblock.uuid[3] ^= 1,
        |superblock| resize(superblock, 1 << 30),
        |superblock| resize(superblock, -100),
        |superblock| superblock.orphan_blocks = 1,
        |superblock| superblock.journal_blocks -= 1,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        for slot in [slot, 1 - slot] {
            let mut editor = Editor::new(&original);
            editor.set_superblock(slot, change);
            let (report, after) = mend(&editor.image, &format!("contradiction {number} in slot {slot}"));
            assert!(report.has(IssueKind::SuperblockMismatch), "{:#?}", report.issues);
            assert_eq!(walk(&after), before, "contradiction {number} in slot {slot}");
            let (mended, original) =
                (Editor::new(&after).superblock(0), Editor::new(&original).superblock(0));
            assert_eq!((mended.uuid, mended.hash_seed), (original.uuid, original.hash_seed));
        }
    }
}

#[test]
fn a_volume_whose_areas_do_not_join_is_not_written_to() {
    let mut editor = Editor::new(&closed());
    for slot in 0..2 {
        editor.set_superblock(slot, |superblock| superblock.journal_blocks -= 1);
    }
    let (report, after) = repair(&editor.image);
    assert!(report.has(IssueKind::SuperblockGeometry));
    assert_eq!(report.exit_code(), 4);
    after.for_each(&mut |at, block| assert_eq!(**block, editor.block(at), "block {at}"));
}

/// A repair wrote a new map of the pool and a superblock to a volume with features that this build may only
/// read; opening it refused only then. A salvage, which writes to memory, does not mind such features.
#[test]
fn a_volume_with_features_that_may_only_be_read_is_not_written_to() {
    let mut editor = Editor::new(&closed());
    let newest = editor.newest();
    let chunk = editor.manifest(newest).1.chunks[0];
    let is_free = |bit: &usize| chunk.used[bit / 64] >> (bit % 64) & 1 == 0;
    let leak = (0..chunk.blocks as usize).find(is_free).unwrap();
    editor.edit_manifest(newest, |block| {
        let count = quire_format::pool::used_count(&chunk.used) + 1;
        block[HEADER_BYTES + 12..HEADER_BYTES + 16].copy_from_slice(&count.to_le_bytes());
        block[HEADER_BYTES + 16 + leak / 8] |= 1 << (leak % 8);
    });
    let extent = editor.of_kind(KeyKind::Extent)[0];
    editor.set_value(&extent, &vec![0xff; extent.len]);
    for slot in 0..2 {
        editor.set_superblock(slot, |superblock| superblock.feature_ro_compat = 2);
    }
    for lossy in [false, true] {
        let backend = Arc::new(SimulatedBackend::from_image(editor.image.clone()));
        let options = Options { repair: true, lossy, ..Options::default() };
        let report = check_backend(backend.clone(), &options).unwrap();
        assert_eq!((backend.event_count(), report.exit_code()), (0, 4), "{:#?}", report.issues);
        let is_why = |issue: &&Issue| issue.code == IssueKind::RepairFailed;
        let why = report.issues.iter().find(is_why).unwrap();
        assert!(why.message.contains("can read but not write"), "{why}");
    }
    let directory = tempfile::tempdir().unwrap();
    let salvaged = quire_fsck::salvage_backend(device(&editor.image), directory.path(), None).unwrap();
    assert!(salvaged.losses.iter().all(|loss| loss.path.is_some()), "{salvaged:#?}");
    assert!(!salvaged.losses.is_empty() && salvaged.files > 50, "{salvaged:#?}");
}

#[test]
fn both_superblocks_damaged_is_fatal_and_nothing_is_written() {
    let mut editor = Editor::new(&closed());
    let slots = SLOT_BLOCKS.into_iter().chain(far_slots(BLOCKS));
    for slot in slots.clone() {
        editor.image.edit(slot, |block| block[200] ^= 1);
    }
    let (report, after) = repair(&editor.image);
    assert_eq!((report.exit_code(), report.worst()), (4, Some(Severity::Fatal)));
    assert!(report.has(IssueKind::SuperblocksDamaged));
    for slot in slots {
        assert_eq!(Editor::new(&after).block(slot), editor.block(slot));
    }
}

/// The beginning of the device was overwritten: the copies at its end are put back, by a repair only.
#[test]
fn superblocks_at_the_beginning_come_back_from_the_end() {
    let original = closed();
    let mut overwritten = original.clone();
    for at in 0..16 {
        overwritten.write(BlockNo(at), &[0; BLOCK_SIZE]);
    }
    let refused = options().open_backend(device(&overwritten)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotAVolume);
    assert!(refused.to_string().contains("quire fsck --repair"), "{refused}");
    let (report, after) = mend(&overwritten, "no superblocks");
    assert!(report.has(IssueKind::SuperblocksDamaged));
    assert_eq!(walk(&after), walk(&original));
    // First copies that were damaged but not overwritten do not stand in the way.
    let mut damaged = original.clone();
    for slot in SLOT_BLOCKS {
        damaged.edit(slot, |block| block[200] ^= 1);
    }
    assert_eq!(walk(&damaged), walk(&original));
    mend(&damaged, "both first copies");
}

#[test]
fn counters_and_regions_are_corrected() {
    let original = closed();
    let mut editor = Editor::new(&original);
    for slot in 0..2 {
        editor.set_superblock(slot, |superblock| {
            superblock.free_blocks -= 5;
            superblock.inode_count += 3;
        });
    }
    let (report, after) = mend(&editor.image, "counters");
    assert!(report.has(IssueKind::FreeBlocksWrong) && report.has(IssueKind::InodeCountWrong));
    let counts = |image: &Image| {
        let superblock = Editor::new(image).superblock(0);
        (superblock.free_blocks, superblock.inode_count)
    };
    assert_eq!(counts(&after), counts(&original));

    // Used blocks marked free, free ones marked used, a value of garbage, a region that is not there.
    let mut editor = Editor::new(&original);
    let at = editor.of_kind(KeyKind::FreeSpace)[0];
    let mut map = RegionMap::decode(&editor.value(&at)).unwrap();
    map.set_free(0, 1).unwrap();
    map.set_used(map.next_free(100).unwrap(), 3).unwrap();
    editor.put(at.key, &map.encode().unwrap());
    editor.put(Key::region(1), &[9, 9]);
    editor.put(Key::region(77), &[0]);
    let (report, after) = mend(&editor.image, "regions");
    for kind in [
        IssueKind::BlockUnmarked,
        IssueKind::BlockLeaked,
        IssueKind::RegionDamaged,
        IssueKind::RegionOutOfRange,
    ] {
        assert!(report.has(kind), "{kind}: {:#?}", report.issues);
    }
    assert_eq!(counts(&after), counts(&original));
}

/// The extents with data.
fn written(editor: &Editor) -> Vec<(Location, Extent)> {
    let extents = editor.of_kind(KeyKind::Extent).into_iter();
    extents
        .map(|at| (at, Extent::decode(at.key.offset, &editor.value(&at)).unwrap()))
        .filter(|(_, extent)| !extent.unwritten)
        .collect()
}

#[test]
fn blocks_of_two_files_are_copied_for_the_younger() {
    let original = closed();
    let mut editor = Editor::new(&original);
    let extents = written(&editor);
    let (older, first) = extents.iter().copied().find(|(_, extent)| extent.len >= 2).unwrap();
    let fits = |at: &Location, extent: &Extent| at.key.object > older.key.object && extent.len <= first.len;
    let (younger, second) = extents.iter().copied().rfind(|(at, extent)| fits(at, extent)).unwrap();
    let stolen = Extent { disk_block: first.disk_block, ..second };
    editor.set_value(&younger, &stolen.encode());
    let contents = editor.block(first.disk_block);
    let (report, after) = mend(&editor.image, "shared blocks");
    assert!(report.has(IssueKind::ExtentShared));
    let editor = Editor::new(&after);
    let kept = Extent::decode(older.key.offset, &editor.value(&editor.key(older.key))).unwrap();
    assert_eq!(kept, first);
    let copy = Extent::decode(younger.key.offset, &editor.value(&editor.key(younger.key))).unwrap();
    assert_ne!(copy.disk_block, first.disk_block);
    assert_eq!(editor.block(copy.disk_block), contents);
}

/// Without room for the copies, the repair took the shared blocks from the younger file all the same, and
/// said that all was well.
#[test]
fn without_room_for_copies_no_file_loses_blocks() {
    let mut editor = Editor::new(&closed());
    for region in 0..BLOCKS / 4096 {
        let mut all = RegionMap::new();
        all.set_used(0, 4096).unwrap();
        editor.put(Key::region(region), &all.encode().unwrap());
    }
    let extents = written(&editor);
    let (older, first) = extents[0];
    let (younger, second) =
        extents.iter().copied().rfind(|(at, _)| at.key.object > older.key.object).unwrap();
    let stolen = Extent { disk_block: first.disk_block, ..second };
    editor.set_value(&younger, &stolen.encode());
    let (report, after) = repair(&editor.image);
    assert!(report.has(IssueKind::RepairFailed), "{:#?}", report.issues);
    assert!(report.issues.iter().any(|issue| issue.message.contains("no free blocks")), "{report:#?}");
    let editor = Editor::new(&after);
    let left = Extent::decode(younger.key.offset, &editor.value(&editor.key(younger.key))).unwrap();
    assert_eq!(left, stolen);
}

#[test]
fn extents_in_the_pool_and_past_the_end_become_holes() {
    let original = Editor::new(&closed());
    let superblock = original.superblock(0);
    for start in [superblock.pool_start, BlockNo(superblock.block_count - 1), BlockNo(0x1234_5678)] {
        let mut editor = Editor::new(&original.image);
        let at = *editor.of_kind(KeyKind::Extent).last().unwrap();
        let extent = Extent::decode(at.key.offset, &editor.value(&at)).unwrap();
        editor.set_value(&at, &Extent { disk_block: start, len: 3, ..extent }.encode());
        let (report, _) = mend(&editor.image, &format!("extent at {start}"));
        assert!(report.has(IssueKind::ExtentOutOfRange));
    }
}

/// A thread that removed a directory by a name that it has in itself waited for its own lock for ever.
#[test]
fn a_directory_that_names_itself_is_not_removed() {
    let mut editor = Editor::new(&closed());
    let in_root = |name: &[u8]| {
        editor.find(|at| {
            at.key.kind == KeyKind::Entry
                && at.key.object == 1
                && Entry::decode(&editor.value(at)).unwrap().name == name
        })
    };
    let (empty, root) =
        (in_root(b"empty"), InodeRecord::decode(&editor.value(&editor.key(Key::inode(InodeNo(1))))));
    let generation = root.unwrap().generation;
    let value = editor.value(&empty);
    let entry = Entry { inode: InodeNo(1), generation, ..Entry::decode(&value).unwrap() };
    let value = entry.encode();
    editor.set_value(&empty, &value);
    let volume = options().open_backend(device(&editor.image)).unwrap();
    let error = volume.remove_dir("empty").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let error = volume.rename("a", "empty").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    mend(&editor.image, "a directory that names itself");
}

#[test]
fn lost_directories_go_to_lost_and_found_with_all_that_is_in_them() {
    let original = Editor::new(&closed());
    let before = walk(&original.image);
    // The entry of /a.
    let entry = original.find(|at| {
        at.key.kind == KeyKind::Entry
            && at.key.object == 1
            && Entry::decode(&original.value(at)).unwrap().name == b"a"
    });
    let number = Entry::decode(&original.value(&entry)).unwrap().inode;
    let mut editor = Editor::new(&original.image);
    editor.remove(entry.key);
    let (report, after) = mend(&editor.image, "a lost directory");
    assert!(report.has(IssueKind::InodeUnreachable));
    let now = walk(&after);
    assert_eq!(lost(&before, &now), 0);
    assert!(now.contains_key(&format!("/lost+found/#{number}/b/c")), "{:?}", now.keys().take(20));

    // Its record: rebuilt from what it has and from its name.
    let mut editor = Editor::new(&original.image);
    editor.remove(Key::inode(number));
    let (report, after) = mend(&editor.image, "a lost record");
    assert!(report.has(IssueKind::InodeMissing));
    let now = walk(&after);
    assert!(now.contains_key("/a/b/c"), "{:?}", now.keys().take(20));
    assert_eq!(lost(&before, &now), 0);

    // The root's record.
    let mut editor = Editor::new(&original.image);
    editor.remove(Key::inode(InodeNo::ROOT));
    let (_, after) = mend(&editor.image, "no root");
    assert_eq!(lost(&before, &walk(&after)), 0);
}

#[test]
fn circles_of_directories_are_broken() {
    let original = Editor::new(&closed());
    let directory = |name: &[u8]| {
        let at = original.find(|at| {
            at.key.kind == KeyKind::Entry && Entry::decode(&original.value(at)).unwrap().name == name
        });
        (at, Entry::decode(&original.value(&at)).unwrap().inode)
    };
    let ((entry_a, a), (entry_b, b)) = (directory(b"a"), directory(b"b"));
    // /a moves into /a/b.
    let mut editor = Editor::new(&original.image);
    let value = editor.value(&entry_a);
    editor.remove(entry_a.key);
    editor.put(Key::entry(b, entry_a.key.offset), &value);
    let at = editor.key(Key::inode(a));
    let record = InodeRecord { parent: b.0, ..InodeRecord::decode(&editor.value(&at)).unwrap() };
    editor.set_value(&at, &record.encode());
    assert_eq!(entry_b.key.object, a.0);
    let before = walk(&original.image);
    let (report, after) = mend(&editor.image, "a circle");
    assert!(report.has(IssueKind::DirectoryCycle), "{:#?}", report.issues);
    assert_eq!(lost(&before, &walk(&after)), 0);
}

#[test]
fn orphan_blocks_and_the_pool_s_map_are_written_anew() {
    let original = Editor::new(&closed());
    let slot = original.newest();
    let (_, page) = original.manifest(slot);
    for orphan in &page.orphans {
        let mut editor = Editor::new(&original.image);
        editor.image.edit(orphan.block, |block| block[0] ^= 1);
        let (report, after) = mend(&editor.image, "orphan block");
        assert!(report.has(IssueKind::OrphanBlockDamaged));
        assert_eq!(check(&after).unwrap().summary.orphans, 3);
    }
    // Chunk 0: a used block called free, a free one called used. The bitmap starts 16 bytes into its entry,
    // behind the header; the number of set bits stays.
    let used = page.chunks[0].used;
    let bit =
        |set: bool| (0..512u32).filter(move |bit| (used[*bit as usize / 64] >> (bit % 64) & 1 == 1) == set);
    let nodes: Vec<u64> = original.nodes().iter().map(|node| node.block.0).collect();
    let node = bit(true).find(|bit| nodes.contains(&(page.chunks[0].start.0 + u64::from(*bit)))).unwrap();
    for (clear, set) in [
        (node, bit(false).next_back().unwrap()),
        (bit(true).next_back().unwrap(), bit(false).next().unwrap()),
    ] {
        let mut editor = Editor::new(&original.image);
        editor.edit_manifest(slot, |block| {
            block[HEADER_BYTES + 16 + clear as usize / 8] ^= 1 << (clear % 8);
            block[HEADER_BYTES + 16 + set as usize / 8] ^= 1 << (set % 8);
        });
        let (report, _) = mend(&editor.image, "pool map");
        assert!(report.has(IssueKind::PoolBlockLeaked) && report.has(IssueKind::PoolBlockUnmarked));
    }
}

#[test]
fn a_damaged_node_of_the_newest_checkpoint_alone_is_abandoned() {
    let backend = device(&crashed());
    let volume = options().open_backend(backend.clone()).unwrap();
    volume.drain_orphans();
    volume.checkpoint().unwrap();
    let root = volume.inodes().root();
    for number in 0..40 {
        volume
            .inodes()
            .create(&root, format!("new-{number}").as_bytes(), &quire::inodes::Create::file(0o600))
            .unwrap();
    }
    volume.checkpoint().unwrap();
    for number in 40..50 {
        volume
            .inodes()
            .create(&root, format!("new-{number}").as_bytes(), &quire::inodes::Create::file(0o600))
            .unwrap();
    }
    volume.sync().unwrap();
    let image = backend.crash(CrashPolicy::KeepAll);
    assert_clean(&image, "before");
    let before = walk(&image);
    // A leaf that only the newest checkpoint has.
    let editor = Editor::new(&image);
    let newest = editor.newest();
    let leaves = |slot: usize| {
        let superblock = editor.superblock(slot);
        let mut all = superblock.roots().to_vec();
        let mut next = 0;
        while next < all.len() {
            let block = editor.block(all[next].block);
            let page =
                quire_format::node::NodePage::decode(&block, superblock.volume_id(), &all[next]).unwrap();
            if page.level() > 0 {
                all.extend((0..page.count()).map(|at| page.child(at)));
            }
            next += 1;
        }
        all.retain(|node| node.level == 0);
        all
    };
    let older = leaves(1 - newest);
    let only_new = leaves(newest).into_iter().find(|leaf| !older.contains(leaf)).unwrap();
    let mut editor = Editor::new(&image);
    editor.image.edit(only_new.block, |block| block[1000] ^= 1);
    let (report, after) = mend(&editor.image, "a damaged leaf");
    assert!(report.has(IssueKind::NodeDamaged));
    assert_eq!(walk(&after), before);

    // Shared by both: nothing can be done, and nothing is.
    let shared = leaves(newest).into_iter().find(|leaf| older.contains(leaf)).unwrap();
    let mut editor = Editor::new(&image);
    editor.image.edit(shared.block, |block| block[1000] ^= 1);
    let (report, after) = repair(&editor.image);
    assert_eq!(report.exit_code(), 4);
    for slot in SLOT_BLOCKS {
        assert_eq!(Editor::new(&after).block(slot), editor.block(slot));
    }
}

/// Crashes of a repair at each of its events, in every way: after each the volume is no worse than before the
/// repair, and a repair of it ends as clean, with no more lost than `lost_max`.
fn cut_off_everywhere(damaged: &Image, original: &Image, lost_max: usize, what: &str) {
    let before = check(damaged).unwrap();
    let contents = walk(original);
    let backend = Arc::new(SimulatedBackend::from_image(damaged.clone()));
    let report = check_backend(backend.clone(), &Options { repair: true, ..Options::default() }).unwrap();
    assert_eq!(report.exit_code(), 1, "{what}: {:#?}", report.issues);
    let mut random = Random::seeded(23);
    let mut images = 0;
    for at in 0..=backend.event_count() {
        let seed = random.next_u64();
        let policies = [
            CrashPolicy::KeepAll,
            CrashPolicy::LoseAll,
            CrashPolicy::Killed { seed },
            CrashPolicy::Power { seed },
            CrashPolicy::Power { seed: seed ^ 1 },
            CrashPolicy::Subset { kept: seed },
        ];
        let mut seen: Vec<Image> = Vec::new();
        for policy in policies {
            let Some(image) = backend.crash_at(at, policy) else { continue };
            if seen.iter().any(|other| same(other, &image)) {
                continue;
            }
            let when = format!("{what}, crash at {at} of {}, {policy:?}", backend.event_count());
            let now = check(&image).unwrap_or_else(|error| panic!("{when}: {error}"));
            // A slot that was being written may be torn; repair wrote it for the sake of something as bad.
            let torn = |report: &Report| report.has(IssueKind::SuperblockDamaged);
            assert!(now.worst() <= before.worst() || torn(&now), "{when}: {:#?}", now.issues);
            let (report, after) = repair(&image);
            assert!(matches!(report.exit_code(), 0 | 1), "{when}: {:#?}", report.issues);
            assert_clean(&after, &when);
            let gone = lost(&contents, &walk(&after));
            assert!(gone <= lost_max, "{when}: {gone} contents are lost");
            images += 1;
            seen.push(image);
        }
    }
    assert!(images > 15, "{what}: only {images} images");
}

fn same(one: &Image, other: &Image) -> bool {
    let blocks = |image: &Image| {
        let mut all = Vec::new();
        image.for_each(&mut |at, block| all.push((at, block.clone())));
        all
    };
    blocks(one) == blocks(other)
}

#[test]
fn a_repair_of_the_pool_s_map_may_be_cut_off_anywhere() {
    let original = closed();
    let (_, page) = Editor::new(&original).manifest(Editor::new(&original).newest());
    let mut editor = Editor::new(&original);
    editor.image.edit(page.orphans[0].block, |block| block[0] ^= 1);
    cut_off_everywhere(&editor.image, &original, 0, "a damaged orphan block");
    // The map without its last block, and another one leaked.
    let mut editor = Editor::new(&original);
    let newest = editor.newest();
    editor.edit_manifest(newest, |block| {
        let blocks = page.chunks[0].blocks - 1;
        block[HEADER_BYTES + 8..HEADER_BYTES + 12].copy_from_slice(&blocks.to_le_bytes());
    });
    cut_off_everywhere(&editor.image, &original, 0, "a short chunk");
}

#[test]
fn a_repair_of_a_superblock_may_be_cut_off_anywhere() {
    for (slot, at) in SLOT_BLOCKS.into_iter().enumerate() {
        let original = closed();
        let mut editor = Editor::new(&original);
        editor.image.edit(at, |block| block[200] ^= 1);
        cut_off_everywhere(&editor.image, &original, 0, "a damaged superblock");
        let mut editor = Editor::new(&original);
        editor.set_superblock(slot, |superblock| superblock.hash_seed[0] ^= 4);
        cut_off_everywhere(&editor.image, &original, 0, "superblocks that contradict one another");
        let mut editor = Editor::new(&original);
        editor.set_superblock(slot, |superblock| superblock.flags |= FLAG_ERRORS);
        cut_off_everywhere(&editor.image, &original, 0, "the mark of an error");
    }
}

#[test]
fn a_repair_of_values_may_be_cut_off_anywhere() {
    let original = Editor::new(&closed());
    let mut random = Random::seeded(31);
    let places = one_of_each_kind(&original);
    for round in 0..6 {
        let mut editor = Editor::new(&original.image);
        let mut lost_max = 0;
        for _ in 0..4 {
            let at = places[random.below(places.len() as u64) as usize];
            if at.len == 0 || at.key.kind == KeyKind::LoggedOp {
                continue;
            }
            let mut value = editor.value(&at);
            value[random.below(at.len.min(90) as u64) as usize] ^= 1 << random.below(8);
            editor.set_value(&at, &value);
            // Its own contents, under each of its three names at most.
            lost_max += 3;
        }
        if !check(&editor.image).unwrap().issues.is_empty() {
            cut_off_everywhere(&editor.image, &original.image, lost_max, &format!("values, round {round}"));
        }
    }
}

#[test]
fn a_crash_in_the_midst_of_a_repair_does_no_harm() {
    // Much is wrong at once.
    let original = Editor::new(&closed());
    let mut editor = Editor::new(&original.image);
    let entry = editor.find(|at| {
        at.key.kind == KeyKind::Entry
            && at.key.object == 1
            && Entry::decode(&editor.value(at)).unwrap().name == b"a"
    });
    editor.remove(entry.key);
    let extents = editor.of_kind(KeyKind::Extent);
    let first = Extent::decode(extents[0].key.offset, &editor.value(&extents[0])).unwrap();
    let last = extents[extents.len() - 1];
    let stolen = Extent {
        file_block: last.key.offset,
        disk_block: first.disk_block,
        len: 1,
        unwritten: false,
        birth: 0,
    };
    editor.set_value(&last, &stolen.encode());
    let inode = editor.find(|at| at.key.kind == KeyKind::Inode && at.key.object > 20);
    editor.set_value(&inode, &vec![0xff; inode.len]);
    editor.put(Key::region(1), &[9, 9]);
    cut_off_everywhere(&editor.image, &original.image, 6, "much at once");
}

/// A repair made `lost+found` under the next free number, and the checkpoints that it took on its way still
/// called that number the next one. After a crash the next mount gave it to a new file, whose record took the
/// place of the directory's.
#[test]
fn a_repair_that_was_cut_off_keeps_lost_and_found() {
    let backend = device(&format());
    let volume = options().open_backend(backend.clone()).unwrap();
    volume.write("some", "contents").unwrap();
    let some = volume.metadata("some").unwrap().ino();
    volume.close().unwrap();
    let mut session = Session::open(backend.clone()).unwrap();
    let first = session.superblock().next_inode;
    let end = first + 6000;
    let record = session.tree().get(Key::inode(some)).unwrap().unwrap();
    let record = InodeRecord { blocks: 0, size: 0, ..InodeRecord::decode(&record).unwrap() };
    for number in first..end {
        session.put(Key::inode(InodeNo(number)), &record.encode());
        if session.pending() > 60 {
            session.commit().unwrap();
        }
    }
    let free = session.superblock().free_blocks;
    session.set_counters(free, end - 1, end);
    session.close().unwrap();

    let backend = Arc::new(SimulatedBackend::from_image(backend.visible()));
    let report = check_backend(backend.clone(), &Options { repair: true, ..Options::default() }).unwrap();
    assert_eq!(report.exit_code(), 1);
    let (events, mut cut_off) = (backend.event_count(), 0);
    for at in (0..events).step_by(events / 60) {
        let image = backend.crash_at(at, CrashPolicy::KeepAll).unwrap();
        let volume = options().open_backend(device(&image)).unwrap();
        let Ok(before) = volume.metadata("lost+found") else { continue };
        cut_off += 1;
        volume.write("new", "contents").unwrap();
        assert_ne!(volume.metadata("new").unwrap().ino(), before.ino(), "cut off at {at} of {events}");
        assert!(volume.metadata("lost+found").unwrap().is_dir(), "cut off at {at} of {events}");
    }
    assert!(cut_off > 3, "only {cut_off} images have it");
}
