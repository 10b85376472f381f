//! Where an audit starts: at the first entry, or after entries that were verified before and of
//! which only the totals are available.
//!
//! This file must not check anything.

use crate::Ledger;
use crate::StoreError;
use crate::audit::walk::KeySpendRow;
use crate::entry::chain::ChainHead;
use crate::segment::SealedBalance;

/// The state of the ledger behind the last entry that is not walked. Ends of requests up to there
/// may be missing from the ledger; all other entries are there.
#[derive(Debug, Clone)]
pub struct AuditStart {
    pub head: ChainHead,
    pub accounts: Vec<SealedBalance>,
    /// Spending of all keys, by key and day. `None`: unknown, so the audit checks the spending of
    /// keys only if it reads all segments.
    pub keys: Option<Vec<KeySpendRow>>,
}

impl AuditStart {
    /// The start of the ledger.
    pub fn genesis() -> Self {
        Self {
            head: ChainHead::genesis(),
            accounts: Vec::new(),
            keys: Some(Vec::new()),
        }
    }

    /// The end of the last sealed segment, or the start of the ledger if it has none.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn after_segments(ledger: &Ledger) -> Result<Self, StoreError> {
        let head = Self::sealed_head(ledger)?;
        if head.seq == 0 {
            return Ok(Self::genesis());
        }
        Ok(Self {
            accounts: ledger.segments().sealed_balances(head.seq)?,
            head,
            keys: None,
        })
    }

    /// Returns the last entry of the last sealed segment, without the balances there.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn sealed_head(ledger: &Ledger) -> Result<ChainHead, StoreError> {
        let last = ledger.segments().segment_records()?.pop();
        Ok(last.map_or_else(ChainHead::genesis, |last| ChainHead {
            seq: last.last,
            hash: last.last_hash,
        }))
    }

    /// Returns the position behind which the walk begins. A whole ledger is read from below its
    /// first entry, so that the walk skips no entry.
    pub(crate) fn after_seq(&self) -> i64 {
        if self.head.seq == 0 {
            i64::MIN
        } else {
            self.head.seq
        }
    }
}
