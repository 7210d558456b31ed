//! A bare FUSE server that answers from memory: the upper bound for a mount on this transport.
//!
//! Its tree is the root and one file, `data`, of a fixed size. Reads and writes are answered in place from
//! memory with as few copies as the transport allows, under the same negotiation, open flags and threads
//! as a real volume's mount. It promises nothing else.
//!
//! The memory is huge pages, as a volume's cache is, in stripes of 2 MiB with a lock each. A read copies from
//! it into the reply and a write out of the request, as a volume's mount copies between its folios and these:
//! the same number of copies.
//!
//! For what making and removing names costs at least, any name may be made and removed; nothing is kept of it
//! but what the kernel remembers. What was made has a number of its own, even for files and odd for
//! directories; what is written to such a file goes nowhere.

use std::path::Path;
use std::time::Duration;

use quire::FileType;
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::sync::{Arc, RwLock};
use quire_base::{Error, Result};

use crate::connection::Connection;
use crate::mount::{self, MountFlags};
use crate::protocol::abi::{self, Dirent, open_out};
use crate::protocol::convert;
use crate::protocol::negotiate::Features;
use crate::protocol::reply::{Body, Full};
use crate::protocol::request::{Malformed, Operation, Request};
use crate::session::{self, Events};
use crate::transport::buffer::{Buffer, HEAD};
use crate::transport::{Choice, Exchange, Handler, Outcome, ring};

/// The name of the one file.
pub const FILE: &str = "data";
const ROOT_NODE: u64 = 1;
const FILE_NODE: u64 = 2;
const STRIPE: usize = 2 << 20;
const FOREVER: Duration = Duration::from_secs(3600);

const OPENED: abi::OpenOut = abi::OpenOut {
    handle: 0,
    open_flags: open_out::DIRECT_IO | open_out::PARALLEL_DIRECT_WRITES | open_out::NOFLUSH,
    backing: 0,
};

struct Null {
    size: u64,
    stripes: Vec<RwLock<Buffer>>,
    /// Half of the number of what was made last.
    made: AtomicU64,
}

impl Null {
    fn new(size: u64) -> Result<Null> {
        let stripe = |_| {
            let mut stripe = Buffer::huge(STRIPE)?;
            // Written once, so that no first touch is measured later.
            stripe.bytes_mut().fill(0x5a);
            Ok(RwLock::new(stripe))
        };
        let stripes = (0..size.div_ceil(STRIPE as u64)).map(stripe).collect::<Result<_>>()?;
        Ok(Null { size, stripes, made: AtomicU64::new(FILE_NODE) })
    }

    fn attr(&self, node: u64) -> abi::Attr {
        let file = node.is_multiple_of(2);
        let size = if node == FILE_NODE { self.size } else { 0 };
        abi::Attr {
            node,
            size,
            blocks: size.div_ceil(512),
            mode: if file { libc::S_IFREG | 0o666 } else { libc::S_IFDIR | 0o755 },
            links: if file { 1 } else { 2 },
            block_size: 4096,
            ..Default::default()
        }
    }

    /// A new node, as the kernel is told of it.
    fn make(&self, directory: bool) -> abi::EntryOut {
        let number = 2 * (self.made.fetch_add(1, Ordering::Relaxed) + 1) + u64::from(directory);
        convert::entry_out(self.attr(number), 0, FOREVER)
    }

    /// The pieces of `[offset, offset + length)`, clipped to the file: stripe, start in it, length.
    fn pieces(&self, offset: u64, length: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let end = offset.saturating_add(length as u64).min(self.size);
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (stripe, start) = ((at / STRIPE as u64) as usize, (at % STRIPE as u64) as usize);
            let length = (STRIPE - start).min((end - at) as usize);
            at += length as u64;
            Some((stripe, start, length))
        })
    }
}

impl Null {
    fn read(&self, offset: u64, room: &mut [u8]) -> usize {
        let mut done = 0;
        for (stripe, start, length) in self.pieces(offset, room.len()) {
            let held = self.stripes[stripe].read();
            room[done..done + length].copy_from_slice(&held.bytes()[HEAD + start..][..length]);
            done += length;
        }
        done
    }

    fn write(&self, offset: u64, data: &[u8]) -> usize {
        let mut done = 0;
        for (stripe, start, length) in self.pieces(offset, data.len()) {
            let mut held = self.stripes[stripe].write();
            held.bytes_mut()[HEAD + start..][..length].copy_from_slice(&data[done..done + length]);
            done += length;
        }
        done
    }

    fn names(node: u64, after: u64, body: &mut Body<'_>) {
        let entries = [
            (ROOT_NODE, FileType::Directory, "."),
            (ROOT_NODE, FileType::Directory, ".."),
            (FILE_NODE, FileType::Regular, FILE),
        ];
        let there = if node == ROOT_NODE { 3 } else { 2 };
        for (offset, (node, kind, name)) in (1..).zip(entries).take(there).skip(after as usize) {
            let kind = convert::directory_type(kind);
            let entry = Dirent { node, offset, name_length: name.len() as u32, kind };
            if body.name(&entry, name.as_bytes()).is_err() {
                break;
            }
        }
    }

    fn answer<E: Exchange>(&self, request: &Request, exchange: &mut E) -> Outcome {
        let message = exchange.message();
        let node = request.header.nodeid;
        let put = |body: &mut Body<'_>| -> Result<Result<(), i32>, Full> {
            match request.operation {
                Operation::Lookup { name } if node == ROOT_NODE && message.bytes(name) == FILE.as_bytes() => {
                    body.value(&convert::entry_out(self.attr(FILE_NODE), 0, FOREVER))?;
                }
                Operation::Lookup { .. } => return Ok(Err(libc::ENOENT)),
                Operation::Getattr | Operation::Setattr(_) => {
                    body.value(&convert::attr_out(self.attr(node), FOREVER))?;
                }
                Operation::Open(_) => body.value(&OPENED)?,
                Operation::Create { .. } => {
                    body.value(&self.make(false))?;
                    body.value(&OPENED)?;
                }
                Operation::Mknod { .. } | Operation::Symlink { .. } => body.value(&self.make(false))?,
                Operation::Mkdir { .. } => body.value(&self.make(true))?,
                Operation::Write { args, .. } if node != FILE_NODE => {
                    body.value(&abi::WriteOut { size: args.size, ..Default::default() })?;
                }
                Operation::Write { args, data } => match self.write(args.offset, message.bytes(data)) {
                    0 if !data.is_empty() => return Ok(Err(libc::ENOSPC)),
                    done => body.value(&abi::WriteOut { size: done as u32, ..Default::default() })?,
                },
                Operation::Statfs => body.value(&abi::StatfsOut {
                    blocks: self.size / 4096,
                    files: 2,
                    block_size: 4096,
                    name_max: 255,
                    fragment_size: 4096,
                    ..Default::default()
                })?,
                Operation::Fsync(_)
                | Operation::Fsyncdir(_)
                | Operation::Release(_)
                | Operation::Unlink { .. }
                | Operation::Rmdir { .. }
                | Operation::Rename { .. }
                | Operation::Destroy => {}
                _ => return Ok(Err(libc::ENOSYS)),
            }
            Ok(Ok(()))
        };
        match request.operation {
            Operation::Read(_) if node != FILE_NODE => Ok(0),
            Operation::Read(args) => {
                let room = exchange.room();
                let size = room.len().min(args.size as usize);
                Ok(self.read(args.offset, &mut room[..size]))
            }
            Operation::Readdir(args) => {
                let room = exchange.room();
                let size = room.len().min(args.size as usize);
                let mut body = Body::new(&mut room[..size]);
                Null::names(node, args.offset, &mut body);
                Ok(body.len())
            }
            _ => {
                // What is answered here is small.
                let mut small = [0; 256];
                let mut body = Body::new(&mut small);
                put(&mut body).unwrap_or(Err(libc::EIO))?;
                let length = body.len();
                exchange.room()[..length].copy_from_slice(&small[..length]);
                Ok(length)
            }
        }
    }
}

impl Handler for Null {
    fn features(&self) -> Features {
        Features::default()
    }

    fn handle<E: Exchange>(self: &Arc<Null>, mut exchange: E) {
        let outcome = match exchange.message().decode() {
            Ok(Request { operation: Operation::Forget { .. } | Operation::BatchForget(_), .. }) => {
                return exchange.no_reply();
            }
            Ok(request) => self.answer(&request, &mut exchange),
            Err(Malformed(why)) => {
                tracing::error!("a request of the kernel makes no sense: {why}");
                Err(libc::EIO)
            }
        };
        exchange.reply(outcome);
    }
}

/// Serves a file of `size` bytes at `dir` until it is unmounted or a stop signal comes.
///
/// `ready` is called with the transport when the mount is usable. Signals must be blocked
/// ([`crate::signals::block`]).
pub fn serve(
    dir: &Path,
    size: u64,
    threads: usize,
    transport: Choice,
    ready: impl FnOnce(&str),
) -> Result<()> {
    let dir = mount::resolve(dir)?;
    let flags = MountFlags {
        source: "quire-null".into(),
        allow_other: rustix::process::geteuid().is_root(),
        ..MountFlags::default()
    };
    let server = Arc::new(Null::new(size)?);
    if transport != Choice::Device {
        ring::switch_on();
    }
    let attached = mount::mount(&dir, &flags)?;
    let connection = Connection::open(attached.device, server, threads, transport)
        .inspect_err(|_| mount::abandon(&attached.entry))?;
    ready(connection.transport());
    match session::run_until_stopped(connection, &attached.entry, &Events::new())? {
        session::End::Unmounted | session::End::Destroyed(_) => Ok(()),
        session::End::Forced => {
            Err(Error::new(quire_base::ErrorKind::Busy, "stopped while the mount was in use"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range_and_stop_at_the_end() {
        let null = Null::new(3 * STRIPE as u64 - 5).unwrap();
        assert_eq!(null.pieces(0, 10).collect::<Vec<_>>(), [(0, 0, 10)]);
        assert_eq!(null.pieces(STRIPE as u64 - 4, 10).collect::<Vec<_>>(), [(0, STRIPE - 4, 4), (1, 0, 6)]);
        assert_eq!(null.pieces(3 * STRIPE as u64 - 8, 10).collect::<Vec<_>>(), [(2, STRIPE - 8, 3)]);
        assert_eq!(null.pieces(u64::MAX - 3, 10).count(), 0);
    }
}
