//! Writing a stream.
//!
//! A stream that goes on after a break is made by a writer that leaves out what the receiver has: the sender
//! makes the same items again, and [`StreamWriter::wants`] says which of them need content.
//!
//! Neighbours: [`super`] has the items.

use super::{DATA_BYTES_MAX, HEADER_BYTES, Header, ITEM_OVERHEAD, Item, Totals};
use crate::receive::Position;
use quire_base::{Error, ErrorKind, Result};
use std::io::Write;

/// Writes items, or only counts them.
pub struct StreamWriter<'w> {
    /// None: nothing is written.
    out: Option<&'w mut dyn Write>,
    /// Where the items that are written begin.
    from: Position,
    position: Position,
    blocks: u64,
    buffer: Vec<u8>,
}

impl<'w> StreamWriter<'w> {
    /// Writes the header. Items up to the position that it names are left out.
    pub fn new(out: &'w mut dyn Write, header: &Header) -> Result<StreamWriter<'w>> {
        let from = header.position();
        let begin = Position { items: 0, bytes: HEADER_BYTES as u64, checksum: 0 };
        let position = if from.items == 0 { from } else { begin };
        let mut writer = StreamWriter { out: Some(out), from, position, blocks: 0, buffer: Vec::new() };
        writer.put(&header.encode())?;
        Ok(writer)
    }

    /// Counts what items would come to.
    pub fn counting() -> StreamWriter<'static> {
        let position = Position { items: 0, bytes: HEADER_BYTES as u64, checksum: 0 };
        StreamWriter {
            out: None,
            from: Position { items: u64::MAX, ..position },
            position,
            blocks: 0,
            buffer: Vec::new(),
        }
    }

    /// Whether the next item is written.
    pub fn wants(&self) -> bool {
        self.out.is_some() && self.position.items >= self.from.items
    }

    /// The position behind the last item.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Blocks that the items have given homes so far.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Writes an item that is wanted, or counts it.
    pub fn item(&mut self, item: &Item<'_>) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.extend([item.kind(), 0, 0, 0, 0, 0, 0, 0]);
        buffer.extend(self.position.items.to_le_bytes());
        item.encode(&mut buffer);
        let payload = buffer.len() - super::ITEM_HEADER_BYTES;
        buffer[4..8].copy_from_slice(&(payload as u32).to_le_bytes());
        let outcome = self.count(payload, item.blocks(), Some(&mut buffer));
        self.buffer = buffer;
        outcome
    }

    /// Counts content that is not wanted.
    pub fn left_out(&mut self, blocks: u64) -> Result<()> {
        let bytes = blocks as usize * quire_base::BLOCK_SIZE;
        debug_assert!(!self.wants() && bytes <= DATA_BYTES_MAX);
        self.count(16 + bytes, blocks, None)
    }

    /// Ends the stream.
    pub fn end(&mut self, next_inode: u64) -> Result<()> {
        let totals = Totals { items: self.position.items, blocks: self.blocks, next_inode };
        self.item(&Item::End(totals))?;
        match &mut self.out {
            Some(out) => out.flush().map_err(broken),
            None => Ok(()),
        }
    }

    fn count(&mut self, payload: usize, blocks: u64, bytes: Option<&mut Vec<u8>>) -> Result<()> {
        if self.wants() {
            let buffer = bytes.expect("what is wanted has its bytes");
            let checksum = crc32c::crc32c_append(self.position.checksum, buffer);
            buffer.extend(checksum.to_le_bytes());
            self.put(buffer)?;
            self.position.checksum = checksum;
        }
        self.position.items += 1;
        self.position.bytes += (payload + ITEM_OVERHEAD) as u64;
        self.blocks += blocks;
        if self.out.is_some() && self.position.items == self.from.items {
            if self.position.bytes != self.from.bytes {
                return Err(Error::invalid("the token does not fit this snapshot"));
            }
            self.position = self.from;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.out {
            Some(out) => out.write_all(bytes).map_err(broken),
            None => Ok(()),
        }
    }
}

fn broken(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("writing the stream: {error}"))
}
