//! One module a command.

pub mod bench;
pub mod bench_null;
pub mod check;
pub mod ctl;
pub mod dump;
pub mod fsck;
pub mod generate;
pub mod info;
pub mod inspect;
pub mod mkfs;
pub mod mount;
pub mod probe;
pub mod supervise;
pub mod top;
pub mod umount;
pub mod up;
