//! Tests of the history checker, in one program. Each that runs the engine says with `mistakes::with` which
//! mistake it makes, or none, since the switch is one for the whole process.

mod checker;
mod graph;
mod mistakes;
mod regressions;
mod simulated;
mod threads;
