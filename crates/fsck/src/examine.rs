//! One look at a whole volume, from the superblocks to the last block, without writing to it.
//!
//! Order: superblocks; what each of them names on disk; the journal; then the volume as recovery would leave
//! it, replayed in memory only, cross-checked. Where a phase finds the ground gone, the later ones are left
//! out.
//!
//! If the newest checkpoint is damaged where recovery does not look (it reads a tree as it needs it), but the
//! older one is whole and the journal leads from it past the newer one, the volume is judged by the older
//! one; repair makes recovery do the same.
//!
//! Neighbours: [`crate::checkpoint`], [`crate::analysis`]; `quire::internals::inspect` replays.

use crate::Progress;
use crate::analysis;
use crate::checkpoint::{self, Checkpoint, Role, Seen};
use crate::issue::IssueKind;
use crate::masked::Masked;
use crate::progress::Meter;
use crate::report::{Findings, Place};
use crate::snapshots::{self, Kept};
use crate::superblocks::{self, Pair};
use crate::view::View;
use quire::internals::inspect::{self, Image};
use quire_base::sync::Arc;
use quire_base::{BlockNo, Error, ErrorKind, Result, Seq};
use quire_device::{Backend, Device};
use quire_format::extent::Run;
use quire_format::key::{Key, KeyKind};
use quire_format::receive::Unfinished;
use quire_format::record::Change;
use quire_format::snapshot::Snapshot;
use quire_format::superblock::{FLAG_CLEAN, Superblock};

/// What one look gave.
pub(crate) struct Examined {
    pub(crate) findings: Findings,
    /// The superblocks that check and what they name, newest first.
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// Which of `checkpoints` the volume is judged by; `None` if it cannot be opened.
    pub(crate) chosen: Option<usize>,
    /// What snapshots name.
    pub(crate) kept: Kept,
    /// The pool's chunks after replay.
    pub(crate) chunks: Vec<Run>,
    /// Whether the volume has an unfinished receive, and the snapshot that it began at.
    pub(crate) is_receiving: bool,
    /// Where the journal ends.
    end: Seq,
    pair: Pair,
}

impl Examined {
    /// Whether writing to the volume is sure to hit nothing that is not meant.
    pub(crate) fn may_be_written(&self) -> bool {
        let safe = |checkpoint: &Checkpoint| {
            !checkpoint.misplaced && superblocks::areas_join(&checkpoint.superblock)
        };
        match self.chosen {
            Some(chosen) => safe(&self.checkpoints[chosen]),
            None => self.checkpoints.first().is_some_and(safe),
        }
    }

    /// The features of either superblock for whose sake this build must not write to the volume.
    pub(crate) fn read_only_because(&self) -> Option<Error> {
        self.pair.usable.iter().find_map(|(_, superblock)| superblock.read_only_because())
    }

    /// Whether recovery refuses the volume, and may not with a new map of its pool.
    pub(crate) fn lacks_pool_map(&self) -> bool {
        let is_whole = self.checkpoints.first().is_some_and(|newest| newest.whole);
        self.chosen.is_none() && self.findings.fixes.pool && is_whole
    }

    /// Finds out what snapshots name and which chunks stay the pool's, where recovery refuses the volume: its
    /// newest checkpoint tells, and the journal behind that.
    pub(crate) fn look_behind_newest(&mut self, backend: &Arc<dyn Backend>) -> Result<()> {
        let newest = &self.checkpoints[0];
        let (mut table, mut chunks) = (newest.snapshots.clone(), newest.chunk_runs());
        // One that the journal deletes counts: better too many than too few.
        inspect::journal(backend.clone(), &newest.superblock, &mut |_, changes| {
            for change in changes {
                follow_pool(&change, &mut chunks);
                match change {
                    Change::Put { key, value } if key.kind == KeyKind::Snapshot => {
                        table.insert(key.offset as u32, Snapshot::decode(&value));
                    }
                    _ => {}
                }
            }
        })?;
        if let Some(error) = table.values().find_map(|snapshot| snapshot.as_ref().err()) {
            return Err(error.clone());
        }
        let (device, mut findings) = (Device::new(backend.clone()), Findings::default());
        let mut meter = Meter::start(None, "snapshots", 0);
        self.kept = snapshots::check(&device, &table, &newest.superblock, &mut findings, &mut meter);
        self.chunks = chunks;
        Ok(())
    }

    fn issue_count(&self) -> u64 {
        self.findings.issues.len() as u64 + self.findings.summary.issues_omitted
    }
}

/// Looks at everything. Errors: there is nothing that could be checked.
pub(crate) fn run(backend: &Arc<dyn Backend>, tell: Option<&dyn Fn(Progress)>) -> Result<Examined> {
    let examined = look(backend, tell)?;
    if examined.pair.contradiction { by_evidence(backend, examined, tell) } else { Ok(examined) }
}

/// The superblocks differ in what mkfs has fixed. Looks at the volume by each of them alone; if it makes more
/// sense by the older one, and the journal leads from there past the newer one, the older one is taken.
fn by_evidence(
    backend: &Arc<dyn Backend>,
    mut both: Examined,
    tell: Option<&dyn Fn(Progress)>,
) -> Result<Examined> {
    let [(newer, superblock), (older, _)] = &both.pair.usable[..] else { return Ok(both) };
    let (newer, sequence) = (*newer, superblock.sequence);
    let mut blocks = [0; 2];
    both.pair.usable.iter().for_each(|(slot, superblock)| blocks[*slot] = superblock.block_count);
    let without = |slot: usize| -> Result<Examined> {
        let masked: Arc<dyn Backend> = Arc::new(Masked::new(backend.clone(), slot, blocks[slot]));
        look(&masked, tell)
    };
    let (by_newer, by_older) = (without(*older)?, without(newer)?);
    let usable = by_older.chosen.is_some() && by_older.end >= sequence;
    if !usable || (by_newer.chosen.is_some() && by_newer.issue_count() <= by_older.issue_count()) {
        return Ok(both);
    }
    let findings = by_older.findings;
    both.findings.issues.retain(|issue| issue.code.is_about_superblocks());
    // That the other slot was out of sight is no damage.
    both.findings
        .issues
        .extend(findings.issues.into_iter().filter(|issue| !issue.code.is_about_superblocks()));
    both.findings.summary = findings.summary;
    both.findings.fixes = findings.fixes;
    both.findings.fixes.superblocks = true;
    both.findings.fixes.abandon_slot = Some(newer);
    Ok(Examined {
        findings: both.findings,
        checkpoints: by_older.checkpoints,
        kept: by_older.kept,
        chosen: by_older.chosen,
        chunks: by_older.chunks,
        is_receiving: by_older.is_receiving,
        end: by_older.end,
        pair: both.pair,
    })
}

fn look(backend: &Arc<dyn Backend>, tell: Option<&dyn Fn(Progress)>) -> Result<Examined> {
    let mut findings = Findings::default();
    let meter = Meter::start(tell, "superblocks", 2);
    let pair = superblocks::check(inspect::superblocks(backend.clone()), backend.blocks(), &mut findings)?;
    drop(meter);
    let hopeless = pair.newest().is_none_or(|(_, newest)| newest.block_count > backend.blocks());
    let mut examined = Examined {
        findings,
        checkpoints: Vec::new(),
        kept: Kept::default(),
        chosen: None,
        chunks: Vec::new(),
        is_receiving: false,
        end: Seq(0),
        pair,
    };
    if hopeless {
        return Ok(examined);
    }
    walk(backend, tell, &mut examined);
    check_older_journal(backend, &mut examined);
    if let Some(image) = open(backend, &mut examined) {
        examined.end = image.end;
        cross_check(backend, &image, tell, &mut examined)?;
    }
    Ok(examined)
}

fn walk(backend: &Arc<dyn Backend>, tell: Option<&dyn Fn(Progress)>, examined: &mut Examined) {
    let device = Device::new(backend.clone());
    let mut seen = Seen::new();
    for (at, (slot, superblock)) in examined.pair.usable.iter().enumerate() {
        let nodes = examined.checkpoints.first().map_or(0, |newest| newest.nodes);
        let mut meter = Meter::start(tell, if at == 0 { "metadata" } else { "older metadata" }, nodes);
        let findings = &mut examined.findings;
        let role = if at == 0 { Role::Newest } else { Role::Older };
        let checkpoint =
            checkpoint::check(&device, (*slot, superblock), role, &mut seen, findings, &mut meter);
        if at == 0 {
            findings.summary.nodes = checkpoint.nodes;
        }
        examined.checkpoints.push(checkpoint);
    }
}

/// Whether the journal leads from the older checkpoint to the newer one, so that either would do.
fn check_older_journal(backend: &Arc<dyn Backend>, examined: &mut Examined) {
    let [newer, older] = &examined.checkpoints[..] else { return };
    let (newer, older) = (&newer.superblock, &older.superblock);
    if older.sequence >= newer.sequence {
        return;
    }
    let wrong = match inspect::journal(backend.clone(), older, &mut |_, _| {}) {
        Ok(end) if end.end >= newer.sequence => return,
        Ok(end) => format!("it ends at {}, the newer checkpoint was taken at {}", end.end, newer.sequence),
        Err(error) => error.to_string(),
    };
    examined.findings.add(
        IssueKind::OlderCheckpointDamaged,
        Place::block(older.journal_start.0),
        format!(
            "the journal does not lead from the older checkpoint {} to the newer one ({wrong}); the newer one serves",
            older.checkpoint
        ),
    );
    examined.findings.fixes.superblocks = true;
}

/// Replays, in memory, from the checkpoint that serves.
fn open(backend: &Arc<dyn Backend>, examined: &mut Examined) -> Option<Image> {
    let whole = examined.checkpoints.iter().position(|checkpoint| checkpoint.whole)?;
    let newest_sequence = examined.checkpoints[0].superblock.sequence;
    let (slot, sequence) =
        (examined.checkpoints[whole].slot, examined.checkpoints[whole].superblock.sequence);
    let by_recovery = Image::load(backend.clone());
    let loaded = match by_recovery {
        Ok(image) if image.slot == slot => {
            examined.findings.fixes.superblocks |= whole > 0;
            Ok(image)
        }
        outcome if whole > 0 => {
            // Recovery would take the damaged one, or refuses it: look at the other one alone.
            let masked = Arc::new(Masked::new(
                backend.clone(),
                examined.checkpoints[0].slot,
                examined.checkpoints[0].superblock.block_count,
            ));
            let image = Image::load(masked).and_then(|image| {
                if image.end < newest_sequence {
                    return Err(Error::corrupt(format!(
                        "the journal leads from the older checkpoint ({sequence}) to {} only, the newer one was taken \
                         at {newest_sequence}",
                        image.end
                    )));
                }
                Ok(image)
            });
            if image.is_ok() && outcome.is_ok() {
                examined.findings.fixes.abandon_slot = Some(examined.checkpoints[0].slot);
            }
            examined.findings.fixes.superblocks |= image.is_ok();
            image
        }
        Ok(image) => Err(Error::corrupt(format!("recovery goes by superblock slot {}", image.slot))),
        Err(error) => Err(error),
    };
    match loaded {
        Ok(image) => {
            examined.chosen = Some(whole);
            Some(image)
        }
        Err(error) => {
            refused(backend, &error, &examined.checkpoints[whole].superblock, &mut examined.findings);
            None
        }
    }
}

fn refused(backend: &Arc<dyn Backend>, error: &Error, superblock: &Superblock, findings: &mut Findings) {
    let journal = inspect::journal(backend.clone(), superblock, &mut |_, _| {});
    match journal {
        Err(journal) if journal.kind() == ErrorKind::Corrupt => findings.add(
            IssueKind::JournalDamaged,
            Place::block(superblock.journal_start.0),
            format!(
                "{journal}: the volume cannot be recovered without losing what was synced; restore a copy, \
                 or give that up with `quire fsck --repair --lossy`"
            ),
        ),
        _ => {
            let remedy = if findings.fixes.pool {
                "repair writes a new map of the pool"
            } else {
                "restore a copy, or give up what is lost with `quire fsck --repair --lossy`"
            };
            findings.add(IssueKind::VolumeRefused, Place::NONE, format!("{error}; {remedy}"));
        }
    }
}

fn cross_check(
    backend: &Arc<dyn Backend>,
    image: &Image,
    tell: Option<&dyn Fn(Progress)>,
    examined: &mut Examined,
) -> Result<()> {
    let Some(chosen) = examined.chosen else { return Ok(()) };
    let checkpoint = &examined.checkpoints[chosen];
    let findings = &mut examined.findings;
    let mut chunks = checkpoint.chunk_runs();
    let journal = inspect::journal(backend.clone(), &checkpoint.superblock, &mut |_, changes| {
        for change in changes {
            follow_pool(&change, &mut chunks);
        }
    })?;
    let end = image.superblock.data_end;
    // What lies past the end has been reported.
    chunks.retain(|run| run.end() <= end);
    chunks.sort_unstable();
    findings.summary.journal_records = journal.records;
    for at in &journal.unreadable {
        let message =
            "the device cannot read an unused block of the journal: a crash could end the journal there";
        findings.add(IssueKind::JournalBlockUnreadable, Place::block(at.0), message);
        // Opening it for the repair writes them anew.
        findings.fixes.superblocks = true;
    }
    findings.summary.pool_blocks = chunks.iter().map(|run| run.blocks).sum();
    if checkpoint.superblock.flags & FLAG_CLEAN != 0 && journal.records > 0 {
        findings.add(
            IssueKind::SuperblockNotClean,
            Place::NONE,
            format!(
                "the volume says that it was closed in order, but its journal has {} records",
                journal.records
            ),
        );
        findings.fixes.superblocks = true;
    }
    let device = Device::new(backend.clone());
    let mut meter = Meter::start(tell, "snapshots", 0);
    match snapshots::table(&image.tree) {
        Ok(table) => {
            examined.kept = snapshots::check(&device, &table, &image.superblock, findings, &mut meter);
        }
        Err(error) => findings.add(IssueKind::SnapshotDamaged, Place::NONE, error.to_string()),
    }
    drop(meter);
    let held = snapshots::held(&device, &image.tree, findings)?;
    let all = examined.checkpoints.iter().chain(&examined.kept.checkpoints);
    let mut pool_holds: Vec<u64> = Vec::new();
    for checkpoint in all {
        // One at a time, since they share most. Both parts ascend, so a stable sort merges them.
        pool_holds.extend(checkpoint.found_blocks());
        pool_holds.sort();
        pool_holds.dedup();
    }
    let view = View {
        superblock: &image.superblock,
        tree: &image.tree,
        orphans: image.orphans().into_iter().map(|(slot, inode)| (slot.0, inode.0)).collect(),
        chunks: &chunks,
        held: &held,
        pool_holds: Some(&pool_holds),
        counters: true,
    };
    // The tree that an unfinished receive builds makes no sense before its end; opened read-only, or after
    // the receive was given up, the volume is what the snapshot before it has.
    let unfinished = image.tree.get_with(Key::RECEIVING, Unfinished::decode)?.and_then(Result::ok);
    let base = unfinished.as_ref().map(|unfinished| Key::snapshot(unfinished.base));
    let is_receiving = base.map(|base| image.tree.get(base)).transpose()?.flatten().is_some();
    if let Some(unfinished) = unfinished.filter(|_| is_receiving) {
        let what = format!(
            "a receive of the snapshot {} is unfinished: names and space are checked when it has ended \
             (`quire receive --resume-token` tells how it goes on, `quire receive --abort` gives it up)",
            unfinished.name
        );
        findings.add(IssueKind::ReceiveUnfinished, Place::NONE, what);
    } else if let Err(error) = analysis::run(&view, findings, tell) {
        findings.add(IssueKind::VolumeRefused, Place::NONE, format!("the tree cannot be read: {error}"));
    }
    examined.chunks = chunks;
    examined.is_receiving = is_receiving;
    Ok(())
}

fn follow_pool(change: &Change, chunks: &mut Vec<Run>) {
    match change {
        Change::PoolGrow { start, blocks } => chunks.push(Run::new(*start, u64::from(*blocks))),
        Change::PoolShrink { start, blocks } => {
            let gone = Run::new(BlockNo(start.0), u64::from(*blocks));
            chunks.retain(|run| *run != gone);
        }
        _ => {}
    }
}
