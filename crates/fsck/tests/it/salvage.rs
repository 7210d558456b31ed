//! Copies of volumes of strangers, whose names are any bytes.

use super::common::{device, format, options};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

fn path(parts: &[&[u8]]) -> PathBuf {
    parts.iter().map(|part| OsString::from_vec(part.to_vec())).collect()
}

/// A further name of a file was linked to the first one by its path as text. A name that is no text has a
/// replacement character there, and another name may have that: a symbolic link to a directory of the host
/// led the copy there, and the salvaged name was the host's file. Another file's name gave its content.
#[test]
fn a_further_name_is_of_the_same_file_whatever_the_bytes_of_its_name() {
    let host = tempfile::tempdir().unwrap();
    std::fs::write(host.path().join("x"), "the host's").unwrap();
    let backend = device(&format());
    let volume = options().open_backend(backend.clone()).unwrap();
    // Which name comes first is up to hashes.
    let letters = b'a'..b'q';
    for letter in letters.clone() {
        let (bytes, text) = ([0xff, letter], [&b"\xef\xbf\xbd"[..], &[letter]].concat());
        let top = [b"top-", &[letter][..]].concat();
        let link = [b"link-", &[letter][..]].concat();
        let at = |rest: &[&[u8]]| path(&[&[&top[..]], rest].concat());
        volume.create_dir_all(at(&[&bytes])).unwrap();
        volume.write(at(&[&bytes, b"x"]), "the volume's").unwrap();
        volume.hard_link(at(&[&bytes, b"x"]), at(&[&link])).unwrap();
        volume.symlink(host.path(), at(&[&text])).unwrap();
        volume.create_dir(at(&[b"files"])).unwrap();
        volume.write(at(&[b"files", &bytes]), "this file's").unwrap();
        volume.hard_link(at(&[b"files", &bytes]), at(&[b"files", &link])).unwrap();
        volume.write(at(&[b"files", &text]), "another file's").unwrap();
    }
    volume.close().unwrap();

    let copy = tempfile::tempdir().unwrap();
    let salvaged = quire_fsck::salvage_backend(backend, copy.path(), None).unwrap();
    assert!(salvaged.is_complete(), "{salvaged:?}");
    assert_eq!(salvaged.links, 2 * letters.len() as u64);
    for letter in letters {
        let letter = char::from(letter);
        let (top, link) = (copy.path().join(format!("top-{letter}")), format!("link-{letter}"));
        assert_eq!(std::fs::read_to_string(top.join(&link)).unwrap(), "the volume's");
        assert_eq!(std::fs::read_to_string(top.join("files").join(&link)).unwrap(), "this file's");
    }
}
