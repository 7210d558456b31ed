//! Properties as extended attributes.
//!
//! They are shown only where they are set. Setting one to what it is without, and removing it, are the
//! same.
//!
//! Neighbours: [`crate::xattr`], [`super`].

use quire_base::{Error, Result};
use quire_format::properties::Properties;

/// What all names of properties begin with.
const FAMILY: &[u8] = b"user.quire.";

/// A property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Property {
    Untorn,
    Cache,
}

impl Property {
    /// Every property.
    pub(crate) const ALL: [Property; 2] = [Property::Untorn, Property::Cache];

    /// Its attribute's name.
    pub(crate) fn name(self) -> &'static [u8] {
        match self {
            Property::Untorn => b"user.quire.untorn",
            Property::Cache => b"user.quire.cache",
        }
    }

    /// The property of an attribute's name.
    pub(crate) fn of(name: &[u8]) -> Option<Property> {
        Property::ALL.into_iter().find(|property| property.name() == name)
    }

    /// The attribute's value; `None` if it is not set.
    pub(crate) fn value(self, properties: Properties) -> Option<Vec<u8>> {
        match self {
            Property::Untorn => properties.untorn.map(|unit| unit.to_string().into_bytes()),
            Property::Cache => properties.cache_drop.then(|| b"drop".to_vec()),
        }
    }

    /// Properties with this one set to a value, or not set. Kind `Invalid` for a value that it cannot
    /// have.
    pub(crate) fn put(self, properties: Properties, value: Option<&[u8]>) -> Result<Properties> {
        let text = value.map(|value| String::from_utf8_lossy(value.trim_ascii_end()));
        match (self, text.as_deref()) {
            (Property::Untorn, None | Some("off")) => Ok(Properties { untorn: None, ..properties }),
            (Property::Untorn, Some(unit)) => Ok(Properties { untorn: Some(unit.parse()?), ..properties }),
            (Property::Cache, None | Some("keep")) => Ok(Properties { cache_drop: false, ..properties }),
            (Property::Cache, Some("drop")) => Ok(Properties { cache_drop: true, ..properties }),
            (Property::Cache, Some(other)) => {
                Err(Error::invalid(format!("cache={other}: it is keep or drop")))
            }
        }
    }
}

/// An error if a name that may be set is of the family, but no property's.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if !name.starts_with(FAMILY) || Property::of(name).is_some() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "attribute {:?}: names that begin with user.quire. are properties, and there are untorn and cache",
        String::from_utf8_lossy(name)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_base::ErrorKind;

    #[test]
    fn attributes_and_properties() {
        let none = Properties::default();
        let some = Property::Untorn.put(none, Some(b"8K\n")).unwrap();
        assert_eq!(some.untorn.unwrap().bytes(), 8192);
        assert_eq!(Property::Untorn.value(some).unwrap(), b"8k");
        assert_eq!(Property::Untorn.put(some, Some(b"off")).unwrap(), none);
        assert_eq!(Property::Untorn.put(some, None).unwrap(), none);
        let all = Property::Cache.put(some, Some(b"drop")).unwrap();
        assert!(all.cache_drop && all.untorn == some.untorn);
        assert_eq!(Property::Cache.value(all).unwrap(), b"drop");
        assert_eq!(Property::Cache.put(all, Some(b"keep")).unwrap(), some);
        for (property, text) in [
            (Property::Untorn, "on"),
            (Property::Untorn, ""),
            (Property::Untorn, "3k"),
            (Property::Cache, "off"),
        ] {
            assert_eq!(
                property.put(all, Some(text.as_bytes())).unwrap_err().kind(),
                ErrorKind::Invalid,
                "{text}"
            );
        }
        assert!(check_name(b"user.other").is_ok());
        assert!(check_name(b"user.quire.untorn").is_ok());
        assert!(check_name(b"user.quire.torn").is_err());
    }
}
