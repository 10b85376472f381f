//! The body of a request on its way to a vendor.
//!
//! This file must not interpret the bytes.

use crate::json::edit::JsonEdit;
use bytes::{Bytes, BytesMut};

/// Length in bytes from which an unchanged part is shared with the body that it comes from. A
/// shorter part costs less to copy than to send apart.
pub(super) const MIN_SHARED_BYTES: usize = 131_072;

/// A body in pieces that follow one another.
#[derive(Clone, Debug, Default)]
pub struct RequestBody {
    first: Bytes,
    more: Vec<Bytes>,
}

impl From<Bytes> for RequestBody {
    fn from(first: Bytes) -> Self {
        let more = Vec::new();
        Self { first, more }
    }
}

impl RequestBody {
    /// Applies `edits`, which are sorted and do not overlap, to `source`. Long unchanged parts are
    /// not copied.
    pub(super) fn splice(source: &Bytes, edits: &[JsonEdit<'_>]) -> Self {
        let mut spliced = Self::default();
        let (mut copied, mut own) = (0, BytesMut::new());
        for edit in edits {
            let span = edit.span;
            if span.start < copied || span.end < span.start || span.end > source.len() {
                continue;
            }
            spliced.push_unchanged(&mut own, source.slice(copied..span.start));
            own.extend_from_slice(edit.text.as_bytes());
            copied = span.end;
        }
        spliced.push_unchanged(&mut own, source.slice(copied..));
        spliced.push(own.freeze());
        spliced
    }

    fn push_unchanged(&mut self, own: &mut BytesMut, part: Bytes) {
        if part.len() < MIN_SHARED_BYTES {
            own.extend_from_slice(&part);
            return;
        }
        self.push(own.split().freeze());
        self.push(part);
    }

    fn push(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        match self.first.is_empty() {
            true => self.first = piece,
            false => self.more.push(piece),
        }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        let more: usize = self.more.iter().map(Bytes::len).sum();
        self.first.len() + more
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Returns the first piece.
    pub fn first(&self) -> &Bytes {
        &self.first
    }

    /// Takes the next piece, or its first `max_bytes` bytes. Returns `None` after the last one.
    pub fn take_piece(&mut self, max_bytes: usize) -> Option<Bytes> {
        if self.first.is_empty() {
            return None;
        }
        let piece = self.first.split_to(self.first.len().min(max_bytes));
        if self.first.is_empty() && !self.more.is_empty() {
            self.first = self.more.remove(0);
        }
        Some(piece)
    }

    /// Returns the body as one piece; copies it if it has several.
    pub fn to_bytes(&self) -> Bytes {
        if self.more.is_empty() {
            return self.first.clone();
        }
        let pieces = std::iter::once(&self.first).chain(&self.more);
        let mut whole = BytesMut::with_capacity(self.len());
        pieces.for_each(|piece| whole.extend_from_slice(piece));
        whole.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Span;

    fn edit(start: usize, end: usize, text: &'static str) -> JsonEdit<'static> {
        JsonEdit::new(Span { start, end }, text)
    }

    fn pieces(mut body: RequestBody) -> Vec<Bytes> {
        std::iter::from_fn(|| body.take_piece(usize::MAX)).collect()
    }

    #[test]
    fn long_unchanged_parts_are_shared_and_short_ones_are_copied() {
        let source = Bytes::from(vec![b'a'; 2 * MIN_SHARED_BYTES + 10]);
        let edits = [
            edit(4, 5, "bb"),
            edit(5 + MIN_SHARED_BYTES, 8 + MIN_SHARED_BYTES, ""),
        ];
        let body = RequestBody::splice(&source, &edits);
        let mut expected = source.to_vec();
        expected.drain(5 + MIN_SHARED_BYTES..8 + MIN_SHARED_BYTES);
        expected.splice(4..5, *b"bb");
        assert_eq!(body.to_bytes(), expected);
        assert_eq!(body.len(), expected.len());
        let pieces = pieces(body);
        let shared = source.slice(5..5 + MIN_SHARED_BYTES);
        assert_eq!(pieces[0], "aaaabb");
        assert_eq!((pieces[1].as_ptr(), &pieces[1]), (shared.as_ptr(), &shared));
        assert_eq!(pieces.len(), 3, "the rest, too, is long enough");
        let one_less =
            RequestBody::splice(&source.slice(..MIN_SHARED_BYTES + 4), &[edit(4, 5, "b")]);
        assert_eq!(super::tests::pieces(one_less).len(), 1);
    }

    #[test]
    fn a_body_is_taken_in_pieces_of_a_length() {
        let mut body = RequestBody::from(Bytes::from_static(b"abcde"));
        body.more.push(Bytes::from_static(b"fg"));
        let taken: Vec<_> = std::iter::from_fn(|| body.take_piece(3)).collect();
        assert_eq!(taken, ["abc", "de", "fg"]);
        assert!(body.is_empty());
        assert!(RequestBody::default().is_empty());
    }
}
