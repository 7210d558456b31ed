//! Every target over its kept corpus and over seeded mutations of it.

use quire_fuzz::{TARGETS, replay};

const SEED: u64 = 1;

#[test]
fn corpus_and_mutations() {
    // One after the other: the memory limit is the process's.
    for target in TARGETS {
        let begun = std::time::Instant::now();
        let done =
            replay::replay(target, target.mutations, SEED).unwrap_or_else(|finding| panic!("{finding}"));
        println!(
            "{}: {} kept, {} mutations, slowest {} ms, {:.1} s",
            target.name,
            done.kept,
            done.mutations,
            done.slowest.as_millis(),
            begun.elapsed().as_secs_f64()
        );
    }
}
