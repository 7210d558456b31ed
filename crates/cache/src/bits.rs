//! One bit a block: the state bitmaps of a folio.
//!
//! Words are shared by blocks of different segments, so every change is a read-modify-write. Which bits a
//! caller may change is decided by the segment locks and fill bits it holds, not here.
//!
//! Neighbours: [`crate::folio`] hands out views of its words.

use quire_base::sync::atomic::{AtomicU64, Ordering};

/// A view of one bitmap of a folio: every so many-th word of its header. Block numbers are within the folio.
#[derive(Clone, Copy)]
pub struct Bits<'a> {
    words: &'a [AtomicU64],
    stride: usize,
}

/// The bits `[first, end)` as (word number, mask) pairs, ascending.
pub fn masks(first: u32, end: u32) -> impl Iterator<Item = (usize, u64)> {
    let last_word = end.saturating_sub(1) / 64;
    (first / 64..=last_word).filter(move |_| first < end).map(move |word| {
        let from = first.saturating_sub(word * 64);
        let to = (end - word * 64).min(64);
        let upper = if to == 64 { u64::MAX } else { (1 << to) - 1 };
        (word as usize, upper & (u64::MAX << from))
    })
}

/// The runs of set bits in a word, as first block and count, ascending. `number` is the word's.
pub fn runs(number: usize, mut bits: u64) -> impl Iterator<Item = (u32, u32)> {
    std::iter::from_fn(move || {
        (bits != 0).then(|| {
            let low = bits.trailing_zeros();
            let count = (bits >> low).trailing_ones();
            bits &= !(u64::MAX >> (64 - count) << low);
            (number as u32 * 64 + low, count)
        })
    })
}

impl<'a> Bits<'a> {
    /// A view of the first of `words` and every `stride`-th word from there on.
    pub fn new(words: &'a [AtomicU64], stride: usize) -> Bits<'a> {
        Bits { words, stride }
    }

    /// The word that holds blocks `64 * number ..`.
    #[inline]
    pub fn word(&self, number: usize) -> &'a AtomicU64 {
        &self.words[number * self.stride]
    }

    /// Whether `block` is set.
    pub fn get(&self, block: u32) -> bool {
        self.word(block as usize / 64).load(Ordering::Acquire) >> (block % 64) & 1 != 0
    }

    /// Sets `[first, end)`; returns how many were not set before. Words in which all of them are set already
    /// are not written: only who may clear a bit may set it, so it stays.
    pub fn set(&self, first: u32, end: u32) -> u32 {
        masks(first, end)
            .map(|(word, mask)| {
                let word = self.word(word);
                if word.load(Ordering::SeqCst) & mask == mask {
                    return 0;
                }
                (mask & !word.fetch_or(mask, Ordering::SeqCst)).count_ones()
            })
            .sum()
    }

    /// Clears `[first, end)`; returns how many were set before.
    pub fn clear(&self, first: u32, end: u32) -> u32 {
        masks(first, end)
            .map(|(word, mask)| (mask & self.word(word).fetch_and(!mask, Ordering::SeqCst)).count_ones())
            .sum()
    }

    /// Whether all of `[first, end)` are set.
    pub fn all(&self, first: u32, end: u32) -> bool {
        masks(first, end).all(|(word, mask)| self.word(word).load(Ordering::Acquire) & mask == mask)
    }

    /// Whether any of `[first, end)` is set.
    pub fn any(&self, first: u32, end: u32) -> bool {
        masks(first, end).any(|(word, mask)| self.word(word).load(Ordering::SeqCst) & mask != 0)
    }

    /// Whether no bit is set at all.
    pub fn is_empty(&self) -> bool {
        self.iter().all(|word| word.load(Ordering::SeqCst) == 0)
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = &'a AtomicU64> + use<'a> {
        self.words.iter().step_by(self.stride)
    }

    /// The first set block in `[from, end)`.
    pub fn next_set(&self, from: u32, end: u32) -> Option<u32> {
        masks(from, end).find_map(|(word, mask)| {
            let set = self.word(word).load(Ordering::SeqCst) & mask;
            (set != 0).then(|| word as u32 * 64 + set.trailing_zeros())
        })
    }

    /// The first clear block in `[from, end)`.
    pub fn next_clear(&self, from: u32, end: u32) -> Option<u32> {
        masks(from, end).find_map(|(word, mask)| {
            let clear = !self.word(word).load(Ordering::Acquire) & mask;
            (clear != 0).then(|| word as u32 * 64 + clear.trailing_zeros())
        })
    }
}

impl std::fmt::Debug for Bits<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for word in self.iter().rev() {
            write!(f, "{:x}.", word.load(Ordering::Relaxed))?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_runs_of_a_word_are_its_bits() {
        for bits in [0, 1, 1 << 63, u64::MAX, 0b1011_0111, u64::MAX << 7, 0xf0f0_0000_0000_000f] {
            let mut left = bits;
            for (first, count) in runs(2, bits) {
                let run = (first..first + count).fold(0, |run, block| run | 1 << (block - 128));
                assert_eq!(left & run, run);
                left &= !run;
            }
            assert_eq!(left, 0);
        }
        assert_eq!(runs(0, 0b1011).collect::<Vec<_>>(), [(0, 2), (3, 1)]);
    }

    #[test]
    fn ranges_agree_with_a_plain_array() {
        let words: Vec<AtomicU64> = (0..22).map(|_| AtomicU64::new(0)).collect();
        let bits = Bits::new(&words, 3);
        let mut model = [false; 512];
        let mut random = quire_base::random::Random::seeded(5);
        for _ in 0..3000 {
            let first = random.below(513) as u32;
            let end = first + random.below(u64::from(513 - first)) as u32;
            let range = first as usize..end as usize;
            match random.below(4) {
                0 => {
                    let fresh = model[range.clone()].iter().filter(|set| !**set).count() as u32;
                    assert_eq!(bits.set(first, end), fresh);
                    model[range].fill(true);
                }
                1 => {
                    let gone = model[range.clone()].iter().filter(|set| **set).count() as u32;
                    assert_eq!(bits.clear(first, end), gone);
                    model[range].fill(false);
                }
                2 => {
                    assert_eq!(bits.all(first, end), model[range.clone()].iter().all(|set| *set));
                    assert_eq!(bits.any(first, end), model[range].iter().any(|set| *set));
                }
                _ => {
                    let next = |wanted| (first..end).find(|i| model[*i as usize] == wanted);
                    assert_eq!(bits.next_set(first, end), next(true));
                    assert_eq!(bits.next_clear(first, end), next(false));
                }
            }
        }
    }
}
