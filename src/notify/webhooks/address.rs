//! Decides which addresses a webhook may have, and to which of them the gateway connects.
//!
//! The gateway may be in a network that account holders must not reach. So every address that a
//! name resolves to is checked, and the connection is made to a checked address, not to the name.
//! This file must not resolve a name or open a connection.

use config::address::Network;
use http::Uri;
use std::net::IpAddr;
use std::sync::LazyLock;

/// Maximum length of a webhook's URL, in characters.
pub const MAX_URL_CHARS: usize = 500;

/// The IPv4 networks that are not public (IANA's registry of special-purpose addresses), and
/// multicast networks.
const SPECIAL_V4: [&str; 15] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
];

/// The IPv6 networks with public addresses. All others are loopback, local, multicast, or lead to
/// IPv4 addresses (`64:ff9b::/96`).
const PUBLIC_V6: &str = "2000::/3";

/// Exceptions in [`PUBLIC_V6`]: protocol assignments with Teredo, documentation, and 6to4, which
/// contains an IPv4 address.
const SPECIAL_V6: [&str; 4] = ["2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"];

/// The public networks, and the exceptions within them.
struct AddressRegistry {
    public_v6: Vec<Network>,
    special: Vec<Network>,
}

static REGISTRY: LazyLock<AddressRegistry> = LazyLock::new(|| {
    let parse = |texts: &[&str]| -> Vec<Network> {
        texts.iter().filter_map(|text| text.parse().ok()).collect()
    };
    AddressRegistry {
        public_v6: parse(&[PUBLIC_V6]),
        special: parse(&[&SPECIAL_V4[..], &SPECIAL_V6].concat()),
    }
});

/// The rules about addresses that may be called.
#[derive(Debug, Clone, Default)]
pub struct AddressPolicy {
    private_networks: Vec<Network>,
}

impl AddressPolicy {
    /// Creates a policy that allows public addresses, and those in `private_networks`.
    pub fn new(private_networks: &[Network]) -> Self {
        Self {
            private_networks: private_networks.to_vec(),
        }
    }

    /// Returns whether the gateway may connect to an address. Without TLS only the listed networks
    /// are allowed, because a message could be read on its way through the internet.
    pub fn allows(&self, address: IpAddr, is_https: bool) -> bool {
        let has = |networks: &[Network]| networks.iter().any(|network| network.contains(address));
        if has(&self.private_networks) {
            return true;
        }
        let is_public = match address.to_canonical() {
            IpAddr::V4(_) => !has(&REGISTRY.special),
            IpAddr::V6(_) => has(&REGISTRY.public_v6) && !has(&REGISTRY.special),
        };
        is_https && is_public
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookUrl {
    /// The URL in the account holder's spelling.
    pub text: String,
    pub is_https: bool,
    /// Host name or address, without brackets.
    pub host: String,
    pub port: u16,
    /// The value of the header `host`.
    pub authority: String,
    /// Path and query of the URL.
    pub target: String,
}

/// The reason why a webhook cannot have this URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WebhookUrlError {
    #[error("The URL must have at most {MAX_URL_CHARS} characters.")]
    TooLong,
    #[error("This is not a URL such as https://example.com/hook.")]
    NotUrl,
    #[error("The URL must begin with https://.")]
    NotHttps,
    #[error("The URL must not have a user or a password: check the signature of messages instead.")]
    UserInfo,
    #[error("The URL must not have a part after #: no server receives it.")]
    Fragment,
    #[error("This gateway does not call private addresses.")]
    Private,
}

impl WebhookUrl {
    /// Parses a URL. The function refuses `http://` if the policy has no network for it, and an
    /// address that the policy does not allow. A name is checked when a message is sent, because
    /// its addresses may change.
    ///
    /// # Errors
    /// Returns an error for the account holder if this cannot be the URL of a webhook.
    pub fn parse(text: &str, policy: &AddressPolicy) -> Result<Self, WebhookUrlError> {
        let text = text.trim();
        if text.chars().count() > MAX_URL_CHARS {
            return Err(WebhookUrlError::TooLong);
        }
        if text.contains('#') {
            return Err(WebhookUrlError::Fragment);
        }
        let uri: Uri = text.parse().map_err(|_| WebhookUrlError::NotUrl)?;
        let is_https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") if !policy.private_networks.is_empty() => false,
            Some(_) => return Err(WebhookUrlError::NotHttps),
            None => return Err(WebhookUrlError::NotUrl),
        };
        let authority = uri.authority().ok_or(WebhookUrlError::NotUrl)?;
        if authority.as_str().contains('@') {
            return Err(WebhookUrlError::UserInfo);
        }
        let default_port = if is_https { 443 } else { 80 };
        // `port_u16` also returns `None` for a port that is not a number.
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") => default_port,
            Some(rest) => rest
                .strip_prefix(':')
                .and_then(|port| port.parse().ok())
                .filter(|port| *port > 0)
                .ok_or(WebhookUrlError::NotUrl)?,
            None => return Err(WebhookUrlError::NotUrl),
        };
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(WebhookUrlError::NotUrl);
        }
        if let Ok(address) = host.parse::<IpAddr>()
            && !policy.allows(address, is_https)
        {
            return Err(WebhookUrlError::Private);
        }
        let mut target = uri
            .path_and_query()
            .map_or("/", |target| target.as_str())
            .to_owned();
        if !target.starts_with('/') {
            target.insert(0, '/');
        }
        Ok(Self {
            text: text.to_owned(),
            is_https,
            host,
            port,
            authority: authority.as_str().to_owned(),
            target,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(networks: &[&str]) -> AddressPolicy {
        let networks: Vec<_> = networks.iter().map(|text| text.parse().unwrap()).collect();
        AddressPolicy::new(&networks)
    }

    #[test]
    fn the_registry_has_every_network() {
        assert_eq!(
            (REGISTRY.special.len(), REGISTRY.public_v6.len()),
            (SPECIAL_V4.len() + SPECIAL_V6.len(), 1)
        );
    }

    #[test]
    fn only_public_addresses_are_called() {
        let policy = policy(&[]);
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "93.184.216.34",
            "172.15.255.255",
            "172.32.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "169.253.255.255",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700:4700::1111",
            "2a00:1450:4001::1",
            "2001:200::1",
            "::ffff:8.8.8.8",
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert!(policy.allows(address, true), "{address}");
            assert!(!policy.allows(address, false), "{address} without TLS");
        }
        for address in [
            "0.0.0.0",
            "0.255.255.255",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.7",
            "224.0.0.1",
            "239.255.255.250",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            // IPv4 inside IPv6: mapped, compatible, NAT64 in both networks, 6to4, Teredo, ISATAP.
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::8.8.8.8",
            "64:ff9b:1::10.0.0.1",
            "2002:7f00:1::1",
            "2002:a00:1::1",
            "2001:0:53aa:64c::1",
            "fe80::5efe:10.0.0.1",
            "100::1",
            "2001:db8::1",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert!(!policy.allows(address, true), "{address}");
            assert!(!policy.allows(address, false), "{address}");
        }
    }

    #[test]
    fn a_listed_network_is_called_with_and_without_tls_and_no_other() {
        let policy = policy(&["10.1.0.0/16", "fd00::/8"]);
        for address in ["10.1.2.3", "::ffff:10.1.2.3", "fd00::1"] {
            let address: IpAddr = address.parse().unwrap();
            assert!(policy.allows(address, true) && policy.allows(address, false));
        }
        for address in ["10.2.0.1", "127.0.0.1", "64:ff9b::10.1.2.3", "fc00::1"] {
            assert!(!policy.allows(address.parse().unwrap(), true), "{address}");
        }
        assert!(policy.allows("8.8.8.8".parse().unwrap(), true));
        assert!(!policy.allows("8.8.8.8".parse().unwrap(), false));
    }

    #[test]
    fn a_url_is_taken_apart() {
        let url = WebhookUrl::parse(" https://example.com/hook?a=1 ", &policy(&[])).unwrap();
        assert_eq!(url.text, "https://example.com/hook?a=1");
        assert_eq!((url.host.as_str(), url.port), ("example.com", 443));
        assert_eq!(
            (url.authority.as_str(), url.is_https),
            ("example.com", true)
        );
        assert_eq!(url.target, "/hook?a=1");
        let url = WebhookUrl::parse("https://[2606:4700::1]:8443", &policy(&[])).unwrap();
        assert_eq!((url.host.as_str(), url.port), ("2606:4700::1", 8443));
        assert_eq!(url.authority, "[2606:4700::1]:8443");
        assert_eq!(url.target, "/");
        let url = WebhookUrl::parse("https://example.com?a=1", &policy(&[])).unwrap();
        assert_eq!(url.target, "/?a=1");
        let url = WebhookUrl::parse("https://example.com//a", &policy(&[])).unwrap();
        assert_eq!(url.target, "//a");
        let url = WebhookUrl::parse("http://receiver:9000/x", &policy(&["10.0.0.0/8"])).unwrap();
        assert!(!url.is_https && url.port == 9000);
    }

    #[test]
    fn a_url_that_cannot_be_called_is_refused_with_the_reason() {
        use WebhookUrlError::{Fragment, NotHttps, NotUrl, Private, TooLong, UserInfo};
        let long = |length: usize| format!("https://example.com/{}", "x".repeat(length - 20));
        assert!(WebhookUrl::parse(&long(MAX_URL_CHARS), &policy(&[])).is_ok());
        for (text, fault) in [
            (long(MAX_URL_CHARS + 1).as_str(), TooLong),
            ("", NotUrl),
            ("example.com", NotUrl),
            ("/hook", NotUrl),
            ("https://", NotUrl),
            ("https://:443/", NotUrl),
            ("https://example.com:0/", NotUrl),
            ("https://example.com:65536/", NotUrl),
            ("https://example.com:/", NotUrl),
            ("https://exa mple.com/", NotUrl),
            ("https://example.com/\r\nx-injected: 1", NotUrl),
            ("http://example.com/", NotHttps),
            ("ftp://example.com/", NotHttps),
            ("file:///etc/passwd", NotUrl),
            ("javascript:alert(1)", NotUrl),
            ("https://ann:secret@example.com/", UserInfo),
            ("https://example.com@10.0.0.1/", UserInfo),
            ("https://example.com/#x", Fragment),
            ("https://10.0.0.1/", Private),
            ("https://127.0.0.1:8443/", Private),
            ("https://169.254.169.254/latest/meta-data", Private),
            ("https://[::1]/", Private),
            ("https://[::ffff:10.0.0.1]/", Private),
        ] {
            assert_eq!(
                WebhookUrl::parse(text, &policy(&[])),
                Err(fault),
                "{text:?}"
            );
        }
        // The number of a network does not open the others.
        let listed = policy(&["10.0.0.0/8"]);
        assert!(WebhookUrl::parse("http://10.0.0.1/", &listed).is_ok());
        assert_eq!(
            WebhookUrl::parse("http://8.8.8.8/", &listed),
            Err(Private),
            "without TLS, no public address"
        );
    }
}
