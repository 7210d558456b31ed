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

/// The counters behind [`JournalCounts`].
#[derive(Debug, Default)]
pub struct Counters {
    /// See [`JournalCounts::records`].
    pub records: Counter,
    /// See [`JournalCounts::record_bytes`].
    pub record_bytes: Counter,
    /// See [`JournalCounts::forces`].
    pub forces: Counter,
    /// See [`JournalCounts::forces_free`].
    pub forces_free: Counter,
    /// See [`JournalCounts::writes`].
    pub writes: Counter,
    /// See [`JournalCounts::blocks`].
    pub blocks: Counter,
    /// See [`JournalCounts::padding_bytes`].
    pub padding_bytes: Counter,
    /// See [`JournalCounts::stragglers`].
    pub stragglers: Counter,
    /// See [`JournalCounts::buffer_waits`].
    pub buffer_waits: Counter,
    /// See [`JournalCounts::ring_full`].
    pub ring_full: Counter,
    /// See [`JournalCounts::groups`].
    pub groups: [Counter; GROUP_BUCKETS],
}

impl Counters {
    /// Counts a write that served `members` forces.
    pub fn group(&self, members: u64) {
        let bucket = u64::BITS - members.saturating_sub(1).leading_zeros();
        self.groups[(bucket as usize).min(GROUP_BUCKETS - 1)].add(1);
    }

    /// The sums.
    pub fn read(&self) -> JournalCounts {
        JournalCounts {
            records: self.records.get(),
            record_bytes: self.record_bytes.get(),
            forces: self.forces.get(),
            forces_free: self.forces_free.get(),
            writes: self.writes.get(),
            blocks: self.blocks.get(),
            padding_bytes: self.padding_bytes.get(),
            stragglers: self.stragglers.get(),
            buffer_waits: self.buffer_waits.get(),
            ring_full: self.ring_full.get(),
            groups: std::array::from_fn(|bucket| self.groups[bucket].get()),
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
