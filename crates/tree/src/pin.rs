//! Values that are read without a lock and replaced whole.
//!
//! Protocol: a reader pins, loads the pointer and follows it as long as the pin lives. A thread that replaces
//! the value publishes the new one and retires the old one: memory is freed when every pin that could have
//! seen it has ended. Replacements of one value follow one another under a lock of the caller's.
//!
//! Invariants: a value does not change once it is published. What a value owns lives as long as the value, so
//! a reader may follow pointers from value to value under one pin. A pin is never held across device I/O.
//!
//! Under a model checker nothing is freed before its owner: the checkers run their threads on one thread of
//! the system, and memory is not what they check.

use quire_base::sync::atomic::{AtomicPtr, Ordering};

/// While it lives, whatever was reachable since it was made stays in memory.
pub(crate) struct Pin {
    #[cfg(not(any(loom, shuttle)))]
    _guard: epochs::Guard,
}

/// Makes a [`Pin`].
#[inline]
pub(crate) fn pin() -> Pin {
    Pin {
        #[cfg(not(any(loom, shuttle)))]
        _guard: epochs::pin(),
    }
}

/// See the module's documentation.
pub(crate) struct Published<T: Send + Sync + 'static> {
    at: AtomicPtr<T>,
    #[cfg(any(loom, shuttle))]
    retired: std::sync::Mutex<Vec<Box<T>>>,
}

impl<T: Send + Sync + 'static> Published<T> {
    pub(crate) fn new(value: T) -> Published<T> {
        Published {
            at: AtomicPtr::new(Box::into_raw(Box::new(value))),
            #[cfg(any(loom, shuttle))]
            retired: std::sync::Mutex::default(),
        }
    }

    /// The value as it is now.
    #[inline]
    pub(crate) fn read<'p>(&'p self, _pin: &'p Pin) -> &'p T {
        // SAFETY: the pointer was made by `Box::into_raw` and published with its contents. If it is replaced,
        // its memory is freed only after this pin has ended; if not, `self` owns it.
        unsafe { &*self.at.load(Ordering::Acquire) }
    }

    /// Whether `value` is the value still.
    pub(crate) fn is_current(&self, value: &T) -> bool {
        std::ptr::eq(self.at.load(Ordering::Acquire), value)
    }

    /// Publishes another value. The caller holds the lock that orders replacements.
    pub(crate) fn replace(&self, value: T, pin: &Pin) {
        let old = self.at.swap(Box::into_raw(Box::new(value)), Ordering::SeqCst);
        self.retire(old, pin);
    }

    #[cfg(not(any(loom, shuttle)))]
    fn retire(&self, old: *mut T, _pin: &Pin) {
        // SAFETY: `old` was made by `Box::into_raw`, was published here and is no longer, so it is retired
        // once and readers that pin from now on do not meet it. It is `Send`, so any thread may drop it, and
        // `'static`.
        unsafe { epochs::retire(old) };
    }

    #[cfg(any(loom, shuttle))]
    fn retire(&self, old: *mut T, _pin: &Pin) {
        // SAFETY: as above; it is freed with `self`, which readers borrow.
        let old = unsafe { Box::from_raw(old) };
        self.retired.lock().expect("no thread panics under this lock").push(old);
    }
}

impl<T: Send + Sync + 'static> Drop for Published<T> {
    fn drop(&mut self) {
        // Relaxed, since that is no point of the simulated scheduler: when memory is freed must not change a
        // schedule.
        let current = self.at.load(Ordering::Relaxed);
        // SAFETY: made by `Box::into_raw`, and not retired, for it is current. The exclusive borrow proves
        // that nobody reads it.
        drop(unsafe { Box::from_raw(current) });
    }
}

/// Epochs of crossbeam's, one collector for each shard of threads. A collector's readers look at each other
/// now and then, to move its epoch on; so threads of different shards share nothing when they pin. A thread
/// that retires a value has to tell all of them: it does so where nodes split, merge, are loaded or let go,
/// and beside that work it counts for little.
#[cfg(not(any(loom, shuttle)))]
mod epochs {
    pub(super) use crossbeam_epoch::Guard;
    use crossbeam_epoch::{Collector, LocalHandle};
    use quire_base::shard::{self, SHARDS};
    use std::cell::OnceCell;
    use std::sync::{Arc, LazyLock};

    static COLLECTORS: [LazyLock<Collector>; SHARDS] = [const { LazyLock::new(Collector::new) }; SHARDS];

    thread_local! {
        static HANDLES: [OnceCell<LocalHandle>; SHARDS] = const { [const { OnceCell::new() }; SHARDS] };
    }

    pub(super) fn pin() -> Guard {
        pin_in(shard::current() % SHARDS)
    }

    fn pin_in(shard: usize) -> Guard {
        HANDLES
            .try_with(|handles| handles[shard].get_or_init(|| COLLECTORS[shard].register()).pin())
            // The thread is ending.
            .unwrap_or_else(|_| COLLECTORS[shard].register().pin())
    }

    /// Freed with its last reference.
    struct Retired<T>(*mut T);

    impl<T> Drop for Retired<T> {
        fn drop(&mut self) {
            // SAFETY: see `retire`: the pointer is a box's, and all readers have gone.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }

    /// Frees `old` when all pins of now have ended.
    ///
    /// # Safety
    /// `old` is a box's, no reader that pins from now on meets it, it is retired once, and any thread may
    /// drop it at any time.
    pub(super) unsafe fn retire<T>(old: *mut T) {
        let old = Arc::new(Retired(old));
        for shard in 0..SHARDS {
            let (guard, old) = (pin_in(shard), old.clone());
            // SAFETY: the caller says that any thread may drop it at any time; the closure only counts down.
            unsafe { guard.defer_unchecked(move || drop(old)) };
            // Any thread may collect it: this one may sleep for long.
            guard.flush();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_base::shard;
    use quire_base::sync::atomic::AtomicU64;
    use quire_base::sync::{Arc, thread};

    struct Counted(u64, Arc<AtomicU64>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::AcqRel);
        }
    }

    #[test]
    fn a_replaced_value_is_freed_when_the_pins_of_all_shards_have_ended() {
        let freed = Arc::new(AtomicU64::new(0));
        let value = Published::new(Counted(0, freed.clone()));
        let reader = pin();
        let seen = value.read(&reader);
        let replace = |n| {
            shard::set(1 + n as usize % 3);
            value.replace(Counted(n, freed.clone()), &pin());
        };
        thread::scope(|scope| {
            scope.spawn(|| (1..50).for_each(replace));
        });
        assert_eq!((seen.0, freed.load(Ordering::Acquire)), (0, 0), "freed under a pin");
        drop(reader);
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 50.. {
                    replace(n);
                    if freed.load(Ordering::Acquire) >= 50 {
                        break;
                    }
                    thread::yield_now();
                }
            });
        });
    }
}
