//! The pool's manifest on disk: reading the chain, and building the next one.
//!
//! Everything read is checked: identity and checksum of each page, order and bounds of chunks and orphan
//! blocks, and that the map calls used what it must (the manifest's own pages, the orphan blocks).
//!
//! Neighbours: `format::pool` has the bytes, [`crate::pool`] the state.

use crate::copies::{Look, read_copies};
use crate::pool::PoolState;
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, BlockNo, Context, Error, Result};
use quire_device::Device;
use quire_format::place::{NO_TWIN, Place};
use quire_format::pool::{
    BODY_BYTES, CHUNK_BYTES, ChunkEntry, ManifestPage, ManifestRef, NextPage, ORPHAN_BYTES, OrphanRef,
    PageIdentity, PageStamp,
};
use quire_format::superblock::ORPHAN_BLOCKS_MAX;

/// A manifest on disk.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    pub(crate) at: ManifestRef,
    /// Where its pages lie.
    pub(crate) pages: Vec<Place>,
}

const CHUNKS_PER_PAGE: usize = BODY_BYTES / CHUNK_BYTES;
const ORPHANS_PER_PAGE: usize = BODY_BYTES / ORPHAN_BYTES;

/// Pages for so many entries.
pub(crate) fn page_count(chunks: usize, orphans: usize) -> usize {
    let chunk_pages = chunks.div_ceil(CHUNKS_PER_PAGE);
    // The last page of chunks holds orphan blocks as well.
    let room = match chunks % CHUNKS_PER_PAGE {
        0 if chunks == 0 => 0,
        0 => (BODY_BYTES - CHUNKS_PER_PAGE * CHUNK_BYTES) / ORPHAN_BYTES,
        last => (BODY_BYTES - last * CHUNK_BYTES) / ORPHAN_BYTES,
    };
    (chunk_pages + orphans.saturating_sub(room).div_ceil(ORPHANS_PER_PAGE)).max(1)
}

/// The pages, without their links.
fn paginate(chunks: Vec<ChunkEntry>, orphans: &[OrphanRef]) -> Vec<ManifestPage> {
    let mut pages: Vec<ManifestPage> = Vec::new();
    for part in chunks.chunks(CHUNKS_PER_PAGE) {
        pages.push(ManifestPage { chunks: part.to_vec(), ..ManifestPage::default() });
    }
    if pages.is_empty() {
        pages.push(ManifestPage::default());
    }
    for &orphan in orphans {
        let last = pages.last_mut().expect("there is a page");
        if last.body_bytes() + ORPHAN_BYTES <= BODY_BYTES {
            last.orphans.push(orphan);
        } else {
            pages.push(ManifestPage { orphans: vec![orphan], ..ManifestPage::default() });
        }
    }
    pages
}

/// Writes the entries as a manifest at `places`, as many as [`page_count`] says. Each page in turn, the last
/// first, is given to `write` with its place.
pub(crate) fn encode(
    chunks: Vec<ChunkEntry>,
    orphans: &[OrphanRef],
    places: Vec<Place>,
    volume: u64,
    stamp: PageStamp,
    mut write: impl FnMut(Place, &dyn Fn(&mut [u8]) -> u32) -> Result<u32>,
) -> Result<Manifest> {
    let mut pages = paginate(chunks, orphans);
    debug_assert_eq!(pages.len(), places.len());
    let count = pages.len() as u32;
    let mut next = None;
    for (index, page) in pages.iter_mut().enumerate().rev() {
        page.next = next;
        let place = places[index];
        let identity = PageIdentity { volume, place, index: index as u32, count };
        let crc = write(place, &|out| page.encode(&identity, stamp, out))?;
        next = Some(NextPage { place, crc });
    }
    let NextPage { place: Place { block, twin }, crc } = next.expect("there is a page");
    Ok(Manifest { at: ManifestRef { block, twin, crc, count }, pages: places })
}

impl PoolState {
    /// Reads the manifest that a superblock names, on a volume of `block_count` blocks.
    ///
    /// Errors: `Corrupt` where the chain does not check or contradicts itself; `Io`.
    pub fn load(
        device: &Arc<Device>,
        volume: u64,
        manifest: ManifestRef,
        block_count: u64,
    ) -> Result<PoolState> {
        PoolState::load_with(device, volume, manifest, block_count, Look::UntilGood)
    }

    /// As [`PoolState::load`], with a choice of how many copies are looked at.
    pub fn load_with(
        device: &Device,
        volume: u64,
        manifest: ManifestRef,
        block_count: u64,
        look: Look,
    ) -> Result<PoolState> {
        let (mut chunks, mut orphans, mut pages) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = Some(NextPage { place: manifest.place(), crc: manifest.crc });
        let (mut stamp, mut damaged) = (None, false);
        for index in 0..manifest.count {
            let Some(NextPage { place, crc }) = next else {
                return Err(Error::corrupt(format!("pool manifest page {index} is missing")));
            };
            if let Some(at) = place.copies().find(|at| at.0 >= block_count) {
                return Err(Error::corrupt(format!(
                    "pool manifest page {index} at block {at} is past the volume's end"
                )));
            }
            if (place.twin != NO_TWIN) != (manifest.twin != NO_TWIN) {
                return Err(Error::corrupt(format!(
                    "pool manifest page {index} has another number of copies"
                )));
            }
            let identity = PageIdentity { volume, place, index, count: manifest.count };
            let ((page_stamp, page), bad) =
                read_copies(device, place, look, &mut |bytes| ManifestPage::decode(bytes, &identity, crc))
                    .context(format!("pool manifest page {index}"))?;
            damaged |= bad;
            if *stamp.get_or_insert(page_stamp) != page_stamp {
                return Err(Error::corrupt(format!("pool manifest page {index} is of another checkpoint")));
            }
            if page.chunks.is_empty() && page.orphans.is_empty() && manifest.count > 1 {
                return Err(Error::corrupt(format!("pool manifest page {index} is empty")));
            }
            pages.push(place);
            chunks.extend(page.chunks);
            orphans.extend(page.orphans);
            next = page.next;
        }
        check_chunks(&chunks, block_count)?;
        check_orphans(&orphans, manifest.twin != NO_TWIN)?;
        let mut pool = PoolState::from_parts(&chunks, Manifest { at: manifest, pages }, orphans);
        pool.damaged = damaged;
        pool.check_owned()?;
        Ok(pool)
    }

    /// Reads the first `count` orphan blocks, each with what went wrong with it.
    pub fn load_orphan_blocks(&mut self, device: &Device, count: u32) -> Vec<Result<Box<[u8; BLOCK_SIZE]>>> {
        (0..count).map(|index| self.load_orphan_block(device, index, Look::UntilGood)).collect()
    }

    /// Reads one orphan block.
    pub fn load_orphan_block(
        &mut self,
        device: &Device,
        index: u32,
        look: Look,
    ) -> Result<Box<[u8; BLOCK_SIZE]>> {
        let Ok(found) = self.orphans.binary_search_by_key(&index, |orphan| orphan.index) else {
            return Err(Error::corrupt(format!("the pool manifest does not name orphan block {index}")));
        };
        let orphan = self.orphans[found];
        let mut check = |bytes: &[u8]| {
            if crc32c::crc32c(bytes) != orphan.crc {
                return Err(Error::corrupt(format!(
                    "orphan block {index} at block {} does not have the checksum that the pool manifest names",
                    orphan.block
                )));
            }
            let mut block = Box::new([0; BLOCK_SIZE]);
            block.copy_from_slice(bytes);
            Ok(block)
        };
        let (block, bad) =
            read_copies(device, orphan.place(), look, &mut check).context(format!("orphan block {index}"))?;
        self.damaged |= bad;
        Ok(block)
    }

    /// Where the manifest's pages and the orphan blocks lie.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        let pages = self.manifest.iter().flat_map(|manifest| manifest.pages.iter().copied());
        pages.chain(self.orphans.iter().map(OrphanRef::place))
    }

    /// Nodes of the newest checkpoint's tree: what is used and neither a page of the manifest nor an orphan
    /// block.
    pub fn nodes(&self) -> u64 {
        let pages = self.manifest.as_ref().map_or(0, |manifest| manifest.pages.len());
        (self.used_blocks() / self.copies()).saturating_sub((pages + self.orphans.len()) as u64)
    }

    /// The manifest's pages and the orphan blocks are in use, and no two of them are the same.
    fn check_owned(&self) -> Result<()> {
        let mut owned: Vec<BlockNo> = self.places().flat_map(Place::copies).collect();
        owned.sort_unstable();
        if let Some(twice) = owned.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::corrupt(format!("the pool manifest uses block {} twice", twice[0])));
        }
        match owned.into_iter().find(|block| !self.is_used(*block)) {
            Some(block) => {
                Err(Error::corrupt(format!("the pool's map calls block {block} free, its manifest uses it")))
            }
            None => Ok(()),
        }
    }
}

fn check_chunks(chunks: &[ChunkEntry], block_count: u64) -> Result<()> {
    let mut end = 0;
    for chunk in chunks {
        if chunk.start.0 < end || chunk.start.0 + u64::from(chunk.blocks) > block_count {
            return Err(Error::corrupt(format!(
                "the pool's chunk of {} blocks at block {} is out of order or past the volume's end",
                chunk.blocks, chunk.start
            )));
        }
        end = chunk.start.0 + u64::from(chunk.blocks);
    }
    Ok(())
}

fn check_orphans(orphans: &[OrphanRef], twins: bool) -> Result<()> {
    if orphans.iter().any(|orphan| (orphan.twin != NO_TWIN) != twins) {
        return Err(Error::corrupt("the pool manifest's orphan blocks have another number of copies"));
    }
    let ascending = orphans.windows(2).all(|pair| pair[0].index < pair[1].index);
    let bounded = orphans.last().is_none_or(|orphan| orphan.index < ORPHAN_BLOCKS_MAX);
    if ascending && bounded {
        Ok(())
    } else {
        Err(Error::corrupt("the pool manifest's orphan blocks are out of order"))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn pages_are_as_many_as_announced() {
        let chunk = |n: usize| ChunkEntry { start: BlockNo(n as u64 * 1024), blocks: 1024, used: [0; 16] };
        let orphan =
            |n: usize| OrphanRef { index: n as u32, crc: 0, block: BlockNo(n as u64), twin: NO_TWIN };
        for chunks in [0, 1, 26, 27, 28, 100] {
            for orphans in [0, 1, 5, 6, 7, 166, 167, 168, 600] {
                let pages =
                    paginate((0..chunks).map(chunk).collect(), &(0..orphans).map(orphan).collect::<Vec<_>>());
                assert_eq!(
                    pages.len(),
                    page_count(chunks, orphans),
                    "{chunks} chunks, {orphans} orphan blocks"
                );
                assert!(pages.iter().all(|page| page.body_bytes() <= BODY_BYTES));
            }
        }
    }
}
