//! Stores sign-ins of programs (RFC 8628): requests that a person must answer, and logins, which
//! are API keys whose texts last an hour.
//!
//! A login is its key: the key's status, account and member decide whether it works. This file must
//! not see a token or a code that opens something in plain text; a user code opens nothing.

use super::audit::{self, AuditEntry};
use super::keys::{InsertKeyOutcome, insert_key, revoke};
use super::rows::{KeyRow, MAY_SPEND};
use super::views::DeviceLoginRows;
use ledger::StoreError;
use rusqlite::{OptionalExtension, Transaction, params};

/// Time in ms for which a request is kept after its end, so that its program learns of it.
const KEPT_AFTER_END_MS: i64 = 600_000;

/// Time in ms for which an expired token is kept. Until then, edges learn of a revocation, whatever
/// their clocks say.
const TOKEN_KEPT_MS: i64 = 600_000;

/// Maximum number of tokens of one login that work at the same time.
const MAX_TOKENS: i64 = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRequest {
    pub user_code: String,
    pub client: String,
    pub address: String,
    pub created_at_ms: i64,
    pub expires_at_ms: i64,
}

/// What a person has answered to the request of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceAnswer {
    Open,
    Refused,
    Expired,
    /// The login, by the id of its key.
    Approved(String),
}

/// A new text by which the key of a login is used.
pub struct NewLoginToken<'a> {
    pub hash: &'a [u8; 32],
    /// Shortened text, which lists and receipts show.
    pub shown: &'a str,
    pub expires_at_ms: i64,
    /// When the login ends unless it is refreshed again.
    pub login_ends_at_ms: i64,
    pub now_ms: i64,
}

/// A refresh token that a program presents, and what it gets for it.
pub struct Refresh<'a> {
    pub family: &'a [u8; 32],
    pub presented: &'a [u8; 32],
    /// Time in ms for which the token before is taken again, and for which older texts work.
    pub overlap_ms: i64,
    pub token: NewLoginToken<'a>,
    /// From where it is presented, for the audit log.
    pub address: &'a str,
}

#[derive(Debug, PartialEq, Eq)]
pub enum BeginOutcome {
    Done {
        email: String,
    },
    /// Another poll has fetched the tokens.
    Used,
    /// The login does not work any more.
    Ended,
}

#[derive(Debug, PartialEq, Eq)]
pub enum RefreshOutcome {
    Done {
        login: String,
        email: String,
    },
    /// The token is unknown, or its login does not work.
    Invalid,
    /// The token was used before, so that somebody else may have it: the login is revoked.
    Reused {
        login: String,
    },
    TooMany,
}

impl DeviceLoginRows<'_> {
    /// Inserts a request, unless another has its user code. Deletes old ones, and the oldest if
    /// there are more than `max`.
    pub fn insert_request(
        &self,
        hash: &[u8; 32],
        request: &DeviceRequest,
        max: i64,
    ) -> Result<bool, StoreError> {
        self.0.write("insert a sign-in of a program", |transaction| {
            transaction.execute(
                "DELETE FROM device_request WHERE expires_at_ms <= ?1",
                [request.created_at_ms - KEPT_AFTER_END_MS],
            )?;
            let inserted = transaction.execute(
                "INSERT OR IGNORE INTO device_request(
                   hash, user_code, client, address, created_at_ms, expires_at_ms, status)
                 VALUES(?1, ?2, ?3, ?4, ?5, ?6, 'open')",
                params![
                    hash,
                    request.user_code,
                    request.client,
                    request.address,
                    request.created_at_ms,
                    request.expires_at_ms
                ],
            )?;
            transaction.execute(
                "DELETE FROM device_request WHERE hash IN (
                   SELECT hash FROM device_request ORDER BY expires_at_ms DESC, hash LIMIT -1 OFFSET ?1)",
                [max],
            )?;
            Ok(inserted == 1)
        })
    }

    /// Returns the request with a user code that nobody has answered.
    pub fn open_request(
        &self,
        user_code: &str,
        now_ms: i64,
    ) -> Result<Option<DeviceRequest>, StoreError> {
        self.0.read("find a sign-in of a program", |connection| {
            connection
                .prepare_cached(
                    "SELECT user_code, client, address, created_at_ms, expires_at_ms FROM device_request
                     WHERE user_code = ?1 AND status = 'open' AND expires_at_ms > ?2",
                )?
                .query_row(params![user_code, now_ms], |row| {
                    Ok(DeviceRequest {
                        user_code: row.get(0)?,
                        client: row.get(1)?,
                        address: row.get(2)?,
                        created_at_ms: row.get(3)?,
                        expires_at_ms: row.get(4)?,
                    })
                })
                .optional()
        })
    }

    /// Answers an open request with a login, whose key is `key`. Returns `None` if there is no such
    /// request: somebody answered it, or it has expired.
    pub fn approve(
        &self,
        user_code: &str,
        person: &str,
        (key, hash, secret): (&KeyRow, &[u8; 32], &[u8; 32]),
        (live_max, ends_at_ms): (i64, i64),
        act: &AuditEntry<'_>,
    ) -> Result<Option<InsertKeyOutcome>, StoreError> {
        self.0.write("approve a sign-in of a program", |transaction| {
            if !is_open(transaction, user_code, act.at_ms)? {
                return Ok(None);
            }
            let outcome = insert_key(transaction, key, hash, live_max)?;
            if outcome == InsertKeyOutcome::Done {
                transaction.execute(
                    "INSERT INTO login(key, person, secret, expires_at_ms) VALUES(?1, ?2, ?3, ?4)",
                    params![key.id, person, secret, ends_at_ms],
                )?;
                transaction.execute(
                    "UPDATE device_request SET status = 'approved', login = ?2 WHERE user_code = ?1",
                    [user_code, &key.id],
                )?;
                audit::append(transaction, act)?;
            }
            Ok(Some(outcome))
        })
    }

    /// Refuses an open request. Returns false if there is none.
    pub fn refuse(&self, user_code: &str, act: &AuditEntry<'_>) -> Result<bool, StoreError> {
        self.0
            .write("refuse a sign-in of a program", |transaction| {
                if !is_open(transaction, user_code, act.at_ms)? {
                    return Ok(false);
                }
                transaction.execute(
                    "UPDATE device_request SET status = 'refused' WHERE user_code = ?1",
                    [user_code],
                )?;
                audit::append(transaction, act)?;
                Ok(true)
            })
    }

    /// Returns the answer to a request; `None` if there is no such request.
    pub fn answer(&self, hash: &[u8; 32], now_ms: i64) -> Result<Option<DeviceAnswer>, StoreError> {
        self.0.read("read the answer to a sign-in", |connection| {
            connection
                .prepare_cached(
                    "SELECT status, login, expires_at_ms FROM device_request WHERE hash = ?1",
                )?
                .query_row([hash], |row| {
                    let (status, login): (String, Option<String>) = (row.get(0)?, row.get(1)?);
                    let has_expired = row.get::<_, i64>(2)? <= now_ms;
                    Ok(match login {
                        _ if has_expired => DeviceAnswer::Expired,
                        Some(login) => DeviceAnswer::Approved(login),
                        None if status == "open" => DeviceAnswer::Open,
                        None => DeviceAnswer::Refused,
                    })
                })
                .optional()
        })
    }

    /// Gives the program of an approved request the first tokens of its login, once.
    pub fn begin(
        &self,
        hash: &[u8; 32],
        login: &str,
        (family, refresh): (&[u8; 32], &[u8; 32]),
        token: &NewLoginToken<'_>,
    ) -> Result<BeginOutcome, StoreError> {
        self.0.write("begin a login", |transaction| {
            if transaction.execute("DELETE FROM device_request WHERE hash = ?1", [hash])? == 0 {
                return Ok(BeginOutcome::Used);
            }
            let Some(email) = find_live(transaction, login, token.now_ms)? else {
                return Ok(BeginOutcome::Ended);
            };
            transaction.execute(
                "UPDATE login SET family = ?2, refresh = ?3, refreshed_at_ms = ?4 WHERE key = ?1",
                params![login, family, refresh, token.now_ms],
            )?;
            insert_token(transaction, login, token)?;
            Ok(BeginOutcome::Done { email })
        })
    }

    /// Returns the secret of the login that refresh tokens of this family are of.
    pub fn secret(&self, family: &[u8; 32]) -> Result<Option<[u8; 32]>, StoreError> {
        self.0.read("find a login", |connection| {
            connection
                .prepare_cached("SELECT secret FROM login WHERE family = ?1")?
                .query_row([family], |row| row.get(0))
                .optional()
        })
    }

    /// Replaces a refresh token by the one with the hash `next`. A token that was replaced a short
    /// while ago gets the same one again, because its program may not have received it. An older
    /// one revokes the login.
    pub fn refresh(
        &self,
        refresh: &Refresh<'_>,
        next: &[u8; 32],
    ) -> Result<RefreshOutcome, StoreError> {
        self.0.write("refresh a login", |transaction| {
            let now_ms = refresh.token.now_ms;
            let found = transaction
                .prepare_cached(
                    "SELECT key, person, refresh = ?2, ifnull(previous = ?2, 0) AND refreshed_at_ms >= ?3
                     FROM login WHERE family = ?1",
                )?
                .query_row(
                    params![refresh.family, refresh.presented, now_ms - refresh.overlap_ms],
                    |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
                )
                .optional()?;
            let Some((login, person, is_current, is_repeated)) = found else {
                return Ok(RefreshOutcome::Invalid);
            };
            let (login, person): (String, String) = (login, person);
            let Some(email) = find_live(transaction, &login, now_ms)? else {
                return Ok(RefreshOutcome::Invalid);
            };
            match (is_current, is_repeated) {
                (true, _) => {
                    transaction.execute(
                        "UPDATE login SET previous = refresh, refresh = ?2, refreshed_at_ms = ?3 WHERE key = ?1",
                        params![login, next, now_ms],
                    )?;
                    transaction.execute(
                        "UPDATE login_token SET expires_at_ms = min(expires_at_ms, ?2) WHERE login = ?1",
                        params![login, now_ms + refresh.overlap_ms],
                    )?;
                }
                (false, true) => {
                    let live: i64 = transaction.query_row(
                        "SELECT count(*) FROM login_token WHERE login = ?1 AND expires_at_ms > ?2",
                        params![login, now_ms],
                        |row| row.get(0),
                    )?;
                    if live >= MAX_TOKENS {
                        return Ok(RefreshOutcome::TooMany);
                    }
                }
                (false, false) => {
                    revoke(transaction, None, &login, now_ms)?;
                    let act = AuditEntry {
                        at_ms: now_ms,
                        actor: &person,
                        address: refresh.address,
                        act: "login.reuse",
                        object: &login,
                        before: "",
                        after: r#"{"status":"revoked"}"#,
                    };
                    audit::append(transaction, &act)?;
                    return Ok(RefreshOutcome::Reused { login });
                }
            }
            insert_token(transaction, &login, &refresh.token)?;
            Ok(RefreshOutcome::Done { login, email })
        })
    }

    /// Returns the login (by its key's id) that a refresh token with this family, or a token with
    /// this hash, is of.
    pub fn login_of(&self, hash: &[u8; 32]) -> Result<Option<String>, StoreError> {
        self.0.read("find a login by a token", |connection| {
            connection
                .prepare_cached(
                    "SELECT key FROM login WHERE family = ?1
                     UNION ALL SELECT login FROM login_token WHERE hash = ?1 LIMIT 1",
                )?
                .query_row([hash], |row| row.get(0))
                .optional()
        })
    }
}

fn is_open(transaction: &Transaction<'_>, user_code: &str, now_ms: i64) -> rusqlite::Result<bool> {
    transaction
        .prepare_cached(
            "SELECT 1 FROM device_request WHERE user_code = ?1 AND status = 'open' AND expires_at_ms > ?2",
        )?
        .exists(params![user_code, now_ms])
}

/// Returns the e-mail of the person whose login it is, if the login works: neither the key nor its
/// account is revoked, disabled, suspended or deleted, and its time has not passed.
fn find_live(
    transaction: &Transaction<'_>,
    login: &str,
    now_ms: i64,
) -> rusqlite::Result<Option<String>> {
    transaction
        .prepare_cached(&format!(
            "SELECT person.email FROM login l JOIN api_key k ON k.id = l.key
             JOIN account a ON a.id = k.account JOIN account person ON person.id = l.person
             WHERE l.key = ?1 AND l.expires_at_ms > ?2 AND k.status = 'active'
               AND ifnull(k.settings ->> '$.expires_at_ms', ?2 + 1) > ?2
               AND a.deleted_at_ms IS NULL AND {MAY_SPEND}"
        ))?
        .query_row(params![login, now_ms], |row| row.get(0))
        .optional()
}

/// Inserts a token, and moves the end of its login and of the key. An end that somebody set for the
/// key stays.
fn insert_token(
    transaction: &Transaction<'_>,
    login: &str,
    token: &NewLoginToken<'_>,
) -> rusqlite::Result<()> {
    transaction.execute(
        "DELETE FROM login_token WHERE expires_at_ms <= ?1",
        [token.now_ms - TOKEN_KEPT_MS],
    )?;
    transaction.execute(
        "UPDATE api_key SET shown = ?2, settings = iif(
           settings ->> '$.expires_at_ms' = (SELECT expires_at_ms FROM login WHERE key = ?1),
           json_set(settings, '$.expires_at_ms', ?3), settings)
         WHERE id = ?1",
        params![login, token.shown, token.login_ends_at_ms],
    )?;
    transaction.execute(
        "UPDATE login SET expires_at_ms = ?2 WHERE key = ?1",
        params![login, token.login_ends_at_ms],
    )?;
    transaction
        .execute(
            "INSERT INTO login_token(hash, login, expires_at_ms) VALUES(?1, ?2, ?3)",
            params![token.hash, login, token.expires_at_ms],
        )
        .map(drop)
}
