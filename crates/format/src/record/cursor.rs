//! Reading untrusted bytes front to back, and the variable-length integers of transaction records.
//!
//! A varint is little-endian base 128: seven bits a byte, lowest first, the top bit set on every byte but the
//! last. Only the shortest form is accepted, so a value has exactly one encoding.

use quire_base::{Error, Result};

/// A position in untrusted bytes; every read is checked.
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
    /// What the bytes are, for messages.
    what: &'static str,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Cursor<'a> {
        Cursor { rest: bytes, what }
    }

    /// Bytes not read yet.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or_else(|| {
            Error::corrupt(format!("{}: {} bytes where {count} are needed", self.what, self.rest.len()))
        })?;
        self.rest = rest;
        Ok(head)
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    pub(crate) fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Error::corrupt(format!("{}: integer over 64 bits", self.what)));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    return Err(Error::corrupt(format!("{}: integer not in its shortest form", self.what)));
                }
                return Ok(value);
            }
        }
        Err(Error::corrupt(format!("{}: integer over ten bytes", self.what)))
    }

    /// A varint that fits 32 bits.
    pub(crate) fn varint_u32(&mut self) -> Result<u32> {
        let value = self.varint()?;
        u32::try_from(value)
            .map_err(|_| Error::corrupt(format!("{}: {value} does not fit 32 bits", self.what)))
    }

    /// Errors unless everything was read.
    pub(crate) fn end(&self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(Error::corrupt(format!("{}: {} bytes too many", self.what, self.rest.len())))
    }
}

/// Appends a varint.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varint_edges() {
        for value in [0, 1, 127, 128, 16383, 16384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut cursor = Cursor::new(&out, "test");
            assert_eq!(cursor.varint().unwrap(), value);
            cursor.end().unwrap();
        }
    }

    #[test]
    fn varint_refuses_long_forms_and_overflow() {
        for bytes in [
            &[0x80u8, 0][..],
            &[0xff; 10],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
            &[0x80],
        ] {
            assert!(Cursor::new(bytes, "test").varint().is_err(), "{bytes:?}");
        }
    }
}
