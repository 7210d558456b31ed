//! Writeback: from dirty bits to device requests.
//!
//! Protocol (C2). A segment is shared, so its contents are stable; its dirty bits move to `writeback`; runs
//! of blocks that follow one another in the file, across folios, get homes from the backing; each home run is
//! one device request, and so are requests that follow one another on the device, whatever files they belong
//! to ([`crate::outbox`]). The share is kept until the run has been applied ([`crate::finish`]).
//!
//! Background writeback only tries for the share and passes over what is busy. A synchronous one submits what
//! it has gathered, so that everything it holds ends by itself, and then queues for the busy segment. A
//! backing that would have to wait for journal space refuses; then everything gathered goes back to dirty,
//! the thread waits with nothing held, and gathers again from there.
//!
//! Invariants: never two device writes of one block in flight (a bit is claimed once, and a block in
//! writeback cannot become dirty, as its segment is shared); shares are never held across a wait for anything
//! but the device.
//!
//! Neighbours: [`crate::mapping`] for the list of dirty folios, [`crate::snapshot`] for waits,
//! [`crate::outbox`] for the way to the device, [`crate::finish`] for what follows, [`crate::flusher`] for
//! when.

use crate::backing::{Backing, Placement, Purpose};
use crate::bits::{masks, runs};
use crate::blocks::Blocks;
use crate::finish::WriteRun;
use crate::folio::FolioPin;
use crate::journaled;
use crate::mapping::Mapping;
use crate::outbox::Outbox;
use crate::span::Span;
use quire_base::sync::Arc;
use quire_base::sync::atomic::Ordering;
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result};
use quire_device::Segment;

/// Listed folios pinned at a time.
const FOLIOS_AT_ONCE: usize = 64;
/// Refusals in a row by a backing that then says there is room, before that counts as an error.
const REFUSALS_MAX: u32 = 10_000;

/// What a gathering takes, and what it does where others hold a segment.
#[derive(Clone, Copy)]
pub(crate) enum Effort<'a> {
    /// Everything; what is busy is passed over.
    Background,
    /// These blocks, for somebody who waits for them. It queues for what is busy, or passes over it and says
    /// so.
    Forced { blocks: &'a Blocks, passing: bool, purpose: Purpose },
}

impl Effort<'_> {
    fn purpose(&self) -> Purpose {
        match self {
            Effort::Background => Purpose::Writeback,
            Effort::Forced { purpose, .. } => *purpose,
        }
    }
}

/// What has come of a gathering.
pub(crate) struct Gathered {
    /// Blocks that it has started to write.
    pub started: u64,
    /// Where it stopped.
    pub next: u64,
    /// Segments that it has passed over, as first block and end.
    pub busy: Vec<(u64, u64)>,
    /// Somebody keeps writeback off the range ([`crate::hold`]): it did nothing.
    pub is_held: bool,
}

impl Gathered {
    fn nothing(end: u64) -> Gathered {
        Gathered { started: 0, next: end, busy: Vec::new(), is_held: false }
    }
}

/// A pass over a mapping's dirty blocks.
struct Gathering<'a> {
    mapping: &'a Arc<Mapping>,
    backing: Arc<dyn Backing>,
    effort: Effort<'a>,
    busy: Vec<(u64, u64)>,
    /// The run that is growing.
    spans: Vec<Span>,
    blocks: u32,
    /// Requests not yet handed to the device, of other files as well.
    outbox: &'a mut Outbox,
    /// The backing refused: the lowest block put back.
    refused_at: Option<u64>,
    /// Blocks of the largest run put back.
    refused_blocks: u32,
    started: u64,
}

impl Mapping {
    /// Writes what is dirty in blocks `[start, end)` now and waits until it is on the device and applied, and
    /// what was in flight already. Queues for busy segments. Fails if a block of the range has failed and is
    /// still not written. Does not flush the device.
    pub fn write_back(&self, start: u64, end: u64) -> Result<()> {
        let mut snapshot = self.snapshot(start, end);
        snapshot.start_here(Purpose::Writeback);
        snapshot.wait()
    }

    /// Starts writing what is dirty in `[start, end)` and returns without waiting for it. Without background
    /// threads it does wait: nobody else would finish what it has started.
    pub fn start_write_back(&self, start: u64, end: u64) {
        let mut snapshot = self.snapshot(start, end);
        snapshot.start();
        if !self.core.running.load(Ordering::Acquire) {
            snapshot.wait_out();
        }
    }

    /// Puts dirty blocks of `[start, end)`, ascending, into the outbox until there are about `blocks_max`.
    /// The caller waits for nothing before it has handed the outbox over or dropped it.
    pub(crate) fn gather(
        &self,
        outbox: &mut Outbox,
        start: u64,
        end: u64,
        effort: Effort<'_>,
        blocks_max: u64,
    ) -> Result<Gathered> {
        if self.is_clean() {
            return Ok(Gathered::nothing(end));
        }
        let backing = self.backing()?;
        let mut unit = backing.unit_blocks();
        let (start, end, _open) = loop {
            let (start, end) = match unit {
                Some(unit) => (start / unit * unit, end.next_multiple_of(unit)),
                None => (start, end),
            };
            let Some(open) = self.begin_gathering(start, end) else {
                return Ok(Gathered { is_held: true, ..Gathered::nothing(end) });
            };
            // A change of the unit waits for the gatherings that have begun: what is read now stays.
            match backing.unit_blocks() {
                now if now == unit => break (start, end, open),
                now => unit = now,
            }
        };
        let mapping = self.this();
        if let Some(unit) = unit {
            return journaled::gather(&mapping, &*backing, outbox, (start, end), unit, effort, blocks_max);
        }
        Gathering {
            mapping: &mapping,
            backing,
            effort,
            busy: Vec::new(),
            spans: Vec::new(),
            blocks: 0,
            outbox,
            refused_at: None,
            refused_blocks: 0,
            started: 0,
        }
        .run(start, end, blocks_max)
    }
}

impl Gathering<'_> {
    fn run(mut self, start: u64, end: u64, blocks_max: u64) -> Result<Gathered> {
        let mut at = start;
        let mut refusals = 0;
        let mut pins = Vec::with_capacity(FOLIOS_AT_ONCE);
        loop {
            self.mapping.pin_listed(at, end, FOLIOS_AT_ONCE, &mut pins);
            let seen_all = pins.is_empty();
            for pin in pins.drain(..) {
                if self.refused_at.is_none() && self.started < blocks_max {
                    at = self.take_folio(&pin, at, end, blocks_max);
                }
            }
            if seen_all || self.started >= blocks_max {
                self.submit_run();
            }
            if self.refused_at.is_some() {
                // What has joined the run since goes back with it.
                self.put_back_run();
            }
            if let Some(refused_at) = self.refused_at.take() {
                self.outbox.hand_over();
                refusals += 1;
                if refusals > REFUSALS_MAX {
                    return Err(Error::new(
                        ErrorKind::Busy,
                        format!("writing inode {} back: there is never room for it", self.mapping.inode),
                    ));
                }
                self.backing.wait_for_room(std::mem::take(&mut self.refused_blocks).into())?;
                at = refused_at.min(at);
                continue;
            }
            refusals = 0;
            if seen_all || self.started >= blocks_max {
                let next = if seen_all { end } else { at };
                return Ok(Gathered { started: self.started, next, busy: self.busy, is_held: false });
            }
        }
    }

    /// Takes the dirty blocks of a folio's part of `[start, end)`, unless enough is under way. Gives where it
    /// ended.
    fn take_folio(&mut self, pin: &FolioPin, start: u64, end: u64, blocks_max: u64) -> u64 {
        let (mut from, to) = pin.clip(start, end);
        while let Some(block) = pin.dirty().next_set(from, to) {
            if self.refused_at.is_some() || self.started >= blocks_max {
                return pin.start() + u64::from(from);
            }
            let number = pin.segment_number(block);
            let stop = pin.segment_blocks(number).1.min(to);
            from = stop;
            let segment = pin.segment(number);
            // A segment is at most 32 blocks, aligned: it lies in one word.
            let (word, mut mask) = masks(block, stop).next().expect("the range has a block");
            if let Effort::Forced { blocks, .. } = self.effort {
                mask &= blocks.bits_from(pin.start() + word as u64 * 64);
                if pin.dirty().word(word).load(Ordering::SeqCst) & mask == 0 {
                    continue;
                }
            }
            if !segment.try_share() {
                if !matches!(self.effort, Effort::Forced { passing: false, .. }) {
                    self.mapping.core.metrics.writeback_busy.add(1);
                    self.busy.push((pin.start() + u64::from(block), pin.start() + u64::from(stop)));
                    continue;
                }
                // Hold nothing that does not end by itself.
                self.submit_run();
                self.outbox.hand_over();
                self.mapping.core.metrics.writeback_queued.add(1);
                segment.share(&self.mapping.core.parking);
            }
            let bits = self.mapping.claim_dirty(pin, word, mask);
            if bits == 0 {
                segment.unshare(&self.mapping.core.parking);
            }
            let mut first_span = true;
            for (first, count) in runs(word, bits) {
                if !std::mem::take(&mut first_span) {
                    segment.share_again();
                }
                self.push(Span { pin: pin.clone(), first, count });
            }
        }
        pin.end_block().min(end)
    }

    /// Adds a span to the run, which is submitted first if the span does not continue it.
    fn push(&mut self, span: Span) {
        let continues = self.spans.last().is_none_or(|last| last.end_block() == span.file_block())
            && self.blocks + span.count <= self.mapping.core.config.run_blocks_max;
        if !continues {
            self.submit_run();
        }
        self.blocks += span.count;
        self.spans.push(span);
    }

    /// Gives the run homes and makes requests of it. On a refusal it goes back to dirty.
    fn submit_run(&mut self) {
        while !self.spans.is_empty() {
            if self.refused_at.is_some() {
                return self.put_back_run();
            }
            let (block, count) = (self.spans[0].file_block(), u64::from(self.blocks));
            let few =
                self.effort.purpose() == Purpose::Force && self.started + count <= journaled::RECORD_BLOCKS;
            let (journaled, count) = match self.backing.goes_through_journal(block, count, few) {
                Ok(way) => way,
                Err(error) => return self.fail_run(&error),
            };
            if journaled {
                let rest = split(&mut self.spans, count);
                let spans = std::mem::take(&mut self.spans);
                self.spans = journaled::journal_run(self.mapping, &*self.backing, spans);
                let refused = self.spans.iter().map(|span| span.count).sum::<u32>();
                self.started += count - u64::from(refused);
                self.blocks -= count as u32 - refused;
                self.spans.extend(rest);
                if refused > 0 {
                    return self.put_back_run();
                }
                continue;
            }
            let placement = match self.backing.place(block, count) {
                Ok(placement) => placement,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return self.put_back_run();
                }
                Err(error) => return self.fail_run(&error),
            };
            match check_placement(&placement, block, count) {
                Ok(covered) => {
                    let rest = split(&mut self.spans, covered);
                    let spans = std::mem::replace(&mut self.spans, rest);
                    self.blocks -= covered as u32;
                    self.start(placement, spans);
                }
                Err(error) => {
                    let _ = self.backing.written(placement, Err(error.clone()));
                    return self.fail_run(&error);
                }
            }
        }
    }

    fn put_back_run(&mut self) {
        if let Some(first) = self.spans.first() {
            let first = first.file_block();
            self.refused_at = Some(self.refused_at.map_or(first, |before| before.min(first)));
            self.refused_blocks = self.refused_blocks.max(self.blocks);
        }
        self.mapping.put_back(&self.spans);
        self.spans.drain(..).for_each(|span| span.unshare(&self.mapping.core.parking));
        self.blocks = 0;
    }

    fn fail_run(&mut self, error: &Error) {
        self.mapping.core.metrics.writeback_errors.add(1);
        let now = self.mapping.core.clock.now();
        for span in &self.spans {
            self.mapping.errors.record(span.file_block(), span.end_block(), error, now);
            span.pin.dirty().set(span.first, span.first + span.count);
        }
        let waits = self.mapping.clear_writeback(&self.spans);
        self.mapping.relist(&self.spans);
        let blocks: Vec<(u64, u64)> =
            self.spans.iter().map(|span| (span.file_block(), span.end_block())).collect();
        self.mapping.ended(&blocks, waits);
        self.spans.drain(..).for_each(|span| span.unshare(&self.mapping.core.parking));
        self.blocks = 0;
    }

    /// Makes the requests of a placed run.
    fn start(&mut self, placement: Placement, spans: Vec<Span>) {
        let core = self.mapping.core.clone();
        let blocks: u32 = spans.iter().map(|span| span.count).sum();
        let requests = requests(&placement, &spans, core.config.io_blocks_max);
        let run = WriteRun::new(self.mapping.clone(), self.backing.clone(), placement, spans, requests.len());
        let run = Arc::new(run);
        core.metrics.writeback_runs.add(1);
        core.metrics.writeback_blocks.add(u64::from(blocks));
        self.started += u64::from(blocks);
        for request in requests {
            let (at, blocks, segments) = request.into_parts();
            self.outbox.push(at, blocks, segments, run.clone());
        }
    }
}

impl Mapping {
    /// Moves dirty bits to writeback; returns those that were ours to move. The caller shares the segment.
    pub(crate) fn claim_dirty(&self, pin: &FolioPin, word: usize, mask: u64) -> u64 {
        let (dirty, writeback) = (pin.dirty().word(word), pin.writeback().word(word));
        let wanted = dirty.load(Ordering::SeqCst) & mask;
        // Writeback first, so that a block is never seen with neither.
        let in_flight = writeback.fetch_or(wanted, Ordering::SeqCst);
        let claimed = wanted & !in_flight;
        let ours = claimed & dirty.fetch_and(!claimed, Ordering::SeqCst);
        if ours != claimed {
            self.not_in_flight(pin, word, claimed & !ours);
        }
        ours
    }
}

/// How many blocks a placement covers, if it is what was asked for.
fn check_placement(placement: &Placement, block: u64, count: u64) -> Result<u64> {
    let mut next = block;
    for run in &placement.runs {
        if run.file_block != next || run.count == 0 || run.count > block + count - next {
            return Err(Error::corrupt(format!(
                "a placement of {count} blocks from {block} has a run of {} at {} where {next} was due",
                run.count, run.file_block
            )));
        }
        next += run.count;
    }
    if next == block {
        return Err(Error::corrupt(format!("a placement of {count} blocks from {block} is empty")));
    }
    Ok(next - block)
}

/// Cuts the spans after `blocks` blocks; returns the rest.
fn split(spans: &mut Vec<Span>, blocks: u64) -> Vec<Span> {
    let mut left = blocks;
    for i in 0..spans.len() {
        let count = u64::from(spans[i].count);
        if count > left {
            if left == 0 {
                return spans.split_off(i);
            }
            let rest = spans[i].split_off(left as u32);
            let mut tail = vec![rest];
            tail.extend(spans.drain(i + 1..));
            return tail;
        }
        left -= count;
    }
    Vec::new()
}

/// A device request that is being put together.
struct Request {
    at: BlockNo,
    blocks: u64,
    /// Start and bytes, in device order.
    memory: Vec<(*mut u8, usize)>,
}

impl Request {
    fn into_parts(self) -> (BlockNo, u64, Vec<Segment>) {
        // SAFETY: arena memory of pinned folios, whose segments are shared until the run is finished: it
        // stays and does not change.
        let segment = |(start, len)| unsafe { Segment::new(start, len) };
        (self.at, self.blocks, self.memory.into_iter().map(segment).collect())
    }
}

/// The device requests of a placed run: runs of homes that follow one another, at most `blocks_max` each.
fn requests(placement: &Placement, spans: &[Span], blocks_max: u32) -> Vec<Request> {
    let blocks_max = u64::from(blocks_max);
    let mut requests: Vec<Request> = Vec::new();
    let mut spans = spans.iter();
    let (mut span, mut skip) = (spans.next(), 0u32);
    for run in &placement.runs {
        let mut done = 0;
        while done < run.count {
            let Some(current) = span else { break };
            let home = run.home.offset(done);
            let continues = requests
                .last()
                .is_some_and(|last| last.at.offset(last.blocks) == home && last.blocks < blocks_max);
            if !continues {
                requests.push(Request { at: home, blocks: 0, memory: Vec::new() });
            }
            let request = requests.last_mut().expect("one was pushed if there was none");
            let count =
                u64::from(current.count - skip).min(run.count - done).min(blocks_max - request.blocks);
            let (start, bytes) = (current.pin.memory(current.first + skip), count as usize * BLOCK_SIZE);
            match request.memory.last_mut() {
                Some((last, len)) if last.wrapping_add(*len) == start => *len += bytes,
                _ => request.memory.push((start, bytes)),
            }
            request.blocks += count;
            done += count;
            skip += count as u32;
            if skip == current.count {
                (span, skip) = (spans.next(), 0);
            }
        }
    }
    requests
}
