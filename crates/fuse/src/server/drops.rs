//! Requests that are answered when the kernel has dropped its pages of a file: writes beside pages that it
//! keeps (`cache=auto`), the first open for writing of such a file, and ends of groups.
//!
//! The kernel waits for READs of a page that it is to drop. So a pool of its own does this: the threads that
//! answer such READs, and those that take requests, never wait here. Neighbours:
//! [`crate::operations::kept`] says when; [`super::groups`] ends groups.

use quire_base::sync::Arc;

use super::Server;
use super::meters::Received;
use crate::errno::NOT_CONNECTED;
use crate::transport::{Exchange, Outcome};

impl Server {
    /// Performs a request that changes what pages show, and answers it when none shows the old state.
    pub(super) fn change_pages<E: Exchange>(self: &Arc<Server>, mut exchange: Received<E>) {
        if self.is_refusing() {
            return exchange.reply(Err(NOT_CONNECTED));
        }
        let outcome = self.answer(&mut exchange);
        self.reply_without_pages(exchange, outcome);
    }

    pub(super) fn change_pages_later<E: Exchange>(self: &Arc<Server>, exchange: Received<E>) {
        self.on_the_pool(exchange, |server, exchange| server.change_pages(exchange));
    }

    /// Has the kernel drop all pages of the request's node, then answers.
    pub(super) fn reply_without_pages<E: Exchange>(
        self: &Arc<Server>,
        exchange: Received<E>,
        outcome: Outcome,
    ) {
        let node = exchange.request().header.nodeid;
        let server = self.clone();
        self.drops.spawn(move || {
            server.operations().drop_pages(node, || {
                server.notifier.get().into_iter().for_each(|notifier| notifier.contents_changed(node));
            });
            exchange.reply(outcome);
        });
    }
}
