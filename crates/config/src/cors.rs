//! Reads the `cors` section, which lists the web pages that may call the API from a browser.

use super::raw;
use super::validator::NetworkSection;

/// Maximum number of origins. The number is bounded because each request of a browser is compared
/// with all of them.
const MAX_ORIGINS: usize = 256;

/// Origins whose pages may call the API.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CorsOrigins {
    /// No other site may call the API, and responses carry no CORS headers.
    #[default]
    None,
    Any,
    /// Only these origins may call the API. They have the form `scheme://host[:port]` in lower
    /// case.
    Listed(Vec<String>),
}

impl NetworkSection<'_> {
    pub(super) fn cors(&mut self, cors: &raw::Cors) -> CorsOrigins {
        let origins = &cors.origins;
        if origins.len() > MAX_ORIGINS {
            self.0.add_fault(
                "cors.origins",
                format!(
                    "has {} entries; at most {MAX_ORIGINS} are allowed",
                    origins.len()
                ),
            );
        }
        if origins.iter().any(|origin| origin == "*") {
            if origins.len() > 1 {
                self.0.add_fault(
                    "cors.origins",
                    "\"*\" means every origin and cannot be combined with others",
                );
            }
            return CorsOrigins::Any;
        }
        for (index, origin) in origins.iter().enumerate() {
            let key = format!("cors.origins[{index}]");
            if origins[..index].contains(origin) {
                self.0.add_fault(key, format!("{origin} is listed twice"));
            } else if let Err(fault) = validate_origin(origin) {
                self.0.add_fault(key, format!("{fault}: {origin:?}"));
            }
        }
        if origins.is_empty() {
            CorsOrigins::None
        } else {
            CorsOrigins::Listed(origins.clone())
        }
    }
}

/// Checks that a browser can send this text as its `origin`.
fn validate_origin(origin: &str) -> Result<(), &'static str> {
    let (scheme, authority) = origin
        .split_once("://")
        .ok_or("must be an origin, such as https://app.example.com")?;
    if scheme != "http" && scheme != "https" {
        return Err("must begin with http:// or https://");
    }
    if authority.contains(['/', '?', '#']) {
        return Err("must not have a path, not even a trailing slash");
    }
    if authority.contains('*') {
        return Err("must not contain a wildcard: list each origin, or use \"*\" alone");
    }
    if authority.contains('@') {
        return Err("must not have a user name");
    }
    if origin
        .bytes()
        .any(|byte| byte.is_ascii_uppercase() || !byte.is_ascii_graphic())
    {
        return Err(
            "must be in lower case; write an internationalized name as browsers send it (xn--…)",
        );
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let is_default = matches!(
        (scheme, port),
        ("http", Some("80")) | ("https", Some("443"))
    );
    if is_default {
        return Err("must not have the default port of its scheme: browsers leave it out");
    }
    let is_port = |port: &str| !port.starts_with('0') && port.parse::<u16>().is_ok();
    if host.is_empty() || !port.is_none_or(is_port) {
        return Err("must be an origin, such as https://app.example.com or http://localhost:3000");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_what_a_browser_sends() {
        for good in [
            "https://app.example.com",
            "http://localhost:3000",
            "http://[::1]:8080",
            "http://[::1]",
        ] {
            assert_eq!(validate_origin(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "null",
            "app.example.com",
            "https://",
            "https://app.example.com/",
            "https://app.example.com/path",
            "https://*.example.com",
            "https://App.example.com",
            "https://user@example.com",
            "https://example.com:443",
            "http://example.com:80",
            "https://example.com:",
            "https://example.com:0",
            "https://example.com:99999",
            "https://exämple.com",
            "chrome-extension://abc",
            "https://a b",
        ] {
            assert!(validate_origin(bad).is_err(), "{bad}");
        }
    }
}
