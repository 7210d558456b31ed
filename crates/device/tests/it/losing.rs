//! An owner that loses its device while the connection is made again.

use quire_base::{Error, ErrorKind, Result};
use quire_device::reconnecting::ownership::is_open_here;
use quire_device::reconnecting::{Answered, Connector, Ownership, Properties, Request, Session};
use quire_device::{AlignedBuf, Backend, ReconnectingBackend};
use quire_format::owner::OwnerMark;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(20);
/// No other test has it.
const OWNER: u64 = 77;
const BLOCKS: u64 = 64;

fn wait_until(is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "it does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The first connection finds the mark gone, once, and breaks before the owner has heard of that. The next
/// ones find the mark, but none is made before the owner has.
struct Server {
    backend: Mutex<Option<Arc<ReconnectingBackend>>>,
    /// What the break, by looking at the size again, came to.
    grown: Mutex<Option<Result<()>>>,
    connections: AtomicU32,
    /// Connections that are refused behind the first.
    refusals: u32,
}

struct ToServer(Arc<Server>);

struct Connection {
    is_first: bool,
    server: Arc<Server>,
}

impl Connector for ToServer {
    fn connect(&self, _limit: Duration) -> Result<Arc<dyn Session>> {
        let made = self.0.connections.fetch_add(1, Ordering::SeqCst);
        if made > 0 {
            wait_until(|| !is_open_here(OWNER));
        }
        if (1..=self.0.refusals).contains(&made) {
            return Err(Error::new(ErrorKind::Io, "refused"));
        }
        Ok(Arc::new(Connection { is_first: made == 0, server: self.0.clone() }))
    }
}

impl Session for Connection {
    fn submit(&self, request: Request, answered: Answered) {
        let Request::Read { length, .. } = request else { return answered(Ok(None)) };
        let mut block = AlignedBuf::zeroed(length);
        if !self.is_first {
            block.copy_from_slice(&OwnerMark { owner: OWNER, ..OwnerMark::default() }.encode());
        }
        answered(Ok(Some(block)));
        if self.is_first {
            // On the owner's thread, which has its answer, and looks at it when this returns.
            let server = self.server.clone();
            std::thread::spawn(move || {
                wait_until(|| server.backend.lock().unwrap().is_some());
                let backend = server.backend.lock().unwrap().take().expect("it is there");
                let grown = backend.grow(BLOCKS);
                drop(backend);
                *server.grown.lock().unwrap() = Some(grown);
            });
            wait_until(|| self.server.connections.load(Ordering::SeqCst) > 1);
        }
    }

    fn blocks(&self) -> u64 {
        BLOCKS
    }

    fn close(&self) {}
}

/// An owner heard that its mark was gone just after its connection had broken for another reason. The next
/// connection was used all the same, until it was idle: then its thread ended, as that of the beat had told
/// it to, and later requests were answered by nobody. Where nothing waited, the owner heard that the
/// connection could not be made again.
#[test]
fn an_owner_that_loses_its_device_while_it_reconnects_lets_go() {
    for refusals in [0, 1] {
        let server = Server {
            backend: Mutex::default(),
            grown: Mutex::default(),
            connections: AtomicU32::new(0),
            refusals,
        };
        let server = Arc::new(server);
        let connector = ToServer(server.clone());
        let session = connector.connect(LIMIT).unwrap();
        let mark = OwnerMark { owner: OWNER, beat: 1, ..OwnerMark::default() };
        let written = quire_base::Uptime::now();
        let interval = Duration::from_millis(10);
        let properties = Properties {
            name: "server".into(),
            blocks: BLOCKS,
            is_read_only: false,
            patience: Some(LIMIT),
            ownership: Some(Ownership { mark, written, interval, sure: 2 * LIMIT }),
        };
        let backend = ReconnectingBackend::new(properties, Box::new(connector), session).unwrap();
        let backend = Arc::new(backend);
        *server.backend.lock().unwrap() = Some(backend.clone());
        wait_until(|| server.grown.lock().unwrap().is_some());
        let (sender, ended) = channel();
        std::thread::spawn(move || {
            let _ = sender.send(backend.flush());
            drop(backend);
            drop(sender);
        });
        let flushed = ended.recv_timeout(LIMIT).expect("an answer");
        for outcome in [flushed, server.grown.lock().unwrap().take().unwrap()] {
            let error = outcome.expect_err("the device is another's").to_string();
            assert!(error.contains("closed it again"), "{error}");
        }
        assert_eq!(ended.recv_timeout(LIMIT).unwrap_err(), RecvTimeoutError::Disconnected, "the end");
    }
}
