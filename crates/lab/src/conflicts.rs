//! `lab conflicts`: which cache lines two operations that commute would fight over.
//!
//! Two cores that run code which shares no written line run it as fast as each alone; each line that both
//! touch and one writes is a place where more cores will wait for one another. That can be seen without
//! having them: each operation of a pair runs alone, from the same state (the second one with the first's
//! done), with every memory access written down ([`trace`]); then the two lists of lines are compared.
//! Sharded structures are told the sides' shards, 0 and 1.
//!
//! ```text
//!   pairs    state and operations      trace    fork, single steps, decoded accesses
//!   places   code to source line       arena    an allocator that does not count
//! ```
//!
//! The kept file has the number of conflicting lines of each pair; more than that is an error, so they do not
//! grow unseen. `docs/scalability.md` gives the reason of each that remains.
//!
//! Neighbours: the program `lab` runs it.

pub mod arena;
pub mod pairs;
pub mod places;
pub mod trace;

use crate::arguments::Conflicts;
use pairs::{PAIRS, Pair, State};
use places::{Place, Places};
use quire_bench::outcome::{Outcome, Trouble, failed, os};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use trace::{LINE, Line, Lines};

/// The stack of the thread whose operations are traced.
const STACK_BYTES: usize = 16 << 20;

/// One line that both sides touch and at least one writes.
#[derive(Clone, Debug)]
pub struct Conflict {
    /// Who touches it on each side, and whether that writes.
    pub sides: [(Place, bool); 2],
    /// Both touch the same bytes; else they are only neighbours on the line.
    pub same_bytes: bool,
}

/// A pair's conflicts.
pub struct Finding {
    /// Such as `create / create, different directories`.
    pub name: String,
    /// The lines.
    pub conflicts: Vec<Conflict>,
}

impl Pair {
    /// As in the table and in the kept file.
    pub fn name(&self) -> String {
        format!("{} / {}, {}", self.sides[0].name, self.sides[1].name, self.apart)
    }
}

/// `lab conflicts`.
pub fn command(arguments: &Conflicts) -> Outcome {
    let findings = match find(&arguments.only) {
        Err(Trouble::Skipped(why)) => {
            eprintln!("conflicting lines are NOT counted: {why}");
            return Ok(());
        }
        other => other?,
    };
    print!("{}", render(&findings));
    if let Some(file) = &arguments.keep {
        std::fs::write(file, kept(&findings)).map_err(os(format!("writing {}", file.display())))?;
    }
    if let Some(file) = &arguments.check {
        println!("\n{}", check(&findings, &arguments.only, file)?);
    }
    Ok(())
}

/// Traces every pair whose name contains `only`.
pub fn find(only: &str) -> Outcome<Vec<Finding>> {
    let pairs: Vec<&Pair> = PAIRS.iter().filter(|pair| pair.name().contains(only)).collect();
    if pairs.is_empty() {
        return Err(Trouble::Usage(format!("--only: no pair has '{only}' in its name")));
    }
    arena::prepare();
    let all = || -> Outcome<Vec<Finding>> {
        let state = State::new()?;
        let mut traced = Vec::new();
        for &pair in &pairs {
            let run = |side: usize| (pair.sides[side].act)(&state, side);
            traced.push((pair, shared_lines(&trace::trace(&[0], &run)?, &trace::trace(&[0, 1], &run)?)));
        }
        let touches =
            traced.iter().flat_map(|(_, lines)| lines).flat_map(|pair| pair.iter().map(|line| first(line).0));
        let places = Places::of(touches)?;
        let finding = |(pair, lines): &(&Pair, Vec<[Line; 2]>)| Finding {
            name: pair.name(),
            conflicts: lines.iter().map(|lines| conflict(lines, &places)).collect(),
        };
        Ok(traced.iter().map(finding).collect())
    };
    // A spawned thread's stack and local storage lie together, and are known.
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, all).map_err(os("starting a thread"))?;
        thread.join().map_err(|_| failed("the thread that traces panicked"))?
    })
}

/// What both touch and one writes.
fn shared_lines(one: &Lines, other: &Lines) -> Vec<[Line; 2]> {
    let both = one.iter().filter_map(|(at, line)| Some([line.clone(), other.get(at)?.clone()]));
    both.filter(|lines| lines.iter().any(|line| line.write.is_some())).collect()
}

/// The touch that tells most of a line: its first write, or else its first read.
fn first(line: &Line) -> (&trace::Touch, bool) {
    match (&line.write, &line.read) {
        (Some(write), _) => (write, true),
        (None, Some(read)) => (read, false),
        (None, None) => unreachable!("a line is listed when it is touched"),
    }
}

fn conflict(lines: &[Line; 2], places: &Places) -> Conflict {
    let side = |n: usize| {
        let (touch, writes) = first(&lines[n]);
        (places.who(touch), writes)
    };
    Conflict { sides: [side(0), side(1)], same_bytes: lines[0].bytes & lines[1].bytes != 0 }
}

impl Conflict {
    /// The side that writes.
    pub fn writer(&self) -> &Place {
        let writing = self.sides.iter().find(|(_, writes)| *writes);
        &writing.expect("a conflict has a writer").0
    }
}

/// The report as people read it: a table of counts, then each pair's lines.
pub fn render(findings: &[Finding]) -> String {
    let mut out = String::new();
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    let _ = writeln!(out, "{:width$}  lines of {LINE} bytes that both touch and one writes", "pair");
    for finding in findings {
        let _ = writeln!(out, "{:width$}  {}", finding.name, finding.conflicts.len());
    }
    for finding in findings.iter().filter(|finding| !finding.conflicts.is_empty()) {
        let _ = writeln!(out, "\n{}", finding.name);
        for conflict in &finding.conflicts {
            let kinds = conflict.sides.each_ref().map(|(_, writes)| if *writes { 'W' } else { 'R' });
            let bytes = if conflict.same_bytes { "" } else { ", other bytes of the line" };
            let place = conflict.writer();
            let _ = writeln!(out, "  {}{} {} ({}){bytes}", kinds[0], kinds[1], place.owner(), place.line);
            let _ = writeln!(out, "       {}", place.text);
            let [(one, _), (other, _)] = &conflict.sides;
            if let Some(place) = [one, other].into_iter().find(|other| other.owner() != place.owner()) {
                let _ = writeln!(out, "     beside {} ({}): {}", place.owner(), place.line, place.text);
            }
        }
    }
    out
}

/// Lines more than are kept that say nothing: from build to build and machine to machine a buffer lies one
/// line further on, or begins in the middle of one.
const LINES_THAT_MOVE: usize = 2;

/// Compares with the kept numbers of the pairs whose name contains `only`; pairs that have more (by more than
/// [`LINES_THAT_MOVE`], where any are kept), or none kept, are an error, and so is a kept pair that was not
/// traced.
pub fn check(findings: &[Finding], only: &str, kept: &Path) -> Outcome<String> {
    let text = std::fs::read_to_string(kept).map_err(os(format!("reading {}", kept.display())))?;
    let mut kept = parse(&text)?;
    kept.retain(|name, _| name.contains(only));
    let mut grown = Vec::new();
    let mut shrunk = Vec::new();
    for finding in findings {
        let count = finding.conflicts.len();
        match kept.remove(finding.name.as_str()) {
            Some(most) if count > most + if most > 0 { LINES_THAT_MOVE } else { 0 } => {
                grown.push(format!("{}: {count}, kept are {most}", finding.name))
            }
            Some(most) if count < most => shrunk.push(format!("{}: {count}, kept are {most}", finding.name)),
            Some(_) => {}
            None => grown.push(format!("{}: {count}, and no number is kept", finding.name)),
        }
    }
    if !kept.is_empty() {
        let names: Vec<&str> = kept.into_keys().collect();
        return Err(failed(format!("pairs are kept that nothing traces:\n  {}", names.join("\n  "))));
    }
    if !grown.is_empty() {
        return Err(failed(format!("more conflicting lines than are kept:\n  {}", grown.join("\n  "))));
    }
    Ok(if shrunk.is_empty() {
        "as many conflicting lines as are kept, or fewer".into()
    } else {
        format!("fewer conflicting lines than are kept; write them down:\n  {}", shrunk.join("\n  "))
    })
}

/// The lines of a kept file: a number, a tab, the pair's name. `#` begins a comment.
fn parse(text: &str) -> Outcome<BTreeMap<&str, usize>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let parts = line.split_once('\t').and_then(|(count, name)| Some((name, count.parse().ok()?)));
            parts.ok_or_else(|| Trouble::Usage(format!("'{line}' is not a number, a tab, and a pair")))
        })
        .collect()
}

/// What [`check`] reads.
pub fn kept(findings: &[Finding]) -> String {
    let mut out =
        "# Conflicting cache lines of each pair of operations, at most: lab conflicts --check FILE.\n"
            .to_owned();
    for finding in findings {
        let _ = writeln!(out, "{}\t{}", finding.conflicts.len(), finding.name);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(name: &str) -> Finding {
        Finding { name: name.into(), conflicts: Vec::new() }
    }

    /// A kept pair that the report no longer had was not missed, and a mistyped selection had no pairs and
    /// agreed with the kept numbers.
    #[test]
    fn what_is_not_traced_does_not_pass() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kept");
        std::fs::write(&file, kept(&[finding("read / read"), finding("write / write")])).unwrap();
        let both = [finding("read / read"), finding("write / write")];
        assert!(check(&both, "", &file).is_ok());
        assert!(check(&both[..1], "read", &file).is_ok());
        match check(&both[..1], "", &file) {
            Err(Trouble::Failed(error)) => assert!(error.to_string().contains("write / write"), "{error}"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(find("no such pair"), Err(Trouble::Usage(why)) if why.contains("'no such pair'")));
    }
}
