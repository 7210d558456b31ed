//! Symbolic links.
//!
//! The target is kept in pieces under keys of its own, written with the inode and never changed; the record's
//! size is the target's length.
//!
//! Neighbours: [`super::create`] makes them; those who walk paths (`walk`, the kernel) follow them.

use super::create::Caller;
use crate::engine::Engine;
use crate::inode::InodeRef;
use quire_base::sync::Arc;
use quire_base::{Error, ErrorKind, Result};
use quire_format::inode::{FileType, SYMLINK_PIECE_MAX, SYMLINK_TARGET_MAX};
use quire_format::key::Key;
use std::ops::ControlFlow;

impl Engine {
    /// Makes a symbolic link. Kinds: those of create; `NotFound` for an empty target, `NameTooLong` over 4095
    /// bytes.
    pub(crate) fn symlink(
        self: &Arc<Engine>,
        directory: &InodeRef,
        name: &[u8],
        target: &[u8],
        caller: Caller,
    ) -> Result<InodeRef> {
        if target.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "a symbolic link needs a target"));
        }
        if target.len() > SYMLINK_TARGET_MAX {
            return Err(Error::new(
                ErrorKind::NameTooLong,
                format!("a link target of {} bytes; {SYMLINK_TARGET_MAX} are allowed", target.len()),
            ));
        }
        if target.contains(&0) {
            return Err(Error::invalid("a link target with a NUL byte"));
        }
        self.make_named(directory, name, || self.new_symlink(directory, target, caller))
    }

    /// Where a symbolic link points. Kind `Invalid` for anything else.
    pub(crate) fn readlink(self: &Arc<Engine>, inode: &InodeRef) -> Result<Vec<u8>> {
        if inode.kind() != FileType::Symlink {
            return Err(Error::invalid(format!(
                "inode {} is a {:?}, no symbolic link",
                inode.number(),
                inode.kind()
            )));
        }
        let size = inode.meta().record.size as usize;
        let mut target = Vec::with_capacity(size.min(SYMLINK_TARGET_MAX));
        let mut whole = true;
        let number = inode.number();
        self.store.tree.scan(
            Key::symlink(number, 0),
            Key::symlink(number, u64::MAX),
            &mut |key, piece| {
                let expected = SYMLINK_PIECE_MAX.min(size.saturating_sub(target.len()));
                whole &= key.offset == (target.len() / SYMLINK_PIECE_MAX) as u64 && piece.len() == expected;
                target.extend_from_slice(piece);
                if whole { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            },
        )?;
        if !whole || target.len() != size || target.is_empty() || target.contains(&0) {
            return Err(Error::corrupt(format!(
                "symbolic link {number} of {size} bytes has another target, or none; see: quire fsck"
            )));
        }
        inode.touch_read();
        Ok(target)
    }
}
