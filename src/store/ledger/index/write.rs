//! What a batch of entries adds to the index.
//!
//! Sums are made in memory first and each row is written once, in the order of its key, so that a
//! batch of many accounts reads and writes each page once. Must not read the ledger, and must give
//! numbers in the order of the entries.

use super::names::NameTables;
use crate::store::ledger::entry::LedgerEntry;
use crate::store::ledger::spend_totals::{
    HOUR_MS, MAX_CREDITS_SUM, MAX_TOKENS_COUNTED, MAX_TOKENS_SUM, SpendTotals,
};
use credits::money::Micro;
use rusqlite::{Connection, OptionalExtension, params};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

const DAY_HOURS: i64 = 24;

/// Kinds of entries in the order of their numbers: first the ends of requests.
const KINDS: [&str; 8] = [
    "debit", "void", "trial", "grant", "topup", "refund", "adjust", "lapse",
];
const DEBIT: i64 = 0;
/// Kinds below this number are ends of requests.
const FIRST_POSTING: i64 = 2;

/// Flag of an entry whose vendor counted more than the request can use.
const IMPLAUSIBLE: i64 = 1;

/// Returns the number of a kind of entry; a kind that does not exist has one too.
fn kind_number(kind: &str) -> i64 {
    let known = KINDS.iter().position(|known| *known == kind);
    i64::try_from(known.unwrap_or(KINDS.len())).unwrap_or(i64::MAX)
}

/// Returns the kind of a number.
pub(in crate::store::ledger) fn kind_name(number: i64) -> &'static str {
    let kind = usize::try_from(number)
        .ok()
        .and_then(|number| KINDS.get(number));
    kind.copied().unwrap_or("unknown")
}

/// The fields of an ending's detail that the index has. A field that is missing is empty.
#[derive(Default, Deserialize)]
#[serde(default)]
struct IndexedDetail {
    model: String,
    key_id: String,
    outcome: String,
    conversation: Option<String>,
    implausible: bool,
    usage: IndexedUsage,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IndexedUsage {
    input: u64,
    cache_read: u64,
    cache_write_5m: u64,
    cache_write_1h: u64,
    audio_input: u64,
    output: u64,
    audio_output: u64,
}

impl IndexedUsage {
    /// Returns what one debit adds to a sum. A vendor's counters can be nonsense.
    fn totals(&self, credits: Micro) -> SpendTotals {
        let input = [
            self.cache_read,
            self.cache_write_5m,
            self.cache_write_1h,
            self.audio_input,
        ];
        let input = input.into_iter().fold(self.input, u64::saturating_add);
        let output = self.output.saturating_add(self.audio_output);
        let [input, cache_read, output] =
            [input, self.cache_read, output].map(|tokens| tokens.min(MAX_TOKENS_COUNTED));
        SpendTotals {
            responses: 1,
            credits,
            input,
            cache_read,
            output,
        }
    }
}

/// An entry with the numbers of its names.
struct NumberedEntry<'a> {
    entry: &'a LedgerEntry,
    kind: i64,
    account: i64,
    detail: Option<NumberedDetail>,
}

struct NumberedDetail {
    model: i64,
    api_key: i64,
    outcome: i64,
    conversation: Option<String>,
    flags: i64,
    sum: SpendTotals,
}

/// A group of debits: account, hour or day, model and key.
type UsageKey = (i64, i64, i64, i64);

#[derive(Clone, Copy, Default)]
struct UsageChange {
    sum: SpendTotals,
    writeoff: Micro,
}

impl UsageChange {
    fn add(&mut self, other: Self) {
        self.sum = self.sum.plus(other.sum);
        self.writeoff = self.writeoff.plus(other.writeoff);
    }
}

/// What a batch changes in a conversation.
#[derive(Default)]
struct ConversationChange {
    id: Option<i64>,
    times: Option<(i64, i64)>,
    sum: SpendTotals,
}

/// Adds `entries`, which follow the ones that the index has, in order. `conversations` is the
/// number of ids of conversations; returns the new number.
pub(super) fn write_entries(
    connection: &Connection,
    entries: &[LedgerEntry],
    names: &mut NameTables,
    conversations: i64,
) -> rusqlite::Result<i64> {
    let mut numbered = entries
        .iter()
        .map(|entry| number_entry(connection, entry, names))
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let mut turns = sum_up_conversations(&numbered);
    let conversations = number_conversations(connection, &numbered, &mut turns, conversations)?;
    write_usage(connection, &numbered)?;
    write_conversations(connection, &turns)?;
    let ids: BTreeMap<(i64, String), i64> = turns
        .into_iter()
        .filter_map(|((account, name), turns)| Some(((account, name.to_owned()), turns.id?)))
        .collect();
    numbered.sort_unstable_by_key(|row| (row.account, row.entry.at_ms, row.entry.seq));
    write_activity(connection, &numbered, &ids)?;
    Ok(conversations)
}

fn number_entry<'a>(
    connection: &Connection,
    entry: &'a LedgerEntry,
    names: &mut NameTables,
) -> rusqlite::Result<NumberedEntry<'a>> {
    let kind = kind_number(&entry.kind);
    let account = names.accounts.number(connection, &entry.account)?;
    let is_ending = kind < FIRST_POSTING;
    // A detail that cannot be read is a finding of the audit; such a debit is in no sum.
    let detail = match serde_json::from_str::<IndexedDetail>(&entry.detail) {
        Ok(detail) if is_ending => Some(NumberedDetail {
            model: names.models.number(connection, &detail.model)?,
            api_key: names.keys.number(connection, &detail.key_id)?,
            outcome: names.outcomes.number(connection, &detail.outcome)?,
            flags: if kind == DEBIT && detail.implausible {
                IMPLAUSIBLE
            } else {
                0
            },
            sum: detail.usage.totals(Micro::ZERO.minus(entry.change())),
            conversation: detail.conversation,
        }),
        _ => None,
    };
    Ok(NumberedEntry {
        entry,
        kind,
        account,
        detail,
    })
}

/// The conversations of a batch by account and name. Only a debit is a turn.
type ConversationChanges<'a> = BTreeMap<(i64, &'a str), ConversationChange>;

fn sum_up_conversations<'a>(entries: &'a [NumberedEntry<'_>]) -> ConversationChanges<'a> {
    let mut changes = ConversationChanges::new();
    for row in entries {
        let Some(detail) = &row.detail else { continue };
        let Some(name) = &detail.conversation else {
            continue;
        };
        let change = changes.entry((row.account, name)).or_default();
        if row.kind == DEBIT {
            let at_ms = row.entry.at_ms;
            let (began, last) = change.times.unwrap_or((at_ms, at_ms));
            change.times = Some((began.min(at_ms), last.max(at_ms)));
            change.sum = change.sum.plus(detail.sum);
        }
    }
    changes
}

/// Looks the ids up in the order of the keys, then gives new ones in the order of the entries.
fn number_conversations<'a>(
    connection: &Connection,
    entries: &'a [NumberedEntry<'_>],
    changes: &mut ConversationChanges<'a>,
    mut last: i64,
) -> rusqlite::Result<i64> {
    let mut statement = connection
        .prepare_cached("SELECT id FROM conversation WHERE account = ?1 AND name = ?2")?;
    for ((account, name), change) in changes.iter_mut() {
        change.id = statement
            .query_row(params![account, name], |row| row.get(0))
            .optional()?;
    }
    for row in entries {
        let name = row
            .detail
            .as_ref()
            .and_then(|detail| detail.conversation.as_deref());
        let Some(name) = name else { continue };
        if let Entry::Occupied(mut change) = changes.entry((row.account, name))
            && change.get().id.is_none()
        {
            last += 1;
            change.get_mut().id = Some(last);
        }
    }
    Ok(last)
}

fn write_activity(
    connection: &Connection,
    entries: &[NumberedEntry<'_>],
    conversations: &BTreeMap<(i64, String), i64>,
) -> rusqlite::Result<()> {
    let mut activity = connection.prepare_cached(
        "INSERT INTO activity (account, at, seq, kind, model, api_key, outcome, conversation, flags)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?;
    let mut posting = connection.prepare_cached(
        "INSERT INTO posting (account, at, seq, kind, change) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    for row in entries {
        let detail = row.detail.as_ref();
        let conversation = detail
            .and_then(|detail| detail.conversation.clone())
            .and_then(|name| conversations.get(&(row.account, name)));
        let entry = row.entry;
        activity.execute(params![
            row.account,
            entry.at_ms,
            entry.seq,
            row.kind,
            detail.map(|detail| detail.model),
            detail.map(|detail| detail.api_key),
            detail.map(|detail| detail.outcome),
            conversation,
            detail.map_or(0, |detail| detail.flags),
        ])?;
        if row.kind >= FIRST_POSTING {
            posting.execute(params![
                row.account,
                entry.at_ms,
                entry.seq,
                row.kind,
                entry.change()
            ])?;
        }
    }
    Ok(())
}

fn write_conversations(
    connection: &Connection,
    changes: &ConversationChanges<'_>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(COUNT_TURNS)?;
    for ((account, name), change) in changes {
        let [turns, input, cache_read, output] = change.sum.counts();
        let (began_ms, last_ms) = change.times.unwrap_or_default();
        statement.execute(params![
            account,
            name,
            change.id,
            began_ms,
            last_ms,
            turns,
            change.sum.credits,
            input,
            cache_read,
            output
        ])?;
    }
    Ok(())
}

/// A void changes no conversation that is already there.
const COUNT_TURNS: &str =
    "INSERT INTO conversation (account, name, id, began_at, last_at, turns, credits, input, cache_read, output)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
     ON CONFLICT (account, name) DO UPDATE SET
       began_at = iif(turns = 0, excluded.began_at, min(began_at, excluded.began_at)),
       last_at = max(last_at, excluded.last_at), turns = turns + excluded.turns,
       credits = min(credits + excluded.credits, 9007199254740991), input = min(input + excluded.input, 1 << 62),
       cache_read = min(cache_read + excluded.cache_read, 1 << 62), output = min(output + excluded.output, 1 << 62)
     WHERE excluded.turns > 0";

/// Adds the debits to the sums by hour and by day. A late one counts in the hour in which its
/// request ended.
fn write_usage(connection: &Connection, entries: &[NumberedEntry<'_>]) -> rusqlite::Result<()> {
    let mut hours: BTreeMap<UsageKey, UsageChange> = BTreeMap::new();
    for row in entries {
        let Some(detail) = row.detail.as_ref().filter(|_| row.kind == DEBIT) else {
            continue;
        };
        let hour = row.entry.at_ms.div_euclid(HOUR_MS);
        let key = (row.account, hour, detail.model, detail.api_key);
        hours.entry(key).or_default().add(UsageChange {
            sum: detail.sum,
            writeoff: row.entry.writeoff,
        });
    }
    let mut days: BTreeMap<UsageKey, UsageChange> = BTreeMap::new();
    let mut totals: BTreeMap<(i64, i64), UsageChange> = BTreeMap::new();
    for (&(account, hour, model, api_key), change) in &hours {
        let day = hour.div_euclid(DAY_HOURS);
        let of_day = days.entry((account, day, model, api_key)).or_default();
        of_day.add(*change);
        totals.entry((day, model)).or_default().add(*change);
    }
    count(connection, COUNT_HOUR, &hours)?;
    count(connection, COUNT_DAY, &days)?;
    let mut statement = connection.prepare_cached(COUNT_TOTAL)?;
    for ((day, model), change) in &totals {
        let [responses, input, cache_read, output] = change.sum.counts();
        statement.execute(params![
            day,
            model,
            responses,
            change.sum.credits,
            input,
            cache_read,
            output,
            change.writeoff
        ])?;
    }
    Ok(())
}

fn count(
    connection: &Connection,
    sql: &str,
    changes: &BTreeMap<UsageKey, UsageChange>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql)?;
    for ((account, time, model, api_key), change) in changes {
        let [responses, input, cache_read, output] = change.sum.counts();
        statement.execute(params![
            account,
            time,
            model,
            api_key,
            responses,
            change.sum.credits,
            input,
            cache_read,
            output
        ])?;
    }
    Ok(())
}

// The limits of sums in the statements below.
const _: () = assert!(MAX_TOKENS_SUM == 1 << 62 && MAX_CREDITS_SUM == 9_007_199_254_740_991);

const COUNT_HOUR: &str =
    "INSERT INTO usage_hour (account, hour, model, api_key, responses, credits, input, cache_read, output)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
     ON CONFLICT (account, hour, model, api_key) DO UPDATE SET responses = responses + excluded.responses,
       credits = min(credits + excluded.credits, 9007199254740991), input = min(input + excluded.input, 1 << 62),
       cache_read = min(cache_read + excluded.cache_read, 1 << 62), output = min(output + excluded.output, 1 << 62)";

const COUNT_DAY: &str =
    "INSERT INTO usage_day (account, day, model, api_key, responses, credits, input, cache_read, output)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
     ON CONFLICT (account, day, model, api_key) DO UPDATE SET responses = responses + excluded.responses,
       credits = min(credits + excluded.credits, 9007199254740991), input = min(input + excluded.input, 1 << 62),
       cache_read = min(cache_read + excluded.cache_read, 1 << 62), output = min(output + excluded.output, 1 << 62)";

const COUNT_TOTAL: &str =
    "INSERT INTO usage_total (day, model, responses, credits, input, cache_read, output, writeoff)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
     ON CONFLICT (day, model) DO UPDATE SET responses = responses + excluded.responses,
       credits = min(credits + excluded.credits, 9007199254740991), input = min(input + excluded.input, 1 << 62),
       cache_read = min(cache_read + excluded.cache_read, 1 << 62), output = min(output + excluded.output, 1 << 62),
       writeoff = min(writeoff + excluded.writeoff, 9007199254740991)";
