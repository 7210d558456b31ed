//! Ctrl-C as a flag that everything looks at, so that every guard runs on the way out.

use quire_base::sync::Arc;
use quire_base::sync::atomic::{AtomicBool, Ordering};

/// Shared by everything that runs for longer than a moment.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// One that nobody sets but by [`Interrupt::raise`].
    pub fn none() -> Interrupt {
        Interrupt::default()
    }

    /// Turns the stop signals (INT, TERM, HUP) of the whole process into this flag. Call it before the
    /// process starts its first thread.
    pub fn on_signals() -> Interrupt {
        quire_fuse::signals::block();
        let interrupt = Interrupt::default();
        let raised = interrupt.clone();
        let wait = move || {
            while let Ok(signal) = quire_fuse::signals::wait() {
                if raised.is_raised() {
                    eprintln!("still cleaning up");
                } else {
                    eprintln!("\n{}: cleaning up", quire_fuse::signals::name(signal));
                }
                raised.raise();
            }
        };
        // Without the thread the signals stay pending and the run ends in its own time.
        let _ = std::thread::Builder::new().name("bench-signals".into()).spawn(wait);
        interrupt
    }

    /// Asks everything to stop.
    pub fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether to stop.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// `Interrupted` once it is raised.
    pub fn check(&self) -> crate::outcome::Outcome {
        if self.is_raised() { Err(crate::outcome::Trouble::Interrupted) } else { Ok(()) }
    }
}
