//! Counting which blocks of the pool a kept checkpoint needs alone.
//!
//! The maps of all checkpoints are laid side by side, a window of the device at a time: there is a bitmap for
//! each, and one of the blocks that several need. So memory does not grow with the number of blocks. Chunks
//! need not lie alike in all maps.

use super::{Bitmap, blocks_of, set};
use quire_base::BlockNo;
use quire_format::pool::{BITMAP_WORDS, ChunkEntry, used_count};

/// Blocks that are looked at together.
const WINDOW_BLOCKS: u64 = BITMAP_WORDS as u64 * 64;

/// For each of these kept checkpoints: the blocks that it needs alone, and all that it needs. Then the blocks
/// that any of them needs and the `newest` one does not. Entries ascend.
pub fn alone(newest: &[ChunkEntry], kept: &[Vec<ChunkEntry>]) -> (Vec<(u64, u64)>, u64) {
    let (mut counts, mut held) = (vec![(0, 0); kept.len()], 0);
    let mut newest = Walk::new(newest);
    let mut kept: Vec<Walk<'_>> = kept.iter().map(|entries| Walk::new(entries)).collect();
    let mut needs = vec![[0; BITMAP_WORDS]; kept.len()];
    let mut window = 0;
    while let Some(next) = kept.iter().filter_map(|walk| walk.next(window)).min() {
        let (mut any, mut several): (Bitmap, Bitmap) = ([0; BITMAP_WORDS], [0; BITMAP_WORDS]);
        for (walk, needs) in kept.iter_mut().zip(&mut needs) {
            *needs = walk.needs_in(next);
            for word in 0..BITMAP_WORDS {
                several[word] |= any[word] & needs[word];
                any[word] |= needs[word];
            }
        }
        let newest = newest.needs_in(next);
        for word in 0..BITMAP_WORDS {
            any[word] &= !newest[word];
        }
        held += u64::from(used_count(&any));
        for (needs, (alone, all)) in needs.iter().zip(&mut counts) {
            *all += u64::from(used_count(needs));
            let words = needs.iter().zip(&any).zip(&several);
            *alone += words.map(|((needs, any), several)| needs & any & !several).map(ones).sum::<u64>();
        }
        window = next + 1;
    }
    (counts, held)
}

fn ones(word: u64) -> u64 {
    word.count_ones().into()
}

fn end(entry: &ChunkEntry) -> u64 {
    entry.start.0.saturating_add(entry.blocks.into())
}

/// A way through the map of a checkpoint, window by window.
struct Walk<'e> {
    /// Entries that do not lie before the last window.
    ahead: &'e [ChunkEntry],
}

impl<'e> Walk<'e> {
    fn new(ahead: &'e [ChunkEntry]) -> Walk<'e> {
        Walk { ahead }
    }

    /// The next window, from `least` on, that has something of an entry.
    fn next(&self, least: u64) -> Option<u64> {
        let entry = self.ahead.iter().find(|entry| end(entry) > least * WINDOW_BLOCKS)?;
        Some(least.max(entry.start.0 / WINDOW_BLOCKS))
    }

    /// The blocks of a window that are needed. Windows come ascending.
    fn needs_in(&mut self, window: u64) -> Bitmap {
        let start = window * WINDOW_BLOCKS;
        let passed = self.ahead.partition_point(|entry| end(entry) <= start);
        self.ahead = &self.ahead[passed..];
        let mut needs = [0; BITMAP_WORDS];
        for entry in self.ahead.iter().take_while(|entry| entry.start.0 / WINDOW_BLOCKS <= window) {
            for BlockNo(block) in blocks_of(entry) {
                if block / WINDOW_BLOCKS == window {
                    set(&mut needs, (block % WINDOW_BLOCKS) as u32);
                }
            }
        }
        needs
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_base::random::Random;
    use std::collections::BTreeSet;

    /// A map whose chunks lie anywhere, or as in the other maps.
    fn map(random: &mut Random) -> Vec<ChunkEntry> {
        let lies_alike = random.one_in(2);
        let (mut entries, mut at) = (Vec::new(), 0);
        for _ in 0..random.below(6) {
            let (start, blocks) = match lies_alike {
                true => (at + 700, 1024),
                false => (at + random.below(1500), 1 + random.below(1024)),
            };
            let mut used = [0; BITMAP_WORDS];
            let one_in = 1 + random.below(4);
            (0..blocks as u32).filter(|_| random.one_in(one_in)).for_each(|bit| set(&mut used, bit));
            entries.push(ChunkEntry { start: BlockNo(start), blocks: blocks as u32, used });
            at = start + blocks;
        }
        entries
    }

    /// A table of all blocks of all snapshots took a gigabyte where there were many files. Windows have its
    /// place, and count the same.
    #[test]
    fn windows_count_what_sets_of_blocks_do() {
        let mut random = Random::seeded(1);
        for _ in 0..200 {
            let newest = map(&mut random);
            let kept: Vec<_> = (0..random.below(5)).map(|_| map(&mut random)).collect();
            let blocks = |map: &[ChunkEntry]| map.iter().flat_map(blocks_of).collect::<BTreeSet<_>>();
            let now = blocks(&newest);
            let sets: Vec<_> = kept.iter().map(|map| blocks(map)).collect();
            let others = |at: usize| sets.iter().enumerate().filter(move |(other, _)| *other != at);
            let is_alone = |at: usize, block: &BlockNo| {
                !now.contains(block) && others(at).all(|(_, set)| !set.contains(block))
            };
            let counts = sets.iter().enumerate().map(|(at, set)| {
                (set.iter().filter(|block| is_alone(at, block)).count() as u64, set.len() as u64)
            });
            let held = sets.iter().flatten().filter(|block| !now.contains(block)).collect::<BTreeSet<_>>();
            assert_eq!(alone(&newest, &kept), (counts.collect(), held.len() as u64));
        }
    }
}
