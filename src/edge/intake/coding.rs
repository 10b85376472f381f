//! A body's content coding, taken off under the limit of what it may become.
//!
//! Decoded piece by piece into one bounded place, so that a few bytes that stand for many cost no more than the limit,
//! and other requests have their turn in between. Must not judge what the body says: one that was cut off is no JSON.

use super::body_share::BodyShare;
use crate::edge::EdgeLimits;
use crate::protocol::failure::{Failure, Kind};
use bytes::Bytes;
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use std::io::{self, Write};

/// Coded bytes that are decoded in one turn.
const PIECE: usize = 4_096;
/// The largest window that a zstd body may ask for, as a power of two: the most that the coding's registration allows.
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
pub async fn decode(
    coding: Coding,
    coded: Bytes,
    limits: &EdgeLimits,
    share: &mut BodyShare,
) -> Result<Bytes, Failure> {
    let mut plain = Plain { bytes: Vec::new(), limits, share, stopped: None };
    let decoded = match coding {
        Coding::Gzip => {
            let mut decoder = MultiGzDecoder::new(&mut plain);
            pump(&mut decoder, &coded).await.and_then(|()| decoder.try_finish())
        }
        Coding::Deflate => {
            let mut decoder = ZlibDecoder::new(&mut plain);
            pump(&mut decoder, &coded).await.and_then(|()| decoder.try_finish())
        }
        Coding::Zstd => zstd(&mut plain, &coded).await,
        Coding::Brotli => {
            let mut decoder = brotli::DecompressorWriter::new(&mut plain, BROTLI_BUFFER);
            pump(&mut decoder, &coded).await.and_then(|()| decoder.close())
        }
    };
    match (plain.stopped, decoded) {
        (Some(failure), _) => Err(failure),
        (None, Ok(())) => Ok(plain.bytes.into()),
        (None, Err(_)) => {
            Err(Failure::new(Kind::InvalidRequest, "The request body is not what its content-encoding says."))
        }
    }
}

async fn zstd(plain: &mut Plain<'_>, coded: &[u8]) -> io::Result<()> {
    let mut decoder = zstd::stream::write::Decoder::new(plain)?;
    decoder.window_log_max(ZSTD_WINDOW_LOG)?;
    pump(&mut decoder, coded).await?;
    decoder.flush()
}

async fn pump(decoder: &mut impl Write, coded: &[u8]) -> io::Result<()> {
    for piece in coded.chunks(PIECE) {
        decoder.write_all(piece)?;
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Where the decoded bytes go, and no more of them than may.
struct Plain<'a> {
    bytes: Vec<u8>,
    limits: &'a EdgeLimits,
    share: &'a mut BodyShare,
    stopped: Option<Failure>,
}

impl Write for Plain<'_> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let allowed = if (self.bytes.len() + piece.len()) as u64 > self.limits.body_bytes {
            Err(Failure::body_too_large(self.limits.body_bytes))
        } else {
            self.share.grow(piece.len() as u64)
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
