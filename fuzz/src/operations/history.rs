//! The states that a volume has had since it was last opened, and what it may hold after a power cut.
//!
//! For a cut at device event `e`:
//! * names, links, modes, attributes and targets equal the state after some operation that is not before the
//!   last one that was forced when `e` came, and not after the last one begun;
//! * each 512 bytes of a file equal those of a state not before its last sync, in which the file is as long
//!   or they are zeros; its size is none beyond those that it has had since.
//!
//! Neighbours: [`super::model`] is a state.

use super::model::Model;
use quire::FileType;
use std::collections::{BTreeMap, BTreeSet};

const SECTOR: usize = 512;

/// One operation.
struct Step {
    /// Device events before it began and when it had returned.
    begun: usize,
    ended: usize,
    /// The last operation whose names are durable when this one has returned.
    forced: usize,
    /// Files whose data and size are durable when this one has returned, as of this one.
    synced: BTreeSet<u64>,
    model: Model,
}

/// What a successful operation made durable.
#[derive(Default)]
pub struct Made {
    /// Everything.
    pub all: bool,
    /// Every name, but no data.
    pub names: bool,
    /// A file's data, and whether its names and attributes as well.
    pub file: Option<(u64, bool)>,
    /// Inodes whose names or attributes it changed.
    pub named: Vec<u64>,
}

/// See the module's documentation.
pub struct History {
    steps: Vec<Step>,
    /// The last operation that changed an inode's names or attributes.
    named: BTreeMap<u64, usize>,
    forced: usize,
}

impl History {
    /// Begins with a state that is durable since event `events`.
    pub fn new(model: Model, events: usize) -> History {
        let synced = model.inodes.keys().copied().collect();
        let first = Step { begun: 0, ended: events, forced: 0, synced, model };
        History { steps: vec![first], named: BTreeMap::new(), forced: 0 }
    }

    /// Adds the state after an operation.
    pub fn push(&mut self, model: &Model, begun: usize, ended: usize, made: &Made) {
        let number = self.steps.len();
        for inode in &made.named {
            self.named.insert(*inode, number);
        }
        let mut synced = BTreeSet::new();
        if made.all || made.names {
            self.forced = number;
        }
        if made.all {
            synced = model.inodes.keys().copied().collect();
        }
        if let Some((file, with_names)) = made.file {
            synced.insert(file);
            if with_names {
                self.forced = self.forced.max(self.named.get(&file).copied().unwrap_or(0));
            }
        }
        self.steps.push(Step { begun, ended, forced: self.forced, synced, model: model.clone() });
    }

    /// Compares what was recovered after a cut at an event. `found` has no orphans.
    pub fn check(&self, found: &Model, event: usize) -> Result<(), String> {
        let last = self.steps.iter().rposition(|step| step.begun <= event).unwrap_or(0);
        let returned: Vec<usize> = (0..=last).filter(|at| self.steps[*at].ended <= event).collect();
        let forced = returned.iter().map(|at| self.steps[*at].forced).max().unwrap_or(0);
        if !(forced..=last).any(|at| self.steps[at].model.same_names(found)) {
            let last_state = self.steps[last].model.without_orphans();
            return Err(format!(
                "names fit no state from {forced} to {last}: found {}, the last is {}",
                describe(found),
                describe(&last_state)
            ));
        }
        for (number, inode) in found.inodes.iter().filter(|(_, inode)| inode.kind == FileType::Regular) {
            let synced = returned.iter().rev().find(|at| self.steps[**at].synced.contains(number));
            self.check_data(*number, &inode.data, synced.copied().unwrap_or(0), last)?;
        }
        Ok(())
    }

    fn check_data(&self, number: u64, data: &[u8], synced: usize, last: usize) -> Result<(), String> {
        let mut states: Vec<&[u8]> = Vec::new();
        for step in &self.steps[synced..=last] {
            if let Some(inode) = step.model.inodes.get(&number)
                && states.last().is_none_or(|state| !std::ptr::eq(*state, &inode.data[..]))
            {
                states.push(&inode.data);
            }
        }
        let sizes = states.iter().map(|state| state.len());
        let (Some(least), Some(most)) = (sizes.clone().min(), sizes.max()) else {
            return Err(format!("file {number} was never there"));
        };
        if !(least..=most).contains(&data.len()) {
            return Err(format!("file {number} has {} bytes, it had {least} to {most}", data.len()));
        }
        for (sector, bytes) in data.chunks(SECTOR).enumerate() {
            let fits = |state: &&[u8]| {
                let from = (sector * SECTOR).min(state.len());
                let there = &state[from..(from + bytes.len()).min(state.len())];
                bytes[..there.len()] == *there && bytes[there.len()..].iter().all(|byte| *byte == 0)
            };
            if !states.iter().any(fits) {
                let from = sector * SECTOR;
                let had: Vec<_> = states.iter().map(|state| state.get(from).copied()).collect();
                return Err(format!(
                    "file {number} ({} bytes) at {from} holds {:?}.., since operation {synced} it held {had:?}",
                    data.len(),
                    &bytes[..bytes.len().min(8)]
                ));
            }
        }
        Ok(())
    }
}

/// One line for each inode.
pub fn describe(model: &Model) -> String {
    let line = |(number, inode): (&u64, &std::rc::Rc<super::model::Inode>)| {
        let names: Vec<_> = inode
            .entries
            .iter()
            .map(|(name, number)| format!("{}={number}", String::from_utf8_lossy(&name[..name.len().min(9)])))
            .collect();
        let attributes: Vec<_> = inode.xattrs.values().map(Vec::len).collect();
        format!(
            "\n  {number}: {:?} mode {:o} links {} size {} xattrs {attributes:?} {names:?}",
            inode.kind,
            inode.mode,
            inode.links,
            inode.data.len()
        )
    };
    model.inodes.iter().map(line).collect()
}
