//! Stop signals reach the program.

use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Every subcommand blocked the stop signals, and only `locks` looked at the flag that they set: the others
/// could not be stopped.
#[test]
fn a_subcommand_that_looks_at_no_flag_ends_with_a_signal() {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_lab"));
    let mut lab = lab.args(["cores", "--seconds", "100"]).stdout(Stdio::null()).spawn().unwrap();
    // Time enough to set signals up; a program that does not ends all the same.
    std::thread::sleep(Duration::from_millis(500));
    kill_process(Pid::from_child(&lab), Signal::TERM).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    let status = loop {
        match lab.try_wait().unwrap() {
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            status => break status,
        }
    };
    if status.is_none() {
        lab.kill().unwrap();
        lab.wait().unwrap();
    }
    assert_eq!(status.and_then(|status| status.signal()), Some(libc::SIGTERM));
}
