//! Tests of habits that no compiler checks. `cargo test -p tidy` runs them in a second.
//!
//! | module | checks |
//! | --- | --- |
//! | `sources` | the width of comments; modules have the paths that their names say; none of a test program is forgotten |
//! | `pages` | every link of a Markdown page leads somewhere; every fuzz target is documented |
//! | `manifests` | every switch is used and turned on; licenses of dependencies; packages are complete |
//!
//! Each check is a function from text to findings, with a test of the check itself on text that it must
//! refuse. One test applies it to the repository and shows all findings at once.
//!
//! Neighbours: none; it reads files.

#![cfg(test)]

mod manifests;
mod pages;
mod sources;

use std::path::{Path, PathBuf};

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository is there")
}

/// A file of the repository.
fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files under a directory whose names end in `.extension`, in order; build products are passed over.
fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries =
        std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for entry in entries {
        let path = entry.expect("a directory entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if !name.starts_with('.') && !name.starts_with("target") {
                found.extend(files(&path, extension));
            }
        } else if path.extension().is_some_and(|it| it == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Fails with all findings, if there are any.
#[track_caller]
fn none(findings: Vec<String>) {
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}
