//! Damage in the journal of a volume in use: headers of blocks, headers of records, and any byte of the
//! transactions.

use super::damage::{self, Damage};
use super::instances::{Home, Instance};
use super::judge::{self, Seen, Touched, Verdict};
use super::{Tally, every, limits, unknowable, volumes};
use crate::common::editor::Editor;
use crate::common::*;
use quire::internals::inspect::Image as View;
use quire_base::random::Random;
use quire_base::{BLOCK_SIZE, BlockNo};
use quire_device::simulated::Image;
use quire_format::dirent::Entry;
use quire_format::inode::InodeRecord;
use quire_format::journal::{BlockHeader, HEADER_BYTES, PAYLOAD_BYTES, POSITION_MAX};
use quire_format::key::{Key, KeyKind};
use quire_format::layout::{self, Layout};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

const CRC_AT: usize = 4;

/// A volume in use and the blocks of its journal's stream, in order.
struct Journal {
    editor: Editor,
    original: Seen,
    blocks: Vec<(BlockNo, BlockHeader)>,
}

impl Journal {
    fn open() -> Journal {
        let editor = Editor::new(&volumes::in_use());
        assert_clean(&editor.image, "before any damage");
        let superblock = editor.superblock(editor.newest());
        let mut blocks = Vec::new();
        let mut position = superblock.sequence.0;
        loop {
            let ring = position / PAYLOAD_BYTES as u64 % superblock.journal_blocks;
            let at = superblock.journal_start.offset(ring);
            match BlockHeader::decode(&editor.block(at)) {
                Ok(header) if (header.position, header.incarnation) == (position, superblock.incarnation) => {
                    blocks.push((at, header));
                }
                _ => break,
            }
            position += PAYLOAD_BYTES as u64;
        }
        assert!(blocks.len() > 12, "a journal of {} blocks", blocks.len());
        let original = judge::original(&editor);
        Journal { editor, original, blocks }
    }

    fn end(&self) -> u64 {
        self.blocks.last().map_or(0, |(_, header)| header.position) + PAYLOAD_BYTES as u64
    }

    /// Whether a block behind number `at` says that more was durable than what precedes `at`.
    fn witnessed(&self, at: usize) -> bool {
        let ends = self.blocks[at].1.position;
        self.blocks[at + 1..].iter().any(|(_, later)| later.durable.0 > ends || later.checkpoint.0 > ends)
    }

    fn instance(&self, at: usize, layout: &'static Layout, offset: usize, len: usize) -> Instance {
        let block = self.blocks[at].0;
        Instance { layout, home: Home::Node, block, offset, len, key: None, shape: at as u64 }
    }

    fn damaged(&self, instance: &Instance, after: &[u8], sealed: bool) -> Image {
        let mut image = self.editor.image.clone();
        image.edit(instance.block, |block| {
            block[instance.offset..instance.offset + after.len()].copy_from_slice(after);
            if sealed {
                block[CRC_AT..CRC_AT + 4].fill(0);
                let crc = crc32c::crc32c(block);
                block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            }
        });
        image
    }

    fn judge(
        &self,
        what: &str,
        image: &Image,
        tally: &mut Tally,
        reason: impl FnOnce(&Image) -> Option<&'static str>,
    ) {
        limits::begin(what);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            match judge::judge(&self.original, image, &touched(&self.editor.image, image)) {
                Verdict::NotFound => (Verdict::NotFound, reason(image)),
                other => (other, None),
            }
        }));
        limits::end();
        tally.tried += 1;
        match outcome {
            Ok((Verdict::Refused, _)) => tally.refused += 1,
            Ok((Verdict::Found, _)) => tally.found += 1,
            Ok((Verdict::NotFound, Some(reason))) => *tally.unknowable.entry(reason).or_default() += 1,
            Ok((Verdict::NotFound, None)) => tally.wrong.push(format!("NOT FOUND {what}")),
            Err(panic) => tally.wrong.push(format!("{what}: {}", limits::message(&*panic))),
        }
    }

    /// Why damage in the header of a block cannot be known.
    fn header_reason(&self, at: usize, damage: &Damage) -> Option<&'static str> {
        let mut wide = [0; 8];
        wide[..damage.new.len().min(8)].copy_from_slice(&damage.new[..damage.new.len().min(8)]);
        let new = u64::from_le_bytes(wide);
        let torn = "nothing behind the last write tells it from a torn one";
        let ends = !self.witnessed(at);
        match damage.field {
            "zero" => Some("zeros are kept for later versions and not looked at, but by checksums"),
            "magic" | "volume id" | "incarnation" | "position" | "first record" => ends.then_some(torn),
            "durable" if new <= self.blocks[at].1.position => {
                Some("a block may promise less than what is durable, and no more than what can be read")
            }
            "checkpoint" if new <= self.end() => {
                Some("an older checkpoint may have been the newest durable one")
            }
            "durable" => ends.then_some(torn),
            "checkpoint" if new > POSITION_MAX => ends.then_some(torn),
            _ => None,
        }
    }
}

#[test]
fn headers_of_journal_blocks() {
    limits::watch();
    let journal = Journal::open();
    let mut random = Random::seeded(6);
    let mut tally = Tally::default();
    let count = journal.blocks.len();
    let instance = |at: usize| journal.instance(at, &layout::JOURNAL_BLOCK, 0, HEADER_BYTES);
    for at in [0, 1, 2, count / 2, count - 3, count - 2, count - 1] {
        let bytes = instance(at).bytes(&journal.editor);
        let sibling = instance((at + 3) % count);
        let siblings = [(sibling.clone(), sibling.bytes(&journal.editor))];
        for damage in damage::of(&instance(at), &bytes, &siblings, &mut random) {
            if damage.other.is_some() {
                continue;
            }
            let image = journal.damaged(&damage.instance, &damage.after, true);
            journal.judge(&damage.describe(), &image, &mut tally, |_| journal.header_reason(at, &damage));
        }
    }
    tally.end(300);
}

#[test]
fn headers_of_records() {
    limits::watch();
    let journal = Journal::open();
    let mut random = Random::seeded(7);
    let mut tally = Tally::default();
    for (at, (block, header)) in journal.blocks.iter().enumerate() {
        let Some(first) = header.first_record else { continue };
        let offset = HEADER_BYTES + usize::from(first);
        let instance = journal.instance(at, &layout::JOURNAL_RECORD, offset, layout::JOURNAL_RECORD.bytes);
        let bytes = instance.bytes(&journal.editor);
        assert_eq!(instance.block, *block);
        for damage in damage::of(&instance, &bytes, &[], &mut random) {
            let image = journal.damaged(&damage.instance, &damage.after, true);
            let last = at + 1 == journal.blocks.len();
            journal.judge(&damage.describe(), &image, &mut tally, |image| {
                // A length that leads past the end is a record that was torn.
                let torn = last.then_some("nothing behind the last write tells it from a torn one");
                torn.or_else(|| explain(&journal.editor.image, image))
            });
        }
    }
    tally.end(100);
}

#[test]
fn bytes_of_transactions() {
    limits::watch();
    let journal = Journal::open();
    let mut random = Random::seeded(8);
    let mut tally = Tally::default();
    for at in 0..journal.blocks.len() {
        let block = journal.editor.block(journal.blocks[at].0);
        // Behind the padding that closed a block there is nothing.
        let used = block.iter().rposition(|byte| *byte != 0).unwrap_or(HEADER_BYTES) + 1;
        for _ in 0..24 / every() {
            let place = HEADER_BYTES + random.below((used - HEADER_BYTES).max(1) as u64) as usize;
            let new = match random.below(4) {
                0 => 0,
                1 => 0xff,
                2 => block[place].wrapping_add(1),
                _ => block[place] ^ 1 << random.below(8),
            };
            if new == block[place] {
                continue;
            }
            let instance = journal.instance(at, &layout::JOURNAL_BLOCK, place, 1);
            let what = format!("journal block {at}, byte {place}: {:#04x} became {new:#04x}", block[place]);
            let image = journal.damaged(&instance, &[new], true);
            journal.judge(&what, &image, &mut tally, |image| explain(&journal.editor.image, image));
        }
    }
    tally.end(300 / every());
}

#[test]
fn rot_in_the_journal() {
    limits::watch();
    let journal = Journal::open();
    let mut random = Random::seeded(9);
    let mut tally = Tally::default();
    for at in 0..journal.blocks.len() {
        for _ in 0..4 {
            let place = random.below(BLOCK_SIZE as u64) as usize;
            let old = journal.editor.block(journal.blocks[at].0)[place];
            let instance = journal.instance(at, &layout::JOURNAL_BLOCK, place, 1);
            let image = journal.damaged(&instance, &[old ^ 1 << random.below(8)], false);
            journal.judge(&format!("rot in journal block {at} byte {place}"), &image, &mut tally, |_| {
                (!journal.witnessed(at)).then_some("nothing behind the last write tells it from a torn one")
            });
        }
    }
    tally.end(40);
}

type Keys = BTreeMap<(u64, u8, u64), (Key, Vec<u8>)>;

/// All keys as of the end of the journal; `None` if it cannot be replayed.
fn keys(image: &Image) -> Option<Keys> {
    let view = View::load(device(image)).ok()?;
    let mut all = BTreeMap::new();
    view.keys(&mut |key, value| {
        all.insert((key.object, key.kind as u8, key.offset), (key, value.to_vec()));
        ControlFlow::Continue(())
    })
    .unwrap();
    Some(all)
}

/// Whose keys come out different: what one record says of an inode or a name is all that is known of it.
fn touched(before: &Image, after: &Image) -> Touched {
    let mut touched = Touched::default();
    let (Some(before), Some(after)) = (keys(before), keys(after)) else { return touched };
    for (one, other) in [(&before, &after), (&after, &before)] {
        let different =
            one.iter().filter(|(place, value)| other.get(place) != Some(value)).map(|(_, value)| value);
        for (key, value) in different {
            match (key.kind, Entry::decode(value)) {
                (KeyKind::Entry, Ok(entry)) => drop(touched.names.insert((key.object, entry.name.to_vec()))),
                _ => drop(touched.inodes.insert(key.object)),
            }
        }
    }
    touched
}

/// Why a volume whose journal was changed is as sound as the one that it was: every value that came out
/// different must be one that nothing can know.
fn explain(before: &Image, after: &Image) -> Option<&'static str> {
    let (before, after) = (keys(before).unwrap(), keys(after).unwrap());
    let mut reason = Some("a later record says it again, or it is which slot an orphan has");
    for (place, (key, value)) in &after {
        let why = match before.get(place) {
            Some((_, was)) if was == value => continue,
            Some((_, was)) => changed(*key, was, value),
            None => moved(*key, value, &before),
        };
        reason = Some(why?);
    }
    for (place, (key, value)) in &before {
        if !after.contains_key(place) {
            reason = Some(moved(*key, value, &after)?);
        }
    }
    reason
}

const ONLY_ACCOUNT: &str = "a record of extents is the only account of its blocks; contents have no checksum";

fn changed(key: Key, before: &[u8], after: &[u8]) -> Option<&'static str> {
    let (layout, shape) = match key.kind {
        KeyKind::Extent | KeyKind::FreeSpace => return Some(ONLY_ACCOUNT),
        KeyKind::Inode => (&layout::INODE, 0),
        KeyKind::Symlink => (&layout::LINK_TARGET, 100),
        KeyKind::Xattr if key.offset as u16 == 0 => (&layout::XATTR, 0),
        KeyKind::Xattr => (&layout::LINK_TARGET, 1),
        KeyKind::LoggedOp => (&layout::LOGGED, 0),
        _ => return None,
    };
    if before.len() != after.len() {
        return None;
    }
    if key.kind == KeyKind::Inode && InodeRecord::decode(before).is_err() {
        return None;
    }
    let mut reason = None;
    let rest = (layout.bytes < before.len()).then_some(("rest", layout.bytes, before.len()));
    let fields = layout.fields.iter().map(|field| (field.name, field.offset, field.end()));
    for (field, from, to) in fields.chain(rest) {
        let Some(first) = (from..to).find(|at| before[*at] != after[*at]) else { continue };
        let block = BlockNo(0);
        let (home, key) = (Home::Node, Some(key));
        let at = if field == "rest" { first } else { from };
        let damage = Damage {
            instance: Instance { layout, home, block, offset: 0, len: before.len(), key, shape },
            field,
            how: "by the journal",
            at,
            old: before[at..to].to_vec(),
            new: after[at..to].to_vec(),
            before: before.to_vec(),
            after: after.to_vec(),
            other: None,
        };
        reason = Some(unknowable::reason(&damage)?);
    }
    reason
}

/// A key that the other volume has not: its value may be there under another that is as good.
fn moved(key: Key, value: &[u8], others: &Keys) -> Option<&'static str> {
    match key.kind {
        KeyKind::Extent | KeyKind::FreeSpace => return Some(ONLY_ACCOUNT),
        KeyKind::OrphanKey => return Some("which slot or key an orphan has does not matter"),
        _ => {}
    }
    let kept = others.values().any(|(other, theirs)| {
        let low = if key.kind == KeyKind::Entry { 16 } else { 32 };
        (other.object, other.kind) == (key.object, key.kind)
            && theirs == value
            && (key.kind == KeyKind::LoggedOp || (other.offset ^ key.offset) >> low == 0)
    });
    kept.then_some("disambiguators and ids only tell keys apart")
}
