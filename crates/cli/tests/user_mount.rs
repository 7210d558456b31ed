//! Ordinary users mount their own image, and only what the system permits: through `fusermount3`, for
//! themselves alone, without devices and set-id bits; what is not theirs they can neither mount nor unmount.
//!
//! All of it happens in a mount name space of its own, where `/dev/fuse` is open to users as most systems
//! have it.

mod common;

use common::{can_mount, copy_program, has, text};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const USER: u32 = 65_534;
/// A user of every system, so that `fusermount3` knows its name.
const OTHER: u32 = 1;

/// What is said before each step: users may open `/dev/fuse`, and `/etc/fuse.conf` says what the test wants.
/// `step` runs a command as one of the users.
const PRELUDE: &str = r#"
set -eu
directory=$1 user=$2 other=$3 quire=$1/quire
mknod "$directory/fuse" c 10 229
chmod 666 "$directory/fuse"
mount --bind "$directory/fuse" /dev/fuse
touch "$directory/fuse.conf"
[ -e /etc/fuse.conf ] && mount --bind "$directory/fuse.conf" /etc/fuse.conf
step() { uid=$1; shift; HOME=$directory/home XDG_STATE_HOME=$directory/home setpriv --reuid "$uid" --regid "$uid" --clear-groups -- "$@"; }
fails() { what=$1; shift; if "$@" >"$directory/said" 2>&1; then echo "$what was permitted"; exit 1; fi; }
finish() { code=$?; step "$user" "$quire" umount mnt 2>/dev/null || umount -l mnt 2>/dev/null || true; exit $code; }
trap finish EXIT
cd "$directory/home"
"#;

fn world(test: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    let tools = ["fusermount3", "setpriv", "unshare"];
    if !can_mount(test) || !tools.iter().all(|tool| has(tool, test)) {
        return None;
    }
    let directory = tempfile::Builder::new().prefix("quire-user-").tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // The program where the user can reach it, wherever it was built.
    copy_program(&directory.path().join("quire"));
    let home = directory.path().join("home");
    std::fs::create_dir_all(home.join("mnt")).unwrap();
    for path in [&home, &home.join("mnt")] {
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
    }
    Some((directory, home))
}

fn run_script(directory: &Path, script: &str) {
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg(format!("{PRELUDE}{script}"))
        .arg("sh")
        .arg(directory)
        .args([USER.to_string(), OTHER.to_string()])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}\n{}", output.status, text(&output));
}

#[test]
fn a_user_mounts_his_own_image_for_himself() {
    let Some((directory, home)) = world("a_user_mounts_his_own_image_for_himself") else { return };
    run_script(
        directory.path(),
        r#"
step $user $quire mkfs --size 64M image
step $user $quire mount image mnt
step $user sh -c 'echo mine >mnt/file && mkdir mnt/directory && cp /bin/true mnt/directory/program && mnt/directory/program'
step $user $quire info --mount mnt
grep " $directory/home/mnt " /proc/self/mountinfo >"$directory/table"
grep -q nosuid "$directory/table" && grep -q nodev "$directory/table" && grep -q fuse.quire "$directory/table"
fails "another user's reading" step $other cat mnt/file
fails "root's reading" cat mnt/file
fails "another user's unmount" step $other $quire umount mnt
step $user cat mnt/file >/dev/null
step $user $quire umount mnt
step $user $quire fsck image
step $user $quire mount image mnt
[ "$(step $user cat mnt/file)" = mine ]
step $user $quire umount mnt
"#,
    );
    let image = std::fs::metadata(home.join("image")).unwrap();
    assert_eq!(image.uid(), USER);
    assert_eq!(image.mode() & 0o777, 0o600, "others would get past the permissions of the files in it");
    // What the server wrote on its own account belongs to the user, and nobody else writes to it.
    for entry in std::fs::read_dir(home.join("quire")).into_iter().flatten() {
        let log = entry.unwrap().metadata().unwrap();
        assert_eq!(log.uid(), USER);
        assert_eq!(log.mode() & 0o022, 0, "a log that others may write to");
    }
}

#[test]
fn what_is_not_permitted_is_refused_in_plain_words() {
    let Some((directory, _home)) = world("what_is_not_permitted_is_refused_in_plain_words") else { return };
    run_script(
        directory.path(),
        r#"
$quire mkfs --size 64M "$directory/roots" && chmod 600 "$directory/roots"
fails "mounting root's image" step $user $quire mount "$directory/roots" mnt
grep -qi 'permission denied' "$directory/said"
step $user $quire mkfs --size 64M image
mkdir "$directory/elsewhere"
fails "mounting over a directory of root's" step $user $quire mount image "$directory/elsewhere"
fails "allow_other" step $user $quire mount -o allow_other image mnt
grep -q user_allow_other "$directory/said"
! grep -q " $directory/home/mnt " /proc/self/mountinfo
echo user_allow_other >"$directory/fuse.conf"
if [ -e /etc/fuse.conf ]; then
    step $user $quire mount -o allow_other image mnt
    step $user sh -c 'echo open >mnt/open; echo closed >mnt/closed; chmod 600 mnt/closed; chmod 4755 mnt/open'
    step $other cat mnt/open >/dev/null
    fails "reading a file of mode 600" step $other cat mnt/closed
    fails "making a file in another's directory" step $other touch mnt/new
    fails "changing another's file" step $other chmod 777 mnt/open
    step $user $quire umount mnt
fi
"#,
    );
}
