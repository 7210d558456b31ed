//! A contradiction as people can read it: the first operation after whose return no order explains the
//! history, what it saw, who wrote that, and what else was under way.
//!
//! Neighbours: [`crate::exact`] finds contradictions; [`crate::graph`] has cycles of its own to show.

use crate::cell::{CELL, Writer};
use crate::content::{Content, Mismatch};
use crate::exact::{self, Verdict};
use crate::operation::{Event, Outcome, show_runs};
use std::collections::BTreeSet;
use std::fmt::Write;

/// What no order of operations excuses: bytes that nobody wrote, and the failure of what leaves the contents
/// as they are, on a device that is whole. Err: the report.
pub fn check_each(events: &[Event]) -> Result<(), String> {
    let wrong = |event: &Event| match event.outcome {
        Outcome::Foreign(_) => Some("a read has bytes that nobody wrote there, or a part of a cell"),
        Outcome::Failed(..) if event.operation.is_silent() => Some("the device is whole, and this failed"),
        _ => None,
    };
    match events.iter().find_map(|event| wrong(event).map(|what| (what, event))) {
        Some((what, event)) => Err(format!("{what}\n  {event}\n")),
        None => Ok(()),
    }
}

/// Checks a history exactly. Err: the report of a contradiction. Ok(false): too many possibilities to say.
pub fn check(events: &[Event], states_max: usize) -> Result<bool, String> {
    check_each(events)?;
    match exact::explain(events, states_max) {
        Verdict::Explained(_) => Ok(true),
        Verdict::GivenUp => Ok(false),
        Verdict::Contradiction(..) => Err(contradiction(events, states_max)),
    }
}

/// Why there is no order of `events`, which have none.
fn contradiction(events: &[Event], states_max: usize) -> String {
    let mut returns: Vec<u64> =
        events.iter().map(|event| event.returned).filter(|returned| *returned != u64::MAX).collect();
    returns.sort_unstable();
    // A contradiction stays one, whatever follows.
    let first = returns.partition_point(|time| {
        !matches!(exact::explain(&exact::until(events, *time), states_max), Verdict::Contradiction(..))
    });
    let time = returns[first.min(returns.len() - 1)];
    let part = exact::until(events, time);
    let culprit = events.iter().find(|event| event.returned == time).expect("somebody returned then");
    let mut text = String::new();
    let _ = writeln!(text, "no order of the operations explains this one");
    let _ = writeln!(text, "  {culprit}");
    let shown = involved(&part, culprit);
    for (head, wanted) in [("it saw what these wrote", true), ("and these changed the file meanwhile", false)]
    {
        let lines: Vec<&Event> = part
            .iter()
            .filter(|event| shown.contains(&event.number) && saw(culprit, event.number) == wanted)
            .collect();
        if !lines.is_empty() {
            let _ = writeln!(text, "{head}:");
            lines.iter().for_each(|event| {
                let _ = writeln!(text, "  {event}");
            });
        }
    }
    if let Verdict::Contradiction(order, content) = exact::explain(&part, states_max) {
        let _ = writeln!(text, "the longest order that fits, and what then does not:");
        let numbers: Vec<String> = order.iter().map(|number| format!("#{number}")).collect();
        let _ = writeln!(text, "  {}", numbers.join(" "));
        stuck(&mut text, &part, &order, &content);
    }
    text
}

fn saw(reader: &Event, writer: Writer) -> bool {
    matches!(&reader.outcome, Outcome::Runs(runs) if runs.iter().any(|run| run.writer == writer))
}

/// Whom a reader of the report wants to see: the writers of what was read, and who overlapped in time with
/// any.
fn involved(events: &[Event], culprit: &Event) -> BTreeSet<Writer> {
    let writers: Vec<&Event> = events.iter().filter(|event| saw(culprit, event.number)).collect();
    let since = writers.iter().map(|event| event.called).min().unwrap_or(culprit.called).min(culprit.called);
    events
        .iter()
        .filter(|event| {
            let changes = !event.operation.only_looks() && !event.operation.is_silent();
            event.number != culprit.number && changes && event.returned >= since
        })
        .map(|event| event.number)
        .chain(writers.iter().map(|event| event.number))
        .collect()
}

/// What the next ones of an order that goes no further would have seen.
fn stuck(text: &mut String, events: &[Event], order: &[Writer], content: &Content) {
    let _ = writeln!(text, "  then the file is {}", show_runs(0, content.runs()));
    let left =
        || events.iter().filter(|event| !order.contains(&event.number) && !event.operation.is_silent());
    let returned = left().map(|event| event.returned).min().unwrap_or(u64::MAX);
    for event in left().filter(|event| event.called <= returned && event.operation.only_looks()) {
        match content.clone().apply(&event.operation, &event.outcome, &[]) {
            Err(Mismatch::Read(runs)) => {
                let at = match event.operation {
                    crate::operation::Operation::Read { at, .. } => at,
                    _ => 0,
                };
                let _ = writeln!(text, "  #{} would have seen {}", event.number, show_runs(at, &runs));
            }
            Err(Mismatch::Size(size)) => {
                let _ = writeln!(text, "  #{} would have seen {}", event.number, size * CELL);
            }
            _ => {}
        }
    }
}
