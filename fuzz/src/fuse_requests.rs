//! Requests of the kernel's FUSE client: any bytes decode to a request or are malformed.
//!
//! What decodes lies inside the message: names are not empty and hold no zero byte, data is as long as its
//! argument says. INIT is answered with nothing that was not offered; replies never pass the room they are
//! given.
//!
//! Input: byte 0: bit 0 three pieces instead of one, bit 1 the header tells the right length, bits 2-7 how
//! the rest is cut into pieces or how large the reply's room is; bytes 1-2 the request's number (modulo 64;
//! all ones: as it is); then the message behind the header.

use quire_fuse::protocol::abi::{Dirent, EntryOut, InHeader};
use quire_fuse::protocol::negotiate::{self, Features};
use quire_fuse::protocol::reply::Body;
use quire_fuse::protocol::request::{Message, Operation, Request};
use zerocopy::IntoBytes;

/// Runs one input.
pub fn run(input: &[u8]) {
    let [how, low, high, body @ ..] = input else { return };
    let number = u16::from_le_bytes([*low, *high]);
    let opcode = if number == u16::MAX { 0xffff_ffff } else { u32::from(number) % 64 };
    let length = if how & 2 == 0 { body.len() + size_of::<InHeader>() } else { usize::from(number) };
    let header = InHeader { len: length as u32, opcode, unique: 7, nodeid: 1, ..InHeader::default() };
    let cut = usize::from(how >> 2);
    if how & 1 == 0 {
        let whole = [header.as_bytes(), body].concat();
        look(Message::Whole(&whole), cut);
        // As it is, without a header of ours.
        look(Message::Whole(body), cut);
    } else {
        let (argument, payload) = body.split_at(body.len().min(cut * 4));
        look(Message::Split { header: header.as_bytes(), argument, payload }, cut);
        look(Message::Split { header: body, argument, payload }, cut);
    }
}

fn is_name(name: &[u8]) {
    assert!(!name.is_empty() && !name.contains(&0));
}

fn look(message: Message<'_>, room: usize) {
    let Ok(Request { operation, .. }) = message.decode() else { return };
    match operation {
        Operation::Lookup { name }
        | Operation::Mknod { name, .. }
        | Operation::Mkdir { name, .. }
        | Operation::Unlink { name }
        | Operation::Rmdir { name }
        | Operation::Link { name, .. }
        | Operation::Create { name, .. }
        | Operation::Getxattr { name, .. }
        | Operation::Removexattr { name } => {
            is_name(message.bytes(name));
            list(message.bytes(name), room);
        }
        Operation::Symlink { name, target } => {
            [name, target].into_iter().for_each(|name| is_name(message.bytes(name)))
        }
        Operation::Rename { name, new_name, .. } => {
            [name, new_name].into_iter().for_each(|name| is_name(message.bytes(name)))
        }
        Operation::Write { args, data } => assert_eq!(args.size as usize, message.bytes(data).len()),
        Operation::Setxattr { name, .. } => is_name(message.bytes(name)),
        Operation::BatchForget(all) => {
            let bytes = match message {
                Message::Whole(bytes) => bytes.len(),
                Message::Split { payload, .. } => payload.len(),
            };
            assert!(message.forgets(all).count() * 16 <= bytes);
        }
        Operation::Init { args, flags2 } => {
            let features = Features {
                acl: true,
                kill_privileges: true,
                read_directory_plus: true,
                write_back: true,
                ring: true,
            };
            let pages = negotiate::Pages { limit: args.max_readahead, size: 4096 };
            let (out, agreed) = negotiate::answer(&args, flags2, &features, pages);
            assert_eq!((out.flags & !args.flags, out.flags2 & !flags2), (0, 0));
            assert!(u32::from(out.max_pages) * 4096 == agreed.request_max);
        }
        _ => {}
    }
}

/// Entries of a directory in a small room: whole and padded, or not at all.
fn list(name: &[u8], room: usize) {
    let mut bytes = vec![0xee; room + 8];
    let (room, beyond) = bytes.split_at_mut(room);
    let entry = Dirent { node: 1, offset: 2, name_length: name.len() as u32, kind: 8 };
    let mut body = Body::new(room);
    let mut before = body.len();
    while body.name(&entry, name).is_ok()
        && body.name_and_attributes(&EntryOut::default(), &entry, name).is_ok()
    {
        assert!(body.len() > before && body.len().is_multiple_of(8));
        before = body.len();
    }
    assert_eq!(beyond, [0xee; 8]);
}
