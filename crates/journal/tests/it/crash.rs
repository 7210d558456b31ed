//! Random appends, forces, checkpoints and crashes against a model: a list of the payloads appended.
//!
//! A crash may strike at any event of the device's history, in the middle of a write too. What comes back
//! must be a prefix of the list, not shorter than the last force that had returned; and the journal must then
//! go on in a new life, several crashes deep.

use crate::common::*;
use proptest::prelude::*;
use quire_base::random::Random;
use quire_base::{BLOCK_SIZE, BlockNo, Seq};
use quire_device::simulated::{CrashPolicy, Image};
use quire_device::{AlignedBuf, IoClass};
use quire_journal::{JournalConfig, Short};

const BLOCKS: u64 = 16;

#[derive(Clone, Debug)]
enum Op {
    Append(usize),
    /// Two appends that share a reservation, the second after a force.
    Pair(usize, usize),
    Force,
    /// A force of the record so many places before the newest.
    ForceOlder(usize),
    Close,
    Checkpoint,
    /// A crash after this share (of 256) of the events of this life.
    Crash(u8, u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let len = prop_oneof![4 => 0usize..200, 2 => 3900usize..4100, 1 => 0usize..9000];
    let op = prop_oneof![
        12 => len.clone().prop_map(Op::Append),
        2 => (len, 0usize..3000).prop_map(|(first, second)| Op::Pair(first, second)),
        4 => Just(Op::Force),
        2 => (0usize..6).prop_map(Op::ForceOlder),
        1 => Just(Op::Close),
        2 => Just(Op::Checkpoint),
        1 => (any::<u8>(), any::<u64>()).prop_map(|(when, seed)| Op::Crash(when, seed)),
        1 => any::<u64>().prop_map(|seed| Op::Crash(255, seed)),
    ];
    proptest::collection::vec(op, 1..120)
}

/// What a test knows about the current life of the journal.
struct Life {
    rig: Rig,
    /// Every record of this life.
    records: Vec<(Seq, Vec<u8>)>,
    /// Event counts at which a force had returned, and its target.
    forced: Vec<(usize, Seq)>,
    /// Event counts at which "superblocks" were durable: newest and older replay position.
    superblocks: Vec<(usize, Seq, Seq)>,
    number: u64,
}

impl Life {
    fn begin(image: Image, config: JournalConfig, number: u64) -> Life {
        let head = config.head;
        Life {
            rig: Rig::open(image, config),
            records: Vec::new(),
            forced: Vec::new(),
            superblocks: vec![(0, head, head)],
            number,
        }
    }

    fn append(&mut self, lens: &[usize]) {
        let journal = self.rig.journal.clone();
        for (nth, len) in lens.iter().enumerate() {
            if nth > 0 {
                self.force(self.rig.journal.head());
            }
            let mut reservation = loop {
                match journal.try_reserve(*len) {
                    Ok(reservation) => break reservation,
                    Err(Short::Checkpoint) => self.checkpoint(),
                    Err(other) => panic!("{other:?}"),
                }
            };
            self.number += 1;
            let payload = payload(self.number, *len);
            let seq = journal.append(&mut reservation, &payload);
            self.records.push((seq, payload));
        }
    }

    fn force(&mut self, seq: Seq) {
        self.rig.journal.force(seq).unwrap();
        assert!(self.rig.journal.durable() >= seq);
        self.forced.push((self.rig.backend.event_count(), seq));
    }

    fn checkpoint(&mut self) {
        let older = self.superblocks.last().unwrap().1;
        let newest = self.rig.journal.close_block();
        self.force(newest);
        self.superblocks.push((self.rig.backend.event_count(), newest, older));
        self.rig.journal.checkpointed(newest, older);
    }

    /// Crashes after `events` events, recovers, compares, and begins the next life.
    fn crash(&self, events: usize, policy: CrashPolicy) -> Life {
        assert!(self.rig.backend.violations().is_empty(), "{:?}", self.rig.backend.violations());
        let image = self.rig.backend.crash_at(events, policy).unwrap();
        let known = |at: usize| at <= events;
        let promised = self.forced.iter().filter(|force| known(force.0)).map(|force| force.1).max();
        let (_, newest, older) =
            self.superblocks.iter().rev().find(|superblock| known(superblock.0)).unwrap();
        let mut end = None;
        for from in [*newest, *older] {
            let (found, ended) = replay_image(image.clone(), &self.rig.config, from).unwrap();
            let expected: Vec<_> = self.records.iter().filter(|record| record.0 > from).collect();
            assert!(found.len() <= expected.len());
            assert!(found.iter().eq(expected[..found.len()].iter().copied()), "not a prefix");
            let last = found.last().map_or(from, |record| record.0);
            let lost = self.records.iter().find(|record| record.0 > last && Some(record.0) <= promised);
            assert!(lost.is_none(), "forced up to {promised:?}, recovered up to {last}");
            assert!(end.is_none_or(|end| end == ended.end), "the two slots disagree about the end");
            end = Some(ended.end);
        }
        let end = end.unwrap();
        let config = JournalConfig {
            incarnation: self.rig.config.incarnation + 1,
            head: end,
            tail: end,
            ..self.rig.config.clone()
        };
        Life::begin(image, config, self.number)
    }
}

fn run(ops: Vec<Op>, buffer_blocks: usize) {
    let config = JournalConfig { buffer_bytes: buffer_blocks * 4096, ..config(BLOCKS, Seq(0)) };
    let mut life = Life::begin(Image::new(START.0 + BLOCKS), config, 0);
    for op in ops {
        match op {
            Op::Append(len) => life.append(&[len]),
            Op::Pair(first, second) => life.append(&[first.min(5000), second]),
            Op::Force => life.force(life.rig.journal.head()),
            Op::ForceOlder(places) => {
                let at = life.records.len().checked_sub(places + 1);
                if let Some(seq) = at.map(|at| life.records[at].0) {
                    life.force(seq);
                }
            }
            Op::Close => {
                life.rig.journal.close_block();
            }
            Op::Checkpoint => life.checkpoint(),
            Op::Crash(when, seed) => {
                let events = life.rig.backend.event_count() * (usize::from(when) + 1) / 256;
                let policy = if when == 255 && seed % 4 == 0 {
                    CrashPolicy::Killed { seed }
                } else {
                    CrashPolicy::Power { seed }
                };
                life = life.crash(events, policy);
            }
        }
    }
    let events = life.rig.backend.event_count();
    for seed in 0..4 {
        let at = (Random::seeded(seed).below(events as u64 + 1)) as usize;
        life.crash(at, CrashPolicy::Power { seed });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 400 } else { 4000 }))]
    #[test]
    fn a_crash_leaves_a_prefix(ops in ops(), buffer_blocks in prop_oneof![Just(4usize), Just(7), Just(64)]) {
        run(ops, buffer_blocks);
    }
}

/// Blocks in front of the ring that hold data.
const DATA_BLOCKS: u64 = 3;

/// A record that speaks of data never comes back without them: they were complete when it was appended, and
/// the journal flushes between the two. Several writers of data, one journal, a crash at every event.
#[test]
fn no_record_without_its_data() {
    for seed in 0..12 {
        let mut random = Random::seeded(seed);
        let rig = Rig::open(Image::new(START.0 + BLOCKS), config(BLOCKS, Seq(0)));
        for number in 1..=20u64 {
            let block = BlockNo(random.below(DATA_BLOCKS));
            let mut data = AlignedBuf::zeroed(BLOCK_SIZE);
            data[..8].copy_from_slice(&number.to_le_bytes());
            rig.device.write(IoClass::Data, block, &data).unwrap();
            let seq = rig.append(&[block.0.to_le_bytes(), number.to_le_bytes()].concat());
            if random.one_in(3) {
                rig.journal.force(seq).unwrap();
            }
        }
        for events in 0..=rig.backend.event_count() {
            let image =
                rig.backend.crash_at(events, CrashPolicy::Power { seed: seed ^ events as u64 }).unwrap();
            let (records, _) = replay_image(image.clone(), &rig.config, Seq(0)).unwrap();
            for (seq, record) in records {
                let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().unwrap());
                let mut data = [0; BLOCK_SIZE];
                image.read(BlockNo(word(0)), &mut data);
                let found = u64::from_le_bytes(data[..8].try_into().unwrap());
                assert!(found >= word(8), "seed {seed}, event {events}: record {seq} speaks of lost data");
            }
        }
    }
}
