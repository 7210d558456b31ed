//! Streams of `quire send`: any bytes are parsed or refused, and a volume receives or refuses them.
//!
//! Input: byte 0 chooses. Even: the rest is a stream. Odd: items follow, each as its kind (a byte), the bytes
//! of its payload (u16) and the payload; they are given header, numbers and checksums, and an end unless byte
//! 0 has bit 1.
//!
//! Promises that are checked beside "no panic, no hang, no out-of-memory": what parses is encoded to the same
//! bytes; a stream that does not come to its end leaves an empty volume empty, once it is given up.

use crate::sample;
use quire::ReceiveOptions;
use quire_base::{BLOCK_SIZE, Timestamp};
use quire_device::simulated::Image;
use quire_format::receive::SnapshotId;
use quire_format::stream::{HEADER_BYTES, Header, Item, StreamReader};
use std::sync::OnceLock;

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((how, rest)) = input.split_first() else { return };
    if how % 2 == 0 {
        parse(rest);
        return;
    }
    let stream = sealed(rest, how & 2 == 0);
    parse(&stream);
    receive(&stream);
}

/// Reads all items, and what they are encoded to.
fn parse(mut bytes: &[u8]) {
    let all = bytes;
    let Ok((header, mut reader)) = StreamReader::open(&mut bytes) else { return };
    assert_eq!(&header.encode()[..], &all[..HEADER_BYTES]);
    let mut at = HEADER_BYTES;
    while let Ok(Some((item, _))) = reader.next() {
        let mut payload = Vec::new();
        item.encode(&mut payload);
        assert_eq!(payload, all[at + 16..at + 16 + payload.len()], "the encoding is canonical");
        at += 20 + payload.len();
    }
}

fn header() -> Header {
    Header {
        id: SnapshotId { volume: [5; 16], number: 2, created: Timestamp(3) },
        parent: None,
        resumed: None,
        hash_seed: [6, 7],
        blocks: 8,
        bytes: 9,
        name: "fuzzed".into(),
    }
}

/// A stream of the items that an input names.
pub fn sealed(mut input: &[u8], ends: bool) -> Vec<u8> {
    let mut out = header().encode().to_vec();
    let mut checksum = crc32c::crc32c(&out);
    let mut number = 0u64;
    let mut push = |kind: u8, payload: &[u8]| {
        let start = out.len();
        out.extend([kind, 0, 0, 0]);
        out.extend((payload.len() as u32).to_le_bytes());
        out.extend(number.to_le_bytes());
        out.extend_from_slice(payload);
        checksum = crc32c::crc32c_append(checksum, &out[start..]);
        out.extend(checksum.to_le_bytes());
        number += 1;
        number
    };
    let mut count = 0;
    while let Some(([kind, low, high], rest)) = input.split_first_chunk() {
        let (payload, rest) = rest.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(rest.len()));
        let mut payload = payload.to_vec();
        if *kind == 5 {
            // A small input is a large content.
            let blocks = payload.len().saturating_sub(16).div_ceil(64).clamp(1, 8);
            payload.resize(16 + blocks * BLOCK_SIZE, 0x5a);
        }
        count = push(*kind, &payload);
        input = rest;
    }
    if ends {
        let end = [count, 0, 1 << 20].map(u64::to_le_bytes);
        push(8, end.as_flattened());
    }
    out
}

fn receive(stream: &[u8]) {
    static EMPTY: OnceLock<Image> = OnceLock::new();
    let device = sample::device(EMPTY.get_or_init(|| sample::format(sample::BLOCKS).visible()));
    let received = ReceiveOptions::new().receive_backend(device.clone(), &mut &stream[..], &mut |_| ());
    match received {
        Ok(_) => {
            // Only the sender knows whether it makes sense.
            if let Ok(volume) = sample::options(true).open_backend(device) {
                crate::explore::walk(&volume);
            }
        }
        Err(_) => {
            ReceiveOptions::abort_backend(device.clone()).expect("a receive can be given up");
            let volume = sample::options(false).open_backend(device).expect("an empty volume opens");
            assert_eq!(volume.info().inodes, 1);
            assert!(volume.snapshots().unwrap().is_empty());
            volume.close().expect("an empty volume closes");
        }
    }
}

/// Inputs that lead far: streams as a volume sends them, and items of all kinds.
pub fn seeds() -> Vec<Vec<u8>> {
    let source = sample::format(sample::BLOCKS);
    let volume = sample::options(false).open_backend(source.clone()).unwrap();
    volume.create_dir("directory").unwrap();
    volume.write("directory/file", [7; 5000]).unwrap();
    volume.symlink("file", "directory/link").unwrap();
    volume.set_xattr("directory", "user.name", b"value").unwrap();
    let sparse = quire::OpenOptions::new().write(true).create(true).open(&volume, "sparse").unwrap();
    sparse.allocate(1 << 20, 8192).unwrap();
    drop(sparse);
    volume.close().unwrap();
    quire::take_snapshot_backend(source.clone(), "seed").unwrap();
    let volume = sample::options(true).open_backend(source).unwrap();
    let mut stream = Vec::new();
    quire::SendOptions::new().send(&volume, "seed", &mut stream, &mut |_| ()).unwrap();
    let mut items = Vec::new();
    let mut push = |item: &Item<'_>| {
        let mut payload = Vec::new();
        item.encode(&mut payload);
        payload.truncate(400);
        items.push(item.kind());
        items.extend((payload.len() as u16).to_le_bytes());
        items.extend(payload);
    };
    let mut input = &stream[..];
    let (_, mut reader) = StreamReader::open(&mut input).unwrap();
    let mut file = None;
    while let Some((item, _)) = reader.next().unwrap() {
        if let Item::Data { inode, .. } = &item {
            file = Some(*inode);
        }
        if !matches!(item, Item::End(_)) {
            push(&item);
        }
    }
    let file = file.expect("a file has content");
    let blocks = quire_format::stream::Blocks { start: 1, count: 3 };
    push(&Item::Unwritten(file, blocks));
    push(&Item::Hole(file, blocks));
    push(&Item::Gone(file));
    let whole = [&[0][..], &stream].concat();
    [vec![whole], [1u8, 3].map(|how| [&[how][..], &items].concat()).to_vec()].concat()
}
