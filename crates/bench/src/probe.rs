//! `quire probe DIR`: what the file system under a directory really promises, found out by racing it.
//!
//! | module | races |
//! | --- | --- |
//! | [`torn`] | reads against writes of the same bytes; who starves whom |
//! | [`append`] | appenders against each other; readers that look at the size |
//! | [`load`] | asynchronous direct I/O beside [`torn::torn_reads`] and [`order`] |
//! | [`order`] | reads that begin after a write has returned, buffered and direct |
//! | [`mapped`] | stores through mappings and mapped reads beside writes; msync and a kill |
//!
//! [`promises`] asks what is promised over power loss, which no race can find out.
//!
//! Each race lasts the given time in a file of its own, in a directory that is removed at the end. A race
//! that the file system cannot take part in (no O_DIRECT) is reported as not tried. Finding nothing proves
//! nothing; finding something proves it.

pub mod append;
pub mod load;
pub mod mapped;
pub mod order;
pub mod promises;
pub mod torn;

use self::promises::Promises;
use crate::arguments::Probe;
use crate::drive::{Part, Stage, Surroundings, Until, drive};
use crate::interrupt::Interrupt;
use crate::outcome::{Outcome, Trouble, os};
use crate::progress::Progress;
use crate::report::{machine, table};
use quire_base::random::Random;
use quire_base::{Error, Result};
use serde_json::{Map, Value, json};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What one race found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Its name in JSON.
    pub name: String,
    /// What is asked.
    pub question: String,
    /// What came of it.
    pub answer: Answer,
    /// Anything that helps to understand the counts.
    pub note: String,
}

/// The outcome of a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It ran: violations, and how many chances there were for one.
    Counted {
        /// Violations.
        found: u64,
        /// Chances.
        of: u64,
    },
    /// It did not run, and why.
    NotTried(String),
}

impl Finding {
    /// A race that ran.
    pub fn counted(name: impl Into<String>, question: impl Into<String>, found: u64, of: u64) -> Finding {
        Finding {
            name: name.into(),
            question: question.into(),
            answer: Answer::Counted { found, of },
            note: String::new(),
        }
    }

    /// A race that did not run.
    pub fn not_tried(name: impl Into<String>, question: impl Into<String>, why: &str) -> Finding {
        Finding {
            name: name.into(),
            question: question.into(),
            answer: Answer::NotTried(why.to_owned()),
            note: String::new(),
        }
    }

    /// With a note.
    pub fn with_note(self, note: String) -> Finding {
        Finding { note, ..self }
    }

    /// Whether the file system was caught.
    pub fn is_found(&self) -> bool {
        matches!(self.answer, Answer::Counted { found: 1.., .. })
    }
}

/// Everything that was found.
pub struct Findings {
    dir: PathBuf,
    seconds: f64,
    seed: u64,
    /// Whether the races that can have the load had it.
    direct_load: bool,
    /// What the file system says about power loss.
    pub promises: Promises,
    /// In the order in which they were raced.
    pub findings: Vec<Finding>,
}

/// What a race works with.
pub struct Arena<'a> {
    directory: &'a Path,
    seconds: Duration,
    seed: u64,
    direct_load: bool,
    surroundings: &'a Surroundings<'a>,
}

impl Arena<'_> {
    /// Runs the threads of a race for its time.
    pub fn race<'a, T: Send>(&self, name: &str, parts: Vec<Part<'a, T>>) -> Outcome<Vec<T>> {
        self.surroundings.progress.engine("probe");
        self.surroundings.progress.phase(name);
        let until = Until::Elapsed(self.seconds);
        drive(self.surroundings, until, parts).map(|(results, _)| results)
    }

    /// A file by its name; made if it is not there. `flags`: O_DIRECT, O_APPEND.
    pub fn open(&self, name: &str, flags: i32) -> Result<File> {
        let path = self.directory.join(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).custom_flags(flags);
        options.open(&path).map_err(os(format!("opening {}", path.display())))
    }

    /// Takes a file away; races must not fill the disk.
    pub fn remove(&self, name: &str) {
        let _ = std::fs::remove_file(self.directory.join(name));
    }

    /// Whether files here can be opened with O_DIRECT, or why not.
    pub fn can_direct(&self) -> std::result::Result<(), String> {
        let outcome = self.open("direct", libc::O_DIRECT);
        self.remove("direct");
        outcome.map(drop).map_err(|error| format!("no O_DIRECT here: {error}"))
    }

    /// Chance for one thread.
    pub fn random(&self, thread: usize) -> Random {
        Random::seeded(self.seed.wrapping_add((thread as u64) << 32))
    }
}

/// A part of a race, boxed.
pub fn part<'a, T>(body: impl FnOnce(&Stage) -> Result<T> + Send + 'a) -> Part<'a, T> {
    Box::new(body)
}

/// Races everything.
pub fn probe(arguments: &Probe, interrupt: &Interrupt, progress: &Progress) -> Outcome<Findings> {
    let dir = &arguments.dir;
    if !dir.is_dir() {
        return Err(Trouble::Usage(format!("{} is not a directory", dir.display())));
    }
    let directory = tempfile::Builder::new().prefix("quire-probe-").tempdir_in(dir).map_err(|error| {
        Trouble::Failed(Error::os(format!("making a directory in {}", dir.display()), &error))
    })?;
    let surroundings = Surroundings { interrupt, progress };
    let mut arena = Arena {
        directory: directory.path(),
        seconds: Duration::from_secs_f64(arguments.seconds),
        seed: arguments.seed,
        direct_load: arguments.direct_load,
        surroundings: &surroundings,
    };
    arena.direct_load &= arena.can_direct().is_ok();
    let promises = Promises::ask(dir, &arena)?;
    let mut findings = Vec::new();
    findings.extend(torn::torn_reads(&arena)?);
    findings.extend(append::appends(&arena)?);
    findings.extend(append::sizes(&arena)?);
    findings.extend(order::stale_reads(&arena)?);
    findings.extend(mapped::mapped_files(&arena)?);
    findings.extend(torn::starvation(&arena)?);
    progress.finish();
    let direct_load = arena.direct_load;
    directory.close().map_err(os("removing the directory of the probe"))?;
    let Probe { seconds, seed, .. } = *arguments;
    Ok(Findings { dir: dir.clone(), seconds, seed, direct_load, promises, findings })
}

impl Findings {
    /// The JSON.
    pub fn json(&self) -> Value {
        let findings = self.findings.iter().map(|finding| {
            let mut object = Map::new();
            let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
            put("name", json!(finding.name));
            put("question", json!(finding.question));
            match &finding.answer {
                Answer::Counted { found, of } => {
                    put("answer", json!(if *found > 0 { "yes" } else { "no" }));
                    put("found", json!(found));
                    put("of", json!(of));
                }
                Answer::NotTried(why) => {
                    put("answer", json!("not tried"));
                    put("why", json!(why));
                }
            }
            if !finding.note.is_empty() {
                put("note", json!(finding.note));
            }
            Value::Object(object)
        });
        json!({
            "dir": self.dir.display().to_string(),
            "seconds": self.seconds,
            "seed": self.seed,
            "direct_load": self.direct_load,
            "machine": machine::describe(&self.dir),
            "promises": self.promises.json(),
            "findings": findings.collect::<Vec<_>>(),
        })
    }

    /// The table.
    pub fn table(&self) -> String {
        let mut lines = vec![["seen?", "", "times", "of", "note"].map(str::to_owned).to_vec()];
        for finding in &self.findings {
            let (answer, found, of, note) = match &finding.answer {
                Answer::Counted { found, of } => {
                    let answer = if *found > 0 { "yes" } else { "no" };
                    (answer, found.to_string(), of.to_string(), finding.note.clone())
                }
                Answer::NotTried(why) => ("not tried", "-".into(), "-".into(), why.clone()),
            };
            lines.push(vec![finding.question.clone(), answer.into(), found, of, note]);
        }
        table::align(&lines)
    }
}
