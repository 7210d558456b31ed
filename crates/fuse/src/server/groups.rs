//! The end of a group: COMMIT, ABORT, or RELEASE of a handle that has one.
//!
//! What the kernel keeps of the file may then be wrong: its attributes, above all the size, and pages, if it
//! has any. It is told before the request is answered, so a program whose COMMIT has returned sees the file
//! as it is, through whatever descriptor or mapping.
//!
//! The kernel waits for READs of a page that it is to drop. So this is done by a thread that nobody else
//! waits for: the pool's threads, which answer such READs, are never all held here. Attributes are dropped
//! without waiting, in place. Neighbour: [`crate::operations::group`].

use quire_base::sync::{Arc, Mutex, thread};

use super::Server;
use super::meters::Received;
use crate::errno::NOT_CONNECTED;
use crate::transport::Exchange;

impl Server {
    pub(super) fn end_group_later<E: Exchange>(self: &Arc<Server>, exchange: Received<E>) {
        self.on_the_pool(exchange, |server, exchange| server.end_group(exchange));
    }

    /// Ends a group, tells the kernel, answers.
    pub(super) fn end_group<E: Exchange>(self: &Arc<Server>, mut exchange: Received<E>) {
        if self.is_refusing() {
            return exchange.reply(Err(NOT_CONNECTED));
        }
        let node = exchange.request().header.nodeid;
        let outcome = self.answer(&mut exchange);
        let Some(notifier) = self.notifier.get() else { return exchange.reply(outcome) };
        if !self.operations().has_pages(node) {
            notifier.attributes_changed(node);
            return exchange.reply(outcome);
        }
        // Shared, so that the answer is not lost with a thread that cannot be started.
        let answer = Arc::new(Mutex::new(Some((exchange, outcome))));
        let (server, later) = (self.clone(), answer.clone());
        let body = move || {
            server.notifier.get().into_iter().for_each(|notifier| notifier.contents_changed(node));
            reply(&later);
        };
        if let Err(error) = thread::Builder::new().name("quire-notify".into()).spawn(body) {
            tracing::warn!("no thread tells the kernel of changed pages of inode {node}: {error}");
            notifier.contents_changed(node);
            reply(&answer);
        }
    }
}

fn reply<E: Exchange>(answer: &Mutex<Option<(E, crate::transport::Outcome)>>) {
    let taken = answer.lock().take();
    if let Some((exchange, outcome)) = taken {
        exchange.reply(outcome);
    }
}
