//! How values of arguments are written: properties, ranges, times.
//!
//! Neighbours: [`crate::arguments`] takes them; sizes are [`quire_base::size`]'s.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use quire::{Properties, Unit};
use quire_base::Error;

/// The extended attribute of `untorn`.
pub const UNTORN: &str = "user.quire.untorn";
/// The extended attribute of `cache`.
pub const CACHE: &str = "user.quire.cache";

/// One property with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `untorn=8k`, `untorn=off`.
    Untorn(Option<Unit>),
    /// `cache=drop` (true), `cache=keep`.
    CacheDrop(bool),
}

impl FromStr for Setting {
    type Err = String;
    fn from_str(text: &str) -> Result<Setting, String> {
        match text.split_once('=') {
            Some(("untorn", "off")) => Ok(Setting::Untorn(None)),
            Some(("untorn", unit)) => {
                unit.parse().map(|unit| Setting::Untorn(Some(unit))).map_err(|error: Error| error.to_string())
            }
            Some(("cache", "drop")) => Ok(Setting::CacheDrop(true)),
            Some(("cache", "keep")) => Ok(Setting::CacheDrop(false)),
            _ => Err(format!("{text:?} is no property: there are untorn=SIZE|off and cache=drop|keep")),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Setting::Untorn(_) => "untorn",
            Setting::CacheDrop(_) => "cache",
        };
        write!(f, "{name}={}", self.value())
    }
}

impl Setting {
    /// The extended attribute of a mount.
    pub fn name(self) -> &'static str {
        match self {
            Setting::Untorn(_) => UNTORN,
            Setting::CacheDrop(_) => CACHE,
        }
    }

    /// Whether properties have it. Larger units are made of whole smaller ones, and serve for them.
    pub fn holds(self, properties: Properties) -> bool {
        match self {
            Setting::Untorn(None) => properties.untorn.is_none(),
            Setting::Untorn(unit) => properties.untorn >= unit,
            Setting::CacheDrop(drop) => properties.cache_drop == drop,
        }
    }

    /// As it is written, without its name.
    pub fn value(self) -> String {
        match self {
            Setting::Untorn(unit) => unit.map_or_else(|| "off".to_owned(), |unit| unit.to_string()),
            Setting::CacheDrop(drop) => if drop { "drop" } else { "keep" }.to_owned(),
        }
    }
}

/// `START-END`, `START-` or `-END`, in bytes; sizes such as `64M` are understood.
pub fn range(text: &str) -> Result<Range<u64>, String> {
    let (start, end) = text.split_once('-').ok_or("a range is START-END, in bytes, for example 0-64M")?;
    let bound =
        |text: &str, open: u64| if text.is_empty() { Ok(open) } else { quire_base::size::parse(text) };
    let found = bound(start, 0)?..bound(end, u64::MAX)?;
    if found.start < found.end { Ok(found) } else { Err(format!("{text}: it ends before it begins")) }
}

/// Parses a time: seconds, or a number with s, m or h.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix(['s', 'm', 'h']) {
        Some(number) => (number, &text[number.len()..]),
        None => (text, "s"),
    };
    let factor = match unit {
        "m" => 60.0,
        "h" => 3600.0,
        _ => 1.0,
    };
    let parsed = number.parse::<f64>().ok().map(|number| number * factor);
    let valid = parsed.filter(|seconds| (0.1..=86_400.0 * 366.0).contains(seconds));
    valid.map(Duration::from_secs_f64).ok_or_else(|| format!("'{text}' is no time such as 5s, 2m or 1h"))
}

/// A count that is not zero.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| format!("'{text}' is not a number from 1 on"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert_eq!(range("0-64k"), Ok(0..65536));
        assert_eq!(range("4096-"), Ok(4096..u64::MAX));
        assert_eq!(range("-1M"), Ok(0..1 << 20));
        for wrong in ["", "5", "9-5", "5-5", "x-y"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn settings_as_written() {
        for text in ["untorn=8k", "untorn=1m", "untorn=off", "cache=drop", "cache=keep"] {
            assert_eq!(text.parse::<Setting>().unwrap().to_string(), text);
        }
        for text in ["untorn", "untorn=", "untorn=3k", "cache=off", "cache", "other=1", ""] {
            assert!(text.parse::<Setting>().is_err(), "{text}");
        }
    }

    #[test]
    fn larger_units_serve_for_smaller_ones() {
        let with = |unit: &str| Properties { untorn: Some(unit.parse().unwrap()), cache_drop: false };
        let wanted: Setting = "untorn=8k".parse().unwrap();
        assert!(wanted.holds(with("8k")) && wanted.holds(with("16k")));
        assert!(!wanted.holds(with("4k")) && !wanted.holds(Properties::default()));
        let none: Setting = "untorn=off".parse().unwrap();
        assert!(none.holds(Properties::default()) && !none.holds(with("4k")));
    }
}
