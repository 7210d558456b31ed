//! What code touched a line: the innermost function of Quire's own, and the text of its source line, which
//! names the field.
//!
//! Addresses are looked up with the program `addr2line` (of binutils, as the linker), which knows inlined
//! calls. What wraps others is passed over: the standard library, the locks of `quire_base::sync`, counters.
//! The report says who uses them.
//!
//! Neighbours: [`super::trace`] has the addresses.

use super::trace::Touch;
use quire_bench::outcome::{Outcome, failed, os};
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A function at a line of source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Such as `quire_journal::stream::Stream::claim`.
    pub function: String,
    /// Such as `crates/journal/src/stream.rs:148`.
    pub line: String,
    /// The line itself.
    pub text: String,
}

impl Place {
    /// The module and the function, such as `journal::stream::claim`.
    pub fn owner(&self) -> String {
        let file = self.line.split(':').next().unwrap_or_default().trim_end_matches(".rs");
        let name = self.function.split("::{closure").next().unwrap_or_default();
        let name = name.rsplit("::").next().filter(|name| !name.starts_with('{')).unwrap_or("a closure");
        format!("{}::{name}", file.trim_start_matches("crates/").replace("/src/", "::").replace('/', "::"))
    }
}

/// Places by address of code.
#[derive(Default)]
pub struct Places {
    /// The frames of an address, innermost first.
    frames: HashMap<u64, Vec<Place>>,
    sources: HashMap<PathBuf, Vec<String>>,
}

/// Folders of source whose functions only pass a call on.
const WRAPPERS: [&str; 3] =
    ["crates/base/src/sync/", "crates/base/src/metrics.rs", "crates/base/src/shard.rs"];

impl Places {
    /// Looks all of them up at once.
    pub fn of<'a>(touches: impl Iterator<Item = &'a Touch>) -> Outcome<Places> {
        let (program, base) = own_code()?;
        // A return address is behind its call.
        let behind = |n: usize, address: u64| if n == 0 { address } else { address - 1 };
        let mut addresses: Vec<u64> = touches
            .flat_map(|touch| touch.code.iter().enumerate().map(|(n, &address)| behind(n, address)))
            .filter(|address| *address >= base)
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        let mut places = Places::default();
        places.ask(&program, base, &addresses)?;
        Ok(places)
    }

    fn ask(&mut self, program: &Path, base: u64, addresses: &[u64]) -> Outcome {
        let mut child = Command::new("addr2line")
            .args(["-a", "-f", "-i", "-C", "-e"])
            .arg(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(os("starting addr2line (of binutils)"))?;
        let mut questions = child.stdin.take().expect("a pipe was asked for");
        let lines: String = addresses.iter().map(|address| format!("{:#x}\n", address - base)).collect();
        let writer = std::thread::spawn(move || questions.write_all(lines.as_bytes()));
        let answer = child.wait_with_output().map_err(os("addr2line"))?;
        let _ = writer.join();
        let text = String::from_utf8_lossy(&answer.stdout);
        let mut current = None;
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(address) = line.strip_prefix("0x") {
                current = u64::from_str_radix(address, 16).ok().map(|address| address + base);
            } else if let (Some(address), Some(at)) = (current, lines.next()) {
                let place = self.place(line, at);
                self.frames.entry(address).or_default().push(place);
            }
        }
        if self.frames.is_empty() && !addresses.is_empty() {
            return Err(failed("addr2line names nothing: was the program built without line tables?"));
        }
        Ok(())
    }

    fn place(&mut self, function: &str, at: &str) -> Place {
        let at = at.split(" (discriminator").next().unwrap_or(at);
        let (path, line) = at.rsplit_once(':').unwrap_or((at, "0"));
        let shown = path.find("crates/").map_or(path, |at| &path[at..]);
        let number: usize = line.parse().unwrap_or(0);
        let sources = self.sources.entry(path.into()).or_insert_with(|| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.lines().map(|line| line.trim().to_owned()).collect()
        });
        let text = number.checked_sub(1).and_then(|n| sources.get(n)).cloned().unwrap_or_default();
        Place { function: plain_name(function), line: format!("{shown}:{line}"), text }
    }

    /// Who touched it.
    pub fn who(&self, touch: &Touch) -> Place {
        let frames = touch.code.iter().enumerate().flat_map(|(n, &address)| {
            self.frames.get(&(if n == 0 { address } else { address - 1 })).into_iter().flatten()
        });
        let ours = |place: &&Place| {
            place.line.starts_with("crates/")
                && !place.line.starts_with("crates/bench/")
                && !WRAPPERS.iter().any(|wrapper| place.line.starts_with(wrapper))
        };
        let unknown = Place { function: "outside of Quire".into(), line: String::new(), text: String::new() };
        frames.clone().find(ours).or_else(|| frames.clone().next()).cloned().unwrap_or(unknown)
    }
}

/// A function's name without hash and generic arguments' noise.
fn plain_name(function: &str) -> String {
    let name = function.split("::h").next().filter(|name| function.len() - name.len() == 19);
    name.unwrap_or(function).replace(['<', '>'], "")
}

/// This program, and where its code begins in memory.
fn own_code() -> Outcome<(PathBuf, u64)> {
    let program = std::env::current_exe().map_err(os("finding this program"))?;
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(os("reading /proc/self/maps"))?;
    let name = program.display().to_string();
    let first = maps.lines().find(|line| line.ends_with(&name));
    let base = first.and_then(|line| u64::from_str_radix(line.split('-').next()?, 16).ok());
    base.map(|base| (program, base)).ok_or_else(|| failed("this program is not in /proc/self/maps"))
}
