//! What a stream does to a hot set, and what is kept of folios that are used in parts: counted, not timed.

use crate::common::{BS, FakeFile, World};
use quire_base::random::Random;
use quire_base::sync::Arc;
use quire_cache::{CacheConfig, ReadView};
use std::sync::atomic::Ordering;

const CACHE: u64 = 16 << 20;

struct Scene {
    cache: u64,
    world: World,
    hot: Arc<FakeFile>,
    stream: Arc<FakeFile>,
}

impl Scene {
    /// A hot file of half the cache, all of it written out, and a sparse file to stream.
    fn new(cache: u64, folio_order: Option<u8>) -> Scene {
        let mut config = CacheConfig::new(cache);
        if let Some(order) = folio_order {
            config.order_max = order;
        }
        let world = World::new(config);
        let (hot, stream) = (world.file(), world.file());
        for at in (0..cache / 2).step_by(64 << 10) {
            hot.write(at, &[7; 64 << 10]).unwrap();
        }
        world.cache.write_back_all().unwrap();
        stream.size.store(10 * cache, Ordering::SeqCst);
        Scene { cache, world, hot, stream }
    }

    /// Reads from the hot file; true if that needed nothing from the device.
    fn read_hot(&self, at: u64) -> bool {
        let mut buf = [0; BS as usize];
        let size = self.cache / 2;
        let view = || ReadView { exclusive_sequence: 0, size };
        let hit = self.hot.mapping().try_read(at, &mut buf, view).is_some();
        if !hit {
            self.hot.mapping().read(at, &mut buf, &|| size).unwrap();
        }
        assert!(buf == [7; BS as usize]);
        hit
    }
}

/// Hits in percent of random 4 KiB reads of the hot file while the stream goes by in reads of `len`, `ratio`
/// of them for each.
fn hits_beside_a_stream(scene: &Scene, len: u64, ratio: u64) -> f64 {
    let mut random = Random::seeded(5);
    let mut any = || random.below(scene.cache / 2 / BS) * BS;
    // It becomes hot before the stream begins: every block is used a few times.
    for _ in 0..4 * scene.cache / 2 / BS {
        scene.read_hot(any());
    }
    let mut buf = vec![0; len as usize];
    let (mut hits, mut all) = (0u64, 0u64);
    for (number, at) in (0..10 * scene.cache).step_by(len as usize).enumerate() {
        scene.stream.mapping().read(at, &mut buf, &|| 10 * scene.cache).unwrap();
        if (number as u64).is_multiple_of(ratio) {
            all += 1;
            hits += u64::from(scene.read_hot(any()));
        }
    }
    hits as f64 / all as f64 * 100.0
}

/// A file ten times the cache is read past a hot set of half the cache: the hot set stays.
#[test]
fn a_stream_does_not_wash_the_hot_set_out() {
    for (len, ratio) in [(4 << 10, 1), (4 << 10, 4), (64 << 10, 1), (256 << 10, 1)] {
        let scene = Scene::new(CACHE, None);
        let percent = hits_beside_a_stream(&scene, len, ratio);
        assert!(percent >= 90.0, "reads of {len}, {ratio} for each hot one: {percent:.1} % hits");
        let usage = scene.world.cache.usage();
        assert!(usage.used_bytes <= usage.limit_bytes);
    }
}

/// The same with the hot set in folios of 1 MiB.
#[test]
fn large_folios_of_the_hot_set_stay_too() {
    let scene = Scene::new(4 * CACHE, Some(8));
    let percent = hits_beside_a_stream(&scene, 64 << 10, 1);
    assert!(percent >= 90.0, "{percent:.1} % hits");
}

/// Of large folios that are used in one place each, only these places stay in memory: the rest makes room.
#[test]
fn what_is_cold_of_a_large_folio_is_given_back() {
    const FOLIO: u64 = 2 << 20;
    const PART: u64 = FOLIO / 16;
    let mut config = CacheConfig::new(CACHE);
    (config.order_max, config.order_fixed) = (9, true);
    config.dirty_limit_bytes = 4 << 20;
    let world = World::new(config);
    let (file, other) = (world.file(), world.file());
    other.size.store(CACHE, Ordering::SeqCst);
    let size = 5 * FOLIO;
    for at in (0..size).step_by(PART as usize) {
        file.write(at, &vec![(at / PART) as u8; PART as usize]).unwrap();
    }
    world.cache.write_back_all().unwrap();
    assert_eq!(file.mapping().folios(), 5);
    let view = || ReadView { exclusive_sequence: 0, size };
    let mut buf = vec![0; PART as usize];
    let mut cached = |at: u64| {
        let hit = file.mapping().try_read(at, &mut buf, view).is_some();
        assert!(!hit || buf.iter().all(|byte| *byte == (at / PART) as u8), "at {at}");
        hit
    };
    // One place in each folio is used all the while.
    let used = |folio: u64| folio * FOLIO + folio * 7 % 16 * PART;
    // Another file wants to be cached whole, and is used again and again: it proves itself.
    let mut through = vec![0; 64 << 10];
    let mut random = Random::seeded(9);
    for round in 0..12 * CACHE / through.len() as u64 {
        let at = random.below(CACHE / through.len() as u64) * through.len() as u64;
        other.mapping().read(at, &mut through, &|| CACHE).unwrap();
        (0..5).for_each(|folio| assert!(cached(used(folio)), "folio {folio} in round {round}"));
    }
    assert!(world.cache.metrics().folios_split.get() >= 5);
    let left = (0..size).step_by(PART as usize).filter(|at| cached(*at)).count();
    assert_eq!(left, 5, "parts of {} are in memory", size / PART);
    let usage = world.cache.usage();
    assert!(usage.used_bytes <= usage.limit_bytes);
    file.mapping().evict_all();
    other.mapping().evict_all();
    assert!(world.cache.usage().used_bytes < 1 << 20, "only headers are charged: {:?}", world.cache.usage());
}
