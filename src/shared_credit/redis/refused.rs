//! Passes refused requests from the edges to the sidecar in a list of batches. The oldest batches
//! are dropped if no sidecar reads the list.
//!
//! Refused requests do not affect money, so a batch may be lost. This file must not depend on the
//! content of a batch.

use super::views::StoreRefusals;
use ::redis::Cmd;
use ledger::StoreError;

const REFUSED_KEY: &str = "gw:refused";
/// Maximum number of waiting batches: those of ten edges in a minute.
const MAX_BATCHES: isize = 600;
/// Time after which unread batches are dropped.
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

    /// Takes at most `count` of the oldest batches.
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
