//! Refused requests on their way from the edges to the sidecar: batches in a list, the oldest of
//! which are dropped while no sidecar reads it.
//!
//! They are no money: a batch may get lost. This file must not know what a batch has.

use super::views::StoreRefusals;
use ::redis::Cmd;
use ledger::StoreError;

/// Redis key of the list.
const REFUSED_KEY: &str = "gw:refused";
/// Maximum number of batches that wait: those of a minute, of ten edges.
const MAX_BATCHES: isize = 600;
/// Time after which batches that no sidecar reads are dropped.
const BATCHES_TTL_SECONDS: u64 = 3_600;

impl StoreRefusals<'_> {
    /// Appends a batch.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn push(&self, batch: &str) -> Result<(), StoreError> {
        let operation = "send refused requests";
        let mut push = Cmd::new();
        push.arg("LPUSH").arg(REFUSED_KEY).arg(batch);
        let count: isize = self.0.query(operation, &push).await?;
        if count > MAX_BATCHES {
            let mut trim = Cmd::new();
            trim.arg("LTRIM")
                .arg(REFUSED_KEY)
                .arg(0)
                .arg(MAX_BATCHES - 1);
            self.0.query::<()>(operation, &trim).await?;
        }
        let mut expire = Cmd::new();
        expire
            .arg("EXPIRE")
            .arg(REFUSED_KEY)
            .arg(BATCHES_TTL_SECONDS);
        self.0.query(operation, &expire).await
    }

    /// Takes the oldest batches, at most `count`.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn take(&self, count: usize) -> Result<Vec<String>, StoreError> {
        let mut take = Cmd::new();
        take.arg("RPOP").arg(REFUSED_KEY).arg(count);
        let taken: Option<Vec<String>> = self.0.query("take refused requests", &take).await?;
        Ok(taken.unwrap_or_default())
    }
}
