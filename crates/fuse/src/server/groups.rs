//! The end of a group: COMMIT, ABORT, or RELEASE of a handle that has one.
//!
//! What the kernel keeps of the file may then be wrong: its attributes, above all the size, and pages, if it
//! has any. It is told before the request is answered, so a program whose COMMIT has returned sees the file
//! as it is, through whatever descriptor or mapping.
//!
//! Attributes are dropped without waiting, in place; pages by threads that nobody else waits for
//! ([`super::drops`]). Neighbour: [`crate::operations::group`].

use quire_base::sync::Arc;

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
        self.reply_without_pages(exchange, outcome);
    }
}
