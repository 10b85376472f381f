//! What an identity at a provider changes in its account: it is linked, and its groups give a role.
//!
//! Must not see a secret.

use super::account_lifecycle::is_last_administrator;
use super::audit::{self, AuditEntry, NewAuditLine};
use super::identities::{IdentityRow, NewIdentityRow, insert};
use super::links::verify_email;
use super::rows::{Role, first_column};
use super::views::IdentityRows;
use ledger::StoreError;
use rusqlite::{OptionalExtension, Transaction, params};
use serde_json::json;

/// The result of linking an identity to an account.
#[derive(Debug, PartialEq, Eq)]
pub enum LinkIdentityOutcome {
    Done,
    /// The account does not exist or is deleted.
    NoAccount,
    /// The identity belongs to an account already.
    Taken,
}

/// The result of unlinking an identity.
#[derive(Debug, PartialEq, Eq)]
pub enum UnlinkOutcome {
    Done,
    NotFound,
    /// Without it, nobody could sign in to the account.
    LastWayIn,
}

/// The role that an identity's groups give at a sign-in, with the actor and address for the audit
/// log.
pub(crate) struct GroupRole<'a> {
    pub role: Role,
    pub actor: &'a str,
    pub address: &'a str,
}

impl IdentityRows<'_> {
    /// Links an identity to an account. `verifies_email`: its provider has verified the account's
    /// e-mail.
    pub fn link(
        &self,
        account: &str,
        identity: &NewIdentityRow<'_>,
        verifies_email: bool,
        act: &AuditEntry<'_>,
    ) -> Result<LinkIdentityOutcome, StoreError> {
        self.0.write("link an identity", |transaction| {
            let is_there: bool = transaction.query_row(
                "SELECT EXISTS(SELECT 1 FROM account WHERE id = ?1 AND deleted_at_ms IS NULL AND organisation IS NULL)",
                [account],
                first_column,
            )?;
            if !is_there {
                return Ok(LinkIdentityOutcome::NoAccount);
            }
            if insert(transaction, account, identity, act.at_ms)? == 0 {
                return Ok(LinkIdentityOutcome::Taken);
            }
            if verifies_email {
                verify_email(transaction, account, act.at_ms)?;
            }
            audit::append(transaction, act)?;
            Ok(LinkIdentityOutcome::Done)
        })
    }

    /// Unlinks an identity of an account, which loses the role that the identity's groups gave.
    /// `keeps_way_in`: refuse to take the last way in; then `password_counts` says whether a
    /// password is one.
    pub fn unlink(
        &self,
        row: &IdentityRow,
        keeps_way_in: bool,
        password_counts: bool,
        act: &AuditEntry<'_>,
    ) -> Result<UnlinkOutcome, StoreError> {
        self.0.write("unlink an identity", |transaction| {
            let identity = [&*row.issuer, &*row.subject, &*row.account];
            const WHERE: &str = "identity WHERE issuer = ?1 AND subject = ?2 AND account = ?3";
            let is_there = transaction
                .prepare_cached(&format!("SELECT 1 FROM {WHERE}"))?
                .exists(identity)?;
            if !is_there {
                return Ok(UnlinkOutcome::NotFound);
            }
            let ways: i64 = transaction.query_row(
                "SELECT (SELECT count(*) FROM identity WHERE account = ?1)
                   + (SELECT count(*) FROM account WHERE id = ?1 AND password IS NOT NULL AND ?2)",
                params![row.account, password_counts],
                first_column,
            )?;
            if keeps_way_in && ways < 2 {
                return Ok(UnlinkOutcome::LastWayIn);
            }
            let none = GroupRole {
                role: Role::Member,
                actor: act.actor,
                address: act.address,
            };
            set_group_role(transaction, (&row.issuer, &row.subject), &none, act.at_ms)?;
            transaction.execute(&format!("DELETE FROM {WHERE}"), identity)?;
            audit::append(transaction, act)?;
            Ok(UnlinkOutcome::Done)
        })
    }

    /// Records a sign-in by an identity, and gives its account the role of its groups: what groups
    /// gave is lost with them, what an operator gave stays. The last administrator keeps the role,
    /// with a line in the audit log.
    pub(crate) fn record_use(
        &self,
        identity: &NewIdentityRow<'_>,
        groups: &GroupRole<'_>,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.0
            .write("record a sign-in by an identity", |transaction| {
                set_group_role(
                    transaction,
                    (identity.issuer, identity.subject),
                    groups,
                    now_ms,
                )?;
                transaction
                    .execute(
                        "UPDATE identity SET email = ?3, used_at_ms = ?4, provider = ?5
                     WHERE issuer = ?1 AND subject = ?2",
                        params![
                            identity.issuer,
                            identity.subject,
                            identity.email,
                            now_ms,
                            identity.provider
                        ],
                    )
                    .map(drop)
            })
    }
}

/// Gives the account of an identity, by issuer and subject, the role of the identity's groups.
pub(crate) fn set_group_role(
    transaction: &Transaction<'_>,
    (issuer, subject): (&str, &str),
    groups: &GroupRole<'_>,
    now_ms: i64,
) -> rusqlite::Result<()> {
    let found: Option<(String, Role, String)> = transaction
        .query_row(
            "SELECT account.id, admin, viewer, role FROM identity JOIN account ON account.id = account
             WHERE issuer = ?1 AND subject = ?2",
            [issuer, subject],
            |row| Ok((row.get(0)?, Role::from_flags(row.get(1)?, row.get(2)?), row.get(3)?)),
        )
        .optional()?;
    let Some((account, role, from_groups)) = found else {
        return Ok(());
    };
    let is_from_groups = Role::parse(&from_groups) == Some(role);
    let own = if is_from_groups { Role::Member } else { role };
    let wanted = own.max(groups.role);
    let is_kept =
        role == Role::Admin && wanted != role && is_last_administrator(transaction, &account)?;
    if wanted != role {
        let (before, after) = (json!({"role": role.name()}), json!({"role": wanted.name()}));
        let line = NewAuditLine {
            at_ms: now_ms,
            actor: groups.actor.to_owned(),
            address: groups.address.to_owned(),
            act: if is_kept {
                "account.keep-role"
            } else {
                "account.role"
            },
            object: account.clone(),
            before: before.to_string(),
            after: after.to_string(),
        };
        audit::append(transaction, &line.as_entry())?;
    }
    if wanted != role && !is_kept {
        transaction.execute(
            "UPDATE account SET admin = ?2, viewer = ?3 WHERE id = ?1",
            params![account, wanted == Role::Admin, wanted == Role::Viewer],
        )?;
    }
    let from_groups = match (is_kept, wanted > own) {
        (true, _) => role,
        (false, true) => wanted,
        (false, false) => Role::Member,
    };
    transaction
        .execute(
            "UPDATE identity SET role = ?3 WHERE issuer = ?1 AND subject = ?2",
            [issuer, subject, from_groups.name()],
        )
        .map(drop)
}
