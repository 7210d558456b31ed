//! What the clients of a server were told: the number of the last acknowledged transaction of each.
//!
//! Each client numbers its transactions from 1, and a row with client and number is part of each. After a
//! recovery a client's rows are 1 to some `n` without a gap, and `n` is the last acknowledged number or the
//! one after it, whose answer the cut swallowed.
//!
//! Neighbours: [`crate::postgres`] and [`crate::mariadb`] compare what they find.

use crate::failure::{Failure, Outcome};

/// What a recovered database has of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The client.
    pub client: usize,
    /// Its rows.
    pub count: u64,
    /// The smallest number among them.
    pub least: u64,
    /// The largest.
    pub most: u64,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// By client: the last number that was acknowledged, or that a recovered database had.
    known: Vec<u64>,
    lost: u64,
}

impl Ledger {
    /// Nothing is acknowledged to any of `clients` clients.
    pub fn new(clients: usize) -> Ledger {
        Ledger { known: vec![0; clients], lost: 0 }
    }

    /// The last number of each client.
    pub fn known(&self) -> &[u64] {
        &self.known
    }

    /// Acknowledged transactions that were not found.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The database was made anew: it has no transaction.
    pub fn clear(&mut self) {
        self.known.fill(0);
    }

    /// Takes the last number that each client was told. Gives how many are new.
    pub fn acknowledge(&mut self, numbers: &[u64]) -> u64 {
        let mut fresh = 0;
        for (known, number) in self.known.iter_mut().zip(numbers) {
            fresh += number.saturating_sub(*known);
            *known = (*number).max(*known);
        }
        fresh
    }

    /// Compares with what a recovered database has, and goes on from there.
    pub fn compare(&mut self, found: &[Found]) -> Outcome {
        let mut lost = Vec::new();
        for (client, known) in self.known.iter_mut().enumerate() {
            let none = Found { client, count: 0, least: 1, most: 0 };
            let Found { count, least, most, .. } =
                found.iter().find(|found| found.client == client).copied().unwrap_or(none);
            if count < *known {
                self.lost += *known - count;
                lost.push(format!("client {client} has {count} transactions, {known} were acknowledged"));
            } else if (least, most) != (1, count) {
                return Err(Failure::Broken(format!(
                    "client {client} has {count} transactions, numbered {least} to {most}"
                )));
            } else if count > *known + 1 {
                return Err(Failure::Broken(format!(
                    "client {client} has {count} transactions, only {} were ever committed",
                    *known + 1
                )));
            }
            *known = count;
        }
        if lost.is_empty() { Ok(()) } else { Err(Failure::Broken(format!("LOST: {}", lost.join("; ")))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_transaction_is_lost_and_a_gap_is_seen() {
        let ledger = || {
            let mut ledger = Ledger::new(3);
            assert_eq!(ledger.acknowledge(&[0, 0, 9]), 9);
            ledger
        };
        let found = |count, least, most| [Found { client: 2, count, least, most }];
        let mut short = ledger();
        assert!(matches!(short.compare(&found(8, 1, 8)), Err(Failure::Broken(_))));
        assert_eq!(short.lost(), 1);
        let is_good = |count, least, most| ledger().compare(&found(count, least, most)).is_ok();
        assert!(is_good(9, 1, 9) && is_good(10, 1, 10));
        assert!(!is_good(9, 1, 10) && !is_good(11, 1, 11));
        assert!(ledger().compare(&[]).is_err());
    }
}
