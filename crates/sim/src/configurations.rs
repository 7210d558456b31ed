//! Which sets of operations can have been done at once, and what is there then: the graph that crash images
//! are held against.
//!
//! A *configuration* is a set of operations that is closed under real time (if A returned before B was called
//! and B is in, A is in), reached by some order in which every operation answered what the model answers.
//! Since each thread does one thing after the other, a configuration is a count for each thread, and a state
//! of the model. The graph is searched breadth first from nothing, with a memory of what was met (Wing and
//! Gong's search with Lowe's memo); what leads nowhere is cut off again. If the whole run cannot be reached,
//! no order explains what it observed: the live run was not linearizable.
//!
//! Neighbours: [`crate::model`] answers; [`crate::oracle`] looks for a configuration that a crash image
//! shows.

use crate::model::Model;
use crate::operation::{GroupEnd, Operation, Outcome, Record};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

/// Configurations of one size that are followed; a run that needs more is too wide to be judged.
const WIDTH_MAX: usize = 20_000;

/// Why there is no graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unexplained {
    /// No order explains what the run observed.
    Wrong(String),
    /// So much went on at once that there are more orders than are followed: says nothing about the engine.
    TooWide,
}

impl std::fmt::Display for Unexplained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unexplained::Wrong(what) => f.write_str(what),
            Unexplained::TooWide => {
                write!(f, "more than {WIDTH_MAX} configurations of one size: too wide to be judged")
            }
        }
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Operations done by each thread.
    pub done: Vec<usize>,
    /// What is there then.
    pub model: Arc<Model>,
    /// Hash of [`Model::shapes`].
    pub shapes_hash: u64,
}

/// All configurations that some order of the whole run passes through.
pub struct Configurations {
    /// Smaller ones first.
    pub all: Vec<Configuration>,
    /// Inodes that an operation touched, by thread and place; only those that all orders agree on.
    pub touched: Agreed,
    /// The files whose size an operation changed, by thread and place; only where all orders agree that it
    /// did.
    pub sized: Agreed,
}

/// By thread and place: the inodes that all orders name.
type Agreed = BTreeMap<(usize, usize), BTreeSet<u64>>;

fn agree(known: &mut Agreed, place: (usize, usize), inodes: BTreeSet<u64>) {
    known.entry(place).and_modify(|known| known.retain(|inode| inodes.contains(inode))).or_insert(inodes);
}

/// A hash that is the same in every run.
pub fn hash_of(value: &impl std::hash::Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
}

/// One step of the search.
struct Node {
    configuration: Configuration,
    /// Places in the layer before.
    parents: Vec<usize>,
}

/// Searches the graph; an error says why no order explains the run.
pub fn explore(start: Model, threads: &[Vec<Record>]) -> Result<Configurations, Unexplained> {
    let total: usize = threads.iter().map(Vec::len).sum();
    let first = configuration(vec![0; threads.len()], start);
    let mut layers = vec![vec![Node { configuration: first, parents: Vec::new() }]];
    for _ in 0..total {
        let layer = next_layer(layers.last().expect("a layer"), threads)?;
        layers.push(layer);
    }
    Ok(reachable_backwards(layers, threads))
}

fn configuration(done: Vec<usize>, model: Model) -> Configuration {
    let shapes_hash = hash_of(&model.shapes());
    Configuration { done, model: Arc::new(model), shapes_hash }
}

fn next_layer(layer: &[Node], threads: &[Vec<Record>]) -> Result<Vec<Node>, Unexplained> {
    let mut next: Vec<Node> = Vec::new();
    let mut met: HashMap<(Vec<usize>, u64), Vec<usize>> = HashMap::new();
    let mut refusals = Vec::new();
    for (parent, node) in layer.iter().enumerate() {
        for thread in 0..threads.len() {
            let done = &node.configuration.done;
            let Some(record) = threads[thread].get(done[thread]) else { continue };
            if !may_come_next(record, thread, done, threads) {
                continue;
            }
            let mut model = (*node.configuration.model).clone();
            if let Err(refusal) = model.apply(record.id, &record.operation, &record.outcome) {
                if refusals.len() < 4 {
                    refusals.push(format!("thread {thread}, {:?}: {refusal}", record.id));
                }
                continue;
            }
            let mut done = done.clone();
            done[thread] += 1;
            let same = met.entry((done.clone(), hash_of(&model))).or_default();
            match same.iter().find(|&&at| *next[at].configuration.model == model) {
                Some(&at) => next[at].parents.push(parent),
                None => {
                    same.push(next.len());
                    next.push(Node { configuration: configuration(done, model), parents: vec![parent] });
                }
            }
        }
    }
    if next.is_empty() {
        return Err(Unexplained::Wrong(format!("no order explains the answers: {}", refusals.join("; "))));
    }
    if next.len() > WIDTH_MAX {
        return Err(Unexplained::TooWide);
    }
    Ok(next)
}

/// Everything that returned before this operation was called is done.
fn may_come_next(record: &Record, thread: usize, done: &[usize], threads: &[Vec<Record>]) -> bool {
    threads.iter().enumerate().all(|(other, records)| {
        other == thread || records.get(done[other]).is_none_or(|next| !next.is_before(record))
    })
}

/// The inodes that an operation reads or changes, besides those that it is about to make.
fn touched_by(model: &Model, record: &Record) -> BTreeSet<u64> {
    let mut touched = BTreeSet::new();
    let named = |directory: &u64, name: &crate::operation::Name| {
        model.inode(*directory).and_then(|inode| inode.shape.entries.get(name).copied())
    };
    match &record.operation {
        Operation::Create { directory, .. } | Operation::Symlink { directory, .. } => {
            touched.insert(*directory);
        }
        Operation::Link { inode, directory, .. } => touched.extend([*inode, *directory]),
        Operation::Unlink { directory, name } | Operation::RemoveDirectory { directory, name } => {
            touched.insert(*directory);
            touched.extend(named(directory, name));
        }
        // Two names of one inode: nothing happens.
        Operation::Rename { from, name, to, to_name, .. } if named(from, name) == named(to, to_name) => {}
        Operation::Rename { from, name, to, to_name, .. } => {
            touched.extend([*from, *to]);
            touched.extend(named(from, name));
            touched.extend(named(to, to_name));
        }
        Operation::ChangeMode { inode, .. }
        | Operation::ChangeOwner { inode, .. }
        | Operation::SetXattr { inode, .. }
        | Operation::RemoveXattr { inode, .. }
        | Operation::Write { inode, .. }
        | Operation::Truncate { inode, .. }
        | Operation::Allocate { inode, .. } => {
            touched.insert(*inode);
        }
        Operation::Group { writes, end } if *end != GroupEnd::Dropped => {
            touched.extend(writes.iter().map(|write| write.inode));
        }
        Operation::SetUntorn { inode, unit, .. }
            if model.inode(*inode).is_some_and(|inode| inode.shape.untorn != *unit) =>
        {
            touched.insert(*inode);
        }
        _ => {}
    }
    if let (Outcome::Inode(inode), false) =
        (&record.outcome, matches!(record.operation, Operation::Lookup { .. }))
    {
        touched.insert(*inode);
    }
    touched
}

/// The files whose size an operation changed or set.
fn sized_by(before: &Model, after: &Model, record: &Record) -> BTreeSet<u64> {
    let size = |model: &Model, inode: u64| model.inode(inode).map(|inode| inode.file.size);
    match record.operation {
        Operation::Truncate { inode, .. } => BTreeSet::from([inode]),
        Operation::Write { .. } | Operation::Allocate { .. } | Operation::Group { .. } => {
            let subjects = record.operation.subjects().into_iter();
            subjects.filter(|inode| size(before, *inode) != size(after, *inode)).collect()
        }
        _ => BTreeSet::new(),
    }
}

/// Keeps what leads to the whole run, and what all orders of that agree on.
fn reachable_backwards(mut layers: Vec<Vec<Node>>, threads: &[Vec<Record>]) -> Configurations {
    let (mut touched, mut sized) = (Agreed::new(), Agreed::new());
    let mut wanted: Vec<bool> = vec![true; layers.last().map_or(0, Vec::len)];
    let mut kept = Vec::new();
    while let Some(layer) = layers.pop() {
        let mut before = vec![false; layers.last().map_or(0, Vec::len)];
        for (node, wanted) in layer.into_iter().zip(wanted) {
            if !wanted {
                continue;
            }
            let after = node.configuration;
            for parent in node.parents {
                before[parent] = true;
                let before = &layers.last().expect("the parents' layer")[parent].configuration;
                let thread = (0..threads.len()).find(|&thread| before.done[thread] < after.done[thread]);
                let thread = thread.expect("a thread that did one more");
                let place = (thread, before.done[thread]);
                let record = &threads[thread][place.1];
                agree(&mut touched, place, touched_by(&before.model, record));
                agree(&mut sized, place, sized_by(&before.model, &after.model, record));
            }
            kept.push(after);
        }
        wanted = before;
    }
    kept.reverse();
    Configurations { all: kept, touched, sized }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ROOT;
    use crate::operation::{Name, OpId};
    use quire::{FileType, RenameFlags};

    /// An order that a later answer refutes weakened what all orders agree on, and with it what an fsync must
    /// cover.
    #[test]
    fn a_refuted_order_has_no_say() {
        let (a, b, first, second) = (Name(0), Name(1), 2, 3);
        let record = |id, operation, outcome, ticks| Record {
            id: OpId(id),
            operation,
            outcome,
            ticks,
            events: (0, 0),
        };
        let create = |id, name, inode| {
            let kind = FileType::Regular;
            let operation = Operation::Create { directory: ROOT, name, kind, mode: 0o600 };
            record(id, operation, Outcome::Inode(inode), (2 * id, 2 * id + 1))
        };
        let flags = RenameFlags::empty();
        let rename = Operation::Rename { from: ROOT, name: a, to: ROOT, to_name: b, flags };
        let lookup = Operation::Lookup { directory: ROOT, name: b };
        let threads = [
            vec![
                create(0, a, first),
                create(1, b, second),
                record(2, rename, Outcome::Done, (10, 13)),
                // The unlink was first: otherwise this name would be gone.
                record(3, lookup, Outcome::Inode(first), (20, 21)),
            ],
            vec![record(4, Operation::Unlink { directory: ROOT, name: b }, Outcome::Done, (11, 12))],
        ];
        let configurations = explore(Model::new(false), &threads).unwrap_or_else(|what| panic!("{what}"));
        assert_eq!(configurations.touched[&(1, 0)], BTreeSet::from([ROOT, second]));
    }
}
