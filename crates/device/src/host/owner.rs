//! Whether the owner that a mark names still lives, and what this process writes into its own.
//!
//! An owner is gone if it ran on this very machine, since its last start, and there is no such process any
//! more; or if its beat has stood still for the time that the mark states (`silence`): within that time an
//! owner that runs raises its beat, or has shut the volume down: it counts a shorter time itself. Processes
//! are compared only within one PID namespace. The machine is told by the kernel's boot id, which copies of a
//! virtual machine do not share, unless they go on from one snapshot of its memory: then each takes the other
//! for itself.
//!
//! A beat that stands still does not prove that a *stopped* owner does not go on: only the server can keep
//! that one out (docs/network.md).

use crate::reconnecting::ownership::{Ownership, describe, is_open_here};
use quire_base::clock::Clock;
use quire_base::random::Random;
use quire_base::sync::time::{Duration, Instant};
use quire_base::{Error, ErrorKind, Result, Uptime};
use quire_format::owner::OwnerMark;
use std::os::unix::fs::MetadataExt;

/// Time between two beats.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);
/// By how much less an owner is sure of its device than others wait: what clocks differ by, and closing a
/// connection takes.
const MARGIN: Duration = Duration::from_secs(5);
/// Longest time to watch a beat for; an owner that may be silent for longer has to be taken over.
const WATCH_MAX: Duration = Duration::from_secs(600);
const HOW: &str = "If that process can no longer reach the server, and the server keeps it out, take the volume over \
                   (mount -o takeover, --take-over, or ?takeover in the address)";

/// What this process writes for one opening, now. It shuts down if no beat succeeds for as long as a beat,
/// two answers and two reconnections take.
pub(super) fn ownership_of_this_process(answer: Duration, reconnect: Option<Duration>) -> Ownership {
    // A beat reads the mark and then writes it, and the connection may break under either.
    let sure = INTERVAL + 2 * (answer + reconnect.unwrap_or_default());
    let mark = mark_of_this_process(sure + MARGIN);
    Ownership { mark, written: Uptime::now(), interval: INTERVAL, sure }
}

fn mark_of_this_process(silence: Duration) -> OwnerMark {
    let now = Clock::System.now();
    OwnerMark {
        silence: u32::try_from(silence.as_secs()).unwrap_or(u32::MAX),
        owner: Random::from_entropy().next_u64(),
        beat: 1,
        seen: now,
        opened: now,
        process_start: process("self").map_or(0, |process| process.start),
        pid_namespace: pid_namespace(),
        pid: std::process::id(),
        boot: boot(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        program: std::fs::read_to_string("/proc/self/comm").unwrap_or_default().trim_end().to_owned(),
    }
}

/// The kernel's number for this run of the machine; zeros if it does not say.
fn boot() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

/// Zero if the kernel does not say.
fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

struct Process {
    /// In clock ticks since the machine started.
    start: u64,
    /// It has ended, and its parent has not asked for its outcome.
    is_over: bool,
}

/// What the kernel says of a process; `None` if it says nothing.
fn process(name: &str) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{name}/stat")).ok()?;
    // Behind the name, which may have any characters: fields 3 (state), 20 (threads), 22 (start).
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let is_over = matches!(*fields.first()?, "Z" | "X") && fields.get(17)?.parse::<i64>().ok()? <= 1;
    Some(Process { start: fields.get(19)?.parse().ok()?, is_over })
}

/// Whether the owner lives; `None`: this machine cannot tell.
fn lives(mark: &OwnerMark) -> Option<bool> {
    let is_known = mark.boot != [0; 16] && mark.pid_namespace != 0;
    if !is_known || mark.boot != boot() || mark.pid_namespace != pid_namespace() {
        return None;
    }
    if mark.pid == std::process::id() && process("self").is_some_and(|me| me.start == mark.process_start) {
        return Some(is_open_here(mark.owner));
    }
    let pid = i32::try_from(mark.pid).ok().and_then(rustix::process::Pid::from_raw)?;
    if rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH) {
        return Some(false);
    }
    // The number may be another process's by now.
    let is_same = |process: Process| process.start == mark.process_start && !process.is_over;
    Some(process(&mark.pid.to_string()).is_none_or(is_same))
}

/// What becomes of an opening.
pub(super) enum Verdict {
    /// Nobody has the volume open.
    Free,
    /// Look again after a beat.
    Wait,
}

/// A mark under observation.
pub(super) struct Watch {
    name: String,
    takes_over: bool,
    first: Option<(OwnerMark, Instant)>,
}

impl Watch {
    pub(super) fn new(name: &str, takes_over: bool) -> Watch {
        Watch { name: name.into(), takes_over, first: None }
    }

    /// Judges what was found. `Busy` if an owner lives, or may live for longer than is worth waiting.
    pub(super) fn judge(&mut self, found: Result<Option<OwnerMark>>) -> Result<Verdict> {
        let name = &self.name;
        let busy = |text: String| Err(Error::new(ErrorKind::Busy, format!("{name} {text}")));
        let mark = match found {
            Ok(None) => return Ok(Verdict::Free),
            Ok(Some(mark)) => mark,
            Err(error) if self.takes_over => {
                tracing::warn!(volume = name, %error, "taking the volume over, as asked");
                return Ok(Verdict::Free);
            }
            Err(error) => return busy(format!("may be open elsewhere: {error}. {HOW}")),
        };
        let who = describe(&mark);
        if self.takes_over {
            tracing::warn!(volume = name, owner = who, "taking the volume over, as asked");
            return Ok(Verdict::Free);
        }
        match lives(&mark) {
            Some(true) => {
                return busy(format!("is already open by {who}, on this machine; unmount it first"));
            }
            Some(false) => {
                tracing::warn!(volume = name, owner = who, "the last owner is dead; its mark is taken away");
                return Ok(Verdict::Free);
            }
            None => {}
        }
        let silence = Duration::from_secs(mark.silence.into());
        match &self.first {
            None if silence > WATCH_MAX => busy(format!(
                "may be open by {who}. Its beat may stand still for {} s, which is not waited for. {HOW}",
                silence.as_secs()
            )),
            None => {
                tracing::warn!(
                    volume = name,
                    owner = who,
                    seconds = silence.as_secs(),
                    "the volume was not closed; waiting to see whether its owner lives"
                );
                self.first = Some((mark, Instant::now()));
                Ok(Verdict::Wait)
            }
            Some((first, _)) if (first.owner, first.beat) != (mark.owner, mark.beat) => {
                busy(format!("is open by {who}: its beat goes on. Unmount it there first. {HOW}"))
            }
            Some((_, since)) if since.elapsed() < silence => Ok(Verdict::Wait),
            Some(_) => {
                tracing::warn!(
                    volume = name,
                    owner = who,
                    "the last owner is silent; its mark is taken away"
                );
                Ok(Verdict::Free)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mine() -> OwnerMark {
        ownership_of_this_process(Duration::from_secs(60), Some(Duration::from_secs(30))).mark
    }

    fn judge(mark: OwnerMark) -> Result<Verdict> {
        Watch::new("v", false).judge(Ok(Some(mark)))
    }

    #[test]
    fn a_mark_tells_its_process() {
        let mark = mine();
        assert_eq!(mark.silence, 190);
        assert!(mark.boot != [0; 16] && mark.pid_namespace != 0 && mark.process_start != 0);
        assert_eq!(OwnerMark::decode(&mark.encode()).unwrap(), Some(mark.clone()));
        // A volume that this process has let go of, without a connection to say so over.
        assert_eq!(lives(&mark), Some(false));
        assert_eq!(lives(&OwnerMark { boot: [7; 16], ..mark.clone() }), None);
        assert_eq!(lives(&OwnerMark { pid_namespace: 7, ..mark.clone() }), None);
        assert_eq!(lives(&OwnerMark { process_start: 1, ..mark }), Some(false));
    }

    #[test]
    fn processes_of_this_machine_live_or_not() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let start = process(&child.id().to_string()).unwrap().start;
        let mark = OwnerMark { pid: child.id(), process_start: start, ..mine() };
        assert_eq!(lives(&mark), Some(true));
        let error = judge(mark.clone()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains(&format!("process {}", child.id())), "{error}");
        child.kill().unwrap();
        // Killed, and not waited for.
        let limit = Instant::now() + Duration::from_secs(10);
        while lives(&mark) == Some(true) && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(lives(&mark), Some(false));
        child.wait().unwrap();
        assert_eq!(lives(&mark), Some(false));
    }

    #[test]
    fn an_owner_elsewhere_is_watched() {
        let elsewhere = OwnerMark { boot: [7; 16], silence: 1, host: "store".into(), ..mine() };
        let mut watch = Watch::new("v", false);
        assert!(matches!(watch.judge(Ok(Some(elsewhere.clone()))), Ok(Verdict::Wait)));
        let error = watch.judge(Ok(Some(OwnerMark { beat: 2, ..elsewhere.clone() }))).err().unwrap();
        assert!(error.to_string().contains("on store") && error.to_string().contains("takeover"), "{error}");
        let mut watch = Watch::new("v", false);
        assert!(matches!(watch.judge(Ok(Some(elsewhere.clone()))), Ok(Verdict::Wait)));
        std::thread::sleep(Duration::from_millis(1100));
        assert!(matches!(watch.judge(Ok(Some(elsewhere.clone()))), Ok(Verdict::Free)));
        // Asked for, or too long to wait for.
        assert!(matches!(Watch::new("v", true).judge(Ok(Some(elsewhere.clone()))), Ok(Verdict::Free)));
        assert!(judge(OwnerMark { silence: 3600, ..elsewhere }).is_err());
        let damaged = || Err(Error::corrupt("damaged"));
        assert!(Watch::new("v", false).judge(damaged()).is_err());
        assert!(matches!(Watch::new("v", true).judge(damaged()), Ok(Verdict::Free)));
        assert!(matches!(Watch::new("v", false).judge(Ok(None)), Ok(Verdict::Free)));
    }
}
