//! A random walk through every operation on names, against a model that is a few maps.
//!
//! Every result is compared. Now and then the volume is closed and opened again; or it "crashes": what the
//! device holds at that moment is opened as another volume, whose names, links, modes, targets and attributes
//! must be those of the model after some operation, none before the last one that was made durable.

use super::*;
use quire::inodes::{Caller, SetAttributes, XattrFlags};
use quire::{FileType, InodeNo, RenameFlags};
use quire_base::random::Random;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    kind: FileType,
    links: u32,
    mode: u32,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of a directory.
    entries: BTreeMap<Vec<u8>, InodeNo>,
    parent: InodeNo,
}

impl Node {
    fn new(kind: FileType, mode: u32, parent: InodeNo) -> Node {
        let links = if kind == FileType::Directory { 2 } else { 1 };
        Node {
            kind,
            links,
            mode,
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            entries: BTreeMap::new(),
            parent,
        }
    }
}

/// Every inode that has a name or a user.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Model(BTreeMap<InodeNo, Node>);

type Expected = Result<(), ErrorKind>;

impl Model {
    fn new() -> Model {
        Model(BTreeMap::from([(InodeNo::ROOT, Node::new(FileType::Directory, 0o755, InodeNo::ROOT))]))
    }

    fn node(&mut self, number: InodeNo) -> &mut Node {
        self.0.get_mut(&number).unwrap()
    }

    fn find(&self, directory: InodeNo, name: &[u8]) -> Option<InodeNo> {
        self.0[&directory].entries.get(name).copied()
    }

    fn is_directory(&self, number: InodeNo) -> bool {
        self.0[&number].kind == FileType::Directory
    }

    /// True if `above` is `number` or one of its ancestors.
    fn is_above(&self, above: InodeNo, mut number: InodeNo) -> bool {
        while number != above && number != InodeNo::ROOT {
            number = self.0[&number].parent;
        }
        number == above
    }

    fn may_create(&self, directory: InodeNo, name: &[u8]) -> Expected {
        match () {
            () if self.0[&directory].links == 0 => Err(ErrorKind::NotFound),
            () if self.find(directory, name).is_some() => Err(ErrorKind::Exists),
            () => Ok(()),
        }
    }

    fn created(&mut self, directory: InodeNo, name: &[u8], number: InodeNo, node: Node) {
        if node.kind == FileType::Directory {
            self.node(directory).links += 1;
        }
        self.0.insert(number, node);
        self.node(directory).entries.insert(name.to_vec(), number);
    }

    fn link(&mut self, number: InodeNo, directory: InodeNo, name: &[u8]) -> Expected {
        self.may_create(directory, name)?;
        if self.is_directory(number) {
            return Err(ErrorKind::NotPermitted);
        }
        if self.0[&number].links == 0 {
            return Err(ErrorKind::NotFound);
        }
        self.node(number).links += 1;
        self.node(directory).entries.insert(name.to_vec(), number);
        Ok(())
    }

    fn remove(&mut self, directory: InodeNo, name: &[u8], as_directory: bool) -> Expected {
        if self.0[&directory].links == 0 {
            return Err(ErrorKind::NotFound);
        }
        let number = self.find(directory, name).ok_or(ErrorKind::NotFound)?;
        match (as_directory, self.is_directory(number)) {
            (false, true) => return Err(ErrorKind::IsDirectory),
            (true, false) => return Err(ErrorKind::NotDirectory),
            (true, true) if !self.0[&number].entries.is_empty() => return Err(ErrorKind::NotEmpty),
            _ => {}
        }
        self.node(directory).entries.remove(name);
        self.lost_name(directory, number);
        Ok(())
    }

    fn lost_name(&mut self, directory: InodeNo, number: InodeNo) {
        if self.is_directory(number) {
            self.node(number).links = 0;
            self.node(directory).links -= 1;
        } else {
            self.node(number).links -= 1;
        }
    }

    fn rename(
        &mut self,
        from: InodeNo,
        name: &[u8],
        to: InodeNo,
        to_name: &[u8],
        flags: RenameFlags,
    ) -> Expected {
        if self.0[&from].links == 0 || self.0[&to].links == 0 {
            return Err(ErrorKind::NotFound);
        }
        let moved = self.find(from, name).ok_or(ErrorKind::NotFound)?;
        let old = self.find(to, to_name);
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        match old {
            None if exchange => return Err(ErrorKind::NotFound),
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(ErrorKind::Exists),
            Some(old) if old == moved => return Ok(()),
            _ => {}
        }
        if from != to {
            if self.is_above(moved, to) {
                return Err(ErrorKind::Invalid);
            }
            if let Some(old) = old.filter(|&old| self.is_above(old, from)) {
                return Err(match (exchange, self.is_directory(moved), old) {
                    (true, ..) => ErrorKind::Invalid,
                    (_, false, _) => ErrorKind::IsDirectory,
                    _ => ErrorKind::NotEmpty,
                });
            }
        }
        if let (Some(old), false) = (old, exchange) {
            match (self.is_directory(moved), self.is_directory(old)) {
                (false, true) => return Err(ErrorKind::IsDirectory),
                (true, false) => return Err(ErrorKind::NotDirectory),
                (true, true) if !self.0[&old].entries.is_empty() => return Err(ErrorKind::NotEmpty),
                _ => {}
            }
            self.lost_name(to, old);
        }
        self.node(from).entries.remove(name);
        self.node(to).entries.insert(to_name.to_vec(), moved);
        self.moved(moved, from, to);
        if let (Some(old), true) = (old, exchange) {
            self.node(from).entries.insert(name.to_vec(), old);
            self.moved(old, to, from);
        }
        Ok(())
    }

    fn moved(&mut self, number: InodeNo, from: InodeNo, to: InodeNo) {
        if self.is_directory(number) {
            self.node(from).links -= 1;
            self.node(to).links += 1;
            self.node(number).parent = to;
        }
    }

    /// The inodes that differ, as they are in both, long values shortened.
    fn difference(&self, other: &Model) -> String {
        let show = |node: Option<&Node>| {
            let Some(node) = node else { return "nothing".to_owned() };
            let mut node = node.clone();
            node.target.truncate(3);
            node.xattrs.values_mut().for_each(|value| value.truncate(3));
            format!("{node:?}")
        };
        let mut numbers: Vec<_> = self.0.keys().chain(other.0.keys()).collect();
        numbers.sort();
        numbers.dedup();
        let differ = numbers.into_iter().filter(|number| self.0.get(number) != other.0.get(number));
        differ
            .map(|number| {
                format!("\n{number}: {}\n   not {}", show(self.0.get(number)), show(other.0.get(number)))
            })
            .collect()
    }

    /// Without what only lives because somebody uses it.
    fn named(&self) -> Model {
        Model(
            self.0
                .iter()
                .filter(|(_, node)| node.links > 0)
                .map(|(number, node)| (*number, node.clone()))
                .collect(),
        )
    }

    /// What a volume holds.
    fn read(volume: &Volume) -> Model {
        let mut model = Model(BTreeMap::new());
        let mut ahead = vec![(volume.inodes().root(), InodeNo::ROOT)];
        while let Some((inode, parent)) = ahead.pop() {
            let attributes = volume.inodes().metadata(&inode);
            let mut node = Node::new(inode.kind(), attributes.permission_bits(), parent);
            node.links = attributes.nlink();
            for name in volume.inodes().list_xattrs(&inode).unwrap() {
                let value = volume.inodes().get_xattr(&inode, &name).unwrap();
                node.xattrs.insert(name, value);
            }
            match inode.kind() {
                FileType::Symlink => node.target = volume.inodes().read_link(&inode).unwrap(),
                FileType::Directory => {
                    for name in names(volume, &inode) {
                        let child = volume.inodes().lookup(&inode, &name).unwrap();
                        node.entries.insert(name, child.number());
                        ahead.push((child, inode.number()));
                    }
                }
                _ => {}
            }
            if inode.kind() != FileType::Directory {
                node.parent = InodeNo(0);
            }
            model.0.insert(inode.number(), node);
        }
        model
    }
}

struct Walk {
    random: Random,
    backend: Arc<MemoryBackend>,
    volume: Volume,
    model: Model,
    /// Users, also of what has no name any more.
    held: Vec<InodeRef>,
    /// The model after each operation since the last one that is durable, that one first.
    possible: Vec<Model>,
}

const NAMES: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"long name with spaces", b"\xff\xfe"];

impl Walk {
    fn new(seed: u64) -> Walk {
        let backend = formatted();
        let volume = options(false).open_backend(backend.clone()).unwrap();
        let model = Model::new();
        Walk {
            random: Random::seeded(seed),
            backend,
            volume,
            possible: vec![model.clone()],
            model,
            held: Vec::new(),
        }
    }

    fn pick(&mut self, count: usize) -> usize {
        self.random.below(count as u64) as usize
    }

    fn name(&mut self) -> Vec<u8> {
        match self.pick(10) {
            n @ 0..6 => NAMES[n].to_vec(),
            n => COLLIDING_NAMES.concat()[n - 6].to_vec(),
        }
    }

    /// A user of any inode of the model.
    fn any(&mut self, wanted: impl Fn(&Node) -> bool) -> Option<InodeRef> {
        let fitting: Vec<InodeNo> =
            self.model.0.iter().filter(|(_, node)| wanted(node)).map(|(number, _)| *number).collect();
        if fitting.is_empty() {
            return None;
        }
        let number = fitting[self.pick(fitting.len())];
        Some(self.volume.inodes().get(number).unwrap_or_else(|error| panic!("inode {number}: {error}")))
    }

    fn directory(&mut self) -> InodeRef {
        self.any(|node| node.kind == FileType::Directory).unwrap()
    }

    #[track_caller]
    fn same<T>(got: quire::Result<T>, expected: Expected, what: &str) -> Option<T> {
        match (got, expected) {
            (Ok(value), Ok(())) => Some(value),
            (Err(error), Err(kind)) => {
                assert_eq!(error.kind(), kind, "{what}: {error}");
                None
            }
            (Ok(_), Err(kind)) => panic!("{what}: done, but {kind:?} was expected"),
            (Err(error), Ok(())) => panic!("{what}: {error}"),
        }
    }

    fn create(&mut self) {
        let (directory, name) = (self.directory(), self.name());
        let expected = self.model.may_create(directory.number(), &name);
        let mode = self.random.below(0o1000) as u32;
        let made = match self.pick(5) {
            0 => {
                let target = vec![b't'; 1 + self.pick(2500)];
                let made = self.volume.inodes().symlink(&directory, &name, &target, Caller::default());
                made.map(|inode| (inode, Node { target, ..Node::new(FileType::Symlink, 0o777, InodeNo(0)) }))
            }
            1 | 2 => {
                let made = self.volume.inodes().create(&directory, &name, &Create::directory(mode));
                let mode = mode | self.model.node(directory.number()).mode & 0o2000;
                made.map(|inode| (inode, Node::new(FileType::Directory, mode, directory.number())))
            }
            _ => {
                let made = self.volume.inodes().create(&directory, &name, &Create::file(mode));
                made.map(|inode| (inode, Node::new(FileType::Regular, mode, InodeNo(0))))
            }
        };
        if let Some((inode, node)) = Walk::same(made, expected, "create") {
            self.model.created(directory.number(), &name, inode.number(), node);
            if self.random.one_in(4) {
                self.held.push(inode);
            }
        }
    }

    fn tmpfile(&mut self) {
        let (directory, to, name) = (self.directory(), self.directory(), self.name());
        let dead = self.model.0[&directory.number()].links == 0;
        let expected = if dead { Err(ErrorKind::NotFound) } else { Ok(()) };
        let made = self.volume.inodes().tmpfile(&directory, &Create::file(0o600));
        let Some(inode) = Walk::same(made, expected, "tmpfile") else { return };
        if self.random.one_in(2) {
            let linked = self.volume.inodes().hard_link(&inode, &to, &name);
            if Walk::same(linked, self.model.may_create(to.number(), &name), "link of a tmpfile").is_some() {
                let node = Node::new(FileType::Regular, 0o600, InodeNo(0));
                self.model.created(to.number(), &name, inode.number(), node);
            }
        }
    }

    fn link(&mut self) {
        let (directory, name) = (self.directory(), self.name());
        let inode = self.any(|_| true).unwrap();
        let expected = self.model.link(inode.number(), directory.number(), &name);
        Walk::same(self.volume.inodes().hard_link(&inode, &directory, &name), expected, "link");
    }

    fn remove(&mut self) {
        let (directory, name) = (self.directory(), self.name());
        let as_directory = self.random.one_in(3);
        let expected = self.model.remove(directory.number(), &name, as_directory);
        let done = match as_directory {
            true => self.volume.inodes().remove_dir(&directory, &name),
            false => self.volume.inodes().remove_file(&directory, &name),
        };
        Walk::same(done, expected, "remove");
    }

    fn rename(&mut self) {
        let (from, name) = (self.directory(), self.name());
        let to = if self.random.one_in(3) { from.clone() } else { self.directory() };
        let to_name = self.name();
        let flags = [
            RenameFlags::empty(),
            RenameFlags::empty(),
            RenameFlags::NOREPLACE,
            RenameFlags::EXCHANGE,
            RenameFlags::WHITEOUT,
            RenameFlags::WHITEOUT | RenameFlags::NOREPLACE,
        ];
        let flags = flags[self.pick(flags.len())];
        let expected = self.model.rename(from.number(), &name, to.number(), &to_name, flags);
        let done = self.volume.inodes().rename(&from, &name, &to, &to_name, flags);
        let moved = Walk::same(done, expected, "rename").is_some();
        // Not where both names were the same inode's.
        let is_gone = || self.model.find(from.number(), &name).is_none();
        if moved && flags.contains(RenameFlags::WHITEOUT) && is_gone() {
            let left = self.volume.inodes().lookup(&from, &name).unwrap();
            let node = Node::new(FileType::CharDevice, 0, InodeNo(0));
            self.model.created(from.number(), &name, left.number(), node);
        }
    }

    fn attribute(&mut self) {
        let has_attributes = |node: &Node| matches!(node.kind, FileType::Regular | FileType::Directory);
        let inode = self.any(has_attributes).unwrap();
        let name = COLLIDING_ATTRIBUTES.concat()[self.pick(4)];
        let node = self.model.node(inode.number());
        match self.random.below(4) {
            0 => {
                let expected = node.xattrs.remove(name).map(drop).ok_or(ErrorKind::NoAttribute);
                Walk::same(self.volume.inodes().remove_xattr(&inode, name), expected, "remove_xattr");
            }
            1 => {
                let mode = self.random.below(0o10000) as u32;
                node.mode = mode;
                let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
                self.volume.inodes().set_attributes(&inode, &set).unwrap();
            }
            _ => {
                let value = vec![self.random.next_u64() as u8; self.random.below(3000) as usize];
                let flags = [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE];
                let flags = flags[self.random.below(3) as usize];
                let expected = match node.xattrs.contains_key(name) {
                    true if flags == XattrFlags::CREATE => Err(ErrorKind::Exists),
                    false if flags == XattrFlags::REPLACE => Err(ErrorKind::NoAttribute),
                    _ => Ok(()),
                };
                if expected.is_ok() {
                    node.xattrs.insert(name.to_vec(), value.clone());
                }
                Walk::same(
                    self.volume.inodes().set_xattr(&inode, name, &value, flags),
                    expected,
                    "set_xattr",
                );
            }
        }
    }

    /// Lets users go; what nobody uses and nothing names leaves the model.
    fn let_go(&mut self, all: bool) {
        while !self.held.is_empty() && (all || self.random.one_in(3)) {
            let at = self.pick(self.held.len());
            self.held.swap_remove(at);
        }
        let held: Vec<InodeNo> = self.held.iter().map(InodeRef::number).collect();
        self.model.0.retain(|number, node| node.links > 0 || held.contains(number));
    }

    fn hold(&mut self) {
        let inode = self.any(|_| true).unwrap();
        self.held.push(inode);
    }

    fn step(&mut self) {
        match self.pick(20) {
            0..6 => self.create(),
            6 => self.tmpfile(),
            7 | 8 => self.link(),
            9..12 => self.remove(),
            12..16 => self.rename(),
            16 | 17 => self.attribute(),
            18 => self.hold(),
            _ => {}
        }
        let keep = self.random.one_in(8);
        if keep {
            self.let_go(false);
        }
        let held: Vec<InodeNo> = self.held.iter().map(InodeRef::number).collect();
        self.model.0.retain(|number, node| node.links > 0 || held.contains(number));
        self.possible.push(self.model.named());
    }

    fn durable(&mut self) {
        self.possible = vec![self.model.named()];
    }

    fn compare(&mut self) {
        self.let_go(true);
        let found = Model::read(&self.volume);
        assert!(found == self.model, "{}", found.difference(&self.model));
        consistency::check(&self.volume);
    }

    fn reopen(&mut self) {
        self.let_go(true);
        self.volume.clone().close().unwrap();
        self.volume = options(false).open_backend(self.backend.clone()).unwrap();
        self.compare();
        self.durable();
    }

    /// Goes on with what the device holds now.
    fn crash(&mut self) {
        let backend = copy_of(&self.backend);
        let volume = options(false).open_backend(backend.clone()).unwrap();
        let found = Model::read(&volume);
        let Some(model) = self.possible.iter().rev().find(|model| **model == found) else {
            let last = self.possible.last().unwrap();
            panic!(
                "after a crash, none of {} states; the last one: {}",
                self.possible.len(),
                found.difference(last)
            );
        };
        self.model = model.clone();
        self.held.clear();
        (self.backend, self.volume) = (backend, volume);
        self.compare();
        self.durable();
    }
}

fn walk(seed: u64, steps: usize) {
    let mut walk = Walk::new(seed);
    for _ in 0..steps {
        walk.step();
        match walk.pick(100) {
            0..4 => {
                walk.volume.sync().unwrap();
                walk.durable();
            }
            4 => walk.reopen(),
            5 | 6 => walk.crash(),
            7 => walk.compare(),
            8 => walk.volume.checkpoint().unwrap(),
            9 => walk.volume.background_step().unwrap(),
            _ => {}
        }
    }
    walk.compare();
}

#[test]
fn every_operation_does_what_the_model_does() {
    for seed in 0..6 {
        walk(seed, 700);
    }
}
