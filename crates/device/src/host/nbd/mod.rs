//! Devices that a server exports by NBD, the network block device protocol.
//!
//! * `address`: [`NbdAddress`], how such a device is named.
//! * `library`: libnbd, which speaks the protocol (TLS included), loaded when it is first needed.
//! * `handle`: a connection: made, and asked what the export is.
//! * `session`: its requests and answers.
//!
//! One connection carries everything, with up to 256 requests at a time. Writes are made durable by flushes;
//! FUA would make each write wait for the medium, which the engine never wants of a single one.
//!
//! Neighbours: [`crate::reconnecting`] above keeps what a lost connection may take.

mod address;
mod handle;
mod library;
mod session;

pub use address::NbdAddress;

use super::open::OpenMode;
use crate::backend::Backend;
use crate::reconnecting::{Connector, Properties, ReconnectingBackend, Session};
use handle::{Export, Handle};
use quire_base::sync::time::{Duration, Instant};
use quire_base::sync::{Arc, thread};
use quire_base::{BLOCK_SIZE, Error, ErrorKind, Result};
use session::NbdSession;

/// How long the first connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);
/// How long a server that turns it away is asked again.
const SETTLE_LIMIT: Duration = Duration::from_secs(1);

/// Opens the export that `address` names.
///
/// Errors: `Unsupported` without libnbd, or if the server offers no flush or takes no requests of 4096 bytes;
/// `ReadOnly` if the export is read-only and is to be written; otherwise what the connection met.
pub(super) fn open(address: NbdAddress, mode: OpenMode) -> Result<Arc<dyn Backend>> {
    let handle = connect(&address)?;
    let export = handle.export(address.text())?;
    if mode == OpenMode::ReadWrite {
        let refuse = |kind, text: &str| Err(Error::new(kind, format!("{}: {text}", address.text())));
        if export.is_read_only {
            return refuse(ErrorKind::ReadOnly, "the export is read-only");
        }
        if !export.can_flush {
            let text =
                "the server offers no flush, so nothing could be made durable; only reading is possible";
            return refuse(ErrorKind::Unsupported, text);
        }
    }
    let properties = Properties {
        name: address.text().into(),
        blocks: export.bytes / BLOCK_SIZE as u64,
        is_read_only: mode == OpenMode::ReadOnly,
        patience: address.reconnect,
    };
    let session = NbdSession::start(address.text(), handle, export, address.answer)?;
    let connector = NbdConnector { address, export };
    Ok(Arc::new(ReconnectingBackend::new(properties, Box::new(connector), Arc::new(session))?))
}

/// Makes a first connection. A server that admits one at a time may not yet have noticed that the last one is
/// over (a mount looks at the superblocks through one of its own): so it is asked for a second.
fn connect(address: &NbdAddress) -> Result<Handle> {
    let start = Instant::now();
    loop {
        match Handle::connect(address, CONNECT_LIMIT.min(address.answer)) {
            Err(error) if error.kind() == ErrorKind::Io && start.elapsed() < SETTLE_LIMIT => {
                thread::sleep(Duration::from_millis(50));
            }
            connected => return connected,
        }
    }
}

struct NbdConnector {
    address: NbdAddress,
    /// As it was at first. It may grow; otherwise another one is not the same device.
    export: Export,
}

impl Connector for NbdConnector {
    fn connect(&self, limit: Duration) -> Result<Arc<dyn Session>> {
        let name = self.address.text();
        let handle = Handle::connect(&self.address, limit.min(self.address.answer))?;
        let export = handle.export(name)?;
        if export.bytes < self.export.bytes || (self.export.can_flush && !export.can_flush) {
            return Err(Error::new(
                ErrorKind::Io,
                format!("{name} is another export than before ({export:?}, it was {:?})", self.export),
            ));
        }
        Ok(Arc::new(NbdSession::start(name, handle, export, self.address.answer)?))
    }
}
