//! The record of what happened to a simulated device, and the state machine that gives it meaning.
//!
//! [`Event`]s are appended at submission and at completion. `Medium` is the device after a prefix of them:
//! the same code drives the live device and rebuilds any earlier moment, so a crash image of the past is as
//! good as one of the present.
//!
//! Meaning, the contract of real devices and no more:
//!
//! * A write is *unsafe* from its submission until a flush that was submitted after its completion succeeds.
//! * A failed flush makes nothing safe, ever: the writes that it should have covered stay unsafe for good,
//!   also under later flushes (what a real device dropped then is unknowable). A failed write stays unsafe
//!   likewise: it may have reached the medium or not.
//! * When a write becomes safe, unsafe writes that ended before it lose their claim to the same blocks.
//! * A discard is a write of absent blocks.

use super::crash::CrashPolicy;
use super::image::{Block, Image};
use crate::backend::IoClass;
use quire_base::BlockNo;
use std::sync::Arc;

/// Contents of a recorded write: one entry a block, None for a discarded one.
pub type Contents = Arc<[Option<Block>]>;

/// One step of a device's life. Numbers name writes and flushes from submission to end, counted together.
#[derive(Clone, Debug)]
pub enum Event {
    /// A write (or discard: `class` is None) was handed to the device.
    WriteSubmitted {
        /// Its number.
        id: u64,
        /// What it was for; None for a discard.
        class: Option<IoClass>,
        /// First block.
        at: BlockNo,
        /// What it writes.
        contents: Contents,
    },
    /// It completed; reads see it.
    WriteCompleted {
        /// The write's number.
        id: u64,
    },
    /// It failed; reads do not see it, a crash may.
    WriteFailed {
        /// The write's number.
        id: u64,
    },
    /// A flush was handed to the device.
    FlushSubmitted {
        /// Its number.
        id: u64,
    },
    /// It succeeded.
    FlushCompleted {
        /// The flush's number.
        id: u64,
    },
    /// It failed.
    FlushFailed {
        /// The flush's number.
        id: u64,
    },
    /// The medium changed by itself.
    Rotted {
        /// The block.
        at: BlockNo,
        /// What it holds now.
        block: Block,
    },
    /// The device lost power and came back: what was not safe met its fate, and the rest is all there is.
    PowerLost {
        /// Decides the fates.
        policy: CrashPolicy,
    },
    /// A remark of the test: what had been promised or done by now.
    Note(u64),
}

/// How an unsafe write stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    InFlight,
    /// Completed as the n-th write to end.
    Completed(u64),
    /// Failed as the n-th write to end.
    Failed(u64),
}

impl Standing {
    /// Place in the order of ends; what has not ended comes last.
    pub(super) fn order(self) -> u64 {
        match self {
            Standing::InFlight => u64::MAX,
            Standing::Completed(order) | Standing::Failed(order) => order,
        }
    }
}

/// A write that no flush has made safe.
#[derive(Clone)]
pub(super) struct UnsafeWrite {
    pub(super) id: u64,
    pub(super) at: BlockNo,
    pub(super) contents: Contents,
    pub(super) standing: Standing,
    /// A flush that covered it failed.
    doomed: bool,
    /// Blocks (index into `contents`) that a later safe write has taken over; sorted. Almost always empty.
    superseded: Vec<usize>,
}

impl UnsafeWrite {
    /// Its blocks that may still reach the medium.
    pub(super) fn live_blocks(&self) -> impl Iterator<Item = (BlockNo, &Option<Block>)> {
        self.contents
            .iter()
            .enumerate()
            .filter(|(index, _)| self.superseded.binary_search(index).is_err())
            .map(|(index, block)| (self.at.offset(index as u64), block))
    }

    pub(super) fn overlaps(&self, at: BlockNo, count: u64) -> bool {
        at.0 < self.at.0 + self.contents.len() as u64 && self.at.0 < at.0 + count
    }

    fn give_up(&mut self, at: BlockNo, count: u64) {
        let from = at.0.max(self.at.0);
        let to = (at.0 + count).min(self.at.0 + self.contents.len() as u64);
        self.superseded.extend((from..to).map(|block| (block - self.at.0) as usize));
        self.superseded.sort_unstable();
        self.superseded.dedup();
    }
}

/// The device after some prefix of its events.
#[derive(Clone)]
pub(super) struct Medium {
    /// What survives whatever happens.
    pub(super) safe: Image,
    /// What reads see.
    pub(super) visible: Image,
    /// In order of submission.
    pub(super) unsafe_writes: Vec<UnsafeWrite>,
    /// Flushes in flight: number, and the count of ended writes when it was submitted.
    flushes: Vec<(u64, u64)>,
    /// Writes that have ended.
    ended: u64,
}

impl Medium {
    pub(super) fn new(image: Image) -> Medium {
        Medium {
            safe: image.clone(),
            visible: image,
            unsafe_writes: Vec::new(),
            flushes: Vec::new(),
            ended: 0,
        }
    }

    /// A device that has these writes in its cache, as if they had completed in this order. They get the
    /// numbers from 1 on.
    pub(super) fn with_cache(safe: Image, visible: Image, mut writes: Vec<UnsafeWrite>) -> Medium {
        for (write, number) in writes.iter_mut().zip(1..) {
            write.id = number;
            write.standing = Standing::Completed(number);
        }
        let ended = writes.len() as u64;
        Medium { safe, visible, unsafe_writes: writes, flushes: Vec::new(), ended }
    }

    pub(super) fn apply(&mut self, event: &Event) {
        match event {
            Event::WriteSubmitted { id, at, contents, .. } => self.unsafe_writes.push(UnsafeWrite {
                id: *id,
                at: *at,
                contents: contents.clone(),
                standing: Standing::InFlight,
                doomed: false,
                superseded: Vec::new(),
            }),
            Event::WriteCompleted { id } => {
                self.ended += 1;
                let standing = Standing::Completed(self.ended);
                if let Some(write) = find(&mut self.unsafe_writes, *id) {
                    write.standing = standing;
                    for (at, block) in write.live_blocks() {
                        self.visible.set(at, block.clone());
                    }
                }
            }
            Event::WriteFailed { id } => {
                self.ended += 1;
                let standing = Standing::Failed(self.ended);
                if let Some(write) = find(&mut self.unsafe_writes, *id) {
                    write.standing = standing;
                }
            }
            Event::FlushSubmitted { id } => self.flushes.push((*id, self.ended)),
            Event::FlushCompleted { id } => {
                let covered = self.take_flush(*id);
                self.make_safe(covered);
            }
            Event::FlushFailed { id } => {
                let covered = self.take_flush(*id);
                for write in &mut self.unsafe_writes {
                    write.doomed |= matches!(write.standing, Standing::Completed(order) if order <= covered);
                }
            }
            Event::Rotted { at, block } => {
                self.safe.set(*at, Some(block.clone()));
                self.visible.set(*at, Some(block.clone()));
            }
            Event::PowerLost { policy } => *self = Medium::new(self.crash(*policy)),
            Event::Note(_) => {}
        }
    }

    /// Ends the flush; returns how many writes had ended when it was submitted.
    fn take_flush(&mut self, id: u64) -> u64 {
        match self.flushes.iter().position(|(flush, _)| *flush == id) {
            Some(index) => self.flushes.remove(index).1,
            None => 0,
        }
    }

    /// Makes the first `covered` completions safe, in the order of completion.
    fn make_safe(&mut self, covered: u64) {
        let is_safe = |write: &UnsafeWrite| {
            !write.doomed && matches!(write.standing, Standing::Completed(order) if order <= covered)
        };
        let (mut safe, mut rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.unsafe_writes).into_iter().partition(is_safe);
        safe.sort_unstable_by_key(|write| write.standing.order());
        for write in &safe {
            for (at, block) in write.live_blocks() {
                self.safe.set(at, block.clone());
            }
            for other in &mut rest {
                let count = write.contents.len() as u64;
                if other.standing.order() < write.standing.order() && other.overlaps(write.at, count) {
                    other.give_up(write.at, count);
                }
            }
        }
        self.unsafe_writes = rest;
    }
}

fn find(writes: &mut [UnsafeWrite], id: u64) -> Option<&mut UnsafeWrite> {
    writes.iter_mut().rev().find(|write| write.id == id)
}

/// Events kept, with the medium saved now and then so that any moment is near a saved one.
pub(super) struct History {
    events: Vec<Event>,
    /// Number of events before each saved medium; ascending, the first is 0.
    saved: Vec<(usize, Medium)>,
    keeps: bool,
}

/// Fewest events between two saved media. While many writes are unsafe the distance is their number, so that
/// saving costs a constant an event and rebuilding costs no more than looking at all of them.
const SAVE_INTERVAL: usize = 64;

impl History {
    pub(super) fn new(start: &Medium) -> History {
        History { events: Vec::new(), saved: vec![(0, start.clone())], keeps: true }
    }

    /// Keeps nothing from now on.
    pub(super) fn stop(&mut self) {
        self.events = Vec::new();
        self.saved = Vec::new();
        self.keeps = false;
    }

    /// Appends an event; `after` is the medium with it applied.
    pub(super) fn push(&mut self, event: Event, after: &Medium) {
        if !self.keeps {
            return;
        }
        self.events.push(event);
        let last = self.saved.last().map_or(0, |(count, _)| *count);
        if self.events.len() - last >= SAVE_INTERVAL.max(after.unsafe_writes.len()) {
            self.saved.push((self.events.len(), after.clone()));
        }
    }

    pub(super) fn events(&self) -> &[Event] {
        &self.events
    }

    /// The medium after the first `count` events; None if that is not kept.
    pub(super) fn medium_after(&self, count: usize) -> Option<Medium> {
        if !self.keeps || count > self.events.len() {
            return None;
        }
        let index = self.saved.partition_point(|(at, _)| *at <= count);
        let (at, medium) = &self.saved[index - 1];
        let mut medium = medium.clone();
        for event in &self.events[*at..count] {
            medium.apply(event);
        }
        Some(medium)
    }
}
