//! Classifies errors of the shared store: their label in metrics, and whether the connection is
//! still usable. It converts them to [`StoreError`], which does not depend on Redis.
//!
//! This file must not decide how to react.

use ::redis::{ErrorKind, RedisError};
use ledger::StoreError;

/// Returns the error of an operation that the shared store refused or did not answer.
pub fn store_error(operation: &'static str, source: RedisError) -> StoreError {
    StoreError::SharedStore {
        operation,
        reason: redis_reason(&source),
        source: source.into(),
    }
}

/// Returns the error of an operation that was not tried, because the circuit breaker is open.
pub fn circuit_open(operation: &'static str) -> StoreError {
    StoreError::SharedStore {
        operation,
        reason: "store_away",
        source: "the shared store does not answer; the gateway keeps probing it".into(),
    }
}

/// Returns the store's own error, or `None` if the error has another origin.
pub fn redis_error(error: &StoreError) -> Option<&RedisError> {
    match error {
        StoreError::SharedStore { source, .. } => source.downcast_ref(),
        _ => None,
    }
}

/// Returns the code of the store's reply, such as `NOPERM`, or `None` without a reply.
pub fn reply_code(error: &StoreError) -> Option<&str> {
    redis_error(error)?.code()
}

/// Returns the label of an error in metrics, from a fixed set.
fn redis_reason(error: &RedisError) -> &'static str {
    match error.code() {
        Some("OOM") => return "store_out_of_memory",
        Some("READONLY") => return "store_read_only",
        Some("LOADING") => return "store_loading",
        Some("BUSY") => return "store_busy",
        Some("MISCONF") => return "store_misconf",
        Some("NOREPLICAS") => return "store_no_replicas",
        Some("CLUSTERDOWN") => return "store_cluster_down",
        Some("MOVED" | "ASK" | "TRYAGAIN") => return "store_moving",
        Some("MASTERDOWN") => return "store_no_primary",
        Some("NOAUTH" | "WRONGPASS") => return "store_auth",
        Some("NOPERM") => return "store_forbidden",
        _ => {}
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => "store_auth",
        ErrorKind::MasterNameNotFoundBySentinel => "store_no_primary",
        ErrorKind::ClusterConnectionNotFound => "store_unreachable",
        ErrorKind::Io if error.is_timeout() => "store_timeout",
        ErrorKind::Io => "store_unreachable",
        _ => "store_error",
    }
}

/// Returns whether the connection cannot be used any more, because it is lost, its server is no
/// longer the primary, or its server refuses the password.
pub fn ends_connection(error: &RedisError) -> bool {
    let is_elsewhere = matches!(error.code(), Some("READONLY" | "MASTERDOWN" | "NOAUTH"));
    is_elsewhere || error.is_io_error() || error.is_unrecoverable_error()
}

/// Returns whether a retry is safe and may succeed at once, because no server has run the command
/// or running it again is harmless.
pub fn is_retryable(error: &RedisError) -> bool {
    ends_connection(error) && !error.is_timeout() && !error.is_connection_refusal()
}

/// Returns the first error of a pipeline, which has one error for each command.
pub fn first_error(error: RedisError) -> RedisError {
    let first = error.clone().into_server_errors();
    first
        .and_then(|errors| errors.first().map(|(_, first)| first.clone().into()))
        .unwrap_or(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::redis::make_extension_error;
    use std::io;

    fn io(kind: io::ErrorKind) -> RedisError {
        RedisError::from(io::Error::from(kind))
    }

    #[test]
    fn each_failure_has_a_word_of_its_own_and_says_whether_its_connection_is_of_use() {
        let error_with_code = |code: &str| make_extension_error(code.into(), None);
        let none_found =
            RedisError::from((ErrorKind::MasterNameNotFoundBySentinel, "no such primary"));
        for (error, word, ends, another) in [
            (error_with_code("OOM"), "store_out_of_memory", false, false),
            (error_with_code("BUSY"), "store_busy", false, false),
            (error_with_code("MISCONF"), "store_misconf", false, false),
            (
                error_with_code("NOREPLICAS"),
                "store_no_replicas",
                false,
                false,
            ),
            (error_with_code("WRONGPASS"), "store_auth", false, false),
            (error_with_code("NOAUTH"), "store_auth", true, true),
            (error_with_code("SOMETHING"), "store_error", false, false),
            (none_found, "store_no_primary", false, false),
            (io(io::ErrorKind::TimedOut), "store_timeout", true, false),
            (
                io(io::ErrorKind::ConnectionRefused),
                "store_unreachable",
                true,
                false,
            ),
            (
                io(io::ErrorKind::BrokenPipe),
                "store_unreachable",
                true,
                true,
            ),
        ] {
            let seen = (
                store_error("call", error.clone()).reason(),
                ends_connection(&error),
                is_retryable(&error),
            );
            assert_eq!(seen, (word, ends, another), "{error}");
        }
    }
}
