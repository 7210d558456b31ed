//! The bytes of a superblock: its fields one behind the other, as [`super`] lists them.
//!
//! Neighbours: [`super`] has the fields and checks them against one another.

use super::{FORMAT_MAJOR, INCOMPAT_KNOWN, MAGIC, Superblock, TREE_LEVEL_MAX, bits, check, crc32c_without};
use crate::node::NodeRef;
use crate::pool::ManifestRef;
use crate::scrub::{LastScrub, SCRUB_AT, SCRUB_BYTES};
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result, Seq, Timestamp};

/// Where the checksum is.
pub(super) const CRC_AT: usize = 8;

impl Superblock {
    /// The bytes, checksum included.
    pub fn encode(&self) -> [u8; BLOCK_SIZE] {
        let mut block = [0u8; BLOCK_SIZE];
        let mut w = Writer { block: &mut block, at: 0 };
        w.bytes(&MAGIC);
        w.u32(0);
        w.u32(self.version.0);
        w.u32(self.version.1);
        w.u32(self.flags);
        w.u64(self.feature_compat);
        w.u64(self.feature_ro_compat);
        w.u64(self.feature_incompat);
        w.bytes(&self.uuid);
        w.bytes(&self.label);
        w.u32(BLOCK_SIZE as u32);
        w.u32(self.slot);
        w.u64(self.block_count);
        w.u64(self.checkpoint);
        w.u64(self.incarnation);
        w.u64(self.journal_start.0);
        w.u64(self.journal_blocks);
        w.u64(self.sequence.0);
        w.node(&self.root);
        w.u64(self.manifest.block.0);
        w.u64(self.manifest.twin.0);
        w.u32(self.manifest.crc);
        w.u32(self.manifest.count);
        w.u32(self.orphan_blocks);
        w.u32(self.mount_count);
        w.u64(self.pool_start.0);
        w.u64(self.pool_blocks);
        w.u64(self.data_start.0);
        w.u64(self.data_end.0);
        w.u64(self.mirror_start.0);
        w.u64(self.mirror_blocks);
        w.u64(self.free_blocks);
        w.u64(self.inode_count);
        w.u64(self.next_inode);
        w.u64(self.hash_seed[0]);
        w.u64(self.hash_seed[1]);
        w.u64(self.created.0 as u64);
        w.u64(self.mounted.0 as u64);
        w.u64(self.checkpointed.0 as u64);
        w.u32(self.metadata_copies);
        w.u32(self.epoch);
        w.node(&self.space_root);
        w.bytes(&self.changed_uuid);
        block[SCRUB_AT..SCRUB_AT + SCRUB_BYTES].copy_from_slice(&LastScrub::encode(self.scrub.as_ref()));
        let crc = crc32c::crc32c(&block);
        block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Reads and checks a superblock.
    ///
    /// Errors: `NotAVolume` (no magic), `UnknownFormat` (newer major version, unknown incompatible features),
    /// `Corrupt` (checksum, or fields that contradict one another).
    pub fn decode(bytes: &[u8]) -> Result<Superblock> {
        if bytes.len() < BLOCK_SIZE || bytes[..MAGIC.len()] != MAGIC {
            return Err(Error::new(
                ErrorKind::NotAVolume,
                "no Quire volume here: the superblock's magic is missing",
            ));
        }
        let bytes = &bytes[..BLOCK_SIZE];
        let mut r = Reader { bytes, at: CRC_AT };
        let crc = r.u32();
        let found = crc32c_without(bytes, CRC_AT);
        if crc != found {
            return Err(Error::corrupt(format!(
                "superblock: checksum is {crc:#010x}, its bytes give {found:#010x}"
            )));
        }
        let version = (r.u32(), r.u32());
        let flags = r.u32();
        let (feature_compat, feature_ro_compat, feature_incompat) = (r.u64(), r.u64(), r.u64());
        if version.0 != FORMAT_MAJOR {
            return Err(Error::new(
                ErrorKind::UnknownFormat,
                format!(
                    "the volume has format {}.{}, this build reads {FORMAT_MAJOR}.x: use a matching build",
                    version.0, version.1
                ),
            ));
        }
        let unknown = feature_incompat & !INCOMPAT_KNOWN;
        if unknown != 0 {
            return Err(Error::new(
                ErrorKind::UnknownFormat,
                format!("the volume has features ({}) that this build does not know", bits(unknown)),
            ));
        }
        let uuid = r.array();
        let label = r.array();
        let block_size = r.u32();
        let slot = r.u32();
        let block_count = r.u64();
        let (checkpoint, incarnation) = (r.u64(), r.u64());
        let (journal_start, journal_blocks, sequence) = (BlockNo(r.u64()), r.u64(), Seq(r.u64()));
        let root = r.node()?;
        let manifest =
            ManifestRef { block: BlockNo(r.u64()), twin: BlockNo(r.u64()), crc: r.u32(), count: r.u32() };
        let (orphan_blocks, mount_count) = (r.u32(), r.u32());
        let (pool_start, pool_blocks) = (BlockNo(r.u64()), r.u64());
        let (data_start, data_end) = (BlockNo(r.u64()), BlockNo(r.u64()));
        let (mirror_start, mirror_blocks) = (BlockNo(r.u64()), r.u64());
        let (free_blocks, inode_count, next_inode) = (r.u64(), r.u64(), r.u64());
        let hash_seed = [r.u64(), r.u64()];
        let mut time = || Timestamp(r.u64() as i64);
        let (created, mounted, checkpointed) = (time(), time(), time());
        let (metadata_copies, epoch) = (r.u32(), r.u32());
        let space_root = r.node()?;
        let changed_uuid = r.array();
        let scrub: &[u8; SCRUB_BYTES] =
            bytes[SCRUB_AT..][..SCRUB_BYTES].try_into().expect("a part of a block");
        let scrub = LastScrub::decode(scrub);
        check(block_size as usize == BLOCK_SIZE, || format!("block size {block_size}"))?;
        let superblock = Superblock {
            version,
            flags,
            feature_compat,
            feature_ro_compat,
            feature_incompat,
            uuid,
            changed_uuid,
            label,
            block_count,
            slot,
            checkpoint,
            incarnation,
            journal_start,
            journal_blocks,
            sequence,
            root,
            manifest,
            orphan_blocks,
            mount_count,
            pool_start,
            pool_blocks,
            data_start,
            data_end,
            mirror_start,
            mirror_blocks,
            free_blocks,
            inode_count,
            next_inode,
            hash_seed,
            created,
            mounted,
            checkpointed,
            metadata_copies,
            epoch,
            space_root,
            scrub,
        };
        superblock.validate()?;
        Ok(superblock)
    }
}

struct Writer<'a> {
    block: &'a mut [u8; BLOCK_SIZE],
    at: usize,
}

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.block[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }
    fn node(&mut self, node: &NodeRef) {
        self.u64(node.block.0);
        self.u64(node.twin.0);
        self.u64(node.generation);
        self.u32(node.crc);
        self.u32(u32::from(node.level));
    }
}

/// Reads fields in order from a slice that is known to be a whole block.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let array = self.bytes[self.at..self.at + N].try_into().expect("N bytes");
        self.at += N;
        array
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
    fn node(&mut self) -> Result<NodeRef> {
        let (block, twin, generation) = (BlockNo(self.u64()), BlockNo(self.u64()), self.u64());
        let (crc, level) = (self.u32(), self.u32());
        check(level <= u32::from(TREE_LEVEL_MAX), || format!("tree of height {level}"))?;
        Ok(NodeRef { block, twin, generation, crc, level: level as u8 })
    }
}
