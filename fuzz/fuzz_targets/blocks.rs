//! The decoders of whole blocks. No fuzzer guesses a checksum, so each block gets its correct one first.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quire_base::BlockNo;
use quire_format::node::{NodePage, NodeRef};
use quire_format::pool::{ManifestPage, PageIdentity};
use quire_format::{orphan, superblock};

const BLOCK: usize = 4096;

/// Puts the CRC-32C of the whole block, its own field zero, at `at`.
fn seal(block: &mut [u8; BLOCK], at: usize) -> u32 {
    block[at..at + 4].fill(0);
    let crc = crc32c::crc32c(&block[..]);
    block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    crc
}

fn word(block: &[u8; BLOCK], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().unwrap())
}

fuzz_target!(|input: &[u8]| {
    let Some((which, bytes)) = input.split_first() else { return };
    let mut block = [0; BLOCK];
    let len = bytes.len().min(BLOCK);
    block[..len].copy_from_slice(&bytes[..len]);
    match which % 5 {
        0 => {
            block[..8].copy_from_slice(&superblock::MAGIC);
            seal(&mut block, 8);
            if let Ok(found) = superblock::Superblock::decode(&block) {
                found.validate().unwrap();
                assert!(superblock::Superblock::decode(&found.encode()).is_ok());
            }
        }
        1 => {
            // The node's own header says what its parent would; magic and crc lead it.
            let page = NodePage::new(block[40] % 4);
            let mut sealed = [0; BLOCK];
            page.seal(1, 2, BlockNo(3), &mut sealed);
            block[..32].copy_from_slice(&sealed[..32]);
            let crc = seal(&mut block, 4);
            for level in 0..4 {
                let expected = NodeRef { block: BlockNo(3), generation: 2, crc, level };
                if let Ok(page) = NodePage::decode(&block, 1, &expected) {
                    for at in 0..page.count() {
                        let key = page.key(at);
                        assert_eq!(page.search(&key), Ok(at));
                        if level == 0 { drop(page.value(at).to_vec()) } else { drop(page.child(at)) }
                    }
                }
            }
        }
        2 => {
            let crc = seal(&mut block, 4);
            let identity = PageIdentity { volume: word(&block, 8), block: BlockNo(word(&block, 24)), index: 0, count: 1 };
            drop(ManifestPage::decode(&block, &identity, crc));
        }
        3 => {
            seal(&mut block, BLOCK - 12);
            drop(orphan::decode(word(&block, BLOCK - 8), &block));
        }
        _ => drop(quire_format::journal::BlockHeader::decode(&block)),
    }
});
