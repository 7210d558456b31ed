//! How far behind a copy is: numbers in the text format of Prometheus, in a file for the node exporter's
//! `textfile` collector.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::exit::Failure;

/// What a replication has come to.
pub struct Report {
    file: Option<PathBuf>,
    sent_bytes: u64,
    breaks: u64,
    /// When the newest state of the target was the source's, in nanoseconds since 1970.
    newest: Option<i64>,
}

impl Report {
    /// Nothing yet.
    pub fn new(file: Option<PathBuf>) -> Report {
        Report { file, sent_bytes: 0, breaks: 0, newest: None }
    }

    /// Bytes went from one end to the other.
    pub fn sent(&mut self, bytes: u64) {
        self.sent_bytes += bytes;
    }

    /// A stream did not come to its end.
    pub fn broke(&mut self) {
        self.breaks += 1;
    }

    /// The target has the snapshot that was taken at this time.
    pub fn succeeded(&mut self, created: Option<i64>) {
        self.newest = created.or(self.newest);
    }

    /// Writes the file anew; what reads it sees the old one or the new one.
    pub fn write(&self, failure: Option<&Failure>) {
        let Some(file) = &self.file else { return };
        let new = file.with_extension("new");
        let written = std::fs::write(&new, self.text(failure)).and_then(|()| std::fs::rename(&new, file));
        if let Err(error) = written {
            tracing::warn!("writing {}: {error}", file.display());
        }
    }

    fn text(&self, failure: Option<&Failure>) -> String {
        let mut text = String::new();
        let mut number = |name: &str, kind: &str, help: &str, value: f64| {
            let name = format!("quire_replication_{name}");
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        };
        if let Some(newest) = self.newest {
            let help = "When the target's newest snapshot was taken, in seconds since 1970; now minus this is the lag.";
            number("snapshot_timestamp_seconds", "gauge", help, newest as f64 / 1e9);
        }
        let help = "When this file was written, in seconds since 1970.";
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        number("report_timestamp_seconds", "gauge", help, now.as_secs_f64());
        number("sent_bytes_total", "counter", "Bytes sent since the start.", self.sent_bytes as f64);
        number("breaks_total", "counter", "Streams that did not come to their end.", self.breaks as f64);
        let help = "1 if the last round failed; the log says why.";
        number("failing", "gauge", help, f64::from(u8::from(failure.is_some())));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("copy.prom");
        let mut report = Report::new(Some(file.clone()));
        report.sent(7);
        report.broke();
        report.write(Some(&Failure::usage("no")));
        let text = std::fs::read_to_string(&file).unwrap();
        for line in ["quire_replication_sent_bytes_total 7", "quire_replication_breaks_total 1", "failing 1"]
        {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(!text.contains("snapshot_timestamp"));
        report.succeeded(Some(1_500_000_000));
        report.write(None);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("snapshot_timestamp_seconds 1.5\n") && text.contains("failing 0\n"), "{text}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
