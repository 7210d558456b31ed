//! Requests: from bytes to a value, once for each message.
//!
//! A message comes in one of two shapes. `/dev/fuse` gives header, arguments and data one behind the other.
//! The ring gives them in three buffers: the header, the first argument (if the request has one of fixed
//! size), and the rest. [`Message`] hides which.
//!
//! ```text
//!   /dev/fuse   head = [InHeader | argument | names, data]     tail = []
//!   ring        head = [InHeader ...128]  first = [argument ...128]   tail = [names, data]
//! ```
//!
//! A [`Malformed`] message can only come from a kernel of another mind; it is answered with an error.

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::abi::{self, InHeader, opcode};

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// The bytes of one request.
#[derive(Clone, Copy, Debug)]
pub enum Message<'a> {
    /// One piece, as read from `/dev/fuse`.
    Whole(&'a [u8]),
    /// Three pieces, as in an entry of the ring.
    Split {
        /// Starts with the header.
        header: &'a [u8],
        /// Starts with the first argument, if the request has one.
        argument: &'a [u8],
        /// All else, exactly as long as the kernel says.
        payload: &'a [u8],
    },
}

/// A place in the part of a message that has names and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u32,
    length: u32,
}

impl Span {
    fn new(start: usize, length: usize) -> Result<Span, Malformed> {
        let number = |it: usize| u32::try_from(it).map_err(|_| Malformed("it is too long"));
        Ok(Span { start: number(start)?, length: number(length)? })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// A decoded request. It borrows nothing from its message, so it goes with the exchange to whatever thread
/// answers, and no message is decoded twice.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Node, caller, number.
    pub header: InHeader,
    /// What is asked.
    pub operation: Operation,
}

/// What is asked. Names (without their zero byte) and data are where [`Message::bytes`] finds them.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "names are the kernel's")]
pub enum Operation {
    Lookup {
        name: Span,
    },
    Forget {
        count: u64,
    },
    BatchForget(Span),
    Getattr,
    Setattr(abi::SetattrIn),
    Readlink,
    Symlink {
        name: Span,
        target: Span,
    },
    Mknod {
        args: abi::MknodIn,
        name: Span,
    },
    Mkdir {
        args: abi::MkdirIn,
        name: Span,
    },
    Unlink {
        name: Span,
    },
    Rmdir {
        name: Span,
    },
    Rename {
        name: Span,
        new_parent: u64,
        new_name: Span,
        flags: u32,
    },
    Link {
        node: u64,
        name: Span,
    },
    Open(abi::OpenIn),
    Create {
        args: abi::CreateIn,
        name: Span,
    },
    Tmpfile {
        args: abi::CreateIn,
    },
    Read(abi::ReadIn),
    Write {
        args: abi::WriteIn,
        data: Span,
    },
    Statfs,
    Release(abi::ReleaseIn),
    Fsync(abi::FsyncIn),
    Fsyncdir(abi::FsyncIn),
    Setxattr {
        name: Span,
        value: Span,
        flags: u32,
        /// The caller may not keep the file's set-group-id bit with a new access ACL.
        kill_set_gid: bool,
    },
    Getxattr {
        name: Span,
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: Span,
    },
    Init {
        args: abi::InitIn,
        flags2: u32,
    },
    Readdir(abi::ReadIn),
    Readdirplus(abi::ReadIn),
    Interrupt {
        unique: u64,
    },
    Destroy,
    /// The argument, and what the caller passes.
    Ioctl(abi::IoctlIn, Span),
    Fallocate(abi::FallocateIn),
    Lseek(abi::LseekIn),
    CopyFileRange {
        args: abi::CopyFileRangeIn,
        wide: bool,
    },
    Syncfs,
    Statx(abi::StatxIn),
    /// One that this server does not have.
    Unknown,
}

/// Takes a message apart from front to back.
struct Reader<'a> {
    /// The first argument, where it stands apart.
    argument: Option<&'a [u8]>,
    /// The part with names and data.
    bytes: &'a [u8],
    /// How much of it has been read.
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// The request's argument of fixed size; at most one for each request.
    fn argument<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Malformed> {
        let short = Malformed("its argument is cut short");
        match self.argument {
            Some(bytes) => T::read_from_prefix(bytes).map(|(value, _)| value).map_err(|_| short),
            None => {
                let (value, _) = T::read_from_prefix(self.rest()).map_err(|_| short)?;
                self.at += size_of::<T>();
                Ok(value)
            }
        }
    }

    /// A name, ended by a zero byte.
    fn name(&mut self) -> Result<Span, Malformed> {
        let length = self.rest().iter().position(|&byte| byte == 0).ok_or(Malformed("a name has no end"))?;
        let name = Span::new(self.at, length)?;
        self.at += length + 1;
        if name.is_empty() { Err(Malformed("a name is empty")) } else { Ok(name) }
    }

    /// Exactly `size` bytes of data.
    fn data(&mut self, size: u32) -> Result<Span, Malformed> {
        if self.rest().len() < size as usize {
            return Err(Malformed("its data is cut short"));
        }
        let data = Span::new(self.at, size as usize)?;
        self.at += size as usize;
        Ok(data)
    }
}

impl Operation {
    /// Whether it changes what names there are.
    pub fn changes_names(&self) -> bool {
        use Operation::{Create, Link, Mkdir, Mknod, Rename, Rmdir, Symlink, Unlink};
        matches!(
            self,
            Create { .. }
                | Link { .. }
                | Mkdir { .. }
                | Mknod { .. }
                | Rename { .. }
                | Rmdir { .. }
                | Symlink { .. }
                | Unlink { .. }
        )
    }

    /// Whether it changes an inode's size, its other attributes, or its extended attributes.
    pub fn changes_attributes(&self) -> bool {
        use Operation::{Removexattr, Setattr, Setxattr};
        matches!(self, Removexattr { .. } | Setattr(..) | Setxattr { .. })
    }
}

impl<'a> Message<'a> {
    /// The header alone: what a reply, even to a malformed request, needs.
    pub fn header(&self) -> Result<InHeader, Malformed> {
        let bytes = match self {
            Message::Whole(bytes) => bytes,
            Message::Split { header, .. } => header,
        };
        InHeader::read_from_prefix(bytes).map(|(header, _)| header).map_err(|_| Malformed("it has no header"))
    }

    /// Decodes the whole message.
    pub fn decode(&self) -> Result<Request, Malformed> {
        let header = self.header()?;
        let argument = match *self {
            Message::Whole(bytes) if header.len as usize != bytes.len() => {
                return Err(Malformed("its length is not what its header says"));
            }
            Message::Whole(_) => None,
            Message::Split { argument, .. } => Some(argument),
        };
        let reader = Reader { argument, bytes: self.tail(), at: 0 };
        Ok(Request { header, operation: operation(header.opcode, reader)? })
    }

    /// The part that names and data are in.
    fn tail(&self) -> &'a [u8] {
        match *self {
            Message::Whole(bytes) => bytes.get(size_of::<InHeader>()..).unwrap_or_default(),
            Message::Split { payload, .. } => payload,
        }
    }

    /// A name, or data, of the request that this message was decoded to.
    pub fn bytes(&self, span: Span) -> &'a [u8] {
        let start = span.start as usize;
        self.tail().get(start..start + span.len()).unwrap_or_default()
    }

    /// Node and count, one by one, of a BATCH_FORGET.
    pub fn forgets(&self, span: Span) -> impl Iterator<Item = abi::ForgetOne> + use<'a> {
        self.bytes(span)
            .chunks_exact(size_of::<abi::ForgetOne>())
            .filter_map(|bytes| abi::ForgetOne::read_from_bytes(bytes).ok())
    }
}

fn operation(code: u32, mut from: Reader<'_>) -> Result<Operation, Malformed> {
    Ok(match code {
        opcode::LOOKUP => Operation::Lookup { name: from.name()? },
        opcode::FORGET => Operation::Forget { count: from.argument::<abi::ForgetIn>()?.count },
        opcode::BATCH_FORGET => {
            let count = from.argument::<abi::BatchForgetIn>()?.count as usize;
            let size = count
                .checked_mul(size_of::<abi::ForgetOne>())
                .and_then(|size| u32::try_from(size).ok())
                .ok_or(Malformed("it forgets more than fits"))?;
            Operation::BatchForget(from.data(size)?)
        }
        opcode::GETATTR => Operation::Getattr,
        opcode::SETATTR => Operation::Setattr(from.argument()?),
        opcode::READLINK => Operation::Readlink,
        opcode::SYMLINK => Operation::Symlink { name: from.name()?, target: from.name()? },
        opcode::MKNOD => Operation::Mknod { args: from.argument()?, name: from.name()? },
        opcode::MKDIR => Operation::Mkdir { args: from.argument()?, name: from.name()? },
        opcode::UNLINK => Operation::Unlink { name: from.name()? },
        opcode::RMDIR => Operation::Rmdir { name: from.name()? },
        opcode::RENAME => {
            let new_parent = from.argument::<abi::RenameIn>()?.new_parent;
            Operation::Rename { new_parent, name: from.name()?, new_name: from.name()?, flags: 0 }
        }
        opcode::RENAME2 => {
            let abi::Rename2In { new_parent, flags, .. } = from.argument()?;
            Operation::Rename { new_parent, name: from.name()?, new_name: from.name()?, flags }
        }
        opcode::LINK => Operation::Link { node: from.argument::<abi::LinkIn>()?.node, name: from.name()? },
        opcode::OPEN => Operation::Open(from.argument()?),
        opcode::CREATE => Operation::Create { args: from.argument()?, name: from.name()? },
        // The kernel sends a name that means nothing.
        opcode::TMPFILE => Operation::Tmpfile { args: from.argument()? },
        opcode::READ => Operation::Read(from.argument()?),
        opcode::WRITE => {
            let args: abi::WriteIn = from.argument()?;
            Operation::Write { args, data: from.data(args.size)? }
        }
        opcode::STATFS => Operation::Statfs,
        opcode::RELEASE => Operation::Release(from.argument()?),
        opcode::FSYNC => Operation::Fsync(from.argument()?),
        opcode::FSYNCDIR => Operation::Fsyncdir(from.argument()?),
        opcode::SETXATTR => {
            let abi::SetxattrIn { size, flags, setxattr_flags, .. } = from.argument()?;
            let kill_set_gid = setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0;
            Operation::Setxattr { name: from.name()?, value: from.data(size)?, flags, kill_set_gid }
        }
        opcode::GETXATTR => {
            Operation::Getxattr { size: from.argument::<abi::GetxattrIn>()?.size, name: from.name()? }
        }
        opcode::LISTXATTR => Operation::Listxattr { size: from.argument::<abi::GetxattrIn>()?.size },
        opcode::REMOVEXATTR => Operation::Removexattr { name: from.name()? },
        opcode::INIT => init(from)?,
        opcode::READDIR => Operation::Readdir(from.argument()?),
        opcode::READDIRPLUS => Operation::Readdirplus(from.argument()?),
        opcode::INTERRUPT => Operation::Interrupt { unique: from.argument::<abi::InterruptIn>()?.unique },
        opcode::DESTROY => Operation::Destroy,
        opcode::IOCTL => {
            let args: abi::IoctlIn = from.argument()?;
            Operation::Ioctl(args, from.data(args.in_size)?)
        }
        opcode::FALLOCATE => Operation::Fallocate(from.argument()?),
        opcode::LSEEK => Operation::Lseek(from.argument()?),
        opcode::COPY_FILE_RANGE => Operation::CopyFileRange { args: from.argument()?, wide: false },
        opcode::COPY_FILE_RANGE_64 => Operation::CopyFileRange { args: from.argument()?, wide: true },
        opcode::SYNCFS => Operation::Syncfs,
        opcode::STATX => Operation::Statx(from.argument()?),
        _ => Operation::Unknown,
    })
}

/// INIT comes through `/dev/fuse` only, always; what a kernel of another major version puts behind the first
/// two words is not known.
fn init(mut from: Reader<'_>) -> Result<Operation, Malformed> {
    let args: abi::InitIn = from.argument()?;
    let flags2 = if u64::from(args.flags) & abi::init::INIT_EXT != 0 && args.major == abi::MAJOR {
        from.argument::<abi::InitInMore>()?.flags2
    } else {
        0
    };
    Ok(Operation::Init { args, flags2 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn whole(code: u32, parts: &[&[u8]]) -> Vec<u8> {
        let body = parts.concat();
        let header =
            InHeader { len: (40 + body.len()) as u32, opcode: code, unique: 7, ..InHeader::default() };
        [header.as_bytes(), &body].concat()
    }

    #[test]
    fn both_shapes_mean_the_same() {
        let args = abi::WriteIn { handle: 3, offset: 4096, size: 5, ..abi::WriteIn::default() };
        let message = whole(opcode::WRITE, &[args.as_bytes(), b"hello"]);
        let header = [&message[..40], &[0; 88]].concat();
        let argument = [args.as_bytes(), &[0xee; 88]].concat();
        let split = Message::Split { header: &header, argument: &argument, payload: b"hello" };
        for message in [Message::Whole(&message), split] {
            let request = message.decode().unwrap();
            assert_eq!(request.header.unique, 7);
            let Operation::Write { args, data } = request.operation else { panic!("{request:?}") };
            assert_eq!((args.handle, args.offset, message.bytes(data)), (3, 4096, b"hello".as_slice()));
        }
    }

    #[test]
    fn every_cut_is_noticed() {
        let write = abi::WriteIn { size: 3, ..abi::WriteIn::default() };
        let forget = abi::BatchForgetIn { count: 2, ..abi::BatchForgetIn::default() };
        let xattr = abi::SetxattrIn { size: 4, ..abi::SetxattrIn::default() };
        for (code, parts) in [
            (opcode::WRITE, [write.as_bytes(), b"abc"]),
            (opcode::BATCH_FORGET, [forget.as_bytes(), &[1; 32]]),
            (opcode::SETXATTR, [xattr.as_bytes(), b"name\0data"]),
            (opcode::RENAME2, [&[0; 16], b"from\0to\0"]),
            (opcode::SYMLINK, [b"name\0", b"target\0"]),
            (opcode::LOOKUP, [b"name", b"\0"]),
        ] {
            let good = whole(code, &parts);
            assert!(Message::Whole(&good).decode().is_ok(), "request {code}");
            for length in 0..good.len() {
                let mut cut = good[..length].to_vec();
                assert!(Message::Whole(&cut).decode().is_err(), "request {code}, {length} bytes");
                if length >= 40 {
                    cut[..4].copy_from_slice(&(length as u32).to_ne_bytes());
                    assert!(Message::Whole(&cut).decode().is_err(), "request {code}, {length} bytes, sealed");
                }
            }
        }
    }

    #[test]
    fn counts_that_overflow_are_refused() {
        let forget = abi::BatchForgetIn { count: u32::MAX, ..abi::BatchForgetIn::default() };
        let message = whole(opcode::BATCH_FORGET, &[forget.as_bytes(), &[1; 32]]);
        assert!(Message::Whole(&message).decode().is_err());
        let write = abi::WriteIn { size: u32::MAX, ..abi::WriteIn::default() };
        assert!(Message::Whole(&whole(opcode::WRITE, &[write.as_bytes()])).decode().is_err());
        assert!(Message::Whole(&whole(opcode::LOOKUP, &[b"\0"])).decode().is_err(), "an empty name");
        assert!(matches!(
            Message::Whole(&whole(9999, &[b"whatever"])).decode().unwrap().operation,
            Operation::Unknown
        ));
    }
}
