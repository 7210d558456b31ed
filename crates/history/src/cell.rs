//! What is written: cells of eight bytes, each of which says who wrote it and which part of the write it is.
//!
//! ```text
//!  63               44 43               24 23                       0
//! +-------------------+-------------------+--------------------------+
//! | writer, 20 bits   | position, 20 bits | check of the two, 24 bits|
//! +-------------------+-------------------+--------------------------+
//! ```
//!
//! The writer is the number of the operation in its history, from 1 on (which names thread and sequence as
//! well); the position counts cells from the start of that operation's data. Eight zero bytes are a zero.
//! Everything that operations do has offsets and lengths of whole cells, so a read that splits a cell has
//! bytes of two writes, and fails the check.
//!
//! Neighbours: [`crate::content`] keeps runs of cells; [`crate::perform`] makes and decodes buffers.

/// Bytes of a cell.
pub const CELL: u64 = 8;

/// The most operations of one history.
pub const WRITERS_MAX: u32 = (1 << 20) - 1;
/// The most cells of one write: 8 MiB.
pub const POSITIONS_MAX: u32 = 1 << 20;

/// Who wrote a cell: an operation's number, or [`ZERO`].
pub type Writer = u32;

/// Nobody: the cell is a hole, or was zeroed.
pub const ZERO: Writer = 0;
/// Somebody, whom no read of the history has seen there: which does not matter.
pub const UNSEEN: Writer = Writer::MAX;

/// Cells that follow one another in a file and in the write that they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// Cells.
    pub len: u32,
    /// Who wrote them.
    pub writer: Writer,
    /// The first one's position in that write; 0 for zeros.
    pub position: u32,
}

impl Run {
    /// `len` cells of zeros.
    pub fn zeros(len: u32) -> Run {
        Run { len, writer: ZERO, position: 0 }
    }

    /// `len` cells that no read has seen.
    pub fn unseen(len: u32) -> Run {
        Run { len, writer: UNSEEN, position: 0 }
    }

    /// Whether all of its cells are alike.
    fn is_uniform(self) -> bool {
        self.writer == ZERO || self.writer == UNSEEN
    }

    /// The part of it that is `len` cells from `skip` on.
    pub fn part(self, skip: u32, len: u32) -> Run {
        let position = if self.is_uniform() { 0 } else { self.position + skip };
        Run { len, writer: self.writer, position }
    }

    /// Whether `next` continues it.
    pub fn continues(self, next: Run) -> bool {
        let position = if self.is_uniform() { 0 } else { self.position + self.len };
        self.writer == next.writer && position == next.position
    }
}

fn check(writer: u64, position: u64) -> u64 {
    let mixed = (writer << 20 | position).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29) & 0xff_ffff
}

/// Fills a buffer of whole cells as `writer` writes it.
pub fn fill(writer: Writer, data: &mut [u8]) {
    assert!(writer != ZERO && writer <= WRITERS_MAX && data.len() as u64 <= u64::from(POSITIONS_MAX) * CELL);
    for (position, cell) in data.chunks_exact_mut(CELL as usize).enumerate() {
        let (writer, position) = (u64::from(writer), position as u64);
        let word = writer << 44 | position << 24 | check(writer, position);
        cell.copy_from_slice(&word.to_le_bytes());
    }
}

/// What a buffer holds. Errors with the offset of the first byte that nobody wrote as it is there.
pub fn decode(data: &[u8]) -> Result<Vec<Run>, usize> {
    let mut runs: Vec<Run> = Vec::new();
    let cells = data.chunks_exact(CELL as usize);
    let rest = cells.remainder().len();
    for (at, cell) in cells.enumerate() {
        let word = u64::from_le_bytes(cell.try_into().expect("eight bytes"));
        let (writer, position) = (word >> 44, word >> 24 & 0xf_ffff);
        let run = if word == 0 {
            Run::zeros(1)
        } else if writer != 0 && word & 0xff_ffff == check(writer, position) {
            Run { len: 1, writer: writer as Writer, position: position as u32 }
        } else {
            return Err(at * CELL as usize);
        };
        match runs.last_mut() {
            Some(last) if last.continues(run) => last.len += 1,
            _ => runs.push(run),
        }
    }
    if rest == 0 { Ok(runs) } else { Err(data.len() - rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_is_decoded() {
        let mut data = vec![0; 80];
        fill(7, &mut data[8..48]);
        fill(9, &mut data[56..]);
        let expected = [
            Run::zeros(1),
            Run { len: 5, writer: 7, position: 0 },
            Run::zeros(1),
            Run { len: 3, writer: 9, position: 0 },
        ];
        assert_eq!(decode(&data).unwrap(), expected);
        // The first half of one cell and the second half of another.
        let mut torn = data.clone();
        torn.copy_within(12..16, 60);
        assert_eq!(decode(&torn), Err(56));
        assert_eq!(decode(&data[..20]), Err(16));
    }
}
