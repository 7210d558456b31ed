//! The decoders of tree values and of transactions: any bytes give a value or an error. What decodes must encode to
//! something that decodes to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quire_format::{dirent, extent, inode, logged, record, region, xattr};

fuzz_target!(|input: &[u8]| {
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
        2 => drop(extent::Extent::decode(7, bytes)),
        3 => {
            if let Ok(map) = region::RegionMap::decode(bytes) {
                assert_eq!(map.encode().as_deref(), Some(bytes), "the encoding is canonical");
            }
        }
        4 => drop(logged::LoggedOp::decode(bytes)),
        5 => {
            if let Ok(changes) = record::decode(bytes) {
                let mut encoder = record::Encoder::new();
                changes.iter().for_each(|change| encoder.push(change));
                assert_eq!(record::decode(&encoder.finish()).unwrap(), changes);
                changes.iter().for_each(|change| drop(change.describe()));
            }
        }
        6 => drop(xattr::Head::decode(bytes)),
        _ => drop(xattr::assemble(bytes.chunks(300))),
    }
});
