//! The tree itself: what it is made of, how it begins, and the small entries of its interface.
//!
//! Neighbours: `lookup` and `change` for its contents, `checkpoint` for its life on disk.

use crate::accounting::{Accounting, Class, NodeReservation, Short, TreeLimits};
use crate::checkpoint::Versions;
use crate::copies::Look;
use crate::evict::Hand;
use crate::heal::DamagedNodes;
use crate::load::Missing;
use crate::node::{Node, Probe};
use crate::pin::{Published, pin};
use crate::pool::PoolState;
use crate::stats::Counters;
use crate::ticket::{Ticket, Tickets};
use quire_base::sync::atomic::{AtomicU64, Ordering};
use quire_base::sync::{Arc, Mutex};
use quire_base::{BlockNo, Error, ErrorKind, Result};
use quire_device::Device;
use quire_format::extent::Run;
use quire_format::key::{Key, VALUE_MAX};
use quire_format::node::{CHILDREN_MAX, NodePage, Roots, TREE_BOUNDS, TREES};
use quire_format::pool::ChunkEntry;

/// The top of one of the two trees.
pub(crate) struct Root {
    pub(crate) node: Published<Arc<Node>>,
    /// Held by a thread that replaces the root.
    pub(crate) lock: Mutex<()>,
    /// The root's level. Written with the root.
    pub(crate) level: AtomicU64,
}

impl Root {
    fn new(node: Arc<Node>) -> Root {
        Root {
            level: AtomicU64::new(u64::from(node.level)),
            node: Published::new(node),
            lock: Mutex::new(()),
        }
    }
}

/// A volume's trees, used as one. Shared by all threads; see the crate's documentation.
pub struct Tree {
    pub(crate) device: Arc<Device>,
    pub(crate) volume: u64,
    /// In the order of [`TREE_BOUNDS`].
    pub(crate) roots: [Root; TREES],
    /// The live epoch: 2, 3, ... (so that 0 is never one, nor the one before it). It changes only while
    /// nobody changes the tree.
    pub(crate) epoch: AtomicU64,
    /// The last epoch whose checkpoint is written: nodes that are dirty in no later one are clean.
    pub(crate) written: AtomicU64,
    pub(crate) accounting: Accounting,
    pub(crate) tickets: Tickets,
    pub(crate) pool: Mutex<PoolState>,
    /// Nodes that changes of the live epoch took out of the tree; their blocks are freed by its checkpoint.
    pub(crate) removed: Mutex<Vec<Arc<Node>>>,
    pub(crate) versions: Mutex<Versions>,
    pub(crate) resident: AtomicU64,
    pub(crate) limits: TreeLimits,
    pub(crate) hand: Mutex<Hand>,
    pub(crate) damaged: DamagedNodes,
    pub(crate) counters: Counters,
}

impl Tree {
    /// An empty tree of a volume that is being made.
    pub fn create(device: Arc<Device>, volume: u64, pool: PoolState, limits: TreeLimits) -> Arc<Tree> {
        let roots = TREE_BOUNDS.map(|bounds| Node::leaf(NodePage::new(0), bounds.into(), 1));
        let tree = Tree::new(device, volume, roots, pool, limits, TREES as u64);
        let pin = pin();
        tree.roots.iter().for_each(|root| tree.mark(root.node.read(&pin), tree.live_epoch()));
        Arc::new(tree)
    }

    /// The trees that a checkpoint wrote. Reads the roots; other nodes when they are needed.
    ///
    /// Errors: `Corrupt` where a root does not check; `Io`.
    pub fn open(
        device: Arc<Device>,
        volume: u64,
        roots: Roots,
        pool: PoolState,
        limits: TreeLimits,
    ) -> Result<Arc<Tree>> {
        Tree::open_some(device, volume, roots, pool, limits, [true; TREES])
    }

    /// The space tree of a checkpoint, for reading: the tree of names is empty, whatever became of it.
    ///
    /// Errors: as for [`Tree::open`].
    pub fn open_space(
        device: Arc<Device>,
        volume: u64,
        roots: Roots,
        pool: PoolState,
        limits: TreeLimits,
    ) -> Result<Arc<Tree>> {
        Tree::open_some(device, volume, roots, pool, limits, [true, false])
    }

    fn open_some(
        device: Arc<Device>,
        volume: u64,
        roots: Roots,
        pool: PoolState,
        limits: TreeLimits,
        wanted: [bool; TREES],
    ) -> Result<Arc<Tree>> {
        let live = pool.nodes();
        let mut damaged = Vec::new();
        let mut load = |at: usize| -> Result<Arc<Node>> {
            let (root, bounds) = (roots[at], TREE_BOUNDS[at]);
            if !wanted[at] {
                return Ok(Node::leaf(NodePage::new(0), bounds.into(), 1));
            }
            let (page, is_damaged) = crate::load::read_node(&device, volume, &root, Look::UntilGood)?;
            if live < TREES as u64 || !root.place().copies().all(|block| pool.is_used(block)) {
                return Err(Error::corrupt(format!(
                    "the pool's map calls the tree's root at block {} free",
                    root.block
                )));
            }
            let missing = Missing { at: root, probe: Probe::At(bounds.low.unwrap_or(Key::MIN)) };
            crate::load::check_bounds(&page, &bounds.into(), &missing)?;
            damaged.extend(is_damaged.then_some(missing));
            Ok(Node::loaded(page, bounds.into(), root, 1))
        };
        let nodes = [load(0)?, load(1)?];
        let tree = Tree::new(device, volume, nodes, pool, limits, live);
        damaged.into_iter().for_each(|missing| tree.note_damaged(missing));
        Ok(Arc::new(tree))
    }

    fn new(
        device: Arc<Device>,
        volume: u64,
        roots: [Arc<Node>; TREES],
        pool: PoolState,
        limits: TreeLimits,
        live: u64,
    ) -> Tree {
        let accounting = Accounting::new(&limits, live, pool.copies());
        accounting.set_pool(pool.room(), pool.overhead());
        Tree {
            device,
            volume,
            roots: roots.map(Root::new),
            epoch: AtomicU64::new(2),
            written: AtomicU64::new(1),
            accounting,
            tickets: Tickets::new(),
            pool: Mutex::new(pool),
            removed: Mutex::new(Vec::new()),
            versions: Mutex::new(Versions::default()),
            resident: AtomicU64::new(TREES as u64),
            limits,
            hand: Mutex::new(Hand::default()),
            damaged: DamagedNodes::default(),
            counters: Counters::default(),
        }
    }

    /// The root of the tree that has what is looked for.
    #[inline]
    pub(crate) fn root(&self, probe: &Probe) -> &Root {
        let names = match probe {
            Probe::At(key) => *key >= Key::NAMES,
            Probe::Before(bound) => *bound > Key::NAMES,
        };
        &self.roots[usize::from(names)]
    }

    /// Levels of the higher tree; 1 is a lone leaf.
    pub(crate) fn levels(&self) -> usize {
        let level = |root: &Root| root.level.load(Ordering::Acquire) as usize + 1;
        self.roots.iter().map(level).max().unwrap_or(1)
    }

    /// While the ticket lives, no node that is used from now on leaves memory.
    pub fn ticket(&self) -> Ticket<'_> {
        self.tickets.enter()
    }

    /// Reserves the right to dirty `nodes` nodes (see [`Tree::nodes_for`]).
    pub fn try_reserve(&self, nodes: usize, class: Class) -> Result<NodeReservation<'_>, Short> {
        let reserved = self.accounting.try_reserve(nodes as u64, class);
        match &reserved {
            Ok(_) => {}
            Err(Short::Checkpoint) => self.counters.short_of_dirty.add(1),
            Err(Short::PoolFull) => self.counters.short_of_pool.add(1),
        }
        reserved
    }

    /// Whether the pool, with `more` blocks, has room for such a reservation, now or after a checkpoint.
    /// Reserves nothing.
    pub fn pool_has_room(&self, more: u64, nodes: usize, class: Class) -> bool {
        self.accounting.pool_has_room(more, nodes as u64, class)
    }

    /// Whether such a reservation would fit beside those there are, if nothing were dirty.
    pub fn has_room_when_clean(&self, nodes: usize, class: Class) -> bool {
        self.accounting.has_room_when_clean(nodes as u64, class)
    }

    /// Nodes that reservations hold.
    pub fn reserved_nodes(&self) -> u64 {
        self.accounting.held()
    }

    /// Whether the next checkpoints free pool blocks, since the tree has become smaller, or since one is not
    /// kept any more.
    pub fn checkpoint_frees_nodes(&self) -> bool {
        self.accounting.checkpoint_frees_nodes() || self.pool.lock().frees_kept()
    }

    /// The most nodes that changing `keys` keys can dirty, create or remove.
    ///
    /// Per key, the path and a node beside each on it (split off or merged). For many keys in a small tree
    /// that is more than there can be: every node there is, one new leaf a key, and the inner nodes above
    /// these, of both trees. An inner node splits when it has got half of its children, or at once if it was
    /// full to begin with.
    pub fn nodes_for(&self, keys: usize) -> usize {
        let levels = self.levels();
        let by_path = keys.saturating_mul(2 * levels).saturating_add(2 + levels);
        let live = self.accounting.live() as usize;
        let inner = live / CHILDREN_MAX + keys / (CHILDREN_MAX / 2 - 1) + TREES * (levels + 2);
        by_path.min(live.saturating_add(keys).saturating_add(inner))
    }

    /// Whether so much is dirty that a checkpoint should start before somebody must wait for it.
    pub fn wants_checkpoint(&self) -> bool {
        let accounting = &self.accounting;
        accounting.dirty() > accounting.dirty_max() / 2 && accounting.dirty() > 16
    }

    /// Blocks that the pool lacks so that memory alone, not the pool, bounds how much may be dirty.
    pub fn pool_lacks(&self) -> u64 {
        let accounting = &self.accounting;
        2 * accounting.copies() * self.limits.dirty_nodes.saturating_sub(accounting.dirty_max())
    }

    /// Adds a chunk of 1 to 1024 blocks to the pool: apply side of a journaled change.
    pub fn pool_grow(&self, start: BlockNo, blocks: u32) -> Result<()> {
        if start.0.checked_add(u64::from(blocks)).is_none_or(|end| end > self.device.blocks()) {
            return Err(Error::corrupt(format!(
                "a pool chunk of {blocks} blocks at block {start} is past the end"
            )));
        }
        let epoch = self.live_epoch();
        let mut pool = self.pool.lock();
        pool.grow(start, blocks, epoch)?;
        self.accounting.set_pool(pool.room(), pool.overhead());
        Ok(())
    }

    /// Takes a chunk out of the pool that no checkpoint needs (`Corrupt` otherwise): apply side of a
    /// journaled change. A live caller has retired the chunk and made sure of it.
    pub fn pool_shrink(&self, start: BlockNo, blocks: u32) -> Result<()> {
        let epoch = self.live_epoch();
        let mut pool = self.pool.lock();
        pool.shrink(start, blocks, epoch)?;
        self.accounting.set_pool(pool.room(), pool.overhead());
        Ok(())
    }

    /// Retires a chunk of the pool, one that `may_go`: nothing more is put there, so that it can be removed.
    /// None where the pool would have less than `least` blocks without it, or hardly more than the tree
    /// needs. No checkpoint is being written.
    pub fn pool_retire(&self, may_go: &dyn Fn(Run) -> bool, least: u64) -> Option<Run> {
        let mut pool = self.pool.lock();
        let accounting = &self.accounting;
        let nodes = accounting.live() + 4 * (accounting.dirty() + accounting.held());
        let overhead = pool.overhead();
        // What the last checkpoints freed fills the chunks that stay until the next ones.
        let busy = overhead + pool.freed_blocks();
        let needed = |room| accounting.copies() * (nodes + 4 * accounting.emergency_of(room)) + busy;
        let retired = pool.retire(may_go, &|room| room >= least && room >= needed(room));
        accounting.set_pool(pool.room(), pool.overhead());
        retired
    }

    /// Takes back [`Tree::pool_retire`].
    pub fn pool_unretire(&self, start: BlockNo) {
        let mut pool = self.pool.lock();
        pool.unretire(start);
        self.accounting.set_pool(pool.room(), pool.overhead());
    }

    /// Whether no checkpoint needs a block of a chunk.
    pub fn pool_is_unused(&self, start: BlockNo) -> bool {
        self.pool.lock().is_unused(start)
    }

    /// Keeps what checkpoint `checkpoint` needs, under a number of the caller's.
    ///
    /// Errors: `Corrupt` if it needs what is not the pool's.
    pub fn keep(&self, number: u32, checkpoint: u64, entries: Vec<ChunkEntry>) -> Result<()> {
        let mut pool = self.pool.lock();
        pool.keep(number, checkpoint, entries)?;
        self.kept_changed(&pool);
        Ok(())
    }

    /// Keeps what the newest checkpoint needs, which is `checkpoint`. None is being written.
    pub fn keep_newest(&self, number: u32, checkpoint: u64) -> Result<()> {
        let entries = self.pool.lock().newest_entries();
        self.keep(number, checkpoint, entries)?;
        self.accounting.all_dirty_may_be_kept();
        Ok(())
    }

    /// Keeps a checkpoint no longer. Checkpoint `checkpoint`, the next one, is the first without it.
    pub fn let_go(&self, number: u32, checkpoint: u64) {
        let mut pool = self.pool.lock();
        pool.let_go(number, checkpoint);
        self.kept_changed(&pool);
    }

    fn kept_changed(&self, pool: &PoolState) {
        self.accounting.set_kept_newest(pool.kept_newest());
        self.accounting.set_pool(pool.room(), pool.overhead());
    }

    /// Blocks of the pool that only kept checkpoints need.
    pub fn pool_kept_blocks(&self) -> u64 {
        self.pool.lock().only_kept_blocks()
    }

    /// Blocks of the pool that kept checkpoints and the newest one need: each change of what lies there needs
    /// another block.
    pub fn pool_shared_blocks(&self) -> u64 {
        self.pool.lock().shared_blocks()
    }

    /// Nodes that the tree has.
    pub fn nodes(&self) -> u64 {
        self.accounting.live()
    }

    /// Blocks of the pool's chunks.
    pub fn pool_blocks(&self) -> u64 {
        self.pool.lock().blocks()
    }

    /// The pool's chunks, ascending.
    pub fn pool_chunks(&self) -> Vec<Run> {
        self.pool.lock().chunks()
    }

    /// A copy of the pool's state, for checks and dumps.
    pub fn pool_state(&self) -> PoolState {
        self.pool.lock().clone()
    }

    pub(crate) fn live_epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Marks a node dirty and counts it.
    #[inline]
    pub(crate) fn mark(&self, node: &Node, epoch: u64) {
        if node.mark(epoch) {
            self.accounting.node_marked();
            let kept = self.accounting.kept_newest();
            if kept > 0 && self.is_kept(node, epoch, kept) {
                self.accounting.kept_node_marked();
            }
        }
    }

    /// Whether a change in `epoch` leaves a node's block to a kept checkpoint, the newest of which is `kept`.
    fn is_kept(&self, node: &Node, epoch: u64, kept: u64) -> bool {
        // While the epoch before is written, the node may still have the block that it leaves by that.
        let is_counted = node.is_dirty_in(epoch - 1) && self.written.load(Ordering::Acquire) < epoch - 1;
        !is_counted && node.disk().is_some_and(|at| at.generation <= kept)
    }

    pub(crate) fn check_value(value: &[u8]) -> Result<()> {
        if value.len() > VALUE_MAX {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("a tree value of {} bytes: at most {VALUE_MAX} fit", value.len()),
            ));
        }
        Ok(())
    }
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tree {:?}", self.stats())
    }
}
