//! Replies: values into the bytes of a reply's body.
//!
//! The body is written into the room that the transport gives (as large as the largest request), and its
//! length goes back with it. What does not fit is an error of this server, answered with `EIO`, except in
//! directories, where the kernel says how much it takes.

use zerocopy::{Immutable, IntoBytes};

use super::abi::{Dirent, EntryOut};

/// The answer would not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A body as it grows.
pub struct Body<'a> {
    room: &'a mut [u8],
    used: usize,
}

impl<'a> Body<'a> {
    /// An empty one that takes up to `room.len()` bytes.
    pub fn new(room: &'a mut [u8]) -> Body<'a> {
        Body { room, used: 0 }
    }

    /// Bytes written.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Appends bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Full> {
        let place =
            self.room.get_mut(self.used..).and_then(|room| room.get_mut(..bytes.len())).ok_or(Full)?;
        place.copy_from_slice(bytes);
        self.used += bytes.len();
        Ok(())
    }

    /// Appends a structure.
    pub fn value<T: IntoBytes + Immutable>(&mut self, value: &T) -> Result<(), Full> {
        self.bytes(value.as_bytes())
    }

    /// Appends an entry of a directory, whole or not at all.
    pub fn name(&mut self, entry: &Dirent, name: &[u8]) -> Result<(), Full> {
        self.directory_entry(None, entry, name)
    }

    /// Appends an entry of a directory with what a look-up of it gives, whole or not at all.
    pub fn name_and_attributes(&mut self, found: &EntryOut, entry: &Dirent, name: &[u8]) -> Result<(), Full> {
        self.directory_entry(Some(found), entry, name)
    }

    fn directory_entry(&mut self, found: Option<&EntryOut>, entry: &Dirent, name: &[u8]) -> Result<(), Full> {
        let head = size_of::<Dirent>() + if found.is_some() { size_of::<EntryOut>() } else { 0 };
        let whole = (head + name.len()).next_multiple_of(8);
        if whole > self.room.len() - self.used {
            return Err(Full);
        }
        if let Some(found) = found {
            self.value(found)?;
        }
        self.value(entry)?;
        self.bytes(name)?;
        self.bytes(&[0; 8][..whole - head - name.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_entries_are_whole_and_padded() {
        let mut room = [0xff; 80];
        let mut body = Body::new(&mut room);
        let entry = Dirent { node: 5, offset: 1, name_length: 3, kind: 8 };
        body.name(&entry, b"abc").unwrap();
        assert_eq!(body.len(), 32);
        body.name(&entry, b"12345678").unwrap();
        assert_eq!(body.len(), 64);
        assert_eq!(body.name(&entry, b"x"), Err(Full));
        assert_eq!(body.len(), 64);
        assert_eq!(&room[24..32], b"abc\0\0\0\0\0");
    }

    #[test]
    fn nothing_is_written_past_the_room() {
        let mut room = [0; 10];
        let mut body = Body::new(&mut room);
        body.bytes(&[1; 10]).unwrap();
        assert_eq!(body.bytes(&[2]), Err(Full));
        assert_eq!(body.bytes(&[]), Ok(()));
    }
}
