//! The volatile write cache of a drive, as a data structure: what was written and may still be lost.
//!
//! Model: a write is held from its submission until it is *destaged* (put on the medium) by a flush, by the
//! drive's own whim, or for want of room. Reads see the newest version of a block, on the medium or not. At a
//! power cut each held write has a fate of its own: kept, lost, or torn at sectors of 512 bytes in any
//! pattern; so later writes may survive earlier ones. Versions of one block keep their order, since a cache
//! holds only the newest of a sector.
//!
//! Invariants: `blocks` lists, for each block with held versions, the writes that hold them, oldest first;
//! what a destaged version made obsolete is in no list and reaches the medium no more.
//!
//! Neighbours: [`crate::backend`] locks it, and knows when a flush covers what.

use quire_base::BLOCK_SIZE;
use quire_base::random::Random;
use std::collections::BTreeMap;

/// What a drive writes entirely or not at all, in bytes.
pub const SECTOR_SIZE: usize = 512;
const SECTORS: usize = BLOCK_SIZE / SECTOR_SIZE;

/// Where destaged blocks go.
pub trait Medium {
    /// Fills a block with what is on the medium.
    fn read(&self, at: u64, block: &mut [u8]) -> std::io::Result<()>;
    /// Puts whole blocks on the medium.
    fn write(&self, at: u64, blocks: &[u8]) -> std::io::Result<()>;
}

struct Held {
    at: u64,
    data: Vec<u8>,
    is_complete: bool,
}

impl Held {
    fn blocks(&self) -> impl Iterator<Item = (u64, &[u8])> {
        (self.at..).zip(self.data.chunks_exact(BLOCK_SIZE))
    }
}

/// See the module's documentation.
#[derive(Default)]
pub struct WriteCache {
    /// By number, in the order of submission.
    writes: BTreeMap<u64, Held>,
    blocks: BTreeMap<u64, Vec<u64>>,
    next: u64,
    bytes: usize,
    is_in_order: bool,
}

/// What a power cut did to the held writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// Writes of which nothing is left.
    pub lost: u64,
    /// Writes that are on the medium whole.
    pub kept: u64,
    /// Writes of which some sectors are on the medium.
    pub torn: u64,
}

impl WriteCache {
    /// An empty cache. If `is_in_order`, writes reach the medium in the order of their submission only, at a
    /// cut too, and none is torn.
    pub fn new(is_in_order: bool) -> WriteCache {
        WriteCache { is_in_order, ..WriteCache::default() }
    }

    /// Writes held.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Holds a write of whole blocks; returns its number.
    pub fn submit(&mut self, at: u64, data: Vec<u8>) -> u64 {
        let id = self.next;
        self.next += 1;
        self.bytes += data.len();
        for block in at..at + (data.len() / BLOCK_SIZE) as u64 {
            self.blocks.entry(block).or_default().push(id);
        }
        self.writes.insert(id, Held { at, data, is_complete: false });
        id
    }

    /// The caller of write `id` learns that it is done: a flush submitted from now on covers it.
    pub fn complete(&mut self, id: u64) {
        if let Some(write) = self.writes.get_mut(&id) {
            write.is_complete = true;
        }
    }

    /// Numbers of the writes that a flush submitted now covers.
    pub fn completed(&self) -> Vec<u64> {
        self.writes.iter().filter(|(_, write)| write.is_complete).map(|(id, _)| *id).collect()
    }

    /// The newest held version of a block.
    pub fn newest(&self, block: u64) -> Option<&[u8]> {
        let write = &self.writes[self.blocks.get(&block)?.last()?];
        let start = (block - write.at) as usize * BLOCK_SIZE;
        Some(&write.data[start..start + BLOCK_SIZE])
    }

    /// Puts what is not obsolete of write `id` on the medium. Nothing happens if that was done before.
    pub fn destage(&mut self, id: u64, medium: &impl Medium) -> std::io::Result<()> {
        let Some(write) = self.writes.remove(&id) else { return Ok(()) };
        self.bytes -= write.data.len();
        for (block, bytes) in write.blocks().filter(|(block, _)| self.settle(*block, id)) {
            medium.write(block, bytes)?;
        }
        Ok(())
    }

    /// Destages a write that the seed chooses among the completed ones; false if there is none.
    pub fn destage_any(&mut self, random: &mut Random, medium: &impl Medium) -> std::io::Result<bool> {
        let Some((&first, _)) = self.writes.first_key_value() else { return Ok(false) };
        let from = if self.is_in_order { first } else { first + random.below(self.next - first) };
        let mut around = self.writes.range(from..).chain(self.writes.range(..from));
        let Some((&id, _)) = around.find(|(_, write)| write.is_complete) else { return Ok(false) };
        self.destage(id, medium)?;
        Ok(true)
    }

    /// Version `id` of a block is on the medium: it and older ones are held no more. False if a newer one was
    /// there before it.
    fn settle(&mut self, block: u64, id: u64) -> bool {
        let Some(versions) = self.blocks.get_mut(&block) else { return false };
        let Ok(place) = versions.binary_search(&id) else { return false };
        versions.drain(..=place);
        if versions.is_empty() {
            self.blocks.remove(&block);
        }
        true
    }

    /// Cuts the power: lets the seed decide the fate of every held write, and puts what survives on the
    /// medium.
    pub fn cut(&mut self, random: &mut Random, medium: &impl Medium) -> std::io::Result<Fates> {
        let count = self.writes.len() as u64;
        let style = if self.is_in_order {
            Style::Prefix(random.below(count + 1), false)
        } else {
            Style::choose(random, count)
        };
        let mut fates = Fates::default();
        for (place, (&id, write)) in std::mem::take(&mut self.writes).iter().enumerate() {
            match style.fate(place as u64, random) {
                Fate::Lost => fates.lost += 1,
                Fate::Kept => {
                    fates.kept += 1;
                    for (block, bytes) in write.blocks().filter(|(block, _)| self.settle(*block, id)) {
                        medium.write(block, bytes)?;
                    }
                }
                Fate::Torn => {
                    fates.torn += 1;
                    for (block, bytes) in write.blocks().filter(|(block, _)| self.settle(*block, id)) {
                        tear(block, bytes, random.below(1 << SECTORS), medium)?;
                    }
                }
            }
        }
        self.blocks.clear();
        self.bytes = 0;
        Ok(fates)
    }

    /// Forgets every held write.
    pub fn lose_all(&mut self) -> u64 {
        let lost = self.writes.len() as u64;
        self.writes.clear();
        self.blocks.clear();
        self.bytes = 0;
        lost
    }
}

/// Keeps the sectors of a block whose bit is set in `kept`.
fn tear(block: u64, bytes: &[u8], kept: u64, medium: &impl Medium) -> std::io::Result<()> {
    let mut mixed = vec![0; BLOCK_SIZE];
    medium.read(block, &mut mixed)?;
    for sector in (0..SECTORS).filter(|sector| kept >> sector & 1 == 1) {
        let range = sector * SECTOR_SIZE..(sector + 1) * SECTOR_SIZE;
        mixed[range.clone()].copy_from_slice(&bytes[range]);
    }
    medium.write(block, &mixed)
}

enum Fate {
    Lost,
    Kept,
    Torn,
}

/// Shapes that power cuts take.
enum Style {
    LoseAll,
    KeepAll,
    /// The first so many are kept, the next is torn if the flag says so, the rest lost.
    Prefix(u64, bool),
    /// The first so many are lost, the rest kept: the newest survive the oldest.
    Suffix(u64),
    /// Each is torn with the second chance of 256, else kept with the first.
    Independent(u64, u64),
}

impl Style {
    fn choose(random: &mut Random, count: u64) -> Style {
        match random.below(8) {
            0 | 1 => Style::LoseAll,
            2 => Style::KeepAll,
            3 => Style::Prefix(random.below(count + 1), true),
            4 => Style::Suffix(random.below(count + 1)),
            5 => Style::Independent(128, 0),
            6 => Style::Independent(random.below(256), random.below(64)),
            _ => Style::Independent(0, 256),
        }
    }

    fn fate(&self, place: u64, random: &mut Random) -> Fate {
        let whole = |kept| if kept { Fate::Kept } else { Fate::Lost };
        match *self {
            Style::LoseAll => Fate::Lost,
            Style::KeepAll => Fate::Kept,
            Style::Prefix(count, true) if place == count => Fate::Torn,
            Style::Prefix(count, _) => whole(place < count),
            Style::Suffix(count) => whole(place >= count),
            Style::Independent(keep, tear) => {
                if random.below(256) < tear {
                    Fate::Torn
                } else {
                    whole(random.below(256) < keep)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[derive(Default)]
    struct Memory(RefCell<BTreeMap<u64, Vec<u8>>>);

    impl Medium for Memory {
        fn read(&self, at: u64, block: &mut [u8]) -> std::io::Result<()> {
            match self.0.borrow().get(&at) {
                Some(bytes) => block.copy_from_slice(bytes),
                None => block.fill(0),
            }
            Ok(())
        }

        fn write(&self, at: u64, blocks: &[u8]) -> std::io::Result<()> {
            for (block, bytes) in (at..).zip(blocks.chunks_exact(BLOCK_SIZE)) {
                self.0.borrow_mut().insert(block, bytes.to_vec());
            }
            Ok(())
        }
    }

    impl Memory {
        fn first(&self, block: u64) -> u8 {
            self.0.borrow().get(&block).map_or(0, |bytes| bytes[0])
        }
    }

    fn blocks(count: usize, byte: u8) -> Vec<u8> {
        vec![byte; count * BLOCK_SIZE]
    }

    #[test]
    fn reads_see_the_newest_version() {
        let mut cache = WriteCache::default();
        cache.submit(10, blocks(3, 1));
        cache.submit(11, blocks(1, 2));
        let newest: Vec<_> = (9..14).map(|block| cache.newest(block).map(|bytes| bytes[0])).collect();
        assert_eq!(newest, [None, Some(1), Some(2), Some(1), None]);
    }

    #[test]
    fn an_older_version_never_overwrites_a_newer_one() {
        let (mut cache, memory) = (WriteCache::default(), Memory::default());
        let old = cache.submit(5, blocks(2, 1));
        let new = cache.submit(5, blocks(1, 2));
        cache.destage(new, &memory).unwrap();
        cache.destage(old, &memory).unwrap();
        assert_eq!((memory.first(5), memory.first(6)), (2, 1));
        assert_eq!((cache.bytes(), cache.newest(5)), (0, None));
    }

    /// A cut put all of a kept or torn write on the medium, also blocks of which a newer version was there: a
    /// flushed write could be undone, by a device that promised not to.
    #[test]
    fn a_cut_keeps_no_obsolete_version() {
        for seed in 0..50 {
            let (mut cache, memory) = (WriteCache::default(), Memory::default());
            cache.submit(5, blocks(2, 1));
            let new = cache.submit(5, blocks(1, 2));
            cache.destage(new, &memory).unwrap();
            cache.cut(&mut Random::seeded(seed), &memory).unwrap();
            assert!(memory.0.borrow()[&5].iter().all(|byte| *byte == 2), "seed {seed}");
        }
    }

    #[test]
    fn a_flush_covers_what_completed_before_it() {
        let mut cache = WriteCache::default();
        let done = cache.submit(1, blocks(1, 1));
        cache.submit(2, blocks(1, 1));
        cache.complete(done);
        assert_eq!(cache.completed(), [done]);
    }

    #[test]
    fn whims_take_completed_writes_only() {
        let (mut cache, memory, mut random) = (WriteCache::default(), Memory::default(), Random::seeded(1));
        let done = cache.submit(1, blocks(1, 7));
        cache.submit(2, blocks(1, 7));
        cache.complete(done);
        assert!(cache.destage_any(&mut random, &memory).unwrap());
        assert!(!cache.destage_any(&mut random, &memory).unwrap());
        assert_eq!((memory.first(1), memory.first(2)), (7, 0));
    }

    #[test]
    fn in_order_means_a_state_of_the_past() {
        for seed in 0..50 {
            let (mut cache, memory) = (WriteCache::new(true), Memory::default());
            for block in 0..10 {
                let id = cache.submit(block, blocks(1, 1));
                cache.complete(id);
            }
            let mut random = Random::seeded(seed);
            cache.destage_any(&mut random, &memory).unwrap();
            let fates = cache.cut(&mut random, &memory).unwrap();
            let kept: Vec<u8> = (0..10).map(|block| memory.first(block)).collect();
            assert!(
                kept.is_sorted_by(|left, right| left >= right) && kept[0] == 1 && fates.torn == 0,
                "{kept:?}"
            );
        }
    }

    /// Over many seeds each held write is now lost, now kept, now torn; flushed ones always stay.
    #[test]
    fn cuts_reach_every_fate() {
        let mut seen = Fates::default();
        let mut reordered = 0;
        for seed in 0..200 {
            let (mut cache, memory) = (WriteCache::default(), Memory::default());
            let safe = cache.submit(0, blocks(1, 9));
            cache.complete(safe);
            cache.destage(safe, &memory).unwrap();
            cache.submit(1, blocks(1, 1));
            cache.submit(2, blocks(1, 2));
            let fates = cache.cut(&mut Random::seeded(seed), &memory).unwrap();
            assert_eq!(fates.lost + fates.kept + fates.torn, 2);
            assert_eq!((memory.first(0), cache.bytes()), (9, 0));
            seen.lost += fates.lost;
            seen.kept += fates.kept;
            seen.torn += fates.torn;
            let torn = |block| {
                memory.0.borrow().get(&block).is_some_and(|bytes| bytes.iter().any(|byte| *byte != bytes[0]))
            };
            reordered += u32::from(memory.first(1) == 0 && !torn(1) && memory.first(2) == 2);
        }
        assert!(seen.lost > 50 && seen.kept > 50 && seen.torn > 50 && reordered > 5, "{seen:?} {reordered}");
    }
}
