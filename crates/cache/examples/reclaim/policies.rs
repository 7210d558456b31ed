//! Replacement policies over block numbers, as their papers have them: what Quire's own is compared with.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// A cache that only knows which blocks it holds.
pub trait Policy {
    fn name(&self) -> &'static str;
    /// Uses a block; true if it was there.
    fn access(&mut self, block: u32) -> bool;
}

/// Least recently used.
pub struct Lru {
    capacity: usize,
    clock: u64,
    last: HashMap<u32, u64>,
    order: BTreeMap<u64, u32>,
}

impl Lru {
    pub fn new(capacity: usize) -> Lru {
        Lru { capacity, clock: 0, last: HashMap::new(), order: BTreeMap::new() }
    }
    fn remove(&mut self, block: u32) -> bool {
        self.last.remove(&block).is_some_and(|at| self.order.remove(&at).is_some())
    }
    /// Puts it in front; what falls out at the end.
    fn push(&mut self, block: u32) -> Option<u32> {
        self.clock += 1;
        self.last.insert(block, self.clock);
        self.order.insert(self.clock, block);
        (self.last.len() > self.capacity).then(|| {
            let (_, oldest) = self.order.pop_first().expect("it is not empty");
            self.last.remove(&oldest);
            oldest
        })
    }
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "LRU"
    }
    fn access(&mut self, block: u32) -> bool {
        let hit = self.remove(block);
        self.push(block);
        hit
    }
}

/// 2Q (Johnson, Shasha, VLDB 1994): A1in a quarter, ghosts for half of the cache.
pub struct TwoQ {
    first: VecDeque<u32>,
    first_set: HashSet<u32>,
    first_max: usize,
    ghosts: Lru,
    main: Lru,
    capacity: usize,
}

impl TwoQ {
    pub fn new(capacity: usize) -> TwoQ {
        TwoQ {
            first: VecDeque::new(),
            first_set: HashSet::new(),
            first_max: capacity / 4,
            ghosts: Lru::new(capacity / 2),
            main: Lru::new(capacity),
            capacity,
        }
    }
    fn make_room(&mut self) {
        while self.first.len() + self.main.last.len() >= self.capacity {
            if self.first.len() > self.first_max || self.main.last.is_empty() {
                let Some(block) = self.first.pop_front() else { return };
                self.first_set.remove(&block);
                self.ghosts.push(block);
            } else if let Some((_, block)) = self.main.order.pop_first() {
                self.main.last.remove(&block);
            }
        }
    }
}

impl Policy for TwoQ {
    fn name(&self) -> &'static str {
        "2Q"
    }
    fn access(&mut self, block: u32) -> bool {
        if self.main.remove(block) {
            self.main.push(block);
            return true;
        }
        if self.first_set.contains(&block) {
            return true;
        }
        let known = self.ghosts.remove(block);
        self.make_room();
        if known {
            self.main.push(block);
        } else {
            self.first.push_back(block);
            self.first_set.insert(block);
        }
        false
    }
}

/// S3-FIFO (Yang et al., SOSP 2023): a small queue of a tenth, a main one, ghosts for as many as the main
/// one.
pub struct S3Fifo {
    capacity: usize,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    ghosts: Lru,
    uses: HashMap<u32, u8>,
}

impl S3Fifo {
    pub fn new(capacity: usize) -> S3Fifo {
        S3Fifo {
            capacity,
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: Lru::new(capacity * 9 / 10),
            uses: HashMap::new(),
        }
    }
    fn evict(&mut self) {
        if self.small.len() >= self.capacity / 10 || self.main.is_empty() {
            while let Some(block) = self.small.pop_front() {
                if self.uses[&block] > 1 {
                    self.uses.insert(block, 0);
                    self.main.push_back(block);
                } else {
                    self.uses.remove(&block);
                    self.ghosts.push(block);
                    return;
                }
            }
        }
        while let Some(block) = self.main.pop_front() {
            let uses = self.uses[&block];
            if uses > 0 {
                self.uses.insert(block, uses - 1);
                self.main.push_back(block);
            } else {
                self.uses.remove(&block);
                return;
            }
        }
    }
}

impl Policy for S3Fifo {
    fn name(&self) -> &'static str {
        "S3-FIFO"
    }
    fn access(&mut self, block: u32) -> bool {
        if let Some(uses) = self.uses.get_mut(&block) {
            *uses = (*uses + 1).min(3);
            return true;
        }
        while self.uses.len() >= self.capacity {
            self.evict();
        }
        if self.ghosts.remove(block) {
            self.main.push_back(block);
        } else {
            self.small.push_back(block);
        }
        self.uses.insert(block, 0);
        false
    }
}

/// CLOCK-Pro (Jiang, Chen, Zhang, USENIX ATC 2005), with its adaptive share of cold blocks. Three hands on
/// one clock.
pub struct ClockPro {
    capacity: usize,
    /// Cold blocks aimed at.
    cold_goal: usize,
    ring: Vec<Option<Page>>,
    at: HashMap<u32, usize>,
    free: Vec<usize>,
    hands: [usize; 3],
    counts: [usize; 3],
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Hot,
    Cold,
    /// Not in memory, but in its test period.
    Ghost,
}

#[derive(Clone, Copy)]
struct Page {
    block: u32,
    state: State,
    used: bool,
    test: bool,
    next: usize,
    before: usize,
}

const HAND_HOT: usize = 0;
const HAND_COLD: usize = 1;
const HAND_TEST: usize = 2;
const NONE: usize = usize::MAX;

impl ClockPro {
    pub fn new(capacity: usize) -> ClockPro {
        ClockPro {
            capacity,
            cold_goal: capacity / 8,
            ring: Vec::new(),
            at: HashMap::new(),
            free: Vec::new(),
            hands: [NONE; 3],
            counts: [0; 3],
        }
    }
    fn page(&mut self, slot: usize) -> &mut Page {
        self.ring[slot].as_mut().expect("a hand stands on a page")
    }
    fn set_state(&mut self, slot: usize, state: State) {
        let before = std::mem::replace(&mut self.page(slot).state, state);
        self.counts[before as usize] -= 1;
        self.counts[state as usize] += 1;
    }
    fn remove(&mut self, slot: usize) {
        let page = *self.page(slot);
        for hand in &mut self.hands {
            if *hand == slot {
                *hand = if page.next == slot { NONE } else { page.next };
            }
        }
        self.counts[page.state as usize] -= 1;
        self.page(page.before).next = page.next;
        self.page(page.next).before = page.before;
        self.ring[slot] = None;
        self.at.remove(&page.block);
        self.free.push(slot);
    }
    /// Puts a page at the head of the list: just behind the hot hand.
    fn insert(&mut self, block: u32, state: State) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.ring.push(None);
            self.ring.len() - 1
        });
        let mut page =
            Page { block, state, used: false, test: state == State::Cold, next: slot, before: slot };
        let head = self.hands[HAND_HOT];
        if head == NONE {
            self.ring[slot] = Some(page);
            self.hands = [slot; 3];
        } else {
            page.next = head;
            page.before = self.page(head).before;
            self.ring[slot] = Some(page);
            self.page(page.before).next = slot;
            self.page(head).before = slot;
        }
        self.counts[state as usize] += 1;
        self.at.insert(block, slot);
    }
    fn step(&mut self, hand: usize) {
        let slot = self.hands[hand];
        self.hands[hand] = self.page(slot).next;
    }
    fn run_hot(&mut self) {
        let slot = self.hands[HAND_HOT];
        if slot == NONE {
            return;
        }
        let page = *self.page(slot);
        match page.state {
            State::Hot if page.used => self.page(slot).used = false,
            State::Hot => self.set_state(slot, State::Cold),
            _ => self.end_test(slot),
        }
        if self.hands[HAND_HOT] == slot && self.ring[slot].is_some() {
            self.step(HAND_HOT);
        }
    }
    fn end_test(&mut self, slot: usize) {
        let page = *self.page(slot);
        if page.test && !page.used {
            self.cold_goal = self.cold_goal.saturating_sub(1).max(1);
        }
        self.page(slot).test = false;
        if page.state == State::Ghost {
            self.remove(slot);
        }
    }
    fn run_test(&mut self) {
        let slot = self.hands[HAND_TEST];
        if slot == NONE {
            return;
        }
        if self.page(slot).state != State::Hot {
            self.end_test(slot);
        }
        if self.hands[HAND_TEST] == slot && self.ring[slot].is_some() {
            self.step(HAND_TEST);
        }
    }
    fn run_cold(&mut self) {
        let slot = self.hands[HAND_COLD];
        if slot == NONE {
            return;
        }
        let page = *self.page(slot);
        if page.state == State::Cold {
            if page.used && page.test {
                self.remove(slot);
                self.insert(page.block, State::Hot);
            } else if page.used {
                self.remove(slot);
                self.insert(page.block, State::Cold);
            } else if page.test {
                self.set_state(slot, State::Ghost);
                while self.counts[State::Ghost as usize] > self.capacity {
                    self.run_test();
                }
            } else {
                self.remove(slot);
            }
            while self.counts[State::Hot as usize] > self.capacity - self.cold_goal.min(self.capacity - 1) {
                self.run_hot();
            }
        }
        if self.hands[HAND_COLD] == slot && self.ring[slot].is_some() {
            self.step(HAND_COLD);
        }
    }
    fn resident(&self) -> usize {
        self.counts[State::Hot as usize] + self.counts[State::Cold as usize]
    }
}

impl Policy for ClockPro {
    fn name(&self) -> &'static str {
        "CLOCK-Pro"
    }
    fn access(&mut self, block: u32) -> bool {
        if let Some(&slot) = self.at.get(&block)
            && self.page(slot).state != State::Ghost
        {
            self.page(slot).used = true;
            return true;
        }
        while self.resident() >= self.capacity {
            if self.counts[State::Cold as usize] == 0 {
                self.run_hot();
            } else {
                self.run_cold();
            }
        }
        // The ghost may have ended its test while room was made.
        let ghost = self.at.get(&block).copied();
        if let Some(slot) = ghost {
            self.cold_goal = (self.cold_goal + 1).min(self.capacity - 1);
            self.remove(slot);
            self.insert(block, State::Hot);
            while self.counts[State::Hot as usize] > self.capacity - self.cold_goal {
                self.run_hot();
            }
        } else {
            self.insert(block, State::Cold);
        }
        false
    }
}
