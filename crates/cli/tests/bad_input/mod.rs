//! Bad input: each mistake and each damage has its own clear message and exit code, and changes nothing.
//!
//! "Nothing" is taken literally where nobody has the image open: its length, its time of change and a
//! checksum of all its bytes are the same before and after.

#[macro_use]
mod support;

mod arguments;
mod host;
mod images;
mod limits;
mod lossy;
mod places;
mod users;
