//! Generates the ids of accounts and keys.
//!
//! This file must not depend on the named objects.

use super::error::AccountError;

/// Returns `prefix` and a UUIDv7 of `now_ms` in 32 hex digits.
pub(crate) fn new_id(prefix: &str, now_ms: i64) -> Result<String, AccountError> {
    let mut random = [0u8; 10];
    getrandom::fill(&mut random).map_err(AccountError::Random)?;
    let millis = u64::try_from(now_ms).unwrap_or(0);
    let id = uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid();
    Ok(format!("{prefix}{}", id.simple()))
}
