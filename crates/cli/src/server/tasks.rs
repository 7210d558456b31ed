//! Work that the server of a mount does at the request of a program, and that may take a while: each piece
//! has a number, by which the program asks how it is going.
//!
//! A task runs on a thread of its own. A program that goes away does not end it; it ends by itself, or with
//! the server. The last [`KEPT_MAX`] that have ended are remembered.
//!
//! ```text
//!   {"task": 3, "state": "running"}
//!   {"task": 3, "state": "done"}
//!   {"task": 3, "state": "failed", "code": 39, "why": "..."}
//! ```
//!
//! Neighbours: [`super::listener`] hears requests; [`super::snapshots`] and [`super::room`] start tasks;
//! [`crate::task`] waits for them in the commands.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::exit::{self, Failure, Outcome};

/// Tasks that may run at a time.
const RUNNING_MAX: usize = 16;
/// Tasks that are remembered once they have ended.
const KEPT_MAX: usize = 64;
/// The tasks of a server.
#[derive(Clone, Default)]
pub struct ServerTasks(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    last: u64,
    tasks: BTreeMap<u64, ServerTask>,
}

/// How one is going.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerTask {
    /// It is at work.
    Running,
    /// It has succeeded.
    Done,
    /// It has failed.
    Failed(Failure),
}

impl ServerTasks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a task; gives its number.
    pub fn start(&self, body: impl FnOnce() -> Outcome + Send + 'static) -> Outcome<u64> {
        let mut state = self.state();
        if state.tasks.values().filter(|task| **task == ServerTask::Running).count() >= RUNNING_MAX {
            return Err(Failure::new(exit::BUSY, "the server does a lot at present: try again later"));
        }
        state.last += 1;
        let number = state.last;
        state.tasks.insert(number, ServerTask::Running);
        state.forget();
        drop(state);
        let tasks = self.clone();
        let run = move || {
            let end = match body() {
                Ok(()) => ServerTask::Done,
                Err(failure) => ServerTask::Failed(failure),
            };
            tasks.state().tasks.insert(number, end);
        };
        let spawned = quire_base::sync::thread::Builder::new().name("quire-task".into()).spawn(run);
        spawned.map(|_| number).map_err(|error| {
            self.state().tasks.remove(&number);
            Failure::system("starting a thread", &error)
        })
    }

    /// Answers how a task is going.
    pub fn answer(&self, number: u64) -> Outcome<String> {
        match self.state().tasks.get(&number) {
            Some(task) => Ok(format!("{}\n", task.json(number))),
            None => Err(Failure::new(exit::MISSING, format!("the server knows no task {number}"))),
        }
    }
}

impl State {
    fn forget(&mut self) {
        let ended = self.tasks.iter().filter(|(_, task)| **task != ServerTask::Running);
        let numbers: Vec<u64> = ended.map(|(number, _)| *number).collect();
        for number in &numbers[..numbers.len().saturating_sub(KEPT_MAX)] {
            self.tasks.remove(number);
        }
    }
}

impl ServerTask {
    fn json(&self, number: u64) -> Value {
        match self {
            ServerTask::Running => json!({ "task": number, "state": "running" }),
            ServerTask::Done => json!({ "task": number, "state": "done" }),
            ServerTask::Failed(failure) => json!({
                "task": number, "state": "failed", "code": failure.code, "why": failure.message,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(tasks: &ServerTasks, number: u64) -> Value {
        loop {
            let answer: Value = serde_json::from_str(&tasks.answer(number).unwrap()).unwrap();
            if answer["state"] != "running" {
                return answer;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn tasks_end_and_are_forgotten() {
        let tasks = ServerTasks::default();
        let first = tasks.start(|| Err(Failure::new(39, "full"))).unwrap();
        let failed = ended(&tasks, first);
        assert_eq!(
            (&failed["state"], &failed["code"], &failed["why"]),
            (&json!("failed"), &json!(39), &json!("full"))
        );
        for _ in 0..2 * KEPT_MAX {
            let number = tasks.start(|| Ok(())).unwrap();
            assert_eq!(ended(&tasks, number)["state"], "done");
        }
        assert_eq!(tasks.answer(first).unwrap_err().code, 37);
        assert!(tasks.state().tasks.len() <= KEPT_MAX + 1);
    }

    #[test]
    fn a_server_does_so_much_at_a_time() {
        let tasks = ServerTasks::default();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let ends = Arc::new(Mutex::new(ends));
        for _ in 0..RUNNING_MAX {
            let ends = ends.clone();
            tasks
                .start(move || {
                    let _ = ends.lock().unwrap().recv();
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(tasks.start(|| Ok(())).unwrap_err().code, 36);
        drop(end);
    }
}
