//! Mending a volume.
//!
//! Protocol:
//! 1. Bad copies of metadata get the good one's bytes ([`copies`]), which changes nothing that the volume
//!    says. What stands in the way of opening it is mended on disk, each by publishing one superblock: the
//!    pool's map and the orphan blocks ([`pool`]), a newest checkpoint that is damaged ([`slot`]).
//! 2. The volume is opened as a mount opens it, which also writes both superblocks anew. Rounds follow:
//!    analyse, carry the fixes out; until only the accounts (regions, counters) are wrong, which come last.
//!    Fixes are small and local, and what one brings to light the next round mends: so the same code mends
//!    any mixture, a repair that was cut off is taken up by the next one, and mending twice changes nothing.
//!    The tree that an unfinished receive builds makes no sense before its end: it is left as it is.
//! 3. The volume is closed and looked at again; what is no longer found has been repaired.
//!
//! Invariants: a block in use is marked used before any free one is looked for, and freed blocks are marked
//! free only when nothing else is wrong. Nothing is visible on disk but whole checkpoints.
//!
//! Neighbours: `quire::internals::repair` has the session; [`crate::fix`] the orders.

mod copies;
mod extents;
mod lost_found;
mod mender;
pub(crate) mod pool;
mod slot;

use crate::Progress;
use crate::analysis;
use crate::checkpoint::Checkpoint;
use crate::examine::{self, Examined};
use crate::fix::Fixes;
use crate::inodes::Contents;
use crate::issue::{Issue, IssueKind};
use crate::report::{Findings, Place, Report};
use crate::snapshots;
use crate::view::View;
use mender::Mender;
use quire::internals::repair::Session;
use quire_base::sync::Arc;
use quire_base::{BlockNo, Error, Result};
use quire_device::{Backend, Device};
use quire_format::extent::Run;

/// More rounds than any mixture of damage needs; a bound, not an expectation.
const ROUNDS_MAX: usize = 24;

/// Is told what the first round found, before anything is changed for its sake.
pub(crate) type Listen<'f> = &'f mut dyn FnMut(&View<'_>, &Findings, &Contents) -> Result<()>;

/// Mends what the first look found, and looks again.
pub(crate) fn run(
    backend: &Arc<dyn Backend>,
    mut first: Examined,
    listen: Listen<'_>,
    tell: Option<&dyn Fn(Progress)>,
) -> Result<Report> {
    if let Some(because) = first.read_only_because() {
        let message = format!("the repair writes nothing: {because}");
        first.findings.add(IssueKind::RepairFailed, Place::NONE, message);
        return Ok(first.findings.into_report());
    }
    if first.findings.fixes.restore_superblocks && first.may_be_written() {
        slot::restore(backend)?;
        let restored = examine::run(backend, tell)?;
        let mut report = run(backend, restored, listen, tell)?;
        for issue in first.findings.issues {
            if !report.issues.iter().any(|other| same(&issue, other)) {
                report.issues.push(Issue { repaired: true, ..issue });
            }
        }
        return Ok(report);
    }
    if !first.may_be_written() {
        return Ok(first.findings.into_report());
    }
    let lacks_pool_map = first.lacks_pool_map();
    let mut before = std::mem::take(&mut first.findings);
    // Of a volume that cannot be opened nobody knows which copies are in use.
    if let Some(chosen) = first.chosen {
        copies::mend(&**backend, &before.fixes.copies)?;
        copies::mend(&**backend, &first.checkpoints[chosen].copies)?;
    }
    let mended = match first.chosen {
        Some(chosen) => mend(backend, &before.fixes, &first, chosen, listen, tell),
        None if lacks_pool_map => first
            .look_behind_newest(backend)
            .and_then(|()| rewrite_pool(backend, &first, 0, &before.fixes, listen, tell)),
        None => return Ok(before.into_report()),
    };
    if let Err(error) = mended {
        before.add(
            IssueKind::RepairFailed,
            Place::NONE,
            format!("the repair could not be completed: {error}"),
        );
    }
    let after = examine::run(backend, tell)?;
    Ok(compare(before.issues, after.findings.into_report()))
}

/// Writes a new map of the pool, and goes on with what is found then.
fn rewrite_pool(
    backend: &Arc<dyn Backend>,
    examined: &Examined,
    chosen: usize,
    fixes: &Fixes,
    listen: Listen<'_>,
    tell: Option<&dyn Fn(Progress)>,
) -> Result<()> {
    let chunks = &examined.chunks;
    // Chunks that the journal takes away are data space by its end.
    let kept = |block: BlockNo| chunks.iter().any(|run| run.start <= block && block < run.end());
    let avoid = |block: BlockNo| !chunks.is_empty() && !kept(block);
    let needed: Vec<&Checkpoint> = examined.checkpoints.iter().chain(&examined.kept.checkpoints).collect();
    pool::rewrite(&**backend, &needed, chosen, &fixes.release, &avoid)?;
    let mut again = examine::run(backend, tell)?;
    let Some(chosen) = again.chosen else { return Ok(()) };
    // What a new map does not mend, another one will not either.
    again.findings.fixes.pool = false;
    again.findings.fixes.clear_error_flag |= fixes.clear_error_flag;
    if !again.may_be_written() {
        return Ok(());
    }
    let fixes = std::mem::take(&mut again.findings.fixes);
    mend(backend, &fixes, &again, chosen, listen, tell)
}

fn mend(
    backend: &Arc<dyn Backend>,
    fixes: &Fixes,
    examined: &Examined,
    chosen: usize,
    listen: Listen<'_>,
    tell: Option<&dyn Fn(Progress)>,
) -> Result<()> {
    if fixes.pool {
        return rewrite_pool(backend, examined, chosen, fixes, listen, tell);
    }
    if let Some(slot) = fixes.abandon_slot {
        slot::abandon(&**backend, &examined.checkpoints[chosen].superblock, slot)?;
    }
    let mut session = Session::open(backend.clone())?;
    if !examined.is_receiving {
        rounds(backend, &mut session, &examined.chunks, false, listen, tell)?;
    }
    session.close()?;
    if fixes.clear_error_flag {
        slot::clear_error_flags(&**backend)?;
    }
    Ok(())
}

/// Analyses and mends until nothing is wrong; with `gives_up`, data may be lost to that end.
pub(crate) fn rounds(
    backend: &Arc<dyn Backend>,
    session: &mut Session,
    chunks: &[Run],
    gives_up: bool,
    listen: Listen<'_>,
    tell: Option<&dyn Fn(Progress)>,
) -> Result<()> {
    let superblock = session.superblock().clone();
    let device = Device::new(backend.clone());
    for round in 0..ROUNDS_MAX {
        let tree = session.tree().clone();
        let orphans = session.orphans().into_iter().map(|(slot, inode)| (slot.0, inode.0)).collect();
        let mut findings = Findings::default();
        let held = snapshots::held(&device, &tree, &mut findings)?;
        let view = View {
            superblock: &superblock,
            tree: &tree,
            orphans,
            chunks,
            held: &held,
            pool_holds: None,
            counters: false,
        };
        let analysis = analysis::run(&view, &mut findings, tell)?;
        if round == 0 {
            listen(&view, &findings, &analysis.contents)?;
        }
        session.pass_inodes(analysis.counters.next_inode);
        let mut fixes = findings.fixes;
        if fixes.names_unsettled() {
            fixes.forget_names();
        }
        fixes.keep_block_counts();
        let last = !fixes.changes_contents();
        let mut mender = Mender::new(&**backend, session, &view, &analysis, gives_up);
        if last {
            mender.settle_accounts()?;
            return Ok(());
        }
        mender.carry_out(&fixes)?;
    }
    Err(Error::corrupt(format!("something is still wrong after {ROUNDS_MAX} rounds; run the repair again")))
}

fn same(a: &Issue, b: &Issue) -> bool {
    (a.code, a.inode, a.block) == (b.code, b.inode, b.block)
}

/// The first look's issues, those that the second did not find as repaired, and what only the second found.
/// Of a second list that was cut nobody knows what it does not have.
pub(crate) fn compare(first: Vec<Issue>, second: Report) -> Report {
    let is_cut = second.summary.issues_omitted > 0;
    let mut left = second.issues;
    let mut issues = first;
    for issue in &mut issues {
        let found = left.iter().position(|other| same(issue, other));
        issue.repaired = found.is_none() && !is_cut && issue.code != IssueKind::RepairFailed;
        if let Some(found) = found {
            left.remove(found);
        }
    }
    issues.extend(left);
    Report { issues, summary: second.summary, ..Report::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second look that found more than a report keeps called whatever was not in its list repaired.
    #[test]
    fn nothing_is_repaired_that_a_cut_list_may_leave_out() {
        let first = || {
            let mut findings = Findings::default();
            findings.add(IssueKind::BlockLeaked, Place::block(7), "lost");
            findings.issues
        };
        let mut second = Report::default();
        assert!(compare(first(), second.clone()).issues[0].repaired);
        second.summary.issues_omitted = 1;
        assert!(!compare(first(), second).issues[0].repaired);
    }
}
