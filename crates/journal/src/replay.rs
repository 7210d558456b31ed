//! Reading the stream back after a crash.
//!
//! Replay walks the ring from the position that the superblock names. It takes blocks as long as they check:
//! checksum, volume, incarnation, and the position that this place of the ring must have in this lap. It puts
//! records together from their blocks and hands over each that is whole. The first block that does not check
//! is the end of the stream: a write that the crash tore, or one that was never made.
//!
//! Or the journal is *damaged*. To tell, replay looks at the rest of the ring. Every block says how far the
//! stream was durable when it was submitted, and how far a durable superblock had come; if a block of this
//! life promises more than replay found, something durable is gone, and that is an error, not an end. (The
//! last write before a crash has no later witness: damage in it looks torn.)
//!
//! A block that cannot be read is a block that does not check, with one exception. Where the stream would go
//! on there, it may have held something durable, which no witness need say, and no crash makes a sector
//! unreadable: that is damage as well, unless the volume was closed in order, so that nothing was appended.
//! Behind the end such a block means nothing, and is listed: whoever starts a new life writes it anew, before
//! a stream can end there.
//!
//! Invariants: nothing read is trusted; memory grows with bytes actually read from blocks that check, at most
//! one record; at most one lap is read. What was read may sit in the device's cache only: flush before
//! relying on it.
//!
//! Neighbours: the volume, which applies the records, then publishes a new incarnation before it appends.

use quire_base::error::Context;
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result, Seq};
use quire_device::{AlignedBuf, Device, IoClass};
use quire_format::journal::{
    BlockHeader, HEADER_BYTES, PAYLOAD_BYTES, POSITION_MAX, RECORD_HEADER_BYTES, RECORD_PAYLOAD_MAX,
    RecordHeader, RecordKind, record_bytes,
};
use quire_format::superblock::{FLAG_CLEAN, Superblock};

const PAYLOAD: u64 = PAYLOAD_BYTES as u64;
/// Blocks read at once.
const CHUNK: u64 = 64;

/// What to replay.
#[derive(Clone, Debug)]
pub struct ReplayConfig {
    /// First block of the ring.
    pub start: BlockNo,
    /// Blocks of the ring.
    pub blocks: u64,
    /// The volume's id.
    pub volume: u64,
    /// The life whose records count.
    pub incarnation: u64,
    /// Where to start: the superblock's sequence.
    pub from: Seq,
    /// Nothing was appended behind `from`, as far as the superblock knows: the volume was closed in order.
    pub closed: bool,
}

impl ReplayConfig {
    /// The journal of a volume, from its superblock on.
    pub fn of(superblock: &Superblock) -> ReplayConfig {
        ReplayConfig {
            start: superblock.journal_start,
            blocks: superblock.journal_blocks,
            volume: superblock.volume_id(),
            incarnation: superblock.incarnation,
            from: superblock.sequence,
            closed: superblock.flags & FLAG_CLEAN != 0,
        }
    }
}

/// Where a replay ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayEnd {
    /// End of the last block that checks; the start of a block. A new incarnation appends here.
    pub end: Seq,
    /// The last whole record's `Seq`; where replay started if there is none.
    pub last: Seq,
    /// Whole records.
    pub records: u64,
    /// Their payload.
    pub payload_bytes: u64,
    /// Blocks that check.
    pub blocks: u64,
    /// The newest checkpoint that a block of this life names.
    pub checkpoint: Seq,
    /// Bytes at the end that belong to a record whose rest is missing.
    pub torn_bytes: u64,
    /// Blocks behind the end that cannot be read.
    pub unreadable: Vec<BlockNo>,
}

/// Where ring blocks are read from.
pub trait Ring {
    /// Blocks `index..` of the ring, as many as fit `buf`.
    fn read(&self, index: u64, buf: &mut [u8]) -> Result<()>;
}

struct OnDevice<'a> {
    device: &'a Device,
    start: BlockNo,
}

impl Ring for OnDevice<'_> {
    fn read(&self, index: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read(IoClass::Journal, self.start.offset(index), buf)
    }
}

/// Hands every whole record behind `config.from` to `apply`, with its `Seq`, in order.
///
/// Errors: `Corrupt` if the journal is damaged, or blocks that check contradict themselves; whatever `apply`
/// or the device says. Records handed over before an error must not be relied on.
pub fn replay(
    device: &Device,
    config: &ReplayConfig,
    apply: &mut dyn FnMut(Seq, &[u8]) -> Result<()>,
) -> Result<ReplayEnd> {
    let fits = config.start.0.checked_add(config.blocks).is_some_and(|end| end <= device.blocks());
    if !fits {
        return Err(Error::corrupt(format!(
            "a journal of {} blocks at {} is not on the device",
            config.blocks, config.start
        )));
    }
    replay_ring(&OnDevice { device, start: config.start }, config, apply).context("replaying the journal")
}

/// As [`replay`], from any source.
pub fn replay_ring(
    ring: &dyn Ring,
    config: &ReplayConfig,
    apply: &mut dyn FnMut(Seq, &[u8]) -> Result<()>,
) -> Result<ReplayEnd> {
    let mut walk = Walk { apply, later: None, damage: None, unreadable: Vec::new() };
    let end = walk.ring(ring, config)?;
    walk.damage.map_or(Ok(end), Err)
}

/// What [`replay_readable`] found beyond the records that it handed over.
#[derive(Clone, Debug)]
pub struct Readable {
    /// Where the journal ends, or is cut.
    pub end: ReplayEnd,
    /// Why it is cut there, if it is damaged.
    pub damage: Option<Error>,
}

/// As [`replay`], but damage cuts the journal: everything before it is handed over. Whole records behind the
/// damage go to `later`; they must not be replayed, but they tell which blocks were used again.
///
/// A record that `apply` calls `Corrupt` is damage as well.
///
/// Errors: other ones of `apply`; a ring that is not on the device.
pub fn replay_readable(
    device: &Device,
    config: &ReplayConfig,
    apply: &mut dyn FnMut(Seq, &[u8]) -> Result<()>,
    later: &mut dyn FnMut(&[u8]),
) -> Result<Readable> {
    let ring = OnDevice { device, start: config.start };
    let mut failed = None;
    let mut remember = |seq: Seq, payload: &[u8]| {
        apply(seq, payload).inspect_err(|error| {
            if error.kind() != ErrorKind::Corrupt {
                failed = Some(error.clone());
            }
        })
    };
    let later = Some(Later { hand_over: later, records: None });
    let mut walk = Walk { apply: &mut remember, later, damage: None, unreadable: Vec::new() };
    let end = walk.ring(&ring, config)?;
    let damage = walk.damage;
    failed.map_or(Ok(Readable { end, damage }), Err)
}

/// A walk through the ring.
struct Walk<'a, 'f> {
    apply: Apply<'a>,
    /// Gets whole records behind damage, with the state of putting them together; without it, contradictions
    /// are errors.
    later: Option<Later<'f>>,
    damage: Option<Error>,
    /// Blocks of the ring that cannot be read, behind the end of the stream.
    unreadable: Vec<u64>,
}

/// See [`replay_readable`].
struct Later<'f> {
    hand_over: &'f mut dyn FnMut(&[u8]),
    records: Option<Records>,
}

type Apply<'a> = &'a mut dyn FnMut(Seq, &[u8]) -> Result<()>;

impl Walk<'_, '_> {
    fn ring(&mut self, ring: &dyn Ring, config: &ReplayConfig) -> Result<ReplayEnd> {
        if !config.from.0.is_multiple_of(PAYLOAD) || config.from.0 > POSITION_MAX || config.blocks == 0 {
            return Err(Error::corrupt(format!("a journal cannot be replayed with {config:?}")));
        }
        let mut records = Records::new(config.from.0);
        // The furthest position that a block promises, and where that block is.
        let mut promise = (0, 0);
        let mut checkpoint = 0;
        let mut open = true;
        let first = config.from.0 / PAYLOAD % config.blocks;
        let mut buf = AlignedBuf::try_zeroed(CHUNK.min(config.blocks) as usize * BLOCK_SIZE)?;
        let mut done = 0;
        while done < config.blocks {
            let index = (first + done) % config.blocks;
            let count = CHUNK.min(config.blocks - done).min(config.blocks - index);
            let buf = &mut buf[..count as usize * BLOCK_SIZE];
            let unreadable = read_readable(ring, index, buf)?;
            for (nth, block) in buf.chunks_exact(BLOCK_SIZE).enumerate() {
                if let Some((_, why)) = unreadable.iter().find(|(block, _)| *block == nth) {
                    if open && !(config.closed && records.position == config.from.0) {
                        let at = records.position;
                        let why = format!("the journal is damaged: the block at {at} cannot be read: {why}");
                        self.damage.get_or_insert(Error::corrupt(why));
                    }
                    self.unreadable.push(index + nth as u64);
                }
                let header = BlockHeader::decode(block).ok().filter(|header| {
                    header.volume == config.volume
                        && header.incarnation == config.incarnation
                        && header.position / PAYLOAD % config.blocks == index + nth as u64
                });
                let Some(header) = header else {
                    open = false;
                    continue;
                };
                let promised = header.durable.0.max(header.checkpoint.0);
                if promised > promise.0 {
                    promise = (promised, header.position);
                }
                checkpoint = checkpoint.max(header.checkpoint.0);
                open = open && self.damage.is_none() && header.position == records.position;
                if open {
                    let taken = records.take(&header, &block[HEADER_BYTES..], self.apply);
                    match taken {
                        Err(error) if self.later.is_some() => self.damage = Some(error),
                        taken => taken?,
                    }
                } else if header.position > records.position {
                    self.look_later(&header, &block[HEADER_BYTES..]);
                }
            }
            done += count;
        }
        if promise.0 > records.position {
            self.damage.get_or_insert(Error::corrupt(format!(
                "the journal is damaged: the block at {} does not check, but the one at {} says that the journal was \
                 durable up to {}",
                records.position, promise.1, promise.0
            )));
        }
        let unreadable = self.unreadable.iter().map(|index| config.start.offset(*index)).collect();
        Ok(ReplayEnd { unreadable, ..records.end(checkpoint) })
    }

    /// Looks at a block behind the journal's end.
    fn look_later(&mut self, header: &BlockHeader, payload: &[u8]) {
        let Some(Later { hand_over: later, records: state }) = &mut self.later else { return };
        let mut hand_over = |_: Seq, payload: &[u8]| {
            later(payload);
            Ok(())
        };
        let mut records = match state.take() {
            Some(records) if records.position == header.position => records,
            _ => Records::new(header.position),
        };
        let taken = if records.whole > 0 || header.first_record == Some(0) {
            records.take(header, payload, &mut hand_over)
        } else if let Some(first) = header.first_record {
            records.take_from(header, payload, first.into(), &mut hand_over)
        } else {
            return;
        };
        *state = taken.is_ok().then_some(records);
    }
}

/// Reads blocks of the ring; those that cannot be read are zeros, and are listed with the reason.
fn read_readable(ring: &dyn Ring, index: u64, buf: &mut [u8]) -> Result<Vec<(usize, Error)>> {
    if ring.read(index, buf).is_ok() {
        return Ok(Vec::new());
    }
    let mut unreadable = Vec::new();
    for (nth, block) in buf.chunks_exact_mut(BLOCK_SIZE).enumerate() {
        match ring.read(index + nth as u64, block) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Io => {
                block.fill(0);
                unreadable.push((nth, error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(unreadable)
}

/// Puts records together from blocks that follow one another.
struct Records {
    start: u64,
    /// Where the next block must be.
    position: u64,
    /// Header and payload of a record whose rest is in blocks to come.
    partial: Vec<u8>,
    /// Bytes that record has in all; 0 if there is none.
    whole: usize,
    last: u64,
    records: u64,
    payload_bytes: u64,
}

impl Records {
    fn new(start: u64) -> Records {
        Records {
            start,
            position: start,
            partial: Vec::new(),
            whole: 0,
            last: start,
            records: 0,
            payload_bytes: 0,
        }
    }

    /// Takes the next block. It checks, so contradictions in it are no torn write.
    fn take(
        &mut self,
        header: &BlockHeader,
        payload: &[u8],
        apply: &mut dyn FnMut(Seq, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let contradiction =
            |what: &str| Error::corrupt(format!("journal block at {}: {what}", header.position));
        let missing = self.whole - self.partial.len();
        let first = (missing < PAYLOAD_BYTES).then_some(missing as u16);
        if header.first_record != first {
            return Err(contradiction(&format!(
                "its first record starts at {:?}, by its header at {:?}",
                first, header.first_record
            )));
        }
        let at = missing.min(PAYLOAD_BYTES);
        self.partial.extend_from_slice(&payload[..at]);
        if self.whole > 0 && self.partial.len() == self.whole {
            let record = std::mem::take(&mut self.partial);
            self.whole = 0;
            self.hand_over(header.position + at as u64, &record, apply)?;
            self.partial = record;
            self.partial.clear();
        }
        self.take_from(header, payload, at, apply)
    }

    /// Takes the records of a block that begin in it, from `at` on.
    fn take_from(
        &mut self,
        header: &BlockHeader,
        payload: &[u8],
        mut at: usize,
        apply: &mut dyn FnMut(Seq, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let contradiction =
            |what: &str| Error::corrupt(format!("journal block at {}: {what}", header.position));
        while at < PAYLOAD_BYTES {
            // Records start at multiples of the header's size, so a header is always whole.
            let rest = &payload[at..];
            let head = RecordHeader::decode(rest[..RECORD_HEADER_BYTES].try_into().expect("8 bytes"))
                .map_err(|error| contradiction(&error.to_string()))?;
            if head.kind == RecordKind::Padding {
                if rest[RECORD_HEADER_BYTES..].iter().any(|byte| *byte != 0) {
                    return Err(contradiction("padding that is not zero"));
                }
                break;
            }
            let whole = record_bytes(head.payload as usize);
            if whole > rest.len() {
                self.whole = whole;
                self.partial.extend_from_slice(rest);
                break;
            }
            at += whole;
            self.hand_over(header.position + at as u64, &rest[..whole], apply)?;
        }
        self.position += PAYLOAD;
        Ok(())
    }

    fn hand_over(
        &mut self,
        seq: u64,
        record: &[u8],
        apply: &mut dyn FnMut(Seq, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let head = RecordHeader::decode(record[..RECORD_HEADER_BYTES].try_into().expect("8 bytes"))?;
        let (payload, alignment) = record[RECORD_HEADER_BYTES..].split_at(head.payload as usize);
        if alignment.iter().any(|byte| *byte != 0) {
            return Err(Error::corrupt(format!(
                "journal record that ends at {seq}: alignment that is not zero"
            )));
        }
        self.last = seq;
        self.records += 1;
        self.payload_bytes += payload.len() as u64;
        apply(Seq(seq), payload)
    }

    fn end(&self, checkpoint: u64) -> ReplayEnd {
        ReplayEnd {
            end: Seq(self.position),
            last: Seq(self.last),
            records: self.records,
            payload_bytes: self.payload_bytes,
            blocks: (self.position - self.start) / PAYLOAD,
            checkpoint: Seq(checkpoint),
            torn_bytes: self.partial.len() as u64,
            unreadable: Vec::new(),
        }
    }
}

const _: () = assert!(RECORD_PAYLOAD_MAX < usize::MAX / 2 && PAYLOAD_BYTES < u16::MAX as usize);
