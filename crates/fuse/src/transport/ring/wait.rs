//! How a queue's thread waits for its next request.
//!
//! Waking a sleeping thread costs more than answering a cached read, so after its last request a thread looks a while
//! for the next one before it sleeps. How long adapts: what was worth it is kept up, what was in vain is halved, so
//! that an idle mount does not spin and a machine with other work loses little. While it looks, it gives up its CPU to
//! whoever wants it, most of all to the program whose request it has just answered.

use std::time::{Duration, Instant};

/// Longest time to look for a request.
const LOOK_MAX: Duration = Duration::from_micros(100);
/// Shortest time; below it is zero, with a probe now and then.
const LOOK_MIN: Duration = Duration::from_micros(5);
/// After this many sleeps without looking, one look is tried again.
const PROBE_EVERY: u32 = 32;

/// The memory of one thread.
#[derive(Debug)]
pub struct Waiting {
    look: Duration,
    sleeps: u32,
}

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting { look: LOOK_MAX, sleeps: 0 }
    }
}

impl Waiting {
    /// Looks until `ready` or the time is up; returns whether something is there.
    pub fn look(&mut self, ready: impl Fn() -> bool) -> bool {
        if ready() {
            return true;
        }
        let time = self.time();
        if time.is_zero() {
            return false;
        }
        let start = Instant::now();
        loop {
            for _ in 0..16 {
                if ready() {
                    self.worth_it();
                    return true;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= time {
                self.in_vain();
                return ready();
            }
            rustix::thread::sched_yield();
        }
    }

    fn time(&mut self) -> Duration {
        if !self.look.is_zero() {
            return self.look;
        }
        self.sleeps += 1;
        if self.sleeps >= PROBE_EVERY {
            self.sleeps = 0;
            return LOOK_MIN;
        }
        Duration::ZERO
    }

    fn worth_it(&mut self) {
        self.look = (self.look * 2).clamp(LOOK_MIN, LOOK_MAX);
    }

    fn in_vain(&mut self) {
        let half = self.look / 2;
        self.look = if half < LOOK_MIN { Duration::ZERO } else { half };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_thread_stops_looking() {
        let mut waiting = Waiting::default();
        for _ in 0..10 {
            assert!(!waiting.look(|| false));
        }
        assert_eq!(waiting.look, Duration::ZERO);
        let start = Instant::now();
        let tried = (0..PROBE_EVERY).filter(|_| !waiting.time().is_zero()).count();
        assert_eq!(tried, 1, "a probe now and then");
        assert!(start.elapsed() < Duration::from_secs(1));
    }

    #[test]
    fn what_was_worth_it_is_kept_up() {
        let mut waiting = Waiting { look: Duration::ZERO, sleeps: PROBE_EVERY };
        let looks = std::cell::Cell::new(0);
        assert!(waiting.look(|| {
            looks.set(looks.get() + 1);
            looks.get() > 3
        }));
        assert_eq!(waiting.look, LOOK_MIN);
        waiting.worth_it();
        assert_eq!(waiting.look, LOOK_MIN * 2);
        for _ in 0..20 {
            waiting.worth_it();
        }
        assert_eq!(waiting.look, LOOK_MAX);
    }
}
