//! One line on the terminal that says what is being done; nothing where the standard error is no terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The line.
pub struct Progress(ProgressBar);

impl Progress {
    /// Shown on the standard error if that is a terminal.
    pub fn new() -> Progress {
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{prefix:16} {bar:30} {msg}") {
            bar.set_style(style);
        }
        Progress(bar)
    }

    /// Never shown.
    pub fn hidden() -> Progress {
        Progress(ProgressBar::hidden())
    }

    /// Which engine.
    pub fn engine(&self, name: &str) {
        self.0.set_prefix(name.to_owned());
    }

    /// Which part of the work begins.
    pub fn phase(&self, name: &str) {
        self.0.set_length(1);
        self.0.set_position(0);
        self.0.set_message(name.to_owned());
        self.0.tick();
    }

    /// How far the part is.
    pub fn at(&self, position: u64, length: u64) {
        self.0.set_length(length.max(1));
        self.0.set_position(position);
    }

    /// Takes the line away.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Default for Progress {
    fn default() -> Progress {
        Progress::new()
    }
}
