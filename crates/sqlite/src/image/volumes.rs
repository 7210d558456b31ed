//! The volumes that the process has open, and what connections to one of their files share.
//!
//! A volume is opened with the first file, and closed with the last: then its users are zero, and it is
//! closed before anybody opens it again, since the map is locked meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_char;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use quire::{FormatOptions, Volume, VolumeOptions};
use quire_base::process::AtWork;
use quire_base::size;

use super::locks::Shared;
use crate::ffi::Api;

/// By image. A process has few of them open.
type Open = BTreeMap<Arc<str>, Entry>;

static OPEN: Mutex<Open> = Mutex::new(BTreeMap::new());

struct Entry {
    image: Arc<str>,
    volume: Volume,
    users: usize,
    /// By inode number. An entry whose connections have gone is replaced.
    files: HashMap<u64, Weak<Shared>>,
}

fn all() -> MutexGuard<'static, Open> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a URI wants its volume. It counts for the first connection only.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// `image_size=`: makes a volume of so many bytes if there is none.
    size: Option<u64>,
    /// `image_cache=`: the limit of the page cache in bytes.
    cache: Option<u64>,
}

impl Settings {
    /// # Safety
    ///
    /// `name` is a database's that SQLite passes to `xOpen`.
    pub(super) unsafe fn of(api: Api, name: *const c_char, creates: bool) -> Result<Settings, String> {
        let bytes = |key| {
            // SAFETY: the caller's promise.
            let Some(text) = (unsafe { api.parameter(name, key) }) else { return Ok(None) };
            size::parse(text).map(Some)
        };
        // As little is created with `mode=ro` and `mode=rw` as of a database.
        let size = bytes(c"image_size")?.filter(|_| creates);
        Ok(Settings { size, cache: bytes(c"image_cache")? })
    }
}

/// One use of an open volume. Open files keep theirs from processes that are forked off.
#[derive(Debug)]
pub(super) struct User {
    image: Arc<str>,
    /// Taken out before the volume is closed.
    volume: Option<Volume>,
}

/// The volume of an image, opened if this process does not have it open.
pub(super) fn open(image: &str, settings: &Settings) -> Result<User, String> {
    // Before the map: a thread of the parent may have had it locked.
    AtWork::check().map_err(|error| error.to_string())?;
    let mut all = all();
    if !all.contains_key(image) {
        if let Some(size) = settings.size
            && !image.contains("://")
            && !std::path::Path::new(image).exists()
        {
            FormatOptions::new().size(size).format(image).map_err(|error| error.to_string())?;
        }
        let mut options = VolumeOptions::new();
        if let Some(bytes) = settings.cache {
            options = options.cache_bytes(bytes);
        }
        let volume = options.open(image).map_err(|error| error.to_string())?;
        let image: Arc<str> = image.into();
        all.insert(image.clone(), Entry { image, volume, users: 0, files: HashMap::new() });
    }
    let entry = all.get_mut(image).ok_or("the volume is not open")?;
    entry.users += 1;
    Ok(User { image: entry.image.clone(), volume: Some(entry.volume.clone()) })
}

impl User {
    pub(super) fn volume(&self) -> &Volume {
        match &self.volume {
            Some(volume) => volume,
            None => unreachable!("it is taken out when the user is dropped"),
        }
    }

    /// What the connections to one of its files share.
    pub(super) fn shared(&self, inode: u64) -> Arc<Shared> {
        let mut all = all();
        let Some(entry) = all.get_mut(&self.image) else { return Arc::default() };
        if let Some(shared) = entry.files.get(&inode).and_then(Weak::upgrade) {
            return shared;
        }
        let shared = Arc::default();
        entry.files.retain(|_, shared| shared.strong_count() > 0);
        entry.files.insert(inode, Arc::downgrade(&shared));
        shared
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut all = all();
        self.volume = None;
        let Some(entry) = all.get_mut(&self.image) else { return };
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        if let Some(entry) = all.remove(&self.image)
            && let Err(error) = entry.volume.close()
        {
            super::told(crate::ffi::IOERR_CLOSE, &format!("closing {}: {error}", self.image));
        }
    }
}
