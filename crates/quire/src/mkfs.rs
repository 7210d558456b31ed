//! Making a volume.
//!
//! Protocol: refuse what already holds something (unless forced); clear all copies of the superblocks and
//! flush, so that a half-made volume is no volume; write the journal with zeros; write the first tree (root
//! directory, used blocks of the fixed areas) and the empty orphan blocks as checkpoint 1; flush; write both
//! superblocks.
//!
//! Geometry (4 KiB blocks): slot A at 0, slot B at 8, journal from 16, the first chunks of the metadata pool
//! behind it, data space behind that, the second copies of the slots in the last 16 blocks. Where metadata
//! has two copies, the pool has as many chunks again in the middle of the volume.
//!
//! Neighbours: `format::superblock` is the result; [`crate::recovery`] opens it.

use crate::options::FormatOptions;
use crate::store::checkpoint::name_image;
use crate::store::orphan_slots::OrphanSlots;
use crate::store::superblocks;
use quire_base::random::Random;
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, InodeNo, Result, Seq};
use quire_device::{AlignedBuf, Backend, Device, IoClass};
use quire_format::extent::Run;
use quire_format::inode::{FileType, InodeRecord};
use quire_format::key::Key;
use quire_format::place::NO_TWIN;
use quire_format::region::{RegionMap, split_by_region};
use quire_format::superblock::{
    FAR_BLOCKS, FLAG_CLEAN, FORMAT_MAJOR, FORMAT_MINOR, JOURNAL_START, METADATA_COPIES_MAX, SLOT_BLOCKS,
    Superblock,
};
use quire_tree::{CheckpointStamp, ManifestRef, NodeRef, PoolState, Tree, TreeLimits};
use std::collections::BTreeMap;

/// The smallest volume, in bytes.
pub const VOLUME_BYTES_MIN: u64 = 16 << 20;
/// The largest volume, in bytes: what allocation groups can number.
pub const VOLUME_BYTES_MAX: u64 = 1 << 50;
/// The smallest and the largest journal, in bytes.
pub const JOURNAL_BYTES_MIN: u64 = 1 << 20;
/// See [`JOURNAL_BYTES_MIN`].
pub const JOURNAL_BYTES_MAX: u64 = 4 << 30;

/// From this size on, in bytes, metadata has two copies unless a volume is made otherwise.
pub const TWO_COPIES_BYTES_MIN: u64 = 64 << 20;

/// Blocks in a chunk of the metadata pool.
const CHUNK_BLOCKS: u64 = 1024;

struct Geometry {
    blocks: u64,
    journal_blocks: u64,
    pool_start: BlockNo,
    pool_blocks: u64,
    orphan_blocks: u32,
    copies: u32,
}

impl Geometry {
    fn of(bytes: u64, journal_bytes: Option<u64>, copies: Option<u32>) -> Result<Geometry> {
        if bytes < VOLUME_BYTES_MIN {
            return Err(Error::invalid(format!(
                "a volume needs at least {} MiB, {bytes} bytes were given",
                VOLUME_BYTES_MIN >> 20
            )));
        }
        if bytes > VOLUME_BYTES_MAX {
            return Err(Error::invalid(format!("a volume has at most 1 PiB, {bytes} bytes were given")));
        }
        let copies = copies.unwrap_or(if bytes >= TWO_COPIES_BYTES_MIN { METADATA_COPIES_MAX } else { 1 });
        if !(1..=METADATA_COPIES_MAX).contains(&copies) {
            return Err(Error::invalid(format!("metadata has 1 or 2 copies, {copies} were asked for")));
        }
        let blocks = bytes / BLOCK_SIZE as u64;
        let journal_bytes = match journal_bytes {
            Some(wanted) if wanted < JOURNAL_BYTES_MIN || wanted > JOURNAL_BYTES_MAX.min(bytes / 4) => {
                return Err(Error::invalid(format!(
                    "a journal has 1 MiB to a quarter of the volume (here {} MiB), at most 4 GiB; {wanted} bytes were given",
                    (JOURNAL_BYTES_MAX.min(bytes / 4)) >> 20
                )));
            }
            Some(wanted) => wanted,
            None => (bytes / 64).clamp(JOURNAL_BYTES_MIN, 64 << 20),
        };
        let journal_blocks = journal_bytes / BLOCK_SIZE as u64;
        // Whole chunks of 64 blocks: room for two copies of a dirty set that makes checkpoints worth while.
        let pool_blocks = (blocks / 64).clamp(512, 16 * CHUNK_BLOCKS) / 64 * 64;
        Ok(Geometry {
            blocks,
            journal_blocks,
            pool_start: JOURNAL_START.offset(journal_blocks),
            pool_blocks,
            orphan_blocks: (bytes >> 30).clamp(2, 128) as u32,
            copies,
        })
    }

    fn data_end(&self) -> BlockNo {
        BlockNo(self.blocks - FAR_BLOCKS)
    }

    /// The chunks for second copies, if there are any.
    fn mirror(&self) -> Option<Run> {
        let middle = BlockNo((self.blocks / 2).next_multiple_of(64));
        (self.copies > 1).then_some(Run::new(middle, self.pool_blocks))
    }

    /// What belongs neither to files nor to free space, apart from the end of the volume.
    fn fixed(&self) -> Vec<Run> {
        std::iter::once(Run::new(BlockNo(0), self.data_start().0)).chain(self.mirror()).collect()
    }

    fn free_blocks(&self) -> u64 {
        self.data_end().0 - self.data_start().0 - self.mirror().map_or(0, |mirror| mirror.blocks)
    }

    fn data_start(&self) -> BlockNo {
        self.pool_start.offset(self.pool_blocks)
    }

    fn pool(&self) -> Vec<Run> {
        std::iter::once(Run::new(self.pool_start, self.pool_blocks)).chain(self.mirror()).collect()
    }
}

/// Makes a volume on a backend; gives its superblock.
pub(crate) fn format(backend: Arc<dyn Backend>, options: &FormatOptions) -> Result<Superblock> {
    let device = Device::new(backend);
    let device_bytes = device.blocks() * BLOCK_SIZE as u64;
    let bytes = options.size.unwrap_or(device_bytes);
    if bytes > device_bytes {
        return Err(Error::invalid(format!(
            "{} has {device_bytes} bytes, {bytes} were asked for",
            device.name()
        )));
    }
    let geometry = Geometry::of(bytes, options.journal_bytes, options.metadata_copies)?;
    if !options.force {
        refuse_existing(&device)?;
    }
    let label = Superblock::pad_label(&options.label)?;

    superblocks::clear(&device, geometry.blocks)?;
    device.flush_to(device.mark())?;
    write_zeros(&device, JOURNAL_START, geometry.journal_blocks)?;

    let mut random = options.seed.map_or_else(Random::from_entropy, Random::seeded);
    let mut uuid = [0u8; 16];
    uuid[..8].copy_from_slice(&random.next_u64().to_le_bytes());
    uuid[8..].copy_from_slice(&random.next_u64().to_le_bytes());
    let uuid = uuid::Builder::from_random_bytes(uuid).into_uuid().into_bytes();
    let now = options.clock.now();
    let mirror = geometry.mirror();
    let mut superblock = Superblock {
        version: (FORMAT_MAJOR, FORMAT_MINOR),
        flags: FLAG_CLEAN,
        feature_compat: 0,
        feature_ro_compat: 0,
        feature_incompat: 0,
        uuid,
        changed_uuid: [0; 16],
        label,
        block_count: geometry.blocks,
        slot: 0,
        checkpoint: 1,
        incarnation: 1,
        journal_start: JOURNAL_START,
        journal_blocks: geometry.journal_blocks,
        sequence: Seq(0),
        root: NodeRef { block: BlockNo(0), twin: NO_TWIN, generation: 0, crc: 0, level: 0 },
        manifest: ManifestRef { block: BlockNo(0), twin: NO_TWIN, crc: 0, count: 0 },
        orphan_blocks: geometry.orphan_blocks,
        mount_count: 0,
        pool_start: geometry.pool_start,
        pool_blocks: geometry.pool_blocks,
        data_start: geometry.data_start(),
        data_end: geometry.data_end(),
        mirror_start: mirror.map_or(BlockNo(0), |mirror| mirror.start),
        mirror_blocks: mirror.map_or(0, |mirror| mirror.blocks),
        free_blocks: geometry.free_blocks(),
        inode_count: 1,
        next_inode: InodeNo::ROOT.0 + 1,
        hash_seed: [random.next_u64(), random.next_u64()],
        created: now,
        mounted: now,
        checkpointed: now,
        metadata_copies: geometry.copies,
        epoch: 0,
        space_root: NodeRef { block: BlockNo(0), twin: NO_TWIN, generation: 0, crc: 0, level: 0 },
        scrub: None,
    };

    let pool = PoolState::new(&geometry.pool(), geometry.copies);
    let tree =
        Tree::create(device.clone(), superblock.volume_id(), pool, TreeLimits::with_cache_bytes(64 << 20));
    tree.put(Key::inode(InodeNo::ROOT), &root_directory(now).encode())?;
    let mut regions: BTreeMap<u64, RegionMap> = BTreeMap::new();
    for (region, start, blocks) in geometry.fixed().into_iter().flat_map(split_by_region) {
        regions.entry(region).or_default().set_used(start, blocks)?;
    }
    for (region, map) in regions {
        if let Some(value) = map.encode() {
            tree.put(Key::region(region), &value)?;
        }
    }
    let orphans = OrphanSlots::new(geometry.orphan_blocks);
    let frozen = tree.freeze(orphans.take_changed(true)?);
    let stamp = CheckpointStamp { checkpoint: superblock.checkpoint, incarnation: superblock.incarnation };
    let image = tree.write_frozen(frozen, stamp)?;
    device.flush_to(device.mark())?;
    name_image(&mut superblock, &image);
    for slot in 0..SLOT_BLOCKS.len() {
        superblocks::publish(&device, &superblock, slot)?;
    }
    device.flush_to(device.mark())?;
    Ok(superblock)
}

/// Checks a volume's and a journal's size before anything is created.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn check_size(bytes: u64, options: &FormatOptions) -> Result<()> {
    Geometry::of(bytes, options.journal_bytes, options.metadata_copies).map(drop)
}

/// Opens what is to become a volume: a block device or a server's as it is; an image file, made longer if a
/// size says so.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn open_for_format(path: &std::path::Path, options: &FormatOptions) -> Result<Arc<dyn Backend>> {
    if quire_device::NbdAddress::is_one(path) {
        return quire_device::open_image(path, quire_device::OpenMode::ReadWrite);
    }
    let doing = |what: &str| format!("{what} {}", path.display());
    let metadata = std::fs::metadata(path).map_err(|error| Error::os(doing("looking at"), &error))?;
    if metadata.is_file() {
        let wanted = options.size.unwrap_or(metadata.len());
        check_size(wanted, options)?;
        if wanted > metadata.len() {
            // A file that is open elsewhere keeps its length: the lock comes first, and is held from here on.
            let backend = quire_device::open_image(path, quire_device::OpenMode::ReadWrite)?;
            // A refusal changes nothing, and a volume's second superblocks lie at the end that the file has
            // now.
            if backend.blocks() > 0 && !options.force {
                refuse_existing(&Device::new(backend.clone()))?;
            }
            // A file of less than a block may hold something, too.
            if metadata.len() > 0 && !options.force {
                use std::io::Read;
                let file = std::fs::File::open(path).map_err(|error| Error::os(doing("opening"), &error))?;
                let mut bytes = Vec::new();
                file.take(1 << 20)
                    .read_to_end(&mut bytes)
                    .map_err(|error| Error::os(doing("reading"), &error))?;
                if bytes.iter().any(|&byte| byte != 0) {
                    return Err(Error::new(
                        ErrorKind::Exists,
                        format!("{} is not empty; nothing was changed", path.display()),
                    ));
                }
            }
            backend.grow(wanted / BLOCK_SIZE as u64)?;
            return Ok(backend);
        }
    }
    quire_device::open_image(path, quire_device::OpenMode::ReadWrite)
}

/// Opens an image for writing; where the file or its medium does not permit that, for reading, with a
/// warning.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn open_writable_or_read_only(path: &std::path::Path) -> Result<Arc<dyn Backend>> {
    use quire_device::OpenMode;
    match quire_device::open_image(path, OpenMode::ReadWrite) {
        Err(error) if matches!(error.kind(), ErrorKind::ReadOnly | ErrorKind::AccessDenied) => {
            let backend = quire_device::open_image(path, OpenMode::ReadOnly)?;
            tracing::warn!(%error, "the image cannot be written; the volume is opened read-only");
            Ok(backend)
        }
        other => other,
    }
}

fn root_directory(now: quire_base::Timestamp) -> InodeRecord {
    InodeRecord {
        mode: FileType::Directory.to_mode() | 0o755,
        flags: 0,
        uid: 0,
        gid: 0,
        nlink: 2,
        xattr_bytes: 0,
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        generation: 1,
        rdev: 0,
        parent: InodeNo::ROOT.0,
    }
}

/// Writes zeros over a ring.
pub(crate) fn write_zeros(device: &Device, start: BlockNo, blocks: u64) -> Result<()> {
    const PIECE: u64 = 256;
    let zeros = AlignedBuf::zeroed((PIECE as usize) * BLOCK_SIZE);
    for at in (0..blocks).step_by(PIECE as usize) {
        let count = PIECE.min(blocks - at) as usize;
        device.write(IoClass::Journal, start.offset(at), &zeros[..count * BLOCK_SIZE])?;
    }
    Ok(())
}

/// Where well-known formats keep their magic: (name, byte offset, bytes).
const SIGNATURES: &[(&str, usize, &[u8])] = &[
    ("a Quire volume", 0, b"QUIRE\0FS"),
    ("a Quire volume", 8 * BLOCK_SIZE, b"QUIRE\0FS"),
    ("an XFS file system", 0, b"XFSB"),
    ("an ext2, ext3 or ext4 file system", 1024 + 56, &[0x53, 0xef]),
    ("a Btrfs file system", 0x10040, b"_BHRfS_M"),
    ("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("a bcachefs file system", 4096 + 24, &[0xc6, 0x85, 0x73, 0xf6]),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 54, b"FAT1"),
    ("a FAT file system", 82, b"FAT32"),
    ("a squashfs image", 0, b"hsqs"),
    ("an ISO 9660 image", 0x8001, b"CD001"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("a LUKS container", 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("an MBR partition table", 510, &[0x55, 0xaa]),
];

fn refuse_existing(device: &Device) -> Result<()> {
    let blocks = device.blocks().min(32);
    let mut head = AlignedBuf::zeroed(blocks as usize * BLOCK_SIZE);
    device.read(IoClass::Metadata, BlockNo(0), &mut head)?;
    let found = SIGNATURES
        .iter()
        .find(|(_, at, magic)| head.get(*at..*at + magic.len()).is_some_and(|bytes| bytes == *magic))
        .map(|(name, _, _)| *name)
        .or_else(|| superblocks::has_far(device).then_some("a Quire volume whose beginning was overwritten"))
        .or_else(|| head.iter().any(|&byte| byte != 0).then_some("data of an unknown kind"));
    match found {
        None => Ok(()),
        Some(what) => Err(Error::new(
            ErrorKind::Exists,
            format!("{} already holds {what}; nothing was changed", device.name()),
        )),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_device::MemoryBackend;

    #[test]
    fn geometry_of_small_and_large_volumes() {
        for copies in [1, 2] {
            let small = Geometry::of(VOLUME_BYTES_MIN, None, Some(copies)).unwrap();
            assert!(small.free_blocks() > small.blocks / 2);
            let most = Geometry::of(VOLUME_BYTES_MIN, Some(VOLUME_BYTES_MIN / 4), Some(copies)).unwrap();
            assert!(most.mirror().is_none_or(|mirror| mirror.start > most.data_start()));
        }
        let large = Geometry::of(16 << 40, None, None).unwrap();
        assert_eq!((large.journal_blocks, large.copies), ((64 << 20) / 4096, 2));
        assert_eq!(large.mirror().unwrap().start.0, large.blocks / 2);
        assert_eq!(Geometry::of(32 << 20, None, None).unwrap().copies, 1);
        assert!(Geometry::of(1 << 20, None, None).is_err());
        assert!(Geometry::of(2 << 50, None, None).is_err());
        assert!(Geometry::of(1 << 30, Some(1 << 29), None).is_err());
        assert!(Geometry::of(1 << 30, None, Some(3)).is_err());
    }

    #[test]
    fn what_is_there_is_kept_unless_forced() {
        let backend = Arc::new(MemoryBackend::new(16384));
        let mut magic = AlignedBuf::zeroed(BLOCK_SIZE);
        magic[..4].copy_from_slice(b"XFSB");
        backend.write(IoClass::Metadata, BlockNo(0), &magic).unwrap();
        let refused = format(backend.clone(), &FormatOptions::default()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Exists);
        assert!(refused.to_string().contains("XFS"), "{refused}");
        format(backend.clone(), &FormatOptions { force: true, ..Default::default() }).unwrap();
        let again = format(backend, &FormatOptions::default()).unwrap_err();
        assert!(again.to_string().contains("Quire"), "{again}");
    }
}
