//! The program `quire`, which makes snapshots, streams and volumes.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::process::{Child, Command};
use uuid::Uuid;

use crate::failure::{FAILED, Failure, Outcome};
use crate::manifest::Snapshot;

/// What `quire receive` says where there is none. Exit code 37 stands for other mistakes, too.
const NOTHING_UNFINISHED: &str = "no unfinished receive";

/// What the program says of a volume.
#[derive(Debug, Deserialize)]
pub struct Volume {
    /// The volume's own number.
    pub uuid: Uuid,
    block_size: u64,
    blocks: u64,
}

impl Volume {
    /// Size of the volume.
    pub fn bytes(&self) -> u64 {
        self.block_size.saturating_mul(self.blocks)
    }
}

#[derive(Deserialize)]
struct ListedSnapshot {
    name: String,
    /// Later snapshots of a volume have greater numbers.
    number: u64,
    created: i64,
    deleting: bool,
}

/// Where `quire` is.
#[derive(Clone, Debug)]
pub struct Quire {
    program: PathBuf,
}

impl Quire {
    /// What the variable QUIRE says, or the program beside this one, or one that is found in PATH.
    pub fn find() -> Quire {
        if let Some(program) = std::env::var_os("QUIRE") {
            return Quire { program: program.into() };
        }
        let beside = std::env::current_exe().ok().map(|own| own.with_file_name("quire"));
        Quire { program: beside.filter(|program| program.is_file()).unwrap_or_else(|| "quire".into()) }
    }

    fn command<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    fn cannot_run(&self, error: &std::io::Error) -> Failure {
        Failure::new(
            FAILED,
            format!(
                "cannot run {}: {error}; install quire beside quire-backup or in PATH, or name it in the variable QUIRE",
                self.program.display()
            ),
        )
    }

    /// Runs a command to its end. Its exit code and message become the failure.
    async fn run<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Outcome<Output> {
        let output = self.command(arguments).output().await.map_err(|error| self.cannot_run(&error))?;
        if output.status.success() {
            return Ok(output);
        }
        let code = output.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED);
        let message = String::from_utf8_lossy(&output.stderr);
        let message = message.trim();
        let message = message.strip_prefix("quire: ").unwrap_or(message);
        Err(Failure::new(code, if message.is_empty() { "quire failed without a message" } else { message }))
    }

    async fn json<T: DeserializeOwned>(&self, arguments: Vec<&OsStr>, field: Option<&str>) -> Outcome<T> {
        let shown = format!("quire {}", arguments.join(OsStr::new(" ")).display());
        let output = self.run(arguments).await?.stdout;
        let wrong = |error| Failure::new(FAILED, format!("the output of `{shown}`: {error}"));
        let mut value: serde_json::Value = serde_json::from_slice(&output).map_err(wrong)?;
        if let Some(field) = field {
            value = value[field].take();
        }
        serde_json::from_value(value).map_err(wrong)
    }

    /// What a volume is.
    pub async fn volume(&self, volume: &Path) -> Outcome<Volume> {
        self.json(vec!["info".as_ref(), "--json".as_ref(), volume.as_ref()], None).await
    }

    /// The snapshots of a volume in the order in which they were taken, without those being deleted.
    pub async fn snapshots(&self, volume: &Path) -> Outcome<Vec<Snapshot>> {
        let mut arguments: Vec<&OsStr> =
            ["snapshot", "list", "--no-space", "--json"].map(OsStr::new).to_vec();
        arguments.push(volume.as_ref());
        let mut listed: Vec<ListedSnapshot> = self.json(arguments, Some("snapshots")).await?;
        listed.sort_by_key(|snapshot| snapshot.number);
        let alive = listed.into_iter().filter(|snapshot| !snapshot.deleting);
        Ok(alive.map(|it| Snapshot { name: it.name, created: it.created }).collect())
    }

    /// Takes a snapshot.
    pub async fn take_snapshot(&self, volume: &Path, name: &str) -> Outcome {
        let arguments: [&OsStr; 4] = ["snapshot".as_ref(), "create".as_ref(), volume.as_ref(), name.as_ref()];
        self.run(arguments).await.map(drop)
    }

    /// Deletes a snapshot.
    pub async fn delete_snapshot(&self, volume: &Path, name: &str) -> Outcome {
        let arguments: [&OsStr; 4] = ["snapshot".as_ref(), "delete".as_ref(), volume.as_ref(), name.as_ref()];
        self.run(arguments).await.map(drop)
    }

    /// Makes a volume in a new image file.
    pub async fn make_volume(&self, image: &Path, bytes: u64) -> Outcome {
        let size = format!("--size={bytes}");
        let arguments: [&OsStr; 4] = ["mkfs".as_ref(), "--quiet".as_ref(), size.as_ref(), image.as_ref()];
        self.run(arguments).await.map(drop)
    }

    /// What is known of an unfinished receive: the text that names its snapshot.
    pub async fn unfinished(&self, volume: &Path) -> Outcome<Option<String>> {
        let arguments: [&OsStr; 3] = ["receive".as_ref(), "--resume-token".as_ref(), volume.as_ref()];
        match self.run(arguments).await {
            Ok(output) => Ok(Some(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
            Err(failure) if failure.message.contains(NOTHING_UNFINISHED) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Gives an unfinished receive up.
    pub async fn abort_receive(&self, volume: &Path) -> Outcome {
        let arguments: [&OsStr; 3] = ["receive".as_ref(), "--abort".as_ref(), volume.as_ref()];
        self.run(arguments).await.map(drop)
    }

    /// Starts a stream of a snapshot, to be read from the child's standard output.
    pub fn send(&self, volume: &Path, from: Option<&str>, snapshot: &str) -> Outcome<Child> {
        let mut arguments: Vec<OsString> = vec!["send".into(), "--quiet".into()];
        arguments.extend(from.map(|from| format!("--from={from}").into()));
        arguments.extend([volume.into(), snapshot.into()]);
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).spawn().map_err(|error| self.cannot_run(&error))
    }

    /// Starts to receive a stream, to be written to the child's standard input.
    pub fn receive(&self, volume: &Path) -> Outcome<Child> {
        let arguments: [&OsStr; 3] = ["receive".as_ref(), "--quiet".as_ref(), volume.as_ref()];
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).spawn().map_err(|error| self.cannot_run(&error))
    }
}

/// Waits for a child that was started to `do` something.
pub async fn finish(mut child: Child, doing: &str) -> Outcome {
    let status = child.wait().await.map_err(|error| Failure::system(doing, &error))?;
    if status.success() {
        return Ok(());
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED);
    Err(Failure::new(code, format!("{doing} failed ({status})")))
}
