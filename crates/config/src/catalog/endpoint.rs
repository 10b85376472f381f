//! Describes one address of a vendor: host, paths, authentication and the fixed parts of every
//! request to it.
//!
//! This file must not open a connection or choose an endpoint for a request.

use super::secret::Secret;
use llm_protocol::{Protocol, metered};
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VendorEndpoint {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    /// Value of the `host` header, without the port if it is the default of the scheme.
    pub authority: String,
    /// Path of the base address, without its final `/v1` and without a trailing slash.
    pub prefix: String,
    /// True to add `/v1` to the prefix. False if the base address already contains an API version.
    pub adds_v1: bool,
    /// Path that replaces the whole path of generation requests.
    pub path: Option<String>,
    /// Query parameters that are added to every request, before percent-encoding.
    pub query: Vec<(String, Secret)>,
    /// Header fields that are added to every request, with names in lower case.
    pub headers: Vec<(String, Secret)>,
    pub auth: EndpointAuth,
    pub http_version: HttpVersion,
    pub weight: u32,
    /// Maximum number of concurrent requests. `None` means no limit.
    pub max_concurrent: Option<u32>,
    pub health_check: Option<ActiveHealthCheck>,
}

/// The way in which the gateway sends the vendor's key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EndpointAuth {
    /// The header `authorization: Bearer KEY`.
    Bearer,
    /// A header field with this lower-case name, whose value is the key alone.
    Header(String),
    /// The endpoint needs no key.
    None,
}

impl EndpointAuth {
    /// Returns the way in which the SDKs of this protocol send the key.
    pub fn default_for(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Messages => Self::Header("x-api-key".into()),
            Protocol::Chat | Protocol::Responses => Self::Bearer,
        }
    }
}

/// The HTTP versions that the gateway offers to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HttpVersion {
    /// HTTP/2 or HTTP/1.1, negotiated by ALPN. Without TLS, HTTP/1.1.
    #[default]
    Auto,
    Http1,
    /// HTTP/2 only: by ALPN with TLS, and by prior knowledge (h2c) without TLS.
    Http2,
}

/// The standard ends of generation paths, after `/v1`.
const CHAT: &str = "/chat/completions";
const MESSAGES: &str = "/messages";
const RESPONSES: &str = "/responses";

impl VendorEndpoint {
    /// Returns the endpoint's name in metrics and logs.
    pub fn label(&self) -> String {
        format!(
            "{}{}",
            self.authority,
            self.path.as_ref().unwrap_or(&self.prefix)
        )
    }

    /// Returns path and query of a call. `usual` is the standard path, such as
    /// `/v1/chat/completions`. Returns `None` if this endpoint overrides its path in a way that
    /// does not determine the path of this call.
    pub fn target(&self, usual: &str) -> Option<String> {
        let mut target = self.resolve_path(usual)?;
        for (index, (name, value)) in self.query.iter().enumerate() {
            target.push(if index == 0 { '?' } else { '&' });
            push_escaped(&mut target, name);
            target.push('=');
            push_escaped(&mut target, value.reveal());
        }
        Some(target)
    }

    /// Returns whether the paths of calls other than generation are known.
    pub fn has_other_paths(&self) -> bool {
        self.resolve_path("/v1/models").is_some()
    }

    fn resolve_path(&self, usual: &str) -> Option<String> {
        let below = usual.strip_prefix("/v1");
        let is_v1 = below.is_some();
        let below = below.unwrap_or(usual);
        let Some(path) = &self.path else {
            // A path of another version has its own.
            let version = if self.adds_v1 && is_v1 { "/v1" } else { "" };
            return Some(format!("{}{version}{below}", self.prefix));
        };
        // Other calls have the same parent path as the overridden path.
        let metered = metered::ENDPOINTS.iter().map(|endpoint| endpoint.path);
        let metered = metered.filter_map(|path| path.strip_prefix("/v1"));
        let base = [CHAT, MESSAGES, RESPONSES]
            .into_iter()
            .chain(metered)
            .find_map(|suffix| path.strip_suffix(suffix));
        match base {
            Some(base) => Some(format!("{base}{below}")),
            None => [CHAT, MESSAGES, RESPONSES]
                .contains(&below)
                .then(|| path.clone()),
        }
    }

    /// Returns the URL of a call, for display. The values of query parameters are hidden, because
    /// they may be secrets, except `api-version`.
    pub fn display_url(&self, usual: &str) -> Option<String> {
        let path = self.resolve_path(usual)?;
        let scheme = if self.tls { "https" } else { "http" };
        let shown = |(name, value): &(String, Secret)| match name.as_str() {
            "api-version" => format!("{name}={}", value.reveal()),
            _ => format!("{name}=********"),
        };
        let query: Vec<_> = self.query.iter().map(shown).collect();
        let mark = if query.is_empty() { "" } else { "?" };
        Some(format!(
            "{scheme}://{}{path}{mark}{}",
            self.authority,
            query.join("&")
        ))
    }
}

/// Percent-encodes everything but the unreserved characters of RFC 3986.
fn push_escaped(target: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            target.push(char::from(byte));
        } else {
            target.push_str(&format!("%{byte:02X}"));
        }
    }
}

/// The settings of the gateway's probes of an endpoint, which do not depend on clients' requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ActiveHealthCheck {
    /// Path of the probe. The endpoint's prefix is not added.
    pub path: String,
    pub interval: Duration,
    pub timeout: Duration,
    /// Number of consecutive responses with a status below 400 after which the endpoint counts as
    /// healthy.
    pub passes_after: u32,
    pub fails_after: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: [&str; 4] = [
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
    ];

    fn targets(endpoint: &VendorEndpoint) -> [Option<String>; 4] {
        USUAL.map(|usual| endpoint.target(usual))
    }

    #[test]
    fn without_a_path_of_its_own_the_usual_one_follows_the_base_address() {
        let mut endpoint = VendorEndpoint::in_test("vendor.example");
        assert_eq!(
            targets(&endpoint),
            USUAL.map(|usual| Some(usual.to_owned()))
        );
        endpoint.prefix = "/openai".into();
        assert_eq!(
            endpoint.target(USUAL[0]).unwrap(),
            "/openai/v1/chat/completions"
        );
        endpoint.adds_v1 = false;
        assert_eq!(
            endpoint.target(USUAL[0]).unwrap(),
            "/openai/chat/completions"
        );
        assert_eq!(endpoint.label(), "vendor.example/openai");
    }

    #[test]
    fn a_path_that_is_written_gives_the_others_where_it_ends_as_usual() {
        let with = |path: &str| VendorEndpoint {
            path: Some(path.into()),
            ..VendorEndpoint::in_test("vendor.example")
        };
        let gemini = with("/v1beta/openai/chat/completions");
        assert_eq!(
            gemini.target(USUAL[0]).unwrap(),
            "/v1beta/openai/chat/completions"
        );
        assert_eq!(gemini.target(USUAL[1]).unwrap(), "/v1beta/openai/responses");
        assert_eq!(
            with("/claude/messages").target(USUAL[3]).unwrap(),
            "/claude/messages/count_tokens"
        );
        let odd = with("/generate");
        let whole = Some("/generate".to_owned());
        assert_eq!(targets(&odd), [whole.clone(), whole.clone(), whole, None]);
        assert_eq!(odd.target("/v1/models"), None);
        assert_eq!(
            gemini.target("/v1/models").unwrap(),
            "/v1beta/openai/models"
        );
    }

    #[test]
    fn parameters_are_escaped_and_shown_without_what_may_be_secret() {
        let query = [("api-version", "2024-10-21"), ("code", "a b&c=d/é")];
        let query = query
            .map(|(name, value)| (name.to_owned(), Secret::new(value.into())))
            .to_vec();
        let endpoint = VendorEndpoint {
            query,
            ..VendorEndpoint::in_test("vendor.example")
        };
        let target = endpoint.target(USUAL[0]).unwrap();
        assert_eq!(
            target,
            "/v1/chat/completions?api-version=2024-10-21&code=a%20b%26c%3Dd%2F%C3%A9"
        );
        let shown = endpoint.display_url(USUAL[0]).unwrap();
        assert_eq!(
            shown,
            "https://vendor.example/v1/chat/completions?api-version=2024-10-21&code=********"
        );
        assert!(!format!("{endpoint:?}").contains("a b"));
    }
}
