//! Asynchronous direct I/O that goes on in the same file all the while, for `--direct-load`. The races for
//! torn and for stale reads have it, the others do not.
//!
//! One io_uring with a few requests in flight: reads of the raced range, and writes of a range of its own
//! behind it, so that the race's own arithmetic stays true.

use super::{Arena, part};
use crate::drive::{Part, Stage};
use crate::outcome::os;
use io_uring::{IoUring, opcode, types};
use quire_base::{Error, Result};
use quire_device::AlignedBuf;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

const DEPTH: usize = 8;
/// Where its own range begins: behind every raced range.
const OWN_OFFSET: u64 = 64 << 20;

/// The load as another thread of a race on the file `name`, if the arena has it.
/// `bytes` is the length of the raced range.
pub fn part_of<'a, T: Default + Send + 'a>(
    arena: &Arena<'_>,
    name: &str,
    bytes: usize,
) -> Result<Option<Part<'a, T>>> {
    if !arena.direct_load {
        return Ok(None);
    }
    let file = arena.open(name, libc::O_DIRECT)?;
    let length = bytes.next_multiple_of(4096);
    file.write_all_at(&AlignedBuf::zeroed(length), OWN_OFFSET).map_err(os("writing"))?;
    Ok(Some(part(move |stage| run(&file, length, stage).map(|()| T::default()))))
}

fn run(file: &File, length: usize, stage: &Stage) -> Result<()> {
    let mut ring = IoUring::new(DEPTH as u32).map_err(os("making an io_uring"))?;
    let mut buffers: Vec<AlignedBuf> = (0..DEPTH).map(|_| AlignedBuf::zeroed(length)).collect();
    let mut idle: Vec<usize> = (0..DEPTH).collect();
    let mut failure = None;
    loop {
        while let Some(slot) = idle.pop_if(|_| failure.is_none() && !stage.is_over()) {
            let (fd, buffer) = (types::Fd(file.as_raw_fd()), &mut buffers[slot]);
            let entry = match slot % 2 {
                0 => opcode::Read::new(fd, buffer.as_mut_ptr(), length as u32).offset(0).build(),
                _ => opcode::Write::new(fd, buffer.as_ptr(), length as u32).offset(OWN_OFFSET).build(),
            };
            // SAFETY: the slot's buffer is touched by nobody until its completion was seen, and the loop does
            // not end, nor are `buffers` and `file` dropped, before all were.
            let pushed = unsafe { ring.submission().push(&entry.user_data(slot as u64)) };
            pushed.map_err(|_| Error::invalid("the io_uring's queue is full"))?;
        }
        if idle.len() == DEPTH {
            return failure.map_or(Ok(()), Err);
        }
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // Buffers may still be in use by the kernel: nothing sound is left to do.
            Err(error) => panic!("waiting for an io_uring: {error}"),
        }
        for entry in ring.completion() {
            idle.push(entry.user_data() as usize);
            if entry.result() < 0 {
                let error = std::io::Error::from_raw_os_error(-entry.result());
                failure.get_or_insert(Error::os("asynchronous direct I/O", &error));
            }
        }
    }
}
