//! Random statements against the default VFS, and kills at random moments: short runs of the scripts.

use std::path::Path;
use std::process::Command;

use super::mounted::{Mounted, extension};

fn script(mounted: &Mounted, name: &str, arguments: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(root.join("scripts").join(name))
        .args(arguments)
        .env("QUIRE_SQLITE_EXTENSION", extension())
        .env("QUIRE_SQLITE_FOLDER", mounted.path())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
}

#[test]
fn random_statements_give_what_the_default_gives() {
    let Some(mounted) = Mounted::new() else { return };
    script(&mounted, "sqlite-compare", &["1500", "1"]);
}

#[test]
fn killed_writers_lose_nothing_and_leave_nothing_half_done() {
    let Some(mounted) = Mounted::new() else { return };
    script(&mounted, "sqlite-kills", &["20"]);
}
