//! Stores the *applied* amount: the part of a running process's settled credits that the balances
//! include.
//!
//! A process counts the credits that it has settled since its start. Credits that are settled but
//! not applied are no longer available. The applied amount of an account, and of a key, stands in
//! the row with the balance, together with the number of the process: the commit of an ending
//! writes one row, and a reader gets both amounts in one snapshot. If another process takes that
//! place in a row, the amount of the first one moves to the tables `applied` and `applied_key`. So
//! at any time one of the two places has a process's amount. Processes of older versions know only
//! the tables. This file must not change a balance.

use credits::money::{CreditSplit, Micro};
use rusqlite::{Connection, OptionalExtension, Transaction, params};

/// Returns the SQL for an instance's number, given its id as the statement's parameter
/// `?{parameter}`. The result is null for an instance without a number.
pub(crate) fn number_of(parameter: u8) -> String {
    format!("(SELECT number FROM instance WHERE boot = ?{parameter})")
}

/// Returns the number of an instance, and assigns one to a new instance.
pub(crate) fn instance_number(
    transaction: &Transaction<'_>,
    instance_id: &str,
) -> rusqlite::Result<i64> {
    let known = transaction
        .prepare_cached("SELECT number FROM instance WHERE boot = ?1")?
        .query_row([instance_id], |row| row.get(0))
        .optional()?;
    match known {
        Some(number) => Ok(number),
        None => transaction
            .prepare_cached("INSERT INTO instance (boot) VALUES (?1) RETURNING number")?
            .query_row([instance_id], |row| row.get(0)),
    }
}

pub(crate) fn applied_to_account(
    connection: &Connection,
    instance_id: &str,
    account: &str,
) -> rusqlite::Result<CreditSplit> {
    let split = |row: &rusqlite::Row<'_>| {
        Ok(CreditSplit {
            paid: row.get(0)?,
            trial: row.get(1)?,
        })
    };
    let in_row = connection
        .prepare_cached(&format!(
            "SELECT applied_paid, applied_trial FROM account WHERE id = ?2 AND applied_by = {}",
            number_of(1)
        ))?
        .query_row([instance_id, account], split)
        .optional()?;
    if let Some(applied) = in_row {
        return Ok(applied);
    }
    let in_table = connection
        .prepare_cached("SELECT paid, trial FROM applied WHERE boot = ?1 AND account = ?2")?
        .query_row([instance_id, account], split)
        .optional()?;
    Ok(in_table.unwrap_or_default())
}

/// Moves the instance's applied amount into the account's row, and the amount in the row to the
/// table.
pub(crate) fn take_account_row(
    transaction: &Transaction<'_>,
    number: i64,
    account: &str,
) -> rusqlite::Result<()> {
    // The number of a process is removed when the process ends, because its amount is useless then.
    for sql in [
        "INSERT INTO applied (boot, account, paid, trial)
         SELECT i.boot, a.id, a.applied_paid, a.applied_trial
         FROM account a JOIN instance i ON i.number = a.applied_by WHERE a.id = ?1 AND i.number <> ?2
         ON CONFLICT (boot, account) DO UPDATE SET paid = excluded.paid, trial = excluded.trial",
        "UPDATE account SET applied_by = ?2,
           applied_paid = ifnull((SELECT paid FROM applied p JOIN instance i ON i.boot = p.boot
                                  WHERE i.number = ?2 AND p.account = ?1), 0),
           applied_trial = ifnull((SELECT trial FROM applied p JOIN instance i ON i.boot = p.boot
                                   WHERE i.number = ?2 AND p.account = ?1), 0)
         WHERE id = ?1",
        "DELETE FROM applied WHERE account = ?1 AND boot = (SELECT boot FROM instance WHERE number = ?2)",
    ] {
        transaction
            .prepare_cached(sql)?
            .execute(params![account, number])?;
    }
    Ok(())
}

/// Adds to the instance's applied amount of a key. The place may be in another row than the key's
/// last one, or belong to another process.
pub(crate) fn apply_to_key(
    transaction: &Transaction<'_>,
    number: i64,
    key: &str,
    amount: Micro,
) -> rusqlite::Result<()> {
    for sql in [
        "INSERT INTO applied_key (boot, key, spent)
         SELECT i.boot, s.key, s.applied
         FROM key_spend s JOIN instance i ON i.number = s.applied_by WHERE s.key = ?1
         ON CONFLICT (boot, key) DO UPDATE SET spent = excluded.spent",
        "UPDATE key_spend SET applied_by = NULL, applied = 0 WHERE key = ?1 AND applied_by IS NOT NULL",
    ] {
        transaction.prepare_cached(sql)?.execute([key])?;
    }
    transaction
        .prepare_cached(
            "INSERT INTO applied_key (boot, key, spent)
             SELECT boot, ?1, ?3 FROM instance WHERE number = ?2
             ON CONFLICT (boot, key) DO UPDATE SET spent = spent + excluded.spent",
        )?
        .execute(params![key, number, amount])?;
    let moved = transaction
        .prepare_cached(
            "UPDATE key_spend SET applied_by = ?2,
               applied = (SELECT spent FROM applied_key k JOIN instance i ON i.boot = k.boot
                          WHERE i.number = ?2 AND k.key = ?1)
             WHERE key = ?1 AND day = (SELECT max(day) FROM key_spend WHERE key = ?1)",
        )?
        .execute(params![key, number])?;
    // A key without a debit has no row, so its amount stays in the table.
    if moved > 0 {
        transaction
            .prepare_cached(
                "DELETE FROM applied_key WHERE key = ?1 AND boot = (SELECT boot FROM instance WHERE number = ?2)",
            )?
            .execute(params![key, number])?;
    }
    Ok(())
}

/// Moves the applied amounts of all keys to the table, before their rows are removed.
pub(crate) fn move_key_amounts(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(
        "INSERT INTO applied_key (boot, key, spent)
         SELECT i.boot, s.key, s.applied
         FROM key_spend s JOIN instance i ON i.number = s.applied_by WHERE true
         ON CONFLICT (boot, key) DO UPDATE SET spent = excluded.spent;
         UPDATE key_spend SET applied_by = NULL, applied = 0 WHERE applied_by IS NOT NULL;",
    )
}

#[cfg(test)]
mod tests {
    use crate::{Claim, Ending, Ledger, RequestOutcome};
    use credits::money::{CreditSplit, Micro};
    use std::collections::BTreeMap;
    use std::path::Path;

    const NOW: i64 = 1_800_000_000_000;
    const DAY_MS: i64 = 86_400_000;
    const ACCOUNTS: [&str; 2] = ["acct_a", "acct_b"];
    const KEYS: [&str; 3] = ["key_a", "key_b", "key_c"];

    fn funded(dir: &Path) -> Ledger {
        let ledger = Ledger::open(dir).unwrap();
        for account in ACCOUNTS {
            ledger.open_funded(account, 1_000_000_000, NOW);
        }
        ledger
    }

    fn ending(number: u64, account: usize, key: usize, at_ms: i64, cost: i64) -> Ending {
        let reference = format!("req_{number}");
        let outcome = RequestOutcome::Completed;
        let mut ending = Ending::in_test(&reference, ACCOUNTS[account], at_ms, outcome);
        (ending.paid, ending.detail.key_id) = (Micro::new(cost), KEYS[key].into());
        ending
    }

    /// Pseudo-random numbers, the same in each run.
    fn numbers(mut state: u64) -> impl FnMut(u64) -> u64 {
        move |below| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        }
    }

    /// What each instance has settled, by account and by key.
    type Settled = BTreeMap<(String, String), i64>;

    fn assert_applied(ledger: &Ledger, settled: &Settled) {
        for ((instance, name), amount) in settled {
            if name.starts_with("key") {
                let spend = ledger.rows().key_spend(name, 0, instance).unwrap();
                assert_eq!(spend.applied.get(), *amount, "{instance} {name}");
                continue;
            }
            let row = ledger.rows().account(name, instance).unwrap().unwrap();
            assert_eq!(row.applied_paid.get(), *amount, "{instance} {name}");
            // As a command sees it: nothing of what was settled is still on its way.
            let claim = Claim {
                instance_id: instance.clone(),
                held: CreditSplit::ZERO,
                settled: CreditSplit {
                    paid: Micro::new(amount + 7),
                    trial: Micro::ZERO,
                },
            };
            let mut on_its_way = Micro::ZERO;
            let outcome: Result<_, crate::StoreError> =
                ledger.changes().claim("command", name, &[claim], |row| {
                    on_its_way = row.claimed_paid;
                    Ok(CreditSplit::ZERO)
                });
            outcome.unwrap();
            assert_eq!(on_its_way.get(), 7, "{instance} {name}");
        }
    }

    #[test]
    fn each_process_reads_what_it_applied_however_they_take_turns() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = funded(dir.path());
        let mut below = numbers(0x5EED);
        let (mut settled, mut number) = (Settled::new(), 0);
        for _ in 0..120 {
            let instance = format!("instance_{}", below(3));
            let batch: Vec<_> = (0..1 + below(5))
                .map(|_| {
                    // One in eight is the same request again: it is applied, and not entered.
                    number += u64::from(below(8) > 0);
                    let at_ms = NOW + DAY_MS * i64::try_from(below(4)).unwrap();
                    let (account, key) = (below(2) as usize, below(3) as usize);
                    ending(number, account, key, at_ms, 1 + below(50) as i64)
                })
                .collect();
            for ending in &batch {
                for name in [&ending.account, &ending.detail.key_id] {
                    let place = (instance.clone(), name.clone());
                    *settled.entry(place).or_default() += ending.paid.get();
                }
            }
            let endings: Vec<_> = batch
                .iter()
                .map(|ending| (ending, CreditSplit::ZERO))
                .collect();
            ledger.enter_endings(&endings, &instance).unwrap();
            if below(10) == 0 {
                ledger.index().reindex(10, &mut |_| ()).unwrap();
            }
            assert_applied(&ledger, &settled);
        }
        ledger.index().catch_up_index(u32::MAX).unwrap();
        assert_eq!(ledger.index().find_wrong_aggregates(10).unwrap(), []);
    }

    #[test]
    fn a_process_of_an_older_version_that_drains_keeps_what_it_applied() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = funded(dir.path());
        let old = rusqlite::Connection::open(dir.path().join("ledger.db")).unwrap();
        // What such a process writes.
        let apply = "INSERT INTO applied (boot, account, paid, trial) VALUES ('old', 'acct_a', ?1, 0)
            ON CONFLICT (boot, account) DO UPDATE SET paid = paid + excluded.paid, trial = trial + excluded.trial";
        let apply_key = "INSERT INTO applied_key (boot, key, spent) VALUES ('old', 'key_a', ?1)
            ON CONFLICT (boot, key) DO UPDATE SET spent = spent + excluded.spent";
        let mut settled = Settled::new();
        for number in 0_i64..5 {
            old.execute(apply, [number]).unwrap();
            old.execute(apply_key, [number]).unwrap();
            let one = ending(number.unsigned_abs(), 0, 0, NOW, 3);
            ledger
                .enter_endings(&[(&one, CreditSplit::ZERO)], "new")
                .unwrap();
            for name in ["acct_a", "key_a"] {
                *settled.entry(("old".into(), name.into())).or_default() += number;
                *settled.entry(("new".into(), name.into())).or_default() += 3;
            }
            assert_applied(&ledger, &settled);
        }
    }

    #[test]
    fn a_process_that_was_forgotten_has_applied_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = funded(dir.path());
        let one = ending(1, 0, 0, NOW, 3);
        ledger
            .enter_endings(&[(&one, CreditSplit::ZERO)], "gone")
            .unwrap();
        assert_eq!(ledger.rows().instance_ids().unwrap(), ["gone"]);
        ledger.rows().forget_instances(&["gone".into()]).unwrap();
        assert_eq!(ledger.rows().instance_ids().unwrap(), [""; 0]);
        let mut settled = Settled::new();
        for instance in ["gone", "next"] {
            settled.insert((instance.into(), "acct_a".into()), 0);
            settled.insert((instance.into(), "key_a".into()), 0);
        }
        assert_applied(&ledger, &settled);
        let two = ending(2, 0, 0, NOW, 5);
        ledger
            .enter_endings(&[(&two, CreditSplit::ZERO)], "next")
            .unwrap();
        for name in ["acct_a", "key_a"] {
            settled.insert(("next".into(), name.into()), 5);
        }
        assert_applied(&ledger, &settled);
    }
}
