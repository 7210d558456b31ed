//! What is fuzzed: one function for each target, from bytes to nothing, deterministic.
//!
//! | target | bytes become |
//! | --- | --- |
//! | [`values`] | a value in the tree, or a transaction |
//! | [`blocks`] | one block: superblock, node, manifest page, orphan block, journal block |
//! | [`journal_ring`] | the blocks of a journal ring, which is replayed |
//! | [`journal_records`] | transactions behind those of a real volume, which is recovered, used, checked and repaired |
//! | [`tree`] | a whole tree of nodes with its pool's map, and changes of it |
//! | [`image`] | edits of a real volume, which is opened, used, checked and repaired |
//! | [`stream`] | a stream of `quire send`, which an empty volume receives |
//! | [`fuse_requests`] | requests of the kernel's FUSE client |
//! | [`nbd_address`] | the name of a volume: a path, or the address of a server's export |
//! | [`operations`] | operations on a volume, crashes included, compared with a model |
//!
//! A finding is a panic, an abort, more than 20 s or more than 2 GiB for an input. The functions assert
//! whatever else is promised.
//!
//! Two ways to run them: libFuzzer (`scripts/fuzz`, for long runs; `fuzz_targets/` has the entry points), and
//! [`replay`], which needs no special compiler: the kept corpus and seeded mutations of it, as part of the
//! tests.
//!
//! Neighbours: `docs/testing.md` says how to run, keep and reduce inputs.

pub mod blocks;
pub mod edits;
pub mod explore;
pub mod fuse_requests;
pub mod image;
pub mod journal_records;
pub mod journal_ring;
pub mod mutate;
pub mod nbd_address;
pub mod operations;
pub mod replay;
pub mod sample;
pub mod seal;
pub mod stream;
pub mod tree;
pub mod values;

/// A way to use bytes.
pub struct Target {
    /// The name of its corpus and of its program.
    pub name: &'static str,
    /// Uses one input; panics on a finding.
    pub run: fn(&[u8]),
    /// Bytes of an input that make sense.
    pub input_bytes_max: usize,
    /// Mutations that a replay in the tests tries.
    pub mutations: usize,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "values", run: values::run, input_bytes_max: 4096, mutations: 20_000 },
    Target { name: "blocks", run: blocks::run, input_bytes_max: 4097, mutations: 20_000 },
    Target { name: "journal_ring", run: journal_ring::run, input_bytes_max: 20_000, mutations: 10_000 },
    Target { name: "journal_records", run: journal_records::run, input_bytes_max: 4096, mutations: 500 },
    Target { name: "tree", run: tree::run, input_bytes_max: 4096, mutations: 1_000 },
    Target { name: "image", run: image::run, input_bytes_max: 400, mutations: 500 },
    Target { name: "operations", run: operations::run, input_bytes_max: 2048, mutations: 500 },
    Target { name: "stream", run: stream::run, input_bytes_max: 20_000, mutations: 1_000 },
    Target { name: "fuse_requests", run: fuse_requests::run, input_bytes_max: 2048, mutations: 20_000 },
    Target { name: "nbd_address", run: nbd_address::run, input_bytes_max: 256, mutations: 20_000 },
];

/// The target of a name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
