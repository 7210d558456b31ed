//! Sizes as people write them: `4k`, `256m`, `1g`. Powers of 1024; bytes without a letter.

/// Parses a size in bytes, at least 1.
pub fn parse(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is not a size; write for example 4k, 256m or 1g");
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
    let (number, unit) = lower.split_at(digits);
    let shift = match unit.trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number
        .checked_mul(1 << shift)
        .filter(|&size| (1..=1 << 50).contains(&size))
        .ok_or_else(|| format!("'{text}' is out of range: 1 byte to 1024t"))
}

/// Writes a size the way [`parse`] reads it: `64k`.
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
    }
}
