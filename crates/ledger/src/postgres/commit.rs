//! Performs a commit of the holder as one transaction of PostgreSQL.
//!
//! The statements are sent together. COMMIT follows once all of them have the expected results. If
//! the connection was lost during the COMMIT, its outcome is unknown, and the caller must find it
//! out first. A COMMIT is never cancelled, because the server would then keep the transaction
//! without its standby. This file must not change what is committed.

use super::home::{PostgresHome, STATEMENT_TIMEOUT};
use super::model::HomeCommit;
use super::read;
use super::server::check_commits_wait;
use super::session::{PostgresSession, timed_out};
use crate::LedgerEntry;
use crate::StoreError;
use std::time::{Duration, Instant};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

/// Time that the server may take for a COMMIT, including the answer of its standby.
pub const COMMIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which a commit whose outcome is unknown must be found, or found missing.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(20);
const OUTCOME_INTERVAL: Duration = Duration::from_millis(250);

const OPERATION: &str = "commit to PostgreSQL";

/// Statement that fences a commit. It changes a row only if the caller holds the domain and knows
/// its last commit. It does not renew the lease: a command commits too, and must not keep a dead
/// sidecar's lease alive.
const ADVANCE: &str = "UPDATE holding SET seq = $3, hash = $4, version = $5
    WHERE domain = $1 AND epoch = $2 AND seq = $6 AND version = $7";

/// Statement without an effect. Its commit waits for the standby, and so for all earlier commits.
const TOUCH: &str = "UPDATE holding SET version = version WHERE domain = $1";

const INSERT_ENTRIES: &str = "INSERT INTO entry
      (seq, kind, ref, account, at, d_paid, d_trial, bal_paid, bal_trial, writeoff, detail, prev, hash)
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[],
      $8::bigint[], $9::bigint[], $10::bigint[], $11::text[], $12::bytea[], $13::bytea[])";

const PUT_ACCOUNTS: &str = "INSERT INTO account (id, paid, trial, trial_ends_at, credited, opened_at, version)
    SELECT *, $7::bigint
      FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
    ON CONFLICT (id) DO UPDATE SET paid = EXCLUDED.paid, trial = EXCLUDED.trial,
      trial_ends_at = EXCLUDED.trial_ends_at, credited = EXCLUDED.credited, version = EXCLUDED.version";

const PUT_ROWS: &str = "INSERT INTO copied_row (domain, tbl, key, row, version)
    SELECT $1::text, tbl, key, row, $5::bigint FROM unnest($2::text[], $3::text[], $4::text[]) AS changed (tbl, key, row)
    ON CONFLICT (domain, tbl, key) DO UPDATE SET row = EXCLUDED.row, version = EXCLUDED.version";

enum CommitFault {
    /// The server rejected or never received the commit.
    Nothing(StoreError),
    /// Another process has committed since, or holds the domain now.
    Superseded,
    /// The commit may have succeeded, or may not have reached a standby.
    Unknown(StoreError),
}

impl PostgresHome {
    /// Commits the holder's changes. When this function returns, the changes are on the server's
    /// disk and, with a synchronous standby, also on the standby's.
    ///
    /// # Errors
    /// Returns an error if the caller does not hold the domain any more, the server cannot be
    /// reached, or it refuses a row. Also returns an error if the outcome is still unknown after 20
    /// s; the caller must then compare positions before its next commit.
    pub fn commit(&self, change: HomeCommit) -> Result<(), StoreError> {
        let home = self.clone();
        self.run(
            OPERATION,
            async move { home.commit_and_find_out(&change).await },
        )
    }

    async fn commit_and_find_out(&self, change: &HomeCommit) -> Result<(), StoreError> {
        let mut slot = self.0.session.lock().await;
        let deadline = Instant::now() + OUTCOME_TIMEOUT;
        let mut unknown = None;
        loop {
            let fault = match self.connected(&mut slot).await {
                Ok(session) => {
                    let require_standby = self.settings().require_standby;
                    let committed = async {
                        check_commits_wait(session, require_standby)
                            .await
                            .map_err(CommitFault::Nothing)?;
                        // A commit that has succeeded needs no repetition.
                        if unknown.is_some() && find(session, change).await? {
                            return Ok(());
                        }
                        commit_once(session, change).await
                    };
                    match committed.await {
                        Ok(()) => return Ok(()),
                        Err(fault) => fault,
                    }
                }
                Err(error) if unknown.is_some() => CommitFault::Unknown(error),
                Err(error) => CommitFault::Nothing(error),
            };
            *slot = None;
            match fault {
                CommitFault::Superseded => return Err(superseded(change)),
                CommitFault::Nothing(error) if unknown.is_none() => return Err(error),
                CommitFault::Nothing(error) | CommitFault::Unknown(error) => {
                    if Instant::now() >= deadline {
                        return Err(error);
                    }
                    log::warn!("{error}; whether it was committed is looked up");
                    unknown = Some(());
                    tokio::time::sleep(OUTCOME_INTERVAL).await;
                }
            }
        }
    }
}

fn superseded(change: &HomeCommit) -> StoreError {
    StoreError::NotHolder(format!(
        "cannot {OPERATION}: another process committed to the {} meanwhile, or holds it now",
        change.domain.name()
    ))
}

/// Looks for a commit whose outcome is unknown. If the server has it, its standby has it too.
async fn find(session: &mut PostgresSession, change: &HomeCommit) -> Result<bool, CommitFault> {
    let found = async {
        let touch = session.prepared(TOUCH).await?;
        session
            .client
            .execute(&touch, &[&change.domain.name()])
            .await
            .map_err(|source| StoreError::postgres(OPERATION, source))?;
        read::holding(session, change.domain).await
    };
    let holding = tokio::time::timeout(COMMIT_TIMEOUT, found)
        .await
        .map_err(|_| CommitFault::Unknown(timed_out(OPERATION)))?
        .map_err(CommitFault::Unknown)?;
    if session.take_unreplicated() {
        return Err(CommitFault::Unknown(not_on_standby()));
    }
    if holding.epoch != change.epoch {
        return Err(CommitFault::Superseded);
    }
    match holding.position {
        position if position == change.after => Ok(true),
        position if position == change.before => Ok(false),
        _ => Err(CommitFault::Superseded),
    }
}

async fn commit_once(
    session: &mut PostgresSession,
    change: &HomeCommit,
) -> Result<(), CommitFault> {
    let nothing = CommitFault::Nothing;
    let advance = session.prepared(ADVANCE).await.map_err(nothing)?;
    let insert_entries = session.prepared(INSERT_ENTRIES).await.map_err(nothing)?;
    let put_accounts = session.prepared(PUT_ACCOUNTS).await.map_err(nothing)?;
    let put_rows = session.prepared(PUT_ROWS).await.map_err(nothing)?;
    session.take_unreplicated();
    let client = &session.client;
    let domain = change.domain.name();
    let (before, after) = (&change.before, &change.after);
    let fence: [&(dyn ToSql + Sync); 7] = [
        &domain,
        &change.epoch,
        &after.seq,
        &after.hash,
        &after.version,
        &before.seq,
        &before.version,
    ];
    let entries = EntryColumns::new(change);
    let accounts = AccountColumns::new(change);
    let rows = RowColumns::new(change);
    let entries = entries.parameters();
    let accounts = accounts.parameters(&after.version);
    let rows = rows.parameters(&domain, &after.version);
    let all = async {
        // The futures are polled in this order, so the statements are sent in this order without
        // waiting for results.
        tokio::join!(
            client.batch_execute("BEGIN"),
            client.execute(&advance, &fence),
            execute_rows(client, &insert_entries, &entries, change.entries.len()),
            execute_rows(client, &put_accounts, &accounts, change.accounts.len()),
            execute_rows(client, &put_rows, &rows, change.rows.len()),
        )
    };
    let sql = |source| CommitFault::Nothing(StoreError::postgres(OPERATION, source));
    // The caller closes the connection after a fault, which makes the server roll back.
    let (begun, advanced, inserted, accounts_put, rows_put) =
        tokio::time::timeout(STATEMENT_TIMEOUT, all)
            .await
            .map_err(|_| CommitFault::Nothing(timed_out(OPERATION)))?;
    begun.map_err(sql)?;
    if advanced.map_err(sql)? != 1 {
        return Err(CommitFault::Superseded);
    }
    for (count, expected) in [
        (inserted, change.entries.len()),
        (accounts_put, change.accounts.len()),
        (rows_put, change.rows.len()),
    ] {
        let count = count.map_err(sql)?;
        if count != u64::try_from(expected).unwrap_or(u64::MAX) {
            return Err(CommitFault::Nothing(StoreError::Unusable(format!(
                "cannot {OPERATION}: it took {count} of {expected} rows"
            ))));
        }
    }
    tokio::time::timeout(COMMIT_TIMEOUT, client.batch_execute("COMMIT"))
        .await
        .map_err(|_| CommitFault::Unknown(timed_out("wait for PostgreSQL's standby")))?
        .map_err(|source| CommitFault::Unknown(StoreError::postgres(OPERATION, source)))?;
    if session.take_unreplicated() {
        return Err(CommitFault::Unknown(not_on_standby()));
    }
    Ok(())
}

/// Writes `count` rows. Sends no statement if `count` is 0.
async fn execute_rows(
    client: &Client,
    statement: &Statement,
    columns: &[&(dyn ToSql + Sync)],
    count: usize,
) -> Result<u64, tokio_postgres::Error> {
    match count {
        0 => Ok(0),
        _ => client.execute(statement, columns).await,
    }
}

fn not_on_standby() -> StoreError {
    StoreError::Unusable(format!(
        "cannot {OPERATION}: the server stopped waiting for its standby"
    ))
}

/// The columns of the entries, as one array each.
struct EntryColumns<'a> {
    numbers: [Vec<i64>; 7],
    texts: [Vec<&'a str>; 4],
    bytes: [Vec<&'a [u8]>; 2],
}

impl<'a> EntryColumns<'a> {
    fn new(change: &'a HomeCommit) -> Self {
        let entries = &change.entries;
        let numbers = |of: fn(&LedgerEntry) -> i64| entries.iter().map(of).collect();
        let texts = |of: fn(&'a LedgerEntry) -> &'a str| entries.iter().map(of).collect();
        Self {
            numbers: [
                numbers(|entry| entry.seq),
                numbers(|entry| entry.at_ms),
                numbers(|entry| entry.d_paid.get()),
                numbers(|entry| entry.d_trial.get()),
                numbers(|entry| entry.bal_paid.get()),
                numbers(|entry| entry.bal_trial.get()),
                numbers(|entry| entry.writeoff.get()),
            ],
            texts: [
                texts(|entry| &entry.kind),
                texts(|entry| &entry.reference),
                texts(|entry| &entry.account),
                texts(|entry| &entry.detail),
            ],
            bytes: [
                entries.iter().map(|entry| entry.prev.as_slice()).collect(),
                entries.iter().map(|entry| entry.hash.as_slice()).collect(),
            ],
        }
    }

    fn parameters(&self) -> [&(dyn ToSql + Sync); 13] {
        let [seq, at, d_paid, d_trial, bal_paid, bal_trial, writeoff] = &self.numbers;
        let [kind, reference, account, detail] = &self.texts;
        let [prev, hash] = &self.bytes;
        [
            seq, kind, reference, account, at, d_paid, d_trial, bal_paid, bal_trial, writeoff,
            detail, prev, hash,
        ]
    }
}

struct AccountColumns<'a> {
    ids: Vec<&'a str>,
    paid: Vec<i64>,
    trial: Vec<i64>,
    trial_ends_at: Vec<Option<i64>>,
    credited: Vec<i64>,
    opened_at: Vec<i64>,
}

impl<'a> AccountColumns<'a> {
    fn new(change: &'a HomeCommit) -> Self {
        let accounts = &change.accounts;
        Self {
            ids: accounts.iter().map(|account| account.id.as_str()).collect(),
            paid: accounts.iter().map(|account| account.paid).collect(),
            trial: accounts.iter().map(|account| account.trial).collect(),
            trial_ends_at: accounts
                .iter()
                .map(|account| account.trial_ends_at_ms)
                .collect(),
            credited: accounts.iter().map(|account| account.credited).collect(),
            opened_at: accounts
                .iter()
                .map(|account| account.opened_at_ms)
                .collect(),
        }
    }

    fn parameters<'b>(&'b self, version: &'b i64) -> [&'b (dyn ToSql + Sync); 7] {
        [
            &self.ids,
            &self.paid,
            &self.trial,
            &self.trial_ends_at,
            &self.credited,
            &self.opened_at,
            version,
        ]
    }
}

struct RowColumns<'a> {
    tables: Vec<&'a str>,
    keys: Vec<&'a str>,
    rows: Vec<Option<&'a str>>,
}

impl<'a> RowColumns<'a> {
    fn new(change: &'a HomeCommit) -> Self {
        let rows = &change.rows;
        Self {
            tables: rows.iter().map(|row| row.table.as_str()).collect(),
            keys: rows.iter().map(|row| row.key.as_str()).collect(),
            rows: rows.iter().map(|row| row.row.as_deref()).collect(),
        }
    }

    fn parameters<'b>(&'b self, domain: &'b &str, version: &'b i64) -> [&'b (dyn ToSql + Sync); 5] {
        [domain, &self.tables, &self.keys, &self.rows, version]
    }
}
