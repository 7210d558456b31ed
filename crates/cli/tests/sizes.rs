//! Volumes that are given more space, a larger journal, another label or uuid: mounted and not.

mod common;

use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::place::{Place, expect, on_image};
use common::{can_mount, quire, text};

#[test]
fn volumes_are_resized_and_named_while_nobody_has_them_open() {
    let place = Place::with_volume();
    let larger = ["resize", "--size=128M", "--journal-size=4M"];
    let open = quire::Volume::open(place.image()).unwrap();
    expect(&on_image(&place, &larger, &[]), 36, &["already open"]);
    expect(&on_image(&place, &["label"], &["other"]), 36, &["already open"]);
    open.close().unwrap();
    expect(&on_image(&place, &larger, &[]), 0, &["volume of 128 MiB, journal 4 MiB"]);
    expect(&on_image(&place, &["resize", "--size=64M"], &[]), 1, &["cannot be made smaller"]);
    expect(&on_image(&place, &["resize", "--journal-size=64M"], &[]), 1, &["here 32 MiB"]);
    expect(&on_image(&place, &["resize", "--size=max", "--quiet"], &[]), 0, &[]);
    expect(
        &quire(&[OsStr::new("resize"), OsStr::new("-s1G"), place.dir().as_os_str()]),
        37,
        &["a directory"],
    );
    expect(&on_image(&place, &["label"], &["spare"]), 0, &[]);
    expect(&on_image(&place, &["label"], &[]), 0, &["spare"]);
    let uuid = "01234567-89ab-4cde-8f01-23456789abcd";
    expect(&on_image(&place, &["uuid"], &["01234567"]), 1, &["neither `new` nor a uuid"]);
    expect(&on_image(&place, &["uuid"], &[uuid]), 0, &[uuid]);
    expect(&on_image(&place, &["uuid"], &[]), 0, &[uuid]);
    expect(&on_image(&place, &["info"], &[]), 0, &["128 MiB", "spare", uuid]);
    let new = on_image(&place, &["uuid"], &["new"]);
    assert!(new.status.success() && !text(&new).contains(uuid));
    expect(&on_image(&place, &["fsck"], &[]), 0, &[]);
}

#[test]
fn volumes_grow_while_nobody_has_them_open() {
    let place = Place::with_volume();
    let open = quire::Volume::open(place.image()).unwrap();
    expect(&on_image(&place, &["grow", "--size=128M"], &[]), 36, &["already open"]);
    open.close().unwrap();
    expect(&on_image(&place, &["grow", "--size=128M"], &[]), 0, &["volume of 128 MiB"]);
    expect(&on_image(&place, &["grow", "--size=64M"], &[]), 1, &["cannot be made smaller"]);
    std::fs::File::options().write(true).open(place.image()).unwrap().set_len(200 << 20).unwrap();
    expect(&on_image(&place, &["grow"], &[]), 0, &["volume of 200 MiB"]);
    expect(&quire(&[OsStr::new("grow"), place.dir().as_os_str()]), 37, &["a directory"]);
    expect(&on_image(&place, &["fsck"], &[]), 0, &[]);
}

/// A mounted volume that is full grows while programs read and write it: what they get is what `df` says, and
/// what they have synced survives a kill of the server right after it.
#[test]
fn a_mounted_volume_grows() {
    use common::{TRANSPORTS, Volume, pattern};
    if !can_mount("a_mounted_volume_grows") {
        return;
    }
    const PIECE: usize = 1 << 20;
    let write = |path: &Path, seed: u64| -> std::io::Result<()> {
        use std::io::Write;
        let mut file = std::fs::File::create(path)?;
        file.write_all(&pattern(seed, PIECE))?;
        file.sync_all()
    };
    let free = |dir: &Path| rustix::fs::statvfs(dir).map(|now| (now.f_blocks, now.f_bavail)).unwrap();
    for transport in TRANSPORTS {
        let mut volume = Volume::new("64M");
        volume.set_transport(transport);
        volume.mount();
        let dir = volume.mountpoint();
        let grow = |place: &Path, words: &[&str]| {
            let words = words.iter().map(OsStr::new);
            quire(&[OsStr::new("grow"), place.as_os_str()].into_iter().chain(words).collect::<Vec<_>>())
        };
        let mut written = 0;
        let mut fill = |limit: u64| loop {
            match write(&volume.path(&format!("f{written}")), written) {
                Ok(()) if written == limit => break true,
                Ok(()) => written += 1,
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
                    let _ = std::fs::remove_file(volume.path(&format!("f{written}")));
                    break false;
                }
            }
        };
        std::fs::write(volume.path("busy"), pattern(7, PIECE)).unwrap();
        assert!(!fill(u64::MAX));
        let before = free(&dir);
        // A reader and a writer that never stop, and never see an error.
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = std::fs::File::options().write(true).open(volume.path("busy")).unwrap();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    file.write_all_at(&pattern(7, PIECE), 0).unwrap();
                    file.sync_data().unwrap();
                    assert!(std::fs::read(volume.path("f0")).unwrap() == pattern(0, PIECE));
                }
            });
            expect(&grow(&dir, &["--size=128M"]), 0, &["volume of 128 MiB"]);
            let after = free(&dir);
            assert_eq!(after.0 - before.0, (64 << 20) / 4096);
            assert!(after.1 - before.1 > (50 << 20) / 4096, "{before:?} {after:?}");
            assert!(!fill(u64::MAX));
            // By its image, which has grown from outside; what is in there once it fits.
            std::fs::File::options().write(true).open(volume.image()).unwrap().set_len(256 << 20).unwrap();
            expect(&grow(&volume.image(), &[]), 0, &["volume of 256 MiB"]);
            assert!(fill(200));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        expect(&grow(&dir, &["--size=200M"]), 1, &["cannot be made smaller"]);
        expect(&grow(&dir, &["--size=262160K"]), 1, &["at least 64 KiB"]);
        expect(&quire(&[OsStr::new("freeze"), dir.as_os_str()]), 0, &[]);
        expect(&grow(&dir, &["--size=512M"]), 36, &["frozen"]);
        expect(&quire(&[OsStr::new("thaw"), dir.as_os_str()]), 0, &[]);
        expect(&quire(&[OsStr::new("info"), dir.as_os_str()]), 0, &["256 MiB"]);
        volume.kill();
        volume.mount();
        for number in 0..200 {
            assert!(
                std::fs::read(volume.path(&format!("f{number}"))).unwrap() == pattern(number, PIECE),
                "f{number}"
            );
        }
        expect(&grow(&dir, &["--quiet"]), 0, &[]);
        volume.unmount();
        volume.check();
    }
}

/// A volume on a block device grows to what the device has become; the device that the mount has as its
/// source follows the next mount.
#[test]
fn a_mounted_volume_on_a_block_device_grows() {
    const NAME: &str = "a_mounted_volume_on_a_block_device_grows";
    if !can_mount(NAME) || !common::has("losetup", NAME) || !rustix::process::geteuid().is_root() {
        return;
    }
    struct Loop(PathBuf);
    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").arg("--detach").arg(&self.0).output();
        }
    }
    let place = Place::new();
    let below = std::fs::File::create(place.path("below")).unwrap();
    below.set_len(64 << 20).unwrap();
    let made = Command::new("losetup").args(["--find", "--show"]).arg(place.path("below")).output().unwrap();
    if !made.status.success() {
        eprintln!("SKIPPED: {NAME}: no loop device: {}", text(&made));
        return;
    }
    let device = Loop(String::from_utf8_lossy(&made.stdout).trim().into());
    expect(&quire(&[OsStr::new("mkfs"), device.0.as_os_str()]), 0, &[]);
    expect(&quire(&[OsStr::new("mount"), device.0.as_os_str(), place.dir().as_os_str()]), 0, &[]);
    let grow = |words: &[&str]| {
        let words = words.iter().map(OsStr::new);
        quire(&[OsStr::new("grow"), place.dir().as_os_str()].into_iter().chain(words).collect::<Vec<_>>())
    };
    expect(&grow(&["--size=128M"]), 1, &["has room for 64 MiB, 128 MiB were asked for"]);
    expect(&grow(&[]), 0, &["volume of 64 MiB"]);
    below.set_len(192 << 20).unwrap();
    common::run(Command::new("losetup").arg("--set-capacity").arg(&device.0));
    expect(&grow(&[]), 0, &["volume of 192 MiB"]);
    let bytes = common::pattern(3, 150 << 20);
    std::fs::write(place.dir().join("large"), &bytes).unwrap();
    expect(&place.umount(), 0, &[]);
    expect(&quire(&[OsStr::new("fsck"), device.0.as_os_str()]), 0, &[]);
    let volume = quire::VolumeOptions::new().read_only(true).open(&device.0).unwrap();
    assert!(volume.read("large").unwrap() == bytes);
    volume.close().unwrap();
}
