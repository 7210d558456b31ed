//! Deliberate mistakes: one for each ordering that the engine's durability, or what its readers see, rests
//! on, to prove that the tests would notice if it were missing.
//!
//! The engine has none of them. `scripts/mistakes` copies the source tree, applies the patches in `mistakes/`
//! to the copy, and runs the tests there; each patch makes its mistake where [`is_made`] says so. [`is_made`]
//! reads one setting of the whole process, so that the engine's own threads see it too; [`with`] lets runs
//! that need different settings take turns.
//!
//! Each variant says what the mistake is and when it shows. "Shows" means that there is a moment at which a
//! crash (or a power cut, or what callers see) breaks the durability contract.
//!
//! Invariants: at most one mistake at a time; the setting changes only while no volume is open, as some
//! mistakes are made in halves, at two places.
//!
//! Neighbours: the patches ask, tests set.

// Not by way of `crate::sync`: the setting is no part of what is simulated, and asking is no scheduling
// point.
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mistake {
    /// A journal write is not preceded by a flush (J1). Shows when the power goes after the journal write and
    /// before the flush behind it, with the record kept and the data lost: the file shows what its new blocks
    /// held before.
    NoFlushBeforeJournalWrite,
    /// A record names no data that must be durable before it, though it shows some (J1). Shows as the mistake
    /// above, when no other record of the same journal write names later data.
    RecordNamesNoData,
    /// A caller takes a flush that was submitted before its writes completed for its own (J4). Shows when two
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
    /// All of a range that was freed is discarded, even if other files have parts of it by then; with discard
    /// on. Shows when a block is given out again before its discard.
    UsedBlocksDiscarded,
    /// A node of which one copy is bad is marked dirty, but not the nodes above it. Shows after a scrub: no
    /// checkpoint has written it anew.
    HealedNodeUnreached,
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
    /// Recovery does not flush before it writes: what a killed process left in the drive's cache does not
    /// count as durable, and recovery builds on it. Shows when the power goes before recovery's next flush,
    /// with the home of recorded content kept and its record lost: a unit or a group is there in part.
    RecoveryReadsUnflushed,
    /// A journal write is counted durable although one before it is not. Shows when several threads force, a
    /// later write lands before an earlier one that is held, and the power goes then.
    JournalWriteBeforeItsPredecessor,
    /// A thread that asks for a force during a journal write takes that one for its own, although it was
    /// snapped before it asked, and does not look again when it ends (J4). Shows when several threads force,
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

    // Those of data in the journal.
    /// A recorded block is written home before its record is durable (J8). Shows when the home is kept, or
    /// torn, and the record is lost: a unit or a group is there in part.
    HomeBeforeRecord,
    /// A checkpoint passes records whose homes are not written (J8). Shows after the next crash: replay
    /// begins behind them, and the blocks hold what they held before.
    HomesSkippedByCheckpoint,
    /// Replay keeps recorded content of blocks that a later record frees or makes read as zeros. Shows when
    /// they have got another owner, or are read: the old content is back.
    FreedContentReplayed,
    /// Recorded content is forgotten with each extent that a record replaces, though its blocks stay the
    /// file's. Shows when extents merge or are cut before the homes are written.
    MovedContentForgotten,
    /// The first file of a group goes into a record of its own. Shows when the journal is cut behind it.
    GroupInTwoRecords,
    /// A block whose recorded content a replay would put back is written in place. Shows after any crash: the
    /// older content is back.
    RecordedWrittenInPlace,
    /// Recorded blocks are written in place as soon as the newest checkpoint has passed their records. Shows
    /// when the older slot has to serve: its replay puts the older content back.
    PassedForNewestSlot,

    // Those of groups that go to fresh blocks.
    /// The exchange names no data that must be durable before it (J1). Shows when the power goes after the
    /// journal write, with the record kept and fresh blocks lost: the files show what those held before.
    ExchangeNamesNoData,
    /// The first file's exchange goes into a record of its own, which is forced. Shows when the journal is
    /// cut behind it: the group is in one file and not in the other.
    ExchangeInTwoRecords,
    /// Blocks that the group writes stay in the cache. Shows at the next cached read, or when a dirty one is
    /// written over the fresh block.
    CacheKeptAfterExchange,
    /// What a group has streamed to a file does not count as data that must be durable before the exchange
    /// (J1). Shows as `ExchangeNamesNoData` does.
    StreamedDataUnmarked,
    /// A group that is dropped gives its fresh blocks back, also if a record has given them to the file.
    /// Shows when they are handed out again.
    StreamedBlocksGivenBack,

    // Those of snapshots.
    /// New content of a block goes to its place, although a snapshot has the block, too. Shows in the
    /// snapshot.
    SharedOverwritten,
    /// A block that a file gives up is free, although a snapshot has it. Shows as soon as the block is used
    /// again, and to fsck at once.
    SharedFreed,
    /// Deleting a snapshot frees blocks that its neighbours have. Shows as `SharedFreed`.
    DeadFreedEarly,
    /// Deleting a snapshot does not free what it alone had. Shows to fsck.
    DeadNeverFreed,
    /// Nodes that only a snapshot needs are used again. Shows when the snapshot is read, and to fsck.
    KeptNodesReused,
    /// A checkpoint that takes the place of an unpublished one gets the next number. Shows when the slot that
    /// names it is lost: nodes of the older slot's tree have been used again.
    ReplacedImageCounted,
    /// A snapshot of a volume in use is taken without a sync. Shows as a snapshot that lacks what had been
    /// written.
    SnapshotWithoutSync,
    /// The cache keeps the homes that it knows when a snapshot of a volume in use is taken. Shows in the
    /// snapshot: a file that was read or written before is overwritten in place.
    HomesKeptBySnapshot,
    /// A rollback takes for used only what its snapshot used. Shows to fsck where there are older snapshots,
    /// and in these once their blocks are used again.
    RollbackRestoresMap,
    /// The engine goes on freeing blocks between the checkpoint of a snapshot and the record of its key.
    /// Shows when an inode without a name goes then: its blocks are free, though the snapshot's maps have
    /// them.
    FreedBeforeSnapshotKey,
    /// Blocks are free again while their discard is under way (J2). Shows when one is given out and written
    /// then: the device has a write and a discard of it in flight.
    GivenOutDuringDiscard,
    /// Nobody waits for a batch of homes that may have forgotten blocks. Shows when such a block gets another
    /// owner, and the home is the later write.
    BatchNotAwaited,
    /// The key of a snapshot may be durable before content that the journal has of it is at home. Shows when
    /// the snapshot is opened, which replays no journal.
    SnapshotKeyBeforeHomes,
    /// A chunk of the metadata pool goes to files when the newest checkpoint does not need it any more,
    /// without a second checkpoint. Shows when the older slot must serve.
    ChunkGivenUpEarly,
    /// The metadata pool gives chunks back while there are snapshots. Shows when the oldest is deleted, and a
    /// file of a later one has the blocks.
    PoolShrinksUnderSnapshots,

    /// A block of the journal that cannot be read, where the stream would go on, is taken for its end. Shows
    /// when the last forced record was in it.
    UnreadableBlockEndsJournal,
    /// A home that the device refused counts as written (J8). Shows when a checkpoint passes its record, and
    /// the power goes.
    RefusedHomePassed,
    /// What an exchange raises a size over is not written back before it (J6). Shows after a crash: zeros
    /// where the file had data that no fsync has confirmed, below a size that the group made.
    ExchangeOverUnwrittenGrowth,
    /// A scrub stores its end as its position before it has looked at a node. Shows when it is interrupted
    /// and goes on: bad copies stay behind it.
    ScrubPositionEarly,
    /// A resize discards the old journal before the superblock that names the new one is durable. Shows when
    /// the volume had not been closed and the crash comes in between: what was synced last is lost.
    OldRingReleasedEarly,
    /// A resize publishes the new journal and then writes it with zeros. Shows when its blocks held journal
    /// blocks of the same volume: they are taken for records of the new life.
    NewRingWrittenLate,
    /// The record of received content names no data that must be durable before it (J1). Shows when the
    /// stream breaks, the power goes while the journal is forced, and the rest of the stream is received.
    ReceivedDataUnflushed,
    /// The position of a receive moves before its item is applied. Shows when the power goes in between: the
    /// rest of the stream does not have the item.
    ReceivePositionAhead,
    /// A stream that is cut off is taken for a whole one.
    StreamEndUnchecked,
    /// Changes are received by a volume whose newest snapshot is another than they begin at.
    StreamParentUnchecked,
    /// A repair that may lose data publishes its checkpoint without a flush before the superblock. Shows when
    /// the power goes then: the superblock names nodes that are not there.
    RepairPublishedUnflushed,
    /// Such a repair takes an older version of a leaf for the one that is lost. Shows as files with their old
    /// contents, and as names that were removed.
    StaleLeafTaken,
    /// Such a repair leaves the map of used blocks as it finds it. Shows as blocks that nothing uses and that
    /// are not free.
    OldSpaceKept,

    // Those of progress, which show in an operation that does not end, of the end of a volume, and of broken
    // connections. See [`Mistake::APART`].
    /// An fsync looks for dirty data again when its snapshot has been written. Shows beside a writer that
    /// goes on.
    WritebackChases,
    /// A syncer waits for the data of a file. Shows when that of a few files takes long: no other fsync ends.
    SyncerWaitsForData,
    /// Closing a volume does not wait for the operations under way. Shows when one ends between the last sync
    /// and the end: what it changed is lost, although it has succeeded and the volume was closed in order.
    CloseWithoutDraining,
    /// What no flush had covered is not written again over a new connection. Shows when the server lost it:
    /// an fsync that flushes the new connection succeeds.
    UnflushedNotWrittenAgain,
    /// Over a new connection nobody looks whose the device is. Shows when another owner has taken it over
    /// meanwhile: what was kept overwrites what that one wrote.
    OwnerNotLookedAt,

    // Those of memory: they show in what threads read while others write, without any crash. See
    // [`Mistake::MEMORY`].
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
    /// A thread that writes back does not wait for what is in flight. Shows when a direct read overtakes it.
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
    /// A punch frees blocks of a lease without recalling it first. Shows at once: the holder, who would have
    /// returned it in time, finds it revoked.
    PunchWithoutRecall,
    /// Blocks of a lease move, and it stays valid. Shows when they get another file's content, and the holder
    /// reads them.
    MovedUnderLease,
}

impl Mistake {
    /// The mistakes of memory, which the history checker finds.
    pub const MEMORY: [Mistake; 12] = [
        Mistake::UnlockBeforeSizePublished,
        Mistake::SizeNotLookedAtAgain,
        Mistake::VersionsTakenAfterCopy,
        Mistake::ExclusiveSequenceIgnored,
        Mistake::MissingFolioReadAsZeros,
        Mistake::ReadaheadWithoutFillBits,
        Mistake::WritebackNotWaitedFor,
        Mistake::LocksNotInOrder,
        Mistake::GateLeftAtSubmission,
        Mistake::CacheKeptAfterDirectWrite,
        Mistake::AppendOffsetBeforeLock,
        Mistake::ZeroingSkippedBeyondEnd,
    ];

    /// The mistakes of durability, which the simulator finds.
    pub const ALL: [Mistake; 53] = [
        Mistake::NoFlushBeforeJournalWrite,
        Mistake::RecordNamesNoData,
        Mistake::FlushJoinedLate,
        Mistake::ExtentBeforeData,
        Mistake::FreedBlocksReusedAtOnce,
        Mistake::FreedBlocksDiscardedAtOnce,
        Mistake::UsedBlocksDiscarded,
        Mistake::HealedNodeUnreached,
        Mistake::SuperblockBeforeNodes,
        Mistake::JournalSpaceReusedEarly,
        Mistake::PoolNodesReusedEarly,
        Mistake::CollapseGateBeforeForce,
        Mistake::CheckpointInsideTransaction,
        Mistake::CheckpointNodesInDataSpace,
        Mistake::DeadRecordsAccepted,
        Mistake::RecoveryAppendsUnflushed,
        Mistake::RecoveryReadsUnflushed,
        Mistake::JournalWriteBeforeItsPredecessor,
        Mistake::ForceJoinedLate,
        Mistake::TornJournalTailAccepted,
        Mistake::SizeRoundedUpToBlock,
        Mistake::SizePastGap,
        Mistake::RenameInTwoTransactions,
        Mistake::OrphanClaimedApart,
        Mistake::OrphanReleasedApart,
        Mistake::FsyncBeforeForce,
        Mistake::FsyncWithoutFlush,
        Mistake::EvictedSeqForgotten,
        Mistake::SecondSuperblockUnused,
        Mistake::SeqStoredAfterWriteback,
        Mistake::ErrorSeenOnce,
        Mistake::OverlappingDeviceWrites,
        Mistake::HomeBeforeRecord,
        Mistake::HomesSkippedByCheckpoint,
        Mistake::FreedContentReplayed,
        Mistake::MovedContentForgotten,
        Mistake::GroupInTwoRecords,
        Mistake::RecordedWrittenInPlace,
        Mistake::PassedForNewestSlot,
        Mistake::ExchangeNamesNoData,
        Mistake::ExchangeInTwoRecords,
        Mistake::CacheKeptAfterExchange,
        Mistake::StreamedDataUnmarked,
        Mistake::StreamedBlocksGivenBack,
        Mistake::SharedOverwritten,
        Mistake::SharedFreed,
        Mistake::DeadFreedEarly,
        Mistake::DeadNeverFreed,
        Mistake::KeptNodesReused,
        Mistake::ReplacedImageCounted,
        Mistake::SnapshotWithoutSync,
        Mistake::HomesKeptBySnapshot,
        Mistake::RollbackRestoresMap,
    ];

    /// Mistakes of durability that ordinary runs seldom show: each has a test of its case, which goes through
    /// all crashes where it takes a crash to show.
    pub const CASES: [Mistake; 19] = [
        Mistake::SnapshotKeyBeforeHomes,
        Mistake::ChunkGivenUpEarly,
        Mistake::PoolShrinksUnderSnapshots,
        Mistake::UnreadableBlockEndsJournal,
        Mistake::RefusedHomePassed,
        Mistake::ExchangeOverUnwrittenGrowth,
        Mistake::ScrubPositionEarly,
        Mistake::ReceivedDataUnflushed,
        Mistake::ReceivePositionAhead,
        Mistake::StreamEndUnchecked,
        Mistake::StreamParentUnchecked,
        Mistake::OldRingReleasedEarly,
        Mistake::NewRingWrittenLate,
        Mistake::RepairPublishedUnflushed,
        Mistake::StaleLeafTaken,
        Mistake::OldSpaceKept,
        Mistake::FreedBeforeSnapshotKey,
        Mistake::BatchNotAwaited,
        Mistake::GivenOutDuringDiscard,
    ];

    /// The mistakes of progress, of the end of a volume, of broken connections and of leases, each of which
    /// has a scenario of its own.
    pub const APART: [Mistake; 7] = [
        Mistake::WritebackChases,
        Mistake::SyncerWaitsForData,
        Mistake::CloseWithoutDraining,
        Mistake::UnflushedNotWrittenAgain,
        Mistake::OwnerNotLookedAt,
        Mistake::PunchWithoutRecall,
        Mistake::MovedUnderLease,
    ];

    /// What it is called on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Mistake::NoFlushBeforeJournalWrite => "no-flush-before-journal-write",
            Mistake::RecordNamesNoData => "record-names-no-data",
            Mistake::FlushJoinedLate => "flush-joined-late",
            Mistake::ExtentBeforeData => "extent-before-data",
            Mistake::FreedBlocksReusedAtOnce => "freed-blocks-reused-at-once",
            Mistake::FreedBlocksDiscardedAtOnce => "freed-blocks-discarded-at-once",
            Mistake::UsedBlocksDiscarded => "used-blocks-discarded",
            Mistake::GivenOutDuringDiscard => "given-out-during-discard",
            Mistake::UnreadableBlockEndsJournal => "unreadable-block-ends-journal",
            Mistake::HealedNodeUnreached => "healed-node-unreached",
            Mistake::SuperblockBeforeNodes => "superblock-before-nodes",
            Mistake::JournalSpaceReusedEarly => "journal-space-reused-early",
            Mistake::PoolNodesReusedEarly => "pool-nodes-reused-early",
            Mistake::CollapseGateBeforeForce => "collapse-gate-before-force",
            Mistake::CheckpointInsideTransaction => "checkpoint-inside-transaction",
            Mistake::CheckpointNodesInDataSpace => "checkpoint-nodes-in-data-space",
            Mistake::DeadRecordsAccepted => "dead-records-accepted",
            Mistake::RecoveryAppendsUnflushed => "recovery-appends-unflushed",
            Mistake::RecoveryReadsUnflushed => "recovery-reads-unflushed",
            Mistake::JournalWriteBeforeItsPredecessor => "journal-write-before-its-predecessor",
            Mistake::ForceJoinedLate => "force-joined-late",
            Mistake::TornJournalTailAccepted => "torn-journal-tail-accepted",
            Mistake::SizeRoundedUpToBlock => "size-rounded-up-to-block",
            Mistake::SizePastGap => "size-past-gap",
            Mistake::RenameInTwoTransactions => "rename-in-two-transactions",
            Mistake::OrphanClaimedApart => "orphan-claimed-apart",
            Mistake::OrphanReleasedApart => "orphan-released-apart",
            Mistake::FsyncBeforeForce => "fsync-before-force",
            Mistake::FsyncWithoutFlush => "fsync-without-flush",
            Mistake::EvictedSeqForgotten => "evicted-seq-forgotten",
            Mistake::SecondSuperblockUnused => "second-superblock-unused",
            Mistake::SeqStoredAfterWriteback => "seq-stored-after-writeback",
            Mistake::ErrorSeenOnce => "error-seen-once",
            Mistake::OverlappingDeviceWrites => "overlapping-device-writes",
            Mistake::RefusedHomePassed => "refused-home-passed",
            Mistake::SharedOverwritten => "shared-overwritten",
            Mistake::SharedFreed => "shared-freed",
            Mistake::DeadFreedEarly => "dead-freed-early",
            Mistake::DeadNeverFreed => "dead-never-freed",
            Mistake::KeptNodesReused => "kept-nodes-reused",
            Mistake::ReplacedImageCounted => "replaced-image-counted",
            Mistake::ReceivedDataUnflushed => "received-data-unflushed",
            Mistake::ReceivePositionAhead => "receive-position-ahead",
            Mistake::StreamEndUnchecked => "stream-end-unchecked",
            Mistake::StreamParentUnchecked => "stream-parent-unchecked",
            Mistake::SnapshotWithoutSync => "snapshot-without-sync",
            Mistake::HomesKeptBySnapshot => "homes-kept-by-snapshot",
            Mistake::FreedBeforeSnapshotKey => "freed-before-snapshot-key",
            Mistake::RollbackRestoresMap => "rollback-restores-map",
            Mistake::SnapshotKeyBeforeHomes => "snapshot-key-before-homes",
            Mistake::ChunkGivenUpEarly => "chunk-given-up-early",
            Mistake::PoolShrinksUnderSnapshots => "pool-shrinks-under-snapshots",
            Mistake::OldRingReleasedEarly => "old-ring-released-early",
            Mistake::NewRingWrittenLate => "new-ring-written-late",
            Mistake::RepairPublishedUnflushed => "repair-published-unflushed",
            Mistake::StaleLeafTaken => "stale-leaf-taken",
            Mistake::OldSpaceKept => "old-space-kept",
            Mistake::HomeBeforeRecord => "home-before-record",
            Mistake::HomesSkippedByCheckpoint => "homes-skipped-by-checkpoint",
            Mistake::FreedContentReplayed => "freed-content-replayed",
            Mistake::MovedContentForgotten => "moved-content-forgotten",
            Mistake::GroupInTwoRecords => "group-in-two-records",
            Mistake::RecordedWrittenInPlace => "recorded-written-in-place",
            Mistake::BatchNotAwaited => "batch-not-awaited",
            Mistake::PassedForNewestSlot => "passed-for-newest-slot",
            Mistake::ExchangeNamesNoData => "exchange-names-no-data",
            Mistake::ExchangeInTwoRecords => "exchange-in-two-records",
            Mistake::CacheKeptAfterExchange => "cache-kept-after-exchange",
            Mistake::ExchangeOverUnwrittenGrowth => "exchange-over-unwritten-growth",
            Mistake::ScrubPositionEarly => "scrub-position-early",
            Mistake::StreamedDataUnmarked => "streamed-data-unmarked",
            Mistake::StreamedBlocksGivenBack => "streamed-blocks-given-back",
            Mistake::WritebackChases => "writeback-chases",
            Mistake::SyncerWaitsForData => "syncer-waits-for-data",
            Mistake::CloseWithoutDraining => "close-without-draining",
            Mistake::UnflushedNotWrittenAgain => "unflushed-not-written-again",
            Mistake::OwnerNotLookedAt => "owner-not-looked-at",
            Mistake::UnlockBeforeSizePublished => "unlock-before-size-published",
            Mistake::SizeNotLookedAtAgain => "size-not-looked-at-again",
            Mistake::VersionsTakenAfterCopy => "versions-taken-after-copy",
            Mistake::ExclusiveSequenceIgnored => "exclusive-sequence-ignored",
            Mistake::MissingFolioReadAsZeros => "missing-folio-read-as-zeros",
            Mistake::ReadaheadWithoutFillBits => "readahead-without-fill-bits",
            Mistake::WritebackNotWaitedFor => "writeback-not-waited-for",
            Mistake::LocksNotInOrder => "locks-not-in-order",
            Mistake::GateLeftAtSubmission => "gate-left-at-submission",
            Mistake::CacheKeptAfterDirectWrite => "cache-kept-after-direct-write",
            Mistake::AppendOffsetBeforeLock => "append-offset-before-lock",
            Mistake::ZeroingSkippedBeyondEnd => "zeroing-skipped-beyond-end",
            Mistake::PunchWithoutRecall => "punch-without-recall",
            Mistake::MovedUnderLease => "moved-under-lease",
        }
    }

    /// The mistake of a name.
    pub fn from_name(name: &str) -> Option<Mistake> {
        Mistake::ALL
            .into_iter()
            .chain(Mistake::CASES)
            .chain(Mistake::APART)
            .chain(Mistake::MEMORY)
            .find(|mistake| mistake.name() == name)
    }
}

/// No mistake.
const NONE: u8 = u8::MAX;

static SETTING: AtomicU8 = AtomicU8::new(NONE);
static REACHED: AtomicU64 = AtomicU64::new(0);
static TURN: Mutex<()> = Mutex::new(());

/// Whether the mistake is to be made.
#[inline]
pub fn is_made(which: Mistake) -> bool {
    let mistake = SETTING.load(Ordering::Relaxed) == which as u8;
    if mistake {
        REACHED.fetch_add(1, Ordering::Relaxed);
    }
    mistake
}

/// How often the mistake has been made since it was set.
pub fn reached() -> u64 {
    REACHED.load(Ordering::Relaxed)
}

/// Chooses the mistake of the whole process, until the next call. Panics if the engine has no mistakes in it.
pub fn set(which: Option<Mistake>) {
    assert!(which.is_none() || cfg!(mistakes), "this engine makes no mistakes: use scripts/mistakes");
    REACHED.store(0, Ordering::Relaxed);
    SETTING.store(which.map_or(NONE, |mistake| mistake as u8), Ordering::Relaxed);
}

/// Runs `body` with a mistake, or with certainly none. Calls from several threads take turns; not to be
/// nested.
pub fn with<T>(which: Option<Mistake>, body: impl FnOnce() -> T) -> T {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_again() {
        for (at, mistake) in Mistake::ALL.into_iter().enumerate() {
            assert_eq!((mistake as usize, Mistake::from_name(mistake.name())), (at, Some(mistake)));
        }
        for mistake in Mistake::CASES.into_iter().chain(Mistake::APART).chain(Mistake::MEMORY) {
            assert_eq!(Mistake::from_name(mistake.name()), Some(mistake));
        }
        assert_eq!(Mistake::from_name("nothing-of-the-kind"), None);
    }

    #[test]
    #[ignore = "scripts/mistakes runs it"]
    fn a_setting_lasts_as_long_as_its_body() {
        let seen = with(Some(Mistake::SizePastGap), || {
            assert!(is_made(Mistake::SizePastGap) && !is_made(Mistake::FsyncBeforeForce));
            reached()
        });
        assert_eq!((seen, is_made(Mistake::SizePastGap)), (1, false));
        with(None, || assert!(Mistake::ALL.iter().chain(&Mistake::MEMORY).all(|mistake| !is_made(*mistake))));
    }
}
