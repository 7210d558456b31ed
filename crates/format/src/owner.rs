//! The owner's mark: who has a volume open that lies on a server's export, which nothing locks.
//!
//! It lies in block 1, between the two superblocks, where no other part of a volume does. The owner writes it
//! when it opens the volume and raises the beat from time to time; one that closes the volume in order writes
//! zeros. The fields lie in the first 512 bytes, which a device writes as a whole; the rest of the block is
//! zero. Numbers are little-endian.
//!
//! ```text
//! offset size field
//!      0    8 magic: "QUIREOWN"
//!      8    4 crc of the 512 bytes, these four taken as zero
//!     12    4 silence: a beat that stands still for so many seconds is that of an owner that is gone
//!     16    8 owner: a random number, another one for each opening
//!     24    8 beat
//!     32    8 time of this beat, by the owner's clock
//!     40    8 time of the opening
//!     48    8 process: when it started, in clock ticks since the machine did
//!     56    8 number of the process's PID namespace
//!     64    4 process id
//!     68    4 zero
//!     72   16 boot: the kernel's random number for this run of the machine
//!     88   64 name of the machine, UTF-8, padded with zeros
//!    152   16 name of the program, the same
//!    168  344 zero
//! ```
//!
//! A block without the magic holds no mark: versions without marks leave what was there before.

use quire_base::{BLOCK_SIZE, Error, Result, Timestamp};

/// The block that it lies in.
pub const OWNER_BLOCK: u64 = 1;
/// Bytes that have fields.
const BYTES: usize = 512;
const MAGIC: &[u8; 8] = b"QUIREOWN";

/// An owner and its last sign of life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerMark {
    /// Seconds; a beat that stands still for so long is that of an owner that is gone.
    pub silence: u32,
    /// A random number, another one for each opening.
    pub owner: u64,
    /// Goes up while the owner lives.
    pub beat: u64,
    /// When it last did, by the owner's clock.
    pub seen: Timestamp,
    /// When the volume was opened.
    pub opened: Timestamp,
    /// When the process started, in clock ticks since the machine did.
    pub process_start: u64,
    /// Number of the process's PID namespace.
    pub pid_namespace: u64,
    /// The process.
    pub pid: u32,
    /// The kernel's random number for this run of the machine.
    pub boot: [u8; 16],
    /// Name of the machine.
    pub host: String,
    /// Name of the program.
    pub program: String,
}

impl OwnerMark {
    /// The bytes of its block. Names are cut to their fields.
    pub fn encode(&self) -> [u8; BLOCK_SIZE] {
        let mut block = [0; BLOCK_SIZE];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC);
        put(12, &self.silence.to_le_bytes());
        put(16, &self.owner.to_le_bytes());
        put(24, &self.beat.to_le_bytes());
        put(32, &self.seen.0.to_le_bytes());
        put(40, &self.opened.0.to_le_bytes());
        put(48, &self.process_start.to_le_bytes());
        put(56, &self.pid_namespace.to_le_bytes());
        put(64, &self.pid.to_le_bytes());
        put(72, &self.boot);
        put(88, cut(&self.host, 64));
        put(152, cut(&self.program, 16));
        let crc = crc32c::crc32c(&block[..BYTES]);
        block[8..12].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// The mark in a block; `None` if it holds none. `Corrupt`: it holds one that is damaged.
    pub fn decode(block: &[u8; BLOCK_SIZE]) -> Result<Option<OwnerMark>> {
        if block[..8] != *MAGIC {
            return Ok(None);
        }
        let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("4 bytes"));
        let name = |at: usize, bytes: usize| {
            let field = &block[at..at + bytes];
            let end = field.iter().position(|byte| *byte == 0).unwrap_or(bytes);
            String::from_utf8_lossy(&field[..end]).into_owned()
        };
        let mut checked = [0; BYTES];
        checked.copy_from_slice(&block[..BYTES]);
        checked[8..12].fill(0);
        if crc32c::crc32c(&checked) != half(8) {
            return Err(Error::corrupt("the owner's mark in block 1 is damaged: its checksum is wrong"));
        }
        Ok(Some(OwnerMark {
            silence: half(12),
            owner: word(16),
            beat: word(24),
            seen: Timestamp(word(32) as i64),
            opened: Timestamp(word(40) as i64),
            process_start: word(48),
            pid_namespace: word(56),
            pid: half(64),
            boot: block[72..88].try_into().expect("16 bytes"),
            host: name(88, 64),
            program: name(152, 16),
        }))
    }
}

/// The longest start of a name that has at most `bytes`.
fn cut(name: &str, bytes: usize) -> &[u8] {
    let end = (0..=name.len().min(bytes)).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    &name.as_bytes()[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark() -> OwnerMark {
        OwnerMark {
            silence: 65,
            owner: 0x0102_0304_0506_0708,
            beat: 9,
            seen: Timestamp(1_700_000_000_000_000_000),
            opened: Timestamp(-1),
            process_start: 10,
            pid_namespace: 11,
            pid: 12,
            boot: [13; 16],
            host: "store".into(),
            program: "quire".into(),
        }
    }

    /// Golden: the bytes of a mark never change their meaning.
    #[test]
    fn a_mark_has_these_bytes() {
        let block = mark().encode();
        assert_eq!(block[..8], *b"QUIREOWN");
        assert_eq!(block[12..16], [65, 0, 0, 0]);
        assert_eq!(block[16..32], [8, 7, 6, 5, 4, 3, 2, 1, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(block[40..48], [255; 8]);
        assert_eq!(block[48..72], {
            let mut bytes = [0; 24];
            (bytes[0], bytes[8], bytes[16]) = (10, 11, 12);
            bytes
        });
        assert_eq!(block[72..93], *b"\x0d\x0d\x0d\x0d\x0d\x0d\x0d\x0d\x0d\x0d\x0d\x0d\x0d\x0d\x0d\x0dstore");
        assert_eq!(block[152..158], *b"quire\0");
        assert!(block[168..].iter().all(|byte| *byte == 0));
        assert_eq!(OwnerMark::decode(&block).unwrap(), Some(mark()));
    }

    #[test]
    fn other_blocks_hold_none_and_damage_is_told() {
        assert_eq!(OwnerMark::decode(&[0; BLOCK_SIZE]).unwrap(), None);
        assert_eq!(OwnerMark::decode(&[0xff; BLOCK_SIZE]).unwrap(), None);
        for at in [8, 16, 24, 100, 511] {
            let mut block = mark().encode();
            block[at] ^= 1;
            assert!(OwnerMark::decode(&block).is_err(), "byte {at}");
        }
        let long = OwnerMark { host: "ä".repeat(40), program: "x".repeat(99), ..mark() };
        let read = OwnerMark::decode(&long.encode()).unwrap().unwrap();
        assert_eq!((read.host, read.program), ("ä".repeat(32), "x".repeat(16)));
    }
}
