//! One module a command.

pub mod backup;
pub mod bench;
pub mod bench_null;
pub mod check;
pub mod ctl;
pub mod dump;
pub mod freeze;
pub mod fsck;
pub mod generate;
pub mod grow;
pub mod info;
pub mod inspect;
pub mod lease;
pub mod mkfs;
pub mod mount;
pub mod probe;
pub mod properties;
pub mod replicate;
pub mod resize;
pub mod salvage;
pub mod scrub;
pub mod snapshot;
pub mod stream;
pub mod supervise;
pub mod top;
pub mod trim;
pub mod umount;
pub mod up;

use std::path::Path;

use quire_fuse::{MountEntry, mount as mounts};

use crate::exit::{Failure, Outcome};

/// The Quire mount at `dir`, which must be there.
fn mounted(dir: &Path) -> Outcome<MountEntry> {
    let dir = mounts::resolve(dir)?;
    mounts::mounted_at(&dir)?
        .filter(MountEntry::is_quire)
        .ok_or_else(|| Failure::new(37, format!("no Quire volume is mounted at {}", dir.display())))
}
