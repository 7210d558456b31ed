//! Uses a volume that may be damaged: looks at all of it and of its snapshots, then changes it. Whatever
//! comes of that are results or errors; amounts are bounded, so that only the engine can make it endless.
//!
//! Neighbours: [`crate::image`] and [`crate::journal_records`] make the volumes.

use quire::inodes::{Create, FallocateMode, InodeRef, IoFlags, XattrFlags};
use quire::{ErrorKind, FileType, RenameFlags, Result, Volume};

const INODES_MAX: usize = 600;
const NAMES_MAX: usize = 400;
const SNAPSHOTS_MAX: usize = 4;

/// What a walk met.
#[derive(Default)]
pub struct Walk {
    /// Regular files.
    pub files: Vec<InodeRef>,
    /// Directories, the root first.
    pub folders: Vec<InodeRef>,
    /// Names, with the directory's place in `folders`.
    pub names: Vec<(usize, Vec<u8>)>,
    /// The first error that says that the volume is damaged.
    pub damage: Option<String>,
}

impl Walk {
    /// Takes the value; remembers an error that means damage.
    fn look<T>(&mut self, what: &str, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Stale) && self.damage.is_none() {
                    self.damage = Some(format!("{what}: {error}"));
                }
                None
            }
        }
    }
}

/// Looks at every name, attribute and content, up to some number of inodes; and at snapshots.
pub fn walk(volume: &Volume) -> Walk {
    let mut walk = Walk { folders: vec![volume.inodes().root()], ..Walk::default() };
    let (mut next, mut seen) = (0, 0);
    while next < walk.folders.len() && seen < INODES_MAX {
        let folder = walk.folders[next].clone();
        let mut names = Vec::new();
        let listed = volume.inodes().read_dir(&folder, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                names.push(entry.name.to_vec());
            }
            names.len() < NAMES_MAX
        });
        walk.look("directory", listed);
        walk.look("parent", volume.inodes().lookup(&folder, b".."));
        for name in names {
            seen += 1;
            let Some(inode) = walk.look("name", volume.inodes().lookup(&folder, &name)) else { continue };
            walk.names.push((next, name));
            look_at(volume, &inode, &mut walk);
        }
        next += 1;
    }
    let snapshots = walk.look("snapshots", volume.snapshots()).unwrap_or_default();
    for snapshot in snapshots.iter().filter(|snapshot| !snapshot.deleting).take(SNAPSHOTS_MAX) {
        let opened = walk.look("snapshot", volume.open_snapshot(&snapshot.name));
        let damage = opened.and_then(|opened| self::walk(&opened).damage);
        walk.damage = walk.damage.or_else(|| damage.map(|damage| format!("in a snapshot, {damage}")));
    }
    walk
}

fn look_at(volume: &Volume, inode: &InodeRef, walk: &mut Walk) {
    let _ = volume.inodes().metadata(inode);
    for attribute in walk.look("attributes", volume.inodes().list_xattrs(inode)).unwrap_or_default() {
        walk.look("attribute", volume.inodes().get_xattr(inode, &attribute));
    }
    match inode.kind() {
        // A damaged volume may have circles.
        FileType::Directory if walk.folders.iter().all(|other| other.number() != inode.number()) => {
            walk.folders.push(inode.clone());
        }
        FileType::Symlink => drop(walk.look("link", volume.inodes().read_link(inode))),
        FileType::Regular => {
            let mut buffer = vec![0; 12_000];
            walk.look("contents", volume.inodes().read_at(inode, &mut buffer, 0, IoFlags::empty()));
            let tail = inode.size().saturating_sub(7000);
            walk.look("contents", volume.inodes().read_at(inode, &mut buffer, tail, IoFlags::DIRECT));
            let data = volume.inodes().seek_data(inode, inode.size() / 2);
            walk.look("data", data);
            walk.look("hole", volume.inodes().seek_hole(inode, 0));
            walk.files.push(inode.clone());
        }
        _ => {}
    }
}

/// Changes the volume in every way, `seed` says where. The first error that means damage.
pub fn change(volume: &Volume, found: &Walk, seed: u64) -> Option<String> {
    let mut walk = Walk::default();
    let pick = |salt: u64, count: usize| (seed.rotate_left(salt as u32 * 5) as usize) % count.max(1);
    let none = IoFlags::empty();
    let folder = &found.folders[pick(1, found.folders.len())];
    for number in 0..3u8 {
        let name = [b'n', b'0' + number];
        let made = volume.inodes().create(folder, &name, &Create::file(0o644));
        if let Some(file) = walk.look("create", made) {
            walk.look(
                "write",
                volume.inodes().write_at(&file, &[number; 9000], u64::from(number) * 5000, none),
            );
            walk.look("fsync", volume.inodes().fsync(&file, number == 1));
        }
    }
    if let Some(made) = walk.look("mkdir", volume.inodes().create(folder, b"new", &Create::directory(0o755)))
    {
        walk.look(
            "symlink",
            volume.inodes().symlink(&made, b"link", &[b't'; 1500], quire::inodes::Caller::default()),
        );
        walk.look("tmpfile", volume.inodes().tmpfile(&made, &Create::file(0o600)));
    }
    for salt in 0..3 {
        let Some(file) = found.files.get(pick(2 + salt, found.files.len())) else { break };
        let offset = seed % 40_000;
        walk.look("write", volume.inodes().write_at(file, &[0x5a; 6000], offset, none));
        walk.look("append", volume.inodes().append(file, &[0x5b; 5000], none));
        walk.look("direct", volume.inodes().write_at(file, &[0x5c; 8192], 4096, IoFlags::DIRECT));
        let mode = [
            FallocateMode::PunchHole,
            FallocateMode::Allocate,
            FallocateMode::ZeroRange { keep_size: true },
            FallocateMode::Collapse,
            FallocateMode::Insert,
            FallocateMode::KeepSize,
        ][pick(5 + salt, 6)];
        walk.look("allocate", volume.inodes().allocate(file, mode, 4096, 12288));
        walk.look("truncate", volume.inodes().set_len(file, seed % 70_000));
        walk.look(
            "set",
            volume.inodes().set_xattr(file, b"user.new", &[salt as u8; 300], XattrFlags::empty()),
        );
        walk.look("remove", volume.inodes().remove_xattr(file, b"user.note"));
        walk.look("link", volume.inodes().hard_link(file, folder, &[b'l', b'0' + salt as u8]));
        walk.look("fsync", volume.inodes().fsync(file, false));
    }
    for (step, (place, name)) in found.names.iter().enumerate() {
        let parent = &found.folders[*place];
        match (seed.wrapping_add(step as u64 * 0x9e37_79b9)) % 5 {
            0 => drop(walk.look("unlink", volume.inodes().remove_file(parent, name))),
            1 => drop(walk.look("rmdir", volume.inodes().remove_dir(parent, name))),
            2 => {
                let to = if step % 2 == 0 { b"n1".to_vec() } else { format!("to{step}").into_bytes() };
                walk.look("rename", volume.inodes().rename(parent, name, folder, &to, RenameFlags::empty()));
            }
            _ => {}
        }
    }
    let snapshots = walk.look("snapshots", volume.snapshots()).unwrap_or_default();
    if !snapshots.is_empty() || seed.is_multiple_of(4) {
        walk.look("take", volume.take_snapshot("new"));
        for (step, snapshot) in snapshots.iter().enumerate() {
            if pick(9 + step as u64, 3) > 0 {
                walk.look("delete", volume.delete_snapshot(&snapshot.name));
            }
        }
    }
    walk.look("sync", volume.sync());
    walk.look("checkpoint", volume.checkpoint());
    walk.look("background", volume.background_step());
    volume.drain_orphans();
    walk.look("sync", volume.sync());
    walk.damage
}
