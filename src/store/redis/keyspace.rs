//! The names of the Redis keys, the partitions that they belong to, and how long markers live.
//!
//! Must not call the store.

/// Number of partitions. Never change it while the store has data.
pub const PARTITIONS: u32 = 16;

/// Lifetime of the marker of a request that has ended. Until it is over, the store itself knows
/// that it has had the end; after that, the ledger knows.
pub(super) const MARKER_MS: u64 = 3_600 * 1_000;

/// Lifetime of an operation's marker: an interrupted command can be run again until then.
pub(super) const OPERATION_MS: u64 = 30 * 24 * 3_600 * 1_000;

/// Value of a request's marker once the ledger has entered its end.
pub(super) const APPLIED: &str = "applied";

/// Redis key that exists while the store knows every API key.
pub(super) const KEYS_KNOWN: &str = "gw:keys";

/// Returns the partition of an account.
pub fn partition(account: &str) -> u32 {
    crc32fast::hash(account.as_bytes()) % PARTITIONS
}

pub(super) fn key(partition: u32, kind: &str, of: &str) -> String {
    format!("gw:{{p{partition}}}:{kind}{of}")
}
