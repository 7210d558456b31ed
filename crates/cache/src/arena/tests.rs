//! The arena against a table, and what the system is told of its memory.

use super::*;
use quire_base::random::Random;

#[test]
fn pieces_never_overlap_and_merge_again() {
    let arena = Arena::new(8 << 20);
    let mut random = Random::seeded(11);
    let mut held: Vec<(Piece, Order)> = Vec::new();
    let mut used = vec![false; 6 * CHUNK_BLOCKS as usize];
    for _ in 0..20_000 {
        if random.one_in(2) {
            let order = random.below(u64::from(ORDER_MAX) + 1) as Order;
            if let Some(piece) = arena.alloc(order) {
                assert_eq!(piece.number % (1 << order), 0);
                assert_eq!(piece.memory.as_ptr() as usize % (BLOCK_SIZE << order), 0);
                let range = piece.number as usize..piece.number as usize + (1 << order);
                assert!(used[range.clone()].iter().all(|used| !used));
                used[range].fill(true);
                held.push((piece, order));
            }
        } else if !held.is_empty() {
            let (piece, order) = held.swap_remove(random.below(held.len() as u64) as usize);
            used[piece.number as usize..piece.number as usize + (1 << order)].fill(false);
            arena.free(piece.number, order);
        }
    }
    held.drain(..).for_each(|(piece, order)| arena.free(piece.number, order));
    // Everything has merged: all six chunks can be had whole, and no seventh.
    assert_eq!((0..7).filter_map(|_| arena.alloc(ORDER_MAX)).count(), 6);
}

#[test]
fn the_next_chunk_has_its_memory_before_it_is_taken() {
    let arena = Arena::new(64 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| arena.work_ahead());
        for taken in 1..=3 {
            let piece = arena.alloc(ORDER_MAX).unwrap();
            // SAFETY: a whole chunk that is ours.
            unsafe { piece.memory.as_ptr().write_bytes(taken as u8, CHUNK_BYTES) };
            let start = std::time::Instant::now();
            while arena.resident_bytes() < (taken + 1) * CHUNK_BYTES as u64 {
                assert!(start.elapsed().as_secs() < 20, "nothing is touched ahead: {arena:?}");
                std::thread::yield_now();
            }
            // SAFETY: as above.
            assert_eq!(unsafe { piece.memory.as_ptr().add(CHUNK_BYTES - 1).read() }, taken as u8);
        }
        arena.stop_ahead(true);
    });
    assert_eq!(arena.inner.lock().idle(), 1);
}

/// The memory of a deleted file went back to the system at once. Programs that write one large file after the
/// other, and delete them, had the system clear every page: half of the processor time of such a load.
#[test]
#[cfg_attr(miri, ignore = "nothing is given back there")]
fn chunks_give_their_memory_back_when_nobody_needed_it_for_a_while() {
    let arena = Arena::new(64 << 20);
    let at = |seconds: i64| arena.give_back(Timestamp(1_000_000_000_000 + seconds * 1_000_000_000), u64::MAX);
    let resident = || arena.resident_bytes() / CHUNK_BYTES as u64;
    let take = |count| take_chunks(&arena, count);
    let free = |pieces: &[Piece]| pieces.iter().for_each(|piece| arena.free(piece.number, ORDER_MAX));
    let held = take(30);
    at(0);
    free(&held);
    // They were in use a moment ago.
    for seconds in [1, 9, 10] {
        at(seconds);
        assert_eq!(resident(), 30, "after {seconds} s");
    }
    // Twenty of them are needed again, ten and those beyond the reserve are not.
    let again = take(20);
    free(&again);
    at(15);
    assert_eq!(resident(), 30);
    at(20);
    assert_eq!(resident(), 30 - (10 - IDLE_CHUNKS as u64));
    at(30);
    assert_eq!(resident(), IDLE_CHUNKS as u64);
    // SAFETY: the arena's memory stays mapped, and nobody writes to it now.
    let has_memory = |piece: &Piece| unsafe { piece.memory.as_ptr().read() } == 1;
    assert_eq!(held.iter().filter(|piece| has_memory(piece)).count(), IDLE_CHUNKS);
    // What has memory is taken first, and the lower limit gives all else back at once.
    let held = take(IDLE_CHUNKS);
    assert_eq!(resident(), IDLE_CHUNKS as u64);
    free(&take(12));
    free(&held);
    assert_eq!(resident(), 12 + IDLE_CHUNKS as u64);
    arena.set_limit(8 << 20);
    at(31);
    assert_eq!(resident(), IDLE_CHUNKS as u64);
}

/// Whole chunks, with a byte stored to each.
fn take_chunks(arena: &Arena, count: usize) -> Vec<Piece> {
    let pieces: Vec<Piece> = (0..count).map(|_| arena.alloc(ORDER_MAX).unwrap()).collect();
    // SAFETY: the pieces are the caller's.
    pieces.iter().for_each(|piece| unsafe { piece.memory.as_ptr().write(1) });
    pieces
}

/// The cache's limit counted what was deleted as free, and inodes took its place there, while the chunks kept
/// their memory for ten seconds more: together they had more memory than the limit.
#[test]
#[cfg_attr(miri, ignore = "nothing is given back there")]
fn chunks_that_the_limit_has_no_room_for_give_their_memory_back_at_once() {
    let arena = Arena::new(64 << 20);
    let now = Timestamp(1_000_000_000_000);
    let resident = || arena.resident_bytes() / CHUNK_BYTES as u64;
    let held = take_chunks(&arena, 30);
    arena.give_back(now, 0);
    held.iter().for_each(|piece| arena.free(piece.number, ORDER_MAX));
    arena.give_back(now, 60 << 20);
    assert_eq!(resident(), 30);
    arena.give_back(now, 50 << 20);
    assert_eq!(resident(), 30, "the reserve is beside the limit");
    arena.give_back(now, 20 << 20);
    assert_eq!(resident(), 10 + IDLE_CHUNKS as u64);
    arena.give_back(now, 0);
    assert_eq!(resident(), IDLE_CHUNKS as u64);
}

/// Two flushers looked at the same time, and each gave the same number of chunks back: with the second's went
/// memory that had been in use a moment ago.
#[test]
#[cfg_attr(miri, ignore = "nothing is given back there")]
fn threads_that_look_at_once_give_no_chunk_back_twice() {
    for round in 0..20 {
        let resident = |arena: &Arena| arena.resident_bytes() / CHUNK_BYTES as u64;
        let arena = Arena::new(256 << 20);
        let held = take_chunks(&arena, 100);
        let (low, high) = held.split_at(40);
        low.iter().for_each(|piece| arena.free(piece.number, ORDER_MAX));
        arena.give_back(Timestamp(1_000_000_000_000), u64::MAX);
        high.iter().for_each(|piece| arena.free(piece.number, ORDER_MAX));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| arena.give_back(Timestamp(1_010_000_000_000), u64::MAX));
            }
        });
        // Forty were free all the time.
        assert_eq!(resident(&arena), 100 - (40 - IDLE_CHUNKS as u64), "round {round}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "nothing is given back there")]
fn a_lower_limit_gives_back_what_is_free_between() {
    let arena = Arena::new(32 << 20);
    let mut held: Vec<Piece> = (0..16 * CHUNK_BLOCKS / 8).map(|_| arena.alloc(3).unwrap()).collect();
    let fill = |piece: &Piece, byte| {
        // SAFETY: the piece is ours.
        unsafe { piece.memory.as_ptr().write_bytes(byte, BLOCK_SIZE << 3) };
    };
    // SAFETY: the arena's memory stays mapped and nobody writes to it now.
    let byte = |piece: &Piece, at: usize| unsafe { piece.memory.as_ptr().add(at).read() };
    held.iter().for_each(|piece| fill(piece, 7));
    let kept: Vec<Piece> = held.iter().step_by(5).copied().collect();
    held.retain(|piece| !kept.contains(piece));
    held.iter().for_each(|piece| arena.free(piece.number, 3));
    arena.give_back(Timestamp(0), u64::MAX);
    assert!(held.iter().all(|piece| byte(piece, 0) == 7), "the limit is as before");
    arena.set_limit(8 << 20);
    arena.give_back(Timestamp(0), u64::MAX);
    let ends = [0, (BLOCK_SIZE << 3) - 1];
    assert!(held.iter().all(|piece| ends.iter().all(|at| byte(piece, *at) == 0)));
    assert!(kept.iter().all(|piece| ends.iter().all(|at| byte(piece, *at) == 7)));
    // They can be had again, and merge.
    let mut again: Vec<Piece> = held.iter().map(|_| arena.alloc(3).unwrap()).collect();
    again.extend(&kept);
    again.iter().for_each(|piece| arena.free(piece.number, 3));
    assert!(arena.alloc(ORDER_MAX).is_some());
}

/// Flags of the mapping that an address is in, as the kernel shows them.
fn flags_at(address: NonNull<u8>) -> Vec<String> {
    let address = address.as_ptr() as usize;
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        if let Some((low, high)) = range {
            let bound = |hex| usize::from_str_radix(hex, 16).unwrap();
            inside = (bound(low)..bound(high)).contains(&address);
        } else if let (true, Some(flags)) = (inside, line.strip_prefix("VmFlags:")) {
            return flags.split_whitespace().map(str::to_owned).collect();
        }
    }
    panic!("nothing is mapped at {address:#x}");
}

/// Memory that a lower limit gave back came back within half a minute: its chunks were still to be on huge
/// pages, and the kernel made whole ones of what was left in them.
#[test]
#[cfg_attr(miri, ignore = "nothing is given back there")]
fn a_chunk_with_pieces_given_back_is_kept_off_huge_pages_until_it_is_free() {
    let arena = Arena::new(32 << 20);
    let held: Vec<Piece> = (0..2 * CHUNK_BLOCKS / 8).map(|_| arena.alloc(3).unwrap()).collect();
    let chunks = [held[0], held[held.len() / 2]];
    let has = |chunk: usize, flag: &str| flags_at(chunks[chunk].memory).iter().any(|found| found == flag);
    if !has(0, "hg") {
        // A kernel without huge pages.
        return;
    }
    let (kept, free): (Vec<Piece>, Vec<Piece>) =
        held.iter().partition(|piece| piece.number >= CHUNK_BLOCKS || piece.number % 64 == 0);
    free.iter().for_each(|piece| arena.free(piece.number, 3));
    arena.set_limit(8 << 20);
    arena.give_back(Timestamp(0), u64::MAX);
    assert!(has(0, "nh") && !has(0, "hg"));
    assert!(has(1, "hg"), "nothing of this one was free");
    let (first, second): (Vec<Piece>, Vec<Piece>) =
        kept.iter().partition(|piece| piece.number < CHUNK_BLOCKS);
    let before = arena.resident_bytes();
    first.iter().for_each(|piece| arena.free(piece.number, 3));
    assert!(has(0, "hg") && !has(0, "nh"));
    assert_eq!(arena.resident_bytes(), before - CHUNK_BYTES as u64, "what is left of it goes back as well");
    assert_eq!(arena.inner.lock().rare.broken_count, 0);
    second.iter().for_each(|piece| arena.free(piece.number, 3));
    assert_eq!(arena.resident_bytes(), before - CHUNK_BYTES as u64);
}

/// A system without memory was asked for it, and the log written to, at every piece that was not to be had,
/// once for each size tried, with the arena locked.
#[test]
fn a_system_that_refused_is_left_alone_for_a_while() {
    let arena = Arena::new(8 << 20);
    let mut inner = arena.inner.lock();
    let start = Instant::now();
    let mut asked = 0;
    for millis in [0, 1, 50, 99, 100, 101, 199, 200] {
        let refuse = |_| {
            asked += 1;
            None
        };
        assert!(!inner.grow(|| start + Duration::from_millis(millis), refuse));
    }
    assert_eq!(asked, 3);
    assert!(!inner.grow(|| start + Duration::from_millis(250), system::map));
    assert!(inner.grow(|| start + Duration::from_millis(300), system::map));
    assert_eq!(inner.rare.refused, None);
}
