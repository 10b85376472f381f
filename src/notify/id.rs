//! Creates the ids of messages.
//!
//! This file must not depend on a kind of message.

use ledger::StoreError;

/// Returns `prefix` and a UUIDv7 of `now_ms` in 32 hex digits.
pub fn new_id(prefix: &str, now_ms: i64) -> Result<String, StoreError> {
    let mut random = [0u8; 10];
    fill_random(&mut random)?;
    let millis = u64::try_from(now_ms).unwrap_or(0);
    let id = uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid();
    Ok(format!("{prefix}{}", id.simple()))
}

pub fn fill_random(bytes: &mut [u8]) -> Result<(), StoreError> {
    getrandom::fill(bytes)
        .map_err(|error| StoreError::Unusable(format!("cannot get random bytes: {error}")))
}
