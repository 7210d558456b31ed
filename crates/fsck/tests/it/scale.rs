//! A large volume: time and memory. Run by hand:
//! `QUIRE_FSCK_FILES=200000 cargo test --release -p quire-fsck --test it scale -- --ignored --nocapture`

use crate::common::options;
use quire::FormatOptions;
use quire::backend::MemoryBackend;
use quire::inodes::Create;
use quire_base::sync::Arc;
use quire_fsck::{Options, check_backend};
use std::time::Instant;

/// Resident bytes of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
#[ignore = "takes long; see the module's documentation"]
fn many_files() {
    let files: u64 = std::env::var("QUIRE_FSCK_FILES").map_or(100_000, |text| text.parse().unwrap());
    let backend = Arc::new(MemoryBackend::new(16 << 20));
    FormatOptions::new().seed(1).format_backend(backend.clone()).unwrap();
    let volume = options().open_backend(backend.clone()).unwrap();
    let start = Instant::now();
    let mut directory = volume.inodes().root();
    for number in 0..files {
        if number % 1000 == 0 {
            directory = volume
                .inodes()
                .create(&volume.inodes().root(), format!("d{number}").as_bytes(), &Create::directory(0o755))
                .unwrap();
        }
        volume
            .inodes()
            .create(&directory, format!("file-{number}").as_bytes(), &Create::file(0o644))
            .unwrap();
    }
    volume.close().unwrap();
    eprintln!("{files} files made in {:?}", start.elapsed());
    let (start, before) = (Instant::now(), resident());
    let report = check_backend(backend, &Options::default()).unwrap();
    let grown = resident().saturating_sub(before);
    eprintln!("checked in {:?}, {} MiB more in memory: {:?}", start.elapsed(), grown >> 20, report.summary);
    assert!(report.issues.is_empty());
}
