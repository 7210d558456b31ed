//! One vectored transfer and how far it has come.
//!
//! The system may move fewer bytes than asked, takes at most [`VECTORS_MAX`] pieces at a time, and may be
//! interrupted; a transfer goes on from where it stopped until every byte has moved. A count of zero is an
//! error (the file ends early, or the host takes no more), so the loop always makes progress.

use crate::backend::{IoOp, Segment};
use quire_base::{BlockNo, Error, ErrorKind, Result};
use std::os::fd::RawFd;

/// Pieces per system call (the kernel's UIO_MAXIOV).
const VECTORS_MAX: usize = 1024;
/// Interruptions and refusals in a row that are tried again.
const RETRIES_MAX: u32 = 1000;

pub(super) struct Transfer {
    pub(super) op: IoOp,
    at: BlockNo,
    /// Byte on the device where the rest begins.
    offset: u64,
    vectors: Vec<libc::iovec>,
    /// Vectors that are finished.
    finished: usize,
    retries: u32,
}

// SAFETY: the vectors are addresses of segments, which any thread may use until the request is done.
unsafe impl Send for Transfer {}

/// What to do after the system has answered.
pub(super) enum Step {
    /// All bytes have moved, or it failed.
    Ended(Result<()>),
    /// Ask again for the rest.
    Again,
}

impl Transfer {
    pub(super) fn new(op: IoOp, at: BlockNo, segments: &[Segment]) -> Transfer {
        let vectors = segments
            .iter()
            .map(|segment| libc::iovec { iov_base: segment.ptr().cast(), iov_len: segment.len() })
            .collect();
        Transfer { op, at, offset: at.byte_offset(), vectors, finished: 0, retries: 0 }
    }

    /// What is left, as much as one call takes.
    pub(super) fn vectors(&self) -> &[libc::iovec] {
        let rest = &self.vectors[self.finished..];
        &rest[..rest.len().min(VECTORS_MAX)]
    }

    /// Byte on the device where [`Transfer::vectors`] go.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Takes the system's answer: a count of bytes, or a negative error number.
    pub(super) fn answered(&mut self, answer: i64, name: &str) -> Step {
        match answer {
            1.. => {
                self.retries = 0;
                self.advance(answer as usize);
                if self.finished == self.vectors.len() { Step::Ended(Ok(())) } else { Step::Again }
            }
            0 => Step::Ended(Err(self.stopped_short(name))),
            _ => {
                let number = -answer as i32;
                // The kernel also cancels what it had queued for a submitting thread that has exited since.
                let is_passing = matches!(number, libc::EINTR | libc::EAGAIN | libc::ECANCELED);
                if is_passing && self.retries < RETRIES_MAX {
                    self.retries += 1;
                    return Step::Again;
                }
                let error = std::io::Error::from_raw_os_error(number);
                let doing = format_args!("{} {name} at block {}", self.op.doing(), self.at);
                Step::Ended(Err(Error::os(doing, &error)))
            }
        }
    }

    fn advance(&mut self, mut bytes: usize) {
        self.offset += bytes as u64;
        while let Some(vector) = self.vectors.get_mut(self.finished) {
            if bytes < vector.iov_len {
                vector.iov_base = vector.iov_base.wrapping_byte_add(bytes);
                vector.iov_len -= bytes;
                return;
            }
            bytes -= vector.iov_len;
            self.finished += 1;
        }
    }

    fn stopped_short(&self, name: &str) -> Error {
        let text = match self.op {
            IoOp::Read => {
                format!("reading {name}: it ends at byte {}; was it truncated while open?", self.offset)
            }
            IoOp::Write => format!("writing {name}: the host takes no bytes at byte {}", self.offset),
        };
        Error::new(ErrorKind::Io, text)
    }

    /// Does the transfer with system calls in this thread.
    ///
    /// # Safety
    /// The segments it was made of are valid (for a read: and nobody else uses them) until this returns.
    pub(super) unsafe fn run(&mut self, fd: RawFd, name: &str) -> Result<()> {
        loop {
            let vectors = self.vectors();
            let (first, count) = (vectors.as_ptr(), vectors.len() as libc::c_int);
            let offset = self.offset as libc::off64_t;
            // SAFETY: `first` and `count` describe a live array of vectors, each of which lies in a segment
            // that the caller vouches for.
            let answer = unsafe {
                match self.op {
                    IoOp::Read => libc::preadv64(fd, first, count, offset),
                    IoOp::Write => libc::pwritev64(fd, first, count, offset),
                }
            };
            let answer = if answer < 0 {
                let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
                -i64::from(number)
            } else {
                answer as i64
            };
            if let Step::Ended(outcome) = self.answered(answer, name) {
                return outcome;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(lens: &[usize]) -> Transfer {
        let segments: Vec<Segment> = lens
            .iter()
            // SAFETY: nothing dereferences these addresses.
            .map(|len| unsafe { Segment::new(std::ptr::without_provenance_mut(1 << 20), *len) })
            .collect();
        Transfer::new(IoOp::Write, BlockNo(2), &segments)
    }

    fn left(transfer: &Transfer) -> Vec<usize> {
        transfer.vectors().iter().map(|vector| vector.iov_len).collect()
    }

    #[test]
    fn short_counts_go_on_where_they_stopped() {
        let mut t = transfer(&[4096, 8192, 4096]);
        assert!(matches!(t.answered(512, "x"), Step::Again));
        assert_eq!((left(&t), t.offset()), (vec![3584, 8192, 4096], 8192 + 512));
        assert_eq!(t.vectors()[0].iov_base.addr(), (1 << 20) + 512);
        assert!(matches!(t.answered(3584, "x"), Step::Again));
        assert_eq!(left(&t), vec![8192, 4096]);
        assert!(matches!(t.answered(9000, "x"), Step::Again));
        assert_eq!(left(&t), vec![3288]);
        assert!(matches!(t.answered(3288, "x"), Step::Ended(Ok(()))));
    }

    #[test]
    fn interruptions_are_retried_but_not_for_ever() {
        let mut t = transfer(&[4096]);
        for _ in 0..RETRIES_MAX {
            assert!(matches!(t.answered(-i64::from(libc::EINTR), "x"), Step::Again));
        }
        assert!(matches!(t.answered(-i64::from(libc::EAGAIN), "x"), Step::Ended(Err(_))));
        let mut t = transfer(&[4096]);
        assert!(matches!(t.answered(0, "x"), Step::Ended(Err(_))));
        let Step::Ended(Err(error)) = t.answered(-i64::from(libc::ENOSPC), "x") else {
            panic!("not an error")
        };
        assert_eq!(error.kind(), ErrorKind::NoSpace);
    }

    #[test]
    fn many_pieces_go_in_several_calls() {
        let mut t = transfer(&[4096; 1500]);
        assert_eq!(t.vectors().len(), VECTORS_MAX);
        assert!(matches!(t.answered(4096 * VECTORS_MAX as i64, "x"), Step::Again));
        assert_eq!(t.vectors().len(), 1500 - VECTORS_MAX);
    }
}
