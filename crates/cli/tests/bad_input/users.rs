//! What an ordinary user may do, and what not.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use super::support::*;
use crate::common::{can_mount, copy_program, has};

const NOBODY: u32 = 65534;

/// A mount namespace of its own, in which `/dev/fuse` is open to everybody and fuse.conf allows nothing. It
/// ends, with every mount in it, when this is dropped.
struct UserWorld {
    directory: tempfile::TempDir,
    holder: Child,
}

impl UserWorld {
    fn new(test: &str) -> Option<UserWorld> {
        let programs = ["unshare", "nsenter", "setpriv", "fusermount3", "mknod"];
        if !can_mount(test) || !programs.iter().all(|program| has(program, test)) {
            return None;
        }
        let directory = tempfile::Builder::new().prefix("quire-user-").tempdir().unwrap();
        let at = directory.path();
        std::fs::set_permissions(at, PermissionsExt::from_mode(0o755)).unwrap();
        for name in ["dev", "home", "home/mnt", "rootdir"] {
            std::fs::create_dir(at.join(name)).unwrap();
        }
        std::fs::write(at.join("fuse.conf"), "").unwrap();
        // Where the program was built may be closed to others.
        copy_program(&at.join("quire"));
        for name in ["home", "home/mnt"] {
            std::os::unix::fs::chown(at.join(name), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        // Other mounts that were copied into the namespace would outlive their unmount outside.
        let script = "awk '$3 == \"fuse.quire\" { print $2 }' /proc/mounts | xargs --no-run-if-empty umount --lazy; \
                      mount -t tmpfs -o mode=755 none dev && mknod -m 666 dev/fuse c 10 229 \
                      && mount --bind dev/fuse /dev/fuse \
                      && { test ! -e /etc/fuse.conf || mount --bind fuse.conf /etc/fuse.conf; } \
                      && echo ready && exec cat";
        let mut holder = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .current_dir(at)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(holder.stdout.as_mut().unwrap()), &mut line)
            .unwrap();
        let world = UserWorld { directory, holder };
        if line != "ready\n" {
            eprintln!("\n*** SKIPPED {test}: no mount namespace of its own here ***\n");
            return None;
        }
        Some(world)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn in_it(&self, user: u32, words: &[&str]) -> Output {
        let id = user.to_string();
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()));
        command.arg(format!("--wdns={}", self.directory.path().display()));
        command.args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--"]).args(words);
        command.env("HOME", self.path("home")).env_remove("XDG_STATE_HOME");
        command.stdin(Stdio::null()).output().unwrap()
    }

    fn nobody(&self, words: &[&str]) -> Output {
        self.in_it(NOBODY, words)
    }

    fn root(&self, words: &[&str]) -> Output {
        self.in_it(0, words)
    }
}

impl Drop for UserWorld {
    fn drop(&mut self) {
        for dir in ["home/mnt", "rootdir"] {
            // Servers end with their mounts.
            let _ = self.root(&["umount", "--lazy", "--quiet", dir]);
        }
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

#[test]
fn an_ordinary_user_mounts_through_fusermount3() {
    let _turn = turn();
    let Some(world) = UserWorld::new("an_ordinary_user_mounts_through_fusermount3") else { return };
    expect(&world.nobody(&["./quire", "mkfs", "--size=64M", "home/a.img"]), 0, &["64 MiB"]);
    expect(&world.nobody(&["./quire", "umount", "home/mnt"]), MISSING, &["nothing is mounted at"]);
    for round in 0..2 {
        expect(&world.nobody(&["./quire", "mount", "home/a.img", "home/mnt"]), 0, &[]);
        if round == 1 {
            expect(&world.nobody(&["cat", "home/mnt/directory/file"]), 0, &["kept"]);
            expect(&world.nobody(&["stat", "-c", "%u %a", "home/mnt/directory/file"]), 0, &["65534 640"]);
        } else {
            expect(&world.nobody(&["mkdir", "home/mnt/directory"]), 0, &[]);
            let write = "echo kept > home/mnt/directory/file && chmod 640 home/mnt/directory/file && sync home/mnt/directory/file";
            expect(&world.nobody(&["sh", "-c", write]), 0, &[]);
        }
        let table = world.nobody(&["grep", "home/mnt", "/proc/mounts"]);
        expect(&table, 0, &["fuse.quire", "a.img", "user_id=65534", "nosuid", "nodev"]);
        // It belongs to that user alone.
        assert_ne!(world.root(&["ls", "home/mnt"]).status.code(), Some(0));
        expect(&world.nobody(&["./quire", "mount", "home/a.img", "home/mnt"]), IN_USE, &["already mounted"]);
        expect(&world.nobody(&["./quire", "umount", "home/mnt"]), 0, &[]);
        assert_ne!(world.nobody(&["grep", "home/mnt", "/proc/mounts"]).status.code(), Some(0));
        expect(&world.nobody(&["./quire", "fsck", "home/a.img"]), 0, &["clean"]);
    }
}

#[test]
fn what_an_ordinary_user_may_not() {
    let _turn = turn();
    let Some(world) = UserWorld::new("what_an_ordinary_user_may_not") else { return };
    expect(&world.nobody(&["./quire", "mkfs", "--quiet", "--size=64M", "home/a.img"]), 0, &[]);
    let image = world.path("home/a.img");
    let mount_at = |options: &str, source: &str, dir: &str| {
        keeping(&world.path(source), || {
            world.nobody(&["./quire", "mount", "-o", &format!("log=home/log,{options}"), source, dir])
        })
    };
    let refused = |output: &Output, words: &[&str]| {
        expect(output, NOT_PERMITTED, words);
        for dir in ["home/mnt", "rootdir"] {
            assert_ne!(world.root(&["grep", dir, "/proc/mounts"]).status.code(), Some(0), "{dir} is mounted");
        }
    };
    // Only where the user may write.
    let elsewhere = world.nobody(&["./quire", "mount", "-o", "log=home/log", "home/a.img", "rootdir"]);
    refused(&elsewhere, &["rootdir", "fusermount3"]);
    let others =
        world.nobody(&["./quire", "mount", "-o", "log=home/log,allow_other", "home/a.img", "home/mnt"]);
    refused(&others, &["allow_other", "user_allow_other", "/etc/fuse.conf"]);
    expect(&world.nobody(&["./quire", "fsck", "home/a.img"]), 0, &["clean"]);

    // Not another's volume; one that the user may only read is mounted for reading.
    std::os::unix::fs::chown(&image, Some(0), Some(0)).unwrap();
    std::fs::set_permissions(&image, PermissionsExt::from_mode(0o600)).unwrap();
    refused(&mount_at("", "home/a.img", "home/mnt"), &["a.img", "ermission denied"]);
    keeping(&image, || {
        let fsck = world.nobody(&["./quire", "fsck", "home/a.img"]);
        expect(&fsck, FSCK_COULD_NOT_RUN, &["a.img", "ermission denied"]);
        let mkfs = world.nobody(&["./quire", "mkfs", "--force", "home/a.img"]);
        expect(&mkfs, NOT_PERMITTED, &["a.img", "ermission denied"]);
    });
    std::fs::set_permissions(&image, PermissionsExt::from_mode(0o644)).unwrap();
    keeping(&image, || {
        expect(&mount_at("", "home/a.img", "home/mnt"), 0, &["may not be written", "mounted read-only"]);
        assert_ne!(world.nobody(&["touch", "home/mnt/x"]).status.code(), Some(0));
        expect(&world.nobody(&["./quire", "umount", "home/mnt"]), 0, &[]);
    });

    // Not where the user may not open the device, and the message says what would help.
    std::os::unix::fs::chown(&image, Some(NOBODY), Some(NOBODY)).unwrap();
    expect(&world.root(&["chmod", "600", "/dev/fuse"]), 0, &[]);
    let closed = world.nobody(&["./quire", "mount", "-o", "log=home/log", "home/a.img", "home/mnt"]);
    refused(&closed, &["/dev/fuse", "chmod 666 /dev/fuse"]);
    expect(&world.nobody(&["./quire", "fsck", "home/a.img"]), 0, &["clean"]);
}

#[test]
fn an_ordinary_user_may_not_unmount_for_others() {
    let _turn = turn();
    let Some(world) = UserWorld::new("an_ordinary_user_may_not_unmount_for_others") else { return };
    expect(&world.root(&["./quire", "mkfs", "--quiet", "--size=64M", "a.img"]), 0, &[]);
    expect(&world.root(&["./quire", "mount", "-o", "log=rootlog", "a.img", "rootdir"]), 0, &[]);
    let output = world.nobody(&["./quire", "umount", "rootdir"]);
    expect(&world.root(&["./quire", "umount", "rootdir"]), 0, &[]);
    expect(&output, NOT_PERMITTED, &["rootdir"]);
}
