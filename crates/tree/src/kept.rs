//! Looking at every copy of the nodes that only kept checkpoints have, and mending them.
//!
//! Protocol. A walk goes down from the roots of a kept checkpoint, and reads all copies of each node. It
//! leaves out what the newest checkpoint needs as well, with all that is below it: that is for the scrub of
//! the live tree ([`crate::scrub`]). It leaves out what another walk has read, too. A block of a kept
//! checkpoint never comes back into the live tree while the volume is open, so walks that follow a scrub of
//! the live tree, and the checkpoint behind it, miss nothing.
//!
//! A bad copy is overwritten with the good one's bytes, in place: the reference fixes them, and nothing else
//! is written to a block while a checkpoint that needs it is kept. A crash in the middle leaves the good
//! copy.
//!
//! Invariants: a block is overwritten only while checkpoints are kept out, and the checkpoint that the walk
//! is of is kept. Blocks are let go, and handed out again, by checkpoints alone. What a walk reads after its
//! checkpoint was let go means nothing.
//!
//! Neighbours: `copies` reads and overwrites, `pool` knows what is kept; the volume's scrub calls this.

use crate::copies::Look;
use crate::load::read_node;
use crate::tree::Tree;
use quire_base::{BlockNo, Error};
use quire_format::node::{NodeRef, Roots};
use std::collections::HashMap;

/// Nodes that a step reads.
const STEP_NODES: u64 = 64;

/// The blocks that walks have come to: by 64 of them, a bitmap.
#[derive(Debug, Default)]
pub struct Visited(HashMap<u64, u64>);

impl Visited {
    /// Adds a block; false if it was there.
    fn add(&mut self, block: BlockNo) -> bool {
        let (word, bit) = (self.0.entry(block.0 / 64).or_default(), 1 << (block.0 % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

/// A walk through the nodes of one kept checkpoint.
#[derive(Debug)]
pub struct KeptWalk {
    ahead: Vec<NodeRef>,
}

impl KeptWalk {
    /// From these roots.
    pub fn new(roots: Roots) -> KeptWalk {
        KeptWalk { ahead: roots.to_vec() }
    }

    /// Whether nothing is left.
    pub fn is_done(&self) -> bool {
        self.ahead.is_empty()
    }
}

/// What a step of a walk has read.
#[derive(Debug, Default)]
pub struct KeptStep {
    /// Nodes whose copies were read.
    pub nodes: u64,
    /// Of these, nodes of which one copy is bad.
    pub damaged: Vec<NodeRef>,
    /// Why nodes are lost: no copy is good.
    pub lost: Vec<Error>,
}

impl Tree {
    /// Whether a checkpoint is kept under this number.
    pub fn keeps(&self, number: u32) -> bool {
        self.pool.lock().keeps(number)
    }

    /// Reads all copies of the next nodes. Does I/O.
    pub fn scrub_kept(&self, walk: &mut KeptWalk, visited: &mut Visited) -> KeptStep {
        let mut step = KeptStep::default();
        while step.nodes < STEP_NODES {
            let Some(at) = walk.ahead.pop() else { break };
            if self.pool.lock().is_used(at.block) || !visited.add(at.block) {
                continue;
            }
            step.nodes += 1;
            match read_node(&self.device, self.volume, &at, Look::AtAll) {
                Ok((page, is_damaged)) => {
                    if is_damaged {
                        step.damaged.push(at);
                    }
                    if page.level() > 0 {
                        walk.ahead.extend((0..page.count()).rev().map(|child| page.child(child)));
                    }
                }
                Err(error) => step.lost.push(error),
            }
        }
        step
    }

    /// Overwrites the bad copy of a node that a step has found; says whether both copies are good now. The
    /// caller keeps checkpoints out, and knows that the checkpoint is still kept.
    pub fn mend_kept(&self, at: &NodeRef) -> bool {
        self.counters.damaged.add(1);
        let is_kept = {
            let pool = self.pool.lock();
            at.place().copies().all(|block| pool.is_kept(block))
        };
        let mended =
            is_kept && matches!(read_node(&self.device, self.volume, at, Look::Mend), Ok((_, false)));
        self.counters.healed.add(u64::from(mended));
        mended
    }
}
