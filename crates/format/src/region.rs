//! Free space: the used blocks of one region.
//!
//! A region is 4096 blocks (16 MiB). The key `(0, FreeSpace, region)` holds the *set* of its used blocks; the
//! key is absent when none is used, so an empty volume of any size has no such keys.
//!
//! ```text
//! tag 0   all blocks used                              1 byte
//! tag 1   runs of used blocks: (start u16, len-1 u16)  1 + 4n bytes, n from 1 to 127
//! tag 2   bitmap, bit i of byte b = block 8b + i       1 + 512 bytes
//! ```
//!
//! The encoding is canonical: a set has one encoding (runs are maximal, ascending; the bitmap only with 128
//! runs or more), and decoding refuses any other. A change of a block touches one fixed key and changes of
//! different blocks commute, so that replay gives the same bytes as the run it repeats, whatever order the
//! changes were applied in.
//!
//! Neighbours: `alloc` loads its bitmaps from here; `fs` and replay change them as extents are applied.

use crate::extent::Run;
use quire_base::{BlockNo, Error, Result};

/// Blocks in a region: 16 MiB.
pub const REGION_BLOCKS: u64 = 4096;
/// The most bytes an encoded region has.
pub const REGION_BYTES_MAX: usize = 1 + BITMAP_BYTES;

const BITMAP_BYTES: usize = REGION_BLOCKS as usize / 8;
const WORDS: usize = REGION_BLOCKS as usize / 64;
/// As many runs as make the bitmap no longer than they are.
const RUNS_TOO_MANY: usize = BITMAP_BYTES / 4;

const TAG_FULL: u8 = 0;
const TAG_RUNS: u8 = 1;
const TAG_BITMAP: u8 = 2;

/// The region that a block lies in.
pub const fn region_of(block: BlockNo) -> u64 {
    block.0 / REGION_BLOCKS
}

/// Cuts a run at region borders: (region number, first block within it, blocks).
pub fn split_by_region(run: Run) -> impl Iterator<Item = (u64, u32, u32)> {
    let end = run.end().0;
    let mut at = run.start.0;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let within = at % REGION_BLOCKS;
            let blocks = (REGION_BLOCKS - within).min(end - at);
            let part = (at / REGION_BLOCKS, within as u32, blocks as u32);
            at += blocks;
            part
        })
    })
}

/// The used blocks of one region.
#[derive(Clone, PartialEq, Eq)]
pub struct RegionMap {
    words: [u64; WORDS],
    used: u32,
}

impl Default for RegionMap {
    fn default() -> RegionMap {
        RegionMap::new()
    }
}

impl std::fmt::Debug for RegionMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RegionMap({} used)", self.used)
    }
}

impl RegionMap {
    /// A region without used blocks.
    pub const fn new() -> RegionMap {
        RegionMap { words: [0; WORDS], used: 0 }
    }

    /// A region without free blocks.
    pub const fn full() -> RegionMap {
        RegionMap { words: [u64::MAX; WORDS], used: REGION_BLOCKS as u32 }
    }

    /// How many blocks are used.
    pub const fn used_count(&self) -> u32 {
        self.used
    }

    /// Whether no block is used: such a region has no key.
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Whether a block (0 to 4095) is used.
    pub const fn is_used(&self, block: u32) -> bool {
        self.words[block as usize / 64] >> (block % 64) & 1 != 0
    }

    /// The used blocks as 64 words; bit `i` of word `w` is block `64 w + i`.
    pub const fn words(&self) -> &[u64; WORDS] {
        &self.words
    }

    /// Marks `blocks` from `start` as used. Errors (kind `Corrupt`), changing nothing, if one is used already
    /// or lies outside the region.
    pub fn set_used(&mut self, start: u32, blocks: u32) -> Result<()> {
        self.change(start, blocks, true)
    }

    /// Marks `blocks` from `start` as free. Errors (kind `Corrupt`), changing nothing, if one is free already
    /// or lies outside the region.
    pub fn set_free(&mut self, start: u32, blocks: u32) -> Result<()> {
        self.change(start, blocks, false)
    }

    fn change(&mut self, start: u32, blocks: u32, to_used: bool) -> Result<()> {
        if u64::from(start) + u64::from(blocks) > REGION_BLOCKS {
            return Err(Error::corrupt(format!("blocks {start}+{blocks} are outside a region")));
        }
        for (word, mask) in masks(start, blocks) {
            let clash = mask & if to_used { self.words[word] } else { !self.words[word] };
            if clash != 0 {
                let block = word as u32 * 64 + clash.trailing_zeros();
                let state = if to_used { "used" } else { "free" };
                return Err(Error::corrupt(format!("block {block} of the region is {state} already")));
            }
        }
        for (word, mask) in masks(start, blocks) {
            self.words[word] ^= mask;
        }
        if to_used {
            self.used += blocks;
        } else {
            self.used -= blocks;
        }
        Ok(())
    }

    /// Marks blocks as used, whether they are or not.
    pub fn add(&mut self, start: u32, blocks: u32) {
        for (word, mask) in masks(start, blocks) {
            self.words[word] |= mask;
        }
        self.used = self.words.iter().map(|word| word.count_ones()).sum();
    }

    /// The blocks that are in one of both.
    #[must_use]
    pub fn either(&self, other: &RegionMap) -> RegionMap {
        self.with(other, |own, other| own | other)
    }

    /// The blocks that are in both.
    #[must_use]
    pub fn both(&self, other: &RegionMap) -> RegionMap {
        self.with(other, |own, other| own & other)
    }

    /// The blocks that are not in the other.
    #[must_use]
    pub fn without(&self, other: &RegionMap) -> RegionMap {
        self.with(other, |own, other| own & !other)
    }

    fn with(&self, other: &RegionMap, of: impl Fn(u64, u64) -> u64) -> RegionMap {
        let words = std::array::from_fn(|at| of(self.words[at], other.words[at]));
        RegionMap { words, used: words.iter().map(|word| word.count_ones()).sum() }
    }

    /// The maximal runs of used blocks, ascending: (start, blocks).
    pub fn runs(&self) -> impl Iterator<Item = (u32, u32)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.next_used(at)?;
            let end = self.next_free(start).unwrap_or(REGION_BLOCKS as u32);
            at = end;
            Some((start, end - start))
        })
    }

    /// How many runs of used blocks there are: used blocks behind one that is not.
    fn run_count(&self) -> usize {
        let mut before = 0;
        let starts = self.words.iter().map(|&word| {
            let starts = word & !(word << 1 | before);
            before = word >> 63;
            starts.count_ones() as usize
        });
        starts.sum()
    }

    /// The first used block at or after `from`.
    pub fn next_used(&self, from: u32) -> Option<u32> {
        self.next(from, true)
    }

    /// The first free block at or after `from`.
    pub fn next_free(&self, from: u32) -> Option<u32> {
        self.next(from, false)
    }

    fn next(&self, from: u32, used: bool) -> Option<u32> {
        let mut word = from as usize / 64;
        let mut mask = u64::MAX << (from % 64);
        while word < WORDS {
            let bits = mask & if used { self.words[word] } else { !self.words[word] };
            if bits != 0 {
                return Some(word as u32 * 64 + bits.trailing_zeros());
            }
            word += 1;
            mask = u64::MAX;
        }
        None
    }

    /// The value's bytes, or nothing if no block is used and the key is to be absent.
    pub fn encode(&self) -> Option<Vec<u8>> {
        if self.used == 0 {
            return None;
        }
        if u64::from(self.used) == REGION_BLOCKS {
            return Some(vec![TAG_FULL]);
        }
        let runs = self.run_count();
        if runs >= RUNS_TOO_MANY {
            let mut out = Vec::with_capacity(REGION_BYTES_MAX);
            out.push(TAG_BITMAP);
            for word in &self.words {
                out.extend_from_slice(&word.to_le_bytes());
            }
            return Some(out);
        }
        let mut out = Vec::with_capacity(1 + 4 * runs);
        out.push(TAG_RUNS);
        for (start, blocks) in self.runs() {
            out.extend((start as u16).to_le_bytes());
            out.extend(((blocks - 1) as u16).to_le_bytes());
        }
        Some(out)
    }

    /// Reads and checks a value; anything but the canonical encoding of a set is refused.
    pub fn decode(bytes: &[u8]) -> Result<RegionMap> {
        let odd = |what: &str| Error::corrupt(format!("free-space region: {what}"));
        let (&tag, rest) = bytes.split_first().ok_or_else(|| odd("no bytes"))?;
        let mut map = RegionMap::new();
        match tag {
            TAG_FULL if rest.is_empty() => map = RegionMap::full(),
            TAG_RUNS if rest.len() % 4 == 0 => {
                for run in rest.chunks_exact(4) {
                    let start = u16::from_le_bytes([run[0], run[1]]);
                    let last = u16::from_le_bytes([run[2], run[3]]);
                    map.set_used(start.into(), u32::from(last) + 1)?;
                }
            }
            TAG_BITMAP if rest.len() == BITMAP_BYTES => {
                for (word, bytes) in map.words.iter_mut().zip(rest.as_chunks().0) {
                    *word = u64::from_le_bytes(*bytes);
                }
                map.used = map.words.iter().map(|word| word.count_ones()).sum();
                if map.run_count() >= RUNS_TOO_MANY {
                    return Ok(map);
                }
            }
            _ => return Err(odd(&format!("tag {tag} with {} bytes", rest.len()))),
        }
        if map.encode().as_deref() != Some(bytes) {
            return Err(odd("not the canonical encoding"));
        }
        Ok(map)
    }
}

/// The words that `blocks` from `start` touch, each with the mask of its bits among them.
fn masks(start: u32, blocks: u32) -> impl Iterator<Item = (usize, u64)> {
    let end = start + blocks;
    let mut at = start;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let bit = at % 64;
            let count = (64 - bit).min(end - at);
            let part = ((at / 64) as usize, u64::MAX >> (64 - count) << bit);
            at += count;
            part
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn double_use_and_double_free_are_errors_that_change_nothing() {
        let mut map = RegionMap::new();
        map.set_used(100, 200).unwrap();
        let before = map.clone();
        assert!(map.set_used(299, 10).is_err());
        assert!(map.set_free(90, 11).is_err());
        assert!(map.set_used(4090, 7).is_err());
        assert_eq!(map, before);
        map.set_free(100, 200).unwrap();
        assert!(map.is_empty());
        assert_eq!(map.encode(), None);
    }

    #[test]
    fn blocks_may_be_added_twice() {
        let mut map = RegionMap::new();
        map.add(100, 200);
        map.add(250, 100);
        map.add(60, 8);
        map.add(100, 1);
        map.add(7, 0);
        assert_eq!(map.runs().collect::<Vec<_>>(), [(60, 8), (100, 250)]);
        assert_eq!(map.used_count(), 258);
        assert_eq!(RegionMap::decode(&map.encode().unwrap()).unwrap(), map);
        map.add(0, 4096);
        assert_eq!(map, RegionMap::full());
    }

    #[test]
    fn two_sets_together() {
        let (mut one, mut other) = (RegionMap::new(), RegionMap::new());
        one.add(10, 100);
        one.add(4000, 96);
        other.add(60, 100);
        let runs = |map: RegionMap| {
            let runs: Vec<_> = map.runs().collect();
            assert_eq!(map.used_count(), runs.iter().map(|run| run.1).sum::<u32>());
            runs
        };
        assert_eq!(runs(one.either(&other)), [(10, 150), (4000, 96)]);
        assert_eq!(runs(one.both(&other)), [(60, 50)]);
        assert_eq!(runs(one.without(&other)), [(10, 50), (4000, 96)]);
        assert_eq!(runs(other.without(&one)), [(110, 50)]);
        let (empty, full) = (RegionMap::new(), RegionMap::full());
        assert!(one.without(&one) == empty && one.both(&empty) == empty && one.either(&empty) == one);
        assert!(one.without(&full) == empty && one.both(&full) == one && one.either(&full) == full);
        assert_eq!(one.both(&empty).encode(), None);
        assert_eq!(full.without(&one).either(&one).encode().unwrap(), [TAG_FULL]);
    }

    #[test]
    fn each_form_at_its_border() {
        let mut map = RegionMap::new();
        for run in 0..127 {
            map.set_used(run * 3, 1).unwrap();
        }
        assert_eq!(map.encode().unwrap().len(), 1 + 4 * 127);
        map.set_used(4000, 1).unwrap();
        let bytes = map.encode().unwrap();
        assert_eq!((bytes[0], bytes.len()), (TAG_BITMAP, REGION_BYTES_MAX));
        assert_eq!(RegionMap::decode(&bytes).unwrap(), map);
        let mut full = RegionMap::new();
        full.set_used(0, 4096).unwrap();
        assert_eq!(full.encode().unwrap(), [TAG_FULL]);
        full.set_free(4095, 1).unwrap();
        assert_eq!(full.encode().unwrap(), [TAG_RUNS, 0, 0, 0xfe, 0x0f]);
    }

    #[test]
    fn only_the_canonical_form_is_accepted() {
        let bad: [&[u8]; 9] = [
            &[],
            &[TAG_FULL, 0],
            &[TAG_RUNS],
            &[TAG_RUNS, 0, 0],
            &[TAG_RUNS, 0, 0, 0xff, 0x0f],       // all used, but as a run
            &[TAG_RUNS, 5, 0, 0, 0, 6, 0, 0, 0], // adjacent runs
            &[TAG_RUNS, 9, 0, 0, 0, 5, 0, 0, 0], // descending
            &[TAG_RUNS, 0xff, 0x0f, 1, 0],       // past the end
            &[3],
        ];
        for bytes in bad {
            assert!(RegionMap::decode(bytes).is_err(), "{bytes:?}");
        }
        let mut sparse = [0; REGION_BYTES_MAX];
        (sparse[0], sparse[1]) = (TAG_BITMAP, 1);
        assert!(RegionMap::decode(&sparse).is_err());
    }

    #[test]
    fn runs_are_cut_at_region_borders() {
        let parts: Vec<_> = split_by_region(Run::new(BlockNo(4090), 4110)).collect();
        assert_eq!(parts, [(0, 4090, 6), (1, 0, 4096), (2, 0, 8)]);
        assert_eq!(split_by_region(Run::new(BlockNo(5), 0)).count(), 0);
    }

    proptest! {
        #[test]
        fn changes_follow_a_plain_array_and_survive_encoding(
            changes in prop::collection::vec((0u32..4096, 1u32..600, any::<bool>()), 0..60),
            single in prop::collection::vec(0u32..4096, 0..400),
        ) {
            let mut map = RegionMap::new();
            let mut model = vec![false; 4096];
            for (start, blocks, used) in changes.into_iter().chain(single.into_iter().map(|at| (at, 1, true))) {
                let range = start as usize..(start + blocks) as usize;
                let fits = range.end <= 4096 && model[range.clone()].iter().all(|is| *is != used);
                prop_assert_eq!(map.change(start, blocks, used).is_ok(), fits);
                if fits {
                    model[range].fill(used);
                }
            }
            prop_assert_eq!(map.used_count() as usize, model.iter().filter(|used| **used).count());
            prop_assert!((0..4096).all(|block| map.is_used(block) == model[block as usize]));
            match map.encode() {
                None => prop_assert!(map.is_empty()),
                Some(bytes) => {
                    prop_assert!(bytes.len() <= REGION_BYTES_MAX);
                    prop_assert_eq!(RegionMap::decode(&bytes).unwrap(), map);
                }
            }
        }

        #[test]
        fn sets_follow_plain_arrays_and_survive_encoding(
            runs in prop::collection::vec((0u32..4096, 0u32..600, any::<bool>()), 0..30),
            single in prop::collection::vec((0u32..4096, any::<bool>()), 0..400),
        ) {
            let mut maps = [RegionMap::new(), RegionMap::new()];
            let mut models = [vec![false; 4096], vec![false; 4096]];
            for (start, blocks, which) in runs.into_iter().chain(single.into_iter().map(|at| (at.0, 1, at.1))) {
                let blocks = blocks.min(4096 - start);
                maps[usize::from(which)].add(start, blocks);
                models[usize::from(which)][start as usize..(start + blocks) as usize].fill(true);
            }
            let [one, other] = maps;
            type Of = fn(bool, bool) -> bool;
            let results: [(RegionMap, Of); 4] = [
                (one.clone(), |one, _| one),
                (one.either(&other), |one, other| one | other),
                (one.both(&other), |one, other| one & other),
                (one.without(&other), |one, other| one & !other),
            ];
            for (map, of) in results {
                let model: Vec<bool> = (0..4096).map(|at| of(models[0][at], models[1][at])).collect();
                prop_assert_eq!(map.used_count() as usize, model.iter().filter(|used| **used).count());
                prop_assert!((0..4096).all(|block| map.is_used(block) == model[block as usize]));
                if let Some(bytes) = map.encode() {
                    prop_assert_eq!(RegionMap::decode(&bytes).unwrap(), map);
                }
            }
        }
    }
}
