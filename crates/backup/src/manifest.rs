//! Manifests: what a backup consists of.
//!
//! A manifest is JSON. It is written after all parts, so a backup without one is unfinished. Its bytes come
//! from outside: [`Manifest::parse`] checks all that the program relies on.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// The version of the layout that this program writes and reads.
const VERSION: u32 = 1;
/// The most parts that a backup may have.
pub const PARTS_MAX: usize = 1_000_000;
/// The least size of a part (the last one may be smaller).
pub const PART_BYTES_MIN: u64 = 4 << 10;
/// The greatest size of a part: some parts are in memory at a time.
pub const PART_BYTES_MAX: u64 = 1 << 30;
/// The greatest size of a manifest.
pub const MANIFEST_BYTES_MAX: u64 = 256 << 20;
/// The longest name of a backup.
const NAME_BYTES_MAX: usize = 100;

/// One backup in a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    version: u32,
    /// The name of the backup, which is that of its directory.
    pub name: String,
    /// The volume that was backed up.
    pub volume: Uuid,
    /// Size of that volume.
    pub volume_bytes: u64,
    /// The snapshot whose stream this is.
    pub snapshot: Snapshot,
    /// The backup that this one goes on from; none if it is full.
    pub parent: Option<String>,
    /// When the backup was finished.
    pub created: DateTime<Utc>,
    /// Size of all parts together.
    pub bytes: u64,
    /// The stream, cut.
    pub parts: Vec<Part>,
}

/// A snapshot, recognised on a volume and on its copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its name on the volume.
    pub name: String,
    /// When it was taken, in nanoseconds since 1970. Another snapshot of the same name has another time.
    pub created: i64,
}

impl Snapshot {
    /// When it was taken.
    pub fn taken(&self) -> DateTime<Utc> {
        DateTime::from_timestamp_nanos(self.created)
    }
}

/// A piece of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// In bytes.
    pub size: u64,
    /// SHA-256 of its bytes, in hexadecimal digits.
    pub sha256: String,
}

impl Part {
    /// Describes a part with these bytes.
    pub fn of(bytes: &[u8]) -> Part {
        let digest = Sha256::digest(bytes);
        let sha256 = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Part { size: bytes.len() as u64, sha256 }
    }

    /// The name of its object. The beginning of the checksum is in the name, so programs that upload
    /// different streams as one backup do not overwrite each other's parts.
    pub fn object(&self, number: usize) -> String {
        format!("part-{number:06}-{}", &self.sha256[..16])
    }
}

/// Whether a name of an object is one that [`Part::object`] gives.
pub fn is_part(object: &str) -> bool {
    let Some((number, checksum)) = object.strip_prefix("part-").and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    number.len() == 6 && number.bytes().all(|byte| byte.is_ascii_digit()) && is_hexadecimal(checksum, 16)
}

fn is_hexadecimal(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Checks the name of a backup, which becomes a directory in the store and a part of a snapshot's name.
pub fn check_name(name: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let starts = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if starts && name.len() <= NAME_BYTES_MAX && name.bytes().all(fits) && !name.contains("..") {
        return Ok(());
    }
    Err(format!(
        "{name:?} cannot be the name of a backup: letters, digits, '-', '_' and '.', at most {NAME_BYTES_MAX}, a letter \
         or digit first, no '..'"
    ))
}

/// The name of the snapshot that a backup is made of.
pub fn snapshot_name(backup: &str) -> String {
    format!("backup-{backup}")
}

impl Manifest {
    /// A manifest of the current version.
    pub fn new(
        name: String,
        volume: (Uuid, u64),
        snapshot: Snapshot,
        parent: Option<String>,
        parts: Vec<Part>,
        created: DateTime<Utc>,
    ) -> Manifest {
        let bytes = parts.iter().map(|part| part.size).sum();
        let (volume, volume_bytes) = volume;
        Manifest { version: VERSION, name, volume, volume_bytes, snapshot, parent, created, bytes, parts }
    }

    /// Reads the manifest of the backup `name`.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Manifest, String> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if version != VERSION {
            return Err(format!("version {version} is not known here: use a newer quire-backup"));
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        manifest.check(name)?;
        Ok(manifest)
    }

    fn check(&self, name: &str) -> Result<(), String> {
        check_name(&self.name)?;
        if self.name != name {
            return Err(format!("it is the manifest of {:?}", self.name));
        }
        if self.snapshot.name != snapshot_name(name) {
            return Err(format!("the snapshot is called {:?}", self.snapshot.name));
        }
        if let Some(parent) = &self.parent {
            check_name(parent)?;
            if parent == name {
                return Err("the backup goes on from itself".into());
            }
        }
        if self.parts.is_empty() || self.parts.len() > PARTS_MAX {
            return Err(format!("{} parts", self.parts.len()));
        }
        for (number, part) in self.parts.iter().enumerate() {
            if part.size == 0 || part.size > PART_BYTES_MAX {
                return Err(format!("part {number} has {} bytes", part.size));
            }
            if !is_hexadecimal(&part.sha256, 64) {
                return Err(format!("part {number}: {:?} is no SHA-256", part.sha256));
            }
        }
        // No overflow: the numbers and sizes of parts are bounded.
        let sum: u64 = self.parts.iter().map(|part| part.size).sum();
        if sum != self.bytes {
            return Err(format!("the parts have {sum} bytes, not {}", self.bytes));
        }
        Ok(())
    }

    /// The bytes to store.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("all of a manifest has a form in JSON")
    }
}

/// Backups by their names.
pub type ByName<'m> = HashMap<&'m str, &'m Manifest>;

/// The same backups by their names.
pub fn by_name(backups: &[Manifest]) -> ByName<'_> {
    backups.iter().map(|backup| (backup.name.as_str(), backup)).collect()
}

/// The backups to restore for `name`, the full one first.
pub fn chain<'m>(backups: &ByName<'m>, name: &str) -> Result<Vec<&'m Manifest>, String> {
    let mut chain: Vec<&Manifest> = Vec::new();
    let mut next = Some(name);
    while let Some(name) = next {
        let Some(&found) = backups.get(name) else {
            return Err(match chain.last() {
                Some(child) => format!("{name} is missing, from which {} goes on", child.name),
                None => format!("there is no backup {name}"),
            });
        };
        if chain.len() >= backups.len() {
            return Err(format!("{name} goes on from itself, by way of others"));
        }
        if chain.last().is_some_and(|child| child.volume != found.volume) {
            return Err(format!("{name} is a backup of another volume"));
        }
        chain.push(found);
        next = found.parent.as_deref();
    }
    chain.reverse();
    Ok(chain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn manifest(name: &str, parent: Option<&str>) -> Manifest {
        Manifest::new(
            name.into(),
            (Uuid::from_u128(7), 1 << 30),
            Snapshot { name: snapshot_name(name), created: 5 },
            parent.map(String::from),
            vec![Part::of(b"one"), Part::of(b"")].into_iter().filter(|part| part.size > 0).collect(),
            DateTime::UNIX_EPOCH,
        )
    }

    #[test]
    fn what_is_written_is_read() {
        let manifest = manifest("monday", Some("sunday"));
        assert_eq!(Manifest::parse("monday", &manifest.to_json()), Ok(manifest));
    }

    #[test]
    fn what_is_wrong_is_refused() {
        let cases: [(&str, Value); 14] = [
            ("version", json!(2)),
            ("version", json!(-1)),
            ("name", json!("tuesday")),
            ("name", json!("../monday")),
            ("volume", json!("x")),
            ("snapshot", json!({"name": "backup-tuesday", "created": 5})),
            ("parent", json!("a/b")),
            ("parent", json!("..")),
            ("parent", json!("monday")),
            ("created", json!("yesterday")),
            ("bytes", json!(4)),
            ("parts", json!([])),
            ("parts", json!([{"size": 3, "sha256": "é".repeat(32)}])),
            ("parts", json!([{"size": u64::MAX, "sha256": "0".repeat(64)}])),
        ];
        for (field, value) in cases {
            let mut json: Value = serde_json::from_slice(&manifest("monday", None).to_json()).unwrap();
            json[field] = value;
            let parsed = Manifest::parse("monday", json.to_string().as_bytes());
            assert!(parsed.is_err(), "{field}: {}", json[field]);
        }
    }

    #[test]
    fn names() {
        for good in ["20261124T131500Z-3f2a", "a", "a.b-c_d"] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "..", "-a", "a/b", "a..b", "a b", "ä", &"a".repeat(101)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        let part = Part::of(b"x");
        assert!(is_part(&part.object(0)) && is_part(&part.object(PARTS_MAX - 1)));
        assert!(
            !is_part("part-000000") && !is_part("manifest.json") && !is_part("part-00000x-0123456789abcdef")
        );
    }

    #[test]
    fn chains() {
        let backups = [manifest("c", Some("b")), manifest("a", None), manifest("b", Some("a"))];
        let chain = |backups: &[Manifest], name| -> Result<Vec<Manifest>, String> {
            Ok(super::chain(&by_name(backups), name)?.into_iter().cloned().collect())
        };
        let names: Vec<_> = chain(&backups, "c").unwrap().iter().map(|it| it.name.clone()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert!(chain(&backups, "d").unwrap_err().contains("there is no backup d"));
        assert!(chain(&backups[..1], "c").unwrap_err().contains("b is missing"));
        let circle = [manifest("a", Some("b")), manifest("b", Some("a"))];
        assert!(chain(&circle, "a").unwrap_err().contains("from itself"));
        let mut other = manifest("a", None);
        other.volume = Uuid::from_u128(8);
        assert!(chain(&[manifest("b", Some("a")), other], "b").unwrap_err().contains("another volume"));
    }

    proptest! {
        /// Any bytes are a manifest that can be used, or an error; and what is read can be written.
        #[test]
        fn damage_is_found_or_harmless(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
            let mut bytes = manifest("monday", Some("sunday")).to_json();
            for (at, byte) in edits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(read) = Manifest::parse("monday", &bytes) {
                prop_assert!(read.parts.iter().enumerate().all(|(n, part)| is_part(&part.object(n))));
                prop_assert_eq!(Manifest::parse("monday", &read.to_json()), Ok(read));
            }
        }
    }
}
