//! Properties of a file or directory, as the flags of its inode record hold them.
//!
//! ```text
//! bit 0       the inode never had a name (`fs`)
//! bits 8..11  untorn: 0 is off; n is a unit of 2048 << n bytes, 4 KiB (1) to 1 MiB (9)
//! bit 12      cache=drop
//! ```
//!
//! A directory's properties say what is created in it gets.
//!
//! Neighbours: [`crate::inode`] carries the flags; `fs` gives the properties their meaning.

use quire_base::{BLOCK_SIZE, Error, Result};
use std::fmt;
use std::str::FromStr;

const UNTORN_SHIFT: u32 = 8;
const UNTORN_MASK: u32 = 0xf << UNTORN_SHIFT;
const CACHE_DROP: u32 = 1 << 12;

/// All flags that properties use.
pub const PROPERTY_FLAGS: u32 = UNTORN_MASK | CACHE_DROP;

/// The size of an untorn unit: a power of two from 4 KiB to 1 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unit(u8);

impl Unit {
    /// 4 KiB.
    pub const MIN: Unit = Unit(1);
    /// 1 MiB.
    pub const MAX: Unit = Unit(9);

    /// A unit of so many bytes. `Invalid` unless they are a power of two from 4 KiB to 1 MiB.
    pub fn from_bytes(bytes: u64) -> Result<Unit> {
        let units = [Unit::MIN.0, Unit::MAX.0];
        let found = (units[0]..=units[1]).map(Unit).find(|unit| unit.bytes() == bytes);
        found.ok_or_else(|| {
            Error::invalid(format!("an untorn unit of {bytes} bytes: it is a power of two from 4k to 1m"))
        })
    }

    /// Bytes of a unit.
    pub const fn bytes(self) -> u64 {
        2048 << self.0
    }

    /// Blocks of a unit.
    pub const fn blocks(self) -> u64 {
        self.bytes() / BLOCK_SIZE as u64
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes() {
            bytes if bytes >= 1 << 20 => write!(f, "{}m", bytes >> 20),
            bytes => write!(f, "{}k", bytes >> 10),
        }
    }
}

impl FromStr for Unit {
    type Err = Error;
    /// As in `8k`, `1m`, `16384`; an upper-case suffix does as well.
    fn from_str(text: &str) -> Result<Unit> {
        let (digits, scale) = match text.as_bytes().last() {
            Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
            Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
            _ => (text, 1),
        };
        let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
        let bytes = bytes.ok_or_else(|| {
            Error::invalid(format!("{text:?} is no untorn unit: give a power of two from 4k to 1m, or off"))
        })?;
        Unit::from_bytes(bytes)
    }
}

/// See the module's documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// A crash leaves no aligned unit of this size in part; none if it may.
    pub untorn: Option<Unit>,
    /// Pages of buffered I/O leave the cache once they are clean.
    pub cache_drop: bool,
}

impl Properties {
    /// Those in an inode record's flags.
    pub fn of_flags(flags: u32) -> Result<Properties> {
        let untorn = match (flags & UNTORN_MASK) >> UNTORN_SHIFT {
            0 => None,
            unit if unit <= u32::from(Unit::MAX.0) => Some(Unit(unit as u8)),
            unit => return Err(Error::corrupt(format!("an untorn unit of code {unit}"))),
        };
        Ok(Properties { untorn, cache_drop: flags & CACHE_DROP != 0 })
    }

    /// The flags with these in place of what they held.
    pub fn put_into(self, flags: u32) -> u32 {
        let untorn = self.untorn.map_or(0, |unit| u32::from(unit.0)) << UNTORN_SHIFT;
        (flags & !PROPERTY_FLAGS) | untorn | if self.cache_drop { CACHE_DROP } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_two() {
        for (text, bytes) in
            [("4k", 4096), ("8K", 8192), ("16384", 16384), ("1m", 1 << 20), ("1024k", 1 << 20)]
        {
            assert_eq!(text.parse::<Unit>().unwrap().bytes(), bytes, "{text}");
        }
        for text in ["", "k", "2k", "12k", "2m", "0", "-4k", "4kk", "99999999999999999999"] {
            assert!(text.parse::<Unit>().is_err(), "{text}");
        }
        assert_eq!("512k".parse::<Unit>().unwrap().to_string(), "512k");
        assert_eq!(Unit::MAX.to_string(), "1m");
    }

    #[test]
    fn flags_carry_properties() {
        let all = Properties { untorn: Some("64k".parse().unwrap()), cache_drop: true };
        let flags = all.put_into(1 | PROPERTY_FLAGS);
        assert_eq!(flags & 1, 1);
        assert_eq!(Properties::of_flags(flags).unwrap(), all);
        assert_eq!(Properties::default().put_into(flags), 1);
        assert!(Properties::of_flags(UNTORN_MASK).is_err());
    }
}
