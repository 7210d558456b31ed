//! A child that was forked off, and the handles of its parent.

use quire_capi::{file, group, queue, volume};
use std::ffi::{CString, c_int};
use std::ptr;
