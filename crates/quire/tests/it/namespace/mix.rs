//! The whole mix of operations on names by many threads in the same directories, each result compared with a
//! model.
//!
//! Each thread has names of its own, so what each of its operations gives is certain whatever the others do;
//! the directories, their buckets, leaves and locks are everybody's. The lock order is checked by the
//! engine's own assertions, which are on in tests.

use super::*;
use quire::{FileType, RenameFlags};
use quire_base::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::thread;

const THREADS: usize = 32;
const STEPS: usize = 250;
const DIRECTORIES: usize = 4;
const NAMES: u64 = 6;

/// What a thread knows of its names: (directory, name) to the file, or to nothing where it is a directory.
type Names = BTreeMap<(usize, String), Option<usize>>;

struct Worker<'a> {
    volume: &'a Volume,
    directories: &'a [InodeRef],
    random: Random,
    thread: usize,
    names: Names,
    /// Links of each file that was made.
    links: Vec<u32>,
}

impl Worker<'_> {
    fn place(&mut self) -> (usize, String) {
        let (at, name) = (self.random.below(DIRECTORIES as u64) as usize, self.random.below(NAMES));
        (at, format!("t{}-{name}", self.thread))
    }

    fn existing(&mut self, wanted: impl Fn(&Option<usize>) -> bool) -> Option<(usize, String)> {
        let fitting: Vec<_> =
            self.names.iter().filter(|(_, file)| wanted(file)).map(|(place, _)| place).collect();
        let at = self.random.below(fitting.len().max(1) as u64) as usize;
        fitting.get(at).map(|place| (*place).clone())
    }

    fn create(&mut self, create: &Create) {
        let (at, name) = self.place();
        let made = self.volume.inodes().create(&self.directories[at], name.as_bytes(), create);
        if self.names.contains_key(&(at, name.clone())) {
            return fails(made, ErrorKind::Exists);
        }
        made.unwrap();
        let file = (create.kind != FileType::Directory).then_some(self.links.len());
        self.links.extend(file.map(|_| 1));
        self.names.insert((at, name), file);
    }

    fn remove(&mut self) {
        let (at, name) = self.place();
        let known = self.names.get(&(at, name.clone())).copied();
        let directory = &self.directories[at];
        if self.random.one_in(2) {
            let removed = self.volume.inodes().remove_dir(directory, name.as_bytes());
            match known {
                None => return fails(removed, ErrorKind::NotFound),
                Some(Some(_)) => return fails(removed, ErrorKind::NotDirectory),
                Some(None) => removed.unwrap(),
            }
        } else {
            let removed = self.volume.inodes().remove_file(directory, name.as_bytes());
            match known {
                None => return fails(removed, ErrorKind::NotFound),
                Some(None) => return fails(removed, ErrorKind::IsDirectory),
                Some(Some(file)) => {
                    removed.unwrap();
                    self.links[file] -= 1;
                }
            }
        }
        self.names.remove(&(at, name));
    }

    fn rename(&mut self) {
        let Some((from, name)) = self.existing(|_| true) else { return };
        let (to, other) = self.place();
        let moved = self.names[&(from, name.clone())];
        let target = self.names.get(&(to, other.clone())).copied();
        let renamed = self.volume.inodes().rename(
            &self.directories[from],
            name.as_bytes(),
            &self.directories[to],
            other.as_bytes(),
            RenameFlags::empty(),
        );
        match (moved, target) {
            _ if (from, &name) == (to, &other) => return renamed.unwrap(),
            (None, Some(Some(_))) => return fails(renamed, ErrorKind::NotDirectory),
            (Some(_), Some(None)) => return fails(renamed, ErrorKind::IsDirectory),
            // Two names of one file: nothing happens.
            (Some(one), Some(Some(other))) if one == other => return renamed.unwrap(),
            (_, replaced) => {
                renamed.unwrap();
                if let Some(Some(file)) = replaced {
                    self.links[file] -= 1;
                }
            }
        }
        self.names.remove(&(from, name));
        self.names.insert((to, other), moved);
    }

    fn link(&mut self) {
        let Some((from, name)) = self.existing(Option::is_some) else { return };
        let (to, other) = self.place();
        let file = self.names[&(from, name.clone())].unwrap();
        let inode = self.volume.inodes().lookup(&self.directories[from], name.as_bytes()).unwrap();
        assert_eq!(links(self.volume, &inode), self.links[file]);
        let linked = self.volume.inodes().hard_link(&inode, &self.directories[to], other.as_bytes());
        if self.names.contains_key(&(to, other.clone())) {
            return fails(linked, ErrorKind::Exists);
        }
        linked.unwrap();
        self.links[file] += 1;
        self.names.insert((to, other), Some(file));
    }

    fn list(&mut self) {
        let at = self.random.below(DIRECTORIES as u64) as usize;
        let prefix = format!("t{}-", self.thread);
        let seen: Vec<_> = names(self.volume, &self.directories[at])
            .into_iter()
            .filter_map(|name| String::from_utf8(name).ok().filter(|name| name.starts_with(&prefix)))
            .collect();
        let known: Vec<_> = self
            .names
            .keys()
            .filter(|(directory, _)| *directory == at)
            .map(|(_, name)| name.clone())
            .collect();
        assert_eq!(seen, known, "a listing has every name that is there throughout, and no other");
    }

    fn run(mut self) -> Names {
        for _ in 0..STEPS {
            match self.random.below(12) {
                0..3 => self.create(&Create::file(0o644)),
                3 => self.create(&Create::directory(0o755)),
                4..6 => self.remove(),
                6..9 => self.rename(),
                9..11 => self.link(),
                _ => self.list(),
            }
        }
        self.names
    }
}

#[test]
fn a_mix_of_all_operations_gives_each_thread_what_its_model_does() {
    let volume = options(true).open_backend(formatted()).unwrap();
    let root = volume.inodes().root();
    let directories: Vec<_> =
        (0..DIRECTORIES).map(|n| directory(&volume, &root, format!("d{n}").as_bytes())).collect();
    let all: Vec<Names> = thread::scope(|scope| {
        let start = |thread: usize| {
            let worker = Worker {
                volume: &volume,
                directories: &directories,
                random: Random::seeded(thread as u64),
                thread,
                names: Names::new(),
                links: Vec::new(),
            };
            scope.spawn(move || worker.run())
        };
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (at, directory) in directories.iter().enumerate() {
        let expected: BTreeSet<Vec<u8>> = all
            .iter()
            .flat_map(|names| names.keys())
            .filter(|(place, _)| *place == at)
            .map(|(_, name)| name.clone().into_bytes())
            .collect();
        assert_eq!(names(&volume, directory), expected.into_iter().collect::<Vec<_>>());
    }
    drop(directories);
    consistency::check(&volume);
    volume.close().unwrap();
}
