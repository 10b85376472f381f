//! Failures by which an HTTP/2 vendor says that it did not work on a request, so that asking again costs nobody anything.
//!
//! RFC 9113, sections 6.8 and 8.7. Must not decide whether the request is sent again: that is `attempts.rs`.

use h2::Reason;
use pingora::Error;

/// The vendor did not process the request that failed with `error`: it refused the stream, it is closing the connection
/// and named an earlier stream as its last one, or it wants HTTP/1.1.
pub fn is_unprocessed(error: &Error) -> bool {
    let Some(error) = error.root_cause().downcast_ref::<h2::Error>() else { return false };
    let refused = matches!(error.reason(), Some(Reason::REFUSED_STREAM | Reason::HTTP_1_1_REQUIRED));
    // The h2 crate fails a stream with the vendor's GOAWAY only where the stream's id is above the last one in it.
    error.is_remote() && (error.is_go_away() || error.is_reset() && refused)
}

/// The error is about a connection that was kept from before, which the vendor is closing: a new one may work.
pub fn is_closing_connection(error: &Error) -> bool {
    error.root_cause().downcast_ref::<h2::Error>().is_some_and(|error| error.is_go_away() || error.is_io())
}
