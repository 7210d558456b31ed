//! The cross-checks over one view of a volume, in their order.
//!
//! Neighbours: [`crate::examine`] runs them on an image, [`crate::repair`] on a volume under repair.

use crate::Progress;
use crate::fix::Counters;
use crate::inodes::{self, Contents};
use crate::issue::IssueKind;
use crate::progress::Meter;
use crate::report::{Findings, Place};
use crate::view::View;
use crate::{names, orphans, space};
use quire_base::Result;

/// What the cross-checks found out, beside issues.
pub(crate) struct Analysis {
    /// Extents are sorted by disk block.
    pub(crate) contents: Contents,
    pub(crate) counters: Counters,
}

/// Runs all cross-checks. Errors: the tree cannot be read.
pub(crate) fn run(
    view: &View<'_>,
    findings: &mut Findings,
    tell: Option<&dyn Fn(Progress)>,
) -> Result<Analysis> {
    let inodes = view.superblock.inode_count;
    let mut contents = inodes::scan(view, findings, &mut Meter::start(tell, "inodes", inodes))?;
    orphans::mark(view, &mut contents);
    let total = contents.inodes.len() as u64;
    names::check(view, &mut contents, findings, &mut Meter::start(tell, "names", total))?;
    orphans::check(view, &mut contents, findings);
    let _meter = Meter::start(tell, "space", contents.extents.len() as u64);
    space::check_sharing(view, &mut contents.extents, findings);
    let free_blocks = space::check_regions(view, &contents.extents, findings)?;
    let counters = Counters {
        free_blocks,
        inodes: contents.inodes.len() as u64 + contents.damaged_records,
        next_inode: view.superblock.next_inode.max(contents.highest.saturating_add(1)),
    };
    if view.counters {
        check_counters(view, &counters, findings);
    }
    Ok(Analysis { contents, counters })
}

fn check_counters(view: &View<'_>, is: &Counters, findings: &mut Findings) {
    let says = view.superblock;
    let mut wrong = |kind: IssueKind, message: String| {
        findings.add(kind, Place::NONE, message);
        findings.fixes.counters = true;
    };
    if says.free_blocks != is.free_blocks {
        wrong(
            IssueKind::FreeBlocksWrong,
            format!("the superblock counts {} free blocks, there are {}", says.free_blocks, is.free_blocks),
        );
    }
    if says.inode_count != is.inodes {
        wrong(
            IssueKind::InodeCountWrong,
            format!("the superblock counts {} inodes, there are {}", says.inode_count, is.inodes),
        );
    }
    if says.next_inode != is.next_inode {
        wrong(
            IssueKind::NextInodeWrong,
            format!(
                "the next inode would get the number {}, but {} is in use",
                says.next_inode,
                is.next_inode - 1
            ),
        );
    }
}
