//! Every locking scheme, briefly.

use lab::arguments::Locks;
use lab::locks::{self, schemes};
use quire_bench::interrupt::Interrupt;
use quire_bench::outcome::Trouble;
use quire_bench::progress::Progress;

fn of(schemes: &[&str], bs: u64) -> Locks {
    Locks {
        seconds: 0.4,
        readers: 2,
        writers: 2,
        bs,
        size: 2 << 20,
        schemes: schemes.iter().map(|&name| name.to_owned()).collect(),
        seed: 1,
        json: None,
    }
}

#[test]
fn schemes_that_promise_it_do_not_tear_and_the_one_that_does_not_is_seen() {
    // Two blocks of 1 MiB: every reader meets every writer.
    let findings = locks::run(&of(&[], 1 << 20), &Interrupt::none(), &Progress::hidden()).unwrap();
    for scheme in schemes::ALL {
        let figures = findings.figures(scheme.name).unwrap();
        assert!(figures.get("checked_reads").unwrap() > 0.0, "{}", scheme.name);
        if scheme.name != "no-read-lock" {
            assert_eq!(figures.get("torn_reads"), Some(0.0), "{}", scheme.name);
        }
    }
    assert_eq!(findings.table().lines().count(), schemes::ALL.len() + 1);
    let long = Locks { seconds: 2.0, ..of(&["no-read-lock"], 1 << 20) };
    let findings = locks::run(&long, &Interrupt::none(), &Progress::hidden()).unwrap();
    assert!(findings.figures("no-read-lock").unwrap().get("torn_reads").unwrap() > 0.0);
}

#[test]
fn an_unknown_scheme_is_named() {
    let outcome = locks::run(&of(&["hope"], 4096), &Interrupt::none(), &Progress::hidden());
    assert!(matches!(outcome.map(drop), Err(Trouble::Usage(message)) if message.contains("'hope'")));
}
