//! Numbers and dumps for people and tests.

use crate::allocator::Allocator;
use crate::group::GROUP_REGIONS;
use quire_base::metrics::Counter;
use quire_base::{Error, Result};
use quire_format::region::RegionMap;
use std::fmt;

/// What the allocator counts as it goes.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) allocations: Counter,
    pub(crate) at_goal: Counter,
    pub(crate) shortened: Counter,
    pub(crate) scattered: Counter,
    pub(crate) exclusive: Counter,
    pub(crate) refusals: Counter,
    pub(crate) loads: Counter,
    pub(crate) discards: Counter,
    pub(crate) discarded_blocks: Counter,
    pub(crate) discard_failures: Counter,
    pub(crate) discards_skipped: Counter,
}

/// A look at the allocator; exact when nobody is using it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocStats {
    /// Blocks of data space, used or not.
    pub data_blocks: u64,
    /// Free blocks that nobody was promised.
    pub free_blocks: u64,
    /// Blocks promised to data that has no place yet.
    pub reserved_blocks: u64,
    /// Freed blocks that wait for the journal.
    pub deferred_blocks: u64,
    /// Allocation groups.
    pub groups: u64,
    /// Groups whose bitmap is in memory.
    pub groups_loaded: u64,
    /// Allocations made.
    pub allocations: u64,
    /// Of these, exactly at their goal.
    pub at_goal: u64,
    /// Of these, in one run that was shorter than wanted.
    pub shortened: u64,
    /// Of these, in several runs.
    pub scattered: u64,
    /// Of these, with all others held up: the slowest path.
    pub exclusive: u64,
    /// Requests refused for want of space.
    pub refusals: u64,
    /// Discards sent to the device.
    pub discards: u64,
    /// Blocks discarded.
    pub discarded_blocks: u64,
    /// Discards that the device failed.
    pub discard_failures: u64,
    /// Ranges that were not discarded, because space was short or too many waited.
    pub discards_skipped: u64,
}

impl fmt::Display for AllocStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "blocks: {} data, {} free, {} reserved, {} waiting for the journal",
            self.data_blocks, self.free_blocks, self.reserved_blocks, self.deferred_blocks
        )?;
        writeln!(f, "groups: {}, {} loaded", self.groups, self.groups_loaded)?;
        writeln!(
            f,
            "allocations: {}, {} at their goal, {} shortened, {} scattered, {} exclusive, {} refused",
            self.allocations, self.at_goal, self.shortened, self.scattered, self.exclusive, self.refusals
        )?;
        write!(
            f,
            "discards: {} of {} blocks, {} failed, {} skipped",
            self.discards, self.discarded_blocks, self.discard_failures, self.discards_skipped
        )
    }
}

impl Allocator {
    /// Free blocks that nobody was promised: what a new reservation can have.
    pub fn free_blocks(&self) -> u64 {
        self.credits.get()
    }

    /// Blocks promised to data that has no place yet.
    pub fn reserved_blocks(&self) -> u64 {
        self.reserved.get()
    }

    /// Freed blocks that wait for the journal.
    pub fn deferred_blocks(&self) -> u64 {
        self.deferred.blocks.get()
    }

    /// All numbers.
    pub fn stats(&self) -> AllocStats {
        let counts = &self.counts;
        AllocStats {
            data_blocks: self.data_end().0 - self.data_start.0,
            free_blocks: self.free_blocks(),
            reserved_blocks: self.reserved_blocks(),
            deferred_blocks: self.deferred_blocks(),
            groups: self.group_count() as u64,
            groups_loaded: counts.loads.get(),
            allocations: counts.allocations.get(),
            at_goal: counts.at_goal.get(),
            shortened: counts.shortened.get(),
            scattered: counts.scattered.get(),
            exclusive: counts.exclusive.get(),
            refusals: counts.refusals.get(),
            discards: counts.discards.get(),
            discarded_blocks: counts.discarded_blocks.get(),
            discard_failures: counts.discard_failures.get(),
            discards_skipped: counts.discards_skipped.get(),
        }
    }

    /// The blocks of a region that are busy here, deferred frees included, and those among them that are
    /// being freed. Loads the group if need be. With nobody allocating, busy without freeing is what the tree
    /// calls used (blocks outside the data space apart).
    pub fn busy_blocks(&self, region: u64) -> Result<(RegionMap, RegionMap)> {
        let number = usize::try_from(region / GROUP_REGIONS).unwrap_or(usize::MAX);
        if number >= self.group_count() {
            return Err(Error::invalid(format!("no region {region}")));
        }
        let group = &self.groups[number];
        self.load(number)?;
        let within = (region % GROUP_REGIONS) as usize;
        group
            .with(|group| {
                let region = &group.regions()[within];
                (region.to_map(), region.freeing().cloned().unwrap_or_default())
            })
            .ok_or_else(|| Error::invalid(format!("no region {region}")))
    }

    /// Loads every group and compares the free blocks in the bitmaps with the counts. Exact when nobody is
    /// using the allocator; errors (kind `Corrupt`) if they differ.
    pub fn check(&self) -> Result<()> {
        let _alone = self.load_all_and_stop()?;
        let free = (0..self.group_count()).filter_map(|number| self.groups[number].free_count());
        let found: u64 = free.map(u64::from).sum();
        let counted = self.credits.get() + self.reserved_blocks();
        if found != counted {
            return Err(Error::corrupt(format!(
                "{found} blocks are free in the bitmaps, {counted} by the counts"
            )));
        }
        Ok(())
    }

    /// One line for each loaded group: its number, free blocks, longest free run at most, cursor.
    pub fn describe(&self) -> String {
        let line = |number: usize| {
            let group = &self.groups[number];
            let free = group.free_count()?;
            Some(format!(
                "group {number}: {free} free, runs to {}, next at {}\n",
                group.longest(),
                group.cursor()
            ))
        };
        (0..self.group_count()).filter_map(line).collect()
    }
}
