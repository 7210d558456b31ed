//! One damaged block of metadata, of every kind and in every way, costs nothing: at rest, and while the
//! volume is in use. A scrub leaves the volume clean.
//!
//! `QUIRE_ONE_BLOCK_IMAGES` and `QUIRE_ONE_BLOCK_LOADS` set how many images are damaged at rest and in use.

use super::*;
use quire::internals::inspect;
use quire::{ScrubOptions, ScrubReport, VolumeOptions};
use quire_base::sync::atomic::{AtomicBool, Ordering};
use quire_device::{Backend, IoClass};
use quire_format::journal::PAYLOAD_BYTES;
use std::ops::ControlFlow;

fn scrub(volume: &Volume) -> ScrubReport {
    volume.scrub(&ScrubOptions::new(), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Blocks of the journal that no recovery needs.
pub(super) fn unused_journal(sample: &Sample) -> Vec<BlockNo> {
    let superblock = &superblocks(&sample.image)[0].1;
    let end = inspect::journal(device(&sample.image), superblock, &mut |_, _| {}).unwrap().end;
    let (ring, payload) = (superblock.journal_blocks, PAYLOAD_BYTES as u64);
    // A crash leaves the one behind the end in use, too: something durable may have been in it.
    let used: BTreeSet<u64> =
        (superblock.sequence.0 / payload..=end.0 / payload).map(|block| block % ring).collect();
    (0..ring).filter(|at| !used.contains(at)).map(|at| superblock.journal_start.offset(at)).collect()
}

/// A kind of block is drawn first, so that rare kinds are hit as often as others.
fn draw(sample: &Sample, unused: &[BlockNo], random: &mut Random) -> BlockNo {
    let mut one_of = |places: Vec<Place>| {
        let copies: Vec<BlockNo> = places[random.below(places.len() as u64) as usize].copies().collect();
        copies[random.below(copies.len() as u64) as usize]
    };
    let kind = one_of((0..5).map(|kind| Place::single(BlockNo(kind))).collect()).0;
    let far = far_slots(BLOCKS);
    one_of(match kind {
        0 => sample.leaves.iter().map(|leaf| leaf.0.place()).collect(),
        1 => sample.inner.iter().map(NodeRef::place).collect(),
        2 => sample.maps.clone(),
        3 => (0..2).map(|slot| Place { block: SLOT_BLOCKS[slot], twin: far[slot] }).collect(),
        _ => unused.iter().map(|at| Place::single(*at)).collect(),
    })
}

#[test]
fn one_damaged_block_costs_nothing() {
    let unused: Vec<Vec<BlockNo>> = samples().iter().map(unused_journal).collect();
    let first = number("QUIRE_DAMAGE_SEED", 0);
    let mut healed = 0;
    for seed in first..first + number("QUIRE_ONE_BLOCK_IMAGES", 60) {
        let nth = (seed % 3) as usize;
        let sample = &samples()[nth];
        let mut random = Random::seeded(seed);
        let at = draw(sample, &unused[nth], &mut random);
        let mut image = sample.image.clone();
        let how = spoil(sample, &mut image, at, &sample.places(), &mut random);
        let bad = if how == "unreadable" { BTreeSet::from([at.0]) } else { BTreeSet::new() };
        let what = format!("seed {seed}: block {at} {how}");
        let backend = Arc::new(Sectors::new(device(&image), bad));
        let volume =
            options().open_backend(backend.clone()).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(ledger::of(&volume) == sample.ledger, "{what}: it is another volume");
        let report = scrub(&volume);
        assert!(report.is_good() && report.healed == report.damaged, "{what}: {report:#?}");
        healed += report.healed;
        let again = scrub(&volume);
        assert_eq!((again.damaged, again.lost.len()), (0, 0), "{what}: {again:#?}");
        volume.close().unwrap();
        let clean = check_backend(backend.clone(), &Options::default()).unwrap();
        assert!(clean.issues.is_empty(), "{what}: {:#?}", clean.issues);
    }
    assert!(healed > 0);
}

/// The blocks that the newest durable superblock leads to, the superblocks and the journal, by kind.
fn in_use(image: &Image) -> [Vec<BlockNo>; 4] {
    let superblock = &superblocks(image)[0].1;
    let (leaves, inner) = nodes(image, superblock);
    let copies = |nodes: Vec<NodeRef>| nodes.iter().flat_map(|node| node.place().copies()).collect();
    let slots = SLOT_BLOCKS.into_iter().chain(far_slots(BLOCKS)).collect();
    let journal = (superblock.journal_start.0..superblock.journal_end().0).map(BlockNo).collect();
    [copies(leaves.into_iter().map(|leaf| leaf.0).collect()), copies(inner), slots, journal]
}

/// Two threads change files while a block goes bad, and while the scrub runs.
#[test]
fn a_block_that_goes_bad_under_load_costs_nothing() {
    let first = number("QUIRE_DAMAGE_SEED", 0);
    for seed in first..first + number("QUIRE_ONE_BLOCK_LOADS", 12) {
        let sample = &samples()[(seed % 3) as usize];
        let mut random = Random::seeded(seed);
        let inner = device(&sample.image);
        let backend = Arc::new(Sectors::new(inner.clone(), BTreeSet::new()));
        let options = VolumeOptions::new().cache_bytes(32 << 20).node_cache_bytes(64 << 10);
        let volume = options.open_backend(backend.clone()).unwrap();
        let stop = AtomicBool::new(false);
        let written: Vec<BTreeMap<String, String>> = std::thread::scope(|scope| {
            let (volume, stop) = (&volume, &stop);
            let load = |thread: u64| {
                let mut files = BTreeMap::new();
                for round in 0.. {
                    if (stop.load(Ordering::Relaxed) && round > 3) || round > 2000 {
                        return files;
                    }
                    for number in 0..20 {
                        let path = format!("load-{thread}-{}", (number * 7 + round) % 40);
                        let text = format!("{thread} {round} {number} ").repeat(number as usize * 9 + 1);
                        volume.write(&path, &text).unwrap();
                        files.insert(path, text);
                    }
                    let gone = format!("load-{thread}-{}", round % 40);
                    if files.remove(&gone).is_some() {
                        volume.remove_file(&gone).unwrap();
                    }
                    volume.sync().unwrap();
                    if round % 3 == thread {
                        volume.checkpoint().unwrap();
                    }
                }
                unreachable!("rounds have no end")
            };
            let threads: Vec<_> = (0..2).map(|thread| scope.spawn(move || load(thread))).collect();
            std::thread::sleep(std::time::Duration::from_millis(random.below(15)));
            let now = inner.visible();
            let kinds = in_use(&now);
            let kind = &kinds[random.below(kinds.len() as u64) as usize];
            let at = kind[random.below(kind.len() as u64) as usize];
            let mut spoiled = now.clone();
            let places: Vec<Place> = kinds.iter().flatten().map(|at| Place::single(*at)).collect();
            let how = spoil(sample, &mut spoiled, at, &places, &mut random);
            if how == "unreadable" {
                backend.go_bad(at.0);
            } else {
                let mut block = quire_device::AlignedBuf::zeroed(BLOCK_SIZE);
                block.copy_from_slice(spoiled.get(at).map_or(&[0; BLOCK_SIZE][..], |block| &block[..]));
                inner.write(IoClass::Metadata, at, &block).unwrap();
            }
            let what = format!("seed {seed}: block {at} {how}");
            let report = scrub(volume);
            assert!(report.is_good(), "{what}: {report:#?}");
            stop.store(true, Ordering::Relaxed);
            let files = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            let again = scrub(volume);
            assert_eq!((again.lost.len(), again.damaged), (0, 0), "{what}: {again:#?}");
            files
        });
        let mut after = ledger::of(&volume);
        for (path, text) in written.iter().flatten() {
            let found = after.remove(&format!("/{path}"));
            assert!(found.is_some_and(|found| found.contents == text.as_bytes()), "seed {seed}: {path}");
        }
        assert!(after.len() == sample.ledger.len(), "seed {seed}: names");
        for (path, known) in &sample.ledger {
            assert!(after.get(path).is_some_and(|found| found.same(known)), "seed {seed}: {path}");
        }
        volume.close().unwrap();
        let clean = check_backend(backend.clone(), &Options::default()).unwrap();
        assert!(clean.issues.is_empty(), "seed {seed}: {:#?}", clean.issues);
    }
}
