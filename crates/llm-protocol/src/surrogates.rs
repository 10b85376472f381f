//! Joins surrogate pairs that a vendor split over two deltas: the first half (`\ud83d`) ends one
//! text, the second half begins the next. Most JSON parsers refuse half a pair or replace it, so
//! the gateway holds the first half back until the second arrives.
//!
//! This file must not change a text in any other way. A half whose other half never arrives is
//! passed on unchanged.
//!
//! Read next: `translate.rs` and `passthrough/split_chars.rs`, which hold halves back.

/// Maximum number of halves that wait at a time. Each is the end of another text of the same
/// answer.
const MAX_PENDING: usize = 64;

/// Length of `\ud83d` in bytes.
const ESCAPE_BYTES: usize = 6;

/// The waiting halves, each with the key of its text.
#[derive(Debug)]
pub(super) struct PendingSurrogates<K>(Vec<(K, String)>);

impl<K> Default for PendingSurrogates<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: PartialEq> PendingSurrogates<K> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps a half until its text continues.
    pub fn insert(&mut self, text: K, half: &str) {
        if self.0.len() >= MAX_PENDING {
            self.0.remove(0);
        }
        self.0.push((text, half.to_owned()));
    }

    /// Removes and returns the half that waits for a text to continue.
    pub fn take(&mut self, text: &K) -> Option<String> {
        let at = self.0.iter().position(|(held, _)| held == text)?;
        Some(self.0.remove(at).1)
    }

    /// Removes and returns all waiting halves.
    pub fn take_all(&mut self) -> impl Iterator<Item = (K, String)> + use<K> {
        std::mem::take(&mut self.0).into_iter()
    }
}

/// Returns the offset of a high surrogate escape at the end of a JSON string's content.
pub(super) fn trailing_high_surrogate(raw: &str) -> Option<usize> {
    let at = raw.len().checked_sub(ESCAPE_BYTES)?;
    let (before, half) = (raw.as_bytes().get(..at)?, raw.as_bytes().get(at..)?);
    let is_first = matches!(
        half,
        [
            b'\\',
            b'u',
            b'd' | b'D',
            b'8' | b'9' | b'a' | b'b' | b'A' | b'B',
            ..
        ]
    );
    // After an odd number of backslashes, this backslash is itself escaped.
    let backslashes = before
        .iter()
        .rev()
        .take_while(|byte| **byte == b'\\')
        .count();
    (is_first && backslashes.is_multiple_of(2)).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_half_of_a_pair_at_the_end_is_one() {
        for (raw, expected) in [
            (r"\ud83d", Some(0)),
            (r"hi \uDBFF", Some(3)),
            (r"\\\ud83d", Some(2)),
            (r"\\ud83d", None),
            (r"\ud83d\ude00", None),
            (r"\ud83d ", None),
            (r"\ude00", None),
            (r"\u00e9", None),
            ("", None),
            ("🦀🦀", None),
        ] {
            assert_eq!(trailing_high_surrogate(raw), expected, "{raw}");
        }
    }

    #[test]
    fn as_many_halves_wait_as_may_and_the_oldest_gives_way() {
        let mut halves = PendingSurrogates::default();
        for text in 0..=MAX_PENDING {
            halves.insert(text, r"\ud83d");
        }
        assert_eq!(halves.0.len(), MAX_PENDING);
        assert_eq!(halves.take(&0), None);
        assert_eq!(halves.take(&MAX_PENDING).as_deref(), Some(r"\ud83d"));
        assert_eq!(halves.take(&MAX_PENDING), None);
    }
}
