//! Where a plain run inside a JSON string ends: at a quote, a backslash or a control character.
//!
//! The one fast search of the protocols' bodies: whoever reads or writes strings asks here, and
//! none looks at them byte by byte. Must not know what a string is, nor where it begins.

/// Bytes that are judged at one time.
const BLOCK: usize = 64;

/// The ends of plain runs in a text, asked for from front to back. Texts of code have one every few
/// dozen bytes: all of a block are found at once, and told one by one.
#[derive(Clone, Copy)]
pub(crate) struct Ends<'a> {
    bytes: &'a [u8],
    /// The block that was judged last is `start..end`: at first none.
    start: usize,
    end: usize,
    /// Its ends, the lowest bit being its first byte.
    hits: u64,
}

impl<'a> Ends<'a> {
    pub fn of(bytes: &'a [u8]) -> Self {
        Ends {
            bytes,
            start: 0,
            end: 0,
            hits: 0,
        }
    }

    /// The first end at or after `at`, which never goes back; the text's own where no other is
    /// left.
    #[inline]
    pub fn after(&mut self, at: usize) -> usize {
        if at >= self.end {
            return self.judge(at);
        }
        // Whoever asks from before the last answer may stand before its block: in between is no
        // end.
        let at = at.max(self.start);
        // Within a block, whose places fit a byte.
        let [place, ..] = at.wrapping_sub(self.start).to_le_bytes();
        let left = self.hits.wrapping_shr(place.into());
        if left == 0 {
            return self.judge(self.end);
        }
        at.wrapping_add(left.trailing_zeros() as usize)
    }

    /// Looks for the first block from `at` on that holds an end.
    fn judge(&mut self, mut at: usize) -> usize {
        while let Some(block) = self.bytes.get(at..).and_then(|rest| rest.first_chunk()) {
            let hits = hits(block);
            if hits != 0 {
                return self.found(at, hits);
            }
            at += BLOCK;
        }
        self.judge_last(at)
    }

    /// Of what is left, less than a block.
    fn judge_last(&mut self, at: usize) -> usize {
        let length = self.bytes.len();
        let hits = match self.bytes.last_chunk() {
            Some(block) => hits(block),
            None => {
                // What is put behind the text is no end.
                let mut block = [b' '; BLOCK];
                if let Some(front) = block.get_mut(..length) {
                    front.copy_from_slice(self.bytes);
                }
                hits(&block)
            }
        };
        let start = length.saturating_sub(BLOCK);
        let before = u32::try_from(at.saturating_sub(start)).unwrap_or(u32::MAX);
        match hits & u64::MAX.checked_shl(before).unwrap_or(0) {
            0 => length,
            hits => self.found(start, hits),
        }
    }

    fn found(&mut self, at: usize, hits: u64) -> usize {
        *self = Ends {
            bytes: self.bytes,
            start: at,
            end: at.saturating_add(BLOCK),
            hits,
        };
        at.saturating_add(hits.trailing_zeros() as usize)
    }
}

/// Of a block the bytes that end a plain run, the lowest bit for the first. No branch in the first
/// half: so the compiler judges sixteen bytes or more with one instruction.
#[inline]
fn hits(block: &[u8; BLOCK]) -> u64 {
    let mut marks = [0_u8; BLOCK];
    for (mark, byte) in marks.iter_mut().zip(block) {
        *mark = u8::from(ends_plain(*byte)).wrapping_neg();
    }
    if marks.iter().fold(0, |any, mark| any | mark) == 0 {
        return 0;
    }
    // Of eight bytes that are all ones or all zeros, one bit each is kept; the product adds those
    // up in its highest byte.
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

fn ends_plain(byte: u8) -> bool {
    // One `|` each, for no branch may be in it.
    (byte == b'"') | (byte == b'\\') | (byte < 0x20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All ends from `from` on, found in the fast way and byte by byte.
    fn both(bytes: &[u8], from: usize) -> (Vec<usize>, Vec<usize>) {
        let (mut ends, mut fast, mut at) = (Ends::of(bytes), Vec::new(), from);
        loop {
            at = ends.after(at);
            if at >= bytes.len() {
                break;
            }
            fast.push(at);
            at += 1;
        }
        (
            fast,
            (from..bytes.len())
                .filter(|at| ends_plain(bytes[*at]))
                .collect(),
        )
    }

    #[test]
    fn a_single_end_is_found_wherever_it_stands() {
        for length in 0..200 {
            for start in [0, 3, 8, 64] {
                // Nothing but plain bytes, the highest and lowest of them among those.
                let plain: Vec<u8> = (0..length)
                    .map(|index| [b' ', b'a', 0x7f, 0x80, 0xff, b'!'][index % 6])
                    .collect();
                assert!(
                    Ends::of(&plain).after(start) >= length,
                    "{length} from {start}"
                );
                for end in [b'"', b'\\', 0, 0x1f, b'\n'] {
                    for place in 0..length {
                        let mut bytes = plain.clone();
                        bytes[place] = end;
                        let (fast, slow) = both(&bytes, start);
                        assert_eq!(fast, slow, "{end} at {place} of {length} from {start}");
                    }
                }
            }
        }
    }

    #[test]
    fn who_asks_again_from_before_an_answer_gets_it_again() {
        let bytes = [b"\"".as_slice(), &[b'a'; 200], b"\""].concat();
        let mut ends = Ends::of(&bytes);
        assert_eq!(
            [0, 1, 1, 70, 130, 201, 202].map(|at| ends.after(at)),
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
            // From places of the asker's choice, which it jumps to without having asked.
            let (mut ends, mut at) = (Ends::of(&bytes), 0);
            for step in steps {
                at += step;
                let slow = (at..bytes.len()).find(|at| ends_plain(bytes[*at])).unwrap_or(bytes.len());
                prop_assert_eq!(ends.after(at).min(bytes.len()), slow.min(bytes.len()), "from {}", at);
            }
        }
    }
}
