//! Counts the connections, pages or threads that clients hold at a time, in total and per client.
//!
//! This file must not depend on what it counts.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

/// Counts in total and per client: its address (as `address::client_prefix` returns it), or what
/// else it is known by.
pub struct ClientCounts<C = IpAddr> {
    total: u64,
    by_client: HashMap<C, u64>,
}

impl<C> Default for ClientCounts<C> {
    fn default() -> Self {
        Self {
            total: 0,
            by_client: HashMap::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExceededLimit {
    Address,
    Total,
}

impl<C: Eq + Hash> ClientCounts<C> {
    /// Counts one more for `client`, unless a limit forbids that. A limit of 0 means no limit.
    ///
    /// # Errors
    /// Returns the limit that would be exceeded. If both would be, returns the limit per address.
    pub fn enter(&mut self, client: C, per_address: u64, total: u64) -> Result<(), ExceededLimit> {
        if per_address > 0 && self.count_for(&client) >= per_address {
            return Err(ExceededLimit::Address);
        }
        if total > 0 && self.total >= total {
            return Err(ExceededLimit::Total);
        }
        let count = self.by_client.entry(client).or_default();
        *count = count.saturating_add(1);
        self.total = self.total.saturating_add(1);
        Ok(())
    }

    pub fn leave(&mut self, client: &C) {
        self.total = self.total.saturating_sub(1);
        if let Some(count) = self.by_client.get_mut(client) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.by_client.remove(client);
            }
        }
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn count_for(&self, client: &C) -> u64 {
        self.by_client.get(client).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_and_all_together_are_counted_to_their_limits_and_forgotten() {
        let [one, other] = [1, 2];
        let mut counts = ClientCounts::default();
        assert_eq!(counts.enter(one, 2, 3), Ok(()));
        assert_eq!(counts.enter(one, 2, 3), Ok(()));
        assert_eq!(counts.enter(one, 2, 3), Err(ExceededLimit::Address));
        assert_eq!(counts.enter(other, 2, 3), Ok(()));
        assert_eq!(counts.enter(other, 2, 3), Err(ExceededLimit::Total));
        counts.leave(&one);
        assert_eq!(counts.enter(other, 2, 3), Ok(()));
        assert_eq!(counts.enter(other, 0, 0), Ok(()), "0 is no limit");
        (0..3).for_each(|_| counts.leave(&other));
        counts.leave(&one);
        assert_eq!((counts.total, counts.by_client.len()), (0, 0));
    }
}
