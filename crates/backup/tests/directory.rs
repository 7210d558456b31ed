//! Backups in a directory, through the real programs: `quire-backup`, and the `quire` beside it.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use quire::Volume;

const BACKUP: &str = env!("CARGO_BIN_EXE_quire-backup");

/// The program `quire`, which a test of the whole workspace has built already.
fn quire() -> PathBuf {
    let program = Path::new(BACKUP).with_file_name("quire");
    if !program.exists() {
        let target = Path::new(BACKUP).ancestors().nth(2).unwrap();
        let mut command = Command::new(env!("CARGO"));
        command.args(["build", "--locked", "-p", "quire-cli"]).arg("--target-dir").arg(target);
        assert!(command.status().unwrap().success());
    }
    program
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

struct World {
    dir: tempfile::TempDir,
    volume: PathBuf,
    store: PathBuf,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let (volume, store) = (dir.path().join("volume.img"), dir.path().join("store"));
        let world = World { dir, volume, store };
        let made = Command::new(quire()).args(["mkfs", "--quiet", "--size=64M"]).arg(&world.volume).output();
        let made = made.unwrap();
        assert!(made.status.success(), "{}", text(&made));
        world
    }

    fn backup(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BACKUP);
        command.arg(arguments[0]);
        if arguments[0] == "create" {
            if !arguments.iter().any(|argument| argument.starts_with("--part-size")) {
                command.arg("--part-size=32K");
            }
            command.arg(&self.volume);
        }
        command.arg(&self.store).args(&arguments[1..]).env("QUIRE", quire());
        command
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> String {
        let output = self.backup(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        text(&output)
    }

    #[track_caller]
    fn fails(&self, arguments: &[&str], code: i32) -> String {
        let output = self.backup(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output));
        text(&output)
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Writes a file of `bytes` bytes that depend on `seed`.
    fn write(&self, name: &str, bytes: usize, seed: u32) {
        let volume = Volume::open(&self.volume).unwrap();
        let mut state = seed;
        let noise = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        volume.write(name, (0..bytes).map(noise).collect::<Vec<u8>>()).unwrap();
        volume.close().unwrap();
    }

    fn snapshots(&self, volume: &Path) -> Vec<String> {
        let volume = Volume::open(volume).unwrap();
        let names = volume.snapshots().unwrap().into_iter().map(|snapshot| snapshot.name).collect();
        volume.close().unwrap();
        names
    }

    fn parts(&self, name: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.store.join(name)).unwrap().map(|entry| entry.unwrap().path());
        let mut parts: Vec<_> = entries.filter(|path| !path.ends_with("manifest.json")).collect();
        parts.sort();
        parts
    }
}

/// The stream of a whole snapshot, without the header, which names the volume.
fn tail(volume: &Path, snapshot: &str) -> Vec<u8> {
    let sent = Command::new(quire()).arg("send").arg("--quiet").arg(volume).arg(snapshot).output().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    sent.stdout[512..].to_vec()
}

#[test]
fn a_chain_is_made_restored_and_pruned() {
    let world = World::new();
    world.write("large", 300_000, 1);
    world.done(&["create", "--name=one"]);
    world.write("note", 5000, 2);
    let made = world.done(&["create", "--name=two"]);
    assert!(made.contains("what has changed since one"), "{made}");
    assert_eq!(world.parts("two").len(), 1, "the large file is not stored again");
    world.write("large", 100_000, 3);
    world.done(&["create", "--name=three"]);
    assert_eq!(world.snapshots(&world.volume), ["backup-three"]);
    assert!(world.fails(&["create", "--name=two"], 32).contains("already has a backup two"));
    world.done(&["verify"]);

    let target = world.path("target.img");
    world.done(&["restore", "two", &target]);
    assert_eq!(world.snapshots(Path::new(&target)), ["backup-two"]);
    let restored = world.done(&["restore", "three", &target]);
    assert!(restored.contains("two: was there") && restored.contains("three: received"), "{restored}");
    // It said that all was there, and left a volume as it was that had been changed since.
    assert!(world.fails(&["restore", "three", &target], 32).contains("nothing was restored"));
    assert!(world.fails(&["restore", "two", &target], 32).contains("holds backup-three"));
    assert_eq!(tail(&world.volume, "backup-three"), tail(Path::new(&target), "backup-three"));

    // Someone else's snapshot stays, and a new chain needs no older backup.
    let taken =
        Command::new(quire()).args(["snapshot", "create"]).arg(&world.volume).arg("backup-mine").status();
    assert!(taken.unwrap().success());
    world.done(&["create", "--full", "--name=four"]);
    world.done(&["create", "--name=five"]);
    assert_eq!(world.snapshots(&world.volume), ["backup-mine", "backup-five"]);
    let shown = world.done(&["prune", "--keep-last=3", "--dry-run"]);
    assert_eq!(shown, "", "three needs one and two");
    world.done(&["prune", "--keep-last=1"]);
    world.done(&["verify"]);
    let listed = world.done(&["list"]);
    assert!(listed.contains("  four  full") && listed.contains("  five  since four"), "{listed}");
    assert_eq!(listed.lines().count(), 2, "{listed}");
    assert!(!world.store.join("one").exists() && !world.store.join("three").exists());
    let other = world.path("other.img");
    world.done(&["restore", "five", &other]);
    assert_eq!(tail(&world.volume, "backup-five"), tail(Path::new(&other), "backup-five"));
}

#[test]
fn damage_is_found_before_it_is_used() {
    let world = World::new();
    world.write("large", 300_000, 1);
    world.done(&["create", "--name=one"]);
    world.done(&["create", "--name=two"]);
    let parts = world.parts("one");
    let good = std::fs::read(&parts[5]).unwrap();
    let mut damaged = good.clone();
    damaged[77] ^= 1;
    std::fs::write(&parts[5], damaged).unwrap();
    let found = world.fails(&["verify"], 35);
    assert!(found.contains("part-000005") && found.contains("two: one is damaged"), "{found}");
    let target = world.path("target.img");
    assert!(world.fails(&["restore", "two", &target], 35).contains("wrong checksum"));
    std::fs::write(&parts[5], &good[1..]).unwrap();
    assert!(world.fails(&["verify", "two"], 35).contains("bytes, not"));
    std::fs::remove_file(&parts[5]).unwrap();
    assert!(world.fails(&["verify", "one"], 35).contains("is missing"));
    std::fs::write(&parts[5], good).unwrap();
    world.done(&["verify"]);
    world.done(&["restore", "two", &target]);
    assert_eq!(tail(&world.volume, "backup-two"), tail(Path::new(&target), "backup-two"));

    let manifest = world.store.join("one/manifest.json");
    std::fs::write(&manifest, b"{").unwrap();
    assert!(world.fails(&["verify"], 35).contains("one: the manifest cannot be used"));
    assert!(world.fails(&["prune", "--keep-last=1"], 35).contains("nothing was deleted"));
    std::fs::remove_file(&manifest).unwrap();
    assert!(world.fails(&["verify"], 35).contains("one is missing, from which two goes on"));
    assert!(world.fails(&["restore", "two", &world.path("other.img")], 37).contains("one is missing"));
    // Increments went on from a chain that nobody could restore.
    world.write("note", 6000, 4);
    let made = world.done(&["create", "--name=three"]);
    assert!(made.contains("full"), "{made}");
    world.done(&["restore", "three", &world.path("third.img")]);
}

/// One manifest or part that could not be read failed every command, also for the backups beside it.
#[test]
fn an_unreadable_file_damages_its_own_backup_alone() {
    let world = World::new();
    world.write("large", 100_000, 1);
    for name in ["one", "two", "three"] {
        world.done(&["create", "--full", "--name", name]);
    }
    // A socket can be opened by nobody, root included.
    let hide = |path: &Path| {
        std::fs::remove_file(path).unwrap();
        std::os::unix::net::UnixListener::bind(path).unwrap();
    };
    hide(&world.store.join("one/manifest.json"));
    hide(&world.parts("two")[1]);
    let found = world.fails(&["verify"], 35);
    for word in ["one: the manifest cannot be used: reading", "two: reading two/part-000001", "three: good"] {
        assert!(found.contains(word), "{word}: {found}");
    }
    let listed = world.fails(&["list"], 35);
    assert!(listed.contains("  three  full") && listed.contains("the manifest of one: reading"), "{listed}");
    assert!(world.fails(&["prune", "--keep-last=1"], 35).contains("nothing was deleted"));
    world.done(&["restore", "three", &world.path("target.img")]);
    assert!(world.fails(&["restore", "two", &world.path("other.img")], 35).contains("reading two/part"));
    let made = world.done(&["create", "--name=four"]);
    assert!(made.contains("what has changed since three"), "{made}");
}

#[test]
fn interruptions_are_gone_on_from() {
    let world = World::new();
    world.write("large", 300_000, 1);
    // A `quire` that breaks off in the middle of a stream, in either direction.
    let broken = world.dir.path().join("broken");
    let script = format!(
        "#!/bin/sh\ncase $1/$2 in\nsend/*) '{0}' \"$@\" | head -c 200000; exit 1;;\n\
         receive/--quiet) head -c 200000 | '{0}' \"$@\"; kill -9 $PPID;;\n*) exec '{0}' \"$@\";;\nesac\n",
        quire().display()
    );
    std::fs::write(&broken, script).unwrap();
    std::fs::set_permissions(&broken, std::fs::Permissions::from_mode(0o755)).unwrap();

    let tried = world.backup(&["create", "--name=one"]).env("QUIRE", &broken).output().unwrap();
    assert!(!tried.status.success(), "{}", text(&tried));
    assert!(world.done(&["list"]).contains("has no backups"), "an unfinished backup is not listed");
    let parts = world.parts("one");
    assert_eq!(parts.len(), 7, "32 KiB each, the last one cut");
    let inodes = |parts: &[PathBuf]| -> Vec<u64> {
        parts.iter().map(|part| std::fs::metadata(part).unwrap().ino()).collect()
    };
    let first = inodes(&parts[..6]);
    // One that lost its contents is uploaded again.
    let size = std::fs::metadata(&parts[2]).unwrap().len();
    std::fs::write(&parts[2], vec![0; size as usize]).unwrap();
    let done = world.done(&["create", "--name=one"]);
    assert!(done.contains("5 were there"), "{done}");
    let complete: Vec<PathBuf> = parts[..6].to_vec();
    assert!(
        inodes(&complete).iter().zip(&first).enumerate().all(|(n, (now, then))| (now == then) == (n != 2))
    );
    world.done(&["verify"]);
    world.done(&["prune", "--keep-last=1"]);
    assert!(parts[6].exists(), "what was left is not a day old");
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(25 * 3600);
    std::fs::File::options().write(true).open(&parts[6]).unwrap().set_modified(old).unwrap();
    assert!(world.done(&["prune", "--keep-last=1"]).contains("deleted 1 parts"));
    assert!(!parts[6].exists() && parts[0].exists());

    let target = world.path("target.img");
    let tried = world.backup(&["restore", "one", &target]).env("QUIRE", &broken).output().unwrap();
    assert!(!tried.status.success(), "{}", text(&tried));
    world.done(&["restore", "one", &target]);
    assert_eq!(tail(&world.volume, "backup-one"), tail(Path::new(&target), "backup-one"));
}

/// A `create` that was run again after more than a day took its old parts as they were. A `prune` of the same
/// moment found them older than a day and in no manifest, and deleted them between the last look of `create`
/// and its manifest: the backup was finished, and could not be restored.
#[test]
fn parts_that_a_prune_may_soon_delete_are_stored_again() {
    let world = World::new();
    world.write("large", 100_000, 1);
    world.done(&["create", "--name=one"]);
    let parts = world.parts("one");
    // As a `create` leaves it that is killed before it writes the manifest.
    std::fs::remove_file(world.store.join("one/manifest.json")).unwrap();
    let now = std::time::SystemTime::now();
    let hours = |hours: u64| std::time::Duration::from_secs(hours * 3600);
    for (part, age) in parts.iter().zip([25, 13, 11]) {
        let file = std::fs::File::options().write(true).open(part).unwrap();
        file.set_modified(now - hours(age)).unwrap();
    }
    let done = world.done(&["create", "--name=one"]);
    assert!(done.contains(&format!("{} were there", parts.len() - 2)), "{done}");
    for part in &parts {
        let modified = std::fs::metadata(part).unwrap().modified().unwrap();
        assert!(modified > now - hours(12), "{part:?} is as old as before");
    }
    world.done(&["verify"]);
}

/// A restored volume kept the snapshot of each backup of the chain: one that was half full had no room for
/// the fourth, and could not be restored.
#[test]
fn a_long_chain_needs_the_room_of_two_states() {
    let world = World::new();
    for (seed, name) in (1..).zip(["one", "two", "three", "four", "five"]) {
        world.write("large", 15 << 20, seed);
        world.done(&["create", "--part-size=1M", "--name", name]);
    }
    let target = world.path("target.img");
    world.done(&["restore", "five", &target]);
    assert_eq!(world.snapshots(Path::new(&target)), ["backup-five"]);
    assert_eq!(tail(&world.volume, "backup-five"), tail(Path::new(&target), "backup-five"));
}

/// A prune kept a chain that had lost a part, and deleted the last one that could be restored. The next
/// backup went on from it without a word.
#[test]
fn a_lost_part_is_noticed_before_anything_is_deleted() {
    let world = World::new();
    for (name, seed, full) in [("a", 1, true), ("b", 2, true), ("c", 3, false)] {
        world.write("large", 100_000, seed);
        world.done(&[&["create", "--name", name][..], if full { &["--full"] } else { &[] }].concat());
    }
    std::fs::remove_file(&world.parts("b")[1]).unwrap();
    let refused = world.fails(&["prune", "--keep-last=1"], 35);
    assert!(refused.contains("nothing was deleted") && refused.contains("b/part-000001"), "{refused}");
    world.done(&["restore", "a", &world.path("target.img")]);
    let made = world.done(&["create", "--name=d"]);
    assert!(made.contains("c cannot be restored") && made.contains("d: full"), "{made}");
    world.done(&["prune", "--keep-last=1"]);
    world.done(&["verify"]);
}

/// Backups could be read by everybody, though an image is its owner's alone.
#[test]
fn nobody_else_reads_a_backup() {
    let world = World::new();
    world.write("note", 5000, 1);
    world.done(&["create", "--name=a"]);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!([mode(&world.store), mode(&world.store.join("a"))], [0o700; 2]);
    assert_eq!(mode(&world.parts("a")[0]), 0o600);
}

/// The backup disk that was not mounted: `verify` found nothing wrong in an empty directory, and `create`
/// made the directories of a path that was misspelt.
#[test]
fn a_directory_without_backups_is_said_to_be_one() {
    let mut world = World::new();
    std::fs::create_dir(&world.store).unwrap();
    assert!(world.fails(&["verify"], 37).contains("has no backups"));
    assert!(world.done(&["prune", "--keep-last=1"]).contains("has no backups"));
    world.store = world.dir.path().join("missing/store");
    assert!(world.fails(&["create"], 32).contains("making the store"));
    for misspelt in ["s3:bucket/a", "file:/store"] {
        world.store = misspelt.into();
        assert!(world.fails(&["create"], 37).contains("two slashes"));
    }
    assert_eq!(world.snapshots(&world.volume), Vec::<String>::new());
}

/// `--size` was ignored for a volume that was there. A new one that was too small stayed, and was in the way
/// of the next try; so was one with an older chain, with an advice that was for `quire send`.
#[test]
fn a_target_that_does_not_fit_is_refused_in_terms_of_a_restore() {
    let world = World::new();
    world.write("large", 20 << 20, 1);
    world.done(&["create", "--part-size=1M", "--name=one"]);
    let target = world.path("target.img");
    assert!(world.fails(&["restore", "--size=16M", "one", &target], 39).contains("content"));
    world.done(&["restore", "one", &target]);
    assert!(world.fails(&["restore", "--size=32M", "one", &target], 1).contains("quire grow"));
    world.write("large", 1 << 20, 2);
    world.done(&["create", "--full", "--name=two"]);
    let refused = world.fails(&["restore", "two", &target], 32);
    assert!(refused.contains("holds backup-one") && refused.contains("the full backup two"), "{refused}");
}

/// A backup whose chain is broken, and which can never be restored, counted as one that is kept. Pruning to
/// the newest one deleted all that could still be restored.
#[test]
fn a_prune_that_would_keep_only_what_is_broken_deletes_nothing() {
    let world = World::new();
    for (name, full) in [("a", true), ("b", false), ("d", true), ("e", false)] {
        world.write("note", 5000, u32::from(name.as_bytes()[0]));
        world.done(&[&["create", "--name", name][..], if full { &["--full"] } else { &[] }].concat());
    }
    std::fs::remove_file(world.store.join("d/manifest.json")).unwrap();
    let refused = world.fails(&["prune", "--keep-last=1"], 35);
    assert!(refused.contains("nothing was deleted") && refused.contains("e: d is missing"), "{refused}");
    world.done(&["restore", "b", &world.path("target.img")]);
    std::fs::remove_dir_all(world.store.join("e")).unwrap();
    world.done(&["prune", "--keep-last=1"]);
    world.done(&["verify", "b"]);
}

/// The newest backup was the one that was finished last. One that had waited for its second try for days took
/// the place of newer states, and a prune deleted those.
#[test]
fn the_newest_backup_is_that_of_the_newest_snapshot() {
    let world = World::new();
    world.write("large", 300_000, 1);
    let broken = world.dir.path().join("broken");
    let script = format!(
        "#!/bin/sh\ncase $1 in send) '{0}' \"$@\" | head -c 200000; exit 1;; esac\nexec '{0}' \"$@\"\n",
        quire().display()
    );
    std::fs::write(&broken, script).unwrap();
    std::fs::set_permissions(&broken, std::fs::Permissions::from_mode(0o755)).unwrap();
    let tried = world.backup(&["create", "--name=monday"]).env("QUIRE", &broken).output().unwrap();
    assert!(!tried.status.success(), "{}", text(&tried));
    let told = world.done(&["create", "--name=tuesday"]);
    assert!(!told.contains("goes on with the snapshot"), "{told}");
    // It says that the state is not today's.
    let told = world.done(&["create", "--name=monday"]);
    assert!(told.contains("monday goes on with the snapshot backup-monday of 20"), "{told}");
    let listed = world.done(&["list"]);
    assert!(listed.find("  monday  full") < listed.find("  tuesday  full"), "{listed}");
    assert!(world.done(&["list", "--json"]).contains("snapshot_created"));
    world.done(&["prune", "--keep-last=1"]);
    let listed = world.done(&["list"]);
    assert!(listed.contains("tuesday") && listed.lines().count() == 1, "{listed}");
}

/// A backup that was made while the clock was ahead was older than no other one: the next was full, and the
/// snapshot stayed until the time had come.
#[test]
fn a_clock_that_was_ahead_breaks_no_chain() {
    let world = World::new();
    world.write("large", 300_000, 1);
    let script = "if [ $1/$2 = snapshot/list ]; then\n\
                  \"$QUIRE_BEHIND\" \"$@\" | sed '0,/\"created\": 1/s//\"created\": 4/'\nexit\nfi";
    let ahead = in_place_of_quire(&world, script);
    let create = |name: &str| {
        let mut command = world.backup(&["create", "--name", name]);
        let made = command.env("QUIRE", &ahead).env("QUIRE_BEHIND", quire()).output().unwrap();
        assert!(made.status.success(), "{}", text(&made));
        text(&made)
    };
    create("one");
    let made = create("two");
    assert!(made.contains("what has changed since one"), "{made}");
    assert_eq!(world.snapshots(&world.volume), ["backup-two"]);
}

/// A restore that was killed while it made its volume could not be run again, and into a blank export only
/// the first backup of a chain could be restored: a target that was there had to be a volume.
#[test]
fn a_blank_target_is_restored_into() {
    let world = World::new();
    world.write("note", 5000, 1);
    world.done(&["create", "--name=a"]);
    let target = world.dir.path().join("target.img");
    std::fs::File::create(&target).unwrap().set_len(10 << 20).unwrap();
    world.done(&["restore", "a", target.to_str().unwrap()]);
    let kept = world.dir.path().join("kept.img");
    std::fs::write(&kept, [7; 8192]).unwrap();
    let refused = world.backup(&["restore", "a", kept.to_str().unwrap()]).output().unwrap();
    assert!(text(&refused).contains("already holds"), "{}", text(&refused));
    assert_eq!(std::fs::read(&kept).unwrap(), [7; 8192]);
}

/// A list that was cut off because the disk was full passed for a whole one.
#[test]
fn what_cannot_be_printed_is_an_error() {
    let world = World::new();
    world.write("note", 5000, 1);
    world.done(&["create", "--name=a"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let listed = world.backup(&["list", "--json"]).stdout(full).output().unwrap();
    assert_eq!(listed.status.code(), Some(2), "{}", text(&listed));
}

/// Each try without a name takes a snapshot of a new name. A timer whose store fails for a week left
/// hundreds, which kept the space of all that was deleted meanwhile.
#[test]
fn tries_that_store_nothing_leave_no_snapshot() {
    let world = World::new();
    world.write("note", 5000, 1);
    let broken = world.dir.path().join("broken");
    let script = format!("#!/bin/sh\ncase $1 in send) exit 1;; esac\nexec '{}' \"$@\"\n", quire().display());
    std::fs::write(&broken, script).unwrap();
    std::fs::set_permissions(&broken, std::fs::Permissions::from_mode(0o755)).unwrap();
    for _ in 0..3 {
        let tried = world.backup(&["create"]).env("QUIRE", &broken).output().unwrap();
        assert!(text(&tried).contains("the snapshot was deleted again"), "{}", text(&tried));
        assert_eq!(tried.status.code(), Some(1));
    }
    assert_eq!(world.snapshots(&world.volume), Vec::<String>::new());
    let tried = world.backup(&["create", "--name=one"]).env("QUIRE", &broken).output().unwrap();
    assert!(text(&tried).contains("go on with --name one"), "{}", text(&tried));
    assert_eq!(world.snapshots(&world.volume), ["backup-one"]);
}

/// A script in the place of `quire`: what it does not do itself, `quire` does.
fn in_place_of_quire(world: &World, script: &str) -> PathBuf {
    let path = world.dir.path().join("instead");
    let script = format!("#!/bin/sh\n{script}\nexec '{}' \"$@\"\n", quire().display());
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A snapshot that was taken, but could not be listed after that, stayed for ever: the next try had another
/// name.
#[test]
fn a_try_that_fails_behind_its_snapshot_leaves_none() {
    let world = World::new();
    world.write("note", 5000, 1);
    let listed = world.path("listed");
    let script = format!("if [ $1/$2 = snapshot/list ]; then\n[ -e {listed} ] && exit 2\ntouch {listed}\nfi");
    let broken = in_place_of_quire(&world, &script);
    let tried = world.backup(&["create"]).env("QUIRE", &broken).output().unwrap();
    assert_eq!(tried.status.code(), Some(2), "{}", text(&tried));
    assert!(text(&tried).contains("the snapshot was deleted again"), "{}", text(&tried));
    assert_eq!(world.snapshots(&world.volume), Vec::<String>::new());
}

/// Two volumes that were backed up to one store in the same second had one name. The later one failed, and
/// advised to go on with that name, which can never work.
#[test]
fn a_name_that_is_taken_is_given_up() {
    let world = World::new();
    world.write("note", 5000, 1);
    world.done(&["create", "--name=one"]);
    let store = world.store.display();
    let script = format!("[ $1 = send ] && mkdir {store}/two && cp {store}/one/manifest.json {store}/two");
    let meanwhile = in_place_of_quire(&world, &script);
    let tried = world.backup(&["create", "--name=two"]).env("QUIRE", &meanwhile).output().unwrap();
    assert!(text(&tried).contains("already has a backup two"), "{}", text(&tried));
    assert!(!text(&tried).contains("go on with"), "{}", text(&tried));
    assert_eq!(world.snapshots(&world.volume), ["backup-one"]);
    std::fs::remove_dir_all(world.store.join("two")).unwrap();

    // The snapshot of two programs that make one backup stays, as the backup that was made goes on.
    let begun = world.path("begun");
    let script = format!(
        "[ $1 = send ] && ! [ -e {begun} ] && touch {begun} &&\n\
         QUIRE='{}' '{BACKUP}' create --full --name=three {} {store} >&2",
        quire().display(),
        world.volume.display()
    );
    let meanwhile = in_place_of_quire(&world, &script);
    let tried =
        world.backup(&["create", "--full", "--name=three"]).env("QUIRE", &meanwhile).output().unwrap();
    assert!(text(&tried).contains("already has a backup three"), "{}", text(&tried));
    assert!(!text(&tried).contains("go on with"), "{}", text(&tried));
    assert_eq!(world.snapshots(&world.volume), ["backup-three"]);

    let about = Command::new(quire()).args(["info", "--json"]).arg(&world.volume).output().unwrap();
    let about: serde_json::Value = serde_json::from_slice(&about.stdout).unwrap();
    world.done(&["create"]);
    let names = world.snapshots(&world.volume);
    assert!(names[0].ends_with(&format!("Z-{}", &about["uuid"].as_str().unwrap()[..4])), "{names:?}");
}

/// A restore to a volume that somebody has open failed with a code of its own, and with `quire:` twice. One
/// to a mount point, or to a volume that has the backup, deleted snapshots before it was refused.
#[test]
fn a_restore_that_is_refused_changes_nothing() {
    let world = World::new();
    world.write("note", 5000, 1);
    world.done(&["create", "--name=one"]);
    world.write("note", 5000, 2);
    let keeps = in_place_of_quire(&world, "[ $1/$2 = snapshot/delete ] && exit 2");
    let made = world.backup(&["create", "--name=two"]).env("QUIRE", &keeps).output().unwrap();
    assert!(text(&made).contains("backup-one stays"), "{}", text(&made));
    let volume = world.volume.to_str().unwrap();
    assert!(world.fails(&["restore", "two", volume], 32).contains("nothing was restored"));
    assert_eq!(world.snapshots(&world.volume), ["backup-one", "backup-two"]);
    assert!(world.fails(&["restore", "two", &world.path("")], 37).contains("is a directory"));

    let open = Volume::open(&world.volume).unwrap();
    let refused = world.fails(&["restore", "two", volume], 36);
    assert!(refused.contains("already open"), "{refused}");
    assert!(!refused.contains("quire backup: quire:"), "{refused}");
    open.close().unwrap();
}

/// A name that is not in the store was called damaged where the manifest of any other backup was.
#[test]
fn a_backup_that_is_not_there_is_missing_beside_a_damaged_one() {
    let world = World::new();
    world.write("note", 5000, 1);
    world.done(&["create", "--name=one"]);
    std::fs::write(world.store.join("one/manifest.json"), b"{").unwrap();
    assert!(world.fails(&["verify", "two"], 37).contains("there is no backup two"));
    world.fails(&["verify", "one"], 35);
}

/// What a killed upload leaves in a directory has a name that no listing of the store shows, so no prune
/// found it. Nor did a prune remove the directories of the backups that it deleted.
#[test]
fn a_prune_leaves_no_files_and_no_directories() {
    let world = World::new();
    world.write("note", 5000, 1);
    for name in ["one", "two"] {
        world.done(&["create", "--full", "--name", name]);
    }
    let staged = |name: &str, hours: u64| {
        let path = world.store.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = std::fs::File::create(&path).unwrap();
        file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(hours * 3600))
            .unwrap();
        path
    };
    let old = [
        staged("two/part-000000-0123456789abcdef#1", 25),
        staged("three/part-000000-0123456789abcdef#1", 25),
        staged("three/manifest.json#12", 25),
    ];
    let others = [staged("two/part-000001-0123456789abcdef#1", 23), staged("two/mine#1", 25)];
    assert!(world.done(&["prune", "--keep-last=1", "--dry-run"]).contains("would delete 3 parts"));
    assert!(old.iter().all(|path| path.exists()));
    assert!(world.done(&["prune", "--keep-last=1"]).contains("deleted 3 parts"));
    assert!(!old.iter().any(|path| path.exists()) && others.iter().all(|path| path.exists()));
    let names: Vec<_> =
        std::fs::read_dir(&world.store).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["two"]);
    world.done(&["verify"]);
}

/// `quire backup prune` in a wrong directory removed each empty directory that it found. In a directory of
/// stores it counted the parts of old backups as deleted, and deleted none.
#[test]
fn a_prune_leaves_alone_what_is_no_backup() {
    let mut world = World::new();
    world.write("note", 5000, 1);
    world.done(&["create", "--name=one"]);
    let others = world.store.join("others");
    std::fs::create_dir(&others).unwrap();
    assert!(!world.done(&["prune", "--keep-last=1"]).contains("deleted"));
    assert!(others.exists());
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(25 * 3600);
    std::fs::File::options().write(true).open(&world.parts("one")[0]).unwrap().set_modified(old).unwrap();
    world.store = world.dir.path().to_owned();
    let above = world.done(&["prune", "--keep-last=1"]);
    assert!(above.contains("has no backups") && !above.contains("deleted"), "{above}");
}
