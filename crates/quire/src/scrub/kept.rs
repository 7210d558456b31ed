//! Looking at the metadata of snapshots, and mending it in place.
//!
//! The manifest and the orphan blocks of each snapshot are read, and the nodes that the live tree does not
//! have ([`quire_tree::kept`]). This comes after the live tree: a node that both have, and of which a copy is
//! bad, is then written elsewhere for the live tree, and the snapshot's is mended here.
//!
//! Protocol. What is read means something only while the snapshot is kept. A deletion lets it go under the
//! mutex of checkpoints, and only a checkpoint uses its blocks again. So what looks bad is judged, and
//! overwritten, under that mutex, if the snapshot is kept then. Reading alone takes no lock.
//!
//! Invariants: a block that no kept checkpoint needs is not written to.
//!
//! Neighbours: [`super::fixed`] looks at the manifest of the newest checkpoint.

use super::fixed::{PoolLook, look_at_pool};
use super::{Scrub, is_over};
use crate::snapshots::table::table;
use quire_base::{BLOCK_SIZE, Result};
use quire_format::snapshot::Snapshot;
use quire_tree::copies::Look;
use quire_tree::kept::{KeptWalk, Visited};
use std::ops::ControlFlow;

impl Scrub<'_> {
    /// Reads the metadata that snapshots have.
    pub(super) fn snapshots(&mut self) -> Result<ControlFlow<()>> {
        let engine = self.engine;
        // The table of a snapshot is that of its day.
        if engine.store.options.snapshot.is_some() {
            return Ok(ControlFlow::Continue(()));
        }
        let all = match table(&engine.store.tree) {
            Ok(all) if all.is_empty() => return Ok(ControlFlow::Continue(())),
            Ok(all) => all,
            Err(error) if is_over(engine, &error) => return Ok(ControlFlow::Break(())),
            // The live tree's part has told it.
            Err(_) => return Ok(ControlFlow::Continue(())),
        };
        if !engine.store.read_only {
            // What has left the live tree meanwhile is in no checkpoint of it then.
            let _change = engine.begin_change()?;
            engine.store.checkpoint_now()?;
        }
        let mut visited = Visited::default();
        for (number, snapshot) in all {
            if self.snapshot(number, &snapshot, &mut visited)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn snapshot(
        &mut self,
        number: u32,
        snapshot: &Snapshot,
        visited: &mut Visited,
    ) -> Result<ControlFlow<()>> {
        let engine = self.engine;
        let admission = || if engine.store.read_only { Ok(None) } else { engine.begin_change().map(Some) };
        let change = admission()?;
        self.snapshot_pool(number, snapshot);
        drop(change);
        let mut walk = KeptWalk::new(snapshot.superblock.roots());
        while !walk.is_done() {
            if self.pause()?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let _change = admission()?;
            let step = engine.store.tree.scrub_kept(&mut walk, visited);
            let copies = u64::from(snapshot.superblock.metadata_copies);
            self.report.metadata_bytes += step.nodes * copies * BLOCK_SIZE as u64;
            if step.damaged.is_empty() && step.lost.is_empty() {
                continue;
            }
            let _state = engine.store.checkpoint.lock();
            if !self.is_there(number) {
                break;
            }
            self.report.damaged += step.damaged.len() as u64;
            if !engine.store.read_only {
                let healed =
                    step.damaged.iter().filter(|node| engine.store.tree.mend_kept(node)).count() as u64;
                self.healed(snapshot, healed);
            }
            step.lost.iter().for_each(|error| self.lost(snapshot, error));
        }
        self.pause()
    }

    fn snapshot_pool(&mut self, number: u32, snapshot: &Snapshot) {
        let engine = self.engine;
        let found = look_at_pool(&engine.store.device, &snapshot.superblock, Look::AtAll);
        self.report.metadata_bytes += found.bytes;
        if !found.is_damaged && found.lost.is_empty() {
            return;
        }
        let _state = engine.store.checkpoint.lock();
        if !self.is_there(number) {
            return;
        }
        let PoolLook { is_damaged, lost, .. } = found;
        self.report.damaged += u64::from(is_damaged);
        if is_damaged && !engine.store.read_only {
            let mended = look_at_pool(&engine.store.device, &snapshot.superblock, Look::Mend);
            self.healed(snapshot, u64::from(!mended.is_damaged));
        }
        lost.iter().for_each(|error| self.lost(snapshot, error));
    }

    /// Whether a snapshot has not been deleted since the table was read. Nothing is let go while the mutex of
    /// checkpoints is held, nor from a volume that is open for reading only.
    fn is_there(&self, number: u32) -> bool {
        self.engine.store.read_only || self.engine.store.tree.keeps(number)
    }

    fn healed(&mut self, snapshot: &Snapshot, pieces: u64) {
        self.report.healed += pieces;
        if pieces > 0 {
            tracing::info!(
                snapshot = snapshot.name,
                pieces,
                "bad copies of a snapshot's metadata are mended"
            );
        }
    }

    fn lost(&mut self, snapshot: &Snapshot, error: &quire_base::Error) {
        tracing::error!(snapshot = snapshot.name, %error, "a scrub has found metadata without a good copy");
        self.report.lost.push(format!("snapshot {:?}: {error}", snapshot.name));
    }
}
