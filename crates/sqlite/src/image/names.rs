//! The full path of a file in a volume: `quire://IMAGE//PATH`.

use std::ffi::CStr;
use std::path::Path;

const SCHEME: &str = "quire://";

/// Whether a full path leads into a volume.
pub(crate) fn is_in_image(name: &CStr) -> bool {
    name.to_bytes().starts_with(SCHEME.as_bytes())
}

/// Image and path of a full path.
pub(crate) fn split(name: &CStr) -> Result<(&str, &str), String> {
    let text = name.to_str().map_err(|_| "the name is not UTF-8")?;
    let rest = text.strip_prefix(SCHEME).ok_or("no file in a volume")?;
    // The last two slashes: an address of a network block device has some of its own.
    let slashes = rest.as_bytes().windows(2).rposition(|two| two == b"//");
    let slashes = slashes.ok_or("no path in the volume: quire://IMAGE//PATH")?;
    Ok((&rest[..slashes], &rest[slashes + 1..]))
}

/// The full path of what `path` leads to in the volume `image`. A relative path begins at the volume's root.
pub(super) fn full_path(image: &str, path: &CStr) -> Result<String, String> {
    joined(image, path.to_str().map_err(|_| "the name is not UTF-8")?)
}

/// As [`full_path`]. One volume has one full path, however it is named.
pub(super) fn joined(image: &str, path: &str) -> Result<String, String> {
    if image.is_empty() {
        return Err("image= names no volume".into());
    }
    let mut inside: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(inside.pop()),
            part => inside.push(part),
        }
    }
    if inside.is_empty() {
        return Err("no path in the volume".into());
    }
    Ok(format!("{SCHEME}{}//{}", absolute(image)?, inside.join("/")))
}

/// An image's canonical path; an address as it is.
fn absolute(image: &str) -> Result<String, String> {
    if image.contains("://") {
        return Ok(image.to_owned());
    }
    let told = |error: std::io::Error| format!("{image}: {error}");
    let path = Path::new(image);
    let found = match path.canonicalize() {
        // It is to be made (`image_size=`), perhaps.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let name = path.file_name().ok_or_else(|| told(error))?;
            parent.unwrap_or(Path::new(".")).canonicalize().map_err(told)?.join(name)
        }
        found => found.map_err(told)?,
    };
    found.into_os_string().into_string().map_err(|_| format!("{image}: the path is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn a_full_path_splits_into_what_it_was_made_of() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let image = folder.join("data.img");
        let image = image.to_str().unwrap();
        for (path, inside) in [("a.db", "/a.db"), ("/x//y/../a.db", "/x/a.db"), ("../../a.db", "/a.db")] {
            let full = CString::new(joined(image, path).unwrap()).unwrap();
            assert!(is_in_image(&full));
            assert_eq!(split(&full).unwrap(), (image, inside));
            // A full path is its own full path.
            let (again, inside) = split(&full).unwrap();
            assert_eq!(joined(again, inside).unwrap().as_bytes(), full.as_bytes());
        }
        let address = "nbd+unix:///export?socket=/run/nbd.sock";
        let full = CString::new(joined(address, "a.db-journal").unwrap()).unwrap();
        assert_eq!(split(&full).unwrap(), (address, "/a.db-journal"));
    }

    #[test]
    fn names_that_lead_nowhere_are_refused() {
        assert!(joined("", "a.db").is_err());
        assert!(joined("/tmp/data.img", "/").is_err());
        assert!(joined("/no/such/place/data.img", "a.db").is_err());
        assert!(split(c"quire:///data.img").is_err());
        assert!(!is_in_image(c"/data.img"));
    }
}
