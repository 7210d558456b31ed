//! Mistakes on purpose: one switch for each ordering that the engine's durability, or what its readers see,
//! rests on, to prove that the tests would notice if it were missing.
//!
//! At the place where a mistake would be made the engine asks [`is_broken`]. In the product that is a
//! constant `false` and nothing is left of the question. With the feature `simulation` it reads one setting
//! of the whole process, so that the engine's own threads see it too; [`with`] lets runs that need different
//! settings take turns.
//!
//! Each variant says what the mistake is and when it shows. "Shows" means that there is a moment at which a
//! crash (or a power cut, or what callers see) breaks the durability contract.
//!
//! Invariants: at most one mistake at a time; the setting changes only while no volume is open, as some
//! mistakes are made in halves, at two places.
//!
//! Neighbours: every crate up to `fs` asks; only tests set.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Broken {
    /// A journal write is not preceded by a flush (J1). Shows when the power goes after the journal write and
    /// before the flush behind it, with the record kept and the data lost: the file shows what its new blocks
    /// held before.
    NoFlushBeforeJournalWrite,
    /// A record names no data that must be durable before it, though it shows some (J1). Shows as the mistake
    /// above, when no other record of the same journal write names later data.
    RecordNamesNoData,
    /// A caller takes a flush that was submitted before his writes completed for his own (J4). Shows when two
    /// threads flush, and the later one's write is lost although its fsync has returned.
    FlushJoinedLate,
    /// An extent is journaled when its blocks are chosen, not when their data is written (J1). Shows when
    /// somebody else forces the journal while the data is still on its way.
    ExtentBeforeData,
    /// Freed blocks may be allocated as soon as their freeing is applied (J2). Shows when the blocks of a
    /// truncated or removed file get another one's data and the crash takes the truncate or removal back.
    FreedBlocksReusedAtOnce,
    /// Freed blocks are discarded as soon as their freeing is applied (J2); with discard on. Shows when a
    /// crash takes the freeing back: the file is there and its data is gone.
    FreedBlocksDiscardedAtOnce,
    /// A checkpoint's superblock is written without a flush behind the nodes. Shows when the power goes
    /// before the next flush, with the superblock kept and a node lost: that slot is of no use, and nothing
    /// is left if the other one is damaged.
    SuperblockBeforeNodes,
    /// A checkpoint gives back the journal up to its S before its superblock is durable, and without a
    /// thought for the other slot (J2). Shows when the ring wraps before the next checkpoint, and the slot
    /// that needed it has to serve.
    JournalSpaceReusedEarly,
    /// Pool blocks that a checkpoint frees are handed out at once, even to itself (J2). Shows when the power
    /// goes before its superblock is durable: the tree of the checkpoint before is overwritten.
    PoolNodesReusedEarly,
    /// Collapse and insert open the gate without having forced the moves. Shows when a write in place
    /// follows, its data reaches the disk and the moves do not: it is found at another offset.
    CollapseGateBeforeForce,
    /// A transaction leaves the barrier between its `Seq` and its apply. Shows when a checkpoint chooses S in
    /// between: the change is neither in the tree nor replayed.
    CheckpointInsideTransaction,
    /// A checkpoint's nodes go to blocks that were data when the tree was frozen and were freed since, which
    /// is not durable. Shows when a crash takes the freeing back: the file's data is tree nodes.
    CheckpointNodesInDataSpace,
    /// Replay does not look at a block's incarnation. Shows after two crashes: the first leaves a journal
    /// block behind one that was lost, the next life's journal ends exactly before it, the second replay goes
    /// on into it.
    DeadRecordsAccepted,
    /// Recovery does not flush: neither what it read nor what it writes is durable when it returns. Shows
    /// when the power goes before the next flush: both superblocks may name nodes that are lost.
    RecoveryAppendsUnflushed,
    /// A journal write is counted durable although one before it is not. Shows when several threads force, a
    /// later write lands before an earlier one that is held, and the power goes then.
    JournalWriteBeforeItsPredecessor,
    /// Who asks for a force while a journal write is in flight takes that one for his own, although it was
    /// snapped before he asked, and does not look again when it ends (J4). Shows when several threads force,
    /// and the power goes before the next write.
    ForceJoinedLate,
    /// Replay does not check a journal block's checksum. Shows when a power cut tears the last journal write.
    TornJournalTailAccepted,
    /// The size on disk is rounded up to a block (J6). Shows after any fsync of a file that does not end on a
    /// block.
    SizeRoundedUpToBlock,
    /// The size on disk is raised past blocks that are dirty or in flight (J6). Shows when of two pieces of
    /// growth the later one is written first, and the journal is forced before the other one is.
    SizePastGap,
    /// A rename puts the new name in one transaction and takes the old one away in another. Shows when the
    /// journal is cut between the two: the file has two names and one link.
    RenameInTwoTransactions,
    /// The orphan slot is claimed in a transaction of its own, after the one that took the last link. Shows
    /// when the journal is cut between the two: an inode with neither name nor slot is never freed.
    OrphanClaimedApart,
    /// The orphan slot is released before the inode is freed. Shows when the journal is cut in between, as
    /// above.
    OrphanReleasedApart,
    /// An fsync returns without the force. Shows at once.
    FsyncBeforeForce,
    /// An fsync that finds its file written back already does not flush (J5). Shows after an overwrite in
    /// place and its background writeback.
    FsyncWithoutFlush,
    /// An inode leaves memory with its `Seq` and device mark, as soon as nobody uses it (J5). Shows when a
    /// file is changed, closed, opened again, and fsynced.
    EvictedSeqForgotten,
    /// Checkpoints all go to one superblock slot. Shows when that slot is lost: the other one's journal and
    /// nodes have long been reused.
    SecondSuperblockUnused,
    /// A block's writeback state is cleared before its extent is journaled and the `Seq` stored (J5). Shows
    /// when an fsync looks in between.
    SeqStoredAfterWriteback,
    /// The first waiter that sees a writeback error takes it away. Shows when two threads wait for the same
    /// failed write: the second one's fsync succeeds.
    ErrorSeenOnce,
    /// A block in writeback can be changed and written again meanwhile (C2). Shows when the older write is
    /// the last to reach the medium.
    OverlappingDeviceWrites,
    /// Blocks are handed out as zeroed before a flush has covered their zeros, and before these are written.
    /// Shows when a file that is forced gets such blocks, its record is kept and both zeros and data are
    /// lost: it shows what the blocks held before; or when the zeros come after the data.
    ZeroedBeforeFlush,
    /// Zeroed blocks stay in the reserve when they are handed out. Shows when another file gets them, too.
    ZeroedBlocksHandedOutTwice,
    /// The size goes with a record that is not ordered behind the data, although the file on disk does not
    /// end where the zeroed blocks begin. Shows when the end on disk is inside a block that is written in the
    /// same fsync, and that write is lost: what an earlier truncate had cut off is back.
    SizeOverUnflushedTail,

    /// A last block that was known once is taken for zeros past the end of the file, whatever has been done
    /// with the file since. Shows when a truncate cuts inside the block, an append is forced, and its record
    /// is kept without its data.
    TailBelievedZero,
    /// The last block of a file is known as soon as its write has completed, not when a flush has covered
    /// that. Shows when a truncate cuts inside the block, the block is written back, an append is forced, and
    /// the crash keeps the append's record and neither of the two writes: what was cut off is back.
    TailKnownBeforeFlush,

    // Those of progress, which show in an operation that does not end, and of the end of a volume. See
    // [`Broken::APART`].
    /// An fsync looks for dirty data again when its snapshot has been written. Shows beside a writer that
    /// goes on.
    WritebackChases,
    /// A syncer waits for the data of a file. Shows when that of a few files takes long: no other fsync ends.
    SyncerWaitsForData,
    /// Closing a volume does not wait for the operations under way. Shows when one ends between the last sync
    /// and the end: what it changed is lost, although it has succeeded and the volume was closed in order.
    CloseWithoutDraining,

    // Those of memory: they show in what threads read while others write, without any crash. See
    // [`Broken::MEMORY`].
    /// A batch that extends the file unlocks its segments before it publishes the size. Shows when a read
    /// across the old end comes in between: it has the new bytes and the old end.
    UnlockBeforeSizePublished = 100,
    /// A read that the end of file clipped does not look at the size again. Shows when a write across the end
    /// comes between the size and the versions.
    SizeNotLookedAtAgain,
    /// An optimistic read takes the versions of its segments when it has copied. Shows when a write comes in
    /// between.
    VersionsTakenAfterCopy,
    /// An optimistic read does not look at the exclusive sequence. Shows during truncates, punches, and
    /// writes longer than a batch.
    ExclusiveSequenceIgnored,
    /// What an optimistic read finds no folio for, it takes for a hole. Shows when data has left the cache.
    MissingFolioReadAsZeros,
    /// Readahead does not set the fill bits of its blocks. Shows when one is written while it is being read
    /// in.
    ReadaheadWithoutFillBits,
    /// Who writes back does not wait for what is in flight. Shows when a direct read overtakes it.
    WritebackNotWaitedFor,
    /// A batch that starts on an odd block locks its segments from the last to the first. Shows as a deadlock
    /// with another batch.
    LocksNotInOrder,
    /// A direct write leaves the gate when its data is submitted. Shows when a cached read fills in what was
    /// on the device until then.
    GateLeftAtSubmission,
    /// A direct write leaves its blocks in the cache as they were. Shows at the next cached read.
    CacheKeptAfterDirectWrite,
    /// An append takes its offset before the size lock. Shows when two come together: one is lost.
    AppendOffsetBeforeLock,
    /// Nobody zeroes the rest of the last block when the size moves. Shows when a file grows that was cut
    /// inside a block.
    ZeroingSkippedBeyondEnd,
}

/// Whether the mistake is to be made: never.
#[cfg(not(feature = "simulation"))]
#[inline(always)]
pub const fn is_broken(_which: Broken) -> bool {
    false
}

#[cfg(feature = "simulation")]
pub use switch::{is_broken, reached, set, with};

impl Broken {
    /// The mistakes of memory, which the history checker finds.
    pub const MEMORY: [Broken; 12] = [
        Broken::UnlockBeforeSizePublished,
        Broken::SizeNotLookedAtAgain,
        Broken::VersionsTakenAfterCopy,
        Broken::ExclusiveSequenceIgnored,
        Broken::MissingFolioReadAsZeros,
        Broken::ReadaheadWithoutFillBits,
        Broken::WritebackNotWaitedFor,
        Broken::LocksNotInOrder,
        Broken::GateLeftAtSubmission,
        Broken::CacheKeptAfterDirectWrite,
        Broken::AppendOffsetBeforeLock,
        Broken::ZeroingSkippedBeyondEnd,
    ];

    /// The mistakes of durability, which the simulator finds.
    pub const ALL: [Broken; 33] = [
        Broken::NoFlushBeforeJournalWrite,
        Broken::RecordNamesNoData,
        Broken::FlushJoinedLate,
        Broken::ExtentBeforeData,
        Broken::FreedBlocksReusedAtOnce,
        Broken::FreedBlocksDiscardedAtOnce,
        Broken::SuperblockBeforeNodes,
        Broken::JournalSpaceReusedEarly,
        Broken::PoolNodesReusedEarly,
        Broken::CollapseGateBeforeForce,
        Broken::CheckpointInsideTransaction,
        Broken::CheckpointNodesInDataSpace,
        Broken::DeadRecordsAccepted,
        Broken::RecoveryAppendsUnflushed,
        Broken::JournalWriteBeforeItsPredecessor,
        Broken::ForceJoinedLate,
        Broken::TornJournalTailAccepted,
        Broken::SizeRoundedUpToBlock,
        Broken::SizePastGap,
        Broken::RenameInTwoTransactions,
        Broken::OrphanClaimedApart,
        Broken::OrphanReleasedApart,
        Broken::FsyncBeforeForce,
        Broken::FsyncWithoutFlush,
        Broken::EvictedSeqForgotten,
        Broken::SecondSuperblockUnused,
        Broken::SeqStoredAfterWriteback,
        Broken::ErrorSeenOnce,
        Broken::OverlappingDeviceWrites,
        Broken::ZeroedBeforeFlush,
        Broken::ZeroedBlocksHandedOutTwice,
        Broken::SizeOverUnflushedTail,
        Broken::TailBelievedZero,
    ];

    /// Mistakes of durability that ordinary runs seldom show: each has a test that goes through all crashes
    /// of its case.
    pub const CASES: [Broken; 1] = [Broken::TailKnownBeforeFlush];

    /// The mistakes of progress, and of the end of a volume, each of which has a scenario of its own.
    pub const APART: [Broken; 3] =
        [Broken::WritebackChases, Broken::SyncerWaitsForData, Broken::CloseWithoutDraining];

    /// What it is called on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Broken::NoFlushBeforeJournalWrite => "no-flush-before-journal-write",
            Broken::RecordNamesNoData => "record-names-no-data",
            Broken::FlushJoinedLate => "flush-joined-late",
            Broken::ExtentBeforeData => "extent-before-data",
            Broken::FreedBlocksReusedAtOnce => "freed-blocks-reused-at-once",
            Broken::FreedBlocksDiscardedAtOnce => "freed-blocks-discarded-at-once",
            Broken::SuperblockBeforeNodes => "superblock-before-nodes",
            Broken::JournalSpaceReusedEarly => "journal-space-reused-early",
            Broken::PoolNodesReusedEarly => "pool-nodes-reused-early",
            Broken::CollapseGateBeforeForce => "collapse-gate-before-force",
            Broken::CheckpointInsideTransaction => "checkpoint-inside-transaction",
            Broken::CheckpointNodesInDataSpace => "checkpoint-nodes-in-data-space",
            Broken::DeadRecordsAccepted => "dead-records-accepted",
            Broken::RecoveryAppendsUnflushed => "recovery-appends-unflushed",
            Broken::JournalWriteBeforeItsPredecessor => "journal-write-before-its-predecessor",
            Broken::ForceJoinedLate => "force-joined-late",
            Broken::TornJournalTailAccepted => "torn-journal-tail-accepted",
            Broken::SizeRoundedUpToBlock => "size-rounded-up-to-block",
            Broken::SizePastGap => "size-past-gap",
            Broken::RenameInTwoTransactions => "rename-in-two-transactions",
            Broken::OrphanClaimedApart => "orphan-claimed-apart",
            Broken::OrphanReleasedApart => "orphan-released-apart",
            Broken::FsyncBeforeForce => "fsync-before-force",
            Broken::FsyncWithoutFlush => "fsync-without-flush",
            Broken::EvictedSeqForgotten => "evicted-seq-forgotten",
            Broken::SecondSuperblockUnused => "second-superblock-unused",
            Broken::SeqStoredAfterWriteback => "seq-stored-after-writeback",
            Broken::ErrorSeenOnce => "error-seen-once",
            Broken::OverlappingDeviceWrites => "overlapping-device-writes",
            Broken::ZeroedBeforeFlush => "zeroed-before-flush",
            Broken::ZeroedBlocksHandedOutTwice => "zeroed-blocks-handed-out-twice",
            Broken::SizeOverUnflushedTail => "size-over-unflushed-tail",
            Broken::TailKnownBeforeFlush => "tail-known-before-flush",
            Broken::TailBelievedZero => "tail-believed-zero",
            Broken::WritebackChases => "writeback-chases",
            Broken::SyncerWaitsForData => "syncer-waits-for-data",
            Broken::CloseWithoutDraining => "close-without-draining",
            Broken::UnlockBeforeSizePublished => "unlock-before-size-published",
            Broken::SizeNotLookedAtAgain => "size-not-looked-at-again",
            Broken::VersionsTakenAfterCopy => "versions-taken-after-copy",
            Broken::ExclusiveSequenceIgnored => "exclusive-sequence-ignored",
            Broken::MissingFolioReadAsZeros => "missing-folio-read-as-zeros",
            Broken::ReadaheadWithoutFillBits => "readahead-without-fill-bits",
            Broken::WritebackNotWaitedFor => "writeback-not-waited-for",
            Broken::LocksNotInOrder => "locks-not-in-order",
            Broken::GateLeftAtSubmission => "gate-left-at-submission",
            Broken::CacheKeptAfterDirectWrite => "cache-kept-after-direct-write",
            Broken::AppendOffsetBeforeLock => "append-offset-before-lock",
            Broken::ZeroingSkippedBeyondEnd => "zeroing-skipped-beyond-end",
        }
    }

    /// The mistake of a name.
    pub fn from_name(name: &str) -> Option<Broken> {
        Broken::ALL
            .into_iter()
            .chain(Broken::CASES)
            .chain(Broken::APART)
            .chain(Broken::MEMORY)
            .find(|broken| broken.name() == name)
    }
}

#[cfg(feature = "simulation")]
mod switch {
    use super::Broken;
    // Not by way of `crate::sync`: the setting is no part of what is simulated, and asking is no scheduling
    // point.
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
    use std::sync::{Mutex, PoisonError};

    /// No mistake.
    const NONE: u8 = u8::MAX;

    static SETTING: AtomicU8 = AtomicU8::new(NONE);
    static REACHED: AtomicU64 = AtomicU64::new(0);
    static TURN: Mutex<()> = Mutex::new(());

    /// Whether the mistake is to be made.
    #[inline]
    pub fn is_broken(which: Broken) -> bool {
        let broken = SETTING.load(Ordering::Relaxed) == which as u8;
        if broken {
            REACHED.fetch_add(1, Ordering::Relaxed);
        }
        broken
    }

    /// How often the mistake has been made since it was set.
    pub fn reached() -> u64 {
        REACHED.load(Ordering::Relaxed)
    }

    /// Chooses the mistake of the whole process, until the next call.
    pub fn set(which: Option<Broken>) {
        REACHED.store(0, Ordering::Relaxed);
        SETTING.store(which.map_or(NONE, |broken| broken as u8), Ordering::Relaxed);
    }

    /// Runs `body` with a mistake, or with certainly none. Calls from several threads take turns; not to be
    /// nested.
    pub fn with<T>(which: Option<Broken>, body: impl FnOnce() -> T) -> T {
        struct Unset;
        impl Drop for Unset {
            fn drop(&mut self) {
                set(None);
            }
        }
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let _unset = Unset;
        set(which);
        body()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_again() {
        for (at, broken) in Broken::ALL.into_iter().enumerate() {
            assert_eq!((broken as usize, Broken::from_name(broken.name())), (at, Some(broken)));
        }
        for broken in Broken::CASES.into_iter().chain(Broken::APART).chain(Broken::MEMORY) {
            assert_eq!(Broken::from_name(broken.name()), Some(broken));
        }
        assert_eq!(Broken::from_name("nothing-of-the-kind"), None);
    }

    #[cfg(feature = "simulation")]
    #[test]
    fn a_setting_lasts_as_long_as_its_body() {
        let seen = with(Some(Broken::SizePastGap), || {
            assert!(is_broken(Broken::SizePastGap) && !is_broken(Broken::FsyncBeforeForce));
            reached()
        });
        assert_eq!((seen, is_broken(Broken::SizePastGap)), (1, false));
        with(None, || assert!(Broken::ALL.iter().chain(&Broken::MEMORY).all(|broken| !is_broken(*broken))));
    }

    #[cfg(not(feature = "simulation"))]
    #[test]
    fn the_product_makes_no_mistake() {
        const NEVER: bool = is_broken(Broken::FsyncBeforeForce);
        const { assert!(!NEVER) };
    }
}
