//! The damages that nothing can know: each by structure and field, with the reason. Whatever is not listed
//! here must be found.

use super::damage::Damage;
use super::instances::Home;
use quire_format::inode::InodeRecord;
use quire_format::key::KeyKind;
use quire_format::logged::LoggedKind;
use quire_format::properties::PROPERTY_FLAGS;

/// The number of the checkpoint that the volume was closed with.
const CHECKPOINT: u64 = 6;
/// Its last life.
const INCARNATION: u64 = 3;

/// Why a damage cannot be known from the volume; `None` if it must be found.
pub fn reason(damage: &Damage) -> Option<&'static str> {
    let zero = "zeros are kept for later versions and not looked at, but by checksums";
    if damage.field == "zero" {
        return Some(zero);
    }
    if damage.field == "incarnation" && matches!(damage.instance.layout.name, "tree node" | "manifest page") {
        return (number(&damage.new) <= INCARNATION).then_some("an earlier life leaves no trace");
    }
    match damage.instance.layout.name {
        "inode" => inode(damage),
        "extent" => extent(damage),
        "attribute" | "link target" => text(damage),
        "logged operation" => logged(damage),
        "slot" => slot(damage),
        "orphan block" => orphans(damage),
        // Higher than the superblock's, or lower than the tree's, is found.
        "manifest page" => (damage.field == "generation" && number(&damage.new) <= CHECKPOINT)
            .then_some("a map that did not change keeps its generation"),
        "superblock" => superblock(damage),
        _ => None,
    }
}

fn number(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    let len = bytes.len().min(8);
    wide[..len].copy_from_slice(&bytes[..len]);
    u64::from_le_bytes(wide)
}

fn inode(damage: &Damage) -> Option<&'static str> {
    let record = InodeRecord::decode(&damage.before).unwrap();
    let becomes = InodeRecord::decode(&damage.after).ok()?;
    let (old, new) = (number(&damage.old), number(&damage.new));
    let orphan = record.nlink == 0;
    match damage.field {
        "mode" if (old ^ new) >> 12 == 0 => Some("permissions are the owner's to choose"),
        "mode" if orphan && record.blocks == 0 && record.size == 0 => {
            Some("the type of an inode without name and contents has no other witness")
        }
        "uid" | "gid" => Some("owners are not written anywhere else"),
        "atime" | "mtime" | "ctime" | "btime" => Some("times are not written anywhere else"),
        "size" if record.mode >> 12 == 8 && becomes.mode >> 12 == 8 => {
            Some("holes and blocks allocated ahead may lie on either side of a file's size")
        }
        "attribute bytes" if orphan => Some("an orphan's attributes are freed one after the other"),
        "flags" if (old ^ new) & !u64::from(PROPERTY_FLAGS) == 0 => {
            Some("properties are the owner's to choose")
        }
        "flags" if orphan && new <= 1 => Some("an orphan may have been made without a name or not"),
        "generation" if orphan => Some("the generation of an inode without a name has no other witness"),
        "device number" if record.file_type().is_device() => Some("device numbers are the owner's to choose"),
        "parent" if orphan => Some("a removed directory's parent has forgotten it"),
        _ => None,
    }
}

fn extent(damage: &Damage) -> Option<&'static str> {
    match damage.field {
        "flags" if number(&damage.new) <= 1 => {
            Some("whether blocks were written is not written anywhere else")
        }
        "disk block" | "all" if damage.other.is_some() => {
            // Only where both are as long: then the same blocks are in use, by others.
            let length = |bytes: &[u8]| bytes[12..14].to_vec();
            let (_, other) = damage.other.as_ref()?;
            (length(other) == length(&damage.after)).then_some("contents of files have no checksum")
        }
        _ => None,
    }
}

fn text(damage: &Damage) -> Option<&'static str> {
    let swapped = "values of attributes and targets of links are the owner's to choose";
    if damage.instance.layout.name == "link target" {
        return (!damage.new.contains(&0) || damage.instance.shape < 100).then_some(swapped);
    }
    let name_end = 5 + usize::from(damage.before[4]);
    (damage.field == "rest" && damage.at >= name_end).then_some(swapped)
}

fn logged(damage: &Damage) -> Option<&'static str> {
    let kind = damage.before[0];
    let (old, new) = (number(&damage.old), number(&damage.new));
    let moves = matches!(kind, 3 | 4);
    if damage.field == "all" {
        return Some("ids of logged operations only tell them apart");
    }
    let frees = |kind: u64| matches!(kind, 1 | 2 | 5 | 6);
    match damage.field {
        "kind" if frees(old) && frees(new) => {
            Some("operations that only free differ in nothing but their name")
        }
        _ if kind == LoggedKind::Truncate as u8 => None,
        "cursor" if moves => Some("how far an operation has come has no other witness"),
        // The size that a file comes to have tells the range that moves.
        "start" | "end" | "size" if moves => None,
        "start" | "end" | "cursor" | "size" => Some("the caller's range has no other witness"),
        _ => None,
    }
}

fn slot(damage: &Damage) -> Option<&'static str> {
    let kind = damage.instance.key.map(|key| key.kind);
    match (damage.field, kind) {
        ("object" | "offset" | "kind", None) => Some(
            "the first key of an inner node covers all below, the others any gap between their neighbours",
        ),
        ("offset", Some(KeyKind::Extent)) => {
            Some("where a file's extent belongs is not written anywhere else")
        }
        ("offset", Some(KeyKind::LoggedOp)) => Some("ids of logged operations only tell them apart"),
        ("offset", Some(KeyKind::Entry | KeyKind::Xattr)) => {
            let changed = number(&damage.old) ^ number(&damage.new);
            let low = if kind == Some(KeyKind::Entry) { 16 } else { 32 };
            (changed >> low == 0).then_some("disambiguators only tell names of one hash apart")
        }
        _ => None,
    }
}

fn orphans(damage: &Damage) -> Option<&'static str> {
    let moved = damage.other.is_some() && damage.field == "slot";
    moved.then_some("which slot an orphan has does not matter")
}

fn superblock(damage: &Damage) -> Option<&'static str> {
    let both = matches!(damage.instance.home, Home::Superblocks);
    let (old, new) = (number(&damage.old), number(&damage.new));
    let own = "it belongs to one copy";
    let alone = "it is written in superblocks only, and both say the same";
    match damage.field {
        "checkpointed" => Some(own),
        "last scrub" => Some("nothing relies on what is known of the last scrub"),
        "checkpoint" if damage.other.is_some() => {
            Some("a closed volume's copies differ in their numbers only")
        }
        "flags" if old ^ new == 1 => Some(own),
        _ if !both => None,
        "minor version" | "features, compatible" | "features, read-only compatible" => Some(alone),
        "label" | "uuid, changed" | "mount count" | "created" | "mounted" => Some(alone),
        "incarnation" => Some("a closed volume's journal is empty: nothing tells of its last life"),
        "sequence" => Some("a closed volume's journal is empty: nothing tells where it ended"),
        "epoch" if new > old => Some("snapshots that were taken and deleted leave no trace"),
        "next inode" if new > old => Some("numbers that were given away and taken back leave no trace"),
        "checkpoint" if new > old => Some("the number of the last checkpoint is written in superblocks only"),
        _ => None,
    }
}
