//! Bytes by offset: what a group has in memory of one file.
//!
//! Invariants: pieces do not overlap, and none is empty. Pieces may touch: one grows by what is written
//! behind it up to [`PIECE_BYTES`] only, so that its memory is not moved again and again.
//!
//! Neighbour: [`super::collected`], which also knows what has left the memory for the disk.

use std::collections::BTreeMap;
use std::ops::Range;

/// A piece of so many bytes or more does not grow.
const PIECE_BYTES: usize = 1 << 20;
/// What a piece takes beside its bytes: its place in the map, and what the system's allocator adds.
const PIECE_OVERHEAD: u64 = 64;

/// What so many pieces take, with `bytes` in all.
pub(super) fn memory(pieces: u64, bytes: u64) -> u64 {
    pieces * PIECE_OVERHEAD + bytes
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Pieces {
    map: BTreeMap<u64, Vec<u8>>,
    bytes: u64,
}

impl Pieces {
    /// What they take.
    pub(super) fn memory(&self) -> u64 {
        memory(self.map.len() as u64, self.bytes)
    }

    /// Offsets and bytes, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.map.iter().map(|(at, bytes)| (*at, &bytes[..]))
    }

    /// Where the last piece begins and ends.
    pub(super) fn last(&self) -> Option<Range<u64>> {
        self.map.last_key_value().map(|(at, bytes)| *at..at + bytes.len() as u64)
    }

    /// What the pieces cover, without the places where they touch.
    pub(super) fn spans(&self) -> Vec<Range<u64>> {
        let mut spans: Vec<Range<u64>> = Vec::new();
        for (at, bytes) in self.iter() {
            let end = at + bytes.len() as u64;
            match spans.last_mut() {
                Some(last) if last.end == at => last.end = end,
                _ => spans.push(at..end),
            }
        }
        spans
    }

    /// Whether nothing of `[start, end)` is missing.
    pub(super) fn covers(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        let before = self.map.range(..start).next_back();
        for (offset, bytes) in before.into_iter().chain(self.map.range(start..end)) {
            if *offset > at {
                break;
            }
            at = at.max(offset + bytes.len() as u64);
        }
        at >= end
    }

    /// Puts bytes over what is there.
    pub(super) fn insert(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let before = self.map.range(..=offset).next_back().map(|(at, bytes)| (*at, bytes.len() as u64));
        if let Some((at, len)) = before
            && (at + len > offset || at + len == offset && (len as usize) < PIECE_BYTES)
        {
            // Overlaps or touches: it grows, or is written over.
            let bytes = self.map.get_mut(&at).expect("it was found");
            let from = (offset - at) as usize;
            let over = (bytes.len() - from).min(data.len());
            bytes[from..from + over].copy_from_slice(&data[..over]);
            bytes.extend_from_slice(&data[over..]);
            self.bytes += (data.len() - over) as u64;
            self.cut_begun(at + 1, end.max(at + len));
        } else {
            self.cut_begun(offset, end);
            self.map.insert(offset, data.to_vec());
            self.bytes += data.len() as u64;
        }
    }

    /// Takes out what lies in `[start, end)`.
    pub(super) fn take_out(&mut self, start: u64, end: u64) {
        if let Some((at, bytes)) = self.map.range_mut(..start).next_back()
            && at + bytes.len() as u64 > start
        {
            let tail = bytes.split_off((start - at) as usize);
            self.bytes -= tail.len() as u64;
            if start + tail.len() as u64 > end {
                let rest = tail[(end - start) as usize..].to_vec();
                self.bytes += rest.len() as u64;
                self.map.insert(end, rest);
            }
        }
        self.cut_begun(start, end);
    }

    /// Takes what `[start, end)` covers out of the pieces that begin there.
    fn cut_begun(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let begun: Vec<u64> = self.map.range(start..end).map(|(at, _)| *at).collect();
        for at in begun {
            let bytes = self.map.remove(&at).expect("it was found");
            self.bytes -= bytes.len() as u64;
            let rest = end - at;
            if (bytes.len() as u64) > rest {
                let bytes = bytes[rest as usize..].to_vec();
                self.bytes += bytes.len() as u64;
                self.map.insert(end, bytes);
            }
        }
    }

    /// Lays the pieces over what a read from `offset` gave.
    pub(super) fn overlay(&self, offset: u64, out: &mut [u8]) {
        let end = offset + out.len() as u64;
        let before = self.map.range(..offset).next_back();
        for (at, bytes) in before.into_iter().chain(self.map.range(offset..end)) {
            let (low, high) = ((*at).max(offset), (at + bytes.len() as u64).min(end));
            if low < high {
                let part = &bytes[(low - at) as usize..(high - at) as usize];
                out[(low - offset) as usize..(high - offset) as usize].copy_from_slice(part);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_base::random::Random;

    /// A group of single bytes took far more than it said.
    #[test]
    fn small_pieces_count_for_what_they_take() {
        let mut pieces = Pieces::default();
        (0..100).for_each(|number| pieces.insert(2 * number, &[1]));
        assert_eq!(pieces.memory(), 100 * (PIECE_OVERHEAD + 1));
        // A key, the vector, and what malloc hands out at least.
        assert!(pieces.memory() >= 100 * (size_of::<(u64, Vec<u8>)>() as u64 + 24));
        pieces.insert(0, &[1; 200]);
        assert_eq!(pieces.memory(), PIECE_OVERHEAD + 200);
    }

    #[test]
    fn pieces_do_what_a_plain_vector_does() {
        for seed in 0..300 {
            let mut random = Random::seeded(seed);
            let mut pieces = Pieces::default();
            let mut wanted: Vec<Option<u8>> = vec![None; 200];
            for byte in 0..40u8 {
                let start = random.below(150) as usize;
                let end = start + 1 + random.below(49) as usize;
                if random.below(3) == 0 {
                    pieces.take_out(start as u64, end as u64);
                    wanted[start..end].fill(None);
                } else {
                    pieces.insert(start as u64, &vec![byte; end - start]);
                    wanted[start..end].fill(Some(byte));
                }
                let mut seen = vec![255; 200];
                pieces.overlay(0, &mut seen);
                let plain: Vec<u8> = wanted.iter().map(|byte| byte.unwrap_or(255)).collect();
                assert_eq!(seen, plain, "seed {seed}");
                let (low, high) = (random.below(100) as usize, 101 + random.below(99) as usize);
                let is_covered = wanted[low..high].iter().all(Option::is_some);
                assert_eq!(pieces.covers(low as u64, high as u64), is_covered, "seed {seed}");
                assert_eq!(pieces.bytes, wanted.iter().flatten().count() as u64, "seed {seed}");
                for span in pieces.spans() {
                    assert!(wanted[span.start as usize..span.end as usize].iter().all(Option::is_some));
                }
            }
        }
    }
}
