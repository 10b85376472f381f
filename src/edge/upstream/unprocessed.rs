//! What the failure of an HTTP/2 stream says about its request: that the vendor did not process it,
//! that the connection was lost, or that the vendor wants HTTP/1.1.
//!
//! RFC 9113, sections 6.8 and 8.7. Must not decide whether the request is sent again: that is
//! `attempts.rs`.

use h2::Reason;
use pingora::Error;

/// The vendor did not process the request that failed with `error`: it refused the stream, it is
/// closing the connection and named an earlier stream as its last one, or it wants HTTP/1.1.
pub fn is_unprocessed(error: &Error) -> bool {
    let Some(error) = h2_error(error) else {
        return false;
    };
    let refused = matches!(
        error.reason(),
        Some(Reason::REFUSED_STREAM | Reason::HTTP_1_1_REQUIRED)
    );
    // The h2 crate fails a stream with the vendor's GOAWAY only where the stream's id is above the
    // last one in it.
    error.is_remote() && (error.is_go_away() || error.is_reset() && refused)
}

/// The vendor serves this request over HTTP/1.1 only.
pub fn wants_http1(error: &Error) -> bool {
    h2_error(error)
        .is_some_and(|error| error.is_remote() && error.reason() == Some(Reason::HTTP_1_1_REQUIRED))
}

/// The connection is gone or is being closed, which is nothing about the request. On a connection
/// that was kept from before, it may have been gone before the request was sent.
pub fn lost_connection(error: &Error) -> bool {
    h2_error(error).is_some_and(|error| error.is_go_away() && error.is_remote() || error.is_io())
}

fn h2_error(error: &Error) -> Option<&h2::Error> {
    error.root_cause().downcast_ref()
}
