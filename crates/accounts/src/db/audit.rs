//! Stores the audit log as rows of `app.db`. Each action of an administrator has one line, with the
//! hash of the previous line.
//!
//! If the action changes `app.db`, its line can be written in the same transaction. Any other
//! action has two lines: the attempt, and later the outcome, which names the attempt. Readers get
//! both as one row. Triggers forbid changing or deleting lines, and `verify` detects such changes.
//! This file must not receive a secret.

use super::rows::first_column;
use super::views::AuditRows;
use ledger::StoreError;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, Transaction, params, params_from_iter};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt;

const AUDIT_COLUMNS: &str =
    "a.seq, a.at_ms, a.actor, a.address, a.act, a.object, a.before, a.after, a.prev, a.hash";

/// Prefix of an action's stored name if the outcome has a separate line.
const ATTEMPT_PREFIX: &str = "attempt:";

/// Stored name of a line with the outcome of an attempt, whose object is `line SEQ`.
const OUTCOME_ACT: &str = "outcome";

/// SQL of all attempts and other actions, each with the line of its outcome. The plus keeps SQLite
/// from reading all outcomes for each line, by the index of `act`.
const ACTS_WITH_OUTCOMES: &str =
    "audit a LEFT JOIN audit o ON o.object = 'line ' || a.seq AND +o.act = 'outcome'
     WHERE a.act <> 'outcome'";

/// An action for the audit log.
#[derive(Debug, Clone, Copy)]
pub struct AuditEntry<'a> {
    pub at_ms: i64,
    pub actor: &'a str,
    pub address: &'a str,
    /// Name of the action, such as `account.suspend`.
    pub act: &'a str,
    pub object: &'a str,
    /// JSON, or an empty text.
    pub before: &'a str,
    pub after: &'a str,
}

/// A line whose contents are computed in the transaction that appends it.
pub(crate) struct NewAuditLine {
    pub at_ms: i64,
    pub actor: String,
    pub address: String,
    pub act: &'static str,
    pub object: String,
    pub before: String,
    pub after: String,
}

impl NewAuditLine {
    pub(crate) fn as_entry(&self) -> AuditEntry<'_> {
        AuditEntry {
            at_ms: self.at_ms,
            actor: &self.actor,
            address: &self.address,
            act: self.act,
            object: &self.object,
            before: &self.before,
            after: &self.after,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeKind {
    Done,
    /// The reference was posted before, so nothing changed.
    Repeated,
    /// A rule forbade the action, so nothing changed.
    Refused,
    /// A database failed, so the result is unknown.
    Failed,
    /// The attempt has no outcome, because the process ended or is still working.
    Unknown,
}

impl OutcomeKind {
    pub const ALL: [Self; 5] = [
        Self::Done,
        Self::Repeated,
        Self::Refused,
        Self::Failed,
        Self::Unknown,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Repeated => "repeated",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the SQL condition that selects rows of [`ACTS_WITH_OUTCOMES`] with this outcome.
    fn condition(self) -> String {
        let attempt = format!("a.act LIKE '{ATTEMPT_PREFIX}%'");
        match self {
            // Earlier versions wrote refused actions as separate lines.
            Self::Done => format!(
                "((NOT {attempt} AND a.act <> 'refused') OR json_extract(o.after, '$.outcome') = 'done')"
            ),
            Self::Refused => {
                "(a.act = 'refused' OR json_extract(o.after, '$.outcome') = 'refused')".to_owned()
            }
            Self::Unknown => format!("({attempt} AND o.seq IS NULL)"),
            kind => format!("json_extract(o.after, '$.outcome') = '{}'", kind.name()),
        }
    }
}

/// Outcome of an action, with details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditOutcome {
    pub kind: OutcomeKind,
    /// Reason for a refusal or a failure; empty otherwise.
    pub why: String,
    /// Change of the balance in credits, if the action was a posting.
    pub credits: Option<String>,
}

impl AuditOutcome {
    pub const DONE: Self = Self::new(OutcomeKind::Done);
    const UNKNOWN: Self = Self::new(OutcomeKind::Unknown);

    pub const fn new(kind: OutcomeKind) -> Self {
        Self {
            kind,
            why: String::new(),
            credits: None,
        }
    }

    fn to_json(&self) -> Value {
        let mut value = json!({"outcome": self.kind.name()});
        if !self.why.is_empty() {
            value["why"] = json!(self.why);
        }
        if let Some(credits) = &self.credits {
            value["credits"] = json!(credits);
        }
        value
    }

    fn parse(text: &str) -> Self {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        let word = |name: &str| value[name].as_str().map(ToOwned::to_owned);
        let kind = value["outcome"].as_str().and_then(OutcomeKind::parse);
        Self {
            kind: kind.unwrap_or(OutcomeKind::Unknown),
            why: word("why").unwrap_or_default(),
            credits: word("credits"),
        }
    }
}

impl fmt::Display for AuditOutcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            OutcomeKind::Done => out.write_str("done"),
            OutcomeKind::Repeated => out.write_str("already posted, so nothing changed"),
            OutcomeKind::Refused => write!(out, "refused: {}", self.why),
            OutcomeKind::Failed => write!(out, "failed: {}", self.why),
            OutcomeKind::Unknown => {
                out.write_str("outcome unknown: the process ended, or still works on it")
            }
        }
    }
}

/// Filter for lines of the log. A field that is `None` matches every line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// The actor: the id of an account, or the text of another actor.
    pub actor: Option<String>,
    /// Id of the account that a line concerns, directly or through one of its keys or requests.
    pub account: Option<String>,
    pub act: Option<String>,
    pub outcome: Option<OutcomeKind>,
    /// Start and exclusive end of the period, in ms since 1970.
    pub times_ms: Option<(i64, i64)>,
}

/// An action as stored, with its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    pub seq: i64,
    pub at_ms: i64,
    pub actor: String,
    pub address: String,
    /// Name of the action, such as `account.suspend`.
    pub act: String,
    /// True if the line is an attempt whose outcome is a separate line.
    pub is_attempt: bool,
    pub outcome: AuditOutcome,
    pub object: String,
    pub before: String,
    pub after: String,
    pub prev: Vec<u8>,
    pub hash: Vec<u8>,
}

impl AuditRow {
    /// Computes the hash that the line must have. The hash covers the previous line's hash and the
    /// line's fields, separated by the byte 1F.
    pub fn expected_hash(&self) -> [u8; 32] {
        let Self {
            seq,
            at_ms,
            actor,
            address,
            act,
            is_attempt,
            object,
            before,
            after,
            prev,
            ..
        } = self;
        let act = &match is_attempt {
            true => format!("{ATTEMPT_PREFIX}{act}"),
            false => act.clone(),
        };
        let text = [
            &seq.to_string(),
            &at_ms.to_string(),
            actor,
            address,
            act,
            object,
            before,
            after,
        ]
        .map(String::as_str)
        .join("\u{1f}");
        Sha256::new()
            .chain_update(prev)
            .chain_update(text)
            .finalize()
            .into()
    }
}

/// Appends a line in the transaction of the recorded action.
pub(crate) fn append(transaction: &Transaction<'_>, act: &AuditEntry<'_>) -> rusqlite::Result<()> {
    append_line(transaction, act, false).map(drop)
}

fn append_line(
    transaction: &Transaction<'_>,
    act: &AuditEntry<'_>,
    is_attempt: bool,
) -> rusqlite::Result<i64> {
    let last: Option<(i64, Vec<u8>)> = transaction
        .query_row(
            "SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    let (last_seq, prev) = last.unwrap_or_else(|| (0, vec![0; 32]));
    let row = AuditRow {
        seq: last_seq + 1,
        at_ms: act.at_ms,
        actor: act.actor.to_owned(),
        address: act.address.to_owned(),
        act: act.act.to_owned(),
        is_attempt,
        outcome: AuditOutcome::DONE,
        object: act.object.to_owned(),
        before: act.before.to_owned(),
        after: act.after.to_owned(),
        prev,
        hash: Vec::new(),
    };
    let hash = row.expected_hash();
    let stored_act = match is_attempt {
        true => format!("{ATTEMPT_PREFIX}{}", row.act),
        false => row.act,
    };
    transaction
        .execute(
            "INSERT INTO audit(seq, at_ms, actor, address, act, object, before, after, prev, hash)
             VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            params![
                row.seq,
                row.at_ms,
                row.actor,
                row.address,
                stored_act,
                row.object,
                row.before,
                row.after,
                row.prev,
                hash
            ],
        )
        .map(|_| row.seq)
}

impl AuditRows<'_> {
    /// Appends a line in its own transaction, for an action that does not change `app.db`.
    pub fn append_audit(&self, act: &AuditEntry<'_>) -> Result<(), StoreError> {
        self.0.write("write to the audit log", |transaction| {
            append(transaction, act)
        })
    }

    /// Appends the line of an attempt before the action runs. Returns the line's number for
    /// [`AuditRows::append_outcome`].
    pub fn append_attempt(&self, act: &AuditEntry<'_>) -> Result<i64, StoreError> {
        self.0.write("write to the audit log", |transaction| {
            append_line(transaction, act, true)
        })
    }

    /// Appends the outcome of the attempt in the line `seq`, whose entry is `attempt`.
    pub fn append_outcome(
        &self,
        seq: i64,
        attempt: &AuditEntry<'_>,
        outcome: &AuditOutcome,
    ) -> Result<(), StoreError> {
        self.append_audit(&AuditEntry {
            act: OUTCOME_ACT,
            object: &format!("line {seq}"),
            before: "",
            after: &outcome.to_json().to_string(),
            ..*attempt
        })
    }

    /// Appends a line like [`AuditRows::append_audit`], unless an equal one exists after
    /// `since_ms`. Most calls repeat a line, so the function reads before it writes.
    pub fn append_audit_once(&self, act: &AuditEntry<'_>, since_ms: i64) -> Result<(), StoreError> {
        let is_logged = |connection: &Connection| -> rusqlite::Result<bool> {
            connection
                .prepare_cached(
                    "SELECT EXISTS(SELECT 1 FROM audit WHERE object = ?1 AND actor = ?2 AND act = ?3
                       AND after = ?4 AND at_ms > ?5)",
                )?
                .query_row(
                    params![act.object, act.actor, act.act, act.after, since_ms],
                    first_column,
                )
        };
        if self.0.read("read the audit log", is_logged)? {
            return Ok(());
        }
        self.0.write("write to the audit log", |transaction| {
            if is_logged(transaction)? {
                return Ok(());
            }
            append(transaction, act)
        })
    }

    /// Appends a line that depends on the earlier lines of the action `act`. The closure `build`
    /// receives those lines, oldest first, in the same transaction. If `build` returns `None`, no
    /// line is appended.
    pub(crate) fn append_audit_after(
        &self,
        act: &str,
        build: impl FnOnce(&[AuditRow]) -> Option<NewAuditLine>,
    ) -> Result<(), StoreError> {
        self.0.write("write to the audit log", |transaction| {
            let rows = rows_of(transaction, act)?;
            match build(&rows) {
                Some(line) => append(transaction, &line.as_entry()),
                None => Ok(()),
            }
        })
    }

    /// Returns all lines of an action, oldest first.
    pub fn audit_rows_of(&self, act: &str) -> Result<Vec<AuditRow>, StoreError> {
        self.0
            .read("read the audit log", |connection| rows_of(connection, act))
    }

    /// Returns at most `limit` actions that match `filter` before the line `before`, newest first.
    pub fn find_audit_rows(
        &self,
        filter: &AuditFilter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditRow>, StoreError> {
        let mut sql =
            format!("SELECT {AUDIT_COLUMNS}, o.after FROM {ACTS_WITH_OUTCOMES} AND a.seq < ?1");
        let mut values: Vec<Box<dyn ToSql>> = vec![Box::new(before.unwrap_or(i64::MAX))];
        let mut add = |condition: &str, value: Box<dyn ToSql>| {
            values.push(value);
            sql.push_str(" AND ");
            sql.push_str(&condition.replace("?", &format!("?{}", values.len())));
        };
        if let Some(actor) = &filter.actor {
            add("a.actor = ?", Box::new(actor.clone()));
        }
        if let Some(account) = &filter.account {
            add(
                "(a.object = ? OR a.object IN (SELECT id FROM api_key WHERE account = ?)
                  OR (a.act IN ('request.refund', 'attempt:request.refund')
                      AND json_extract(a.after, '$.account') = ?))",
                Box::new(account.clone()),
            );
        }
        if let Some(act) = &filter.act {
            add("a.act IN (?, 'attempt:' || ?)", Box::new(act.clone()));
        }
        if let Some((from_ms, to_ms)) = filter.times_ms {
            add("a.at_ms >= ?", Box::new(from_ms));
            add("a.at_ms < ?", Box::new(to_ms));
        }
        if let Some(outcome) = filter.outcome {
            sql.push_str(" AND ");
            sql.push_str(&outcome.condition());
        }
        values.push(Box::new(limit));
        sql.push_str(&format!(" ORDER BY a.seq DESC LIMIT ?{}", values.len()));
        self.0.read("read the audit log", |connection| {
            connection
                .prepare_cached(&sql)?
                .query_map(params_from_iter(values), audit_row)?
                .collect()
        })
    }

    /// Calls `each` for every line, oldest first.
    pub fn for_each_audit_row(&self, each: &mut dyn FnMut(AuditRow)) -> Result<(), StoreError> {
        self.0
            .read("read the audit log", |connection: &Connection| {
                let mut statement = connection.prepare(&format!(
                    "SELECT {AUDIT_COLUMNS}, NULL FROM audit a ORDER BY a.seq"
                ))?;
                let mut rows = statement.query([])?;
                while let Some(line) = rows.next()? {
                    each(audit_row(line)?);
                }
                Ok(())
            })
    }
}

fn rows_of(connection: &Connection, act: &str) -> rusqlite::Result<Vec<AuditRow>> {
    connection
        .prepare_cached(&format!(
            "SELECT {AUDIT_COLUMNS}, NULL FROM audit a WHERE a.act = ?1 ORDER BY a.seq"
        ))?
        .query_map([act], audit_row)?
        .collect()
}

fn audit_row(row: &Row<'_>) -> rusqlite::Result<AuditRow> {
    let stored_act: String = row.get(4)?;
    let attempt = stored_act.strip_prefix(ATTEMPT_PREFIX);
    let outcome: Option<String> = row.get(10)?;
    Ok(AuditRow {
        seq: first_column(row)?,
        is_attempt: attempt.is_some(),
        outcome: match (&outcome, attempt) {
            (Some(text), _) => AuditOutcome::parse(text),
            (None, Some(_)) => AuditOutcome::UNKNOWN,
            (None, None) => AuditOutcome::DONE,
        },
        at_ms: row.get(1)?,
        actor: row.get(2)?,
        address: row.get(3)?,
        act: attempt.map_or_else(|| stored_act.clone(), ToOwned::to_owned),
        object: row.get(5)?,
        before: row.get(6)?,
        after: row.get(7)?,
        prev: row.get(8)?,
        hash: row.get(9)?,
    })
}
