//! Requests that hold no thread: reads, writes and fsyncs that a program submits to a queue, and whose
//! completions it takes out when it likes.
//!
//! How a request is done depends on the file. With `O_DIRECT` it goes to the device if that needs no waiting,
//! and a thread of the device ends it. Otherwise a read that the cache can answer ends at once; everything
//! else goes to the queue's workers, which do what the plain functions do. An fsync goes to the volume's
//! syncers, which serve thousands together, and so does the durability of a group.
//!
//! A request shares the file, so the handle may be closed meanwhile; the completion gives that share up when
//! it is reaped, since a thread of the device must not wait for what the last close of a file may do.
//!
//! Neighbours: [`vectored`] has requests with several buffers; [`crate::completions`] has the protocol of the
//! list.

pub mod vectored;

use crate::arguments::{Sized32, bytes, bytes_mut, check_spare, options};
use crate::completions::{Completions, Signal};
use crate::error::{Failure, catch, number, quietly, remember, status};
use crate::file::File;
use crate::group::{Group, commit, taken};
use crate::handle::{Shared, borrow, give, share, take};
use crate::volume::{Volume, give_out};
use crossbeam_channel::{Receiver, Sender, unbounded};
use quire::inodes::{BufferDone, InodeGroup, IoFlags};
use quire::{AlignedBuf, Durability, Error, ErrorKind, Result};
use quire_base::sync::time::{Duration, Instant};
use quire_base::sync::{Mutex, thread};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd, OwnedFd};
use std::any::Any;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// For `quire_sync_options.flags`: of the attributes only those that reading the data back needs.
pub const QUIRE_SYNC_DATA: u32 = 1;

/// The most workers of a queue.
const WORKERS_MAX: c_uint = 256;

/// What an fsync of a queue makes durable, and how soon. Set `size` to the structure's size; zero in any
/// other field is the default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SyncOptions {
    /// sizeof(struct quire_sync_options).
    pub size: u32,
    /// QUIRE_SYNC_DATA, or 0 for all attributes.
    pub flags: u32,
    /// First byte of the contents.
    pub offset: u64,
    /// Bytes of the contents; 0: to the end.
    pub length: u64,
    /// 0: force the journal at once. Else the data is written at once, and then a force that others make is
    /// waited for, for at most so many milliseconds.
    pub lazy_ms: u32,
    /// Zero.
    pub spare: u32,
}

// SAFETY: words, the first is the size.
unsafe impl Sized32 for SyncOptions {
    const ZERO: SyncOptions = SyncOptions { size: 0, flags: 0, offset: 0, length: 0, lazy_ms: 0, spare: 0 };
}

/// How a request ended.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Completion {
    /// As it was submitted.
    pub user_data: *mut c_void,
    /// What the plain function would have returned: bytes, 0, or a negative error number.
    pub result: i64,
}

/// A queue of requests.
pub struct Queue {
    list: Arc<Completions<Ended, Ready>>,
    workers: Option<Workers>,
}

/// The descriptor that is readable while there is something to reap.
struct Ready(OwnedFd);

impl Signal for Ready {
    fn raise(&self) {
        // It holds at most 1, so there is always room.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn lower(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// A request that has ended and was not reaped.
struct Ended {
    tag: Tag,
    outcome: std::result::Result<u64, Failure>,
    /// What it worked on.
    _object: Arc<dyn Any + Send + Sync>,
}

/// What C gave to know the request by.
#[derive(Clone, Copy)]
struct Tag(*mut c_void);
// SAFETY: never followed here.
unsafe impl Send for Tag {}

/// Memory of a request. It is C's, which leaves it alone until the request has been reaped.
#[derive(Clone, Copy)]
struct Memory {
    start: *mut u8,
    length: usize,
}
// SAFETY: the request alone uses it (the contract of submitting).
unsafe impl Send for Memory {}

impl Memory {
    /// The memory itself if it begins on a block boundary, else a buffer, with the same contents if `filled`.
    fn for_direct_io(self, filled: bool) -> Result<AlignedBuf> {
        // SAFETY: the contract of submitting: the memory is the request's own until it has been reaped, and
        // the buffer is dropped before the completion is put into the list.
        let lent = unsafe { NonNull::new(self.start).and_then(|start| AlignedBuf::lent(start, self.length)) };
        match lent {
            Some(lent) => Ok(lent),
            // SAFETY: the contract of submitting.
            None if filled => AlignedBuf::try_copy_of(unsafe { self.bytes() }?),
            None => AlignedBuf::try_zeroed(self.length),
        }
    }

    /// Takes what was read, unless the buffer is the memory.
    fn take_from(self, buffer: &AlignedBuf, count: usize) {
        if !std::ptr::eq(buffer.as_ptr(), self.start) {
            // SAFETY: the contract of submitting; the buffer is as long as the memory, and apart from it.
            unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr(), self.start, count.min(self.length)) };
        }
    }

    /// # Safety
    /// The request has not been reaped, and nothing else borrows its memory.
    unsafe fn bytes<'a>(self) -> Result<&'a [u8]> {
        // SAFETY: the contract of submitting.
        unsafe { bytes(self.start, self.length) }
    }

    /// # Safety
    /// As for `bytes`.
    unsafe fn bytes_mut<'a>(self) -> Result<&'a mut [u8]> {
        // SAFETY: the contract of submitting.
        unsafe { bytes_mut(self.start, self.length) }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads that do what has to wait; each starts when there is work and all others are busy.
struct Workers {
    jobs: Sender<Job>,
    waiting: Receiver<Job>,
    most: usize,
    /// Jobs that have not ended.
    under_way: Arc<AtomicUsize>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl Workers {
    fn new(most: usize) -> Workers {
        let (jobs, waiting) = unbounded();
        Workers { jobs, waiting, most, under_way: Arc::default(), threads: Mutex::new(Vec::new()) }
    }

    fn run(&self, job: Job) {
        let waiting = self.waiting.clone();
        let under_way = self.under_way.clone();
        let busy = under_way.fetch_add(1, Ordering::AcqRel);
        let job: Job = Box::new(move || {
            job();
            under_way.fetch_sub(1, Ordering::AcqRel);
        });
        let mut threads = self.threads.lock();
        if threads.len() < self.most && busy >= threads.len() {
            let work = move || waiting.into_iter().for_each(|job| job());
            match thread::Builder::new().name("quire-queue".into()).spawn(work) {
                Ok(thread) => threads.push(thread),
                // Those that run do it later; without any, this thread does.
                Err(_) if !threads.is_empty() => {}
                Err(_) => {
                    drop(threads);
                    return job();
                }
            }
        }
        drop(threads);
        // The receiver is here, so the channel is open.
        let _ = self.jobs.send(job);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.list.drain();
        // Here: a thread of the device may hold the list a moment longer, and must not drop what requests had
        // open, as the last share of a file may wait for the device.
        drop(self.list.reap(0, usize::MAX, None));
        if let Some(Workers { jobs, waiting, threads, .. }) = self.workers.take() {
            drop((jobs, waiting));
            for thread in threads.lock().drain(..) {
                // A worker catches what a request throws.
                let _ = thread.join();
            }
        }
    }
}

/// A request that has begun. It ends by [`Begun::end`], or, dropped, with an error.
struct Begun {
    list: Arc<Completions<Ended, Ready>>,
    tag: Tag,
    object: Option<Arc<dyn Any + Send + Sync>>,
}

impl Begun {
    fn end(mut self, outcome: std::result::Result<u64, Failure>) {
        self.put(outcome);
    }

    /// Ends it when something is durable, or is not.
    fn when_done(self) -> Box<dyn FnOnce(Result<()>) + Send> {
        Box::new(move |outcome| self.end(outcome.map(|()| 0).map_err(Failure::from)))
    }

    fn put(&mut self, outcome: std::result::Result<u64, Failure>) {
        if let Some(object) = self.object.take() {
            self.list.end(Ended { tag: self.tag, outcome, _object: object });
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let message = "the request was dropped before it was done";
        self.put(Err(match thread::panicking() {
            false => Error::new(ErrorKind::Shutdown, message).into(),
            true => Failure {
                number: -libc::ENOTRECOVERABLE,
                message: format!("Quire panicked: {message}; close the volume, and report this as a defect"),
            },
        }));
    }
}

/// Which way the bytes of a request go.
#[derive(Clone, Copy)]
enum Way {
    Read,
    Write,
}

impl Queue {
    /// Begins a request and has `start` bring it on its way. The request ends whatever that does: where it
    /// panics, as it is dropped. So the call that submits it has nothing to report any more.
    fn submit(&self, tag: Tag, object: Arc<dyn Any + Send + Sync>, start: impl FnOnce(Begun)) -> Result<()> {
        self.list.begin();
        let begun = Begun { list: self.list.clone(), tag, object: Some(object) };
        quietly(|| start(begun));
        Ok(())
    }

    /// Has the device do it past the cache; or a worker, or this thread if the queue has none, what cannot be
    /// sent off at once. `end` gets the buffer before the request ends, and how many bytes it holds.
    fn direct(
        &self,
        begun: Begun,
        (file, way): (Shared<File>, Way),
        buffer: AlignedBuf,
        offset: u64,
        end: impl FnOnce(&AlignedBuf, usize) -> Result<()> + Send + 'static,
    ) {
        let done: BufferDone = Box::new(move |buffer, outcome| {
            let outcome = outcome.and_then(|count| end(&buffer, count).map(|()| count as u64));
            drop(buffer);
            begun.end(outcome.map_err(Failure::from));
        });
        let (inodes, inode, flags) = (file.volume.inodes(), file.file.inode(), file.io_flags());
        let unsent = match (&self.workers, way) {
            (None, _) => Some((buffer, done)),
            (_, Way::Read) => inodes.try_read_direct_then(inode, buffer, offset, done),
            (_, Way::Write) => inodes.try_write_direct_then(inode, buffer, offset, flags, done),
        };
        if let Some((buffer, done)) = unsent {
            self.run(move || {
                let (inodes, inode) = (file.volume.inodes(), file.file.inode());
                match way {
                    Way::Read => inodes.read_direct_then(inode, buffer, offset, done),
                    Way::Write => inodes.write_direct_then(inode, buffer, offset, flags, done),
                }
            });
        }
    }

    /// Has a worker do it, or this thread if the queue has none.
    fn work(&self, begun: Begun, work: impl FnOnce() -> Result<u64> + Send + 'static) {
        self.run(move || begun.end(catch(work)));
    }

    /// As [`Queue::work`], what ends its request itself; if it panics the request ends as it is dropped.
    fn run(&self, job: impl FnOnce() + Send + 'static) {
        let job = move || quietly(job);
        match &self.workers {
            Some(workers) => workers.run(Box::new(job)),
            None => job(),
        }
    }
}

/// Makes a queue. Up to `workers` threads do what cannot be done without waiting: buffered writes, buffered
/// reads that the cache cannot answer, and direct I/O that cannot go to the device at once. They start when
/// there is such work. With 0 such requests are done before their submission returns. Fsyncs need no workers.
/// The order of requests is not kept: submit what depends on another request when that has been reaped.
///
/// Returns: 0 and a handle in `*queue`, which the caller gives to quire_queue_free; or a negative error
/// number, and `*queue` is NULL.
/// Threads: any.
///
/// # Safety
/// A pointer may be written to `queue`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_queue_new(workers: c_uint, queue: *mut *mut Queue) -> c_int {
    let make = || {
        if workers > WORKERS_MAX {
            return Err(Error::invalid(format!("{workers} workers for a queue: at most {WORKERS_MAX}")));
        }
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::os("making the descriptor of a queue", &error.into()))?;
        let workers = (workers > 0).then(|| Workers::new(workers as usize));
        Ok(give(Queue { list: Arc::new(Completions::new(Ready(ready))), workers }))
    };
    // SAFETY: the caller's promise.
    unsafe { give_out(queue, "queue", make) }
}

/// Waits until every request has ended, and frees the queue; completions that were not reaped are lost. NULL
/// is fine.
///
/// Threads: any; no other call uses this queue then or later.
///
/// # Safety
/// `queue` is NULL or a queue that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_queue_free(queue: *mut Queue) {
    // SAFETY: the caller's promise.
    quietly(|| drop(unsafe { take(queue) }));
}

/// A descriptor that is readable exactly while there are completions to reap, for poll(2), epoll(7) and event
/// loops. It belongs to the queue: do not read, write or close it.
///
/// Returns: the descriptor, or a negative error number.
/// Threads: any.
///
/// # Safety
/// `queue` is a queue that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_queue_fd(queue: *const Queue) -> c_int {
    // SAFETY: the caller's promise.
    number(|| Ok(unsafe { borrow(queue, "queue") }?.list.signal().0.as_raw_fd()))
}

/// Takes out up to `most` completions, the oldest first. Waits until there are `least` of them, until no
/// request is under way, or for `timeout_ms` milliseconds (negative: without limit). With `least` 0 it
/// only looks.
///
/// Returns: how many completions were put into `completions`, or a negative error number. If a request among
/// them failed, quire_error_message has the text of the last such.
/// Threads: any, at the same time on one queue; each completion goes to one of them.
///
/// # Safety
/// `queue` is a queue that has not been freed; `most` structures may be written to `completions`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_queue_wait(
    queue: *const Queue,
    completions: *mut Completion,
    most: c_uint,
    least: c_uint,
    timeout_ms: c_int,
) -> c_int {
    number(|| {
        // SAFETY: the caller's promise.
        let queue = unsafe { borrow(queue, "queue") }?;
        if completions.is_null() && most > 0 {
            return Err(Error::invalid("the place for completions is NULL"));
        }
        let until = u64::try_from(timeout_ms).ok().map(|wait| Instant::now() + Duration::from_millis(wait));
        let ended = queue.list.reap(least as usize, (most as usize).min(c_int::MAX as usize), until);
        let count = ended.len() as c_int;
        for (at, Ended { tag, outcome, .. }) in ended.into_iter().enumerate() {
            let result = match outcome {
                Ok(count) => count as i64,
                Err(failure) => {
                    remember(&failure.message);
                    failure.number.into()
                }
            };
            // SAFETY: at most `most` structures (the caller's promise).
            unsafe { completions.add(at).write(Completion { user_data: tag.0, result }) };
        }
        Ok(count)
    })
}

/// Submits what quire_pread does. With O_DIRECT, and offset, length and memory on boundaries of 4096 bytes,
/// no thread waits for it, unless others are writing there or the cache has newer data.
///
/// Returns: 0: its completion will come, with the same `user_data`; or a negative error number: it will not.
/// Threads: any. The file's handle may be closed meanwhile. The memory belongs to the request until its
/// completion has been reaped: nobody reads, writes or frees it.
///
/// # Safety
/// `queue` and `file` are open; `length` bytes may be written to `buffer`, as said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_submit_pread(
    queue: *const Queue,
    file: *const File,
    buffer: *mut c_void,
    length: usize,
    offset: u64,
    user_data: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (queue, file) = unsafe { (borrow(queue, "queue")?, share(file, "file")?) };
        // SAFETY: the caller's promise.
        let out = unsafe { bytes_mut(buffer.cast(), length) }?;
        let memory = Memory { start: out.as_mut_ptr(), length };
        let direct = (file.is_direct() && file.reads()).then(|| memory.for_direct_io(false)).transpose()?;
        queue.submit(Tag(user_data), file.kept(), |begun| {
            if let Some(buffer) = direct {
                let take = move |buffer: &AlignedBuf, count| {
                    memory.take_from(buffer, count);
                    Ok(())
                };
                queue.direct(begun, (file, Way::Read), buffer, offset, take);
            } else if file.reads()
                && let Some(count) =
                    file.volume.inodes().try_read_at(file.file.inode(), out, offset, IoFlags::empty())
            {
                begun.end(Ok(count as u64));
            } else {
                queue.work(begun, move || {
                    // SAFETY: the caller's promise, until the request has been reaped.
                    file.file.read_at(unsafe { memory.bytes_mut() }?, offset).map(|count| count as u64)
                });
            }
        })
    })
}

/// Submits what quire_pwrite does. With O_DIRECT, inside the file, and with offset, length and memory on
/// boundaries of 4096 bytes, no thread waits for it, unless others use that place or the cache has data of
/// it; else a worker does it. With O_SYNC or O_DSYNC it is durable when it completes.
///
/// Returns: 0: its completion will come, with the same `user_data`; or a negative error number: it will not.
/// Threads: as quire_submit_pread.
///
/// # Safety
/// `queue` and `file` are open; `length` bytes may be read from `buffer`, as said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_submit_pwrite(
    queue: *const Queue,
    file: *const File,
    buffer: *const c_void,
    length: usize,
    offset: u64,
    user_data: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (queue, file) = unsafe { (borrow(queue, "queue")?, share(file, "file")?) };
        // SAFETY: the caller's promise.
        let data = unsafe { bytes(buffer.cast(), length) }?;
        let memory = Memory { start: data.as_ptr().cast_mut(), length };
        let direct = (file.is_direct() && file.writes()).then(|| memory.for_direct_io(true)).transpose()?;
        queue.submit(Tag(user_data), file.kept(), |begun| match direct {
            Some(buffer) => queue.direct(begun, (file, Way::Write), buffer, offset, |_, _| Ok(())),
            None => queue.work(begun, move || {
                // SAFETY: the caller's promise, until the request has been reaped.
                file.file.write_at(unsafe { memory.bytes() }?, offset).map(|count| count as u64)
            }),
        })
    })
}

/// Submits what quire_fsync does, or as `options` say; they may be NULL. It covers what had been written when
/// it was submitted; thousands under way together cost a few writes of the journal.
///
/// Returns: 0: its completion will come, with the same `user_data`; or a negative error number: it will not.
/// Threads: any; it waits only while 65,536 are under way. The file's handle may be closed meanwhile.
///
/// # Safety
/// `queue` and `file` are open; `options` is NULL or leads to options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_submit_fsync(
    queue: *const Queue,
    file: *const File,
    options: *const SyncOptions,
    user_data: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (queue, file) = unsafe { (borrow(queue, "queue")?, share(file, "file")?) };
        // SAFETY: the caller's promise.
        let how = sync_options(&unsafe { self::options(options, "sync options") }?)?;
        queue.submit(Tag(user_data), file.kept(), |begun| {
            file.volume.inodes().fsync_then(file.file.inode(), &how, begun.when_done());
        })
    })
}

fn sync_options(given: &SyncOptions) -> Result<quire::SyncOptions> {
    if given.flags & !QUIRE_SYNC_DATA != 0 {
        return Err(Error::invalid(format!("an fsync has no flags {:#x}", given.flags & !QUIRE_SYNC_DATA)));
    }
    check_spare(&[given.spare.into()], "sync options")?;
    let length = if given.length == 0 { u64::MAX } else { given.length };
    let durability = match given.lazy_ms {
        0 => Durability::Now,
        wait => Durability::Lazy(Duration::from_millis(wait.into())),
    };
    Ok(quire::SyncOptions::new()
        .data_only(given.flags & QUIRE_SYNC_DATA != 0)
        .range(given.offset, length)
        .durability(durability))
}

/// Submits what quire_volume_sync does. A worker does it, or with none this call.
///
/// Returns: 0: its completion will come, with the same `user_data`; or a negative error number: it will not.
/// Threads: any.
///
/// # Safety
/// `queue` and `volume` are open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_submit_volume_sync(
    queue: *const Queue,
    volume: *const Volume,
    user_data: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (queue, volume) = unsafe { (borrow(queue, "queue")?, share(volume, "volume")?) };
        queue.submit(Tag(user_data), volume.kept(), |begun| {
            queue.work(begun, move || volume.get().sync().map(|()| 0));
        })
    })
}

/// Submits what quire_group_commit does, and frees the group's handle, also on failure. A worker makes the
/// group visible, or with none this call; then no thread waits for its durability, and commits under way
/// together share writes of the journal.
///
/// Returns: 0: its completion will come, with the same `user_data`; or a negative error number: it will not,
/// and nothing has changed.
/// Threads: any; no other call uses this group then or later.
///
/// # Safety
/// `queue` is open; `group` is a group that has not been committed or freed, or NULL (-EINVAL).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quire_submit_group_commit(
    queue: *const Queue,
    group: *mut Group,
    how: u32,
    lazy_ms: u32,
    user_data: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let group = unsafe { taken(group) }?;
        let commit = commit(how, lazy_ms)?;
        // SAFETY: the caller's promise.
        let queue = unsafe { borrow(queue, "queue") }?;
        queue.submit(Tag(user_data), Arc::new(()), |begun| {
            queue.run(move || InodeGroup::from(group).commit_then(commit, begun.when_done()));
        })
    })
}

#[cfg(test)]
mod tests;
