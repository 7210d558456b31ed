//! Structures and numbers of `linux/fuse.h`, in the machine's byte order, as the kernel lays them out.
//!
//! Layouts are those of version 7.33 and later with `SETXATTR_EXT` (Linux 5.13), the oldest that
//! [`super::negotiate`] accepts; the ring's came with 7.42 (Linux 6.14). Field meanings are the kernel's;
//! what is not used here is named `_...`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The protocol's major version.
pub const MAJOR: u32 = 7;
/// The newest minor version whose structures are known here.
pub const MINOR: u32 = 42;
/// The oldest minor version that is served.
pub const MINOR_MIN: u32 = 33;

macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident = $size:literal { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[allow(missing_docs, reason = "field names are the kernel's")]
        pub struct $name { $($(#[$field_doc])* pub $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )* };
}

structures! {
    /// Before every request.
    InHeader = 40 { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, _padding: u16 }
    /// Before every reply; `error` is zero or a negative error number.
    OutHeader = 16 { len: u32, error: i32, unique: u64 }

    InitIn = 16 { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    /// Behind [`InitIn`] if `INIT_EXT` is among its flags.
    InitInMore = 48 { flags2: u32, _unused: [u32; 11] }
    InitOut = 64 { major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16,
        flags2: u32, max_stack_depth: u32, request_timeout: u16, _unused: [u16; 11] }

    ForgetIn = 8 { count: u64 }
    BatchForgetIn = 8 { count: u32, _dummy: u32 }
    ForgetOne = 16 { node: u64, count: u64 }
    GetattrIn = 16 { flags: u32, _dummy: u32, handle: u64 }
    SetattrIn = 88 { valid: u32, _padding: u32, handle: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64,
        ctime: i64, atime_nanos: u32, mtime_nanos: u32, ctime_nanos: u32, mode: u32, _unused4: u32, uid: u32,
        gid: u32, _unused5: u32 }
    MknodIn = 16 { mode: u32, rdev: u32, umask: u32, _padding: u32 }
    MkdirIn = 8 { mode: u32, umask: u32 }
    RenameIn = 8 { new_parent: u64 }
    Rename2In = 16 { new_parent: u64, flags: u32, _padding: u32 }
    LinkIn = 8 { node: u64 }
    OpenIn = 8 { flags: u32, open_flags: u32 }
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    ReadIn = 40 { handle: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, _padding: u32 }
    WriteIn = 40 { handle: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, _padding: u32 }
    ReleaseIn = 24 { handle: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FsyncIn = 16 { handle: u64, flags: u32, _padding: u32 }
    /// The long form, which `SETXATTR_EXT` brings.
    SetxattrIn = 16 { size: u32, flags: u32, setxattr_flags: u32, _padding: u32 }
    GetxattrIn = 8 { size: u32, _padding: u32 }
    InterruptIn = 8 { unique: u64 }
    IoctlIn = 32 { handle: u64, flags: u32, command: u32, argument: u64, in_size: u32, out_size: u32 }
    FallocateIn = 32 { handle: u64, offset: u64, length: u64, mode: u32, _padding: u32 }
    LseekIn = 24 { handle: u64, offset: u64, whence: u32, _padding: u32 }
    CopyFileRangeIn = 56 { handle: u64, offset: u64, to_node: u64, to_handle: u64, to_offset: u64, length: u64,
        flags: u64 }
    StatxIn = 24 { flags: u32, _reserved: u32, handle: u64, sx_flags: u32, sx_mask: u32 }

    Attr = 88 { node: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atime_nanos: u32,
        mtime_nanos: u32, ctime_nanos: u32, mode: u32, links: u32, uid: u32, gid: u32, rdev: u32,
        block_size: u32, flags: u32 }
    EntryOut = 128 { node: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nanos: u32,
        attr_valid_nanos: u32, attr: Attr }
    AttrOut = 104 { attr_valid: u64, attr_valid_nanos: u32, _dummy: u32, attr: Attr }
    OpenOut = 16 { handle: u64, open_flags: u32, backing: i32 }
    WriteOut = 8 { size: u32, _padding: u32 }
    CopyFileRangeOut = 8 { bytes: u64 }
    GetxattrOut = 8 { size: u32, _padding: u32 }
    StatfsOut = 80 { blocks: u64, free: u64, available: u64, files: u64, free_files: u64, block_size: u32,
        name_max: u32, fragment_size: u32, _padding: u32, _spare: [u32; 6] }
    IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    LseekOut = 8 { offset: u64 }
    /// Behind the header of the notification [`NOTIFY_INVAL_INODE`]; a negative offset: the attributes alone.
    NotifyInvalInode = 24 { node: u64, offset: i64, length: i64 }
    /// Behind the header of the notification [`NOTIFY_RETRIEVE`].
    NotifyRetrieve = 32 { notify_unique: u64, node: u64, offset: u64, size: u32, _padding: u32 }
    /// Before each name of a directory, which is padded to eight bytes.
    Dirent = 24 { node: u64, offset: u64, name_length: u32, kind: u32 }
    StatxTime = 16 { seconds: i64, nanos: u32, _reserved: i32 }
    Statx = 256 { mask: u32, block_size: u32, attributes: u64, links: u32, uid: u32, gid: u32, mode: u16,
        _spare0: u16, inode: u64, size: u64, blocks: u64, attributes_mask: u64, atime: StatxTime,
        btime: StatxTime, ctime: StatxTime, mtime: StatxTime, rdev_major: u32, rdev_minor: u32,
        dev_major: u32, dev_minor: u32, _spare2: [u64; 14] }
    StatxOut = 288 { attr_valid: u64, attr_valid_nanos: u32, flags: u32, _spare: [u64; 2], stat: Statx }

    /// The ring: in the header buffer behind the two 128-byte areas for headers and arguments.
    RingEntryInOut = 32 { flags: u64, commit_id: u64, payload_size: u32, _padding: u32, _reserved: u64 }
    /// The ring: in the 80 bytes of a submission that are the command's own.
    RingCommand = 24 { flags: u64, commit_id: u64, queue: u16, _padding: [u8; 6] }
}

/// Bytes of the ring's header buffer for [`InHeader`] or [`OutHeader`].
pub const RING_HEADER_SIZE: usize = 128;
/// Bytes of the ring's header buffer for a request's first argument.
pub const RING_ARGUMENT_SIZE: usize = 128;
/// Bytes of the ring's whole header buffer.
pub const RING_HEADERS_SIZE: usize = RING_HEADER_SIZE + RING_ARGUMENT_SIZE + size_of::<RingEntryInOut>();
/// Ring command: here is an entry with its buffers, put a request into it.
pub const RING_REGISTER: u32 = 1;
/// Ring command: here is the reply, put the next request into the entry.
pub const RING_COMMIT_AND_FETCH: u32 = 2;

/// `FUSE_DEV_IOC_CLONE`: makes a freshly opened `/dev/fuse` another channel of a connection.
pub const DEVICE_CLONE: u64 = 0x8004_e500;

/// Request numbers.
#[allow(missing_docs, reason = "names are the kernel's")]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const INIT: u32 = 26;
    pub const READDIR: u32 = 28;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Flags of INIT; those from bit 32 on travel in `flags2`.
#[allow(missing_docs, reason = "names are the kernel's")]
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// What SETATTR sets.
#[allow(missing_docs, reason = "names are the kernel's")]
pub mod setattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// What OPEN and CREATE answer.
#[allow(missing_docs, reason = "names are the kernel's")]
pub mod open_out {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// What OPEN and CREATE are told, besides the program's flags: set-id bits go, since the caller cuts the
/// file.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// READ: a program's call, which names the owner of its locks; without it the kernel reads pages to keep.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// The number, in place of an error, of the notification that what the kernel keeps of an inode is not so
/// any more. Notifications have a `unique` of zero.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// As above: the kernel sends what it keeps of a file, in a request of the operation
/// [`opcode::NOTIFY_REPLY`] with the `unique` that the notification asks for.
pub const NOTIFY_RETRIEVE: i32 = 5;
/// WRITE: pages that the kernel writes back.
pub const WRITE_CACHE: u32 = 1 << 0;
/// WRITE: set-id bits go.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// SETXATTR: set-group-id goes with a new access ACL.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// FSYNC: contents only.
pub const FSYNC_DATA_ONLY: u32 = 1 << 0;
