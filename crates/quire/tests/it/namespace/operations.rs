//! What each operation does and what it refuses.

use super::*;
use quire::inodes::Caller;
use quire::{FileType, RenameFlags};
use quire_device::SimulatedBackend;
use quire_device::simulated::CrashPolicy;
use std::sync::Arc;

const NONE: RenameFlags = RenameFlags::empty();

#[test]
fn creating_and_looking_up() {
    let volume = volume();
    let root = volume.inodes().root();
    let a = file(&volume, &root, b"a");
    let d = directory(&volume, &root, b"d");
    assert_eq!(volume.inodes().lookup(&root, b"a").unwrap().number(), a.number());
    assert_eq!(volume.inodes().lookup(&d, b".").unwrap().number(), d.number());
    assert_eq!(volume.inodes().lookup(&d, b"..").unwrap().number(), root.number());
    assert_eq!(volume.inodes().lookup(&root, b"..").unwrap().number(), root.number());
    assert_eq!((links(&volume, &root), links(&volume, &d), links(&volume, &a)), (3, 2, 1));
    fails(volume.inodes().lookup(&root, b"b"), ErrorKind::NotFound);
    fails(volume.inodes().lookup(&a, b"b"), ErrorKind::NotDirectory);
    fails(volume.inodes().lookup(&root, b""), ErrorKind::Invalid);
    fails(volume.inodes().lookup(&root, b"x/y"), ErrorKind::Invalid);
    fails(volume.inodes().lookup(&root, &[b'x'; 256]), ErrorKind::NameTooLong);
    for name in [&b"a"[..], b"d", b".", b".."] {
        fails(volume.inodes().create(&root, name, &Create::file(0o644)), ErrorKind::Exists);
    }
    fails(volume.inodes().create(&a, b"x", &Create::file(0o644)), ErrorKind::NotDirectory);
    let symlink = Create { kind: FileType::Symlink, ..Create::file(0) };
    fails(volume.inodes().create(&root, b"s", &symlink), ErrorKind::Invalid);
    file(&volume, &root, &[b'x'; 255]);
    consistency::check(&volume);
}

/// A rename may leave a whiteout, and every crash leaves the old name as it was, or both names as they are
/// then. No whiteout is left without a name.
#[test]
fn a_rename_leaves_a_whiteout_or_nothing_has_happened() {
    for replaces in [false, true] {
        let (device, volume) = crate::common::new_volume(4096);
        let root = volume.inodes().root();
        let moved = file(&volume, &root, b"a").number();
        let d = directory(&volume, &root, b"d");
        let replaced = replaces.then(|| file(&volume, &d, b"b").number());
        volume.sync().unwrap();
        let exchange = RenameFlags::WHITEOUT | RenameFlags::EXCHANGE;
        fails(volume.inodes().rename(&root, b"a", &d, b"b", exchange), ErrorKind::Invalid);
        let refused = RenameFlags::WHITEOUT | RenameFlags::NOREPLACE;
        if replaces {
            fails(volume.inodes().rename(&root, b"a", &d, b"b", refused), ErrorKind::Exists);
        }
        let from = device.event_count();
        volume.inodes().rename(&root, b"a", &d, b"b", RenameFlags::WHITEOUT).unwrap();
        volume.sync().unwrap();
        volume.checkpoint().unwrap();
        let mut seen = [0; 2];
        for event in from..=device.event_count() {
            for policy in
                [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Power { seed: event as u64 }]
            {
                let Some(image) = device.crash_at(event, policy) else { continue };
                let crashed = Arc::new(SimulatedBackend::from_image(image));
                let volume = crate::common::options().open_backend(crashed).unwrap();
                volume.drain_orphans();
                let inodes = volume.inodes();
                let d = inodes.lookup(&inodes.root(), b"d").unwrap();
                let old = inodes.lookup(&inodes.root(), b"a").unwrap();
                let new = inodes.lookup(&d, b"b").ok().map(|inode| inode.number());
                let has_moved = old.number() != moved;
                assert_eq!(new, if has_moved { Some(moved) } else { replaced });
                if has_moved {
                    let attributes = inodes.metadata(&old);
                    assert_eq!(attributes.file_type(), FileType::CharDevice);
                    assert_eq!(
                        (attributes.rdev(), attributes.nlink(), attributes.permission_bits()),
                        (0, 1, 0)
                    );
                }
                let inodes = 3 + u64::from(replaces || has_moved);
                assert_eq!(volume.info().inodes, inodes, "{event} {policy:?}");
                consistency::check(&volume);
                seen[usize::from(has_moved)] += 1;
            }
        }
        assert!(seen.iter().all(|images| *images > 0), "{seen:?}");
    }
}

#[test]
fn devices_fifos_and_sockets_keep_their_kind() {
    let backend = formatted();
    let volume = options(false).open_backend(backend.clone()).unwrap();
    let kinds = [FileType::Fifo, FileType::Socket, FileType::CharDevice, FileType::BlockDevice];
    for kind in kinds {
        let caller = Caller { uid: 5, gid: 6 };
        let create = Create { kind, umask: 0o022, rdev: 0x0803, caller, ..Create::file(0o660) };
        volume.inodes().create(&volume.inodes().root(), format!("{kind:?}").as_bytes(), &create).unwrap();
    }
    volume.close().unwrap();
    let volume = options(false).open_backend(backend).unwrap();
    for kind in kinds {
        let inode = volume.inodes().lookup(&volume.inodes().root(), format!("{kind:?}").as_bytes()).unwrap();
        let attributes = volume.inodes().metadata(&inode);
        assert_eq!(
            (attributes.file_type(), attributes.permission_bits(), attributes.uid(), attributes.gid()),
            (kind, 0o640, 5, 6)
        );
        assert_eq!(attributes.rdev(), if kind.is_device() { 0x0803 } else { 0 });
    }
}

#[test]
fn links_are_counted_and_the_last_one_frees() {
    let volume = volume();
    let root = volume.inodes().root();
    let a = file(&volume, &root, b"a");
    let d = directory(&volume, &root, b"d");
    volume.inodes().hard_link(&a, &d, b"b").unwrap();
    assert_eq!(links(&volume, &a), 2);
    fails(volume.inodes().hard_link(&a, &d, b"b"), ErrorKind::Exists);
    fails(volume.inodes().hard_link(&a, &d, b"."), ErrorKind::Exists);
    fails(volume.inodes().hard_link(&d, &root, b"e"), ErrorKind::NotPermitted);
    volume.inodes().remove_file(&root, b"a").unwrap();
    fails(volume.inodes().remove_file(&root, b"a"), ErrorKind::NotFound);
    fails(volume.inodes().remove_file(&root, b"d"), ErrorKind::IsDirectory);
    assert_eq!(links(&volume, &a), 1);
    volume.inodes().remove_file(&d, b"b").unwrap();
    assert_eq!(links(&volume, &a), 0);
    fails(volume.inodes().hard_link(&a, &d, b"again"), ErrorKind::NotFound);
    volume.drain_orphans();
    assert_eq!(volume.info().inodes, 3, "it lives while somebody has it");
    let number = a.number();
    drop(a);
    consistency::check(&volume);
    assert_eq!(volume.info().inodes, 2);
    fails(volume.inodes().get(number), ErrorKind::Stale);
}

#[test]
fn directories_are_removed_empty() {
    let volume = volume();
    let root = volume.inodes().root();
    let d = directory(&volume, &root, b"d");
    file(&volume, &d, b"a");
    fails(volume.inodes().remove_dir(&root, b"d"), ErrorKind::NotEmpty);
    fails(volume.inodes().remove_dir(&d, b"a"), ErrorKind::NotDirectory);
    fails(volume.inodes().remove_dir(&d, b".."), ErrorKind::NotEmpty);
    fails(volume.inodes().remove_dir(&d, b"."), ErrorKind::Invalid);
    volume.inodes().remove_file(&d, b"a").unwrap();
    volume.inodes().remove_dir(&root, b"d").unwrap();
    assert_eq!((links(&volume, &root), links(&volume, &d)), (2, 0));
    // A holder of it can still look, and make nothing.
    fails(volume.inodes().lookup(&d, b"a"), ErrorKind::NotFound);
    fails(volume.inodes().create(&d, b"a", &Create::file(0o644)), ErrorKind::NotFound);
    fails(volume.inodes().tmpfile(&d, &Create::file(0o644)), ErrorKind::NotFound);
    fails(volume.inodes().read_dir(&d, 0, &mut |_| true), ErrorKind::NotFound);
    assert_eq!(volume.inodes().lookup(&d, b"..").unwrap().number(), root.number());
    drop(d);
    consistency::check(&volume);
    assert_eq!(volume.info().inodes, 1);
}

#[test]
fn symbolic_links_keep_their_target() {
    let backend = formatted();
    let volume = options(false).open_backend(backend.clone()).unwrap();
    let root = volume.inodes().root();
    let long: Vec<u8> = (0..4095u32).map(|n| b'a' + (n % 26) as u8).collect();
    let targets = [&b"x"[..], b"/a/b", &long[..1024], &long[..1025], &long[..2048], &long];
    for (n, target) in targets.iter().enumerate() {
        volume.inodes().symlink(&root, n.to_string().as_bytes(), target, Caller::default()).unwrap();
    }
    fails(volume.inodes().symlink(&root, b"e", b"", Caller::default()), ErrorKind::NotFound);
    fails(volume.inodes().symlink(&root, b"e", &[b'x'; 4096], Caller::default()), ErrorKind::NameTooLong);
    fails(volume.inodes().symlink(&root, b"e", b"a\0b", Caller::default()), ErrorKind::Invalid);
    fails(volume.inodes().read_link(&root), ErrorKind::Invalid);
    volume.close().unwrap();
    let volume = options(false).open_backend(backend).unwrap();
    for (n, target) in targets.iter().enumerate() {
        let link = volume.inodes().lookup(&volume.inodes().root(), n.to_string().as_bytes()).unwrap();
        assert_eq!(volume.inodes().read_link(&link).unwrap(), *target);
        assert_eq!(volume.inodes().metadata(&link).size(), target.len() as u64);
        drop(link);
        volume.inodes().remove_file(&volume.inodes().root(), n.to_string().as_bytes()).unwrap();
    }
    consistency::check(&volume);
}

#[test]
fn a_file_without_a_name_gets_one_or_goes() {
    let backend = formatted();
    let volume = options(false).open_backend(backend.clone()).unwrap();
    let root = volume.inodes().root();
    let kept = volume.inodes().tmpfile(&root, &Create::file(0o600)).unwrap();
    let dropped = volume.inodes().tmpfile(&root, &Create::file(0o600)).unwrap();
    let left = volume.inodes().tmpfile(&root, &Create::file(0o600)).unwrap();
    assert_eq!(links(&volume, &kept), 0);
    volume.inodes().hard_link(&kept, &root, b"kept").unwrap();
    assert_eq!(links(&volume, &kept), 1);
    drop(dropped);
    volume.drain_orphans();
    assert_eq!(volume.info().inodes, 3);
    // A crash takes what has no name.
    volume.sync().unwrap();
    let recovered = options(false).open_backend(copy_of(&backend)).unwrap();
    consistency::check(&recovered);
    assert_eq!(names(&recovered, &recovered.inodes().root()), [b"kept"]);
    fails(recovered.inodes().get(left.number()), ErrorKind::Stale);
    // Unlinked, it gets no second name.
    volume.inodes().remove_file(&root, b"kept").unwrap();
    fails(volume.inodes().hard_link(&kept, &root, b"again"), ErrorKind::NotFound);
    fails(volume.inodes().tmpfile(&root, &Create::directory(0o755)), ErrorKind::Invalid);
}

#[test]
fn renaming_moves_replaces_and_exchanges() {
    let volume = volume();
    let root = volume.inodes().root();
    let (d, e) = (directory(&volume, &root, b"d"), directory(&volume, &root, b"e"));
    let a = file(&volume, &d, b"a");
    volume.inodes().rename(&d, b"a", &e, b"b", NONE).unwrap();
    fails(volume.inodes().lookup(&d, b"a"), ErrorKind::NotFound);
    assert_eq!(volume.inodes().lookup(&e, b"b").unwrap().number(), a.number());
    fails(volume.inodes().rename(&d, b"a", &e, b"b", NONE), ErrorKind::NotFound);

    let c = file(&volume, &d, b"c");
    fails(volume.inodes().rename(&d, b"c", &e, b"b", RenameFlags::NOREPLACE), ErrorKind::Exists);
    volume.inodes().rename(&d, b"c", &e, b"b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(volume.inodes().lookup(&d, b"c").unwrap().number(), a.number());
    assert_eq!(volume.inodes().lookup(&e, b"b").unwrap().number(), c.number());
    fails(volume.inodes().rename(&d, b"c", &e, b"none", RenameFlags::EXCHANGE), ErrorKind::NotFound);
    fails(volume.inodes().rename(&d, b"c", &e, b"b", RenameFlags::all()), ErrorKind::Invalid);

    volume.inodes().rename(&d, b"c", &e, b"b", NONE).unwrap();
    assert_eq!((links(&volume, &a), links(&volume, &c)), (1, 0));
    assert!(names(&volume, &d).is_empty());
    drop((a, c));
    consistency::check(&volume);
}

#[test]
fn renaming_onto_a_link_of_the_same_file_does_nothing() {
    let volume = volume();
    let root = volume.inodes().root();
    let a = file(&volume, &root, b"a");
    volume.inodes().hard_link(&a, &root, b"b").unwrap();
    for flags in [NONE, RenameFlags::EXCHANGE] {
        volume.inodes().rename(&root, b"a", &root, b"b", flags).unwrap();
        volume.inodes().rename(&root, b"a", &root, b"a", flags).unwrap();
    }
    fails(volume.inodes().rename(&root, b"a", &root, b"a", RenameFlags::NOREPLACE), ErrorKind::Exists);
    assert_eq!(names(&volume, &root), [b"a", b"b"]);
    assert_eq!(links(&volume, &a), 2);
}

#[test]
fn renaming_directories_keeps_parents_and_links() {
    let volume = volume();
    let root = volume.inodes().root();
    let (d, e) = (directory(&volume, &root, b"d"), directory(&volume, &root, b"e"));
    let s = directory(&volume, &d, b"s");
    assert_eq!((links(&volume, &d), links(&volume, &e)), (3, 2));
    volume.inodes().rename(&d, b"s", &e, b"t", NONE).unwrap();
    assert_eq!((links(&volume, &d), links(&volume, &e)), (2, 3));
    assert_eq!(volume.inodes().lookup(&s, b"..").unwrap().number(), e.number());
    // Over an empty directory, in another directory and in the same.
    let u = directory(&volume, &d, b"u");
    volume.inodes().rename(&d, b"u", &e, b"t", NONE).unwrap();
    assert_eq!(
        (links(&volume, &d), links(&volume, &e), links(&volume, &s), links(&volume, &u)),
        (2, 3, 0, 2)
    );
    fails(volume.inodes().create(&s, b"x", &Create::file(0o644)), ErrorKind::NotFound);
    directory(&volume, &e, b"v");
    volume.inodes().rename(&e, b"v", &e, b"t", NONE).unwrap();
    assert_eq!((links(&volume, &e), links(&volume, &u)), (3, 0));
    // A file and a directory change places.
    let f = file(&volume, &d, b"f");
    volume.inodes().rename(&d, b"f", &e, b"t", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((links(&volume, &d), links(&volume, &e)), (3, 2));
    assert_eq!(volume.inodes().lookup(&e, b"t").unwrap().number(), f.number());
    drop((s, u));
    consistency::check(&volume);
}

#[test]
fn renaming_refuses_what_cannot_be() {
    let volume = volume();
    let root = volume.inodes().root();
    let d = directory(&volume, &root, b"d");
    let s = directory(&volume, &d, b"s");
    let t = directory(&volume, &s, b"t");
    let full = directory(&volume, &root, b"full");
    file(&volume, &full, b"x");
    file(&volume, &root, b"f");
    file(&volume, &t, b"g");
    fails(volume.inodes().rename(&root, b"d", &d, b"x", NONE), ErrorKind::Invalid);
    fails(volume.inodes().rename(&root, b"d", &t, b"x", NONE), ErrorKind::Invalid);
    fails(volume.inodes().rename(&root, b"d", &t, b"g", RenameFlags::EXCHANGE), ErrorKind::Invalid);
    fails(volume.inodes().rename(&t, b"g", &root, b"d", RenameFlags::EXCHANGE), ErrorKind::Invalid);
    fails(volume.inodes().rename(&s, b"t", &root, b"d", NONE), ErrorKind::NotEmpty);
    fails(volume.inodes().rename(&t, b"g", &root, b"d", NONE), ErrorKind::IsDirectory);
    fails(volume.inodes().rename(&root, b"d", &root, b"full", NONE), ErrorKind::NotEmpty);
    fails(volume.inodes().rename(&root, b"f", &root, b"d", NONE), ErrorKind::IsDirectory);
    fails(volume.inodes().rename(&root, b"d", &root, b"f", NONE), ErrorKind::NotDirectory);
    fails(volume.inodes().rename(&root, b"d", &root, b"..", NONE), ErrorKind::Invalid);
    fails(volume.inodes().rename(&root, b".", &root, b"x", NONE), ErrorKind::Invalid);
    fails(volume.inodes().rename(&root, b"d", &root, b".", RenameFlags::NOREPLACE), ErrorKind::Exists);
    consistency::check(&volume);
}

#[test]
fn listing_goes_on_behind_a_cookie_whatever_comes_and_goes() {
    let volume = volume();
    let root = volume.inodes().root();
    for n in 0..1000 {
        file(&volume, &root, format!("kept{n}").as_bytes());
    }
    for n in 0..300 {
        file(&volume, &root, format!("goes{n}").as_bytes());
    }
    let mut seen = Vec::new();
    let mut after = 0;
    let mut round = 0;
    loop {
        let before = seen.len();
        volume
            .inodes()
            .read_dir(&root, after, &mut |entry| {
                after = entry.cookie;
                seen.push(entry.name.to_vec());
                seen.len() - before < 37
            })
            .unwrap();
        if seen.len() == before {
            break;
        }
        // From within the listing, since no lock is held: names come and go.
        if round < 300 {
            volume.inodes().remove_file(&root, format!("goes{round}").as_bytes()).unwrap();
            file(&volume, &root, format!("comes{round}").as_bytes());
        }
        round += 1;
    }
    let mut kept: Vec<_> = seen.iter().filter(|name| name.starts_with(b"kept")).collect();
    kept.sort();
    kept.dedup();
    assert_eq!(kept.len(), 1000);
    let all = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), all, "no name twice");
    assert_eq!(seen.iter().filter(|name| matches!(name.as_slice(), b"." | b"..")).count(), 2);
    volume.inodes().read_dir(&root, u64::MAX, &mut |_| panic!("nothing is behind the last cookie")).unwrap();
}

#[test]
fn a_listing_may_change_the_directory_it_lists() {
    let volume = volume();
    let root = volume.inodes().root();
    for n in 0..500 {
        file(&volume, &root, n.to_string().as_bytes());
    }
    volume
        .inodes()
        .read_dir(&root, 2, &mut |entry| {
            volume.inodes().remove_file(&root, entry.name).unwrap();
            true
        })
        .unwrap();
    consistency::check(&volume);
    assert_eq!(volume.info().inodes, 1);
}

#[test]
fn a_read_only_volume_refuses_changes() {
    let backend = formatted();
    let volume = options(false).open_backend(backend.clone()).unwrap();
    file(&volume, &volume.inodes().root(), b"a");
    volume.close().unwrap();
    let read_only = options(false).read_only(true);
    let volume = read_only.open_backend(backend).unwrap();
    let root = volume.inodes().root();
    let a = volume.inodes().lookup(&root, b"a").unwrap();
    fails(volume.inodes().create(&root, b"b", &Create::file(0o644)), ErrorKind::ReadOnly);
    fails(volume.inodes().remove_file(&root, b"a"), ErrorKind::ReadOnly);
    fails(volume.inodes().rename(&root, b"a", &root, b"b", NONE), ErrorKind::ReadOnly);
    fails(volume.inodes().hard_link(&a, &root, b"b"), ErrorKind::ReadOnly);
    fails(volume.inodes().set_xattr(&a, b"user.a", b"", Default::default()), ErrorKind::ReadOnly);
    assert_eq!(names(&volume, &root), [b"a"]);
}

#[test]
fn changes_of_a_directory_show_in_its_times() {
    let volume = volume();
    let root = volume.inodes().root();
    let d = directory(&volume, &root, b"d");
    let mut last = volume.inodes().metadata(&d).modified();
    let mut changed = |what: &str| {
        let attributes = volume.inodes().metadata(&d);
        assert!(attributes.modified() > last, "{what}: {:?} after {last:?}", attributes.modified());
        assert_eq!(attributes.modified(), attributes.changed(), "{what}");
        last = attributes.modified();
    };
    let a = file(&volume, &d, b"a");
    changed("create");
    volume.inodes().hard_link(&a, &d, b"b").unwrap();
    changed("link");
    volume.inodes().rename(&d, b"b", &d, b"c", NONE).unwrap();
    changed("rename");
    volume.inodes().remove_file(&d, b"c").unwrap();
    changed("unlink");
    directory(&volume, &d, b"e");
    changed("mkdir");
    volume.inodes().remove_dir(&d, b"e").unwrap();
    changed("rmdir");
    volume.inodes().rename(&d, b"a", &root, b"a", NONE).unwrap();
    changed("rename away");
}

#[test]
fn names_of_one_hash_live_side_by_side() {
    let volume = volume();
    let root = volume.inodes().root();
    for [one, other] in COLLIDING_NAMES {
        let cookie = |name: &[u8]| {
            let mut found = None;
            volume
                .inodes()
                .read_dir(&root, 2, &mut |entry| {
                    found = (entry.name == name).then_some(entry.cookie).or(found);
                    true
                })
                .unwrap();
            found
        };
        let (a, b) = (file(&volume, &root, one), file(&volume, &root, other));
        let (first, second) = (cookie(one).unwrap(), cookie(other).unwrap());
        assert_eq!(
            (first >> 16, first + 1),
            (second >> 16, second),
            "a collision, and the lowest free place"
        );
        assert_eq!(volume.inodes().lookup(&root, one).unwrap().number(), a.number());
        assert_eq!(volume.inodes().lookup(&root, other).unwrap().number(), b.number());
        // The one behind keeps its place when the one before goes; the place is taken again.
        volume.inodes().remove_file(&root, one).unwrap();
        assert_eq!((cookie(one), cookie(other)), (None, Some(second)));
        assert_eq!(volume.inodes().lookup(&root, other).unwrap().number(), b.number());
        fails(volume.inodes().lookup(&root, one), ErrorKind::NotFound);
        volume.inodes().rename(&root, other, &root, one, NONE).unwrap();
        assert_eq!((cookie(one), cookie(other)), (Some(first), None));
        volume.inodes().rename(&root, one, &root, other, NONE).unwrap();
        assert_eq!((cookie(one), cookie(other)), (None, Some(second)));
        file(&volume, &root, one);
        volume.inodes().rename(&root, one, &root, other, RenameFlags::EXCHANGE).unwrap();
        assert_eq!(volume.inodes().lookup(&root, one).unwrap().number(), b.number());
        volume.inodes().rename(&root, one, &root, other, NONE).unwrap();
        assert_eq!((cookie(one), cookie(other)), (None, Some(second)));
    }
    consistency::check(&volume);
}
