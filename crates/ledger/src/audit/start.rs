//! Determines the start of an audit: the first entry, or a position before which all entries were
//! verified and only their totals are available.
//!
//! This file must not check an entry.

use crate::Ledger;
use crate::StoreError;
use crate::audit::walk::KeySpendRow;
use crate::entry::chain::ChainHead;
use crate::segment::SealedBalance;

/// The state of the ledger after the last entry that the walk skips. Ends of requests before that
/// position may be missing from the ledger; all other entries are present.
#[derive(Debug, Clone)]
pub struct AuditStart {
    pub head: ChainHead,
    pub accounts: Vec<SealedBalance>,
    /// Spending of all keys, by key and day. If it is `None`, the audit checks the spending of keys
    /// only when it reads all segments.
    pub keys: Option<Vec<KeySpendRow>>,
}

impl AuditStart {
    pub fn genesis() -> Self {
        Self {
            head: ChainHead::genesis(),
            accounts: Vec::new(),
            keys: Some(Vec::new()),
        }
    }

    /// Returns the end of the last sealed segment, or the start of a ledger without segments.
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

    /// Returns the last entry of the last sealed segment.
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

    /// Returns the position after which the walk begins. For a whole ledger, the position is below
    /// the first entry, so that the walk skips none.
    pub(crate) fn after_seq(&self) -> i64 {
        if self.head.seq == 0 {
            i64::MIN
        } else {
            self.head.seq
        }
    }
}
