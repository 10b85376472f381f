//! Moves a key to another account, in one transaction: its hash goes to a new row with a new id,
//! and the old row is revoked. So everything that names the old id stays with the old account.
//!
//! This file must not see a key, so it moves a hash.

use super::audit::{self, NewAuditLine};
use super::keys::{InsertKeyOutcome, find_insert_refusal, insert, revoke};
use super::rows::{KEY_COLUMNS, KeyRow, MAY_SPEND, key_row};
use super::views::KeyRows;
use crate::error::{AccountError, KeyMoveRefusal};
use crate::key_settings::KeySettings;
use crate::limits::MAX_LIVE_KEYS;
use ledger::StoreError;
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde_json::json;

/// A key to move, and where to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyMove<'a> {
    /// Id of the key.
    pub key: &'a str,
    /// Id of the account that gets it.
    pub to: &'a str,
    /// The member (by id) whose key it becomes in an organisation; `None`: who has it already.
    pub member: Option<&'a str>,
    /// Id of the key in the other account.
    pub new_id: &'a str,
}

/// What a move must know of an account.
pub(crate) struct Side {
    pub is_organisation: bool,
    pub is_administrator: bool,
    pub may_spend: bool,
    pub is_suspended: bool,
    pub is_deleted: bool,
    /// Whether credits of a payment that was taken back are still to be taken.
    pub owes_payment: bool,
}

impl KeyRows<'_> {
    /// Moves a key with its name, settings and status. Both accounts get `line` in the audit log.
    pub(crate) fn move_key(
        &self,
        plan: &KeyMove<'_>,
        line: &NewAuditLine,
    ) -> Result<Result<(), AccountError>, StoreError> {
        self.0.write("move a key", |transaction| {
            move_key(transaction, plan, line)
        })
    }
}

/// Moves a key. If it returns a refusal, nothing is changed.
pub(crate) fn move_key(
    transaction: &Transaction<'_>,
    plan: &KeyMove<'_>,
    line: &NewAuditLine,
) -> rusqlite::Result<Result<(), AccountError>> {
    let found = transaction
        .prepare_cached(&format!(
            "SELECT {KEY_COLUMNS}, hash FROM api_key WHERE id = ?1 AND status <> 'revoked'"
        ))?
        .query_row([plan.key], |row| Ok((key_row(row)?, row.get(11)?)))
        .optional()?;
    let Some((old, hash)) = found else {
        return Ok(Err(AccountError::NoKey));
    };
    let member = match find_member(transaction, plan, &old, line.at_ms)? {
        Ok(member) => member,
        Err(refused) => return Ok(Err(refused)),
    };
    let from = old.account.clone();
    let new = KeyRow {
        id: plan.new_id.to_owned(),
        account: plan.to.to_owned(),
        created_at_ms: line.at_ms,
        member,
        ..old
    };
    match find_insert_refusal(transaction, &new, MAX_LIVE_KEYS)? {
        None => {}
        Some(InsertKeyOutcome::LimitReached) => return Ok(Err(AccountError::TooManyKeys)),
        Some(_) => return Ok(Err(KeyMoveRefusal::NoMember.into())),
    }
    revoke(transaction, None, plan.key, line.at_ms)?;
    // The old row needs a hash, which must be of no text.
    let sql = "UPDATE api_key SET hash = randomblob(32) WHERE id = ?1";
    transaction.execute(sql, [plan.key])?;
    insert(transaction, &new, &hash)?;
    let before = json!({"account": from, "key": plan.key});
    let after = json!({"account": new.account, "key": new.id, "person": new.member});
    for object in [plan.key, &new.id] {
        let entry = audit::AuditEntry {
            object,
            before: &before.to_string(),
            after: &after.to_string(),
            ..line.as_entry()
        };
        audit::append(transaction, &entry)?;
    }
    Ok(Ok(()))
}

/// Returns the member whose key it becomes, `None` in the account of a person; or why the key
/// stays.
fn find_member(
    transaction: &Transaction<'_>,
    plan: &KeyMove<'_>,
    old: &KeyRow,
    now_ms: i64,
) -> rusqlite::Result<Result<Option<String>, AccountError>> {
    let settings = KeySettings::decode(&old.settings).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(7, Type::Text, Box::new(error))
    })?;
    let Some(to) = side(transaction, plan.to)? else {
        return Ok(Err(AccountError::NoAccount));
    };
    let is_of_organisation =
        side(transaction, &old.account)?.is_some_and(|from| from.is_organisation);
    let refusal = [
        (old.account == plan.to, KeyMoveRefusal::SameAccount),
        (
            old.is_login || settings.playground_session.is_some(),
            KeyMoveRefusal::StaysWithPerson,
        ),
        (settings.has_expired(now_ms), KeyMoveRefusal::Expired),
        (!to.may_spend, KeyMoveRefusal::ClosedAccount),
        (to.is_administrator, KeyMoveRefusal::Administrator),
        (
            plan.member.is_some() && !to.is_organisation,
            KeyMoveRefusal::NoOrganisation,
        ),
    ]
    .into_iter()
    .find_map(|(is_met, refusal)| is_met.then_some(refusal));
    if let Some(refusal) = refusal {
        return Ok(Err(refusal.into()));
    }
    if !to.is_organisation {
        return Ok(Ok(None));
    }
    // The holder of a person's own account is its person.
    let holder = match is_of_organisation {
        true => old.member.as_deref(),
        false => Some(&*old.account),
    };
    match plan.member.or(holder) {
        Some(member) => Ok(Ok(Some(member.to_owned()))),
        None => Ok(Err(KeyMoveRefusal::NoMember.into())),
    }
}

pub(crate) fn side(connection: &Connection, account: &str) -> rusqlite::Result<Option<Side>> {
    connection
        .prepare_cached(&format!(
            "SELECT a.organisation IS NOT NULL, a.admin, {MAY_SPEND}, a.status <> 'active',
               a.deleted_at_ms IS NOT NULL, EXISTS(SELECT 1 FROM payment_order p
                 WHERE p.account = a.id AND p.clawback <> 'none')
             FROM account a WHERE a.id = ?1"
        ))?
        .query_row(params![account], |row| {
            Ok(Side {
                is_organisation: row.get(0)?,
                is_administrator: row.get(1)?,
                may_spend: row.get(2)?,
                is_suspended: row.get(3)?,
                is_deleted: row.get(4)?,
                owes_payment: row.get(5)?,
            })
        })
        .optional()
}
