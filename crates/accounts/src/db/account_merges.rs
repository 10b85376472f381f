//! Moves the members and keys of an account that is merged into another one, all in one
//! transaction.
//!
//! This file must not see a key.

use super::audit::{self, NewAuditLine};
use super::key_moves::{KeyMove, move_key, side};
use super::organisations::{insert_member, is_full, is_last_owner};
use super::rows::first_column;
use super::views::AccountRows;
use crate::error::{AccountError, KeyMoveRefusal, MergeRefusal};
use crate::membership::OrganisationRole;
use ledger::StoreError;
use rusqlite::{Connection, Transaction, params};
use serde_json::json;

/// An account that is merged, by ids.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergePlan<'a> {
    pub from: &'a str,
    pub to: &'a str,
    /// The member of the organisation `to` who gets the keys that nobody there has.
    pub member: Option<&'a str>,
}

/// What a merge has moved.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MovedParts {
    /// The people (by id) who are members now.
    pub members: Vec<String>,
    /// Ids of the keys in their new account.
    pub keys: Vec<String>,
}

/// The lines of the audit log for what a merge moves.
pub(crate) struct MergeLines {
    pub key: NewAuditLine,
    pub member: NewAuditLine,
}

/// The names of the transaction's part that a refusal undoes.
const BEGIN_PART: &str = "SAVEPOINT merge";
const UNDO_PART: &str = "ROLLBACK TO merge";

impl AccountRows<'_> {
    /// Returns the reason for which an account cannot be merged, if there is one.
    pub(crate) fn find_merge_refusal(
        &self,
        plan: &MergePlan<'_>,
    ) -> Result<Option<AccountError>, StoreError> {
        self.0
            .read("check a merge", |connection| find_refusal(connection, plan))
    }

    /// Moves members and keys. If it returns a refusal, nothing is moved.
    pub(crate) fn move_members_and_keys(
        &self,
        plan: &MergePlan<'_>,
        lines: &MergeLines,
        new_id: impl Fn() -> Result<String, AccountError>,
    ) -> Result<Result<MovedParts, AccountError>, StoreError> {
        self.0.write("merge accounts", |transaction| {
            transaction.execute_batch(BEGIN_PART)?;
            let moved = move_parts(transaction, plan, lines, new_id)?;
            if moved.is_err() {
                transaction.execute_batch(UNDO_PART)?;
            }
            Ok(moved)
        })
    }
}

fn find_refusal(
    connection: &Connection,
    plan: &MergePlan<'_>,
) -> rusqlite::Result<Option<AccountError>> {
    let sides = side(connection, plan.from)?.zip(side(connection, plan.to)?);
    let Some((from, to)) = sides else {
        return Ok(Some(AccountError::NoAccount));
    };
    let has_members = !to.is_organisation
        && (new_members(connection, plan)?.iter()).any(|person| person != plan.to);
    let refusal = [
        (plan.from == plan.to, MergeRefusal::SameAccount),
        (from.is_deleted, MergeRefusal::Deleted),
        (
            from.is_administrator || to.is_administrator,
            MergeRefusal::Administrator,
        ),
        (!to.may_spend, MergeRefusal::ClosedAccount),
        (!from.is_suspended, MergeRefusal::NotSuspended),
        (from.owes_payment, MergeRefusal::OwesPayment),
        (has_members, MergeRefusal::Members),
        (plan.member == Some(plan.from), MergeRefusal::MemberEnds),
    ]
    .into_iter()
    .find_map(|(is_met, refusal)| is_met.then_some(refusal));
    if let Some(refusal) = refusal {
        return Ok(Some(refusal.into()));
    }
    if plan.member.is_some() && !to.is_organisation {
        return Ok(Some(KeyMoveRefusal::NoOrganisation.into()));
    }
    // The person's account is deleted in the end, which this forbids.
    Ok(is_last_owner(connection, plan.from)?.then_some(AccountError::LastOwner))
}

fn move_parts(
    transaction: &Transaction<'_>,
    plan: &MergePlan<'_>,
    lines: &MergeLines,
    new_id: impl Fn() -> Result<String, AccountError>,
) -> rusqlite::Result<Result<MovedParts, AccountError>> {
    if let Some(refusal) = find_refusal(transaction, plan)? {
        return Ok(Err(refusal));
    }
    let is_organisation = |account: &str| -> rusqlite::Result<bool> {
        Ok(side(transaction, account)?.is_some_and(|side| side.is_organisation))
    };
    let from_organisation = is_organisation(plan.from)?;
    let to_organisation = is_organisation(plan.to)?;
    let mut moved = MovedParts::default();
    // Members come first, because a key of an organisation needs its member there.
    if to_organisation {
        moved.members = new_members(transaction, plan)?;
    }
    for person in &moved.members {
        if is_full(transaction, plan.to, lines.member.at_ms)? {
            return Ok(Err(AccountError::TooManyMembers));
        }
        let (role, line) = (OrganisationRole::Member, &lines.member);
        insert_member(transaction, plan.to, person, role, line.at_ms)?;
        let after = json!({"person": person, "role": role.name()}).to_string();
        let entry = audit::AuditEntry {
            object: plan.to,
            after: &after,
            ..line.as_entry()
        };
        audit::append(transaction, &entry)?;
    }
    for (key, holder) in movable_keys(transaction, plan.from, lines.key.at_ms)? {
        let holder = holder.as_deref().filter(|_| from_organisation);
        let member = match to_organisation {
            true => holder.or(plan.member),
            false => None,
        };
        // Without one, the person would keep it, whose account ends.
        if to_organisation && member.is_none() {
            return Ok(Err(KeyMoveRefusal::NoMember.into()));
        }
        let new_id = match new_id() {
            Ok(id) => id,
            Err(error) => return Ok(Err(error)),
        };
        let key_move = KeyMove {
            key: &key,
            to: plan.to,
            member,
            new_id: &new_id,
        };
        if let Err(refusal) = move_key(transaction, &key_move, &lines.key)? {
            return Ok(Err(refusal));
        }
        moved.keys.push(new_id);
    }
    Ok(Ok(moved))
}

/// Returns the members of the first account who are none of the second one.
fn new_members(connection: &Connection, plan: &MergePlan<'_>) -> rusqlite::Result<Vec<String>> {
    connection
        .prepare_cached(
            "SELECT person FROM membership WHERE account = ?1
               AND person NOT IN (SELECT person FROM membership WHERE account = ?2)
             ORDER BY since_ms, person",
        )?
        .query_map([plan.from, plan.to], first_column)?
        .collect()
}

/// Returns the keys that a merge moves, with their members: those that still work or are disabled,
/// but no logins and none of the playground, which end with the account.
fn movable_keys(
    transaction: &Transaction<'_>,
    account: &str,
    now_ms: i64,
) -> rusqlite::Result<Vec<(String, Option<String>)>> {
    transaction
        .prepare_cached(
            "SELECT id, member FROM api_key WHERE account = ?1 AND status <> 'revoked'
               AND (settings = '' OR settings ->> '$.playground_session' IS NULL
                 AND ifnull(settings ->> '$.expires_at_ms', ?2 + 1) > ?2)
               AND id NOT IN (SELECT key FROM login)
             ORDER BY created_at_ms, id",
        )?
        .query_map(params![account, now_ms], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?
        .collect()
}
