#[path = "../tests/common/mod.rs"]
mod common;
use common::World;
use quire_base::{Clock, random::Random};
use quire_cache::{CacheConfig, ReadView};
use std::sync::atomic::*;
use std::time::*;
fn main() {
    let a: Vec<u64> = std::env::args().skip(1).map(|x| x.parse().unwrap()).collect();
    let (readers, writers, size, mib) = (a[0], a[1], a[2] as usize, a[3]);
    let flush = a.get(4).copied().unwrap_or(1);
    let mut config = CacheConfig::new(1 << 30);
    if flush == 0 { config.dirty_background_bytes = 500 << 20; config.dirty_limit_bytes = 510 << 20; config.dirty_age_nanos = i64::MAX; }
    let world = World::with_clock(config, Clock::System);
    world.cache.start().unwrap();
    let file = world.file();
    for i in 0..mib { file.write(i << 20, &vec![1; 1 << 20]).unwrap(); }
    file.mapping().write_back(0, u64::MAX).unwrap();
    let stop = AtomicBool::new(false);
    let (r, w) = (AtomicU64::new(0), AtomicU64::new(0));
    let t = Instant::now();
    std::thread::scope(|s| {
        for id in 0..readers { let (file, stop, r) = (&file, &stop, &r); s.spawn(move || {
            let mut random = Random::seeded(id); let mut buf = vec![0; size]; let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                let at = random.below((mib << 20) / size as u64) * size as u64;
                let view = || ReadView { exclusive_sequence: 0, size: file.size.load(Ordering::Acquire) };
                if file.mapping().try_read(at, &mut buf, view).is_none() {
                    file.mapping().read(at, &mut buf, &|| file.size.load(Ordering::Acquire)).unwrap();
                }
                n += 1;
            }
            r.fetch_add(n, Ordering::Relaxed);
        }); }
        for id in 0..writers { let (file, stop, w) = (&file, &stop, &w); s.spawn(move || {
            let mut random = Random::seeded(id + 1000); let buf = vec![3; size]; let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                let at = random.below((mib << 20) / size as u64) * size as u64;
                file.write(at, &buf).unwrap();
                n += 1;
            }
            w.fetch_add(n, Ordering::Relaxed);
        }); }
        std::thread::sleep(Duration::from_secs(3));
        stop.store(true, Ordering::Relaxed);
    });
    let secs = t.elapsed().as_secs_f64();
    let rate = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64 * size as f64 / secs / 1048576.0;
    println!("read {:.0} MiB/s write {:.0} MiB/s", rate(&r), rate(&w));
    println!("{:?}", world.cache.metrics());
    // memcpy
    let mem: &'static mut [u8] = Box::leak(vec![1u8; (mib << 20) as usize].into_boxed_slice());
    let p = mem.as_mut_ptr() as usize;
    let stop = AtomicBool::new(false); let c = AtomicU64::new(0);
    let t = Instant::now();
    std::thread::scope(|s| {
        for id in 0..readers + writers { let (stop, c) = (&stop, &c); s.spawn(move || {
            let mut random = Random::seeded(id); let mut buf = vec![0u8; size]; let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                let at = random.below((mib << 20) / size as u64) as usize * size;
                unsafe { if id < readers { std::ptr::copy_nonoverlapping((p + at) as *const u8, buf.as_mut_ptr(), size) } else { std::ptr::copy_nonoverlapping(buf.as_ptr(), (p + at) as *mut u8, size) } }
                n += 1;
            }
            c.fetch_add(n, Ordering::Relaxed);
        }); }
        std::thread::sleep(Duration::from_secs(2));
        stop.store(true, Ordering::Relaxed);
    });
    println!("memcpy {:.0} MiB/s", c.load(Ordering::Relaxed) as f64 * size as f64 / t.elapsed().as_secs_f64() / 1048576.0);
}
