//! The decoders of whole blocks. No fuzzer guesses a checksum, so each block gets its correct one first.
//!
//! Input: byte 0 chooses the decoder, the rest are the block's bytes, filled up with zeros.

use crate::seal::{NODE_CRC_AT, ORPHAN_CRC_AT, SUPERBLOCK_CRC_AT, seal_block, word};
use quire_base::{BLOCK_SIZE, BlockNo};
use quire_format::key::{KeyKind, VALUE_MAX};
use quire_format::node::{NodeIdentity, NodePage, NodeRef};
use quire_format::place::{NO_TWIN, Place};
use quire_format::pool::{ManifestPage, PageIdentity};
use quire_format::{journal, node, orphan, pool, superblock};

const VOLUME: u64 = 1;
const GENERATION: u64 = 2;
const AT: BlockNo = BlockNo(3);

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((which, bytes)) = input.split_first() else { return };
    let mut block = [0; BLOCK_SIZE];
    let len = bytes.len().min(BLOCK_SIZE);
    block[..len].copy_from_slice(&bytes[..len]);
    match which % 5 {
        0 => superblock(block),
        1 => node(block, bytes),
        2 => manifest(block),
        3 => {
            block[orphan::SLOTS * 8..][..4].copy_from_slice(&orphan::MAGIC.to_le_bytes());
            seal_block(&mut block, ORPHAN_CRC_AT);
            let index = word(&block, BLOCK_SIZE - 8);
            let slots = orphan::decode(index, &block).expect("it is sealed");
            assert_eq!(orphan::encode(index, &slots)[..], block);
        }
        _ => {
            block[..4].copy_from_slice(b"QJnl");
            seal_block(&mut block, NODE_CRC_AT);
            if let Ok(header) = journal::BlockHeader::decode(&block) {
                let mut again = block;
                header.seal(&mut again);
                assert_eq!(journal::BlockHeader::decode(&again).expect("sealed"), header);
            }
        }
    }
}

fn superblock(mut block: [u8; BLOCK_SIZE]) {
    block[..8].copy_from_slice(&superblock::MAGIC);
    seal_block(&mut block, SUPERBLOCK_CRC_AT);
    if let Ok(found) = superblock::Superblock::decode(&block) {
        found.validate().expect("what decodes is valid");
        assert_eq!(superblock::Superblock::decode(&found.encode()).expect("what is encoded decodes"), found);
        drop((found.label().to_owned(), found.read_only_because()));
    }
}

/// A node under a parent that means it; what decodes can be changed in any way.
fn node(mut block: [u8; BLOCK_SIZE], bytes: &[u8]) {
    block[..4].copy_from_slice(&node::MAGIC.to_le_bytes());
    block[8..16].copy_from_slice(&VOLUME.to_le_bytes());
    block[16..24].copy_from_slice(&GENERATION.to_le_bytes());
    block[24..32].copy_from_slice(&AT.0.to_le_bytes());
    block[32..40].fill(0);
    let crc = seal_block(&mut block, NODE_CRC_AT);
    let expected = NodeRef { block: AT, twin: NO_TWIN, generation: GENERATION, crc, level: block[52] };
    if let Some((found, _)) = NodePage::recognise(&block, VOLUME, AT) {
        assert_eq!(found, expected);
    }
    let Ok(mut page) = NodePage::decode(&block, VOLUME, &expected) else { return };
    for at in 0..page.count() {
        let key = page.key(at);
        assert_eq!(page.search(&key), Ok(at));
        if page.level() == 0 {
            assert!(page.value(at).len() <= VALUE_MAX);
        } else {
            assert_eq!(page.child(at).level + 1, page.level());
        }
    }
    if page.level() > 0 {
        return;
    }
    for step in bytes.iter().skip(64).take(32) {
        let count = page.count();
        let value = vec![*step; usize::from(*step) * 5 % (VALUE_MAX + 1)];
        match step % 4 {
            0 if count > 0 => page.remove(usize::from(*step / 4) % count),
            1 if count > 0 => {
                let at = usize::from(*step / 4) % count;
                if page.fits_instead(at, value.len()) {
                    page.replace(at, &value);
                    assert_eq!(page.value(at), value);
                }
            }
            2 if count > 1 => {
                let right = page.split_off(count / 2);
                assert_eq!(page.count() + right.count(), count);
                page.append(&right, 0);
            }
            _ => {
                let key = quire_format::key::Key::new(u64::from(*step), KeyKind::Inode, 0);
                if let Err(at) = page.search(&key)
                    && page.fits(value.len())
                {
                    page.insert(at, key, &value);
                }
            }
        }
    }
    let mut out = [0; BLOCK_SIZE];
    let identity = NodeIdentity {
        volume: VOLUME,
        generation: GENERATION + 1,
        incarnation: page.incarnation(),
        birth: page.birth(),
        place: Place::single(AT),
        bounds: page.bounds(),
    };
    let at = page.seal(&identity, &mut out);
    let again = NodePage::decode(&out, VOLUME, &at).expect("what is sealed decodes");
    assert_eq!(again.count(), page.count());
    assert!((0..page.count()).all(|at| (again.key(at), again.value(at)) == (page.key(at), page.value(at))));
}

fn manifest(mut block: [u8; BLOCK_SIZE]) {
    block[..4].copy_from_slice(&pool::MAGIC.to_le_bytes());
    let crc = seal_block(&mut block, NODE_CRC_AT);
    let number = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("4 bytes"));
    let identity = PageIdentity {
        volume: word(&block, 8),
        place: Place { block: BlockNo(word(&block, 24)), twin: BlockNo(word(&block, 32)) },
        index: number(48),
        count: number(52),
    };
    if let Ok((stamp, page)) = ManifestPage::decode(&block, &identity, crc) {
        let mut out = [0; BLOCK_SIZE];
        let crc = page.encode(&identity, stamp, &mut out);
        assert_eq!(ManifestPage::decode(&out, &identity, crc).expect("encoded"), (stamp, page));
    }
}
