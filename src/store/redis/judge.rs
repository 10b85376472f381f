//! Whether a server is one to keep balances in: it forgets nothing, and does what it is asked.
//!
//! Must not change anything but a key that goes by itself.

use super::{SharedStore, key};
use crate::store::StoreError;
use ::redis::Cmd;

/// How long a probe's key stays.
const PROBE_MS: u64 = 1_000;

impl SharedStore {
    /// Does what an admission does: a script that writes. `partition` may be any number.
    ///
    /// # Errors
    /// The store cannot be asked, or would not admit.
    pub async fn probe(&self, partition: u32) -> Result<(), StoreError> {
        let mut call = self.0.scripts.probe.prepare_invoke();
        call.key(key(partition % super::PARTITIONS, "up", ""))
            .arg(PROBE_MS);
        self.call("probe the shared store", &call).await.map(drop)
    }

    /// Judges a server before anything is admitted by it; `may_forget`: what it would lose is only
    /// told.
    ///
    /// # Errors
    /// [`StoreError::Refused`]: each fault, with what to set. Anything else: it cannot be asked.
    pub async fn judge(&self, may_forget: bool) -> Result<(), StoreError> {
        if let Err(error) = self.probe(0).await {
            return Err(unfit(&error).map_or(error, |why| refused(&why)));
        }
        let faults = self.forgets().await?;
        if faults.is_empty() {
            return Ok(());
        }
        let message = faults.join("; ");
        if may_forget {
            log::warn!("the shared store's settings: {message}; store.allow_volatile says so");
            return Ok(());
        }
        Err(refused(&format!(
            "{message} (or say store.allow_volatile: true)"
        )))
    }

    /// A store that forgets balances under memory pressure, or all of them with its process, is
    /// none to keep them in.
    async fn forgets(&self) -> Result<Vec<String>, StoreError> {
        let mut settings = Vec::new();
        for name in ["maxmemory", "maxmemory-policy", "appendonly"] {
            match self.setting(name).await {
                Ok(value) => settings.push(value.unwrap_or_default()),
                Err(error) if error.is_answer() => {
                    log::warn!(
                        "{error}: see to it that maxmemory-policy is noeviction and appendonly is yes"
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
                    .push(format!("maxmemory-policy is {policy}: it must be noeviction, or balances are thrown away"));
            }
            if appends != "yes" {
                faults.push(format!(
                    "appendonly is {appends}: it must be yes, or a restart loses all holds"
                ));
            }
        }
        Ok(faults)
    }

    /// One of the server's settings; `None` where it does not say.
    async fn setting(&self, name: &'static str) -> Result<Option<String>, StoreError> {
        let mut get = Cmd::new();
        get.arg("CONFIG").arg("GET").arg(name);
        let answer: Vec<String> = self.ask("read the server's settings", &get).await?;
        Ok(answer.into_iter().nth(1))
    }
}

fn refused(why: &str) -> StoreError {
    StoreError::Refused(format!("the shared store's settings: {why}"))
}

/// What no waiting mends: the server's answer to whoever would admit.
fn unfit(error: &StoreError) -> Option<String> {
    let StoreError::Redis { source, .. } = error else {
        return None;
    };
    match source.code()? {
        "READONLY" => Some(
            "the server is a read-only replica (replicaof is set): it must be the primary; give its address in store.url, \
             or say replicaof no one there"
                .into(),
        ),
        "NOPERM" => Some(format!(
            "the user's rights are too few ({}): its ACL must be at least ~gw:* &gw:* +@read +@write +@scripting +@pubsub \
             +@connection +@transaction +info +time, and +config|get to have the settings judged",
            source.detail().unwrap_or("NOPERM")
        )),
        _ => None,
    }
}
