//! How far behind a copy is: numbers in the text format of Prometheus, in a file for the node exporter's
//! `textfile` collector.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::exit::{Failure, Outcome};

/// What a replication has come to.
pub struct Report {
    file: Option<PathBuf>,
    /// Names of the source and the target, as labels.
    labels: String,
    sent_bytes: u64,
    breaks: u64,
    /// When the newest state of the target was the source's, in nanoseconds since 1970.
    newest: Option<i64>,
}

impl Report {
    /// Nothing yet, between a source and a target of these names. The file is replaced each time, which
    /// nothing but a file may be: not the device, or the pipe, that somebody names.
    pub fn new(file: Option<PathBuf>, ends: [String; 2]) -> Outcome<Report> {
        if let Some(file) = &file
            && (is_no_file(file) || ["/dev", "/proc"].iter().any(|system| file.starts_with(system)))
        {
            return Err(Failure::usage(format!("--metrics {}: not a regular file", file.display())));
        }
        let escaped = |name: &str| name.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
        let [source, target] = ends.each_ref().map(|name| escaped(name));
        let labels = format!("{{source=\"{source}\",target=\"{target}\"}}");
        Ok(Report { file, labels, sent_bytes: 0, breaks: 0, newest: None })
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
    pub fn succeeded(&mut self, created: i64) {
        self.newest = Some(created);
    }

    /// Writes the file anew; what reads it sees the old one or the new one. A symbolic link stays one.
    pub fn write(&self, failure: Option<&Failure>) {
        let Some(file) = &self.file else { return };
        let real = std::fs::canonicalize(file).unwrap_or_else(|_| file.clone());
        let mut new = real.clone().into_os_string();
        new.push(".new");
        let written = std::fs::write(&new, self.text(failure)).and_then(|()| std::fs::rename(&new, &real));
        if let Err(error) = written {
            tracing::warn!("writing {}: {error}", file.display());
        }
    }

    fn text(&self, failure: Option<&Failure>) -> String {
        let mut text = String::new();
        let mut number = |name: &str, kind: &str, help: &str, value: f64| {
            let name = format!("quire_replication_{name}");
            let _ =
                writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{} {value}", self.labels);
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

/// Whether something is there that is no regular file. A link to nothing may not be followed either.
fn is_no_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok() && !path.metadata().is_ok_and(|metadata| metadata.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("copy.prom");
        let ends = ["/srv/a".into(), r#"host:a"b.img"#.into()];
        let mut report = Report::new(Some(file.clone()), ends).unwrap();
        report.sent(7);
        report.broke();
        report.write(Some(&Failure::usage("no")));
        let text = std::fs::read_to_string(&file).unwrap();
        let labels = r#"{source="/srv/a",target="host:a\"b.img"}"#;
        let line = |name: &str, value: &str| format!("quire_replication_{name}{labels} {value}\n");
        for line in [line("sent_bytes_total", "7"), line("breaks_total", "1"), line("failing", "1")] {
            assert!(text.contains(&line), "{line} is not in {text}");
        }
        assert!(!text.contains("snapshot_timestamp"));
        report.succeeded(1_500_000_000);
        report.write(None);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(&line("snapshot_timestamp_seconds", "1.5")), "{text}");
        assert!(text.contains(&line("failing", "0")), "{text}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    /// A device was replaced by a file: with `--metrics /dev/null`, root's `/dev/null`.
    #[test]
    fn only_a_file_is_replaced() {
        use std::os::unix::fs::symlink;
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("file"), "old").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("nothing", at("dangling")).unwrap();
        let open = |file: PathBuf| Report::new(Some(file), ["a".into(), "b".into()]);
        for refused in [at("dangling"), directory.path().to_owned(), "/dev/null".into(), "/dev/stdout".into()]
        {
            assert!(open(refused.clone()).is_err(), "{}", refused.display());
        }
        open(at("link")).unwrap().write(None);
        assert!(at("link").symlink_metadata().unwrap().is_symlink());
        assert!(std::fs::read_to_string(at("file")).unwrap().contains("quire_replication_failing"));
    }
}
