//! A body's content coding, taken off under the limit of what it may become.
//!
//! Decoded piece by piece into one bounded place, so that a few bytes that stand for many cost no
//! more than the limit. The caller chooses a thread that may take its time. Must not judge what the
//! body says: one that was cut off is no JSON.

use super::body_share::BodyShare;
use crate::edge::EdgeLimits;
use crate::protocol::failure::{Failure, Kind};
use bytes::Bytes;
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use std::io::{self, Write};

/// The largest window that a zstd body may ask for, as a power of two: the most that the coding's
/// registration allows.
const ZSTD_WINDOW_LOG: u32 = 23;
const BROTLI_BUFFER: usize = 8_192;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    Gzip,
    Deflate,
    Zstd,
    Brotli,
}

impl Coding {
    /// What a `content-encoding` names; `None` for one that changes nothing.
    ///
    /// # Errors
    /// It names another, or several.
    pub fn named(name: &[u8]) -> Result<Option<Self>, Failure> {
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
                "The request body's content-encoding is not supported: use gzip, deflate, zstd or br, or send it plain.",
            )),
        }
    }
}

/// The body without its coding. What it becomes counts beside what it was, for both are held.
///
/// # Errors
/// 413 past the limit, 400 where it is not of this coding, 503 where the process holds too much.
pub fn decode(
    coding: Coding,
    coded: &[u8],
    limits: &EdgeLimits,
    share: &mut BodyShare,
) -> Result<Bytes, Failure> {
    let mut plain = Plain {
        bytes: Vec::new(),
        bytes_max: limits.body_bytes,
        share: Some(share),
        stopped: None,
    };
    let decoded = pump(coding, coded, &mut plain);
    match plain.stopped {
        Some(failure) => Err(failure),
        None => decoded
            .map(|()| plain.bytes.into())
            .map_err(|_| not_so_coded()),
    }
}

/// The same where neither the body nor what it becomes is large; `None` where one is. What it
/// becomes is not counted.
///
/// # Errors
/// 400 where it is not of this coding.
pub fn decode_small(
    coding: Coding,
    coded: &[u8],
    bytes_max: usize,
) -> Result<Option<Bytes>, Failure> {
    if coded.len() > bytes_max {
        return Ok(None);
    }
    let mut plain = Plain {
        bytes: Vec::new(),
        bytes_max: bytes_max as u64,
        share: None,
        stopped: None,
    };
    let decoded = pump(coding, coded, &mut plain);
    if plain.stopped.is_some() {
        return Ok(None);
    }
    decoded
        .map(|()| Some(plain.bytes.into()))
        .map_err(|_| not_so_coded())
}

fn not_so_coded() -> Failure {
    Failure::new(
        Kind::InvalidRequest,
        "The request body is not what its content-encoding says.",
    )
}

fn pump(coding: Coding, coded: &[u8], plain: &mut Plain<'_>) -> io::Result<()> {
    match coding {
        Coding::Gzip => {
            let mut decoder = MultiGzDecoder::new(plain);
            decoder.write_all(coded)?;
            decoder.try_finish()
        }
        Coding::Deflate => {
            let mut decoder = ZlibDecoder::new(plain);
            decoder.write_all(coded)?;
            decoder.try_finish()
        }
        Coding::Zstd => {
            let mut decoder = zstd::stream::write::Decoder::new(plain)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG)?;
            decoder.write_all(coded)?;
            decoder.flush()
        }
        Coding::Brotli => {
            let mut decoder = brotli::DecompressorWriter::new(plain, BROTLI_BUFFER);
            decoder.write_all(coded)?;
            decoder.close()
        }
    }
}

/// Where the decoded bytes go, and no more of them than may.
struct Plain<'a> {
    bytes: Vec<u8>,
    bytes_max: u64,
    /// What they are counted in.
    share: Option<&'a mut BodyShare>,
    stopped: Option<Failure>,
}

impl Write for Plain<'_> {
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
