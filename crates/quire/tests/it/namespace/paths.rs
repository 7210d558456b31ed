//! The functions that take paths.

use super::*;
use quire::{FileType, OpenOptions, RenameFlags};
use std::io::{IoSlice, IoSliceMut};

#[test]
fn paths_lead_through_directories_and_links() {
    let volume = volume();
    volume.create_dir_all("a/b/c").unwrap();
    volume.create_dir_all("/a/b/c").unwrap();
    volume.write_file("a/b/c/f", b"hello").unwrap();
    volume.symlink_path("/a/b", "short").unwrap();
    volume.symlink_path("../b/c/f", "a/b/rel").unwrap();
    volume.symlink_path("nowhere", "dangling").unwrap();
    for path in
        ["a/b/c/f", "/a//b/./c/f", "short/c/f", "a/b/rel", "short/rel", "a/../short/c/../rel", "../a/b/c/f"]
    {
        assert_eq!(volume.read_file(path).unwrap(), b"hello", "{path}");
    }
    assert_eq!(volume.metadata("short").unwrap().kind, FileType::Directory);
    assert_eq!(volume.symlink_metadata("short").unwrap().kind, FileType::Symlink);
    assert_eq!(volume.symlink_metadata("short/").unwrap().kind, FileType::Directory);
    assert_eq!(volume.read_link("short").unwrap(), b"/a/b");
    assert_eq!(volume.metadata("/").unwrap().inode, volume.inodes().root().number());
    fails(volume.metadata("a/b/c/f/"), ErrorKind::NotDirectory);
    fails(volume.metadata("a/b/c/f/g"), ErrorKind::NotDirectory);
    fails(volume.metadata(""), ErrorKind::NotFound);
    fails(volume.metadata("dangling"), ErrorKind::NotFound);
    fails(volume.create_dir("a/b"), ErrorKind::Exists);
    fails(volume.create_dir("/"), ErrorKind::Exists);
    fails(volume.create_dir("x/y"), ErrorKind::NotFound);
    fails(volume.remove_dir("a/b/.."), ErrorKind::Busy);
    // Creating goes through a link that leads nowhere yet.
    volume.write_file("dangling", b"now").unwrap();
    assert_eq!(volume.read_file("nowhere").unwrap(), b"now");
    consistency::check(&volume);
}

#[test]
fn chains_of_links_end() {
    let volume = volume();
    volume.write_file("end", b"x").unwrap();
    volume.symlink_path("end", "l0").unwrap();
    for n in 1..=40 {
        volume.symlink_path(format!("l{}", n - 1), format!("l{n}")).unwrap();
    }
    volume.symlink_path("loop", "loop").unwrap();
    assert_eq!(volume.read_file("l39").unwrap(), b"x");
    fails(volume.read_file("l40"), ErrorKind::Loop);
    fails(volume.read_file("loop"), ErrorKind::Loop);
    fails(volume.open_file("loop", OpenOptions::new().write(true).create(true)), ErrorKind::Loop);
}

#[test]
fn files_open_as_asked() {
    let volume = volume();
    let missing = || volume.open_file("f", OpenOptions::new().read(true));
    fails(missing(), ErrorKind::NotFound);
    fails(volume.open_file("f", OpenOptions::new().read(true).create(true)), ErrorKind::Invalid);
    fails(volume.open_file("f", &OpenOptions::new()), ErrorKind::Invalid);
    fails(volume.open_file("/", OpenOptions::new().read(true)), ErrorKind::IsDirectory);
    fails(volume.open_file("f/", OpenOptions::new().write(true).create(true)), ErrorKind::IsDirectory);
    let f = volume
        .open_file("f", OpenOptions::new().write(true).create_new(true).mode(0o600).owner(3, 4))
        .unwrap();
    let attributes = f.metadata();
    assert_eq!((attributes.mode, attributes.uid, attributes.gid), (0o600, 3, 4));
    fails(volume.open_file("f", OpenOptions::new().write(true).create_new(true)), ErrorKind::Exists);
    volume.symlink_path("g", "l").unwrap();
    fails(volume.open_file("l", OpenOptions::new().write(true).create_new(true)), ErrorKind::Exists);
    f.write_all_at(b"0123456789", 0).unwrap();
    fails(f.read_at(&mut [0; 4], 0), ErrorKind::BadHandle);
    let reader = volume.open_file("f", OpenOptions::new().read(true)).unwrap();
    fails(reader.write_at(b"x", 0), ErrorKind::BadHandle);
    fails(reader.set_len(0), ErrorKind::BadHandle);
    let appender = volume.open_file("f", OpenOptions::new().append(true)).unwrap();
    assert_eq!(appender.append(b"ab").unwrap(), 10);
    appender.write_at(b"cd", 0).unwrap();
    assert_eq!(f.append(b"ef").unwrap(), 14);
    let written =
        f.write_vectored_at(&[IoSlice::new(b"XX"), IoSlice::new(b""), IoSlice::new(b"Y")], 1).unwrap();
    assert_eq!(written, 3);
    let (mut one, mut two) = ([0; 3], [0; 20]);
    let count =
        reader.read_vectored_at(&mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)], 0).unwrap();
    assert_eq!((count, &one[..], &two[..13]), (16, &b"0XX"[..], &b"Y456789abcdef"[..]));
    fails(reader.read_exact_at(&mut [0; 4], 13), ErrorKind::Range);
    f.set_len(3).unwrap();
    f.sync_all().unwrap();
    f.sync_data().unwrap();
    assert_eq!(volume.read_file("f").unwrap(), b"0XX");
    volume.open_file("f", OpenOptions::new().write(true).truncate(true)).unwrap();
    assert_eq!(f.metadata().size, 0);
}

#[test]
fn names_move_by_path() {
    let volume = volume();
    volume.create_dir("d").unwrap();
    volume.write_file("a", b"a").unwrap();
    volume.write_file("b", b"b").unwrap();
    volume.hard_link("a", "d/a").unwrap();
    volume.rename_path("b", "d/b").unwrap();
    volume.rename_path_with("a", "d/b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(volume.read_file("a").unwrap(), b"b");
    assert_eq!(volume.read_file("d/b").unwrap(), b"a");
    fails(volume.rename_path("a/", "c"), ErrorKind::NotDirectory);
    fails(volume.rename_path("d", "d/e"), ErrorKind::Invalid);
    volume.rename_path("d/", "e").unwrap();
    let open = volume.open_directory("e").unwrap();
    let mut items: Vec<_> = open.entries().unwrap().into_iter().map(|item| item.name).collect();
    items.sort();
    assert_eq!(items, [b"a", b"b"]);
    volume.remove_file("e/a").unwrap();
    fails(volume.remove_dir("e"), ErrorKind::NotEmpty);
    volume.remove_file("e/b").unwrap();
    volume.remove_dir("e").unwrap();
    fails(open.entries(), ErrorKind::NotFound);
    drop(open);
    assert_eq!(volume.read_dir("/").unwrap().len(), 1);
    consistency::check(&volume);
}

#[test]
fn an_open_file_outlives_its_name() {
    let volume = volume();
    volume.write_file("a", b"contents").unwrap();
    let a = volume.open_file("a", OpenOptions::new().read(true)).unwrap();
    volume.remove_file("a").unwrap();
    volume.drain_orphans();
    let mut contents = [0; 8];
    a.read_exact_at(&mut contents, 0).unwrap();
    assert_eq!(&contents, b"contents");
    drop(a);
    consistency::check(&volume);
    assert_eq!(volume.info().inodes, 1);
}
