//! One ordered key space on disk: two B+trees, latched in memory, checkpointed copy-on-write.
//!
//! ```text
//!        get, scan            put, delete, update            freeze, write_frozen
//!            │                        │                              │
//!   descent by pointers,     the same; full or nearly     nodes of the frozen epoch,
//!   without a lock; then     empty: locks of the inner    bottom-up, to fresh blocks
//!   the leaf's latch         nodes that are replaced                 │
//!            └──────── nodes: resident or on disk ───────────  metadata pool
//! ```
//!
//! The *space tree* has the keys below `Key::NAMES`, the *tree of names* all others. They share everything
//! but their roots: epochs, checkpoints, pool, reservations and cache. A key or a range tells which tree it
//! is of, so a caller sees one tree.
//!
//! | module | what |
//! | --- | --- |
//! | [`Tree`] in `tree`, `lookup`, `change`, `shape` | the tree in memory: reading, changing, splitting and merging |
//! | `heat` | leaves that threads fight over, and get halved for it |
//! | [`copies`] | reading what lies in two places |
//! | [`heal`] | writing anew what is bad in one of them |
//! | [`scrub`] | looking at every copy of every node |
//! | [`kept`] | the same for nodes that only kept checkpoints have, and mending them |
//! | `load`, `evict`, `ticket` | the node cache: reading nodes in, letting clean ones go, keeping those in use |
//! | `checkpoint` | freezing an epoch and writing it |
//! | `accounting` | reservations: how much may be dirty, so that a checkpoint always has memory and room |
//! | `pool`, `manifest` | the blocks that hold all this, and their map |
//! | `replace` | going back to a kept tree of names |
//! | `walk` | every node, for fsck and dumps |
//! | `node`, `inner`, `pin` | nodes in memory; inner nodes, which are replaced and not changed; when memory is freed |
//!
//! Invariants:
//! * Nothing on disk is overwritten that a durable superblock needs, but for a bad copy of what is kept; a
//!   checkpoint is visible only through the superblock that its caller writes.
//! * A checkpoint's tree is exactly what was put before its freeze, whatever is put while it is written.
//! * After [`Tree::prepare`] and while its ticket lives, changes of the prepared keys do no I/O and do not
//!   fail.
//! * No lock is held across device I/O. Lock order: root, inner nodes from the
//!   root down and from left to right, leaf latches from left to right, a node's image or address, pool.
//!
//! Neighbours: `format` has the bytes of nodes and maps, `device` carries them; `fs` orders keys, runs
//! checkpoints and writes superblocks.

mod accounting;
mod change;
mod checkpoint;
pub mod compare;
pub mod copies;
mod evict;
pub mod heal;
mod heat;
mod inner;
pub mod kept;
mod load;
mod lookup;
#[cfg(all(test, loom))]
mod loom_model;
mod manifest;
mod node;
mod pin;
mod pool;
mod replace;
pub mod scrub;
mod shape;
mod stats;
mod ticket;
mod tree;
mod walk;

pub use accounting::{Class, NODE_MEMORY_BYTES, NodeReservation, Short, TreeLimits};
pub use change::Change;
pub use checkpoint::{CheckpointImage, CheckpointStamp, Frozen, OrphanBlock};
pub use pool::{PoolState, alone};
pub use quire_format::node::{NodePage, NodeRef, Roots};
pub use quire_format::pool::ManifestRef;
pub use stats::TreeStats;
pub use ticket::Ticket;
pub use tree::Tree;
pub use walk::Visit;
