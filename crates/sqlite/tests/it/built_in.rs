//! A SQLite that was built with `SQLITE_ENABLE_BATCH_ATOMIC_WRITE`, and the file system's requests for
//! groups: no extension is needed.
//!
//! The amalgamation is the one that `rusqlite` bundles. It becomes a `libsqlite3.so.0` for the system's
//! Python, which is the driver of all tests here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::mounted::{Mounted, PYTHON, check};

/// What every program here starts with. `created()` gives the names of files that appeared in the folder
/// since it was last called.
const PRELUDE: &str = r#"
import ctypes, os, random, signal, sqlite3, struct, sys, time
folder = sys.argv[1]
path = os.path.join(folder, "test.db")
options = [row[0] for row in sqlite3.connect(":memory:").execute("PRAGMA compile_options")]
assert "ENABLE_BATCH_ATOMIC_WRITE" in options, options
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(watch, folder.encode(), 0x100) >= 0, ctypes.get_errno()
def created():
    names = []
    while True:
        try:
            events = os.read(watch, 65536)
        except BlockingIOError:
            return names
        while events:
            length = struct.unpack("iIII", events[:16])[3]
            names.append(events[16:16 + length].rstrip(b"\0").decode())
            events = events[16 + length:]
def sure(condition, *what):
    if not condition:
        raise AssertionError(*what)
def connect(seconds=0):
    db = sqlite3.connect(path, isolation_level=None, timeout=seconds)
    # What does not stay in SQLite's own cache is written over the database, and so needs a journal.
    db.execute("PRAGMA cache_size = -64000")
    sure(db.execute("PRAGMA journal_mode").fetchone() == ("delete",))
    return db
def ok(db):
    sure(db.execute("PRAGMA integrity_check").fetchall() == [("ok",)])
"#;

/// A folder with the library; none if it cannot be built here.
fn library() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(build).as_deref()
}

fn build() -> Option<PathBuf> {
    let skip = |why: &str| eprintln!("\n*** SKIPPED: SQLite cannot be built: {why} ***\n");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let metadata = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--offline", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .output();
    let Ok(metadata) = metadata else {
        skip("there is no cargo");
        return None;
    };
    // "manifest_path":"/.../libsqlite3-sys-0.38.1/Cargo.toml"
    let text = String::from_utf8_lossy(&metadata.stdout);
    let package = text.split("\"manifest_path\":\"").filter_map(|rest| rest.split('"').next());
    let Some(package) = package
        .filter_map(|path| path.strip_suffix("/Cargo.toml"))
        .find(|path| path.contains("/libsqlite3-sys-"))
    else {
        skip("the sources of libsqlite3-sys are not there");
        return None;
    };
    let version = Path::new(package).file_name()?;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("batch-atomic").join(version);
    let done = folder.join("libsqlite3.so.0");
    if !done.exists() {
        std::fs::create_dir_all(&folder).unwrap();
        // Under a name of its own first: a build that is cut off leaves nothing to be believed in.
        let begun = folder.join(format!("{}.so", std::process::id()));
        let compiled = Command::new("cc")
            .args(["-O1", "-fPIC", "-shared", "-Wl,-soname,libsqlite3.so.0"])
            .args(["-DSQLITE_ENABLE_BATCH_ATOMIC_WRITE", "-DSQLITE_THREADSAFE=1", "-DSQLITE_ENABLE_FTS5"])
            .args(["-DSQLITE_ENABLE_LOAD_EXTENSION", "-DSQLITE_ENABLE_COLUMN_METADATA", "-o"])
            .arg(&begun)
            .arg(Path::new(package).join("sqlite3/sqlite3.c"))
            .args(["-lm", "-ldl", "-lpthread"])
            .status();
        if !compiled.is_ok_and(|status| status.success()) {
            skip("the C compiler failed");
            return None;
        }
        std::fs::rename(begun, &done).unwrap();
    }
    Some(folder)
}

/// Runs a Python program over the library on a mount.
fn run(program: &str) {
    let Some(mounted) = Mounted::new() else { return };
    let Some(library) = library() else { return };
    let output = Command::new(PYTHON)
        .arg("-c")
        .arg(format!("{PRELUDE}{program}"))
        .arg(mounted.path())
        .env("LD_LIBRARY_PATH", library)
        .output()
        .unwrap();
    check(&output, program);
}

#[test]
fn commits_need_no_journal() {
    run(r#"
db = connect()
db.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
# SQLite itself makes the first transaction of a new database with a journal. It shows that the watch works.
sure("test.db-journal" in created())
for number in range(50):
    db.execute("BEGIN")
    db.execute("INSERT INTO t VALUES (?, ?)", (number, "x" * 5000))
    db.execute("UPDATE t SET b = b || 'y' WHERE a % 7 = ?", (number % 7,))
    db.execute("COMMIT")
# More than a record of the file system's journal: fresh blocks, exchanged with the old ones.
db.execute("INSERT INTO t VALUES (1000, zeroblob(9000000))")
db.execute("UPDATE t SET b = randomblob(8000000) WHERE a = 1000")
# A statement that fails, and a transaction that is rolled back.
try:
    db.execute("INSERT INTO t SELECT a + 10, b FROM t WHERE a < 50 ORDER BY a")
    raise SystemExit("it should have failed")
except sqlite3.IntegrityError:
    pass
db.execute("BEGIN"); db.execute("DELETE FROM t"); db.execute("ROLLBACK")
db.execute("DELETE FROM t WHERE a = 1000")
db.execute("VACUUM")
sure(db.execute("SELECT count(*) FROM t").fetchone() == (50,))
ok(db)
sure(created() == [])

# A transaction in more places than a group has is behind a journal, as ever.
db.execute("WITH RECURSIVE n(i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM n WHERE i < 9000) "
           "INSERT INTO t SELECT i, zeroblob(3000) FROM n")
sure(created() == [])
db.execute("UPDATE t SET b = zeroblob(2999) WHERE a % 5 = 0")
sure("test.db-journal" in created(), "no journal")
sure(not os.path.exists(path + "-journal"))
ok(db)
db.close()
"#);
}

#[test]
fn a_killed_writer_leaves_whole_transactions() {
    run(r#"
db = connect()
db.execute("CREATE TABLE account(id INTEGER PRIMARY KEY, money)")
db.execute("CREATE TABLE log(name PRIMARY KEY, count, text)")
db.executemany("INSERT INTO account VALUES (?, 1000)", [(number,) for number in range(300)])
db.close()
created()
def write(report, name):
    db = connect(60)
    chance = random.Random(name)
    turn = 0
    while True:
        turn += 1
        moves = chance.choice([1, 3, 40])
        db.execute("BEGIN IMMEDIATE")
        for _ in range(moves):
            amount = chance.randrange(100)
            db.execute("UPDATE account SET money = money - ? WHERE id = ?", (amount, chance.randrange(300)))
            db.execute("UPDATE account SET money = money + ? WHERE id = ?", (amount, chance.randrange(300)))
        # Now and then more than a record takes; the volume has no room for many of these.
        db.execute("UPDATE log SET text = '' WHERE length(text) > 10000")
        text = "t" * chance.choice([10, 10, 10, 4000, 4000000])
        db.execute("INSERT INTO log VALUES (?, ?, ?)", ("%s-%d" % (name, turn), moves, text))
        db.execute("COMMIT")
        os.write(report, b"%s-%d\n" % (name.encode(), turn))
told, chance = set(), random.Random(7)
writers = {}
def start(name):
    read, report = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write(report, name)
        except BaseException as error:
            print("writer", name, repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    os.close(report)
    writers[child] = read
for number in range(3):
    start("w%d" % number)
for kill in range(25):
    time.sleep(chance.random() * 0.08)
    victim = chance.choice(list(writers))
    os.kill(victim, signal.SIGKILL)
    sure(os.WIFSIGNALED(os.waitpid(victim, 0)[1]), "a writer ended by itself")
    read = writers.pop(victim)
    told.update(os.fdopen(read).read().split())
    if kill == 24:
        for child in list(writers):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            told.update(os.fdopen(writers.pop(child)).read().split())
    else:
        start("k%d" % kill)
    db = connect(60)
    db.execute("BEGIN")
    ok(db)
    sure(db.execute("SELECT sum(money) FROM account").fetchone() == (300000,), "a transaction is there in part")
    names = set(row[0] for row in db.execute("SELECT name FROM log"))
    sure(told <= names, "reported transactions are lost", told - names)
    db.close()
sure(len(told) > 20, len(told))
sure("test.db-journal" not in created(), "a journal appeared")
"#);
}
