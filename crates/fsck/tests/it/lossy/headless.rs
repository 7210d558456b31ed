//! A salvage of a volume of which no superblock is left.

use super::*;

/// All four copies of the superblocks are overwritten. The tree is found from its nodes alone: every file of
/// a volume that was closed is copied, and the report says what cannot be known.
#[test]
fn without_any_superblock_a_salvage_finds_the_files() {
    for sample in [&samples()[0], &samples()[2]] {
        let mut image = sample.image.clone();
        SLOT_BLOCKS.into_iter().chain(far_slots(BLOCKS)).for_each(|at| image.set(at, None));
        let inner = Arc::new(SimulatedBackend::from_image(image));
        let directory = tempfile::tempdir().unwrap();
        let salvaged = quire_fsck::salvage_backend(inner.clone(), directory.path(), None).unwrap();
        assert_eq!(inner.event_count(), 0, "a salvage writes nothing");
        assert!(salvaged.losses[0].what.contains("no superblock"), "{:#?}", salvaged.losses);
        let failed: BTreeSet<&str> = salvaged.problems.iter().map(|problem| &*problem.path).collect();
        for (path, known) in &sample.ledger {
            let copy = directory.path().join(&path[1..]);
            let there = copy.symlink_metadata();
            assert!(there.is_ok() || failed.contains(path.as_str()), "{path} is not copied");
            if there.is_ok_and(|there| there.is_file()) {
                assert!(std::fs::read(&copy).unwrap() == known.contents, "{path}");
            }
        }
    }
    // Where there is nothing, that is said.
    let nothing = Arc::new(SimulatedBackend::new(BLOCKS));
    let directory = tempfile::tempdir().unwrap();
    let error = quire_fsck::salvage_backend(nothing, directory.path(), None).unwrap_err();
    assert_eq!(error.kind(), quire_base::ErrorKind::NotAVolume, "{error}");
}
