//! The page cache of Quire: folios with per-block state, segment locks, untorn batches, writeback and
//! reclaim.
//!
//! ```text
//!   fs (inode implements Backing, holds gate, size, exclusive sequence)
//!    │ try_read read write hold_writeback write_back          │ new_mapping start write_back_all
//!   Mapping ── index, list of unfinished folios, waits       Cache ── threads
//!    │   read write fill snapshot writeback finish discard     │
//!    └──────────────┬─────────────────────────────────────────┘
//!                 Core: budget, arena, slab, spares, parking, reclaim, flusher, throttle
//!                   │ Io with memory of folios, no copies
//!                 quire_device::Device
//! ```
//!
//! Start reading with [`segment`] (the lock and the argument for untorn reads), then `folio` (state of a
//! block), then the operations: `read`, `write`, `fill`, `snapshot`, `writeback`, `finish`, `discard`.
//!
//! Lock order within the crate: segments (ascending) → index, list → cache's lists → leaves. Nobody waits for
//! device, memory or a fill bit with a segment held, but for writeback's shares and the claims of a fill.
//!
//! Neighbours: below `base` and `device`; above fs.

mod arena;
mod backing;
mod bits;
mod blocks;
mod budget;
mod cache;
mod config;
mod copy;
mod core;
mod dirty_line;
mod discard;
mod errors;
mod fill;
mod finish;
mod flusher;
mod folio;
mod ghosts;
mod group;
mod hints;
mod hold;
mod homes;
mod index;
mod journaled;
mod mapping;
mod marks;
mod metrics;
mod nodes;
mod outbox;
pub mod park;
mod read;
mod reclaim;
pub mod segment;
mod slab;
mod snapshot;
mod span;
mod spares;
mod throttle;
mod write;
mod write_at_once;
mod writeback;

pub use backing::{Backing, Home, PlacedRun, Placement, Purpose, Run};
pub use budget::Room;
pub use cache::{Cache, CacheUsage};
pub use config::CacheConfig;
pub use discard::Zeroing;
pub use group::{Composed, GroupPart, load_group, write_group};
pub use hints::Pattern;
pub use hold::WritebackHold;
pub use index::BLOCKS_END;
pub use journaled::RECORD_BLOCKS;
pub use mapping::Mapping;
pub use metrics::Metrics;
pub use read::ReadView;
pub use snapshot::{AtEnd, Snapshot, SnapshotEnd};
pub use span::Contents;
