//! The checker itself, on histories made by hand: what an order explains is accepted, everything else is not.

use history::cell::Run;
use history::exact::{self, STATES_MAX, Verdict};
use history::operation::{Event, Mode, Operation, Outcome};
use history::report;
use quire::inodes::IoFlags;

struct History(Vec<Event>);

impl History {
    fn add(&mut self, thread: u32, times: (u64, u64), operation: Operation, outcome: Outcome) -> &mut Self {
        let number = self.0.len() as u32 + 1;
        self.0.push(Event {
            number,
            thread,
            submitted: false,
            operation,
            outcome,
            called: times.0,
            returned: times.1,
        });
        self
    }

    fn write(&mut self, thread: u32, times: (u64, u64), at: u64, len: u64) -> &mut Self {
        let operation = Operation::Write { at, len, flags: IoFlags::empty() };
        self.add(thread, times, operation, Outcome::Written { at, count: len })
    }

    fn append(&mut self, thread: u32, times: (u64, u64), len: u64, at: u64) -> &mut Self {
        let operation = Operation::Append { len, flags: IoFlags::APPEND };
        self.add(thread, times, operation, Outcome::Written { at, count: len })
    }

    fn read(
        &mut self,
        thread: u32,
        times: (u64, u64),
        at: u64,
        len: u64,
        seen: &[(u32, u32, u32)],
    ) -> &mut Self {
        let run = |&(len, writer, position): &(u32, u32, u32)| Run { len, writer, position };
        let operation = Operation::Read { at, len, direct: false };
        self.add(thread, times, operation, Outcome::Runs(seen.iter().map(run).collect()))
    }

    fn is_explained(&self) -> bool {
        let exact = match exact::explain(&self.0, STATES_MAX) {
            Verdict::Explained(order) => {
                assert!(order.len() <= self.0.len());
                true
            }
            Verdict::Contradiction(..) => false,
            Verdict::GivenUp => panic!("a short history"),
        };
        assert_eq!(report::check(&self.0, STATES_MAX).is_ok(), exact);
        exact
    }
}

fn history() -> History {
    History(Vec::new())
}

#[test]
fn a_read_during_two_writes_sees_either() {
    for seen in [1, 2] {
        let mut history = history();
        history.write(1, (1, 5), 0, 4).write(2, (2, 6), 0, 4).read(3, (3, 4), 0, 4, &[(4, seen, 0)]);
        assert!(history.is_explained());
    }
    let mut history = history();
    history.write(1, (1, 5), 0, 4).write(2, (2, 6), 0, 4).read(3, (3, 4), 0, 4, &[]);
    assert!(history.is_explained(), "or neither");
}

#[test]
fn a_torn_read_is_found() {
    let mut history = history();
    history.write(1, (1, 5), 0, 4).write(2, (2, 6), 0, 4).read(3, (3, 4), 0, 4, &[(2, 1, 0), (2, 2, 2)]);
    assert!(!history.is_explained());
    let report = report::check(&history.0, STATES_MAX).unwrap_err();
    assert!(report.contains("#3 thread 3") && report.contains("16..32 #2+16"), "{report}");
}

#[test]
fn half_of_a_write_that_grows_the_file_is_found() {
    // The new bytes with the old end.
    let mut history = history();
    history.write(1, (1, 2), 0, 4).write(1, (3, 8), 2, 4).read(2, (4, 5), 0, 8, &[(2, 1, 0), (2, 2, 0)]);
    assert!(!history.is_explained());
}

#[test]
fn a_stale_read_is_found() {
    let mut history = history();
    history.write(1, (1, 2), 0, 4).write(1, (3, 4), 0, 4).read(2, (5, 6), 0, 4, &[(4, 1, 0)]);
    assert!(!history.is_explained());
}

#[test]
fn two_readers_who_disagree_on_the_order_are_found() {
    let mut history = history();
    history.write(1, (1, 20), 0, 2).write(2, (2, 21), 0, 2);
    history.read(3, (3, 4), 0, 2, &[(2, 1, 0)]).read(3, (5, 6), 0, 2, &[(2, 2, 0)]);
    assert!(history.is_explained());
    history.read(4, (7, 8), 0, 2, &[(2, 1, 0)]);
    assert!(!history.is_explained(), "back again");
}

#[test]
fn blocks_of_one_write_seen_one_after_the_other_are_found() {
    // Two files in one: neither register alone shows it, but nobody can have seen #1 in part.
    let mut history = history();
    history.write(1, (1, 2), 0, 4).write(2, (3, 20), 0, 4);
    history.read(3, (4, 5), 2, 2, &[(2, 2, 2)]).read(3, (6, 7), 0, 2, &[(2, 1, 0)]);
    assert!(!history.is_explained());
}

#[test]
fn lost_and_interleaved_appends_are_found() {
    let mut history = history();
    history.append(1, (1, 5), 4, 0).append(2, (2, 6), 4, 4);
    assert!(history.is_explained());
    history.read(3, (7, 8), 0, 9, &[(4, 1, 0), (4, 2, 0)]);
    assert!(history.is_explained());
    let mut lost = self::history();
    lost.append(1, (1, 5), 4, 0).append(2, (2, 6), 4, 0);
    assert!(!lost.is_explained());
    let mut wrong_way_round = self::history();
    wrong_way_round.append(1, (1, 2), 4, 4).append(2, (3, 4), 4, 0);
    assert!(!wrong_way_round.is_explained());
}

#[test]
fn what_reshapes_is_atomic() {
    let truncate = |size| Operation::Truncate { size };
    let mut history = history();
    history.write(1, (1, 2), 0, 8).add(1, (3, 10), truncate(3), Outcome::Done);
    history.read(2, (4, 5), 0, 8, &[(8, 1, 0)]).read(2, (6, 7), 0, 8, &[(3, 1, 0)]);
    assert!(history.is_explained());
    // Zeros that are neither before nor after.
    history.read(3, (8, 9), 0, 8, &[(3, 1, 0), (5, 0, 0)]);
    assert!(!history.is_explained());
    let mut shrunk = self::history();
    shrunk.write(1, (1, 2), 0, 8).add(1, (3, 4), truncate(3), Outcome::Done);
    shrunk.add(1, (5, 6), truncate(8), Outcome::Done).read(2, (7, 8), 0, 8, &[(8, 1, 0)]);
    assert!(!shrunk.is_explained(), "what was cut off came back");
    let collapse = Operation::Allocate { mode: Mode::Collapse, at: 0, len: 2 };
    let mut moved = self::history();
    moved.write(1, (1, 2), 0, 8).add(1, (3, 8), collapse, Outcome::Done);
    moved.read(2, (4, 5), 0, 8, &[(6, 1, 2)]);
    assert!(moved.is_explained());
    moved.add(2, (6, 7), Operation::Size, Outcome::Size(8));
    assert!(!moved.is_explained());
}

#[test]
fn what_has_not_returned_is_done_or_not() {
    let mut history = history();
    let write = Operation::Write { at: 0, len: 2, flags: IoFlags::empty() };
    history.add(1, (1, u64::MAX), write, Outcome::Pending).read(2, (2, 3), 0, 2, &[]);
    assert!(history.is_explained());
    history.read(2, (4, 5), 0, 2, &[(2, 1, 0)]);
    assert!(history.is_explained());
    history.read(2, (6, 7), 0, 2, &[]);
    assert!(!history.is_explained());
}

#[test]
fn a_failure_or_foreign_bytes_are_told() {
    let mut failed = history();
    let error = Outcome::Failed(quire::ErrorKind::Io, "no".into());
    failed.add(1, (1, 2), Operation::Truncate { size: 1 }, error);
    assert!(!failed.is_explained());
    let mut foreign = history();
    foreign.add(1, (1, 2), Operation::Read { at: 0, len: 1, direct: false }, Outcome::Foreign(0));
    assert!(report::check(&foreign.0, STATES_MAX).unwrap_err().contains("nobody wrote"));
}

/// The checks left out what says nothing about the contents, and with it its failures: an engine whose fsyncs
/// all failed passed.
#[test]
fn a_failure_of_what_leaves_the_contents_is_told() {
    for operation in
        [Operation::Fsync { datasync: false }, Operation::Sync, Operation::Pressure, Operation::Pause]
    {
        let mut failed = history();
        let error = Outcome::Failed(quire::ErrorKind::Io, "no".into());
        failed.write(1, (1, 2), 0, 4).add(1, (3, 4), operation, error);
        assert!(report::check_each(&failed.0).unwrap_err().contains("#2"));
        assert!(report::check(&failed.0, STATES_MAX).is_err());
    }
}

/// Many concurrent writes that nobody reads apart: their order does not matter, and is not searched.
#[test]
fn unread_writes_cost_nothing() {
    let mut history = history();
    for thread in 0..40u64 {
        history.write(thread as u32, (1 + thread, 100 + thread), thread * 3, 5);
    }
    history.read(50, (200, 201), 0, 3, &[(3, 1, 0)]);
    match exact::explain(&history.0, 5_000) {
        Verdict::Explained(_) => {}
        other => panic!("{other:?}"),
    }
}
