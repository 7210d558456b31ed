//! A volume in an image, with a place to mount it: what tests of single commands need.

use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Output;

use super::{quire, text};

/// A directory with a volume and a mount point; unmounts at the end.
pub struct Place(pub tempfile::TempDir);

impl Place {
    pub fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        std::fs::create_dir(place.dir()).unwrap();
        place
    }
    pub fn with_volume() -> Place {
        let place = Place::new();
        let made = quire(&[OsStr::new("mkfs"), OsStr::new("--size=64M"), place.image().as_os_str()]);
        assert!(made.status.success(), "{}", text(&made));
        place
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    pub fn image(&self) -> PathBuf {
        self.path("a.img")
    }
    pub fn dir(&self) -> PathBuf {
        self.path("mnt")
    }
    pub fn mount(&self, options: &str) -> Output {
        let log = format!("log={}", self.path("log").display());
        let list = if options.is_empty() { log } else { format!("{log},{options}") };
        quire(&[
            "mount".as_ref(),
            "-o".as_ref(),
            OsStr::new(&list),
            self.image().as_os_str(),
            self.dir().as_os_str(),
        ])
    }
    pub fn umount(&self) -> Output {
        quire(&[OsStr::new("umount"), self.dir().as_os_str()])
    }
    pub fn corrupt(&self, block: u64) {
        let file = std::fs::File::options().write(true).open(self.image()).unwrap();
        file.write_all_at(&[0xaa; 4096], block * 4096).unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = quire(&[OsStr::new("umount"), OsStr::new("--lazy"), self.dir().as_os_str()]);
    }
}

/// Checks how a command ended, and that it said these words.
pub fn expect(output: &Output, code: i32, words: &[&str]) {
    let text = text(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is missing in: {text}");
    }
}

/// `quire` with words and the image of a place.
pub fn on_image(place: &Place, words: &[&str], behind: &[&str]) -> Output {
    let words = words.iter().map(OsStr::new);
    let image = place.image();
    let line: Vec<&OsStr> =
        words.chain([image.as_os_str()]).chain(behind.iter().map(|word| OsStr::new(*word))).collect();
    quire(&line)
}
