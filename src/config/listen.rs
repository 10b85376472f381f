//! The section `listen`: the addresses of the listeners and the trusted proxies.
//!
//! Must not open a socket.

use super::validator::ConfigValidator;
use crate::address::{Network, TrustedProxies};
use std::net::SocketAddr;

/// Maximum number of trusted proxies or networks: each request is compared with all of them.
const MAX_PROXIES: usize = 256;

impl ConfigValidator {
    pub(super) fn parse_address(&mut self, key: &str, text: &str) -> Option<SocketAddr> {
        match text.parse::<SocketAddr>() {
            Ok(address) if address.port() != 0 => Some(address),
            Ok(_) => {
                self.add_fault(
                    key,
                    "must have a port other than 0, which clients can connect to",
                );
                None
            }
            Err(_) => {
                self.add_fault(key, format!("not an ip:port address: {text:?}"));
                None
            }
        }
    }

    pub(super) fn parse_proxies(&mut self, listed: &[String]) -> TrustedProxies {
        if listed.len() > MAX_PROXIES {
            self.add_fault(
                "listen.trust_proxy",
                format!(
                    "has {} entries; at most {MAX_PROXIES} are allowed",
                    listed.len()
                ),
            );
        }
        let mut proxies = Vec::new();
        for (index, text) in listed.iter().enumerate() {
            let key = format!("listen.trust_proxy[{index}]");
            match text.parse::<Network>() {
                Ok(network) if network.covers_all() => {
                    self.add_fault(
                        key,
                        "covers every address, so any client could claim any address: list only your proxies",
                    );
                }
                Ok(network) => proxies.push(network),
                Err(error) => self.add_fault(key, format!("{error}: {text:?}")),
            }
        }
        proxies.into_iter().collect()
    }
}
