//! Many small files that are written and made durable together: few large writes, and few bytes beside the
//! files' own.

use quire::backend::{Backend, MemoryBackend};
use quire::{FormatOptions, OpenOptions, Volume, VolumeOptions};
use std::sync::Arc;

const FILES: u64 = 5000;

fn number(volume: &Volume, name: &str) -> u64 {
    volume.metrics()[name]
}

#[test]
fn small_files_are_few_large_writes() {
    let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new(1 << 18));
    FormatOptions::new().format_backend(backend.clone()).unwrap();
    let options = VolumeOptions::new().cache_bytes(512 << 20);
    let volume = options.open_backend(backend).unwrap();
    let classes = ["data", "journal", "metadata"];
    let bytes = |class: &str| number(&volume, &format!("device_{class}_write_bytes_total"));
    let writes = || number(&volume, "device_data_write_requests_total");
    let before = (classes.map(bytes), writes());
    for file in 0..FILES {
        let file = OpenOptions::new().write(true).create(true).open(&volume, format!("f{file}")).unwrap();
        file.write_all_at(&[file.inode().number().0 as u8; 4096], 0).unwrap();
    }
    volume.sync().unwrap();
    let data = bytes("data") - before.0[0];
    assert_eq!(data, FILES * 4096);
    let mean = data / (writes() - before.1);
    assert!(mean >= 256 << 10, "mean write of {mean} bytes");
    let all: u64 = classes.iter().zip(before.0).map(|(class, before)| bytes(class) - before).sum();
    assert!(all * 10 <= FILES * 4096 * 13, "{all} bytes at the device for {} of files", FILES * 4096);
    volume.close().unwrap();
}
