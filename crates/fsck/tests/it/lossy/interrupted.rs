//! What a repair that is killed leaves says that it is not done.

use super::*;
use quire_fsck::{IssueKind, Severity};

/// The first superblock that a repair wrote named a tree with holes, under which nothing was mended yet. A
/// volume of which the repair was killed then opened, with names that lead nowhere, and nothing marked it.
#[test]
fn a_volume_with_holes_remembers_an_error_until_its_repair_ends() {
    let sample = &samples()[0];
    let mut image = sample.image.clone();
    let leaf = sample.leaves[sample.leaves.len() / 2].0;
    leaf.place().copies().for_each(|at| image.edit(at, |block| block[77] ^= 2));
    let backend = Arc::new(SimulatedBackend::from_image(image));
    let report = check_backend(backend.clone(), &LOSSY).unwrap();
    assert_eq!(report.exit_code(), 1, "{:#?}", report.issues.last());
    let after = read_only(&backend.visible());
    let mut marked = 0;
    for at in 0..=backend.event_count() {
        let image = backend.crash_at(at, CrashPolicy::KeepAll).unwrap();
        let now = check(&image).unwrap();
        let is_marked = now.has(IssueKind::ErrorFlagSet);
        marked += usize::from(is_marked);
        if !is_marked && now.worst() != Some(Severity::Fatal) {
            assert!(now.issues.is_empty(), "event {at}: {:#?}", now.issues);
            assert_eq!(read_only(&image), after, "event {at}");
        }
    }
    assert!(marked > 3, "only {marked} events");
}

/// A dry run that gives nothing up said no more than a check: which errors a repair would mend was dropped.
#[test]
fn a_dry_run_counts_what_a_repair_would_mend() {
    let mut editor = crate::common::editor::Editor::new(&closed());
    let extent = editor.of_kind(quire_format::key::KeyKind::Extent)[0];
    editor.set_value(&extent, &vec![0xff; extent.len]);
    let backend = Arc::new(SimulatedBackend::from_image(editor.image));
    let dry = Options { repair: true, dry_run: true, ..Options::default() };
    let report = check_backend(backend.clone(), &dry).unwrap();
    assert_eq!((backend.event_count(), report.exit_code()), (0, 4));
    assert_eq!(report.would_be_repaired, report.issues.len() as u64);
}
