//! Inodes without links: each must be in exactly one orphan slot or under one orphan key, and nothing else
//! may be. And logged operations, which must fit the inode that they work on.
//!
//! Neighbours: [`crate::names`] has counted links before.

use crate::inodes::Contents;
use crate::issue::IssueKind;
use crate::report::{Findings, Place};
use crate::view::View;
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SHIFT, InodeNo};
use quire_format::extent::FILE_BLOCKS_MAX;
use quire_format::inode::{FileType, InodeRecord};
use quire_format::key::Key;
use quire_format::logged::{LoggedKind, LoggedOp};

/// How an orphan is tracked.
#[derive(Clone, Copy)]
enum Tracker {
    Slot(u32),
    Key,
}

/// Every slot and key in use.
fn trackers(view: &View<'_>, contents: &Contents) -> Vec<(u64, Tracker)> {
    let slots = view.orphans.iter().map(|&(slot, inode)| (inode, Tracker::Slot(slot)));
    let keys = contents.orphan_keys.iter().map(|&inode| (inode, Tracker::Key));
    slots.chain(keys).collect()
}

/// Notes which inodes are tracked as orphans. Comes before links are judged.
pub(crate) fn mark(view: &View<'_>, contents: &mut Contents) {
    for (inode, _) in trackers(view, contents) {
        if let Some(at) = contents.find(inode) {
            contents.inodes[at].tracked = true;
        }
    }
}

/// Checks slots, keys and logged operations. Comes after links are counted.
pub(crate) fn check(view: &View<'_>, contents: &mut Contents, findings: &mut Findings) {
    let mut known = std::collections::BTreeSet::new();
    for (inode, tracker) in trackers(view, contents) {
        let again = !known.insert(inode);
        tracked(inode, tracker, again, contents, findings);
    }
    for info in &contents.inodes {
        if info.nlink > 0 {
            continue;
        }
        findings.summary.orphans += 1;
        // Wrongly without links: the count is corrected, and then it is no orphan.
        let named = info.links > 0 || (info.kind == FileType::Directory && info.has_entries);
        if !named && !info.tracked && info.number != InodeNo::ROOT.0 {
            let number = info.number;
            findings.add(
                IssueKind::OrphanUntracked,
                Place::inode(number),
                format!("inode {number} has neither name nor orphan slot: repair gives it a slot, the next mount frees it"),
            );
            findings.fixes.track.push(number);
        }
    }
    let logged = std::mem::take(&mut contents.logged);
    let mut busy = std::collections::BTreeSet::new();
    for (id, operation) in &logged {
        let wrong = logged_wrong(view, operation, contents).or_else(|| {
            busy.contains(&operation.inode).then(|| "another one is under way on its inode".to_string())
        });
        busy.insert(operation.inode);
        if let Some(wrong) = wrong {
            findings.add(
                IssueKind::LoggedOperationInvalid,
                Place::inode(operation.inode.0),
                format!(
                    "logged operation {id} ({:?} of inode {}): {wrong}; repair drops it",
                    operation.kind, operation.inode
                ),
            );
            findings.fixes.drop_keys.push(Key::logged(*id));
        }
    }
    contents.logged = logged;
}

fn tracked(inode: u64, tracker: Tracker, again: bool, contents: &Contents, findings: &mut Findings) {
    let what = match tracker {
        Tracker::Slot(slot) => format!("orphan slot {slot}"),
        Tracker::Key => "an orphan key".into(),
    };
    let rebuild = &mut findings.fixes.rebuild;
    let wrong = match contents.find(inode).map(|at| &contents.inodes[at]) {
        None => match rebuild.binary_search_by_key(&inode, |rebuild| rebuild.inode) {
            Ok(found) => {
                rebuild[found].orphan = rebuild[found].generation.is_none();
                return;
            }
            Err(_) => Some((IssueKind::OrphanDangling, "does not exist")),
        },
        Some(info) => {
            let named = info.links > 0 || (info.has_entries && info.kind == FileType::Directory);
            if named || inode == InodeNo::ROOT.0 {
                Some((IssueKind::OrphanLinked, "is not unlinked"))
            } else if again {
                Some((IssueKind::OrphanDuplicate, "is tracked already"))
            } else {
                None
            }
        }
    };
    let wrong = wrong
        .map(|(kind, why)| (kind, format!("{what} names inode {inode}, which {why}: repair releases it")));
    let Some((kind, message)) = wrong else { return };
    findings.add(kind, Place::inode(inode), message);
    match tracker {
        Tracker::Slot(slot) => findings.fixes.clear_slots.push(slot),
        Tracker::Key => findings.fixes.drop_keys.push(Key::orphan(InodeNo(inode))),
    }
}

/// Why an operation cannot be one that a crash cut off.
fn logged_wrong(view: &View<'_>, operation: &LoggedOp, contents: &Contents) -> Option<String> {
    let Some(at) = contents.find(operation.inode.0) else { return Some("the inode does not exist".into()) };
    let info = &contents.inodes[at];
    if info.generation != operation.generation {
        return Some(format!(
            "it is for generation {}, the inode is of {}",
            operation.generation, info.generation
        ));
    }
    if info.kind != FileType::Regular {
        return Some(format!("the inode is a {:?}", info.kind));
    }
    let least = if operation.kind == LoggedKind::Insert { operation.start } else { operation.end };
    if operation.cursor < least {
        return Some(format!(
            "its cursor {} is outside of {} to {}",
            operation.cursor, operation.start, operation.end
        ));
    }
    let moves = matches!(operation.kind, LoggedKind::Collapse | LoggedKind::Insert);
    if moves && operation.start == operation.end {
        return Some("it moves nothing".into());
    }
    if operation.kind == LoggedKind::Free && info.nlink > 0 {
        return Some("the inode has links".into());
    }
    let record = view.tree.get(Key::inode(operation.inode)).ok().flatten();
    let Some(Ok(record)) = record.map(|value| InodeRecord::decode(&value)) else {
        return Some("the inode cannot be read".into());
    };
    let truncates = operation.kind == LoggedKind::Truncate;
    if truncates && (record.size != operation.size || operation.start != blocks_for(operation.size)) {
        return Some(format!("it cuts the file to {} bytes, its size is {}", operation.size, record.size));
    }
    if truncates && (operation.end, operation.cursor) != (FILE_BLOCKS_MAX, FILE_BLOCKS_MAX) {
        return Some(format!("it frees up to file block {} only", operation.end));
    }
    let bytes = (operation.end - operation.start) << BLOCK_SHIFT;
    let becomes = match operation.kind {
        LoggedKind::Collapse => record.size.checked_sub(bytes),
        LoggedKind::Insert => record.size.checked_add(bytes),
        LoggedKind::Zero => Some(record.size.max(operation.size)),
        LoggedKind::Punch => Some(record.size),
        LoggedKind::Truncate | LoggedKind::Free => Some(operation.size),
    };
    if becomes != Some(operation.size) {
        return Some(format!(
            "it makes the file {} bytes long, of {} with {} to {} in blocks",
            operation.size, record.size, operation.start, operation.end
        ));
    }
    if operation.kind == LoggedKind::Collapse && operation.end > blocks_for(record.size.max(operation.size)) {
        return Some(format!("it collapses up to file block {}, behind the end of the file", operation.end));
    }
    None
}
