//! Reads the section `listen`: the addresses of the listeners and the trusted proxies.
//!
//! This file must not open a socket.

use super::raw;
use super::validator::NetworkSection;
use crate::address::{Network, TrustedProxies};
use http::uri::Authority;
use std::net::SocketAddr;
use std::sync::Arc;

/// A listener: its key and its address.
type Listener = (String, SocketAddr);

/// Maximum number of trusted proxies or networks. The number is bounded because each request is
/// compared with all of them.
const MAX_PROXIES: usize = 256;

impl NetworkSection<'_> {
    /// Checks that one machine can open all listeners at the same time. With a shared store,
    /// `sidecar` is the address of another process, on this machine or on another.
    pub(super) fn check_listeners(
        &mut self,
        edge: &[Option<SocketAddr>],
        [sidecar, admin]: [Option<SocketAddr>; 2],
        store: raw::StoreKind,
    ) {
        let edge = edge
            .iter()
            .enumerate()
            .map(|(index, address)| (format!("listen.edge[{index}]"), *address));
        let private = [("listen.sidecar", sidecar), ("listen.admin", admin)];
        let private = private.map(|(key, address)| (key.to_owned(), address));
        let mut before: Vec<Listener> = Vec::new();
        for (key, address) in edge.chain(private) {
            let Some(address) = address else { continue };
            let is_remote = |other: &str| {
                store == raw::StoreKind::Redis
                    && key == "listen.sidecar"
                    && other.starts_with("listen.edge")
            };
            let clash = before.iter().find(|(other_key, other)| {
                *other == address || (overlaps(*other, address) && !is_remote(other_key))
            });
            if let Some((other_key, other)) = clash {
                let message = if *other == address {
                    format!("{address} is listed twice: it is {other_key} too")
                } else {
                    format!(
                        "{address} is in use by {other_key}, which is {other}: set another port"
                    )
                };
                self.0.add_fault(key.as_str(), message);
            }
            before.push((key, address));
        }
    }

    /// Parses the names of the admin listener, which are host names without a port.
    pub(super) fn parse_admin_names(&mut self, names: &[String]) -> Arc<[String]> {
        for (index, name) in names.iter().enumerate() {
            let is_name = |authority: Authority| authority.host() == name;
            if !name.parse().is_ok_and(is_name) {
                self.0.add_fault(
                    format!("listen.admin_names[{index}]"),
                    format!(
                        "{name:?} is not a host name: write it alone, such as edge-1.example.com"
                    ),
                );
            }
        }
        names.into()
    }

    pub(super) fn parse_address(&mut self, key: &str, text: &str) -> Option<SocketAddr> {
        match text.parse::<SocketAddr>() {
            Ok(address) if address.port() != 0 => Some(address),
            Ok(_) => {
                self.0.add_fault(
                    key,
                    "must have a port other than 0, which clients can connect to",
                );
                None
            }
            Err(_) => {
                let message = format!(
                    "must be an IP address and a port, not {text:?}{}",
                    suggest_address(key, text)
                );
                self.0.add_fault(key, message);
                None
            }
        }
    }

    pub(super) fn parse_proxies(&mut self, listed: &[String]) -> TrustedProxies {
        if listed.len() > MAX_PROXIES {
            self.0.add_fault(
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
                    self.0.add_fault(
                        key,
                        "covers every address, so any client could claim any address: list only your proxies",
                    );
                }
                Ok(network) => proxies.push(network),
                Err(error) => self.0.add_fault(key, format!("{error}: {text:?}")),
            }
        }
        proxies.into_iter().collect()
    }
}

/// Returns whether two listeners cannot both be opened, because one of them listens on all
/// addresses of the family.
fn overlaps(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port()
        && one.is_ipv4() == other.is_ipv4()
        && (one.ip().is_unspecified() || other.ip().is_unspecified())
}

/// Returns the address that was probably meant by an invalid one, as the end of a sentence.
fn suggest_address(key: &str, text: &str) -> String {
    let is_public = key.starts_with("listen.edge");
    let own = if is_public { "0.0.0.0" } else { "127.0.0.1" };
    let trimmed = text.trim();
    let trimmed = trimmed
        .strip_prefix("http://")
        .or_else(|| trimmed.strip_prefix("https://"))
        .unwrap_or(trimmed)
        .trim_end_matches('/');
    let (host, port) = trimmed.rsplit_once(':').unwrap_or(("", trimmed));
    let host = match host {
        "" | "*" => own,
        "localhost" => "127.0.0.1",
        host => host,
    };
    let meant = format!("{host}:{port}");
    match meant.parse::<SocketAddr>() {
        Ok(address) if address.port() != 0 => format!("; did you mean \"{address}\"?"),
        _ => format!("; write it as \"{own}:8081\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_the_admin_listener_stands_alone() {
        let local = include_str!("../../../conf/local.yaml");
        let with = |names: &str| {
            let text = local.replacen("  admin:", &format!("  admin_names: {names}\n  admin:"), 1);
            crate::parse(&text, &|_| None)
        };
        let settings = with("[edge-1.example.com]").unwrap();
        assert_eq!(*settings.admin_names, ["edge-1.example.com"]);
        for bad in ["a.example:9090", "http://a.example", "a b", "''"] {
            let faults = with(&format!("[edge.example, {bad}]"))
                .map(drop)
                .unwrap_err();
            let keys: Vec<_> = faults.iter().map(|fault| &*fault.key).collect();
            assert_eq!(keys, ["listen.admin_names[1]"], "{bad}");
        }
    }

    #[test]
    fn the_address_that_was_probably_meant_is_suggested() {
        for (key, text, meant) in [
            ("listen.admin", "localhost:9090", "127.0.0.1:9090"),
            ("listen.edge[0]", ":8080", "0.0.0.0:8080"),
            ("listen.admin", ":9090", "127.0.0.1:9090"),
            ("listen.edge[0]", "8080", "0.0.0.0:8080"),
            ("listen.edge[1]", "*:8080", "0.0.0.0:8080"),
            ("listen.sidecar", "http://10.0.0.7:8081/", "10.0.0.7:8081"),
        ] {
            let hint = suggest_address(key, text);
            assert_eq!(hint, format!("; did you mean \"{meant}\"?"), "{text}");
        }
        for text in [
            "",
            "127.0.0.1",
            "gateway:8081",
            "localhost:0",
            "[::1]",
            ":99999",
        ] {
            let hint = suggest_address("listen.sidecar", text);
            assert_eq!(hint, "; write it as \"127.0.0.1:8081\"", "{text}");
        }
    }
}
