//! An answer of bytes that the gateway does not read: audio, or a text such as subtitles.
//!
//! It must not know what is billed, nor whether an answer may be empty.

use crate::metered::terms::MeteredReport;
use crate::vendor_response::UpstreamError;

/// The end of a text in which the gateway searches the last time of subtitles, in bytes.
const TAIL_BYTES: usize = 4_096;

/// An answer whose last byte is kept back.
#[derive(Debug, Default)]
pub(super) struct MediaAnswer {
    last: Option<u8>,
    /// The end of what was read, at most twice [`TAIL_BYTES`].
    tail: Vec<u8>,
}

impl MediaAnswer {
    pub(super) fn push(
        &mut self,
        piece: &[u8],
        end: bool,
        out: &mut Vec<u8>,
    ) -> Result<Option<MeteredReport>, UpstreamError> {
        if let Some((last, before)) = piece.split_last() {
            out.extend(self.last.replace(*last));
            out.extend_from_slice(before);
            let kept = piece.len().saturating_sub(TAIL_BYTES);
            self.tail
                .extend_from_slice(piece.get(kept..).unwrap_or_default());
            let surplus = self.tail.len().saturating_sub(TAIL_BYTES);
            self.tail.drain(..surplus);
        }
        if !end {
            return Ok(None);
        }
        Ok(Some(MeteredReport {
            seconds: last_cue_seconds(&self.tail),
            ..MeteredReport::default()
        }))
    }

    pub(super) fn has_bytes(&self) -> bool {
        self.last.is_some()
    }

    pub(super) fn take_last(&mut self) -> Vec<u8> {
        self.last.take().into_iter().collect()
    }
}

/// Returns the end of the last cue of subtitles (SubRip or WebVTT) in seconds, rounded up.
fn last_cue_seconds(text: &[u8]) -> Option<u64> {
    const ARROW: &[u8] = b"-->";
    let at = memchr::memmem::rfind(text, ARROW)?;
    let after = text.get(at + ARROW.len()..)?.trim_ascii_start();
    let is_of_time = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b':' | b',' | b'.');
    let length = after.iter().take_while(|byte| is_of_time(byte)).count();
    let time = std::str::from_utf8(after.get(..length)?).ok()?;
    let (whole, fraction) = time.split_once([',', '.'])?;
    let fields = whole.split(':').map(|field| field.parse::<u64>().ok());
    let seconds = fields.collect::<Option<Vec<_>>>()?;
    let seconds = seconds.into_iter().fold(0_u64, |sum, field| {
        sum.saturating_mul(60).saturating_add(field)
    });
    let is_begun = fraction.bytes().any(|digit| digit != b'0');
    Some(seconds.saturating_add(is_begun.into()))
}

#[cfg(test)]
mod tests {
    use super::last_cue_seconds;

    #[test]
    fn the_last_cue_of_subtitles_tells_their_length() {
        for (text, expected) in [
            (
                "1\n00:00:00,000 --> 00:00:02,500\nOne\n\n2\n00:59:59,000 --> 01:00:02,000\nTwo\n",
                Some(3_602),
            ),
            ("WEBVTT\n\n00:00.000 --> 00:01.001\nHi\n", Some(2)),
            ("plain words --> and more", None),
            ("no cue", None),
        ] {
            assert_eq!(last_cue_seconds(text.as_bytes()), expected, "{text}");
        }
    }
}
