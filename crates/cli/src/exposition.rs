//! A server's numbers as text: Prometheus' exposition format, version 0.0.4. `quire top` reads the same text
//! back.
//!
//! ```text
//!   # TYPE quire_cache_dirty_bytes gauge
//!   quire_cache_dirty_bytes 8192
//!   quire_request_seconds_bucket{work="read",le="0.000005"} 17
//! ```
//!
//! Neighbours: [`crate::server::listener`] sends it; [`crate::commands::top`] shows it.

use std::collections::BTreeMap;
use std::fmt::Write;

use quire::{MetricKind, Volume};
use quire_fuse::{BusyFile, Meters};

/// Everything that the volume and its mount count, with the busiest files so far.
pub fn text(volume: &Volume, meters: &Meters) -> String {
    text_with(volume, meters, &meters.busiest())
}

/// The same, with these files instead.
pub fn text_with(volume: &Volume, meters: &Meters, files: &[BusyFile]) -> String {
    let mut text = String::with_capacity(16 << 10);
    for metric in volume.metrics() {
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
        };
        let _ = writeln!(text, "# TYPE quire_{0} {kind}\nquire_{0} {1}", metric.name, metric.value);
    }
    let served = meters.read();
    for (name, value) in [("requests", 0usize), ("request_bytes", 1)] {
        let _ = writeln!(text, "# TYPE quire_{name}_total counter");
        for one in &served {
            let value = [one.requests, one.bytes][value];
            let _ = writeln!(text, "quire_{name}_total{{work=\"{}\"}} {value}", one.work.name());
        }
    }
    let _ = writeln!(text, "# TYPE quire_request_seconds histogram");
    for one in &served {
        let work = one.work.name();
        for (nanos, below) in one.times.cumulative() {
            let seconds = nanos as f64 / 1e9;
            let _ =
                writeln!(text, "quire_request_seconds_bucket{{work=\"{work}\",le=\"{seconds}\"}} {below}");
        }
        let count = one.times.count();
        let _ = writeln!(text, "quire_request_seconds_bucket{{work=\"{work}\",le=\"+Inf\"}} {count}");
        let _ = writeln!(text, "quire_request_seconds_sum{{work=\"{work}\"}} {}", one.nanos as f64 / 1e9);
        let _ = writeln!(text, "quire_request_seconds_count{{work=\"{work}\"}} {count}");
    }
    let _ = writeln!(
        text,
        "# TYPE quire_serialised_files gauge\nquire_serialised_files {}",
        meters.serialised_files()
    );
    for (name, value) in [("requests", 0usize), ("bytes", 1)] {
        let _ = writeln!(text, "# TYPE quire_busy_file_{name} gauge");
        for file in files {
            let value = [file.requests, file.bytes][value];
            let _ = writeln!(text, "quire_busy_file_{name}{{inode=\"{}\"}} {value}", file.inode);
        }
    }
    text
}

/// A reading: values by name with labels, as they stand in the text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading(BTreeMap<String, f64>);

impl Reading {
    /// Reads a text back; what is no sample is passed over.
    pub fn parse(text: &str) -> Reading {
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            (!line.starts_with('#')).then_some(())?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Reading(text.lines().filter_map(sample).collect())
    }

    /// The value of `quire_NAME`, labels included; 0 if there is none.
    pub fn value(&self, name: &str) -> f64 {
        self.0.get(&format!("quire_{name}")).copied().unwrap_or(0.0)
    }

    /// The samples of `quire_NAME{...}`: what stands between the braces, and the value.
    pub fn labelled<'a>(&'a self, name: &str) -> impl Iterator<Item = (&'a str, f64)> {
        let prefix = format!("quire_{name}{{");
        let end = prefix.len();
        self.0
            .range(prefix.clone()..)
            .take_while(move |(key, _)| key.starts_with(&prefix))
            .map(move |(key, value)| (key[end..].trim_end_matches('}'), *value))
    }

    /// Seconds that `share` of the requests of a kind took at most, of those since `before`; none without
    /// requests.
    pub fn quantile(&self, before: &Reading, work: &str, share: f64) -> Option<f64> {
        let label = format!("work=\"{work}\",le=\"");
        let ends = |reading: &Reading| -> Vec<(f64, f64)> {
            let buckets = reading.labelled("request_seconds_bucket");
            let mut ends: Vec<(f64, f64)> = buckets
                .filter_map(|(labels, below)| {
                    let end = labels.strip_prefix(&label)?.trim_end_matches('"');
                    Some((end.parse().unwrap_or(f64::INFINITY), below))
                })
                .collect();
            ends.sort_by(|a, b| a.0.total_cmp(&b.0));
            ends
        };
        let (now, old) = (ends(self), ends(before));
        let old_below =
            |end: f64| old.iter().take_while(|(at, _)| *at <= end).last().map_or(0.0, |(_, below)| *below);
        let all = now.last()?.1 - old.last().map_or(0.0, |(_, below)| *below);
        let wanted = (all * share).ceil().max(1.0);
        (all > 0.0).then_some(())?;
        now.iter().find(|(end, below)| below - old_below(*end) >= wanted).map(|(end, _)| *end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLIER: &str = "\
# TYPE quire_cache_dirty_bytes gauge
quire_cache_dirty_bytes 4096
quire_request_seconds_bucket{work=\"read\",le=\"0.000005\"} 10
quire_request_seconds_bucket{work=\"read\",le=\"+Inf\"} 10
";
    const LATER: &str = "\
quire_cache_dirty_bytes 8192
quire_request_seconds_bucket{work=\"read\",le=\"0.000005\"} 60
quire_request_seconds_bucket{work=\"read\",le=\"0.01\"} 110
quire_request_seconds_bucket{work=\"read\",le=\"+Inf\"} 110
quire_request_seconds_bucket{work=\"write\",le=\"+Inf\"} 0
quire_busy_file_requests{inode=\"12\"} 26
not a sample
";

    #[test]
    fn what_is_written_can_be_read() {
        let (earlier, later) = (Reading::parse(EARLIER), Reading::parse(LATER));
        assert_eq!(later.value("cache_dirty_bytes"), 8192.0);
        assert_eq!(later.value("none"), 0.0);
        assert_eq!(later.labelled("busy_file_requests").collect::<Vec<_>>(), [("inode=\"12\"", 26.0)]);
        assert_eq!(later.quantile(&earlier, "read", 0.5), Some(0.000_005));
        assert_eq!(later.quantile(&earlier, "read", 0.99), Some(0.01));
        assert_eq!(later.quantile(&earlier, "write", 0.5), None);
        assert_eq!(later.quantile(&later, "read", 0.5), None);
    }
}
