//! A block device that remembers what was safe, fails on order, and can be cut off at any moment.
//!
//! * [`history`]: every write and flush is an event at submission and at completion; the state machine over
//!   them says what is visible, what is safe, and what is neither.
//! * [`crash`]: which images a crash may leave, chosen by a seed or enumerated.
//! * [`image`]: contents as a persistent tree, so that a crash image costs as much as the unsafe writes it
//!   keeps.
//! * `exporter`: a server between the device and the volume, whose connections break.
//! * [`faults`]: errors on order; [`hold`]: completions kept back and released in any order.
//!
//! A test runs the engine on it, takes images with [`SimulatedBackend::crash`] (now) or
//! [`SimulatedBackend::crash_at`] (any earlier event), and mounts each through
//! [`SimulatedBackend::from_image`], which records again: crashes can be nested to any depth. Of a killed
//! process the drive lives on, with its cache: [`SimulatedBackend::killed_at`] goes on there.
//!
//! Invariants: one lock orders all events, so a run is repeatable as far as its threads are (one thread, or
//! simulated schedules); nothing here draws on time or unseeded chance. What the engine must not do and the
//! device can see is collected in [`SimulatedBackend::violations`]: two writes in flight for one block,
//! memory that changes while it is being written.
//!
//! Neighbours: a [`crate::Backend`] like the others; the simulator's oracle reads its events.

pub mod crash;
#[cfg(not(any(loom, shuttle)))]
pub mod exporter;
pub mod faults;
pub mod history;
pub mod hold;
pub mod image;
mod state;

pub use crash::CrashPolicy;
#[cfg(not(any(loom, shuttle)))]
pub use exporter::Exporter;
pub use faults::{Fault, FaultOp};
pub use history::Event;
pub use hold::Hold;
pub use image::Image;

use crate::backend::{self, Backend, Io, IoClass, IoOp, Segment};
use history::Medium;
use quire_base::random::Random;
use quire_base::sync::{Condvar, Mutex};
use quire_base::{BLOCK_SIZE, BlockNo, Error, Result};
use state::State;
use std::ops::Range;
use std::sync::Arc;

/// See the module's documentation.
pub struct SimulatedBackend {
    blocks: u64,
    state: Mutex<State>,
    /// Signalled when a held operation of a blocked caller is released.
    released: Condvar,
}

const NAME: &str = "simulated";

impl SimulatedBackend {
    /// A device of `blocks` blocks of zero that records its history.
    pub fn new(blocks: u64) -> SimulatedBackend {
        SimulatedBackend::from_image(Image::new(blocks))
    }

    /// A device that holds `image`, all of it safe.
    pub fn from_image(image: Image) -> SimulatedBackend {
        SimulatedBackend::from_medium(Medium::new(image))
    }

    fn from_medium(medium: Medium) -> SimulatedBackend {
        SimulatedBackend {
            blocks: medium.safe.blocks(),
            state: Mutex::new(State::new(medium)),
            released: Condvar::new(),
        }
    }

    /// Forgets the events so far and keeps none from now on: for long runs that only crash in the present.
    pub fn stop_recording(&self) {
        self.state.lock().history.stop();
    }

    /// What a crash at this moment leaves. The device goes on.
    pub fn crash(&self, policy: CrashPolicy) -> Image {
        self.state.lock().medium.crash(policy)
    }

    /// What a crash after the first `events` events would have left; None if they are not recorded.
    pub fn crash_at(&self, events: usize, policy: CrashPolicy) -> Option<Image> {
        let medium = self.state.lock().history.medium_after(events)?;
        Some(medium.crash(policy))
    }

    /// The device that the next process finds when this one is killed after the first `events` events; None
    /// if they are not recorded. It shows the image that [`CrashPolicy::Killed`] of the same seed gives. What
    /// no flush had made safe is in its cache, and a power cut may still lose it.
    pub fn killed_at(&self, events: usize, seed: u64) -> Option<SimulatedBackend> {
        let medium = self.state.lock().history.medium_after(events)?;
        Some(SimulatedBackend::from_medium(medium.killed(seed)))
    }

    /// Crashes for good: returns what is left, and every operation from now on (held ones included) fails, so
    /// nothing that happens in the old instance counts any more.
    pub fn cut_power(&self, policy: CrashPolicy) -> Image {
        let mut state = self.state.lock();
        let image = state.medium.crash(policy);
        state.is_off = true;
        drop(state);
        self.release_all(&mut Random::seeded(0));
        image
    }

    /// Loses power and comes back, with what `policy` leaves of what was not safe. Nothing may be in flight.
    pub fn lose_power(&self, policy: CrashPolicy) {
        let mut state = self.state.lock();
        assert!(state.held.is_empty(), "a device that loses power and comes back has nothing in flight");
        state.log(Event::PowerLost { policy });
    }

    /// Number of events recorded.
    pub fn event_count(&self) -> usize {
        self.state.lock().history.events().len()
    }

    /// The events recorded in `range` (clipped to what there is).
    pub fn events(&self, range: Range<usize>) -> Vec<Event> {
        let state = self.state.lock();
        let events = state.history.events();
        events[range.start.min(events.len())..range.end.min(events.len())].to_vec()
    }

    /// Adds a remark to the events, for the test's own use (for example: operation 17 returned from fsync).
    pub fn note(&self, remark: u64) {
        self.state.lock().log(Event::Note(remark));
    }

    /// Number of writes that no flush has made safe.
    pub fn unsafe_writes(&self) -> usize {
        self.state.lock().medium.unsafe_writes.len()
    }

    /// As [`SimulatedBackend::unsafe_writes`], after the first `events` events.
    pub fn unsafe_writes_at(&self, events: usize) -> Option<usize> {
        Some(self.state.lock().history.medium_after(events)?.unsafe_writes.len())
    }

    /// What reads see now.
    pub fn visible(&self) -> Image {
        self.state.lock().medium.visible.clone()
    }

    /// What survives whatever happens.
    pub fn safe(&self) -> Image {
        self.state.lock().medium.safe.clone()
    }

    /// Adds a fault. Several are tried in the order added; the first that strikes decides.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Removes every fault.
    pub fn clear_faults(&self) {
        self.state.lock().faults.clear();
    }

    /// Limits the host's free space: so many blocks that were never written (or were discarded) can still be
    /// written, then such writes fail with [`quire_base::ErrorKind::NoSpace`]. None: no limit.
    pub fn set_host_space(&self, blocks: Option<u64>) {
        self.state.lock().host_space = blocks;
    }

    /// What discarded blocks read as: `Some(byte)` repeated, or None for zeros (and room for the host).
    pub fn set_discard_pattern(&self, byte: Option<u8>) {
        self.state.lock().discarded = byte.map(|byte| Arc::new([byte; BLOCK_SIZE]));
    }

    /// Flips `bits` bits, chosen by the seed, in blocks of `region` that were ever written. The damage is on
    /// the medium: it stays until the block is written again. Returns the blocks hit, in the order of the
    /// flips.
    pub fn rot(&self, region: Range<u64>, bits: usize, seed: u64) -> Vec<BlockNo> {
        let mut state = self.state.lock();
        let mut written = Vec::new();
        state.medium.visible.for_each(&mut |at, _| {
            if region.contains(&at.0) {
                written.push(at);
            }
        });
        let mut random = Random::seeded(seed);
        let mut hit = Vec::new();
        for _ in 0..if written.is_empty() { 0 } else { bits } {
            let at = written[random.below(written.len() as u64) as usize];
            let bit = random.below(BLOCK_SIZE as u64 * 8) as usize;
            let mut bytes = [0; BLOCK_SIZE];
            state.medium.visible.read(at, &mut bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
            state.log(Event::Rotted { at, block: Arc::new(bytes) });
            hit.push(at);
        }
        hit
    }

    /// What the engine did that no correct engine does; each entry is a sentence.
    pub fn violations(&self) -> Vec<String> {
        self.state.lock().violations.clone()
    }

    fn check(&self, doing: &str, at: BlockNo, bytes: u64) -> Result<()> {
        backend::check_range(NAME, self.blocks, doing, at, bytes)
    }
}

impl Backend for SimulatedBackend {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn name(&self) -> String {
        NAME.into()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, class: IoClass, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.check("reading", at, buf.len() as u64)?;
        let mut state = self.state.lock();
        state.try_read(class, at, (buf.len() / BLOCK_SIZE) as u64)?;
        // SAFETY: `buf` is borrowed exclusively for the length of this call.
        let segment = unsafe { Segment::new(buf.as_mut_ptr(), buf.len()) };
        // SAFETY: as above.
        unsafe { state.fetch(at, &[segment]) };
        Ok(())
    }

    fn write(&self, class: IoClass, at: BlockNo, buf: &[u8]) -> Result<()> {
        self.check("writing", at, buf.len() as u64)?;
        let mut state = self.state.lock();
        // SAFETY: `buf` is borrowed for the length of this call, and capturing only reads it.
        let contents = unsafe { state.capture(&[Segment::new(buf.as_ptr().cast_mut(), buf.len())]) };
        let (id, outcome) = state.begin_write(Some(class), at, contents)?;
        if state.hold == Hold::Everything {
            return self.wait_for_release(state, id, outcome, false);
        }
        state.end_write(id, &outcome);
        outcome
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.state.lock();
        let (id, outcome) = state.begin_flush()?;
        if state.hold == Hold::Everything {
            return self.wait_for_release(state, id, outcome, true);
        }
        state.end_flush(id, &outcome);
        outcome
    }

    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.check("discarding", at, count.saturating_mul(BLOCK_SIZE as u64))?;
        let mut state = self.state.lock();
        let contents = (0..count).map(|_| state.discarded.clone()).collect();
        let (id, outcome) = state.begin_write(None, at, contents)?;
        if state.hold == Hold::Everything {
            return self.wait_for_release(state, id, outcome, false);
        }
        state.end_write(id, &outcome);
        outcome
    }

    fn submit(&self, class: IoClass, ios: Vec<Io>) {
        for io in ios {
            if let Err(error) = self.check(io.op.doing(), io.at, io.bytes()) {
                (io.done)(Err(error));
                continue;
            }
            let mut state = self.state.lock();
            let begun = match io.op {
                IoOp::Read => state.begin_read(class, io.at, io.blocks()),
                IoOp::Write => {
                    // SAFETY: the maker of the segments keeps them valid until `done` runs.
                    let contents = unsafe { state.capture(&io.segments) };
                    state.begin_write(Some(class), io.at, contents)
                }
            };
            match begun {
                Ok((id, outcome)) if state.hold == Hold::Nothing => {
                    // SAFETY: `done` has not run, so the segments are valid.
                    unsafe { state.end_io(id, &io, &outcome) };
                    drop(state);
                    (io.done)(outcome);
                }
                Ok((id, outcome)) => state.hold_io(id, io, outcome),
                Err(error) => {
                    drop(state);
                    (io.done)(Err(error));
                }
            }
        }
    }
}

/// The error of everything after [`SimulatedBackend::cut_power`].
fn power_is_off() -> Error {
    Error::new(quire_base::ErrorKind::Io, "simulated power cut")
}
