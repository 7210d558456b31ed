//! What a file holds, as pieces that name the operation which wrote them.
//!
//! Every write fills its range with words that say who wrote them and how far from its start: [`word_at`]. So
//! bytes found on a disk name their origin, whatever became of the block they lie in; and an append need not
//! know where it goes.
//!
//! Layout: pieces sorted by position, never overlapping; what no piece covers is a hole and reads as zeros.
//!
//! Neighbours: [`crate::model`]; [`crate::data`] compares what a crash left with what was written.

use crate::operation::OpId;

/// Bytes of one self-describing word.
pub const WORD: u64 = 8;

/// The word that operation `op` writes `at` bytes (a multiple of [`WORD`]) from its start: never zero.
pub fn word_at(op: OpId, at: u64) -> u64 {
    ((op.0 + 1) << 40) | (at / WORD)
}

/// Which operation a word names, and how far from its start; `None` if no operation wrote such a word.
pub fn origin(word: u64) -> Option<(OpId, u64)> {
    let op = (word >> 40).checked_sub(1)?;
    Some((OpId(op), (word & ((1 << 40) - 1)) * WORD))
}

/// The bytes `start..end` of what `op` writes.
pub fn pattern(op: OpId, start: u64, end: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((end - start) as usize + 16);
    let first = start / WORD * WORD;
    let mut at = first;
    while at < end {
        bytes.extend_from_slice(&word_at(op, at).to_le_bytes());
        at += WORD;
    }
    bytes.truncate((end - first) as usize);
    bytes.drain(..(start - first) as usize);
    bytes
}

/// Where the bytes of a piece come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Origin {
    /// Written by an operation, so far from its start.
    Op(OpId, u64),
    /// Byte of the base at this position.
    Base(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Piece {
    start: u64,
    end: u64,
    origin: Origin,
}

impl Piece {
    fn clip(&self, from: u64, to: u64) -> Option<Piece> {
        let (start, end) = (self.start.max(from), self.end.min(to));
        if start >= end {
            return None;
        }
        let skipped = start - self.start;
        let origin = match self.origin {
            Origin::Op(op, at) => Origin::Op(op, at + skipped),
            Origin::Base(at) => Origin::Base(at + skipped),
        };
        Some(Piece { start, end, origin })
    }

    fn moved(&self, to: u64) -> Piece {
        Piece { start: to, end: to + (self.end - self.start), ..*self }
    }
}

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Contents {
    pieces: Vec<Piece>,
    base: std::sync::Arc<Vec<u8>>,
}

impl Contents {
    /// Contents that begin as these bytes.
    pub fn from_base(base: std::sync::Arc<Vec<u8>>) -> Contents {
        let end = base.len() as u64;
        let pieces = (end > 0).then_some(Piece { start: 0, end, origin: Origin::Base(0) });
        Contents { pieces: pieces.into_iter().collect(), base }
    }

    /// The bytes of `start..end`.
    pub fn read(&self, start: u64, end: u64) -> Vec<u8> {
        let mut bytes = vec![0; (end - start) as usize];
        for piece in self.pieces.iter().filter_map(|piece| piece.clip(start, end)) {
            let into = &mut bytes[(piece.start - start) as usize..(piece.end - start) as usize];
            match piece.origin {
                Origin::Op(op, at) => into.copy_from_slice(&pattern(op, at, at + into.len() as u64)),
                Origin::Base(at) => into.copy_from_slice(&self.base[at as usize..at as usize + into.len()]),
            }
        }
        bytes
    }

    /// Makes `start..end` a hole.
    pub fn clear(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let around = |piece: &Piece| [piece.clip(0, start), piece.clip(end, u64::MAX)];
        self.pieces = self.pieces.iter().flat_map(around).flatten().collect();
    }

    /// Fills `start..end` with what `op` writes.
    pub fn write(&mut self, start: u64, end: u64, op: OpId) {
        self.write_part(start, end, op, 0);
    }

    /// Fills `start..end` with what `op` writes from byte `from` of its pattern on.
    pub fn write_part(&mut self, start: u64, end: u64, op: OpId, from: u64) {
        self.clear(start, end);
        let at = self.pieces.partition_point(|piece| piece.start < start);
        self.pieces.insert(at, Piece { start, end, origin: Origin::Op(op, from) });
    }

    /// Cuts `start..end` out; what follows moves down.
    pub fn collapse(&mut self, start: u64, end: u64) {
        self.clear(start, end);
        for piece in &mut self.pieces {
            if piece.start >= end {
                *piece = piece.moved(piece.start - (end - start));
            }
        }
    }

    /// Opens a hole of `length` at `start`; what follows moves up.
    pub fn insert(&mut self, start: u64, length: u64) {
        let parts = |piece: &Piece| [piece.clip(0, start), piece.clip(start, u64::MAX)];
        self.pieces = self.pieces.iter().flat_map(parts).flatten().collect();
        for piece in &mut self.pieces {
            if piece.start >= start {
                *piece = piece.moved(piece.start + length);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_behave_as_bytes() {
        let mut random = quire_base::random::Random::seeded(1);
        let base: Vec<u8> = (0..100).map(|byte| byte as u8).collect();
        let mut bytes = base.clone();
        let mut contents = Contents::from_base(std::sync::Arc::new(base));
        for op in 0..400 {
            let (start, length) = (random.below(120), 1 + random.below(30));
            let end = start + length;
            bytes.resize(bytes.len().max(end as usize).max(300), 0);
            let range = start as usize..end as usize;
            match random.below(4) {
                0 => {
                    contents.clear(start, end);
                    bytes[range].fill(0);
                }
                1 => {
                    contents.collapse(start, end);
                    bytes.drain(range);
                }
                2 => {
                    contents.insert(start, length);
                    bytes.splice(start as usize..start as usize, vec![0; length as usize]);
                }
                _ => {
                    contents.write(start, end, OpId(op));
                    bytes[range].copy_from_slice(&pattern(OpId(op), 0, length));
                }
            }
            assert_eq!(contents.read(0, bytes.len() as u64), bytes, "after {op}");
        }
    }
}
