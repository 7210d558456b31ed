//! Addresses of NBD exports, where a volume's path is expected.
//!
//! `nbd://HOST:PORT/EXPORT`, `nbds://` (TLS), `nbd+unix:///EXPORT?socket=PATH`, `nbds+unix://`. libnbd reads
//! them; this module only tells them from paths, and takes out the parameters that are Quire's:
//!
//! | parameter | meaning | if absent |
//! | --- | --- | --- |
//! | `reconnect=SECONDS` | after a broken connection, try for so long to make another | the first break is the end |
//! | `answer=SECONDS` | requests wait and nothing is answered for so long: the connection breaks | 60 |
//! | `connections=COUNT` | make so many at most, if the server can serve several at a time, 1 to 16 | 4; 1 with `reconnect` |
//! | `takeover` | open the volume whatever its owner's mark says | an owner that may live is respected |

use quire_base::sync::time::Duration;
use quire_base::{Error, Result};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const SCHEMES: [&str; 4] = ["nbd://", "nbds://", "nbd+unix://", "nbds+unix://"];
/// Longest time that a parameter may give: a day.
const SECONDS_MAX: u64 = 86_400;
/// Most connections that an address may ask for.
const CONNECTIONS_MAX: usize = 16;
const CONNECTIONS_DEFAULT: usize = 4;
const ANSWER_DEFAULT: Duration = Duration::from_secs(60);

/// An address of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdAddress {
    text: String,
    uri: String,
    /// How long a reconnection may take; `None`: there is none.
    pub reconnect: Option<Duration>,
    /// How long nothing may be answered while something waits.
    pub answer: Duration,
    /// Connections at most.
    pub connections: usize,
    /// Whether the owner's mark is not respected.
    pub takes_over: bool,
}

impl NbdAddress {
    /// Whether the name of a volume is an address, not a path.
    pub fn is_one(volume: &Path) -> bool {
        let bytes = volume.as_os_str().as_bytes();
        SCHEMES.iter().any(|scheme| bytes.starts_with(scheme.as_bytes()))
    }

    /// The address that names a volume; `None` if it is a path.
    pub fn of(volume: &Path) -> Option<Result<NbdAddress>> {
        NbdAddress::is_one(volume).then(|| {
            let text = volume
                .to_str()
                .ok_or_else(|| Error::invalid(format!("the address {} is not UTF-8", volume.display())))?;
            NbdAddress::parse(text)
        })
    }

    /// The name of a volume with the word that it is to be taken over. Errors: `Invalid` for a path.
    pub fn taking_over(volume: &Path) -> Result<PathBuf> {
        let Some(address) = NbdAddress::of(volume).transpose()? else {
            return Err(Error::invalid(format!(
                "{} cannot be taken over: it is no address, and the lock of a file or block device ends with its owner",
                volume.display()
            )));
        };
        let text = address.text;
        Ok(format!("{text}{}takeover", if text.contains('?') { '&' } else { '?' }).into())
    }

    fn parse(text: &str) -> Result<NbdAddress> {
        let bad = |what: String| Error::invalid(format!("the address {text}: {what}"));
        if text.contains(['\0', '#', ' ']) {
            return Err(bad("has a character that an address cannot have; write it as %XX".into()));
        }
        let (place, query) = text.split_once('?').unwrap_or((text, ""));
        let (mut reconnect, mut answer, mut takes_over) = (None, ANSWER_DEFAULT, false);
        let mut connections = None;
        let (mut others, mut socket) = (Vec::new(), None);
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let seconds = || match value.parse() {
                Ok(seconds) if (1..=SECONDS_MAX).contains(&seconds) => Ok(Duration::from_secs(seconds)),
                _ => Err(bad(format!("{name}={value} is not a number of seconds from 1 to {SECONDS_MAX}"))),
            };
            match name {
                "reconnect" => reconnect = Some(seconds()?),
                "answer" => answer = seconds()?,
                "connections" => match value.parse() {
                    Ok(count) if (1..=CONNECTIONS_MAX).contains(&count) => connections = Some(count),
                    _ => {
                        return Err(bad(format!(
                            "{name}={value} is not a number from 1 to {CONNECTIONS_MAX}"
                        )));
                    }
                },
                "takeover" if value.is_empty() => takes_over = true,
                "takeover" => return Err(bad(format!("takeover={value}: takeover has no value"))),
                _ => others.push(parameter),
            }
            if name == "socket" {
                socket = Some(value);
            }
        }
        if place.starts_with("nbd+unix://") || place.starts_with("nbds+unix://") {
            // A server in the background works in another directory.
            let is_absolute =
                |path: &str| path.starts_with('/') || path.to_ascii_lowercase().starts_with("%2f");
            if !socket.is_some_and(is_absolute) {
                return Err(bad("needs socket=PATH, an absolute path".into()));
            }
        } else if place.split_once("://").is_none_or(|(_, rest)| rest.is_empty() || rest.starts_with('/')) {
            return Err(bad("names no host".into()));
        }
        // A server that serves one at a time ends the requests of a broken one before it serves the next.
        // With several, those of one may still be under way when another has been made anew.
        let connections = connections.unwrap_or(if reconnect.is_some() { 1 } else { CONNECTIONS_DEFAULT });
        let uri = if others.is_empty() { place.into() } else { format!("{place}?{}", others.join("&")) };
        Ok(NbdAddress { text: text.into(), uri, reconnect, answer, connections, takes_over })
    }

    /// As it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What libnbd is given.
    pub fn uri(&self) -> &str {
        &self.uri
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<NbdAddress> {
        NbdAddress::of(Path::new(text)).expect("an address")
    }

    #[test]
    fn addresses_and_paths() {
        for path in ["data.img", "/dev/nbd0", "nbd:host", "./nbd://x", "NBD://x/", "http://x"] {
            assert!(NbdAddress::of(Path::new(path)).is_none(), "{path}");
        }
        let plain = parse("nbd://host:10809/data").unwrap();
        assert_eq!((plain.uri(), plain.reconnect), ("nbd://host:10809/data", None));
        assert_eq!((plain.text(), plain.answer), ("nbd://host:10809/data", ANSWER_DEFAULT));
        let all =
            parse("nbds+unix:///e?reconnect=30&socket=/run/s&answer=5&tls-certificates=/x&connections=2")
                .unwrap();
        assert_eq!(all.uri(), "nbds+unix:///e?socket=/run/s&tls-certificates=/x");
        assert_eq!((all.connections, plain.connections), (2, CONNECTIONS_DEFAULT));
        assert_eq!(parse("nbd://h/?reconnect=1").unwrap().connections, 1);
        assert_eq!((all.reconnect, all.answer), (Some(Duration::from_secs(30)), Duration::from_secs(5)));
        assert_eq!(parse("nbd+unix://?socket=%2Frun%2Fs").unwrap().uri(), "nbd+unix://?socket=%2Frun%2Fs");
        let over = NbdAddress::taking_over(Path::new("nbd://h/e?answer=5")).unwrap();
        assert_eq!(over, Path::new("nbd://h/e?answer=5&takeover"));
        let over = NbdAddress::of(&over).unwrap().unwrap();
        assert_eq!((over.uri(), over.takes_over, plain.takes_over), ("nbd://h/e", true, false));
        assert_eq!(NbdAddress::taking_over(Path::new("nbd://h")).unwrap(), Path::new("nbd://h?takeover"));
        assert!(NbdAddress::taking_over(Path::new("/dev/vdb")).is_err());
        assert_eq!(parse("nbd://[::1]/?reconnect=1").unwrap().uri(), "nbd://[::1]/");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_address() {
        for text in [
            "nbd://",
            "nbd:///export",
            "nbd+unix:///export",
            "nbd+unix:///export?socket=relative",
            "nbd://h/?reconnect=0",
            "nbd://h/?reconnect=-1",
            "nbd://h/?reconnect",
            "nbd://h/?reconnect=99999999999999999999",
            "nbd://h/?answer=soon",
            "nbd://h/?connections=0",
            "nbd://h/?connections=17",
            "nbd://h/?takeover=yes",
            "nbd://h/a b",
            "nbd://h/#x",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.to_string().starts_with(&format!("the address {text}: ")), "{error}");
        }
    }
}
