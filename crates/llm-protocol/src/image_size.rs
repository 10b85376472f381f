//! Reads the size of an image in pixels from the first bytes of its base64.
//!
//! This file must not decode an image, nor more base64 than the header of the format may need. It
//! returns no size for an image that it cannot read; the caller then assumes the largest image that
//! a model reads.

use base64::Engine;
use std::borrow::Cow;

/// Maximum number of base64 characters to read. The number is large because a JPEG may contain a
/// preview before its size.
const MAX_HEAD_CHARS: usize = 65_536;

/// Returns width and height of the image in `base64`, which may be truncated and is still escaped
/// as a JSON string.
pub fn image_dimensions(base64: &str) -> Option<(u32, u32)> {
    let head = base64.get(..MAX_HEAD_CHARS).unwrap_or(base64);
    // Some JSON writers escape every slash.
    let head: Cow<'_, str> = if head.contains('\\') {
        head.replace('\\', "").into()
    } else {
        head.into()
    };
    let whole = head.len() - head.len() % 4;
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(head.get(..whole)?)
        .ok()?;
    let size = png(&bytes)
        .or_else(|| gif(&bytes))
        .or_else(|| webp(&bytes))
        .or_else(|| jpeg(&bytes))?;
    (size.0 > 0 && size.1 > 0).then_some(size)
}

fn png(bytes: &[u8]) -> Option<(u32, u32)> {
    let rest = bytes.strip_prefix(b"\x89PNG\r\n\x1a\n")?;
    let size = rest
        .get(8..16)
        .filter(|_| rest.get(4..8) == Some(b"IHDR"))?;
    let (width, height) = size.split_first_chunk::<4>()?;
    Some((
        u32::from_be_bytes(*width),
        u32::from_be_bytes(*height.first_chunk()?),
    ))
}

fn gif(bytes: &[u8]) -> Option<(u32, u32)> {
    let rest = bytes
        .strip_prefix(b"GIF89a")
        .or_else(|| bytes.strip_prefix(b"GIF87a"))?;
    Some((read_u16_le(rest, 0)?, read_u16_le(rest, 2)?))
}

fn webp(bytes: &[u8]) -> Option<(u32, u32)> {
    let form = bytes
        .strip_prefix(b"RIFF")
        .and_then(|rest| rest.get(4..)?.strip_prefix(b"WEBP"))?;
    let data = form.get(8..)?;
    match form.get(..4)? {
        // A key frame has a frame tag, a start code, and then 14 bits each for width and height.
        b"VP8 " => Some((
            read_u16_le(data, 6)? & 0x3fff,
            read_u16_le(data, 8)? & 0x3fff,
        )),
        b"VP8L" => {
            let bits = u32::from_le_bytes(*data.get(1..)?.first_chunk()?);
            Some(((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1))
        }
        b"VP8X" => {
            let less_one =
                |at: usize| Some(read_u16_le(data, at)? | u32::from(*data.get(at + 2)?) << 16);
            Some((less_one(4)? + 1, less_one(7)? + 1))
        }
        _ => None,
    }
}

/// Scans the segments of a JPEG up to the frame header with its size.
fn jpeg(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut rest = bytes.strip_prefix(b"\xff\xd8")?;
    loop {
        let (marker, segment) = (
            *rest.get(1)?,
            rest.get(2..).filter(|_| rest.first() == Some(&0xff))?,
        );
        // These are all start-of-frame markers. 0xC4, 0xC8 and 0xCC in the same range begin tables.
        if matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc) {
            return Some((read_u16_be(segment, 5)?, read_u16_be(segment, 3)?));
        }
        let length = if marker == 0xff {
            0
        } else {
            usize::try_from(read_u16_be(segment, 0)?).ok()?.max(2)
        };
        // Fill bytes may precede a marker.
        rest = if marker == 0xff {
            rest.get(1..)?
        } else {
            segment.get(length..)?
        };
    }
}

fn read_u16_le(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|two| u16::from_le_bytes(*two).into())
}

fn read_u16_be(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|two| u16::from_be_bytes(*two).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(bytes: &[u8]) -> String {
        base64::engine::general_purpose::STANDARD.encode(bytes)
    }

    #[test]
    fn the_size_of_each_format_is_read_from_its_header() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x04\xb0\0\0\x03\xe8\x08\x02\0\0\0";
        let gif = b"GIF89a\xb0\x04\xe8\x03\xf7\0\0";
        let lossy = b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\x30\x01\0\x9d\x01\x2a\xb0\x04\xe8\x43\0\0";
        // 1199 and 999, 14 bits each.
        let lossless = b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f\xaf\xc4\xf9\0\0";
        let extended = b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\xaf\x04\0\xe7\x03\0";
        let mut jpeg =
            b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0\xff\xe1\x9c\x42".to_vec();
        jpeg.extend([7; 40_000]);
        jpeg.extend(b"\xff\xff\xc4\0\x04\x01\x02\xff\xc2\0\x11\x08\x03\xe8\x04\xb0\x03");
        for image in [&png[..], gif, lossy, lossless, extended, &jpeg] {
            assert_eq!(
                image_dimensions(&encoded(image)),
                Some((1_200, 1_000)),
                "{:?}",
                image.get(..16)
            );
        }
        let slashed = encoded(&jpeg).replace('/', "\\/");
        assert_eq!(image_dimensions(&slashed), Some((1_200, 1_000)));
    }

    #[test]
    fn what_cannot_be_read_has_no_size() {
        let nothing_high = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x04\xb0\0\0\0\0\x08";
        for image in [
            &b""[..],
            b"BM",
            b"GIF89a\x01",
            b"\xff\xd8\xff\xe0\0\x10JFIF",
            nothing_high,
        ] {
            assert_eq!(image_dimensions(&encoded(image)), None);
        }
        assert_eq!(image_dimensions("no base64, äöü"), None);
        // The size is beyond the part that is read.
        let mut far = b"\xff\xd8".to_vec();
        far.extend(b"\xff\xe1\xff\xff".iter().chain(&[0; 65_533]));
        far.extend(b"\xff\xc0\0\x11\x08\x03\xe8\x04\xb0\x03");
        assert_eq!(image_dimensions(&encoded(&far)), None);
    }
}
