//! A repair that may lose data, and ends: whatever can still be read is made into a volume that is clean.
//!
//! Protocol, until the check finds nothing:
//! 1. What can be opened is mended as always ([`crate::repair`]). If that is not enough, damaged snapshots
//!    are given up.
//! 2. If no checkpoint is whole, the nodes that can be read are gathered ([`scan`], [`remains`]) and
//!    published as a checkpoint with holes ([`publish`]).
//! 3. The volume is opened with its journal replayed as far as it can be read. What does not fit together any
//!    more is mended by the rounds of a plain repair: names without inodes go,
//!    inodes without names get one in `lost+found`, used blocks and counters are what the extents say.
//!
//! What the rounds of 1 and 3 do not give back is listed before they begin ([`losses`]).
//!
//! All of this happens in memory first, over the device as it is. Only if that ends with a clean volume is it
//! done on the device. There it changes nothing but by publishing whole checkpoints, so a repair that is
//! killed is done again by the next one.
//!
//! Neighbours: [`crate::salvage`] reads files from the result of the rehearsal.

mod headless;
mod losses;
mod publish;
mod remains;
mod scan;

pub use crate::report::Loss;
pub(crate) use losses::of_cut;

use crate::Progress;
use crate::checkpoint::Checkpoint;
use crate::examine::{self, Examined};
use crate::inodes::Contents;
use crate::issue::{Issue, IssueKind, Severity};
use crate::progress::Meter;
use crate::repair;
use crate::report::{Findings, Report};
use crate::superblocks::areas_join;
use crate::view::View;
use publish::Base;
use quire::internals::inspect::{self, SlotCopies};
use quire::internals::repair::{JournalCut, Session};
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, BlockNo, ErrorKind, Result, Seq};
use quire_device::{AlignedBuf, Backend, Device, IoClass, OverlayBackend};
use quire_format::extent::Run;
use quire_format::journal::{BlockHeader, PAYLOAD_BYTES};
use quire_format::key::Key;
use quire_format::node::Bounds;
use quire_format::record::Change;
use quire_format::superblock::{SLOT_BLOCKS, Superblock, far_slots};
use remains::Start;
use std::collections::BTreeSet;

/// Passes over a volume; one mends what one can, the next finds what that brought to light.
const PASSES_MAX: usize = 6;

type Tell<'f> = Option<&'f dyn Fn(Progress)>;

/// Mends in memory; then, unless only that is wanted, on the device.
pub(crate) fn run(backend: &Arc<dyn Backend>, dry_run: bool, tell: Tell<'_>) -> Result<Report> {
    let rehearsal = match rehearse(backend, tell) {
        Ok((rehearsal, _)) => rehearsal,
        Err(error) => {
            // Where not even a look is possible, that is the error.
            let mut report = examine::run(backend, tell)?.findings.into_report();
            report.issues.push(failed(format!(
                "in memory this repair fails, so nothing was changed; `quire salvage` copies what can be read: {error}"
            )));
            return Ok(report);
        }
    };
    if rehearsal.is_clean() || (dry_run && rehearsal.exit_code() == 1) {
        return Ok(undone(rehearsal));
    }
    if rehearsal.exit_code() > 1 {
        let mut left: Vec<&Issue> = rehearsal.issues.iter().filter(|issue| !issue.repaired).collect();
        left.sort_by_key(|issue| std::cmp::Reverse(issue.severity));
        let left: Vec<String> = left.into_iter().take(3).map(ToString::to_string).collect();
        let mut report = Report { would_be_repaired: 0, ..undone(rehearsal) };
        let message = format!(
            "in memory this repair does not end with a clean volume, so nothing was changed; `quire salvage` copies what \
             can be read. What is left then: {}",
            left.join("; ")
        );
        report.issues.push(failed(message));
        return Ok(report);
    }
    mend(backend, tell)
}

fn failed(message: String) -> Issue {
    let code = IssueKind::RepairFailed;
    Issue { severity: Severity::Error, code, message, inode: None, block: None, repaired: false }
}

/// Mends over the device as it is, in memory; gives the report and the volume.
pub(crate) fn rehearse(backend: &Arc<dyn Backend>, tell: Tell<'_>) -> Result<(Report, Arc<dyn Backend>)> {
    let above: Arc<dyn Backend> = Arc::new(OverlayBackend::new(backend.clone()));
    Ok((mend(&above, tell)?, above))
}

/// A report of what a repair would do.
pub(crate) fn undone(mut report: Report) -> Report {
    for issue in report.issues.iter_mut().filter(|issue| issue.repaired) {
        issue.repaired = false;
        report.would_be_repaired += u64::from(issue.severity > Severity::Info);
    }
    report
}

/// As [`rehearse`], for a result that is only read: also of a volume with features that this build must not
/// write, and of one of which no copy of a superblock can be read.
pub(crate) fn rehearse_headless(
    backend: &Arc<dyn Backend>,
    tell: Tell<'_>,
) -> Result<(Report, Arc<dyn Backend>)> {
    let slots = inspect::superblocks(backend.clone());
    let unknown = |copy: &Result<Superblock>| {
        copy.as_ref().is_err_and(|error| error.kind() == ErrorKind::UnknownFormat)
    };
    let copies = || slots.iter().flat_map(|slot| [&slot.near, &slot.far]);
    if copies().any(|copy| copy.is_ok() || unknown(copy)) {
        let above: Arc<dyn Backend> = Arc::new(OverlayBackend::new(backend.clone()));
        forget_features(&*above, &slots)?;
        return Ok((mend(&above, tell)?, above));
    }
    let Some((above, loss)) = headless::stand_in(backend, tell)? else { return rehearse(backend, tell) };
    let mut report = mend(&above, tell)?;
    report.losses.insert(0, loss);
    Ok((report, above))
}

/// Takes away the marks of features that this build can only read.
fn forget_features(above: &dyn Backend, slots: &[SlotCopies; 2]) -> Result<()> {
    for (slot, copies) in slots.iter().enumerate() {
        for (copy, is_far) in [(&copies.near, false), (&copies.far, true)] {
            if let Ok(superblock) = copy
                && superblock.read_only_because().is_some()
            {
                let at = if is_far { far_slots(superblock.block_count)[slot] } else { SLOT_BLOCKS[slot] };
                let superblock = Superblock { feature_ro_compat: 0, ..superblock.clone() };
                above.write(IoClass::Metadata, at, &AlignedBuf::copy_of(&superblock.encode()))?;
            }
        }
    }
    Ok(())
}

fn mend(backend: &Arc<dyn Backend>, tell: Tell<'_>) -> Result<Report> {
    let first = examine::run(backend, tell)?;
    if first.findings.issues.is_empty() {
        return Ok(first.findings.into_report());
    }
    // More than one pass may list the same.
    let mut losses = BTreeSet::new();
    let (before, mut left) = (first.findings.issues.clone(), None);
    let mut examined = first;
    let mut plain_failed = false;
    for _ in 0..PASSES_MAX {
        if examined.read_only_because().is_some() {
            // It says why, and does nothing.
            left = Some(repair::run(backend, examined, &mut |_, _, _| Ok(()), tell)?);
            break;
        }
        let lossless = examined.chosen.is_some()
            || examined.findings.fixes.restore_superblocks
            || examined.lacks_pool_map();
        if lossless && examined.may_be_written() && !plain_failed {
            let report = repair::run(
                backend,
                examined,
                &mut |view, findings, contents| {
                    let whole = JournalCut::default();
                    losses.extend(losses::list(view, findings, contents, &[], &[], &whole)?);
                    Ok(())
                },
                tell,
            )?;
            if report.exit_code() <= 1 {
                left = Some(report);
                break;
            }
            plain_failed = true;
        } else if give_up_snapshots(backend, &examined, &mut losses) {
            plain_failed = false;
        } else if !gather(backend, &examined, &mut losses, tell)? {
            break;
        } else {
            plain_failed = false;
        }
        examined = examine::run(backend, tell)?;
        if examined.findings.issues.is_empty() {
            left = Some(examined.findings.into_report());
            break;
        }
    }
    let after = match left {
        Some(mut report) => {
            report.issues.retain(|issue| !issue.repaired);
            report
        }
        None => examine::run(backend, tell)?.findings.into_report(),
    };
    let mut report = repair::compare(before, after);
    report.losses = losses.into_iter().collect();
    Ok(report)
}

/// Takes damaged snapshots out of a volume that recovery takes, so that the others stay, and lists them.
/// False if nothing was published: there are none, or the volume cannot be opened without them.
fn give_up_snapshots(backend: &Arc<dyn Backend>, examined: &Examined, list: &mut BTreeSet<Loss>) -> bool {
    let damaged = &examined.kept.damaged;
    let fixes = &examined.findings.fixes;
    // As recovery takes it, and with a map of the pool that can be relied on.
    let usable =
        examined.chosen.is_some() && examined.may_be_written() && !fixes.pool && fixes.abandon_slot.is_none();
    // What a receive began at is not given up.
    if damaged.is_empty() || !usable || examined.is_receiving {
        return false;
    }
    let numbers: Vec<u32> = damaged.keys().copied().collect();
    let session = match Session::open_without(backend.clone(), &numbers) {
        Ok(session) => session,
        Err(error) => {
            tracing::warn!(%error, "the volume cannot be opened without its damaged snapshots");
            return false;
        }
    };
    // The volume without them is published by now.
    list.extend(damaged.values().map(|name| losses::of_snapshot(name)));
    if let Err(error) = session.close() {
        tracing::warn!(%error, "damaged snapshots are given up, but the volume could not be closed");
    }
    true
}

/// Steps 2 and 3; false if nothing can be done.
fn gather(
    backend: &Arc<dyn Backend>,
    examined: &Examined,
    losses: &mut BTreeSet<Loss>,
    tell: Tell<'_>,
) -> Result<bool> {
    // Giving up its snapshots would leave neither the old state nor the new one. The receive can be ended or
    // given up.
    if examined.is_receiving {
        return Ok(false);
    }
    let device = Device::new(backend.clone());
    let usable = |checkpoint: &&Checkpoint| {
        areas_join(&checkpoint.superblock) && checkpoint.superblock.block_count <= backend.blocks()
    };
    let Some(base) = examined.checkpoints.iter().find(usable) else { return Ok(false) };
    let (mut lost, mut doubtful) = (Vec::new(), Vec::new());
    let newest = std::ptr::eq(base, &examined.checkpoints[0]);
    if !(base.whole && newest && !base.misplaced) {
        (lost, doubtful) = assemble(backend, &device, base, examined, tell)?;
    }
    let snapshots = Bounds { low: Some(Key::snapshot(0)), high: Some(Key::snapshot(u32::MAX)) };
    if base.superblock.epoch > 0 && lost.iter().any(|range| remains::overlap(*range, snapshots)) {
        let what = "the names of snapshots cannot be read: all that there were are given up";
        losses.insert(Loss { path: None, inode: None, what: what.into() });
    }
    let (mut session, cut) = Session::open_remains(backend.clone())?;
    let chunks = session.tree().pool_chunks();
    let mut listen = |view: &View<'_>, findings: &Findings, contents: &Contents| {
        losses.extend(losses::list(view, findings, contents, &lost, &doubtful, &cut)?);
        Ok(())
    };
    repair::rounds(backend, &mut session, &chunks, true, &mut listen, tell)?;
    session.close()?;
    Ok(true)
}

/// Publishes what can be read as a checkpoint; gives the ranges of keys that are lost, and those that may be
/// too old.
fn assemble(
    backend: &Arc<dyn Backend>,
    device: &Device,
    base: &Checkpoint,
    examined: &Examined,
    tell: Tell<'_>,
) -> Result<(Vec<Bounds>, Vec<Bounds>)> {
    let with_map =
        |checkpoint: &&Checkpoint| !checkpoint.manifest_blocks.is_empty() && !checkpoint.chunks.is_empty();
    let map = with_map(&base).then_some(base);
    // Of its neighbour's map the journal tells what has changed since. One of long ago may lack chunks, and
    // list what are blocks of files by now.
    let is_neighbour = |other: &&Checkpoint| other.superblock.checkpoint + 1 >= base.superblock.checkpoint;
    let mapped = map.or_else(|| examined.checkpoints.iter().filter(is_neighbour).find(with_map));
    let chunks = mapped.map(|checkpoint| checkpoint.chunks.clone()).unwrap_or_default();
    let mut superblock = base.superblock.clone();
    let areas = match map {
        Some(map) => map.chunk_runs(),
        // Nothing says where the pool has grown to.
        None => {
            let start = superblock.pool_start.min(superblock.data_start);
            vec![Run::new(start, superblock.data_end.0 - start.0)]
        }
    };
    let total = areas.iter().map(|run| run.blocks).sum();
    let found = scan::scan(device, superblock.volume_id(), &areas, &mut Meter::start(tell, "search", total));
    // No crash leaves nodes of a checkpoint beyond the next one.
    let long_ago = found.iter().any(|node| {
        node.at.generation > superblock.checkpoint + 1 && node.incarnation >= superblock.incarnation
    });
    if long_ago {
        superblock.checkpoint = found.iter().map(|node| node.at.generation).max().unwrap_or(0);
        let life = found.iter().map(|node| node.incarnation).max().unwrap_or(0);
        let (journal_life, position) = journal_end(device, &superblock);
        superblock.incarnation = superblock.incarnation.max(life).max(journal_life) + 1;
        superblock.sequence = superblock.sequence.max(position);
    }
    let start = Start {
        device,
        superblock: &superblock,
        map: map.filter(|_| !long_ago),
        found,
        without_root: long_ago,
    };
    let remains = remains::gather(start, &mut Meter::start(tell, "tree", base.nodes));
    let (lost, doubtful) = (remains.lost.clone(), remains.doubtful.clone());
    let mut shrunk = Vec::new();
    let from = mapped.unwrap_or(base);
    let _ = inspect::journal(backend.clone(), &from.superblock, &mut |_, changes| {
        shrunk.extend(changes.filter_map(|change| match change {
            Change::PoolShrink { start, blocks } => Some(Run::new(start, blocks.into())),
            _ => None,
        }));
    });
    let base = Base {
        slot: base.slot,
        superblock,
        chunks,
        orphans: if map.is_some() && !long_ago { base.orphans.clone() } else { Vec::new() },
        others: &examined.checkpoints,
        shrunk,
    };
    publish::publish(&**backend, base, remains)?;
    Ok((lost, doubtful))
}

/// The newest life that the journal has blocks of, and the position behind all of its blocks.
fn journal_end(device: &Device, superblock: &Superblock) -> (u64, Seq) {
    let (mut life, mut end) = (0, 0);
    let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
    for at in superblock.journal_start.0..superblock.journal_end().0 {
        if device.read(IoClass::Journal, BlockNo(at), &mut block).is_err() {
            continue;
        }
        if let Ok(header) = BlockHeader::decode(&block)
            && header.volume == superblock.volume_id()
        {
            life = life.max(header.incarnation);
            end = end.max(header.position + PAYLOAD_BYTES as u64);
        }
    }
    (life, Seq(end))
}
