//! INIT: what is used of what the kernel offers, and the limits of requests.

use std::cmp::Ordering;

use quire_base::{Error, ErrorKind, Result};

use super::abi::{self, init};

/// Largest request in bytes that is asked for. The kernel has a limit of its own (`fs.fuse.max_pages_limit`),
/// 1 MiB as kernels come; where it is raised, so is what a program reads and writes as one, up to this.
pub const REQUEST_MAX: u32 = 8 << 20;
/// Smallest largest request.
const REQUEST_MIN: u32 = 128 << 10;
/// Asynchronous requests (readahead, asynchronous direct I/O, writes of mapped pages) the kernel may have
/// outstanding.
const BACKGROUND_MAX: u16 = 128;

/// What a server wants, besides what all do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Features {
    /// POSIX ACLs are kept by the volume and checked by the kernel.
    pub acl: bool,
    /// The volume clears set-user-id and set-group-id bits itself.
    pub kill_privileges: bool,
    /// Directories are read with the attributes of what they name.
    pub read_directory_plus: bool,
    /// The kernel keeps what programs write, and the sizes and times of files, and writes back later.
    pub write_back: bool,
    /// Requests through io_uring.
    pub ring: bool,
}

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Bytes of data in one request at most.
    pub request_max: u32,
    /// The kernel will send requests through io_uring once all queues are registered.
    pub ring: bool,
    /// The kernel's minor version.
    pub minor: u32,
}

/// Refuses a kernel that is older than those whose structures are known here. Linux 5.11 and 5.12 have the
/// same minor version as 5.13, but only the short form of SETXATTR.
pub fn check(args: &abi::InitIn) -> Result<()> {
    let is_old = match args.major.cmp(&abi::MAJOR) {
        Ordering::Less => true,
        Ordering::Equal => args.minor < abi::MINOR_MIN || offered(args, 0) & init::SETXATTR_EXT == 0,
        Ordering::Greater => false,
    };
    if is_old {
        let text = format!(
            "mounts need Linux 5.13 or newer; this kernel speaks an older FUSE ({}.{})",
            args.major, args.minor
        );
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    Ok(())
}

/// Whether the kernel, in its INIT, offers requests through io_uring.
pub fn offers_ring(args: &abi::InitIn, flags2: u32) -> bool {
    offered(args, flags2) & init::OVER_IO_URING != 0
}

fn offered(args: &abi::InitIn, flags2: u32) -> u64 {
    u64::from(args.flags) | u64::from(flags2) << 32
}

/// The kernel's limit for one request.
#[derive(Clone, Copy, Debug)]
pub struct Pages {
    /// Pages at most.
    pub limit: u32,
    /// Bytes of a page.
    pub size: u32,
}

/// Bytes of data in one request at most, as will be answered to an INIT.
pub fn request_max(args: &abi::InitIn, flags2: u32, pages: Pages) -> u32 {
    // Without the flag a request has 32 pages at most.
    let limit = if offered(args, flags2) & init::MAX_PAGES != 0 { pages.limit } else { 32 };
    limit.saturating_mul(pages.size).clamp(REQUEST_MIN, REQUEST_MAX)
}

/// The answer to an INIT of the same major version.
pub fn answer(args: &abi::InitIn, flags2: u32, features: &Features, pages: Pages) -> (abi::InitOut, Agreed) {
    let offered = offered(args, flags2);
    let mut wanted = init::ASYNC_READ
        | init::BIG_WRITES
        | init::MAX_PAGES
        | init::ASYNC_DIO
        | init::PARALLEL_DIROPS
        | init::NO_OPENDIR_SUPPORT
        | init::CACHE_SYMLINKS
        | init::EXPORT_SUPPORT
        // Nobody changes files behind the kernel's back, so cached pages die only by the kernel's own hand.
        | init::EXPLICIT_INVAL_DATA
        | init::HAS_IOCTL_DIR
        // Pages of shared mappings beside direct I/O on the same file.
        | init::DIRECT_IO_ALLOW_MMAP
        // The long form of SETXATTR, which tells when set-group-id has to go; every kernel served has it.
        | init::SETXATTR_EXT
        // Owners come as the file system has them, whatever the mount shows. The kernel takes this only where
        // it checks permissions itself, as it does on all mounts made here.
        | init::ALLOW_IDMAP
        // The word that holds the flags from bit 32 on.
        | init::INIT_EXT;
    if features.acl {
        // The volume applies the umask, since a default ACL of the directory takes its place.
        wanted |= init::DONT_MASK | init::POSIX_ACL;
    }
    if features.kill_privileges {
        wanted |= init::HANDLE_KILLPRIV_V2;
    }
    if features.read_directory_plus {
        wanted |= init::DO_READDIRPLUS | init::READDIRPLUS_AUTO;
    }
    if features.write_back {
        wanted |= init::WRITEBACK_CACHE;
    }
    if features.ring {
        wanted |= init::OVER_IO_URING;
    }
    let taken = wanted & offered;
    let missing = wanted & !offered;
    if missing != 0 {
        tracing::debug!(
            "this kernel (FUSE {}.{}) does not offer the flags {missing:#x}",
            args.major,
            args.minor
        );
    }
    let request_max = request_max(args, flags2, pages);
    let out = abi::InitOut {
        major: abi::MAJOR,
        minor: abi::MINOR,
        max_readahead: args.max_readahead,
        flags: taken as u32,
        max_background: BACKGROUND_MAX,
        congestion_threshold: BACKGROUND_MAX / 4 * 3,
        max_write: request_max,
        time_gran: 1,
        max_pages: (request_max / pages.size) as u16,
        flags2: (taken >> 32) as u32,
        ..Default::default()
    };
    (out, Agreed { request_max, ring: taken & init::OVER_IO_URING != 0, minor: args.minor })
}

impl Pages {
    /// As this kernel has them.
    pub fn now() -> Pages {
        let limit = std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit")
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(256);
        Pages { limit, size: rustix::param::page_size() as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: abi::InitIn = abi::InitIn { major: 7, minor: 45, max_readahead: 131_072, flags: u32::MAX };

    fn pages(limit: u32) -> Pages {
        Pages { limit, size: 4096 }
    }

    /// On a kernel with larger pages the answer was in pages of 4 KiB.
    #[test]
    fn pages_are_the_kernels() {
        let (out, agreed) = answer(&KERNEL, 0, &Features::default(), Pages { limit: 64, size: 65_536 });
        assert_eq!((out.max_write, out.max_pages, agreed.request_max), (4 << 20, 64, 4 << 20));
    }

    #[test]
    fn nothing_is_taken_that_is_not_offered() {
        let (out, agreed) = answer(
            &abi::InitIn { flags: 0, ..KERNEL },
            0,
            &Features { ring: true, ..Features::default() },
            pages(256),
        );
        assert_eq!((out.flags, out.flags2), (0, 0));
        assert_eq!((agreed.ring, agreed.request_max), (false, REQUEST_MIN));
    }

    /// Linux 5.11 and 5.12 were accepted by their minor version, and the names and values of extended
    /// attributes that they sent were read from the wrong place.
    #[test]
    fn kernels_without_the_long_setxattr_are_refused() {
        let kernel = |major, minor, flags| abi::InitIn { major, minor, flags, ..KERNEL };
        let without = !(init::SETXATTR_EXT as u32);
        check(&KERNEL).unwrap();
        check(&kernel(7, 33, u32::MAX)).unwrap();
        check(&kernel(8, 0, without)).expect("it is told which version is spoken here");
        for old in [kernel(7, 33, without), kernel(7, 32, u32::MAX), kernel(6, 45, u32::MAX)] {
            let error = check(&old).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("Linux 5.13"), "{error}");
        }
    }

    #[test]
    fn the_ring_is_taken_only_if_wished_for() {
        for ring in [true, false] {
            let (out, agreed) =
                answer(&KERNEL, u32::MAX, &Features { ring, ..Features::default() }, pages(256));
            assert_eq!(agreed.ring, ring);
            assert_eq!(u64::from(out.flags2) << 32 & init::OVER_IO_URING != 0, ring);
            assert_eq!(out.max_write, 1 << 20);
            assert_eq!(out.max_pages, 256);
        }
    }

    #[test]
    fn a_raised_limit_is_used() {
        let (out, agreed) = answer(&KERNEL, 0, &Features::default(), pages(1024));
        assert_eq!((out.max_write, out.max_pages, agreed.request_max), (4 << 20, 1024, 4 << 20));
    }

    #[test]
    fn absurd_limits_are_clamped() {
        assert_eq!(answer(&KERNEL, 0, &Features::default(), pages(u32::MAX)).1.request_max, REQUEST_MAX);
        assert_eq!(answer(&KERNEL, 0, &Features::default(), pages(0)).1.request_max, REQUEST_MIN);
    }
}
