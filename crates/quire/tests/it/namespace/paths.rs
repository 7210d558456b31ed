//! The functions that take paths.

use super::*;
use quire::{FileType, OpenOptions, RenameFlags};
use std::io::{IoSlice, IoSliceMut};

#[test]
fn paths_lead_through_directories_and_links() {
    let volume = volume();
    volume.create_dir_all("a/b/c").unwrap();
    volume.create_dir_all("/a/b/c").unwrap();
    volume.write("a/b/c/f", b"hello").unwrap();
    volume.symlink("/a/b", "short").unwrap();
    volume.symlink("../b/c/f", "a/b/rel").unwrap();
    volume.symlink("nowhere", "dangling").unwrap();
    for path in
        ["a/b/c/f", "/a//b/./c/f", "short/c/f", "a/b/rel", "short/rel", "a/../short/c/../rel", "../a/b/c/f"]
    {
        assert_eq!(volume.read(path).unwrap(), b"hello", "{path}");
    }
    assert_eq!(volume.metadata("short").unwrap().file_type(), FileType::Directory);
    assert_eq!(volume.symlink_metadata("short").unwrap().file_type(), FileType::Symlink);
    assert_eq!(volume.symlink_metadata("short/").unwrap().file_type(), FileType::Directory);
    assert_eq!(volume.read_link("short").unwrap(), std::path::Path::new("/a/b"));
    assert_eq!(volume.metadata("/").unwrap().ino(), volume.inodes().root().number());
    fails(volume.metadata("a/b/c/f/"), ErrorKind::NotDirectory);
    fails(volume.metadata("a/b/c/f/g"), ErrorKind::NotDirectory);
    fails(volume.metadata(""), ErrorKind::NotFound);
    fails(volume.metadata("dangling"), ErrorKind::NotFound);
    fails(volume.create_dir("a/b"), ErrorKind::Exists);
    fails(volume.create_dir("/"), ErrorKind::Exists);
    fails(volume.create_dir("x/y"), ErrorKind::NotFound);
    fails(volume.remove_dir("a/b/.."), ErrorKind::Busy);
    // Creating goes through a link that leads nowhere yet.
    volume.write("dangling", b"now").unwrap();
    assert_eq!(volume.read("nowhere").unwrap(), b"now");
    consistency::check(&volume);
}

#[test]
fn chains_of_links_end() {
    let volume = volume();
    volume.write("end", b"x").unwrap();
    volume.symlink("end", "l0").unwrap();
    for n in 1..=40 {
        volume.symlink(format!("l{}", n - 1), format!("l{n}")).unwrap();
    }
    volume.symlink("loop", "loop").unwrap();
    assert_eq!(volume.read("l39").unwrap(), b"x");
    fails(volume.read("l40"), ErrorKind::Loop);
    fails(volume.read("loop"), ErrorKind::Loop);
    fails(OpenOptions::new().write(true).create(true).open(&volume, "loop"), ErrorKind::Loop);
}

#[test]
fn files_open_as_asked() {
    let volume = volume();
    let missing = || volume.open_file("f");
    fails(missing(), ErrorKind::NotFound);
    fails(OpenOptions::new().read(true).create(true).open(&volume, "f"), ErrorKind::Invalid);
    fails(OpenOptions::new().open(&volume, "f"), ErrorKind::Invalid);
    fails(OpenOptions::new().write(true).open(&volume, "/"), ErrorKind::IsDirectory);
    volume.open_file("/").unwrap().sync_all().unwrap();
    fails(OpenOptions::new().write(true).create(true).open(&volume, "f/"), ErrorKind::IsDirectory);
    let f =
        OpenOptions::new().write(true).create_new(true).mode(0o600).owner(3, 4).open(&volume, "f").unwrap();
    let attributes = f.metadata();
    assert_eq!((attributes.permission_bits(), attributes.uid(), attributes.gid()), (0o600, 3, 4));
    fails(OpenOptions::new().write(true).create_new(true).open(&volume, "f"), ErrorKind::Exists);
    volume.symlink("g", "l").unwrap();
    fails(OpenOptions::new().write(true).create_new(true).open(&volume, "l"), ErrorKind::Exists);
    f.write_all_at(b"0123456789", 0).unwrap();
    fails(f.read_at(&mut [0; 4], 0), ErrorKind::BadHandle);
    let reader = volume.open_file("f").unwrap();
    fails(reader.write_at(b"x", 0), ErrorKind::BadHandle);
    fails(reader.set_len(0), ErrorKind::BadHandle);
    let appender = OpenOptions::new().append(true).open(&volume, "f").unwrap();
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
    fails(reader.read_exact_at(&mut [0; 4], 13), ErrorKind::UnexpectedEof);
    f.set_len(3).unwrap();
    f.sync_all().unwrap();
    f.sync_data().unwrap();
    assert_eq!(volume.read("f").unwrap(), b"0XX");
    OpenOptions::new().write(true).truncate(true).open(&volume, "f").unwrap();
    assert_eq!(f.metadata().size(), 0);
}

#[test]
fn names_move_by_path() {
    let volume = volume();
    volume.create_dir("d").unwrap();
    volume.write("a", b"a").unwrap();
    volume.write("b", b"b").unwrap();
    volume.hard_link("a", "d/a").unwrap();
    volume.rename("b", "d/b").unwrap();
    volume.rename_with("a", "d/b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(volume.read("a").unwrap(), b"b");
    assert_eq!(volume.read("d/b").unwrap(), b"a");
    fails(volume.rename("a/", "c"), ErrorKind::NotDirectory);
    fails(volume.rename("d", "d/e"), ErrorKind::Invalid);
    volume.rename("d/", "e").unwrap();
    let open = volume.open_file("e").unwrap();
    open.sync_all().unwrap();
    let list = || volume.read_dir("e").unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = list().collect();
    names.sort();
    assert_eq!(names, ["a", "b"]);
    let listing = list();
    volume.remove_file("e/a").unwrap();
    fails(volume.remove_dir("e"), ErrorKind::NotEmpty);
    volume.remove_file("e/b").unwrap();
    volume.remove_dir("e").unwrap();
    assert_eq!(listing.count(), 2, "they were read before");
    assert_eq!(open.metadata().nlink(), 0);
    fails(open.read_at(&mut [0; 10], 0), ErrorKind::IsDirectory);
    drop(open);
    assert_eq!(volume.read_dir("/").unwrap().count(), 1);
    consistency::check(&volume);
}

#[test]
fn an_open_file_outlives_its_name() {
    let volume = volume();
    volume.write("a", b"contents").unwrap();
    let a = volume.open_file("a").unwrap();
    volume.remove_file("a").unwrap();
    volume.drain_orphans();
    let mut contents = [0; 8];
    a.read_exact_at(&mut contents, 0).unwrap();
    assert_eq!(&contents, b"contents");
    drop(a);
    consistency::check(&volume);
    assert_eq!(volume.info().inodes, 1);
}

/// Programs that branch on an error's kind took another way than with `std::fs`: a directory that was there
/// counted as none when its path ended in a slash.
#[test]
fn paths_that_end_in_no_name_give_the_kinds_of_std() {
    let volume = volume();
    volume.create_dir("d").unwrap();
    volume.write("f", b"f").unwrap();
    volume.symlink("d", "l").unwrap();
    volume.symlink("nowhere", "dangling").unwrap();
    for taken in ["d/", "f/", "l/", "dangling/", ".", "d/.", "d/..", "/"] {
        fails(volume.create_dir(taken), ErrorKind::Exists);
        fails(volume.symlink("x", taken), ErrorKind::Exists);
        fails(volume.hard_link("f", taken), ErrorKind::Exists);
    }
    fails(volume.create_dir_all("f"), ErrorKind::Exists);
    fails(volume.create_dir_all("f/x"), ErrorKind::NotDirectory);
    fails(volume.create_dir("new/."), ErrorKind::NotFound);
    fails(volume.symlink("x", "new/"), ErrorKind::NotFound);
    fails(volume.hard_link("d", "f"), ErrorKind::Exists);
    fails(volume.hard_link("d", "new"), ErrorKind::NotPermitted);
    for path in [".", "d/.."] {
        fails(OpenOptions::new().write(true).create_new(true).open(&volume, path), ErrorKind::Exists);
    }
    fails(volume.write("new/.", ""), ErrorKind::NotFound);
    fails(volume.write("d/.", ""), ErrorKind::IsDirectory);
    fails(volume.remove_dir("."), ErrorKind::Invalid);
    fails(volume.remove_dir("d/."), ErrorKind::Invalid);
    fails(volume.remove_dir("/"), ErrorKind::Busy);
    fails(volume.remove_dir("f/"), ErrorKind::NotDirectory);
    fails(volume.remove_file("d/."), ErrorKind::IsDirectory);
    fails(volume.remove_file("f/"), ErrorKind::NotDirectory);
    fails(volume.rename("f", "d/"), ErrorKind::NotDirectory);
    fails(volume.rename("f", "new/"), ErrorKind::NotDirectory);
    fails(volume.rename("d", "d/."), ErrorKind::Busy);
    volume.create_dir("new/").unwrap();
    volume.rename("new/", "newer/").unwrap();
    volume.remove_dir("newer/").unwrap();
    consistency::check(&volume);
}

/// A read of a whole file took memory in steps until there was none, and the process was aborted; an exact
/// read near the end of all offsets overflowed.
#[test]
fn reads_of_what_no_memory_holds_are_errors() {
    let volume = volume();
    let file = volume.create_file("sparse").unwrap();
    file.set_len(1 << 60).unwrap();
    fails(volume.read("sparse"), ErrorKind::NoMemory);
    fails(
        volume.open_file("sparse").unwrap().read_exact_at(&mut [0; 4], u64::MAX - 1),
        ErrorKind::UnexpectedEof,
    );
}
