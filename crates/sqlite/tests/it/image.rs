//! Databases in an image that nobody has mounted.

use std::path::Path;
use std::process::Command;

use super::mounted::{PYTHON, extension, has_python, python, shell};

/// What programs for an image start with: `image()` opens a database in it.
const IMAGE: &str = r#"
volume = os.path.join(folder, "data.img")
def image(name="test.db", timeout=0, **options):
    options = {"vfs": "quire", "image": volume, "image_size": "64m", "image_cache": "16m", **options}
    uri = "file:%s?%s" % (name, "&".join("%s=%s" % pair for pair in options.items()))
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=timeout, check_same_thread=False)
def fails(what, *kinds):
    try: what()
    except kinds or sqlite3.OperationalError: return
    raise AssertionError("it should have failed")
def program(code, *arguments):
    "A process of its own, which starts as this one."
    return subprocess.Popen([sys.executable, "-c", prelude + code, extension, folder, *arguments], stdout=subprocess.PIPE)
"#;

fn run(program: &str) {
    run_with(program, &[]);
}

fn run_with(program: &str, variables: &[(&str, &str)]) {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    run_in(folder.path(), program, variables);
}

fn run_in(folder: &Path, program: &str, variables: &[(&str, &str)]) {
    let prelude = format!("{}{IMAGE}", super::mounted::PRELUDE);
    python(folder, &format!("{IMAGE}\nprelude = {prelude:?}\n{program}"), variables);
}

#[test]
fn commits_are_groups_and_nothing_but_the_image_appears() {
    run(r#"
db = image("some/where/test.db")
db.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
db.executemany("INSERT INTO t(b) VALUES (?)", [("x" * n,) for n in range(100)])
db.execute("BEGIN")
db.execute("UPDATE t SET b = 'y'")
db.execute("ROLLBACK")
sure(counts(db) == (101, 0), counts(db))
name = db.execute("PRAGMA database_list").fetchone()[2]
sure(name == "quire://" + os.path.realpath(volume) + "//some/where/test.db", name)
ok(db)
db.close()
sure(os.listdir(folder) == ["data.img"], os.listdir(folder))
# The volume was closed; it is opened again, by its full path this time.
db = sqlite3.connect(name, isolation_level=None)
sure(db.execute("SELECT count(*), sum(length(b)) FROM t").fetchone() == (100, 4950))
"#);
}

/// `mode=ro` and `mode=rw` create no database, and yet made the image that it was to be in.
#[test]
fn modes_that_create_nothing_make_no_image() {
    run(r#"
for mode in ("ro", "rw"):
    fails(lambda: image(mode=mode).execute("SELECT 1 FROM sqlite_master"))
    sure(not os.path.exists(volume), mode)
"#);
}

#[test]
fn connections_of_a_process_keep_out_of_each_others_way() {
    run(r#"
import threading
one, two = image(), image()
one.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
one.execute("BEGIN IMMEDIATE")
one.execute("INSERT INTO t(b) VALUES ('one')")
fails(lambda: two.execute("BEGIN IMMEDIATE"))
sure(two.execute("SELECT count(*) FROM t").fetchone() == (0,))
two.execute("BEGIN")
two.execute("SELECT * FROM t").fetchall()
fails(lambda: one.execute("COMMIT"))
two.execute("COMMIT")
one.execute("COMMIT")
sure(two.execute("SELECT b FROM t").fetchall() == [("one",)])
# Threads that count up: no count is lost.
for mode in ("DELETE", "TRUNCATE", "WAL"):
    sure(one.execute("PRAGMA journal_mode = " + mode).fetchone() == (mode.lower(),))
    one.execute("UPDATE t SET b = 0")
    def work():
        db = image(timeout=60)
        for _ in range(50):
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE t SET b = b + 1")
            db.execute("COMMIT")
            db.execute("SELECT sum(b) FROM t").fetchone()
        db.close()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    sure(one.execute("SELECT b FROM t").fetchall() == [(200,)], mode)
    ok(two)
"#);
}

#[test]
fn one_process_at_a_time_has_the_volume() {
    run(r#"
db = image()
db.execute("CREATE TABLE t(a)")
other = program("""
try: image().execute("SELECT * FROM t")
except sqlite3.OperationalError as error: print(error)
""")
sure(other.communicate(timeout=60)[0] == b"unable to open database file\n")
child = os.fork()
if child == 0:
    try:
        fails(lambda: db.execute("SELECT * FROM t"))
        fails(lambda: image())
        os._exit(0)
    finally:
        os._exit(1)
sure(os.waitpid(child, 0)[1] == 0, "a child of a fork gets errors")
db.execute("BEGIN IMMEDIATE")
db.execute("INSERT INTO t VALUES (0)")
child = os.fork()
if child == 0:
    try:
        fails(lambda: db.execute("COMMIT"))
        os._exit(0)
    finally:
        os._exit(1)
sure(os.waitpid(child, 0)[1] == 0, "a child of a fork does not commit its parent's transaction")
db.execute("ROLLBACK")
db.execute("INSERT INTO t VALUES (1)")
db.close()
# The volume is closed with the last connection.
other = program("""print(image().execute("SELECT * FROM t").fetchall())""")
sure(other.communicate(timeout=60)[0] == b"[(1,)]\n")
"#);
}

/// A connection that held its lock already asked for none: in WAL mode, with an exclusive lock, and within a
/// transaction. A child of a fork then wrote to the image with its copy of the volume, over what its parent
/// writes there.
#[test]
fn a_child_of_a_fork_is_refused_with_any_lock() {
    run_with(
        r#"
def open_as(mode):
    db = image(mode + ".db")
    # Pages come from the file, and go there before the commit.
    db.execute("PRAGMA cache_size = 2")
    if "exclusive" in mode: db.execute("PRAGMA locking_mode = EXCLUSIVE")
    if "wal" in mode: sure(db.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",))
    return db
for mode in ("wal", "wal-exclusive", "exclusive", "spilled", "spilled-kept", "wal-spilled"):
    db = open_as(mode)
    db.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
    db.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100) INSERT INTO t SELECT i, zeroblob(3000) FROM n")
    spilled = "spilled" in mode
    if spilled:
        db.execute("BEGIN")
        db.execute("UPDATE t SET b = randomblob(3000) WHERE a <= ?", (90 if "kept" in mode else 20,))
        if mode == "spilled-kept": sure(counts(db)[1] > 0, counts(db))
    child = os.fork()
    if child == 0:
        try:
            # A child that waits for a lock of its parent's is refused nothing, and ends here.
            signal.alarm(60)
            fails(lambda: db.execute("SELECT sum(length(b)) FROM t").fetchall())
            def insert():
                db.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100) INSERT INTO t(b) SELECT randomblob(3000) FROM n")
                if spilled: db.execute("COMMIT")
            fails(insert)
            # An error may have rolled the transaction back as far as SQLite is concerned.
            if db.in_transaction: fails(lambda: db.execute("ROLLBACK"))
            fails(lambda: db.execute("DELETE FROM t"))
            fails(lambda: image("other.db"))
            os._exit(0)
        except BaseException as error:
            print(mode, "in the child:", repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    sure(os.waitpid(child, 0)[1] == 0, mode)
    if spilled: db.execute("COMMIT")
    db.execute("UPDATE t SET b = zeroblob(2000)")
    db.execute("INSERT INTO t VALUES (1000, zeroblob(2000))")
    db.close()
    db = open_as(mode)
    ok(db)
    sure(db.execute("SELECT count(*), sum(length(b)), max(a) FROM t").fetchone() == (101, 202000, 1000), mode)
    db.close()
"#,
        &[("QUIRE_SQLITE_GROUP_MAX", "100000")],
    );
}

#[test]
fn a_write_ahead_log_is_recovered() {
    run(r#"
killed = program("""
db = image()
db.execute("PRAGMA journal_mode = WAL")
db.execute("PRAGMA wal_autocheckpoint = 0")
db.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
for n in range(100): db.execute("INSERT INTO t VALUES (?, ?)", (n, "x" * 1000))
db.execute("BEGIN"); db.execute("INSERT INTO t VALUES (1000, 'lost')")
os.kill(os.getpid(), signal.SIGKILL)
""")
killed.communicate(timeout=60)
db = image()
sure(db.execute("PRAGMA journal_mode").fetchone() == ("wal",))
sure(db.execute("SELECT count(*), max(a) FROM t").fetchone() == (100, 99))
sure(db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)
ok(db)
reader = image()
reader.execute("BEGIN")
sure(reader.execute("SELECT count(*) FROM t").fetchone() == (100,))
db.execute("DELETE FROM t")
sure(reader.execute("SELECT count(*) FROM t").fetchone() == (100,), "the reader's snapshot stays")
reader.execute("COMMIT")
sure(reader.execute("SELECT count(*) FROM t").fetchone() == (0,))
"#);
}

/// Transactions that are too large for a group: their journals are hot after a kill.
#[test]
fn hot_journals_in_the_volume_are_rolled_back() {
    run_with(
        r#"
db = image()
db.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
db.execute("INSERT INTO t VALUES (1, 'kept')")
db.close()
for attached in (False, True):
    killed = program("""
db = image()
db.execute("PRAGMA cache_size = 5")
if sys.argv[3] == "True":
    db.execute("ATTACH ? AS other", ("file:other.db?image=" + volume,))
    db.execute("CREATE TABLE IF NOT EXISTS other.t(a INTEGER PRIMARY KEY, b)")
db.execute("BEGIN")
db.executemany("INSERT INTO t(b) VALUES (?)", [("x" * 1000,) for _ in range(500)])
if sys.argv[3] == "True":
    db.executemany("INSERT INTO other.t(b) VALUES (?)", [("x" * 1000,) for _ in range(500)])
sure(counts(db)[1] == 1, counts(db))
os.kill(os.getpid(), signal.SIGKILL)
""", str(attached))
    killed.communicate(timeout=60)
    sure(killed.returncode == -signal.SIGKILL)
    db = image()
    sure(db.execute("SELECT * FROM t").fetchall() == [(1, "kept")])
    ok(db)
    if attached:
        db.execute("ATTACH ? AS other", ("file:other.db?image=" + volume,))
        sure(db.execute("SELECT count(*) FROM other.t").fetchone() == (0,))
        # Over both files at once, with a super-journal.
        db.execute("BEGIN")
        db.execute("INSERT INTO t VALUES (2, 'both')")
        db.execute("INSERT INTO other.t VALUES (2, 'both')")
        db.execute("COMMIT")
        sure(db.execute("SELECT count(*) FROM t NATURAL JOIN other.t").fetchone() == (1,))
    db.close()
"#,
        &[("QUIRE_SQLITE_GROUP_MAX", "100000")],
    );
}

#[test]
fn killed_writers_lose_nothing_that_was_acknowledged() {
    run(r#"
import random
chance = random.Random(7)
db = image()
db.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
db.execute("CREATE TABLE sums(total)")
db.execute("INSERT INTO sums VALUES (0)")
db.close()
acknowledged = 0
for kill in range(12):
    writer = program("""
db = image()
while True:
    db.execute("BEGIN")
    row = db.execute("INSERT INTO t(b) VALUES (randomblob(3000))").lastrowid
    db.execute("UPDATE sums SET total = total + 1")
    db.execute("COMMIT")
    print(row, flush=True)
""")
    wanted = acknowledged + chance.randrange(1, 60)
    for line in writer.stdout:
        acknowledged = int(line)
        if acknowledged >= wanted: break
    writer.kill()
    for line in writer.stdout:
        if line.endswith(b"\n"): acknowledged = int(line)
    writer.wait()
    db = image()
    ok(db)
    found = db.execute("SELECT count(*) FROM t").fetchone()[0]
    sure(found >= acknowledged, (found, acknowledged))
    sure(db.execute("SELECT total FROM sums").fetchone() == (found,), "a transaction is whole")
    acknowledged = found
    db.close()
"#);
}

#[test]
fn names_and_sizes_that_mean_nothing_are_refused() {
    run(r#"
fails(lambda: sqlite3.connect("file:a.db?vfs=quire&image=" + volume, uri=True).execute("SELECT 1 FROM sqlite_schema"))
fails(lambda: image(image_cache="much"))
fails(lambda: image("/"))
sure(os.listdir(folder) == [])
image().execute("CREATE TABLE t(a)")
fails(lambda: image("no.db", mode="rw"))
fails(lambda: image(mode="ro").execute("INSERT INTO t VALUES (1)"))
sure(image(mode="ro").execute("SELECT * FROM t").fetchall() == [])
# Temporary tables and files of the host are where they always were.
db = sqlite3.connect(os.path.join(folder, "host.db"), isolation_level=None)
db.execute("CREATE TEMP TABLE t(a)")
db.execute("CREATE TABLE u(a)")
sure(sorted(os.listdir(folder)) == ["data.img", "host.db"])
"#);
}

#[test]
fn the_shell_of_the_system_opens_one() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("data.img");
    let out = shell(&format!(
        ".load {}\n.open 'file:my.db?image={}&image_size=64m'\n\
         CREATE TABLE t(a); INSERT INTO t VALUES (1); PRAGMA quire_groups; SELECT * FROM t;\n",
        extension().display(),
        image.display()
    ));
    assert_eq!(out, "groups: 2 transactions; journals: 0\n1\n");
}

#[test]
fn the_page_runs_as_it_stands() {
    if !has_python() {
        return;
    }
    let page = include_str!("../../../../docs/sqlite.md");
    let (_, rest) = page.split_once("```python\n").unwrap();
    let (program, _) = rest.split_once("```").unwrap();
    let place = "/usr/local/lib/libquire_sqlite\"";
    assert!(program.contains(place));
    let program = program.replace(place, &format!("{}\"", extension().display()));
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(PYTHON).arg("-c").arg(&program).current_dir(folder.path()).output().unwrap();
    super::mounted::check(&output, &program);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "groups: 2 transactions; journals: 0\n");
}

#[test]
fn random_statements_give_what_the_default_gives() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/sqlite-compare");
    let output = Command::new(PYTHON)
        .arg(script)
        .args(["image", "1500", "1"])
        .env("QUIRE_SQLITE_EXTENSION", extension())
        .env("QUIRE_SQLITE_FOLDER", folder.path())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
}

/// The volume said that open files cannot be deleted. So a connection in TRUNCATE mode kept its journal open
/// behind a transaction, and another one in DELETE mode removed it. The next transaction of the first had its
/// journal in a file without a name: a kill in the middle of it left half of it.
#[test]
fn nobody_removes_the_journal_of_another_connection() {
    run_with(
        r#"
db = image()
db.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
db.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) INSERT INTO t SELECT i, randomblob(2000) FROM n")
before = db.execute("SELECT sum(length(hex(b))) FROM t").fetchone()[0]
db.close()
child = program("""
first, second = image(), image()
first.execute("PRAGMA cache_size = 10")
sure(first.execute("PRAGMA journal_mode = TRUNCATE").fetchone() == ("truncate",))
first.execute("UPDATE t SET b = randomblob(2000)")
sure(counts(first)[1] == 1, "its journal was kept", counts(first))
second.execute("INSERT INTO t(a, b) VALUES (10000, '')")
first.execute("BEGIN")
# More than the volume keeps in memory.
first.execute("UPDATE t SET b = zeroblob(1000)")
os._exit(42)
""")
sure(child.wait() == 42)
db = image()
ok(db)
sure(db.execute("SELECT sum(length(hex(b))) FROM t").fetchone()[0] == before, "half a transaction")
"#,
        &[("QUIRE_SQLITE_GROUP_MAX", "100000")],
    );
}

/// With `synchronous=OFF` the end of a kept journal became durable before the pages that it had guarded, or
/// came to nothing when the header came back; and pages went to the file before their originals in the
/// journal were durable. A kill left a part of the transaction. A truncation of the journal was not synced
/// with NORMAL either, so a kill took back a transaction that COMMIT had reported.
#[test]
fn large_transactions_are_whole_with_any_setting_of_synchronous() {
    run_with(
        r#"
def kill(synchronous, mode, locking, end):
    "What is wrong with the database after a kill."
    db = image()
    db.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, changed, b)")
    # Its pages are none of those that the large transaction changes.
    db.execute("CREATE TABLE later(a)")
    db.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) INSERT INTO t SELECT i, 0, randomblob(2000) FROM n")
    db.close()
    killed = program("""
synchronous, mode, locking, end = sys.argv[3:]
db = image(image_cache="8m")
db.execute("PRAGMA locking_mode = " + locking)
db.execute("PRAGMA journal_mode = " + mode)
db.execute("PRAGMA synchronous = " + synchronous)
db.execute("PRAGMA cache_size = 10")
other = image("other.db")
other.execute("CREATE TABLE t(a)")
db.execute("BEGIN")
db.execute("UPDATE t SET b = randomblob(2000), changed = 1")
sure(counts(db)[1] > 0, "its journal is kept", counts(db))
if end != "ROLLBACK BY KILL": db.execute("COMMIT")
if end == "INSERT": db.execute("INSERT INTO later VALUES (1)")
# What is in the volume's journal becomes durable, and data of other files does not.
if synchronous == "OFF": other.execute("INSERT INTO t VALUES (1)")
os.kill(os.getpid(), signal.SIGKILL)
""", synchronous, mode, locking, end)
    killed.communicate(timeout=600)
    if killed.returncode != -signal.SIGKILL: return "the program failed"
    db = image()
    try:
        if db.execute("PRAGMA integrity_check").fetchall() != [("ok",)]: return "corrupt"
        found = db.execute("SELECT DISTINCT changed FROM t").fetchall()
        later = db.execute("SELECT count(*) FROM later").fetchone() == (1,)
    except sqlite3.DatabaseError as error:
        return str(error)
    finally:
        db.close()
        os.remove(volume)
    if len(found) != 1: return "a part of the transaction"
    if found == [(1,)] and end == "ROLLBACK BY KILL": return "it was not committed"
    if found == [(0,)] and later: return "a later transaction without it"
    if found == [(0,)] and synchronous != "OFF": return "COMMIT had reported it"
cases = [("NORMAL", "TRUNCATE", "NORMAL", "COMMIT")]
for mode in ("DELETE", "TRUNCATE", "PERSIST"):
    for locking in ("NORMAL", "EXCLUSIVE"):
        cases += [("OFF", mode, locking, end) for end in ("COMMIT", "INSERT", "ROLLBACK BY KILL")]
wrong = [(case, what) for case in cases if (what := kill(*case))]
sure(not wrong, wrong)
"#,
        &[("QUIRE_SQLITE_GROUP_MAX", "100000")],
    );
}

/// SQLite adds `-journal` to the full name of a database, and has 512 bytes for the result.
#[test]
fn full_names_have_a_limit() {
    run(r#"
prefix = len("quire://" + os.path.realpath(volume) + "//")
def named(length): return image("/".join(["d" * 200, "e" * 100, "f" * 200])[:length - prefix])
db = named(504)
db.execute("CREATE TABLE t(a)")
sure(len(db.execute("PRAGMA database_list").fetchone()[2]) == 504)
db.close()
for length in (505, 512, 513): fails(lambda: named(length).execute("SELECT 1"))
"#);
}

/// The names of a journal and of a log followed the name that a database was opened by, a symbolic link's
/// too. A connection by the database's own name missed a hot journal, and two names in WAL mode had two logs
/// under one index, which corrupted the database.
#[test]
fn a_database_has_no_second_name() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("data.img");
    let volume = quire::FormatOptions::new().size(64 << 20).format(&image).map(|_| &image);
    let volume = quire::Volume::open(volume.unwrap()).unwrap();
    volume.create_dir("/folder").unwrap();
    volume.symlink("data.db", "/cur.db").unwrap();
    volume.symlink("folder", "/link").unwrap();
    volume.close().unwrap();
    let program = r#"
def refused():
    for name in ("cur.db", "/link/data.db", "link/../link/new/data.db"):
        fails(lambda: image(name).execute("SELECT * FROM sqlite_schema"))
refused()
db = image("data.db")
db.execute("PRAGMA journal_mode = WAL")
db.execute("CREATE TABLE t(a)")
refused()
fails(lambda: db.execute("ATTACH ? AS other", ("file:cur.db?image=" + volume,)))
other = image("folder/data.db")
other.execute("CREATE TABLE t(a)")
ok(db)
"#;
    run_in(folder.path(), program, &[]);
    let volume = quire::Volume::open(&image).unwrap();
    assert!(!volume.exists("/folder/new").unwrap());
    volume.close().unwrap();
}

/// Such a transaction had a super-journal whose name, or some of whose names, SQLite without the extension
/// finds nowhere. After a kill it took the transaction of one of the databases for committed, though the
/// other was rolled back.
#[test]
fn no_transaction_is_over_an_image_and_the_host() {
    run_with(
        r#"
host = os.path.join(folder, "host.db")
inside = "file:test.db?image=%s&image_size=64m" % volume
for main, other in ((host, inside), (inside, host)):
    db = sqlite3.connect(main, uri=True, isolation_level=None)
    db.execute("ATTACH ? AS other", (other,))
    for schema in ("main", "other"):
        db.execute("CREATE TABLE %s.t(a, b)" % schema)
        db.execute("INSERT INTO %s.t VALUES (1, 'kept')" % schema)
    # The second time it is too large for memory, and journals are kept.
    for size in (1, 100000):
        db.execute("PRAGMA cache_size = 5")
        db.execute("BEGIN")
        for schema in ("main", "other"):
            db.execute("UPDATE %s.t SET b = 'half'" % schema)
            db.execute("INSERT INTO %s.t VALUES (2, randomblob(?))" % schema, (size,))
        fails(lambda: db.execute("COMMIT"))
        sure(not db.in_transaction)
        for schema in ("main", "other"):
            sure(db.execute("SELECT * FROM %s.t" % schema).fetchall() == [(1, "kept")])
    # One of them after the other, and from one into the other.
    db.execute("INSERT INTO main.t SELECT * FROM other.t")
    db.execute("INSERT INTO other.t SELECT * FROM main.t")
    for schema in ("main", "other"): db.execute("DROP TABLE %s.t" % schema)
    ok(db)
    db.close()
    sure(sorted(os.listdir(folder)) == ["data.img", "host.db"], os.listdir(folder))
"#,
        &[("QUIRE_SQLITE_GROUP_MAX", "50000")],
    );
}
