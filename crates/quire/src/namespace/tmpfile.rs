//! Files without a name (O_TMPFILE).
//!
//! Protocol: the inode and its orphan slot are one transaction, so a crash leaves nothing behind. It is freed
//! when its last user leaves, unless [`super::link`] has given it a name before.
//!
//! Neighbours: [`super::create`] does the work.

use super::create::Create;
use super::directory::enter_live;
use crate::engine::Engine;
use crate::inode::InodeRef;
use quire_base::sync::Arc;
use quire_base::{Error, Result};
use quire_format::inode::FileType;

impl Engine {
    /// Makes a regular file without a name; what it inherits comes from `directory`.
    pub(crate) fn tmpfile(self: &Arc<Engine>, directory: &InodeRef, create: &Create) -> Result<InodeRef> {
        let _change = self.begin_change()?;
        if create.kind != FileType::Regular {
            return Err(Error::invalid(format!("a {:?} without a name cannot be made", create.kind)));
        }
        self.help_reaper();
        self.retry_without_space(|| {
            let _live = enter_live(directory)?;
            self.create_inode(self.new_inode(directory, create)?, None)
        })
    }
}
