//! The bytes of a volume, and nothing else: no I/O, no locks, no state.
//!
//! | module | bytes |
//! | --- | --- |
//! | [`superblock`] | the two alternating roots of a volume, each in two places |
//! | [`place`] | the one or two blocks of a piece of metadata |
//! | [`journal`] | the header of a journal block and of a record in the stream |
//! | [`record`] | a transaction: a list of logical changes |
//! | [`key`], [`node`] | the tree's keys and its 4 KiB nodes |
//! | [`pool`] | the manifest and the map of the metadata pool |
//! | [`orphan`] | a block of orphan slots |
//! | [`inode`], [`extent`], [`region`], [`dirent`], [`xattr`], [`logged`], [`snapshot`] | values in the trees |
//! | [`owner`] | who has a volume open that lies on a server's export |
//! | [`properties`] | what a user may set of a file, in its inode's flags |
//! | [`layout`] | the fields of all of these, as tables |
//!
//! Every decoder takes untrusted bytes and gives an error of kind `Corrupt`; none panics. Integers are
//! little-endian, checksums CRC-32C.
//!
//! Neighbours: `base` below; everything that touches the disk above.

pub mod dirent;
pub mod extent;
pub mod inode;
pub mod journal;
pub mod key;
pub mod layout;
pub mod logged;
pub mod node;
pub mod orphan;
pub mod owner;
pub mod place;
pub mod pool;
pub mod properties;
pub mod receive;
pub mod record;
pub mod region;
pub mod scrub;
pub mod snapshot;
pub mod stream;
pub mod superblock;
pub mod xattr;
