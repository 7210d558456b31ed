//! The bookkeeping of blocks: halves, frees that wait, and what kept checkpoints hold.

use super::*;

fn pool() -> PoolState {
    PoolState::new(&[Run::new(BlockNo(100), 70), Run::new(BlockNo(1000), 2000)], 1)
}

fn blocks(places: Vec<Place>) -> Vec<BlockNo> {
    places.into_iter().flat_map(Place::copies).collect()
}

#[test]
fn second_copies_lie_in_the_upper_half() {
    let mut pool = PoolState::new(&[Run::new(BlockNo(100), 70), Run::new(BlockNo(1000), 70)], 2);
    let places = pool.allocate(60, 1).unwrap();
    assert_eq!((places[0].block, places[0].twin), (BlockNo(100), BlockNo(1000)));
    assert_eq!((places[59].block, places[59].twin), (BlockNo(159), BlockNo(1059)));
    // The halves move when the pool grows, and one of them is full: both copies in the other, then none.
    pool.grow(BlockNo(500), 70, 1).unwrap();
    let more = pool.allocate(45, 1).unwrap();
    assert_eq!((more[0].block, more[0].twin), (BlockNo(160), BlockNo(1060)));
    assert_eq!(pool.free_blocks(), 0);
    let all: std::collections::BTreeSet<_> = blocks(places.clone()).into_iter().chain(blocks(more)).collect();
    assert_eq!(all.len(), 210);
    assert_eq!(pool.allocate(1, 1).unwrap_err().kind(), ErrorKind::NoSpace);
    pool.give_back(blocks(places));
    assert_eq!(pool.free_blocks(), 120);
    assert_eq!(pool.allocate(61, 1).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(pool.free_blocks(), 120);
    assert_eq!(pool.allocate(60, 1).unwrap().len(), 60);
}

#[test]
fn freed_blocks_wait_for_the_slot_that_needs_them() {
    let mut pool = pool();
    assert_eq!((pool.blocks(), pool.chunks().len()), (2070, 3));
    let blocks = blocks(pool.allocate(100, 1).unwrap());
    assert_eq!((blocks[0], blocks[69], blocks[70]), (BlockNo(100), BlockNo(169), BlockNo(1000)));
    pool.free(blocks[..50].to_vec(), 2).unwrap();
    assert_eq!((pool.used_blocks(), pool.free_blocks()), (50, 1970));
    pool.release(1);
    assert_eq!(pool.free_blocks(), 1970);
    pool.release(2);
    assert_eq!(pool.free_blocks(), 2020);
    assert!(pool.free(vec![blocks[0]], 3).is_err());
    assert!(pool.free(vec![BlockNo(5)], 3).is_err());
    let rest = super::tests::blocks(pool.allocate(2020, 1).unwrap());
    assert_eq!(rest[0], BlockNo(1030));
    assert_eq!(*rest.last().unwrap(), BlockNo(149));
    assert_eq!(pool.allocate(1, 1).unwrap_err().kind(), ErrorKind::NoSpace);
}

/// What a deleted snapshot alone had was room for new reservations at once, though the next two
/// checkpoints have to be written around it: they could find no free block, and the volume shut down.
#[test]
fn what_was_kept_is_no_room_until_it_is_free() {
    let mut pool = pool();
    let kept = blocks(pool.allocate(100, 1).unwrap());
    pool.keep(7, 1, pool.entries(1)).unwrap();
    pool.free(kept, 2).unwrap();
    pool.release(2);
    let before = pool.overhead();
    assert_eq!(pool.only_kept_blocks(), 100);
    pool.let_go(7, 3);
    assert_eq!((pool.only_kept_blocks(), pool.overhead()), (0, before));
    assert_eq!((pool.free_blocks(), pool.freed_blocks()), (1970, 100));
    pool.release(2);
    assert_eq!(pool.overhead(), before);
    pool.release(3);
    assert_eq!((pool.overhead(), pool.free_blocks(), pool.freed_blocks()), (before - 100, 2070, 0));
}

/// A snapshot was deleted while a checkpoint was written that took another one's place: what that one
/// freed was listed behind what the snapshot had, and came back one checkpoint late. Nothing had counted
/// on that.
#[test]
fn what_a_replaced_checkpoint_frees_does_not_wait_for_a_deleted_snapshot() {
    let mut pool = pool();
    let kept = blocks(pool.allocate(10, 1).unwrap());
    let other = blocks(pool.allocate(20, 1).unwrap());
    pool.keep(7, 1, pool.entries(1)).unwrap();
    pool.free(kept, 2).unwrap();
    pool.let_go(7, 4);
    pool.free(other, 3).unwrap();
    pool.release(3);
    assert_eq!((pool.free_blocks(), pool.freed_blocks()), (2060, 10));
    pool.release(4);
    assert_eq!((pool.free_blocks(), pool.freed_blocks()), (2070, 0));
}

/// [`PoolState::let_go`], block by block.
fn let_go_by_block(pool: &mut PoolState, number: u32, checkpoint: u64) {
    let Some(gone) = pool.kept.remove(&number) else { return };
    pool.chunks.iter_mut().for_each(|chunk| chunk.held = [0; BITMAP_WORDS]);
    let kept: Vec<_> = pool.kept.values().flat_map(|kept| &kept.entries).flat_map(blocks_of).collect();
    for block in kept {
        let (chunk, bit) = pool.find(block).unwrap();
        set(&mut pool.chunks[chunk].held, bit);
    }
    let free = |block: &BlockNo| {
        let (chunk, bit) = pool.find(*block).unwrap();
        !get(&pool.chunks[chunk].held, bit) && !get(&pool.chunks[chunk].current, bit)
    };
    let blocks: std::collections::BTreeSet<_> =
        gone.entries.iter().flat_map(blocks_of).filter(free).collect();
    pool.freed.iter_mut().for_each(|freed| freed.blocks.retain(|block| !blocks.contains(block)));
    if !blocks.is_empty() {
        pool.freed.push_back(Freed { checkpoint, blocks: blocks.into_iter().collect(), was_kept: true });
    }
}

/// The deletion of a snapshot made a list of every block that each of the others needs: hundreds of
/// megabytes and seconds under the pool's lock on a large volume. Chunk by chunk it comes to the same.
#[test]
fn letting_go_by_chunk_is_letting_go_by_block() {
    for seed in 0..40 {
        let random = &mut quire_base::random::Random::seeded(seed);
        let mut pool = PoolState::new(&[Run::new(BlockNo(100), 300)], 1 + (seed % 2) as u32);
        let (mut used, mut let_go) = (Vec::new(), 0);
        for epoch in 1..200 {
            match random.below(7) {
                0 => {
                    let start = BlockNo(1000 + 100 * random.below(20));
                    // Refused where there is a chunk.
                    let _ = pool.grow(start, 1 + random.below(150) as u32, epoch);
                }
                1 => {
                    let unused = pool.chunks().into_iter().find(|run| pool.is_unused(run.start));
                    if let Some(run) = unused.filter(|_| pool.blocks() > 300) {
                        pool.shrink(run.start, run.blocks as u32, epoch).unwrap();
                    }
                }
                2 => {
                    // Chunks that had other bounds when the checkpoint was written.
                    let mut entries = pool.newest_entries();
                    for at in 0..entries.len() {
                        let entry = entries[at];
                        if entry.blocks > 64 && random.one_in(2) {
                            let mut rest = ChunkEntry {
                                start: entry.start.offset(64),
                                blocks: entry.blocks - 64,
                                ..entry
                            };
                            rest.used.rotate_left(1);
                            rest.used[BITMAP_WORDS - 1] = 0;
                            entries[at].blocks = 64;
                            entries[at].used[1..].fill(0);
                            entries.push(rest);
                        }
                    }
                    pool.keep(epoch as u32, epoch, entries).unwrap();
                }
                3 => {
                    let at = random.below(4) as usize;
                    if let Some(number) = pool.kept.keys().copied().nth(at) {
                        let mut by_block = pool.clone();
                        let_go_by_block(&mut by_block, number, epoch);
                        pool.let_go(number, epoch);
                        assert_eq!(format!("{pool:?}"), format!("{by_block:?}"), "seed {seed}");
                        let_go += pool.freed.iter().filter(|freed| freed.was_kept).count();
                    }
                }
                4 => {
                    let count = random.below(1 + used.len() as u64) as usize;
                    pool.free(used.drain(..count).collect(), epoch).unwrap();
                }
                5 => pool.release(epoch.saturating_sub(random.below(5))),
                _ => used.extend(pool.allocate(random.below(60) as usize, epoch).map_or(vec![], blocks)),
            }
        }
        assert!(let_go > 0, "seed {seed}");
    }
}

#[test]
fn chunks_come_and_go_by_epoch() {
    let mut pool = PoolState::new(&[Run::new(BlockNo(100), 10)], 1);
    pool.grow(BlockNo(200), 10, 5).unwrap();
    assert!(pool.grow(BlockNo(209), 10, 5).is_err());
    assert!(pool.grow(BlockNo(300), 0, 5).is_err());
    assert!(pool.allocate(11, 4).is_err());
    assert_eq!((pool.entries(4).len(), pool.entries(5).len()), (1, 2));
    let taken = pool.allocate(11, 5).unwrap();
    assert!(pool.shrink(BlockNo(200), 10, 6).is_err());
    assert_eq!(pool.retire(&|_| true, &|room| room > 10), None);
    assert_eq!(pool.retire(&|run| run.start > BlockNo(200), &|_| true), None);
    assert_eq!(
        pool.retire(&|run| run.start > BlockNo(100), &|room| room == 10),
        Some(Run::new(BlockNo(200), 10))
    );
    assert!(!pool.is_unused(BlockNo(200)));
    pool.give_back(blocks(taken));
    assert!(pool.is_unused(BlockNo(200)));
    assert_eq!((pool.blocks(), pool.room()), (20, 10));
    assert!(pool.allocate(11, 6).is_err());
    pool.shrink(BlockNo(200), 10, 6).unwrap();
    pool.forget_removed(5);
    assert_eq!((pool.entries(5).len(), pool.entries(6).len(), pool.blocks()), (2, 1, 10));
    // Its blocks may come back before the next checkpoint.
    pool.grow(BlockNo(205), 10, 6).unwrap();
    assert_eq!((pool.entries(5)[1].start, pool.entries(6)[1].start), (BlockNo(200), BlockNo(205)));
    pool.forget_removed(6);
    assert_eq!((pool.entries(6).len(), pool.changed_in(7)), (2, false));
}
