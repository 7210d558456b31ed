//! How full a journal is, and what it has done.
//!
//! Neighbours: [`crate::journal`] fills these in; the volume decides by them when to checkpoint.

use quire_base::Seq;
use quire_base::metrics::Counter;
use std::fmt;

/// A moment's fill levels, in bytes of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalUsage {
    /// What the ring holds.
    pub ring_bytes: u64,
    /// In the ring from the tail to the end of the open block: a checkpoint (two, for both slots) frees it.
    pub used_bytes: u64,
    /// Promised to reservations.
    pub reserved_bytes: u64,
    /// Appended and not yet durable.
    pub unforced_bytes: u64,
    /// Where the next record goes.
    pub head: Seq,
    /// Durable up to here.
    pub durable: Seq,
    /// Needed from here on.
    pub tail: Seq,
    /// Replay from the newest durable superblock starts here.
    pub checkpoint: Seq,
}

impl JournalUsage {
    /// Bytes that can still be reserved before the tail has to move.
    pub fn free_bytes(&self) -> u64 {
        self.ring_bytes.saturating_sub(self.used_bytes + self.reserved_bytes)
    }
}

impl fmt::Display for JournalUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "journal: head {} durable {} checkpoint {} tail {}; {} of {} bytes used, {} reserved, {} unforced",
            self.head,
            self.durable,
            self.checkpoint,
            self.tail,
            self.used_bytes,
            self.ring_bytes,
            self.reserved_bytes,
            self.unforced_bytes
        )
    }
}

/// Sizes of groups: 1, 2, 3 to 4, 5 to 8, ... 65 and more.
pub const GROUP_BUCKETS: usize = 8;

/// What is counted; the fields of [`JournalCounts`] in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// See [`JournalCounts::records`].
    Record,
    /// See [`JournalCounts::record_bytes`].
    RecordBytes,
    /// See [`JournalCounts::forces`].
    Force,
    /// See [`JournalCounts::forces_free`].
    ForceFree,
    /// See [`JournalCounts::writes`].
    Write,
    /// See [`JournalCounts::blocks`].
    Block,
    /// See [`JournalCounts::padding_bytes`].
    PaddingBytes,
    /// See [`JournalCounts::stragglers`].
    Straggler,
    /// See [`JournalCounts::buffer_waits`].
    BufferWait,
    /// See [`JournalCounts::ring_full`].
    RingFull,
}

const EVENTS: usize = Event::RingFull as usize + 1;

/// The counters behind [`JournalCounts`].
#[derive(Debug)]
pub struct Counters {
    /// One for each event, then one for each size of group.
    all: Box<[Counter]>,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters { all: (0..EVENTS + GROUP_BUCKETS).map(|_| Counter::new()).collect() }
    }
}

impl Counters {
    /// Counts `amount` of an event.
    pub fn add(&self, event: Event, amount: u64) {
        self.all[event as usize].add(amount);
    }

    /// Counts a write that served `members` forces.
    pub fn group(&self, members: u64) {
        let bucket = u64::BITS - members.saturating_sub(1).leading_zeros();
        self.all[EVENTS + (bucket as usize).min(GROUP_BUCKETS - 1)].add(1);
    }

    /// The sums.
    pub fn read(&self) -> JournalCounts {
        let get = |event: Event| self.all[event as usize].get();
        JournalCounts {
            records: get(Event::Record),
            record_bytes: get(Event::RecordBytes),
            forces: get(Event::Force),
            forces_free: get(Event::ForceFree),
            writes: get(Event::Write),
            blocks: get(Event::Block),
            padding_bytes: get(Event::PaddingBytes),
            stragglers: get(Event::Straggler),
            buffer_waits: get(Event::BufferWait),
            ring_full: get(Event::RingFull),
            groups: std::array::from_fn(|bucket| self.all[EVENTS + bucket].get()),
        }
    }
}

/// What a journal has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalCounts {
    /// Records appended.
    pub records: u64,
    /// Bytes of the stream they took, headers and alignment included.
    pub record_bytes: u64,
    /// Calls of `force`.
    pub forces: u64,
    /// Those that found their target durable already.
    pub forces_free: u64,
    /// Journal writes; each is followed by a flush.
    pub writes: u64,
    /// Blocks they wrote.
    pub blocks: u64,
    /// Bytes of padding in them.
    pub padding_bytes: u64,
    /// Writes that waited for a record to be copied in.
    pub stragglers: u64,
    /// Times a reservation waited for the buffer.
    pub buffer_waits: u64,
    /// Times a reservation was refused since the ring was full.
    pub ring_full: u64,
    /// Writes by how many forces each served: 1, 2, 3 to 4, 5 to 8, ... 65 and more.
    pub groups: [u64; GROUP_BUCKETS],
}
