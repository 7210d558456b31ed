//! `quire top`: what a running mount does, live.
//!
//! Once an interval the server's numbers are read ([`crate::control`]); two readings make a [`view::View`].
//! On a terminal it is drawn ([`screen`]) until `q`, Escape or Ctrl-C; elsewhere, or with `--once`, printed
//! as text.
//!
//! The server does nothing for it between two readings.

mod screen;
mod view;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quire_fuse::mount;

use crate::arguments::Top;
use crate::exit::{Failure, Outcome};
use crate::exposition::Reading;
use crate::{control, output};
use view::View;

/// Readings of one server.
struct Source {
    dir: PathBuf,
    before: (Instant, Reading),
}

impl Source {
    fn open(dir: &Path) -> Outcome<Source> {
        let first = read(dir)?;
        Ok(Source { dir: dir.into(), before: (Instant::now(), first) })
    }

    /// What happened since the last call.
    fn next(&mut self) -> Outcome<View> {
        let (now, reading) = (Instant::now(), read(&self.dir)?);
        let (then, before) = std::mem::replace(&mut self.before, (now, reading));
        Ok(View::new(&before, &self.before.1, now.duration_since(then).as_secs_f64()))
    }
}

fn read(dir: &Path) -> Outcome<Reading> {
    Ok(Reading::parse(&control::ask(dir, "metrics files")?))
}

/// Shows it.
pub fn run(arguments: &Top) -> Outcome {
    if !(0.1..=3600.0).contains(&arguments.interval) {
        return Err(Failure::usage("--interval: from 0.1 to 3600 seconds"));
    }
    let interval = Duration::from_secs_f64(arguments.interval);
    let dir = mount::resolve(&arguments.dir)?;
    let mut source = Source::open(&dir)?;
    if std::io::stdout().is_terminal() && !arguments.once {
        return screen::show(&mut source, interval);
    }
    loop {
        std::thread::sleep(interval);
        let mut view = source.next()?;
        view.name_files(&dir);
        output::line(view.text());
        if arguments.once || output::is_closed() {
            return Ok(());
        }
    }
}

/// The names of the numbers that a view shows, as Prometheus has them.
#[cfg(test)]
pub fn shown_names(reading: &Reading) -> std::collections::BTreeSet<String> {
    let text = View::new(reading, reading, 1.0).text();
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let names = words.filter(|word| word.contains('_'));
    names.map(|name| if name.starts_with("quire:") { name.into() } else { format!("quire_{name}") }).collect()
}

#[cfg(test)]
mod tests {
    use quire_fuse::Meters;

    use super::*;
    use crate::exposition::text;

    /// Words of a text that may be names of numbers: `quire_...`, and `quire:...` of recording rules.
    fn names(text: &str) -> std::collections::BTreeSet<&str> {
        let inside = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        text.split(|c| !inside(c)).filter(|it| it.starts_with("quire_") || it.starts_with("quire:")).collect()
    }

    /// What Prometheus makes of a histogram has the histogram's name and an ending.
    fn is_exported(name: &str, exported: &str) -> bool {
        exported.lines().any(|line| {
            let sample = line.split(['{', ' ']).next();
            !line.starts_with('#') && sample == Some(name)
        })
    }

    fn packaged(path: &str) -> String {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Alerts, dashboard and `quire top` name numbers that the server exports, and the dashboard has all that
    /// `quire top` shows: an expression over a name that nobody exports is never true, and nobody notices.
    #[test]
    fn names_of_alerts_and_dashboard_exist() {
        let memory = std::sync::Arc::new(quire::backend::MemoryBackend::new(16384));
        quire::FormatOptions::new().format_backend(memory.clone()).unwrap();
        let volume = quire::VolumeOptions::new().cache_bytes(16 << 20).open_backend(memory).unwrap();
        let meters = Meters::default();
        // Busy files are in the sample of a server's threads; here there are none.
        let exported = text(&volume, &meters) + "quire_busy_file_requests{} 0\nquire_busy_file_bytes{} 0\n";
        let (rules, dashboard) = (packaged("prometheus/quire.rules.yml"), packaged("grafana/quire.json"));
        let recorded = |name: &str| rules.contains(&format!("record: {name}\n"));
        let is_there = |name: &str| is_exported(name, &exported) || recorded(name);
        assert!(!is_there("quire_none") && !is_there("quire:none") && is_there("quire:cache_hit:ratio"));

        let (in_rules, in_dashboard) = (names(&rules), names(&dashboard));
        assert!(in_rules.len() > 20 && in_dashboard.len() > 40);
        for name in
            in_rules.union(&in_dashboard).filter(|name| !name.starts_with("quire:") || !recorded(name))
        {
            assert!(is_there(name), "{name} is not exported");
        }
        let now = Reading::parse(&exported);
        let shown = shown_names(&now);
        assert!(shown.len() > 15, "{shown:?}");
        for name in &shown {
            assert!(is_there(name), "`quire top` shows {name}, which is not exported");
            assert!(in_dashboard.contains(name.as_str()), "the dashboard has no {name}");
        }
        volume.close().unwrap();
    }
}
