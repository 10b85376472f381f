//! Validates the key `base_url`, the address under which clients and browsers reach the gateway.
//!
//! This file must not resolve a name.

use super::base_url::is_host;
use super::validator::NetworkSection;
use http::Uri;

impl NetworkSection<'_> {
    /// Returns the public URL without a trailing slash.
    pub(super) fn public_url(&mut self, text: &str) -> String {
        if let Err(message) = check_public_url(text) {
            self.0.add_fault("base_url", message);
        }
        text.trim_end_matches('/').to_owned()
    }
}

/// Checks that a path such as `/v1/messages` can be appended to the URL.
fn check_public_url(text: &str) -> Result<(), String> {
    const EXAMPLE: &str = "https://gateway.example.com";
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"))
        .ok_or_else(|| format!("must begin with http:// or https://, such as {EXAMPLE}"))?;
    if text.contains(char::is_whitespace) {
        return Err("contains a space: remove it".to_owned());
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err("must not have a user or a password".to_owned());
    }
    let uri = text.split('#').next().unwrap_or_default().parse::<Uri>();
    let host = uri
        .as_ref()
        .ok()
        .and_then(Uri::authority)
        .map(|authority| (authority.host(), authority.as_str()));
    let has_bad_port = |host: &str, authority: &str| {
        let port = authority.get(host.len()..).unwrap_or_default();
        !port.is_empty()
            && !port
                .strip_prefix(':')
                .is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port != 0))
    };
    match host {
        Some((host, authority)) if !host.is_empty() && !has_bad_port(host, authority) => {}
        _ => {
            return Err(format!(
                "must have a host and at most a port after it, such as {EXAMPLE} or {EXAMPLE}:8443"
            ));
        }
    }
    if host.is_none_or(|(host, _)| !is_host(host)) {
        return Err(format!(
            "has a host that no DNS name or IP address can be; write it as in {EXAMPLE}"
        ));
    }
    let path = rest.get(authority.len()..).unwrap_or_default();
    let origin = &text[..text.len() - path.len()];
    match path.trim_end_matches('/') {
        "" => Ok(()),
        "/v1" => Err(format!(
            "must not end in /v1, which clients add: use {origin:?}"
        )),
        path if path.contains(['?', '#']) => Err(format!(
            "must not have a query or a fragment: use {origin:?}"
        )),
        path => Err(format!(
            "must not have a path ({path}), because the gateway serves only at the root of a host: \
             use {origin:?}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_url_is_a_scheme_and_a_host() {
        for good in [
            "http://127.0.0.1:8080",
            "https://gateway.example.com",
            "https://gateway.example.com/",
            "https://gateway.example.com:8443",
            "http://[::1]:8080",
            "http://localhost",
        ] {
            assert_eq!(check_public_url(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("", "must begin with"),
            ("gateway.example.com", "must begin with"),
            ("ftp://gateway.example.com", "must begin with"),
            ("https://", "must have a host"),
            ("https://:8080", "must have a host"),
            ("https:///v1", "must have a host"),
            ("https://gateway.example.com:0", "must have a host"),
            ("https://gateway.example.com:99999", "must have a host"),
            ("https://gateway.example.com:", "must have a host"),
            ("https://gateway example.com", "contains a space"),
            ("https://gateway.example.com ", "contains a space"),
            ("https://a$(id)", "no DNS name"),
            ("http://a;id", "no DNS name"),
            ("http://a'b:8080", "no DNS name"),
            ("https://ann@gateway.example.com", "must not have a user"),
            ("https://a.example/v1", "use \"https://a.example\""),
            ("https://a.example/v1/", "must not end in /v1"),
            ("https://a.example/llm", "must not have a path (/llm)"),
            ("https://a.example?x=1", "a query"),
            ("https://a.example/#top", "a query or a fragment"),
        ] {
            let message = check_public_url(bad).unwrap_err();
            assert!(message.contains(why), "{bad}: {message}");
        }
    }
}
