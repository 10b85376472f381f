//! The `store` section: the address of the shared store, given in exactly one of the possible
//! forms.

use super::{Store, raw};
use crate::catalog::Secret;
use crate::store::redis::Sentinel;

/// Maximum number of Sentinels; the gateway queries them concurrently.
const SENTINELS_MOST: usize = 16;

impl super::Judge {
    pub(super) fn store(&mut self, store: raw::Store) -> Option<Store> {
        let raw::Store {
            kind,
            url,
            cluster,
            sentinel,
            ..
        } = store;
        self.addresses("store.url", url.as_slice());
        self.addresses("store.cluster", &cluster);
        match (kind, url, cluster.is_empty(), sentinel) {
            (raw::StoreKind::Embedded, None, true, None) => Some(Store::Embedded),
            (raw::StoreKind::Embedded, ..) => {
                let says = "an embedded store has no address: leave `url`, `cluster` and `sentinel` out, or say kind: redis";
                self.fault("store", says);
                None
            }
            (raw::StoreKind::Redis, Some(url), true, None) => Some(Store::Redis(Secret::new(url))),
            (raw::StoreKind::Redis, None, false, None) => Some(Store::RedisCluster(
                cluster.into_iter().map(Secret::new).collect(),
            )),
            (raw::StoreKind::Redis, None, true, Some(sentinel)) => self.sentinel(sentinel),
            (raw::StoreKind::Redis, ..) => {
                self.fault(
                    "store",
                    "kind: redis takes one of `url`, `cluster` and `sentinel`",
                );
                None
            }
        }
    }

    fn addresses(&mut self, key: &str, urls: &[String]) {
        if urls
            .iter()
            .any(|url| !url.starts_with("redis://") && !url.starts_with("rediss://"))
        {
            self.fault(key, "must begin with redis:// or rediss://");
        }
    }

    fn sentinel(&mut self, sentinel: raw::Sentinel) -> Option<Store> {
        let raw::Sentinel {
            master,
            nodes,
            user,
            password,
            database,
        } = sentinel;
        self.addresses("store.sentinel.nodes", &nodes);
        if !(1..=SENTINELS_MOST).contains(&nodes.len()) {
            let message = format!("{} nodes are not 1 to {SENTINELS_MOST}", nodes.len());
            self.fault("store.sentinel.nodes", message);
        }
        if master.is_empty() {
            self.fault(
                "store.sentinel.master",
                "must be the name that the Sentinels know",
            );
        }
        let of_tls = nodes
            .iter()
            .filter(|node| node.starts_with("rediss://"))
            .count();
        if of_tls != 0 && of_tls != nodes.len() {
            self.fault(
                "store.sentinel.nodes",
                "either all or none must begin with rediss://",
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
        Some(Store::RedisSentinel(Sentinel {
            master,
            nodes,
            user,
            password,
            database,
            tls,
        }))
    }
}
