//! Prepares a batch of entries for an index. Each entry is reduced to a few numbers when it is
//! read, so that tens of thousands of entries take little memory.
//!
//! `index/write.rs` writes the rows. This file must not open a file or begin a transaction, and
//! must assign numbers in the order of the entries.

use super::limits::INDEX_SLICE;
use super::names::NameTables;
use super::tables::IndexTables;
use crate::StoreError;
use crate::entry::LedgerEntry;
use crate::entry::chain::ChainHead;
use crate::entry::spend_totals::{HOUR_MS, MAX_TOKENS_COUNTED, SpendTotals};
use crate::segment::ENTRY_KINDS;
use credits::money::Micro;
use llm_protocol::usage::Usage;
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::HashMap;

/// Reads the entries after a position. Returns `None` if the ledger does not have the position.
pub(crate) type ReadEntries<'a> =
    dyn Fn(&ChainHead, u32) -> Result<Option<Vec<LedgerEntry>>, StoreError> + 'a;

pub(crate) const DEBIT: i64 = 0;
/// Lowest number of a kind that is not the end of a request.
pub(crate) const FIRST_POSTING: i64 = 2;

/// Flag of an entry whose vendor counted more than the maximum of the request.
pub(crate) const IMPLAUSIBLE: i64 = 1;

/// Returns the number of a kind of entry. An unknown kind has a number too.
pub(crate) fn kind_number(kind: &str) -> i64 {
    let known = ENTRY_KINDS.iter().position(|known| *known == kind);
    i64::try_from(known.unwrap_or(ENTRY_KINDS.len())).unwrap_or(i64::MAX)
}

pub(crate) fn kind_name(number: i64) -> &'static str {
    let kind = usize::try_from(number)
        .ok()
        .and_then(|number| ENTRY_KINDS.get(number));
    kind.copied().unwrap_or("unknown")
}

/// The fields of an ending's detail that the index stores. A missing field is empty.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct IndexedDetail<'a> {
    #[serde(borrow)]
    pub model: Cow<'a, str>,
    #[serde(borrow)]
    pub key_id: Cow<'a, str>,
    #[serde(borrow)]
    pub member: Cow<'a, str>,
    #[serde(borrow)]
    pub outcome: Cow<'a, str>,
    pub conversation: Option<String>,
    implausible: bool,
    usage: Usage,
}

impl<'a> IndexedDetail<'a> {
    /// Parses the detail of an ending. The audit reports a detail that cannot be parsed; sums
    /// ignore such a debit.
    pub(crate) fn read(entry: &'a LedgerEntry) -> Option<Self> {
        serde_json::from_str(&entry.detail).ok()
    }

    /// Returns the flags of the ending's row.
    pub(crate) fn flags(&self, kind: i64) -> i64 {
        if kind == DEBIT && self.implausible {
            IMPLAUSIBLE
        } else {
            0
        }
    }

    /// Returns the ending's contribution to the sums of its hour. Only a debit contributes.
    pub(crate) fn change(&self, entry: &LedgerEntry, kind: i64) -> UsageChange {
        match kind {
            DEBIT => UsageChange {
                sum: totals(&self.usage, Micro::ZERO.minus(entry.change())),
                writeoff: entry.writeoff,
                voids: 0,
            },
            _ => UsageChange {
                voids: 1,
                ..UsageChange::default()
            },
        }
    }
}

/// Returns the contribution of one debit to a sum, with the vendor's counters limited to plausible
/// values.
fn totals(usage: &Usage, credits: Micro) -> SpendTotals {
    let counters = [usage.input_total(), usage.cache_read, usage.output_total()];
    let [input, cache_read, output] = counters.map(|tokens| tokens.min(MAX_TOKENS_COUNTED));
    SpendTotals {
        responses: 1,
        credits,
        input,
        cache_read,
        output,
    }
}

/// A row of `activity`.
pub(crate) struct ActivityIndexRow {
    pub account: i64,
    pub at_ms: i64,
    pub seq: i64,
    pub kind: i64,
    /// Model, key and outcome, if the entry ends a request.
    pub names: Option<[i64; 3]>,
    /// Index of the conversation among those of the batch.
    pub conversation: Option<usize>,
    pub flags: i64,
}

/// A row of `posting`.
pub(crate) struct PostingRow {
    pub account: i64,
    pub at_ms: i64,
    pub seq: i64,
    pub kind: i64,
    pub change: Micro,
}

/// The key of a row of sums: account, hour or day, model, API key, and member or 0.
pub(crate) type UsageKey = [i64; 5];

#[derive(Clone, Copy, Default)]
pub(crate) struct UsageChange {
    pub sum: SpendTotals,
    pub writeoff: Micro,
    pub voids: i64,
}

impl UsageChange {
    pub(crate) fn add(&mut self, other: Self) {
        self.sum = self.sum.plus(other.sum);
        self.writeoff = self.writeoff.plus(other.writeoff);
        self.voids += other.voids;
    }
}

pub(crate) struct ConversationChange {
    /// Number of conversations of the batch that precede this one.
    pub place: usize,
    pub times: Option<(i64, i64)>,
    pub sum: SpendTotals,
}

/// The rows of consecutive entries, and their contributions to sums.
#[derive(Default)]
pub(crate) struct IndexBatch {
    pub activity: Vec<ActivityIndexRow>,
    pub postings: Vec<PostingRow>,
    pub hours: HashMap<UsageKey, UsageChange>,
    /// Changes of conversations, by account and name.
    pub conversations: HashMap<(i64, String), ConversationChange>,
    pub end: Option<ChainHead>,
}

impl IndexBatch {
    /// Adds the entries that follow those in the batch, and assigns numbers to their names.
    pub(crate) fn add(
        &mut self,
        tables: IndexTables<'_>,
        entries: &[LedgerEntry],
        names: &mut NameTables,
    ) -> rusqlite::Result<()> {
        for entry in entries {
            self.add_entry(tables, entry, names)?;
        }
        if let Some(last) = entries.last() {
            self.end = Some(ChainHead {
                seq: last.seq,
                hash: last.hash.clone(),
            });
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.activity.len()
    }

    fn add_entry(
        &mut self,
        tables: IndexTables<'_>,
        entry: &LedgerEntry,
        names: &mut NameTables,
    ) -> rusqlite::Result<()> {
        let kind = kind_number(&entry.kind);
        let mut row = ActivityIndexRow {
            account: names.accounts.number(tables, &entry.account)?,
            at_ms: entry.at_ms,
            seq: entry.seq,
            kind,
            names: None,
            conversation: None,
            flags: 0,
        };
        if kind >= FIRST_POSTING {
            self.postings.push(PostingRow {
                account: row.account,
                at_ms: entry.at_ms,
                seq: entry.seq,
                kind,
                change: entry.change(),
            });
        } else if let Some(detail) = IndexedDetail::read(entry) {
            let model = names.models.number(tables, &detail.model)?;
            let api_key = names.keys.number(tables, &detail.key_id)?;
            let member = names.members.number(tables, &detail.member)?;
            row.names = Some([
                model,
                api_key,
                names.outcomes.number(tables, &detail.outcome)?,
            ]);
            row.flags = detail.flags(kind);
            self.add_ending(entry, &mut row, [model, api_key, member], detail);
        }
        self.activity.push(row);
        Ok(())
    }

    /// Counts the end of a request. A late one counts in the hour in which the request ended. Only
    /// a debit contributes to sums, and is a turn of its conversation.
    fn add_ending(
        &mut self,
        entry: &LedgerEntry,
        row: &mut ActivityIndexRow,
        [model, api_key, member]: [i64; 3],
        detail: IndexedDetail<'_>,
    ) {
        let hour = row.at_ms.div_euclid(HOUR_MS);
        let change = detail.change(entry, row.kind);
        let key = [row.account, hour, model, api_key, member];
        self.hours.entry(key).or_default().add(change);
        let Some(name) = detail.conversation else {
            return;
        };
        let place = self.conversations.len();
        let conversation =
            self.conversations
                .entry((row.account, name))
                .or_insert(ConversationChange {
                    place,
                    times: None,
                    sum: SpendTotals::default(),
                });
        row.conversation = Some(conversation.place);
        if row.kind == DEBIT {
            let (began, last) = conversation.times.unwrap_or((row.at_ms, row.at_ms));
            conversation.times = Some((began.min(row.at_ms), last.max(row.at_ms)));
            conversation.sum = conversation.sum.plus(change.sum);
        }
    }
}

/// Reads at most `limit` of the entries after `from`, a slice at a time. Returns `None` if the
/// ledger does not have the entry `from`.
pub(crate) fn read_batch(
    tables: IndexTables<'_>,
    from: &ChainHead,
    limit: u32,
    names: &mut NameTables,
    read: &ReadEntries<'_>,
) -> Result<Option<IndexBatch>, StoreError> {
    let mut batch = IndexBatch::default();
    let mut left = limit;
    while left > 0 {
        let position = batch.end.as_ref().unwrap_or(from);
        let Some(slice) = read(position, left.min(INDEX_SLICE))? else {
            return Ok(None);
        };
        if slice.is_empty() {
            break;
        }
        left = left.saturating_sub(u32::try_from(slice.len()).unwrap_or(u32::MAX));
        batch
            .add(tables, &slice, names)
            .map_err(|source| StoreError::sqlite("index the ledger's entries", source))?;
    }
    Ok(Some(batch))
}
