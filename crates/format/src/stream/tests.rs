use super::*;
use crate::inode::FileType;
use quire_base::Timestamp;

fn header() -> Header {
    Header {
        id: SnapshotId { volume: [9; 16], number: 4, created: Timestamp(77) },
        parent: Some(SnapshotId { volume: [9; 16], number: 3, created: Timestamp(70) }),
        resumed: None,
        hash_seed: [1, 2],
        blocks: 3,
        bytes: 4,
        name: "näme".into(),
    }
}

fn record() -> InodeRecord {
    InodeRecord {
        mode: FileType::Regular.to_mode() | 0o640,
        flags: 0,
        uid: 1,
        gid: 2,
        nlink: 1,
        xattr_bytes: 0,
        size: 9000,
        blocks: 3,
        atime: Timestamp(1),
        mtime: Timestamp(2),
        ctime: Timestamp(3),
        btime: Timestamp(4),
        generation: 5,
        rdev: 0,
        parent: 0,
    }
}

fn items() -> Vec<Item<'static>> {
    let name =
        dirent::Entry { inode: InodeNo(5), generation: 6, file_type: FileType::Regular, name: b"n" }.encode();
    let entry = Key::entry(InodeNo(1), dirent::cookie(3, 0));
    vec![
        Item::Value(entry, name.leak()),
        Item::Gone(InodeNo(4)),
        Item::Inode(InodeNo(5), record()),
        Item::Value(Key::symlink(InodeNo(6), 0), b"target"),
        Item::Value(Key::xattr(InodeNo(5), 7, 0, 1), b"piece"),
        Item::NoValue(Key::xattr(InodeNo(5), 8, 0, 0)),
        Item::Data { inode: InodeNo(5), file_block: 2, bytes: &[0xab; 2 * BLOCK_SIZE] },
        Item::Unwritten(InodeNo(5), Blocks { start: 9, count: 1 << 40 }),
        Item::Hole(InodeNo(5), Blocks { start: 0, count: FILE_BLOCKS_MAX }),
    ]
}

fn stream() -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = StreamWriter::new(&mut out, &header()).unwrap();
    items().iter().for_each(|item| writer.item(item).unwrap());
    writer.end(99).unwrap();
    out
}

/// Items that a reader gives before its end or its error.
fn read(mut bytes: &[u8]) -> (usize, Result<()>) {
    let mut count = 0;
    let outcome = StreamReader::open(&mut bytes).and_then(|(_, mut reader)| {
        while reader.next()?.is_some() {
            count += 1;
        }
        Ok(())
    });
    (count, outcome)
}

#[test]
fn what_is_written_is_read() {
    let bytes = stream();
    let mut input = &bytes[..];
    let (found, mut reader) = StreamReader::open(&mut input).unwrap();
    assert_eq!(found, header());
    for item in items() {
        assert_eq!(reader.next().unwrap().unwrap().0, item);
    }
    let blocks = 2 + (1 << 40);
    let end = Totals { items: items().len() as u64, blocks, next_inode: 99 };
    assert_eq!(reader.next().unwrap().unwrap().0, Item::End(end));
    assert_eq!(reader.next().unwrap(), None);
    assert_eq!(reader.position().bytes, bytes.len() as u64);
}

#[test]
fn counting_gives_what_writing_takes() {
    let mut writer = StreamWriter::counting();
    for item in items() {
        match &item {
            Item::Data { .. } => writer.left_out(item.blocks()).unwrap(),
            item => writer.item(item).unwrap(),
        }
    }
    writer.end(99).unwrap();
    assert_eq!(writer.position().bytes, stream().len() as u64);
    assert_eq!(writer.blocks(), 2 + (1 << 40));
}

/// A sealed header said that so many items lay before the stream that the number after its first one
/// overflowed.
#[test]
fn a_position_that_no_stream_comes_to_is_refused() {
    let position = Position { items: u64::MAX, bytes: HEADER_BYTES as u64, checksum: 3 };
    let mut out = Vec::new();
    StreamWriter::new(&mut out, &Header { resumed: Some(position), ..header() }).unwrap();
    let mut item = [&[2, 0, 0, 0, 8, 0, 0, 0][..], &u64::MAX.to_le_bytes(), &5u64.to_le_bytes()].concat();
    item.extend(crc32c::crc32c_append(position.checksum, &item).to_le_bytes());
    out.extend(item);
    let (count, outcome) = read(&out);
    assert_eq!((count, outcome.unwrap_err().kind()), (0, ErrorKind::Corrupt));
}

/// A stream that is cut anywhere goes on from the last whole item with the bytes that it would have had.
#[test]
fn the_rest_of_a_broken_stream_is_the_same() {
    let bytes = stream();
    let mut input = &bytes[..];
    let (_, mut reader) = StreamReader::open(&mut input).unwrap();
    let mut positions = vec![reader.position()];
    while reader.next().unwrap().is_some() {
        positions.push(reader.position());
    }
    for position in &positions[1..positions.len() - 1] {
        let mut out = Vec::new();
        let header = Header { resumed: Some(*position), ..header() };
        let mut writer = StreamWriter::new(&mut out, &header).unwrap();
        for item in items() {
            match &item {
                Item::Data { .. } if !writer.wants() => writer.left_out(item.blocks()).unwrap(),
                item => writer.item(item).unwrap(),
            }
        }
        writer.end(99).unwrap();
        assert_eq!(out[HEADER_BYTES..], bytes[position.bytes as usize..]);
        read(&out).1.unwrap();
    }
}

/// A flipped bit, a cut and items out of place are found, wherever they are.
#[test]
fn damage_is_found_before_it_is_given_out() {
    let good = stream();
    let (whole, outcome) = read(&good);
    outcome.unwrap();
    for cut in 0..good.len() {
        let (_, outcome) = read(&good[..cut]);
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::UnexpectedEof, "cut at {cut}");
    }
    let mut bytes = good.clone();
    for at in (0..good.len()).filter(|at| *at < 3000 || at % 97 == 0 || *at > good.len() - 400) {
        bytes[at] ^= 1 << (at % 8);
        let (count, outcome) = read(&bytes);
        assert!(outcome.is_err() && count < whole, "byte {at}");
        bytes[at] = good[at];
    }
    let mut input = &good[..];
    let (_, mut reader) = StreamReader::open(&mut input).unwrap();
    let mut ends = vec![HEADER_BYTES];
    while reader.next().unwrap().is_some() {
        ends.push(reader.position().bytes as usize);
    }
    for window in ends.windows(3) {
        let [first, second, third] = *window else { unreachable!() };
        let dropped = [&good[..first], &good[second..]].concat();
        let swapped = [&good[..first], &good[second..third], &good[first..second], &good[third..]].concat();
        for bytes in [dropped, swapped] {
            let (_, outcome) = read(&bytes);
            let error = outcome.unwrap_err();
            assert!(error.to_string().contains(&format!("byte {first}")), "{error}");
        }
    }
}

/// The checksums were chained over the checksums themselves. That made each of them a constant for the next
/// one, and an item of another stream fitted wherever its number did.
#[test]
fn an_item_of_another_stream_is_found() {
    let good = stream();
    let mut other = Vec::new();
    let mut writer = StreamWriter::new(&mut other, &Header { blocks: 8, ..header() }).unwrap();
    items().iter().for_each(|item| writer.item(item).unwrap());
    writer.end(99).unwrap();
    let (whole, _) = read(&other);
    for cut in [HEADER_BYTES, HEADER_BYTES + ITEM_OVERHEAD + 24 + 18] {
        let mixed = [&good[..cut], &other[cut..]].concat();
        let (count, outcome) = read(&mixed);
        assert!(outcome.is_err() && count < whole, "cut at {cut}");
    }
}

#[test]
fn refuses_what_cannot_be() {
    let mut other = header().encode();
    other[8] = 2;
    assert_eq!(Header::decode(&other).unwrap_err().kind(), ErrorKind::UnknownFormat);
    assert_eq!(Header::decode(&[0; HEADER_BYTES]).unwrap_err().kind(), ErrorKind::Invalid);
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let bad = [
        (0, vec![]),
        (9, vec![]),
        (1, words(&[0])),
        (2, words(&[0])),
        (2, words(&[1, 1])),
        (3, words(&[1, 20, 0])),
        (3, words(&[1, 19, 0])),
        (3, words(&[1, 17, 0])),
        (3, words(&[1, 1 << 40, 0])),
        (4, words(&[1, 16, 0])),
        (5, words(&[1, 0])),
        (5, words(&[1, 0, 0])),
        (6, words(&[1, 0, 0])),
        (7, words(&[1, 1, FILE_BLOCKS_MAX])),
        (7, words(&[1, u64::MAX, 2])),
        (8, words(&[1])),
        (8, words(&[0, 0, u64::MAX])),
        (2, words(&[u64::MAX])),
    ];
    for (kind, payload) in bad {
        assert!(Item::decode(kind, &payload).is_err(), "kind {kind}, {payload:?}");
    }
}
