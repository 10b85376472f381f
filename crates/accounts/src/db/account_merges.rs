//! Stores merges of accounts into others. Storing one moves the members and keys in the same
//! transaction; its credits follow in parts, and in the end the account is deleted.
//!
//! The triggers of `023_account_merges.sql` keep both accounts as they are until then. This file
//! must not see a key.

use super::account_lifecycle::{CloseAccountOutcome, close, find_close_refusal};
use super::audit::{self, AuditEntry, NewAuditLine};
use super::key_moves::{KeyMove, move_key, side};
use super::organisations::{insert_member, is_full, is_last_owner};
use super::rows::first_column;
use super::views::MergeRows;
use crate::error::{AccountError, KeyMoveRefusal, MergeRefusal};
use crate::membership::OrganisationRole;
use credits::money::Micro;
use ledger::StoreError;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde_json::json;

/// A merge that was begun, by the ids of its accounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMerge {
    /// The account that ends.
    pub from: String,
    /// The account that gets everything.
    pub into: String,
    /// The member of that account who gets the keys that no member has.
    pub member: Option<String>,
    /// Number of the part of the credits that is being moved; 0 before the first one.
    pub part: u32,
    pub amount: Micro,
    pub has_ended: bool,
}

impl StoredMerge {
    /// Returns the command that completes the merge.
    pub fn command(&self) -> String {
        let Self { from, into, .. } = self;
        format!("model-gateway account merge {from} --into {into}")
    }

    /// Describes the merge to an operator, with the command that completes it.
    pub fn describe(&self) -> String {
        let Self { from, into, .. } = self;
        match self.has_ended {
            true => format!("account {from} was merged into {into}"),
            false => format!(
                "account {from} is being merged into {into}: complete it with `{}`",
                self.command()
            ),
        }
    }
}

/// A merge to begin, by ids.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergePlan<'a> {
    pub from: &'a str,
    pub to: &'a str,
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

const COLUMNS: &str = "account, target, member, part, amount, ended_at_ms IS NOT NULL";

impl MergeRows<'_> {
    /// Returns the merge by which an account ends or has ended.
    pub(crate) fn find(&self, from: &str) -> Result<Option<StoredMerge>, StoreError> {
        self.0
            .read("look for a merge", |connection| find(connection, from))
    }

    /// Returns the merge of an account, and those into it that have not ended. Without an account,
    /// returns all that have not ended.
    pub(crate) fn list(&self, account: Option<&str>) -> Result<Vec<StoredMerge>, StoreError> {
        self.0
            .read("list merges", |connection| list(connection, account))
    }

    /// Stores a merge and moves members and keys, unless it was stored before. If it returns a
    /// refusal, nothing is changed.
    pub(crate) fn start(
        &self,
        plan: &MergePlan<'_>,
        lines: &MergeLines,
        new_id: impl Fn() -> Result<String, AccountError>,
    ) -> Result<Result<MovedParts, AccountError>, StoreError> {
        self.0.write("begin a merge", |transaction| {
            if let Some(known) = find(transaction, plan.from)? {
                let refusal = find_difference(&known, plan);
                return Ok(refusal.map_or_else(|| Ok(MovedParts::default()), Err));
            }
            transaction.execute_batch(BEGIN_PART)?;
            let moved = move_parts(transaction, plan, lines, new_id)?;
            match moved {
                Ok(_) => transaction.execute(
                    "INSERT INTO account_merge(account, target, member, started_at_ms)
                     VALUES(?1, ?2, ?3, ?4)",
                    params![plan.from, plan.to, plan.member, lines.key.at_ms],
                )?,
                Err(_) => {
                    transaction.execute_batch(UNDO_PART)?;
                    0
                }
            };
            Ok(moved)
        })
    }

    /// Stores the part that is moved next, before the ledger has an entry of it.
    pub(crate) fn set_part(&self, from: &str, part: u32, amount: Micro) -> Result<(), StoreError> {
        self.0.write("store a part of a merge", |transaction| {
            let sql = "UPDATE account_merge SET part = ?2, amount = ?3
                 WHERE account = ?1 AND ended_at_ms IS NULL";
            transaction
                .execute(sql, params![from, part, amount])
                .map(drop)
        })
    }

    /// Ends a merge and deletes its account, in one transaction.
    pub(crate) fn end(
        &self,
        from: &str,
        pseudonym: &str,
        audit_entry: &AuditEntry<'_>,
    ) -> Result<CloseAccountOutcome, StoreError> {
        self.0.write("end a merge", |transaction| {
            if let Some(refused) = find_close_refusal(transaction, from)? {
                return Ok(refused);
            }
            let now_ms = audit_entry.at_ms;
            let sql = "UPDATE account_merge SET ended_at_ms = ?2 WHERE account = ?1";
            transaction.execute(sql, params![from, now_ms])?;
            close(transaction, from, pseudonym, now_ms, audit_entry)
        })
    }
}

fn find(connection: &Connection, from: &str) -> rusqlite::Result<Option<StoredMerge>> {
    connection
        .prepare_cached(&format!(
            "SELECT {COLUMNS} FROM account_merge WHERE account = ?1"
        ))?
        .query_row([from], merge_row)
        .optional()
}

fn list(connection: &Connection, account: Option<&str>) -> rusqlite::Result<Vec<StoredMerge>> {
    connection
        .prepare_cached(&format!(
            "SELECT {COLUMNS} FROM account_merge
             WHERE account = ?1 OR ended_at_ms IS NULL AND (?1 IS NULL OR target = ?1)"
        ))?
        .query_map([account], merge_row)?
        .collect()
}

fn merge_row(row: &Row<'_>) -> rusqlite::Result<StoredMerge> {
    Ok(StoredMerge {
        from: row.get(0)?,
        into: row.get(1)?,
        member: row.get(2)?,
        part: row.get(3)?,
        amount: row.get(4)?,
        has_ended: row.get(5)?,
    })
}

/// Returns the refusal of a merge of an account for which another one is stored.
fn find_difference(known: &StoredMerge, plan: &MergePlan<'_>) -> Option<AccountError> {
    let is_other_member = plan.member.is_some() && plan.member != known.member.as_deref();
    let refusal = match known.has_ended {
        _ if plan.to == known.into && !is_other_member => return None,
        true => MergeRefusal::Merged(known.into.clone()),
        false => MergeRefusal::Unfinished(known.command()),
    };
    Some(refusal.into())
}

fn find_refusal(
    connection: &Connection,
    plan: &MergePlan<'_>,
) -> rusqlite::Result<Option<AccountError>> {
    let sides = side(connection, plan.from)?.zip(side(connection, plan.to)?);
    let Some((from, to)) = sides else {
        return Ok(Some(AccountError::NoAccount));
    };
    let mut others = list(connection, Some(plan.from))?;
    others.extend(list(connection, Some(plan.to))?);
    let is_other = |other: &&StoredMerge| !other.has_ended && other.into != plan.to;
    if let Some(other) = others.iter().find(is_other) {
        return Ok(Some(MergeRefusal::Unfinished(other.command()).into()));
    }
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
