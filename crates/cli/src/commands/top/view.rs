//! What two readings of a server say about the time between them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::exposition::Reading;
use quire_base::size;

/// Kinds of work, in the order shown.
const WORKS: [&str; 4] = ["read", "write", "sync", "other"];

/// Busy files, at most.
const FILES: usize = 10;

/// One kind of work.
pub struct Work {
    pub name: &'static str,
    pub requests_per_second: f64,
    pub bytes_per_second: f64,
    /// Median, 99th and 99.9th percentile in seconds; none without requests.
    pub latency: Option<[f64; 3]>,
}

/// A busy file.
pub struct BusyFile {
    pub inode: u64,
    pub requests_per_second: f64,
    pub bytes_per_second: f64,
    /// Its path, where a process has it open that we may look at.
    pub path: Option<String>,
}

/// See the module's documentation. Rates are a second's.
pub struct View {
    pub works: Vec<Work>,
    /// Share of cached reads, of blocks that reads asked the engine for: 0 to 1; none without reads.
    pub hit_rate: Option<f64>,
    pub cache_used: f64,
    pub cache_limit: f64,
    pub cache_resident: f64,
    pub dirty: f64,
    pub fill_bytes: f64,
    pub readahead_bytes: f64,
    pub writeback_bytes: f64,
    pub writeback_requests: f64,
    pub throttled_share: f64,
    pub journal_used: f64,
    pub journal_size: f64,
    pub journal_bytes: f64,
    pub transactions: f64,
    pub checkpoints: f64,
    pub flushes: f64,
    pub device_read_bytes: f64,
    pub device_written_bytes: f64,
    pub leases: f64,
    pub leases_recalled: f64,
    pub leases_revoked: f64,
    pub failed: bool,
    pub files: Vec<BusyFile>,
}

impl View {
    /// Compares two readings, `seconds` apart.
    pub fn new(before: &Reading, now: &Reading, seconds: f64) -> View {
        let grown = |name: &str| (now.value(name) - before.value(name)).max(0.0);
        let rate = |name: &str| grown(name) / seconds.max(1e-3);
        let device = |doing: &str| -> f64 {
            ["data", "journal", "metadata"]
                .iter()
                .map(|class| rate(&format!("device_{class}_{doing}_bytes_total")))
                .sum()
        };
        let works = WORKS.map(|name| {
            let quantile = |share| now.quantile(before, name, share);
            Work {
                name,
                requests_per_second: rate(&format!("requests_total{{work=\"{name}\"}}")),
                bytes_per_second: rate(&format!("request_bytes_total{{work=\"{name}\"}}")),
                latency: quantile(0.5).and_then(|p50| Some([p50, quantile(0.99)?, quantile(0.999)?])),
            }
        });
        // A read that needed the device is counted as locked, and filled blocks that were not read ahead.
        let reads = grown("cache_reads_optimistic_total") + grown("cache_reads_locked_total");
        let missed = (grown("cache_fill_ios_total")).min(reads);
        let mut files: Vec<BusyFile> = now
            .labelled("busy_file_requests")
            .filter_map(|(label, requests)| {
                let inode = label.strip_prefix("inode=\"")?.strip_suffix('"')?.parse().ok()?;
                let old = before.value(&format!("busy_file_requests{{{label}}}"));
                let bytes = now.value(&format!("busy_file_bytes{{{label}}}"))
                    - before.value(&format!("busy_file_bytes{{{label}}}"));
                Some(BusyFile {
                    inode,
                    requests_per_second: (requests - old).max(0.0) / seconds.max(1e-3),
                    bytes_per_second: bytes.max(0.0) / seconds.max(1e-3),
                    path: None,
                })
            })
            .filter(|file| file.requests_per_second > 0.0)
            .collect();
        files.sort_by(|a, b| b.requests_per_second.total_cmp(&a.requests_per_second));
        files.truncate(FILES);
        const BLOCK: f64 = 4096.0;
        View {
            works: works.into(),
            hit_rate: (reads > 0.0).then(|| 1.0 - missed / reads),
            cache_used: now.value("cache_used_bytes"),
            cache_limit: now.value("cache_limit_bytes"),
            cache_resident: now.value("cache_resident_bytes"),
            dirty: now.value("cache_dirty_bytes"),
            fill_bytes: rate("cache_fill_blocks_total") * BLOCK,
            readahead_bytes: rate("cache_readahead_blocks_total") * BLOCK,
            writeback_bytes: rate("cache_writeback_blocks_total") * BLOCK,
            writeback_requests: rate("cache_writeback_ios_total"),
            throttled_share: rate("cache_throttle_nanos_total") / 1e9,
            journal_used: now.value("journal_used_bytes"),
            journal_size: now.value("journal_size_bytes"),
            journal_bytes: rate("journal_appended_bytes_total"),
            transactions: rate("transactions_total"),
            checkpoints: grown("checkpoints_total"),
            flushes: rate("device_flushes_total"),
            device_read_bytes: device("read"),
            device_written_bytes: device("write"),
            leases: now.value("leases_held"),
            leases_recalled: grown("leases_recalled_total"),
            leases_revoked: grown("leases_revoked_total"),
            failed: now.value("failed") > 0.0,
            files,
        }
    }

    /// Finds paths of busy files among those that processes have open on the mount.
    pub fn name_files(&mut self, dir: &Path) {
        let Ok(device) = std::fs::metadata(dir).map(|meta| meta.dev()) else { return };
        let mut wanted: BTreeMap<u64, &mut Option<String>> =
            self.files.iter_mut().map(|file| (file.inode, &mut file.path)).collect();
        if wanted.is_empty() {
            return;
        }
        let directories = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        for descriptors in directories.filter_map(|process| std::fs::read_dir(process.path().join("fd")).ok())
        {
            for descriptor in descriptors.flatten().map(|entry| entry.path()) {
                let Ok(target) = std::fs::read_link(&descriptor) else { continue };
                if !target.starts_with(dir) {
                    continue;
                }
                if let Ok(meta) = std::fs::metadata(&descriptor)
                    && meta.dev() == device
                    && let Some(path) = wanted.get_mut(&meta.ino())
                {
                    **path = Some(target.strip_prefix(dir).unwrap_or(&target).display().to_string());
                }
            }
        }
    }

    /// The lines of a part each: what the screen shows, too. Numbers have the names under which the server
    /// exports them, without `quire_`; those of counters are a second's.
    pub fn work_lines(&self) -> Vec<String> {
        let head = format!(
            "{:<6} {:>16} {:>21} {:>11} p50 {:>5} p99 {:>3} p99.9",
            "work", "requests_total/s", "request_bytes_total/s", "seconds", "", ""
        );
        let line = |work: &Work| {
            let [p50, p99, p999] = match work.latency {
                Some(times) => times.map(time),
                None => ["-", "-", "-"].map(String::from),
            };
            format!(
                "{:<6} {:>16.0} {:>21} {p50:>15} {p99:>9} {p999:>9}",
                work.name,
                work.requests_per_second,
                bytes(work.bytes_per_second)
            )
        };
        std::iter::once(head).chain(self.works.iter().map(line)).collect()
    }

    /// Cache and writeback.
    pub fn cache_lines(&self) -> Vec<String> {
        let hits = self.hit_rate.map_or("-".into(), |rate| format!("{:.1} %", rate * 100.0));
        packed(&[
            ("cache_used_bytes", bytes(self.cache_used)),
            ("cache_limit_bytes", bytes(self.cache_limit)),
            ("cache_resident_bytes", bytes(self.cache_resident)),
            ("cache_dirty_bytes", bytes(self.dirty)),
            ("quire:cache_hit:ratio", hits),
            ("cache_fill_blocks_total", per_second(self.fill_bytes)),
            ("cache_readahead_blocks_total", per_second(self.readahead_bytes)),
            ("cache_writeback_blocks_total", per_second(self.writeback_bytes)),
            ("cache_writeback_ios_total", format!("{:.0}/s", self.writeback_requests)),
            ("cache_throttle_nanos_total", format!("{:.2} s/s", self.throttled_share)),
        ])
    }

    /// Journal and device.
    pub fn journal_lines(&self) -> Vec<String> {
        let mut lines = packed(&[
            ("journal_used_bytes", bytes(self.journal_used)),
            ("journal_size_bytes", bytes(self.journal_size)),
            ("journal_appended_bytes_total", per_second(self.journal_bytes)),
            ("transactions_total", format!("{:.0}/s", self.transactions)),
            ("checkpoints_total", format!("+{:.0}", self.checkpoints)),
            ("device_flushes_total", format!("{:.0}/s", self.flushes)),
            ("quire:device_read_bytes:rate", per_second(self.device_read_bytes)),
            ("quire:device_write_bytes:rate", per_second(self.device_written_bytes)),
        ]);
        if self.leases + self.leases_recalled + self.leases_revoked > 0.0 {
            lines.extend(packed(&[
                ("leases_held", format!("{:.0}", self.leases)),
                ("leases_recalled_total", format!("+{:.0}", self.leases_recalled)),
                ("leases_revoked_total", format!("+{:.0}", self.leases_revoked)),
            ]));
        }
        if self.failed {
            lines.push(
                "failed: THE VOLUME TAKES NO CHANGES, an error shut it down; see the server's log".into(),
            );
        }
        lines
    }

    /// Busy files.
    pub fn file_lines(&self) -> Vec<String> {
        let line = |file: &BusyFile| {
            let name = file.path.clone().unwrap_or_else(|| format!("inode {}", file.inode));
            let (requests, volume) = (file.requests_per_second, bytes(file.bytes_per_second));
            format!("{requests:>10.0} requests/s {volume:>12}/s  {name}")
        };
        self.files.iter().map(line).collect()
    }

    /// All of it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (title, lines) in [
            ("requests", self.work_lines()),
            ("cache", self.cache_lines()),
            ("journal", self.journal_lines()),
            ("busiest files", self.file_lines()),
        ] {
            let _ = writeln!(text, "{title}");
            for line in lines {
                let _ = writeln!(text, "  {line}");
            }
        }
        text
    }
}

/// Columns of a terminal that lines keep to.
const WIDTH: usize = 76;

/// Names with their values, as many to a line as fit.
fn packed(fields: &[(&str, String)]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (name, value) in fields {
        let field = format!("{name} {value}");
        match lines.last_mut() {
            Some(line) if line.len() + 2 + field.len() <= WIDTH => *line += &format!(", {field}"),
            _ => lines.push(field),
        }
    }
    lines
}

fn per_second(value: f64) -> String {
    format!("{}/s", bytes(value))
}

fn bytes(value: f64) -> String {
    size::show(value as u64)
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} us", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_time_between() {
        let before = Reading::parse("quire_requests_total{work=\"read\"} 100\nquire_transactions_total 7\n");
        let now = Reading::parse(
            "quire_requests_total{work=\"read\"} 300\nquire_transactions_total 9\nquire_cache_dirty_bytes 8192\n\
             quire_cache_reads_optimistic_total 90\nquire_cache_reads_locked_total 10\n\
             quire_cache_fill_ios_total 10\nquire_busy_file_requests{inode=\"5\"} 26\n",
        );
        let view = View::new(&before, &now, 2.0);
        assert_eq!((view.works[0].requests_per_second, view.transactions), (100.0, 1.0));
        assert_eq!((view.dirty, view.hit_rate), (8192.0, Some(0.9)));
        assert_eq!((view.files[0].inode, view.files[0].requests_per_second), (5, 13.0));
        let text = view.text();
        assert!(
            text.contains("cache_dirty_bytes 8 KiB") && text.contains("90.0 %") && text.contains("inode 5"),
            "{text}"
        );
    }

    /// The busiest files were the ten with the highest counts since the server started, whatever the others
    /// did in the time between.
    #[test]
    fn the_busiest_files_are_those_of_the_time_between() {
        let reading = |growth: u64| {
            let line = |n| format!("quire_busy_file_requests{{inode=\"{n}\"}} {}\n", 1000 * n + growth / n);
            Reading::parse(&(1..=30).map(line).collect::<String>())
        };
        let view = View::new(&reading(0), &reading(3000), 1.0);
        assert_eq!(view.files.iter().map(|file| file.inode).collect::<Vec<_>>(), Vec::from_iter(1..=10));
        assert_eq!(view.files[9].requests_per_second, 300.0);
    }
}
