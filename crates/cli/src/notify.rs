//! Telling the service manager that a server in the foreground serves: systemd's protocol for services of
//! type `notify`, one datagram to the socket that `NOTIFY_SOCKET` names, in the file system or, after an `@`,
//! in the abstract name space.
//!
//! Neighbours: the unit `packaging/debian/quire@.service`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Says that the mount is usable, if somebody wants to know.
pub fn ready() {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return };
    if let Err(error) = send(&socket, b"READY=1") {
        // The mount works; the manager will say that it was not told.
        tracing::warn!("telling {} that the mount is usable: {error}", socket.display());
    }
}

fn send(socket: &OsStr, message: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receives(socket: &UnixDatagram, name: &OsStr) {
        send(name, b"READY=1").unwrap();
        let mut message = [0; 64];
        let count = socket.recv(&mut message).unwrap();
        assert_eq!(&message[..count], b"READY=1");
    }

    #[test]
    fn sockets_of_both_kinds_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        receives(&UnixDatagram::bind(&path).unwrap(), path.as_os_str());
        let name = format!("quire-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        receives(&UnixDatagram::bind_addr(&address).unwrap(), OsStr::new(&format!("@{name}")));
        assert!(send(OsStr::new("/none/of/these"), b"").is_err());
    }
}
