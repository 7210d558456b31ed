//! `lab cores`: what operations would do on more cores than this machine has.
//!
//! Three things go in. The time of an operation alone is measured here, on a volume in memory. So is the time
//! that a cache line takes from one core to another. Which lines an operation shares with its like, and how
//! often it visits each, is [`OPERATIONS`]; the report of [`conflicts`](mod@crate::conflicts) counts them. A
//! simulation ([`queue`]) then lets so many cores repeat the operation: each works by itself, and waits its
//! turn at each line that it shares.
//!
//! What comes out is a bound from above. It knows neither the bandwidth of memory, nor the distance between
//! sockets (`--transfer` stands for it), nor locks whose holders lose their processor. Two threads of this
//! machine are measured as well, as a check of the first step.
//!
//! Neighbours: docs/scale.md draws conclusions.

pub mod queue;

use crate::arguments::Cores;
use queue::{Line, Model};
use quire::backend::MemoryBackend;
use quire::inodes::{Create, InodeRef, IoFlags};
use quire::{FormatOptions, Volume, VolumeOptions};
use quire_base::sync::Arc;
use quire_base::{BLOCK_SIZE, Result};
use quire_bench::outcome::{Outcome, failed, os};
use quire_bench::report::table::align;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of each file that is read or written, more than one folio.
const FILE_BYTES: u64 = 4 << 20;
/// Blocks of the volume: room for what the operations leave until a checkpoint.
const VOLUME_BLOCKS: u64 = 1 << 19;
/// Cores of the simulated machines.
const CORES: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Time that two cores hand a line to and fro.
const HANDING: Duration = Duration::from_millis(200);

/// What one thread works on.
struct Place {
    volume: Arc<Volume>,
    directory: InodeRef,
    file: InodeRef,
}

type Act = fn(&Place, u64) -> Result<()>;

/// An operation, and the lines that it shares with its like.
pub struct Operation {
    /// As in the report.
    pub name: &'static str,
    /// All threads work in one directory.
    pub one_directory: bool,
    /// The lines, each with the visits of one operation that write it.
    pub lines: &'static [Line],
    act: Act,
}

/// One order of all changes: a transaction reserves, appends, and gives back what it did not need.
const JOURNAL: Line = Line { name: "the journal's ends", visits: 3 };
/// The line in which one record ends and the next begins.
const BETWEEN: Line = Line { name: "the line between two records", visits: 1 };
const LIVENESS: Line = Line { name: "the directory's liveness", visits: 2 };
const NEWEST: Line = Line { name: "the directory's Seq", visits: 1 };

/// A file's life is a create and an unlink: two transactions.
const CREATE_UNLINK: [Line; 2] = [Line { visits: 6, ..JOURNAL }, Line { visits: 2, ..BETWEEN }];
const CREATE_UNLINK_SHARED: [Line; 4] =
    [CREATE_UNLINK[0], CREATE_UNLINK[1], Line { visits: 4, ..LIVENESS }, Line { visits: 2, ..NEWEST }];

/// The operations.
pub const OPERATIONS: [Operation; 5] = [
    Operation {
        name: "cached read of 4 KiB",
        one_directory: false,
        lines: &[],
        act: |place, n| {
            let at = n * BLOCK_SIZE as u64 % FILE_BYTES;
            place.volume.inodes().read_at(&place.file, &mut [0; BLOCK_SIZE], at, IoFlags::empty()).map(drop)
        },
    },
    Operation {
        name: "cached write of 4 KiB",
        one_directory: false,
        lines: &[],
        act: |place, n| {
            let at = n * BLOCK_SIZE as u64 % FILE_BYTES;
            place.volume.inodes().write_at(&place.file, &[7; BLOCK_SIZE], at, IoFlags::empty()).map(drop)
        },
    },
    Operation {
        name: "chmod",
        one_directory: false,
        lines: &[JOURNAL, BETWEEN],
        act: |place, n| {
            let mode = Some(0o600 + (n % 2) as u32);
            let set = quire::inodes::SetAttributes { mode, ..Default::default() };
            place.volume.inodes().set_attributes(&place.file, &set).map(drop)
        },
    },
    Operation {
        name: "create and unlink, own directory",
        one_directory: false,
        lines: &CREATE_UNLINK,
        act: create_and_unlink,
    },
    Operation {
        name: "create and unlink, one directory",
        one_directory: true,
        lines: &CREATE_UNLINK_SHARED,
        act: create_and_unlink,
    },
];

fn create_and_unlink(place: &Place, n: u64) -> Result<()> {
    let name = format!("{}-{n}", place.file.number());
    place.volume.inodes().create(&place.directory, name.as_bytes(), &Create::file(0o644))?;
    place.volume.inodes().remove_file(&place.directory, name.as_bytes())
}

/// A volume in memory with a place for each thread.
fn places(operation: &Operation, threads: usize) -> Result<Vec<Place>> {
    let backend = Arc::new(MemoryBackend::new(VOLUME_BLOCKS));
    FormatOptions::new().seed(1).format_backend(backend.clone())?;
    let volume = Arc::new(VolumeOptions::new().cache_bytes(256 << 20).open_backend(backend)?);
    let root = volume.inodes().root();
    let shared = volume.inodes().create(&root, b"shared", &Create::directory(0o755))?;
    let make = |thread: usize| {
        let own =
            volume.inodes().create(&root, format!("d{thread}").as_bytes(), &Create::directory(0o755))?;
        let file = volume.inodes().create(&own, b"file", &Create::file(0o644))?;
        for at in (0..FILE_BYTES).step_by(1 << 20) {
            volume.inodes().write_at(&file, &[1; 1 << 20], at, IoFlags::empty())?;
        }
        let directory = if operation.one_directory { shared.clone() } else { own };
        Ok(Place { volume: volume.clone(), directory, file })
    };
    let places = (0..threads).map(make).collect::<Result<_>>()?;
    volume.sync()?;
    Ok(places)
}

/// Operations a second of so many threads.
fn measure(operation: &Operation, threads: usize, time: Duration) -> Outcome<f64> {
    let (places, begin) = (places(operation, threads)?, Barrier::new(threads));
    let work = |place: &Place| -> Result<(u64, Duration)> {
        begin.wait();
        let (start, mut done) = (Instant::now(), 0);
        while start.elapsed() < time {
            for _ in 0..64 {
                (operation.act)(place, done)?;
                done += 1;
            }
        }
        Ok((done, start.elapsed()))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = places.iter().map(|place| scope.spawn(|| work(place))).collect();
        let mut rate = 0.0;
        for thread in threads {
            let (done, elapsed) = thread.join().map_err(|_| failed("a measured thread panicked"))??;
            rate += done as f64 / elapsed.as_secs_f64();
        }
        Ok(rate)
    })
}

/// Nanoseconds in which a line that another core has written can be written here: those of the quickest of
/// many short exchanges, since in others a thread lost its processor. Each of the two keeps to a processor of
/// its own.
fn transfer_ns() -> Outcome<f64> {
    const TURNS: u64 = 64;
    let (word, start) = (AtomicU64::new(0), Instant::now());
    // The first side makes the word odd, the other makes it even again, until it says that all is over.
    let [here, there] = two_processors()?;
    let other = || {
        keep_to(there);
        loop {
            match word.load(Ordering::Acquire) {
                u64::MAX => break,
                value if value % 2 == 1 => word.store(value + 1, Ordering::Release),
                _ => std::hint::spin_loop(),
            }
        }
    };
    let measure = || {
        keep_to(here);
        let (mut value, mut quickest) = (0, f64::INFINITY);
        while start.elapsed() < HANDING {
            let batch = Instant::now();
            for _ in 0..TURNS {
                word.store(value + 1, Ordering::Release);
                value += 2;
                while word.load(Ordering::Acquire) != value {
                    std::hint::spin_loop();
                }
            }
            quickest = quickest.min(batch.elapsed().as_nanos() as f64 / (2 * TURNS) as f64);
        }
        word.store(u64::MAX, Ordering::Release);
        quickest
    };
    std::thread::scope(|scope| {
        scope.spawn(other);
        scope.spawn(measure).join().map_err(|_| failed("the measuring thread panicked"))
    })
}

/// Two processors that this process may use.
fn two_processors() -> Outcome<[usize; 2]> {
    let allowed = sched_getaffinity(None).map_err(|error| os("asking for the processors")(error.into()))?;
    let mut processors = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    match (processors.next(), processors.next()) {
        (Some(one), Some(other)) => Ok([one, other]),
        _ => Err(failed("there is one processor only: say with --transfer how long a line takes")),
    }
}

fn keep_to(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    // If the system refuses, the measured time may be too long.
    let _ = sched_setaffinity(None, &set);
}

/// `lab cores`.
pub fn run(arguments: &Cores) -> Outcome {
    let transfer = arguments.transfer.map_or_else(transfer_ns, Ok)?;
    println!("a line takes {transfer:.0} ns from core to core");
    let time = Duration::from_secs_f64(arguments.seconds);
    let mut heading = vec!["operations/s".to_owned(), "1 here".into(), "2 here".into()];
    heading.extend(CORES.map(|cores| cores.to_string()));
    heading.push("what bounds it".into());
    let mut lines = vec![heading];
    for operation in &OPERATIONS {
        let alone = measure(operation, 1, time)?;
        let mut line = vec![operation.name.to_owned(), show(alone), show(measure(operation, 2, time)?)];
        let model = Model { alone_ns: 1e9 / alone, transfer_ns: transfer, lines: operation.lines };
        let mut bound = "nothing up to 128 cores";
        for cores in CORES {
            let outcome = model.run(cores, arguments.seed);
            line.push(show(outcome.per_second));
            bound = outcome.busiest.unwrap_or(bound);
        }
        line.push(bound.into());
        lines.push(line);
    }
    print!("{}", align(&lines));
    Ok(())
}

fn show(rate: f64) -> String {
    if rate >= 1e7 { format!("{:.0} M", rate / 1e6) } else { format!("{:.0} k", rate / 1e3) }
}
