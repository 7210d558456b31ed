//! A set of blocks of a file: which ones somebody waits for.

use smallvec::SmallVec;

/// A set of blocks of a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    /// Word number and bits, ascending; a word may be empty.
    words: SmallVec<[(u64, u64); 2]>,
    count: u64,
}

impl Blocks {
    /// Word numbers and their bits, ascending.
    pub fn words(&self) -> impl Iterator<Item = &(u64, u64)> {
        self.words.iter()
    }

    pub fn len(&self) -> u64 {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// One past the last word's last block.
    pub fn end(&self) -> u64 {
        self.words.last().map_or(0, |(word, _)| (word + 1) * 64)
    }

    pub fn start(&self) -> u64 {
        self.words.first().map_or(0, |(word, _)| word * 64)
    }

    /// The bits of 64 blocks from a multiple of 64 on.
    pub fn word(&self, number: u64) -> u64 {
        self.words.binary_search_by_key(&number, |(word, _)| *word).map_or(0, |at| self.words[at].1)
    }

    /// The bits of up to 64 blocks from `block` on, which do not cross a multiple of 64.
    pub fn bits_from(&self, block: u64) -> u64 {
        self.word(block / 64) >> (block % 64)
    }

    pub fn contains(&self, block: u64) -> bool {
        self.bits_from(block) & 1 != 0
    }

    pub fn insert_bits(&mut self, number: u64, bits: u64) {
        let at = match self.words.last() {
            Some((last, _)) if *last >= number => self.words.binary_search_by_key(&number, |(word, _)| *word),
            _ => Err(self.words.len()),
        };
        let at = at.unwrap_or_else(|at| {
            self.words.insert(at, (number, 0));
            at
        });
        let word = &mut self.words[at].1;
        self.count += u64::from((bits & !*word).count_ones());
        *word |= bits;
    }

    /// Takes `[first, end)` out; calls `taken` with the words that lost some, and the bits that they lost.
    pub fn remove(&mut self, first: u64, end: u64, mut taken: impl FnMut(u64, u64)) {
        let from = self.words.partition_point(|(word, _)| (word + 1) * 64 <= first);
        for (number, word) in self.words[from..].iter_mut().take_while(|(number, _)| number * 64 < end) {
            let base = *number * 64;
            let low = u64::MAX << first.saturating_sub(base);
            let high = if end - base >= 64 { u64::MAX } else { (1 << (end - base)) - 1 };
            let lost = *word & low & high;
            if lost != 0 {
                *word &= !lost;
                self.count -= u64::from(lost.count_ones());
                taken(*number, lost);
            }
        }
    }
}
