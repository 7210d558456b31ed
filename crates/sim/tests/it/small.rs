//! Small cases entirely, and live = recovered.

use sim::generate::Style;
use sim::{exhaustive, live};

#[test]
fn every_crash_of_short_workloads() {
    let mut images = 0;
    for (number, style) in Style::ALL.into_iter().enumerate() {
        for seed in 0..3 {
            let seed = 1000 * number as u64 + seed;
            images += exhaustive::run(seed, 14, Some(style), 6).unwrap_or_else(|what| panic!("{what}"));
        }
    }
    println!("{images} images");
    assert!(images > 500, "only {images} images");
}

#[test]
fn what_is_seen_is_what_a_crash_leaves() {
    let mut images = 0;
    for (number, style) in Style::ALL.into_iter().enumerate() {
        for seed in 0..2 {
            let seed = 1000 * number as u64 + seed;
            images += live::run(seed, 60, Some(style)).unwrap_or_else(|what| panic!("{what}"));
        }
    }
    println!("{images} images");
}
