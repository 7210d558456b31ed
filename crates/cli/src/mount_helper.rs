//! The grammar of mount(8)'s helpers: `mount.quire SOURCE DIR [-sfnv] [-N NS] [-o OPTS] [-t TYPE]`, and of
//! umount(8)'s: `umount.quire DIR [-flnrv] [-N NS] [-t TYPE]`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// What a mount helper was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HelperCall {
    /// Arguments that are no options, in order.
    pub operands: Vec<OsString>,
    /// The lists given with `-o`.
    pub options: Vec<String>,
    /// `-f` to a mount: check everything, mount nothing.
    pub fake: bool,
    /// `-f` to an unmount: cut a server off that hangs.
    pub force: bool,
    /// `-s` to a mount: ignore unknown options instead of failing.
    pub sloppy: bool,
    /// `-v`.
    pub verbose: bool,
    /// `-l` to an unmount: detach now, finish when the last user leaves.
    pub lazy: bool,
}

/// Parses a helper's arguments, without the program's name.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<HelperCall, String> {
    let mut call = HelperCall::default();
    let mut arguments = arguments.into_iter();
    let mut only_operands = false;
    while let Some(argument) = arguments.next() {
        let bytes = argument.as_bytes();
        if only_operands || bytes.len() < 2 || bytes[0] != b'-' {
            call.operands.push(argument);
            continue;
        }
        if bytes == b"--" {
            only_operands = true;
            continue;
        }
        let mut letters = bytes[1..].iter();
        while let Some(&letter) = letters.next() {
            match letter {
                b's' => call.sloppy = true,
                b'f' => (call.fake, call.force) = (true, true),
                b'v' => call.verbose = true,
                b'l' => call.lazy = true,
                // No mount table of our own is kept; a failed unmount is not turned into a read-only mount.
                b'n' | b'r' => {}
                b'o' | b't' | b'N' => {
                    let attached: Vec<u8> = letters.by_ref().copied().collect();
                    let value = if attached.is_empty() {
                        arguments
                            .next()
                            .ok_or_else(|| format!("option -{} needs a value", char::from(letter)))?
                    } else {
                        OsString::from_vec(attached)
                    };
                    if letter == b'o' {
                        let text = value
                            .into_string()
                            .map_err(|value| format!("mount options {value:?} are not valid UTF-8"))?;
                        call.options.push(text);
                    }
                }
                other => return Err(format!("unknown option -{}", char::from(other))),
            }
        }
    }
    Ok(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(arguments: &[&str]) -> Result<HelperCall, String> {
        parse(arguments.iter().map(OsString::from))
    }

    #[test]
    fn as_mount_calls_it() {
        let got = call(&["/a.img", "/mnt", "-n", "-v", "-o", "rw,noatime", "-t", "fuse.quire"]).unwrap();
        assert_eq!(got.operands, ["/a.img", "/mnt"]);
        assert_eq!(got.options, ["rw,noatime"]);
        assert!(got.verbose && !got.fake && !got.sloppy);
        let got = call(&["-sfnv", "/a.img", "-orw", "/mnt"]).unwrap();
        assert_eq!(got.operands, ["/a.img", "/mnt"]);
        assert_eq!(got.options, ["rw"]);
        assert!(got.fake && got.sloppy);
        assert_eq!(call(&["--", "-odd", "/mnt"]).unwrap().operands, ["-odd", "/mnt"]);
    }

    #[test]
    fn mistakes() {
        assert!(call(&["a", "b", "-o"]).unwrap_err().contains("-o needs"));
        assert!(call(&["a", "b", "-z"]).unwrap_err().contains("-z"));
    }
}
