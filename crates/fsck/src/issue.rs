//! What a check can find: each kind has a stable code and a severity.
//!
//! Codes are part of the interface (`quire fsck --json`): they are added, not changed. Severity says what the
//! volume is worth with the damage in it:
//!
//! * *info*: worth knowing, nothing is wrong;
//! * *warning*: space or redundancy is lost, all files are as they should be;
//! * *error*: a file, a name or a count is wrong, or the damage may spread when the volume is written to;
//! * *fatal*: part of the volume cannot be read, or it cannot be opened.
//!
//! Neighbours: [`crate::report`] gathers issues.

use serde::{Serialize, Serializer};
use std::fmt;

/// How bad an issue is; see the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing, nothing is wrong.
    Info,
    /// Space or redundancy is lost.
    Warning,
    /// Something is wrong that files or names show, or that may spread.
    Error,
    /// Part of the volume cannot be read, or it cannot be opened.
    Fatal,
}

macro_rules! issue_kinds {
    ($($(#[doc = $doc:literal])* $name:ident = $code:literal, $severity:ident;)*) => {
        /// What is wrong.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum IssueKind { $($(#[doc = $doc])* $name,)* }

        impl IssueKind {
            /// Every kind.
            pub const ALL: &'static [IssueKind] = &[$(IssueKind::$name,)*];

            /// The stable code, words joined by hyphens.
            pub const fn as_str(self) -> &'static str {
                match self { $(IssueKind::$name => $code,)* }
            }

            /// The severity that issues of this kind usually have.
            pub const fn severity(self) -> Severity {
                match self { $(IssueKind::$name => Severity::$severity,)* }
            }
        }
    };
}

issue_kinds! {
    /// A superblock slot does not check; the other one serves.
    SuperblockDamaged = "superblock-damaged", Error;
    /// Neither superblock slot checks.
    SuperblocksDamaged = "superblocks-damaged", Fatal;
    /// A slot's second copy, at the volume's end, does not check; the first one does.
    SuperblockCopyDamaged = "superblock-copy-damaged", Warning;
    /// The two superblocks contradict one another.
    SuperblockMismatch = "superblock-mismatch", Error;
    /// The fixed areas are not where a volume has them.
    SuperblockGeometry = "superblock-geometry", Error;
    /// A superblock says that nothing is left to replay, but something is.
    SuperblockNotClean = "superblock-not-clean", Warning;
    /// The volume remembers an error that no check has looked into.
    ErrorFlagSet = "error-flag-set", Warning;
    /// The device is shorter than the volume.
    VolumeTruncated = "volume-truncated", Fatal;
    /// The volume cannot be opened.
    VolumeRefused = "volume-refused", Fatal;
    /// The older of the two checkpoints is damaged; the newer one is whole.
    OlderCheckpointDamaged = "older-checkpoint-damaged", Warning;
    /// A receive has not come to its end; names and space are checked when it has.
    ReceiveUnfinished = "receive-unfinished", Info;

    /// One of the two copies of a piece of metadata does not check; the other one does.
    CopyDamaged = "copy-damaged", Warning;

    /// A durable part of the journal does not check.
    JournalDamaged = "journal-damaged", Fatal;
    /// A block of the journal that nothing is in cannot be read.
    JournalBlockUnreadable = "journal-block-unreadable", Warning;

    /// A page of the metadata pool's manifest does not check.
    PoolManifestDamaged = "pool-manifest-damaged", Fatal;
    /// A chunk of the metadata pool lies where none may.
    PoolChunkMisplaced = "pool-chunk-misplaced", Error;
    /// The metadata pool's map leaves out blocks of the pool's first area.
    PoolChunkMissing = "pool-chunk-missing", Warning;
    /// A chunk of the metadata pool covers blocks of a file, and has nothing there.
    PoolChunkOverlap = "pool-chunk-overlap", Error;
    /// The pool's map calls a block used that nothing uses.
    PoolBlockLeaked = "pool-block-leaked", Warning;
    /// The pool's map calls a block free that is in use.
    PoolBlockUnmarked = "pool-block-unmarked", Error;
    /// A tree node does not check.
    NodeDamaged = "node-damaged", Fatal;
    /// A tree node lies outside of the metadata pool.
    NodeOutsidePool = "node-outside-pool", Fatal;
    /// A block has two uses in the tree.
    NodeShared = "node-shared", Fatal;
    /// A tree node has keys that belong elsewhere.
    NodeOutOfOrder = "node-out-of-order", Fatal;
    /// An orphan block does not check, or the manifest does not name it.
    OrphanBlockDamaged = "orphan-block-damaged", Error;

    /// A key that means nothing.
    KeyUnknown = "key-unknown", Error;
    /// The used blocks of a region cannot be read.
    RegionDamaged = "region-damaged", Error;
    /// Blocks beyond the end of the volume are marked.
    RegionOutOfRange = "region-out-of-range", Error;
    /// Blocks are marked used that nothing uses.
    BlockLeaked = "block-leaked", Warning;
    /// Which blocks only snapshots use is marked wrongly.
    DeadBlocksWrong = "dead-blocks-wrong", Error;
    /// Part of a snapshot cannot be read.
    SnapshotDamaged = "snapshot-damaged", Fatal;
    /// Blocks in use are marked free.
    BlockUnmarked = "block-unmarked", Error;
    /// The superblock's count of free blocks is wrong.
    FreeBlocksWrong = "free-blocks-wrong", Warning;
    /// The superblock's count of inodes is wrong.
    InodeCountWrong = "inode-count-wrong", Warning;
    /// The next inode's number is in use.
    NextInodeWrong = "next-inode-wrong", Error;

    /// An inode's record cannot be read.
    InodeDamaged = "inode-damaged", Error;
    /// Contents without an inode.
    InodeMissing = "inode-missing", Error;
    /// An inode has contents that its type cannot have.
    InodeContentWrong = "inode-content-wrong", Error;
    /// A field of an inode's record has a value that its type cannot have.
    InodeFieldWrong = "inode-field-wrong", Warning;
    /// An inode's count of blocks is wrong.
    InodeBlocksWrong = "inode-blocks-wrong", Warning;
    /// An inode's count of attribute bytes is wrong.
    InodeXattrBytesWrong = "inode-xattr-bytes-wrong", Warning;
    /// A link's target is not whole, or not as long as its inode says.
    SymlinkDamaged = "symlink-damaged", Error;
    /// An extended attribute is not whole.
    XattrDamaged = "xattr-damaged", Error;
    /// An extent's value cannot be read.
    ExtentDamaged = "extent-damaged", Error;
    /// An extent says that it was born after the volume's epoch.
    ExtentBirthWrong = "extent-birth-wrong", Warning;
    /// An extent lies outside of the data space.
    ExtentOutOfRange = "extent-out-of-range", Error;
    /// Two extents of a file cover the same file block.
    ExtentOverlap = "extent-overlap", Error;
    /// A disk block belongs to two extents, or to an extent and to the metadata pool.
    ExtentShared = "extent-shared", Error;

    /// There is no root directory.
    RootMissing = "root-missing", Error;
    /// A directory entry cannot be read.
    EntryDamaged = "entry-damaged", Error;
    /// A name is not where its hash says.
    EntryMisplaced = "entry-misplaced", Error;
    /// A directory has a name twice.
    EntryDuplicate = "entry-duplicate", Error;
    /// A name of an inode that does not exist.
    EntryDangling = "entry-dangling", Error;
    /// A name of an earlier life of its inode's number.
    EntryStale = "entry-stale", Error;
    /// An entry's type is not that of its inode.
    EntryTypeWrong = "entry-type-wrong", Error;
    /// A directory has more than one name.
    DirectoryLinked = "directory-linked", Error;
    /// A directory's parent is not the directory that names it.
    ParentWrong = "parent-wrong", Error;
    /// Directories that name one another in a circle.
    DirectoryCycle = "directory-cycle", Error;
    /// A removed directory still has entries.
    RemovedDirectoryNotEmpty = "removed-directory-not-empty", Error;
    /// An inode's link count is wrong.
    LinkCountWrong = "link-count-wrong", Error;
    /// An inode with links that no directory names.
    InodeUnreachable = "inode-unreachable", Error;

    /// An orphan that neither slot nor key tracks: its space is lost.
    OrphanUntracked = "orphan-untracked", Warning;
    /// A slot or key names an inode that does not exist.
    OrphanDangling = "orphan-dangling", Warning;
    /// A slot or key names an inode with links.
    OrphanLinked = "orphan-linked", Error;
    /// An orphan is tracked twice.
    OrphanDuplicate = "orphan-duplicate", Warning;
    /// The value of an orphan's key is not empty.
    OrphanKeyDamaged = "orphan-key-damaged", Warning;
    /// A logged operation cannot be read, or fits no inode.
    LoggedOperationInvalid = "logged-operation-invalid", Error;

    /// A repair failed.
    RepairFailed = "repair-failed", Error;
}

impl IssueKind {
    /// Whether it is about the superblocks themselves, not about what they lead to.
    pub(crate) fn is_about_superblocks(self) -> bool {
        use IssueKind::*;
        matches!(
            self,
            SuperblockDamaged
                | SuperblocksDamaged
                | SuperblockCopyDamaged
                | SuperblockMismatch
                | SuperblockGeometry
                | ErrorFlagSet
                | VolumeTruncated
        )
    }
}

impl fmt::Debug for IssueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for IssueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for IssueKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Issue {
    /// How bad it is.
    pub severity: Severity,
    /// What it is.
    pub code: IssueKind,
    /// For people: what, where, and what is or can be done about it.
    pub message: String,
    /// The inode concerned, if one is.
    pub inode: Option<u64>,
    /// The disk block concerned, if one is.
    pub block: Option<u64>,
    /// Whether it has been repaired.
    pub repaired: bool,
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
            Severity::Fatal => "fatal",
        };
        write!(f, "{severity} {}: {}", self.code, self.message)?;
        if self.repaired { write!(f, " (repaired)") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_are_distinct_and_of_one_shape() {
        let codes: BTreeSet<&str> = IssueKind::ALL.iter().map(|kind| kind.as_str()).collect();
        assert_eq!(codes.len(), IssueKind::ALL.len());
        assert!(codes.iter().all(|code| code.bytes().all(|byte| byte == b'-' || byte.is_ascii_lowercase())));
    }
}
