//! Sizes as people write them: `10G`, `512M`, `1T`, `4096`. Powers of 1024; bytes without a letter.

/// Parses a size in bytes. Takes K, M, G, T, P, E, in any case, also as `KiB` or `KB` (still 1024).
pub fn parse(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let shift = match unit.trim().to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        "E" => 60,
        _ => return Err(format!("'{text}' is not a size; write for example 4096, 512M, 10G or 1T")),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("'{text}' is not a size; write for example 4096, 512M, 10G or 1T"))?;
    number
        .checked_shl(shift)
        .filter(|size| size >> shift == number)
        .ok_or_else(|| format!("'{text}' is larger than a number of bytes can be"))
}

/// Writes a size with one decimal at most: `10.0 GiB` is `10 GiB`.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    let value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    let text = format!("{value:.1}");
    format!("{} {}", text.strip_suffix(".0").unwrap_or(&text), UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("10G"), Ok(10 << 30));
        assert_eq!(parse("512m"), Ok(512 << 20));
        assert_eq!(parse("1T"), Ok(1 << 40));
        assert_eq!(parse("64 KiB"), Ok(64 << 10));
        assert_eq!(parse("3kb"), Ok(3 << 10));
        assert_eq!(parse("0"), Ok(0));
    }

    #[test]
    fn what_is_no_size() {
        for text in ["", "G", "1.5G", "-1", "10X", "16E", "99999999999999999999", "1 2"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("20E").unwrap_err().contains("larger"));
    }

    #[test]
    fn sizes_read_back() {
        assert_eq!(show(0), "0 bytes");
        assert_eq!(show(4096), "4 KiB");
        assert_eq!(show(10 << 30), "10 GiB");
        assert_eq!(show((1 << 30) + (1 << 29)), "1.5 GiB");
    }
}
