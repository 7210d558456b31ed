//! Every interleaving of a descent and a replacement on its way.

use crate::evict::Rule;
use crate::inner::{Child, Entries, Inner, Locked, Range};
use crate::lookup::{End, Found, Step, descend_from};
use crate::node::{Body, Node, Probe};
use crate::pin::{Pin, pin};
use loom::thread;
use quire_base::sync::{Arc, spin_loop};
use quire_base::{BlockNo, InodeNo};
use quire_format::key::Key;
use quire_format::node::{NodePage, NodeRef};

fn key(n: u64) -> Key {
    Key::extent(InodeNo(1), n)
}

fn page(keys: &[u64]) -> NodePage {
    let mut page = NodePage::new(0);
    keys.iter().enumerate().for_each(|(at, n)| page.insert(at, key(*n), &[*n as u8]));
    page
}

const AT: NodeRef = NodeRef { block: BlockNo(7), twin: BlockNo(0), generation: 1, crc: 0, level: 0 };

/// A root above leaves, each with the keys from its first to the next one's.
fn root(leaves: &[&[u64]]) -> Arc<Node> {
    let low = |at: usize| (at > 0).then(|| key(leaves[at][0]));
    let child = |at: usize| {
        let range = Range { low: low(at), high: (at + 1 < leaves.len()).then(|| key(leaves[at + 1][0])) };
        Child::Resident(Node::loaded(page(leaves[at]), range, AT, 1))
    };
    let entries = Entries {
        range: Range::ALL,
        keys: (0..leaves.len()).map(|at| low(at).unwrap_or(Key::MIN)).collect(),
        children: (0..leaves.len()).map(child).collect(),
    };
    Node::inner(1, entries, 1)
}

fn inner(node: &Node) -> &Inner {
    let Body::Inner(inner) = &node.body else { panic!("the root is no leaf") };
    inner
}

/// One descent: None where the leaf is on disk.
fn descend<'p>(root: &'p Node, pin: &'p Pin, probe: &Probe) -> Option<(Step<'p>, Found<'p>)> {
    match descend_from(root, pin, probe, 1) {
        (path, End::Leaf(found)) => Some((*path.last().expect("the root is no leaf"), found)),
        (_, End::OnDisk(_)) => None,
        (_, End::Moved) => panic!("no inner node splits here"),
    }
}

/// The value of a key; with `new`, replaces it by that.
fn look_up(root: &Node, n: u64, new: Option<u8>) -> Option<u8> {
    let (pin, probe) = (pin(), Probe::At(key(n)));
    loop {
        let (_, found) = descend(root, &pin, &probe).expect("no leaf leaves memory here");
        let mut leaf = found.latch.write();
        if found.has(&leaf, &probe) {
            let at = leaf.page.search(&key(n)).ok()?;
            let old = leaf.page.value(at)[0];
            new.inspect(|new| leaf.page.replace(at, &[*new]));
            return Some(old);
        }
        drop(leaf);
        spin_loop();
    }
}

/// A change that meets a split finds the key where it has gone.
#[test]
fn loom_a_descent_finds_what_a_split_moves() {
    loom::model(|| {
        let tree = root(&[&[1, 2]]);
        let other = tree.clone();
        let splitter = thread::spawn(move || {
            let pin = pin();
            let parent = Locked::new(&other, &pin).unwrap();
            let (_, found) = descend(&other, &pin, &Probe::At(key(2))).unwrap();
            let mut leaf = found.latch.write();
            let right = leaf.page.split_off(1);
            let range = leaf.range.split_off(key(2));
            let mut entries = parent.entries().clone();
            entries.insert(1, key(2), Child::Resident(Node::leaf(right, range, 1)));
            parent.publish(entries);
        });
        assert_eq!(look_up(&tree, 2, Some(9)), Some(2), "a key is lost");
        splitter.join().unwrap();
        assert_eq!([1, 2].map(|n| look_up(&tree, n, None)), [Some(1), Some(9)]);
    });
}

/// The same with a merge.
#[test]
fn loom_a_descent_finds_what_a_merge_moves() {
    loom::model(|| {
        let tree = root(&[&[1], &[2]]);
        let other = tree.clone();
        let merger = thread::spawn(move || {
            let pin = pin();
            let parent = Locked::new(&other, &pin).unwrap();
            let (_, left) = descend(&other, &pin, &Probe::At(key(1))).unwrap();
            let (_, right) = descend(&other, &pin, &Probe::At(key(2))).unwrap();
            let (mut left_leaf, right_leaf) = (left.latch.write(), right.latch.write());
            left_leaf.page.append(&right_leaf.page, 0);
            left_leaf.range.high = right_leaf.range.high;
            right.node.set_gone(true);
            let mut entries = parent.entries().clone();
            entries.keys.pop();
            entries.children.pop();
            parent.publish(entries);
        });
        assert_eq!(look_up(&tree, 2, Some(9)), Some(2), "a key is lost");
        merger.join().unwrap();
        assert_eq!([1, 2].map(|n| look_up(&tree, n, None)), [Some(1), Some(9)], "a change is lost");
    });
}

/// A thread that keeps a leaf and one that evicts it do not both have their way.
#[test]
fn loom_a_leaf_that_is_kept_is_not_evicted() {
    loom::model(|| {
        let tree = root(&[&[1], &[2]]);
        let other = tree.clone();
        let evictor = thread::spawn(move || {
            let pin = pin();
            let parent = Locked::new(&other, &pin).unwrap();
            let (step, found) = descend(&other, &pin, &Probe::At(key(2))).unwrap();
            let Some(_leaf) = found.latch.try_write() else { return false };
            let Some(disk) = (Rule { written: 1, before: 2 }).take_out(found.node) else { return false };
            let mut entries = parent.entries().clone();
            entries.children[step.at] = Child::OnDisk(disk);
            parent.publish(entries);
            true
        });
        let (pin, probe) = (pin(), Probe::At(key(2)));
        let kept = descend(&tree, &pin, &probe).is_some_and(|(step, found)| {
            found.node.touch(2);
            step.leads_to(found.node, &probe)
        });
        let evicted = evictor.join().unwrap();
        assert!(!(kept && evicted), "a leaf that is kept was evicted");
    });
}

/// A leaf that was read is not attached to an inner node that was evicted meanwhile: its changes would be
/// lost.
#[test]
fn loom_nothing_is_attached_to_an_evicted_node() {
    loom::model(|| {
        let alone = Entries { range: Range::ALL, keys: vec![Key::MIN], children: vec![Child::OnDisk(AT)] };
        let lower = Node::inner(1, alone.clone(), 1);
        let upper = Node::inner(2, Entries { children: vec![Child::Resident(lower.clone())], ..alone }, 1);
        let (other_upper, other) = (upper.clone(), lower.clone());
        let evictor = thread::spawn(move || {
            let pin = pin();
            let parent = Locked::new(&other_upper, &pin).unwrap();
            let node = Locked::new(&other, &pin).unwrap();
            if node.entries().children[0].resident().is_some() {
                return;
            }
            let mut entries = parent.entries().clone();
            entries.children[0] = Child::OnDisk(NodeRef { level: 1, ..AT });
            other.set_gone(true);
            parent.publish(entries);
        });
        let pin = pin();
        if let Some(parent) = Locked::new(&lower, &pin) {
            let mut entries = parent.entries().clone();
            entries.children[0] = Child::Resident(Node::loaded(page(&[1]), Range::ALL, AT, 1));
            parent.publish(entries);
        }
        evictor.join().unwrap();
        let attached = inner(&lower).entries(&pin).children[0].resident().is_some();
        let linked = inner(&upper).entries(&pin).children[0].is(&lower);
        assert!(linked || !attached, "a leaf below a node that nobody finds");
    });
}

/// A leaf that a ticket keeps in memory was reported as missing while an inner node above it split: the
/// descent had read the parent before the split and the node after it, where the last child, another key's,
/// was on disk. A journaled change then read the device, which a thread that must not wait takes as a
/// failure; the volume shut down.
#[test]
fn loom_a_split_of_an_inner_node_hides_no_resident_leaf() {
    loom::model(|| {
        let kept = Child::Resident(Node::loaded(page(&[2]), Range { low: Some(key(2)), high: None }, AT, 1));
        let mut left = Entries {
            range: Range::ALL,
            keys: vec![Key::MIN, key(2)],
            children: vec![Child::OnDisk(AT), kept],
        };
        let lower = Node::inner(1, left.clone(), 1);
        let alone = vec![Child::Resident(lower.clone())];
        let mut above = Entries { range: Range::ALL, keys: vec![Key::MIN], children: alone };
        let upper = Node::inner(2, above.clone(), 1);
        // Loom remembers one access of a cell. If the splitter read the entries, it would forget the
        // descent's.
        let right = Node::inner(1, left.split_off(1), 1);
        above.insert(1, key(2), Child::Resident(right));
        let other = upper.clone();
        let splitter = thread::spawn(move || {
            let pin = pin();
            let parent = Locked::new(&other, &pin).unwrap();
            let node = Locked::new(&lower, &pin).unwrap();
            parent.publish(above);
            node.publish(left);
        });
        let (pin, probe) = (pin(), Probe::At(key(2)));
        loop {
            match descend_from(&upper, &pin, &probe, 1).1 {
                End::Leaf(found) => break assert!(found.has(&found.latch.read(), &probe)),
                End::OnDisk(_) => panic!("a leaf that is resident is missing"),
                End::Moved => spin_loop(),
            }
        }
        splitter.join().unwrap();
    });
}
