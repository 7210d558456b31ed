//! One queue of the ring: its io_uring, its entries, its thread.
//!
//! A round of the thread: take what has completed, hand each request over (most are answered on the spot),
//! submit the commits of all replies that are there, also those of workers, and wait for more.
//!
//! ```text
//!   entry:  kernel's (in `entries`) -> exchange's (slot empty) -> finished list -> kernel's
//! ```
//!
//! While more than [`ENTRIES`] requests are at work, an entry that goes back to the kernel gives the memory
//! of its request's or its reply's data back to the system, so that a burst of large ones leaves little
//! behind. The kernel takes a reply in when it gets the commit. The memory goes after that, unless the entry
//! has come back with the next request.
//!
//! A worker that finishes a reply wakes the thread through an event descriptor, but only if the thread is
//! asleep: it says so ([`Shared::asleep`]) before it looks at the list a last time, and the worker looks at
//! that after it has added to the list; both are sequentially consistent, so one of them sees the other.
//!
//! Requests that come while the kernel has no entry are kept there, and only a commit fetches one of them: a
//! new entry does not. So after a registration the thread has the kernel send it a request of its own, a
//! *call* ([`Notifier::call`]), and commits that; as long as such a commit fetches a request, it calls again.
//! The kernel takes a call for a regular file that it holds: that of a request that waits.

use std::os::fd::{AsRawFd, OwnedFd};

use crossbeam_queue::SegQueue;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue};
use quire_base::sync::atomic::{AtomicBool, Ordering};
use quire_base::sync::{Arc, thread};
use quire_base::{Error, Result};
use rustix::event::EventfdFlags;
use zerocopy::{FromBytes, IntoBytes};

use super::command::{self, Pieces, WAKE};
use super::wait::{Activity, Burst, PAUSE};
use crate::protocol::abi::{
    InHeader, OutHeader, RING_ARGUMENT_SIZE, RING_HEADER_SIZE, RING_HEADERS_SIZE, RingEntryInOut, opcode,
};
use crate::protocol::request::Message;
use crate::transport::buffer::{Buffer, HEAD};
use crate::transport::device::{Channel, Notifier};
use crate::transport::{Exchange, Handler, Outcome};

/// Entries of a queue at first.
const ENTRIES: u32 = 16;
/// Entries that are added at a time.
const ENTRIES_MORE: u32 = 16;
/// Entries of a queue at most; requests beyond them wait in the kernel. Thousands of programs may wait for
/// durability; an entry that only ever carried such a request takes two pages.
pub const ENTRIES_MAX: u32 = 4096;
/// Data of a request up to which its memory is not worth giving back.
const SMALL_PAYLOAD: usize = 16 << 10;
/// Submissions in one system call at most.
const SUBMISSIONS: u32 = 64;
/// Requests that are answered before their replies go out.
const COMMITS: usize = 8;
/// Where the third part of the headers starts.
const IN_OUT: usize = RING_HEADER_SIZE + RING_ARGUMENT_SIZE;

/// `IORING_ENTER_GETEVENTS` of `linux/io_uring.h`: run what the kernel has put off for this thread.
const IORING_ENTER_GETEVENTS: u32 = 1;

type Ring = IoUring<Entry128, cqueue::Entry>;

/// What a queue's thread and its exchanges share.
pub struct Shared {
    finished: SegQueue<Finished>,
    asleep: AtomicBool,
    event: OwnedFd,
}

/// An entry whose reply is complete.
struct Finished {
    index: u32,
    buffer: Buffer,
    commit_id: u64,
    /// Bytes of data that came with the request.
    payload: usize,
    /// Bytes of the reply's body.
    reply: usize,
}

impl Shared {
    fn finish(&self, finished: Finished) {
        self.finished.push(finished);
        // After the push, in the one order of all such operations (see the module's documentation).
        quire_base::sync::atomic::fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            // Fails only if the counter were to overflow: then it is readable anyhow.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

/// What an index stands for.
struct Entry {
    /// Empty while an exchange has it, or when the kernel has given it up.
    buffer: Option<Buffer>,
    /// The regular file of its request, if the kernel holds that until the reply.
    file: Option<u64>,
}

impl Entry {
    fn new(buffer: Buffer) -> Entry {
        Entry { buffer: Some(buffer), file: None }
    }
}

/// The regular file that a request is about, if the kernel holds it until the reply.
fn held_file(header: &InHeader) -> Option<u64> {
    use opcode::{COPY_FILE_RANGE, COPY_FILE_RANGE_64, FALLOCATE, FSYNC, LSEEK};
    use opcode::{OPEN, READ, RELEASE, WRITE};
    let is_held = matches!(
        header.opcode,
        OPEN | READ | WRITE | FSYNC | FALLOCATE | LSEEK | COPY_FILE_RANGE | COPY_FILE_RANGE_64 | RELEASE
    );
    is_held.then_some(header.nodeid)
}

/// See the module's documentation. Belongs to one thread.
pub struct Queue {
    number: u16,
    /// Before `entries`, so that it is closed before their memory goes.
    ring: Ring,
    notifier: Notifier,
    shared: Arc<Shared>,
    /// By index.
    entries: Vec<Entry>,
    /// Entries that are the kernel's.
    in_kernel: usize,
    /// Entries that the kernel will take no more: the mount is going away.
    dead: usize,
    /// The regular file that was last used; zero if none was. The kernel may have dropped it since.
    last_file: u64,
    request_max: usize,
    /// Memory of the first entries, until they are registered.
    first: Vec<Buffer>,
    /// There was no memory for more entries when they were last wanted.
    is_short: bool,
    /// Where the event descriptor's count goes; boxed, since the kernel writes to it.
    wake_count: Box<u64>,
    wake_armed: bool,
    activity: Arc<Activity>,
    /// Completions taken from the ring and not dealt with: what was asked for, and its result.
    completed: Vec<(u64, i32)>,
    /// Entries that go back to the kernel with a large reply, whose memory is given back after that.
    replied: Vec<u32>,
}

impl Queue {
    /// Makes the io_uring of queue `number`, and the memory of its first entries; on the thread that will
    /// serve it.
    pub fn new(
        number: usize,
        device: &Arc<Channel>,
        activity: Arc<Activity>,
        request_max: usize,
    ) -> Result<Queue> {
        let making = |error: &std::io::Error| Error::os("making an io_uring for a FUSE queue", error);
        let number =
            u16::try_from(number).map_err(|_| Error::invalid("more CPUs than queues have numbers"))?;
        let ring = IoUring::<Entry128, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(2 * ENTRIES_MAX)
            .build(SUBMISSIONS)
            .map_err(|error| making(&error))?;
        ring.submitter().register_files(&[device.raw()]).map_err(|error| making(&error))?;
        let event =
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| making(&error.into()))?;
        let first = new_buffers(ENTRIES, request_max)?;
        pin(usize::from(number));
        Ok(Queue {
            number,
            ring,
            notifier: Notifier::new(device),
            shared: Arc::new(Shared { finished: SegQueue::new(), asleep: AtomicBool::new(false), event }),
            entries: Vec::new(),
            in_kernel: 0,
            dead: 0,
            last_file: 0,
            request_max,
            first,
            is_short: false,
            wake_count: Box::new(0),
            wake_armed: false,
            activity,
            completed: Vec::new(),
            replied: Vec::new(),
        })
    }

    /// Gives the kernel the first entries; requests may come from now on.
    pub fn register(&mut self) -> Result<()> {
        let buffers = std::mem::take(&mut self.first);
        self.add_entries(buffers)?;
        // What is refused completes at once. Requests that have come already are dealt with by `serve`.
        self.collect();
        match self.completed.iter().find(|(_, result)| *result < 0) {
            Some((_, result)) => {
                let error = std::io::Error::from_raw_os_error(-result);
                Err(Error::os("registering a FUSE queue", &error))
            }
            None => Ok(()),
        }
    }

    /// Answers requests until the mount is gone.
    pub fn serve<H: Handler>(&mut self, handler: &Arc<H>) -> Result<()> {
        let (mut burst, mut pauses) = (Burst::default(), false);
        loop {
            self.collect();
            self.give_back_replies();
            if !self.completed.is_empty() {
                pauses |= self.activity.note(&mut burst, self.completed.len());
            }
            let completed = std::mem::take(&mut self.completed);
            for batch in completed.chunks(COMMITS) {
                for &(mark, result) in batch {
                    match self.exchange(mark, result) {
                        Some(call) if call.opcode == opcode::NOTIFY_REPLY => self.end_call(call)?,
                        Some(exchange) => handler.handle(exchange),
                        None => {}
                    }
                }
                self.commit_finished()?;
                if batch.len() == COMMITS {
                    // The first do not wait for the last.
                    self.enter(0)?;
                }
            }
            self.commit_finished()?;
            if !self.completed.is_empty() {
                // What calls have fetched.
                continue;
            }
            self.completed = completed;
            self.completed.clear();
            if self.dead == self.entries.len() {
                self.activity.end();
                return Ok(());
            }
            self.make_room()?;
            self.arm_wake()?;
            if std::mem::take(&mut pauses) {
                self.enter(0)?;
                thread::sleep(PAUSE);
            }
            self.sleep()?;
        }
    }

    /// Waits in the kernel for a request, or a worker's call.
    fn sleep(&mut self) -> Result<()> {
        self.shared.asleep.store(true, Ordering::SeqCst);
        quire_base::sync::atomic::fence(Ordering::SeqCst);
        if self.shared.finished.is_empty() {
            self.enter(1)?;
        }
        self.shared.asleep.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Submits what stands in the queue, and waits for `want` completions.
    fn enter(&mut self, want: usize) -> Result<()> {
        let submission = self.ring.submission();
        let submissions = submission.len() as u32;
        if want == 0 && submissions == 0 && !submission.taskrun() {
            return Ok(());
        }
        drop(submission);
        // Always with events: what has come is taken in by the call that submits.
        let flags = IORING_ENTER_GETEVENTS;
        // SAFETY: no further argument is passed; what the submissions name lives as `push` says.
        let entered = unsafe { self.ring.submitter().enter::<()>(submissions, want as u32, flags, None) };
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // Interrupted; or completions first.
                Some(libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(Error::os(format!("serving FUSE queue {}", self.number), &error)),
            },
        }
    }

    /// Moves completions from the ring to `completed`.
    fn collect(&mut self) {
        let Queue { ring, completed, .. } = self;
        completed.extend(ring.completion().map(|entry| (entry.user_data(), entry.result())));
    }

    fn push(&mut self, entry: &Entry128) -> Result<()> {
        loop {
            // SAFETY: each kind of submission says what memory it names; entries and the wake-up's count live
            // as long as the ring (its closing, in `drop`, ends all that is under way), the pieces of a
            // registration until it is submitted.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.enter(0)?;
        }
    }

    /// Registers more entries.
    fn add_entries(&mut self, buffers: Vec<Buffer>) -> Result<()> {
        let first = self.entries.len() as u32;
        let mut pieces = Vec::with_capacity(buffers.len());
        for mut buffer in buffers {
            pieces.push(Pieces::new(&mut buffer, self.request_max));
            self.entries.push(Entry::new(buffer));
        }
        for (index, pieces) in (first..).zip(&pieces) {
            self.push(&command::register(self.number, index, pieces))?;
            self.in_kernel += 1;
        }
        // While the pieces are here to be read.
        self.enter(0)
    }

    /// Keeps the entries that waiting requests hold to at most half, as far as there is memory.
    fn make_room(&mut self) -> Result<()> {
        let before = self.entries.len();
        loop {
            let alive = self.entries.len() - self.dead;
            let held = self.held();
            if held * 2 <= alive || self.dead > 0 || self.entries.len() as u32 >= ENTRIES_MAX {
                break;
            }
            tracing::debug!("queue {}: {held} of {alive} entries wait, {ENTRIES_MORE} more", self.number);
            match new_buffers(ENTRIES_MORE, self.request_max) {
                Ok(buffers) => {
                    self.is_short = false;
                    self.add_entries(buffers)?;
                }
                // Requests beyond the entries wait in the kernel.
                Err(error) => {
                    if !std::mem::replace(&mut self.is_short, true) {
                        tracing::warn!("queue {} stays at {alive} entries: {error}", self.number);
                    }
                    break;
                }
            }
        }
        if self.entries.len() > before {
            self.notifier.call(self.file_of_a_call());
        }
        Ok(())
    }

    /// What the kernel is named for a call.
    fn file_of_a_call(&self) -> u64 {
        let mut waiting = self.entries.iter().filter(|entry| entry.buffer.is_none());
        waiting.find_map(|entry| entry.file).unwrap_or(self.last_file)
    }

    /// Gives back the entry of a call, and calls again if it comes back with a request that the kernel kept.
    fn end_call(&mut self, call: RingExchange) -> Result<()> {
        let index = u64::from(call.index);
        call.no_reply();
        self.commit_finished()?;
        self.enter(0)?;
        let before = self.completed.len();
        self.collect();
        if self.completed[before..].iter().any(|(mark, _)| *mark == index) {
            self.notifier.call(self.file_of_a_call());
        }
        Ok(())
    }

    /// Entries that requests have, answered or not, until they are given back.
    fn held(&self) -> usize {
        self.entries.len() - self.dead - self.in_kernel
    }

    fn arm_wake(&mut self) -> Result<()> {
        if !self.wake_armed {
            let count: *mut u64 = &raw mut *self.wake_count;
            self.push(&command::wake(self.shared.event.as_raw_fd(), count))?;
            self.wake_armed = true;
        }
        Ok(())
    }

    /// Submits the commits of all replies that are complete.
    fn commit_finished(&mut self) -> Result<()> {
        while let Some(finished) = self.shared.finished.pop() {
            let Finished { index, mut buffer, commit_id, payload, reply } = finished;
            let held = self.held();
            let Some(entry) = self.entries.get_mut(index as usize) else { continue };
            if held > ENTRIES as usize {
                if payload > reply.max(SMALL_PAYLOAD) {
                    buffer.give_back(HEAD + reply);
                }
                if reply > SMALL_PAYLOAD {
                    self.replied.push(index);
                }
            }
            entry.buffer = Some(buffer);
            self.in_kernel += 1;
            self.push(&command::commit_and_fetch(self.number, index, commit_id))?;
        }
        Ok(())
    }

    /// Gives the memory of large replies back that the kernel has taken in. It fills an entry only while this
    /// thread is in it (`DEFER_TASKRUN`), so all that have come back are among the completions by now.
    fn give_back_replies(&mut self) {
        if self.replied.is_empty() || !self.ring.submission().is_empty() {
            return;
        }
        for index in std::mem::take(&mut self.replied) {
            let has_come = self.completed.iter().any(|(mark, _)| *mark == u64::from(index));
            // Without a buffer, it has come and is at work.
            if let Some(buffer) = self.entries[index as usize].buffer.as_mut().filter(|_| !has_come) {
                buffer.give_back(HEAD);
            }
        }
    }

    /// The request of a completion; `None` for a wake-up, or if the entry is dead.
    fn exchange(&mut self, mark: u64, result: i32) -> Option<RingExchange> {
        if mark == WAKE {
            self.wake_armed = false;
            return None;
        }
        let index = u32::try_from(mark).ok()?;
        let entry = self.entries.get_mut(index as usize)?;
        let buffer = entry.buffer.take()?;
        entry.file = None;
        self.in_kernel -= 1;
        if result < 0 {
            self.dead += 1;
            match -result {
                // The mount is gone, or going.
                libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::ENODEV => {}
                number => tracing::error!(
                    "FUSE queue {}: the kernel gave entry {index} up: {}",
                    self.number,
                    std::io::Error::from_raw_os_error(number)
                ),
            }
            return None;
        }
        let bytes = buffer.bytes();
        let header = InHeader::read_from_prefix(bytes).ok()?.0;
        entry.file = held_file(&header);
        self.last_file = entry.file.unwrap_or(self.last_file);
        let in_out = RingEntryInOut::read_from_bytes(&bytes[IN_OUT..RING_HEADERS_SIZE]).ok()?;
        Some(RingExchange {
            shared: self.shared.clone(),
            index,
            opcode: header.opcode,
            unique: header.unique,
            commit_id: in_out.commit_id,
            payload_size: (in_out.payload_size as usize).min(self.request_max),
            request_max: self.request_max,
            buffer: Some(buffer),
        })
    }
}

fn new_buffers(count: u32, request_max: usize) -> Result<Vec<Buffer>> {
    (0..count).map(|_| Buffer::new(request_max)).collect()
}

/// Keeps the calling thread on a CPU; one that is not there now is none to be kept on.
fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    if cpu < rustix::thread::CpuSet::MAX_CPU {
        set.set(cpu);
        if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
            tracing::debug!("a ring thread stays unpinned, CPU {cpu}: {error}");
        }
    }
}

/// A request in an entry of the ring.
pub struct RingExchange {
    shared: Arc<Shared>,
    index: u32,
    opcode: u32,
    unique: u64,
    commit_id: u64,
    payload_size: usize,
    request_max: usize,
    /// Taken by the reply.
    buffer: Option<Buffer>,
}

impl RingExchange {
    fn finish(&mut self, outcome: Outcome) {
        let Some(mut buffer) = self.buffer.take() else { return };
        let (length, error) = match outcome {
            Ok(length) => (length.min(self.request_max), 0),
            Err(number) => (0, -number),
        };
        let out = OutHeader { len: (size_of::<OutHeader>() + length) as u32, error, unique: self.unique };
        let in_out = RingEntryInOut {
            commit_id: self.commit_id,
            payload_size: length as u32,
            ..RingEntryInOut::default()
        };
        let bytes = buffer.bytes_mut();
        bytes[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        bytes[IN_OUT..RING_HEADERS_SIZE].copy_from_slice(in_out.as_bytes());
        self.shared.finish(Finished {
            index: self.index,
            buffer,
            commit_id: self.commit_id,
            payload: self.payload_size,
            reply: length,
        });
    }
}

impl Exchange for RingExchange {
    const MAY_WAIT: bool = false;

    fn message(&self) -> Message<'_> {
        let bytes = self.buffer.as_ref().map_or(&[][..], Buffer::bytes);
        let piece = |from: usize, length: usize| bytes.get(from..from + length).unwrap_or_default();
        Message::Split {
            header: piece(0, RING_HEADER_SIZE),
            argument: piece(RING_HEADER_SIZE, RING_ARGUMENT_SIZE),
            payload: piece(HEAD, self.payload_size),
        }
    }

    fn room(&mut self) -> &mut [u8] {
        let end = HEAD + self.request_max;
        self.buffer.as_mut().map_or(&mut [][..], |buffer| &mut buffer.bytes_mut()[HEAD..end])
    }

    fn reply(mut self, outcome: Outcome) {
        self.finish(outcome);
    }

    fn no_reply(mut self) {
        // The entry goes back all the same.
        self.finish(Ok(0));
    }
}

impl Drop for RingExchange {
    fn drop(&mut self) {
        self.finish(Err(libc::EIO));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(request_max: usize) -> Option<Result<Queue>> {
        let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").ok()?;
        let device = Arc::new(Channel::new(device.into()));
        Some(Queue::new(0, &device, Activity::new(1), request_max))
    }

    /// The kernel had been told that the ring would be used when there was no memory for its first entries:
    /// it sent requests that nobody took.
    #[test]
    fn memory_is_taken_before_the_kernel_is_answered() {
        if !matches!(queue(1 << 20), Some(Ok(_))) {
            eprintln!("\n*** SKIPPED: needs io_uring and /dev/fuse ***\n");
            return;
        }
        assert!(queue(1 << 50).is_some_and(|refused| refused.is_err()));
    }

    /// Has the kernel send a request, in entry `index`.
    fn receive(queue: &mut Queue, index: u64, opcode: u32, nodeid: u64, payload: u32) -> RingExchange {
        let bytes = queue.entries[index as usize].buffer.as_mut().unwrap().bytes_mut();
        let header = InHeader { opcode, nodeid, ..InHeader::default() };
        bytes[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        let in_out = RingEntryInOut { payload_size: payload, ..RingEntryInOut::default() };
        bytes[IN_OUT..RING_HEADERS_SIZE].copy_from_slice(in_out.as_bytes());
        bytes[HEAD..HEAD + payload as usize].fill(7);
        queue.exchange(index, 0).unwrap()
    }

    /// A queue whose kernel has so many entries.
    fn queue_with(entries: u32) -> Option<Queue> {
        let mut queue = queue(1 << 20)?.ok()?;
        queue.entries.extend(new_buffers(entries, 1 << 20).unwrap().into_iter().map(Entry::new));
        queue.in_kernel = entries as usize;
        Some(queue)
    }

    /// Each of the thousands of entries that a burst of large writes had used kept its memory until the end
    /// of the mount.
    #[test]
    fn a_burst_of_large_writes_leaves_no_memory_behind() {
        let count = 3 * ENTRIES;
        let Some(mut queue) = queue_with(count) else {
            eprintln!("\n*** SKIPPED: needs io_uring and /dev/fuse ***\n");
            return;
        };
        let writes: Vec<RingExchange> = (0..u64::from(count))
            .map(|index| receive(&mut queue, index, opcode::WRITE, 1, 1 << 20))
            .collect();
        writes.into_iter().for_each(|write| write.reply(Ok(8)));
        queue.commit_finished().unwrap();
        let buffers = queue.entries.iter().flat_map(|entry| &entry.buffer);
        let kept = buffers.filter(|buffer| buffer.bytes()[HEAD + (1 << 19)] == 7);
        assert_eq!(kept.count(), ENTRIES as usize);
    }

    /// The same of large reads: the end of the memory was at the end of the reply, which the kernel had yet
    /// to take in.
    #[test]
    fn a_burst_of_large_reads_leaves_no_memory_behind() {
        let count = 3 * ENTRIES;
        let Some(mut queue) = queue_with(count) else {
            eprintln!("\n*** SKIPPED: needs io_uring and /dev/fuse ***\n");
            return;
        };
        let kept = |queue: &Queue| {
            let buffers = queue.entries.iter().flat_map(|entry| &entry.buffer);
            buffers.filter(|buffer| buffer.bytes()[HEAD + (1 << 19)] == 7).count() as u32
        };
        let reads: Vec<RingExchange> =
            (0..u64::from(count)).map(|index| receive(&mut queue, index, opcode::READ, 1, 0)).collect();
        for mut read in reads {
            read.room().fill(7);
            read.reply(Ok(1 << 20));
        }
        queue.commit_finished().unwrap();
        queue.give_back_replies();
        assert_eq!(kept(&queue), count, "the kernel has not taken the replies in");
        queue.enter(0).unwrap();
        // As if one had come again with a request.
        queue.completed = vec![(1, 0)];
        queue.give_back_replies();
        assert_eq!(kept(&queue), ENTRIES + 1);
    }

    /// A call named the file of the last READ or WRITE, also when that had been answered, and the kernel did
    /// not hold the file any more. Then requests waited in the kernel for those at work to end.
    #[test]
    fn a_call_names_a_file_that_is_held() {
        let Some(mut queue) = queue_with(4) else {
            eprintln!("\n*** SKIPPED: needs io_uring and /dev/fuse ***\n");
            return;
        };
        assert_eq!(queue.file_of_a_call(), 0);
        let _names = receive(&mut queue, 0, opcode::LOOKUP, 1, 0);
        let open = receive(&mut queue, 1, opcode::OPEN, 5, 0);
        receive(&mut queue, 2, opcode::READ, 7, 0).reply(Ok(0));
        queue.commit_finished().unwrap();
        assert_eq!(queue.file_of_a_call(), 5);
        open.reply(Ok(0));
        assert_eq!(queue.file_of_a_call(), 5, "its reply is on its way");
        queue.commit_finished().unwrap();
        assert_eq!(queue.file_of_a_call(), 7, "better than none");
    }
}
