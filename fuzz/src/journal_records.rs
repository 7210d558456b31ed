//! Transactions behind those of a real volume, in journal blocks that check: whatever they say, recovery
//! applies them or refuses, and what it makes of them can be used, checked and repaired.
//!
//! Input: byte 0 chooses the volume, closed or closed with snapshots, and what is done then
//! ([`crate::image::chosen`]), bytes 1 to 8 are a seed for that, the rest is read with `arbitrary`:
//! for each transaction how many changes it has, for each change what it does, with keys and values near
//! those that the volume has; or bytes as they are.
//!
//! Neighbours: [`crate::journal_ring`] for blocks that do not check; [`crate::image`] for what happens then.

use crate::image::{chosen, examine};
use crate::sample::{CLOSED, SNAPSHOTS, Sample, block, device, sample};
use crate::seal::word;
use arbitrary::{Result, Unstructured};
use quire_base::{BLOCK_SIZE, BlockNo, InodeNo, Seq};
use quire_device::simulated::Image;
use quire_format::extent::Extent;
use quire_format::journal::{
    BlockHeader, HEADER_BYTES, PAYLOAD_BYTES, RECORD_ALIGN, RecordHeader, RecordKind, record_bytes,
};
use quire_format::key::{Key, KeyKind, VALUE_MAX};
use quire_format::record::{Change, Encoder};
use quire_format::region::{REGION_BLOCKS, RegionMap};
use quire_format::superblock::{SLOT_BLOCKS, Superblock};
use std::ops::ControlFlow;
use std::sync::OnceLock;

const TRANSACTIONS_MAX: usize = 24;
const CHANGES_MAX: usize = 12;

/// What a closed sample has in its trees. Its journal is empty, so the input's transactions come first.
struct Contents {
    keys: Vec<(Key, Vec<u8>)>,
    superblock: Superblock,
}

fn contents(number: usize) -> &'static Contents {
    static CONTENTS: [OnceLock<Contents>; 2] = [const { OnceLock::new() }; 2];
    CONTENTS[usize::from(number == SNAPSHOTS)].get_or_init(|| {
        let sample = sample(number);
        let image = quire::internals::inspect::Image::load(device(&sample.image)).expect("the sample loads");
        let mut keys = Vec::new();
        image
            .keys(&mut |key, value| {
                keys.push((key, value.to_vec()));
                ControlFlow::Continue(())
            })
            .expect("the sample can be read");
        let slots =
            SLOT_BLOCKS.map(|at| Superblock::decode(&block(&sample.image, at)).expect("both are sound"));
        let superblock = slots.into_iter().max_by_key(|slot| slot.checkpoint).expect("there are two");
        Contents { keys, superblock }
    })
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((head, bytes)) = input.split_at_checked(9) else { return };
    let number = if chosen(head[0]).0 == SNAPSHOTS { SNAPSHOTS } else { CLOSED };
    let contents = contents(number);
    let image = with_records(sample(number), contents, &transactions(bytes, contents));
    examine(&image, head[0].into(), word(head, 1));
}

/// The payloads of the records that the bytes say.
fn transactions(bytes: &[u8], contents: &'static Contents) -> Vec<Vec<u8>> {
    let mut source = Unstructured::new(bytes);
    let mut all = Vec::new();
    while !source.is_empty() && all.len() < TRANSACTIONS_MAX {
        match transaction(&mut source, contents) {
            Ok(payload) if !payload.is_empty() => all.push(payload),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    all
}

fn transaction(source: &mut Unstructured<'_>, contents: &'static Contents) -> Result<Vec<u8>> {
    let count: u8 = source.arbitrary()?;
    if count == u8::MAX {
        let len = source.int_in_range(0..=200)?;
        return Ok(source.bytes(len.min(source.len()))?.to_vec());
    }
    let mut encoder = Encoder::new();
    for _ in 0..=usize::from(count) % CHANGES_MAX {
        if let Some(change) = change(source, contents)? {
            encoder.push(&change);
        }
    }
    Ok(encoder.finish())
}

/// A change that a record can carry, or None.
fn change(source: &mut Unstructured<'_>, contents: &'static Contents) -> Result<Option<Change>> {
    let change = match source.arbitrary::<u8>()? {
        // Blocks that only snapshots have become free; or any.
        250.. => {
            let near = contents.superblock.data_start.0 + u64::from(source.arbitrary::<u16>()?);
            let (key, value) = existing(source, contents)?;
            let dead = RegionMap::decode(&value).ok().filter(|_| key.kind == KeyKind::Dead);
            match dead.and_then(|dead| dead.runs().next()) {
                Some((start, blocks)) if source.arbitrary()? => {
                    let start = BlockNo(key.offset * REGION_BLOCKS + u64::from(start));
                    Change::Reclaim { start, blocks }
                }
                _ => {
                    Change::Reclaim { start: BlockNo(near), blocks: 1 + u32::from(source.arbitrary::<u8>()?) }
                }
            }
        }
        byte => kind_of_change(byte % 10, source, contents)?,
    };
    Ok(is_encodable(&change).then_some(change))
}

/// A change of one of the other kinds.
fn kind_of_change(kind: u8, source: &mut Unstructured<'_>, contents: &'static Contents) -> Result<Change> {
    Ok(match kind {
        0..=2 => {
            let (_, mut value) = existing(source, contents)?;
            let key = key(source, contents)?;
            for _ in 0..source.arbitrary::<u8>()? % 4 {
                spoil(source, &mut value)?;
            }
            value.truncate(VALUE_MAX);
            Change::Put { key, value }
        }
        3 => {
            let (key, mut value) = existing(source, contents)?;
            spoil(source, &mut value)?;
            Change::Put { key: *key, value }
        }
        4 => Change::Delete { key: key(source, contents)? },
        5 | 6 => extents(source, contents)?,
        7 => {
            let (slot, inode) = (source.arbitrary::<u16>()?.into(), inode(source)?);
            if source.arbitrary()? {
                Change::OrphanSet { slot, inode }
            } else {
                Change::OrphanClear { slot, inode }
            }
        }
        8 => {
            let superblock = &contents.superblock;
            let near = superblock.data_start.0 + u64::from(source.arbitrary::<u16>()?);
            let start = BlockNo(if source.arbitrary()? { near } else { superblock.pool_start.0 });
            let blocks = u32::from(source.arbitrary::<u16>()? % 1100);
            if source.arbitrary()? {
                Change::PoolGrow { start, blocks }
            } else {
                Change::PoolShrink { start, blocks }
            }
        }
        _ => {
            let superblock = &contents.superblock;
            let near = superblock.data_start.0 + u64::from(source.arbitrary::<u16>()?);
            let start = BlockNo(if source.arbitrary()? { near } else { source.arbitrary::<u32>()?.into() });
            let blocks = 1 + usize::from(source.arbitrary::<u8>()? % 4);
            Change::Data { start, bytes: vec![source.arbitrary()?; blocks * 4096].into() }
        }
    })
}

/// Whether the encoder, which trusts its caller, takes a change.
fn is_encodable(change: &Change) -> bool {
    match change {
        Change::Put { key, .. } | Change::Delete { key } => match key.kind {
            KeyKind::FreeSpace | KeyKind::Dead | KeyKind::Extent => false,
            KeyKind::Receive => key.object == 0 && key.offset <= u64::from(u32::MAX),
            KeyKind::Snapshot => key.object == 0 && (1..=u64::from(u32::MAX)).contains(&key.offset),
            KeyKind::LoggedOp => key.object == 0,
            KeyKind::OrphanKey => key.object == 0 && key.offset != 0,
            KeyKind::Inode => key.object != 0 && key.offset == 0,
            KeyKind::Symlink | KeyKind::Xattr => key.object != 0,
            KeyKind::Entry => key.object != 0 && quire_format::dirent::check_cookie(key.offset).is_ok(),
        },
        Change::Extents { inode, removed, inserted } => {
            let sound = |list: &[Extent]| quire_format::extent::check_list(list).is_ok();
            inode.0 != 0 && !(removed.is_empty() && inserted.is_empty()) && sound(removed) && sound(inserted)
        }
        Change::OrphanSet { inode, .. } | Change::OrphanClear { inode, .. } => inode.0 != 0,
        Change::PoolGrow { blocks, .. }
        | Change::PoolShrink { blocks, .. }
        | Change::Reclaim { blocks, .. } => *blocks != 0,
        Change::Data { bytes, .. } => !bytes.is_empty(),
    }
}

fn existing(source: &mut Unstructured<'_>, contents: &'static Contents) -> Result<(&'static Key, Vec<u8>)> {
    let keys = &contents.keys;
    let (key, value) = &keys[usize::from(source.arbitrary::<u16>()?) % keys.len()];
    Ok((key, value.clone()))
}

fn inode(source: &mut Unstructured<'_>) -> Result<InodeNo> {
    Ok(InodeNo(match source.arbitrary::<u8>()? {
        0 => source.arbitrary()?,
        small => u64::from(small),
    }))
}

/// A key of the volume, or one near it.
fn key(source: &mut Unstructured<'_>, contents: &'static Contents) -> Result<Key> {
    let mut key = *existing(source, contents)?.0;
    match source.arbitrary::<u8>()? % 6 {
        0 => key.object = inode(source)?.0,
        1 => key.offset = source.arbitrary()?,
        2 => key.offset = key.offset.wrapping_add_signed(source.arbitrary::<i8>()?.into()),
        3 => key = Key::logged(source.arbitrary::<u8>()?.into()),
        4 => key = Key::orphan(inode(source)?),
        _ => {}
    }
    Ok(key)
}

fn spoil(source: &mut Unstructured<'_>, value: &mut Vec<u8>) -> Result<()> {
    if value.is_empty() {
        return Ok(());
    }
    let at = usize::from(source.arbitrary::<u16>()?) % value.len();
    match source.arbitrary::<u8>()? % 4 {
        0 => value[at] = source.arbitrary()?,
        1 => {
            let number: u64 = source.arbitrary()?;
            let end = (at + 8).min(value.len());
            value[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
        }
        2 => value.truncate(at),
        _ => value[at] = value[at].wrapping_add(1),
    }
    Ok(())
}

/// Extents that the volume has are removed, and such as it may have are inserted.
fn extents(source: &mut Unstructured<'_>, contents: &'static Contents) -> Result<Change> {
    let of_files: Vec<(InodeNo, Extent)> = contents
        .keys
        .iter()
        .filter(|(key, _)| key.kind == KeyKind::Extent)
        .filter_map(|(key, value)| Some((InodeNo(key.object), Extent::decode(key.offset, value).ok()?)))
        .collect();
    let (mut owner, first) = of_files[usize::from(source.arbitrary::<u16>()?) % of_files.len()];
    let mut removed = Vec::new();
    if source.arbitrary()? {
        let mut more = usize::from(source.arbitrary::<u8>()?) % 4;
        for (inode, extent) in &of_files {
            if *inode == owner && extent.file_block >= first.file_block {
                removed.push(*extent);
                if more == 0 {
                    break;
                }
                more -= 1;
            }
        }
    }
    let mut inserted = Vec::new();
    for _ in 0..source.arbitrary::<u8>()? % 4 {
        let superblock = &contents.superblock;
        let span = superblock.data_end.0 - superblock.data_start.0 + 8;
        let free = superblock.data_start.0 + source.arbitrary::<u32>()? as u64 % span;
        let file_block = first.file_block + u64::from(source.arbitrary::<u8>()?);
        let disk_block = if source.arbitrary()? { BlockNo(free) } else { first.disk_block };
        let len = 1 + u32::from(source.arbitrary::<u8>()? % 40);
        let bits: u8 = source.arbitrary()?;
        inserted.push(Extent {
            file_block,
            disk_block,
            len,
            unwritten: bits & 1 == 1,
            birth: (bits >> 6).into(),
        });
    }
    inserted.sort_by_key(|extent| extent.file_block);
    inserted.dedup_by(|next, last| next.file_block < last.file_end());
    if source.arbitrary::<u8>()? == 0 {
        owner = inode(source)?;
    }
    Ok(Change::Extents { inode: owner, removed, inserted })
}

/// The sample's image with these records in its journal, as the journal writes them.
fn with_records(sample: &Sample, contents: &Contents, payloads: &[Vec<u8>]) -> Image {
    let superblock = &contents.superblock;
    let mut stream = Vec::new();
    let mut starts = Vec::new();
    for payload in payloads {
        if stream.len() + record_bytes(payload.len()) > superblock.journal_blocks as usize / 2 * PAYLOAD_BYTES
        {
            break;
        }
        starts.push(stream.len());
        let header = RecordHeader { kind: RecordKind::Transaction, payload: payload.len() as u32 };
        stream.extend_from_slice(&header.encode());
        stream.extend_from_slice(payload);
        stream.resize(stream.len().next_multiple_of(RECORD_ALIGN), 0);
    }
    let tail = stream.len().next_multiple_of(PAYLOAD_BYTES) - stream.len();
    if tail > 0 {
        starts.push(stream.len());
        stream.extend_from_slice(&RecordHeader::PADDING.encode());
        stream.resize(stream.len().next_multiple_of(PAYLOAD_BYTES), 0);
    }
    let mut image = sample.image.clone();
    for (index, piece) in stream.chunks_exact(PAYLOAD_BYTES).enumerate() {
        let position = superblock.sequence.0 + (index * PAYLOAD_BYTES) as u64;
        let mut bytes = [0; BLOCK_SIZE];
        bytes[HEADER_BYTES..].copy_from_slice(piece);
        let from = index * PAYLOAD_BYTES;
        let first = starts.iter().find(|start| (from..from + PAYLOAD_BYTES).contains(*start));
        let header = BlockHeader {
            volume: superblock.volume_id(),
            incarnation: superblock.incarnation,
            position,
            durable: Seq(superblock.sequence.0),
            checkpoint: Seq(superblock.sequence.0),
            first_record: first.map(|start| (start - from) as u16),
        };
        header.seal(&mut bytes);
        let ring = position / PAYLOAD_BYTES as u64 % superblock.journal_blocks;
        image.write(superblock.journal_start.offset(ring), &bytes);
    }
    image
}
