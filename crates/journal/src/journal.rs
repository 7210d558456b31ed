//! The journal's interface: reserve, append, force, and what checkpoints and shutdown need.
//!
//! A reservation is charged its record with header and alignment, and a block of padding, against
//! the ring and the buffer ([`crate::stream`] says why that suffices for ever). What a record does not use
//! goes back when it is appended, the rest when the reservation is dropped.
//!
//! An append takes its range with one atomic addition and copies its bytes in, in parallel with all others. A
//! panic between the two leaves a range that nobody will fill; it shuts the journal down.
//!
//! Invariants: see the crate's documentation.
//!
//! Neighbours: [`crate::stream`], [`crate::commit`] below; the volume above.

use crate::commit::{GroupCommit, Writer};
use crate::failure::Failure;
use crate::medium::Medium;
use crate::stream::{Claimed, PADDING_MAX, Shortage, Stream};
use crate::usage::{Counters, Event, JournalCounts, JournalUsage};
use quire_base::sync::Arc;
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result, Seq};
use quire_device::Device;
use quire_format::journal::{
    BlockHeader, PAYLOAD_BYTES, POSITION_MAX, RECORD_ALIGN, RECORD_HEADER_BYTES, RECORD_PAYLOAD_MAX,
    RecordHeader, RecordKind, block_ceil, block_floor, record_bytes,
};
use std::fmt;

/// The smallest buffer, in blocks.
const BUFFER_BLOCKS_MIN: u64 = 4;

/// Where a journal lies, whose it is, and where it goes on.
#[derive(Clone, Debug)]
pub struct JournalConfig {
    /// First block of the ring.
    pub start: BlockNo,
    /// Blocks of the ring.
    pub blocks: u64,
    /// The volume's id.
    pub volume: u64,
    /// This life of the journal: never used before, and in both superblocks already.
    pub incarnation: u64,
    /// Where appending starts; the start of a block.
    pub head: Seq,
    /// Replay position of the older superblock: the ring is needed from here on. The start of a block.
    pub tail: Seq,
    /// Memory for records that are not durable yet. Whole blocks of it are used, at least four, at most the
    /// ring.
    pub buffer_bytes: usize,
}

/// Why there is no reservation.
#[derive(Clone, Debug)]
pub enum Short {
    /// The ring is full: checkpoint, so that its tail moves, and try again.
    Checkpoint,
    /// The buffer is full: let go of everything, reserve with waiting, start over.
    /// Only [`Journal::try_reserve_now`] says so.
    Buffer,
    /// Nothing will help: the journal is shut down, or the reservation is larger than it can ever give.
    Failed(Error),
}

impl From<Short> for Error {
    fn from(short: Short) -> Error {
        match short {
            Short::Checkpoint => Error::new(ErrorKind::WouldBlock, "the journal is full until a checkpoint"),
            Short::Buffer => Error::new(ErrorKind::WouldBlock, "the journal's buffer is full until a force"),
            Short::Failed(error) => error,
        }
    }
}

/// A volume's journal; cheap to share.
pub struct Journal {
    core: Arc<Core>,
}

/// Room for a record, in ring and buffer. What is left of it goes back when it is dropped.
pub struct JournalReservation<'a> {
    core: &'a Core,
    left: u64,
}

struct Core {
    stream: Stream,
    commit: GroupCommit,
    failure: Failure,
    medium: Box<dyn Medium>,
    start: BlockNo,
    blocks: u64,
    volume: u64,
    incarnation: u64,
    tail: AtomicU64,
    checkpoint: AtomicU64,
    /// The largest mark that a record was appended after.
    after: AtomicU64,
    counters: Counters,
}

impl Journal {
    /// The journal of a volume on `device`, empty, that goes on at `config.head`.
    ///
    /// A configuration that contradicts itself gives a journal that is shut down from the start and says why.
    pub fn open(device: Arc<Device>, config: JournalConfig) -> Arc<Journal> {
        let fits = config.start.0.checked_add(config.blocks).is_some_and(|end| end <= device.blocks());
        let journal = Journal::on(Box::new(device), config);
        if !fits {
            journal.shut_down(Error::invalid("the journal does not fit the device"));
        }
        Arc::new(journal)
    }

    /// As [`Journal::open`], on any medium.
    pub fn on(medium: Box<dyn Medium>, config: JournalConfig) -> Journal {
        let contradiction = config.contradiction();
        let (head, tail) = if contradiction.is_some() { (0, 0) } else { (config.head.0, config.tail.0) };
        let slots = (config.buffer_bytes / BLOCK_SIZE) as u64;
        let slots = slots.max(BUFFER_BLOCKS_MIN).min(config.blocks);
        let core = Core {
            stream: Stream::new(head, tail, config.blocks, slots as usize),
            commit: GroupCommit::new(head),
            failure: Failure::new(),
            medium,
            start: config.start,
            blocks: config.blocks,
            volume: config.volume,
            incarnation: config.incarnation,
            tail: AtomicU64::new(tail),
            checkpoint: AtomicU64::new(tail),
            after: AtomicU64::new(0),
            counters: Counters::default(),
        };
        if let Some(error) = contradiction {
            core.shut_down(error);
        }
        Journal { core: Arc::new(core) }
    }

    /// Room for one record with a payload of up to `bytes`. Waits for the buffer, by forcing, and never for
    /// the ring.
    ///
    /// The caller holds no other reservation, and nothing that another holder of one may wait for.
    pub fn try_reserve(&self, bytes: usize) -> Result<JournalReservation<'_>, Short> {
        self.reserve(bytes, true)
    }

    /// As [`Journal::try_reserve`], but says [`Short::Buffer`] where that would wait.
    pub fn try_reserve_now(&self, bytes: usize) -> Result<JournalReservation<'_>, Short> {
        self.reserve(bytes, false)
    }

    /// Whether one record with a payload of up to `bytes` bytes would fit beside the reservations there are,
    /// if checkpoints had emptied the ring.
    pub fn has_room_when_empty(&self, bytes: usize) -> bool {
        let usage = self.usage();
        usage.reserved_bytes + charge_of(bytes) <= usage.ring_bytes
    }

    /// The largest payload that one reservation of one record can have on this journal.
    pub fn payload_max(&self) -> usize {
        let whole = self.core.charge_max().saturating_sub(PADDING_MAX) as usize;
        whole.saturating_sub(RECORD_HEADER_BYTES + RECORD_ALIGN).min(RECORD_PAYLOAD_MAX)
    }

    fn reserve(&self, bytes: usize, wait: bool) -> Result<JournalReservation<'_>, Short> {
        let core = &*self.core;
        let charge = charge_of(bytes);
        if charge > core.charge_max() || bytes > RECORD_PAYLOAD_MAX {
            return Err(Short::Failed(Error::invalid(format!(
                "a journal record of {bytes} bytes: this journal takes {}",
                self.payload_max()
            ))));
        }
        loop {
            core.failure.check().map_err(Short::Failed)?;
            match core.stream.claim(charge) {
                Ok(()) => return Ok(JournalReservation { core, left: charge }),
                Err(Shortage::Exhausted) => return Err(Short::Failed(Shortage::exhausted())),
                Err(Shortage::Ring) => {
                    core.counters.add(Event::RingFull, 1);
                    return Err(Short::Checkpoint);
                }
                Err(Shortage::Buffer) if !wait => return Err(Short::Buffer),
                Err(Shortage::Buffer) => {
                    core.counters.add(Event::BufferWait, 1);
                    let (durable, head) = (core.commit.durable(), core.stream.head());
                    if head > durable {
                        // Whole blocks, if there are any: padding would only waste the room that is short.
                        let full = block_floor(head);
                        let target = if full > durable { full } else { head };
                        core.force(target).map_err(Short::Failed)?;
                    } else {
                        core.stream.wait_for_room(charge, durable, &core.failure);
                    }
                }
            }
        }
    }

    /// Appends a record: its `Seq`. Neither waits nor fails.
    ///
    /// Panics if the reservation is another journal's, or too small; the journal is shut down then.
    pub fn append(&self, reservation: &mut JournalReservation<'_>, payload: &[u8]) -> Seq {
        self.append_after(reservation, payload, self.core.medium.mark())
    }

    /// As [`Journal::append`]; the write that carries the record follows a flush of what had completed at
    /// `mark`, and of nothing else on its behalf. Zero: the record is true whatever else is lost.
    pub fn append_after(&self, reservation: &mut JournalReservation<'_>, payload: &[u8], mark: u64) -> Seq {
        let core = &*self.core;
        // Before the record has its place: a leader whose target covers that sees the mark.
        core.raise_after(mark);
        let unfinished = Unfinished { core };
        let total = record_bytes(payload.len()) as u64;
        let charge = total + PADDING_MAX;
        assert!(std::ptr::eq(reservation.core, core), "a reservation of another journal");
        assert!(
            payload.len() <= RECORD_PAYLOAD_MAX && charge <= reservation.left,
            "the record exceeds its reservation"
        );
        reservation.left -= charge;

        let (mut range, used) = core.stream.advance(total);
        let seq = Seq(range.end());
        let header = RecordHeader { payload: payload.len() as u32, kind: RecordKind::Transaction };
        let end = RECORD_HEADER_BYTES + payload.len();
        core.stream.copy(&mut range, 0, &header.encode());
        core.stream.copy(&mut range, RECORD_HEADER_BYTES as u64, payload);
        core.stream.copy(&mut range, end as u64, &[0; RECORD_ALIGN][..total as usize - end]);
        core.stream.fill(range);
        core.stream.unclaim(charge - used);
        std::mem::forget(unfinished);

        core.counters.add(Event::Record, 1);
        core.counters.add(Event::RecordBytes, total);
        seq
    }

    /// Returns when everything up to `seq` is durable. Costs nothing if it is already.
    ///
    /// Everything that had completed on the device before the records up to `seq` were appended is durable
    /// then, too, and was before the records, but for those of [`Journal::append_after`].
    ///
    /// Errors: the first failure, for ever after it; `Invalid` for a `seq` that was never given out.
    pub fn force(&self, seq: Seq) -> Result<()> {
        self.core.counters.add(Event::Force, 1);
        self.core.failure.check()?;
        if self.core.commit.durable() >= seq.0 {
            self.core.counters.add(Event::ForceFree, 1);
            return Ok(());
        }
        let head = self.core.stream.head();
        if seq.0 > head {
            return Err(Error::invalid(format!("force of {seq}, but the journal ends at {head}")));
        }
        self.core.commit.force(seq.0, &self.core.failure, &*self.core)
    }

    /// Durable up to here.
    pub fn durable(&self) -> Seq {
        Seq(self.core.commit.durable())
    }

    /// The end of the stream.
    pub fn head(&self) -> Seq {
        Seq(self.core.stream.head())
    }

    /// Ends the open block, so that a replay can start at the returned position: every record appended before
    /// lies before it, every later one behind it. Writes nothing.
    ///
    /// A checkpoint calls it under the exclusive barrier, so that no transaction is between its `Seq` and its
    /// apply.
    pub fn close_block(&self) -> Seq {
        let core = &*self.core;
        let unfinished = Unfinished { core };
        let (padding, end) = core.stream.close();
        core.pad(padding);
        std::mem::forget(unfinished);
        Seq(end)
    }

    /// A superblock is durable: replay from it starts at `newest`, from the one in the other slot at `tail`.
    /// The ring before `tail` is free.
    ///
    /// Positions that go back, or were never reached, shut the journal down: they would free what is needed.
    pub fn checkpointed(&self, newest: Seq, tail: Seq) {
        let core = &*self.core;
        let aligned = [newest, tail].iter().all(|at| at.0.is_multiple_of(PAYLOAD_BYTES as u64));
        let ordered = tail <= newest && newest.0 <= block_ceil(core.stream.head());
        if !aligned || !ordered || tail.0 < core.tail.load(Ordering::Acquire) {
            core.shut_down(Error::invalid(format!(
                "a checkpoint at {newest} with tail {tail} does not fit a journal that ends at {}",
                core.stream.head()
            )));
            return;
        }
        // In this order, and `usage` reads in the other: the tail it sees is never ahead of the checkpoint.
        core.checkpoint.fetch_max(newest.0, Ordering::AcqRel);
        core.tail.fetch_max(tail.0, Ordering::AcqRel);
        core.stream.set_tail(tail.0);
    }

    /// Ends all change: every waiter wakes, every later reservation and force fails, all with the first error
    /// given here or met by a write. Records appended later by holders of reservations are never written.
    pub fn shut_down(&self, error: Error) {
        self.core.shut_down(error);
    }

    /// The first failure.
    pub fn failure(&self) -> Option<Error> {
        self.core.failure.get()
    }

    /// How full it is. The numbers are read one after the other, the smaller positions first, so that none is
    /// ever ahead of one that bounds it.
    pub fn usage(&self) -> JournalUsage {
        let core = &*self.core;
        let tail = core.tail.load(Ordering::Acquire);
        let checkpoint = core.checkpoint.load(Ordering::Acquire);
        let durable = core.commit.durable();
        let head = core.stream.head();
        let claimed = core.stream.claimed();
        JournalUsage {
            ring_bytes: core.stream.ring_bytes(),
            used_bytes: block_ceil(head) - tail,
            reserved_bytes: claimed.saturating_sub(block_ceil(head)),
            unforced_bytes: head.saturating_sub(durable),
            head: Seq(head),
            durable: Seq(durable),
            tail: Seq(tail),
            checkpoint: Seq(checkpoint),
        }
    }

    /// What it has done.
    pub fn counts(&self) -> JournalCounts {
        self.core.counters.read()
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.usage())
    }
}

impl JournalConfig {
    /// What is wrong with it.
    fn contradiction(&self) -> Option<Error> {
        let ring = self.blocks.saturating_mul(PAYLOAD_BYTES as u64);
        let aligned = [self.head, self.tail].iter().all(|at| at.0.is_multiple_of(PAYLOAD_BYTES as u64));
        let sound = aligned
            && self.blocks >= BUFFER_BLOCKS_MIN
            && self.head.0 <= POSITION_MAX
            && self.tail <= self.head
            && self.head.0 - self.tail.0 <= ring;
        (!sound).then(|| Error::invalid(format!("the journal cannot be opened with {self:?}")))
    }
}

/// What a record with so many bytes of payload takes at most.
fn charge_of(bytes: usize) -> u64 {
    let header = (RECORD_HEADER_BYTES + RECORD_ALIGN - 1) as u64;
    (bytes as u64).saturating_add(header + PADDING_MAX)
}

impl JournalReservation<'_> {
    /// Bytes of it that are left, padding included.
    pub fn left(&self) -> u64 {
        self.left
    }
}

impl Drop for JournalReservation<'_> {
    fn drop(&mut self) {
        if self.left > 0 {
            self.core.stream.unclaim(self.left);
        }
    }
}

impl fmt::Debug for JournalReservation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JournalReservation({} bytes)", self.left)
    }
}

impl Core {
    /// The next journal write follows a flush of what had completed at `mark`.
    fn raise_after(&self, mark: u64) {
        // Looked at first, so that appends do not meet here. The mark only grows: a leader that sees what
        // this thread does next sees at least what this look saw.
        if self.after.load(Ordering::Acquire) < mark {
            self.after.fetch_max(mark, Ordering::AcqRel);
        }
    }

    /// The largest reservation: so small that a checkpoint always makes room for it, and the buffer can hold
    /// it.
    fn charge_max(&self) -> u64 {
        (self.stream.ring_bytes() / 4).min(self.stream.buffer_bytes())
    }

    fn force(&self, target: u64) -> Result<()> {
        self.commit.force(target, &self.failure, self)
    }

    fn pad(&self, padding: Option<Claimed>) {
        if let Some(range) = padding {
            self.counters.add(Event::PaddingBytes, range.bytes());
            self.stream.pad(range);
        }
    }
}

impl Writer for Core {
    type Departed = Option<Claimed>;

    /// A whole block waits: it would be written as it is, without padding.
    fn is_worthwhile(&self, snapped: u64) -> bool {
        block_floor(self.stream.head()) > snapped
    }

    fn depart(&self, wanted: u64) -> (u64, Option<Claimed>) {
        let full = block_floor(self.stream.head());
        if wanted <= full {
            return (full, None);
        }
        let (padding, end) = self.stream.close();
        (end, padding)
    }

    fn write(&self, from: u64, to: u64, durable: u64, padding: Option<Claimed>) -> Result<()> {
        self.pad(padding);
        if self.stream.wait_filled(to, &self.failure)? {
            self.counters.add(Event::Straggler, 1);
        }
        // A thread that appended had completed its data writes and stored their mark; the head, read in
        // `depart`, carries that here.
        self.medium.flush_before(self.after.load(Ordering::Acquire))?;
        let checkpoint = Seq(self.checkpoint.load(Ordering::Acquire));
        // SAFETY: the range is filled, it is recycled only when it has landed, and it is this leader's alone.
        let runs = unsafe {
            self.stream.seal(from, to, |position, first_record, image| {
                let header = BlockHeader {
                    volume: self.volume,
                    incarnation: self.incarnation,
                    position,
                    durable: Seq(durable),
                    checkpoint,
                    first_record,
                };
                header.seal(image);
            });
            self.stream.images(from, to, self.blocks)
        };
        let runs: Vec<(BlockNo, &[u8])> =
            runs.into_iter().map(|(index, bytes)| (self.start.offset(index), bytes)).collect();
        self.failure.check()?;
        self.medium.write(&runs)?;
        self.medium.flush_after()?;
        self.counters.add(Event::Write, 1);
        self.counters.add(Event::Block, (to - from) / PAYLOAD_BYTES as u64);
        Ok(())
    }

    fn landed(&self, from: u64, to: u64, members: u64) {
        self.stream.recycle(from, to);
        self.counters.group(members);
    }

    fn shut_down(&self, error: Error) {
        if self.failure.set(error.clone()) {
            tracing::error!(%error, "journal shut down");
        }
        self.stream.wake_all();
        self.commit.wake_all();
    }
}

/// Dropped by a panic between taking a range of the stream and filling it: the range will never be whole.
struct Unfinished<'a> {
    core: &'a Core,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.core
            .shut_down(Error::new(ErrorKind::Shutdown, "a thread panicked while it appended to the journal"));
    }
}
