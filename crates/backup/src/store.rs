//! Backups as objects: in a directory, or in a bucket of S3.
//!
//! ```text
//! NAME/part-000000-CHECKSUM     the stream, cut; any number
//! NAME/manifest.json            written last, if there is none
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use futures::{Stream, StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ClientConfigKey, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions};

use crate::directory;
use crate::failure::{FAILED, Failure, MISSING, Outcome};
use crate::manifest::{MANIFEST_BYTES_MAX, Manifest, PART_BYTES_MAX, Part, check_name, is_part};

/// The object that finishes a backup.
pub const MANIFEST: &str = "manifest.json";
/// Parts that are read at a time.
const DOWNLOADS: usize = 2;
/// Manifests that are read, and listings that are asked for, at a time.
const REQUESTS: usize = 16;
/// Seconds in which a server answers.
const ANSWER_SECONDS: u64 = 60;
/// An upload or download that is slower is given up.
const BYTES_PER_SECOND_MIN: u64 = 16 << 10;

/// Where backups are.
#[derive(Clone, Debug)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    url: String,
    /// Where the objects are files.
    directory: Option<PathBuf>,
}

/// What a store holds.
#[derive(Debug, Default)]
pub struct Contents {
    /// Finished backups, the one with the oldest snapshot first.
    pub backups: Vec<Manifest>,
    /// Names of backups with unusable manifests, and why they are unusable.
    pub damaged: Vec<(String, String)>,
}

/// Parts of no finished backup stay this long: they may be of one that is being made.
pub const UNFINISHED_KEPT: TimeDelta = TimeDelta::days(1);

/// An object that looks like a part.
#[derive(Debug)]
pub struct StoredPart {
    /// In bytes.
    pub size: u64,
    /// When it was written.
    pub modified: DateTime<Utc>,
}

impl StoredPart {
    /// Whether a backup that is being made may count on it: no prune deletes it for the next half of the time
    /// that parts stay.
    pub fn stays_for_now(&self) -> bool {
        Utc::now() - self.modified < UNFINISHED_KEPT / 2
    }
}

impl Store {
    /// Opens the store at a path, a `file://` URL or an `s3://` URL. Whoever writes gives the size of the parts;
    /// a missing directory is made then, in an existing one.
    pub fn open(url: &str, part_bytes: Option<u64>) -> Outcome<Store> {
        let wrong = |why: String| Failure::new(MISSING, format!("{url}: {why}"));
        let (objects, directory): (Arc<dyn ObjectStore>, _) = if let Some(rest) = url.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() {
                return Err(wrong("the name of the bucket is missing: s3://BUCKET/PREFIX".into()));
            }
            let prefix =
                Path::parse(prefix.trim_end_matches('/')).map_err(|error| wrong(error.to_string()))?;
            let is_set = |variable: &str| std::env::var_os(variable).is_some();
            let bucket = with_timeouts(AmazonS3Builder::from_env(), part_bytes, is_set)
                .with_bucket_name(bucket)
                .build();
            (Arc::new(PrefixStore::new(bucket.map_err(|error| wrong(error.to_string()))?, prefix)), None)
        } else {
            let directory = match url.strip_prefix("file://") {
                Some(path) if path.starts_with('/') => path,
                Some(_) => return Err(wrong("a file URL has three slashes: file:///DIRECTORY".into())),
                None if url.contains("://") => {
                    return Err(wrong(
                        "a store is a directory, file:///DIRECTORY or s3://BUCKET/PREFIX".into(),
                    ));
                }
                None if url.starts_with("s3:") || url.starts_with("file:") => {
                    return Err(wrong(format!(
                        "an address has two slashes behind the colon; write ./{url} for a directory of this name"
                    )));
                }
                None => url,
            };
            let path = PathBuf::from(directory);
            if part_bytes.is_some() {
                directory::make_durably(&path)
                    .map_err(|error| Failure::system(format!("making the store {directory}"), &error))?;
            }
            if !path.is_dir() {
                return Err(wrong("there is no such directory".into()));
            }
            let local = LocalFileSystem::new_with_prefix(&path).map_err(|error| wrong(error.to_string()))?;
            (Arc::new(local.with_fsync(true).with_automatic_cleanup(true)), Some(path))
        };
        Ok(Store { objects, url: url.into(), directory })
    }

    /// The store as the user calls it.
    pub fn url(&self) -> &str {
        &self.url
    }

    fn failure(&self, doing: &str, object: &Path, error: &Error) -> Failure {
        let code = if matches!(error, Error::NotFound { .. }) { MISSING } else { FAILED };
        let message = format!("{}: {}", self.url, with_sources(format!("{doing} {object}"), error));
        // What a server of S3 answers is XML.
        if message.contains("<Code>NoSuchBucket</Code>") {
            return Failure::new(MISSING, format!("{}: there is no such bucket; make it first", self.url));
        }
        Failure::new(code, message)
    }

    /// What a read that failed means. In a directory this one object is damaged, and others may be good: a
    /// disk has bad sectors. A server that fails says nothing about its objects, nor does an error that
    /// passes, or that is the reader's.
    fn unreadable(&self, doing: &str, object: &Path, error: &Error) -> Outcome<String> {
        match self.directory {
            Some(_) if !directory::is_of_the_reader(error) => {
                Ok(with_sources(format!("{doing} {object}"), error))
            }
            _ => Err(self.failure(doing, object, error)),
        }
    }

    /// The names that have objects, finished or not.
    pub async fn names(&self) -> Outcome<Vec<String>> {
        let listed = self.objects.list_with_delimiter(None).await;
        let listed = listed.map_err(|error| self.failure("listing", &Path::default(), &error))?;
        let names = listed.common_prefixes.iter().filter_map(|path| path.filename().map(String::from));
        Ok(names.filter(|name| check_name(name).is_ok()).collect())
    }

    /// All finished backups.
    pub async fn contents(&self) -> Outcome<Contents> {
        let names = self.names().await?;
        let read = futures::stream::iter(&names).map(|name| self.manifest(name)).buffered(REQUESTS);
        let manifests: Vec<_> = read.try_collect().await?;
        let mut contents = Contents::default();
        for (name, manifest) in names.into_iter().zip(manifests) {
            match manifest {
                None => {}
                Some(Ok(manifest)) => contents.backups.push(manifest),
                Some(Err(why)) => contents.damaged.push((name, why)),
            }
        }
        contents.backups.sort_by(|a, b| (a.snapshot.created, &a.name).cmp(&(b.snapshot.created, &b.name)));
        Ok(contents)
    }

    /// The manifest of one backup; none if it is not finished. The inner error is for a damaged one.
    pub async fn manifest(&self, name: &str) -> Outcome<Option<Result<Manifest, String>>> {
        let at = Path::from_iter([name, MANIFEST]);
        let unreadable = |error: &Error| self.unreadable("reading", &at, error).map(|why| Some(Err(why)));
        let found = match self.objects.get(&at).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return unreadable(&error),
        };
        if found.meta.size > MANIFEST_BYTES_MAX {
            return Ok(Some(Err(format!("it has {} bytes", found.meta.size))));
        }
        match found.bytes().await {
            Ok(bytes) => Ok(Some(Manifest::parse(name, &bytes))),
            Err(error) => unreadable(&error),
        }
    }

    /// Finishes a backup, unless there is one of its name. Says whether it did.
    pub async fn put_manifest(&self, manifest: &Manifest) -> Outcome<bool> {
        let at = Path::from_iter([manifest.name.as_str(), MANIFEST]);
        let options = PutOptions::from(PutMode::Create);
        match self.objects.put_opts(&at, manifest.to_json().into(), options).await {
            Ok(_) => Ok(true),
            // The answer to the first of several tries may have been lost.
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                Ok(self.manifest(&manifest.name).await? == Some(Ok(manifest.clone())))
            }
            Err(error) => match &self.directory {
                // The client makes a hard link, of which FAT and others know nothing.
                Some(directory) if directory::has_no_links(&error) => {
                    let directory = directory.join(&manifest.name);
                    let published = directory::publish(&directory, MANIFEST, &manifest.to_json());
                    published.map_err(|error| {
                        Failure::system(format!("{}: writing {at} without hard links", self.url), &error)
                    })
                }
                _ => Err(self.failure("writing", &at, &error)),
            },
        }
    }

    /// The parts below a name.
    pub async fn parts(&self, name: &str) -> Outcome<BTreeMap<String, StoredPart>> {
        let below = Path::from(name);
        self.list_parts(&below).await.map_err(|error| self.failure("listing", &below, &error))
    }

    async fn list_parts(&self, below: &Path) -> Result<BTreeMap<String, StoredPart>, Error> {
        let listed = self.objects.list_with_delimiter(Some(below)).await?;
        let part = |meta: object_store::ObjectMeta| {
            let object = meta.location.filename().filter(|object| is_part(object))?.to_owned();
            Some((object, StoredPart { size: meta.size, modified: meta.last_modified }))
        };
        Ok(listed.objects.into_iter().filter_map(part).collect())
    }

    /// What is wrong with the first part of these backups that is not there, or has another size. What is in
    /// them is not read.
    pub async fn lacks<'m>(
        &self,
        backups: impl IntoIterator<Item = &'m Manifest>,
    ) -> Outcome<Option<String>> {
        let looked_at = futures::stream::iter(backups).map(|backup| self.lacks_of(backup)).buffered(REQUESTS);
        let lost = looked_at.try_filter_map(|lost| std::future::ready(Ok(lost)));
        std::pin::pin!(lost).try_next().await
    }

    async fn lacks_of(&self, backup: &Manifest) -> Outcome<Option<String>> {
        let below = Path::from(backup.name.as_str());
        let stored = match self.list_parts(&below).await {
            Ok(stored) => stored,
            Err(error) => return self.unreadable("listing", &below, &error).map(Some),
        };
        let objects = backup.parts.iter().enumerate().map(|(number, part)| (part.object(number), part.size));
        let mut lost = objects.filter(|(object, size)| stored.get(object).is_none_or(|it| it.size != *size));
        Ok(lost.next().map(|(object, _)| format!("{below}/{object} is missing or has another size")))
    }

    /// The bytes of a part, or what is wrong with it.
    pub async fn part(
        &self,
        name: &str,
        number: usize,
        part: &Part,
    ) -> Outcome<Result<bytes::Bytes, String>> {
        let at = Path::from_iter([name, &part.object(number)]);
        let unreadable = |error: &Error| self.unreadable("reading", &at, error).map(Err);
        let found = match self.objects.get(&at).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(Err(format!("{at} is missing"))),
            Err(error) => return unreadable(&error),
        };
        if found.meta.size != part.size {
            return Ok(Err(format!("{at} has {} bytes, not {}", found.meta.size, part.size)));
        }
        let bytes = match found.bytes().await {
            Ok(bytes) => bytes,
            Err(error) => return unreadable(&error),
        };
        Ok(if Part::of(&bytes) == *part { Ok(bytes) } else { Err(format!("{at} has a wrong checksum")) })
    }

    /// Reads the parts of a backup in their order, a few at a time, each as [`Store::part`] does.
    pub fn read<'a>(
        &'a self,
        backup: &'a Manifest,
    ) -> impl Stream<Item = Outcome<Result<bytes::Bytes, String>>> + 'a {
        futures::stream::iter(backup.parts.iter().enumerate())
            .map(|(number, part)| self.part(&backup.name, number, part))
            .buffered(DOWNLOADS)
    }

    /// Writes a part.
    pub async fn put_part(&self, name: &str, number: usize, part: &Part, bytes: bytes::Bytes) -> Outcome {
        let at = Path::from_iter([name, &part.object(number)]);
        let put = self.objects.put(&at, bytes.into()).await;
        put.map(drop).map_err(|error| self.failure("writing", &at, &error))
    }

    /// Deletes the manifest of a backup: from then on it is not there.
    pub async fn delete_manifest(&self, name: &str) -> Outcome {
        self.delete(&Path::from_iter([name, MANIFEST])).await
    }

    /// Deletes a part.
    pub async fn delete_part(&self, name: &str, object: &str) -> Outcome {
        self.delete(&Path::from_iter([name, object])).await
    }

    /// In a directory, removes the files that uploads below a name have left which were killed before a time.
    /// Says how many files these are.
    pub fn remove_staged(&self, name: &str, before: DateTime<Utc>, dry_run: bool) -> Outcome<usize> {
        let Some(directory) = self.directory.as_ref().map(|directory| directory.join(name)) else {
            return Ok(0);
        };
        let removed = directory::remove_staged(&directory, before, dry_run);
        removed.map_err(|error| Failure::system(directory.display(), &error))
    }

    /// In a directory, removes that of a name, if nothing is in it.
    pub fn remove_empty(&self, name: &str) {
        if let Some(directory) = &self.directory {
            // It fails while anything is there; an upload makes the directory again.
            let _ = std::fs::remove_dir(directory.join(name));
        }
    }

    async fn delete(&self, at: &Path) -> Outcome {
        match self.objects.delete(at).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failure("deleting", at, &error)),
        }
    }
}

/// What was being done, the error, and what caused it.
fn with_sources(doing: String, error: &Error) -> String {
    let mut message = format!("{doing}: {error}");
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        let more = error.to_string();
        if !message.contains(&more) {
            message = format!("{message}: {more}");
        }
        source = error.source();
    }
    message
}

/// Gives a request the time that a part takes over a slow line, unless a variable says otherwise.
///
/// The client's read timeout counts from the beginning of a request, so it would limit uploads as well.
fn with_timeouts(
    builder: AmazonS3Builder,
    part_bytes: Option<u64>,
    is_set: impl Fn(&str) -> bool,
) -> AmazonS3Builder {
    let whole = ANSWER_SECONDS + part_bytes.unwrap_or(PART_BYTES_MAX) / BYTES_PER_SECOND_MIN;
    let with = |builder: AmazonS3Builder, variable, key, seconds: u64| match is_set(variable) {
        true => builder,
        false => builder.with_config(AmazonS3ConfigKey::Client(key), format!("{seconds}s")),
    };
    let builder = with(builder, "AWS_TIMEOUT", ClientConfigKey::Timeout, whole);
    match part_bytes {
        Some(_) => builder,
        None => with(builder, "AWS_READ_TIMEOUT", ClientConfigKey::ReadTimeout, ANSWER_SECONDS),
    }
}

#[cfg(test)]
mod tests;
