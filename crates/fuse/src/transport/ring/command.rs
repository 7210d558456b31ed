//! The submissions of the ring: 128 bytes each, a command for `/dev/fuse` in the second half.
//!
//! The device is named by its place in the io_uring's table of files ([`DEVICE`]), which saves the kernel
//! looking it up for each command.

use io_uring::squeue::Entry128;
use io_uring::{opcode, types};
use zerocopy::IntoBytes;

use crate::protocol::abi::{RING_COMMIT_AND_FETCH, RING_HEADERS_SIZE, RING_REGISTER, RingCommand};
use crate::transport::buffer::{Buffer, HEAD};

/// Where `/dev/fuse` stands in the table of files that is registered with each io_uring.
const DEVICE: types::Fixed = types::Fixed(0);
/// Completions with this mark are not entries but the wake-up of the queue's thread.
pub const WAKE: u64 = u64::MAX;

/// Where `len` stands in a submission (`struct io_uring_sqe`).
const LENGTH_OFFSET: usize = 24;

/// The two pieces of an entry's memory, as the kernel is told of them.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Pieces([libc::iovec; 2]);

impl Pieces {
    /// Of a buffer with `payload` bytes behind its head.
    pub fn new(buffer: &mut Buffer, payload: usize) -> Pieces {
        let bytes = buffer.bytes_mut();
        let (head, body) = bytes.split_at_mut(HEAD);
        Pieces([
            libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: RING_HEADERS_SIZE },
            libc::iovec { iov_base: body.as_mut_ptr().cast(), iov_len: payload.min(body.len()) },
        ])
    }
}

fn command(operation: u32, queue: u16, commit_id: u64, pieces: Option<&Pieces>) -> Entry128 {
    let fields = RingCommand { queue, commit_id, ..RingCommand::default() };
    let mut area = [0; 80];
    area[..size_of::<RingCommand>()].copy_from_slice(fields.as_bytes());
    let pieces_at = pieces.map(|pieces| std::ptr::from_ref(pieces) as u64);
    let entry = opcode::UringCmd80::new(DEVICE, operation).cmd(area).addr(pieces_at).build();
    if pieces.is_some() { with_length(entry, 2) } else { entry }
}

/// Sets the length, which the builder of commands has no word for.
fn with_length(entry: Entry128, length: u32) -> Entry128 {
    const { assert!(size_of::<Entry128>() == 128) };
    // SAFETY: an Entry128 is the kernel's 128-byte submission, C layout, integers all through: any bytes are
    // one.
    let mut bytes: [u8; 128] = unsafe { std::mem::transmute(entry) };
    bytes[LENGTH_OFFSET..LENGTH_OFFSET + 4].copy_from_slice(&length.to_ne_bytes());
    // SAFETY: as above.
    unsafe { std::mem::transmute(bytes) }
}

/// Gives the kernel an entry of `queue`. The pieces are read while the submission is made, the memory they
/// name is used until the entry's completion.
pub fn register(queue: u16, index: u32, pieces: &Pieces) -> Entry128 {
    command(RING_REGISTER, queue, 0, Some(pieces)).user_data(u64::from(index))
}

/// Gives the kernel the reply that stands in an entry, and the entry for the next request.
pub fn commit_and_fetch(queue: u16, index: u32, commit_id: u64) -> Entry128 {
    command(RING_COMMIT_AND_FETCH, queue, commit_id, None).user_data(u64::from(index))
}

/// Completes when the queue's thread is called. `count` gets the eight bytes of the event descriptor.
pub fn wake(event: i32, count: *mut u64) -> Entry128 {
    let entry = opcode::Read::new(types::Fd(event), count.cast(), 8).build().user_data(WAKE);
    Entry128::from(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_the_kernel_looks() {
        let mut buffer = Buffer::new(4096).unwrap();
        let pieces = Pieces::new(&mut buffer, 4096);
        // SAFETY: plain bytes, see `with_length`.
        let bytes: [u8; 128] = unsafe { std::mem::transmute(register(3, 9, &pieces)) };
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(
            (bytes[0], bytes[1], word(4), word(8)),
            (46, 1, 0, RING_REGISTER),
            "IORING_OP_URING_CMD, IOSQE_FIXED_FILE, place, command"
        );
        assert_eq!((long(16), word(24)), (std::ptr::from_ref(&pieces) as u64, 2), "two pieces");
        assert_eq!(long(32), 9, "user data");
        assert_eq!((long(48), long(56), word(64) as u16), (0, 0, 3), "flags, commit id, queue");
        // SAFETY: as above.
        let bytes: [u8; 128] = unsafe { std::mem::transmute(commit_and_fetch(3, 9, 77)) };
        assert_eq!(bytes[56], 77);
    }
}
