//! Whether a request can be understood in one way only: its line, the framing of its body, its header's size, its path.
//!
//! Pingora repairs what RFC 9112 lets a server repair (two framings, bare line feeds, a target with spaces in it). Who
//! stands between a client and this gateway may have repaired it otherwise, and then one of the two sees a request that
//! the other does not: so what is not plain is refused here, and its connection with it. Must not look at keys or bodies.

use super::own;
use crate::config::Limits;
use crate::protocol::failure::{Failure, Kind};
use http::{HeaderValue, Version, header};
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use pingora::proxy::Session;

/// What HTTP/2 counts for a field beyond its name and value.
const FIELD_OVERHEAD: usize = 32;

/// Fields that are between the client and this process.
const HOP: [&str; 5] = ["connection", "keep-alive", "proxy-connection", "upgrade", "http2-settings"];

/// Takes away what ends at this hop, and says whether the connection does. A field that `connection` names would be
/// taken from what we send on, and it may name those that we alone may say; nobody here speaks what could be upgraded to.
pub fn end_hop(session: &mut Session) -> bool {
    let head = session.req_header_mut();
    let says_close = |value: &HeaderValue| {
        value.as_bytes().split(|byte| *byte == b',').any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
    };
    let closes = head.version < Version::HTTP_11 || head.headers.get_all(header::CONNECTION).iter().any(says_close);
    for name in HOP {
        head.remove_header(name);
    }
    closes
}

/// # Errors
/// 400 where the request could be read in two ways, 431 where its header is too large.
pub fn judge(session: &Session, limits: &Limits) -> Result<(), Failure> {
    let head = session.req_header();
    let size = match session.downstream_session.as_ref() {
        ServerSession::H1(h1) => {
            let raw = h1.get_headers_raw_bytes();
            is_plain(&raw, head.version).map_err(refused)?;
            raw.len()
        }
        _ => head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD_OVERHEAD).sum(),
    };
    if size as u64 > limits.header_bytes || head.headers.len() as u64 > limits.header_fields {
        return Err(Failure::new(
            Kind::HeaderTooLarge,
            format!(
                "The request's header is larger than {} bytes or {} fields.",
                limits.header_bytes, limits.header_fields
            ),
        ));
    }
    one_target(head).map_err(refused)
}

fn refused(why: &'static str) -> Failure {
    Failure::new(Kind::InvalidRequest, why)
}

/// Whether an HTTP/1 header, as it came, has one reading.
fn is_plain(raw: &[u8], version: Version) -> Result<(), &'static str> {
    let mut seen = Framing::default();
    let mut has_begun = false;
    for line in raw.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r\n").ok_or("A line of the request's header does not end in CRLF.")?;
        match (line.is_empty(), has_begun) {
            // Some clients end a body with a line end that is none of it.
            (true, false) => {}
            (true, true) => break,
            (false, false) => {
                is_first_line(line)?;
                has_begun = true;
            }
            (false, true) => seen.field(line)?,
        }
    }
    seen.judge(version)
}

fn is_first_line(line: &[u8]) -> Result<(), &'static str> {
    let spaces = line.iter().filter(|byte| **byte == b' ').count();
    if spaces == 2 && line.iter().all(|byte| (0x20..0x7f).contains(byte)) {
        return Ok(());
    }
    Err("The request's first line is not `METHOD TARGET VERSION`.")
}

/// The fields that say where a request ends and for whom it is.
#[derive(Default)]
struct Framing<'a> {
    lengths: usize,
    length: &'a [u8],
    codings: usize,
    coding: &'a [u8],
    hosts: usize,
}

impl<'a> Framing<'a> {
    fn field(&mut self, line: &'a [u8]) -> Result<(), &'static str> {
        if line.iter().any(|byte| *byte == b'\r' || *byte == 0) {
            return Err("A line of the request's header holds a control character.");
        }
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            return Err("A field of the request's header goes on in a second line.");
        }
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().unwrap_or_default();
        let value = parts.next().ok_or("A line of the request's header has no colon.")?.trim_ascii();
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

    fn judge(&self, version: Version) -> Result<(), &'static str> {
        if self.lengths + self.codings > 1 {
            return Err("The request's body is framed twice.");
        }
        if self.lengths == 1 && (self.length.is_empty() || !self.length.iter().all(u8::is_ascii_digit)) {
            return Err("The request's content-length is no number.");
        }
        if self.codings == 1 && !self.coding.eq_ignore_ascii_case(b"chunked") {
            return Err("The request's transfer-encoding is not `chunked`.");
        }
        if version == Version::HTTP_11 {
            return if self.hosts == 1 { Ok(()) } else { Err("The request has not exactly one host field.") };
        }
        // Proxies that speak HTTP/1.0 disagree about what a body's end is.
        if self.codings > 0 || self.length.iter().any(|digit| *digit != b'0') {
            return Err("A request of HTTP/1.0 has no body here.");
        }
        Ok(())
    }
}

/// Whether the target is a path that every reader takes for the same one.
fn one_target(head: &RequestHeader) -> Result<(), &'static str> {
    // HTTP/2 says the authority apart, HTTP/1 in its host field.
    if head.version != Version::HTTP_2 && !head.raw_path().starts_with(b"/") {
        return Err("The request's target is not a path.");
    }
    let path = head.uri.path();
    // A model's id may hold a slash, which clients escape there: judged as it is looked up.
    let below =
        ["/v1/v1", "/v1", ""].into_iter().find_map(|before| path.strip_prefix(before)?.strip_prefix(own::MODELS_BELOW));
    let looked_up = below.map(|id| format!("{}{}", own::MODELS_BELOW, own::model_id(id)));
    if is_one_path(looked_up.as_deref().unwrap_or(path)) {
        Ok(())
    } else {
        Err("The request's path could be read in more than one way.")
    }
}

/// Whether nothing in a path has to be resolved, or decoded, before it can be compared with another.
fn is_one_path(path: &str) -> bool {
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

/// Whether `%XX` stands for a character that cannot be written otherwise, and that parts nothing.
fn is_plain_escape(high: Option<u8>, low: Option<u8>) -> bool {
    let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
    let (Some(high), Some(low)) = (digit(high), digit(low)) else { return false };
    let Ok(byte) = u8::try_from(high * 16 + low) else { return false };
    (0x20..0x7f).contains(&byte)
        && !byte.is_ascii_alphanumeric()
        && !matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/' | b'\\' | b';' | b'%')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(head: &str) -> bool {
        is_plain(head.as_bytes(), Version::HTTP_11).is_ok()
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
    fn a_request_of_http_1_0_has_no_body() {
        let with = |fields: &str| is_plain(format!("GET / HTTP/1.0\r\n{fields}\r\n").as_bytes(), Version::HTTP_10);
        assert_eq!(with(""), Ok(()));
        assert_eq!(with("content-length: 0\r\n"), Ok(()));
        assert!(with("content-length: 10\r\n").is_err());
        assert!(with("transfer-encoding: chunked\r\n").is_err());
    }

    #[test]
    fn a_path_that_must_be_resolved_or_decoded_first_is_refused() {
        for path in ["/", "/v1/chat/completions", "/account/keys", "/models/a:b@c", "/models/a%20b", "/models/a%3Ab"] {
            assert!(is_one_path(path), "{path}");
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
            assert!(!is_one_path(path), "{path}");
        }
    }
}
