//! Changing keys.
//!
//! A change descends, latches the leaf, marks the path dirty and edits the page. Where the new value does not
//! fit, it lets go and does the same under the locks of the inner nodes that a split replaces (`shape`). A
//! deletion that leaves a leaf nearly empty tries to merge it afterwards; a leaf that threads fight over is
//! halved ([`crate::heat`]).
//!
//! Invariants: the caller keeps freezes out while a change runs, so the epoch is constant. Before a page or
//! an array changes, what a frozen epoch still needs of it is saved. Nothing is marked where nothing changes.
//! A change marks the nodes that its descent went through. Where others have split or merged some of them
//! since, they did so in the same epoch, and marked what is above the leaf now.
//!
//! Neighbours: `lookup` descends, `shape` splits and merges, `checkpoint` reads what is dirty.

use crate::inner::Child;
use crate::load::Missing;
use crate::lookup::{Found, Step};
use crate::node::{Body, Probe};
use crate::pin::pin;
use crate::tree::Tree;
use quire_base::Result;
use quire_format::key::{Key, KeyKind};
use quire_format::node::{BODY_BYTES, NodePage};
use std::borrow::Cow;

/// What to do with a key.
pub(crate) enum Edit<'v> {
    Keep,
    Set(Cow<'v, [u8]>),
    Remove,
}

/// What [`Tree::update`] makes of a value: the new one, if there is to be one.
pub type Change<'f> = dyn FnMut(Option<&[u8]>) -> Result<Option<Vec<u8>>> + 'f;

/// Says what to do with a key, given its value. May be asked again when the tree has moved on meanwhile.
pub(crate) type Editor<'f, 'v> = dyn FnMut(Option<&[u8]>) -> Result<Edit<'v>> + 'f;

/// A leaf below this is merged with a neighbour where possible.
pub(crate) const SPARSE_BYTES: usize = BODY_BYTES / 4;
/// Two nodes are merged if they fill at most this much of one.
pub(crate) const MERGED_BYTES_MAX: usize = BODY_BYTES / 5 * 4;
/// A sparse leaf is looked at again each time it has lost so much more.
const SPARSE_STEP_BYTES: usize = 256;

/// What a leaf needs after a change.
enum Care {
    Nothing,
    /// It is nearly empty.
    Merge,
    /// Threads fight over it.
    Halve,
}

/// What came of an attempt under the leaf's latch alone.
enum Attempt {
    /// Whether the key existed before; what its leaf needs now.
    Done(bool, Care),
    NeedsSplit,
}

impl Tree {
    /// Sets the value of a key: at most `VALUE_MAX` bytes (`Invalid`).
    ///
    /// Errors, here and below: of reading a node that was not prepared; then nothing has changed.
    pub fn put(&self, key: Key, value: &[u8]) -> Result<()> {
        Self::check_value(value)?;
        let set = |old: Option<&[u8]>| {
            if old == Some(value) { Edit::Keep } else { Edit::Set(Cow::Borrowed(value)) }
        };
        self.edit(key, &mut |old| Ok(set(old))).map(|_| ())
    }

    /// Removes a key; true if it was there.
    pub fn delete(&self, key: Key) -> Result<bool> {
        self.edit(key, &mut |_| Ok(Edit::Remove))
    }

    /// Replaces a key's value by what `change` makes of it (None: no value). `change` runs under the leaf's
    /// latch, so changes of one key follow one another; it must not use the tree. It may be called more than
    /// once, and the last result counts. Its error is returned and nothing has changed.
    pub fn update(&self, key: Key, change: &mut Change<'_>) -> Result<()> {
        self.edit(key, &mut |old| {
            Ok(match change(old)? {
                Some(new) if old == Some(&new[..]) => Edit::Keep,
                Some(new) => {
                    Self::check_value(&new)?;
                    Edit::Set(Cow::Owned(new))
                }
                None => Edit::Remove,
            })
        })
        .map(|_| ())
    }

    fn edit<'v>(&self, key: Key, editor: &mut Editor<'_, 'v>) -> Result<bool> {
        let mut ticket = None;
        loop {
            let missing = match self.try_edit(key, editor)? {
                Ok(Attempt::Done(existed, care)) => {
                    match care {
                        Care::Nothing => {}
                        Care::Merge => self.merge(key),
                        Care::Halve => self.halve(key),
                    }
                    return Ok(existed);
                }
                Ok(Attempt::NeedsSplit) => match self.split_and_edit(key, editor)? {
                    Ok(existed) => return Ok(existed),
                    Err(missing) => missing,
                },
                Err(missing) => missing,
            };
            ticket.get_or_insert_with(|| self.ticket());
            self.load(missing)?;
        }
    }

    fn try_edit<'v>(
        &self,
        key: Key,
        editor: &mut Editor<'_, 'v>,
    ) -> Result<std::result::Result<Attempt, Missing>> {
        let pin = pin();
        let probe = Probe::At(key);
        let (path, found, mut leaf, waited) = loop {
            let (path, found) = match self.descend(&pin, &probe) {
                Ok(found) => found,
                Err(missing) => return Ok(Err(missing)),
            };
            let (leaf, waited) = match found.latch.try_write() {
                Some(leaf) => (leaf, false),
                None => (found.latch.write(), true),
            };
            if found.has(&leaf, &probe) {
                break (path, found, leaf, waited);
            }
            drop(leaf);
            self.overtaken();
        };
        let page = &leaf.page;
        let hot = key.kind == KeyKind::Entry && found.node.heat.count(waited);
        let at = page.search(&key);
        let edit = editor(at.ok().map(|at| page.value(at)))?;
        match (&edit, at) {
            (Edit::Keep, _) | (Edit::Remove, Err(_)) => {
                return Ok(Ok(Attempt::Done(at.is_ok(), Care::Nothing)));
            }
            (Edit::Set(value), at) if !has_room(page, at, value.len()) => {
                return Ok(Ok(Attempt::NeedsSplit));
            }
            _ => {}
        }
        let epoch = self.live_epoch();
        for step in &path {
            self.mark(step.node, epoch);
        }
        found.node.save_leaf(&leaf, epoch);
        self.mark(found.node, epoch);
        let page = &mut leaf.page;
        let before = page.used_bytes();
        apply(page, key, at, &edit);
        let after = page.used_bytes();
        let stepped = before / SPARSE_STEP_BYTES != after / SPARSE_STEP_BYTES || page.count() == 0;
        let hot = hot && page.count() > 1;
        drop(leaf);
        let sparse = matches!(edit, Edit::Remove) && after < SPARSE_BYTES && stepped;
        let care = if hot {
            Care::Halve
        } else if sparse && self.may_merge(path.last(), &found, after) {
            Care::Merge
        } else {
            Care::Nothing
        };
        Ok(Ok(Attempt::Done(at.is_ok(), care)))
    }

    /// Whether a neighbour of a sparse leaf is in memory and has room for it. The tree may change right
    /// after.
    fn may_merge(&self, parent: Option<&Step<'_>>, found: &Found<'_>, used: usize) -> bool {
        let epoch = self.live_epoch();
        if found.node.heat.stays_apart(epoch) {
            return false;
        }
        let Some(&Step { entries, at, .. }) = parent else { return false };
        let fits = |at: usize| {
            let Some(node) = entries.children.get(at).and_then(Child::resident) else { return false };
            match &node.body {
                _ if node.heat.stays_apart(epoch) => false,
                Body::Leaf(latch) => latch.read().page.used_bytes() + used <= MERGED_BYTES_MAX,
                Body::Inner(_) => false,
            }
        };
        at.checked_sub(1).is_some_and(fits) || fits(at + 1)
    }
}

/// Whether an edit that sets a value of `len` bytes fits the page.
pub(crate) fn has_room(page: &NodePage, at: Result<usize, usize>, len: usize) -> bool {
    match at {
        Ok(at) => page.fits_instead(at, len),
        Err(_) => page.fits(len),
    }
}

/// Applies an edit that has room.
pub(crate) fn apply(page: &mut NodePage, key: Key, at: Result<usize, usize>, edit: &Edit<'_>) {
    match (edit, at) {
        (Edit::Set(value), Ok(at)) => page.replace(at, value),
        (Edit::Set(value), Err(at)) => page.insert(at, key, value),
        (Edit::Remove, Ok(at)) => page.remove(at),
        (Edit::Keep, _) | (Edit::Remove, Err(_)) => {}
    }
}
