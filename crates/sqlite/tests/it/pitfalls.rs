//! What was found to go wrong, or could: one test each.

use super::mounted::{Mounted, PYTHON, extension, has_python, python, shell};
use std::process::Command;

#[test]
fn the_shell_of_the_system_commits_in_groups() {
    let Some(mounted) = Mounted::new() else { return };
    let database = mounted.path().join("shell.db");
    let out = shell(&format!(
        ".load {}\n.open {}\n\
         CREATE TABLE t(a INTEGER PRIMARY KEY, b); INSERT INTO t(b) VALUES ('one'), ('two'); UPDATE t SET b = 'three';\n\
         PRAGMA journal_mode; PRAGMA quire_groups; SELECT * FROM t;\n",
        extension().display(),
        database.display()
    ));
    assert_eq!(out, "delete\ngroups: 3 transactions; journals: 0\n1|three\n2|three\n");
    // Without the extension it is a database as any other.
    assert_eq!(shell(&format!(".open {}\nSELECT count(*) FROM t;\n", database.display())), "2\n");
}

#[test]
fn elsewhere_nothing_happens() {
    let Some(_mounted) = Mounted::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    python(
        folder.path(),
        r#"
db = quire()
db.execute("CREATE TABLE t(a)")
sure("no groups" in db.execute("PRAGMA quire_groups").fetchone()[0])
db.execute("BEGIN IMMEDIATE")
db.execute("INSERT INTO t VALUES (1)")
sure(journal(), "a journal on disk")
db.execute("COMMIT")
sure(not journal())
"#,
        &[],
    );
}

/// With `journal_mode=OFF` instead of a journal in memory, a failed UPDATE left half of its rows changed.
#[test]
fn a_failed_statement_leaves_nothing_behind() {
    let Some(mounted) = Mounted::new() else { return };
    mounted.python(
        r#"
db = quire()
db.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b UNIQUE)")
db.executemany("INSERT INTO t VALUES (?, ?)", [(n, 2 * n) for n in range(2000)])
for inside in (False, True):
    if inside: db.execute("BEGIN"); db.execute("INSERT INTO t VALUES (5000, 'x')")
    try:
        # Collides only at the last row.
        db.execute("UPDATE t SET b = CASE WHEN a = 1999 THEN 1 ELSE b + 1 END")
        raise SystemExit("it should have failed")
    except sqlite3.IntegrityError:
        pass
    sure(db.execute("SELECT sum(b) FROM t WHERE a < 2000").fetchone()[0] == 2000 * 1999)
    if inside: db.execute("COMMIT")
sure(db.execute("SELECT count(*) FROM t").fetchone()[0] == 2001)
ok(db)
sure(counts(db)[1] == 0, "no journal was needed")
"#,
    );
}

/// Pages that left SQLite's cache in mid-transaction are read back, and rolled back.
#[test]
fn a_transaction_larger_than_the_cache() {
    let Some(mounted) = Mounted::new() else { return };
    for (limit, journaled) in [("1000000000", 0), ("100000", 1), ("97k", 1)] {
        python(
            mounted.path(),
            &format!("groups_end, journals = {journaled} == 0, {journaled}\n{}", SPILL),
            &[("QUIRE_SQLITE_GROUP_MAX", limit)],
        );
    }
}

/// It was ignored, and a group held the default.
#[test]
fn a_limit_that_is_no_size_is_an_error() {
    if !has_python() {
        return;
    }
    let load = "import sqlite3, sys\nd = sqlite3.connect(':memory:')\nd.enable_load_extension(True)\n\
                d.load_extension(sys.argv[1])";
    let mut program = Command::new(PYTHON);
    let output = program.args(["-c", load]).arg(extension()).env("QUIRE_SQLITE_GROUP_MAX", "much").output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("QUIRE_SQLITE_GROUP_MAX: 'much'"), "{said}");
}

const SPILL: &str = r#"
if os.path.exists(path): os.remove(path)
db = quire()
db.execute("PRAGMA cache_size = 5")
db.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
db.execute("BEGIN IMMEDIATE")
db.executemany("INSERT INTO t VALUES (?, ?)", [(n, "x" * 300) for n in range(1000)])
before = counts(db)
sure(journal() == (journals == 1), "a journal on disk exactly where the group is too large")
sure(before[1] == journals)
sure(db.execute("SELECT count(*), sum(length(b)) FROM t").fetchone() == (1000, 300000))
other = quire()
try:
    other.execute("SELECT * FROM t").fetchall(); raise SystemExit("it is locked")
except sqlite3.OperationalError: pass
other.close()
db.execute("ROLLBACK")
sure(db.execute("SELECT count(*) FROM t").fetchone() == (0,))
sure(not journal())
ok(db)
db.execute("BEGIN")
db.executemany("INSERT INTO t VALUES (?, ?)", [(n, "y" * 300) for n in range(1000)])
db.execute("SAVEPOINT one")
db.execute("DELETE FROM t")
db.execute("ROLLBACK TO one")
db.execute("COMMIT")
sure(not journal())
check = stock()
sure(check.execute("SELECT count(*), sum(length(b)) FROM t").fetchone() == (1000, 300000))
ok(check)
db.execute("CREATE INDEX i ON t(b, a)")
db.execute("DELETE FROM t WHERE a % 3")
db.execute("PRAGMA auto_vacuum = FULL")
db.execute("VACUUM")
db.execute("PRAGMA page_size = 1024")
db.execute("VACUUM")
sure(check.execute("SELECT count(*) FROM t").fetchone() == (334,))
db.execute("DELETE FROM t")
ok(check)
sure(counts(db)[0] > 0 or not groups_end)
sure(not journal())
check.close()
db.close()
"#;

/// `synchronous=OFF` never syncs: the commit is at FCNTL_SYNC.
#[test]
fn commits_do_not_wait_for_a_sync() {
    let Some(mounted) = Mounted::new() else { return };
    mounted.python(
        r#"
for mode in ("OFF", "NORMAL", "FULL", "EXTRA"):
    db = quire()
    db.execute("PRAGMA synchronous = " + mode)
    db.execute("CREATE TABLE IF NOT EXISTS t(a)")
    before = counts(db)[0]
    db.execute("INSERT INTO t VALUES (?)", (mode,))
    sure(counts(db) == (before + 1, 0))
    check = subprocess.run(["sqlite3", path, "SELECT a FROM t ORDER BY rowid DESC LIMIT 1"], stdout=subprocess.PIPE, text=True)
    sure(check.stdout == mode + "\n", check)
    db.close()
"#,
    );
}

/// A journal that a program without the extension left behind is rolled back, by a journal and not by a
/// group.
#[test]
fn a_hot_journal_of_another_program_is_rolled_back() {
    let Some(mounted) = Mounted::new() else { return };
    mounted.python(
        r#"
db = stock()
db.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
db.executemany("INSERT INTO t VALUES (?, ?)", [(n, "x" * 300) for n in range(1000)])
db.close()
child = os.fork()
if child == 0:
    db = stock()
    db.execute("PRAGMA cache_size = 5")
    db.execute("BEGIN")
    db.execute("UPDATE t SET b = 'half' || a")
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
sure(journal(), "a hot journal")
db = quire()
sure(db.execute("SELECT count(*) FROM t WHERE b LIKE 'half%'").fetchone() == (0,))
sure(not journal())
ok(db)
sure(counts(db) == (0, 0))
db.execute("UPDATE t SET b = 'new'")
sure(counts(db) == (1, 0))
db.close()
"#,
    );
}

/// A second descriptor, once closed, would have dropped the process's POSIX locks on the database.
#[test]
fn locks_of_other_connections_stay() {
    let Some(mounted) = Mounted::new() else { return };
    mounted.python(
        r#"
one = quire()
one.execute("CREATE TABLE t(a)")
one.execute("BEGIN IMMEDIATE")
one.execute("INSERT INTO t VALUES (1)")
def other_program():
    return subprocess.run(["sqlite3", path, "INSERT INTO t VALUES (2)"], stderr=subprocess.PIPE, text=True)
sure("locked" in other_program().stderr)
two = quire()
two.execute("SELECT * FROM t").fetchall()
two.close()
sure("locked" in other_program().stderr, "the lock is still there")
# This connection gets the descriptor that the closed one left: it makes no groups, and works all the same.
three = quire()
report = three.execute("PRAGMA quire_groups").fetchone()[0]
one.execute("COMMIT")
three.execute("INSERT INTO t VALUES (3)")
one.execute("INSERT INTO t VALUES (4)")
sure(other_program().returncode == 0)
sure([row[0] for row in three.execute("SELECT a FROM t")] == [1, 3, 4, 2])
if "no groups" in report:
    three.execute("BEGIN IMMEDIATE")
    three.execute("INSERT INTO t VALUES (5)")
    sure(journal(), "its journal is a file")
    three.execute("ROLLBACK")
ok(one)
one.close()
three.close()
"#,
    );
}

/// Pages read through a mapping of the file do not have what the transaction changed.
#[test]
fn mapped_reads_see_the_transaction() {
    let Some(mounted) = Mounted::new() else { return };
    mounted.python(
        r#"
db, reader = quire(), quire()
for one in (db, reader): one.execute("PRAGMA mmap_size = 100000000")
db.execute("PRAGMA cache_size = 5")
db.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
db.executemany("INSERT INTO t VALUES (?, ?)", [(n, "x" * 300) for n in range(500)])
for turn in range(5):
    wanted = "%d" % turn
    sure(reader.execute("SELECT count(*) FROM t").fetchone() == (500,))
    db.execute("BEGIN")
    db.execute("UPDATE t SET b = ? || substr(b, 2)", (wanted,))
    sure(db.execute("SELECT count(*) FROM t WHERE b LIKE ?", (wanted + "%",)).fetchone() == (500,))
    if turn % 2:
        db.execute("ROLLBACK"); wanted = "%d" % (turn - 1)
    else:
        db.execute("COMMIT")
    for one in (db, reader):
        sure(one.execute("SELECT count(*) FROM t WHERE b LIKE ?", (wanted + "%",)).fetchone() == (500,), turn)
# The file shrinks under the mappings.
db.execute("DELETE FROM t WHERE a > 10")
db.execute("VACUUM")
for one in (db, reader):
    sure(one.execute("SELECT count(*) FROM t").fetchone() == (11,))
    ok(one)
"#,
    );
}

#[test]
fn wal_is_left_alone_and_can_be_left() {
    let Some(mounted) = Mounted::new() else { return };
    mounted.python(
        r#"
db = quire()
db.execute("CREATE TABLE t(a)")
sure(db.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",))
before = counts(db)
for n in range(100): db.execute("INSERT INTO t VALUES (?)", (n,))
sure(os.path.exists(path + "-wal"))
db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
sure(counts(db) == before, "neither commits nor checkpoints make groups")
other = quire()
sure(other.execute("SELECT count(*) FROM t").fetchone() == (100,))
other.close()
sure(db.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",))
db.execute("INSERT INTO t VALUES (1)")
sure(counts(db)[0] > before[0])
ok(db)
"#,
    );
}

#[test]
fn every_rollback_mode_works() {
    let Some(mounted) = Mounted::new() else { return };
    mounted.python(
        r#"
for locking in ("NORMAL", "EXCLUSIVE"):
    for mode in ("DELETE", "TRUNCATE", "PERSIST", "MEMORY", "OFF"):
        db = quire()
        db.execute("PRAGMA locking_mode = " + locking)
        sure(db.execute("PRAGMA journal_mode = " + mode).fetchone() == (mode.lower(),))
        db.execute("CREATE TABLE IF NOT EXISTS t(a)")
        for n in range(5):
            db.execute("INSERT INTO t VALUES (?)", (n,))
            if mode != "OFF":
                db.execute("BEGIN"); db.execute("DELETE FROM t"); db.execute("ROLLBACK")
        groups, journals = counts(db)
        sure((groups >= 5) == (mode not in ("MEMORY", "OFF")), locking, mode, groups)
        sure(journals == 0)
        db.close()
        check = stock()
        ok(check)
        check.close()
check = stock()
sure(check.execute("SELECT count(*) FROM t").fetchone() == (50,))
"#,
    );
}

/// A transaction over attached databases keeps its journals, which the super-journal ties together.
#[test]
fn a_transaction_over_attached_databases_is_one() {
    let Some(mounted) = Mounted::new() else { return };
    mounted.python(
        r#"
second = os.path.join(folder, "second.db")
db = quire()
db.execute("ATTACH ? AS second", (second,))
for schema in ("main", "second"): db.execute("CREATE TABLE %s.t(a)" % schema)
def both(n):
    db.execute("BEGIN")
    for schema in ("main", "second"): db.execute("INSERT INTO %s.t VALUES (?)" % schema, (n,))
    db.execute("COMMIT")
both(1)
sure(counts(db) == (1, 1) and counts(db, "second") == (1, 1), counts(db), counts(db, "second"))
db.execute("INSERT INTO second.t VALUES (2)")
sure(counts(db, "second") == (2, 1))
sure([row[0] for row in db.execute("SELECT a FROM main.t")] == [1])
sure(sorted(os.listdir(folder)) == ["second.db", "test.db"], os.listdir(folder))
db.close()
# Kills at random: never one file without the other.
for turn in range(40):
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, 0)
        db = quire()
        db.execute("ATTACH ? AS second", (second,))
        n = 100
        while True:
            n += 1
            both(n)
    import random, time
    time.sleep(random.random() * 0.03)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    db = quire()
    db.execute("ATTACH ? AS second", (second,))
    ok(db)
    # The shared values differ by the single insert above alone.
    missing = db.execute("SELECT count(*) FROM (SELECT a FROM main.t EXCEPT SELECT a FROM second.t)").fetchone()
    extra = db.execute("SELECT count(*) FROM (SELECT a FROM second.t EXCEPT SELECT a FROM main.t)").fetchone()
    sure((missing, extra) == ((0,), (1,)), missing, extra)
    db.close()
"#,
    );
}

/// A transaction that an error ends without ROLLBACK is dropped with the lock.
#[test]
fn a_connection_that_ends_in_mid_transaction_leaves_nothing() {
    let Some(mounted) = Mounted::new() else { return };
    mounted.python(
        r#"
db = quire()
db.execute("PRAGMA cache_size = 5")
db.execute("CREATE TABLE t(a, b)")
db.execute("BEGIN")
db.executemany("INSERT INTO t VALUES (?, ?)", [(n, "x" * 300) for n in range(1000)])
db.close()
db = quire()
sure(db.execute("SELECT count(*) FROM t").fetchone() == (0,))
ok(db)
calls = 0
def stop():
    global calls
    calls += 1
    return calls > 500
db.set_progress_handler(stop, 100)
try:
    db.execute("INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100000) SELECT i, i FROM n")
    raise SystemExit("it was to be interrupted")
except sqlite3.OperationalError:
    pass
db.set_progress_handler(None, 0)
sure(db.execute("SELECT count(*) FROM t").fetchone() == (0,))
db.execute("INSERT INTO t VALUES (1, 1)")
ok(db)
"#,
    );
}

#[test]
fn temporary_and_read_only_databases_work() {
    let Some(mounted) = Mounted::new() else { return };
    mounted.python(
        r#"
db = quire()
db.execute("CREATE TABLE t(a)")
db.execute("CREATE TEMP TABLE u(a)")
db.executemany("INSERT INTO u VALUES (?)", [(n,) for n in range(10000)])
db.execute("INSERT INTO t SELECT * FROM u")
db.close()
db = sqlite3.connect("file:" + path + "?mode=ro", uri=True)
sure(db.execute("SELECT count(*) FROM t").fetchone() == (10000,))
sure(db.execute("PRAGMA quire_groups").fetchone() is None, "the file is the default VFS's")
try:
    db.execute("DELETE FROM t"); raise SystemExit("it is read-only")
except sqlite3.OperationalError: pass
db.close()
backup = quire(os.path.join(folder, "backup.db"))
source = quire()
source.backup(backup)
sure(backup.execute("SELECT count(*) FROM t").fetchone() == (10000,))
ok(backup)
"#,
    );
}

/// SQLite cuts the file behind a commit. With a journal that was still open the cut was collected as if a
/// transaction were under way, and dropped with the lock: in TRUNCATE and PERSIST modes a file never shrank.
/// With `locking_mode=EXCLUSIVE` the lock stays, and later reads went by the size from before.
#[test]
fn files_shrink_in_every_mode() {
    let Some(mounted) = Mounted::new() else { return };
    mounted.python(
        r#"
fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) INSERT INTO t SELECT randomblob(2000) FROM n"
for locking in ("NORMAL", "EXCLUSIVE"):
    for mode in ("DELETE", "TRUNCATE", "PERSIST", "MEMORY"):
        db = quire()
        db.execute("PRAGMA locking_mode = " + locking)
        db.execute("PRAGMA journal_mode = " + mode)
        db.execute("DROP TABLE IF EXISTS t")
        db.execute("CREATE TABLE t(a)")
        db.execute(fill)
        db.execute("DELETE FROM t WHERE rowid > 10")
        db.execute("VACUUM")
        pages, page = db.execute("PRAGMA page_count").fetchone()[0], db.execute("PRAGMA page_size").fetchone()[0]
        size = os.path.getsize(db.execute("PRAGMA database_list").fetchone()[2])
        sure(size == pages * page, locking, mode, size, pages * page)
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA cache_size = 10")
        db.execute(fill)
        ok(db)
        sure(db.execute("SELECT count(*), sum(length(a)) FROM t").fetchone() == (510, 510 * 2000))
        db.close()
"#,
    );
}

/// The extension told SQLite that full paths may have 1024 bytes. The system's VFS has buffers for the 512
/// that it promises itself, on its stack, and copies the database's name into one when it makes a journal.
#[test]
fn long_paths_are_refused_as_without_the_extension() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    python(
        folder.path(),
        r#"
def opens(connect, length):
    name = os.path.join(folder, "d" * 200, "e" * 200)
    os.makedirs(name, exist_ok=True)
    name += "/" + "f" * (length - len(name) - 1)
    try:
        db = connect(name)
        db.execute("CREATE TABLE IF NOT EXISTS t(a)")
        return True
    except sqlite3.OperationalError:
        return False
lengths = range(495, 520)
sure([opens(quire, length) for length in lengths] == [length <= 504 for length in lengths])
sure([opens(quire, length) for length in lengths] == [opens(stock, length) for length in lengths])
sure(not opens(quire, 600))
"#,
        &[],
    );
}
