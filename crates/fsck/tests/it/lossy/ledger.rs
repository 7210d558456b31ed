//! What a volume holds, by path, with all attributes.

use quire::inodes::{InodeRef, IoFlags};
use quire::{FileType, Volume};
use std::collections::BTreeMap;

/// All that is known of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub inode: u64,
    pub kind: u8,
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: (i64, i64),
    pub size: u64,
    pub contents: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Known {
    /// Whether two names show the same, as far as a lost neighbour does not change it.
    pub fn same(&self, other: &Known) -> bool {
        let directory = self.kind == FileType::Directory as u8;
        let mtime = directory || self.mtime == other.mtime;
        mtime
            && (self.inode, self.kind, self.mode, self.owner, self.size, &self.contents, &self.xattrs)
                == (
                    other.inode,
                    other.kind,
                    other.mode,
                    other.owner,
                    other.size,
                    &other.contents,
                    &other.xattrs,
                )
    }
}

pub type Ledger = BTreeMap<String, Known>;

/// Reads all of it; panics where something cannot be read.
pub fn of(volume: &Volume) -> Ledger {
    let inodes = volume.inodes();
    let mut all = BTreeMap::new();
    let mut pending = vec![(String::new(), inodes.root())];
    while let Some((path, directory)) = pending.pop() {
        let mut names = Vec::new();
        inodes
            .read_dir(&directory, 0, &mut |entry| {
                if !matches!(entry.name, b"." | b"..") {
                    names.push(entry.name.to_vec());
                }
                true
            })
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        for name in names {
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            let inode: InodeRef =
                inodes.lookup(&directory, &name).unwrap_or_else(|error| panic!("{path}: {error}"));
            let contents = match inode.kind() {
                FileType::Regular => {
                    let mut bytes = vec![0; inode.size() as usize];
                    let read = inodes.read_at(&inode, &mut bytes, 0, IoFlags::empty()).unwrap();
                    assert_eq!(read, bytes.len());
                    bytes
                }
                FileType::Symlink => inodes.read_link(&inode).unwrap(),
                _ => Vec::new(),
            };
            let metadata = inodes.metadata(&inode);
            let xattrs = inodes.list_xattrs(&inode).unwrap();
            let xattrs = xattrs
                .into_iter()
                .map(|name| (name.clone(), inodes.get_xattr(&inode, &name).unwrap()))
                .collect();
            let known = Known {
                inode: metadata.ino().0,
                kind: inode.kind() as u8,
                mode: metadata.mode(),
                owner: (metadata.uid(), metadata.gid()),
                mtime: (metadata.mtime(), metadata.mtime_nsec()),
                size: metadata.size(),
                contents,
                xattrs,
            };
            all.insert(path.clone(), known);
            if inode.kind() == FileType::Directory {
                pending.push((path, inode));
            }
        }
    }
    all
}
