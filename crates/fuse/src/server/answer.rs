//! One function: performs a request and writes the reply's body.
//!
//! READ and the readers of directories write straight into the room of the exchange; all else gives a small
//! value that is encoded when the message is no longer needed.

use quire::Metadata;
use quire_base::{ErrorKind, Result, patience};

use super::meters::Received;
use super::{Server, number};
use crate::errno::NOT_IMPLEMENTED;
use crate::operations::data::{CopyRequest, Opened, ReadRequest, WriteRequest};
use crate::operations::ioctl::{Control, START, SYNCFS, TRANSPORT};
use crate::operations::names::{Make, Name};
use crate::operations::properties::Asker;
use crate::operations::xattr::Sized;
use crate::operations::{CacheMode, Caller, Entry, Operations, snapshots};
use crate::protocol::abi::{self, Dirent};
use crate::protocol::convert;
use crate::protocol::reply::{Body, Full};
use crate::protocol::request::{Message, Operation, Request};
use crate::transport::{Exchange, Outcome};

/// What a request that needs no room while it is performed gives.
enum Answer {
    Nothing,
    Entry(Option<Entry>),
    Attributes(Metadata),
    Statx(Metadata),
    Opened(Opened),
    Created(Entry, Opened),
    Written(usize),
    Copied(u64),
    Bytes(Vec<u8>),
    Sized(Sized),
    Statfs(quire::Statfs),
    Offset(u64),
    Control(i32, Vec<u8>),
    Refused(i32),
}

/// What is written into the room while it is performed.
enum Filling {
    Read(abi::ReadIn),
    Names { node: u64, args: abi::ReadIn },
    NamesAndAttributes { node: u64, args: abi::ReadIn },
}

impl Server {
    /// Performs a request; the body stands in the exchange's room.
    pub(super) fn answer<E: Exchange>(&self, exchange: &mut Received<E>) -> Outcome {
        let request = exchange.request();
        let node = request.header.nodeid;
        let filling = match request.operation {
            Operation::Read(args) => Filling::Read(args),
            Operation::Readdir(args) => Filling::Names { node, args },
            Operation::Readdirplus(args) => Filling::NamesAndAttributes { node, args },
            operation => {
                let answer = match operation {
                    Operation::Ioctl(args, _) if matches!(args.command, TRANSPORT | SYNCFS) => {
                        Answer::Control(0, self.fact(args.command, args.out_size))
                    }
                    _ => perform(self.operations(), &request, exchange.message())
                        .and_then(|answer| self.keep_promise(&request, answer))
                        .unwrap_or_else(|error| Answer::Refused(number(&error))),
                };
                return put(answer, exchange.room());
            }
        };
        fill(self.operations(), &filling, exchange.room()).map_err(|error| number(&error))
    }
}

impl Server {
    /// Makes a change durable where the mount promises that.
    ///
    /// Where that fails, the change has been made, and the kernel hears of a failure: it knows neither the
    /// node nor the handle that the answer would have told it, and shows old attributes until it is told to
    /// ask. Names that it keeps stay as they are: they fail with the journal, and then the volume has shut
    /// down.
    fn keep_promise(&self, request: &Request, answer: Answer) -> Result<Answer> {
        if !self.promise.covers(&request.operation) {
            return Ok(answer);
        }
        let node = request.header.nodeid;
        let Err(error) = self.operations().sync_node(node) else { return Ok(answer) };
        match &answer {
            Answer::Entry(Some(entry)) => self.operations().take_back(entry, None),
            Answer::Created(entry, opened) => self.operations().take_back(entry, Some(*opened)),
            _ => {}
        }
        let other = match request.operation {
            Operation::Link { node, .. } => Some(node),
            Operation::Rename { new_parent, .. } => Some(new_parent),
            _ => None,
        };
        if let Some(notifier) = self.notifier.get() {
            [Some(node), other].into_iter().flatten().for_each(|node| notifier.attributes_changed(node));
        }
        Err(error)
    }

    /// Performs a request if that needs no waiting. `None`: nothing has been done, and the message is as it
    /// was.
    pub(super) fn try_answer<E: Exchange>(&self, exchange: &mut Received<E>) -> Option<Outcome> {
        let request = exchange.request();
        let node = request.header.nodeid;
        match request.operation {
            Operation::Read(args) => {
                let room = exchange.room();
                let size = room.len().min(args.size as usize);
                self.operations().try_read(&read_request(&args), &mut room[..size]).map(Ok)
            }
            Operation::Write { args, data } => {
                if self.operations().try_write(&write_request(&args), exchange.message().bytes(data)) {
                    return Some(put(Answer::Written(data.len()), exchange.room()));
                }
                if Operations::may_write_at_once(&write_request(&args), data.len()) {
                    return self.at_once(exchange);
                }
                None
            }
            // None of these waits for anything but what the engine asks about, and none is done in halves.
            Operation::Lookup { .. }
            | Operation::Getattr
            | Operation::Readlink
            | Operation::Symlink { .. }
            | Operation::Mknod { .. }
            | Operation::Mkdir { .. }
            | Operation::Unlink { .. }
            | Operation::Rmdir { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. }
            | Operation::Open(_)
            | Operation::Create { .. }
            | Operation::Release(_)
            | Operation::Setxattr { .. }
            | Operation::Getxattr { .. }
            | Operation::Listxattr { .. }
            | Operation::Removexattr { .. } => self.at_once(exchange),
            Operation::CopyFileRange { args, wide } => {
                let copied =
                    |count: u64| if wide { Answer::Copied(count) } else { Answer::Written(count as usize) };
                let answer = match self.operations().try_copy(&copy_request(&args))? {
                    Ok(count) => copied(count),
                    Err(error) => Answer::Refused(number(&error)),
                };
                Some(put(answer, exchange.room()))
            }
            Operation::Readdir(args) => self.list_at_once(&Filling::Names { node, args }, exchange),
            Operation::Readdirplus(args) => {
                self.list_at_once(&Filling::NamesAndAttributes { node, args }, exchange)
            }
            Operation::Ioctl(args, _) if args.command == START => self.at_once(exchange),
            Operation::Setattr(args) if args.valid & abi::setattr::SIZE == 0 => self.at_once(exchange),
            _ => None,
        }
    }

    /// Performs a small request, if the engine need not wait for it.
    fn at_once<E: Exchange>(&self, exchange: &mut Received<E>) -> Option<Outcome> {
        let (request, message) = (exchange.request(), exchange.message());
        let answer = match patience::at_once(|| perform(self.operations(), &request, message)) {
            Ok(answer) => answer,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) => Answer::Refused(number(&error)),
        };
        Some(put(answer, exchange.room()))
    }
}

impl Server {
    /// Lists a directory as far as that needs no waiting.
    fn list_at_once<E: Exchange>(&self, filling: &Filling, exchange: &mut Received<E>) -> Option<Outcome> {
        match patience::at_once(|| fill(self.operations(), filling, exchange.room())) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            outcome => Some(outcome.map_err(|error| number(&error))),
        }
    }
}

/// Writes an answer into the room.
fn put(answer: Answer, room: &mut [u8]) -> Outcome {
    let mut body = Body::new(room);
    match encode(answer, &mut body) {
        Ok(Ok(())) => Ok(body.len()),
        Ok(Err(number)) => Err(number),
        Err(Full) => Err(libc::EIO),
    }
}

fn fill(operations: &Operations, filling: &Filling, room: &mut [u8]) -> Result<usize> {
    let wanted = match filling {
        Filling::Read(args) | Filling::Names { args, .. } | Filling::NamesAndAttributes { args, .. } => {
            args.size as usize
        }
    };
    // The kernel never asks for more than was agreed on.
    let size = wanted.min(room.len());
    let room = &mut room[..size];
    match *filling {
        Filling::Read(args) => operations.read(&read_request(&args), room),
        Filling::Names { node, args } => {
            let mut body = Body::new(room);
            let outcome = operations
                .read_directory(node, args.offset, |name| body.name(&dirent(name), &name.name) == Ok(()));
            listed(&body, outcome)
        }
        Filling::NamesAndAttributes { node, args } => {
            let mut body = Body::new(room);
            let outcome = operations.read_directory_plus(node, args.offset, |name, entry| {
                let found = entry.map(convert::entry).unwrap_or_default();
                body.name_and_attributes(&found, &dirent(name), &name.name) == Ok(())
            });
            listed(&body, outcome)
        }
    }
}

/// What a listing gives that ended with `outcome`: the entries before an error, which the next request meets
/// again. (The kernel has been told of them, and they are counted.)
fn listed(body: &Body<'_>, outcome: Result<()>) -> Result<usize> {
    match body.len() {
        0 => outcome.map(|()| 0),
        length => Ok(length),
    }
}

fn read_request(args: &abi::ReadIn) -> ReadRequest {
    ReadRequest {
        handle: args.handle,
        offset: args.offset,
        flags: args.flags as i32,
        for_page_cache: args.read_flags & abi::READ_LOCKOWNER == 0,
    }
}

fn write_request(args: &abi::WriteIn) -> WriteRequest {
    WriteRequest {
        handle: args.handle,
        offset: args.offset,
        flags: args.flags as i32,
        from_page_cache: args.write_flags & abi::WRITE_CACHE != 0,
        kill_set_id: args.write_flags & abi::WRITE_KILL_SUIDGID != 0,
    }
}

fn copy_request(args: &abi::CopyFileRangeIn) -> CopyRequest {
    CopyRequest {
        from: args.handle,
        from_offset: args.offset,
        to: args.to_handle,
        to_offset: args.to_offset,
        length: args.length,
    }
}

fn dirent(name: &Name) -> Dirent {
    Dirent {
        node: name.node,
        offset: name.cookie,
        name_length: name.name.len() as u32,
        kind: convert::directory_type(name.kind),
    }
}

impl Server {
    /// What the mount is, cut to the caller's room, zero bytes behind it.
    fn fact(&self, command: u32, room: u32) -> Vec<u8> {
        let text = self.facts.get().map_or("", |facts| match command {
            SYNCFS => &facts.syncfs,
            _ => &facts.transport,
        });
        let length = room.min(command >> 16 & 0x3fff) as usize;
        let mut text = text.as_bytes().to_vec();
        text.resize(length, 0);
        // The end is a zero byte, however long the reason.
        text.last_mut().into_iter().for_each(|byte| *byte = 0);
        text
    }
}

/// The answer to a control request that gives nothing.
pub(super) fn controlled<E: Exchange>(exchange: &mut E) -> Outcome {
    put(Answer::Control(0, Vec::new()), exchange.room())
}

fn perform(operations: &Operations, request: &Request, message: Message<'_>) -> Result<Answer> {
    let bytes = |span| message.bytes(span);
    let node = request.header.nodeid;
    let caller = Caller { uid: request.header.uid, gid: request.header.gid };
    let asker = Asker { uid: request.header.uid, thread: request.header.pid };
    let make = |mode, umask, rdev| Make { mode, umask, rdev, caller };
    let entry = |entry| Answer::Entry(Some(entry));
    Ok(match request.operation {
        Operation::Lookup { name } => match operations.lookup(node, bytes(name)) {
            // That is kept by the kernel. The next moment may bring a snapshot of the name.
            Err(error) if error.kind() == ErrorKind::NotFound && node != snapshots::DIRECTORY => {
                Answer::Entry(None)
            }
            found => entry(found?),
        },
        Operation::Getattr => Answer::Attributes(operations.attributes(node)?),
        Operation::Statx(_) => Answer::Statx(operations.attributes(node)?),
        Operation::Setattr(args) => {
            let handle = (args.valid & abi::setattr::FH != 0).then_some(args.handle);
            Answer::Attributes(operations.set_attributes(node, handle, &convert::change(&args))?)
        }
        Operation::Readlink => Answer::Bytes(operations.readlink(node)?),
        Operation::Symlink { name, target } => {
            entry(operations.symlink(node, bytes(name), bytes(target), caller)?)
        }
        Operation::Mknod { args, name } => {
            let make = make(args.mode, args.umask, convert::device_from_kernel(args.rdev));
            entry(operations.make(node, bytes(name), &make)?)
        }
        Operation::Mkdir { args, name } => {
            let make = make(libc::S_IFDIR | args.mode & 0o7777, args.umask, 0);
            entry(operations.make(node, bytes(name), &make)?)
        }
        Operation::Unlink { name } => operations.unlink(node, bytes(name)).map(|()| Answer::Nothing)?,
        Operation::Rmdir { name } => operations.rmdir(node, bytes(name)).map(|()| Answer::Nothing)?,
        Operation::Rename { name, new_parent, new_name, flags } => operations
            .rename(node, bytes(name), new_parent, bytes(new_name), flags)
            .map(|()| Answer::Nothing)?,
        Operation::Link { node: old, name } => entry(operations.link(old, node, bytes(name))?),
        Operation::Open(args) => Answer::Opened(operations.open(node, args.flags as i32)?),
        Operation::Create { args, name } => {
            let kill_set_id = args.open_flags & abi::OPEN_KILL_SUIDGID != 0;
            let make = make(args.mode, args.umask, 0);
            let (entry, opened) =
                operations.create(node, bytes(name), &make, args.flags as i32, kill_set_id)?;
            Answer::Created(entry, opened)
        }
        Operation::Tmpfile { args } => {
            let make = make(args.mode, args.umask, 0);
            let (entry, opened) = operations.make_unnamed(node, &make, args.flags as i32)?;
            Answer::Created(entry, opened)
        }
        Operation::Write { args, data } => {
            Answer::Written(operations.write(&write_request(&args), bytes(data))?)
        }
        Operation::Statfs => Answer::Statfs(operations.statfs()),
        Operation::Release(args) => operations.release(args.handle).map(|()| Answer::Nothing)?,
        Operation::Setxattr { name, value, flags, kill_set_gid } => {
            let how = (flags as i32, kill_set_gid);
            operations.set_xattr(node, bytes(name), bytes(value), how, asker).map(|()| Answer::Nothing)?
        }
        Operation::Getxattr { name, size } => Answer::Sized(operations.get_xattr(node, bytes(name), size)?),
        Operation::Listxattr { size } => Answer::Sized(operations.list_xattr(node, size)?),
        Operation::Removexattr { name } => {
            operations.remove_xattr(node, bytes(name), asker).map(|()| Answer::Nothing)?
        }
        Operation::Ioctl(args, input) => {
            let request = Control {
                handle: args.handle,
                command: args.command,
                asker,
                input: bytes(input),
                room: args.out_size as usize,
            };
            match operations.ioctl(node, &request) {
                Err(error) if error.kind() == ErrorKind::Unsupported => Answer::Refused(libc::ENOTTY),
                answer => answer.map(|(result, data)| Answer::Control(result, data))?,
            }
        }
        Operation::Fallocate(args) => operations
            .allocate(args.handle, args.offset, args.length, args.mode as i32)
            .map(|()| Answer::Nothing)?,
        // The kernel has the size, and data that the server has not. Once refused, it calls all of a file
        // data.
        Operation::Lseek(_) if operations.cache() == CacheMode::Writeback => Answer::Refused(NOT_IMPLEMENTED),
        Operation::Lseek(args) => {
            Answer::Offset(operations.seek(args.handle, args.offset as i64, args.whence as i32)?)
        }
        Operation::CopyFileRange { args, wide } => {
            let count = operations.copy(&copy_request(&args))?;
            if wide { Answer::Copied(count) } else { Answer::Written(count as usize) }
        }
        // Closing needs nothing, and reading a directory no state here: the kernel asks once, and then opens
        // directories without asking, and caches them.
        Operation::Unknown => Answer::Refused(NOT_IMPLEMENTED),
        // Answered elsewhere: a second INIT, or what is filled, forgotten or synced, does not come here.
        Operation::Init { .. }
        | Operation::Destroy
        | Operation::Syncfs
        | Operation::Forget { .. }
        | Operation::BatchForget(_)
        | Operation::Interrupt { .. }
        | Operation::Fsync(_)
        | Operation::Fsyncdir(_)
        | Operation::Read(_)
        | Operation::Readdir(_)
        | Operation::Readdirplus(_) => Answer::Refused(libc::EIO),
    })
}

/// The body of an answer, or the error number that it is.
fn encode(answer: Answer, body: &mut Body<'_>) -> Result<Result<(), i32>, Full> {
    match answer {
        Answer::Nothing => {}
        Answer::Entry(Some(entry)) => body.value(&convert::entry(&entry))?,
        Answer::Entry(None) => body.value(&convert::no_entry())?,
        Answer::Attributes(now) => body.value(&convert::attributes(&now))?,
        Answer::Statx(now) => body.value(&convert::statx_out(&now))?,
        Answer::Opened(opened) => body.value(&convert::open_out(opened))?,
        Answer::Created(entry, opened) => {
            body.value(&convert::entry(&entry))?;
            body.value(&convert::open_out(opened))?;
        }
        Answer::Written(count) => {
            body.value(&abi::WriteOut { size: count as u32, ..Default::default() })?;
        }
        Answer::Copied(count) => body.value(&abi::CopyFileRangeOut { bytes: count })?,
        Answer::Bytes(bytes) | Answer::Sized(Sized::Data(bytes)) => body.bytes(&bytes)?,
        Answer::Sized(Sized::Size(size)) => {
            body.value(&abi::GetxattrOut { size, ..Default::default() })?;
        }
        Answer::Statfs(now) => body.value(&convert::statfs_out(&now))?,
        Answer::Offset(offset) => body.value(&abi::LseekOut { offset })?,
        Answer::Control(result, data) => {
            body.value(&abi::IoctlOut { result, ..Default::default() })?;
            body.bytes(&data)?;
        }
        Answer::Refused(number) => return Ok(Err(number)),
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use quire::FileType;
    use quire_base::InodeNo;
    use quire_base::sync::Arc;
    use quire_device::SimulatedBackend;
    use quire_device::simulated::{Fault, FaultOp};
    use zerocopy::IntoBytes;

    use super::super::Promise;
    use super::*;
    use crate::operations::snapshots::ShowSnapshots;
    use crate::protocol::abi::{InHeader, opcode};
    use crate::session::Events;
    use crate::transport::Handler;

    #[test]
    fn types_in_directories() {
        for (kind, number) in [(FileType::Regular, 8), (FileType::Directory, 4), (FileType::Symlink, 10)] {
            let name = Name { name: b"x".to_vec(), node: 1, kind, cookie: 2 };
            assert_eq!(dirent(&name).kind, number);
        }
    }

    struct Asked {
        message: Vec<u8>,
        room: [u8; 256],
        answer: mpsc::Sender<Outcome>,
    }

    impl Exchange for Asked {
        const MAY_WAIT: bool = true;
        fn message(&self) -> Message<'_> {
            Message::Whole(&self.message)
        }
        fn room(&mut self) -> &mut [u8] {
            &mut self.room
        }
        fn reply(self, outcome: Outcome) {
            self.answer.send(outcome).unwrap();
        }
        fn no_reply(self) {}
    }

    /// Asks for a change in the root directory.
    fn ask(server: &Arc<Server>, opcode: u32, argument: &[u8], names: &[u8]) -> Outcome {
        let length = (40 + argument.len() + names.len()) as u32;
        let header = InHeader { len: length, opcode, unique: 2, nodeid: 1, ..InHeader::default() };
        let message = [header.as_bytes(), argument, names].concat();
        let (answer, answered) = mpsc::channel();
        server.handle(Asked { message, room: [0; 256], answer });
        answered.recv_timeout(Duration::from_secs(10)).expect("an answer")
    }

    /// What was made on a mount with `dirsync`, and could not be made durable, stayed in memory until the end
    /// of the mount, and a file stayed open: the kernel had heard of a failure, and never forgot the one nor
    /// closed the other.
    #[test]
    fn what_the_kernel_is_not_told_is_not_counted() {
        let create = abi::CreateIn { flags: libc::O_RDWR as u32, mode: 0o600, ..Default::default() };
        let mknod = abi::MknodIn { mode: libc::S_IFREG | 0o600, ..Default::default() };
        let mkdir = abi::MkdirIn { mode: 0o700, ..Default::default() };
        for code in [opcode::CREATE, opcode::MKNOD, opcode::MKDIR, opcode::SYMLINK, opcode::LINK] {
            let device = std::sync::Arc::new(SimulatedBackend::new(16 << 10));
            quire::FormatOptions::new().format_backend(device.clone()).unwrap();
            let volume =
                quire::VolumeOptions::new().cache_bytes(16 << 20).open_backend(device.clone()).unwrap();
            let operations = Operations::new(volume.clone(), CacheMode::Engine, false, ShowSnapshots::Off);
            let events = Events::new();
            let server = Server::new(operations, 1, Promise::Names, Duration::ZERO, events.sender.clone());
            let server = Arc::new(server);
            let operations = server.operations();
            let make = Make { mode: 0o600, umask: 0, rdev: 0, caller: Caller { uid: 0, gid: 0 } };
            let (old, opened) = operations.create(1, b"old", &make, libc::O_RDWR, false).unwrap();
            let old = old.attributes.ino().0;
            device.inject(Fault::on(FaultOp::Flush).times(u64::MAX));
            let link = abi::LinkIn { node: old };
            let (argument, names): (&[u8], &[u8]) = match code {
                opcode::CREATE => (create.as_bytes(), b"new\0"),
                opcode::MKNOD => (mknod.as_bytes(), b"new\0"),
                opcode::MKDIR => (mkdir.as_bytes(), b"new\0"),
                opcode::LINK => (link.as_bytes(), b"new\0"),
                _ => (&[], b"new\0target\0"),
            };
            ask(&server, code, argument, names).expect_err("it is not durable");
            // Told once here, and before where it is the old one.
            let found = operations.lookup(1, b"new").expect("it was made");
            let node = found.attributes.ino();
            assert_ne!(node, InodeNo::ROOT);
            operations.forget(node.0, if node.0 == old { 2 } else { 1 });
            assert!(operations.attributes(node.0).is_err(), "request {code}");
            let next = ReadRequest { handle: opened.handle + 1, offset: 0, flags: 0, for_page_cache: false };
            let read = operations.read(&next, &mut [0; 8]);
            assert_eq!(read.unwrap_err().kind(), ErrorKind::BadHandle);
            server.finish();
            operations.forget_everything();
            // It has failed.
            let _ = volume.close();
        }
    }
}
