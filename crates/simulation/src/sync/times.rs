//! A monotonic clock that is virtual on simulated threads.

use crate as simulation;
use std::ops::{Add, AddAssign, Sub};
pub use std::time::Duration;

/// A moment: virtual on simulated threads, the system's elsewhere. The two do not compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// This moment.
    pub fn now() -> Instant {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        if simulation::is_active() {
            return Instant(simulation::now());
        }
        // A process that starts before its machine has run for a day must still be able to subtract.
        let since = START.get_or_init(std::time::Instant::now).elapsed();
        Instant(since + Duration::from_secs(86_400))
    }
    /// Time since this moment.
    pub fn elapsed(self) -> Duration {
        Instant::now().duration_since(self)
    }
    /// Time from `earlier` to this moment; zero if it was later.
    pub fn duration_since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
    /// As [`Instant::duration_since`].
    pub fn saturating_duration_since(self, earlier: Instant) -> Duration {
        self.duration_since(earlier)
    }
    /// This moment and `time` more, unless that is beyond the range.
    pub fn checked_add(self, time: Duration) -> Option<Instant> {
        self.0.checked_add(time).map(Instant)
    }
    /// This moment less `time`, unless that is beyond the range.
    pub fn checked_sub(self, time: Duration) -> Option<Instant> {
        self.0.checked_sub(time).map(Instant)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, time: Duration) -> Instant {
        Instant(self.0 + time)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        self.0 += time;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, time: Duration) -> Instant {
        Instant(self.0 - time)
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.duration_since(earlier)
    }
}
