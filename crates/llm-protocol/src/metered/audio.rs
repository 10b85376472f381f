//! The length of audio, by its container.

use super::content::AudioLength;
use lofty::config::ParseOptions;
use lofty::file::AudioFile;
use lofty::probe::Probe;
use std::io::Cursor;

/// Chunks of a WAV file that no decoder plays.
const SILENT_CHUNKS: [&[u8; 4]; 16] = [
    b"LIST", b"fact", b"JUNK", b"PAD ", b"FLLR", b"bext", b"cue ", b"id3 ", b"ID3 ", b"iXML",
    b"PEAK", b"smpl", b"inst", b"axml", b"cart", b"ds64",
];

/// Reads the length of a file, rounded up to whole seconds.
pub(super) fn length(file: &[u8]) -> AudioLength {
    if let [
        b'R',
        b'I' | b'F',
        b'F' | b'6',
        b'F' | b'4',
        _,
        _,
        _,
        _,
        b'W',
        b'A',
        b'V',
        b'E',
        chunks @ ..,
    ] = file
    {
        return wav_length(chunks);
    }
    let probe = Probe::new(Cursor::new(file)).options(ParseOptions::new().read_tags(false));
    let Some(file) = probe
        .guess_file_type()
        .ok()
        .and_then(|probe| probe.read().ok())
    else {
        return AudioLength::default();
    };
    let length = file.properties().duration();
    let seconds = length
        .as_secs()
        .saturating_add((length.subsec_nanos() > 0).into());
    AudioLength {
        seconds: (seconds > 0).then_some(seconds),
        is_exact: false,
    }
}

/// Reads the length that no decoder exceeds. Decoders differ in which of several `data` and `fmt `
/// chunks they take, and a program that writes into a pipe does not know the length of `data`. So
/// all bytes count that no other chunk holds, at the lowest rate that a `fmt ` states.
fn wav_length(chunks: &[u8]) -> AudioLength {
    let (mut rest, mut audio, mut has_end) = (chunks, 0, true);
    // `None`: one of the formats has no lowest rate.
    let (mut rate, mut is_exact) = (Some(u64::MAX), true);
    while let Some((head, after)) = rest.split_first_chunk::<8>() {
        let [name @ .., a, b, c, d] = head;
        let told = u32::from_le_bytes([*a, *b, *c, *d]);
        let size = usize::try_from(told).map_or(after.len(), |told| told.min(after.len()));
        let is_whole = usize::try_from(told) == Ok(size);
        if name == b"fmt " {
            let format = byte_rate(after);
            rate = rate.zip(format).map(|(rate, (own, _))| rate.min(own));
            is_exact &= format.is_some_and(|(_, is_plain)| is_plain);
        }
        if has_end && name == b"data" && matches!(told, 0 | u32::MAX) {
            has_end = false;
            audio += after.len();
        }
        let is_silent = name == b"fmt " || SILENT_CHUNKS.contains(&name);
        if has_end && !(is_silent && is_whole) {
            // What is no chunk of audio may be a piece of it.
            audio += size + if name == b"data" { 0 } else { head.len() };
        }
        // A chunk begins at an even place.
        rest = after.get(size + size % 2..).unwrap_or_default();
    }
    if has_end {
        audio += rest.len();
    }
    let audio = u64::try_from(audio).unwrap_or(u64::MAX);
    let rate = rate.filter(|rate| audio > 0 && *rate < u64::MAX);
    let seconds = rate.map(|rate| audio.div_ceil(rate));
    AudioLength {
        seconds,
        is_exact: is_exact && seconds.is_some(),
    }
}

/// Returns the fewest bytes of a second, and whether each sample has the same size; `None` for a
/// compressed format, whose decoders do not read the rate that the file states.
fn byte_rate(format: &[u8]) -> Option<(u64, bool)> {
    const EXTENSIBLE: u64 = 0xfffe;
    let short = |at: usize| {
        let bytes = format.get(at..)?.first_chunk()?;
        Some(u64::from(u16::from_le_bytes(*bytes)))
    };
    let long = |at: usize| Some(short(at)? | short(at + 2)? << 16);
    let (mut kind, mut bits) = (short(0)?, short(14)?);
    if kind == EXTENSIBLE {
        kind = short(24)?;
        bits = short(18).filter(|valid| *valid > 0)?.min(bits);
    }
    let told = long(8).filter(|told| *told > 0);
    let sample = match kind {
        // Integers and floats; the two laws of G.711.
        1 | 3 => bits.div_ceil(8),
        6 | 7 => 1,
        // ADPCM of Microsoft, the IMA and Yamaha: at most two samples in a byte.
        2 | 17 | 32 => return Some(((long(4)? * short(2)? / 2).max(1), false)),
        _ => return None,
    };
    let (samples, block) = (long(4)?, short(12)?);
    let rates = [samples * short(2)? * sample, samples * block];
    let rate = rates.into_iter().min()?.min(told.unwrap_or(u64::MAX));
    (rate > 0).then_some((rate, true))
}
