//! Reading blocks in: claims, requests to the device, readahead.
//!
//! Protocol. A thread that wants blocks in memory takes a share of their segment, sets the `fill` bits of
//! those that are neither uptodate nor claimed, and releases the share: so no writer is inside while a
//! claim is made, and a writer that comes later sees the bit, releases all segments and waits for it. The
//! claim holder asks the backing where the blocks live, zeroes holes, unwritten extents and everything past
//! EOF in memory, and reads the rest, neighbours merged into one request across folios. When a request
//! completes (on the device's thread), `uptodate` is set, then `fill` cleared, and sleepers are woken; on an
//! error only `fill` is cleared, so that the next thread that needs the block tries again and gets its own
//! error. A thread that needs a single request issues it itself: a system call, instead of two switches
//! between threads.
//!
//! Invariants: memory of a claimed block is written by its claim holder only; a claim's folio is pinned until
//! it ends; the extents of a claimed block do not change (the starter is inside the gate, and who changes
//! extents under an exclusive or direct gate drops the blocks from the cache first, which waits for the
//! bits).
//!
//! Neighbours: `read` and `write` call [`Mapping::fill`]; [`crate::discard`] waits for claims.

use crate::backing::{Run, map_all};
use crate::bits::masks;
use crate::copy;
use crate::core::Core;
use crate::folio::FolioPin;
use crate::index::Pins;
use crate::mapping::Mapping;
use quire_base::patience;
use quire_base::sync::atomic::Ordering;
use quire_base::sync::{Arc, Condvar, Mutex};
use quire_base::units::blocks_for;
use quire_base::{BLOCK_SIZE, BlockNo, Error, Result};
use quire_device::{Io, IoClass, IoOp, Segment};

/// Blocks of one folio whose fill bits are ours.
struct Claim {
    pin: FolioPin,
    /// First block within the folio.
    first: u32,
    count: u32,
}

impl Claim {
    fn file_block(&self) -> u64 {
        self.pin.start() + u64::from(self.first)
    }

    /// The part of it that is `count` blocks from `skip` on.
    fn part(&self, skip: u64, count: u64) -> Claim {
        Claim { pin: self.pin.clone(), first: self.first + skip as u32, count: count as u32 }
    }

    /// Ends the claim.
    fn end(&self, core: &Core, valid: bool) {
        let (from, to) = (self.first, self.first + self.count);
        if valid {
            self.pin.uptodate().set(from, to);
        }
        self.pin.filling().clear(from, to);
        core.parking.wake(self.pin.fill_address());
    }
}

/// What a starter waits for: requests under way, and the first error.
#[derive(Default)]
struct Latch {
    state: Mutex<LatchState>,
    done: Condvar,
}

#[derive(Default)]
struct LatchState {
    pending: usize,
    error: Option<Error>,
}

impl Latch {
    fn complete(&self, outcome: &Result<()>) {
        let mut state = self.state.lock();
        state.pending -= 1;
        if let Err(error) = outcome {
            state.error.get_or_insert_with(|| error.clone());
        }
        drop(state);
        self.done.notify_all();
    }

    fn wait(&self) -> Result<()> {
        let mut state = self.state.lock();
        while state.pending > 0 {
            self.done.wait(&mut state);
        }
        state.error.take().map_or(Ok(()), Err)
    }
}

/// A device read that is being put together: claims that follow one another in the file and on the device.
struct Request {
    at: BlockNo,
    blocks: u64,
    claims: Vec<Claim>,
}

impl Mapping {
    /// Brings blocks `[first, end)` into the pinned folios, and starts reading those of `ahead` (folios
    /// beyond, and the block where to stop) that nobody else is reading. Waits for the former only.
    pub(crate) fn fill(&self, pins: &Pins, first: u64, end: u64, ahead: Option<(&Pins, u64)>) -> Result<()> {
        let mut ahead = ahead;
        loop {
            let mut claims = Vec::new();
            for pin in pins {
                self.claim(pin, first, end, patience::may_wait(), &mut claims);
            }
            let reads_ahead = ahead.is_some();
            if let Some((more, ahead_end)) = ahead.take() {
                for pin in more {
                    self.claim(pin, end, ahead_end, false, &mut claims);
                }
                // Blocks of the last needed folio that lie beyond the need.
                for pin in pins {
                    self.claim(pin, end, ahead_end, false, &mut claims);
                }
                claims.sort_by_key(Claim::file_block);
            }
            if !claims.is_empty() {
                let latch = Arc::new(Latch::default());
                let started = self.start_fill(claims, end, &latch);
                match latch.wait().and(started) {
                    // It may be blocks ahead that cannot be read: once more, without them.
                    Err(_) if reads_ahead => continue,
                    outcome => outcome?,
                }
            }
            for pin in pins {
                self.pass_filled(pin, first, end)?;
            }
            if pins.iter().all(|pin| {
                let (from, to) = pin.clip(first, end);
                pin.uptodate().all(from, to)
            }) {
                return Ok(());
            }
            patience::check("blocks that others hold")?;
        }
    }

    /// Waits until no block of `[first, end)` in this folio is being read in.
    pub(crate) fn wait_filled(&self, pin: &FolioPin, first: u64, end: u64) {
        let (from, to) = pin.clip(first, end);
        if pin.filling().any(from, to) {
            self.core.parking.wait_while(pin.fill_address(), || pin.filling().any(from, to));
        }
    }

    /// As [`Mapping::wait_filled`]; fails on a thread that may not wait, if it would have to.
    pub(crate) fn pass_filled(&self, pin: &FolioPin, first: u64, end: u64) -> Result<()> {
        let (from, to) = pin.clip(first, end);
        if pin.filling().any(from, to) {
            patience::check("blocks that are being read in")?;
            self.wait_filled(pin, first, end);
        }
        Ok(())
    }

    /// Claims what is to be claimed of a folio's part of `[first, end)`. Without `wait`, segments that a
    /// writer holds are passed over.
    fn claim(&self, pin: &FolioPin, first: u64, end: u64, wait: bool, claims: &mut Vec<Claim>) {
        let (mut from, to) = pin.clip(first, end);
        while let Some(block) = pin.uptodate().next_clear(from, to) {
            let number = pin.segment_number(block);
            let stop = pin.segment_blocks(number).1.min(to);
            from = stop;
            let segment = pin.segment(number);
            if wait {
                segment.share(&self.core.parking);
            } else if !segment.try_share() {
                continue;
            }
            // A segment is at most 32 blocks, aligned: it lies in one word.
            for (word, mask) in masks(block, stop) {
                let wanted = mask & !pin.uptodate().word(word).load(Ordering::SeqCst);
                let mut ours = wanted & !pin.filling().word(word).fetch_or(wanted, Ordering::SeqCst);
                // A fill that ended between the two looks has made its blocks valid.
                let late = ours & pin.uptodate().word(word).load(Ordering::SeqCst);
                if late != 0 {
                    pin.filling().word(word).fetch_and(!late, Ordering::SeqCst);
                    ours &= !late;
                    self.core.parking.wake(pin.fill_address());
                }
                push_claims(pin, word as u32 * 64, ours, claims);
            }
            segment.unshare(&self.core.parking);
        }
    }

    /// Zeroes what needs no device, and submits requests for the rest. Requests with a block below
    /// `needed_end` are counted in the latch before this returns.
    fn start_fill(&self, claims: Vec<Claim>, needed_end: u64, latch: &Arc<Latch>) -> Result<()> {
        let planned = self.plan_fill(&claims);
        let (runs, size) = match planned {
            Ok(planned) => planned,
            Err(error) => {
                claims.iter().for_each(|claim| claim.end(&self.core, false));
                return Err(error.context(format_args!("reading inode {}", self.inode)));
            }
        };
        let size_blocks = blocks_for(size);
        let mut requests: Vec<Request> = Vec::new();
        let mut runs = runs.into_iter().peekable();
        for claim in &claims {
            let (start, end) = (claim.file_block(), claim.file_block() + u64::from(claim.count));
            let mut at = start;
            while at < end {
                while runs.peek().is_some_and(|run| run.file_block + run.count <= at) {
                    runs.next();
                }
                let run = *runs.peek().expect("the plan covers every claim");
                let mut to = end.min(run.file_block + run.count);
                let written = run.home.data().is_some() && at < size_blocks;
                if written {
                    to = to.min(size_blocks);
                }
                let part = claim.part(at - start, to - at);
                match run.home.offset(at - run.file_block).data() {
                    Some(home) if written => self.add_to_requests(&mut requests, home, part),
                    _ => self.fill_with_zeros(&part),
                }
                at = to;
            }
        }
        if !requests.is_empty()
            && let Err(error) = patience::check("blocks to be read in")
        {
            requests.iter().flat_map(|request| &request.claims).for_each(|part| part.end(&self.core, false));
            return Err(error);
        }
        self.submit_fill(requests, needed_end, size, latch)
    }

    fn plan_fill(&self, claims: &[Claim]) -> Result<(Vec<Run>, u64)> {
        let backing = self.backing()?;
        let homes = self.forget_old_homes();
        let mut runs = Vec::new();
        let mut at = 0;
        while at < claims.len() {
            let first = claims[at].file_block();
            let mut end = first;
            while at < claims.len() && claims[at].file_block() == end {
                end += u64::from(claims[at].count);
                at += 1;
            }
            runs.extend(map_all(&*backing, first, end - first)?);
        }
        // Here and not at the end: until then homes may be forgotten, and nobody would know of the claims.
        self.note_homes(homes, || note_claimed(claims, &runs));
        // The size is read with the claims made: a thread that extends the file into a claimed block waits
        // for it first.
        Ok((runs, backing.size()))
    }

    fn fill_with_zeros(&self, part: &Claim) {
        // SAFETY: the blocks' memory is the folio's, and their fill bits are ours.
        unsafe { copy::zero(part.pin.memory(part.first), part.count as usize * BLOCK_SIZE) };
        part.end(&self.core, true);
        self.core.metrics.fill_zero_blocks.add(u64::from(part.count));
    }

    fn add_to_requests(&self, requests: &mut Vec<Request>, home: BlockNo, part: Claim) {
        let (mut home, mut part) = (home, part);
        let limit = u64::from(self.core.config.io_blocks_max);
        loop {
            let joins = requests.last().is_some_and(|last| {
                let before = last.claims.last().expect("a request has a claim");
                last.at.offset(last.blocks) == home
                    && last.blocks < limit
                    && before.file_block() + u64::from(before.count) == part.file_block()
            });
            if !joins {
                requests.push(Request { at: home, blocks: 0, claims: Vec::new() });
            }
            let last = requests.last_mut().expect("one was pushed if there was none");
            let room = limit - last.blocks;
            if u64::from(part.count) <= room {
                last.blocks += u64::from(part.count);
                last.claims.push(part);
                return;
            }
            last.blocks += room;
            last.claims.push(part.part(0, room));
            home = home.offset(room);
            part = part.part(room, u64::from(part.count) - room);
        }
    }

    fn submit_fill(
        &self,
        mut requests: Vec<Request>,
        needed_end: u64,
        size: u64,
        latch: &Arc<Latch>,
    ) -> Result<()> {
        let needed = |request: &Request| request.claims[0].file_block() < needed_end;
        if let [request] = &requests[..]
            && needed(request)
        {
            return self.read_here(requests.remove(0), size);
        }
        latch.state.lock().pending = requests.iter().filter(|request| needed(request)).count();
        let metrics = &self.core.metrics;
        let ios: Vec<Io> = requests
            .into_iter()
            .map(|request| {
                metrics.fill_ios.add(1);
                metrics.fill_blocks.add(request.blocks);
                let latch = needed(&request).then(|| latch.clone());
                if latch.is_none() {
                    metrics.readahead_blocks.add(request.blocks);
                }
                let core = self.core.clone();
                Io {
                    op: IoOp::Read,
                    at: request.at,
                    segments: memory_of(&request.claims),
                    done: Box::new(move |outcome| {
                        complete(&core, request.claims, size, &outcome);
                        if let Some(latch) = latch {
                            latch.complete(&outcome);
                        }
                    }),
                }
            })
            .collect();
        if !ios.is_empty() {
            self.core.device.submit(IoClass::Data, ios);
        }
        Ok(())
    }

    /// Reads a request on this thread.
    fn read_here(&self, request: Request, size: u64) -> Result<()> {
        self.core.metrics.fill_ios.add(1);
        self.core.metrics.fill_blocks.add(request.blocks);
        let memory = memory_of(&request.claims);
        let outcome = self.core.device.read_scattered(IoClass::Data, request.at, &memory);
        complete(&self.core, request.claims, size, &outcome);
        outcome
    }
}

/// Notes which of the claimed blocks have a home that writes may go to. Both lists ascend.
fn note_claimed(claims: &[Claim], runs: &[Run]) {
    let mut runs = runs.iter().peekable();
    for claim in claims {
        let (start, end) = (claim.file_block(), claim.file_block() + u64::from(claim.count));
        while runs.next_if(|run| run.file_block + run.count <= start).is_some() {}
        for run in runs.clone().take_while(|run| run.file_block < end) {
            if !run.home.needs_blocks() {
                let (from, to) =
                    claim.pin.clip(run.file_block.max(start), (run.file_block + run.count).min(end));
                claim.pin.mapped().set(from, to);
            }
        }
    }
}

/// A device read has ended.
fn complete(core: &Core, claims: Vec<Claim>, size: u64, outcome: &Result<()>) {
    for claim in &claims {
        if outcome.is_ok() {
            let start = claim.file_block() * BLOCK_SIZE as u64;
            let bytes = claim.count as usize * BLOCK_SIZE;
            let valid = usize::try_from(size.saturating_sub(start)).map_or(bytes, |valid| valid.min(bytes));
            if valid < bytes {
                // SAFETY: the tail of our own claimed blocks.
                unsafe { copy::zero(claim.pin.memory(claim.first).wrapping_add(valid), bytes - valid) };
            }
        }
        claim.end(core, outcome.is_ok());
    }
}

/// The memory of claims as few device segments: neighbours in memory are one.
fn memory_of(claims: &[Claim]) -> Vec<Segment> {
    let mut segments: Vec<(*mut u8, usize)> = Vec::with_capacity(claims.len());
    for claim in claims {
        let (memory, bytes) = (claim.pin.memory(claim.first), claim.count as usize * BLOCK_SIZE);
        match segments.last_mut() {
            Some((start, len)) if start.wrapping_add(*len) == memory => *len += bytes,
            _ => segments.push((memory, bytes)),
        }
    }
    // SAFETY: arena memory of pinned folios, which outlives the request; for fills the blocks are ours by
    // their fill bits. A reader without a lock that was overtaken may copy from it, with instructions that
    // the compiler does not see, and throws that away.
    segments.into_iter().map(|(memory, len)| unsafe { Segment::new(memory, len) }).collect()
}

/// One claim for each run of set bits.
fn push_claims(pin: &FolioPin, base: u32, bits: u64, claims: &mut Vec<Claim>) {
    let mut bits = bits;
    while bits != 0 {
        let first = bits.trailing_zeros();
        let count = (bits >> first).trailing_ones();
        let joins = claims
            .last_mut()
            .filter(|last| last.pin.folio() == pin.folio() && last.first + last.count == base + first);
        match joins {
            Some(last) => last.count += count,
            None => claims.push(Claim { pin: pin.clone(), first: base + first, count }),
        }
        let mask = if count == 64 { u64::MAX } else { ((1 << count) - 1) << first };
        bits &= !mask;
    }
}
