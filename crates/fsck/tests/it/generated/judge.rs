//! What a damaged volume must and must not do: be refused or found, be mended or named, and lose nothing
//! beside what was damaged.

use crate::common::editor::Editor;
use crate::common::*;
use quire::inodes::IoFlags;
use quire::{FileType, Volume};
use quire_base::ErrorKind;
use quire_base::sync::Arc;
use quire_device::simulated::{Image, SimulatedBackend};
use quire_fsck::{Issue, IssueKind, Options, Report, check_backend};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Bytes of a file that are looked at; files here are shorter, forged sizes are not.
const READ_MAX: u64 = 3 << 20;

/// What users see of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// By inode: type, and a hash of contents, attributes and what `stat` says.
    pub inodes: BTreeMap<u64, (u8, u64)>,
    /// By directory and name: inode.
    pub names: BTreeMap<(u64, Vec<u8>), u64>,
    /// Something could not be read.
    pub errors: usize,
}

/// Opens for writing, as a mount does, and looks at everything that can be reached. An error: it was refused.
pub fn see(image: &Image) -> quire_base::Result<Seen> {
    let volume = options().open_backend(device(image))?;
    let mut seen = Seen::default();
    let mut pending = vec![volume.inodes().root()];
    let mut directories = BTreeSet::from([volume.inodes().root().number().0]);
    while let Some(directory) = pending.pop() {
        let mut names = Vec::new();
        let read = volume.inodes().read_dir(&directory, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                names.push(entry.name.to_vec());
            }
            true
        });
        seen.errors += usize::from(read.is_err());
        for name in names {
            let Ok(inode) = volume.inodes().lookup(&directory, &name) else {
                seen.errors += 1;
                continue;
            };
            let number = inode.number().0;
            seen.names.insert((directory.number().0, name), number);
            if inode.kind() == FileType::Directory && directories.insert(number) {
                pending.push(inode.clone());
            }
            if seen.inodes.contains_key(&number) {
                continue;
            }
            match hash(&volume, &inode) {
                Ok(hash) => drop(seen.inodes.insert(number, (inode.kind() as u8, hash))),
                Err(_) => seen.errors += 1,
            }
        }
    }
    volume.drain_orphans();
    // What a damage lets fail only now must be an error, too.
    seen.errors += usize::from(volume.close().is_err());
    Ok(seen)
}

fn hash(volume: &Volume, inode: &quire::inodes::InodeRef) -> quire_base::Result<u64> {
    let mut hasher = DefaultHasher::new();
    let attributes = volume.inodes().metadata(inode);
    (attributes.permission_bits(), attributes.uid(), attributes.gid(), attributes.rdev(), attributes.size())
        .hash(&mut hasher);
    match inode.kind() {
        FileType::Regular => {
            let mut bytes = vec![0; inode.size().min(READ_MAX) as usize];
            let read = volume.inodes().read_at(inode, &mut bytes, 0, IoFlags::empty())?;
            // A file at a time: the standard hasher is slow with bytes.
            crc32c::crc32c(&bytes[..read]).hash(&mut hasher);
        }
        FileType::Symlink => volume.inodes().read_link(inode)?.hash(&mut hasher),
        _ => {}
    }
    // In the order of their hashes, which a repair may change.
    let mut names = volume.inodes().list_xattrs(inode)?;
    names.sort();
    for name in names {
        volume.inodes().get_xattr(inode, &name)?.hash(&mut hasher);
        name.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// What a damage was done to: only this may change.
#[derive(Clone, Debug, Default)]
pub struct Touched {
    pub inodes: BTreeSet<u64>,
    /// Names that may go: by directory; and all names in `inodes`.
    pub names: BTreeSet<(u64, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The check could not run: it refuses the volume, as a mount does.
    Refused,
    Found,
    NotFound,
}

/// Checks a damaged image. Panics with the reason if anything else than its verdict is wrong.
pub fn judge(original: &Seen, image: &Image, touched: &Touched) -> Verdict {
    let mounted = see(image);
    if let Err(error) = &mounted {
        // Shutdown: an operation that a crash cut off could not be finished; the message has the reason.
        use ErrorKind::{Corrupt, NotAVolume, Shutdown, UnknownFormat};
        let clear = matches!(error.kind(), Corrupt | NotAVolume | Shutdown | UnknownFormat);
        assert!(clear, "refused as {error:?}");
    }
    let first = match check(image) {
        Ok(report) => report,
        Err(error) => {
            assert!(mounted.is_err(), "the check refuses what a mount takes: {error}");
            return Verdict::Refused;
        }
    };
    if first.issues.is_empty() {
        let error = mounted.as_ref().err();
        assert!(error.is_none(), "nothing found, but a mount refuses: {error:?}");
        assert_eq!(mounted.unwrap().errors, 0, "nothing found, but something cannot be read");
        return Verdict::NotFound;
    }
    repaired(original, image, &first, mounted.ok(), touched);
    Verdict::Found
}

fn identity(issue: &Issue) -> (String, Option<u64>, Option<u64>) {
    (issue.code.to_string(), issue.inode, issue.block)
}

/// Repairs, and compares with what was there before.
fn repaired(original: &Seen, image: &Image, first: &Report, mounted: Option<Seen>, touched: &Touched) {
    let backend = Arc::new(SimulatedBackend::from_image(image.clone()));
    let report = check_backend(backend.clone(), &Options { repair: true, ..Options::default() }).unwrap();
    let after = backend.visible();
    let second = check(&after).expect("a repaired volume can be checked");
    // That it could not write is no damage.
    let is_left = |issue: &&Issue| !issue.repaired && issue.code != IssueKind::RepairFailed;
    let left: BTreeSet<_> = report.issues.iter().filter(is_left).map(identity).collect();
    let found: BTreeSet<_> = second.issues.iter().map(identity).collect();
    assert_eq!(found, left, "what a second check finds is what the repair says is left");
    assert!(second.worst() <= first.worst(), "worse than before: {:#?}", second.issues);
    assert!(
        second.issues.len() <= first.issues.len(),
        "more than before: {:#?}\n{:#?}",
        first.issues,
        second.issues
    );
    if backend.event_count() == 0 {
        assert!(!found.is_empty());
        return;
    }
    if found.is_empty() {
        let again = Arc::new(SimulatedBackend::from_image(after.clone()));
        let report = check_backend(again.clone(), &Options { repair: true, ..Options::default() }).unwrap();
        assert!(report.issues.is_empty() && again.event_count() == 0, "a second repair writes again");
    }
    let now = match see(&after) {
        Ok(now) => now,
        Err(error) => {
            assert!(mounted.is_none() && !found.is_empty(), "mounts no more: {error}");
            return;
        }
    };
    if found.is_empty() {
        assert_eq!(now.errors, 0, "something cannot be read after a repair");
    }
    // A leaf that cannot be read was not readable before.
    if now.errors > 0 {
        assert!(mounted.is_some_and(|mounted| mounted.errors >= now.errors));
        return;
    }
    assert_untouched(original, &now, touched);
}

/// Whatever was not damaged is as it was.
pub fn assert_untouched(original: &Seen, now: &Seen, touched: &Touched) {
    for (inode, before) in original.inodes.iter().filter(|(inode, _)| !touched.inodes.contains(inode)) {
        assert_eq!(now.inodes.get(inode), Some(before), "inode {inode} is not what it was");
    }
    for ((directory, name), inode) in &original.names {
        let touched = touched.inodes.contains(directory)
            || touched.inodes.contains(inode)
            || touched.names.contains(&(*directory, name.clone()));
        if !touched {
            let now = now.names.get(&(*directory, name.clone()));
            assert_eq!(now, Some(inode), "{:?} in {directory}", String::from_utf8_lossy(name));
        }
    }
}

/// The volume as users see it before any damage.
pub fn original(editor: &Editor) -> Seen {
    let seen = see(&editor.image).unwrap();
    assert_eq!(seen.errors, 0);
    assert!(seen.inodes.len() > 200);
    seen
}
