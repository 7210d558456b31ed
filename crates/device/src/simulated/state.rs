//! What a simulated device's one lock protects, and the steps in which operations begin and end.

use super::faults::{Fault, FaultOp};
use super::history::{Contents, Event, History, Medium, Standing};
use super::hold::{Held, Hold, Waiting};
use super::image::Block;
use super::power_is_off;
use crate::backend::{Io, IoClass, IoOp, Segment};
use quire_base::{BLOCK_SIZE, BlockNo, Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most violations kept: enough to see what is wrong.
const VIOLATIONS_MAX: usize = 100;

/// Number of an operation that has begun, and the outcome that its end will have.
pub(super) type Begun = (u64, Result<()>);

pub(super) struct State {
    pub(super) medium: Medium,
    pub(super) history: History,
    pub(super) faults: Vec<Fault>,
    pub(super) hold: Hold,
    /// In order of submission.
    pub(super) held: Vec<Held>,
    /// Outcomes of released operations whose callers have not yet woken.
    pub(super) released: BTreeMap<u64, Result<()>>,
    pub(super) host_space: Option<u64>,
    /// What a discard leaves in a block.
    pub(super) discarded: Option<Block>,
    pub(super) violations: Vec<String>,
    pub(super) is_off: bool,
    next_id: u64,
    /// Shared by all blocks written with zeros.
    zeros: Block,
}

impl State {
    pub(super) fn new(medium: Medium) -> State {
        State {
            // Writes in the cache have the first numbers.
            next_id: medium.unsafe_writes.len() as u64,
            history: History::new(&medium),
            medium,
            faults: Vec::new(),
            hold: Hold::Nothing,
            held: Vec::new(),
            released: BTreeMap::new(),
            host_space: None,
            discarded: None,
            violations: Vec::new(),
            is_off: false,
            zeros: Arc::new([0; BLOCK_SIZE]),
        }
    }

    pub(super) fn log(&mut self, event: Event) {
        self.medium.apply(&event);
        self.history.push(event, &self.medium);
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn strike(&mut self, op: FaultOp, class: Option<IoClass>, at: BlockNo, count: u64) -> Result<()> {
        let struck = self.faults.iter_mut().find_map(|fault| fault.strikes(op, class, at, count));
        self.faults.retain(|fault| !fault.is_spent());
        struck.map_or(Ok(()), Err)
    }

    fn powered(&self) -> Result<()> {
        if self.is_off { Err(power_is_off()) } else { Ok(()) }
    }

    fn violation(&mut self, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(what);
        }
    }

    /// Whether a read may go on.
    pub(super) fn try_read(&mut self, class: IoClass, at: BlockNo, count: u64) -> Result<()> {
        self.powered()?;
        self.strike(FaultOp::Read, Some(class), at, count)
    }

    pub(super) fn begin_read(&mut self, class: IoClass, at: BlockNo, count: u64) -> Result<Begun> {
        self.powered()?;
        let outcome = self.strike(FaultOp::Read, Some(class), at, count);
        Ok((self.take_id(), outcome))
    }

    /// `class` None is a discard. An outer error means that the write never began.
    pub(super) fn begin_write(
        &mut self,
        class: Option<IoClass>,
        at: BlockNo,
        contents: Contents,
    ) -> Result<Begun> {
        self.powered()?;
        let count = contents.len() as u64;
        // Only held operations can be in flight here: others end under the lock they began under.
        let in_flight = if self.held.is_empty() { &[][..] } else { &self.medium.unsafe_writes[..] };
        let overlapped = in_flight
            .iter()
            .find(|write| write.standing == Standing::InFlight && write.overlaps(at, count))
            .map(|write| write.at);
        if let Some(other) = overlapped {
            self.violation(format!(
                "write of {count} blocks at {at} while another at {other} is in flight for some of them"
            ));
        }
        let op = if class.is_some() { FaultOp::Write } else { FaultOp::Discard };
        let outcome = self.strike(op, class, at, count).and_then(|()| self.take_host_space(at, &contents));
        let id = self.take_id();
        self.log(Event::WriteSubmitted { id, class, at, contents });
        Ok((id, outcome))
    }

    /// Accounts for blocks that the host has to find room for, or gets back.
    fn take_host_space(&mut self, at: BlockNo, contents: &Contents) -> Result<()> {
        let Some(space) = self.host_space else { return Ok(()) };
        let (mut wanted, mut returned) = (0, 0);
        for (index, block) in contents.iter().enumerate() {
            let exists = self.medium.visible.get(at.offset(index as u64)).is_some();
            wanted += u64::from(block.is_some() && !exists);
            returned += u64::from(block.is_none() && exists);
        }
        if wanted > space {
            let text = format!("simulated host is full: writing {} blocks at {at}", contents.len());
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        self.host_space = Some(space - wanted + returned);
        Ok(())
    }

    pub(super) fn end_write(&mut self, id: u64, outcome: &Result<()>) {
        self.log(match outcome {
            Ok(()) => Event::WriteCompleted { id },
            Err(_) => Event::WriteFailed { id },
        });
    }

    pub(super) fn begin_flush(&mut self) -> Result<Begun> {
        self.powered()?;
        let outcome = self.strike(FaultOp::Flush, None, BlockNo(0), 0);
        let id = self.take_id();
        self.log(Event::FlushSubmitted { id });
        Ok((id, outcome))
    }

    pub(super) fn end_flush(&mut self, id: u64, outcome: &Result<()>) {
        self.log(match outcome {
            Ok(()) => Event::FlushCompleted { id },
            Err(_) => Event::FlushFailed { id },
        });
    }

    pub(super) fn hold_io(&mut self, id: u64, io: Io, outcome: Result<()>) {
        self.held.push(Held { id, outcome, waiting: Waiting::Request(io) });
    }

    /// Ends a submitted request, all but running its `done`.
    ///
    /// # Safety
    /// The request's segments are valid.
    pub(super) unsafe fn end_io(&mut self, id: u64, io: &Io, outcome: &Result<()>) {
        match io.op {
            IoOp::Read if outcome.is_ok() => {
                // SAFETY: the caller's promise.
                unsafe { self.fetch(io.at, &io.segments) }
            }
            IoOp::Read => {}
            IoOp::Write => {
                // SAFETY: the caller's promise.
                unsafe { self.check_stable(id, io) };
                self.end_write(id, outcome);
            }
        }
    }

    /// Copies what reads see at `at` into the segments.
    ///
    /// # Safety
    /// The segments' memory is valid and nobody else uses it.
    pub(super) unsafe fn fetch(&self, at: BlockNo, segments: &[Segment]) {
        for (index, ptr) in block_pointers(segments).enumerate() {
            match self.medium.visible.get(at.offset(index as u64)) {
                // SAFETY: `ptr` has a block's bytes (`block_pointers`), valid by the caller's promise.
                Some(block) => unsafe { std::ptr::copy_nonoverlapping(block.as_ptr(), ptr, BLOCK_SIZE) },
                // SAFETY: as above.
                None => unsafe { std::ptr::write_bytes(ptr, 0, BLOCK_SIZE) },
            }
        }
    }

    /// Copies the segments' bytes, as blocks.
    ///
    /// # Safety
    /// The segments' memory is valid.
    pub(super) unsafe fn capture(&self, segments: &[Segment]) -> Contents {
        block_pointers(segments)
            .map(|ptr| {
                let mut block: Block = self.zeros.clone();
                // SAFETY: `ptr` has a block's bytes, valid by the caller's promise.
                let bytes = unsafe { ptr.cast::<[u8; BLOCK_SIZE]>().read_unaligned() };
                if bytes != *block {
                    block = Arc::new(bytes);
                }
                Some(block)
            })
            .collect()
    }

    /// Compares the memory of a write with what it held at submission.
    ///
    /// # Safety
    /// The request's segments are valid.
    unsafe fn check_stable(&mut self, id: u64, io: &Io) {
        if self.hold == Hold::Nothing && self.held.is_empty() {
            return;
        }
        let Some(write) = self.medium.unsafe_writes.iter().find(|write| write.id == id) else { return };
        let then = write.contents.clone();
        // SAFETY: the caller's promise.
        if unsafe { self.capture(&io.segments) } != then {
            self.violation(format!("memory of the write at block {} changed while in flight", io.at));
        }
    }
}

/// The address of each block's part of the segments.
fn block_pointers(segments: &[Segment]) -> impl Iterator<Item = *mut u8> + '_ {
    segments.iter().flat_map(|segment| {
        (0..segment.len() / BLOCK_SIZE).map(|block| segment.ptr().wrapping_add(block * BLOCK_SIZE))
    })
}
