//! Enforces the minimum pace at which a client must read its response: 64 KiB, or the rest of the
//! response if that is shorter, in each `limits.client_write_seconds`. A large response may take
//! long, as long as the client keeps reading.
//!
//! The gateway writes a response in pieces of that size. A connection whose buffer is full may
//! still keep the pace: the kernel accepts no write until a third of the buffer is free, which can
//! be more than a megabyte. This file must not write to a connection.

use bytes::Bytes;
use pingora::protocols::SocketDigest;
use std::time::{Duration, Instant};

/// Maximum size of a piece, in bytes.
pub const MAX_PIECE_BYTES: usize = 65_536;

pub struct PaceCheck {
    began: Instant,
    acknowledged: u64,
}

impl PaceCheck {
    /// Begins to measure. Without a TCP connection, [`Self::is_kept`] returns false.
    pub fn begin(socket: Option<&SocketDigest>) -> Self {
        Self {
            began: Instant::now(),
            acknowledged: acknowledged_bytes(socket),
        }
    }

    /// Returns whether the client has acknowledged enough bytes since [`Self::begin`]. `limit` is
    /// the time for each 64 KiB.
    pub fn is_kept(&self, socket: Option<&SocketDigest>, limit: Duration) -> bool {
        let taken = acknowledged_bytes(socket).saturating_sub(self.acknowledged);
        let due = self.began.elapsed().as_millis() * MAX_PIECE_BYTES as u128;
        taken > 0 && u128::from(taken) * limit.as_millis() >= due
    }
}

/// Returns how many bytes on this connection the client's system has acknowledged.
fn acknowledged_bytes(socket: Option<&SocketDigest>) -> u64 {
    let info = socket.and_then(SocketDigest::tcp_info);
    info.map_or(0, |info| info.tcpi_bytes_acked)
}

/// Splits a body into pieces, and marks the last one. An empty body is one piece.
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
