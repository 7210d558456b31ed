//! Stores whose objects fail one by one, and the times that requests have.

use std::io::Error as SystemError;
use std::pin::Pin;

use futures::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, PutMultipartOptions,
    PutPayload, PutResult, Result as Answer,
};
use rustix::io::Errno;

use super::*;
use crate::manifest::{Snapshot, snapshot_name};

type Answering<'a, T> = Pin<Box<dyn Future<Output = Answer<T>> + Send + 'a>>;

/// A directory on a file system without hard links, in which what has `bad` in its path cannot be read, and
/// what has `secret` not by this user.
#[derive(Debug)]
struct Faulty(LocalFileSystem);

fn fails(errno: Errno) -> Error {
    Error::Generic { store: "Faulty", source: Box::new(SystemError::from(errno)) }
}

impl std::fmt::Display for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl ObjectStore for Faulty {
    fn put_opts<'s: 'a, 'p: 'a, 'a>(
        &'s self,
        location: &'p Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Answering<'a, PutResult>
    where
        Self: 'a,
    {
        match options.mode {
            PutMode::Create => Box::pin(std::future::ready(Err(fails(Errno::PERM)))),
            _ => self.0.put_opts(location, payload, options),
        }
    }
    fn put_multipart_opts<'s: 'a, 'p: 'a, 'a>(
        &'s self,
        location: &'p Path,
        options: PutMultipartOptions,
    ) -> Answering<'a, Box<dyn MultipartUpload>>
    where
        Self: 'a,
    {
        self.0.put_multipart_opts(location, options)
    }
    fn get_opts<'s: 'a, 'p: 'a, 'a>(
        &'s self,
        location: &'p Path,
        options: GetOptions,
    ) -> Answering<'a, GetResult>
    where
        Self: 'a,
    {
        let bad = [("bad", Errno::IO), ("secret", Errno::ACCESS)];
        match bad.into_iter().find(|(word, _)| location.as_ref().contains(word)) {
            Some((_, errno)) => Box::pin(std::future::ready(Err(fails(errno)))),
            None => self.0.get_opts(location, options),
        }
    }
    fn delete_stream(&self, locations: BoxStream<'static, Answer<Path>>) -> BoxStream<'static, Answer<Path>> {
        self.0.delete_stream(locations)
    }
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Answer<ObjectMeta>> {
        self.0.list(prefix)
    }
    fn list_with_delimiter<'s: 'a, 'p: 'a, 'a>(
        &'s self,
        prefix: Option<&'p Path>,
    ) -> Answering<'a, ListResult>
    where
        Self: 'a,
    {
        match prefix.is_some_and(|prefix| prefix.as_ref().contains("bad")) {
            true => Box::pin(std::future::ready(Err(fails(Errno::IO)))),
            false => self.0.list_with_delimiter(prefix),
        }
    }
    fn copy_opts<'s: 'a, 'p: 'a, 'q: 'a, 'a>(
        &'s self,
        from: &'p Path,
        to: &'q Path,
        options: CopyOptions,
    ) -> Answering<'a, ()>
    where
        Self: 'a,
    {
        self.0.copy_opts(from, to, options)
    }
}

fn faulty(directory: &std::path::Path) -> Store {
    let local = LocalFileSystem::new_with_prefix(directory).unwrap();
    Store {
        objects: Arc::new(Faulty(local)),
        url: directory.display().to_string(),
        directory: Some(directory.to_owned()),
    }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn manifest(name: &str, created: i64) -> Manifest {
    let snapshot = Snapshot { name: snapshot_name(name), created };
    let volume = (uuid::Uuid::nil(), 1 << 30);
    Manifest::new(name.into(), volume, snapshot, None, vec![Part::of(b"part")], DateTime::UNIX_EPOCH)
}

/// The manifest was published by a hard link. On a disk with FAT no backup was ever finished: each night left
/// a full set of parts, and a snapshot.
#[test]
fn a_manifest_needs_no_hard_links() {
    let directory = tempfile::tempdir().unwrap();
    let store = faulty(directory.path());
    let (first, second) = (manifest("one", 1), manifest("one", 2));
    run(async {
        store.put_part("one", 0, &first.parts[0], "part".into()).await.unwrap();
        assert!(store.put_manifest(&first).await.unwrap());
        assert!(!store.put_manifest(&second).await.unwrap(), "it was overwritten");
        assert_eq!(store.manifest("one").await.unwrap(), Some(Ok(first.clone())));
    });
    let mut files: Vec<_> = std::fs::read_dir(directory.path().join("one"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files, ["manifest.json", first.parts[0].object(0).as_str()]);
}

/// One file that the disk could not read any more ended the listing, verification, continuation and restore
/// of all backups beside it.
#[test]
fn what_cannot_be_read_is_damaged_alone() {
    let directory = tempfile::tempdir().unwrap();
    let store = faulty(directory.path());
    let (good, bad) = (manifest("good", 1), manifest("bad", 2));
    for backup in [&good, &bad] {
        run(store.put_part(&backup.name, 0, &backup.parts[0], "part".into())).unwrap();
        assert!(
            directory::publish(&directory.path().join(&backup.name), MANIFEST, &backup.to_json()).unwrap()
        );
    }
    run(async {
        let contents = store.contents().await.unwrap();
        assert_eq!(contents.backups, std::slice::from_ref(&good));
        assert_eq!(contents.damaged.len(), 1);
        let (name, why) = &contents.damaged[0];
        assert!(name == "bad" && why.contains("reading bad/manifest.json"), "{name}: {why}");
        assert_eq!(store.lacks([&good]).await.unwrap(), None);
        let lost = store.lacks([&good, &bad]).await.unwrap().unwrap();
        assert!(lost.contains("listing bad") && lost.contains("os error 5"), "{lost}");
        assert_eq!(store.part("good", 0, &good.parts[0]).await.unwrap().unwrap(), "part");
        let why = store.part("bad", 0, &bad.parts[0]).await.unwrap().unwrap_err();
        assert!(why.contains("reading bad/part-000000"), "{why}");
    });
}

/// A run of a user who may not read the backups took all of them for damaged.
#[test]
fn what_the_user_may_not_read_is_not_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let store = faulty(directory.path());
    let secret = manifest("secret", 1);
    run(store.put_part(&secret.name, 0, &secret.parts[0], "part".into())).unwrap();
    let failure = run(store.part("secret", 0, &secret.parts[0])).unwrap_err();
    assert!(failure.message.contains("reading secret/part-000000"), "{}", failure.message);
    assert!(run(store.manifest("secret")).is_err());
}

/// A request had 30 s as a whole. Parts of 16 MiB, three at a time, never arrived over a line of 10
/// Mbit/s.
#[test]
fn a_part_may_take_long() {
    let timeouts = |part_bytes, variable: &str| {
        let builder = with_timeouts(AmazonS3Builder::new(), part_bytes, |name| name == variable);
        [ClientConfigKey::Timeout, ClientConfigKey::ReadTimeout]
            .map(|key| builder.get_config_value(&AmazonS3ConfigKey::Client(key)))
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(timeouts(Some(16 << 20), ""), [some("1084s"), None]);
    assert_eq!(timeouts(None, ""), [some("65596s"), some("60s")]);
    assert_eq!(timeouts(None, "AWS_READ_TIMEOUT"), [some("65596s"), None]);
    assert_eq!(timeouts(Some(16 << 20), "AWS_TIMEOUT"), [some("30s"), None]);
}
