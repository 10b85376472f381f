//! Classifies the failure of an HTTP/2 stream: the vendor did not process the request, the
//! connection was lost, or the vendor wants HTTP/1.1.
//!
//! RFC 9113 (sections 6.8 and 8.7) defines these cases. This file must not decide whether the
//! gateway sends the request again: `attempts.rs` does.

use h2::Reason;
use pingora::Error;

/// Returns whether the vendor did not process the request that failed with `error`. That is so if
/// the vendor refused the stream, named an earlier stream as its last one in a GOAWAY, or wants
/// HTTP/1.1.
pub fn is_unprocessed(error: &Error) -> bool {
    let Some(error) = h2_error(error) else {
        return false;
    };
    let refused = matches!(
        error.reason(),
        Some(Reason::REFUSED_STREAM | Reason::HTTP_1_1_REQUIRED)
    );
    // The h2 crate fails a stream with the vendor's GOAWAY only if the stream's id is above the
    // last one in it.
    error.is_remote() && (error.is_go_away() || error.is_reset() && refused)
}

/// Returns whether the vendor serves this request over HTTP/1.1 only.
pub fn wants_http1(error: &Error) -> bool {
    h2_error(error)
        .is_some_and(|error| error.is_remote() && error.reason() == Some(Reason::HTTP_1_1_REQUIRED))
}

/// Returns whether the connection is lost or closing, which shows nothing about the request. A
/// pooled connection may have been lost before the gateway sent the request.
pub fn is_connection_lost(error: &Error) -> bool {
    h2_error(error).is_some_and(|error| error.is_go_away() && error.is_remote() || error.is_io())
}

fn h2_error(error: &Error) -> Option<&h2::Error> {
    error.root_cause().downcast_ref()
}
