//! Reads the `store` section, which has the address of the shared store in exactly one of several
//! forms.

use super::raw;
use super::validator::ConfigValidator;
use crate::catalog::Secret;
use crate::redis_address::{RedisAddress, SentinelAddress};
use std::ops::RangeInclusive;

/// Maximum number of Sentinels, which the gateway queries concurrently.
const MAX_SENTINELS: usize = 16;
/// Limits of `store.reply_timeout_ms`.
const REPLY_TIMEOUT_MS: RangeInclusive<u64> = 20..=1_000;

/// The store that decides about keys, balances and holds.
#[derive(Debug, Clone)]
pub enum StoreSettings {
    /// This process and its `data_dir`.
    Embedded,
    /// One Redis server.
    Redis(Secret),
    /// Some nodes of a Redis Cluster.
    RedisCluster(Vec<Secret>),
    /// The server that the Sentinels report as the primary.
    RedisSentinel(SentinelAddress),
}

impl StoreSettings {
    pub fn kind_name(&self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Redis(_) | Self::RedisCluster(_) | Self::RedisSentinel(_) => "redis",
        }
    }

    /// Returns the address of the shared store, or `None` without one.
    pub fn address(&self) -> Option<RedisAddress> {
        match self {
            Self::Embedded => None,
            Self::Redis(url) => Some(RedisAddress::One(url.reveal().to_owned())),
            Self::RedisCluster(nodes) => Some(RedisAddress::Cluster(
                nodes.iter().map(|node| node.reveal().to_owned()).collect(),
            )),
            Self::RedisSentinel(sentinel) => Some(RedisAddress::Sentinel(sentinel.clone())),
        }
    }
}

impl ConfigValidator {
    pub(super) fn store(&mut self, store: raw::Store) -> Option<StoreSettings> {
        let raw::Store {
            kind,
            url,
            cluster,
            sentinel,
            reply_timeout_ms,
            ..
        } = store;
        if !REPLY_TIMEOUT_MS.contains(&reply_timeout_ms) {
            let (min, max) = REPLY_TIMEOUT_MS.into_inner();
            self.add_fault(
                "store.reply_timeout_ms",
                format!("must be {min} to {max}, not {reply_timeout_ms}"),
            );
        }
        self.check_urls("store.url", url.as_slice());
        self.check_urls("store.cluster", &cluster);
        match (kind, url, cluster.is_empty(), sentinel) {
            (raw::StoreKind::Embedded, None, true, None) => Some(StoreSettings::Embedded),
            (raw::StoreKind::Embedded, ..) => {
                let says = "an embedded store has no address: remove `url`, `cluster` and `sentinel`, or set kind: redis";
                self.add_fault("store", says);
                None
            }
            (raw::StoreKind::Redis, Some(url), true, None) => {
                Some(StoreSettings::Redis(Secret::new(url)))
            }
            (raw::StoreKind::Redis, None, false, None) => Some(StoreSettings::RedisCluster(
                cluster.into_iter().map(Secret::new).collect(),
            )),
            (raw::StoreKind::Redis, None, true, Some(sentinel)) => self.sentinel(sentinel),
            (raw::StoreKind::Redis, ..) => {
                self.add_fault(
                    "store",
                    "kind: redis needs exactly one of `url`, `cluster` and `sentinel`",
                );
                None
            }
        }
    }

    fn check_urls(&mut self, key: &str, urls: &[String]) {
        if urls
            .iter()
            .any(|url| !url.starts_with("redis://") && !url.starts_with("rediss://"))
        {
            self.add_fault(key, "must begin with redis:// or rediss://");
        }
    }

    fn sentinel(&mut self, sentinel: raw::Sentinel) -> Option<StoreSettings> {
        let raw::Sentinel {
            master,
            nodes,
            user,
            password,
            database,
        } = sentinel;
        self.check_urls("store.sentinel.nodes", &nodes);
        if !(1..=MAX_SENTINELS).contains(&nodes.len()) {
            let message = format!("must have 1 to {MAX_SENTINELS} nodes, not {}", nodes.len());
            self.add_fault("store.sentinel.nodes", message);
        }
        if master.is_empty() {
            self.add_fault(
                "store.sentinel.master",
                "must be the name under which the Sentinels know the primary",
            );
        }
        let of_tls = nodes
            .iter()
            .filter(|node| node.starts_with("rediss://"))
            .count();
        if of_tls != 0 && of_tls != nodes.len() {
            self.add_fault(
                "store.sentinel.nodes",
                "either all or none of the nodes must begin with rediss://",
            );
        }
        let password = match password {
            None => None,
            Some(password) => Some(
                self.secret("store.sentinel.password", &password)?
                    .reveal()
                    .to_owned(),
            ),
        };
        let (tls, database) = (of_tls > 0, i64::from(database));
        Some(StoreSettings::RedisSentinel(SentinelAddress {
            master,
            nodes,
            user,
            password,
            database,
            tls,
        }))
    }
}
