//! One region in memory: its busy blocks, and which of them are being freed.
//!
//! Regions that are all free or all busy, the usual case, keep no bitmap, so a loaded group costs little more
//! than the regions in it that are mixed.

use quire_base::{Error, Result};
use quire_format::region::{REGION_BLOCKS, RegionMap};

const BLOCKS: u32 = REGION_BLOCKS as u32;

/// Busy blocks of a region; block numbers are within the region.
#[derive(Default)]
pub(crate) struct Region {
    busy: u32,
    /// Present only if some blocks are busy and some are free.
    map: Option<Box<RegionMap>>,
    /// Busy blocks whose freeing is not durable yet; absent if there are none.
    freeing: Option<Box<RegionMap>>,
}

impl Region {
    pub(crate) fn new(map: RegionMap) -> Region {
        let mut region = Region { busy: map.used_count(), map: Some(Box::new(map)), freeing: None };
        region.tidy();
        region
    }

    pub(crate) fn free_count(&self) -> u32 {
        BLOCKS - self.busy
    }

    /// The first free block at or after `from` (at most the region's length).
    pub(crate) fn next_free(&self, from: u32) -> Option<u32> {
        match &self.map {
            Some(map) => map.next_free(from),
            None => (self.busy == 0 && from < BLOCKS).then_some(from),
        }
    }

    /// The first busy block at or after `from`.
    pub(crate) fn next_busy(&self, from: u32) -> Option<u32> {
        match &self.map {
            Some(map) => map.next_used(from),
            None => (self.busy != 0 && from < BLOCKS).then_some(from),
        }
    }

    /// Errors, changing nothing, if one of the blocks is busy.
    pub(crate) fn set_busy(&mut self, start: u32, blocks: u32) -> Result<()> {
        self.change(|map| map.set_used(start, blocks))
    }

    /// Busy blocks, not being freed, that were never used after all. Errors, changing nothing, if one is not.
    pub(crate) fn set_free(&mut self, start: u32, blocks: u32) -> Result<()> {
        self.check_freeable(start, blocks)?;
        self.change(|map| map.set_free(start, blocks))
    }

    /// Errors, changing nothing, if one of the blocks is free or being freed already.
    pub(crate) fn begin_freeing(&mut self, start: u32, blocks: u32) -> Result<()> {
        self.check_freeable(start, blocks)?;
        self.freeing.get_or_insert_default().set_used(start, blocks)
    }

    /// Takes [`Region::begin_freeing`] back.
    pub(crate) fn cancel_freeing(&mut self, start: u32, blocks: u32) -> Result<()> {
        let freeing =
            self.freeing.as_mut().ok_or_else(|| Error::corrupt("the blocks are not being freed"))?;
        freeing.set_free(start, blocks)?;
        if freeing.is_empty() {
            self.freeing = None;
        }
        Ok(())
    }

    /// Ends what [`Region::begin_freeing`] began: the blocks are free.
    pub(crate) fn end_freeing(&mut self, start: u32, blocks: u32) -> Result<()> {
        self.cancel_freeing(start, blocks)?;
        self.change(|map| map.set_free(start, blocks))
    }

    /// The busy blocks as a map.
    pub(crate) fn to_map(&self) -> RegionMap {
        match &self.map {
            Some(map) => RegionMap::clone(map),
            None if self.busy == 0 => RegionMap::new(),
            None => RegionMap::full(),
        }
    }

    /// The blocks being freed, if any.
    pub(crate) fn freeing(&self) -> Option<&RegionMap> {
        self.freeing.as_deref()
    }

    fn check_freeable(&self, start: u32, blocks: u32) -> Result<()> {
        let end = start + blocks;
        if let Some(block) = self.next_free(start).filter(|block| *block < end) {
            return Err(Error::corrupt(format!("block {block} of the region is free already")));
        }
        let freeing = self.freeing.as_ref().and_then(|map| map.next_used(start));
        if let Some(block) = freeing.filter(|block| *block < end) {
            return Err(Error::corrupt(format!("block {block} of the region is being freed already")));
        }
        Ok(())
    }

    fn change(&mut self, change: impl FnOnce(&mut RegionMap) -> Result<()>) -> Result<()> {
        if self.map.is_none() {
            self.map = Some(Box::new(self.to_map()));
        }
        let done = self.map.as_mut().map_or(Ok(()), |map| change(map));
        self.tidy();
        done
    }

    fn tidy(&mut self) {
        if let Some(map) = &self.map {
            self.busy = map.used_count();
            if self.busy == 0 || self.busy == BLOCKS {
                self.map = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_regions_keep_no_bitmap() {
        let mut region = Region::default();
        region.set_busy(0, BLOCKS).unwrap();
        assert!(region.map.is_none());
        assert_eq!((region.next_free(0), region.next_busy(7)), (None, Some(7)));
        region.begin_freeing(10, 5).unwrap();
        region.end_freeing(10, 5).unwrap();
        assert!(region.map.is_some() && region.freeing.is_none());
        region.set_busy(10, 5).unwrap();
        assert!(region.map.is_none());
    }

    #[test]
    fn a_block_is_freed_once() {
        let mut region = Region::default();
        assert!(region.begin_freeing(0, 1).is_err());
        region.set_busy(0, 8).unwrap();
        region.begin_freeing(2, 3).unwrap();
        assert!(region.begin_freeing(4, 1).is_err());
        assert!(region.set_free(1, 2).is_err());
        assert!(region.end_freeing(5, 1).is_err());
        assert!(region.set_busy(2, 1).is_err());
        region.end_freeing(2, 3).unwrap();
        assert!(region.end_freeing(2, 3).is_err());
        assert_eq!(region.free_count(), BLOCKS - 5);
    }
}
