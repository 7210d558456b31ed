//! Time as a handle: the system's, or a simulated one that a seeded run advances itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in time: nanoseconds since the Unix epoch, negative before it. Good for the years 1678 to 2262.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// From seconds and nanoseconds (0 to 999,999,999), saturating at the ends of the range.
    pub fn from_parts(seconds: i64, nanos: u32) -> Timestamp {
        Timestamp(seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(nanos)))
    }
    /// Whole seconds, rounded down.
    pub fn seconds(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }
    /// Nanoseconds within the second.
    pub fn nanos(self) -> u32 {
        self.0.rem_euclid(1_000_000_000) as u32
    }
}

/// Saturates at the ends of the range.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Timestamp {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Timestamp(i64::try_from(after.as_nanos()).unwrap_or(i64::MAX)),
            Err(before) => Timestamp(-i64::try_from(before.duration().as_nanos()).unwrap_or(i64::MAX)),
        }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> SystemTime {
        let away = Duration::from_nanos(time.0.unsigned_abs());
        if time.0 < 0 { UNIX_EPOCH - away } else { UNIX_EPOCH + away }
    }
}

/// The wall clock; on a simulated thread, virtual time from a fixed day.
fn system_now() -> Timestamp {
    #[cfg(all(feature = "simulation", not(any(loom, shuttle))))]
    if crate::simulation::is_active() {
        const START_SECONDS: i64 = 1_700_000_000;
        let passed = crate::simulation::now();
        return Timestamp::from_parts(START_SECONDS + passed.as_secs() as i64, passed.subsec_nanos());
    }
    SystemTime::now().into()
}

/// A moment, as time since the machine started. It passes while the machine is suspended, unlike that of an
/// `Instant`; on a simulated thread it is virtual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uptime(Duration);

impl Uptime {
    /// The moment now.
    pub fn now() -> Uptime {
        #[cfg(all(feature = "simulation", not(any(loom, shuttle))))]
        if crate::simulation::is_active() {
            return Uptime(crate::simulation::now());
        }
        let passed = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Uptime(Duration::new(passed.tv_sec.unsigned_abs(), passed.tv_nsec.unsigned_abs() as u32))
    }
    /// What has passed since.
    pub fn elapsed(self) -> Duration {
        Uptime::now().0.saturating_sub(self.0)
    }
}

/// Where timestamps come from.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The machine's wall clock.
    #[default]
    System,
    /// A clock that stands still until told: a tick of one nanosecond each reading keeps times distinct.
    Simulated(Arc<AtomicI64>),
}

impl Clock {
    /// A simulated clock that starts at `start`.
    pub fn simulated(start: Timestamp) -> Clock {
        Clock::Simulated(Arc::new(AtomicI64::new(start.0)))
    }
    /// The time now.
    pub fn now(&self) -> Timestamp {
        match self {
            Clock::System => system_now(),
            Clock::Simulated(at) => Timestamp(at.fetch_add(1, Ordering::Relaxed)),
        }
    }
    /// Moves a simulated clock on by `nanos`; the system's clock moves by itself.
    pub fn advance(&self, nanos: i64) {
        if let Clock::Simulated(at) = self {
            at.fetch_add(nanos, Ordering::Relaxed);
        }
    }
}

/// Two simulated clocks are the same if what moves one moves the other.
impl PartialEq for Clock {
    fn eq(&self, other: &Clock) -> bool {
        match (self, other) {
            (Clock::System, Clock::System) => true,
            (Clock::Simulated(one), Clock::Simulated(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Only a machine that was suspended has a monotonic clock that differs.
    #[test]
    fn uptime_is_what_the_kernel_calls_so() {
        let text = std::fs::read_to_string("/proc/uptime").unwrap();
        let seconds: f64 = text.split(' ').next().unwrap().parse().unwrap();
        let here = Uptime::now().0.as_secs_f64();
        assert!((seconds - 0.1..seconds + 60.0).contains(&here), "{here} and {seconds}");
    }
}
