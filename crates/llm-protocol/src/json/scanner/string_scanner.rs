//! Finds the end of a plain run inside a JSON string: a quote, a backslash or a control character.
//!
//! All code that reads or writes JSON strings uses this search instead of looking at single bytes.
//! The caller must know where a string begins.

/// Number of bytes compared at once.
const BLOCK_BYTES: usize = 64;

/// Finds the ends of plain runs in a text, front to back. Source code in a prompt has an end every
/// few dozen bytes, so the search finds all ends of a block at once and returns them one by one.
#[derive(Clone, Copy)]
pub(crate) struct StringScanner<'a> {
    bytes: &'a [u8],
    /// The last searched block is `start..end`, which is empty at first.
    start: usize,
    end: usize,
    /// Bit mask of the ends in the block; the lowest bit is its first byte.
    hits: u64,
}

impl<'a> StringScanner<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        StringScanner {
            bytes,
            start: 0,
            end: 0,
            hits: 0,
        }
    }

    /// Returns the first end at or after `at`, or the end of the text if there is none. `at` must
    /// not decrease.
    #[inline]
    pub fn next_special(&mut self, at: usize) -> usize {
        if at >= self.end {
            return self.scan_blocks(at);
        }
        // A caller may start before the last result, and so before the block. No end lies in
        // between.
        let at = at.max(self.start);
        // An offset within a block fits in a byte.
        let [shift, ..] = at.wrapping_sub(self.start).to_le_bytes();
        let left = self.hits.wrapping_shr(shift.into());
        if left == 0 {
            return self.scan_blocks(self.end);
        }
        at.wrapping_add(left.trailing_zeros() as usize)
    }

    /// Searches for the first block from `at` on that contains an end.
    fn scan_blocks(&mut self, mut at: usize) -> usize {
        while let Some(block) = self.bytes.get(at..).and_then(|rest| rest.first_chunk()) {
            let hits = special_bytes(block);
            if hits != 0 {
                return self.set_block(at, hits);
            }
            at += BLOCK_BYTES;
        }
        self.scan_tail(at)
    }

    /// Searches the rest of the text, which is shorter than a block.
    fn scan_tail(&mut self, at: usize) -> usize {
        let length = self.bytes.len();
        let hits = match self.bytes.last_chunk() {
            Some(block) => special_bytes(block),
            None => {
                // The padding after the text contains no end of a run.
                let mut block = [b' '; BLOCK_BYTES];
                if let Some(front) = block.get_mut(..length) {
                    front.copy_from_slice(self.bytes);
                }
                special_bytes(&block)
            }
        };
        let start = length.saturating_sub(BLOCK_BYTES);
        let before = u32::try_from(at.saturating_sub(start)).unwrap_or(u32::MAX);
        match hits & u64::MAX.checked_shl(before).unwrap_or(0) {
            0 => length,
            hits => self.set_block(start, hits),
        }
    }

    fn set_block(&mut self, at: usize, hits: u64) -> usize {
        *self = StringScanner {
            bytes: self.bytes,
            start: at,
            end: at.saturating_add(BLOCK_BYTES),
            hits,
        };
        at.saturating_add(hits.trailing_zeros() as usize)
    }
}

/// Returns a bit mask of the bytes that end a plain run; the lowest bit is the first byte. The
/// first half has no branch, so the compiler compares sixteen bytes or more with one instruction.
#[inline]
fn special_bytes(block: &[u8; BLOCK_BYTES]) -> u64 {
    let mut marks = [0_u8; BLOCK_BYTES];
    for (mark, byte) in marks.iter_mut().zip(block) {
        *mark = u8::from(is_special(*byte)).wrapping_neg();
    }
    if marks.iter().fold(0, |any, mark| any | mark) == 0 {
        return 0;
    }
    // Each of eight bytes is all ones or all zeros. Keep one bit of each; the multiplication
    // collects them in the highest byte.
    marks
        .as_chunks::<8>()
        .0
        .iter()
        .rev()
        .fold(0, |hits, marks| {
            let bits = u64::from_le_bytes(*marks) & 0x8040_2010_0804_0201;
            hits << 8 | bits.wrapping_mul(0x0101_0101_0101_0101) >> 56
        })
}

fn is_special(byte: u8) -> bool {
    // Uses `|` instead of `||`, because the loop must have no branch.
    (byte == b'"') | (byte == b'\\') | (byte < 0x20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns all ends from `from` on, found by the block search and byte by byte.
    fn both(bytes: &[u8], from: usize) -> (Vec<usize>, Vec<usize>) {
        let (mut ends, mut fast, mut at) = (StringScanner::new(bytes), Vec::new(), from);
        loop {
            at = ends.next_special(at);
            if at >= bytes.len() {
                break;
            }
            fast.push(at);
            at += 1;
        }
        (
            fast,
            (from..bytes.len())
                .filter(|at| is_special(bytes[*at]))
                .collect(),
        )
    }

    #[test]
    fn a_single_end_is_found_wherever_it_stands() {
        for length in 0..200 {
            for start in [0, 3, 8, 64] {
                // Only plain bytes, including the lowest and highest.
                let plain: Vec<u8> = (0..length)
                    .map(|index| [b' ', b'a', 0x7f, 0x80, 0xff, b'!'][index % 6])
                    .collect();
                assert!(
                    StringScanner::new(&plain).next_special(start) >= length,
                    "{length} from {start}"
                );
                for end in [b'"', b'\\', 0, 0x1f, b'\n'] {
                    for position in 0..length {
                        let mut bytes = plain.clone();
                        bytes[position] = end;
                        let (fast, slow) = both(&bytes, start);
                        assert_eq!(fast, slow, "{end} at {position} of {length} from {start}");
                    }
                }
            }
        }
    }

    #[test]
    fn who_asks_again_from_before_an_answer_gets_it_again() {
        let bytes = [b"\"".as_slice(), &[b'a'; 200], b"\""].concat();
        let mut ends = StringScanner::new(&bytes);
        assert_eq!(
            [0, 1, 1, 70, 130, 201, 202].map(|at| ends.next_special(at)),
            [0, 201, 201, 201, 201, 201, 202]
        );
    }

    proptest! {
        #[test]
        fn every_end_is_found_that_reading_byte_by_byte_finds(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'"'), Just(b'\\'), Just(b'a')], 0..400),
            steps in prop::collection::vec(0_usize..90, 0..20),
        ) {
            let (fast, slow) = both(&bytes, 0);
            prop_assert_eq!(fast, slow);
            // Starts from arbitrary positions that the search did not return.
            let (mut ends, mut at) = (StringScanner::new(&bytes), 0);
            for step in steps {
                at += step;
                let slow = (at..bytes.len()).find(|at| is_special(bytes[*at])).unwrap_or(bytes.len());
                prop_assert_eq!(ends.next_special(at).min(bytes.len()), slow.min(bytes.len()), "from {}", at);
            }
        }
    }
}
