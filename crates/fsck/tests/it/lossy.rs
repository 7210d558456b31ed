//! The repair that may lose data, against a ledger: whatever is damaged, it ends with a volume that is clean
//! and opens for writing; what was not hit in both copies is there as it was; and what is not as it was is
//! told.
//!
//! `QUIRE_DAMAGE_IMAGES` sets how many images are damaged, `QUIRE_SALVAGE_IMAGES` of how many the files are
//! copied out, `QUIRE_DAMAGE_SEED` where the seeds begin. `scripts/damage` runs them as campaigns.

mod dropped;
mod headless;
mod interrupted;
mod journal;
mod ledger;
mod one_block;
mod sectors;

use crate::common::*;
use ledger::Ledger;
use quire::{FormatOptions, Volume};
use quire_base::random::Random;
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, BlockNo};
use quire_device::Device;
use quire_device::simulated::{CrashPolicy, Image, SimulatedBackend};
use quire_format::key::Key;
use quire_format::node::{NodePage, NodeRef};
use quire_format::place::Place;
use quire_format::superblock::{SLOT_BLOCKS, Superblock, far_slots};
use quire_fsck::{Options, Report, check_backend};
use quire_tree::PoolState;
use sectors::Sectors;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

const LOSSY: Options<'_> = Options { repair: true, lossy: true, dry_run: false, progress: None };

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A volume to damage.
struct Sample {
    image: Image,
    /// The same volume a while before.
    earlier: Vec<Image>,
    /// All that is there.
    ledger: Ledger,
    /// What is there without the journal.
    at_checkpoint: Ledger,
    /// What is there without the journal and the newest superblock.
    at_older: Ledger,
    /// Both copies of the newest superblock.
    newest: [BlockNo; 2],
    /// Leaves of the newest checkpoint.
    leaves: Vec<(NodeRef, Vec<Key>)>,
    /// Leaves of the one before.
    older_leaves: Vec<(NodeRef, Vec<Key>)>,
    inner: Vec<NodeRef>,
    /// Manifest pages and orphan blocks.
    maps: Vec<Place>,
    /// Journal blocks that are not empty.
    journal: Vec<BlockNo>,
}

fn superblocks(image: &Image) -> Vec<(usize, Superblock)> {
    let mut both: Vec<(usize, Superblock)> = (0..2)
        .map(|slot| {
            let mut block = [0; BLOCK_SIZE];
            image.read(SLOT_BLOCKS[slot], &mut block);
            (slot, Superblock::decode(&block).unwrap())
        })
        .collect();
    both.sort_by_key(|(_, superblock)| std::cmp::Reverse(superblock.checkpoint));
    both
}

fn read_only(image: &Image) -> Ledger {
    ledger::of(&options().read_only(true).open_backend(device(image)).unwrap())
}

/// The leaves with their keys, and the other nodes.
fn nodes(image: &Image, superblock: &Superblock) -> (Vec<(NodeRef, Vec<Key>)>, Vec<NodeRef>) {
    let (mut leaves, mut inner) = (Vec::new(), Vec::new());
    let mut pending = superblock.roots().to_vec();
    while let Some(at) = pending.pop() {
        let mut block = [0; BLOCK_SIZE];
        image.read(at.block, &mut block);
        let page = NodePage::decode(&block, superblock.volume_id(), &at).unwrap();
        if at.level == 0 {
            leaves.push((at, (0..page.count()).map(|entry| page.key(entry)).collect()));
        } else {
            inner.push(at);
            pending.extend((0..page.count()).map(|entry| page.child(entry)));
        }
    }
    (leaves, inner)
}

impl Sample {
    fn new(image: Image, earlier: Vec<Image>) -> Sample {
        let both = superblocks(&image);
        let (slot, superblock) = both[0].clone();
        let newest = [SLOT_BLOCKS[slot], far_slots(BLOCKS)[slot]];
        let ledger = read_only(&image);
        let mut without = image.clone();
        let mut journal = Vec::new();
        for at in superblock.journal_start.0..superblock.journal_end().0 {
            if image.get(BlockNo(at)).is_some_and(|block| block.iter().any(|byte| *byte != 0)) {
                journal.push(BlockNo(at));
                without.set(BlockNo(at), None);
            }
        }
        let at_checkpoint = read_only(&without);
        let mut older = without.clone();
        newest.iter().for_each(|at| older.set(*at, None));
        let at_older = read_only(&older);
        let (leaves, inner) = nodes(&image, &superblock);
        let older_leaves = nodes(&image, &both[1].1).0;
        let device = Device::new(device(&image));
        let pool = PoolState::load(&device, superblock.volume_id(), superblock.manifest, BLOCKS).unwrap();
        let maps = pool.places().collect();
        Sample {
            image,
            earlier,
            ledger,
            at_checkpoint,
            at_older,
            newest,
            leaves,
            older_leaves,
            inner,
            maps,
            journal,
        }
    }

    /// Every place of metadata, journal blocks as places without a second copy.
    fn places(&self) -> Vec<Place> {
        let nodes = self.leaves.iter().map(|leaf| leaf.0).chain(self.inner.iter().copied());
        let far = far_slots(BLOCKS);
        let slots = (0..2).map(|slot| Place { block: SLOT_BLOCKS[slot], twin: far[slot] });
        nodes
            .map(|node| node.place())
            .chain(self.maps.iter().copied())
            .chain(slots)
            .chain(self.journal.iter().map(|at| Place::single(*at)))
            .collect()
    }
}

/// Changes a volume, with checkpoints in between; gives what it looked like at these.
fn churn(volume: &Volume, backend: &SimulatedBackend, rounds: usize) -> Vec<Image> {
    let mut earlier = Vec::new();
    for round in 0..rounds {
        for number in 0..60 {
            let path = format!("churn-{}-{number}", round % 3);
            volume.write(&path, format!("{round} {number} ").repeat(round * 37 + number)).unwrap();
            if number % 5 == 0 {
                volume.set_xattr(&path, "user.round", format!("{round}")).unwrap();
            }
        }
        for number in (0..60).step_by(4) {
            let _ = volume.remove_file(format!("churn-{}-{number}", (round + 1) % 3));
        }
        volume.checkpoint().unwrap();
        earlier.push(backend.visible());
    }
    earlier
}

fn populated(seed: u64) -> (Arc<SimulatedBackend>, Volume, Vec<Image>) {
    let backend = Arc::new(SimulatedBackend::new(BLOCKS));
    FormatOptions::new().seed(seed).metadata_copies(2).format_backend(backend.clone()).unwrap();
    let volume = options().open_backend(backend.clone()).unwrap();
    drop(populate(&volume));
    let earlier = churn(&volume, &backend, 9);
    (backend, volume, earlier)
}

/// A volume closed in order; one that a crash left, with a journal; one with many small files.
fn samples() -> &'static [Sample; 3] {
    static SAMPLES: OnceLock<[Sample; 3]> = OnceLock::new();
    SAMPLES.get_or_init(|| {
        let closed = {
            let (backend, volume, earlier) = populated(7);
            volume.close().unwrap();
            Sample::new(backend.visible(), earlier)
        };
        let crashed = {
            let (backend, volume, earlier) = populated(8);
            for number in 0..120 {
                volume.write(format!("journaled-{number}"), vec![number as u8; 50 * number]).unwrap();
            }
            for number in 0..20 {
                volume.write(format!("churn-1-{number}"), format!("later {number}").repeat(99)).unwrap();
            }
            volume.sync().unwrap();
            let image = backend.crash(CrashPolicy::KeepAll);
            Sample::new(image, earlier)
        };
        let wide = {
            let (backend, volume, earlier) = populated(9);
            for directory in 0..12 {
                volume.create_dir(format!("wide-{directory}")).unwrap();
                for number in 0..180 {
                    let path = format!("wide-{directory}/a-file-with-a-longer-name-{number}");
                    let contents =
                        if number % 9 == 0 { format!("{directory}/{number}") } else { String::new() };
                    volume.write(&path, contents).unwrap();
                }
                volume.sync().unwrap();
            }
            volume.close().unwrap();
            Sample::new(backend.visible(), earlier)
        };
        [closed, crashed, wide]
    })
}

/// What was done to an image.
#[derive(Debug, Default)]
struct Damage {
    /// Blocks whose bytes are not what they were.
    blocks: BTreeSet<u64>,
    unreadable: BTreeSet<u64>,
    notes: Vec<String>,
}

fn damage(sample: &Sample, random: &mut Random) -> (Image, Damage) {
    let mut image = sample.image.clone();
    let mut done = Damage::default();
    let places = sample.places();
    let count = 2 + random.below(63);
    // With many, both copies are hit by chance; with few, by will.
    let both = random.one_in(2);
    let mut hit = Vec::new();
    while (hit.len() as u64) < count {
        let place = if random.one_in(6) && !sample.inner.is_empty() {
            sample.inner[random.below(sample.inner.len() as u64) as usize].place()
        } else if random.one_in(12) {
            sample.maps[random.below(sample.maps.len() as u64) as usize]
        } else {
            places[random.below(places.len() as u64) as usize]
        };
        let copies: Vec<BlockNo> = place.copies().collect();
        if both && random.one_in(2) {
            hit.extend(copies);
        } else {
            hit.push(copies[random.below(copies.len() as u64) as usize]);
        }
    }
    // One copy of one superblock is left: without any, nothing says where anything is.
    let far = far_slots(BLOCKS);
    let slots = [SLOT_BLOCKS[0], SLOT_BLOCKS[1], far[0], far[1]];
    if slots.iter().all(|slot| hit.contains(slot)) {
        let newest = superblocks(&sample.image)[0].0;
        hit.retain(|at| *at != SLOT_BLOCKS[newest]);
    }
    for at in hit {
        let before = sample.image.get(at).cloned();
        let how = spoil(sample, &mut image, at, &places, random);
        if how == "unreadable" {
            done.unreadable.insert(at.0);
        }
        if done.unreadable.contains(&at.0) || image.get(at) != before.as_ref() {
            done.blocks.insert(at.0);
            done.notes.push(format!("{at} {how}"));
        }
    }
    // A block that was hit twice may be what it was.
    let same = |at: u64| image.get(BlockNo(at)) == sample.image.get(BlockNo(at));
    done.blocks.retain(|at| done.unreadable.contains(at) || !same(*at));
    (image, done)
}

/// Damages a block in one of five ways; says which. To be unreadable is left to the device.
fn spoil(
    sample: &Sample,
    image: &mut Image,
    at: BlockNo,
    places: &[Place],
    random: &mut Random,
) -> &'static str {
    let far = far_slots(BLOCKS);
    let slots = [SLOT_BLOCKS[0], SLOT_BLOCKS[1], far[0], far[1]];
    match random.below(5) {
        0 => {
            let bit = random.below(BLOCK_SIZE as u64 * 8) as usize;
            image.edit(at, |block| block[bit / 8] ^= 1 << (bit % 8));
            "flipped"
        }
        1 => {
            image.edit(at, |block| block.fill(0));
            "zeroed"
        }
        2 => {
            let other = places[random.below(places.len() as u64) as usize].block;
            if slots.contains(&other) || slots.contains(&at) {
                image.edit(at, |block| block[9] ^= 8);
                "flipped"
            } else {
                image.set(at, sample.image.get(other).cloned());
                "swapped"
            }
        }
        3 => {
            let old = &sample.earlier[random.below(sample.earlier.len() as u64) as usize];
            image.set(at, old.get(at).cloned());
            "stale"
        }
        _ => "unreadable",
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// What the result must have and what it must say.
fn judge(sample: &Sample, done: &Damage, report: &Report, after: &Ledger, what: &str) {
    let is_lost = |at: &NodeRef| at.place().copies().all(|block| done.blocks.contains(&block.0));
    let newest_lost = sample.newest.iter().all(|at| done.blocks.contains(&at.0));
    let leaves = if newest_lost { &sample.older_leaves } else { &sample.leaves };
    let lost = leaves.iter().filter(|(at, _)| is_lost(at));
    let touched: BTreeSet<u64> = lost.flat_map(|(_, keys)| keys.iter().map(|key| key.object)).collect();
    let journal_hit = sample.journal.iter().any(|at| done.blocks.contains(&at.0));
    // A journal that is damaged is cut: what it had may be there or not.
    let base = if newest_lost { &sample.at_older } else { &sample.at_checkpoint };
    let unchanged = |path: &str| {
        !journal_hit || sample.ledger.get(path).is_some_and(|known| base.get(path) == Some(known))
    };
    let told: BTreeMap<&str, &str> =
        report.losses.iter().filter_map(|loss| Some((loss.path.as_deref()?, &*loss.what))).collect();
    let root_touched = touched.contains(&1);
    for (path, known) in &sample.ledger {
        let mut at = path.as_str();
        let mut hit = root_touched || touched.contains(&known.inode) || !unchanged(path);
        while !parent(at).is_empty() {
            at = parent(at);
            hit |= touched.contains(&sample.ledger[at].inode) || !unchanged(at);
        }
        if !hit {
            let found = after.get(path);
            assert!(
                found.is_some_and(|found| found.same(known)),
                "{what}: {path} was not hit, but is {}\n{:#?}\n{:#?}",
                found.map_or("lost".to_string(), |found| format!("another: {}", differs(known, found))),
                done.notes,
                report.losses
            );
        }
    }
    for (path, found) in after.iter().filter(|(path, _)| !path.starts_with("/lost+found")) {
        let right = sample.ledger.get(path).is_some_and(|known| known.same(found));
        let changed = journal_hit
            && (sample.ledger.get(path) != base.get(path)
                || base.get(path).is_some_and(|known| known.same(found)));
        assert!(
            right || changed || told.contains_key(path.as_str()),
            "{what}: {path} is wrong and not told of: {}\n{:#?}\n{:#?}",
            sample.ledger.get(path).map_or("unknown".into(), |known| differs(known, found)),
            done.notes,
            report.losses
        );
    }
}

fn differs(one: &ledger::Known, other: &ledger::Known) -> String {
    let short = |known: &ledger::Known| ledger::Known {
        contents: Vec::new(),
        xattrs: BTreeMap::new(),
        ..known.clone()
    };
    let at = one.contents.iter().zip(&other.contents).position(|(one, other)| one != other);
    format!(
        "contents differ at {at:?}, attributes {}; {:?} against {:?}",
        one.xattrs == other.xattrs,
        short(one),
        short(other)
    )
}

/// Repairs, checks that the volume is clean, and opens it for writing.
fn repaired(backend: &Arc<Sectors>, what: &str) -> (Report, Ledger) {
    let report = check_backend(backend.clone(), &LOSSY).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(report.exit_code() <= 1, "{what}: {:#?}", report.issues.last());
    let clean = check_backend(backend.clone(), &Options::default()).unwrap();
    assert!(clean.issues.is_empty(), "{what}: {:#?}", clean.issues);
    let volume = options().open_backend(backend.clone()).unwrap();
    let after = ledger::of(&volume);
    volume.write("written-after-the-repair", "anything").unwrap();
    volume.sync().unwrap();
    volume.close().unwrap();
    let clean = check_backend(backend.clone(), &Options::default()).unwrap();
    assert!(clean.issues.is_empty(), "{what}, after writing: {:#?}", clean.issues);
    (report, after)
}

fn damage_and_repair(seed: u64) {
    let sample = &samples()[(seed % 3) as usize];
    let mut random = Random::seeded(seed);
    let (image, done) = damage(sample, &mut random);
    let what = format!("seed {seed}");
    let backend = Arc::new(Sectors::new(device(&image), done.unreadable.clone()));
    let (report, after) = repaired(&backend, &what);
    judge(sample, &done, &report, &after, &what);
}

#[test]
fn whatever_is_damaged_the_repair_ends_well() {
    let first = number("QUIRE_DAMAGE_SEED", 0);
    (first..first + number("QUIRE_DAMAGE_IMAGES", 40)).for_each(damage_and_repair);
}

/// The newest map of the pool was lost in both copies, and a superblock of long ago was there still, with its
/// own map. Nodes were looked for in the chunks of that one alone: the good copy of a leaf in a newer chunk
/// was not found, and an older version of the leaf took its place.
#[test]
fn a_map_of_long_ago_does_not_say_where_the_pool_is() {
    damage_and_repair(704_194);
}

/// The root's record and that of an inode in it were lost together. The names of a directory without a record
/// were not looked at, so the inode's new record got a generation that its name does not have: the name went,
/// the inode was in lost+found, and the list of losses spoke of the name. All the others in the root were
/// said to have lost their names, and had not.
#[test]
fn names_in_a_directory_without_a_record_keep_what_they_name() {
    let sample = &samples()[(700_565 % 3) as usize];
    let (image, done) = damage(sample, &mut Random::seeded(700_565));
    let backend = Arc::new(Sectors::new(device(&image), done.unreadable.clone()));
    let (report, after) = repaired(&backend, "both records");
    let record_lost = |path: &str| {
        let of_path = report.losses.iter().filter(|loss| loss.path.as_deref() == Some(path));
        of_path.map(|loss| &*loss.what).any(|what| what.starts_with("its owner, mode"))
    };
    assert!(record_lost("/") && record_lost("/wide-10"), "{:#?}", report.losses);
    assert!(after.contains_key("/wide-10") && sample.ledger.contains_key("/wide-10"));
    for loss in report.losses.iter().filter(|loss| loss.what == "its name is lost") {
        let path = loss.path.as_deref().unwrap();
        assert!(path.starts_with("/lost+found/"), "{path} is there, and said to have lost its name");
    }
}

/// A repair is killed after its n-th write or flush, again and again at other moments: the next one ends
/// well, and loses no more. `QUIRE_REPAIR_KILLS` sets how many moments are tried.
#[test]
fn a_repair_that_is_killed_can_be_run_again() {
    let kills = number("QUIRE_REPAIR_KILLS", 12);
    let images = 3;
    for seed in 0..images {
        let sample = &samples()[(seed % 3) as usize];
        let mut random = Random::seeded(seed + 77);
        let (image, done) = damage(sample, &mut random);
        let counted = Arc::new(Sectors::new(device(&image), done.unreadable.clone()));
        counted.die_after(i64::MAX);
        check_backend(counted.clone(), &LOSSY).unwrap();
        let writes = counted.carried_out();
        for kill in 0..kills.div_ceil(images) {
            let at = random.below(writes as u64) as i64;
            let what = format!("seed {seed}, kill {kill} after {at} of {writes} writes");
            let inner = Arc::new(SimulatedBackend::from_image(image.clone()));
            let backend = Arc::new(Sectors::new(inner.clone(), done.unreadable.clone()));
            backend.die_after(at);
            let _ = check_backend(backend.clone(), &LOSSY);
            // A process that is killed leaves all that it has written, a power cut some of what was not
            // flushed.
            let policy = match kill % 2 {
                0 => CrashPolicy::KeepAll,
                _ => CrashPolicy::Power { seed: random.next_u64() },
            };
            let after = Sectors::new(device(&inner.crash(policy)), backend.bad());
            let (report, after) = repaired(&Arc::new(after), &what);
            // What the first one had published, the second one does not list as lost.
            let mut told = report;
            told.losses.extend(after.keys().map(|path| quire_fsck::Loss {
                path: Some(path.clone()),
                inode: None,
                what: "told before".into(),
            }));
            judge(sample, &done, &told, &after, &what);
        }
    }
}

/// Copies all out of damaged images: at least what a repair gives, and nothing is written to the image.
#[test]
fn salvage_finds_at_least_the_same_files() {
    let first = number("QUIRE_DAMAGE_SEED", 0);
    for seed in first..first + number("QUIRE_SALVAGE_IMAGES", 5) {
        let sample = &samples()[(seed % 3) as usize];
        let (image, done) = damage(sample, &mut Random::seeded(seed));
        let inner = Arc::new(SimulatedBackend::from_image(image.clone()));
        let backend = Arc::new(Sectors::new(inner.clone(), done.unreadable.clone()));
        let directory = tempfile::tempdir().unwrap();
        let salvaged = quire_fsck::salvage_backend(backend.clone(), directory.path(), None).unwrap();
        assert_eq!(inner.event_count(), 0, "seed {seed}: a salvage writes nothing");
        let (_, after) = repaired(&Arc::new(Sectors::new(device(&image), done.unreadable.clone())), "repair");
        let failed: BTreeSet<&str> = salvaged.problems.iter().map(|problem| &*problem.path).collect();
        for (path, known) in &after {
            let copy = directory.path().join(&path[1..]);
            let there = copy.symlink_metadata();
            // Devices and owners need privileges.
            assert!(there.is_ok() || failed.contains(path.as_str()), "seed {seed}: {path} is not copied");
            let Ok(there) = there else { continue };
            if there.is_file() {
                assert!(std::fs::read(&copy).unwrap() == known.contents, "seed {seed}: {path}");
                assert!(failed.contains(path.as_str()) || known.mode == there.mode(), "seed {seed}: {path}");
                // A record that was lost is made anew, with the time of the repair.
                let told = salvaged.losses.iter().any(|loss| loss.path.as_ref() == Some(path));
                let same = (there.mtime(), there.mtime_nsec()) == known.mtime;
                assert!(same || told, "seed {seed}: {path}");
            }
        }
        assert!(salvaged.files + salvaged.links > 50, "seed {seed}: {salvaged:?}");
    }
}

/// A dry run tells what a repair would do, and writes nothing; a repair without the option gives nothing up.
#[test]
fn a_dry_run_tells_and_writes_nothing() {
    let sample = &samples()[0];
    let mut image = sample.image.clone();
    let leaf = sample.leaves[sample.leaves.len() / 2].0;
    leaf.place().copies().for_each(|at| image.edit(at, |block| block[77] ^= 2));
    let inner = Arc::new(SimulatedBackend::from_image(image.clone()));
    let dry = check_backend(inner.clone(), &Options { dry_run: true, ..LOSSY }).unwrap();
    assert_eq!((inner.event_count(), dry.exit_code()), (0, 4));
    assert!(!dry.losses.is_empty());
    let (plain, left) = repair(&image);
    assert_eq!(plain.exit_code(), 4);
    let backend = Arc::new(Sectors::new(device(&left), BTreeSet::new()));
    let (report, _) = repaired(&backend, "one leaf");
    assert_eq!(report.losses, dry.losses);
}
