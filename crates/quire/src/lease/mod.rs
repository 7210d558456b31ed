//! Layout leases: where a file's blocks lie on the device, and the promise that they stay there.
//!
//! A holder reads the blocks from the device itself, past the volume. The answer names what is written, holes
//! and unwritten parts. What would move or free written blocks of the lease recalls it first, waits for its
//! return a bounded time, and revokes it then. A read of the device counts if the lease is valid behind it.
//!
//! | module | what |
//! | --- | --- |
//! | [`table`] | the protocol: ask, grant, recall, revoke, return |
//! | [`grant`] | giving a lease |
//! | [`moving`] | operations that move blocks: how they wait, and the last line of defence |
//! | [`handle`] | what a program has in hand |
//! | [`marks`] | the byte that tells a file without leases |
//!
//! What recalls: the operations that reshape a file (shrinking, punch, zero, collapse, insert), a group that
//! is committed, a write to a block that a snapshot has as well, and every write that goes through the
//! journal (untorn files, and blocks whose record a replay would put back): the device then keeps the old
//! content for a while. What does not: a write in place, a write to a hole or an unwritten part (the lease
//! names only what is there), taking a snapshot (the write that follows recalls), and removing the file (a
//! lease keeps it, as an open file does).
//!
//! `docs/leases.md` has the contract.

pub(crate) mod grant;
pub(crate) mod handle;
pub(crate) mod marks;
pub(crate) mod moving;
pub(crate) mod table;
