//! Atomic types whose changes, acquiring loads and fences are points of the scheduler on simulated threads.
//!
//! Relaxed loads are not: they are the most frequent, and what they race with is a point itself. Nothing here
//! unwinds when a run ends, since lock-free code may be between two steps that belong together.
//!
//! Invariants: each type is the standard library's in memory, so that words in foreign memory can be cast to
//! it. The memory model is the machine's; weak orderings are for loom.

use crate::scheduler::{Kind, me};
use std::panic::Location;
pub use std::sync::atomic::{Ordering, compiler_fence};

#[track_caller]
fn point() {
    if let Some(me) = me() {
        me.quiet_point(Kind::Atomic, Location::caller());
    }
}

/// Bytes, of so many, that a copy which races with others moves before it comes to a [`copy_point`].
pub fn copy_piece(bytes: usize) -> usize {
    bytes.min(1024)
}

/// Between two pieces of a copy that races with others.
#[track_caller]
pub fn copy_point() {
    point();
}

/// As [`std::sync::atomic::fence`].
#[track_caller]
pub fn fence(order: Ordering) {
    point();
    std::sync::atomic::fence(order);
}

macro_rules! atomic {
    ($name:ident $(<$generic:ident>)?, $value:ty, $text:literal) => {
        #[doc = $text]
        #[repr(transparent)]
        pub struct $name $(<$generic>)? (std::sync::atomic::$name $(<$generic>)?);

        #[allow(missing_docs, reason = "the standard library's operations under their names")]
        impl $(<$generic>)? $name $(<$generic>)? {
            pub const fn new(value: $value) -> Self {
                Self(std::sync::atomic::$name::new(value))
            }
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }
            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                if order != Ordering::Relaxed {
                    point();
                }
                self.0.load(order)
            }
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                point();
                self.0.store(value, order);
            }
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.swap(value, order)
            }
            #[track_caller]
            pub fn compare_exchange(
                &self,
                seen: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                point();
                self.0.compare_exchange(seen, new, success, failure)
            }
            /// Never fails without cause here: what does so is up to the machine.
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                seen: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(seen, new, success, failure)
            }
            #[track_caller]
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                f: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                point();
                self.0.fetch_update(set, fetch, f)
            }
        }

        impl $(<$generic>)? std::fmt::Debug for $name $(<$generic>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl $(<$generic>)? Default for $name $(<$generic>)? {
            fn default() -> Self {
                Self(Default::default())
            }
        }

        impl $(<$generic>)? From<$value> for $name $(<$generic>)? {
            fn from(value: $value) -> Self {
                Self::new(value)
            }
        }
    };
}

macro_rules! changes {
    ($name:ident, $value:ty, $($change:ident),*) => {
        #[allow(missing_docs, reason = "the standard library's operations under their names")]
        impl $name {
            $(
                #[track_caller]
                pub fn $change(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.$change(value, order)
                }
            )*
        }
    };
}

macro_rules! integer {
    ($name:ident, $value:ty, $text:literal) => {
        atomic!($name, $value, $text);
        changes!(
            $name, $value, fetch_add, fetch_sub, fetch_and, fetch_nand, fetch_or, fetch_xor, fetch_max,
            fetch_min
        );
    };
}

integer!(AtomicU8, u8, "A byte.");
integer!(AtomicU16, u16, "A word of 16 bits.");
integer!(AtomicU32, u32, "A word of 32 bits.");
integer!(AtomicU64, u64, "A word of 64 bits.");
integer!(AtomicUsize, usize, "A word of the machine's size.");
integer!(AtomicI8, i8, "A signed byte.");
integer!(AtomicI16, i16, "A signed word of 16 bits.");
integer!(AtomicI32, i32, "A signed word of 32 bits.");
integer!(AtomicI64, i64, "A signed word of 64 bits.");
integer!(AtomicIsize, isize, "A signed word of the machine's size.");
atomic!(AtomicBool, bool, "A truth value.");
changes!(AtomicBool, bool, fetch_and, fetch_nand, fetch_or, fetch_xor);
atomic!(AtomicPtr<T>, *mut T, "A pointer.");
