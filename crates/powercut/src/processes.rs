//! Processes of a database's server: run as the database's user, killed with all their children.
//!
//! Neighbours: [`crate::postgres`] and [`crate::mariadb`] start them.

use crate::failure::{Failure, Outcome};
use rustix::process::{Pid, Signal, WaitOptions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// User and group of the account `name`, if the machine has it.
pub fn identity_of(name: &str) -> Option<(u32, u32)> {
    let table = std::fs::read_to_string("/etc/passwd").ok()?;
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.len() > 3 && fields[0] == name).then_some(())?;
        Some((fields[2].parse().ok()?, fields[3].parse().ok()?))
    })
}

/// Makes a folder that `identity` (user and group) owns; without one, this process's user does.
pub fn own_folder(path: &Path, identity: Option<(u32, u32)>) -> std::io::Result<()> {
    std::fs::create_dir_all(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))?;
    match identity {
        Some((user, group)) => chown(path, Some(user), Some(group)),
        None => Ok(()),
    }
}

/// How long a program may take that is to end by itself.
const PATIENCE: Duration = Duration::from_secs(600);

/// Runs a program to its end. Gives its standard output; a program that fails, or does not end, is a broken
/// promise.
pub fn run(command: &mut Command) -> Outcome<String> {
    run_within(command, PATIENCE)
}

fn run_within(command: &mut Command, patience: Duration) -> Outcome<String> {
    let output = output_within(command, patience)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let words = String::from_utf8_lossy(&output.stderr).into_owned() + &text;
    let words = words.lines().take(12).collect::<Vec<_>>().join(" | ");
    Err(Failure::Broken(format!("{:?}: {}: {words}", command.get_program(), output.status)))
}

/// What a program said, and how it ended. One that does not end is killed, and a broken promise: what it
/// waits for is the mount.
pub fn output(command: &mut Command) -> Outcome<Output> {
    output_within(command, PATIENCE)
}

fn output_within(command: &mut Command, patience: Duration) -> Outcome<Output> {
    let name = format!("{:?}", command.get_program());
    let trouble = |error: std::io::Error| Failure::trouble(format_args!("running {name}"), error);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(trouble)?;
    let id = child.id();
    let (ended, end) = mpsc::channel();
    // A program that hangs in the kernel ends when its mount does: this thread waits for it, and no other.
    std::thread::spawn(move || ended.send(child.wait_with_output()));
    match end.recv_timeout(patience) {
        Ok(output) => output.map_err(trouble),
        Err(_) => {
            let family = descendants(id).into_iter().chain([id]);
            for id in family.filter_map(|id| Pid::from_raw(id as i32)) {
                let _ = rustix::process::kill_process(id, Signal::KILL);
            }
            Err(Failure::Broken(format!("{name} does not end")))
        }
    }
}

/// A process that has ended by itself is a broken promise; unless it `may_succeed`, and did.
pub fn must_live(process: &mut Child, name: &str, may_succeed: bool, log: &Path) -> Outcome {
    match process.try_wait() {
        Ok(None) => Ok(()),
        Ok(Some(status)) if may_succeed && status.success() => Ok(()),
        Ok(Some(status)) => Err(Failure::Broken(format!(
            "{name} ended by itself with the power on ({status}): {}",
            last_of(log)
        ))),
        Err(error) => Err(Failure::trouble(format_args!("looking at {name}"), error)),
    }
}

/// Asks a server to shut down, and waits for its end. Gives it back if it does not end.
pub fn stop(mut server: Child, signal: Signal, patience: Duration) -> Result<Outcome, Child> {
    let _ = rustix::process::kill_process(Pid::from_child(&server), signal);
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        match server.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(Ok(())),
            Ok(Some(status)) => return Ok(Err(Failure::Broken(format!("the server stopped with {status}")))),
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    Err(server)
}

/// Ends a server and every process below it, and waits until they are gone. Gives their identifiers.
pub fn kill_family(mut server: Child) -> Vec<u32> {
    // Stopped first, so that it starts no more children.
    let _ = rustix::process::kill_process(Pid::from_child(&server), Signal::STOP);
    let mut family = vec![server.id()];
    family.extend(descendants(server.id()));
    for id in family.iter().filter_map(|id| Pid::from_raw(*id as i32)) {
        let _ = rustix::process::kill_process(id, Signal::KILL);
    }
    let _ = server.wait();
    for id in &family[1..] {
        reap(*id);
    }
    family
}

/// Waits for a process that is (or is about to become) our child; it was killed, so not for long.
fn reap(id: u32) {
    let Some(id) = Pid::from_raw(id as i32) else { return };
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        match rustix::process::waitpid(Some(id), WaitOptions::NOHANG) {
            Ok(Some(_)) => return,
            // Not ours: gone already, or somebody else reaps it.
            Err(_) if rustix::process::test_kill_process(id).is_err() => return,
            _ => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Processes below `ancestor`, from their parents as /proc has them.
fn descendants(ancestor: u32) -> Vec<u32> {
    let processes: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .map(|entries| {
            entries
                .flatten()
                .filter_map(|entry| {
                    let id = entry.file_name().to_str()?.parse().ok()?;
                    let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
                    // The name, in parentheses, may hold anything; state and parent follow it.
                    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
                    Some((id, parent))
                })
                .collect()
        })
        .unwrap_or_default();
    let mut family = vec![ancestor];
    let mut next = 0;
    while next < family.len() {
        let parent = family[next];
        family.extend(processes.iter().filter(|process| process.1 == parent).map(|process| process.0));
        next += 1;
    }
    family.split_off(1)
}

/// The last lines of a log.
pub fn last_of(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that hung on its mount hung the harness.
    #[test]
    fn a_program_that_does_not_end_is_a_broken_promise() {
        let mut shell = Command::new("sh");
        let ended = run_within(shell.args(["-c", "sleep 1000 & wait"]), Duration::from_millis(200));
        assert!(matches!(ended, Err(Failure::Broken(_))), "{ended:?}");
        assert_eq!(run(Command::new("echo").arg("word")), Ok("word\n".to_owned()));
        assert!(matches!(run(&mut Command::new("false")), Err(Failure::Broken(_))));
        assert!(matches!(run(&mut Command::new("/nowhere")), Err(Failure::Trouble(_))));
    }
}
