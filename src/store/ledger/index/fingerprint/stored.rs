//! The fingerprint of the stored tables of an index.
//!
//! What the number cannot tell is checked here: that keys ascend and names are unique, that no row
//! is without an entry, and that a conversation begins and ends with its turns. Keeps the hashes of
//! all names of accounts, models and keys in memory, and nothing that grows with the entries. Must
//! not write.

use super::{DEBIT, FingerprintKeys, IndexRow, RowSums, StoredFingerprint};
use crate::store::ledger::index::write::watermark;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;

/// Why the tables have no fingerprint.
enum NoFingerprint {
    /// They contradict each other.
    Contradiction,
    Sqlite(rusqlite::Error),
}

type Outcome<T> = Result<T, NoFingerprint>;

impl From<rusqlite::Error> for NoFingerprint {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::Error::{
            FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType,
        };
        match error {
            FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) => {
                Self::Contradiction
            }
            error => Self::Sqlite(error),
        }
    }
}

impl StoredFingerprint {
    /// Reads the tables. The connection must be in a transaction.
    pub(in crate::store::ledger) fn read(
        connection: &Connection,
        keys: &FingerprintKeys,
    ) -> rusqlite::Result<Self> {
        let seq = watermark(connection)?.position.0;
        match StoredRows::count(connection, keys) {
            Ok(sum) => Ok(Self {
                sum: Some(sum),
                seq,
            }),
            Err(NoFingerprint::Contradiction) => Ok(Self { sum: None, seq }),
            Err(NoFingerprint::Sqlite(error)) => Err(error),
        }
    }
}

/// The hashes of a table's names, by number.
struct StoredNames {
    hashes: HashMap<i64, u64>,
    /// Numbers that a row of `activity` has.
    used: HashSet<i64>,
}

impl StoredNames {
    fn read(connection: &Connection, keys: &FingerprintKeys, table: &str) -> Outcome<Self> {
        let mut select = connection.prepare(&format!("SELECT id, name FROM {table}"))?;
        let mut rows = select.query([])?;
        let (mut hashes, mut names) = (HashMap::new(), HashSet::new());
        while let Some(row) = rows.next()? {
            let hash = keys.name(row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?);
            require(names.insert(hash) && hashes.insert(row.get(0)?, hash).is_none())?;
        }
        Ok(Self {
            hashes,
            used: HashSet::new(),
        })
    }

    fn hash(&self, number: i64) -> Outcome<u64> {
        let hash = self.hashes.get(&number).copied();
        hash.ok_or(NoFingerprint::Contradiction)
    }

    /// Returns the hash of a name that a row of `activity` has.
    fn used_hash(&mut self, number: i64) -> Outcome<u64> {
        let hash = self.hash(number)?;
        if !self.used.contains(&number) {
            self.used.insert(number);
        }
        Ok(hash)
    }
}

struct StoredRows<'a> {
    connection: &'a Connection,
    keys: &'a FingerprintKeys,
    accounts: StoredNames,
    models: StoredNames,
    api_keys: StoredNames,
    outcomes: StoredNames,
    sum: u128,
}

impl<'a> StoredRows<'a> {
    fn count(connection: &'a Connection, keys: &'a FingerprintKeys) -> Outcome<u128> {
        let names = |table| StoredNames::read(connection, keys, table);
        let mut stored = Self {
            connection,
            keys,
            accounts: names("account")?,
            models: names("model")?,
            api_keys: names("api_key")?,
            outcomes: names("outcome")?,
            sum: 0,
        };
        let turns = stored.add_activity()?;
        require(turns == stored.add_turns()?)?;
        stored.add_postings()?;
        stored.add_hours()?;
        stored.add_days()?;
        stored.add_totals()?;
        Ok(stored.sum)
    }

    fn add(&mut self, row: &IndexRow) {
        self.sum = self.sum.wrapping_add(self.keys.row(row));
    }

    fn add_sums(&mut self, row: &IndexRow, sums: &RowSums) {
        self.sum = self.sum.wrapping_add(self.keys.sums(row, sums));
    }

    /// Calls `add` with each row of the query, which returns the row's key. Each key must be above
    /// the one before it.
    fn for_each<K: PartialOrd>(
        &mut self,
        select: &str,
        mut add: impl FnMut(&mut Self, &Row<'_>) -> Outcome<K>,
    ) -> Outcome<()> {
        let mut select = self.connection.prepare(select)?;
        let mut rows = select.query([])?;
        let mut last = None;
        while let Some(row) = rows.next()? {
            let key = add(self, row)?;
            require(last.is_none_or(|last| last < key))?;
            last = Some(key);
        }
        Ok(())
    }

    /// Returns the fingerprint of the rows with a conversation, by the conversation's number.
    fn add_activity(&mut self) -> Outcome<u128> {
        let mut turns = 0_u128;
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
                _ => return Err(NoFingerprint::Contradiction),
            };
            let activity = IndexRow::Activity {
                account: stored.accounts.used_hash(account)?,
                at_ms,
                seq,
                kind: row.get(3)?,
                names,
                flags: row.get(7)?,
            };
            stored.add(&activity);
            if let Some(conversation) = row.get::<_, Option<i64>>(8)? {
                let turn = stored.keys.rows.hash_one((conversation, key));
                turns = turns.wrapping_add(u128::from(turn));
            }
            Ok(key)
        })?;
        let names = [&self.accounts, &self.models, &self.api_keys];
        let mut are_used = names
            .iter()
            .all(|names| names.used.len() == names.hashes.len());
        // An empty index has the outcome 0 too.
        are_used &= self
            .outcomes
            .hashes
            .keys()
            .all(|number| *number == 0 || self.outcomes.used.contains(number));
        require(are_used)?;
        Ok(turns)
    }

    /// Adds the conversations and their turns, as the index of `activity` has them. Returns the
    /// fingerprint of the turns, by the conversation's number.
    fn add_turns(&mut self) -> Outcome<u128> {
        let (mut turns, mut count, mut last_number) = (0_u128, 0_i64, 0);
        let mut current = None;
        let select = "SELECT conversation, at, seq, account FROM activity INDEXED BY activity_by_conversation
             WHERE conversation IS NOT NULL ORDER BY conversation, at, seq";
        self.for_each(select, |stored, row| {
            let (number, at_ms, seq): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let account: i64 = row.get(3)?;
            let conversation = match current {
                Some((known, hash)) if known == (account, number) => hash,
                // A number is of one account.
                _ => {
                    require(number > last_number)?;
                    (count, last_number) = (count + 1, number);
                    stored.add_conversation(account, number)?
                }
            };
            current = Some(((account, number), conversation));
            stored.add(&IndexRow::Turn { seq, conversation });
            let turn = stored.keys.rows.hash_one((number, (account, at_ms, seq)));
            turns = turns.wrapping_add(u128::from(turn));
            Ok((number, at_ms, seq))
        })?;
        let (stored, numbers): (i64, i64) = self.connection.query_row(
            "SELECT (SELECT count(*) FROM conversation NOT INDEXED), conversations FROM watermark",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        require(stored == count && numbers == last_number)?;
        Ok(turns)
    }

    /// Adds a conversation, and checks that it begins and ends with its turns. Returns its hash.
    fn add_conversation(&mut self, account: i64, number: i64) -> Outcome<u64> {
        let mut select = self.connection.prepare_cached(
            "SELECT name, began_at, last_at, turns, credits, input, cache_read, output
             FROM conversation NOT INDEXED WHERE account = ?1 AND id = ?2",
        )?;
        let mut rows = select.query([account, number])?;
        let row = rows.next()?.ok_or(NoFingerprint::Contradiction)?;
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
        require(named == Some(number))?;
        let edge = |order: &str| -> Outcome<i64> {
            let sql = format!(
                "SELECT at FROM activity INDEXED BY activity_by_conversation
                 WHERE conversation = ?1 AND kind = {DEBIT} ORDER BY at {order}, seq {order} LIMIT 1"
            );
            let mut select = self.connection.prepare_cached(&sql)?;
            let at_ms = select.query_row([number], |row| row.get(0)).optional()?;
            at_ms.ok_or(NoFingerprint::Contradiction)
        };
        let expected = match turns {
            0 => (0, 0),
            _ => (edge("ASC")?, edge("DESC")?),
        };
        require(times == expected)?;
        let hash = self.keys.conversation(self.accounts.hash(account)?, &name);
        self.add_sums(&IndexRow::Conversation(hash), &sums);
        Ok(hash)
    }

    fn add_postings(&mut self) -> Outcome<()> {
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

    fn add_hours(&mut self) -> Outcome<()> {
        let select = "SELECT account, hour, model, api_key, responses, credits, input, cache_read, output, voids
             FROM usage_hour ORDER BY account, hour, model, api_key";
        self.for_each(select, |stored, row| {
            let sums = sums_from(row, 4, 6)?;
            require(sums[0] > 0 || sums[5] > 0)?;
            let key @ (account, hour, model, api_key) = group(row)?;
            let of_hour = IndexRow::Hour {
                account: stored.accounts.hash(account)?,
                hour,
                model: stored.models.hash(model)?,
                api_key: stored.api_keys.hash(api_key)?,
            };
            stored.add_sums(&of_hour, &sums);
            Ok(key)
        })
    }

    fn add_days(&mut self) -> Outcome<()> {
        let select =
            "SELECT account, day, model, api_key, responses, credits, input, cache_read, output
             FROM usage_day ORDER BY account, day, model, api_key";
        self.for_each(select, |stored, row| {
            let sums = sums_from(row, 4, 5)?;
            require(sums[0] > 0)?;
            let key @ (account, day, model, api_key) = group(row)?;
            let of_day = IndexRow::Day {
                account: stored.accounts.hash(account)?,
                day,
                model: stored.models.hash(model)?,
                api_key: stored.api_keys.hash(api_key)?,
            };
            stored.add_sums(&of_day, &sums);
            Ok(key)
        })
    }

    fn add_totals(&mut self) -> Outcome<()> {
        let select = "SELECT day, model, responses, credits, input, cache_read, output, writeoff
             FROM usage_total ORDER BY day, model";
        self.for_each(select, |stored, row| {
            let sums = sums_from(row, 2, 6)?;
            require(sums[0] > 0)?;
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

fn require(holds: bool) -> Outcome<()> {
    holds.then_some(()).ok_or(NoFingerprint::Contradiction)
}

/// Reads account, hour or day, model and key.
fn group(row: &Row<'_>) -> Outcome<(i64, i64, i64, i64)> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
}

/// Reads as many sums as there are, from the column `first` on.
fn sums_from(row: &Row<'_>, first: usize, count: usize) -> Outcome<RowSums> {
    let mut sums = RowSums::default();
    for (place, sum) in sums.iter_mut().take(count).enumerate() {
        *sum = row.get(first + place)?;
    }
    Ok(sums)
}
