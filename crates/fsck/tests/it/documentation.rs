//! `docs/fsck.md` has every code, in the order of the source, with its severity and what a repair does; and
//! no others.

use quire_fsck::IssueKind;

const PAGE: &str = include_str!("../../../../docs/fsck.md");

#[test]
fn every_code_is_documented() {
    let rows: Vec<Vec<&str>> = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|line| {
            line.trim_end_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`')).collect()
        })
        .collect();
    let documented: Vec<(&str, &str)> = rows.iter().map(|row| (row[0], row[1])).collect();
    let severity = |kind: &IssueKind| format!("{:?}", kind.severity()).to_lowercase();
    let severities: Vec<String> = IssueKind::ALL.iter().map(severity).collect();
    let kinds: Vec<(&str, &str)> =
        IssueKind::ALL.iter().map(|kind| kind.as_str()).zip(severities.iter().map(String::as_str)).collect();
    assert_eq!(documented, kinds);
    for row in &rows {
        assert!(row.len() == 4 && row.iter().all(|cell| !cell.is_empty()), "{row:?}");
    }
}
