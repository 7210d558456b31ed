//! Uses a volume without any mount: makes one, writes a log, reads it back, looks at the directory.
//!
//! `cargo run --release -p quire-fs --example embedded -- [IMAGE]`

use quire::{FormatOptions, OpenOptions, Volume};
use std::path::PathBuf;

fn main() -> quire::Result<()> {
    let image = std::env::args_os().nth(1).map_or_else(
        || std::env::temp_dir().join(format!("quire-example-{}.img", std::process::id())),
        PathBuf::from,
    );
    if !image.exists() {
        FormatOptions::new().size(256 << 20).label("example").format(&image)?;
        println!("made {}", image.display());
    }
    let volume = Volume::open(&image)?;

    let log = OpenOptions::new().append(true).create(true).open(&volume, "log.txt")?;
    for line in 0..3 {
        log.append(format!("line {line}\n").as_bytes())?;
    }
    log.sync_data()?;
    println!("the log has {} bytes, all of them durable", log.metadata().len());
    drop(log);

    print!("{}", volume.read_to_string("log.txt")?);
    for entry in volume.read_dir("/")? {
        let entry = entry?;
        println!("{:?} has {} bytes", entry.file_name(), entry.metadata()?.len());
    }

    let space = volume.statfs();
    println!("{} of {} MiB are free", space.available / 256, space.blocks / 256);
    volume.close()
}
