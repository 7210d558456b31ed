//! Reading a stream: outside bytes, checked before they are given out.
//!
//! Invariants: memory for an item is taken after its kind and length have been found possible, at most
//! [`super::PAYLOAD_BYTES_MAX`]. An error names the byte at which the item begins that is broken.
//!
//! Neighbours: [`super`] has the items.

use super::{HEADER_BYTES, Header, ITEM_HEADER_BYTES, Item, payload_bytes_max};
use crate::receive::Position;
use quire_base::{Error, ErrorKind, Result};
use std::io::{ErrorKind as IoKind, Read};

/// Reads items.
pub struct StreamReader<'r> {
    input: &'r mut dyn Read,
    position: Position,
    /// Bytes that have been read of this input.
    read: u64,
    ended: bool,
    buffer: Vec<u8>,
}

impl<'r> StreamReader<'r> {
    /// Reads the header.
    ///
    /// Errors: those of [`Header::decode`]; `UnexpectedEof`; `Io`.
    pub fn open(input: &'r mut dyn Read) -> Result<(Header, StreamReader<'r>)> {
        let mut block = [0; HEADER_BYTES];
        let mut reader =
            StreamReader { input, position: Position::default(), read: 0, ended: false, buffer: Vec::new() };
        reader.fill(&mut block, "its header")?;
        let header = Header::decode(&block)?;
        reader.position = header.position();
        reader.read = HEADER_BYTES as u64;
        Ok((header, reader))
    }

    /// The position behind the last item.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The next item, and the position behind it; none behind the end. After an error there is none any more.
    ///
    /// Errors: `Corrupt`, `UnexpectedEof`, `Io`.
    #[expect(clippy::should_implement_trait, reason = "items borrow from the reader")]
    pub fn next(&mut self) -> Result<Option<(Item<'_>, Position)>> {
        if self.ended {
            return Ok(None);
        }
        self.ended = true;
        let number = self.position.items;
        let at = self.read;
        let wrong = |what: String| {
            Error::corrupt(format!("the stream is damaged at byte {at}, item {number}: {what}"))
        };
        let mut head = [0; ITEM_HEADER_BYTES];
        self.fill(&mut head, "an item")?;
        let len = u32::from_le_bytes(head[4..8].try_into().expect("4 bytes")) as usize;
        let found = u64::from_le_bytes(head[8..].try_into().expect("8 bytes"));
        let most = payload_bytes_max(head[0])
            .ok_or_else(|| wrong(format!("an item of the unknown kind {}", head[0])))?;
        if head[1..4] != [0; 3] || len > most {
            return Err(wrong(format!("an item of kind {} with {len} bytes", head[0])));
        }
        if found != number {
            return Err(wrong(format!("the item there has the number {found}")));
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(len + 4, 0);
        self.fill(&mut buffer, "an item")?;
        self.buffer = buffer;
        let (payload, crc) = self.buffer.split_at(len);
        let checksum = crc32c::crc32c_append(crc32c::crc32c_append(self.position.checksum, &head), payload);
        if crc != checksum.to_le_bytes() {
            return Err(wrong("the checksum is wrong".into()));
        }
        let item = Item::decode(head[0], payload).map_err(|error| wrong(error.to_string()))?;
        let bytes = (ITEM_HEADER_BYTES + len + 4) as u64;
        self.read += bytes;
        self.position =
            Position { items: number + 1, bytes: self.position.bytes.saturating_add(bytes), checksum };
        self.ended = matches!(item, Item::End(_));
        if let Item::End(totals) = &item
            && totals.items != number
        {
            return Err(wrong(format!("its end counts {} items", totals.items)));
        }
        Ok(Some((item, self.position)))
    }

    fn fill(&mut self, out: &mut [u8], what: &str) -> Result<()> {
        let at = self.read;
        self.input.read_exact(out).map_err(|error| match error.kind() {
            IoKind::UnexpectedEof => Error::new(
                ErrorKind::UnexpectedEof,
                format!("the stream is cut off: it ends within {what} that begins at byte {at}"),
            ),
            _ => Error::new(ErrorKind::Io, format!("reading the stream at byte {at}: {error}")),
        })
    }
}
