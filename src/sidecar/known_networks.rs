//! Remembers the networks from which an account's password was right before. These networks have
//! their own share of the limits on attempts.
//!
//! Thus attempts from other networks cannot lock the account holder out. The table is bounded and
//! lives in this process. This file must not see a password.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// Maximum number of e-mails in the table, and of networks per e-mail. At the limit, the entry
/// whose last success is the oldest is evicted.
const MAX_EMAILS: usize = 10_000;
const MAX_NETWORKS: usize = 8;

#[derive(Default)]
pub struct KnownNetworks {
    /// Maps an e-mail to its networks with the time of the last success in ms; the newest is last.
    networks: Mutex<HashMap<String, Vec<(IpAddr, i64)>>>,
}

impl KnownNetworks {
    pub fn contains(&self, email: &str, network: IpAddr) -> bool {
        let networks = self.networks.lock().unwrap_or_else(PoisonError::into_inner);
        networks
            .get(email)
            .is_some_and(|known| known.iter().any(|(known, _)| *known == network))
    }

    pub fn record_success(&self, email: &str, network: IpAddr, now_ms: i64) {
        let mut networks = self.networks.lock().unwrap_or_else(PoisonError::into_inner);
        if networks.len() >= MAX_EMAILS
            && !networks.contains_key(email)
            && let Some(oldest) = networks
                .iter()
                .min_by_key(|(_, known)| known.last().map(|(_, at_ms)| *at_ms))
                .map(|(email, _)| email.clone())
        {
            networks.remove(&oldest);
        }
        let known = networks.entry(email.to_owned()).or_default();
        known.retain(|(known, _)| *known != network);
        if known.len() >= MAX_NETWORKS {
            known.remove(0);
        }
        known.push((network, now_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(index: usize) -> IpAddr {
        format!("192.0.2.{index}").parse().unwrap()
    }

    #[test]
    fn the_networks_of_an_e_mail_and_the_e_mails_have_limits() {
        let known = KnownNetworks::default();
        assert!(!known.contains("a", network(0)));
        for index in 0..MAX_NETWORKS {
            known.record_success("a", network(index), 1);
        }
        known.record_success("a", network(0), 2);
        known.record_success("a", network(MAX_NETWORKS), 3);
        let has = |index| known.contains("a", network(index));
        assert!(has(0) && !has(1) && has(2) && has(MAX_NETWORKS));
        assert!(!known.contains("b", network(0)));
        for index in 0..MAX_EMAILS {
            let at_ms = 4 + i64::try_from(index).unwrap();
            known.record_success(&format!("x{index}"), network(1), at_ms);
        }
        assert_eq!(known.networks.lock().unwrap().len(), MAX_EMAILS);
        assert!(!has(0) && known.contains("x0", network(1)));
    }
}
