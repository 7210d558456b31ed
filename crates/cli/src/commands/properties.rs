//! `quire get` and `quire set`: properties of files and directories, through the extended attributes
//! `user.quire.*` of a mount.
//!
//! Other file systems keep such attributes, too, without giving them a meaning. So a path that is not on a
//! mount of Quire's is an error, and something else that is mounted below one lacks every property.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use quire::{Properties, Unit};
use quire_base::Error;
use quire_fuse::{MountEntry, mount};
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::arguments::{Get, Set};
use crate::exit::{self, FAILED, Failure, Outcome};
use crate::output;
use crate::values::{CACHE, Setting, UNTORN};

/// Bytes that a value has at most.
const VALUE_MAX: usize = 64;

/// Sets a property.
fn change(setting: Setting, path: &Path) -> Result<(), Errno> {
    rustix::fs::lsetxattr(path, setting.name(), setting.value().as_bytes(), XattrFlags::empty())
}

fn shown(properties: Properties) -> String {
    format!("{} {}", Setting::Untorn(properties.untorn), Setting::CacheDrop(properties.cache_drop))
}

fn failed(doing: &str, path: &Path, error: impl Into<std::io::Error>) -> Failure {
    Failure::from(Error::os(format!("{doing} {}", path.display()), &error.into()))
}

/// An attribute's value; empty if it is not set.
fn value(path: &Path, name: &str) -> Outcome<String> {
    let mut room = [0u8; VALUE_MAX];
    match rustix::fs::lgetxattr(path, name, &mut room[..]) {
        Ok(length) => Ok(String::from_utf8_lossy(&room[..length]).into_owned()),
        Err(Errno::NODATA) => Ok(String::new()),
        Err(error) => Err(failed("reading the properties of", path, error)),
    }
}

fn read(path: &Path) -> Outcome<Properties> {
    let untorn = match value(path, UNTORN)?.as_str() {
        "" => None,
        unit => Some(unit.parse::<Unit>().map_err(Failure::from)?),
    };
    Ok(Properties { untorn, cache_drop: value(path, CACHE)? == "drop" })
}

/// The devices of all mounts of Quire's.
fn devices() -> Outcome<Vec<u64>> {
    let number = |entry: MountEntry| {
        let (major, minor) = entry.device.split_once(':')?;
        Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
    };
    Ok(mount::mounts()?.into_iter().filter(MountEntry::is_quire).filter_map(number).collect())
}

/// Something that a walk comes to.
struct Found {
    path: PathBuf,
    /// Mounted there from elsewhere.
    foreign: bool,
}

/// Calls `visit` with paths and, if asked for, with all files and directories below them; a directory comes
/// before what is in it.
fn walk(paths: &[PathBuf], recursive: bool, visit: &mut dyn FnMut(Found) -> Outcome) -> Outcome {
    let ours = devices()?;
    for path in paths {
        let top = std::fs::metadata(path).map_err(|error| failed("looking at", path, error))?;
        if !ours.contains(&top.dev()) {
            return Err(Failure::new(
                exit::MISSING,
                format!(
                    "{} is not on a mount of a Quire volume: only there files have properties",
                    path.display()
                ),
            ));
        }
        // A link that was named is followed, those below are not.
        let start = match std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink()) {
            true => path.canonicalize().map_err(|error| failed("looking at", path, error))?,
            false => path.clone(),
        };
        let mut ahead = vec![start];
        while let Some(path) = ahead.pop() {
            let about = match std::fs::symlink_metadata(&path) {
                Ok(about) => about,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed("looking at", &path, error)),
            };
            if !(about.is_file() || about.is_dir()) {
                continue;
            }
            let foreign = about.dev() != top.dev();
            visit(Found { path: path.clone(), foreign })?;
            if !recursive || foreign || !about.is_dir() {
                continue;
            }
            let listing = |error| failed("listing", &path, error);
            let mut below = Vec::new();
            for entry in std::fs::read_dir(&path).map_err(listing)? {
                below.push(entry.map_err(listing)?.path());
            }
            below.sort_unstable_by(|a, b| b.cmp(a));
            ahead.append(&mut below);
        }
    }
    Ok(())
}

/// `quire get`.
pub fn get(arguments: &Get) -> Outcome {
    let required = &arguments.require;
    let (mut seen, mut lacking) = (0u64, 0u64);
    walk(&arguments.paths, arguments.recursive, &mut |found| {
        seen += 1;
        if found.foreign {
            match required.is_empty() {
                true => output::line(format_args!("(another file system)  {}", found.path.display())),
                false => {
                    lacking += 1;
                    output::line(format_args!(
                        "{}: another file system is mounted there",
                        found.path.display()
                    ));
                }
            }
            return Ok(());
        }
        let properties = read(&found.path)?;
        if required.is_empty() {
            output::line(format_args!("{}  {}", shown(properties), found.path.display()));
        } else if !required.iter().all(|setting| setting.holds(properties)) {
            lacking += 1;
            output::line(format_args!("{}  {}", shown(properties), found.path.display()));
        }
        Ok(())
    })?;
    if lacking == 0 {
        return Ok(());
    }
    let wanted: Vec<String> = required.iter().map(Setting::to_string).collect();
    let what = if seen == 1 { "file or directory" } else { "files and directories" };
    Err(Failure::new(
        FAILED,
        format!("{lacking} of {seen} {what} lack {}; see: quire set", wanted.join(" and ")),
    ))
}

/// `quire set`.
pub fn set(arguments: &Set) -> Outcome {
    let parse = |operand: &PathBuf| {
        let text = operand.to_str()?;
        let is_setting = text.split_once('=').is_some_and(|(name, _)| !name.contains('/'));
        is_setting.then(|| Setting::from_str(text))
    };
    let mut settings = Vec::new();
    let mut paths = arguments.operands.as_slice();
    // What looks like a setting is one, up to the first that does not: a path like that is written ./a=b.
    while let Some((first, rest)) = paths.split_first() {
        match parse(first) {
            Some(setting) => settings.push(setting.map_err(Failure::usage)?),
            None => break,
        }
        paths = rest;
    }
    if settings.is_empty() || paths.is_empty() {
        return Err(Failure::usage(
            "usage: quire set [-r] PROPERTY=VALUE... PATH..., as in: quire set untorn=8k db",
        ));
    }
    walk(paths, arguments.recursive, &mut |found| {
        if found.foreign {
            eprintln!("quire: {} is left alone: another file system is mounted there", found.path.display());
            return Ok(());
        }
        for setting in &settings {
            change(*setting, &found.path).map_err(|error| match error {
                Errno::PERM | Errno::ACCESS => Failure::new(
                    exit::NOT_PERMITTED,
                    format!(
                        "{setting} for {}: {}; it takes the right to write, and the owner or root to turn untorn off or \
                         make it smaller",
                        found.path.display(),
                        std::io::Error::from(error)
                    ),
                ),
                Errno::INVAL => Failure::new(
                    FAILED,
                    format!(
                        "{setting} for {}: refused; the journal of a small volume takes small units only (quire resize \
                         --journal-size makes it larger), and the server's log has the reason",
                        found.path.display()
                    ),
                ),
                error => failed(&format!("setting {setting} for"), &found.path, error),
            })?;
        }
        Ok(())
    })
}
