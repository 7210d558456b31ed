//! The parking table under loom: a thread that sleeps for a change of a word is woken, although wakers look
//! first whether anybody sleeps.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quire-cache --test it loom_park --release`

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use quire_cache::park::Parking;

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// Two words of one shard, each cleared by its own thread, as claims of blocks that are read in end.
fn sleep_for(words: usize, sleepers: usize) {
    model(move || {
        let scene = Arc::new((Parking::new(1), [AtomicU64::new(1), AtomicU64::new(1)]));
        let address = |word: usize| 64 * (word + 1);
        let clear = move |scene: &(Parking, [AtomicU64; 2]), word: usize| {
            scene.1[word].fetch_and(0, Ordering::AcqRel);
            scene.0.wake(address(word));
        };
        let mut threads = Vec::new();
        for word in 1..words {
            let scene = scene.clone();
            threads.push(thread::spawn(move || clear(&scene, word)));
        }
        for sleeper in 0..sleepers {
            let scene = scene.clone();
            let word = sleeper % words;
            threads.push(thread::spawn(move || {
                scene.0.wait_while(address(word), || scene.1[word].load(Ordering::Acquire) != 0);
                assert_eq!(scene.1[word].load(Ordering::Relaxed), 0);
            }));
        }
        clear(&scene, 0);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_sleeper_is_woken() {
    sleep_for(1, 1);
}

#[test]
fn all_sleepers_of_a_word_are_woken() {
    sleep_for(1, 2);
}

#[test]
fn words_of_one_shard_do_not_wake_each_other_for_good() {
    sleep_for(2, 1);
}
