//! Which backups a prune keeps.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::manifest::Manifest;

/// What the choice depends on.
#[derive(Clone, Debug)]
pub struct Entry<'n> {
    /// The name of the backup.
    pub name: &'n str,
    /// The backup that it goes on from.
    pub parent: Option<&'n str>,
    /// The volume that it is a backup of.
    pub volume: Uuid,
    /// When its snapshot was taken. The backup may have been finished long after that.
    pub taken: DateTime<Utc>,
}

impl<'m> From<&'m Manifest> for Entry<'m> {
    fn from(manifest: &'m Manifest) -> Entry<'m> {
        Entry {
            name: &manifest.name,
            parent: manifest.parent.as_deref(),
            volume: manifest.volume,
            taken: manifest.snapshot.taken(),
        }
    }
}

/// The names to keep: of each volume the newest `last` backups and those whose snapshot was taken since
/// `since`, and all that a kept backup goes on from. A snapshot of a time that is not `now` yet was taken
/// while the clock was wrong. Nobody knows how old it is, so its backup stays, and takes the place of no
/// other.
pub fn kept<'n>(
    backups: &[Entry<'n>],
    last: usize,
    since: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> BTreeSet<&'n str> {
    let mut volumes: BTreeMap<Uuid, Vec<&Entry<'n>>> = BTreeMap::new();
    for backup in backups {
        volumes.entry(backup.volume).or_default().push(backup);
    }
    let mut kept = BTreeSet::new();
    for of_volume in volumes.values_mut() {
        kept.extend(of_volume.extract_if(.., |backup| backup.taken > now).map(|backup| backup.name));
        of_volume.sort_by_key(|backup| std::cmp::Reverse((backup.taken, backup.name)));
        for (n, backup) in of_volume.iter().enumerate() {
            if n < last || since.is_some_and(|since| backup.taken >= since) {
                kept.insert(backup.name);
            }
        }
    }
    let parents: BTreeMap<&str, &'n str> =
        backups.iter().filter_map(|backup| Some((backup.name, backup.parent?))).collect();
    let mut to_follow: Vec<&str> = kept.iter().copied().collect();
    while let Some(name) = to_follow.pop() {
        if let Some(parent) = parents.get(name)
            && kept.insert(parent)
        {
            to_follow.push(parent);
        }
    }
    kept
}

/// Parses a time span: a number with `h`, `d` or `w`.
pub fn parse_span(text: &str) -> Result<TimeDelta, String> {
    let error = || format!("{text:?} is no time span: write 12h, 30d or 8w");
    let unit = text.chars().last().ok_or_else(error)?;
    let count: i64 = text[..text.len() - unit.len_utf8()].parse().map_err(|_| error())?;
    let hours = match unit {
        'h' => 1,
        'd' => 24,
        'w' => 24 * 7,
        _ => return Err(error()),
    };
    let in_range = |count: &i64| (0..=100 * 366 * 24).contains(count);
    count.checked_mul(hours).filter(in_range).map(TimeDelta::hours).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spans() {
        assert_eq!(parse_span("12h"), Ok(TimeDelta::hours(12)));
        assert_eq!(parse_span("2w"), Ok(TimeDelta::days(14)));
        for bad in ["", "d", "-1d", "1", "1y", "1é", "9999999999999999999d", "9999999999999999d"] {
            assert!(parse_span(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn chains_stay_whole_and_nothing_else_stays(
            // For each backup: its volume, whether it is full, how many backups of its volume ago its parent
            // was.
            made in prop::collection::vec((0u8..3, any::<bool>(), 1usize..3), 0..30),
            last in 1usize..5,
            since in prop::option::of(0i64..40),
            now in 0i64..40,
        ) {
            let names: Vec<String> = (0..made.len()).map(|n| format!("n{n}")).collect();
            let time = |seconds: i64| DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds);
            let mut backups: Vec<Entry<'_>> = Vec::new();
            for (n, (volume, full, ago)) in made.iter().enumerate() {
                let volume = Uuid::from_u128(u128::from(*volume));
                let before: Vec<&str> =
                    backups.iter().filter(|it| it.volume == volume).map(|it| it.name).collect();
                let parent = before.len().checked_sub(*ago).filter(|_| !full).map(|at| before[at]);
                backups.push(Entry { name: &names[n], parent, volume, taken: time(n as i64) });
            }
            let since = since.map(time);
            let now = time(now);
            let kept = kept(&backups, last, since, now);
            let wanted = |backup: &Entry<'_>| {
                let others = backups.iter().filter(|it| it.volume == backup.volume && it.taken <= now);
                let newer = others.filter(|it| it.taken > backup.taken);
                newer.count() < last || since.is_some_and(|since| backup.taken >= since)
            };
            for backup in &backups {
                if wanted(backup) {
                    prop_assert!(kept.contains(backup.name), "{} is kept", backup.name);
                }
                if kept.contains(backup.name) {
                    let children = backups.iter().filter(|it| it.parent == Some(backup.name));
                    let needed = children.into_iter().any(|child| kept.contains(child.name));
                    prop_assert!(wanted(backup) || needed, "{} is kept for nothing", backup.name);
                    if let Some(parent) = backup.parent {
                        prop_assert!(kept.contains(parent), "{} lost {parent}", backup.name);
                    }
                }
            }
        }
    }
}
