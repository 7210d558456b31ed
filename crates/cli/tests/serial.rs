//! Tests that need a process of their own, in which one runs at a time: a program that another thread starts
//! has, until its exec, a copy of every file that is open here, so that a mount would be in use although
//! everything on it is closed.

mod bad_input;
mod common;
