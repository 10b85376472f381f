//! Computes the fingerprint of the stored tables of an index.
//!
//! This file also checks properties that the number does not cover: the schema is the program's,
//! keys ascend and names are unique, every row has an entry, a conversation begins and ends with
//! its turns, and each index has the rows of its table. The memory holds the hashes of all names of
//! accounts, models, keys and members, and does not grow with the entries. This file must not
//! write.

use super::{
    DAY, DEBIT, FIRST_POSTING, FingerprintKeys, HOUR, IMPLAUSIBLE, IndexFault, IndexRow, RowSums,
    StoredFingerprint, TablesFingerprint,
};
use crate::entry::spend_totals::{MAX_CREDITS_SUM, MAX_TOKENS_SUM};
use crate::index::limits::MIGRATIONS;
use crate::index::write::watermark;
use crate::sqlite;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher as _, Hash};
use std::path::Path;

type IndexResult<T> = Result<T, IndexFault>;

impl From<rusqlite::Error> for IndexFault {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::Error::{
            FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType,
        };
        match error {
            FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) => {
                Self::Wrong(format!("has a value of another kind: {error}"))
            }
            error => Self::Unreadable(format!("cannot be read: {error}")),
        }
    }
}

impl StoredFingerprint {
    /// Computes the fingerprint of the index in `dir` from one snapshot.
    pub(crate) fn of_file(dir: &Path, keys: &FingerprintKeys) -> Self {
        let read = || {
            let operation = "read the fingerprint of the ledger's index";
            let connection = sqlite::open_reader(&dir.join("index.db"), operation)
                .map_err(|error| IndexFault::Unreadable(format!("cannot be read: {error}")))?;
            let snapshot = connection.unchecked_transaction()?;
            TablesFingerprint::read(&snapshot, keys)
        };
        Self { tables: read() }
    }
}

impl TablesFingerprint {
    /// Computes the fingerprint of the tables. The connection must be in a transaction.
    pub(crate) fn read(connection: &Connection, keys: &FingerprintKeys) -> IndexResult<Self> {
        check_schema(connection)?;
        let watermarks: i64 =
            connection.query_row("SELECT count(*) FROM watermark", [], |row| row.get(0))?;
        require(watermarks == 1, "does not have one watermark")?;
        let position = watermark(connection)?.position;
        let (sum, has_full_sum) = StoredRows::count(connection, keys)?;
        Ok(Self {
            sum,
            position,
            has_full_sum,
        })
    }
}

/// Checks that the tables, indexes and triggers are those that the program creates.
fn check_schema(connection: &Connection) -> IndexResult<()> {
    let mut created = Connection::open_in_memory()?;
    sqlite::migrate(&mut created, MIGRATIONS, "create an index to compare")
        .map_err(|error| IndexFault::Unreadable(error.to_string()))?;
    let [expected, found] = [&created, connection].map(|connection| {
        let mut select = connection.prepare(
            "SELECT type || ' ' || name, ifnull(sql, '') FROM sqlite_schema WHERE name NOT LIKE 'sqlite_stat%'",
        )?;
        let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect::<rusqlite::Result<BTreeMap<String, String>>>()
    });
    let (expected, found) = (expected?, found?);
    let names = expected.keys().chain(found.keys());
    match names
        .into_iter()
        .find(|name| expected.get(*name) != found.get(*name))
    {
        None => Ok(()),
        Some(name) => Err(IndexFault::Wrong(format!(
            "has another schema than the program's: {name}"
        ))),
    }
}

/// The hashes of a table's names, by number.
struct StoredNames {
    hashes: HashMap<i64, u64>,
    /// Numbers that occur in rows of `activity`, or those of members in sums.
    used: HashSet<i64>,
}

impl StoredNames {
    fn read(connection: &Connection, keys: &FingerprintKeys, table: &str) -> IndexResult<Self> {
        let mut select = connection.prepare(&format!("SELECT id, name FROM {table}"))?;
        let mut find = connection.prepare(&format!("SELECT id FROM {table} WHERE name = ?1"))?;
        let mut rows = select.query([])?;
        let (mut hashes, mut names) = (HashMap::new(), HashSet::new());
        while let Some(row) = rows.next()? {
            let number: i64 = row.get(0)?;
            let name = row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?;
            let found: Option<i64> = find.query_row([name], |row| row.get(0)).optional()?;
            let hash = keys.name(name);
            let is_unique = names.insert(hash) && hashes.insert(number, hash).is_none();
            require(
                is_unique && found == Some(number),
                "does not find a name by its number",
            )?;
        }
        Ok(Self {
            hashes,
            used: HashSet::new(),
        })
    }

    fn hash(&self, number: i64) -> IndexResult<u64> {
        let hash = self.hashes.get(&number).copied();
        hash.ok_or_else(|| wrong("has a number without a name"))
    }

    /// Returns the hash of the name with this number, and marks the number as used.
    fn used_hash(&mut self, number: i64) -> IndexResult<u64> {
        let hash = self.hash(number)?;
        if !self.used.contains(&number) {
            self.used.insert(number);
        }
        Ok(hash)
    }

    /// Checks that an entry has each name. An empty index has some names with the number 0.
    fn require_used(&self) -> IndexResult<()> {
        let mut numbers = self.hashes.keys();
        let are_used = numbers.all(|number| *number == 0 || self.used.contains(number));
        require(are_used, "has a name without an entry")
    }
}

struct StoredRows<'a> {
    connection: &'a Connection,
    keys: &'a FingerprintKeys,
    accounts: StoredNames,
    models: StoredNames,
    api_keys: StoredNames,
    members: StoredNames,
    outcomes: StoredNames,
    sum: u128,
    has_full_sum: bool,
}

/// Fingerprints of the rows that the indexes of `activity` must contain.
#[derive(Default, PartialEq, Eq)]
struct IndexedRows {
    by_seq: u128,
    by_outcome: u128,
    by_conversation: u128,
    implausible: u128,
}

impl<'a> StoredRows<'a> {
    fn count(connection: &'a Connection, keys: &'a FingerprintKeys) -> IndexResult<(u128, bool)> {
        let names = |table| StoredNames::read(connection, keys, table);
        let mut stored = Self {
            connection,
            keys,
            accounts: names("account")?,
            models: names("model")?,
            api_keys: names("api_key")?,
            members: names("member")?,
            outcomes: names("outcome")?,
            sum: 0,
            has_full_sum: false,
        };
        let completed = stored.outcomes.hash(0)?;
        require(completed == keys.name("completed"), "has another outcome 0")?;
        let none = stored.members.hash(0)?;
        require(none == keys.name(""), "has another member 0")?;
        let rows = stored.add_activity()?;
        let indexed = IndexedRows {
            by_seq: stored.indexed(
                "SELECT account, at, seq FROM activity INDEXED BY activity_by_seq",
            )?,
            by_outcome: stored.indexed(
                "SELECT account, at, seq, outcome FROM activity INDEXED BY activity_by_outcome
                 WHERE kind < 2 AND outcome <> 0",
            )?,
            by_conversation: stored.add_turns()?,
            implausible: stored.indexed(
                "SELECT account, at, seq FROM activity INDEXED BY activity_implausible WHERE flags = 1",
            )?,
        };
        require(
            rows == indexed,
            "has an index with other rows than its table",
        )?;
        stored.add_postings()?;
        stored.add_usage(HOUR, ", voids")?;
        stored.add_usage(DAY, "")?;
        stored.members.require_used()?;
        stored.add_totals()?;
        Ok((stored.sum, stored.has_full_sum))
    }

    /// Returns the fingerprint of the rows in an index: their key, and one more column.
    fn indexed(&self, select: &str) -> IndexResult<u128> {
        let mut select = self.connection.prepare(select)?;
        let has_more = select.column_count() > 3;
        let mut rows = select.query([])?;
        let mut sum = 0_u128;
        while let Some(row) = rows.next()? {
            let key: (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let more: i64 = if has_more { row.get(3)? } else { 0 };
            sum = sum.wrapping_add(self.place(key, more));
        }
        Ok(sum)
    }

    fn place(&self, key: impl Hash, more: i64) -> u128 {
        u128::from(self.keys.rows.hash_one((key, more)))
    }

    fn add(&mut self, row: &IndexRow) {
        self.sum = self.sum.wrapping_add(self.keys.row(row));
    }

    fn add_sums(&mut self, row: &IndexRow, sums: &RowSums) {
        let [_, credits, tokens @ ..] = sums;
        self.has_full_sum |=
            *credits >= MAX_CREDITS_SUM || tokens.iter().any(|sum| *sum >= MAX_TOKENS_SUM);
        self.sum = self.sum.wrapping_add(self.keys.sums(row, sums));
    }

    /// Calls `add` with each row of the query. `add` returns the row's key, and each key must be
    /// above its predecessor.
    fn for_each<K: PartialOrd>(
        &mut self,
        select: &str,
        mut add: impl FnMut(&mut Self, &Row<'_>) -> IndexResult<K>,
    ) -> IndexResult<()> {
        let mut select = self.connection.prepare(select)?;
        let mut rows = select.query([])?;
        let mut last = None;
        while let Some(row) = rows.next()? {
            let key = add(self, row)?;
            require(
                last.is_none_or(|last| last < key),
                "has rows that are not in order",
            )?;
            last = Some(key);
        }
        Ok(())
    }

    /// Adds the rows of `activity`. Returns the fingerprints that the indexes of this table must
    /// have.
    fn add_activity(&mut self) -> IndexResult<IndexedRows> {
        let mut indexed = IndexedRows::default();
        let select = "SELECT account, at, seq, kind, model, api_key, outcome, flags, conversation
             FROM activity ORDER BY account, at, seq";
        self.for_each(select, |stored, row| {
            let key: (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let (account, at_ms, seq) = key;
            let names: [Option<i64>; 3] = [row.get(4)?, row.get(5)?, row.get(6)?];
            let names = match names {
                [None, None, None] => None,
                [Some(model), Some(api_key), Some(outcome)] => Some([
                    stored.models.used_hash(model)?,
                    stored.api_keys.used_hash(api_key)?,
                    stored.outcomes.used_hash(outcome)?,
                ]),
                _ => return Err(wrong("has an activity with some of its names")),
            };
            let (kind, flags): (i64, i64) = (row.get(3)?, row.get(7)?);
            let activity = IndexRow::Activity {
                account: stored.accounts.used_hash(account)?,
                at_ms,
                seq,
                kind,
                names,
                flags,
            };
            stored.add(&activity);
            let add = |sum: &mut u128, more| *sum = sum.wrapping_add(stored.place(key, more));
            add(&mut indexed.by_seq, 0);
            if let Some(outcome) = row
                .get::<_, Option<i64>>(6)?
                .filter(|outcome| *outcome != 0)
                && kind < FIRST_POSTING
            {
                add(&mut indexed.by_outcome, outcome);
            }
            if flags == IMPLAUSIBLE {
                add(&mut indexed.implausible, 0);
            }
            if let Some(conversation) = row.get::<_, Option<i64>>(8)? {
                add(&mut indexed.by_conversation, conversation);
            }
            Ok(key)
        })?;
        for names in [&self.accounts, &self.models, &self.api_keys, &self.outcomes] {
            names.require_used()?;
        }
        Ok(indexed)
    }

    /// Adds conversations and turns, read through `activity_by_conversation`. Returns a fingerprint
    /// of which conversation each turn belongs to.
    fn add_turns(&mut self) -> IndexResult<u128> {
        let (mut turns, mut count, mut last_number) = (0_u128, 0_i64, 0);
        let mut by_time = 0_u128;
        let mut current = None;
        let select = "SELECT conversation, at, seq, account FROM activity INDEXED BY activity_by_conversation
             WHERE conversation IS NOT NULL ORDER BY conversation, at, seq";
        self.for_each(select, |stored, row| {
            let (number, at_ms, seq): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let account: i64 = row.get(3)?;
            let conversation = match current {
                Some((known, hash)) if known == (account, number) => hash,
                // A conversation's number belongs to one account.
                _ => {
                    require(number > last_number, "has a conversation of two accounts")?;
                    (count, last_number) = (count + 1, number);
                    stored.add_conversation(account, number, &mut by_time)?
                }
            };
            current = Some(((account, number), conversation));
            stored.add(&IndexRow::Turn { seq, conversation });
            turns = turns.wrapping_add(stored.place((account, at_ms, seq), number));
            Ok((number, at_ms, seq))
        })?;
        let (stored, numbers): (i64, i64) = self.connection.query_row(
            "SELECT (SELECT count(*) FROM conversation NOT INDEXED), conversations FROM watermark",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        require(
            stored == count && numbers == last_number,
            "has another number of conversations than its watermark or its entries",
        )?;
        let found = self.conversations_by_time()?;
        require(
            found == by_time,
            "has an index with other conversations than its table",
        )?;
        Ok(turns)
    }

    /// Returns the fingerprint of the conversations with turns, from their index by time.
    fn conversations_by_time(&self) -> IndexResult<u128> {
        let mut select = self.connection.prepare(
            "SELECT account, id, last_at, name FROM conversation INDEXED BY conversation_by_time WHERE turns > 0",
        )?;
        let mut rows = select.query([])?;
        let mut sum = 0_u128;
        while let Some(row) = rows.next()? {
            let (account, number): (i64, i64) = (row.get(0)?, row.get(1)?);
            let name = row.get_ref(3)?.as_str().map_err(rusqlite::Error::from)?;
            sum = sum.wrapping_add(self.place((account, number, name), row.get(2)?));
        }
        Ok(sum)
    }

    /// Adds a conversation, and checks that it begins and ends with its turns. A conversation with
    /// turns is also added to `by_time`. Returns its hash.
    fn add_conversation(
        &mut self,
        account: i64,
        number: i64,
        by_time: &mut u128,
    ) -> IndexResult<u64> {
        let mut select = self.connection.prepare_cached(
            "SELECT name, began_at, last_at, turns, credits, input, cache_read, output
             FROM conversation NOT INDEXED WHERE account = ?1 AND id = ?2",
        )?;
        let mut rows = select.query([account, number])?;
        let row = rows.next()?.ok_or_else(|| wrong("lacks a conversation"))?;
        let name: String = row.get(0)?;
        let times: (i64, i64) = (row.get(1)?, row.get(2)?);
        let turns: i64 = row.get(3)?;
        let sums = [turns, row.get(4)?, row.get(5)?, row.get(6)?, row.get(7)?, 0];
        let named: Option<i64> = self
            .connection
            .prepare_cached(
                "SELECT id FROM conversation INDEXED BY conversation_by_name WHERE account = ?1 AND name = ?2",
            )?
            .query_row(params![account, name], |row| row.get(0))
            .optional()?;
        require(
            named == Some(number),
            "does not find a conversation by its name",
        )?;
        let edge = |order: &str| -> IndexResult<i64> {
            let sql = format!(
                "SELECT at FROM activity INDEXED BY activity_by_conversation
                 WHERE conversation = ?1 AND kind = {DEBIT} ORDER BY at {order}, seq {order} LIMIT 1"
            );
            let mut select = self.connection.prepare_cached(&sql)?;
            let at_ms = select.query_row([number], |row| row.get(0)).optional()?;
            at_ms.ok_or_else(|| wrong("has a conversation without its turns"))
        };
        let expected = match turns {
            0 => (0, 0),
            _ => (edge("ASC")?, edge("DESC")?),
        };
        require(times == expected, "has another time of a conversation")?;
        if turns > 0 {
            let place = self.place((account, number, name.as_str()), times.1);
            *by_time = by_time.wrapping_add(place);
        }
        let hash = self.keys.conversation(self.accounts.hash(account)?, &name);
        self.add_sums(&IndexRow::Conversation(hash), &sums);
        Ok(hash)
    }

    fn add_postings(&mut self) -> IndexResult<()> {
        let select = "SELECT account, at, seq, kind, change FROM posting ORDER BY account, at, seq";
        self.for_each(select, |stored, row| {
            let (account, at_ms, seq) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let posting = IndexRow::Posting {
                account: stored.accounts.hash(account)?,
                at_ms,
                seq,
                kind: row.get(3)?,
                change: row.get(4)?,
            };
            stored.add(&posting);
            Ok((account, at_ms, seq))
        })
    }

    /// Adds the sums of accounts by `unit`. `own` is the name of the column that only this table
    /// has.
    fn add_usage(&mut self, unit: &'static str, own: &str) -> IndexResult<()> {
        let select = format!(
            "SELECT account, {unit}, model, api_key, member, responses, credits, input, cache_read, output{own}
             FROM usage_{unit} ORDER BY account, {unit}, model, api_key, member"
        );
        self.for_each(&select, |stored, row| {
            let sums = sums_from(row, 5)?;
            require(sums[0] > 0 || sums[5] > 0, NO_REQUEST)?;
            let (account, time, model) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let (api_key, member) = (row.get(3)?, row.get(4)?);
            let usage = IndexRow::Usage {
                unit,
                account: stored.accounts.hash(account)?,
                time,
                model: stored.models.hash(model)?,
                api_key: stored.api_keys.hash(api_key)?,
                member: stored.members.used_hash(member)?,
            };
            stored.add_sums(&usage, &sums);
            Ok((account, time, model, api_key, member))
        })
    }

    fn add_totals(&mut self) -> IndexResult<()> {
        let select = "SELECT day, model, responses, credits, input, cache_read, output, writeoff
             FROM usage_total ORDER BY day, model";
        self.for_each(select, |stored, row| {
            let sums = sums_from(row, 2)?;
            require(sums[0] > 0, NO_REQUEST)?;
            let (day, model) = (row.get(0)?, row.get(1)?);
            let of_all = IndexRow::Total {
                day,
                model: stored.models.hash(model)?,
            };
            stored.add_sums(&of_all, &sums);
            Ok((day, model))
        })
    }
}

const NO_REQUEST: &str = "has a sum without a request";

fn wrong(what: &str) -> IndexFault {
    IndexFault::Wrong(what.into())
}

/// Returns an error with the text `otherwise` unless `holds` is true.
fn require(holds: bool, otherwise: &str) -> IndexResult<()> {
    holds.then_some(()).ok_or_else(|| wrong(otherwise))
}

/// Reads the sums of a row, starting at the column `first`.
fn sums_from(row: &Row<'_>, first: usize) -> IndexResult<RowSums> {
    let mut sums = RowSums::default();
    let count = row.as_ref().column_count() - first;
    for (place, sum) in sums.iter_mut().take(count).enumerate() {
        *sum = row.get(first + place)?;
    }
    Ok(sums)
}
