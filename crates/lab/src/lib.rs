//! Experiments for developers of Quire. Users have `quire bench` and `quire probe`; the program `quire` does
//! not depend on this crate.
//!
//! * [`locks`]: the workload `mixed` of `quire bench` over bare locking schemes.
//! * [`conflicts`]: cache lines that pairs of operations which commute would fight over.
//! * [`cores`]: what operations would do on more cores than this machine has.
//! * [`unlink`](mod@unlink): a million files and one of a tebibyte, and what other threads notice of it.
//! * [`arguments`]: their command lines.
//!
//! Neighbours: driver, samples, reports and errors are those of `quire_bench`.

pub mod arguments;
#[cfg(target_arch = "x86_64")]
pub mod conflicts;
pub mod cores;
pub mod locks;
pub mod unlink;
