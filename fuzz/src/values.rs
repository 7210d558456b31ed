//! The decoders of tree values and of transactions: any bytes give a value or an error. What decodes must
//! encode to something that decodes to the same.
//!
//! Input: byte 0 chooses the decoder, the rest are its bytes.

use quire_format::{dirent, extent, inode, logged, record, region, xattr};

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
        _ => drop(xattr::assemble(bytes.chunks(300))),
    }
}
