//! Every workload on the library, and on the limits it is compared with, small and short.

use clap::Parser;
use quire_bench::arguments::Bench;
use quire_bench::interrupt::Interrupt;
use quire_bench::outcome::Trouble;
use quire_bench::progress::Progress;
use quire_bench::report::{Report, Row, Status, plot, table};
use quire_bench::run::{self, Host};
use std::time::Duration;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    bench: Bench,
}

fn host() -> Host {
    Host { program: None, interrupt: Interrupt::none(), progress: Progress::hidden() }
}

/// Runs a command line in a directory of its own; nothing may be left in it.
fn measure(line: &str) -> Result<Report, Trouble> {
    let directory = tempfile::tempdir().unwrap();
    let words = std::iter::once("bench").chain(line.split(' ')).map(str::to_owned);
    let words = words.chain(["--dir".to_owned(), directory.path().display().to_string()]);
    let line = Line::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
    let outcome = run::measure(&line.bench.workload, &host());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "something was left behind");
    outcome
}

fn report(line: &str) -> Report {
    let report = measure(line).unwrap_or_else(|trouble| panic!("{line}: {trouble}"));
    for row in &report.rows {
        assert_eq!(row.status, Status::Ok, "{line}: {}", row.engine);
    }
    report
}

/// Every figure of every engine is there; those that must not be zero are not.
fn check(report: &Report, positive: &[&str], present: &[&str]) {
    let json = report.json();
    for result in json["results"].as_array().unwrap() {
        for name in positive {
            assert!(result[name].as_f64().is_some_and(|value| value > 0.0), "{name} in {result}");
        }
        for name in present {
            assert!(result[name].is_number(), "{name} in {result}");
        }
    }
}

#[test]
fn mixed() {
    let report =
        report("mixed --engines quire@device=memory,memcpy --seconds 1 --size 16m --readers 2 --writers 2");
    let positive = [
        "read_mib_s",
        "write_mib_s",
        "read_p50_us",
        "read_p99_us",
        "read_p999_us",
        "write_p50_us",
        "write_p99_us",
        "write_p999_us",
        "checked_reads",
    ];
    check(&report, &positive, &["torn_reads"]);
    assert_eq!(report.rows[0].figures.get("torn_reads"), Some(0.0));
    let json = report.json();
    assert_eq!((&json["workload"], &json["params"]["bs"]), (&"mixed".into(), &"4k".into()));
    assert!(json["machine"]["cpus"].as_u64().unwrap() > 0);
    let text = table::render(&report);
    assert_eq!(text.lines().count(), 3, "{text}");
    let directory = tempfile::tempdir().unwrap();
    let drawing = directory.path().join("out.svg");
    plot::draw(&report, &drawing).unwrap();
    let svg = std::fs::read_to_string(drawing).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("memcpy") && svg.contains("read: 99.9th percentile"));
}

#[test]
fn dirty() {
    let report = report("dirty --engines quire,raw --seconds 1 --size 1m --jobs 2");
    check(
        &report,
        &["write_mib_s", "iops", "bytes_written", "device_bytes_written", "write_amplification"],
        &[],
    );
    // Only what is dirty is written, and everything is: each write is durable before the next.
    let amplification = report.rows[0].figures.get("data_write_amplification").unwrap();
    assert!((0.99..1.05).contains(&amplification), "{amplification}");
    let raw = report.rows[1].figures.get("write_amplification").unwrap();
    assert!((raw - 1.0).abs() < 0.01);
    check(
        &self::report("dirty --engines quire@device=memory --seconds 1 --size 1m --sync none --one-file"),
        &["iops"],
        &[],
    );
}

#[test]
fn fsync() {
    let figures = ["files_s", "fsync_pass_s", "log_forces", "device_flushes"];
    check(&report("fsync --engines quire@device=memory --threads 2 --files 200"), &figures, &[]);
    let many = report("fsync --engines quire@device=memory --files 500 --mode async --seconds 1");
    check(&many, &figures, &[]);
    let lone = report("fsync --engines quire@device=memory --files 100 --background --seconds 1");
    check(&lone, &["lone_p50_us", "lone_p99_us", "lone_idle_p99_us"], &["files_s"]);
}

#[test]
fn append() {
    for line in [
        "append --engines quire,raw --seconds 1 --bs 4k",
        "append --engines quire@device=memory --seconds 1 --threads 2 --bs 100",
        "append --engines quire@device=memory --seconds 1 --overwrite",
    ] {
        check(&report(line), &["ops_s", "p50_us", "p99_us"], &[]);
    }
}

#[test]
fn orphan() {
    let shrunk = report("orphan --engines quire@device=memory --threads 2 --ops 500");
    check(&shrunk, &["ops_s", "time_s"], &["orphan_claims"]);
    assert_eq!(shrunk.rows[0].figures.get("operations"), Some(1000.0));
    let unlinked = report("orphan --engines quire@device=memory --threads 2 --ops 500 --unlink-open");
    assert_eq!(unlinked.rows[0].figures.get("orphan_claims"), Some(1000.0));
}

/// The engine has one way to do a thing; what others would cost is measured in a build that has them.
#[test]
fn what_only_a_build_for_comparisons_has_is_skipped() {
    for (line, others) in [
        ("orphan --engines quire@device=memory,quire@device=memory@orphans=locked --ops 10", 1),
        ("orphan --engines quire@device=memory --orphans none", 1),
        ("dirty --engines quire@device=memory --track folio", 1),
    ] {
        let report = measure(line).unwrap();
        let is_skipped =
            |row: &&Row| matches!(&row.status, Status::Skipped(why) if why.contains("scripts/comparisons"));
        assert_eq!(report.rows.iter().filter(is_skipped).count(), others, "{line}");
    }
}

#[test]
fn creat() {
    check(&report("creat --engines quire@device=memory --threads 2 --ops 500"), &["ops_s", "time_s"], &[]);
    check(
        &report("creat --engines quire@device=memory --private-dirs --threads 2 --seconds 1"),
        &["ops_s"],
        &[],
    );
}

/// The times of `creat` and `orphan` were sums over rounds and passes, beside the operations of one: the more
/// rounds somebody measured, the longer the same operations seemed to take.
#[test]
fn a_time_is_that_of_one_pass() {
    for line in [
        "creat --threads 2 --ops 500 --rounds 3",
        "orphan --unlink-open --threads 2 --ops 500 --rounds 3",
        "orphan --threads 2 --ops 500 --seconds 0.3",
    ] {
        let report = report(&format!("{line} --engines quire@device=memory"));
        let figure = |name| report.rows[0].figures.get(name).unwrap();
        let operations = figure("ops_s") * figure("time_s");
        assert!((operations - 1000.0).abs() < 1.0, "{line}: {operations} operations in that time");
    }
}

#[test]
fn tail() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().display();
    let engines = format!("quire,quire@discard,quire@device=memory,dir:{dir}");
    let all =
        report(&format!("tail --engines {engines} --threads 2 --seconds 1 --rounds 1 --size 4m --files 3"));
    let own = ["idle_p50_us", "idle_p99_us", "idle_max_us", "p50_us", "p99_us", "p999_us", "max_us", "ops_s"];
    // On a slow disk a disturber may get nothing done in so short a time.
    check(&all, &own, &["append_fsync_max_us", "bulk_mib_s", "append_mib_s", "deletes_s", "creates_s"]);
    assert_eq!(all.json()["params"]["with"].to_string(), r#"["bulk","append","delete","create"]"#);
    assert!(all.rows.iter().all(|row| row.figures.get("deletes").is_some_and(|files| files <= 3.0)));
    let one = report("tail --engines quire@device=memory --seconds 0.3 --with create");
    check(&one, &own, &["creates_s"]);
    for absent in ["append_fsync_max_us", "bulk_mib_s", "append_mib_s", "deletes_s"] {
        assert_eq!(one.rows[0].figures.get(absent), None, "{absent}");
    }
    let refused = measure("tail --engines raw,memcpy --seconds 0.1 --size 1m").unwrap();
    assert!(refused.rows.iter().all(|row| matches!(row.status, Status::Skipped(_))));
}

/// The figures of workloads that count what durable writes cost the device.
const DURABLE: [&str; 5] =
    ["p50_us", "p99_us", "bytes_written", "device_bytes_written", "write_amplification"];

#[test]
fn untorn() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().display();
    let engines = "quire@untorn=8k,quire,quire@device=memory@untorn=64k,raw";
    let all = report(&format!("untorn --engines {engines} --rounds 1 --seconds 1 --size 1m --jobs 2"));
    check(&all, &DURABLE, &["iops", "device_flushes"]);
    let json = all.json();
    let params = &json["params"];
    assert_eq!((&params["bs"], &params["jobs"], &params["size"]), (&"8k".into(), &2.into(), &"1m".into()));
    let of = |row: usize, name: &str| all.rows[row].figures.get(name).unwrap();
    // Contents of untorn files go through the journal, and then home; others go home only.
    assert!(of(0, "write_amplification") - of(0, "data_write_amplification") > 0.99);
    assert!((0.99..1.05).contains(&of(1, "data_write_amplification")));
    assert!((of(3, "write_amplification") - 1.0).abs() < 0.01);
    let plain = report(&format!("untorn --engines dir:{dir} --seconds 0.3 --size 1m --bs 16k"));
    check(&plain, &["iops", "p50_us", "p99_us", "bytes_written"], &[]);
    let refused = measure("untorn --engines memcpy,fuse-null --seconds 0.1 --size 1m").unwrap();
    assert!(refused.rows.iter().all(|row| matches!(row.status, Status::Skipped(_))));
}

#[test]
fn group() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().display();
    let engines = "quire,quire@device=memory,raw";
    let all = report(&format!("group --engines {engines} --rounds 1 --seconds 1 --size 1m --threads 2"));
    check(&all, &DURABLE, &["device_flushes"]);
    check(&all, &["commits_s"], &[]);
    let json = all.json();
    let params = &json["params"];
    assert_eq!((&params["writes"], &params["threads"]), (&4.into(), &2.into()));
    for row in &all.rows {
        // Each commit is four writes of 4 KiB and waits for a flush at most.
        let operations = row.figures.get("bytes_written").unwrap() / 16384.0;
        assert_eq!(operations.fract(), 0.0);
        assert!(row.figures.get("device_flushes").unwrap() <= 1.1 * operations + 10.0, "{}", row.engine);
        assert!(row.figures.get("write_amplification").unwrap() > 0.99, "{}", row.engine);
    }
    let journal =
        report(&format!("group --engines dir:{dir} --seconds 0.3 --size 1m --threads 2 --writes 9"));
    check(&journal, &["commits_s", "p50_us", "p99_us", "bytes_written"], &[]);
    let all_pages = report("group --engines quire@device=memory --seconds 0.1 --size 16k");
    check(&all_pages, &["commits_s"], &[]);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().display();
    let all = report(&format!(
        "snapshot --engines quire@device=memory,dir:{dir} --seconds 0.3 --jobs 2 --size 1m --files 50 --snapshots 2 \
         --rounds 1"
    ));
    // Where deletions take no time, nothing is overwritten meanwhile.
    check(&all, &["iops_before", "iops_while", "iops_after", "stall_max_ms"], &["iops_deleting"]);
    for figure in
        ["snapshot_p50_ms", "snapshot_max_ms", "snapshot_idle_ms", "hold_p50_ms", "hold_max_ms", "delete_s"]
    {
        assert!(all.rows[0].figures.get(figure).is_some_and(|value| value > 0.0), "{figure}");
        // A directory has no snapshots.
        assert_eq!(all.rows[1].figures.get(figure), None, "{figure}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn scale() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().display();
    let report = report(&format!(
        "scale --engines quire,quire@device=memory,dir:{dir} --files 2500 --rounds 1 --cache 64m"
    ));
    check(&report, &["create_first_s", "create_last_s", "stat_s", "delete_s", "rss_max_mib"], &[]);
    let opening = &report.json()["results"][0]["open_us"];
    assert!(opening.as_f64().is_some_and(|opening| opening > 0.0), "{opening}");
    assert_eq!(report.json()["params"]["cache"], "64m");
    // Everything was deleted.
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    match measure("scale --engines quire --files 1000000000") {
        Err(Trouble::Failed(error)) => {
            let text = error.to_string();
            assert!(text.contains("MiB of room; the image needs"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_directory_is_an_engine() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().display();
    check(&report(&format!("creat --engines dir:{dir} --ops 100")), &["ops_s"], &[]);
    check(&report(&format!("fsync --engines dir:{dir} --files 20 --mode async")), &["files_s"], &[]);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    let gone = measure("creat --engines dir:/nowhere/at/all --ops 1").unwrap();
    assert!(matches!(&gone.rows[0].status, Status::Failed(why) if why.contains("not a directory")));
    assert!(gone.has_failed());
}

#[test]
fn variants_of_an_engine_alternate() {
    let report =
        report("creat --engines quire@device=memory,quire@device=memory@cache=64m --ops 100 --rounds 2");
    assert!(report.rows.iter().all(|row| row.rounds.len() == 2));
    assert_eq!(report.json()["results"][1]["rounds"].as_array().unwrap().len(), 2);
}

#[test]
fn what_does_not_fit_is_skipped_and_said() {
    let report = measure("creat --engines memcpy,raw,fuse-null,quire@device=memory --ops 10").unwrap();
    for row in &report.rows[..3] {
        assert!(matches!(&row.status, Status::Skipped(why) if !why.is_empty()), "{}", row.engine);
    }
    assert_eq!(report.rows[3].status, Status::Ok);
    assert!(table::render(&report).contains("memcpy: skipped: memcpy is a limit of mixed only"));
    // This test program has no `quire` to serve a mount with, or no right to mount: said, not failed.
    let report = measure("mixed --engines fuse-null --size 1m --seconds 0.1").unwrap();
    assert!(matches!(report.rows[0].status, Status::Skipped(_)));
}

#[test]
fn bad_options_are_refused_before_anything_runs() {
    for (line, part) in [
        ("mixed --engines zfs", "no engine 'zfs'"),
        ("tail --engines raw@discard", "option=value"),
        ("mixed --bs 4k --size 1k", "larger than --size"),
        ("mixed --readers 0 --writers 0", "neither a reader nor a writer"),
        ("mixed --plot out.png", "end with .svg"),
        ("mixed --json /nowhere/at/all.json", "cannot be written"),
        ("dirty --folio 48k", "power of two"),
        ("untorn --bs 6k", "whole blocks of 4k"),
        ("untorn --bs 2m --size 1m", "larger than --size"),
        ("untorn --engines quire@untorn=12k", "power of two"),
        ("group --engines xfs@atomic", "for the workload untorn"),
        ("group --size 8k", "at least as many as --writes 4"),
        ("dirty --engines quire@track=page", "not an option"),
        ("orphan --engines quire@orphans=many", "lockless, locked or none"),
    ] {
        match measure(line) {
            Err(Trouble::Usage(message)) => assert!(message.contains(part), "{line}: {message}"),
            other => panic!("{line}: {other:?}"),
        }
    }
    for line in [
        "",
        "mixed --readers -1",
        "mixed --ops 5",
        "creat --readers 5",
        "mixed --seconds 0",
        "creat --ops 0",
        "tail --with noise",
        "scale --files 0",
        "untorn --jobs 0",
        "group --writes 0",
    ] {
        let words = std::iter::once("bench").chain(line.split(' '));
        assert!(Line::try_parse_from(words).is_err(), "{line}");
    }
}

#[test]
fn an_interrupt_ends_a_run_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().display().to_string();
    let line =
        ["bench", "mixed", "--engines", "quire,memcpy", "--size", "8m", "--seconds", "600", "--dir", &dir];
    let line = Line::try_parse_from(line).unwrap();
    let host = host();
    let interrupt = host.interrupt.clone();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| run::measure(&line.bench.workload, &host));
        std::thread::sleep(Duration::from_millis(1500));
        interrupt.raise();
        assert!(matches!(run.join().unwrap(), Err(Trouble::Interrupted)));
    });
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
