//! Power cuts under real databases on a real mount, a few of each; `scripts/powercut` does many. And the
//! proof that the checks can fail: two devices whose flushes do nothing.

use powercut::backend::Honesty;
use powercut::campaign::{self, Options, Program, Report};
use powercut::failure::{Failure, Outcome};
use powercut::machine::Machine;
use powercut::mariadb::{self, MariaDb};
use powercut::pages::Pages;
use powercut::postgres::Postgres;
use powercut::postgres::cluster::Installation;
use powercut::sqlite::Sqlite;
use quire_base::random::Random;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Cuts within which a lie must be found out.
const CUTS_MAX: u64 = 50;

fn executable() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_powercut"))
}

/// True if this machine can mount; else says loudly that the test skips.
fn can_mount(test: &str) -> bool {
    let fuse = Path::new("/dev/fuse").exists();
    let may = rustix::process::geteuid().is_root()
        || std::env::var_os("PATH").is_some_and(|path| {
            std::env::split_paths(&path).any(|folder| folder.join("fusermount3").exists())
        });
    if !(fuse && may) {
        eprintln!(
            "\n*** SKIPPED {test}: needs /dev/fuse (here: {fuse}), and root or fusermount3 (here: {may}) ***\n"
        );
    }
    fuse && may
}

/// None: says loudly that the test skips.
fn postgres(test: &str, pages: Pages) -> Option<Postgres> {
    match Installation::find() {
        Ok(installation) => Some(Postgres::new(installation, pages)),
        Err(missing) => {
            eprintln!("\n*** SKIPPED {test}: needs {missing} ***\n");
            None
        }
    }
}

fn cut(program: &mut dyn Program, cuts: u64, honesty: Honesty) -> Report {
    let options = Options {
        cuts,
        seed: 20,
        honesty,
        work_max: Duration::from_millis(900),
        parent: std::env::temp_dir(),
        executable: executable(),
        is_verbose: true,
    };
    campaign::run(program, &options, &AtomicBool::new(false))
}

fn assert_good(report: &Report, cuts: u64) {
    if let Some(folder) = &report.kept {
        eprintln!("{}", campaign::how_to_look(folder));
    }
    assert!(report.is_good(), "{report:?}");
    assert_eq!(report.cuts, cuts);
    assert!(report.acknowledged > 20, "only {} transactions: the test tests nothing", report.acknowledged);
}

/// The failure that a lying device led to.
fn found_out(report: Report) -> String {
    if let Some(folder) = &report.kept {
        std::fs::remove_dir_all(folder).unwrap();
    }
    match report.failure {
        Some(Failure::Broken(text)) => text,
        other => panic!("{CUTS_MAX} cuts of a lying device ended with {other:?}"),
    }
}

#[test]
fn sqlite_survives_power_cuts() {
    if can_mount("sqlite_survives_power_cuts") {
        assert_good(&cut(&mut Sqlite::new(&executable()), 5, Honesty::Honest), 5);
    }
}

#[test]
fn postgres_survives_power_cuts() {
    if can_mount("postgres_survives_power_cuts")
        && let Some(mut postgres) = postgres("postgres_survives_power_cuts", Pages::Logged)
    {
        assert_good(&cut(&mut postgres, 3, Honesty::Honest), 3);
    }
}

/// Without full pages in its log PostgreSQL cannot repair a torn page, so the file system must not leave any.
#[test]
fn postgres_without_full_pages_survives_power_cuts_on_untorn_files() {
    let test = "postgres_without_full_pages_survives_power_cuts_on_untorn_files";
    if can_mount(test)
        && let Some(mut postgres) = postgres(test, Pages::Untorn)
    {
        assert_good(&cut(&mut postgres, 3, Honesty::Honest), 3);
    }
}

/// The same for InnoDB without its doublewrite buffer.
#[test]
fn mariadb_without_doublewrite_survives_power_cuts_on_untorn_files() {
    let test = "mariadb_without_doublewrite_survives_power_cuts_on_untorn_files";
    if !can_mount(test) {
        return;
    }
    match mariadb::server::Installation::find() {
        Ok(installation) => {
            assert_good(&cut(&mut MariaDb::new(installation, Pages::Untorn), 3, Honesty::Honest), 3);
        }
        Err(missing) => eprintln!("\n*** SKIPPED {test}: needs {missing} ***\n"),
    }
}

/// Has two databases, and gets so much done in each.
struct Idle([u64; 2]);

impl Program for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }

    fn volume_bytes(&self) -> u64 {
        64 << 20
    }

    fn create(&mut self, _: &Machine, _: &mut Random) -> Outcome {
        Ok(())
    }

    fn begin_recovery(&mut self, _: &Machine, _: &mut Random) -> Outcome {
        Ok(())
    }

    fn check(&mut self, _: &Machine, _: &mut Random) -> Outcome<Duration> {
        Ok(Duration::ZERO)
    }

    fn work(&mut self, _: &Machine, _: &mut Random) -> Outcome {
        Ok(())
    }

    fn look(&mut self, _: &Machine) -> Outcome {
        Ok(())
    }

    fn end(&mut self, _: &Machine) -> Outcome<Vec<u64>> {
        Ok(self.0.to_vec())
    }

    fn stop(&mut self, _: &Machine) -> Outcome {
        Ok(())
    }

    fn lost(&self) -> u64 {
        0
    }
}

/// A campaign in which every program hung on its mount was a good one: nothing was acknowledged, so nothing
/// was lost.
#[test]
fn a_program_that_gets_nothing_done_is_no_success() {
    if can_mount("a_program_that_gets_nothing_done_is_no_success") {
        let few = cut(&mut Idle([0, 0]), 1, Honesty::Honest);
        assert!(few.failure.is_none() && !few.is_good(), "{few:?}");
        let text = found_out(cut(&mut Idle([0, 0]), CUTS_MAX, Honesty::Honest));
        assert!(text.contains("nobody got on"), "{text}");
    }
}

/// A database whose fsync hung for ever was no failure while the programs on other databases got on.
#[test]
fn a_database_that_stands_still_beside_others_is_no_success() {
    if can_mount("a_database_that_stands_still_beside_others_is_no_success") {
        let text = found_out(cut(&mut Idle([5, 0]), CUTS_MAX, Honesty::Honest));
        assert!(text.contains("nobody got on") && text.contains("database 1"), "{text}");
    }
}

/// A writer that died of a signal with the power on wrote no error down, and nobody looked how it had ended.
#[test]
fn a_writer_that_dies_with_the_power_on_is_a_broken_promise() {
    if !can_mount("a_writer_that_dies_with_the_power_on_is_a_broken_promise") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let dying = folder.path().join("dying");
    let script = format!(
        "#!/bin/sh\n[ \"$1 $2\" = 'sqlite-write wal' ] && kill -BUS $$\nexec '{}' \"$@\"\n",
        executable().display()
    );
    std::fs::write(&dying, script).unwrap();
    std::fs::set_permissions(&dying, std::fs::Permissions::from_mode(0o755)).unwrap();
    let text = found_out(cut(&mut Sqlite::new(&dying), 2, Honesty::Honest));
    assert!(text.contains("a writer ended by itself") && text.contains("SIGBUS"), "{text}");
}

#[test]
fn a_device_that_lies_is_found_out() {
    if can_mount("a_device_that_lies_is_found_out") {
        found_out(cut(&mut Sqlite::new(&executable()), CUTS_MAX, Honesty::Lies));
    }
}

/// What this device leaves contradicts itself nowhere: only the ledgers on the host know that something is
/// missing.
#[test]
fn a_device_that_lies_in_order_is_found_out_by_the_ledgers() {
    if can_mount("a_device_that_lies_in_order_is_found_out_by_the_ledgers") {
        let text = found_out(cut(&mut Sqlite::new(&executable()), CUTS_MAX, Honesty::LiesInOrder));
        assert!(text.contains("were acknowledged"), "{text}");
    }
}
