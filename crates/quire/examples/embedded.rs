//! Uses a volume without any mount: makes one, writes a log, reads it back, looks at the directory.
//!
//! `cargo run --release -p quire-fs --example embedded -- [IMAGE]`

use quire::{FormatOptions, OpenOptions, Volume, VolumeOptions};
use std::path::PathBuf;

fn main() -> quire::Result<()> {
    let image = std::env::args_os().nth(1).map_or_else(
        || std::env::temp_dir().join(format!("quire-example-{}.img", std::process::id())),
        PathBuf::from,
    );
    if !image.exists() {
        let options = FormatOptions { size: Some(256 << 20), label: "example".into(), ..Default::default() };
        Volume::format_image(&image, &options)?;
        println!("made {}", image.display());
    }
    let volume = Volume::open(&image, VolumeOptions::default())?;

    let log = volume.open_file("log.txt", OpenOptions::new().write(true).create(true).append(true))?;
    for line in 0..3 {
        log.append(format!("line {line}\n").as_bytes())?;
    }
    log.sync_data()?;
    println!("the log has {} bytes, all of them durable", log.metadata().size);

    let log = volume.open_file("log.txt", OpenOptions::new().read(true))?;
    let mut text = vec![0; log.metadata().size as usize];
    let read = log.read_at(&mut text, 0)?;
    print!("{}", String::from_utf8_lossy(&text[..read]));
    drop(log);

    let space = volume.statfs();
    println!("{} of {} MiB are free", space.available / 256, space.blocks / 256);
    volume.close()
}
