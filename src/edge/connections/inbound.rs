//! Assigns the bytes that were read from one HTTP/1 connection to their requests.
//!
//! Pingora does not expose the bytes of a header that it refuses, and accepts malformed bodies. So
//! this file copies the bytes of the current header until the request begins. It counts the bytes
//! of a body, and parses them if the body is chunked. It must not withhold bytes from Pingora.

use super::chunked::ChunkParser;
use crate::edge::framing::RequestDefect;
use base::telemetry::refusals::RefusalReason;

/// Framing of the body, according to an HTTP/1 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyFraming {
    Length(u64),
    Chunked,
}

#[derive(Debug)]
enum BodyProgress {
    /// There is no body, or the body has ended. The next bytes are the next header.
    None,
    Length(u64),
    Chunked(ChunkParser),
}

#[derive(Debug)]
pub struct InboundTracker {
    /// Received bytes of the current header, and of later requests that have not begun.
    unparsed: Vec<u8>,
    body: BodyProgress,
    defect: Option<RequestDefect>,
}

impl InboundTracker {
    pub fn new() -> Self {
        Self {
            unparsed: Vec::new(),
            body: BodyProgress::None,
            defect: None,
        }
    }

    /// Returns the current header, as far as it has arrived.
    pub fn header(&self) -> &[u8] {
        &self.unparsed
    }

    /// Returns the defect of the current body, or `None` while the body is well formed.
    pub fn defect(&self) -> Option<RequestDefect> {
        self.defect
    }

    /// Processes bytes that were read from the connection.
    ///
    /// # Errors
    /// Returns the defect if the bytes belong to a malformed body. The bytes after it cannot be
    /// assigned to a request.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), RequestDefect> {
        if let Some(defect) = self.defect {
            return Err(defect);
        }
        let of_body = self.consume_body(bytes)?;
        if let Some(rest) = bytes.get(of_body..).filter(|rest| !rest.is_empty()) {
            self.unparsed.extend_from_slice(rest);
        }
        Ok(())
    }

    /// Begins the body of a header that Pingora has parsed.
    ///
    /// # Errors
    /// Returns the defect if the part of the body that has arrived is malformed.
    pub fn begin_body(&mut self, header: &[u8], framing: BodyFraming) -> Result<(), RequestDefect> {
        let mut ahead = std::mem::take(&mut self.unparsed);
        let header_bytes = if ahead.starts_with(header) {
            header.len()
        } else {
            header_end(&ahead)
        };
        self.body = match framing {
            BodyFraming::Length(0) => BodyProgress::None,
            BodyFraming::Length(bytes) => BodyProgress::Length(bytes),
            BodyFraming::Chunked => BodyProgress::Chunked(ChunkParser::new()),
        };
        if ahead.len() <= header_bytes {
            return Ok(());
        }
        let of_body = self.consume_body(&ahead[header_bytes..])?;
        // The remaining bytes are a request that arrived together with the previous one.
        ahead.drain(..header_bytes + of_body);
        if !ahead.is_empty() {
            self.unparsed = ahead;
        }
        Ok(())
    }

    /// Returns how many of `bytes` belong to the body.
    fn consume_body(&mut self, bytes: &[u8]) -> Result<usize, RequestDefect> {
        let (taken, is_done) = match &mut self.body {
            BodyProgress::None => return Ok(0),
            BodyProgress::Length(left) => {
                let taken = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                *left -= taken as u64;
                (taken, *left == 0)
            }
            BodyProgress::Chunked(parser) => match parser.read(bytes) {
                Ok(taken) => (taken, parser.is_done()),
                Err(message) => {
                    let defect = RequestDefect {
                        reason: RefusalReason::Chunk,
                        message,
                    };
                    self.defect = Some(defect);
                    return Err(defect);
                }
            },
        };
        if is_done {
            self.body = BodyProgress::None;
        }
        Ok(taken)
    }
}

/// Returns the offset at which the header ends. Pingora repairs some headers before it parses them,
/// so its own count does not apply.
fn header_end(bytes: &[u8]) -> usize {
    let begin = bytes
        .iter()
        .position(|byte| !matches!(byte, b'\r' | b'\n'))
        .unwrap_or(bytes.len());
    let end = bytes[begin..]
        .windows(4)
        .position(|window| window == b"\r\n\r\n");
    end.map_or(bytes.len(), |end| begin + end + 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "POST / HTTP/1.1\r\nhost: g\r\n\r\n";

    fn unparsed(inbound: &InboundTracker) -> &str {
        std::str::from_utf8(inbound.header()).unwrap()
    }

    #[test]
    fn each_byte_belongs_to_one_request_however_they_come() {
        let chunks = "5\r\nhello\r\n0\r\n\r\n";
        let bytes = format!("{HEADER}12345{HEADER}{chunks}{HEADER}");
        for pieces in [1, 2, 7, 31, 33, 40, bytes.len()] {
            let mut inbound = InboundTracker::new();
            let mut framings = vec![
                BodyFraming::Length(0),
                BodyFraming::Chunked,
                BodyFraming::Length(5),
            ];
            for piece in bytes.as_bytes().chunks(pieces) {
                inbound.read(piece).unwrap();
                // Like Pingora, parse the next header once the previous body has ended.
                while matches!(inbound.body, BodyProgress::None)
                    && inbound.header().starts_with(HEADER.as_bytes())
                {
                    inbound
                        .begin_body(HEADER.as_bytes(), framings.pop().unwrap())
                        .unwrap();
                }
            }
            assert_eq!(
                (framings.len(), unparsed(&inbound)),
                (0, ""),
                "in pieces of {pieces}"
            );
            assert!(matches!(inbound.body, BodyProgress::None));
        }
    }

    #[test]
    fn a_malformed_body_is_found_in_what_came_with_its_header_and_later() {
        let mut inbound = InboundTracker::new();
        inbound
            .read(format!("{HEADER}\r\nhello").as_bytes())
            .unwrap();
        let defect = inbound
            .begin_body(HEADER.as_bytes(), BodyFraming::Chunked)
            .unwrap_err();
        assert_eq!(
            (defect.reason, inbound.defect()),
            (RefusalReason::Chunk, Some(defect))
        );
        let mut inbound = InboundTracker::new();
        inbound.read(HEADER.as_bytes()).unwrap();
        inbound
            .begin_body(HEADER.as_bytes(), BodyFraming::Chunked)
            .unwrap();
        inbound.read(b"5\r\nhel").unwrap();
        assert!(inbound.read(b"lo5\r\n").is_err());
        assert!(inbound.read(b"0\r\n\r\n").is_err(), "it stays malformed");
    }
}
