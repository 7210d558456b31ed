//! The numbers of a running volume as a flat list, for programs that show or record them.
//!
//! Reading takes the counters' shards together and changes nothing; a list is not of one moment.
//!
//! Neighbours: the parts count for themselves; [`crate::Volume::measures`] is the way in.

use crate::engine::Engine;
use quire_device::IoClass;

/// What a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasureKind {
    /// Only grows, while the volume is open.
    Counter,
    /// How it is now.
    Gauge,
}

/// One number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measure {
    /// Its name, with the unit at the end: `cache_dirty_bytes`.
    pub name: String,
    /// What it is.
    pub kind: MeasureKind,
    /// Its value.
    pub value: u64,
}

struct List(Vec<Measure>);

impl List {
    fn add(&mut self, kind: MeasureKind, name: impl Into<String>, value: u64) {
        self.0.push(Measure { name: name.into(), kind, value });
    }
    fn gauge(&mut self, name: &str, value: u64) {
        self.add(MeasureKind::Gauge, name, value);
    }
    fn counter(&mut self, name: &str, value: u64) {
        self.add(MeasureKind::Counter, name, value);
    }
}

/// Everything that the engine and its parts count.
pub(crate) fn of(engine: &Engine) -> Vec<Measure> {
    let mut list = List(Vec::new());
    let usage = engine.cache.usage();
    list.gauge("cache_used_bytes", usage.used_bytes);
    list.gauge("cache_limit_bytes", usage.limit_bytes);
    list.gauge("cache_dirty_bytes", usage.dirty_bytes);
    list.gauge("cache_resident_bytes", usage.resident_bytes);
    for (name, value) in engine.cache.metrics().snapshot() {
        list.counter(&format!("cache_{name}_total"), value);
    }
    let counters = &engine.counters;
    list.counter("transactions_total", counters.transactions.get());
    list.counter("checkpoint_waits_total", counters.checkpoint_waits.get());
    list.counter("room_waits_total", counters.room_waits.get());
    list.counter("checkpoints_total", counters.checkpoints.get());
    list.counter("attribute_looks_total", counters.attribute_looks.get());
    list.counter("inode_looks_total", counters.inode_looks.get());
    list.counter("orphans_freed_total", counters.orphans_freed.get());
    list.counter("lazy_syncs_served_total", counters.lazy_syncs_served.get());
    list.counter("lazy_syncs_due_total", counters.lazy_syncs_due.get());
    let syncs = engine.background.syncs.counts();
    list.gauge("syncs_under_way", syncs.under_way as u64);
    list.gauge("syncs_waiting", syncs.waiting as u64);
    list.gauge("syncs_in_line", syncs.in_line as u64);
    list.gauge("inodes_cached", engine.inodes.len() as u64);
    if let Some(usage) = engine.journal.as_ref().map(|journal| journal.usage()) {
        list.gauge("journal_size_bytes", usage.ring_bytes);
        list.gauge("journal_used_bytes", usage.used_bytes);
        list.gauge("journal_unforced_bytes", usage.unforced_bytes);
        list.counter("journal_appended_bytes_total", usage.head.0);
    }
    let tree = engine.tree.stats();
    list.gauge("tree_nodes", tree.nodes);
    list.gauge("tree_resident_nodes", tree.resident_nodes);
    list.gauge("tree_dirty_nodes", tree.dirty_nodes);
    list.counter("tree_loads_total", tree.loads);
    let space = engine.alloc.stats();
    list.gauge("space_data_blocks", space.data_blocks);
    list.gauge("space_free_blocks", space.free_blocks);
    list.gauge("space_reserved_blocks", space.reserved_blocks);
    list.gauge("space_deferred_blocks", space.deferred_blocks);
    let device = engine.device.stats();
    for class in IoClass::ALL {
        let name = format!("{class:?}").to_lowercase();
        let stats = device.class(class);
        for (doing, transfers) in [("read", &stats.reads), ("write", &stats.writes)] {
            list.counter(&format!("device_{name}_{doing}_requests_total"), transfers.ops);
            list.counter(&format!("device_{name}_{doing}_bytes_total"), transfers.bytes);
            list.counter(&format!("device_{name}_{doing}_errors_total"), transfers.errors);
        }
    }
    list.counter("device_flushes_total", device.flushes);
    list.counter("device_flush_errors_total", device.flush_errors);
    list.gauge("failed", u64::from(engine.failure().is_some()));
    list.0
}
