//! Encodes integers and texts for the blocks of a segment. Integers are LEB128, with zigzag for
//! signed ones.
//!
//! A reader gets bytes that are not verified yet: every length is checked against the remaining
//! bytes. This file must not depend on entries.

/// Maximum length in bytes of an encoded 64-bit integer.
const MAX_VARINT_BYTES: u32 = 10;

pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(
        out,
        (value.cast_unsigned() << 1) ^ (value >> 63).cast_unsigned(),
    );
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// The part of a block that has not been read. Every method returns `None` if the bytes end too
/// early or are not valid.
pub(crate) struct BlockBytes<'a>(pub(crate) &'a [u8]);

impl<'a> BlockBytes<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for index in 0..MAX_VARINT_BYTES {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if index == MAX_VARINT_BYTES - 1 && part > 1 {
                return None;
            }
            value |= part << (7 * index);
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    pub(crate) fn signed(&mut self) -> Option<i64> {
        let value = self.unsigned()?;
        Some((value >> 1).cast_signed() ^ -((value & 1).cast_signed()))
    }

    /// Reads a number of items, each of which has at least one byte.
    pub(crate) fn count(&mut self) -> Option<usize> {
        let count = usize::try_from(self.unsigned()?).ok()?;
        (count <= self.0.len()).then_some(count)
    }

    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let length = self.count()?;
        std::str::from_utf8(self.bytes(length)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back_and_too_long_ones_are_refused() {
        let values = [0, 1, -1, 63, -64, 64, i64::MAX, i64::MIN];
        let mut out = Vec::new();
        for value in values {
            put_signed(&mut out, value);
        }
        let mut bytes = BlockBytes(&out);
        for value in values {
            assert_eq!(bytes.signed(), Some(value));
        }
        assert_eq!(bytes.signed(), None, "nothing is left");
        assert_eq!(BlockBytes(&[0xff; 11]).unsigned(), None);
        assert_eq!(BlockBytes(&[9, b'a']).text(), None, "longer than the rest");
    }
}
