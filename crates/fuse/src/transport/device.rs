//! `/dev/fuse`: a request is one `read`, its reply one `write`.
//!
//! Each receiving thread has a descriptor of its own (cloned: opened again and joined to the connection), so
//! that threads do not meet in the kernel's list of requests under way; a reply goes to the descriptor that
//! its request came from. Where the device may not be opened again (a user on a system that gives it to root
//! only, whose descriptor came from `fusermount3`) all threads share the first descriptor.
//!
//! The device carries everything where there is no ring, and beside the ring what never goes through it:
//! INIT, forgets, interrupts. None of these is in a hurry, so beside the ring the one thread pauses after
//! each message: what comes meanwhile comes as one, and wakes nobody ([`Pace`]).

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use quire_base::sync::{Arc, Weak, thread};
use quire_base::{Error, ErrorKind, Result};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::buffer::{Buffer, Buffers, HEAD};
use super::{Exchange, Handler, Outcome};
use crate::protocol::abi::{self, InHeader, NotifyInvalInode, NotifyRetrieve, OutHeader, WriteIn};
use crate::protocol::negotiate::{self, Agreed, Features};
use crate::protocol::request::{Malformed, Message, Operation};

/// Where a message is received, so that the data of a WRITE starts at `HEAD`.
const MESSAGE: usize = HEAD - size_of::<InHeader>() - size_of::<WriteIn>();
/// Where a reply starts.
const REPLY: usize = HEAD - size_of::<OutHeader>();
const DEVICE: &str = "/dev/fuse";

/// How a thread receives messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The next at once.
    Eager,
    /// After a pause.
    Leisurely,
}

/// The pause of [`Pace::Leisurely`].
const PAUSE: Duration = Duration::from_millis(5);
/// Until a thread looks for memory again.
const NO_MEMORY_PAUSE: Duration = Duration::from_millis(100);

/// A descriptor that requests come from.
pub struct Channel(OwnedFd);

impl Channel {
    /// Over the descriptor that the mount was made with.
    pub fn new(device: OwnedFd) -> Channel {
        Channel(device)
    }

    /// The descriptor's number.
    pub fn raw(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Another channel of the same connection.
    pub fn another(&self) -> Result<Channel> {
        let failed = |error: std::io::Error| Error::os(format!("opening another {DEVICE}"), &error);
        let fresh = std::fs::OpenOptions::new().read(true).write(true).open(DEVICE).map_err(failed)?;
        let ours = self.0.as_raw_fd() as u32;
        // SAFETY: the ioctl reads one 32-bit number behind the pointer, which is a live local.
        if unsafe { libc::ioctl(fresh.as_raw_fd(), abi::DEVICE_CLONE as _, &raw const ours) } != 0 {
            return Err(failed(std::io::Error::last_os_error()));
        }
        Ok(Channel(fresh.into()))
    }

    /// Receives a message; its length, or `None` when the mount is gone.
    fn receive(&self, buffer: &mut Buffer) -> Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.0, &mut buffer.bytes_mut()[MESSAGE..]) {
                Ok(length) => return Ok(Some(length)),
                // Interrupted, or the caller went away while its request was copied.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => return Ok(None),
                Err(error) => {
                    return Err(Error::os(format!("receiving a request from {DEVICE}"), &error.into()));
                }
            }
        }
    }

    /// Sends the reply whose body, `length` bytes, stands in the buffer.
    fn send(&self, buffer: &mut Buffer, unique: u64, outcome: Outcome) -> Result<(), Errno> {
        let (length, error) = match outcome {
            Ok(length) => (length, 0),
            Err(number) => (0, -number),
        };
        let header = OutHeader { len: (size_of::<OutHeader>() + length) as u32, error, unique };
        let bytes = buffer.bytes_mut();
        bytes[REPLY..HEAD].copy_from_slice(header.as_bytes());
        loop {
            match rustix::io::write(&self.0, &bytes[REPLY..HEAD + length]) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Answers the kernel's INIT. `features` is told whether the kernel offers the ring, and how many bytes
    /// of data a request will have at most.
    pub fn negotiate(&self, mut features: impl FnMut(bool, usize) -> Features) -> Result<Agreed> {
        let mut buffer = Buffer::new(negotiate::REQUEST_MAX as usize)?;
        loop {
            let Some(length) = self.receive(&mut buffer)? else {
                return Err(Error::new(ErrorKind::Io, "the mount went away before it was usable"));
            };
            let message = Message::Whole(&buffer.bytes()[MESSAGE..MESSAGE + length]);
            let request = message.decode().map_err(|Malformed(why)| {
                Error::new(ErrorKind::Io, format!("the kernel's first request makes no sense: {why}"))
            })?;
            let unique = request.header.unique;
            let failed = |error: Errno| Error::os("answering the kernel's first request", &error.into());
            let Operation::Init { args, flags2 } = request.operation else {
                self.send(&mut buffer, unique, Err(libc::EIO)).map_err(failed)?;
                continue;
            };
            if let Err(error) = negotiate::check(&args) {
                self.send(&mut buffer, unique, Err(libc::EPROTO)).map_err(failed)?;
                return Err(error);
            }
            if args.major > abi::MAJOR {
                // A newer kernel is told the version spoken here, and starts again with that.
                let out = abi::InitOut { major: abi::MAJOR, minor: abi::MINOR, ..Default::default() };
                buffer.bytes_mut()[HEAD..HEAD + 64].copy_from_slice(out.as_bytes());
                self.send(&mut buffer, unique, Ok(64)).map_err(failed)?;
                continue;
            }
            let pages = negotiate::Pages::now();
            let request_max = negotiate::request_max(&args, flags2, pages) as usize;
            let features = features(negotiate::offers_ring(&args, flags2), request_max);
            let (out, agreed) = negotiate::answer(&args, flags2, &features, pages);
            let bytes = out.as_bytes();
            buffer.bytes_mut()[HEAD..HEAD + bytes.len()].copy_from_slice(bytes);
            self.send(&mut buffer, unique, Ok(bytes.len())).map_err(failed)?;
            return Ok(agreed);
        }
    }
}

/// The `unique` of requests that [`Notifier::call`] has sent: even, as all are, and never reached by
/// counting.
const CALL: u64 = 1 << 62;

/// Tells the kernel what it cannot know: that something it keeps is not so any more. Serves both transports;
/// does not keep the connection open.
pub struct Notifier(Weak<Channel>);

impl Notifier {
    /// For the connection of `channel`.
    pub fn new(channel: &Arc<Channel>) -> Notifier {
        Notifier(Arc::downgrade(channel))
    }

    /// Has the kernel ask anew for the attributes of a node.
    pub fn attributes_changed(&self, node: u64) {
        self.changed(NotifyInvalInode { node, offset: -1, length: 0 });
    }

    /// Has the kernel drop all pages of a node, and ask anew for its attributes. The calling thread waits for
    /// READs and WRITEs that are under way for such pages: others must be there to answer them.
    pub fn contents_changed(&self, node: u64) {
        self.changed(NotifyInvalInode { node, offset: 0, length: 0 });
    }

    fn changed(&self, body: NotifyInvalInode) {
        if let Err(error) = self.notify(abi::NOTIFY_INVAL_INODE, body.as_bytes()) {
            tracing::warn!("the kernel may show an old state of inode {}: {error}", body.node);
        }
    }

    /// Has the kernel send a request of the operation `NOTIFY_REPLY`, as a program on the calling thread's
    /// CPU would. It carries nothing and wants no reply. `file` is a regular file that the kernel holds; for
    /// others nothing is sent.
    pub fn call(&self, file: u64) {
        let body = NotifyRetrieve { notify_unique: CALL, node: file, ..Default::default() };
        if let Err(error) = self.notify(abi::NOTIFY_RETRIEVE, body.as_bytes()) {
            tracing::debug!(file, %error, "requests may wait in the kernel for longer than they need");
        }
    }

    fn notify(&self, code: i32, body: &[u8]) -> rustix::io::Result<()> {
        let Some(channel) = self.0.upgrade() else { return Ok(()) };
        let length = size_of::<OutHeader>() + body.len();
        let header = OutHeader { len: length as u32, error: code, unique: 0 };
        let message = [header.as_bytes(), body].concat();
        match rustix::io::retry_on_intr(|| rustix::io::write(&channel.0, &message)) {
            // The kernel does not hold the node any more, or the mount is gone.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Receives and hands over requests until the mount is gone.
pub fn serve<H: Handler>(
    channel: &Arc<Channel>,
    buffers: &Buffers,
    handler: &Arc<H>,
    pace: Pace,
) -> Result<()> {
    loop {
        let mut buffer = match buffers.take() {
            Ok(buffer) => buffer,
            Err(error) => {
                // Requests wait in the kernel meanwhile; those under way give buffers back.
                tracing::warn!("a thread that takes requests waits: {error}");
                thread::sleep(NO_MEMORY_PAUSE);
                continue;
            }
        };
        let Some(length) = channel.receive(&mut buffer)? else {
            return Ok(());
        };
        let message = &buffer.bytes()[MESSAGE..MESSAGE + length];
        let Ok((header, _)) = InHeader::read_from_prefix(message) else {
            tracing::error!("a request of {length} bytes, shorter than a header, was dropped");
            continue;
        };
        handler.handle(DeviceExchange {
            channel: channel.clone(),
            buffers: buffers.clone(),
            buffer: Some(buffer),
            length,
            unique: header.unique,
        });
        if pace == Pace::Leisurely {
            thread::sleep(PAUSE);
        }
    }
}

/// A request received from the device.
pub struct DeviceExchange {
    channel: Arc<Channel>,
    buffers: Buffers,
    /// Taken by the reply.
    buffer: Option<Buffer>,
    length: usize,
    unique: u64,
}

impl DeviceExchange {
    fn finish(&mut self, outcome: Option<Outcome>) {
        let Some(mut buffer) = self.buffer.take() else { return };
        if let Some(outcome) = outcome {
            match self.channel.send(&mut buffer, self.unique, outcome) {
                Ok(()) => {}
                // The caller was killed, or the mount is gone: nobody waits.
                Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => {}
                Err(error) => {
                    tracing::error!("the kernel refused the reply {outcome:?}: {error}");
                    let _ = self.channel.send(&mut buffer, self.unique, Err(libc::EIO));
                }
            }
        }
        self.buffers.put(buffer);
    }
}

impl Exchange for DeviceExchange {
    const MAY_WAIT: bool = true;

    fn message(&self) -> Message<'_> {
        let bytes = self.buffer.as_ref().map_or(&[][..], Buffer::bytes);
        Message::Whole(bytes.get(MESSAGE..MESSAGE + self.length).unwrap_or_default())
    }

    fn room(&mut self) -> &mut [u8] {
        self.buffer.as_mut().map_or(&mut [][..], |buffer| &mut buffer.bytes_mut()[HEAD..])
    }

    fn reply(mut self, outcome: Outcome) {
        self.finish(Some(outcome));
    }

    fn no_reply(mut self) {
        self.finish(None);
    }
}

impl Drop for DeviceExchange {
    fn drop(&mut self) {
        self.finish(Some(Err(libc::EIO)));
    }
}
