//! Tests of volumes, in one program. `out_of_memory` is another one, since its memory is limited.
//!
//! Under `--cfg loom` and `--cfg shuttle` only the models are in it.

#[cfg(not(any(loom, shuttle)))]
mod async_sync;
#[cfg(not(any(loom, shuttle)))]
mod at_once;
#[cfg(not(any(loom, shuttle)))]
mod closing;
#[cfg(not(any(loom, shuttle)))]
mod common;
#[cfg(not(any(loom, shuttle)))]
mod crash;
#[cfg(not(any(loom, shuttle)))]
mod damaged;
#[cfg(not(any(loom, shuttle)))]
mod direct_async;
#[cfg(not(any(loom, shuttle)))]
mod direct_memory;
#[cfg(not(any(loom, shuttle)))]
mod dirty_inodes;
#[cfg(not(any(loom, shuttle)))]
mod discard;
#[cfg(not(any(loom, shuttle)))]
mod durability;
#[cfg(not(any(loom, shuttle)))]
mod forced_growth;
#[cfg(not(any(loom, shuttle)))]
mod forced_times;
#[cfg(not(any(loom, shuttle)))]
mod freeze;
#[cfg(not(any(loom, shuttle)))]
mod full_shifts;
#[cfg(not(any(loom, shuttle)))]
mod groups;
#[cfg(not(any(loom, shuttle)))]
mod groups_over_growth;
#[cfg(not(any(loom, shuttle)))]
mod groups_that_cut;
#[cfg(not(any(loom, shuttle)))]
mod grow;
#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
mod held_leaves;
#[cfg(not(any(loom, shuttle)))]
mod hints;
#[cfg(not(any(loom, shuttle)))]
mod inode_memory;
#[cfg(not(any(loom, shuttle)))]
mod io_limits;
#[cfg(not(any(loom, shuttle)))]
mod large_groups;
#[cfg(not(any(loom, shuttle)))]
mod large_units;
#[cfg(not(any(loom, shuttle)))]
mod leases;
#[cfg(loom)]
mod loom_admission;
#[cfg(loom)]
mod loom_dirty_inodes;
#[cfg(loom)]
mod loom_gate;
#[cfg(loom)]
mod loom_lease;
#[cfg(loom)]
mod loom_orphan;
#[cfg(loom)]
mod loom_range_lock;
#[cfg(loom)]
mod loom_room_queue;
#[cfg(loom)]
mod loom_size_sequence;
#[cfg(loom)]
mod loom_sync_queue;
#[cfg(not(any(loom, shuttle)))]
mod namespace;
#[cfg(not(any(loom, shuttle)))]
mod orphans;
#[cfg(not(any(loom, shuttle)))]
mod properties;
#[cfg(not(any(loom, shuttle)))]
mod resize;
#[cfg(not(any(loom, shuttle)))]
mod scrubs;
#[cfg(not(any(loom, shuttle)))]
mod seek;
#[cfg(not(any(loom, shuttle)))]
mod small_files;
#[cfg(not(any(loom, shuttle)))]
mod snapshot_readers;
#[cfg(not(any(loom, shuttle)))]
mod snapshot_space;
#[cfg(not(any(loom, shuttle)))]
mod snapshots;
#[cfg(not(any(loom, shuttle)))]
mod snapshots_in_use;
#[cfg(not(any(loom, shuttle)))]
mod space;
#[cfg(not(any(loom, shuttle)))]
mod stale_growth;
#[cfg(not(any(loom, shuttle)))]
mod streams;
#[cfg(not(any(loom, shuttle)))]
mod units;
#[cfg(not(any(loom, shuttle)))]
mod unreadable_map;
