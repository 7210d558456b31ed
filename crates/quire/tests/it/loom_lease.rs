//! Leases under loom: what a reader of the device believes is the file's own, and a holder that answers is
//! never surprised.
//!
//! The file has one block, and the device two. Moving the file writes its content to the other block, frees
//! the old one, and somebody else's content comes there.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quire-fs --test it loom_lease --release`

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use quire::internals::gate::{Gate, GateState};
use quire::internals::lease::{LeaseTable, Marks, Refused};
use quire_base::sync::Mutex;
use quire_base::sync::time::{Duration, Instant};
use std::sync::Arc;

const FILE: u64 = 7;
const OWN: usize = 1;
const FOREIGN: usize = 2;

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(body);
}

struct World {
    table: LeaseTable,
    marks: Marks,
    gate: Gate,
    /// Which block the file has; this lock is `meta`.
    place: Mutex<usize>,
    device: [AtomicUsize; 2],
}

impl World {
    fn new() -> Arc<World> {
        Arc::new(World {
            table: LeaseTable::default(),
            marks: Marks::default(),
            gate: Gate::new(),
            place: Mutex::new(0),
            device: [AtomicUsize::new(OWN), AtomicUsize::new(0)],
        })
    }

    /// As the engine gives a lease; reads the device, and checks what counts. `answers`: it returns the lease
    /// when it is recalled, and never finds it invalid before.
    fn hold(&self, answers: bool) {
        let lease = match self.table.ask(FILE, &self.marks, 0..1) {
            Ok(lease) => lease,
            Err(refused) => return assert_eq!(refused, Refused::Barred),
        };
        drop(self.gate.enter(GateState::Exclusive));
        let place = {
            let place = self.place.lock();
            self.table.grant(&lease, 1).then_some(*place)
        };
        if let Some(place) = place {
            let read = self.device[place].load(Ordering::Relaxed);
            if lease.is_valid() {
                assert_eq!(read, OWN, "a read that counts has another file's content");
            } else {
                assert!(!answers, "revoked in spite of a holder that answers");
            }
        }
        self.table.give_back(&lease, &self.marks);
    }

    /// The file gets its other block. The caller has the file to itself, or holds its segments.
    fn exchange(&self) {
        let mut place = self.place.lock();
        let other = 1 - *place;
        self.device[other].store(OWN, Ordering::Relaxed);
        if self.marks.now().is_leased() {
            self.table.revoke(FILE, &self.marks, std::slice::from_ref(&(0..1)));
        }
        let freed = std::mem::replace(&mut *place, other);
        self.device[freed].store(FOREIGN, Ordering::Relaxed);
    }

    /// As [`Engine::exclusively_moving`]: waits so long for leases.
    fn reshape(&self, limit: Duration) {
        let mut bar = None;
        loop {
            let permit = self.gate.enter(GateState::Exclusive);
            if self.marks.now().is_leased() && self.table.has(FILE, &(0..1)) {
                drop(permit);
                assert!(bar.is_none(), "a lease was given behind the bar");
                let bar = bar.insert(self.table.bar(FILE, 0..1));
                bar.await_returned(&self.marks, Instant::now() + limit);
                continue;
            }
            return self.exchange();
        }
    }
}

fn run(world: &Arc<World>, work: impl FnOnce(&World) + Send + 'static) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || work(&world))
}

/// An operation waits for the holder, which therefore never finds its lease revoked.
#[test]
fn a_holder_that_answers_is_not_surprised() {
    model(|| {
        let world = World::new();
        let holder = run(&world, |world| world.hold(true));
        world.reshape(Duration::from_secs(3600));
        holder.join().unwrap();
        assert_eq!(world.table.counts().revocations, 0);
        assert!(!world.marks.now().is_leased());
    });
}

/// An operation does not wait: what the holder read in vain, it knows.
#[test]
fn a_revoked_holder_believes_nothing() {
    model(|| {
        let world = World::new();
        let holder = run(&world, |world| world.hold(false));
        world.reshape(Duration::ZERO);
        holder.join().unwrap();
        assert!(!world.marks.now().is_leased());
    });
}

/// A change of extents behind nobody's recall, as by the write-back of a write that began before the lease.
#[test]
fn a_change_without_a_recall_revokes() {
    model(|| {
        let world = World::new();
        let holder = run(&world, |world| world.hold(false));
        world.exchange();
        holder.join().unwrap();
        assert!(!world.marks.now().is_leased());
    });
}

/// A holder that comes back at once does not keep an operation waiting: what asks while one waits is refused.
#[test]
fn an_operation_recalls_once() {
    model(|| {
        let world = World::new();
        let holder = run(&world, |world| {
            world.hold(true);
            world.hold(true);
        });
        world.reshape(Duration::from_secs(3600));
        holder.join().unwrap();
        assert!(world.table.counts().recalls <= 1);
        assert_eq!(world.table.counts().revocations, 0);
    });
}

/// Two holders, and an operation that waits for both.
#[test]
fn two_holders() {
    model(|| {
        let world = World::new();
        let holders = [(); 2].map(|()| run(&world, |world| world.hold(true)));
        world.reshape(Duration::from_secs(3600));
        holders.into_iter().for_each(|holder| holder.join().unwrap());
        assert_eq!(world.table.counts().revocations, 0);
        assert_eq!(world.table.counts().held, 0);
    });
}
