//! Sizes on the command line, and the short form in which reports show them. [`quire_base::size`] reads them.

/// The most that an option takes, in bytes: 1024t.
const MAX: u64 = 1 << 50;

/// Parses a size in bytes, at least 1.
pub fn parse(text: &str) -> Result<u64, String> {
    let size = quire_base::size::parse(text)?;
    let range = || format!("'{text}' is out of range: 1 byte to {}", show(MAX));
    if (1..=MAX).contains(&size) { Ok(size) } else { Err(range()) }
}

/// Writes a size in the shortest way that [`parse`] reads: `64k`.
pub fn show(bytes: u64) -> String {
    for (shift, unit) in [(40, "t"), (30, "g"), (20, "m"), (10, "k")] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_back() {
        for (text, bytes) in
            [("4k", 4096), ("1g", 1 << 30), ("256m", 256 << 20), ("3", 3), ("2t", 2 << 40), ("64KiB", 65536)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
            assert_eq!(parse(&show(bytes)), Ok(bytes));
        }
        for text in ["", "k", "0", "-4k", "1.5g", "4x", "99999999999t", "2048t"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse("2048t").unwrap_err(), "'2048t' is out of range: 1 byte to 1024t");
    }
}
