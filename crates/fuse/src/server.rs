//! A volume's requests: from [`Exchange`]s to [`crate::operations`] and back.
//!
//! Each request is of one kind ([`Kind`]):
//! * *quick*: answered in place, never waits (attributes, statfs);
//! * *may wait*: where the receiving thread may be held, in place while a place is free
//!   ([`crate::background`]); else what turns out to need no waiting at once, the rest on the pool, as it is;
//! * *long*: on the pool at once (large truncates and allocations, copies, names on a mount with `dirsync`);
//! * *sync*: answered by the engine's own threads;
//! * *sync all*: on the pool, for a bounded time without progress of the device;
//! * *end of a group*: as *may wait*, but never at once; the kernel is told that what it keeps of the file
//!   may be wrong, and then the request is answered ([`groups`]);
//! * *change of pages*: as *may wait*, but never at once; answered when the kernel has dropped the pages that
//!   it keeps ([`drops`]);
//! * *destroy*: the last request of a mount with a block device; the session answers when the volume is
//!   closed;
//! * *forget*: in place, without a reply;
//! * *interrupt*: without a reply; the request that it means may be given up ([`pending`]).
//!
//! Invariant: once requests are refused, each is answered `ENOTCONN` without touching the volume.
//! Neighbours: [`crate::transport`] calls in; [`crate::protocol`] decodes and encodes.

mod answer;
mod drops;
mod groups;
pub(crate) mod meters;
mod pending;

use std::sync::OnceLock;
use std::time::Duration;

use crossbeam_channel::Sender;
use quire_base::sync::atomic::{AtomicBool, Ordering};
use quire_base::sync::{Arc, thread};
use quire_base::{Error, Result, patience};

use crate::background::Background;
use crate::errno::NOT_CONNECTED;
use crate::operations::ioctl::{self, SYNC};
use crate::operations::{CacheMode, Operations, snapshots};
use crate::protocol::abi;
use crate::protocol::negotiate::Features;
use crate::protocol::request::{Malformed, Operation, Request};
use crate::transport::device::Notifier;
use crate::transport::{Exchange, Handler, Outcome};
use meters::Received;
use pending::Pending;

/// Changes that a mount makes durable before it answers them. Writes are not among them: the kernel marks
/// each write that must be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    Nothing,
    /// `-o dirsync`.
    Names,
    /// `-o sync`: sizes and attributes, too.
    All,
}

impl Promise {
    fn covers(self, operation: &Operation) -> bool {
        match self {
            Promise::Nothing => false,
            Promise::Names => operation.changes_names(),
            Promise::All => operation.changes_names() || operation.changes_attributes(),
        }
    }
}

/// What all threads of a volume's mount share.
pub(crate) struct Server {
    operations: Operations,
    background: Background,
    /// Has the kernel drop pages.
    drops: Background,
    pending: Pending,
    refused: AtomicBool,
    /// What is durable before it is answered.
    promise: Promise,
    /// How long a sync of the whole volume waits for a device that does nothing.
    sync_patience: Duration,
    /// What the mount is, once that is known.
    facts: OnceLock<Facts>,
    /// Tells the kernel what it does not know.
    notifier: OnceLock<Notifier>,
    /// The session hears here that the mount is gone.
    session: Sender<Event>,
}

/// What a mount is, for those who ask.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// How requests travel: `ring`, or `dev` with the reason.
    pub(crate) transport: String,
    /// Whether `syncfs` and `sync` reach the server.
    pub(crate) syncfs: String,
}

/// What a session waits for.
pub(crate) enum Event {
    /// The threads that receive requests have ended.
    Ended(Result<()>),
    /// A stop signal has come.
    Signal(i32),
    /// The unmount that a signal asked for is over.
    Unmounted,
    /// The mount is gone, and the kernel waits for the answer.
    Destroy(Answer),
}

/// Sends a reply.
pub(crate) type Answer = Box<dyn FnOnce() + Send>;

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Quick,
    MayWait,
    Long,
    Sync {
        node: u64,
        data_only: bool,
    },
    /// As a control request or not.
    SyncAll {
        control: bool,
    },
    EndOfGroup,
    ChangeOfPages,
    Destroy,
    Forget,
    Interrupt {
        unique: u64,
    },
}

/// The error number for a failure, noted where it means trouble.
fn number(error: &Error) -> i32 {
    use quire_base::ErrorKind::{Corrupt, Io, Shutdown, Stale};
    match error.kind() {
        Io | Corrupt | Shutdown | Stale => tracing::warn!("{error}"),
        _ => tracing::trace!("{error}"),
    }
    error.errno()
}

impl Server {
    /// Of `places` requests at a time each may wait on the thread that received it. Changes that `promise`
    /// names are durable before they are answered.
    pub(crate) fn new(
        operations: Operations,
        places: usize,
        promise: Promise,
        sync_patience: Duration,
        session: Sender<Event>,
    ) -> Server {
        meters::meters().watch(operations.kept());
        Server {
            operations,
            background: Background::new(places),
            drops: Background::new(0),
            pending: Pending::default(),
            refused: AtomicBool::new(false),
            promise,
            sync_patience,
            facts: OnceLock::new(),
            notifier: OnceLock::new(),
            session,
        }
    }
    pub(crate) fn operations(&self) -> &Operations {
        &self.operations
    }
    /// Answers what was put off, and ends the threads.
    pub(crate) fn finish(&self) {
        self.background.finish();
        self.drops.finish();
    }
    /// Says what the mount is, once.
    pub(crate) fn set_facts(&self, facts: Facts) {
        let _ = self.facts.set(facts);
    }
    /// Answers every later request with `ENOTCONN`.
    pub(crate) fn refuse(&self) {
        self.refused.store(true, Ordering::SeqCst);
    }

    /// Whether requests are answered `ENOTCONN`.
    fn is_refusing(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    fn kind(&self, request: &Request) -> Kind {
        let data_only = |args: &abi::FsyncIn| args.flags & abi::FSYNC_DATA_ONLY != 0;
        match &request.operation {
            Operation::Forget { .. } | Operation::BatchForget(_) => Kind::Forget,
            Operation::Fsync(args) | Operation::Fsyncdir(args) => {
                Kind::Sync { node: request.header.nodeid, data_only: data_only(args) }
            }
            // The snapshot may have to be opened.
            Operation::Getattr | Operation::Statx(_) | Operation::Setattr(_)
                if snapshots::is_node(request.header.nodeid) =>
            {
                Kind::MayWait
            }
            Operation::Getattr
            | Operation::Statx(_)
            | Operation::Statfs
            | Operation::Init { .. }
            | Operation::Unknown => Kind::Quick,
            Operation::Destroy => Kind::Destroy,
            Operation::Interrupt { unique } => Kind::Interrupt { unique: *unique },
            Operation::Syncfs => Kind::SyncAll { control: false },
            Operation::Ioctl(args, _) if args.command == SYNC => Kind::SyncAll { control: true },
            Operation::Ioctl(args, _) if ioctl::is_quick(args.command) => Kind::Quick,
            Operation::Ioctl(args, _) if ioctl::is_long(args.command) => Kind::Long,
            Operation::Ioctl(args, _) if ioctl::ends_group(args.command) => Kind::EndOfGroup,
            Operation::Write { args, .. }
                if args.write_flags & abi::WRITE_CACHE == 0
                    && self.operations.changes_kept_pages(request.header.nodeid) =>
            {
                Kind::ChangeOfPages
            }
            Operation::Open(args)
                if args.flags as i32 & libc::O_ACCMODE != libc::O_RDONLY
                    && self.operations.changes_kept_pages(request.header.nodeid) =>
            {
                Kind::ChangeOfPages
            }
            Operation::Release(args) if self.operations.has_group(args.handle) => Kind::EndOfGroup,
            Operation::CopyFileRange { args, .. }
                if self.operations.is_long_copy(args.handle, args.offset, args.length) =>
            {
                Kind::Long
            }
            Operation::Fallocate(args) if self.operations.is_long_allocation(args.handle, args.length) => {
                Kind::Long
            }
            Operation::Setattr(args)
                if args.valid & abi::setattr::SIZE != 0
                    && self.operations.is_long_resize(request.header.nodeid, args.size) =>
            {
                Kind::Long
            }
            operation if self.promise.covers(operation) => Kind::Long,
            _ => Kind::MayWait,
        }
    }

    fn forget<E: Exchange>(&self, exchange: Received<E>) {
        let Request { header, operation } = exchange.request();
        match operation {
            Operation::Forget { count } => self.operations.forget(header.nodeid, count),
            Operation::BatchForget(all) => {
                let all = exchange.message().forgets(all);
                all.for_each(|one| self.operations.forget(one.node, one.count));
            }
            _ => {}
        }
        exchange.no_reply();
    }

    fn answer_and_reply<E: Exchange>(self: &Arc<Server>, mut exchange: Received<E>) {
        let outcome = if self.is_refusing() { Err(NOT_CONNECTED) } else { self.answer(&mut exchange) };
        self.reply(exchange, outcome);
    }

    /// Replies; of a write only when no page shows what was there before. The mark of such pages may have
    /// come while the write was at work.
    fn reply<E: Exchange>(self: &Arc<Server>, exchange: Received<E>, outcome: Outcome) {
        let request = exchange.request();
        let writes = matches!(
            request.operation,
            Operation::Write { args, .. } if args.write_flags & abi::WRITE_CACHE == 0
        );
        if writes && self.operations.changes_kept_pages(request.header.nodeid) {
            return self.reply_without_pages(exchange, outcome);
        }
        exchange.reply(outcome);
    }

    /// Answers here what needs no waiting after all; the rest, unchanged, on the pool.
    fn at_once_or_later<E: Exchange>(self: &Arc<Server>, mut exchange: Received<E>) {
        if self.is_refusing() {
            return exchange.reply(Err(NOT_CONNECTED));
        }
        match self.try_answer(&mut exchange) {
            Some(outcome) => self.reply(exchange, outcome),
            None => self.later(exchange),
        }
    }

    fn later<E: Exchange>(self: &Arc<Server>, exchange: Received<E>) {
        self.on_the_pool(exchange, |server, exchange| server.answer_and_reply(exchange));
    }

    fn on_the_pool<E: Exchange>(
        self: &Arc<Server>,
        exchange: Received<E>,
        work: fn(&Arc<Server>, Received<E>),
    ) {
        let ticket = self.pending.add(exchange);
        let server = self.clone();
        self.background.spawn(move || {
            if let Some(exchange) = server.pending.take(ticket) {
                work(&server, exchange);
            }
        });
    }

    fn sync_and_reply<E: Exchange>(self: &Arc<Server>, exchange: E, node: u64, data_only: bool) {
        let ticket = self.pending.add(exchange);
        let server = self.clone();
        let done = move |done: Result<()>| {
            if let Some(exchange) = server.pending.take(ticket) {
                exchange.reply(done.map(|()| 0).map_err(|error| number(&error)));
            }
        };
        // However many wait: the thread that takes requests does not wait for room among them.
        let _ = patience::at_once(|| {
            self.operations.sync(node, data_only, done);
            Ok(())
        });
    }

    /// Makes the whole volume durable, on the pool.
    fn sync_all_and_reply<E: Exchange>(self: &Arc<Server>, exchange: E, control: bool) {
        let ticket = self.pending.add(exchange);
        // Now: all threads of the pool may wait for the device.
        if self.pending.bound(&ticket, self.sync_patience, self.operations.device_progress()) {
            self.watch();
        }
        let server = self.clone();
        self.background.spawn(move || {
            if ticket.is_over() {
                drop(server.pending.take(ticket));
                return;
            }
            let done = server.operations.sync_all().map_err(|error| number(&error));
            if let Some(mut exchange) = server.pending.take(ticket) {
                let done = done.and_then(|()| match control {
                    true => answer::controlled(&mut exchange),
                    false => Ok(0),
                });
                exchange.reply(done);
            }
        });
    }

    /// Has the session close the volume and then answer. If nobody listens any more, the exchange answers
    /// itself.
    fn destroy<E: Exchange>(&self, exchange: E) {
        let _ = self.session.send(Event::Destroy(Box::new(move || exchange.reply(Ok(0)))));
    }

    fn interrupt(self: &Arc<Server>, unique: u64) {
        if self.pending.interrupt(unique) {
            self.watch();
        }
    }

    /// Starts the watcher of requests that wait.
    fn watch(self: &Arc<Server>) {
        let server = self.clone();
        self.background.spawn_first(move || {
            while server.pending.look(pending::is_dying, || server.operations.device_progress()) {
                thread::sleep(pending::INTERVAL);
            }
        });
    }
}

impl Handler for Server {
    fn features(&self) -> Features {
        Features {
            acl: true,
            kill_privileges: true,
            read_directory_plus: true,
            write_back: self.operations.cache() == CacheMode::Writeback,
            ring: false,
        }
    }

    fn connected(&self, notifier: Notifier) {
        let _ = self.notifier.set(notifier);
    }

    fn handle<E: Exchange>(self: &Arc<Server>, exchange: E) {
        let request = match exchange.message().decode() {
            Ok(request) => request,
            Err(Malformed(why)) => {
                tracing::error!("a request of the kernel makes no sense: {why}");
                return exchange.reply(Err(libc::EIO));
            }
        };
        if let Operation::Release(args) = &request.operation {
            // At once: requests that wait for them may have all threads.
            self.operations.end_leases(args.handle);
        }
        let kind = self.kind(&request);
        let exchange = Received::new(exchange, request);
        match kind {
            Kind::Forget => self.forget(exchange),
            Kind::Quick => self.answer_and_reply(exchange),
            Kind::Destroy => self.destroy(exchange),
            Kind::Sync { .. } | Kind::SyncAll { .. } if self.is_refusing() => {
                exchange.reply(Err(NOT_CONNECTED));
            }
            Kind::SyncAll { control } => self.sync_all_and_reply(exchange, control),
            Kind::Sync { node, data_only } => self.sync_and_reply(exchange, node, data_only),
            Kind::Interrupt { unique } => {
                exchange.no_reply();
                self.interrupt(unique);
            }
            Kind::MayWait => match E::MAY_WAIT.then(|| self.background.place()).flatten() {
                Some(_place) => self.answer_and_reply(exchange),
                None => self.at_once_or_later(exchange),
            },
            Kind::Long => self.later(exchange),
            Kind::EndOfGroup => match E::MAY_WAIT.then(|| self.background.place()).flatten() {
                Some(_place) => self.end_group(exchange),
                None => self.end_group_later(exchange),
            },
            Kind::ChangeOfPages => match E::MAY_WAIT.then(|| self.background.place()).flatten() {
                Some(_place) => self.change_pages(exchange),
                None => self.change_pages_later(exchange),
            },
        }
    }
}
