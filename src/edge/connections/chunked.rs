//! Parses the framing of a chunked body strictly. It accepts RFC 9112 §7.1 without the deviations
//! that the RFC tolerates.
//!
//! Pingora's reader accepts a chunk without a size, blanks after the size, control characters in an
//! extension and trailers that are not fields. A proxy in front may read those differently, and
//! then one of the two sees a request that the other does not. So each byte passes through this
//! parser before Pingora acts on it. This file must not keep a body's bytes.

/// Maximum number of digits in a chunk's size.
const MAX_SIZE_DIGITS: u8 = 16;
/// Maximum size of a chunk in bytes: far above the largest `limits.body_bytes` that the config
/// allows. Pingora would accept a chunk of any size and wait for its bytes.
const MAX_CHUNK_BYTES: u64 = 1 << 40;
/// Maximum number of bytes in one chunk's extension.
const MAX_EXTENSION_BYTES: u16 = 256;
const MAX_TRAILER_BYTES: u16 = 8_192;
/// Maximum number of framing bytes in a body in excess of the allowance, which is
/// [`FREE_BYTES_PER_CHUNK`] per chunk plus the number of data bytes.
const MAX_EXCESS_BYTES: i64 = 16_384;
const FREE_BYTES_PER_CHUNK: i64 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ChunkState {
    Size {
        digits: u8,
    },
    Extension {
        bytes: u16,
    },
    SizeLineFeed,
    Data,
    DataReturn,
    DataLineFeed,
    /// The next byte begins a trailer, or the empty line that ends the body.
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLineFeed,
    LastLineFeed,
    Done,
}

/// Parser for the chunked body of one request.
#[derive(Debug)]
pub struct ChunkParser {
    state: ChunkState,
    /// The chunk size parsed so far; within the data, the number of data bytes still missing.
    left: u64,
    trailer_bytes: u16,
    excess_bytes: i64,
}

impl ChunkParser {
    pub fn new() -> Self {
        Self {
            state: ChunkState::Size { digits: 0 },
            left: 0,
            trailer_bytes: 0,
            excess_bytes: 0,
        }
    }

    pub fn is_done(&self) -> bool {
        self.state == ChunkState::Done
    }

    /// Parses the next bytes, and returns how many of `bytes` belong to the body.
    ///
    /// # Errors
    /// Returns a sentence for the client that says how the body is malformed.
    pub fn read(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        let mut at = 0;
        while at < bytes.len() && self.state != ChunkState::Done {
            if self.state == ChunkState::Data {
                let skipped = usize::try_from(self.left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len() - at);
                self.left -= skipped as u64;
                at += skipped;
                if self.left == 0 {
                    self.state = ChunkState::DataReturn;
                }
                continue;
            }
            self.state = self.step(bytes[at])?;
            at += 1;
        }
        Ok(at)
    }

    fn step(&mut self, byte: u8) -> Result<ChunkState, &'static str> {
        match self.state {
            ChunkState::Size { digits } => self.size(byte, digits),
            ChunkState::Extension { bytes } => {
                self.excess_bytes += 1;
                extension(byte, bytes)
            }
            ChunkState::SizeLineFeed => {
                line_feed(byte)?;
                self.begin_chunk()
            }
            ChunkState::DataReturn => match byte {
                b'\r' => Ok(ChunkState::DataLineFeed),
                _ => Err("A chunk of the request's body is longer than its size."),
            },
            ChunkState::DataLineFeed => line_feed(byte).map(|()| ChunkState::Size { digits: 0 }),
            ChunkState::TrailerStart => match byte {
                b'\r' => Ok(ChunkState::LastLineFeed),
                byte if is_token(byte) => self.trailer(ChunkState::TrailerName),
                _ => Err(MALFORMED_TRAILER),
            },
            ChunkState::TrailerName => match byte {
                b':' => self.trailer(ChunkState::TrailerValue),
                byte if is_token(byte) => self.trailer(ChunkState::TrailerName),
                _ => Err(MALFORMED_TRAILER),
            },
            ChunkState::TrailerValue => match byte {
                b'\r' => Ok(ChunkState::TrailerLineFeed),
                byte if is_text(byte) => self.trailer(ChunkState::TrailerValue),
                _ => Err(MALFORMED_TRAILER),
            },
            ChunkState::TrailerLineFeed => line_feed(byte).map(|()| ChunkState::TrailerStart),
            ChunkState::LastLineFeed => line_feed(byte).map(|()| ChunkState::Done),
            ChunkState::Data | ChunkState::Done => Ok(self.state),
        }
    }

    fn size(&mut self, byte: u8, digits: u8) -> Result<ChunkState, &'static str> {
        let digit = char::from(byte).to_digit(16);
        match (digit, byte) {
            (Some(_), _) if digits == MAX_SIZE_DIGITS => {
                Err("A chunk's size in the request's body has too many digits.")
            }
            (Some(digit), _) => {
                self.left = if digits == 0 { 0 } else { self.left } << 4 | u64::from(digit);
                self.excess_bytes += 1;
                Ok(ChunkState::Size { digits: digits + 1 })
            }
            (None, _) if digits == 0 => Err("A chunk of the request's body has no size."),
            (None, b';') => Ok(ChunkState::Extension { bytes: 0 }),
            (None, b'\r') => Ok(ChunkState::SizeLineFeed),
            (None, _) => Err("A chunk's size in the request's body is followed by something else."),
        }
    }

    /// Begins a chunk once the line with its size is complete.
    fn begin_chunk(&mut self) -> Result<ChunkState, &'static str> {
        if self.left == 0 {
            return Ok(ChunkState::TrailerStart);
        }
        if self.left > MAX_CHUNK_BYTES {
            return Err("A chunk of the request's body is larger than any body may be.");
        }
        let size = i64::try_from(self.left).unwrap_or(i64::MAX);
        self.excess_bytes = self
            .excess_bytes
            .saturating_sub(FREE_BYTES_PER_CHUNK)
            .saturating_sub(size)
            .max(0);
        if self.excess_bytes > MAX_EXCESS_BYTES {
            return Err("The request's body has more framing than data.");
        }
        Ok(ChunkState::Data)
    }

    fn trailer(&mut self, next: ChunkState) -> Result<ChunkState, &'static str> {
        self.trailer_bytes += 1;
        if self.trailer_bytes > MAX_TRAILER_BYTES {
            Err("The trailers of the request are too long.")
        } else {
            Ok(next)
        }
    }
}

const MALFORMED_TRAILER: &str = "A trailer of the request is malformed.";

fn extension(byte: u8, bytes: u16) -> Result<ChunkState, &'static str> {
    match byte {
        b'\r' => Ok(ChunkState::SizeLineFeed),
        byte if !is_text(byte) => {
            Err("A chunk's extension in the request's body contains a control character.")
        }
        _ if bytes == MAX_EXTENSION_BYTES => {
            Err("A chunk's extension in the request's body is too long.")
        }
        _ => Ok(ChunkState::Extension { bytes: bytes + 1 }),
    }
}

fn line_feed(byte: u8) -> Result<(), &'static str> {
    if byte == b'\n' {
        Ok(())
    } else {
        Err("A line of the request's chunked body does not end in CRLF.")
    }
}

fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many bytes belong to the body. `None` if it does not end.
    fn read(bytes: &[u8], pieces: usize) -> Result<Option<usize>, &'static str> {
        let mut parser = ChunkParser::new();
        let mut total = 0;
        for piece in bytes.chunks(pieces) {
            let taken = parser.read(piece)?;
            total += taken;
            if parser.is_done() {
                return Ok(Some(total));
            }
            assert_eq!(taken, piece.len());
        }
        Ok(None)
    }

    #[track_caller]
    fn body(text: &str) -> Result<Option<usize>, &'static str> {
        let whole = read(text.as_bytes(), text.len().max(1));
        for pieces in 1..8 {
            assert_eq!(
                read(text.as_bytes(), pieces),
                whole,
                "{text:?} in pieces of {pieces}"
            );
        }
        whole
    }

    #[test]
    fn a_proper_body_ends_where_it_says() {
        for text in [
            "0\r\n\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
            "5\r\nhello\r\nA\r\n0123456789\r\n000\r\n\r\n",
            "5;a=1;b=\"x y\"\r\nhello\r\n0;last\r\n\r\n",
            "1\r\n\n\r\n0\r\nx-checksum: 1\r\nempty:\r\n\r\n",
            "0000000000000005\r\nhello\r\n0\r\n\r\n",
        ] {
            assert_eq!(body(text), Ok(Some(text.len())), "{text:?}");
            assert_eq!(
                body(&format!("{text}POST / HTTP/1.1\r\n")),
                Ok(Some(text.len())),
                "{text:?}"
            );
            assert_eq!(body(&text[..text.len() - 1]), Ok(None), "{text:?}");
        }
    }

    #[test]
    fn what_two_readers_could_read_otherwise_is_refused() {
        for text in [
            "\r\nhello\r\n0\r\n\r\n",
            "5 \r\nhello\r\n0\r\n\r\n",
            "5\t\r\nhello\r\n0\r\n\r\n",
            " 5\r\nhello\r\n0\r\n\r\n",
            "5 ;a\r\nhello\r\n0\r\n\r\n",
            "5\nhello\r\n0\r\n\r\n",
            "5\r\rhello\r\n0\r\n\r\n",
            "5;\0\r\nhello\r\n0\r\n\r\n",
            "5;a\x01\r\nhello\r\n0\r\n\r\n",
            "5;a\x7f\r\nhello\r\n0\r\n\r\n",
            "5;a\nhello\r\n0\r\n\r\n",
            "5;a\rb\r\nhello\r\n0\r\n\r\n",
            "0x5\r\nhello\r\n0\r\n\r\n",
            "-5\r\nhello\r\n0\r\n\r\n",
            "5_\r\nhello\r\n0\r\n\r\n",
            "3\r\nhello\r\n0\r\n\r\n",
            "5\r\nhello\n0\r\n\r\n",
            "5\r\nhello\r\n0\r\nno colon\r\n\r\n",
            "5\r\nhello\r\n0\r\n: no name\r\n\r\n",
            "5\r\nhello\r\n0\r\nx : 1\r\n\r\n",
            "5\r\nhello\r\n0\r\n x: 1\r\n\r\n",
            "5\r\nhello\r\n0\r\nx: 1\r\n folded\r\n\r\n",
            "5\r\nhello\r\n0\r\nx: a\0b\r\n\r\n",
            "5\r\nhello\r\n0\r\nx: 1\n\r\n",
            "5\r\nhello\r\n0\r\n\rx",
            "00000000000000005\r\nhello\r\n0\r\n\r\n",
            // This chunk is larger than any body, and is refused before a byte of data.
            "10000000001\r\n",
            "8000000000000000\r\n",
            "ffffffffffffffff\r\n",
        ] {
            assert!(body(text).is_err(), "{text:?}");
        }
        assert_eq!(body("10000000000\r\n"), Ok(None));
    }

    #[test]
    fn extensions_trailers_and_framing_are_read_up_to_their_limits() {
        let with_extension =
            |bytes: usize| body(&format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(bytes)));
        assert!(with_extension(usize::from(MAX_EXTENSION_BYTES)).is_ok());
        assert!(with_extension(usize::from(MAX_EXTENSION_BYTES) + 1).is_err());
        let with_trailer =
            |bytes: usize| body(&format!("0\r\nx:{}\r\n\r\n", "x".repeat(bytes - 2)));
        assert!(with_trailer(usize::from(MAX_TRAILER_BYTES)).is_ok());
        assert!(with_trailer(usize::from(MAX_TRAILER_BYTES) + 1).is_err());
        assert!(
            read(&"1\r\nx\r\n".repeat(100_000).into_bytes(), 4_096).is_ok(),
            "a slow writer's single bytes"
        );
        let padded = format!("1;{}\r\nx\r\n", "y".repeat(200)).repeat(1_000);
        assert!(
            read(padded.as_bytes(), 4_096).is_err(),
            "framing without data"
        );
    }
}
