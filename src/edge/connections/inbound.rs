//! The bytes of one HTTP/1 connection that have been read, by the request they belong to.
//!
//! Pingora keeps to itself what it has read of a header that it refuses, and of a body that it
//! accepts too readily. So the bytes of the header that is being read are copied here, and freed
//! once the request begins; a body's are only counted, or judged where they come in chunks. Must
//! not hold bytes back from Pingora.

use super::chunked::ChunkParser;
use crate::edge::framing::Flaw;
use crate::telemetry::refusals::RefusalReason;

/// What an HTTP/1 header says of its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyFraming {
    Length(u64),
    Chunked,
}

#[derive(Debug)]
enum Body {
    /// It is over, or there is none: what comes is the next header.
    None,
    Length(u64),
    Chunked(ChunkParser),
}

#[derive(Debug)]
pub struct Inbound {
    /// What has come of the present header, and of requests behind it that are not begun.
    unparsed: Vec<u8>,
    body: Body,
    flaw: Option<Flaw>,
}

impl Inbound {
    pub fn new() -> Self {
        Self {
            unparsed: Vec::new(),
            body: Body::None,
            flaw: None,
        }
    }

    /// The header that is being read, as far as it has come.
    pub fn header(&self) -> &[u8] {
        &self.unparsed
    }

    /// How the body that is being read is malformed.
    pub fn flaw(&self) -> Option<Flaw> {
        self.flaw
    }

    /// Bytes were read from the connection.
    ///
    /// # Errors
    /// They belong to a body that is malformed. Nothing behind them can be attributed to a request.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), Flaw> {
        if let Some(flaw) = self.flaw {
            return Err(flaw);
        }
        let of_body = self.body(bytes)?;
        if let Some(rest) = bytes.get(of_body..).filter(|rest| !rest.is_empty()) {
            self.unparsed.extend_from_slice(rest);
        }
        Ok(())
    }

    /// Pingora has parsed this header.
    ///
    /// # Errors
    /// What has come of the body already is malformed.
    pub fn begin_body(&mut self, header: &[u8], framing: BodyFraming) -> Result<(), Flaw> {
        let mut ahead = std::mem::take(&mut self.unparsed);
        let header_bytes = if ahead.starts_with(header) {
            header.len()
        } else {
            header_end(&ahead)
        };
        self.body = match framing {
            BodyFraming::Length(0) => Body::None,
            BodyFraming::Length(bytes) => Body::Length(bytes),
            BodyFraming::Chunked => Body::Chunked(ChunkParser::new()),
        };
        if ahead.len() <= header_bytes {
            return Ok(());
        }
        let of_body = self.body(&ahead[header_bytes..])?;
        // A request that came together with the one before.
        ahead.drain(..header_bytes + of_body);
        if !ahead.is_empty() {
            self.unparsed = ahead;
        }
        Ok(())
    }

    /// How many of `bytes` belong to the body.
    fn body(&mut self, bytes: &[u8]) -> Result<usize, Flaw> {
        let (taken, is_done) = match &mut self.body {
            Body::None => return Ok(0),
            Body::Length(left) => {
                let taken = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                *left -= taken as u64;
                (taken, *left == 0)
            }
            Body::Chunked(parser) => match parser.read(bytes) {
                Ok(taken) => (taken, parser.is_done()),
                Err(message) => {
                    let flaw = Flaw {
                        reason: RefusalReason::Chunk,
                        message,
                    };
                    self.flaw = Some(flaw);
                    return Err(flaw);
                }
            },
        };
        if is_done {
            self.body = Body::None;
        }
        Ok(taken)
    }
}

/// Where a header ends that Pingora has repaired before it parsed it.
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

    fn unparsed(inbound: &Inbound) -> &str {
        std::str::from_utf8(inbound.header()).unwrap()
    }

    #[test]
    fn each_byte_belongs_to_one_request_however_they_come() {
        let chunks = "5\r\nhello\r\n0\r\n\r\n";
        let bytes = format!("{HEADER}12345{HEADER}{chunks}{HEADER}");
        for pieces in [1, 2, 7, 31, 33, 40, bytes.len()] {
            let mut inbound = Inbound::new();
            let mut framings = vec![
                BodyFraming::Length(0),
                BodyFraming::Chunked,
                BodyFraming::Length(5),
            ];
            for piece in bytes.as_bytes().chunks(pieces) {
                inbound.read(piece).unwrap();
                // As Pingora does: the next header is parsed once the body before is over.
                while matches!(inbound.body, Body::None)
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
            assert!(matches!(inbound.body, Body::None));
        }
    }

    #[test]
    fn a_malformed_body_is_found_in_what_came_with_its_header_and_later() {
        let mut inbound = Inbound::new();
        inbound
            .read(format!("{HEADER}\r\nhello").as_bytes())
            .unwrap();
        let flaw = inbound
            .begin_body(HEADER.as_bytes(), BodyFraming::Chunked)
            .unwrap_err();
        assert_eq!(
            (flaw.reason, inbound.flaw()),
            (RefusalReason::Chunk, Some(flaw))
        );
        let mut inbound = Inbound::new();
        inbound.read(HEADER.as_bytes()).unwrap();
        inbound
            .begin_body(HEADER.as_bytes(), BodyFraming::Chunked)
            .unwrap();
        inbound.read(b"5\r\nhel").unwrap();
        assert!(inbound.read(b"lo5\r\n").is_err());
        assert!(inbound.read(b"0\r\n\r\n").is_err(), "it stays malformed");
    }
}
