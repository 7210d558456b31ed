//! What the threads of a history do, from a seed.
//!
//! A *style* says which operations meet: each kind of mistake shows under some styles within few histories,
//! and under a mixture of everything within many. Files are of a few blocks, so that operations overlap;
//! ranges start and end anywhere, on sectors or on blocks, as the seed has it.
//!
//! Neighbours: [`crate::simulated`] and [`crate::threads`] do the plans.

use crate::operation::{Mode, Operation};
use quire::inodes::IoFlags;
use quire_base::random::Random;

/// Cells of a block.
pub const BLOCK: u64 = 512;
/// Cells of a sector.
const SECTOR: u64 = 64;
/// Cells of the largest cached batch; longer requests go another way in the engine.
const BATCH: u64 = 256 * BLOCK;

/// Blocks of the file of a long history, but for what is appended.
pub const LONG_BLOCKS: u64 = 24;

/// Which operations meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Style {
    /// Everything.
    Mixed,
    /// Reads and writes through the cache, inside and across the end of file.
    Cached,
    /// Appends of all kinds, and readers of the end.
    Append,
    /// Writes and reads across an end of file that moves up.
    Edge,
    /// Truncates, growth, writes beyond the end of file.
    Resize,
    /// Punch, zero, allocate, collapse, insert.
    Holes,
    /// Direct against cached.
    Direct,
    /// Sequential readers of a file that is not cached, and writers.
    Ahead,
    /// Requests longer than a batch.
    Large,
}

impl Style {
    /// Every style.
    pub const ALL: [Style; 9] = [
        Style::Mixed,
        Style::Cached,
        Style::Append,
        Style::Edge,
        Style::Resize,
        Style::Holes,
        Style::Direct,
        Style::Ahead,
        Style::Large,
    ];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Style::Mixed => "mixed",
            Style::Cached => "cached",
            Style::Append => "append",
            Style::Edge => "edge",
            Style::Resize => "resize",
            Style::Holes => "holes",
            Style::Direct => "direct",
            Style::Ahead => "ahead",
            Style::Large => "large",
        }
    }

    /// The style of a name.
    pub fn from_name(name: &str) -> Option<Style> {
        Style::ALL.into_iter().find(|style| style.name() == name)
    }

    /// Chances of [`Kind`]s, in their order.
    fn weights(self) -> [u64; KINDS] {
        match self {
            //                W  wd  A  T  F  R  rd  S  q  m  z
            Style::Mixed => [12, 6, 4, 3, 4, 16, 5, 2, 2, 1, 1],
            Style::Cached => [20, 0, 2, 0, 0, 20, 0, 1, 1, 1, 1],
            Style::Append => [2, 0, 16, 1, 0, 14, 2, 4, 1, 0, 1],
            Style::Edge => [16, 0, 2, 0, 0, 18, 0, 3, 0, 0, 1],
            Style::Resize => [10, 1, 2, 10, 2, 16, 2, 3, 1, 0, 1],
            Style::Holes => [10, 2, 1, 1, 12, 16, 3, 1, 1, 0, 1],
            Style::Direct => [10, 12, 2, 1, 0, 14, 8, 0, 2, 0, 1],
            Style::Ahead => [8, 5, 0, 0, 0, 20, 0, 0, 2, 1, 1],
            Style::Large => [6, 2, 3, 1, 1, 12, 1, 6, 0, 0, 0],
        }
    }
}

const KINDS: usize = 11;

/// What an operation is, in the order of the weights.
#[derive(Clone, Copy)]
enum Kind {
    Write,
    WriteDirect,
    Append,
    Truncate,
    Allocate,
    Read,
    ReadDirect,
    Size,
    Sync,
    Pressure,
    Pause,
}

const ORDER: [Kind; KINDS] = [
    Kind::Write,
    Kind::WriteDirect,
    Kind::Append,
    Kind::Truncate,
    Kind::Allocate,
    Kind::Read,
    Kind::ReadDirect,
    Kind::Size,
    Kind::Sync,
    Kind::Pressure,
    Kind::Pause,
];

/// What is done to one file.
#[derive(Clone, Debug)]
pub struct Plan {
    /// By one thread, first.
    pub setup: Vec<Operation>,
    /// Then by these at once.
    pub threads: Vec<Vec<Operation>>,
    /// Then by one again.
    pub end: Vec<Operation>,
}

/// How much a plan has.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Threads at most; at least two.
    pub threads: u64,
    /// Operations of a thread at most.
    pub operations: u64,
}

/// Draws plans.
pub struct Generator {
    random: Random,
    style: Style,
    /// Blocks of the file, about.
    blocks: u64,
    /// What offsets and lengths are multiples of, in cells.
    grain: u64,
    /// Where the thread's sequential reads are.
    stream: u64,
    /// Where the end of file should be about now.
    edge: u64,
}

impl Generator {
    /// The plans of a seed.
    pub fn new(seed: u64, style: Style) -> Generator {
        let mut random = Random::seeded(seed);
        let blocks = match style {
            Style::Large => 270 + random.below(250),
            Style::Ahead => 8 + random.below(17),
            Style::Edge => 1 + random.below(2),
            _ => 1 + random.below(8),
        };
        let grain = [1, 1, SECTOR, BLOCK][random.below(4) as usize];
        Generator { random, style, blocks, grain, stream: 0, edge: 0 }
    }

    /// One thread's operations of a long history: none that moves cells or makes the file smaller, ranges of
    /// whole sectors, of a file of [`LONG_BLOCKS`].
    pub fn long(seed: u64, count: usize) -> Vec<Operation> {
        let mut random = Random::seeded(seed);
        let reader = random.one_in(3);
        let (style, blocks) = (Style::Direct, LONG_BLOCKS);
        let mut generator = Generator { random, style, blocks, grain: SECTOR, stream: 0, edge: 0 };
        let mut operations = Vec::with_capacity(count);
        while operations.len() < count {
            generator.style = match generator.random.below(40) {
                0..18 => Style::Cached,
                18..24 => Style::Ahead,
                24 => Style::Append,
                25 => Style::Holes,
                _ => Style::Direct,
            };
            let operation = generator.operation(reader);
            let fits = match &operation {
                Operation::Truncate { .. } => false,
                Operation::Allocate { mode, .. } => {
                    matches!(mode, Mode::Punch | Mode::ZeroKeepSize | Mode::KeepSize)
                }
                _ => true,
            };
            if fits {
                operations.push(operation);
            }
        }
        operations
    }

    /// A plan.
    pub fn plan(&mut self, extent: Extent) -> Plan {
        let threads = 2 + self.random.below(extent.threads.max(2) - 1);
        let most = if self.style == Style::Large { extent.operations.min(4) } else { extent.operations };
        let setup = self.setup();
        let threads = (0..threads)
            .map(|_| {
                (self.stream, self.edge) = (0, self.end());
                let count = 1 + self.random.below(most);
                let reader = self.random.one_in(3);
                (0..count).map(|_| self.operation(reader)).collect()
            })
            .collect();
        // The cache's, and what is below it.
        let all = self.end() * 2 + 4 * BATCH;
        let end = vec![
            Operation::Read { at: 0, len: all, direct: false },
            Operation::Size,
            Operation::Read { at: 0, len: all, direct: true },
        ];
        Plan { setup, threads, end }
    }

    /// Cells that operations inside the file stay below.
    fn end(&self) -> u64 {
        self.blocks * BLOCK
    }

    fn setup(&mut self) -> Vec<Operation> {
        let all = self.end() - if self.random.one_in(2) { self.random.below(BLOCK) } else { 0 };
        let whole = self.end();
        let direct = Operation::Write { at: 0, len: whole, flags: IoFlags::DIRECT };
        let write = Operation::Write { at: 0, len: all, flags: IoFlags::empty() };
        let fsync = Operation::Fsync { datasync: false };
        let mut setup = match (self.style, self.random.below(5)) {
            (Style::Ahead, _) | (Style::Direct, 0 | 1) => vec![direct],
            (_, 0) => vec![],
            (_, 1) => vec![direct],
            (_, 2) => vec![write, fsync],
            (Style::Large, _) => vec![write],
            _ => vec![write, Operation::Read { at: 0, len: whole, direct: false }],
        };
        if matches!(self.style, Style::Holes | Style::Direct | Style::Mixed) && self.random.one_in(3) {
            // Scattered homes: a direct request takes several of the device's.
            for block in (0..self.blocks).step_by(2) {
                setup.push(Operation::Allocate { mode: Mode::Punch, at: block * BLOCK, len: BLOCK });
            }
            setup.push(fsync_of_data());
        }
        setup
    }

    fn operation(&mut self, reader: bool) -> Operation {
        let weights = self.style.weights();
        let kind = loop {
            let mut at = self.random.below(weights.iter().sum());
            let kind = weights.iter().position(|weight| {
                let here = at < *weight;
                at = at.wrapping_sub(*weight);
                here
            });
            let kind = ORDER[kind.expect("a draw below the sum is in one of the weights")];
            if !reader || matches!(kind, Kind::Read | Kind::ReadDirect | Kind::Size | Kind::Pressure) {
                break kind;
            }
        };
        match kind {
            Kind::Write => {
                let (at, len) = self.range(self.grain, true);
                Operation::Write { at, len, flags: self.durability() }
            }
            Kind::WriteDirect => {
                let (at, len) = self.direct_range(true);
                let write = Operation::Write { at, len, flags: IoFlags::DIRECT | self.durability() };
                self.perhaps_submitted(write)
            }
            Kind::Append => self.append(),
            Kind::Truncate => {
                let beyond = if self.random.one_in(4) { 4 * BLOCK } else { 0 };
                let size = self.random.below(self.end() + beyond);
                Operation::Truncate { size: self.rounded(size, self.grain) }
            }
            Kind::Allocate => self.allocate(),
            Kind::Read if self.style == Style::Ahead && !self.random.one_in(4) => {
                // A stream from the start.
                let len = BLOCK * (1 + self.random.below(2));
                let at = self.stream;
                self.stream = if at + len >= self.end() { 0 } else { at + len };
                Operation::Read { at, len, direct: false }
            }
            Kind::Read => {
                let (at, len) = self.range(self.grain, false);
                Operation::Read { at, len, direct: false }
            }
            Kind::ReadDirect => {
                let (at, len) = self.direct_range(false);
                self.perhaps_submitted(Operation::Read { at, len, direct: true })
            }
            Kind::Size => Operation::Size,
            Kind::Sync if self.random.one_in(4) => Operation::Sync,
            Kind::Sync => Operation::Fsync { datasync: self.random.one_in(2) },
            Kind::Pressure => Operation::Pressure,
            Kind::Pause => Operation::Pause,
        }
    }

    /// A third of direct requests are asynchronous.
    fn perhaps_submitted(&mut self, operation: Operation) -> Operation {
        if self.random.one_in(3) { Operation::Submit(Box::new(operation)) } else { operation }
    }

    fn durability(&mut self) -> IoFlags {
        match self.random.below(16) {
            0 => IoFlags::DATASYNC,
            1 => IoFlags::SYNC,
            _ => IoFlags::empty(),
        }
    }

    fn rounded(&self, cells: u64, grain: u64) -> u64 {
        cells - cells % grain
    }

    /// A range to read or write; some reach past the end of file or start there.
    fn range(&mut self, grain: u64, writes: bool) -> (u64, u64) {
        match self.style {
            Style::Large => return self.large_range(grain, writes),
            Style::Edge => return self.edge_range(grain),
            _ => {}
        }
        let beyond = if self.random.one_in(4) { 2 * BLOCK } else { 0 };
        let at = match self.random.below(6) {
            0 => 0,
            1 => self.random.below(self.blocks) * BLOCK,
            _ => self.random.below(self.end() + beyond),
        };
        let at = self.rounded(at, grain);
        let longest = match self.random.below(3) {
            0 => BLOCK / 2,
            1 => 2 * BLOCK,
            _ => (self.end() + beyond).saturating_sub(at).max(BLOCK),
        };
        let len = 1 + self.random.below(longest);
        (at, len.next_multiple_of(grain))
    }

    /// Across the end of file, where that is thought to be.
    fn edge_range(&mut self, grain: u64) -> (u64, u64) {
        self.edge += self.random.below(BLOCK / 2);
        let at = self.edge.saturating_sub(1 + self.random.below(2 * BLOCK));
        let at = self.rounded(at, grain);
        let len = self.edge - at + self.random.below(BLOCK / 2);
        (at, len.max(1).next_multiple_of(grain))
    }

    /// Around the borders of batches, or longer than one.
    fn large_range(&mut self, grain: u64, writes: bool) -> (u64, u64) {
        let longer = BATCH + 1 + self.random.below(self.end().saturating_sub(BATCH).max(1));
        let (at, len) = match self.random.below(3) {
            0 | 1 if writes => (self.random.below(2 * BLOCK), longer),
            0 => (0, longer),
            _ => (BATCH - 1 - self.random.below(BLOCK), 2 + self.random.below(2 * BLOCK)),
        };
        (self.rounded(at, grain), len.next_multiple_of(grain))
    }

    /// Mostly of whole blocks: others go through the cache.
    fn direct_range(&mut self, writes: bool) -> (u64, u64) {
        let grain = if self.random.one_in(5) { self.grain } else { BLOCK };
        let (at, len) = self.range(grain, writes);
        if self.style == Style::Large { (at, len.min(40 * BLOCK).next_multiple_of(grain)) } else { (at, len) }
    }

    fn append(&mut self) -> Operation {
        let mut flags = IoFlags::APPEND | self.durability();
        let mut len = 1 + self.random.below(3 * BLOCK);
        if self.random.one_in(3) {
            flags |= IoFlags::DIRECT;
            len = len.next_multiple_of(BLOCK);
        } else if self.style == Style::Large && self.random.one_in(2) {
            len += BATCH;
        }
        Operation::Append { len: len.next_multiple_of(self.grain), flags }
    }

    fn allocate(&mut self) -> Operation {
        let modes = [
            Mode::Punch,
            Mode::Punch,
            Mode::Zero,
            Mode::ZeroKeepSize,
            Mode::Allocate,
            Mode::KeepSize,
            Mode::Collapse,
            Mode::Insert,
        ];
        let mode = modes[self.random.below(modes.len() as u64) as usize];
        let grain = if matches!(mode, Mode::Collapse | Mode::Insert) { BLOCK } else { self.grain };
        let at = self.random.below(self.end());
        let len = 1 + self.random.below(3 * BLOCK);
        Operation::Allocate { mode, at: self.rounded(at, grain), len: len.next_multiple_of(grain) }
    }
}

fn fsync_of_data() -> Operation {
    Operation::Fsync { datasync: true }
}
