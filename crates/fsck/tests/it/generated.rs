//! Generated damage: every field of every structure, by the tables of `quire_format::layout`, gets several
//! other values, with all checksums above it right again, so that only the meaning is damaged; and without,
//! as rot does it.
//!
//! For each: a mount and the check end, without a panic, a hang or a large allocation; the volume is refused
//! or the check finds it, unless [`unknowable`] says by name why nobody can; what a repair leaves, it names;
//! what was not damaged is as it was.

mod damage;
mod instances;
mod interrupted;
mod journal;
mod judge;
mod limits;
mod rot;
mod unknowable;
mod volumes;

use crate::common::editor::Editor;
use damage::Damage;
use instances::Instance;
use judge::{Seen, Touched, Verdict};
use quire_base::random::Random;
use quire_format::dirent::Entry;
use quire_format::key::{Key, KeyKind};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Of the damages to a structure, one in so many is tried; `scripts/damage` tries all.
fn every() -> usize {
    std::env::var("QUIRE_GENERATED_EVERY").map_or(5, |every| every.parse().expect("a number above zero"))
}

/// Failures that are shown.
const SHOWN_MAX: usize = 12;

#[derive(Default)]
struct Tally {
    tried: usize,
    refused: usize,
    found: usize,
    /// By reason.
    unknowable: BTreeMap<&'static str, usize>,
    wrong: Vec<String>,
}

impl Tally {
    fn end(self, least: usize) {
        let Tally { tried, refused, found, unknowable, wrong } = self;
        let silent: usize = unknowable.values().sum();
        println!(
            "{tried} damages: {refused} refused, {found} found, {silent} unknowable, {} wrong",
            wrong.len()
        );
        for (reason, count) in &unknowable {
            println!("  {count:5} {reason}");
        }
        let shown = &wrong[..wrong.len().min(SHOWN_MAX)];
        assert!(wrong.is_empty(), "{} of {tried} damages: {shown:#?}", wrong.len());
        assert!(tried >= least, "only {tried} damages");
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

fn touch_key(touched: &mut Touched, key: &Key, before: &[u8]) {
    touched
        .inodes
        .extend([key.object].into_iter().filter(|object| *object > 0 && key.kind != KeyKind::Entry));
    match key.kind {
        KeyKind::Entry => {
            if let Ok(entry) = Entry::decode(before) {
                touched.names.insert((key.object, entry.name.to_vec()));
            }
        }
        KeyKind::LoggedOp => {
            touched.inodes.extend(before.get(8..16).map(number));
        }
        KeyKind::OrphanKey => {
            touched.inodes.insert(key.offset);
        }
        _ => {}
    }
}

/// Whose contents and names a damage may cost.
fn touched(editor: &Editor, damage: &Damage) -> Touched {
    let mut touched = Touched::default();
    let mut one = |instance: &Instance, after: &[u8]| {
        let Some(key) = instance.key else { return };
        let value = editor.keys().into_iter().find(|at| at.key == key).map(|at| editor.value(&at));
        touch_key(&mut touched, &key, &value.unwrap_or_default());
        if instance.layout.name == "slot" {
            // The value gets under another inode.
            touched.inodes.insert(number(&after[..8]));
            touched.inodes.extend((key.kind == KeyKind::OrphanKey).then(|| number(&after[8..16])));
            touched.inodes.insert(key.object);
        } else if instance.layout.name == "logged operation" {
            touched.inodes.insert(number(&after[8..16]));
        }
    };
    one(&damage.instance, &damage.after);
    if let Some((other, after)) = &damage.other {
        one(other, after);
    }
    touched
}

/// Everything that the damages of one volume are judged by.
struct World {
    editor: Editor,
    original: Seen,
    all: Vec<(Instance, Vec<u8>)>,
}

impl World {
    fn closed() -> World {
        let editor = Editor::new(&volumes::closed());
        crate::common::assert_clean(&editor.image, "before any damage");
        let original = judge::original(&editor);
        let all = instances::all(&editor);
        let all = all.into_iter().map(|instance| (instance.clone(), instance.bytes(&editor))).collect();
        World { editor, original, all }
    }

    fn instances(&self) -> Vec<Instance> {
        let all: Vec<Instance> = self.all.iter().map(|(instance, _)| instance.clone()).collect();
        instances::representatives(&all)
    }

    fn siblings(&self, instance: &Instance) -> Vec<(Instance, Vec<u8>)> {
        let alike = |other: &&(Instance, Vec<u8>)| {
            let (other, _) = other;
            other.layout.name == instance.layout.name
                && (other.block, other.offset) != (instance.block, instance.offset)
                && other.len >= instance.layout.bytes
        };
        self.all.iter().filter(alike).cloned().collect()
    }

    fn damages(&self, layout: &str, random: &mut Random) -> Vec<Damage> {
        let mut damages = Vec::new();
        for instance in self.instances().iter().filter(|instance| instance.layout.name == layout) {
            let siblings = self.siblings(instance);
            let bytes = instance.bytes(&self.editor);
            damages.extend(damage::of(instance, &bytes, &siblings, random));
            damages.extend(damage::exchange(instance, &bytes, &siblings));
        }
        damages
    }

    fn damaged(&self, damage: &Damage) -> Editor {
        let mut editor = Editor::new(&self.editor.image);
        match &damage.other {
            Some((other, after)) => damage.instance.set_both(&damage.after, other, after, &mut editor),
            None => damage.instance.set(&mut editor, &damage.after),
        }
        editor
    }

    fn try_sealed(&self, damage: &Damage, tally: &mut Tally) {
        let what = damage.describe();
        limits::begin(&what);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let editor = self.damaged(damage);
            judge::judge(&self.original, &editor.image, &touched(&self.editor, damage))
        }));
        limits::end();
        tally.tried += 1;
        match outcome {
            Ok(Verdict::Refused) => tally.refused += 1,
            Ok(Verdict::Found) => tally.found += 1,
            Ok(Verdict::NotFound) => match unknowable::reason(damage) {
                Some(reason) => *tally.unknowable.entry(reason).or_default() += 1,
                None => tally.wrong.push(format!("NOT FOUND {what}")),
            },
            Err(panic) => tally.wrong.push(format!("{what}: {}", limits::message(&*panic))),
        }
    }
}

fn sealed(layouts: &[&str], seed: u64, least: usize) {
    limits::watch();
    let world = World::closed();
    let mut random = Random::seeded(seed);
    let mut tally = Tally::default();
    for layout in layouts {
        for damage in world.damages(layout, &mut random).iter().step_by(every()) {
            world.try_sealed(damage, &mut tally);
        }
    }
    tally.end(least / every());
}

#[test]
fn superblocks() {
    sealed(&["superblock"], 1, 500);
}

#[test]
fn nodes() {
    sealed(&["tree node", "slot", "node reference"], 2, 1000);
}

#[test]
fn inodes() {
    sealed(&["inode"], 3, 1000);
}

#[test]
fn other_values() {
    sealed(&["extent", "entry", "attribute", "link target", "logged operation"], 4, 1000);
}

#[test]
fn space() {
    sealed(&["region", "run", "manifest page", "chunk", "orphan entry", "orphan block"], 5, 250);
}

#[test]
fn no_layout_is_left_out() {
    let world = World::closed();
    let tried: std::collections::BTreeSet<_> =
        world.all.iter().map(|(instance, _)| instance.layout.name).collect();
    for layout in quire_format::layout::ALL {
        // Journals and snapshots have tests of their own; the sample has none.
        let elsewhere = layout.name.starts_with("journal") || layout.name == "snapshot";
        assert!(elsewhere || tried.contains(layout.name), "{}", layout.name);
    }
    let forms: std::collections::BTreeSet<u64> = world
        .all
        .iter()
        .filter(|(instance, _)| instance.layout.name == "region")
        .map(|(instance, _)| instance.shape)
        .collect();
    assert_eq!(forms.into_iter().collect::<Vec<_>>(), [0, 1, 2], "a region in each form");
}
