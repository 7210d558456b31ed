//! Arguments and options that are none, and the exit codes of fsck.

use std::process::Command;

use quire_format::superblock::SLOT_BLOCKS;

use super::support::*;
use crate::common::{QUIRE, Volume, has, is_mounted, run};

#[test]
fn mkfs_refuses() {
    let _turn = turn();
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("a.img");
    let mkfs = |words: &[&str]| Command::new(QUIRE).arg("mkfs").args(words).arg(&image).output().unwrap();
    let long = format!("--label={}", "l".repeat(65));
    let wide = format!("--label={}", "\u{e9}".repeat(33));
    #[rustfmt::skip]
    let wrong: [(&[&str], i32, &[&str]); 15] = [
        (&[], MISSING, &["a.img does not exist", "size"]),
        (&["--size=1M"], USAGE, &["at least 16 MiB"]),
        (&["--size=0"], USAGE, &["at least 16 MiB"]),
        (&["--size=lots"], USAGE, &["'lots' is not a size", "10G"]),
        (&["--size=-1"], USAGE, &["'-1' is not a size"]),
        (&["--size=1.5G"], USAGE, &["'1.5G' is not a size"]),
        (&["--size=16E"], USAGE, &["larger than"]),
        (&["--size=7E"], USAGE, &["a volume has at most"]),
        (&["--size=64M", "--journal-size=4K"], USAGE, &["journal", "1 MiB", "4096"]),
        (&["--size=64M", "--journal-size=32M"], USAGE, &["journal", "a quarter"]),
        (&["--size=64M", "--journal-size=big"], USAGE, &["'big' is not a size"]),
        (&["--size=1T", "--journal-size=5G"], USAGE, &["journal", "at most 4 GiB"]),
        (&["--size=64M", &long], USAGE, &["label of 65 bytes", "at most 64"]),
        (&["--size=64M", &wide], USAGE, &["label of 66 bytes"]),
        (&["--size=64M", "--frobnicate"], USAGE, &["--frobnicate"]),
    ];
    for (words, code, says) in wrong {
        eprintln!("{words:?}");
        expect(&mkfs(words), code, says);
        assert!(!image.exists(), "a refused mkfs leaves no file");
    }
    expect(&call!["mkfs", "--size=64M", directory.path().join("no/a.img")], MISSING, &["no/a.img"]);
    expect(&call!["mkfs", "--size=64M", directory.path()], MISSING, &["directory"]);
    expect(&call!["mkfs", "--size=64M", "/dev/null"], NOT_A_VOLUME, &["neither an image file nor"]);
    expect(&call!["mkfs", "--size=64M"], USAGE, &["<VOLUME>"]);

    let label = "--label=first";
    expect(&mkfs(&["--size=64M", label]), 0, &["64 MiB", "first"]);
    let sizes: [&[&str]; 4] = [&[], &["--size=64M"], &["--size=32M"], &["--size=128M"]];
    let kept = |sizes: &[&[&str]], what: &str| {
        for words in sizes {
            keeping(&image, || expect(&mkfs(words), MISSING, &[what, "nothing was changed", "--force"]));
        }
    };
    let words = [long.as_str(), "--journal-size=4K", "--size=1M"];
    for word in words {
        keeping(&image, || expect(&mkfs(&["--force", word]), USAGE, &[]));
    }
    kept(&sizes, "");
    keeping(&image, || expect(&mkfs(&[]), MISSING, &["already holds a Quire volume"]));
    expect(&mkfs(&["--force", "--label=second"]), 0, &["64 MiB", "second"]);
    expect(&call!["fsck", image], 0, &["clean"]);

    std::fs::write(&image, "a letter").unwrap();
    kept(&sizes[1..], "a.img is not empty");
    keeping(&image, || expect(&mkfs(&[]), USAGE, &["at least 16 MiB"]));
    if has("mkfs.ext4", "mkfs_refuses (its ext4 part)") {
        std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        run(Command::new("mkfs.ext4").arg("-q").arg(&image));
        kept(&sizes, "");
        keeping(&image, || expect(&mkfs(&[]), MISSING, &["already holds an ext2, ext3 or ext4 file system"]));
        expect(&mkfs(&["--force"]), 0, &["64 MiB"]);
        expect(&call!["fsck", image], 0, &["clean"]);
    }
}

#[test]
fn mount_options_that_are_none() {
    let _turn = turn();
    let volume = Volume::new("64M");
    let (image, dir) = (volume.image(), volume.mountpoint());
    let helper = image.with_file_name("mount.quire");
    std::os::unix::fs::symlink(QUIRE, &helper).unwrap();
    for (options, words) in [
        ("fastplease", ["unknown mount option", "'fastplease'"]),
        ("rw,noatime,wings=2", ["unknown mount option", "'wings'"]),
        ("cache=fast", ["cache=fast", "cache=engine"]),
        ("cache_size=lots", ["cache_size", "not a size"]),
        ("cache_size=4K", ["cache_size=4K", "at least 8 MiB"]),
        ("commit=0", ["commit=0", "from 1 to 3600"]),
        ("threads=", ["threads=", "from 1 to 1024"]),
    ] {
        keeping(&image, || {
            expect(&mount_here(&volume, options), USAGE, &words);
            let output = Command::new(&helper).args([&image, &dir]).args(["-o", options]).output().unwrap();
            expect(&output, USAGE, &words);
        });
        assert!(!is_mounted(&dir));
    }
    // Nothing is there that could be mounted anew.
    keeping(&image, || expect(&mount_here(&volume, "remount"), MISSING, &["no Quire volume is mounted at"]));
}

#[test]
fn exit_codes_of_fsck() {
    let _turn = turn();
    let volume = Volume::new("64M");
    let image = volume.image();
    keeping(&image, || expect(&call!["fsck", image], 0, &["clean"]));
    expect(&call!["fsck", "--repair", image], 0, &["clean"]);

    flip(&image, SLOT_BLOCKS[1].0);
    keeping(&image, || {
        expect(&call!["fsck", image], FSCK_LEFT, &["superblock-damaged", "superblock B", "--repair"]);
        expect(&call!["fsck", "-n", image], FSCK_LEFT, &["superblock-damaged"]);
        let output = call!["fsck", "--json", image];
        expect(&output, FSCK_LEFT, &[]);
        let report: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
        assert_eq!(report["issues"].as_array().unwrap().len(), 1);
        assert_eq!(report["issues"][0]["repaired"], false);
    });
    expect(&call!["fsck", "--repair", image], FSCK_REPAIRED, &["repaired"]);
    keeping(&image, || expect(&call!["fsck", image], 0, &["clean"]));

    expect(
        &call!["fsck", volume.path("missing.img")],
        FSCK_COULD_NOT_RUN,
        &["missing.img", "does not exist"],
    );
    expect(&call!["fsck", volume.mountpoint()], FSCK_COULD_NOT_RUN, &["is a directory"]);
    expect(&call!["fsck", "/dev/null"], FSCK_COULD_NOT_RUN, &["neither an image file nor"]);
    expect(&call!["fsck"], FSCK_USAGE, &["<VOLUME>"]);
    expect(&call!["fsck", "--frobnicate", image], FSCK_USAGE, &["--frobnicate"]);
    expect(&call!["fsck", "-n", "--repair", image], FSCK_USAGE, &["cannot be used with"]);
    expect(&call!["fsck", image, image], FSCK_USAGE, &["unexpected"]);
}
