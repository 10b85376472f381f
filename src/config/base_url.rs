//! Parses the URL of a vendor or of a trace collector.
//!
//! Must not resolve a name or open a connection.

/// The parts of an `http://` or `https://` URL.
pub(super) struct BaseUrl {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    pub authority: String,
    /// Without a trailing slash.
    pub path: String,
}

/// Parses a URL. `None` if it has another scheme, no host, a query or user information.
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
