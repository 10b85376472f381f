//! Defines the reasons for refusals below the level of a request, and their metric labels.
//!
//! This file must not count or log a refusal: `refusals.rs` does.

/// Reason for a refusal. It is a label of `gateway_malformed_total` and
/// `gateway_connections_refused_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalReason {
    /// The first line of an HTTP/1 request is malformed.
    RequestLine,
    HeaderField,
    /// The end of the body is ambiguous.
    Framing,
    Host,
    Path,
    HeaderTooLarge,
    /// The header began but was not complete in time.
    HeaderTimeout,
    /// The client closed the connection within a header.
    HeaderIncomplete,
    /// No byte arrived in time on a new connection.
    Silent,
    /// The framing of a chunked body is malformed.
    Chunk,
    /// The HTTP/2 connection does not begin with the preface.
    Http2Preface,
    /// The connection was closed because of an HTTP/2 error.
    Http2Connection,
    /// The stream was reset or refused because of an HTTP/2 error.
    Http2Stream,
    /// The connection or stream was closed because of a flood of HTTP/2 frames.
    Http2Flood,
    TlsHandshake,
    /// The admin listener answered a request with a status of 400 to 499.
    AdminListener,
    /// The sidecar's address got a request that did not come through this process's edge, and
    /// answered it with a status of 400 to 499.
    SidecarListener,
    ConnectionsPerAddress,
    ConnectionsTotal,
}

impl RefusalReason {
    pub const ALL: [RefusalReason; 19] = [
        RefusalReason::RequestLine,
        RefusalReason::HeaderField,
        RefusalReason::Framing,
        RefusalReason::Host,
        RefusalReason::Path,
        RefusalReason::HeaderTooLarge,
        RefusalReason::HeaderTimeout,
        RefusalReason::HeaderIncomplete,
        RefusalReason::Silent,
        RefusalReason::Chunk,
        RefusalReason::Http2Preface,
        RefusalReason::Http2Connection,
        RefusalReason::Http2Stream,
        RefusalReason::Http2Flood,
        RefusalReason::TlsHandshake,
        RefusalReason::AdminListener,
        RefusalReason::SidecarListener,
        RefusalReason::ConnectionsPerAddress,
        RefusalReason::ConnectionsTotal,
    ];

    /// Returns the value of the metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            RefusalReason::RequestLine => "request_line",
            RefusalReason::HeaderField => "header_field",
            RefusalReason::Framing => "framing",
            RefusalReason::Host => "host",
            RefusalReason::Path => "path",
            RefusalReason::HeaderTooLarge => "header_too_large",
            RefusalReason::HeaderTimeout => "header_timeout",
            RefusalReason::HeaderIncomplete => "header_incomplete",
            RefusalReason::Silent => "silent",
            RefusalReason::Chunk => "chunk",
            RefusalReason::Http2Preface => "http2_preface",
            RefusalReason::Http2Connection => "http2_connection",
            RefusalReason::Http2Stream => "http2_stream",
            RefusalReason::Http2Flood => "http2_flood",
            RefusalReason::TlsHandshake => "tls_handshake",
            RefusalReason::AdminListener => "admin_listener",
            RefusalReason::SidecarListener => "sidecar_listener",
            RefusalReason::ConnectionsPerAddress => "per_address",
            RefusalReason::ConnectionsTotal => "total",
        }
    }

    /// Returns whether `gateway_connections_refused_total` counts this reason.
    pub fn is_limit(self) -> bool {
        matches!(
            self,
            RefusalReason::ConnectionsPerAddress | RefusalReason::ConnectionsTotal
        )
    }
}
