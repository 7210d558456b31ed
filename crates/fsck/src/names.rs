//! The second pass, over all names: every entry must be where its hash says and name an inode that is there;
//! every inode must have as many names as it counts; every directory exactly one, in the directory that is
//! its parent.
//!
//! Reachability follows: an inode is reachable if an entry names it and the directory that holds the entry
//! is. Since a directory has one entry, only inodes without any entry and circles of directories can be out
//! of reach.
//!
//! Neighbours: [`crate::inodes`] made the list of inodes; [`crate::orphans`] looks at those without links.

use crate::fix::{Fixes, Rebuild};
use crate::inodes::{Contents, InodeInfo};
use crate::issue::IssueKind;
use crate::progress::Meter;
use crate::report::{Findings, Place};
use crate::restore;
use crate::view::View;
use quire_base::{InodeNo, Result};
use quire_format::dirent::{self, Entry};
use quire_format::inode::FileType;
use quire_format::key::Key;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

const ROOT: u64 = InodeNo::ROOT.0;
/// Checks all names. Errors: the tree cannot be read.
pub(crate) fn check(
    view: &View<'_>,
    contents: &mut Contents,
    findings: &mut Findings,
    meter: &mut Meter<'_>,
) -> Result<()> {
    for at in 0..contents.inodes.len() {
        meter.advance(1);
        let info = contents.inodes[at];
        if info.has_entries && info.kind == FileType::Directory {
            directory(view, info.number, contents, findings)?;
        }
    }
    lost_directories(view, &mut findings.fixes.rebuild)?;
    settle_rebuilds(findings);
    root(contents, findings);
    for at in 0..contents.inodes.len() {
        links(at, contents, findings);
    }
    circles(contents, findings);
    Ok(())
}

fn shown(name: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(name))
}

/// Reads one directory.
fn directory(view: &View<'_>, number: u64, contents: &mut Contents, findings: &mut Findings) -> Result<()> {
    let directory = InodeNo(number);
    // Names with the hash that is being read.
    let mut same_hash: (u64, BTreeSet<Vec<u8>>) = (0, BTreeSet::new());
    view.tree.scan(Key::entry(directory, 0), Key::entry(directory, u64::MAX), &mut |key, value| {
        let decoded = Entry::decode(value);
        let restored = if is_right(view, key, &decoded) { None } else { restore(view, key, value, findings) };
        let decoded = restored.as_deref().map_or(decoded, Entry::decode);
        let entry = match decoded {
            Ok(entry) => entry,
            Err(error) => {
                findings.add(
                    IssueKind::EntryDamaged,
                    Place::inode(number),
                    format!("directory {number}: {error}; repair removes the entry, what it named goes to lost+found"),
                );
                findings.fixes.drop_keys.push(key);
                return ControlFlow::Continue(());
            }
        };
        let (hash, _) = dirent::split_cookie(key.offset);
        if !is_right(view, key, &Ok(entry)) {
            findings.add(
                IssueKind::EntryMisplaced,
                Place::inode(number),
                format!("directory {number}: the name {} is not where its hash says: repair moves it", shown(entry.name)),
            );
            findings.fixes.rehash.push((number, key.offset));
        }
        if same_hash.0 != hash {
            same_hash = (hash, BTreeSet::new());
        }
        if same_hash.1.contains(entry.name) {
            findings.add(
                IssueKind::EntryDuplicate,
                Place::inode(number),
                format!("directory {number} has the name {} twice: repair removes the second", shown(entry.name)),
            );
            findings.fixes.drop_keys.push(key);
            return ControlFlow::Continue(());
        }
        same_hash.1.insert(entry.name.to_vec());
        follow(number, key, &entry, contents, findings);
        ControlFlow::Continue(())
    })
}

/// Whether an entry can be read and is where its name's hash says.
fn is_right(view: &View<'_>, key: Key, entry: &Result<Entry<'_>>) -> bool {
    let (hash, _) = dirent::split_cookie(key.offset);
    let hash_of = |entry: &Entry<'_>| dirent::name_hash(view.superblock.hash_seed, entry.name);
    dirent::check_cookie(key.offset).is_ok() && entry.as_ref().is_ok_and(|entry| hash_of(entry) == hash)
}

/// The entry with the name that its hash knows, where one byte is wrong.
fn restore(view: &View<'_>, key: Key, value: &[u8], findings: &mut Findings) -> Option<Vec<u8>> {
    if !findings.may_try_to_restore() {
        return None;
    }
    let restored = restore::entry(view.superblock.hash_seed, key.offset, value)?;
    let name = Entry::decode(&restored).ok()?.name.to_vec();
    findings.add(
        IssueKind::EntryDamaged,
        Place::inode(key.object),
        format!(
            "directory {}: a name is damaged, its hash is that of {}: repair restores it",
            key.object,
            shown(&name)
        ),
    );
    findings.fixes.rewrite.push((key, restored.clone()));
    Some(restored)
}

/// Notes what an entry names.
fn follow(directory: u64, key: Key, entry: &Entry<'_>, contents: &mut Contents, findings: &mut Findings) {
    let target = entry.inode.0;
    let name = shown(entry.name);
    let Some(at) = contents.find(target) else {
        if tell_rebuild(&mut findings.fixes.rebuild, entry) {
            return;
        }
        findings.add(
            IssueKind::EntryDangling,
            Place::inode(directory),
            format!("directory {directory}: {name} names inode {target}, which does not exist: repair removes the entry"),
        );
        findings.fixes.drop_keys.push(key);
        return;
    };
    let info = &mut contents.inodes[at];
    if info.generation != entry.generation {
        findings.add(
            IssueKind::EntryStale,
            Place::inode(directory),
            format!(
                "directory {directory}: {name} names generation {} of inode {target}, which is of generation {}: \
                 repair removes the entry",
                entry.generation, info.generation
            ),
        );
        findings.fixes.drop_keys.push(key);
        return;
    }
    if info.kind != entry.file_type {
        findings.add(
            IssueKind::EntryTypeWrong,
            Place::inode(directory),
            format!(
                "directory {directory}: {name} says that inode {target} is a {:?}, it is a {:?}: repair corrects the entry",
                entry.file_type, info.kind
            ),
        );
        findings.fixes.retype.push((directory, key.offset, info.kind));
    }
    if info.kind == FileType::Directory {
        return name_directory(at, directory, key, &name, contents, findings);
    }
    info.links = info.links.saturating_add(1);
    if info.links == 1 {
        (info.named_in, info.named_at) = (directory, key.offset);
    }
}

/// A directory whose own record was lost still has its entries. They tell the records that are made anew
/// which generation and type they need, so that the next round finds each name and its inode to agree.
fn lost_directories(view: &View<'_>, rebuild: &mut [Rebuild]) -> Result<()> {
    let is_directory = |rebuild: &&Rebuild| rebuild.kind == Some(FileType::Directory);
    let lost: Vec<u64> = rebuild.iter().filter(is_directory).map(|rebuild| rebuild.inode).collect();
    for directory in lost.into_iter().map(InodeNo) {
        view.tree.scan(Key::entry(directory, 0), Key::entry(directory, u64::MAX), &mut |key, value| {
            let entry = Entry::decode(value);
            if is_right(view, key, &entry)
                && let Ok(entry) = entry
            {
                tell_rebuild(rebuild, &entry);
            }
            ControlFlow::Continue(())
        })?;
    }
    Ok(())
}

/// Tells a record that is made anew what a name of it says; false if there is none.
fn tell_rebuild(rebuild: &mut [Rebuild], entry: &Entry<'_>) -> bool {
    // In the order of their keys, so ascending.
    let Ok(found) = rebuild.binary_search_by_key(&entry.inode.0, |rebuild| rebuild.inode) else {
        return false;
    };
    let rebuild = &mut rebuild[found];
    let makeable = matches!(
        entry.file_type,
        FileType::Regular | FileType::Fifo | FileType::Socket | FileType::Directory
    );
    rebuild.generation.get_or_insert(entry.generation);
    if rebuild.kind.is_none() && makeable {
        rebuild.kind = Some(entry.file_type);
    }
    true
}

/// An entry names a directory. A second name is one too many: that in the directory's parent stays, else the
/// first.
fn name_directory(
    at: usize,
    directory: u64,
    key: Key,
    name: &str,
    contents: &mut Contents,
    findings: &mut Findings,
) {
    let info = &mut contents.inodes[at];
    let (target, first) = (info.number, Key::entry(InodeNo(info.named_in), info.named_at));
    let is_first = target != ROOT && info.links == 0;
    let keep = is_first || (target != ROOT && info.parent == directory && info.named_in != directory);
    if keep {
        (info.links, info.named_in, info.named_at) = (1, directory, key.offset);
        count_subdirectory(contents, directory, 1);
    }
    if is_first {
        return;
    }
    let gone = if keep { first } else { key };
    if keep {
        count_subdirectory(contents, gone.object, -1);
    }
    findings.add(
        IssueKind::DirectoryLinked,
        Place::inode(target),
        format!(
            "directory {target} has another name, {name} in directory {directory}: repair removes the one in directory {}",
            gone.object
        ),
    );
    findings.fixes.drop_keys.push(gone);
}

fn count_subdirectory(contents: &mut Contents, directory: u64, change: i32) {
    if let Some(parent) = contents.find(directory) {
        let count = &mut contents.inodes[parent].subdirectories;
        *count = count.saturating_add_signed(change);
    }
}

/// Records that nothing can be made of are dropped.
fn settle_rebuilds(findings: &mut Findings) {
    let Fixes { rebuild, drop_ranges, .. } = &mut findings.fixes;
    rebuild.retain(|rebuild| {
        let keep = rebuild.kind.is_some() || rebuild.blocks > 0;
        if !keep {
            drop_ranges.push(crate::fix::whole_object(rebuild.inode));
        }
        keep
    });
}

fn root(contents: &Contents, findings: &mut Findings) {
    let root = contents.find(ROOT).map(|at| contents.inodes[at]);
    if findings.fixes.rebuild.iter().any(|rebuild| rebuild.inode == ROOT) {
        // It gets its record back, as a directory.
        let mut rebuild = findings.fixes.rebuild.iter_mut().filter(|rebuild| rebuild.inode == ROOT);
        rebuild.by_ref().for_each(|rebuild| rebuild.kind = Some(FileType::Directory));
        return;
    }
    match root {
        Some(root) if root.kind == FileType::Directory => {}
        Some(root) if findings.fixes.patches.get(&ROOT).is_none_or(|patch| patch.kind.is_none()) => {
            findings.add(
                IssueKind::RootMissing,
                Place::inode(ROOT),
                format!(
                    "the root directory, inode {ROOT}, is a {:?}: repair makes it a directory",
                    root.kind
                ),
            );
            findings.fixes.patch(ROOT).kind = Some(FileType::Directory);
        }
        Some(_) => {}
        None => {
            findings.add(
                IssueKind::RootMissing,
                Place::inode(ROOT),
                format!("there is no root directory, inode {ROOT}: repair makes one, what was in it goes to lost+found"),
            );
            findings.fixes.make_root = true;
        }
    }
}

/// Compares an inode's own counts with what names it.
fn links(at: usize, contents: &mut Contents, findings: &mut Findings) {
    let info = contents.inodes[at];
    let number = info.number;
    if info.kind == FileType::Directory {
        directory_links(info, findings);
        return;
    }
    if info.links == 0 && info.nlink > 0 && !info.tracked {
        unreachable(&info, findings);
    } else if info.links != info.nlink {
        link_count(number, info.nlink, info.links, findings);
    }
}

fn link_count(number: u64, says: u32, is: u32, findings: &mut Findings) {
    findings.add(
        IssueKind::LinkCountWrong,
        Place::inode(number),
        format!("inode {number} counts {says} links, it has {is}"),
    );
    findings.fixes.patch(number).nlink = Some(is);
}

fn unreachable(info: &InodeInfo, findings: &mut Findings) {
    let number = info.number;
    findings.add(
        IssueKind::InodeUnreachable,
        Place::inode(number),
        format!("inode {number} ({:?}) has no name: repair names it #{number} in lost+found", info.kind),
    );
    findings.fixes.lost.push(number);
}

fn directory_links(info: InodeInfo, findings: &mut Findings) {
    let number = info.number;
    let expected = info.subdirectories.saturating_add(2);
    if number == ROOT {
        if info.nlink != expected {
            link_count(number, info.nlink, expected, findings);
        }
        if info.parent != ROOT {
            parent(number, info.parent, ROOT, findings);
        }
        return;
    }
    if info.links == 0 && (info.nlink == 0 || (info.tracked && !info.has_entries)) {
        // Removed, and still in use when the volume was last written.
        if info.nlink != 0 {
            link_count(number, info.nlink, 0, findings);
        }
        if info.has_entries {
            findings.add(
                IssueKind::RemovedDirectoryNotEmpty,
                Place::inode(number),
                format!("directory {number} is removed but has entries: repair names it in lost+found"),
            );
            findings.fixes.patch(number).nlink = Some(expected);
            findings.fixes.lost.push(number);
        }
        return;
    }
    if info.nlink != expected {
        link_count(number, info.nlink, expected, findings);
    }
    if info.links == 0 {
        unreachable(&info, findings);
    } else if info.parent != info.named_in {
        parent(number, info.parent, info.named_in, findings);
    }
}

fn parent(number: u64, says: u64, is: u64, findings: &mut Findings) {
    findings.add(
        IssueKind::ParentWrong,
        Place::inode(number),
        format!("directory {number} says that its parent is {says}, it is in directory {is}"),
    );
    findings.fixes.patch(number).parent = Some(is);
}

const UNKNOWN: u8 = 0;
const ON_PATH: u8 = 1;
const DONE: u8 = 2;

/// Follows every directory to one that is known to end, and breaks circles at their lowest number.
fn circles(contents: &mut Contents, findings: &mut Findings) {
    let mut path: Vec<usize> = Vec::new();
    for start in 0..contents.inodes.len() {
        let mut at = Some(start);
        path.clear();
        while let Some(current) = at {
            let info = &mut contents.inodes[current];
            if info.kind != FileType::Directory || info.visited == DONE {
                break;
            }
            if info.visited == ON_PATH {
                let first = path.iter().position(|on_path| *on_path == current).unwrap_or(0);
                report_circle(contents, &path[first..], findings);
                break;
            }
            info.visited = ON_PATH;
            path.push(current);
            at = if info.number == ROOT || info.links == 0 {
                None
            } else {
                contents.find(contents.inodes[current].named_in)
            };
        }
        for &current in &path {
            contents.inodes[current].visited = DONE;
        }
        debug_assert!(path.is_empty() || contents.inodes[path[0]].visited != UNKNOWN);
    }
}

fn report_circle(contents: &Contents, circle: &[usize], findings: &mut Findings) {
    let Some(&lowest) = circle.iter().min() else { return };
    let info = &contents.inodes[lowest];
    findings.add(
        IssueKind::DirectoryCycle,
        Place::inode(info.number),
        format!(
            "directory {} is inside of itself ({} directories in a circle): repair moves it to lost+found",
            info.number,
            circle.len()
        ),
    );
    findings.fixes.drop_keys.push(Key::entry(InodeNo(info.named_in), info.named_at));
}
