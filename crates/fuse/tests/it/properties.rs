//! Properties as extended attributes: set, shown, refused, carried by programs that copy.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::mounted::{as_nobody, on_all};

const UNTORN: &str = "user.quire.untorn";
const CACHE: &str = "user.quire.cache";

fn get(path: &Path, name: &str) -> Result<String, Errno> {
    let mut room = [0u8; 64];
    let length = rustix::fs::getxattr(path, name, &mut room[..])?;
    Ok(String::from_utf8_lossy(&room[..length]).into_owned())
}

fn set(path: &Path, name: &str, value: &str) -> Result<(), Errno> {
    rustix::fs::setxattr(path, name, value.as_bytes(), XattrFlags::empty())
}

fn list(path: &Path) -> Vec<String> {
    let mut room = [0u8; 1000];
    let length = rustix::fs::listxattr(path, &mut room[..]).unwrap();
    let names = room[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

#[test]
fn set_shown_and_handed_down() {
    on_all(|mounted| {
        if !mounted.is_told_at_once() {
            // Nothing is written to files with units there.
            return;
        }
        let db = mounted.path("db");
        fs::create_dir(&db).unwrap();
        assert_eq!(get(&db, UNTORN), Err(Errno::NODATA));
        assert!(list(&db).is_empty());
        set(&db, UNTORN, "16384").unwrap();
        set(&db, CACHE, "drop").unwrap();
        fs::create_dir(db.join("below")).unwrap();
        let file = db.join("below/file");
        fs::write(&file, "data").unwrap();
        assert_eq!(
            (get(&file, UNTORN).unwrap().as_str(), get(&file, CACHE).unwrap().as_str()),
            ("16k", "drop")
        );
        assert_eq!(list(&file), [UNTORN, CACHE]);
        for (name, value) in [(UNTORN, "12k"), (UNTORN, ""), (CACHE, "maybe"), ("user.quire.tear", "8k")] {
            assert_eq!(set(&file, name, value), Err(Errno::INVAL), "{name}={value}");
        }
        rustix::fs::removexattr(&file, UNTORN).unwrap();
        assert_eq!(rustix::fs::removexattr(&file, UNTORN), Err(Errno::NODATA));
        set(&file, CACHE, "keep").unwrap();
        assert!(list(&file).is_empty());
        assert_eq!(fs::read(&file).unwrap(), b"data");
    });
}

/// Anyone who may write may ask for more; only the owner and root take it back. The kernel sends no user with
/// these requests.
#[test]
fn only_owner_and_root_take_untorn_back() {
    on_all(|mounted| {
        if !mounted.is_told_at_once() {
            // Files get no units there.
            return;
        }
        let file = mounted.path("file");
        fs::write(&file, "data").unwrap();
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
        let with = |arguments: &str| as_nobody(&format!("setfattr {arguments} \"$1\""), &file);
        assert_eq!(with("-n user.quire.untorn -v 8k"), 0);
        assert_ne!(with("-n user.quire.untorn -v off"), 0);
        assert_ne!(with("-n user.quire.untorn -v 4k"), 0);
        assert_ne!(with("-x user.quire.untorn"), 0);
        assert_eq!(get(&file, UNTORN).unwrap(), "8k");
        assert_eq!(with("-n user.quire.untorn -v 32k"), 0);
        assert_eq!(with("-n user.quire.cache -v drop"), 0);
        assert_eq!(with("-x user.quire.cache"), 0);
        std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
        assert_eq!(with("-x user.quire.untorn"), 0);
        set(&file, UNTORN, "8k").unwrap();
        set(&file, UNTORN, "off").unwrap();
        assert!(list(&file).is_empty());
    });
}

#[test]
fn copies_and_archives_carry_them() {
    on_all(|mounted| {
        if !mounted.is_told_at_once() {
            // Nothing is written to files with units there.
            return;
        }
        let from = mounted.path("from");
        fs::create_dir(&from).unwrap();
        fs::write(from.join("plain"), "plain").unwrap();
        set(&from, UNTORN, "8k").unwrap();
        for (name, unit) in [("small", "4k"), ("large", "128k")] {
            fs::write(from.join(name), name).unwrap();
            set(&from.join(name), UNTORN, unit).unwrap();
        }
        set(&from.join("small"), CACHE, "drop").unwrap();
        let script = "set -e; cd \"$1\"; cp -a from copy; mkdir unpacked
            tar --xattrs -cf from.tar from; tar --xattrs -xf from.tar -C unpacked";
        let status = Command::new("sh").args(["-c", script, "sh"]).arg(mounted.path("")).status().unwrap();
        assert!(status.success());
        for copy in [mounted.path("copy"), mounted.path("unpacked/from")] {
            assert_eq!(get(&copy, UNTORN).unwrap(), "8k", "{}", copy.display());
            assert_eq!(get(&copy.join("small"), UNTORN).unwrap(), "4k");
            assert_eq!(get(&copy.join("small"), CACHE).unwrap(), "drop");
            assert_eq!(get(&copy.join("large"), UNTORN).unwrap(), "128k");
            assert_eq!(fs::read(copy.join("large")).unwrap(), b"large");
            assert_eq!(fs::metadata(copy.join("plain")).unwrap().size(), 5);
        }
    });
}
