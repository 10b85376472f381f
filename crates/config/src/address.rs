//! Determines the client of an address, the trusted networks, and the client of a request behind a
//! proxy.
//!
//! A forwarding header counts only if a trusted peer sent it, and only back to the first hop that
//! is not trusted. This file must not depend on the use of the result.

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName, VIA};
use ipnet::IpNet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Maximum number of hops of a list that the gateway examines, nearest first.
const MAX_HOPS: usize = 32;

/// Returns the prefix that counts as one client: the IPv4 address itself, or the IPv6 /64 network
/// of one customer.
pub fn client_prefix(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
        v4 => v4,
    }
}

/// Returns the network that one attacker may control: the IPv4 address itself, or the IPv6 /48
/// network that a provider assigns to one customer. A /48 contains 65 536 networks of
/// [`client_prefix`].
pub fn network_block(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 80 << 80).into()),
        v4 => v4,
    }
}

/// A network in CIDR notation. A plain address is a network with one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network(IpNet);

#[derive(Debug, PartialEq, Eq)]
pub struct NetworkParseError;

impl fmt::Display for NetworkParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an IP address, nor a network such as 10.0.0.0/8 or 2001:db8::/32")
    }
}

impl FromStr for Network {
    type Err = NetworkParseError;

    /// Parses address and length separately, because `IpNet` requires a length, reads `010.0.0.1`
    /// as `10.0.0.1`, and keeps an IPv4-mapped address as IPv6.
    fn from_str(text: &str) -> Result<Self, NetworkParseError> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address = address
            .parse::<IpAddr>()
            .map_err(|_| NetworkParseError)?
            .to_canonical();
        let is_number = |length: &&str| length.bytes().all(|byte| byte.is_ascii_digit());
        let network = match length {
            None => Some(address.into()),
            Some(length) => Some(length)
                .filter(is_number)
                .and_then(|length| length.parse().ok())
                .and_then(|length| IpNet::new(address, length).ok()),
        };
        network
            .map(|network| Self(network.trunc()))
            .ok_or(NetworkParseError)
    }
}

impl Network {
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// Returns whether the network contains every address of its family.
    pub fn covers_all(&self) -> bool {
        self.0.prefix_len() == 0
    }
}

/// The proxies whose forwarding headers are trusted. Empty by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<Network>);

impl FromIterator<Network> for TrustedProxies {
    fn from_iter<I: IntoIterator<Item = Network>>(networks: I) -> Self {
        Self(networks.into_iter().collect())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAddress {
    pub address: IpAddr,
    /// True if the client used TLS to a trusted proxy.
    pub is_https: bool,
    /// True if the address belongs to a proxy, so that the client is unknown. The proxy is a
    /// trusted one that names no client, or one on this machine that is not trusted.
    pub is_unnamed: bool,
}

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Placeholder for a hop without a readable address.
const UNKNOWN_HOP: &str = "-";
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Headers in which proxies name the clients for which they send requests.
pub const FORWARDING_FIELDS: [HeaderName; 8] = [
    FORWARDED,
    FORWARDED_FOR,
    HeaderName::from_static("x-forwarded-host"),
    FORWARDED_PROTO,
    HeaderName::from_static("x-real-ip"),
    VIA,
    HeaderName::from_static("cf-connecting-ip"),
    HeaderName::from_static("true-client-ip"),
];

impl TrustedProxies {
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }

    /// Returns the client of a request that `peer` sent with this header. The client is the nearest
    /// address that is not a trusted proxy, as reported by trusted proxies. Without a readable
    /// address, the result is the last trusted proxy.
    pub fn resolve_client(&self, peer: IpAddr, header: &HeaderMap) -> ClientAddress {
        let mut address = peer.to_canonical();
        if !self.contains(address) {
            let is_forwarded = || {
                FORWARDING_FIELDS
                    .iter()
                    .any(|name| header.contains_key(name))
            };
            return ClientAddress {
                address,
                is_https: false,
                is_unnamed: address.is_loopback() && is_forwarded(),
            };
        }
        // Use only one of the two headers. A proxy that writes one of them passes the other one on
        // as the client wrote it.
        let name = if header.contains_key(FORWARDED_FOR) {
            FORWARDED_FOR
        } else {
            FORWARDED
        };
        let is_standard = name == FORWARDED;
        let hops = forwarded_hops(header, &name).take(MAX_HOPS);
        let nodes = hops.map(|hop| {
            if is_standard {
                forwarded_parameter(hop, "for")
            } else {
                Some(hop)
            }
        });
        for node in nodes {
            let Some(hop) = node.and_then(parse_forwarded_node) else {
                break;
            };
            address = hop;
            if !self.contains(address) {
                break;
            }
        }
        let proto = match nearest_hop(header, &FORWARDED_PROTO) {
            Some(proto) => Some(proto),
            None if is_standard => {
                nearest_hop(header, &FORWARDED).and_then(|hop| forwarded_parameter(hop, "proto"))
            }
            None => None,
        };
        let is_https = proto.is_some_and(|proto| proto.eq_ignore_ascii_case("https"));
        ClientAddress {
            address,
            is_https,
            is_unnamed: self.contains(address),
        }
    }
}

/// Returns the elements of all fields with this name, last first. A proxy appends to what its
/// client wrote. An element that is not text, or that ends inside quotes, becomes [`UNKNOWN_HOP`],
/// at which a reader must stop; the elements nearer to the gateway are valid.
fn forwarded_hops<'a>(header: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let fields = header.get_all(name).iter().rev();
    let hops = fields.flat_map(|field| field.as_bytes().rsplit(|byte| *byte == b','));
    let text = hops.map(|hop| std::str::from_utf8(hop).unwrap_or(UNKNOWN_HOP).trim());
    text.map(|hop| {
        if hop.bytes().filter(|byte| *byte == b'"').count() % 2 == 0 {
            hop
        } else {
            UNKNOWN_HOP
        }
    })
}

fn nearest_hop<'a>(header: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    forwarded_hops(header, name).next()
}

/// Returns the value of one parameter without its quotes, such as `for` in
/// `for="[2001:db8::1]:47";proto=https`.
fn forwarded_parameter<'a>(hop: &'a str, name: &str) -> Option<&'a str> {
    let pairs = hop.split(';').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs
        .into_iter()
        .find(|(key, _)| key.trim().eq_ignore_ascii_case(name))?;
    Some(value.trim().trim_matches('"'))
}

/// Parses an address in the forms that proxies write: alone, in brackets, or with a port. Returns
/// `None` for names such as `unknown`.
fn parse_forwarded_node(text: &str) -> Option<IpAddr> {
    let alone = || {
        text.strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(text)
            .parse()
            .ok()
    };
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    alone()
        .or_else(with_port)
        .map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn trusted(networks: &[&str]) -> TrustedProxies {
        networks
            .iter()
            .map(|text| text.parse::<Network>().unwrap())
            .collect()
    }

    fn caller(peer: &str, pairs: &[(&'static str, &'static str)]) -> (String, bool) {
        let mut header = HeaderMap::new();
        for (name, value) in pairs {
            header.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        let ClientAddress {
            address, is_https, ..
        } = trusted(&["10.0.0.0/8", "fd00::/8", "192.0.2.7"]).resolve_client(ip(peer), &header);
        (address.to_string(), is_https)
    }

    fn address(peer: &str, pairs: &[(&'static str, &'static str)]) -> String {
        caller(peer, pairs).0
    }

    #[test]
    fn a_client_is_an_ipv4_address_or_a_whole_ipv6_network() {
        let client = |text: &str| client_prefix(ip(text));
        assert_eq!(client("2001:db8:1:2::1"), client("2001:db8:1:2:ffff::9"));
        assert_ne!(client("2001:db8:1:2::1"), client("2001:db8:1:3::1"));
        assert_ne!(client("192.0.2.1"), client("192.0.2.2"));
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
        let block = |text: &str| network_block(ip(text));
        assert_eq!(block("2001:db8:1:2::1"), block("2001:db8:1:ffff::9"));
        assert_ne!(block("2001:db8:1::1"), block("2001:db8:2::1"));
        assert_ne!(block("192.0.2.1"), block("192.0.2.2"));
    }

    #[test]
    fn a_network_has_its_addresses_and_no_others() {
        let has = |network: &str, address: &str| {
            network.parse::<Network>().unwrap().contains(ip(address))
        };
        assert!(has("10.1.2.3/8", "10.255.0.1") && !has("10.0.0.0/8", "11.0.0.0"));
        assert!(has("192.0.2.7", "192.0.2.7") && !has("192.0.2.7", "192.0.2.6"));
        assert!(has("192.0.2.6/31", "::ffff:192.0.2.7") && !has("192.0.2.6/31", "192.0.2.8"));
        assert!(
            has("2001:db8::/33", "2001:db8:7fff::1") && !has("2001:db8::/33", "2001:db8:8000::1")
        );
        assert!(
            has("0.0.0.0/0", "203.0.113.1")
                && !has("0.0.0.0/0", "2001:db8::1")
                && has("::/0", "2001:db8::1")
        );
        for bad in [
            "",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "::/129",
            "10.0.0/8",
            "host",
            "/8",
            "010.0.0.0/8",
            "::ffff:10.0.0.0/104",
            "fe80::1%eth0",
        ] {
            assert_eq!(bad.parse::<Network>(), Err(NetworkParseError), "{bad}");
        }
        assert!(has("::ffff:10.0.0.0/8", "10.1.2.3") && !has("::ffff:10.0.0.0/8", "::1"));
        assert!("::/0".parse::<Network>().unwrap().covers_all());
        assert!(!"::/1".parse::<Network>().unwrap().covers_all());
    }

    #[test]
    fn a_peer_that_is_not_trusted_cannot_name_a_client() {
        let lies = [
            ("x-forwarded-for", "203.0.113.9"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=203.0.113.9"),
        ];
        assert_eq!(
            caller("198.51.100.1", &lies),
            ("198.51.100.1".into(), false)
        );
        let nobody = TrustedProxies::default().resolve_client(ip("10.0.0.1"), &HeaderMap::new());
        assert_eq!(
            nobody,
            ClientAddress {
                address: ip("10.0.0.1"),
                is_https: false,
                is_unnamed: false
            }
        );
    }

    #[test]
    fn the_nearest_address_that_is_not_a_proxys_is_the_clients() {
        let resolve = |list| address("10.0.0.1", &[("x-forwarded-for", list)]);
        assert_eq!(resolve("203.0.113.9"), "203.0.113.9");
        assert_eq!(
            resolve("127.0.0.1, 203.0.113.9"),
            "203.0.113.9",
            "the client invented the address before it"
        );
        assert_eq!(
            resolve("203.0.113.9, 192.0.2.7,10.9.9.9"),
            "203.0.113.9",
            "a chain of proxies"
        );
        assert_eq!(
            resolve("10.0.0.3, 10.0.0.2"),
            "10.0.0.3",
            "only proxies: the farthest one"
        );
        assert_eq!(resolve("203.0.113.9:4711"), "203.0.113.9");
        assert_eq!(resolve("[2001:db8::1]:4711"), "2001:db8::1");
        assert_eq!(resolve("::ffff:203.0.113.9"), "203.0.113.9");
        for nothing in [
            "",
            "unknown",
            "203.0.113.9, unknown",
            "203.0.113.9,",
            "203.0.113.9 198.51.100.1",
        ] {
            assert_eq!(resolve(nothing), "10.0.0.1", "{nothing:?}");
        }
        let two = [
            ("x-forwarded-for", "198.51.100.1"),
            ("x-forwarded-for", "203.0.113.9"),
        ];
        assert_eq!(
            address("10.0.0.1", &two),
            "203.0.113.9",
            "two fields are one list"
        );
        assert_eq!(address("fd00::1", &[]), "fd00::1");
    }

    #[test]
    fn a_client_cannot_hide_an_address_that_a_proxy_appended() {
        let resolve = |name: &'static str, list: &[u8]| {
            let header = HeaderMap::from_iter([(
                HeaderName::from_static(name),
                HeaderValue::from_bytes(list).unwrap(),
            )]);
            trusted(&["10.0.0.0/8"])
                .resolve_client(ip("10.0.0.1"), &header)
                .address
                .to_string()
        };
        assert_eq!(
            resolve("x-forwarded-for", b"\xe9, 203.0.113.9"),
            "203.0.113.9"
        );
        assert_eq!(
            resolve("x-forwarded-for", b"203.0.113.9, \xe9"),
            "10.0.0.1",
            "that one is the nearest"
        );
        let named = br#"for=203.0.113.9, host="a,for=198.51.100.8";for=203.0.113.9"#;
        assert_eq!(
            resolve("forwarded", named),
            "10.0.0.1",
            "half of a quoted text is unreadable"
        );
    }

    #[test]
    fn a_proxy_that_names_no_client_is_not_the_client() {
        let is_unnamed = |peer, list: &str| {
            let header =
                HeaderMap::from_iter([(FORWARDED_FOR, HeaderValue::from_str(list).unwrap())]);
            trusted(&["10.0.0.0/8"])
                .resolve_client(ip(peer), &header)
                .is_unnamed
        };
        for list in ["", "unknown", "10.0.0.2", "203.0.113.9, unknown"] {
            assert!(is_unnamed("10.0.0.1", list), "{list:?}");
        }
        assert!(
            !is_unnamed("10.0.0.1", "203.0.113.9")
                && !is_unnamed("10.0.0.1", "127.0.0.1, 10.0.0.2")
        );
        assert!(
            !is_unnamed("198.51.100.1", ""),
            "a peer that is not trusted is the client"
        );
    }

    #[test]
    fn a_proxy_on_this_machine_that_is_not_trusted_is_not_the_client() {
        let is_unnamed = |peer, name: HeaderName| {
            let header = HeaderMap::from_iter([(name, HeaderValue::from_static("x"))]);
            let client = TrustedProxies::default().resolve_client(ip(peer), &header);
            assert_eq!(client.address, ip(peer).to_canonical());
            client.is_unnamed
        };
        for name in FORWARDING_FIELDS {
            for peer in ["127.0.0.1", "::1", "::ffff:127.0.0.2"] {
                assert!(is_unnamed(peer, name.clone()), "{peer} {name}");
            }
            assert!(!is_unnamed("198.51.100.1", name));
        }
        assert!(!is_unnamed("127.0.0.1", http::header::HOST));
    }

    #[test]
    fn a_list_is_read_back_for_a_limited_number_of_hops() {
        let list = |hops: usize| format!("203.0.113.9{}", ", 10.0.0.2".repeat(hops));
        let resolve = |hops: usize| {
            let mut header = HeaderMap::new();
            header.insert(FORWARDED_FOR, list(hops).parse().unwrap());
            trusted(&["10.0.0.0/8"])
                .resolve_client(ip("10.0.0.1"), &header)
                .address
        };
        assert_eq!(resolve(MAX_HOPS - 1), ip("203.0.113.9"));
        assert_eq!(resolve(MAX_HOPS), ip("10.0.0.2"));
    }

    #[test]
    fn the_standard_header_is_read_if_the_other_is_missing() {
        let resolve = |value| caller("10.0.0.1", &[("forwarded", value)]);
        assert_eq!(
            resolve("for=203.0.113.9;proto=https;by=10.0.0.1"),
            ("203.0.113.9".into(), true)
        );
        assert_eq!(
            resolve("For=\"[2001:db8::1]:4711\""),
            ("2001:db8::1".into(), false)
        );
        assert_eq!(
            resolve("for=127.0.0.1, for=203.0.113.9, for=192.0.2.7;proto=http"),
            ("203.0.113.9".into(), false)
        );
        assert_eq!(
            resolve("for=_hidden;proto=https"),
            ("10.0.0.1".into(), true)
        );
        let both = [
            ("forwarded", "for=127.0.0.1;proto=https"),
            ("x-forwarded-for", "203.0.113.9"),
        ];
        assert_eq!(caller("10.0.0.1", &both), ("203.0.113.9".into(), false));
    }

    #[test]
    fn the_nearest_proxy_decides_the_scheme() {
        let resolve = |proto| caller("10.0.0.1", &[("x-forwarded-proto", proto)]).1;
        assert!(resolve("https") && resolve("HTTPS") && resolve("http, https"));
        assert!(!resolve("http") && !resolve("https, http") && !resolve("") && !resolve("httpss"));
    }
}
