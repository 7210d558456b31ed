//! Fills a volume with many small files in the library, for a look at how a large volume mounts.
//!
//! `cargo run --release -p quire-fs --example million -- IMAGE [FILES]`

use quire::inodes::{Caller, Create, IoFlags};
use quire::{FileType, Volume};
use std::time::Instant;

fn main() -> quire::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let image = std::path::PathBuf::from(arguments.next().expect("an image file made by quire mkfs"));
    let files: u64 = arguments.next().map_or(1_000_000, |text| {
        text.to_str().and_then(|text| text.parse().ok()).expect("a number of files")
    });
    let volume = Volume::open(&image)?;
    let caller = Caller { uid: 0, gid: 0 };
    let create = |kind, mode| Create { kind, caller, ..Create::file(mode) };
    let started = Instant::now();
    for folder in 0..files.div_ceil(1000) {
        let name = format!("folder{folder}");
        let directory = volume.inodes().create(
            &volume.inodes().root(),
            name.as_bytes(),
            &create(FileType::Directory, 0o755),
        )?;
        for number in 0..1000.min(files - folder * 1000) {
            let name = format!("file{number}");
            let file =
                volume.inodes().create(&directory, name.as_bytes(), &create(FileType::Regular, 0o644))?;
            if number % 10 == 0 {
                volume.inodes().write_at(&file, name.as_bytes(), 0, IoFlags::empty())?;
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{files} files in {seconds:.1} s, {:.0} a second", files as f64 / seconds);
    volume.close()
}
