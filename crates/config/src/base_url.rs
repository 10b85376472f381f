//! Parses the URL of a vendor, of a trace collector or of a provider.
//!
//! This file must not resolve a name or open a connection.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Where a provider's server is.
#[derive(Clone, PartialEq, Eq)]
pub struct ProviderAddress {
    pub is_https: bool,
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
    /// The value of the header `host`.
    pub authority: String,
    /// Path before that of a request, without a slash at its end.
    pub path: String,
}

impl ProviderAddress {
    /// Parses a URL without a query. `None` if it is none, or if it would send secrets unencrypted
    /// to another machine.
    pub fn parse(url: &str) -> Option<Self> {
        let address = Self::from(parse_base_url(url)?);
        (address.is_https || address.is_here()).then_some(address)
    }

    /// Whether it names this machine.
    pub fn is_here(&self) -> bool {
        self.host == "localhost" || self.host.parse().is_ok_and(|it: IpAddr| it.is_loopback())
    }
}

impl From<BaseUrl> for ProviderAddress {
    fn from(base: BaseUrl) -> Self {
        Self {
            is_https: base.tls,
            host: base.host,
            port: base.port,
            authority: base.authority,
            path: base.path,
        }
    }
}

impl fmt::Debug for ProviderAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.path)
    }
}

/// The parts of an `http://` or `https://` URL.
pub(super) struct BaseUrl {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    pub authority: String,
    /// Path of the URL, without a trailing slash.
    pub path: String,
}

/// Parses a URL. Returns `None` if it has another scheme, no host, a query or user information.
pub(super) fn parse_base_url(url: &str) -> Option<BaseUrl> {
    let uri: http::Uri = url.parse().ok()?;
    let tls = match uri.scheme_str()? {
        "https" => true,
        "http" => false,
        _ => return None,
    };
    let authority = uri.authority()?;
    if authority.as_str().contains('@') || authority.host().is_empty() || uri.query().is_some() {
        return None;
    }
    let default_port = if tls { 443 } else { 80 };
    let port = authority.port_u16().unwrap_or(default_port);
    let host = authority.host();
    if !is_host(host) {
        return None;
    }
    Some(BaseUrl {
        tls,
        host: host.trim_matches(['[', ']']).to_owned(),
        port,
        authority: if port == default_port {
            host.to_owned()
        } else {
            format!("{host}:{port}")
        },
        path: uri.path().trim_end_matches('/').to_owned(),
    })
}

/// Returns whether the text is a DNS name or an IP address. An IPv6 address must be in brackets.
/// Names of containers may have underscores.
pub(super) fn is_host(text: &str) -> bool {
    if let Some(address) = text.strip_prefix('[') {
        let address = address.strip_suffix(']');
        return address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    }
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    let is_label = |label: &str| {
        (1..=63).contains(&label.len()) && !label.starts_with('-') && label.chars().all(is_letter)
    };
    text.len() <= 254
        && text
            .strip_suffix('.')
            .unwrap_or(text)
            .split('.')
            .all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_dns_name_or_an_ip_address() {
        for host in [
            "a",
            "a.example",
            "a.example.",
            "my_vendor",
            "10.0.0.1",
            "[::1]",
        ] {
            assert!(is_host(host), "{host}");
        }
        for text in [
            "",
            ".",
            "a..b",
            "-a",
            "a$(id)",
            "a;id",
            "a'b",
            "[x]",
            "[::1",
            "ä.example",
        ] {
            assert!(!is_host(text), "{text}");
        }
    }
}
