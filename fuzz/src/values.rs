//! The decoders of tree values and of transactions: any bytes give a value or an error. What decodes must
//! encode to something that decodes to the same.
//!
//! Input: byte 0 chooses the decoder, the rest are its bytes.

use quire_format::{dirent, extent, inode, logged, owner, receive, record, region, scrub, snapshot, xattr};

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((which, bytes)) = input.split_first() else { return };
    match which % 8 {
        0 => {
            if let Ok(found) = inode::InodeRecord::decode(bytes) {
                assert_eq!(&found.encode()[..], bytes);
            }
        }
        1 => {
            if let Ok(found) = dirent::Entry::decode(bytes) {
                assert_eq!(found.encode(), bytes);
            }
        }
        2 => {
            if let Ok(found) = extent::Extent::decode(7, bytes) {
                assert_eq!(&found.encode()[..], bytes);
            }
        }
        3 => {
            if let Ok(map) = region::RegionMap::decode(bytes) {
                assert_eq!(map.encode().as_deref(), Some(bytes), "the encoding is canonical");
            }
        }
        4 => {
            if let Ok(found) = logged::LoggedOp::decode(bytes) {
                assert_eq!(&found.encode()[..], bytes);
            }
        }
        5 => {
            if let Ok(changes) = record::decode(bytes) {
                let mut encoder = record::Encoder::new();
                changes.iter().for_each(|change| encoder.push(change));
                assert_eq!(encoder.finish(), bytes, "the encoding is canonical");
                changes.iter().for_each(|change| drop(change.describe()));
            }
        }
        6 => drop(xattr::Head::decode(bytes)),
        _ => {
            drop(xattr::assemble(bytes.chunks(300)));
            owner_mark(bytes);
            of_snapshots(bytes);
        }
    }
}

/// What the table of snapshots holds, and what a superblock says of scrubs.
fn of_snapshots(bytes: &[u8]) {
    if let Ok(found) = snapshot::Snapshot::decode(bytes) {
        assert_eq!(snapshot::Snapshot::decode(&found.encode()).ok(), Some(found));
    }
    if let Ok(found) = receive::SnapshotId::decode(bytes) {
        assert_eq!(&found.encode()[..], bytes);
    }
    if let Ok(found) = receive::Unfinished::decode(bytes) {
        assert_eq!(found.encode(), bytes, "the encoding is canonical");
        let token = found.token();
        assert_eq!(token.to_string().parse().ok(), Some(token));
    }
    drop(String::from_utf8_lossy(bytes).parse::<receive::Token>());
    if let Some(found) = bytes.first_chunk().and_then(scrub::LastScrub::decode) {
        assert_eq!(scrub::LastScrub::decode(&scrub::LastScrub::encode(Some(&found))), Some(found));
    }
}

/// The mark of an owner, with the checksum that no fuzzer guesses.
fn owner_mark(bytes: &[u8]) {
    let mut block = [0; 4096];
    let length = bytes.len().min(512);
    block[..length].copy_from_slice(&bytes[..length]);
    drop(owner::OwnerMark::decode(&block));
    block[..8].copy_from_slice(b"QUIREOWN");
    block[8..12].fill(0);
    let crc = crc32c::crc32c(&block[..512]);
    block[8..12].copy_from_slice(&crc.to_le_bytes());
    let mark = owner::OwnerMark::decode(&block).expect("it is sealed").expect("it has the magic");
    let again = owner::OwnerMark::decode(&mark.encode()).expect("what is encoded decodes").expect("a mark");
    assert_eq!((again.owner, again.beat, again.pid), (mark.owner, mark.beat, mark.pid));
}
