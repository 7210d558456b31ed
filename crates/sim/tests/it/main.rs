//! Tests of the simulator that make no mistake on purpose, in one program. Those that do are in the program
//! `mistakes`, since the switch is one for the whole process.

mod errors;
mod orphans;
mod races;
mod runs;
mod small;
