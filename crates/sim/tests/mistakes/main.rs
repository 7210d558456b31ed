//! Tests of the simulator that make mistakes on purpose, in one program. The switch is one for the whole
//! process, so each test takes its turn with `broken::with`.

mod broken;
mod liveness;
mod tail;
