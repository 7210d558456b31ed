//! Attributes, extended attributes and access control lists.

use super::*;
use quire::FileType;
use quire::inodes::{Caller, SetAttributes, SetTime, XattrFlags};

const ANY: XattrFlags = XattrFlags::empty();
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

fn set(mode: Option<u32>) -> SetAttributes {
    SetAttributes { mode, ..SetAttributes::default() }
}

/// A list: (tag, permissions, id) per entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(permissions.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

const NO_ID: u32 = u32::MAX;

/// Owner `user`, user 1000, group `group`, mask, others.
fn wide(user: u16, named: u16, group: u16, mask: u16, other: u16) -> Vec<u8> {
    acl(&[(1, user, NO_ID), (2, named, 1000), (4, group, NO_ID), (0x10, mask, NO_ID), (0x20, other, NO_ID)])
}

#[test]
fn attributes_are_kept() {
    let backend = formatted();
    let volume = options(false).open_backend(backend.clone()).unwrap();
    let a = file(&volume, &volume.inodes().root(), b"a");
    let before = volume.inodes().metadata(&a);
    let change = SetAttributes {
        mode: Some(0o104711),
        uid: Some(1),
        gid: Some(2),
        size: Some(12345),
        atime: Some(SetTime::At(Timestamp(-5))),
        mtime: Some(SetTime::At(Timestamp(77))),
        ..SetAttributes::default()
    };
    let after = volume.inodes().set_attributes(&a, &change).unwrap();
    assert_eq!(after, volume.inodes().metadata(&a));
    assert!(after.changed() > before.changed());
    assert_eq!((after.mode(), after.uid(), after.gid(), after.len()), (0o104711, 1, 2, 12345));
    assert_eq!((after.atime(), after.atime_nsec()), (-1, 999_999_995));
    assert_eq!((after.mtime(), after.mtime_nsec()), (0, 77));
    let same = |metadata: &quire::Metadata| {
        (metadata.ino(), metadata.generation(), metadata.nlink(), metadata.blocks(), metadata.created())
    };
    assert_eq!(same(&after), same(&before));
    let now = SetAttributes { mtime: Some(SetTime::Now), ..SetAttributes::default() };
    let later = volume.inodes().set_attributes(&a, &now).unwrap();
    assert!(later.modified() > after.changed() && later.accessed() == after.accessed());
    drop(a);
    volume.close().unwrap();
    let volume = options(false).open_backend(backend).unwrap();
    assert_eq!(
        volume.inodes().metadata(&volume.inodes().lookup(&volume.inodes().root(), b"a").unwrap()),
        later
    );
}

#[test]
fn a_new_owner_ends_setuid_and_setgid() {
    let volume = volume();
    let root = volume.inodes().root();
    let a = file(&volume, &root, b"a");
    let owner = SetAttributes { uid: Some(9), ..SetAttributes::default() };
    let mode = |before: u32, change: &SetAttributes, inode: &InodeRef| {
        volume.inodes().set_attributes(inode, &set(Some(before))).unwrap();
        volume.inodes().set_attributes(inode, change).unwrap().permission_bits()
    };
    assert_eq!(mode(0o6755, &owner, &a), 0o755);
    // Without the group's right to execute the bit means something else.
    assert_eq!(mode(0o6745, &owner, &a), 0o2745);
    assert_eq!(mode(0o6755, &SetAttributes { mode: Some(0o6711), ..owner }, &a), 0o6711);
    let kill = SetAttributes { kill_suid_sgid: true, ..SetAttributes::default() };
    assert_eq!(mode(0o6755, &kill, &a), 0o755);
    let ctime = volume.inodes().metadata(&a).changed();
    volume.inodes().set_attributes(&a, &kill).unwrap();
    assert_eq!(volume.inodes().metadata(&a).changed(), ctime, "nothing to take away");
    let d = directory(&volume, &root, b"d");
    assert_eq!(mode(0o6755, &owner, &d), 0o6755);
}

#[test]
fn some_changes_are_refused() {
    let volume = volume();
    let root = volume.inodes().root();
    let link = volume.inodes().symlink(&root, b"l", b"x", Caller::default()).unwrap();
    fails(volume.inodes().set_attributes(&link, &set(Some(0o600))), ErrorKind::Unsupported);
    let size = SetAttributes { size: Some(0), ..SetAttributes::default() };
    fails(volume.inodes().set_attributes(&link, &size), ErrorKind::Invalid);
    fails(volume.inodes().set_attributes(&root, &size), ErrorKind::IsDirectory);
}

#[test]
fn a_setgid_directory_hands_its_group_down() {
    let volume = volume();
    let root = volume.inodes().root();
    let d = directory(&volume, &root, b"d");
    volume
        .inodes()
        .set_attributes(&d, &SetAttributes { gid: Some(50), mode: Some(0o2775), ..SetAttributes::default() })
        .unwrap();
    let caller = Caller { uid: 1, gid: 2 };
    let inside =
        volume.inodes().create(&d, b"f", &Create { caller, umask: 0o022, ..Create::file(0o666) }).unwrap();
    let sub = volume
        .inodes()
        .create(&d, b"s", &Create { caller, umask: 0o022, ..Create::directory(0o777) })
        .unwrap();
    let link = volume.inodes().symlink(&d, b"l", b"x", caller).unwrap();
    for (inode, mode) in [(&inside, 0o644), (&sub, 0o2755), (&link, 0o777)] {
        let attributes = volume.inodes().metadata(inode);
        assert_eq!((attributes.uid(), attributes.gid(), attributes.permission_bits()), (1, 50, mode));
    }
}

#[test]
fn extended_attributes_of_any_size_are_replaced_whole() {
    let backend = formatted();
    let mut volume = options(false).open_backend(backend.clone()).unwrap();
    let a = file(&volume, &volume.inodes().root(), b"a");
    let value = |len: usize| (0..len).map(|n| (n * 7 + len) as u8).collect::<Vec<u8>>();
    for len in [0, 1, 1000, 1024 - 11, 1024 - 10, 5000, 65536, 3000, 65536, 2] {
        volume.inodes().set_xattr(&a, b"user.a", &value(len), ANY).unwrap();
        assert_eq!(volume.inodes().get_xattr(&a, b"user.a").unwrap(), value(len));
    }
    volume.inodes().set_xattr(&a, b"user.b", &value(65536), XattrFlags::CREATE).unwrap();
    volume.inodes().set_xattr(&a, b"trusted.c", b"c", ANY).unwrap();
    fails(volume.inodes().set_xattr(&a, b"user.b", b"", XattrFlags::CREATE), ErrorKind::Exists);
    fails(volume.inodes().set_xattr(&a, b"user.d", b"", XattrFlags::REPLACE), ErrorKind::NoAttribute);
    fails(volume.inodes().set_xattr(&a, b"user.d", b"", XattrFlags::all()), ErrorKind::Invalid);
    fails(volume.inodes().set_xattr(&a, b"user.d", &value(65537), ANY), ErrorKind::TooLarge);
    fails(volume.inodes().remove_xattr(&a, b"user.d"), ErrorKind::NoAttribute);
    drop(a);
    volume.close().unwrap();
    volume = options(false).open_backend(backend).unwrap();
    let a = volume.inodes().lookup(&volume.inodes().root(), b"a").unwrap();
    let mut listed = volume.inodes().list_xattrs(&a).unwrap();
    listed.sort();
    assert_eq!(listed, [&b"trusted.c"[..], b"user.a", b"user.b"]);
    assert_eq!(volume.inodes().get_xattr(&a, b"user.a").unwrap(), value(2));
    assert_eq!(volume.inodes().get_xattr(&a, b"user.b").unwrap(), value(65536));
    for name in listed {
        volume.inodes().remove_xattr(&a, &name).unwrap();
        fails(volume.inodes().get_xattr(&a, &name), ErrorKind::NoAttribute);
    }
    assert!(volume.inodes().list_xattrs(&a).unwrap().is_empty());
}

#[test]
fn attribute_names_have_families() {
    let volume = volume();
    let root = volume.inodes().root();
    let link = volume.inodes().symlink(&root, b"l", b"x", Caller::default()).unwrap();
    let fifo =
        volume.inodes().create(&root, b"p", &Create { kind: FileType::Fifo, ..Create::file(0o600) }).unwrap();
    for inode in [&link, &fifo] {
        fails(volume.inodes().set_xattr(inode, b"user.a", b"", ANY), ErrorKind::NotPermitted);
        volume.inodes().set_xattr(inode, b"trusted.a", b"1", ANY).unwrap();
        volume.inodes().set_xattr(inode, b"security.selinux", b"2", ANY).unwrap();
        fails(volume.inodes().get_xattr(inode, b"user.a"), ErrorKind::NoAttribute);
    }
    fails(volume.inodes().set_xattr(&link, ACCESS, &wide(7, 7, 7, 7, 7), ANY), ErrorKind::Unsupported);
    for name in [&b"system.other"[..], b"nothing", b"users.a"] {
        fails(volume.inodes().set_xattr(&root, name, b"", ANY), ErrorKind::Unsupported);
        fails(volume.inodes().get_xattr(&root, name), ErrorKind::Unsupported);
    }
    fails(volume.inodes().set_xattr(&root, b"user.", b"", ANY), ErrorKind::Invalid);
    fails(volume.inodes().set_xattr(&root, b"", b"", ANY), ErrorKind::Range);
    fails(volume.inodes().set_xattr(&root, &[b'u'; 256], b"", ANY), ErrorKind::Range);
}

#[test]
fn attributes_of_one_hash_live_side_by_side() {
    let volume = volume();
    let a = file(&volume, &volume.inodes().root(), b"a");
    for [one, other] in COLLIDING_ATTRIBUTES {
        volume.inodes().set_xattr(&a, one, &[1; 3000], ANY).unwrap();
        volume.inodes().set_xattr(&a, other, &[2; 2000], ANY).unwrap();
        assert_eq!(volume.inodes().get_xattr(&a, one).unwrap(), [1; 3000]);
        assert_eq!(volume.inodes().get_xattr(&a, other).unwrap(), [2; 2000]);
        volume.inodes().remove_xattr(&a, one).unwrap();
        fails(volume.inodes().get_xattr(&a, one), ErrorKind::NoAttribute);
        assert_eq!(volume.inodes().get_xattr(&a, other).unwrap(), [2; 2000]);
        volume.inodes().set_xattr(&a, one, &[3; 10], XattrFlags::CREATE).unwrap();
        volume.inodes().set_xattr(&a, other, &[4; 5000], XattrFlags::REPLACE).unwrap();
        assert_eq!(volume.inodes().get_xattr(&a, one).unwrap(), [3; 10]);
        assert_eq!(volume.inodes().get_xattr(&a, other).unwrap(), [4; 5000]);
    }
    assert_eq!(volume.inodes().list_xattrs(&a).unwrap().len(), 4);
}

#[test]
fn an_access_list_and_the_mode_follow_one_another() {
    let volume = volume();
    let a = file(&volume, &volume.inodes().root(), b"a");
    let mode = |inode: &InodeRef| volume.inodes().metadata(inode).permission_bits();
    volume.inodes().set_attributes(&a, &set(Some(0o2640))).unwrap();
    volume.inodes().set_xattr(&a, ACCESS, &wide(7, 6, 5, 4, 1), ANY).unwrap();
    assert_eq!(mode(&a), 0o2741);
    volume.inodes().set_attributes(&a, &set(Some(0o3620))).unwrap();
    assert_eq!(volume.inodes().get_xattr(&a, ACCESS).unwrap(), wide(6, 6, 5, 2, 0));
    assert_eq!(mode(&a), 0o3620);
    // A list that is only a mode is not kept.
    volume.inodes().set_xattr(&a, ACCESS, &acl(&[(1, 5, 0), (4, 4, 0), (0x20, 4, 0)]), ANY).unwrap();
    fails(volume.inodes().get_xattr(&a, ACCESS), ErrorKind::NoAttribute);
    assert_eq!(mode(&a), 0o3544);
    assert!(volume.inodes().list_xattrs(&a).unwrap().is_empty());
    // Nor is an empty one.
    volume.inodes().set_xattr(&a, ACCESS, &wide(7, 6, 5, 4, 1), XattrFlags::ACL_KILL_SGID).unwrap();
    assert_eq!(mode(&a), 0o1741);
    volume.inodes().set_xattr(&a, ACCESS, &acl(&[]), ANY).unwrap();
    fails(volume.inodes().get_xattr(&a, ACCESS), ErrorKind::NoAttribute);
    fails(volume.inodes().set_xattr(&a, ACCESS, &wide(7, 8, 5, 4, 1), ANY), ErrorKind::Invalid);
    fails(volume.inodes().set_xattr(&a, DEFAULT, &wide(7, 6, 5, 4, 1), ANY), ErrorKind::AccessDenied);
}

#[test]
fn a_default_list_takes_the_umasks_place() {
    let backend = formatted();
    let volume = options(false).open_backend(backend.clone()).unwrap();
    let d = directory(&volume, &volume.inodes().root(), b"d");
    let make = |volume: &Volume, name: &[u8], create: Create| {
        let d = volume.inodes().lookup(&volume.inodes().root(), b"d").unwrap();
        volume.inodes().create(&d, name, &Create { umask: 0o077, ..create }).unwrap()
    };
    let plain = make(&volume, b"plain", Create::file(0o666));
    assert_eq!(volume.inodes().metadata(&plain).permission_bits(), 0o600);
    volume.inodes().set_xattr(&d, DEFAULT, &wide(7, 6, 5, 7, 0), ANY).unwrap();
    for volume in [volume.clone(), {
        volume.sync().unwrap();
        options(false).open_backend(copy_of(&backend)).unwrap()
    }] {
        let f = make(&volume, b"f", Create::file(0o664));
        assert_eq!(volume.inodes().metadata(&f).permission_bits(), 0o660);
        assert_eq!(volume.inodes().get_xattr(&f, ACCESS).unwrap(), wide(6, 6, 5, 6, 0));
        assert_eq!(volume.inodes().list_xattrs(&f).unwrap(), [ACCESS]);
        let s = make(&volume, b"s", Create::directory(0o755));
        assert_eq!(volume.inodes().metadata(&s).permission_bits(), 0o750);
        assert_eq!(volume.inodes().get_xattr(&s, ACCESS).unwrap(), wide(7, 6, 5, 5, 0));
        assert_eq!(volume.inodes().get_xattr(&s, DEFAULT).unwrap(), wide(7, 6, 5, 7, 0));
        let link = volume.inodes().symlink(&s, b"l", b"x", Caller::default()).unwrap();
        assert!(volume.inodes().list_xattrs(&link).unwrap().is_empty());
    }
    // A default list without names gives a mode and no access list.
    let three = acl(&[(1, 7, NO_ID), (4, 5, NO_ID), (0x20, 0, NO_ID)]);
    volume.inodes().set_xattr(&d, DEFAULT, &three, ANY).unwrap();
    let g = make(&volume, b"g", Create::file(0o666));
    assert_eq!(volume.inodes().metadata(&g).permission_bits(), 0o640);
    assert!(volume.inodes().list_xattrs(&g).unwrap().is_empty());
    // The removal of a list that was not there failed, where ext4 and XFS succeed.
    for _ in 0..2 {
        volume.inodes().remove_xattr(&d, DEFAULT).unwrap();
        volume.inodes().remove_xattr(&d, ACCESS).unwrap();
    }
    let h = make(&volume, b"h", Create::file(0o666));
    assert_eq!(volume.inodes().metadata(&h).permission_bits(), 0o600);
    consistency::check(&volume);
}
