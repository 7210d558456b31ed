//! Operations on a volume in memory, compared with a model, with remounts and power cuts in between.
//!
//! Input, read with `arbitrary`: a list of [`Operation`]s. Numbers in them choose among what there is, so
//! that most operations mean something.
//!
//! What is compared: the kind of every result, what reads give, and the whole volume now and then. A power
//! cut leaves an image of any moment since the last one; the check finds nothing wrong with it, and what is
//! recovered fits [`history`]. On a volume without room an operation may fail with `NoSpace` and then has
//! done nothing.
//!
//! | module | what |
//! | --- | --- |
//! | [`model`] | what a volume promises |
//! | [`history`] | what it may hold after a power cut |
//! | [`run`](self::run) | one operation after the other |
//!
//! Neighbours: the crate `quire-sim` has the long runs, with threads, faults and the whole contract; here
//! coverage leads.

mod history;
mod model;
mod run;

pub use run::run;

use arbitrary::Arbitrary;

/// A position or length in bytes: odd numbers anywhere, even ones at blocks.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Bytes(u16);

impl Bytes {
    /// Below 256 KiB.
    pub fn get(self) -> usize {
        let number = usize::from(self.0 >> 1);
        if self.0 & 1 == 1 { number * 8 + 3 } else { number % 64 * quire_base::BLOCK_SIZE }
    }
}

/// A name in a directory.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Name {
    /// Chooses the directory.
    pub directory: u8,
    /// Chooses the name.
    pub name: u8,
}

/// What can be done.
#[derive(Arbitrary, Clone, Debug)]
#[allow(missing_docs)]
pub enum Operation {
    Create {
        at: Name,
        kind: u8,
        mode: u16,
    },
    Symlink {
        at: Name,
        len: u16,
    },
    Unnamed {
        directory: u8,
    },
    Link {
        inode: u8,
        at: Name,
    },
    Unlink {
        at: Name,
    },
    RemoveDirectory {
        at: Name,
    },
    Rename {
        from: Name,
        to: Name,
        flags: u8,
    },
    Look {
        at: Name,
    },
    Write {
        file: u8,
        offset: Bytes,
        len: Bytes,
        fill: u8,
        flags: u8,
    },
    Append {
        file: u8,
        len: Bytes,
        fill: u8,
        flags: u8,
    },
    Read {
        file: u8,
        offset: Bytes,
        len: Bytes,
        direct: bool,
    },
    Truncate {
        file: u8,
        size: Bytes,
    },
    Allocate {
        file: u8,
        mode: u8,
        offset: Bytes,
        len: Bytes,
    },
    /// Space without size, to fill the volume.
    Occupy {
        file: u8,
        offset: Bytes,
        kilobytes: u16,
    },
    Copy {
        from: u8,
        offset: Bytes,
        to: u8,
        to_offset: Bytes,
        len: Bytes,
    },
    SetAttribute {
        inode: u8,
        name: u8,
        len: u16,
        flags: u8,
    },
    RemoveAttribute {
        inode: u8,
        name: u8,
    },
    SetMode {
        inode: u8,
        mode: u16,
    },
    Sync {
        inode: u8,
        data_only: bool,
    },
    SyncAll,
    Checkpoint,
    Background,
    /// Lets go of an inode that was kept open.
    Close {
        inode: u8,
    },
    Remount,
    Compare,
    /// Cuts the power: when (a fraction of the events since the last cut), and what the device keeps.
    Cut {
        when: u16,
        policy: u8,
        seed: u16,
    },
}
