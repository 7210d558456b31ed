//! The gate's uncontended path alone, for instruction counts: `scripts/counts` runs it under callgrind.
//!
//! Enters and leaves a gate so many times (the first argument), each through a function of its own that is
//! not inlined: what is counted for a function is its path and one return.

use quire::internals::gate::{Gate, GateState, Permit};
use std::hint::black_box;

#[inline(never)]
#[unsafe(no_mangle)]
fn gate_path_enter(gate: &Gate, state: GateState) -> Permit<'_> {
    gate.enter(state)
}

#[inline(never)]
#[unsafe(no_mangle)]
fn gate_path_leave(permit: Permit<'_>) {
    drop(permit);
}

fn main() {
    let rounds: u32 = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(1);
    let gate = Gate::new();
    for _ in 0..rounds {
        gate_path_leave(black_box(gate_path_enter(black_box(&gate), black_box(GateState::Buffered))));
    }
}
