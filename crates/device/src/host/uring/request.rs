//! A request on its way through the ring: its transfer, its memory, and who waits for it.

use crate::aligned::{AlignedBuf, is_aligned};
use crate::backend::{Done, Io, IoOp, Segment};
use crate::host::transfer::{Step, Transfer};
use io_uring::{opcode, squeue, types::Fd};
use quire_base::{BLOCK_SIZE, Result};
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(super) struct Request {
    transfer: Transfer,
    /// Aligned memory that the transfer uses in place of the segments, when one of these is not aligned.
    bounce: Option<AlignedBuf>,
    segments: Vec<Segment>,
    done: Done,
}

impl Request {
    /// Takes over `io`; the maker of its segments keeps them valid until its `done` runs. Where memory for a
    /// bounce buffer is out, `done` gets the error here.
    pub(super) fn new(io: Io) -> Option<Request> {
        let Io { op, at, segments, done } = io;
        if segments.iter().all(|segment| is_aligned(segment.ptr())) {
            return Some(Request {
                transfer: Transfer::new(op, at, &segments),
                bounce: None,
                segments,
                done,
            });
        }
        let mut buf = match AlignedBuf::try_zeroed(segments.iter().map(Segment::len).sum()) {
            Ok(buf) => buf,
            Err(error) => {
                done(Err(error));
                return None;
            }
        };
        if op == IoOp::Write {
            for (segment, part) in parts(&segments, &mut buf) {
                // SAFETY: the segment is valid (see above) and `part` is as long as it.
                unsafe { std::ptr::copy_nonoverlapping(segment.ptr(), part.as_mut_ptr(), part.len()) }
            }
        }
        // SAFETY: `bounce` owns the memory, stays with the request, and is not touched until the transfer
        // ends.
        let whole = unsafe { Segment::new(buf.as_mut_ptr(), buf.len()) };
        Some(Request { transfer: Transfer::new(op, at, &[whole]), bounce: Some(buf), segments, done })
    }

    /// The ring's entry for what is left. The request must live unchanged until the entry's completion.
    pub(super) fn entry(&self, fd: RawFd, slot: usize) -> squeue::Entry {
        let vectors = self.transfer.vectors();
        let (first, count, offset) = (vectors.as_ptr(), vectors.len() as u32, self.transfer.offset());
        let entry = match self.transfer.op {
            IoOp::Read => opcode::Readv::new(Fd(fd), first, count).offset(offset).build(),
            IoOp::Write => opcode::Writev::new(Fd(fd), first, count).offset(offset).build(),
        };
        entry.user_data(slot as u64)
    }

    /// Takes the ring's answer.
    pub(super) fn answered(&mut self, answer: i32, name: &str) -> Step {
        self.transfer.answered(i64::from(answer), name)
    }

    /// Does what is left with system calls in this thread.
    pub(super) fn run(&mut self, fd: RawFd, name: &str) -> Result<()> {
        // SAFETY: the segments are valid until `done` runs, which takes this request; the bounce buffer too.
        unsafe { self.transfer.run(fd, name) }
    }

    /// Hands over the outcome. A `done` that panics is reported and stays alone with it: the thread serves
    /// everybody else's requests.
    pub(super) fn finish(mut self, outcome: Result<()>) {
        if let (Some(bounce), IoOp::Read, Ok(())) = (&mut self.bounce, self.transfer.op, &outcome) {
            for (segment, part) in parts(&self.segments, bounce) {
                // SAFETY: the segment is valid until `done` runs, and `part` is as long as it.
                unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), segment.ptr(), part.len()) }
            }
        }
        let done = self.done;
        if catch_unwind(AssertUnwindSafe(move || done(outcome))).is_err() {
            tracing::error!("a completion callback panicked");
        }
    }
}

/// Each segment with its part of `buf`.
fn parts<'a>(
    segments: &'a [Segment],
    mut buf: &'a mut [u8],
) -> impl Iterator<Item = (&'a Segment, &'a mut [u8])> {
    debug_assert!(buf.len().is_multiple_of(BLOCK_SIZE));
    segments.iter().map(move |segment| {
        let (part, rest) = std::mem::take(&mut buf).split_at_mut(segment.len());
        buf = rest;
        (segment, part)
    })
}
