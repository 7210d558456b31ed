//! Waiting for what a server does at a command's request ([`crate::server::tasks`]).

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::control;
use crate::exit::{self, Failure, Outcome};

/// Between two looks at a task: at first, and at most.
const LOOKS: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(200));

/// Makes a request that starts a task, and waits for its end, however long the server takes to say how it is
/// going. `look` is called between two looks.
pub fn wait(dir: &Path, request: &str, look: &mut dyn FnMut() -> Outcome) -> Outcome {
    let odd = || Failure::new(exit::FAILED, format!("the server of {} gave an odd answer", dir.display()));
    let parse = |answer: String| serde_json::from_str::<Value>(&answer).map_err(|_| odd());
    let mut task = parse(control::ask(dir, request)?)?;
    let number = task["task"].as_u64().ok_or_else(odd)?;
    let mut pause = LOOKS.0;
    loop {
        match task["state"].as_str() {
            Some("done") => return Ok(()),
            Some("failed") => {
                let code = task["code"].as_u64().and_then(|code| u8::try_from(code).ok());
                let why = task["why"].as_str().unwrap_or_default();
                return Err(Failure::new(code.unwrap_or(exit::FAILED), why));
            }
            Some("running") => {}
            _ => return Err(odd()),
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(LOOKS.1);
        look()?;
        task = parse(control::ask_patiently(dir, &format!("task {number}"))?)?;
    }
}
