//! What is done to one field: the values that it gets instead of its own.

use super::instances::Instance;
use quire_base::random::Random;
use quire_format::layout::{Field, FieldKind};

/// One damage: bytes of an instance, and of a second one where the two are swapped.
#[derive(Clone, Debug)]
pub struct Damage {
    pub instance: Instance,
    /// The field's name; `rest` for what follows the fields.
    pub field: &'static str,
    pub how: &'static str,
    /// Offset of the changed bytes in the instance.
    pub at: usize,
    pub old: Vec<u8>,
    pub new: Vec<u8>,
    /// The structure as it was and as it becomes.
    pub before: Vec<u8>,
    pub after: Vec<u8>,
    /// Swapped with this one, which becomes these bytes.
    pub other: Option<(Instance, Vec<u8>)>,
}

impl Damage {
    pub fn describe(&self) -> String {
        let field = format!("{}, {} ({})", self.instance.describe(), self.field, self.how);
        let other =
            self.other.as_ref().map_or(String::new(), |(other, _)| format!(" with {}", other.describe()));
        format!("{field}{other}: +{} {:02x?} became {:02x?}", self.at, self.old, self.new)
    }
}

/// Elements of an array that are tried: the first, the last, and those that `wanted` picks, at most so many.
const ELEMENTS_MAX: usize = 8;

fn elements(field: &Field, bytes: &[u8], random: &mut Random) -> Vec<usize> {
    if field.count == 1 {
        return vec![0];
    }
    let zero = |at: usize| {
        let from = field.offset + at * field.width;
        bytes[from..from + field.width].iter().all(|byte| *byte == 0)
    };
    let used: Vec<usize> = (0..field.count).filter(|at| !zero(*at)).collect();
    let mut chosen = vec![0, field.count - 1, random.below(field.count as u64) as usize];
    chosen.extend(used.iter().take(ELEMENTS_MAX / 2));
    chosen.extend(used.iter().rev().take(ELEMENTS_MAX / 2 - 2));
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

fn number(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(wide)
}

/// The values for one element, with the names of what was done.
fn values(kind: FieldKind, old: &[u8], random: &mut Random) -> Vec<(&'static str, Vec<u8>)> {
    let flip = |bit: u64| {
        let mut new = old.to_vec();
        new[bit as usize / 8] ^= 1 << (bit % 8);
        new
    };
    let bits = old.len() as u64 * 8;
    let mut values = vec![
        ("lowest bit flipped", flip(0)),
        ("highest bit flipped", flip(bits - 1)),
        ("a bit flipped", flip(random.below(bits))),
        ("zero", vec![0; old.len()]),
        ("all ones", vec![0xff; old.len()]),
    ];
    if kind == FieldKind::Number {
        let of = |number: u64| number.to_le_bytes()[..old.len()].to_vec();
        values.push(("one more", of(number(old).wrapping_add(1))));
        values.push(("one less", of(number(old).wrapping_sub(1))));
    }
    values
}

/// All damages of an instance: each field with each value, and with its siblings' values.
pub fn of(
    instance: &Instance,
    bytes: &[u8],
    siblings: &[(Instance, Vec<u8>)],
    random: &mut Random,
) -> Vec<Damage> {
    let mut found: Vec<Damage> = Vec::new();
    let mut add = |field: &'static str, how, at: usize, new: Vec<u8>, other: Option<(Instance, Vec<u8>)>| {
        let old = bytes[at..at + new.len()].to_vec();
        let mut after = bytes.to_vec();
        after[at..at + new.len()].copy_from_slice(&new);
        let known = found
            .iter()
            .any(|damage| damage.at == at && damage.new == new && damage.other.is_some() == other.is_some());
        if old != new && !known {
            let (instance, before) = (instance.clone(), bytes.to_vec());
            found.push(Damage { instance, field, how, at, old, new, before, after, other });
        }
    };
    for field in instance.layout.fields {
        if field.kind == FieldKind::Checksum {
            // Sealing a damage makes it right again; a wrong one is rot.
            continue;
        }
        for element in elements(field, bytes, random) {
            let at = field.offset + element * field.width;
            let range = at..at + field.width;
            for (how, new) in values(field.kind, &bytes[range.clone()], random) {
                add(field.name, how, at, new, None);
            }
            let differs = |(_, other): &&(Instance, Vec<u8>)| other[range.clone()] != bytes[range.clone()];
            if let Some((other, theirs)) = siblings.iter().find(differs) {
                add(field.name, "a sibling's", at, theirs[range.clone()].to_vec(), None);
                // Superblocks have one sibling, the other slot: a swap is what the pair tests do.
                let mut swapped = theirs.clone();
                swapped[range.clone()].copy_from_slice(&bytes[range.clone()]);
                add(field.name, "swapped", at, theirs[range].to_vec(), Some((other.clone(), swapped)));
            }
        }
    }
    let rest = instance.layout.bytes..bytes.len();
    if instance.layout.rest.is_some() && !rest.is_empty() {
        for place in [rest.start, rest.end - 1, rest.start + random.below(rest.len() as u64) as usize] {
            for (how, new) in values(FieldKind::Bytes, &bytes[place..place + 1], random) {
                add("rest", how, place, new, None);
            }
        }
    }
    found
}

/// The whole structure swapped with a sibling of the same length.
pub fn exchange(instance: &Instance, bytes: &[u8], siblings: &[(Instance, Vec<u8>)]) -> Option<Damage> {
    let (other, theirs) =
        siblings.iter().find(|(_, theirs)| theirs.len() == bytes.len() && theirs != bytes)?;
    Some(Damage {
        instance: instance.clone(),
        field: "all",
        how: "swapped",
        at: 0,
        old: bytes.to_vec(),
        new: theirs.clone(),
        before: bytes.to_vec(),
        after: theirs.clone(),
        other: Some((other.clone(), bytes.to_vec())),
    })
}
