//! What reaches the device when many small files are written and then made durable together.
//!
//! `cargo run --release -p quire-fs --example small_files -- [FILES] [BYTES] [CACHE_MIB] [IMAGE]`
//!
//! Writes FILES files (100000) of BYTES bytes (4096), a thousand to a folder, with a cache of CACHE_MIB
//! (2048), then calls `Volume::sync`; on a device in memory, or in IMAGE, which is made and removed. Prints
//! the bytes of every class at the device, as a ratio to the files' bytes, and how long the data's writes
//! were.

use quire::backend::{Backend, MemoryBackend};
use quire::{FormatOptions, OpenOptions, Result, VolumeOptions};
use std::sync::Arc;
use std::time::Instant;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| {
        arguments.get(at).map_or(default, |text| text.parse().expect("arguments are numbers"))
    };
    let (files, bytes, cache) = (number(0, 100_000), number(1, 4096), number(2, 2048) << 20);
    let size = (8 * files * bytes.next_multiple_of(4096)).max(1 << 30);
    let format = FormatOptions::new().size(size);
    let options = VolumeOptions::new().cache_bytes(cache);
    let volume = match arguments.get(3) {
        Some(image) => {
            format.format(image)?;
            options.open(image)?
        }
        None => {
            let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new(size / 4096));
            FormatOptions::new().format_backend(backend.clone())?;
            options.open_backend(backend)?
        }
    };
    let before = volume.metrics();
    let began = Instant::now();
    let contents = vec![7; bytes as usize];
    for file in 0..files {
        let folder = format!("d{}", file / 1000);
        if file % 1000 == 0 {
            volume.create_dir(&folder)?;
        }
        let file = OpenOptions::new().write(true).create(true).open(&volume, format!("{folder}/f{file}"))?;
        file.write_all_at(&contents, 0)?;
    }
    let written = began.elapsed();
    volume.sync()?;
    let synced = began.elapsed();
    let after = volume.metrics();
    let grown = |name: &str| after[name] - before[name];
    println!("{files} files of {bytes} bytes, cache {} MiB", cache >> 20);
    println!("written in {:.2} s, durable after {:.2} s", written.as_secs_f64(), synced.as_secs_f64());
    let mut all = 0;
    for class in ["data", "journal", "metadata"] {
        let bytes = grown(&format!("device_{class}_write_bytes_total"));
        let requests = grown(&format!("device_{class}_write_requests_total"));
        all += bytes;
        println!(
            "{class:<9} {:>9.1} MiB in {requests} writes, mean {} KiB",
            bytes as f64 / f64::from(1 << 20),
            (bytes / requests.max(1)) >> 10
        );
    }
    println!("device bytes / file bytes: {:.3}", all as f64 / (files * bytes) as f64);
    drop(volume);
    if let Some(image) = arguments.get(3) {
        let _ = std::fs::remove_file(image);
    }
    Ok(())
}
