//! The server behind a mount: the process, what it serves, and what it does at the request of commands.
//!
//! | module | what |
//! | --- | --- |
//! | [`process`] | starting it in the background, and hearing how it went |
//! | [`serve`] | opening the volume, mounting it, serving |
//! | [`supervise`] | watching over it |
//! | [`listener`] | requests beside the mount, and numbers over HTTP |
//! | [`tasks`] | requests that take a while |
//! | [`snapshots`], [`sending`], [`scrubbing`], [`freezing`], [`room`] | what can be asked for |

pub mod freezing;
pub mod listener;
pub mod process;
pub mod room;
pub mod scrubbing;
pub mod sending;
pub mod serve;
pub mod snapshots;
pub mod supervise;
pub mod tasks;
