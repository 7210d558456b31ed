//! A tree of free-space regions in memory, and a device that only remembers discards.
#![cfg_attr(any(loom, shuttle), allow(dead_code, reason = "the models use a part of it"))]

use quire_alloc::{AllocConfig, Allocator, Discard, RegionSource, Run};
use quire_base::sync::Arc;
use quire_base::{BlockNo, Error, ErrorKind, Result};
use quire_format::region::{RegionMap, split_by_region};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The tree's free-space keys.
#[derive(Default)]
pub struct Tree {
    regions: Mutex<BTreeMap<u64, RegionMap>>,
}

impl Tree {
    pub fn apply(&self, used: &[Run], freed: &[Run]) -> Result<()> {
        let mut regions = self.regions.lock().unwrap();
        for (runs, to_used) in [(freed, false), (used, true)] {
            for (region, start, blocks) in runs.iter().flat_map(|run| split_by_region(*run)) {
                let map = regions.entry(region).or_default();
                if to_used { map.set_used(start, blocks)? } else { map.set_free(start, blocks)? }
            }
        }
        Ok(())
    }
}

impl RegionSource for Tree {
    fn load(&self, region: u64) -> Result<RegionMap> {
        Ok(self.regions.lock().unwrap().get(&region).cloned().unwrap_or_default())
    }
}

/// Remembers discards; does `during` while one is under way.
#[derive(Default)]
pub struct Trimmer {
    pub runs: Mutex<Vec<Run>>,
    /// How often somebody has waited for writes.
    pub waits: AtomicUsize,
    /// How discards fail.
    pub fail: Option<ErrorKind>,
    pub during: Option<Box<dyn Fn(Run) + Send + Sync>>,
}

impl Discard for Trimmer {
    fn await_writes(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    fn discard(&self, at: BlockNo, blocks: u64) -> Result<()> {
        let run = Run::new(at, blocks);
        self.runs.lock().unwrap().push(run);
        if let Some(during) = &self.during {
            during(run);
        }
        self.fail.map_or(Ok(()), |kind| Err(Error::new(kind, "no discard today")))
    }
}

pub fn config(data_start: u64, data_end: u64) -> AllocConfig {
    AllocConfig {
        data_start: BlockNo(data_start),
        data_end: BlockNo(data_end),
        free_blocks: data_end - data_start,
        discard: false,
    }
}

/// An allocator over an empty tree.
pub fn empty(data_start: u64, data_end: u64) -> (Arc<Allocator>, Arc<Tree>) {
    let tree = Arc::new(Tree::default());
    let allocator =
        Allocator::new(config(data_start, data_end), tree.clone(), Arc::new(Trimmer::default())).unwrap();
    (allocator, tree)
}

pub fn run(start: u64, blocks: u64) -> Run {
    Run::new(BlockNo(start), blocks)
}
