//! Block devices under Quire: where bytes meet the medium.
//!
//! ```text
//!   journal, tree, cache, fs
//!            │  read, write, submit, mark, flush_to
//!        Device            one per volume: flush combining, error latch, counters by IoClass
//!            │  dyn Backend
//!   ┌────────┼──────────┬─────────────┬──────────────┐
//! uring     file      memory      simulated      reconnecting
//! O_DIRECT  page cache  chunks    crash images,  a connection that may break:
//!                                 faults, held   host::nbd, simulated::exporter
//!                                 completions
//! ```
//!
//! * [`backend`]: the [`Backend`] trait and what travels through it ([`Io`], [`Segment`]).
//! * [`device`]: the [`Device`] front; [`batch`] its gathered, waited-for reads and writes; `flush` and
//!   `latch` its two protocols; [`stats`] its numbers.
//! * [`recorded`]: blocks whose newest content is in the journal; data reads see it.
//! * [`host`]: image files and block devices, opened, locked and measured; `uring` and `file` live there, and
//!   `nbd`, for devices that a server exports.
//! * `reconnecting`: a device behind a connection that may break, whatever protocol it speaks.
//! * [`memory`]: a sparse device in memory.
//! * [`simulated`]: a device that remembers what was safe, makes crash images, and fails when told to.
//! * [`aligned`]: buffers that direct I/O takes without a copy.
//!
//! Neighbours: below only `base`; above journal, tree, cache and the volume.

pub mod aligned;
pub mod backend;
pub mod batch;
pub mod device;
mod flush;
#[cfg(not(any(loom, shuttle)))]
pub mod host;
mod latch;
pub mod memory;
pub mod overlay;
#[cfg(not(any(loom, shuttle)))]
pub mod reconnecting;
pub mod recorded;
pub mod simulated;
pub mod stats;

pub use aligned::{AlignedBuf, is_aligned};
pub use backend::{Backend, Done, Io, IoClass, IoOp, Segment};
pub use batch::StartedBatch;
pub use device::Device;
#[cfg(not(any(loom, shuttle)))]
pub use host::{FileBackend, NbdAddress, OpenMode, UringBackend, create_image, open_image};
pub use memory::MemoryBackend;
pub use overlay::OverlayBackend;
#[cfg(not(any(loom, shuttle)))]
pub use reconnecting::ReconnectingBackend;
pub use recorded::{HomesError, RecordedBlocks};
pub use simulated::SimulatedBackend;
pub use stats::{ClassStats, DeviceStats, RunLengths};
