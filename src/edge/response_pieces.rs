//! The pieces in which a response is written to its client.
//!
//! Each piece has `limits.client_write_seconds`. So a client may take long for a large response, as
//! long as it reads. This file must not write.

use bytes::Bytes;

/// Maximum size of a piece, in bytes.
pub const MAX_PIECE_BYTES: usize = 65_536;

/// Returns the pieces of a body, and whether each is the last one. An empty body is one piece.
pub fn split(mut body: Bytes) -> impl Iterator<Item = (Bytes, bool)> {
    let mut is_over = false;
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let piece = body.split_to(body.len().min(MAX_PIECE_BYTES));
        is_over = body.is_empty();
        Some((piece, is_over))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_make_up_the_body_and_the_last_one_says_so() {
        for (bytes, pieces) in [
            (0, 1),
            (1, 1),
            (MAX_PIECE_BYTES, 1),
            (MAX_PIECE_BYTES + 1, 2),
            (3 * MAX_PIECE_BYTES, 3),
        ] {
            let body: Bytes = (0..bytes).map(|index| index as u8).collect();
            let split: Vec<_> = split(body.clone()).collect();
            let joined: Vec<u8> = split.iter().flat_map(|(piece, _)| piece.to_vec()).collect();
            assert_eq!((joined, split.len()), (body.to_vec(), pieces));
            let ends = split.iter().map(|(_, is_last)| *is_last);
            assert!(ends.eq((1..=pieces).map(|number| number == pieces)));
        }
    }
}
