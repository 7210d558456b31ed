//! The extension in stock SQLite, on a real mount: in one program, since nearly all of it needs a mount.
//!
//! Each test is a program for Python's `sqlite3` module, or a script for the shell `sqlite3`. Needs root,
//! `/dev/fuse` and these programs; says so and passes where they are missing.

mod built_in;
mod image;
mod mounted;
mod pitfalls;
mod random;
