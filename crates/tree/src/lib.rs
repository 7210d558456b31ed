//! One ordered key space on disk: a B+tree, latched in memory, checkpointed copy-on-write.
//!
//! ```text
//!        get, scan            put, delete, update            freeze, write_frozen
//!            │                        │                              │
//!   structure lock shared    + latch of the leaf          nodes of the frozen epoch,
//!   descent by pointers      full or nearly empty:        bottom-up, to fresh blocks
//!            │               structure lock whole                    │
//!            └──────── nodes: resident or on disk ───────────  metadata pool
//! ```
//!
//! | module | what |
//! | --- | --- |
//! | [`Tree`] in `tree`, `lookup`, `change`, `shape` | the tree in memory: reading, changing, splitting and merging |
//! | `heat` | leaves that threads fight over, and get halved for it |
//! | `load`, `evict`, `ticket` | the node cache: reading nodes in, letting clean ones go, keeping those in use |
//! | `checkpoint` | freezing an epoch and writing it |
//! | `accounting` | reservations: how much may be dirty, so that a checkpoint always has memory and room |
//! | `pool`, `manifest` | the blocks that hold all this, and their map |
//! | `walk` | every node, for fsck and dumps |
//! | `structure`, `node` | the structure lock with the data under it; nodes in memory |
//!
//! Invariants:
//! * Nothing on disk is overwritten that a durable superblock needs; a checkpoint is visible only through the
//!   superblock that its caller writes.
//! * A checkpoint's tree is exactly what was put before its freeze, whatever is put while it is written.
//! * After [`Tree::prepare`] and while its ticket lives, changes of the prepared keys do no I/O and do not fail.
//! * No lock is held across device I/O. Lock order: structure, leaf latch, a node's image or address, pool.
//!
//! Neighbours: `format` has the bytes of nodes and maps, `device` carries them; `fs` orders keys, runs checkpoints
//! and writes superblocks.

mod accounting;
mod change;
mod checkpoint;
mod evict;
mod heat;
mod load;
mod lookup;
mod manifest;
mod node;
mod pool;
mod shape;
mod stats;
mod structure;
mod ticket;
mod tree;
mod walk;

pub use accounting::{Class, NODE_MEMORY_BYTES, NodeReservation, Short, TreeLimits};
pub use change::Change;
pub use checkpoint::{CheckpointImage, Frozen, OrphanBlock};
pub use pool::PoolState;
pub use quire_format::node::{NodePage, NodeRef};
pub use quire_format::pool::ManifestRef;
pub use stats::TreeStats;
pub use ticket::Ticket;
pub use tree::Tree;
pub use walk::Visit;
