//! A mapping against a byte-exact model, under random writes, reads, truncates, punches, writeback, reclaim
//! and device errors, with limits so tiny that everything is reclaimed all the time.

use crate::common::{BS, World, pattern, tiny};
use proptest::prelude::*;
use quire_cache::{BLOCKS_END, CacheConfig};
use std::sync::atomic::Ordering;

#[derive(Clone, Debug)]
enum Op {
    Write { at: u64, len: usize, seed: u64 },
    Read { at: u64, len: usize },
    Truncate { size: u64 },
    Punch { at: u64, len: u64 },
    Preallocate { first: u64, count: u64 },
    WriteBack { first: u64, count: u64 },
    WriteBackAll,
    Step,
    Reclaim { bytes: u64 },
    FailReads(bool),
    FailWrites(bool),
    FailApply(bool),
    Refuse(u32),
    Scatter(bool),
}

const FILE_MAX: u64 = 600 << 10;

fn op() -> impl Strategy<Value = Op> {
    let at = prop_oneof![0..FILE_MAX, (0..FILE_MAX / BS).prop_map(|block| block * BS), 0..20_000u64];
    let len = prop_oneof![1..200usize, 4096..4097usize, 1..65_536usize, (1..16usize).prop_map(|n| n * 4096)];
    prop_oneof![
        8 => (at.clone(), len.clone(), any::<u64>()).prop_map(|(at, len, seed)| Op::Write { at, len, seed }),
        6 => (at.clone(), len).prop_map(|(at, len)| Op::Read { at, len }),
        1 => at.clone().prop_map(|size| Op::Truncate { size }),
        1 => (at, 1..100_000u64).prop_map(|(at, len)| Op::Punch { at, len }),
        1 => (0..100u64, 1..30u64).prop_map(|(first, count)| Op::Preallocate { first, count }),
        2 => (0..150u64, 1..50u64).prop_map(|(first, count)| Op::WriteBack { first, count }),
        1 => Just(Op::WriteBackAll),
        1 => Just(Op::Step),
        1 => (1..200_000u64).prop_map(|bytes| Op::Reclaim { bytes }),
        1 => any::<bool>().prop_map(Op::FailReads),
        1 => any::<bool>().prop_map(Op::FailWrites),
        1 => any::<bool>().prop_map(Op::FailApply),
        1 => (0..3u32).prop_map(Op::Refuse),
        1 => any::<bool>().prop_map(Op::Scatter),
    ]
}

fn run(config: CacheConfig, ops: Vec<Op>) {
    let world = World::new(config);
    let file = world.file();
    let mut model: Vec<u8> = Vec::new();
    let (mut reads_fail, mut writes_fail, mut apply_fails) = (false, false, false);
    for op in ops {
        let may_fail = reads_fail || writes_fail || apply_fails;
        let trace = format!("{op:?}");
        if std::env::var_os("QUIRE_TRACE").is_some() {
            eprintln!("{trace}");
        }
        match op {
            Op::Write { at, len, seed } => {
                let data = pattern(seed, len);
                match file.write(at, &data) {
                    Ok(()) => {
                        let end = at as usize + len;
                        if model.len() < end {
                            model.resize(end, 0);
                        }
                        model[at as usize..end].copy_from_slice(&data);
                    }
                    Err(error) => assert!(may_fail, "{trace}: {error}"),
                }
            }
            Op::Read { at, len } => match file.read(at, len) {
                Ok(bytes) => {
                    let from = (at as usize).min(model.len());
                    let to = (at as usize + len).min(model.len());
                    assert!(bytes == model[from..to], "{trace}");
                    let mut buf = vec![0; len];
                    let view = || quire_cache::ReadView {
                        exclusive_sequence: 0,
                        size: file.size.load(Ordering::Acquire),
                    };
                    let again = file.mapping().try_read(at, &mut buf, view);
                    assert_eq!(again, Some(to - from), "{trace}: just read, so it is cached");
                    assert!(buf[..to - from] == model[from..to], "{trace} optimistic");
                }
                Err(error) => assert!(may_fail, "{trace}: {error}"),
            },
            Op::Truncate { size } => match file.truncate(size) {
                Ok(()) => model.resize(size as usize, 0),
                Err(error) => {
                    assert!(may_fail, "{trace}: {error}");
                }
            },
            Op::Punch { at, len } => {
                let (at, end) =
                    ((at as usize).min(model.len()), (at as usize + len as usize).min(model.len()));
                if at < end {
                    match file.punch(at as u64, end as u64) {
                        Ok(()) => model[at..end].fill(0),
                        Err(error) => assert!(may_fail, "{trace}: {error}"),
                    }
                }
            }
            Op::Preallocate { first, count } => {
                // Over dirty blocks it would have to trade reservations: only where nothing is dirty.
                if file.mapping().is_clean() {
                    file.mapping().hold_writeback(first, first + count).discard(first, first + count);
                    file.preallocate(first, first + count);
                }
            }
            Op::WriteBack { first, count } => match file.mapping().write_back(first, first + count) {
                Ok(()) => {
                    let left = file.mapping().next_cached_data(first, first + count);
                    assert_eq!(left, None, "{trace}");
                }
                Err(error) => {
                    assert!(may_fail, "{trace}: {error}");
                    assert!(file.mapping().error().is_some());
                }
            },
            Op::WriteBackAll => match world.cache.write_back_all() {
                Ok(()) => {
                    assert!(file.mapping().is_clean() && file.mapping().error().is_none());
                    assert_eq!(file.reserved(), 0);
                    assert_eq!(world.cache.usage().dirty_bytes, 0);
                }
                Err(error) => assert!(may_fail, "{trace}: {error}"),
            },
            Op::Step => {
                world.cache.background_step();
            }
            Op::Reclaim { bytes } => {
                world.cache.reclaim(bytes);
            }
            Op::FailReads(on) => {
                reads_fail = on;
                world.faulty.fail_reads.store(on, Ordering::SeqCst);
            }
            Op::FailWrites(on) => {
                writes_fail = on;
                world.faulty.fail_writes.store(on, Ordering::SeqCst);
            }
            Op::FailApply(on) => {
                apply_fails = on;
                file.fail_written.store(on, Ordering::SeqCst);
            }
            Op::Refuse(count) => file.refuse.store(count, Ordering::SeqCst),
            Op::Scatter(on) => file.scatter.store(on, Ordering::SeqCst),
        }
        let usage = world.cache.usage();
        assert!(usage.used_bytes <= usage.limit_bytes, "{trace}: {usage:?}");
        assert_eq!(file.size.load(Ordering::Acquire), model.len() as u64, "{trace}");
        let dirty = file.mapping().first_dirty(0);
        assert_eq!(dirty, file.mapping().first_unfinished(0), "{trace}: nothing runs in the background");
    }
    world.faulty.fail_reads.store(false, Ordering::SeqCst);
    world.faulty.fail_writes.store(false, Ordering::SeqCst);
    file.fail_written.store(false, Ordering::SeqCst);
    world.cache.write_back_all().unwrap();
    assert_eq!(file.reserved(), 0);
    assert!(file.mapping().error().is_none());
    file.mapping().hold_writeback(0, BLOCKS_END).discard(0, BLOCKS_END);
    assert_eq!(file.mapping().folios(), 0);
    // Everything comes from the device now.
    assert!(file.read(0, model.len() + 5000).unwrap() == model, "after writeback");
    file.mapping().evict_all();
    let headers: u64 = world.cache.usage().used_bytes;
    assert!(headers < 64 << 10, "only headers are charged: {headers}");
    assert_eq!(world.faulty.overlaps.load(Ordering::SeqCst), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn small_folios(ops in prop::collection::vec(op(), 1..120)) {
        run(tiny(), ops);
    }

    #[test]
    fn huge_folios(ops in prop::collection::vec(op(), 1..120)) {
        let mut config = CacheConfig::new(8 << 20);
        config.order_max = 9;
        config.dirty_limit_bytes = 2 << 20;
        config.dirty_background_bytes = 1 << 20;
        run(config, ops);
    }
}
