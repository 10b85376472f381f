//! Checks that a request has only one interpretation: its request line, the framing of its body,
//! the size of its header, its path.
//!
//! Pingora repairs what RFC 9112 lets a server repair (two framings, bare line feeds, a target with
//! spaces in it). A proxy between the client and this gateway may have repaired it differently, and
//! then one of the two sees a request that the other does not. So the gateway refuses ambiguous
//! requests here, and closes their connections. This file must not look at keys or bodies.

use super::route::{MODELS_PREFIX, decode_model_id};
use base::telemetry::refusals::RefusalReason;
use config::Limits;
use http::{HeaderValue, Version, header};
use llm_protocol::failure::{Failure, Kind};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::ServerSession;
use pingora::proxy::Session;

/// Number of bytes that HTTP/2 counts for a field in addition to its name and value.
const FIELD_OVERHEAD: usize = 32;

/// Header fields that apply only between the client and this process.
const HOP_HEADERS: [&str; 5] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "upgrade",
    "http2-settings",
];

/// Returns whether the client asks for a WebSocket. One terminal agent does so: after a 426 it
/// sends plain requests at once, but after any other status it retries for seconds.
pub fn asks_for_web_socket(header: &RequestHeader) -> bool {
    header
        .headers
        .get(header::UPGRADE)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Replaces a target in absolute form by the path in it (RFC 9112 section 3.2.2): clients that use
/// a forward proxy send `GET http://HOST/PATH`. Pingora refuses such a target if its host differs
/// from the host field.
pub fn use_origin_form(head: &mut RequestHeader) {
    let target = head.raw_path();
    let is_absolute = ["http://", "https://"].iter().any(|scheme| {
        let start = target.get(..scheme.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(scheme.as_bytes()))
    });
    if is_absolute {
        let path = head.uri.path_and_query().cloned();
        let path = path.as_ref().map_or("/", |path| path.as_str());
        // If the call fails, `check_target` refuses the unchanged target.
        let _ = head.set_raw_path(path.as_bytes());
    }
}

/// Makes the body of a response to an HTTP/1.0 client end with the connection. Such a client cannot
/// read chunks.
pub fn remove_chunks_for_http_1_0(client: Version, response: &mut ResponseHeader) {
    if client < Version::HTTP_11 {
        response.remove_header(&header::TRANSFER_ENCODING);
    }
}

/// Removes the hop-by-hop header fields, and returns whether the client closes the connection. A
/// client may list a field in `connection` that only the gateway may set; without this call, the
/// field would be removed from the gateway's own request. The gateway does not support protocol
/// upgrades.
pub fn remove_hop_headers(session: &mut Session) -> bool {
    let head = session.req_header_mut();
    let says_close = |value: &HeaderValue| {
        value
            .as_bytes()
            .split(|byte| *byte == b',')
            .any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
    };
    let closes = head.version < Version::HTTP_11
        || head
            .headers
            .get_all(header::CONNECTION)
            .iter()
            .any(says_close);
    for name in HOP_HEADERS {
        head.remove_header(name);
    }
    closes
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestDefect {
    pub reason: RefusalReason,
    /// Sentence for the client.
    pub message: &'static str,
}

impl From<RequestDefect> for Failure {
    fn from(defect: RequestDefect) -> Self {
        Failure::new(Kind::InvalidRequest, defect.message)
    }
}

/// Returns the defect of a header that Pingora did not accept, judged by the part that has arrived.
pub fn header_defect(raw: &[u8]) -> RequestDefect {
    let (method, target, version) = first_line_words(raw);
    let is_method = !method.is_empty() && method.iter().all(u8::is_ascii_uppercase);
    if !is_method || target.is_empty() || !matches!(version, b"HTTP/1.1" | b"HTTP/1.0") {
        return defect(RefusalReason::RequestLine, MALFORMED_FIRST_LINE);
    }
    let end = raw
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let is_whole = raw[..end].windows(4).any(|bytes| bytes == b"\r\n\r\n");
    let version = if version == b"HTTP/1.0" {
        Version::HTTP_10
    } else {
        Version::HTTP_11
    };
    match check_header(&raw[..end], version) {
        // In an incomplete header, a field may be missing only because it has not arrived.
        Err(defect) if is_whole || defect.reason != RefusalReason::Host => defect,
        Ok(()) if is_whole && !target.starts_with(b"/") => defect(
            RefusalReason::Host,
            "The host in the request's target is malformed, or differs from the host field.",
        ),
        _ => header_field("The request's header is malformed."),
    }
}

/// Returns the method, target and version of a header, from the part that has arrived. Missing
/// words are empty.
pub fn first_line_words(raw: &[u8]) -> (&[u8], &[u8], &[u8]) {
    let line = raw
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii_end)
        .find(|line| !line.is_empty());
    let mut words = line.unwrap_or_default().splitn(3, |byte| *byte == b' ');
    let mut word = || words.next().unwrap_or_default();
    (word(), word(), word())
}

/// Checks that a request has only one interpretation.
///
/// # Errors
/// Returns 400 if the request is ambiguous and 431 if its header is too large, with the reason
/// under which the metrics count the refusal.
pub fn validate(session: &Session, limits: &Limits) -> Result<(), (RefusalReason, Box<Failure>)> {
    let refused = |defect: RequestDefect| (defect.reason, Box::new(Failure::from(defect)));
    let head = session.req_header();
    let size = match session.downstream_session.as_ref() {
        ServerSession::H1(h1) => {
            let raw = h1.get_headers_raw_bytes();
            check_header(&raw, head.version).map_err(refused)?;
            raw.len()
        }
        _ => head
            .headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + FIELD_OVERHEAD)
            .sum(),
    };
    if size as u64 > limits.header_bytes || head.headers.len() as u64 > limits.header_fields {
        let failure = Failure::new(
            Kind::HeaderTooLarge,
            format!(
                "The request's header is larger than {} bytes or {} fields.",
                limits.header_bytes, limits.header_fields
            ),
        );
        return Err((RefusalReason::HeaderTooLarge, Box::new(failure)));
    }
    check_target(head).map_err(refused)
}

fn defect(reason: RefusalReason, message: &'static str) -> RequestDefect {
    RequestDefect { reason, message }
}

fn header_field(message: &'static str) -> RequestDefect {
    defect(RefusalReason::HeaderField, message)
}

fn body_framing(message: &'static str) -> RequestDefect {
    defect(RefusalReason::Framing, message)
}

const MALFORMED_FIRST_LINE: &str = "The request's first line is not `METHOD TARGET VERSION`.";

/// Checks that an HTTP/1 header has only one interpretation as it arrived.
fn check_header(raw: &[u8], version: Version) -> Result<(), RequestDefect> {
    let mut seen = FramingFields::default();
    let mut has_begun = false;
    for line in raw.split_inclusive(|byte| *byte == b'\n') {
        let line = line
            .strip_suffix(b"\r\n")
            .ok_or_else(|| header_field("A line of the request's header does not end in CRLF."))?;
        match (line.is_empty(), has_begun) {
            // Some clients end a body with a line break that does not belong to it.
            (true, false) => {}
            (true, true) => break,
            (false, false) => {
                check_first_line(line)?;
                has_begun = true;
            }
            (false, true) => seen.add_field(line)?,
        }
    }
    seen.validate(version)
}

fn check_first_line(line: &[u8]) -> Result<(), RequestDefect> {
    let spaces = line.iter().filter(|byte| **byte == b' ').count();
    if spaces == 2 && line.iter().all(|byte| (0x20..0x7f).contains(byte)) {
        return Ok(());
    }
    Err(defect(RefusalReason::RequestLine, MALFORMED_FIRST_LINE))
}

/// The fields that define where a request ends and which host it addresses.
#[derive(Default)]
struct FramingFields<'a> {
    lengths: usize,
    length: &'a [u8],
    codings: usize,
    coding: &'a [u8],
    hosts: usize,
}

impl<'a> FramingFields<'a> {
    fn add_field(&mut self, line: &'a [u8]) -> Result<(), RequestDefect> {
        if line.iter().any(|byte| *byte == b'\r' || *byte == 0) {
            return Err(header_field(
                "A line of the request's header contains a control character.",
            ));
        }
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            return Err(header_field(
                "A field of the request's header continues on a second line.",
            ));
        }
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().unwrap_or_default();
        let value = parts
            .next()
            .ok_or_else(|| header_field("A line of the request's header has no colon."))?
            .trim_ascii();
        if name.eq_ignore_ascii_case(b"content-length") {
            self.lengths += 1;
            self.length = value;
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.codings += 1;
            self.coding = value;
        } else if name.eq_ignore_ascii_case(b"host") {
            self.hosts += 1;
        }
        Ok(())
    }

    fn validate(&self, version: Version) -> Result<(), RequestDefect> {
        if self.lengths + self.codings > 1 {
            return Err(body_framing(
                "The request frames its body twice: send one content-length or one transfer-encoding.",
            ));
        }
        let is_number = |text: &[u8]| {
            let digits = std::str::from_utf8(text)
                .ok()
                .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            digits.is_some_and(|digits| digits.parse::<u64>().is_ok())
        };
        if self.lengths == 1 && !is_number(self.length) {
            return Err(body_framing(
                "The request's content-length is not a number.",
            ));
        }
        if self.codings == 1 && !self.coding.eq_ignore_ascii_case(b"chunked") {
            return Err(body_framing(
                "The request's transfer-encoding is not `chunked`.",
            ));
        }
        if version == Version::HTTP_11 {
            return if self.hosts == 1 {
                Ok(())
            } else {
                Err(defect(
                    RefusalReason::Host,
                    "The request must have exactly one host field.",
                ))
            };
        }
        // RFC 9112 section 6.1 requires that such a request is treated as if its framing were
        // faulty.
        if self.codings > 0 {
            return Err(body_framing(
                "An HTTP/1.0 request has no transfer-encoding. Send a content-length, or use HTTP/1.1.",
            ));
        }
        Ok(())
    }
}

/// Checks that all parsers read the target as the same path.
fn check_target(head: &RequestHeader) -> Result<(), RequestDefect> {
    // HTTP/2 carries the authority separately, HTTP/1 in the host field.
    if head.version != Version::HTTP_2 && !head.raw_path().starts_with(b"/") {
        return Err(defect(
            RefusalReason::Path,
            "The request's target is not a path.",
        ));
    }
    let path = head.uri.path();
    // A model's id may contain a slash, which clients escape in the path. Check the path
    // in the form that the lookup of the model uses.
    let below = ["/v1/v1", "/v1", ""]
        .into_iter()
        .find_map(|before| path.strip_prefix(before)?.strip_prefix(MODELS_PREFIX));
    let decoded_path = below.map(|id| format!("{}{}", MODELS_PREFIX, decode_model_id(id)));
    if is_unambiguous_path(decoded_path.as_deref().unwrap_or(path)) {
        Ok(())
    } else {
        Err(defect(
            RefusalReason::Path,
            "The request's path is ambiguous.",
        ))
    }
}

/// Returns whether the path can be compared with another path as text, because it has nothing to
/// resolve or decode.
fn is_unambiguous_path(path: &str) -> bool {
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        let is_plain = match byte {
            b'%' => is_plain_escape(bytes.next(), bytes.next()),
            b';' | b'\\' => false,
            byte => byte.is_ascii_graphic(),
        };
        if !is_plain {
            return false;
        }
    }
    !path.contains("//") && !path.split('/').any(|part| part == "." || part == "..")
}

/// Returns whether `%XX` encodes a character that must be escaped and that is not a separator.
fn is_plain_escape(high: Option<u8>, low: Option<u8>) -> bool {
    let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
    let (Some(high), Some(low)) = (digit(high), digit(low)) else {
        return false;
    };
    let Ok(byte) = u8::try_from(high * 16 + low) else {
        return false;
    };
    (0x20..0x7f).contains(&byte)
        && !byte.is_ascii_alphanumeric()
        && !matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/' | b'\\' | b';' | b'%')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(head: &str) -> bool {
        check_header(head.as_bytes(), Version::HTTP_11).is_ok()
    }

    #[test]
    fn a_header_has_one_framing_one_host_and_proper_line_ends() {
        let line = "POST /v1/messages HTTP/1.1\r\nHost: a\r\n";
        assert!(plain(&format!("{line}\r\n")));
        assert!(plain(&format!("\r\n{line}Content-Length: 5\r\n\r\n")));
        assert!(plain(&format!("{line}transfer-encoding: Chunked\r\n\r\n")));
        for fields in [
            "content-length: 5\r\ntransfer-encoding: chunked\r\n",
            "content-length: 5\r\ncontent-length: 5\r\n",
            "content-length: 5, 5\r\n",
            "content-length: +5\r\n",
            "content-length:\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "x: 1\n",
            "x: 1\r2\r\n",
            "x: 1\r\n 2\r\n",
            "x\r\n",
            "host: a\r\n",
        ] {
            assert!(!plain(&format!("{line}{fields}\r\n")), "{fields:?}");
        }
        assert!(!plain("POST /v1/messages HTTP/1.1\r\n\r\n"), "no host");
        assert!(!plain("POST /v1/messages x HTTP/1.1\r\nhost: a\r\n\r\n"));
    }

    #[test]
    fn a_request_of_http_1_0_has_a_body_of_one_known_length() {
        let with = |fields: &str| {
            check_header(
                format!("GET / HTTP/1.0\r\n{fields}\r\n").as_bytes(),
                Version::HTTP_10,
            )
        };
        assert_eq!(with(""), Ok(()));
        assert_eq!(with("content-length: 0\r\n"), Ok(()));
        assert_eq!(with("content-length: 10\r\n"), Ok(()));
        assert!(with("content-length: 10\r\ncontent-length: 10\r\n").is_err());
        assert!(with("transfer-encoding: chunked\r\n").is_err());
    }

    #[test]
    fn a_path_that_must_be_resolved_or_decoded_first_is_refused() {
        for path in [
            "/",
            "/v1/chat/completions",
            "/account/keys",
            "/models/a:b@c",
            "/models/a%20b",
            "/models/a%3Ab",
        ] {
            assert!(is_unambiguous_path(path), "{path}");
        }
        for path in [
            "//v1/messages",
            "/v1//messages",
            "/v1/./messages",
            "/x/../v1/messages",
            "/v1/messages;x=1",
            "/v1\\messages",
            "/v1%2fmessages",
            "/v1/%2e%2e/x",
            "/%761/messages",
            "/v1/%",
            "/v1/%0",
            "/v1/%zz",
            "/v1/%00",
            "/v1/%c0%ae",
            "/v1/messages/..",
            "/v1/%252e",
            "/v1/%5c",
            "/v1/%3b",
        ] {
            assert!(!is_unambiguous_path(path), "{path}");
        }
    }
}
