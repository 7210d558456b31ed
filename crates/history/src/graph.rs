//! The polynomial answer, for histories too long for [`crate::exact`]: what must have come before what, and
//! whether that goes round in a circle.
//!
//! Every operation took effect at one moment between its call and its return. The tags say more: a read comes
//! after the write whose cells it saw, as a whole; any other write of a cell that it saw comes before that
//! write or after the read. Which of the two is drawn as soon as either is impossible, which may make more
//! impossible, until nothing is left to draw. Appends and what finds the end of file order those that moved
//! it. A circle is a contradiction.
//!
//! Sound: each conclusion holds in every order that explains the history, so what it refuses, no order
//! explains. Strong but not complete: choices that are open both ways, each of which leads to a contradiction
//! only together with others, are left open. In short histories of the deliberate mistakes it finds nearly
//! all that the exact search finds.
//!
//! Moments are kept as bounds (the latest call before it, the earliest return behind it), which stand for all
//! that real time says; conclusions are edges. What does not fit bounds and edges is not taken: collapse and
//! insert move cells, and sizes are not looked at where something can make the file smaller.
//!
//! Neighbours: [`crate::threads`] has histories for it; [`crate::simulated`] holds both answers against each
//! other.

use crate::cell::{CELL, Run, ZERO};
use crate::operation::{Event, Mode, Operation, Outcome};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt::Write;

/// Number of an operation in the graph; 0 is the file's beginning.
type Node = u32;
const BEGINNING: Node = 0;

/// Why one comes before another.
#[derive(Clone, Copy)]
enum Why {
    /// The second saw what the first wrote, at this cell.
    Saw(u64),
    /// This one saw at this cell what the second wrote, and came after the first, which writes there.
    NotOverwritten(Node, u64),
    /// The first saw at this cell what this one wrote, which the second overwrote later.
    NotYet(Node, u64),
    /// The first found the end of file below where the second put it.
    Smaller,
    /// The second found the end of file where the first put it.
    Grown,
}

/// Something that contradicts itself, for people.
type Contradiction = String;

/// What can be said of a history.
pub enum Answer {
    /// Nothing goes round in a circle.
    Consistent,
    /// Something does.
    Contradiction(String),
    /// The history has operations that this check does not take.
    NotTaken,
}

/// Checks a history of a file that is empty at first.
pub fn check(events: &[Event]) -> Answer {
    let mut taken: Vec<&Event> = Vec::new();
    for event in events.iter().filter(|event| !event.operation.is_silent()) {
        match (&event.operation, &event.outcome) {
            (Operation::Allocate { mode: Mode::Collapse | Mode::Insert, .. }, _) => return Answer::NotTaken,
            (_, Outcome::Pending) if event.operation.only_looks() => {}
            (_, Outcome::Pending) => return Answer::NotTaken,
            (_, Outcome::Failed(..) | Outcome::Foreign(_)) => {
                return Answer::Contradiction(format!("this is the answer of no file\n  {event}\n"));
            }
            _ => taken.push(event),
        }
    }
    let mut graph = Graph::new(taken);
    match graph.draw() {
        Ok(()) => Answer::Consistent,
        Err(contradiction) => Answer::Contradiction(contradiction),
    }
}

/// What happens to the cells between two borders.
#[derive(Default)]
struct Piece {
    /// Who changes them, by the time of the call.
    changes: Vec<Change>,
    /// Who saw them, and whose cells those were; None: zeros.
    looks: Vec<(Node, Option<Node>)>,
}

#[derive(Clone, Copy)]
struct Change {
    node: Node,
    zeroes: bool,
    /// The latest return of this one and all before it in the list.
    returned: u64,
}

struct Graph<'a> {
    /// By node, less one.
    events: Vec<&'a Event>,
    node_of: HashMap<u32, Node>,
    /// Bounds of each node's moment.
    low: Vec<u64>,
    high: Vec<u64>,
    after: Vec<Vec<Node>>,
    before: Vec<Vec<Node>>,
    why: HashMap<(Node, Node), Why>,
}

impl<'a> Graph<'a> {
    fn new(events: Vec<&'a Event>) -> Graph<'a> {
        let nodes = events.len() + 1;
        let node_of = events.iter().zip(1..).map(|(event, node)| (event.number, node)).collect();
        Graph {
            low: [0].into_iter().chain(events.iter().map(|event| event.called)).collect(),
            high: [0].into_iter().chain(events.iter().map(|event| event.returned)).collect(),
            after: vec![Vec::new(); nodes],
            before: vec![Vec::new(); nodes],
            why: HashMap::new(),
            node_of,
            events,
        }
    }

    fn called(&self, node: Node) -> u64 {
        if node == BEGINNING { 0 } else { self.events[node as usize - 1].called }
    }

    fn returned(&self, node: Node) -> u64 {
        if node == BEGINNING { 0 } else { self.events[node as usize - 1].returned }
    }

    fn draw(&mut self) -> Result<(), Contradiction> {
        let pieces = self.pieces()?;
        self.draw_sizes()?;
        loop {
            let edges = self.why.len();
            for (at, piece) in &pieces {
                for (look, source) in &piece.looks {
                    match source {
                        Some(writer) => self.draw_look(*at, piece, *look, *writer)?,
                        None => self.draw_zeros(*at, piece, *look)?,
                    }
                }
            }
            if self.why.len() == edges {
                return Ok(());
            }
        }
    }

    // ---- what is in the history ----

    /// The file's cells between all borders of operations, with what happens to each.
    fn pieces(&mut self) -> Result<Vec<(u64, Piece)>, Contradiction> {
        let mut borders = BTreeSet::new();
        for event in &self.events {
            each_range(event, |from, to, _| borders.extend([from, to]));
        }
        let borders: Vec<u64> = borders.into_iter().collect();
        let mut pieces: BTreeMap<u64, Piece> =
            borders.iter().map(|border| (*border, Piece::default())).collect();
        let mut saw = Vec::new();
        for (event, node) in self.events.iter().zip(1..) {
            let mut wrong = None;
            each_range(event, |from, to, what| {
                let source = match what {
                    What::Saw(run) if run.writer != ZERO => match self.writer_of(from, run) {
                        Some(writer) => Some(writer),
                        None => {
                            wrong = Some((from, run));
                            return;
                        }
                    },
                    _ => None,
                };
                if let Some(writer) = source {
                    saw.push((writer, node, from));
                }
                for (_, piece) in pieces.range_mut(from..to) {
                    match what {
                        What::Saw(_) => piece.looks.push((node, source)),
                        What::Wrote => piece.changes.push(Change { node, zeroes: false, returned: 0 }),
                        What::Zeroed => piece.changes.push(Change { node, zeroes: true, returned: 0 }),
                    }
                }
            });
            if let Some((at, run)) = wrong {
                let at = at * CELL;
                return Err(format!(
                    "what it saw at {at} was written elsewhere, or by nobody ({run:?})\n  {event}\n"
                ));
            }
        }
        for piece in pieces.values_mut() {
            piece.changes.sort_by_key(|change| self.called(change.node));
            let mut returned = 0;
            for change in &mut piece.changes {
                returned = returned.max(self.returned(change.node));
                change.returned = returned;
            }
        }
        for (writer, look, at) in saw {
            self.add(writer, look, Why::Saw(at))?;
        }
        Ok(pieces.into_iter().filter(|(_, piece)| !piece.looks.is_empty()).collect())
    }

    /// Who wrote a run that was seen at `at`, if it belongs there.
    fn writer_of(&self, at: u64, run: Run) -> Option<Node> {
        let node = *self.node_of.get(&run.writer)?;
        let (from, to) = self.events[node as usize - 1].written()?;
        let fits = from + u64::from(run.position) == at && at + u64::from(run.len) <= to;
        fits.then_some(node)
    }

    // ---- conclusions ----

    /// Whether `a` is known to come before `b`.
    fn is_before(&self, a: Node, b: Node) -> bool {
        if self.high[a as usize] < self.low[b as usize] {
            return true;
        }
        let mut ahead = vec![a];
        let mut seen = BTreeSet::new();
        while let Some(node) = ahead.pop() {
            for next in &self.after[node as usize] {
                if *next == b || self.high[*next as usize] < self.low[b as usize] {
                    return true;
                }
                // Whose moment is behind all of b's does not lead to it.
                if self.low[*next as usize] <= self.high[b as usize] && seen.insert(*next) {
                    ahead.push(*next);
                }
            }
        }
        false
    }

    /// Concludes that `a` comes before `b`.
    fn add(&mut self, a: Node, b: Node, why: Why) -> Result<(), Contradiction> {
        if a == b || self.why.contains_key(&(a, b)) {
            return Ok(());
        }
        let circle = self.is_before(b, a);
        self.why.insert((a, b), why);
        self.after[a as usize].push(b);
        self.before[b as usize].push(a);
        if circle {
            return Err(self.circle(a, b));
        }
        let mut later = VecDeque::from([b]);
        self.low[b as usize] = self.low[b as usize].max(self.low[a as usize]);
        while let Some(node) = later.pop_front() {
            for next in &self.after[node as usize] {
                if self.low[*next as usize] < self.low[node as usize] {
                    self.low[*next as usize] = self.low[node as usize];
                    later.push_back(*next);
                }
            }
        }
        let mut earlier = VecDeque::from([a]);
        self.high[a as usize] = self.high[a as usize].min(self.high[b as usize]);
        while let Some(node) = earlier.pop_front() {
            for next in &self.before[node as usize] {
                if self.high[*next as usize] > self.high[node as usize] {
                    self.high[*next as usize] = self.high[node as usize];
                    earlier.push_back(*next);
                }
            }
        }
        Ok(())
    }

    /// The changes of a piece that may lie between `first` and `look`, or are undecided.
    fn between<'b>(
        &self,
        piece: &'b Piece,
        first: Node,
        look: Node,
    ) -> impl Iterator<Item = Change> + use<'b> {
        let (since, until) = (self.called(first), self.returned(look));
        let end = piece.changes.partition_point(|change| self.called(change.node) < until);
        piece.changes[..end].iter().rev().take_while(move |change| change.returned > since).copied()
    }

    /// `look` saw what `writer` wrote: every other change comes before that or after it.
    fn draw_look(&mut self, at: u64, piece: &Piece, look: Node, writer: Node) -> Result<(), Contradiction> {
        for change in self.between(piece, writer, look) {
            self.draw_change(at, look, writer, change.node)?;
        }
        Ok(())
    }

    fn draw_change(&mut self, at: u64, look: Node, writer: Node, change: Node) -> Result<(), Contradiction> {
        if change == writer || change == look {
            return Ok(());
        }
        if self.is_before(change, look) {
            self.add(change, writer, Why::NotOverwritten(look, at))?;
        }
        if self.is_before(writer, change) {
            self.add(look, change, Why::NotYet(writer, at))?;
        }
        Ok(())
    }

    /// `look` saw zeros: nobody wrote there, or somebody zeroed it since.
    fn draw_zeros(&mut self, at: u64, piece: &Piece, look: Node) -> Result<(), Contradiction> {
        let writes: Vec<Node> = self
            .between(piece, BEGINNING, look)
            .filter(|change| !change.zeroes && self.is_before(change.node, look))
            .map(|change| change.node)
            .collect();
        let zeroers: Vec<Node> = self
            .between(piece, BEGINNING, look)
            .filter(|change| change.zeroes)
            .map(|change| change.node)
            .chain([BEGINNING])
            .filter(|zeroer| !self.is_before(look, *zeroer))
            .filter(|zeroer| !writes.iter().any(|write| self.is_before(*zeroer, *write)))
            .collect();
        match zeroers[..] {
            [] => Err(self.no_zeros(at, look, &writes)),
            [zeroer] => {
                if zeroer != BEGINNING {
                    self.add(zeroer, look, Why::Saw(at))?;
                }
                let writes: Vec<Change> =
                    self.between(piece, zeroer, look).filter(|change| !change.zeroes).collect();
                for change in writes {
                    if zeroer == BEGINNING {
                        self.add(look, change.node, Why::NotYet(BEGINNING, at))?;
                    } else {
                        self.draw_change(at, look, zeroer, change.node)?;
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What the end of file says, where it only moves up.
    fn draw_sizes(&mut self) -> Result<(), Contradiction> {
        let moves_otherwise = |event: &&Event| match &event.operation {
            Operation::Truncate { .. } => true,
            Operation::Allocate { mode, .. } => matches!(mode, Mode::Allocate | Mode::Zero),
            _ => false,
        };
        if self.events.iter().any(moves_otherwise) {
            return Ok(());
        }
        // (end, node) by the time of the call, with the largest end of it and all before it.
        let mut growth: Vec<(u64, Node, u64)> = self
            .events
            .iter()
            .zip(1..)
            .filter_map(|(event, node)| event.written().map(|(_, end)| (end, node, 0)))
            .collect();
        growth.sort_by_key(|(_, node, _)| self.called(*node));
        let mut largest = 0;
        let mut by_end: BTreeMap<u64, Vec<Node>> = BTreeMap::new();
        for (end, node, end_max) in &mut growth {
            largest = largest.max(*end);
            *end_max = largest;
            by_end.entry(*end).or_default().push(*node);
        }
        let found: Vec<(Node, u64, bool)> = self
            .events
            .iter()
            .zip(1..)
            .filter_map(|(event, node)| end_found(event).map(|(end, exact)| (node, end, exact)))
            .collect();
        for (look, size, exact) in found {
            let until = growth.partition_point(|(_, node, _)| self.called(*node) < self.returned(look));
            let larger: Vec<Node> = growth[..until]
                .iter()
                .rev()
                .take_while(|(_, _, end_max)| *end_max > size)
                .filter(|(end, node, _)| *end > size && *node != look)
                .map(|(_, node, _)| *node)
                .collect();
            for node in larger {
                self.add(look, node, Why::Smaller)?;
            }
            if !exact || size == 0 {
                continue;
            }
            match by_end.get(&size).map(Vec::as_slice) {
                Some([only]) => self.add(*only, look, Why::Grown)?,
                Some(_) => {}
                None => {
                    let look = self.show(look);
                    return Err(format!("the end of file was never at {}\n  {look}\n", size * CELL));
                }
            }
        }
        Ok(())
    }

    // ---- reports ----

    fn show(&self, node: Node) -> String {
        if node == BEGINNING {
            return "the file's beginning".into();
        }
        self.events[node as usize - 1].to_string()
    }

    fn name(&self, node: Node) -> String {
        if node == BEGINNING {
            return "the file's beginning".into();
        }
        format!("#{}", self.events[node as usize - 1].number)
    }

    fn no_zeros(&self, at: u64, look: Node, writes: &[Node]) -> Contradiction {
        let mut text = format!(
            "this one saw zeros at {}, where these had written, and nobody zeroed since\n  {}\n",
            at * CELL,
            self.show(look)
        );
        for node in writes {
            let _ = writeln!(text, "  {}", self.show(*node));
        }
        text
    }

    /// The circle that an edge from `a` to `b` closes.
    fn circle(&self, a: Node, b: Node) -> Contradiction {
        let mut path = vec![a, b];
        path.extend(self.path(b, a));
        let mut text = String::from("what must have come before what goes round in a circle\n");
        for pair in path.windows(2) {
            let (one, two) = (pair[0], pair[1]);
            let _ = write!(text, "  {} before {}: ", self.name(one), self.name(two));
            let _ = match self.why.get(&(one, two)) {
                Some(Why::Saw(at)) => writeln!(text, "it saw what that did at {}", at * CELL),
                Some(Why::NotOverwritten(look, at)) => writeln!(
                    text,
                    "{}, which comes after the first, saw what the second did at {}",
                    self.name(*look),
                    at * CELL
                ),
                Some(Why::NotYet(writer, at)) => writeln!(
                    text,
                    "the first saw what {} did at {}, before the second did something there",
                    self.name(*writer),
                    at * CELL
                ),
                Some(Why::Smaller) => writeln!(text, "the first found an end of file that the second passed"),
                Some(Why::Grown) => writeln!(text, "the second found the end of file that the first made"),
                None => writeln!(text, "it was over when the second began"),
            };
        }
        let mut shown: BTreeSet<Node> = path.iter().copied().collect();
        for pair in path.windows(2) {
            if let Some(Why::NotOverwritten(other, _) | Why::NotYet(other, _)) =
                self.why.get(&(pair[0], pair[1]))
            {
                shown.insert(*other);
            }
        }
        for node in shown {
            let _ = writeln!(text, "  {}", self.show(node));
        }
        text
    }

    /// A way from `from` to `to`, without `from`: edges, with at most one step of real time.
    fn path(&self, from: Node, to: Node) -> Vec<Node> {
        let forward = reach(from, &self.after);
        let backward = reach(to, &self.before);
        let trail = |reached: &BTreeMap<Node, Node>, end: Node, start: Node| {
            let mut way = vec![end];
            while let Some(last) = way.last().filter(|last| **last != start) {
                way.push(reached[last]);
            }
            way
        };
        let (leaves, enters) = if forward.contains_key(&to) {
            (to, to)
        } else {
            let first = forward.keys().min_by_key(|node| self.returned(**node)).copied().unwrap_or(from);
            let last = backward.keys().max_by_key(|node| self.called(**node)).copied().unwrap_or(to);
            (first, last)
        };
        let mut way = trail(&forward, leaves, from);
        way.reverse();
        if leaves != enters {
            way.extend(trail(&backward, enters, to));
        }
        way.remove(0);
        way
    }
}

/// All that `start` leads to, with the node by which each was found.
fn reach(start: Node, edges: &[Vec<Node>]) -> BTreeMap<Node, Node> {
    let mut found = BTreeMap::from([(start, start)]);
    let mut ahead = VecDeque::from([start]);
    while let Some(node) = ahead.pop_front() {
        for next in &edges[node as usize] {
            if !found.contains_key(next) {
                found.insert(*next, node);
                ahead.push_back(*next);
            }
        }
    }
    found
}

/// What an operation has to do with a range of cells.
#[derive(Clone, Copy)]
enum What {
    Saw(Run),
    Wrote,
    Zeroed,
}

/// Calls `each` for the ranges of an operation.
fn each_range(event: &Event, mut each: impl FnMut(u64, u64, What)) {
    match (&event.operation, &event.outcome) {
        (Operation::Read { at, .. }, Outcome::Runs(runs)) => {
            let mut start = *at;
            for run in runs {
                each(start, start + u64::from(run.len), What::Saw(*run));
                start += u64::from(run.len);
            }
        }
        (Operation::Truncate { size }, _) => each(*size, u64::MAX, What::Zeroed),
        (Operation::Allocate { mode: Mode::Punch | Mode::Zero | Mode::ZeroKeepSize, at, len }, _) => {
            each(*at, at + len, What::Zeroed);
        }
        _ => {
            if let Some((from, to)) = event.written() {
                each(from, to, What::Wrote);
            }
        }
    }
}

/// The end of file that an operation found, and whether exactly, or only that it was not beyond.
fn end_found(event: &Event) -> Option<(u64, bool)> {
    match (&event.operation, &event.outcome) {
        (_, Outcome::Size(size)) => Some((*size, true)),
        (Operation::Append { .. }, Outcome::Written { at, .. }) => Some((*at, true)),
        (Operation::Read { at, len, .. }, Outcome::Runs(runs)) => {
            let seen: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
            (seen < *len).then_some((at + seen, seen > 0))
        }
        _ => None,
    }
}
