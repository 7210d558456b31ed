//! A journal on a simulated device, and what tests do with it again and again.

use quire_base::{BLOCK_SIZE, BlockNo, Result, Seq};
use quire_device::simulated::Image;
use quire_device::{Backend, Device, SimulatedBackend};
use quire_journal::{Journal, JournalConfig, ReplayConfig, ReplayEnd, replay};
use std::sync::Arc;

pub const START: BlockNo = BlockNo(3);
pub const VOLUME: u64 = 77;
pub const PAYLOAD: u64 = 4032;

/// Records as a replay hands them over.
pub type Found = Vec<(Seq, Vec<u8>)>;

/// A journal, the device under it, and the device's inner life.
pub struct Rig {
    pub backend: Arc<SimulatedBackend>,
    pub device: Arc<Device>,
    pub journal: Arc<Journal>,
    pub config: JournalConfig,
}

pub fn config(blocks: u64, head: Seq) -> JournalConfig {
    JournalConfig {
        start: START,
        blocks,
        volume: VOLUME,
        incarnation: 1,
        head,
        tail: head,
        buffer_bytes: 16 * BLOCK_SIZE,
    }
}

impl Rig {
    /// An empty journal of `blocks` blocks on an empty device.
    pub fn new(blocks: u64) -> Rig {
        Rig::open(Image::new(START.0 + blocks + 5), config(blocks, Seq(0)))
    }

    pub fn open(image: Image, config: JournalConfig) -> Rig {
        let backend = Arc::new(SimulatedBackend::from_image(image));
        let device = Device::new(backend.clone() as Arc<dyn Backend>);
        let journal = Journal::open(device.clone(), config.clone());
        Rig { backend, device, journal, config }
    }

    /// Appends one record with a reservation of its own; the ring must have room.
    pub fn append(&self, payload: &[u8]) -> Seq {
        let mut reservation = self.journal.try_reserve(payload.len()).unwrap();
        self.journal.append(&mut reservation, payload)
    }

    /// Replays what the device shows now, from `from`.
    pub fn replay(&self, from: Seq) -> Result<(Found, ReplayEnd)> {
        replay_image(self.backend.visible(), &self.config, from)
    }
}

/// Replays an image.
pub fn replay_image(image: Image, config: &JournalConfig, from: Seq) -> Result<(Found, ReplayEnd)> {
    let device = Device::new(Arc::new(SimulatedBackend::from_image(image)));
    let replay_config = ReplayConfig {
        start: config.start,
        blocks: config.blocks,
        volume: config.volume,
        incarnation: config.incarnation,
        from,
        closed: false,
    };
    let mut records = Vec::new();
    let end = replay(&device, &replay_config, &mut |seq, payload| {
        records.push((seq, payload.to_vec()));
        Ok(())
    })?;
    Ok((records, end))
}

/// A payload that shows which record it is.
pub fn payload(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (number.wrapping_mul(31).wrapping_add(at) >> (at % 3)) as u8).collect()
}

/// Flips a bit of the ring block that holds stream position `at`.
pub fn damage(image: &mut Image, config: &JournalConfig, at: u64, byte: usize) {
    let block = config.start.offset(at / PAYLOAD % config.blocks);
    image.edit(block, |bytes| bytes[byte] ^= 0x10);
}
