//! What the oracle allows.

use sim::configurations::{explore, explore_until};
use sim::model::{Model, ROOT};
use sim::operation::{OpId, Operation, Outcome, Record};

/// An insert under way had its record made durable by another file's fsync. The power went; recovery finished the insert.
/// That was taken for a violation, since the live run went on past the crash with a stat that still saw the old size:
/// every order of the whole run has the insert after that stat. But the stat was called after the crash, which took it
/// back, and nobody had seen the old size since.
#[test]
fn a_crash_knows_nothing_of_what_was_called_later() {
    let start = Model::new(true);
    let was = start.inode(ROOT).unwrap();
    let changes = Record {
        id: OpId(1),
        operation: Operation::ChangeMode { inode: ROOT, mode: 0o700 },
        outcome: Outcome::Done,
        ticks: (1, 4),
        events: (10, 30),
    };
    let sees_the_old = Record {
        id: OpId(2),
        operation: Operation::Attributes { inode: ROOT },
        outcome: Outcome::Attributes(was.shape.clone(), was.file.size),
        ticks: (2, 3),
        events: (20, 20),
    };
    let threads = [vec![changes], vec![sees_the_old]];
    let done = |all: &[sim::configurations::Configuration]| -> Vec<Vec<usize>> {
        all.iter().map(|configuration| configuration.done.clone()).collect()
    };
    assert_eq!(done(&explore(start.clone(), &threads).unwrap().all), [[0, 0], [0, 1], [1, 1]]);
    assert_eq!(done(&explore_until(start.clone(), &threads, 15)), [[0, 0], [1, 0]], "both, before the stat");
    assert_eq!(
        done(&explore_until(start.clone(), &threads, 25)),
        [[0, 0], [0, 1], [1, 1]],
        "the stat had returned"
    );
    assert_eq!(done(&explore_until(start, &threads, 5)), [[0, 0]], "nothing was called");
}
