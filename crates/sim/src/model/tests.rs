//! What the model says of single operations.

use super::*;

/// Where some writes failed, every operation was excused that failed with the device's error, also one
/// that only looks or changes names alone. With several threads, and in a file that a failed write left
/// open, a read was right whatever error it gave.
#[test]
fn failing_writes_leave_the_rest_alone() {
    for (keeps_contents, vague) in [(true, false), (false, false), (true, true)] {
        let mut model = Model::new(keeps_contents);
        model.may_fail = true;
        let (file, name, unused) = (2, Name(0), Name(1));
        let create = |name| {
            let (kind, mode) = (FileType::Regular, 0o600);
            Operation::Create { directory: ROOT, name, kind, mode }
        };
        model.apply(OpId(0), &create(name), &Outcome::Inode(file)).unwrap();
        model.edit(file).file.vague = vague;
        let failed = Outcome::Error(ErrorKind::Io);
        let read = |flags| Operation::Read { inode: file, offset: 0, length: 10, flags };
        for operation in [read(IoFlags::DIRECT), Operation::Sync, Operation::TakeSnapshot { name: 0 }] {
            assert_eq!(model.apply(OpId(1), &operation, &failed), Ok(()), "{operation:?}");
        }
        let sound = [
            read(IoFlags::empty()),
            Operation::Lookup { directory: ROOT, name },
            Operation::ReadDirectory { directory: ROOT },
            Operation::Attributes { inode: file },
            Operation::Forget { inode: file },
            create(unused),
            Operation::Unlink { directory: ROOT, name },
            Operation::ChangeMode { inode: file, mode: 0o640 },
        ];
        for operation in sound {
            assert!(model.apply(OpId(2), &operation, &failed).is_err(), "{operation:?}");
        }
        model.may_lack_room = true;
        let set_mode = Operation::ChangeMode { inode: file, mode: 0o640 };
        assert_eq!(model.apply(OpId(3), &set_mode, &failed), Ok(()), "it may wait for a checkpoint");
        assert!(model.apply(OpId(3), &read(IoFlags::empty()), &failed).is_err());
        let corrupt = Outcome::Error(ErrorKind::Corrupt);
        assert!(model.apply(OpId(3), &read(IoFlags::DIRECT), &corrupt).is_err());
    }
}

/// With several threads a read was right however many bytes it gave.
#[test]
fn a_read_has_the_bytes_that_the_file_has() {
    let mut model = Model::new(false);
    let (file, name) = (2, Name(0));
    let create = Operation::Create { directory: ROOT, name, kind: FileType::Regular, mode: 0o600 };
    model.apply(OpId(0), &create, &Outcome::Inode(file)).unwrap();
    let grow = Operation::Truncate { inode: file, size: 100 };
    model.apply(OpId(1), &grow, &Outcome::Done).unwrap();
    let read = Operation::Read { inode: file, offset: 40, length: 200, flags: IoFlags::empty() };
    let mut reads = |bytes| model.apply(OpId(2), &read, &Outcome::Bytes(vec![0; bytes]));
    assert_eq!(reads(60), Ok(()));
    assert!(reads(59).is_err() && reads(0).is_err() && reads(200).is_err());
}

/// A large write met the failing write of another before its last piece, and the model knew no short
/// write that goes to the cache.
#[test]
fn a_write_in_pieces_may_end_behind_one() {
    let mut model = Model::new(true);
    let (file, name) = (2, Name(0));
    let create = Operation::Create { directory: ROOT, name, kind: FileType::Regular, mode: 0o600 };
    model.apply(OpId(0), &create, &Outcome::Inode(file)).unwrap();
    let written = |may_fail, length, count| {
        let mut model = Model { may_fail, ..model.clone() };
        let write = Operation::Write { inode: file, offset: 100, length, flags: IoFlags::empty() };
        model.apply(OpId(1), &write, &Outcome::Written { at: 100, count })?;
        let file = &model.inodes[&file].file;
        Ok::<_, String>((file.size, file.vague))
    };
    let pieces = 2 * PIECE - 100;
    assert!(written(false, 3 * PIECE, pieces).is_err(), "no write fails");
    assert!(written(true, 3 * PIECE, pieces - 1).is_err());
    assert!(written(true, PIECE, PIECE - 100).is_err());
    assert_eq!(written(true, 3 * PIECE, pieces), Ok((2 * PIECE, false)), "nothing is behind it");
}

/// A full volume was excused whatever it refused, also what would have made room.
#[test]
fn a_full_volume_lets_go_of_things() {
    let mut model = Model::new(true);
    model.may_be_full = true;
    let (file, name) = (2, Name(0));
    let create = Operation::Create { directory: ROOT, name, kind: FileType::Regular, mode: 0o600 };
    model.apply(OpId(0), &create, &Outcome::Inode(file)).unwrap();
    let grow = Operation::Truncate { inode: file, size: 5000 };
    model.apply(OpId(1), &grow, &Outcome::Done).unwrap();
    let full = Outcome::Error(ErrorKind::NoSpace);
    let larger = Operation::Truncate { inode: file, size: 6000 };
    for operation in [create, larger, Operation::Sync] {
        assert_eq!(model.apply(OpId(2), &operation, &full), Ok(()), "{operation:?}");
    }
    let smaller = Operation::Truncate { inode: file, size: 4000 };
    let unlink = Operation::Unlink { directory: ROOT, name };
    let read = Operation::Read { inode: file, offset: 0, length: 10, flags: IoFlags::empty() };
    for operation in [grow, smaller.clone(), unlink, read, Operation::ReadDirectory { directory: ROOT }] {
        assert!(model.apply(OpId(3), &operation, &full).is_err(), "{operation:?}");
    }
    model.apply(OpId(4), &Operation::TakeSnapshot { name: 0 }, &Outcome::Taken(1)).unwrap();
    assert_eq!(model.apply(OpId(5), &smaller, &full), Ok(()), "the block may be the snapshot's, too");
    let whole = Operation::Truncate { inode: file, size: 0 };
    assert!(model.apply(OpId(6), &whole, &full).is_err());
}
