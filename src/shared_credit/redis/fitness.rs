//! Checks that a server can keep balances, because it does not lose data and runs the scripts.
//!
//! This file must not change data, except for a key that expires by itself.

use super::errors;
use super::keyspace::{Keyspace, PARTITIONS};
use super::views::StoreFitnessChecks;
use ::redis::Cmd;
use ledger::StoreError;

/// Lifetime of the probe's key, in ms.
const PROBE_TTL_MS: u64 = 1_000;

impl StoreFitnessChecks<'_> {
    /// Runs a script that writes in a partition, as an admission does.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called, or if it would not admit requests.
    pub async fn probe(&self, partition: u32) -> Result<(), StoreError> {
        let mut call = self.0.0.scripts.probe.prepare_invoke();
        call.key(self.0.key(partition % PARTITIONS, "up", ""))
            .arg(PROBE_TTL_MS);
        self.0.call("probe the shared store", &call).await.map(drop)
    }

    /// Checks a server before it admits any request. With `may_forget`, a risk of data loss is only
    /// logged.
    ///
    /// # Errors
    /// Returns [`StoreError::Refused`] with each fault and the setting that fixes it. Any other
    /// error means that the store cannot be called.
    pub async fn check_fitness(&self, may_forget: bool) -> Result<(), StoreError> {
        if let Err(error) = self.probe(0).await {
            return Err(permanent_fault(&error).map_or(error, |why| refused_error(&why)));
        }
        if self.0.is_cluster() && self.has_numbered_partitions().await? {
            return Err(refused_error(
                "the cluster has data of a version that named the partitions otherwise: let every edge of that version drain, stop its sidecar, and empty the cluster (FLUSHALL on each primary)",
            ));
        }
        let faults = self.find_durability_faults().await?;
        if faults.is_empty() {
            return Ok(());
        }
        let message = faults.join("; ");
        if may_forget {
            log::warn!(
                "the shared store may lose data: {message}; accepted because of store.allow_volatile"
            );
            return Ok(());
        }
        Err(refused_error(&format!(
            "{message} (or set store.allow_volatile: true)"
        )))
    }

    /// Returns whether an older version has used this cluster, which did not spread the partitions
    /// over the slots.
    async fn has_numbered_partitions(&self) -> Result<bool, StoreError> {
        for partition in 0..PARTITIONS {
            let mut exists = Cmd::new();
            exists
                .arg("EXISTS")
                .arg(Keyspace::NUMBERED.key(partition, "epoch", ""));
            if self.0.query("look for older data", &exists).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the settings of the server that could lose data. Balances must not be in a store
    /// that evicts them under memory pressure, or loses all data when its process ends.
    async fn find_durability_faults(&self) -> Result<Vec<String>, StoreError> {
        let mut settings = Vec::new();
        for name in ["maxmemory", "maxmemory-policy", "appendonly"] {
            match self.server_setting(name).await {
                Ok(value) => settings.push(value.unwrap_or_default()),
                Err(error) if errors::reply_code(&error).is_some() => {
                    log::warn!(
                        "{error}; make sure that maxmemory-policy is noeviction and appendonly is yes"
                    );
                    return Ok(Vec::new());
                }
                Err(error) => return Err(error),
            }
        }
        let mut faults = Vec::new();
        if let [limit, policy, appends] = &settings[..] {
            if limit != "0" && policy != "noeviction" {
                faults
                    .push(format!("maxmemory-policy is {policy}: it must be noeviction, or the server discards balances"));
            }
            if appends != "yes" {
                faults.push(format!(
                    "appendonly is {appends}: it must be yes, or a restart loses all reservations"
                ));
            }
        }
        Ok(faults)
    }

    /// Returns one of the server's settings, or `None` if the server does not have it.
    async fn server_setting(&self, name: &'static str) -> Result<Option<String>, StoreError> {
        let mut get = Cmd::new();
        get.arg("CONFIG").arg("GET").arg(name);
        let reply: Vec<String> = self.0.query("read the server's settings", &get).await?;
        Ok(reply.into_iter().nth(1))
    }
}

fn refused_error(why: &str) -> StoreError {
    StoreError::Refused(format!(
        "the shared store is not configured correctly: {why}"
    ))
}

/// Returns the reason of a permanent error, with which the server answers every admission.
fn permanent_fault(error: &StoreError) -> Option<String> {
    let source = errors::redis_error(error)?;
    match source.code()? {
        "READONLY" => Some(
            "the server is a read-only replica (replicaof is set): it must be the primary; set store.url to the primary's address, or run `replicaof no one` on this server"
                .into(),
        ),
        "NOPERM" => Some(format!(
            "the user lacks rights ({}): its ACL must be at least ~gw:* &gw:* +@read +@write +@scripting +@pubsub \
             +@connection +@transaction +info +time, and +config|get to have the settings checked",
            source.detail().unwrap_or("NOPERM")
        )),
        _ => None,
    }
}
