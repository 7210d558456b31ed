//! The numbers of a running volume as a list, for programs that show or record them.
//!
//! Reading takes the counters' shards together and changes nothing; a list is not of one moment.
//!
//! Neighbours: the parts count for themselves; [`crate::Volume::metrics`] is the way in.

use crate::engine::Engine;
use quire_device::IoClass;

/// What a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows, while the volume is open.
    Counter,
    /// How it is now.
    Gauge,
}

/// One number.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// Its name, with the unit at the end: `cache_dirty_bytes`.
    pub name: String,
    /// What it is.
    pub kind: MetricKind,
    /// Its value.
    pub value: u64,
}

/// The numbers of a running volume, by name; from [`Volume::metrics`](crate::Volume::metrics).
///
/// ```
/// # use quire::{FormatOptions, Volume, VolumeOptions, backend::MemoryBackend};
/// # fn main() -> quire::Result<()> {
/// # let device = std::sync::Arc::new(MemoryBackend::new(16384));
/// # FormatOptions::new().format_backend(device.clone())?;
/// # let volume = VolumeOptions::new().open_backend(device)?;
/// let before = volume.metrics();
/// volume.create_dir("inbox")?;
/// assert!(volume.metrics()["transactions_total"] > before["transactions_total"]);
/// for metric in &before {
///     println!("{} {}", metric.name, metric.value);
/// }
/// # volume.close()
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metrics(Vec<Metric>);

impl Metrics {
    /// The number of a name.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.iter().find(|metric| metric.name == name).map(|metric| metric.value)
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, Metric> {
        self.0.iter()
    }

    fn add(&mut self, kind: MetricKind, name: impl Into<String>, value: u64) {
        self.0.push(Metric { name: name.into(), kind, value });
    }
    fn gauge(&mut self, name: &str, value: u64) {
        self.add(MetricKind::Gauge, name, value);
    }
    fn counter(&mut self, name: &str, value: u64) {
        self.add(MetricKind::Counter, name, value);
    }
}

impl std::ops::Index<&str> for Metrics {
    type Output = u64;

    /// The number of a name; panics if there is none.
    fn index(&self, name: &str) -> &u64 {
        let found = self.iter().find(|metric| metric.name == name);
        &found.unwrap_or_else(|| panic!("a volume has no metric {name:?}")).value
    }
}

impl IntoIterator for Metrics {
    type Item = Metric;
    type IntoIter = std::vec::IntoIter<Metric>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Metrics {
    type Item = &'a Metric;
    type IntoIter = std::slice::Iter<'a, Metric>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Everything that the engine and its parts count.
pub(crate) fn of(engine: &Engine) -> Metrics {
    let mut list = Metrics::default();
    let usage = engine.cache.usage();
    list.gauge("cache_used_bytes", usage.used_bytes);
    list.gauge("cache_limit_bytes", usage.limit_bytes);
    list.gauge("cache_dirty_bytes", usage.dirty_bytes);
    list.gauge("cache_resident_bytes", usage.resident_bytes);
    for (name, value) in engine.cache.metrics().snapshot() {
        list.counter(&format!("cache_{name}_total"), value);
    }
    let counters = &engine.counters;
    list.counter("transactions_total", engine.store.counters.transactions.get());
    list.counter("checkpoint_waits_total", engine.store.counters.checkpoint_waits.get());
    list.counter("room_waits_total", engine.store.counters.room_waits.get());
    list.counter("checkpoints_total", engine.store.counters.checkpoints.get());
    list.counter("attribute_looks_total", counters.attribute_looks.get());
    list.counter("inode_looks_total", counters.inode_looks.get());
    list.counter("orphan_claims_total", counters.orphan_claims.get());
    list.counter("orphans_freed_total", counters.orphans_freed.get());
    list.counter("lazy_syncs_served_total", counters.lazy_syncs_served.get());
    list.counter("lazy_syncs_due_total", counters.lazy_syncs_due.get());
    list.counter("snapshot_holds_total", counters.snapshot_holds.get());
    list.counter("snapshot_hold_us_total", counters.snapshot_hold_us.get());
    let syncs = engine.syncs.counts();
    list.gauge("syncs_under_way", syncs.under_way as u64);
    list.gauge("syncs_waiting", syncs.waiting as u64);
    list.gauge("syncs_in_line", syncs.in_line as u64);
    let leases = engine.leases.counts();
    list.gauge("leases_held", leases.held);
    list.counter("leases_granted_total", leases.grants);
    list.counter("leases_recalled_total", leases.recalls);
    list.counter("leases_revoked_total", leases.revocations);
    list.gauge("inodes_cached", engine.inodes.len() as u64);
    if let Some(usage) = engine.store.journal.as_ref().map(|journal| journal.usage()) {
        list.gauge("journal_size_bytes", usage.ring_bytes);
        list.gauge("journal_used_bytes", usage.used_bytes);
        list.gauge("journal_unforced_bytes", usage.unforced_bytes);
        list.counter("journal_appended_bytes_total", usage.head.0);
    }
    if let Some(counts) = engine.store.journal.as_ref().map(|journal| journal.counts()) {
        list.counter("journal_records_total", counts.records);
        list.counter("journal_record_bytes_total", counts.record_bytes);
    }
    let tree = engine.store.tree.stats();
    list.gauge("tree_nodes", tree.nodes);
    list.gauge("tree_resident_nodes", tree.resident_nodes);
    list.gauge("tree_dirty_nodes", tree.dirty_nodes);
    list.gauge("tree_pool_blocks", tree.pool_blocks);
    list.gauge("tree_pool_used_blocks", tree.pool_used_blocks);
    list.counter("tree_loads_total", tree.loads);
    list.counter("tree_damaged_copies_total", tree.damaged);
    list.counter("tree_healed_nodes_total", tree.healed);
    let space = engine.store.alloc.stats();
    list.gauge("space_data_blocks", space.data_blocks);
    list.gauge("space_free_blocks", space.free_blocks);
    list.gauge("space_reserved_blocks", space.reserved_blocks);
    list.gauge("space_deferred_blocks", space.deferred_blocks);
    let device = engine.store.device.stats();
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
    list.gauge("failed", u64::from(engine.store.failure().is_some()));
    list
}
