//! Defines the names of the Redis keys, their partitions, and the lifetimes of markers.
//!
//! This file must not call the store.

use config::redis_address::RedisAddress;

/// Number of partitions. The number must not change while the store has data.
pub const PARTITIONS: u32 = 16;

/// Lifetime of the marker of an ended request, in ms. Until it expires, the store itself knows the
/// end; after that, the ledger does.
pub(crate) const MARKER_MS: u64 = 3_600 * 1_000;

/// Lifetime of an operation's marker, in ms. An interrupted command can be run again until it
/// expires.
pub(crate) const OPERATION_MS: u64 = 30 * 24 * 3_600 * 1_000;

/// Value of a request's marker once the ledger has entered its end.
pub(crate) const APPLIED: &str = "applied";

/// Redis key that exists while the store knows every API key.
pub(crate) const KEYS_KNOWN: &str = "gw:keys";

pub fn partition(account: &str) -> u32 {
    crc32fast::hash(account.as_bytes()) % PARTITIONS
}

/// The names of the partitions in keys. A name is a hash tag, which determines the slot in a
/// cluster.
#[derive(Clone, Copy)]
pub(crate) struct Keyspace([&'static str; PARTITIONS as usize]);

impl Keyspace {
    /// The names on a single server.
    pub const NUMBERED: Self = Self([
        "p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9", "p10", "p11", "p12", "p13",
        "p14", "p15",
    ]);
    /// The names in a cluster. Each name has a slot at the beginning of another sixteenth of the
    /// slots. Primaries with equally many consecutive slots thus have equally many partitions, or
    /// differ by one.
    pub const SPREAD: Self = Self([
        "p0k", "p1ab", "p2bb", "p3bx", "p4db", "p5dx", "p6y", "p7fx", "p8fy", "p9fc", "p10o",
        "p11dr", "p12fi", "p13fs", "p14ar", "p15ah",
    ]);

    pub fn from_address(address: &RedisAddress) -> Self {
        match address {
            RedisAddress::One(_) | RedisAddress::Sentinel(_) => Self::NUMBERED,
            RedisAddress::Cluster(_) => Self::SPREAD,
        }
    }

    pub fn key(&self, partition: u32, kind: &str, of: &str) -> String {
        let index = usize::try_from(partition).unwrap_or(usize::MAX);
        let tag = self.0.get(index).copied().unwrap_or_default();
        format!("gw:{{{tag}}}:{kind}{of}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u32 = 16_384;

    /// The hash slot of a key with this tag: CRC-16 (XMODEM), as the cluster specification says.
    fn slot(tag: &str) -> u32 {
        let step = |crc: u16, byte: u8| {
            (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
                let shifted = crc << 1;
                if crc & 0x8000 == 0 {
                    shifted
                } else {
                    shifted ^ 0x1021
                }
            })
        };
        u32::from(tag.bytes().fold(0, step)) % SLOTS
    }

    /// How many partitions each primary has with the slots that `redis-cli --cluster create` gives
    /// it.
    fn on_primaries(keyspace: Keyspace, primaries: u32) -> Vec<usize> {
        let first = |primary: u32| (2 * primary * SLOTS + primaries) / (2 * primaries);
        let slots = keyspace.0.map(slot);
        (0..primaries)
            .map(|primary| first(primary)..first(primary + 1))
            .map(|range| slots.iter().filter(|slot| range.contains(slot)).count())
            .collect()
    }

    #[test]
    fn in_a_cluster_of_any_size_each_primary_has_as_many_partitions_or_one_more() {
        assert_eq!(slot("123456789"), 0x31c3, "the check value of this CRC");
        for primaries in 1..=PARTITIONS {
            let each = on_primaries(Keyspace::SPREAD, primaries);
            let (least, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
            assert!(most - least <= 1, "{primaries} primaries: {each:?}");
        }
        assert_eq!(on_primaries(Keyspace::NUMBERED, 3), [4, 5, 7]);
    }
}
