//! Creates receipts, which explain a response's bill by the ledger's entry and its price.
//!
//! This file must not compute a price: `crates/credits/src/pricing.rs` does.

use super::views::Receipts;
use credits::money::Micro;
use credits::price_list::PriceList;
pub use ledger::RefundEntry;
use ledger::StoreError;
use ledger::{EndingDetail, EntryReference, EntrySelection, LedgerEntry};

/// Kinds of entries that people find by a reference. An operator chose the reference, or it comes
/// from a payment or a code.
const POSTING_KINDS: [&str; 8] = [
    "grant",
    "topup",
    "adjust",
    "refund",
    "bonus",
    "payment_refund",
    "dispute",
    "code",
];

/// The explanation of how one response was billed: a ledger entry with its price.
#[derive(Debug, Clone)]
pub struct Receipt {
    /// Position in the ledger, which is also the cursor for paging.
    pub seq: i64,
    pub request_id: String,
    pub at_ms: i64,
    pub detail: EndingDetail,
    pub price: PriceList,
    pub credits: Micro,
    pub writeoff: Micro,
    pub balance_after: Micro,
    /// Refunds of the debit, oldest first. They are only in the receipt of one request, not in
    /// lists.
    pub refunds: Vec<RefundEntry>,
}

impl Receipts<'_> {
    /// Returns the receipt of a request, or `None` if the request has not ended or belongs to
    /// another account.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn receipt(&self, account: &str, request_id: &str) -> Result<Option<Receipt>, StoreError> {
        let rows = self.0.0.ledger.rows();
        let Some(entry) = rows.ending(account, request_id)? else {
            return Ok(None);
        };
        Ok(Some(Receipt {
            refunds: self.0.0.ledger.pages().refunds_of(account, request_id)?,
            ..self.receipt_from_entry(entry)?
        }))
    }

    /// Returns what came back of the credits of a request, whose receipt is in a list.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn refunded(&self, account: &str, request_id: &str) -> Result<Micro, StoreError> {
        let refunds = self.0.0.ledger.pages().refunds_of(account, request_id)?;
        let amounts = refunds.iter().map(|refund| refund.credits);
        Ok(amounts.fold(Micro::ZERO, Micro::plus))
    }

    /// Lists receipts, newest first. `before` is the `seq` of the last receipt of the previous
    /// page.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn receipts(
        &self,
        account: &str,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Receipt>, StoreError> {
        let entries = self
            .0
            .0
            .ledger
            .rows()
            .entries(account, true, before, limit)?;
        entries
            .into_iter()
            .map(|entry| self.receipt_from_entry(entry))
            .collect()
    }

    /// Returns whether the request ended with a debit, because the client received the response or
    /// a part of it before it disconnected.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn was_debited(&self, account: &str, request_id: &str) -> Result<bool, StoreError> {
        Ok(self
            .0
            .0
            .ledger
            .rows()
            .ending(account, request_id)?
            .is_some_and(|entry| entry.kind == "debit"))
    }

    /// Lists the account's entries of every kind, paged like [`Self::receipts`].
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn entries(
        &self,
        account: &str,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<LedgerEntry>, StoreError> {
        self.0
            .0
            .ledger
            .rows()
            .entries(account, false, before, limit)
    }

    /// Returns the entry with a number, or the posting with a reference, of any account.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn find_entry(&self, number_or_reference: &str) -> Result<Option<LedgerEntry>, StoreError> {
        let rows = self.0.0.ledger.rows();
        if let Ok(seq @ 1..) = number_or_reference.parse::<i64>()
            && let Some(entry) = rows.entries_after(seq - 1, 1)?.pop()
            && entry.seq == seq
        {
            return Ok(Some(entry));
        }
        for kind in POSTING_KINDS {
            let reference = number_or_reference;
            if let Some(entry) = rows.entry(EntryReference::Posting { kind, reference })? {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Calls `each` with the selected entries in order, one at a time.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read or `each` fails.
    pub fn for_each_entry(
        &self,
        selection: &EntrySelection,
        each: &mut dyn FnMut(LedgerEntry) -> std::io::Result<()>,
    ) -> Result<(), StoreError> {
        self.0
            .0
            .ledger
            .segments()
            .for_each_selected(selection, each)
    }

    pub(super) fn receipt_from_entry(&self, entry: LedgerEntry) -> Result<Receipt, StoreError> {
        let detail: EndingDetail = serde_json::from_str(&entry.detail).map_err(|error| {
            StoreError::Unusable(format!("cannot read ledger entry {}: {error}", entry.seq))
        })?;
        let price = self.0.0.ledger.rows().price(&detail.price_version)?;
        Ok(Receipt {
            seq: entry.seq,
            request_id: entry.reference,
            at_ms: entry.at_ms,
            price: price.ok_or_else(|| {
                StoreError::Unusable(format!(
                    "the price version of ledger entry {} is missing",
                    entry.seq
                ))
            })?,
            detail,
            credits: Micro::ZERO.minus(entry.d_paid).minus(entry.d_trial),
            writeoff: entry.writeoff,
            balance_after: entry.bal_paid.plus(entry.bal_trial),
            refunds: Vec::new(),
        })
    }
}
