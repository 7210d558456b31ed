//! Keeps the threads that receive requests free.
//!
//! A transport has a few *session threads*; each receives a request and would like to answer it in place,
//! since handing over costs a wake-up. But most requests may have to wait: for a
//! read from the device, for the dirty limit, for journal space. If all session threads waited, requests
//! that could be answered at once (and requests that others wait for) would queue behind them.
//!
//! Protocol: before work that may wait, a session thread asks for a *place* ([`Background::place`]). There
//! are fewer places than session threads, so one thread at least stays with the transport. Without a place
//! the request goes, as it is, to the pool ([`Background::spawn`]), whose threads are started on demand, up
//! to a limit, and end when idle. Work known to be long goes to the pool at once.
//!
//! A job that waits for a program (a lease that is to be returned) does not count: the pool has one thread
//! more for each of these, up to [`RELIEVED_MAX`]. A program may take long, and may need the mount before it
//! goes on.
//!
//! Invariants: a job, once spawned, runs, also when the pool is being closed ([`Background::finish`] waits
//! for all). A job that panics ends alone; its thread goes on. Jobs never wait for other jobs. Jobs that
//! exceed the limit of threads queue; their number is bounded by the callers that the kernel has waiting.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use quire_base::patience::{self, Relief};
use quire_base::sync::atomic::{AtomicUsize, Ordering};
use quire_base::sync::{Arc, Condvar, Mutex, MutexGuard, Weak, thread};

type Job = Box<dyn FnOnce() + Send>;

/// Threads of the pool at most.
const THREADS_MAX: usize = 64;
/// Threads that may wait for programs beside those.
const RELIEVED_MAX: usize = 1024;
/// How long a thread of the pool waits for work before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// See the module's documentation.
pub struct Background {
    places: usize,
    taken: AtomicUsize,
    pool: Arc<Pool>,
}

/// The right to wait on a session thread; given back when dropped.
pub struct Place<'a>(&'a Background);

struct Pool {
    this: Weak<Pool>,
    state: Mutex<State>,
    work: Condvar,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// Threads that wait for programs.
    relieved: usize,
    closing: bool,
}

impl Background {
    /// For a transport `places` of whose threads may wait at a time.
    pub fn new(places: usize) -> Background {
        Background { places, taken: AtomicUsize::new(0), pool: Pool::new() }
    }

    /// A place to wait on the calling session thread, if one is free.
    pub fn place(&self) -> Option<Place<'_>> {
        // Relaxed: the count bounds threads, it publishes nothing.
        if self.taken.fetch_add(1, Ordering::Relaxed) < self.places {
            return Some(Place(self));
        }
        self.taken.fetch_sub(1, Ordering::Relaxed);
        None
    }

    /// Runs `job` on a thread of the pool.
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.pool.state.lock();
        state.queue.push_back(Box::new(job));
        self.begin(state, THREADS_MAX);
    }

    /// As [`Background::spawn`], before all that waits; if all threads are taken, on one more.
    pub fn spawn_first(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.pool.state.lock();
        state.queue.push_front(Box::new(job));
        self.begin(state, THREADS_MAX + 1);
    }

    fn begin(&self, state: MutexGuard<'_, State>, threads_max: usize) {
        if let Err(error) = self.pool.add_thread(state, threads_max) {
            tracing::warn!("no further thread for requests that wait: {error}");
            // With no thread at all the queue would stand still: the caller works it off itself.
            if self.pool.state.lock().threads == 0 {
                self.pool.help();
            }
        }
    }

    /// Runs what is queued to its end and ends the threads. Later jobs still run, on the caller's thread.
    pub fn finish(&self) {
        let mut state = self.pool.state.lock();
        state.closing = true;
        self.pool.work.notify_all();
        while state.threads > 0 {
            self.pool.ended.wait(&mut state);
        }
        drop(state);
        self.pool.help();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A thread of the pool waits for a program: another one may take its place.
impl Relief for Pool {
    fn begin(&self) {
        let mut state = self.state.lock();
        state.relieved += 1;
        if !state.queue.is_empty()
            && let Some(pool) = self.this.upgrade()
        {
            // Without one the queue waits for the threads that there are.
            let _ = pool.add_thread(state, THREADS_MAX);
        }
    }

    fn end(&self) {
        self.state.lock().relieved -= 1;
    }
}

fn run(job: Job) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        tracing::error!("a request that waits, or what is done beside requests, panicked");
    }
}

impl Pool {
    fn new() -> Arc<Pool> {
        Arc::new_cyclic(|this| Pool {
            this: this.clone(),
            state: Mutex::new(State::default()),
            work: Condvar::new(),
            ended: Condvar::new(),
        })
    }

    /// Has what is queued begun: by a thread that is idle, or by one more if there may be `threads_max`.
    fn add_thread(
        self: &Arc<Pool>,
        mut state: MutexGuard<'_, State>,
        threads_max: usize,
    ) -> std::io::Result<()> {
        let threads_max = threads_max + state.relieved.min(RELIEVED_MAX);
        if state.idle >= state.queue.len() || state.threads >= threads_max {
            drop(state);
            self.work.notify_one();
            return Ok(());
        }
        state.threads += 1;
        drop(state);
        let pool = self.clone();
        let spawned = thread::Builder::new().name("quire-wait".into()).spawn(move || Pool::serve(&pool));
        spawned.map(drop).inspect_err(|_| self.state.lock().threads -= 1)
    }

    fn serve(pool: &Arc<Pool>) {
        patience::relieved_by(pool.clone());
        let mut state = pool.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                run(job);
                state = pool.state.lock();
                continue;
            }
            if state.closing {
                break;
            }
            state.idle += 1;
            let timed_out = pool.work.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        pool.ended.notify_all();
    }

    fn help(&self) {
        loop {
            let job = self.state.lock().queue.pop_front();
            match job {
                Some(job) => run(job),
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn no_more_places_than_there_are() {
        let background = Background::new(2);
        let first = background.place().expect("first place");
        let second = background.place().expect("second place");
        assert!(background.place().is_none());
        drop(first);
        let third = background.place();
        assert!(third.is_some());
        drop(second);
        drop(third);
        assert!(Background::new(0).place().is_none());
    }

    #[test]
    fn jobs_that_wait_for_each_other_run_side_by_side() {
        let background = Background::new(2);
        let barrier = Arc::new(std::sync::Barrier::new(8));
        let (done, results) = mpsc::channel();
        for number in 0..8 {
            let (barrier, done) = (barrier.clone(), done.clone());
            background.spawn(move || {
                barrier.wait();
                done.send(number).unwrap();
            });
        }
        let mut seen: Vec<_> =
            (0..8).map(|_| results.recv_timeout(Duration::from_secs(10)).unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..8).collect::<Vec<_>>());
        background.finish();
    }

    /// The watcher of interrupted requests queued behind the requests that it was to cut short.
    #[test]
    fn what_comes_first_does_not_wait_for_the_pool() {
        let background = Background::new(1);
        let (end, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let (done, results) = mpsc::channel();
        for _ in 0..THREADS_MAX + 3 {
            let (wait, done) = (wait.clone(), done.clone());
            background.spawn(move || {
                let _ = wait.lock().recv();
                done.send("late").unwrap();
            });
        }
        let first = done.clone();
        background.spawn_first(move || first.send("first").unwrap());
        assert_eq!(results.recv_timeout(Duration::from_secs(10)).unwrap(), "first");
        drop(end);
        background.finish();
        drop(done);
        assert_eq!(results.iter().count(), THREADS_MAX + 3);
    }

    /// Requests that waited for leases to be returned had all threads, and those of other programs, of the
    /// holders too, waited with them.
    #[test]
    fn waits_for_programs_do_not_count() {
        let background = Background::new(1);
        let (end, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        for _ in 0..2 * THREADS_MAX {
            let wait = wait.clone();
            background.spawn(move || {
                let _program = patience::for_a_program();
                let _ = wait.lock().recv();
            });
        }
        let (done, results) = mpsc::channel();
        background.spawn(move || done.send(()).unwrap());
        results.recv_timeout(Duration::from_secs(10)).expect("it waits for no program");
        drop(end);
        background.finish();
    }

    /// The thread of a job that panicked was counted for ever, and the unmount waited for its end.
    #[test]
    fn a_job_that_panics_holds_nobody_up() {
        let background = Background::new(1);
        background.spawn(|| panic!("as the test wants it"));
        let (done, results) = mpsc::channel();
        let after = done.clone();
        background.spawn(move || after.send("job").unwrap());
        assert_eq!(results.recv_timeout(Duration::from_secs(10)), Ok("job"));
        thread::spawn(move || {
            background.finish();
            done.send("finish").unwrap();
        });
        assert_eq!(results.recv_timeout(Duration::from_secs(10)), Ok("finish"));
    }

    #[test]
    fn finish_runs_everything_that_was_spawned() {
        let background = Background::new(1);
        let count = Arc::new(AtomicUsize::new(0));
        for _ in 0..500 {
            let count = count.clone();
            background.spawn(move || {
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        background.finish();
        assert_eq!(count.load(Ordering::Relaxed), 500);
    }
}
