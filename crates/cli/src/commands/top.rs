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
    Ok(Reading::parse(&control::ask(dir, "metrics")?))
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
        if arguments.once {
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
