//! Removes the content coding of a body, within a limit on the decoded size.
//!
//! The body is decoded piece by piece into one bounded buffer, so that a few bytes that decode to
//! many cost no more than the limit. The caller chooses a thread that may take its time. This file
//! must not interpret the body; a body that was cut off will not parse as JSON.

use super::body_limits::BodyLimits;
use super::body_share::BodyShare;
use bytes::Bytes;
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use llm_protocol::failure::{Failure, Kind};
use std::io::{self, Write};

/// Maximum window that a zstd body may request, as a power of two: the maximum that the coding's
/// registration allows.
const ZSTD_WINDOW_LOG: u32 = 23;
const BROTLI_BUFFER: usize = 8_192;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentCoding {
    Gzip,
    Deflate,
    Zstd,
    Brotli,
}

impl ContentCoding {
    /// Parses a `content-encoding`. Returns `None` for one that changes nothing.
    ///
    /// # Errors
    /// Returns an error for an unknown coding or several codings.
    pub fn parse(name: &[u8]) -> Result<Option<Self>, Failure> {
        let name = name.trim_ascii();
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        match () {
            () if is("identity") => Ok(None),
            () if is("gzip") || is("x-gzip") => Ok(Some(Self::Gzip)),
            () if is("deflate") => Ok(Some(Self::Deflate)),
            () if is("zstd") => Ok(Some(Self::Zstd)),
            () if is("br") => Ok(Some(Self::Brotli)),
            () => Err(Failure::new(
                Kind::InvalidRequest,
                "The request body's content-encoding is not supported: use gzip, deflate, zstd or br, or send the body uncompressed.",
            )),
        }
    }
}

/// Returns the decoded body. The decoded bytes count in addition to the coded ones, because the
/// gateway holds both.
///
/// # Errors
/// Returns 413 above the size limit, 400 if the body does not have this coding, and 503 if the
/// process holds too much.
pub fn decode(
    coding: ContentCoding,
    coded: &[u8],
    limits: &BodyLimits,
    share: &mut BodyShare,
) -> Result<Bytes, Failure> {
    let mut plain = BoundedOutput {
        bytes: Vec::new(),
        bytes_max: limits.body_bytes,
        share: Some(share),
        stopped: None,
    };
    let decoded = decode_into(coding, coded, &mut plain);
    match plain.stopped {
        Some(failure) => Err(failure),
        None => decoded
            .map(|()| plain.bytes.into())
            .map_err(|_| invalid_coding()),
    }
}

/// Decodes a body that is small both before and after. Returns `None` if either is large. The
/// decoded bytes are not counted.
///
/// # Errors
/// Returns 400 if the body does not have this coding.
pub fn decode_small(
    coding: ContentCoding,
    coded: &[u8],
    bytes_max: usize,
) -> Result<Option<Bytes>, Failure> {
    if coded.len() > bytes_max {
        return Ok(None);
    }
    let mut plain = BoundedOutput {
        bytes: Vec::new(),
        bytes_max: bytes_max as u64,
        share: None,
        stopped: None,
    };
    let decoded = decode_into(coding, coded, &mut plain);
    if plain.stopped.is_some() {
        return Ok(None);
    }
    decoded
        .map(|()| Some(plain.bytes.into()))
        .map_err(|_| invalid_coding())
}

fn invalid_coding() -> Failure {
    Failure::new(
        Kind::InvalidRequest,
        "The request body does not match its content-encoding.",
    )
}

fn decode_into(
    coding: ContentCoding,
    coded: &[u8],
    plain: &mut BoundedOutput<'_>,
) -> io::Result<()> {
    match coding {
        ContentCoding::Gzip => {
            let mut decoder = MultiGzDecoder::new(plain);
            decoder.write_all(coded)?;
            decoder.try_finish()
        }
        ContentCoding::Deflate => {
            let mut decoder = ZlibDecoder::new(plain);
            decoder.write_all(coded)?;
            decoder.try_finish()
        }
        ContentCoding::Zstd => {
            let mut decoder = zstd::stream::write::Decoder::new(plain)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG)?;
            decoder.write_all(coded)?;
            decoder.flush()
        }
        ContentCoding::Brotli => {
            let mut decoder = brotli::DecompressorWriter::new(plain, BROTLI_BUFFER);
            decoder.write_all(coded)?;
            decoder.close()
        }
    }
}

/// Collects the decoded bytes, up to a limit.
struct BoundedOutput<'a> {
    bytes: Vec<u8>,
    bytes_max: u64,
    /// Counter of the decoded bytes.
    share: Option<&'a mut BodyShare>,
    stopped: Option<Failure>,
}

impl Write for BoundedOutput<'_> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let allowed = if self.bytes.len().saturating_add(piece.len()) as u64 > self.bytes_max {
            Err(Failure::body_too_large(self.bytes_max))
        } else if let Some(share) = &mut self.share {
            share.grow(piece.len() as u64)
        } else {
            Ok(())
        };
        if let Err(failure) = allowed {
            self.stopped = Some(failure);
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
