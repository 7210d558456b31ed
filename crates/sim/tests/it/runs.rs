//! The simulator's own run: some thousand crash images of every style and number of threads, without a
//! violation, and with enough of each thing that makes a crash hard.

use sim::campaign::{self, Campaign, command};
use sim::generate::Style;
use sim::levels::{self, Settings};
use std::time::Instant;

/// Images that the run must examine.
const IMAGES_MIN: u64 = 2000;

/// Images of each hard kind.
const EACH_MIN: u64 = 50;

fn of(style: Style, threads: usize, seed: u64, operations: usize) -> Settings {
    Settings { seed, operations, threads, style: Some(style), ..Settings::default() }
}

/// Every style with one to four threads, and more of what is rare.
fn list() -> Vec<Settings> {
    let mut list = Vec::new();
    for (number, style) in Style::ALL.into_iter().enumerate() {
        for threads in 1..=4 {
            let seed = 10 * number as u64 + threads as u64;
            list.push(of(style, threads, seed, 80));
            list.push(of(style, threads, seed + 1000, 60));
        }
    }
    list.extend((100..112).map(|seed| of(Style::Forces, 4, seed, 80)));
    list.extend((200..204).map(|seed| of(Style::Wrap, 1 + (seed % 2) as usize, seed, 160)));
    list.extend((500..508).map(|seed| of(Style::Snapshots, 1 + (seed % 4) as usize, seed, 80)));
    // A group that found no room for its record waited for less than it needed, got that, and tried for ever.
    list.extend(
        [3033, 9000].map(|seed| Settings { faults: Some(false), ..of(Style::Snapshots, 3, seed, 80) }),
    );
    // Allocations made the metadata pool larger, for large transactions, until files had no space.
    list.push(Settings { seed: 20_749, operations: 60, threads: 2, ..Settings::default() });
    list.extend((300..304).map(|seed| of(Style::Full, 2 + (seed % 2) as usize, seed, 100)));
    for (number, style) in Style::ALL.into_iter().enumerate() {
        let (threads, seed) = (1 + number % 4, 400 + number as u64);
        list.push(Settings { faults: Some(true), ..of(style, threads, seed, 80) });
    }
    for (style, seed) in [(Style::Atomic, 420), (Style::Snapshots, 424)] {
        let more = (seed..seed + 4).map(|seed| of(style, 1 + (seed % 4) as usize, seed, 80));
        list.extend(more.map(|settings| Settings { faults: Some(true), ..settings }));
    }
    // A zeroing made the metadata pool larger than the files of a small volume could bear.
    list.push(of(Style::Atomic, 2, 70_065, 60));
    // Directories read what is handed down to them before a change of it, and came behind the change.
    list.push(Settings { seed: 504_307, operations: 60, threads: 4, ..Settings::default() });
    // A create beside a snapshot took a new range of inode numbers. The snapshot counted all of it as taken;
    // a replay after a crash counted the one number that it found, and fsck called the snapshot damaged.
    list.push(Settings { seed: 3_900_270, operations: 60, threads: 3, ..Settings::default() });
    list
}

fn assert_none_found(campaign: &Campaign) {
    if let Some((settings, violation)) = &campaign.found {
        panic!("{violation}\nrepeat: {}", command(settings, None));
    }
}

#[test]
fn thousands_of_crashes_without_a_violation() {
    let started = Instant::now();
    let list = list();
    let campaign = campaign::run(list.into_iter(), 2, |_, _| true);
    println!("{}{:.0} s", campaign.coverage, started.elapsed().as_secs_f64());
    assert_none_found(&campaign);
    let reached = &campaign.coverage;
    assert!(reached.images >= IMAGES_MIN, "{} images", reached.images);
    assert!(reached.undecided <= 2, "{} runs were not judged to their end", reached.undecided);
    assert!(
        reached.undecided_units * 20 <= reached.images,
        "{} units were not judged",
        reached.undecided_units
    );
    for (what, count) in [
        ("journal wrapped", reached.journal_wrapped),
        ("crash in a checkpoint", reached.in_checkpoint),
        ("crash in recovery", reached.in_recovery),
        ("freed blocks reused", reached.blocks_reused),
        ("several journal writes in flight", reached.journal_writes_in_flight),
        ("full volume", reached.volume_full),
        ("several threads in flight", reached.threads_in_flight),
        ("orphans at the crash", reached.orphans),
        ("damaged copies healed", reached.healed),
        ("fourth level or deeper", reached.very_deep),
        ("snapshots taken", reached.snapshots_taken),
        ("snapshots read", reached.snapshots_read),
        ("snapshots deleted", reached.snapshots_deleted),
        ("crash while a snapshot is taken", reached.in_taking),
        ("snapshots of crash images", reached.snapshots_judged),
        ("half a deletion of a snapshot", reached.in_deletion),
        ("crash in a rollback", reached.in_rollback),
        ("power cuts behind a kill", reached.after_kill),
        ("writes in pieces", reached.writes_in_pieces),
        ("submitted direct writes", reached.writes_submitted),
        ("groups before failed writes", reached.groups_beside_failures),
        ("snapshots before failed writes", reached.snapshots_beside_failures),
    ] {
        assert!(count >= EACH_MIN, "{what}: {count} images only\n{reached}");
    }
    assert!(reached.broken_connections >= 40 && reached.server_losses >= 15, "{reached}");
}

/// A run of one thread went by the shard that its thread of the system had, and that by what had run before:
/// the command that a failure printed showed nothing.
#[test]
fn the_same_settings_are_the_same_run() {
    for (style, threads) in [(Style::Mixed, 1), (Style::Forces, 4), (Style::Full, 2), (Style::Shared, 3)] {
        for faults in [false, true] {
            let settings =
                Settings { levels: 2, images: 4, faults: Some(faults), ..of(style, threads, 7, 60) };
            let anywhere = || {
                std::thread::scope(|scope| {
                    scope.spawn(|| levels::run(&settings, &mut |_| true)).join().expect("runs do not panic")
                })
            };
            let (one, two) = (anywhere(), anywhere());
            assert_eq!(one, two, "{}", command(&settings, None));
            assert_eq!(one.violation, None, "{}", command(&settings, None));
            let other = levels::run(&Settings { seed: 8, ..settings }, &mut |_| true);
            assert_ne!(one.history, other.history, "another seed is another run");
        }
    }
}
