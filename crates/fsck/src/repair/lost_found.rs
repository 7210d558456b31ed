//! `lost+found`: where inodes without a name get one.
//!
//! The directory is made in the root when it is needed first. An inode's name there is `#` and its number; a
//! directory gets `lost+found` as its parent. Link counts are left to the next round.
//!
//! Neighbours: [`super::mender`] calls this; [`crate::names`] has found what has no name.

use super::mender::Mender;
use quire_base::{Error, ErrorKind, InodeNo, Result};
use quire_format::dirent::{self, Entry};
use quire_format::inode::{FileType, InodeRecord};
use quire_format::key::Key;
use std::ops::ControlFlow;

/// Where what has no name is put.
const NAME: &str = "lost+found";
/// Names that are tried if the first is taken by something else.
const TRIES: u32 = 100;

impl Mender<'_> {
    /// Names inodes in `lost+found`.
    pub(super) fn name_lost(&mut self, lost: &[u64]) -> Result<()> {
        if lost.is_empty() {
            return Ok(());
        }
        let directory = self.lost_and_found()?;
        for &inode in lost {
            if inode == directory.0 {
                continue;
            }
            let Some(record) = self.record(inode)? else { continue };
            let name = self.vacant_name(directory, &format!("#{inode}"))?;
            self.add_entry(directory, name.as_bytes(), InodeNo(inode), &record)?;
            if record.file_type() == FileType::Directory {
                let record = InodeRecord { parent: directory.0, ..record };
                self.put(Key::inode(InodeNo(inode)), &record.encode())?;
            }
        }
        Ok(())
    }

    fn lost_and_found(&mut self) -> Result<InodeNo> {
        let root = InodeNo::ROOT;
        for number in 0..TRIES {
            let name = numbered(NAME, number);
            match self.look_up(root, name.as_bytes())? {
                Some((inode, FileType::Directory)) if self.is_directory(inode)? => return Ok(inode),
                Some(_) => {}
                None => {
                    let inode = InodeNo(self.next_inode);
                    self.next_inode += 1;
                    self.session.pass_inodes(self.next_inode);
                    let record = InodeRecord {
                        nlink: 2,
                        parent: root.0,
                        ..self.new_record(FileType::Directory, 0o700)
                    };
                    self.session.put(Key::inode(inode), &record.encode());
                    self.add_entry(root, name.as_bytes(), inode, &record)?;
                    return Ok(inode);
                }
            }
        }
        Err(Error::new(ErrorKind::Exists, format!("every name like {NAME} in the root is taken")))
    }

    fn is_directory(&self, inode: InodeNo) -> Result<bool> {
        Ok(self
            .record(inode.0)?
            .is_some_and(|record| record.file_type() == FileType::Directory && record.nlink > 0))
    }

    fn vacant_name(&mut self, directory: InodeNo, name: &str) -> Result<String> {
        for number in 0..TRIES {
            let name = numbered(name, number);
            if self.look_up(directory, name.as_bytes())?.is_none() {
                return Ok(name);
            }
        }
        Err(Error::new(ErrorKind::Exists, format!("every name like {name} in {NAME} is taken")))
    }

    /// What a name stands for.
    fn look_up(&mut self, directory: InodeNo, name: &[u8]) -> Result<Option<(InodeNo, FileType)>> {
        self.session.commit()?;
        let (first, last) = dirent::cookies_of_hash(dirent::name_hash(self.view.superblock.hash_seed, name));
        let mut found = None;
        self.view.tree.scan(Key::entry(directory, first), Key::entry(directory, last), &mut |_, value| {
            match Entry::decode(value) {
                Ok(entry) if entry.name == name => {
                    found = Some((entry.inode, entry.file_type));
                    ControlFlow::Break(())
                }
                _ => ControlFlow::Continue(()),
            }
        })?;
        Ok(found)
    }

    fn add_entry(
        &mut self,
        directory: InodeNo,
        name: &[u8],
        inode: InodeNo,
        record: &InodeRecord,
    ) -> Result<()> {
        let Some(cookie) = self.free_cookie(directory, name)? else {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!("directory {directory} is full of names of one hash"),
            ));
        };
        let entry = Entry { inode, generation: record.generation, file_type: record.file_type(), name };
        self.session.put(Key::entry(directory, cookie), &entry.encode());
        self.session.commit()
    }
}

fn numbered(name: &str, number: u32) -> String {
    if number == 0 { name.to_string() } else { format!("{name}-{number}") }
}
