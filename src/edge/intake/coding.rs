//! Removes the content coding of a body, within a limit on the decoded size.
//!
//! The body is decoded piece by piece into one bounded buffer, so that a few bytes that decode to
//! many cost no more than the limit; the time is bounded too. The time shows only during decoding,
//! so the caller first decodes every body as a short job. A body that is malformed by its bytes is
//! the client's fault; a body that decodes too slowly on this machine is the gateway's fault. The
//! caller chooses the thread. This file must not interpret the body; a body that was cut off will
//! not parse as JSON.

use super::body_limits::BodyLimits;
use super::body_share::BodyShare;
use crate::edge::cpu_pool;
use bytes::Bytes;
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use llm_protocol::failure::{Failure, Kind};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::io::{self, Write};
use std::time::Duration;

/// Maximum window that a zstd body may request, as a power of two: the maximum that the coding's
/// registration allows.
const ZSTD_WINDOW_LOG: u32 = 23;
const BROTLI_BUFFER: usize = 8_192;
/// Number of coded bytes that are decoded between two checks of the time. Tiny brotli blocks of
/// this size take 8 ms.
const CODED_PIECE_BYTES: usize = 16_384;
/// Maximum size of a body that is decoded in a short attempt, coded and decoded, in bytes.
const SHORT_BODY_BYTES: usize = cpu_pool::MAX_SHORT_WORK;
/// CPU time of a short attempt. The pool's longest short job takes as long.
const SHORT_DECODE_TIME: Duration = Duration::from_millis(20);
/// CPU time that decoding may take regardless of the size of the body.
const FREE_DECODE_TIME: Duration = Duration::from_millis(250);
/// Minimum rate of decoding after [`FREE_DECODE_TIME`], in coded and decoded bytes per second of
/// CPU time. Bodies of usual encoders decode at many times this rate (gzip: 190 MB/s), tiny brotli
/// blocks at half.
const MIN_DECODE_BYTES_PER_SECOND: u64 = 8_388_608;
/// Maximum number of coded bytes for each decoded byte. Even an encoder that flushes after each
/// byte, which no usual one does, writes only seven.
const MAX_CODED_PER_DECODED: u64 = 8;
/// Maximum number of coded bytes in excess of that ratio: more than a decoder reads before it
/// writes (a zstd block of 128 KiB).
const MAX_EXCESS_CODED_BYTES: u64 = 163_840;

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

/// The work that decoding a body may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeAttempt {
    /// As much work as a short job. The decoder gives up a body that takes more.
    Short,
    /// As much work as the limits allow.
    Whole,
}

/// Returns the decoded body; `None` if it takes more than a short attempt. The decoded bytes count
/// in addition to the coded ones, because the gateway holds both.
///
/// # Errors
/// Returns 413 above the size limit; 400 if the body does not have this coding or consists mostly
/// of block headers; 503 if it decodes too slowly on this machine or the process holds too many
/// bytes.
pub fn decode(
    coding: ContentCoding,
    coded: &[u8],
    attempt: DecodeAttempt,
    limits: &BodyLimits,
    share: &mut BodyShare,
) -> Result<Option<Bytes>, Failure> {
    let progress = DecodeProgress::start(attempt, thread_cpu_time);
    decode_with(coding, coded, &progress, limits, share)
}

fn decode_with(
    coding: ContentCoding,
    coded: &[u8],
    progress: &DecodeProgress,
    limits: &BodyLimits,
    share: &mut BodyShare,
) -> Result<Option<Bytes>, Failure> {
    let attempt = progress.attempt;
    if attempt == DecodeAttempt::Short && coded.len() > SHORT_BODY_BYTES {
        return Ok(None);
    }
    let mut plain = BoundedOutput {
        bytes: Vec::new(),
        attempt,
        bytes_max: limits.body_bytes,
        share,
        stopped: None,
        progress,
    };
    let decoded = decode_into(coding, coded, &mut plain);
    if let Some(failure) = plain.stopped {
        return Err(failure);
    }
    match decoded {
        Ok(()) => Ok(Some(plain.bytes.into())),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => match attempt {
            DecodeAttempt::Short => {
                plain.share.shrink(plain.bytes.len() as u64);
                Ok(None)
            }
            DecodeAttempt::Whole => Err(Failure::new(
                Kind::CpuQueueFull,
                "This gateway takes too long to decode the request body: send it uncompressed, or with another encoder.",
            )),
        },
        Err(_) if progress.is_mostly_headers() => Err(Failure::new(
            Kind::InvalidRequest,
            "The request body is far longer than what it decodes to: send it uncompressed.",
        )),
        Err(_) => Err(Failure::new(
            Kind::InvalidRequest,
            "The request body does not match its content-encoding.",
        )),
    }
}

fn decode_into(
    coding: ContentCoding,
    coded: &[u8],
    plain: &mut BoundedOutput<'_>,
) -> io::Result<()> {
    let progress = plain.progress;
    match coding {
        ContentCoding::Gzip => {
            let mut decoder = MultiGzDecoder::new(plain);
            write_pieces(&mut decoder, coded, progress)?;
            decoder.try_finish()
        }
        ContentCoding::Deflate => {
            let mut decoder = ZlibDecoder::new(plain);
            write_pieces(&mut decoder, coded, progress)?;
            decoder.try_finish()
        }
        ContentCoding::Zstd => {
            let mut decoder = zstd::stream::write::Decoder::new(plain)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG)?;
            write_pieces(&mut decoder, coded, progress)?;
            decoder.flush()
        }
        ContentCoding::Brotli => {
            let mut decoder = brotli::DecompressorWriter::new(plain, BROTLI_BUFFER);
            write_pieces(&mut decoder, coded, progress)?;
            decoder.close()
        }
    }
}

fn write_pieces(
    decoder: &mut impl Write,
    coded: &[u8],
    progress: &DecodeProgress,
) -> io::Result<()> {
    for piece in coded.chunks(CODED_PIECE_BYTES) {
        decoder.write_all(piece)?;
        add(&progress.coded_bytes, piece.len());
        progress.check()?;
    }
    Ok(())
}

fn add(counter: &Cell<u64>, bytes: usize) {
    counter.set(counter.get().saturating_add(bytes as u64));
}

/// The CPU time that decoding a body has taken, and the bytes processed in that time. A client
/// whose short body decodes for seconds would keep the bodies of others waiting.
struct DecodeProgress {
    attempt: DecodeAttempt,
    cpu_time: fn() -> Duration,
    began: Duration,
    coded_bytes: Cell<u64>,
    decoded_bytes: Cell<u64>,
}

impl DecodeProgress {
    /// Begins to measure. `cpu_time` returns the CPU time that this thread has used.
    fn start(attempt: DecodeAttempt, cpu_time: fn() -> Duration) -> Self {
        Self {
            attempt,
            cpu_time,
            began: cpu_time(),
            coded_bytes: Cell::new(0),
            decoded_bytes: Cell::new(0),
        }
    }

    /// Returns whether the body consists mostly of block headers, which take the most time. The
    /// answer is the same on every machine.
    fn is_mostly_headers(&self) -> bool {
        let content = self
            .decoded_bytes
            .get()
            .saturating_mul(MAX_CODED_PER_DECODED);
        self.coded_bytes.get() > content.saturating_add(MAX_EXCESS_CODED_BYTES)
    }

    /// Returns an error if the body consists mostly of block headers, or if decoding is too slow.
    fn check(&self) -> io::Result<()> {
        if self.is_mostly_headers() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let spent = (self.cpu_time)().saturating_sub(self.began);
        if self.attempt == DecodeAttempt::Short {
            return if spent > SHORT_DECODE_TIME {
                Err(io::ErrorKind::TimedOut.into())
            } else {
                Ok(())
            };
        }
        let charged = spent.saturating_sub(FREE_DECODE_TIME).as_millis();
        let min_bytes = charged.saturating_mul(MIN_DECODE_BYTES_PER_SECOND.into()) / 1_000;
        let handled = u128::from(self.coded_bytes.get()) + u128::from(self.decoded_bytes.get());
        if handled < min_bytes {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

fn thread_cpu_time() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime).try_into();
    spent.unwrap_or_default()
}

/// Collects the decoded bytes, up to a limit.
struct BoundedOutput<'a> {
    bytes: Vec<u8>,
    attempt: DecodeAttempt,
    bytes_max: u64,
    share: &'a mut BodyShare,
    stopped: Option<Failure>,
    progress: &'a DecodeProgress,
}

impl Write for BoundedOutput<'_> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let decoded = self.bytes.len().saturating_add(piece.len());
        if self.attempt == DecodeAttempt::Short && decoded > SHORT_BODY_BYTES {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let allowed = if decoded as u64 > self.bytes_max {
            Err(Failure::body_too_large(self.bytes_max))
        } else {
            self.share.grow(piece.len() as u64)
        };
        if let Err(failure) = allowed {
            self.stopped = Some(failure);
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        add(&self.progress.decoded_bytes, piece.len());
        self.bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::edge::intake::body_share::BodyHolders;
    use config::Limits;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    /// Returns `bytes` bytes in each coding.
    fn coded(bytes: usize) -> [(ContentCoding, Vec<u8>); 4] {
        let plain = vec![b'x'; bytes];
        let fast = flate2::Compression::fast();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), fast);
        gzip.write_all(&plain).unwrap();
        let mut deflate = flate2::write::ZlibEncoder::new(Vec::new(), fast);
        deflate.write_all(&plain).unwrap();
        let mut brotli = brotli::CompressorWriter::new(Vec::new(), BROTLI_BUFFER, 1, 20);
        brotli.write_all(&plain).unwrap();
        [
            (ContentCoding::Gzip, gzip.finish().unwrap()),
            (ContentCoding::Deflate, deflate.finish().unwrap()),
            (ContentCoding::Zstd, zstd::encode_all(&*plain, 1).unwrap()),
            (ContentCoding::Brotli, brotli.into_inner()),
        ]
    }

    /// Returns a CPU time that grows by a minute at each call.
    fn slow_machine() -> Duration {
        thread_local! { static MINUTES: Cell<u64> = const { Cell::new(0) } }
        MINUTES.set(MINUTES.get() + 1);
        Duration::from_secs(60 * MINUTES.get())
    }

    fn refused(coding: ContentCoding, coded: &[u8], cpu_time: fn() -> Duration) -> Kind {
        let limits = BodyLimits::from_limits(&Limits::default());
        let mut share = BodyShare::new(BodyHolders::default(), &limits);
        let progress = DecodeProgress::start(DecodeAttempt::Whole, cpu_time);
        decode_with(coding, coded, &progress, &limits, &mut share)
            .unwrap_err()
            .kind
    }

    #[test]
    fn a_body_that_takes_too_long_here_is_no_fault_of_the_client() {
        for (coding, body) in coded(SHORT_BODY_BYTES) {
            let kind = refused(coding, &body, slow_machine);
            assert_eq!(kind, Kind::CpuQueueFull, "{coding:?}");
        }
    }

    #[test]
    fn a_body_of_empty_blocks_is_the_clients_fault_on_every_machine() {
        let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let empty = gzip.finish().unwrap();
        let limit = usize::try_from(MAX_EXCESS_CODED_BYTES).unwrap();
        let most = empty.repeat(limit / empty.len());
        let limits = BodyLimits::from_limits(&Limits::default());
        let mut share = BodyShare::new(BodyHolders::default(), &limits);
        let whole = DecodeAttempt::Whole;
        let decoded = decode(ContentCoding::Gzip, &most, whole, &limits, &mut share).unwrap();
        assert_eq!(decoded.unwrap().len(), 0);
        let too_many = empty.repeat(limit / empty.len() + 1);
        for cpu_time in [thread_cpu_time, || Duration::ZERO] {
            let kind = refused(ContentCoding::Gzip, &too_many, cpu_time);
            assert_eq!(kind, Kind::InvalidRequest);
        }
    }

    #[test]
    fn what_cannot_be_compressed_or_is_flushed_after_each_byte_is_decoded() {
        // Pseudo-random bytes, which no coding shortens.
        let noise = (0..300_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8);
        let noise: Vec<u8> = noise.collect();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        for byte in noise.chunks(1) {
            gzip.write_all(byte).unwrap();
            gzip.flush().unwrap();
        }
        let mut brotli = brotli::CompressorWriter::new(Vec::new(), BROTLI_BUFFER, 1, 20);
        brotli.write_all(&noise).unwrap();
        for (coding, body) in [
            (ContentCoding::Gzip, gzip.finish().unwrap()),
            (ContentCoding::Zstd, zstd::encode_all(&*noise, 1).unwrap()),
            (ContentCoding::Brotli, brotli.into_inner()),
        ] {
            let limits = BodyLimits::from_limits(&Limits::default());
            let mut share = BodyShare::new(BodyHolders::default(), &limits);
            let whole = DecodeAttempt::Whole;
            let decoded = decode(coding, &body, whole, &limits, &mut share).unwrap();
            assert!(decoded.is_some_and(|plain| plain == noise), "{coding:?}");
        }
    }

    #[test]
    fn a_short_attempt_ends_at_its_bound_and_gives_back_what_it_counted() {
        let limits = BodyLimits::from_limits(&Limits::default());
        let most = SHORT_BODY_BYTES;
        for ((coding, longest), (_, longer)) in coded(most).into_iter().zip(coded(most + 1)) {
            let holders = BodyHolders::default();
            let process = Arc::clone(&holders.process);
            let mut share = BodyShare::new(holders, &limits);
            let mut decode = |coded: &[u8], attempt| {
                decode(coding, coded, attempt, &limits, &mut share)
                    .unwrap()
                    .map(|plain| plain.len())
            };
            assert_eq!(decode(&longer, DecodeAttempt::Short), None, "{coding:?}");
            assert_eq!(process.load(Ordering::Relaxed), 0, "{coding:?}");
            let whole = decode(&longer, DecodeAttempt::Whole);
            assert_eq!(whole, Some(most + 1), "{coding:?}");
            assert_eq!(process.load(Ordering::Relaxed), most as u64 + 1);
            let short = decode(&longest, DecodeAttempt::Short);
            assert_eq!(short, Some(most), "{coding:?}");
        }
        let mut share = BodyShare::new(BodyHolders::default(), &limits);
        let long = vec![0; SHORT_BODY_BYTES + 1];
        let outcome = super::decode(
            ContentCoding::Gzip,
            &long,
            DecodeAttempt::Short,
            &limits,
            &mut share,
        );
        assert_eq!(outcome.unwrap(), None, "longer than that as it came");
    }
}
