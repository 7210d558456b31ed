//! Looking into a volume without changing it: for `quire dump`, fsck and tests.
//!
//! An [`Image`] is a volume as of the end of its journal, replayed in memory only; nothing is written,
//! whatever state the volume is in. The raw parts (superblock slots, journal records) can be read even where
//! no [`Image`] can be made.
//!
//! Neighbours: [`crate::recovery`] does the loading; `quire-fsck` cross-checks what is seen here.

use crate::options::VolumeOptions;
use crate::recovery::{self, RecoveryReport};
use crate::store::orphan_slots::{OrphanSlots, Slot};
use crate::store::superblocks;
pub use crate::store::superblocks::{SlotCopies, newest_of, read_with};
use quire_base::sync::Arc;
use quire_base::{InodeNo, Result, Seq};
use quire_device::{Backend, Device};
use quire_format::extent::Extent;
use quire_format::inode::InodeRecord;
use quire_format::key::{Key, KeyKind};
use quire_format::record::{self, Change};
use quire_format::superblock::Superblock;
use quire_journal::{ReplayConfig, ReplayEnd, replay};
use quire_tree::Tree;
use std::ops::ControlFlow;

/// Both superblock slots, each copy decoded or with the reason why it is not.
pub fn superblocks(backend: Arc<dyn Backend>) -> [SlotCopies; 2] {
    superblocks::read(&Device::new(backend))
}

/// Calls `visit` with every record of the journal that a recovery from `superblock` would replay.
pub fn journal(
    backend: Arc<dyn Backend>,
    superblock: &Superblock,
    visit: &mut dyn FnMut(Seq, &mut dyn Iterator<Item = Change>),
) -> Result<ReplayEnd> {
    let config = ReplayConfig::of(superblock);
    replay(&Device::new(backend), &config, &mut |seq, payload| {
        visit(seq, &mut record::changes(payload)?);
        Ok(())
    })
}

/// Whether a volume keeps attributes of this name: of a known family, and not its bare prefix.
pub fn is_attribute_name(name: &[u8]) -> bool {
    crate::xattr::check_family(name).is_ok()
}

/// A volume as of the end of its journal, in memory.
pub struct Image {
    /// The chosen superblock, with the counters as they are after replay.
    pub superblock: Superblock,
    /// The slot that it was read from.
    pub slot: usize,
    /// The tree after replay; its nodes that replay did not change can be walked as they are on disk.
    pub tree: Arc<Tree>,
    /// Where the journal ends.
    pub end: Seq,
    /// What recovery saw.
    pub report: RecoveryReport,
    orphans: OrphanSlots,
    pub(crate) device: Arc<Device>,
}

impl Image {
    /// Chooses a superblock and replays the journal, as a read-only mount does.
    pub fn load(backend: Arc<dyn Backend>) -> Result<Image> {
        let device = Device::new(backend);
        let loaded = recovery::load(&device, &VolumeOptions::default())?;
        Ok(Image {
            superblock: loaded.superblock,
            slot: loaded.slot,
            tree: loaded.tree,
            end: loaded.end,
            report: loaded.report,
            orphans: loaded.orphans,
            device,
        })
    }

    /// The orphan slots in use.
    pub fn orphans(&self) -> Vec<(Slot, InodeNo)> {
        self.orphans.applied()
    }

    /// An inode's record.
    pub fn inode(&self, number: InodeNo) -> Result<Option<InodeRecord>> {
        self.tree.get_with(Key::inode(number), InodeRecord::decode)?.transpose()
    }

    /// An inode's extents, in order.
    pub fn extents(&self, number: InodeNo) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        let mut broken = Ok(());
        self.tree.scan(Key::extent(number, 0), Key::extent(number, u64::MAX), &mut |key, value| {
            match Extent::decode(key.offset, value) {
                Ok(extent) => {
                    extents.push(extent);
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    broken = Err(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        broken.map(|()| extents)
    }

    /// Calls `visit` with every key and value of an object, in order; object 0 is the volume itself.
    pub fn object(&self, object: u64, visit: &mut dyn FnMut(Key, &[u8])) -> Result<()> {
        let (from, to) =
            (Key::new(object, KeyKind::FreeSpace, 0), Key::new(object, KeyKind::Extent, u64::MAX));
        self.tree.scan(from, to, &mut |key, value| {
            visit(key, value);
            ControlFlow::Continue(())
        })
    }

    /// Calls `visit` with every key and value, in order.
    pub fn keys(&self, visit: &mut dyn FnMut(Key, &[u8]) -> ControlFlow<()>) -> Result<()> {
        self.tree.scan(Key::MIN, Key::MAX, visit)
    }
}
