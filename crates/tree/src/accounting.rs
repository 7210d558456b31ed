//! How many nodes may be dirty: reservations against memory and against the room in the pool.
//!
//! A *dirty set* is what one epoch changes: nodes that its checkpoint writes, and nodes it removes, whose
//! blocks the checkpoint before still needs. Let L be the nodes of a tree, D a bound on every dirty set, O
//! the blocks of maps and orphan blocks that three checkpoints can need. The pool must have `L + 2 D + O`
//! blocks, or twice as many where everything has two copies: while checkpoint n + 1 is written, slots n and
//! n - 1 need L(n) and what n freed (at most D), and the writing takes D; after a crash in mid-write, replay
//! changes two epochs' dirty sets in one, over L(n) alone. Where an image takes the place of an unpublished
//! one, the dirty sets of both count as one, and D bounds that one too.
//!
//! A node that a kept checkpoint has needs a block more from its first change on: its old block stays. These
//! are counted when they are marked, until the checkpoint that frees the old block has added it to O; else
//! two dirty sets would each be measured by an O that lacks the other's. What is dirty when the checkpoint
//! comes to be kept counts as such. A node that is reserved may become one of them.
//!
//! D is therefore not a constant but what the room leaves, at most the limit by memory. L is the largest of
//! the trees that count (durable, frozen, live) plus whatever reservations may still add. Since live + 2 D
//! never exceeds the pool in any epoch, two neighbouring epochs' sets fit together, whichever of them has
//! grown the tree.
//!
//! Reservations are worst cases; a node counts once per epoch when it is first marked, and the whole
//! reservation returns when it is dropped. It returns to the *credit* of its thread's shard, which stays
//! reserved: the next reservation of the shard takes it from there and changes no word that others use. It
//! makes the same comparison as every other one, and reads for it only words that change with the first
//! change of a node in an epoch. A transaction that does not fit takes all shards' credit back first; so no
//! credit makes anybody wait. Ordinary transactions leave an emergency reserve to critical ones (that free
//! space), so a full volume can still delete.
//!
//! Neighbours: [`crate::Tree::try_reserve`]; the pool reports its size here.

use crossbeam_utils::CachePadded;
use quire_base::shard::{self, SHARDS};
use quire_base::sync::atomic::{AtomicU64, Ordering};

/// How much memory a tree's nodes may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeLimits {
    /// Resident nodes beyond which clean ones are evicted.
    pub cache_nodes: u64,
    /// Dirty nodes beyond which a checkpoint is needed first.
    pub dirty_nodes: u64,
}

/// Memory of a resident node with its share of pointers, in bytes.
pub const NODE_MEMORY_BYTES: u64 = 4096 + 320;

impl TreeLimits {
    /// Limits for a node cache of about `bytes`. Dirty nodes may take half of it: the frozen ones take as
    /// much again only where they change while they are written.
    pub fn with_cache_bytes(bytes: u64) -> TreeLimits {
        let cache_nodes = (bytes / NODE_MEMORY_BYTES).max(64);
        TreeLimits { cache_nodes, dirty_nodes: (cache_nodes / 2).max(256) }
    }
}

/// The class of a transaction that asks for nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// An ordinary change.
    Normal,
    /// A change that frees space or finishes what was promised: may use the emergency reserve.
    Critical,
}

/// Why a reservation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// A checkpoint makes room.
    Checkpoint,
    /// Only a larger pool makes room.
    PoolFull,
}

/// Nodes that the holder may dirty. Returns what is not used when dropped.
#[must_use]
pub struct NodeReservation<'a> {
    accounting: &'a Accounting,
    nodes: u64,
}

impl NodeReservation<'_> {
    /// Nodes reserved.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }
}

impl Drop for NodeReservation<'_> {
    fn drop(&mut self) {
        // What was used is counted as dirty since it was marked.
        self.accounting.give_back(self.nodes);
    }
}

/// Room below which an ordinary transaction asks for a larger pool rather than for ever more checkpoints.
const COMFORTABLE_NODES: u64 = 64;

/// Nodes that a shard keeps reserved between transactions: a few small ones' worth, and never much of all
/// there may be.
const CREDIT_MAX: u64 = 128;
const CREDIT_SHARE: u64 = 64;

/// The numbers; see the module's documentation.
#[derive(Default)]
pub(crate) struct Accounting {
    limit: u64,
    /// Blocks that each node takes.
    copies: u64,
    /// A shard's reserved nodes that nobody holds.
    credits: [CachePadded<AtomicU64>; SHARDS],
    /// Nodes in the dirty set of the live epoch.
    dirty: AtomicU64,
    reserved: AtomicU64,
    /// Nodes in the dirty set of the live epoch, and of the frozen one while that is written, whose blocks
    /// are kept.
    kept_live: AtomicU64,
    kept_frozen: AtomicU64,
    /// The newest kept checkpoint; 0 if there is none.
    kept_newest: AtomicU64,
    /// Nodes of the tree: now, as of the newest freeze, as of the newest durable checkpoint.
    live: AtomicU64,
    frozen: AtomicU64,
    durable: AtomicU64,
    pool_blocks: AtomicU64,
    overhead: AtomicU64,
}

impl Accounting {
    pub(crate) fn new(limits: &TreeLimits, live: u64, copies: u64) -> Accounting {
        Accounting {
            limit: limits.dirty_nodes,
            copies,
            live: AtomicU64::new(live),
            frozen: AtomicU64::new(live),
            durable: AtomicU64::new(live),
            ..Accounting::default()
        }
    }

    /// The pool's size, and the blocks beside nodes that three checkpoints may need.
    pub(crate) fn set_pool(&self, blocks: u64, overhead: u64) {
        self.pool_blocks.store(blocks, Ordering::Release);
        self.overhead.store(overhead, Ordering::Release);
    }

    pub(crate) fn node_created(&self) {
        self.live.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn node_removed(&self) {
        self.live.fetch_sub(1, Ordering::AcqRel);
    }

    /// A tree of `old` nodes gave way to one of `new` nodes.
    pub(crate) fn nodes_replaced(&self, old: u64, new: u64) {
        self.live.fetch_add(new, Ordering::AcqRel);
        self.live.fetch_sub(old, Ordering::AcqRel);
    }

    pub(crate) fn node_marked(&self) {
        self.dirty.fetch_add(1, Ordering::SeqCst);
    }

    /// The newest kept checkpoint; 0 if there is none. A node of the tree is kept if it is no newer.
    pub(crate) fn kept_newest(&self) -> u64 {
        self.kept_newest.load(Ordering::SeqCst)
    }

    pub(crate) fn set_kept_newest(&self, checkpoint: u64) {
        self.kept_newest.store(checkpoint, Ordering::SeqCst);
    }

    /// The newest checkpoint is kept from now on. Nodes that are dirty already may have their blocks from it;
    /// the engine's own work marks some while a snapshot is taken. A node that is marked meanwhile is among
    /// the dirty ones here, or its thread sees what is kept now: hence the one order (SeqCst) of all four.
    pub(crate) fn all_dirty_may_be_kept(&self) {
        self.kept_live.fetch_max(self.dirty.load(Ordering::SeqCst), Ordering::AcqRel);
    }

    /// A node was marked whose block is kept.
    pub(crate) fn kept_node_marked(&self) {
        self.kept_live.fetch_add(1, Ordering::AcqRel);
    }

    /// The pool counts what the frozen epoch has left to kept checkpoints.
    pub(crate) fn frozen_is_counted(&self) {
        self.kept_frozen.store(0, Ordering::Release);
    }

    /// A node of this epoch vanished before any checkpoint saw it.
    pub(crate) fn node_unmarked(&self) {
        self.dirty.fetch_sub(1, Ordering::AcqRel);
    }

    /// A new epoch begins; no change runs. Gives the nodes of the frozen tree.
    pub(crate) fn freeze(&self) -> u64 {
        self.dirty.store(0, Ordering::Release);
        self.kept_frozen.fetch_add(self.kept_live.swap(0, Ordering::AcqRel), Ordering::AcqRel);
        let live = self.live();
        self.frozen.store(live, Ordering::Release);
        live
    }

    /// The frozen tree of `live` nodes is named by a superblock.
    pub(crate) fn published(&self, live: u64) {
        self.durable.store(live, Ordering::Release);
    }

    /// Blocks that each node takes.
    pub(crate) fn copies(&self) -> u64 {
        self.copies
    }

    pub(crate) fn live(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    pub(crate) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Acquire)
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Acquire)
    }

    /// The emergency reserve in a pool of so many blocks, in nodes.
    pub(crate) fn emergency_of(&self, pool_blocks: u64) -> u64 {
        (pool_blocks / self.copies / 8).clamp(16, 512)
    }

    fn pool_blocks(&self) -> u64 {
        self.pool_blocks.load(Ordering::Acquire)
    }

    /// D if the tree may still grow by `growth` nodes, by a pool of so many blocks alone.
    fn dirty_by_pool(&self, blocks: u64, growth: u64) -> u64 {
        let live =
            self.live().max(self.frozen.load(Ordering::Acquire)).max(self.durable.load(Ordering::Acquire));
        let room = blocks.saturating_sub(self.overhead.load(Ordering::Acquire)) / self.copies;
        let kept = self.kept_frozen.load(Ordering::Acquire) + self.kept_live.load(Ordering::Acquire);
        let growth = if self.kept_newest() > 0 { 2 * growth } else { growth };
        room.saturating_sub(live + kept + growth) / 2
    }

    /// D for ordinary changes as things are.
    pub(crate) fn dirty_max(&self) -> u64 {
        self.limit.min(self.room(self.pool_blocks(), self.reserved(), Class::Normal))
    }

    pub(crate) fn try_reserve(&self, nodes: u64, class: Class) -> Result<NodeReservation<'_>, Short> {
        if self.take_credit(nodes) {
            let reservation = NodeReservation { accounting: self, nodes };
            // The credit counts among what is reserved.
            if self.fits(self.reserved(), nodes, class) {
                return Ok(reservation);
            }
            drop(reservation);
        }
        // First reserved, then dirty: who drops a reservation in between has counted its dirty nodes before.
        let reserved = self.reserved.fetch_add(nodes, Ordering::AcqRel) + nodes;
        let reservation = NodeReservation { accounting: self, nodes };
        if self.fits(reserved, nodes, class)
            || (self.take_credits_back() && self.fits(self.reserved(), nodes, class))
        {
            return Ok(reservation);
        }
        // Not as credit: it is short.
        std::mem::forget(reservation);
        self.reserved.fetch_sub(nodes, Ordering::AcqRel);
        Err(if self.is_short(self.pool_blocks(), nodes, class) { Short::PoolFull } else { Short::Checkpoint })
    }

    /// Whether only a pool of more than `blocks` makes comfortable room for so many nodes.
    fn is_short(&self, blocks: u64, nodes: u64, class: Class) -> bool {
        let limit = self.limit.max(nodes);
        let wanted = if class == Class::Normal { nodes.max(COMFORTABLE_NODES.min(limit)) } else { nodes };
        wanted > self.room(blocks, nodes, class)
    }

    /// Whether the pool, with `more` blocks, has room for so many nodes, now or after a checkpoint. Reserves
    /// nothing.
    pub(crate) fn pool_has_room(&self, more: u64, nodes: u64, class: Class) -> bool {
        self.fits(self.held() + nodes, nodes, class)
            || !self.is_short(self.pool_blocks() + more, nodes, class)
    }

    /// Whether so many nodes would fit beside those that transactions hold, if nothing else were dirty.
    pub(crate) fn has_room_when_clean(&self, nodes: u64, class: Class) -> bool {
        let reserved = self.held() + nodes;
        reserved <= self.room(self.pool_blocks(), reserved, class).min(self.limit.max(nodes))
    }

    /// Whether the tree has become smaller since what checkpoints hold of it.
    pub(crate) fn checkpoint_frees_nodes(&self) -> bool {
        self.live() < self.frozen.load(Ordering::Acquire).max(self.durable.load(Ordering::Acquire))
    }

    /// What may be dirty by a pool of so many blocks, if the tree may still grow by `growth` nodes.
    fn room(&self, blocks: u64, growth: u64, class: Class) -> u64 {
        let kept = if class == Class::Normal { self.emergency_of(blocks) } else { 0 };
        self.dirty_by_pool(blocks, growth).saturating_sub(kept)
    }

    /// Whether so much may be reserved, `nodes` of it by one transaction: that alone may exceed the limit by
    /// memory, but never the room in the pool.
    fn fits(&self, reserved: u64, nodes: u64, class: Class) -> bool {
        self.dirty() + reserved <= self.room(self.pool_blocks(), reserved, class).min(self.limit.max(nodes))
    }

    /// Nodes that transactions hold.
    pub(crate) fn held(&self) -> u64 {
        let credit: u64 = self.credits.iter().map(|credit| credit.load(Ordering::Acquire)).sum();
        self.reserved().saturating_sub(credit)
    }

    fn credit(&self) -> &AtomicU64 {
        &self.credits[shard::current() % SHARDS]
    }

    fn take_credit(&self, nodes: u64) -> bool {
        let credit = self.credit();
        credit.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |has| has.checked_sub(nodes)).is_ok()
    }

    /// Ends a reservation: its nodes become credit as far as the shard may have some.
    fn give_back(&self, nodes: u64) {
        let most = CREDIT_MAX.min(self.limit / CREDIT_SHARE);
        let kept = |has: u64| (has + nodes <= most).then_some(has + nodes);
        if self.credit().fetch_update(Ordering::AcqRel, Ordering::Relaxed, kept).is_err() {
            self.reserved.fetch_sub(nodes, Ordering::AcqRel);
        }
    }

    /// Ends all credit; true if there was some.
    fn take_credits_back(&self) -> bool {
        let taken: u64 = self.credits.iter().map(|credit| credit.swap(0, Ordering::AcqRel)).sum();
        self.reserved.fetch_sub(taken, Ordering::AcqRel);
        taken > 0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn accounting(pool: u64, live: u64) -> Accounting {
        let accounting = Accounting::new(&TreeLimits { cache_nodes: 1000, dirty_nodes: 200 }, live, 1);
        accounting.set_pool(pool, 10);
        accounting
    }

    #[test]
    fn reservations_and_dirty_nodes_share_the_limit() {
        let accounting = accounting(10_000, 5);
        let first = accounting.try_reserve(150, Class::Normal).unwrap();
        assert!(matches!(accounting.try_reserve(60, Class::Normal), Err(Short::Checkpoint)));
        for _ in 0..100 {
            accounting.node_marked();
        }
        drop(first);
        assert_eq!((accounting.dirty(), accounting.reserved()), (100, 0));
        let second = accounting.try_reserve(100, Class::Normal).unwrap();
        assert!(accounting.try_reserve(1, Class::Critical).is_err());
        accounting.freeze();
        assert!(accounting.try_reserve(100, Class::Normal).is_ok());
        drop(second);
    }

    #[test]
    fn credit_keeps_nobody_from_reserving() {
        let limits = TreeLimits { cache_nodes: 20_000, dirty_nodes: 10_000 };
        let accounting = Accounting::new(&limits, 5, 1);
        accounting.set_pool(1 << 20, 10);
        for shard in 0..4 {
            shard::set(shard);
            drop(accounting.try_reserve(100, Class::Normal).unwrap());
        }
        assert_eq!(accounting.reserved(), 400, "what was dropped is credit");
        drop(accounting.try_reserve(90, Class::Normal).unwrap());
        assert_eq!(accounting.reserved(), 400, "and is used again");
        let all = accounting.try_reserve(10_000, Class::Normal).expect("credit is taken back");
        assert_eq!(accounting.reserved(), 10_000);
        assert!(matches!(accounting.try_reserve(1, Class::Normal), Err(Short::Checkpoint)));
        drop(all);
        assert_eq!(accounting.reserved(), 0, "too much to keep");
        let held = accounting.try_reserve(100, Class::Normal).unwrap();
        drop(accounting.try_reserve(100, Class::Normal).unwrap());
        (0..9_850).for_each(|_| accounting.node_marked());
        // 9850 dirty, 100 held, 100 credit: too much, but credit goes first.
        drop(accounting.try_reserve(50, Class::Normal).expect("dirty, held and its own"));
        assert!(accounting.try_reserve(51, Class::Normal).is_err());
        drop(held);
    }

    #[test]
    fn two_copies_need_twice_the_pool() {
        let limits = TreeLimits { cache_nodes: 1000, dirty_nodes: 200 };
        let [one, two] = [1, 2].map(|copies| {
            let accounting = Accounting::new(&limits, 100, copies);
            accounting.set_pool(512 * copies, 10 * copies);
            accounting
        });
        assert_eq!(one.dirty_max(), two.dirty_max());
        assert_eq!(one.emergency_of(512), two.emergency_of(1024));
        two.set_pool(512, 20);
        assert!(two.dirty_max() < one.dirty_max() / 2);
    }

    #[test]
    fn a_full_pool_says_so_and_keeps_an_emergency_reserve() {
        let accounting = accounting(512, 300);
        // (512 - 300 - 10 - 20) / 2 = 91, of which 64 are kept.
        assert!(accounting.try_reserve(20, Class::Normal).is_ok());
        assert!(matches!(accounting.try_reserve(40, Class::Normal), Err(Short::PoolFull)));
        assert!(accounting.try_reserve(60, Class::Critical).is_ok());
        assert!(matches!(accounting.try_reserve(90, Class::Critical), Err(Short::PoolFull)));
        accounting.set_pool(512 + 1024, 10);
        assert!(accounting.try_reserve(90, Class::Normal).is_ok());
    }
}
