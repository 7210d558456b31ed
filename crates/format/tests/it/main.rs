//! Tests of the formats, in one program.

mod decoders;
mod golden;
mod memory;
