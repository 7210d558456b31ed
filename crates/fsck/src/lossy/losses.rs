//! What a repair could not give back, by path where that is known.
//!
//! The list is made from the volume as it is before the rounds of the repair: names still name what is not
//! there any more.
//!
//! Memory: the name and the parent of each inode. Neighbours: [`crate::analysis`] found what does not fit.

use super::remains::overlap;
use crate::inodes::Contents;
use crate::issue::IssueKind;
use crate::report::{Findings, Loss};
use crate::view::View;
use quire::internals::repair::JournalCut;
use quire_base::{InodeNo, Result};
use quire_format::dirent::Entry;
use quire_format::inode::FileType;
use quire_format::key::{Key, KeyKind};
use quire_format::node::Bounds;
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

/// Directories that a path may be deep.
const DEPTH_MAX: usize = 4096;
const ROOT: u64 = InodeNo::ROOT.0;

/// The names of all inodes: directory and name.
struct Names(HashMap<u64, Vec<(u64, Vec<u8>)>>);

impl Names {
    /// Every path of an inode.
    fn paths(&self, inode: u64) -> Vec<String> {
        let in_directory = |(directory, name): &(u64, Vec<u8>)| {
            let name = String::from_utf8_lossy(name);
            format!("{}/{name}", self.path(*directory).trim_end_matches('/'))
        };
        match self.0.get(&inode) {
            Some(names) if inode != ROOT => names.iter().map(in_directory).collect(),
            _ => vec![self.path(inode)],
        }
    }

    /// The first path of an inode.
    fn path(&self, inode: u64) -> String {
        let mut parts: Vec<String> = Vec::new();
        let mut at = inode;
        while at != ROOT {
            match self.0.get(&at).and_then(|names| names.first()) {
                Some((parent, name)) if parts.len() < DEPTH_MAX => {
                    parts.push(String::from_utf8_lossy(name).into_owned());
                    at = *parent;
                }
                _ => {
                    parts.push(format!("lost+found/#{at}"));
                    break;
                }
            }
        }
        parts.iter().rev().fold(String::new(), |path, part| path + "/" + part)
            + if inode == ROOT { "/" } else { "" }
    }
}

/// A snapshot that is given up.
pub(super) fn of_snapshot(name: &str) -> Loss {
    Loss { path: None, inode: None, what: format!("the snapshot {name:?} is given up") }
}

/// What was done behind the damage of a journal.
pub(crate) fn of_cut(cut: &JournalCut) -> Option<Loss> {
    let damage = cut.damage.as_ref()?;
    let what = format!("{damage}: the journal is cut there, and what was done later is lost");
    Some(Loss { path: None, inode: None, what })
}

/// Lists it, by path.
pub(super) fn list(
    view: &View<'_>,
    findings: &Findings,
    contents: &Contents,
    lost: &[Bounds],
    doubtful: &[Bounds],
    cut: &JournalCut,
) -> Result<BTreeSet<Loss>> {
    let mut list = BTreeSet::new();
    list.extend(of_cut(cut));
    list.extend(cut.snapshots.iter().map(|name| of_snapshot(name)));
    let mut names = Names(HashMap::new());
    let rebuild = &findings.fixes.rebuild;
    let mut dangling: Vec<(u64, String, u64)> = Vec::new();
    // Entries that go, though what they name is there, or is not known.
    let mut dropped: BTreeSet<Key> =
        findings.fixes.drop_keys.iter().filter(|key| key.kind == KeyKind::Entry).copied().collect();
    view.tree.scan(Key::MIN, Key::MAX, &mut |key, value| {
        if key.kind == KeyKind::Entry
            && let Ok(entry) = Entry::decode(value)
        {
            let inode = entry.inode.0;
            let known = contents.find(inode).map(|at| &contents.inodes[at]);
            let makes = rebuild.binary_search_by_key(&inode, |rebuild| rebuild.inode).is_ok();
            if known.is_some_and(|known| known.generation == entry.generation) || makes {
                names.0.entry(inode).or_default().push((key.object, entry.name.to_vec()));
            } else {
                dropped.remove(&key);
                dangling.push((key.object, String::from_utf8_lossy(entry.name).into_owned(), inode));
            }
        }
        ControlFlow::Continue(())
    })?;
    for (directory, name, inode) in dangling {
        let parent = names.path(directory);
        let path = format!("{}/{name}", parent.trim_end_matches('/'));
        list.insert(Loss { path: Some(path), inode: Some(inode), what: "it is lost".into() });
    }
    let mut add = |inode: u64, what: &str| {
        for path in names.paths(inode) {
            list.insert(Loss { path: Some(path), inode: Some(inode), what: what.into() });
        }
    };
    dropped.iter().for_each(|key| add(key.object, "a name in it is lost"));
    let is_remade = |(directory, _): &(u64, Vec<u8>)| {
        let found = rebuild.binary_search_by_key(directory, |rebuild| rebuild.inode);
        found.is_ok_and(|at| rebuild[at].kind == Some(FileType::Directory))
    };
    for issue in &findings.issues {
        // A directory whose record is made anew names it again then.
        if issue.code == IssueKind::InodeUnreachable
            && issue
                .inode
                .is_some_and(|inode| names.0.get(&inode).is_some_and(|of| of.iter().any(&is_remade)))
        {
            continue;
        }
        if let (Some(inode), Some(what)) = (issue.inode, describe(issue.code)) {
            add(inode, what);
        }
    }
    for info in contents.inodes.iter() {
        let of_kind = |kind| Bounds {
            low: Some(Key::new(info.number, kind, 0)),
            high: Some(Key::new(info.number, kind, u64::MAX)),
        };
        let all = Bounds {
            low: Some(Key::inode(InodeNo(info.number))),
            high: Some(Key::extent(InodeNo(info.number), u64::MAX)),
        };
        let entries = of_kind(KeyKind::Entry);
        if info.kind == FileType::Directory && lost.iter().any(|range| overlap(*range, entries)) {
            add(info.number, "some of its names may be lost; what they named is in lost+found");
        }
        if doubtful.iter().any(|range| overlap(*range, all)) {
            add(info.number, "it may be an older version: what tells how old it is was lost");
        }
    }
    for &(inode, run) in &cut.later {
        let from = contents.extents.partition_point(|extent| extent.end() <= run.start.0);
        for extent in contents.extents[from..].iter().take_while(|extent| extent.start < run.end().0) {
            if inode.is_none_or(|inode| inode.0 != extent.inode) {
                add(extent.inode, "it may have the data of a file that was written after the journal's cut");
            }
        }
    }
    if findings.summary.issues_omitted > 0 {
        let what =
            format!("{} more issues may be losses, and are not listed", findings.summary.issues_omitted);
        list.insert(Loss { path: None, inode: None, what });
    }
    Ok(list)
}

fn describe(code: IssueKind) -> Option<&'static str> {
    use IssueKind as Kind;
    Some(match code {
        Kind::InodeMissing | Kind::InodeDamaged => {
            "its owner, mode, times and exact size are lost; it belongs to root now"
        }
        Kind::InodeBlocksWrong | Kind::ExtentDamaged | Kind::ExtentOutOfRange | Kind::ExtentOverlap => {
            "parts of its contents are lost, and read as zeros"
        }
        Kind::ExtentShared => "parts of its contents may be another file's, or read as zeros",
        Kind::InodeContentWrong => "contents that do not belong to its type are dropped",
        Kind::XattrDamaged | Kind::InodeXattrBytesWrong => "extended attributes of it are lost",
        Kind::SymlinkDamaged => "its target, or the end of it, is lost",
        Kind::InodeUnreachable => "its name is lost",
        Kind::LinkCountWrong => "a name of it is lost, or something in it",
        Kind::DirectoryCycle => "its place in the tree of directories is lost",
        _ => return None,
    })
}
