//! Healing: metadata of which one copy is bad is read from the other one, and written anew while the volume
//! is in use; and the scrub, which finds it before it is needed.

use crate::common::editor::Editor;
use crate::common::*;
use crate::repair::{walk, walk_volume};
use quire::inodes::IoFlags;
use quire::{FormatOptions, ScrubOptions, ScrubReport, ScrubState, Volume, VolumeOptions};
use quire_base::random::Random;
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, BlockNo};
use quire_device::IoClass;
use quire_device::simulated::{CrashPolicy, Fault, FaultOp, Image, SimulatedBackend};
use quire_format::place::Place;
use quire_format::superblock::{SLOT_BLOCKS, far_slots};
use std::ops::ControlFlow;

fn populated() -> Image {
    let backend = Arc::new(SimulatedBackend::new(BLOCKS));
    FormatOptions::new().seed(7).metadata_copies(2).format_backend(backend.clone()).unwrap();
    let volume = options().open_backend(backend.clone()).unwrap();
    drop(populate(&volume));
    volume.close().unwrap();
    backend.visible()
}

/// The manifest's first page, the orphan blocks and the nodes of the newest checkpoint, in this order.
fn places(image: &Image) -> Vec<Place> {
    let editor = Editor::new(image);
    let (newest, (_, page)) = (editor.newest(), editor.manifest(editor.newest()));
    let mut places = vec![editor.superblock(newest).manifest.place()];
    places.extend(page.orphans.iter().map(|orphan| orphan.place()));
    places.extend(nodes(image));
    places
}

fn nodes(image: &Image) -> Vec<Place> {
    Editor::new(image).nodes().iter().map(|node| Place { block: node.block, twin: node.twin }).collect()
}

fn metric(volume: &Volume, name: &str) -> u64 {
    let metrics = volume.metrics();
    let found = metrics.iter().find(|metric| metric.name == name);
    found.unwrap_or_else(|| panic!("there is no metric {name}")).value
}

fn scrub(volume: &Volume, options: &ScrubOptions) -> ScrubReport {
    volume.scrub(options, &mut |_| ControlFlow::Continue(())).unwrap()
}

type Damage = fn(&mut [u8; BLOCK_SIZE]);

/// A flipped bit, zeros, and bytes that mean something elsewhere.
const DAMAGES: [Damage; 3] =
    [|block| block[100] ^= 1, |block| block.fill(0), |block| block.copy_within(64..2048, 2048)];

/// Everything is read while the first copy of everything is bad: what a read found bad is written anew.
#[test]
fn what_is_read_from_its_second_copy_is_written_anew() {
    let image = populated();
    let contents = walk(&image);
    for damage in DAMAGES {
        let mut damaged = image.clone();
        places(&image).iter().for_each(|place| damaged.edit(place.block, damage));
        let backend = device(&damaged);
        let volume = options().open_backend(backend.clone()).unwrap();
        assert_eq!(walk_volume(&volume), contents);
        let found = metric(&volume, "tree_damaged_copies_total");
        assert!(found > 1);
        volume.background_step().unwrap();
        assert_eq!(metric(&volume, "tree_healed_nodes_total"), found);
        assert_eq!(walk_volume(&volume), contents);
        volume.close().unwrap();
        // What nothing has read is as it was.
        let left = check(&backend.visible()).unwrap().issues.len() as u64;
        assert!(left + found <= nodes(&image).len() as u64, "{left} are bad, {found} were healed");
    }
}

/// Of everything one copy is bad, the first or the second: after a scrub both are good, wherever they lie
/// then. Nothing is written to a volume that is open for reading only.
#[test]
fn a_scrub_leaves_two_good_copies() {
    let image = populated();
    let contents = walk(&image);
    let mut random = Random::seeded(3);
    for (round, damage) in DAMAGES.into_iter().cycle().take(9).enumerate() {
        let mut damaged = image.clone();
        for place in places(&image) {
            let second = match round {
                0..3 => false,
                3..6 => true,
                _ => random.one_in(2),
            };
            damaged.edit(if second { place.twin } else { place.block }, damage);
        }
        let far = far_slots(BLOCKS);
        let (near, far) = if round % 2 == 0 { (SLOT_BLOCKS[1], far[0]) } else { (SLOT_BLOCKS[0], far[1]) };
        [near, far].into_iter().for_each(|at| damaged.edit(at, damage));

        let backend = device(&damaged);
        let read_only = options().read_only(true).open_backend(backend.clone()).unwrap();
        let report = scrub(&read_only, &ScrubOptions::new());
        assert!(report.damaged > 0 && report.healed == 0 && report.lost.is_empty(), "{report:#?}");
        assert_eq!(walk_volume(&read_only), contents);
        read_only.background_step().unwrap();
        read_only.close().unwrap();
        let after = backend.visible();
        assert!((0..BLOCKS).all(|at| after.get(BlockNo(at)) == damaged.get(BlockNo(at))));

        let volume = options().open_backend(backend.clone()).unwrap();
        let report = scrub(&volume, &ScrubOptions::new().data(true));
        assert!(report.lost.is_empty() && report.unreadable.is_empty(), "{report:#?}");
        assert!(report.healed > 0 && report.files > 100 && report.data_bytes > 800_000, "{report:#?}");
        let again = scrub(&volume, &ScrubOptions::new());
        assert_eq!((again.damaged, again.lost.len()), (0, 0), "{again:#?}");
        assert_eq!(walk_volume(&volume), contents);
        volume.close().unwrap();
        assert_clean(&backend.visible(), "scrubbed");
    }
}

/// The power goes at every moment of a scrub that heals: all is there, in one copy at least.
#[test]
fn a_crash_while_healing_loses_nothing() {
    let mut image = populated();
    let contents = walk(&image);
    let mut random = Random::seeded(8);
    for place in places(&image) {
        image.edit(if random.one_in(2) { place.block } else { place.twin }, |block| block[9] ^= 0x80);
    }
    let backend = Arc::new(SimulatedBackend::from_image(image));
    let volume = options().open_backend(backend.clone()).unwrap();
    assert!(scrub(&volume, &ScrubOptions::new()).healed > 0);
    let end = backend.event_count();
    for event in 0..=end {
        for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Power { seed: event as u64 }]
        {
            let crashed = backend.crash_at(event, policy).unwrap();
            assert_eq!(walk(&crashed), contents, "after event {event} of {end}, {policy:?}");
        }
    }
}

/// Both copies of every node go bad while all are in memory, and of the superblocks, the manifest and the
/// journal with them: memory has it all, and the volume is whole again. Without memory it is told what is
/// lost, and nothing is made up.
#[test]
fn what_is_in_memory_is_saved_and_what_is_lost_is_told() {
    let image = populated();
    let contents = walk(&image);
    let backend = device(&image);
    let volume = options().open_backend(backend.clone()).unwrap();
    assert_eq!(walk_volume(&volume), contents);
    // All that is written, but for data.
    let data: Vec<Place> = places(&backend.visible());
    for place in data.iter().flat_map(|place| place.copies()).chain(SLOT_BLOCKS).chain(far_slots(BLOCKS)) {
        backend.rot(place.0..place.0 + 1, 7, place.0);
    }
    let report = scrub(&volume, &ScrubOptions::new());
    assert!(report.healed as usize + report.lost.len() > 3, "{report:#?}");
    let lost = report.lost.len();
    assert_eq!(walk_volume(&volume), contents);
    assert_eq!(scrub(&volume, &ScrubOptions::new()).healed, 0);
    volume.close().unwrap();
    // Leaves that nothing had read were in no memory.
    assert!(lost < 4, "{report:#?}");

    let mut damaged = image.clone();
    let node = *nodes(&image).last().unwrap();
    node.copies().for_each(|at| damaged.edit(at, |block| block[2000] ^= 4));
    let volume = options().open_backend(device(&damaged)).unwrap();
    let report = scrub(&volume, &ScrubOptions::new());
    assert_eq!(report.lost.len(), 1, "{report:#?}");
    assert!(report.lost[0].contains(&node.block.to_string()), "{report:#?}");
}

/// A sector that cannot be read any more is told with the file's path and the place within it.
#[test]
fn unreadable_data_is_told_by_path_and_offset() {
    let backend = device(&populated());
    let volume = options().open_backend(backend.clone()).unwrap();
    let bytes: Vec<u8> = (0..750_000_u32).flat_map(|at| (at * 7).to_le_bytes()).collect();
    volume.create_dir("deep").unwrap();
    volume.write("deep/file", &bytes).unwrap();
    volume.sync().unwrap();
    let before = backend.visible();
    let wanted = &bytes[400 * BLOCK_SIZE..401 * BLOCK_SIZE];
    let at = (0..BLOCKS).find(|at| before.get(BlockNo(*at)).is_some_and(|block| &block[..] == wanted));
    let at = at.expect("the block is on the device");
    backend.inject(Fault::on(FaultOp::Read).class(IoClass::Data).region(at..at + 2).times(u64::MAX));
    let report = scrub(&volume, &ScrubOptions::new().data(true));
    let [found] = &report.unreadable[..] else { panic!("{report:#?}") };
    assert_eq!((found.path.to_str(), found.offset), (Some("/deep/file"), 400 * BLOCK_SIZE as u64));
    assert_eq!(found.bytes, 2 * BLOCK_SIZE as u64);
    assert!(report.lost.is_empty());
}

/// Scrubs beside changes and checkpoints: what checkpoints free meanwhile is no damage.
#[test]
fn a_scrub_beside_changes_finds_nothing() {
    let backend = device(&populated());
    let options = VolumeOptions::new().cache_bytes(32 << 20).node_cache_bytes(64 << 10);
    let volume = options.open_backend(backend.clone()).unwrap();
    let writer = volume.clone();
    let changes = std::thread::spawn(move || {
        for round in 0..6 {
            for number in 0..300 {
                let path = format!("scrubbed-{number}");
                writer.write(&path, format!("{round} {number}").repeat(99)).unwrap();
            }
            writer.checkpoint().unwrap();
            (0..300).step_by(2).for_each(|n| writer.remove_file(format!("scrubbed-{n}")).unwrap());
        }
    });
    let mut scrubs = 0;
    while !changes.is_finished() || scrubs == 0 {
        let report = scrub(&volume, &ScrubOptions::new());
        assert_eq!((report.damaged, report.lost.len()), (0, 0), "{report:#?}");
        scrubs += 1;
    }
    changes.join().unwrap();
    let inodes = volume.inodes();
    let file = inodes.lookup(&inodes.root(), b"scrubbed-1").unwrap();
    let mut start = [0; 3];
    inodes.read_at(&file, &mut start, 0, IoFlags::empty()).unwrap();
    assert_eq!(&start, b"5 1");
    drop(file);
    volume.close().unwrap();
    assert_clean(&backend.visible(), "scrubbed beside changes");
}

/// A volume with so many files that a scrub takes many steps, of everything one copy bad.
fn many_steps() -> (Image, usize) {
    let backend = Arc::new(SimulatedBackend::new(BLOCKS));
    FormatOptions::new().seed(7).metadata_copies(2).format_backend(backend.clone()).unwrap();
    let volume = options().open_backend(backend.clone()).unwrap();
    for directory in 0..10 {
        volume.create_dir(format!("{directory}")).unwrap();
        for number in 0..240 {
            let name = format!("{directory}/a-file-with-a-longer-name-{number}");
            let contents = if number % 24 == 0 { "text".repeat(number * 9) } else { String::new() };
            volume.write(&name, contents).unwrap();
        }
    }
    volume.close().unwrap();
    let mut image = backend.visible();
    let mut random = Random::seeded(11);
    for place in nodes(&image) {
        image.edit(if random.one_in(2) { place.block } else { place.twin }, |block| block[77] ^= 0x20);
    }
    (image, 2400)
}

/// A scrub is cut off at every one of its steps by a crash that loses all that no checkpoint has written. The
/// next opening goes on, and reads all the rest: everything is healed, and all data has been read, but nearly
/// nothing twice.
#[test]
fn a_scrub_that_a_crash_interrupts_goes_on() {
    let (image, files) = many_steps();
    let scrub_all = |backend: &Arc<SimulatedBackend>, options: &ScrubOptions, crash_at: u64| {
        let volume = crate::common::options().open_backend(backend.clone()).unwrap();
        let (mut step, mut crashed) = (0, None);
        let mut watch = |_: &ScrubReport| {
            step += 1;
            if step == crash_at {
                volume.checkpoint().unwrap();
                crashed = Some(backend.crash(CrashPolicy::LoseAll));
            }
            ControlFlow::Continue(())
        };
        let report = volume.scrub(options, &mut watch).unwrap();
        (step, report, crashed, volume)
    };
    let data = ScrubOptions::new().data(true);
    let recorded = || Arc::new(SimulatedBackend::from_image(image.clone()));
    let (steps, whole, _, _volume) = scrub_all(&recorded(), &data, 0);
    assert!(steps > 100 && whole.files as usize == files, "{steps} steps, {whole:#?}");
    for crash_at in (1..12).chain((12..=steps).step_by(steps as usize / 25)) {
        let (_, _, crashed, _volume) = scrub_all(&recorded(), &data, crash_at);
        let backend = device(&crashed.unwrap());
        let volume = options().open_backend(backend.clone()).unwrap();
        let kept = volume.last_scrub().expect("it is remembered");
        assert_eq!(kept.state, ScrubState::Unfinished, "after step {crash_at}");
        assert!(kept.data && kept.report.metadata_bytes <= whole.metadata_bytes, "{kept:#?}");
        let mut rest = 0;
        // It reads data because the interrupted one did.
        let go_on = ScrubOptions::new().resume(true);
        let report = volume
            .scrub(&go_on, &mut |_| {
                rest += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(report.is_good(), "{report:#?}");
        assert_eq!((report.files as usize, report.data_bytes), (files, whole.data_bytes), "step {crash_at}");
        assert!(rest <= steps - crash_at + 2, "after step {crash_at} of {steps} another {rest}");
        assert_eq!(volume.last_scrub().unwrap().state, ScrubState::Finished);
        volume.close().unwrap();
        assert_clean(&backend.visible(), "scrubbed in two parts");
    }
}

/// A scrub that was stopped goes on if it is asked to, and begins anew if not. The volume remembers the last
/// one, whatever became of it.
#[test]
fn a_scrub_that_was_stopped_goes_on_or_begins_anew() {
    let (image, _) = many_steps();
    let backend = device(&image);
    let volume = options().open_backend(backend.clone()).unwrap();
    assert_eq!(volume.last_scrub(), None);
    let mut left = 3;
    let mut stop = |_: &ScrubReport| {
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let stopped = volume.scrub(&ScrubOptions::new().bytes_per_second(1 << 30), &mut stop).unwrap();
    assert!(stopped.healed > 0);
    volume.close().unwrap();

    let volume = options().open_backend(backend.clone()).unwrap();
    let kept = volume.last_scrub().unwrap();
    assert_eq!((kept.state, kept.bytes_per_second), (ScrubState::Stopped, Some(1 << 30)));
    assert_eq!((kept.report.healed, kept.report.metadata_bytes), (stopped.healed, stopped.metadata_bytes));
    let rest = scrub(&volume, &ScrubOptions::new().resume(true));
    assert!(rest.is_good() && rest.healed > stopped.healed, "{rest:#?}");
    // A finished one is not gone on with.
    for resume in [false, true] {
        let anew = scrub(&volume, &ScrubOptions::new().resume(resume));
        assert_eq!((anew.damaged, anew.lost.len()), (0, 0), "{anew:#?}");
    }
    volume.close().unwrap();
    let read_only = options().read_only(true).open_backend(backend.clone()).unwrap();
    assert_eq!(read_only.last_scrub().unwrap().state, ScrubState::Finished);
    assert_clean(&backend.visible(), "scrubbed in two parts");
}
