//! Stores organisations, their members and invitations as rows of `app.db`.
//!
//! Each change checks the rules of `membership.rs` in its own transaction, so that a role that is
//! taken away counts at once. This file must not see an invitation's token.

use super::audit::{self, AuditEntry, NewAuditLine};
use super::past_mailbox::{hash_of_account, record_member, was_member};
use super::rows::{decode_models, first_column};
use super::views::OrganisationRows;
use super::webhooks;
use crate::limits::{MAX_CLAIMS, MAX_LIVE_KEYS, MAX_MEMBERS, MAX_OWNED};
use crate::membership::{MemberAction, OrganisationRole};
use crate::settings::is_allowed;
use credits::limits::SpendLimit;
use ledger::StoreError;
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde_json::json;

/// Which invitations are open: their senders could still send them.
const IS_OPEN: &str = "i.expires_at_ms > ?2 AND EXISTS(
    SELECT 1 FROM membership m WHERE m.account = i.account AND m.person = i.invited_by
      AND (m.role = 'owner' OR m.role = 'admin' AND i.role <> 'owner'))";

/// An organisation of a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// Id of the organisation's account.
    pub account: String,
    /// Name of the organisation.
    pub name: String,
    pub role: OrganisationRole,
    pub since_ms: i64,
}

/// An organisation of a person whose mailbox was never proven, and what the first proof ends there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnprovenOrganisation {
    /// Id of the organisation's account.
    pub account: String,
    pub name: String,
    pub ends: FirstProofEnds,
}

/// What the first proof of a person's mailbox ends in an organisation, with the keys of the members
/// who go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstProofEnds {
    /// Everything that others may do there: the person made it, and is its only owner.
    Others,
    /// The person's membership: the person made it, and others own it, too.
    Membership,
    /// The members whom the person invited, and those whom these invited, by e-mail; the webhook
    /// too, unless somebody else could have set it. An operator made it, or somebody who invited
    /// the person.
    Guests { emails: Vec<String>, webhook: bool },
}

/// A person in an organisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Id of the person's own account.
    pub person: String,
    pub email: String,
    pub role: OrganisationRole,
    pub since_ms: i64,
    /// Last use of the dashboard, as far as a session of it still exists.
    pub seen_at_ms: Option<i64>,
    /// Credits that the member may spend in a period.
    pub budget: Option<SpendLimit>,
    /// Catalog ids of the models that the member's keys may use; empty allows all.
    pub allowed_models: Vec<String>,
}

impl Member {
    /// Returns whether the member's list has the model with this catalog id.
    pub fn allows(&self, model: &str) -> bool {
        is_allowed(&self.allowed_models, model)
    }
}

/// An open invitation, with a hash instead of its secret token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberInviteRow {
    pub hash: [u8; 32],
    pub account: String,
    /// Name of the organisation.
    pub organisation: String,
    /// The only address that the invitation is for.
    pub email: String,
    pub role: OrganisationRole,
    pub invited_by: String,
    pub created_at_ms: i64,
    pub expires_at_ms: i64,
}

/// The result of a change to an organisation. All but `Done` changed nothing.
#[derive(Debug, PartialEq, Eq)]
pub enum MemberOutcome {
    Done,
    /// There is no such organisation, person, member or open invitation.
    NotFound,
    /// The role of the person who acts does not allow it.
    NotAllowed,
    /// The organisation would have no owner.
    LastOwner,
    AlreadyMember,
    LimitReached,
    /// The invitation is for another address.
    OtherAddress,
    /// An organisation has claimed the domain.
    DomainTaken,
}

/// What changes of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberEdit {
    Role(OrganisationRole),
    /// The credits that the member may spend in a period; `None`: as many as the organisation has.
    Budget(Option<SpendLimit>),
    /// Catalog ids of the models that the member's keys may use; none: all.
    Models(Vec<String>),
    Remove,
}

/// A change of a member.
#[derive(Debug, Clone, Copy)]
pub struct MemberChange<'a> {
    pub account: &'a str,
    pub person: &'a str,
    pub edit: &'a MemberEdit,
    /// The member who acts; `None` for an operator, who may do everything.
    pub by: Option<&'a str>,
    /// The member who gets the keys of a removed one; `None`: they are revoked.
    pub keys_to: Option<&'a str>,
}

impl OrganisationRows<'_> {
    /// Inserts the account of an organisation, with its first owner. `email` is a pseudonym.
    pub fn insert(
        &self,
        (id, email, name): (&str, &str, &str),
        owner: &str,
        act: &AuditEntry<'_>,
    ) -> Result<MemberOutcome, StoreError> {
        self.0.write("insert an organisation", |transaction| {
            if !is_person(transaction, owner)? {
                return Ok(MemberOutcome::NotFound);
            }
            let owned: i64 = transaction.query_row(
                "SELECT count(*) FROM membership WHERE person = ?1 AND role = 'owner'",
                [owner],
                first_column,
            )?;
            if owned >= MAX_OWNED {
                return Ok(MemberOutcome::LimitReached);
            }
            transaction.execute(
                "INSERT INTO account(id, email, organisation, admin, status, created_at_ms)
                 VALUES(?1, ?2, ?3, 0, 'active', ?4)",
                params![id, email, name, act.at_ms],
            )?;
            insert_member(transaction, id, owner, OrganisationRole::Owner, act.at_ms)?;
            audit::append(transaction, act)?;
            Ok(MemberOutcome::Done)
        })
    }

    /// Returns the organisations of a person, by their names.
    pub fn memberships(&self, person: &str) -> Result<Vec<Membership>, StoreError> {
        self.0.read("list a person's organisations", |connection| {
            connection
                .prepare_cached(
                    "SELECT m.account, a.organisation, m.role, m.since_ms FROM membership m
                     JOIN account a ON a.id = m.account
                     WHERE m.person = ?1 ORDER BY lower(a.organisation), m.account",
                )?
                .query_map([person], |row| {
                    Ok(Membership {
                        account: row.get(0)?,
                        name: row.get(1)?,
                        role: role_at(row, 2)?,
                        since_ms: row.get(3)?,
                    })
                })?
                .collect()
        })
    }

    /// Returns the organisations in which the first proof of a person's mailbox ends something, by
    /// their names.
    pub fn unproven(&self, person: &str) -> Result<Vec<UnprovenOrganisation>, StoreError> {
        self.0
            .read("list what a person may have let others do", |connection| {
                unproven(connection, person)
            })
    }

    /// Returns the members of an organisation, by their addresses.
    pub fn members(&self, account: &str) -> Result<Vec<Member>, StoreError> {
        self.0.read("list an organisation's members", |connection| {
            connection
                .prepare_cached(
                    "SELECT m.person, p.email, m.role, m.since_ms,
                       (SELECT max(used_at_ms) FROM session WHERE account = m.person), m.budget, m.models
                     FROM membership m JOIN account p ON p.id = m.person
                     WHERE m.account = ?1 ORDER BY p.email",
                )?
                .query_map([account], |row| {
                    Ok(Member {
                        person: row.get(0)?,
                        email: row.get(1)?,
                        role: role_at(row, 2)?,
                        since_ms: row.get(3)?,
                        seen_at_ms: row.get(4)?,
                        budget: budget_at(row, 5)?,
                        allowed_models: models_at(row, 6)?,
                    })
                })?
                .collect()
        })
    }

    /// Adds a person to an organisation for an operator.
    pub fn add(
        &self,
        account: &str,
        person: &str,
        role: OrganisationRole,
        act: &AuditEntry<'_>,
    ) -> Result<MemberOutcome, StoreError> {
        self.0.write("add a member", |transaction| {
            let is_there =
                is_organisation(transaction, account)? && is_person(transaction, person)?;
            if !is_there {
                return Ok(MemberOutcome::NotFound);
            }
            if role_of(transaction, account, person)?.is_some() {
                return Ok(MemberOutcome::AlreadyMember);
            }
            if is_full(transaction, account, act.at_ms)? {
                return Ok(MemberOutcome::LimitReached);
            }
            insert_member(transaction, account, person, role, act.at_ms)?;
            audit::append(transaction, act)?;
            Ok(MemberOutcome::Done)
        })
    }

    /// Changes a member, or removes one. Keys that the person may no longer use are revoked, or
    /// handed over. `line` gets the member before and after.
    pub(crate) fn change(
        &self,
        change: &MemberChange<'_>,
        line: NewAuditLine,
    ) -> Result<MemberOutcome, StoreError> {
        let MemberChange {
            account,
            person,
            edit,
            by,
            keys_to,
        } = *change;
        self.0.write("change a member", |transaction| {
            let Some((from, terms)) = find_member(transaction, account, person)? else {
                return Ok(MemberOutcome::NotFound);
            };
            let (mut role, mut new_terms) = (Some(from), terms.clone());
            match edit {
                MemberEdit::Role(new) => role = Some(*new),
                MemberEdit::Budget(budget) => new_terms.budget = *budget,
                MemberEdit::Models(models) => new_terms.models.clone_from(models),
                MemberEdit::Remove => (role, new_terms) = (None, MemberTerms::default()),
            }
            let leaves = by == Some(person) && role.is_none();
            if let Some(by) = by.filter(|_| !leaves) {
                let own = role_of(transaction, account, by)?;
                if !own.is_some_and(|own| own.may_change(Some(from), role)) {
                    return Ok(MemberOutcome::NotAllowed);
                }
            }
            if from == OrganisationRole::Owner
                && role != Some(OrganisationRole::Owner)
                && owners(transaction, account)? == 1
            {
                return Ok(MemberOutcome::LastOwner);
            }
            if let Some(to) = keys_to {
                let taker = role_of(transaction, account, to)?;
                if to == person || !taker.is_some_and(|role| role.may(MemberAction::UseKeys)) {
                    return Ok(MemberOutcome::NotFound);
                }
                if keys_of_both(transaction, account, [person, to], line.at_ms)? > MAX_LIVE_KEYS {
                    return Ok(MemberOutcome::LimitReached);
                }
            }
            match role {
                Some(role) => transaction.execute(
                    "UPDATE membership SET role = ?3, budget = ?4, models = ?5 WHERE account = ?1 AND person = ?2",
                    params![
                        account,
                        person,
                        role.name(),
                        new_terms.budget.map(|it| it.to_string()),
                        new_terms.models.join(" ")
                    ],
                )?,
                None => end_membership(transaction, account, person)?,
            };
            if !role.is_some_and(|role| role.may(MemberAction::UseKeys)) {
                end_keys(transaction, account, person, keys_to, line.at_ms)?;
            }
            end_invites(transaction, account, person, role)?;
            let describe = |role: Option<OrganisationRole>, terms: &MemberTerms| {
                json!({"person": person, "role": role.map(OrganisationRole::name),
                    "budget": terms.budget.map(|budget| budget.to_string()), "models": terms.models})
            };
            let mut after = describe(role, &new_terms);
            after["keys_to"] = json!(keys_to);
            let line = NewAuditLine {
                before: describe(Some(from), &terms).to_string(),
                after: after.to_string(),
                ..line
            };
            audit::append(transaction, &line.as_entry())?;
            Ok(MemberOutcome::Done)
        })
    }

    /// Stores an invitation, in place of an earlier one for the same address.
    pub fn put_invite(
        &self,
        row: &MemberInviteRow,
        act: &AuditEntry<'_>,
    ) -> Result<MemberOutcome, StoreError> {
        self.0.write("store an invitation to an organisation", |transaction| {
            let own = role_of(transaction, &row.account, &row.invited_by)?;
            let Some(own) = own.filter(|own| own.may_change(None, Some(row.role))) else {
                return Ok(MemberOutcome::NotAllowed);
            };
            if !may_end_invite(transaction, own, &row.account, &row.email)? {
                return Ok(MemberOutcome::NotAllowed);
            }
            let is_member: bool = transaction.query_row(
                "SELECT EXISTS(SELECT 1 FROM membership m JOIN account p ON p.id = m.person
                   WHERE m.account = ?1 AND p.email = ?2)",
                [&row.account, &row.email],
                first_column,
            )?;
            if is_member {
                return Ok(MemberOutcome::AlreadyMember);
            }
            transaction.execute(
                "DELETE FROM member_invite WHERE account = ?1 AND (email = ?2 OR expires_at_ms <= ?3)",
                params![row.account, row.email, row.created_at_ms],
            )?;
            if is_full(transaction, &row.account, row.created_at_ms)? {
                return Ok(MemberOutcome::LimitReached);
            }
            transaction.execute(
                "INSERT INTO member_invite(hash, account, email, role, invited_by, created_at_ms, expires_at_ms)
                 VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                params![
                    row.hash,
                    row.account,
                    row.email,
                    row.role.name(),
                    row.invited_by,
                    row.created_at_ms,
                    row.expires_at_ms
                ],
            )?;
            audit::append(transaction, act)?;
            Ok(MemberOutcome::Done)
        })
    }

    /// Returns the open invitations of an organisation, by their addresses.
    pub fn invites(&self, account: &str, now_ms: i64) -> Result<Vec<MemberInviteRow>, StoreError> {
        self.0
            .read("list an organisation's invitations", |connection| {
                connection
                    .prepare_cached(&format!(
                        "SELECT i.hash, i.account, a.organisation, i.email, i.role, i.invited_by,
                       i.created_at_ms, i.expires_at_ms
                     FROM member_invite i JOIN account a ON a.id = i.account
                     WHERE i.account = ?1 AND {IS_OPEN} ORDER BY i.email"
                    ))?
                    .query_map(params![account, now_ms], invite_row)?
                    .collect()
            })
    }

    /// Returns an open invitation.
    pub fn invite(
        &self,
        hash: &[u8; 32],
        now_ms: i64,
    ) -> Result<Option<MemberInviteRow>, StoreError> {
        self.0
            .read("find an invitation to an organisation", |connection| {
                find_invite(connection, hash, now_ms)
            })
    }

    /// Revokes an invitation, found by its address, for a member or, if `by` is `None`, for an
    /// operator.
    pub fn revoke_invite(
        &self,
        account: &str,
        email: &str,
        by: Option<&str>,
        act: &AuditEntry<'_>,
    ) -> Result<MemberOutcome, StoreError> {
        self.0
            .write("revoke an invitation to an organisation", |transaction| {
                if let Some(by) = by {
                    let own = role_of(transaction, account, by)?;
                    let Some(own) = own.filter(|own| own.may(MemberAction::ManageMembers)) else {
                        return Ok(MemberOutcome::NotAllowed);
                    };
                    if !may_end_invite(transaction, own, account, email)? {
                        return Ok(MemberOutcome::NotAllowed);
                    }
                }
                let rows = transaction.execute(
                    "DELETE FROM member_invite WHERE account = ?1 AND email = ?2",
                    [account, email],
                )?;
                if rows == 0 {
                    return Ok(MemberOutcome::NotFound);
                }
                audit::append(transaction, act)?;
                Ok(MemberOutcome::Done)
            })
    }

    /// Makes a person a member by an invitation, and uses it up.
    pub(crate) fn join(
        &self,
        hash: &[u8; 32],
        person: &str,
        line: NewAuditLine,
    ) -> Result<MemberOutcome, StoreError> {
        self.0.write("join an organisation", |transaction| {
            let Some(invite) = find_invite(transaction, hash, line.at_ms)? else {
                return Ok(MemberOutcome::NotFound);
            };
            let email: Option<String> = transaction
                .query_row(
                    "SELECT email FROM account WHERE id = ?1",
                    [person],
                    first_column,
                )
                .optional()?;
            if email.as_ref() != Some(&invite.email) {
                return Ok(MemberOutcome::OtherAddress);
            }
            transaction.execute("DELETE FROM member_invite WHERE hash = ?1", [hash])?;
            if role_of(transaction, &invite.account, person)?.is_some() {
                return Ok(MemberOutcome::AlreadyMember);
            }
            insert_member(
                transaction,
                &invite.account,
                person,
                invite.role,
                line.at_ms,
            )?;
            let line = NewAuditLine {
                after: json!({"person": person, "role": invite.role.name(),
                    "invited_by": invite.invited_by})
                .to_string(),
                object: invite.account,
                ..line
            };
            audit::append(transaction, &line.as_entry())?;
            Ok(MemberOutcome::Done)
        })
    }

    /// Returns the domains that an organisation has claimed.
    pub fn domains(&self, account: &str) -> Result<Vec<String>, StoreError> {
        self.0.read("list an organisation's domains", |connection| {
            connection
                .prepare_cached(
                    "SELECT domain FROM domain_claim WHERE account = ?1 ORDER BY domain",
                )?
                .query_map([account], first_column)?
                .collect()
        })
    }

    /// Enters the claim of an organisation to a domain.
    pub fn claim(
        &self,
        account: &str,
        domain: &str,
        act: &AuditEntry<'_>,
    ) -> Result<MemberOutcome, StoreError> {
        self.0.write("claim a domain", |transaction| {
            if !is_organisation(transaction, account)? {
                return Ok(MemberOutcome::NotFound);
            }
            let claims: i64 = transaction.query_row(
                "SELECT count(*) FROM domain_claim WHERE account = ?1",
                [account],
                first_column,
            )?;
            if claims >= MAX_CLAIMS {
                return Ok(MemberOutcome::LimitReached);
            }
            let rows = transaction.execute(
                "INSERT OR IGNORE INTO domain_claim(domain, account, claimed_at_ms) VALUES(?1, ?2, ?3)",
                params![domain, account, act.at_ms],
            )?;
            if rows == 0 {
                return Ok(MemberOutcome::DomainTaken);
            }
            audit::append(transaction, act)?;
            Ok(MemberOutcome::Done)
        })
    }

    /// Ends the claim of an organisation to a domain. Its members stay.
    pub fn release(
        &self,
        account: &str,
        domain: &str,
        act: &AuditEntry<'_>,
    ) -> Result<MemberOutcome, StoreError> {
        self.0.write("release a domain", |transaction| {
            let rows = transaction.execute(
                "DELETE FROM domain_claim WHERE account = ?1 AND domain = ?2",
                [account, domain],
            )?;
            if rows == 0 {
                return Ok(MemberOutcome::NotFound);
            }
            audit::append(transaction, act)?;
            Ok(MemberOutcome::Done)
        })
    }

    /// Sets the account that a session shows: an organisation of its person, or with `None` the
    /// person's own account. Returns false if the person is no member.
    pub fn show(&self, session: &[u8; 32], account: Option<&str>) -> Result<bool, StoreError> {
        self.0.write("set the account that a session shows", |transaction| {
            let rows = transaction.execute(
                "UPDATE session SET shown = ?2 WHERE hash = ?1 AND (?2 IS NULL OR EXISTS(
                   SELECT 1 FROM membership m WHERE m.account = ?2 AND m.person = session.account))",
                params![session, account],
            )?;
            Ok(rows == 1)
        })
    }
}

/// Makes a person whose mailbox was just proven a member of the organisation that claimed its
/// domain, if it has room and the mailbox had no member before.
pub(crate) fn join_by_domain(
    transaction: &Transaction<'_>,
    person: &str,
    now_ms: i64,
) -> rusqlite::Result<()> {
    let found: Option<(String, String)> = transaction
        .query_row(
            "SELECT c.account, c.domain FROM account p
             JOIN domain_claim c ON c.domain = substr(p.email, instr(p.email, '@') + 1)
             WHERE p.id = ?1",
            [person],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    let Some((account, domain)) = found else {
        return Ok(());
    };
    let is_known = role_of(transaction, &account, person)?.is_some()
        || was_member(transaction, &account, person)?;
    if is_known {
        return Ok(());
    }
    if is_full(transaction, &account, now_ms)? {
        log::warn!("{person} does not join {account} by the domain {domain}: it has no room");
        return Ok(());
    }
    let role = OrganisationRole::Member;
    insert_member(transaction, &account, person, role, now_ms)?;
    let line = NewAuditLine {
        at_ms: now_ms,
        actor: person.to_owned(),
        address: "verified e-mail".to_owned(),
        act: "organisation.join",
        object: account,
        before: String::new(),
        after: json!({"person": person, "role": role.name(), "domain": domain}).to_string(),
    };
    audit::append(transaction, &line.as_entry())
}

/// Returns whether an organisation would have no owner without the person.
pub(crate) fn is_last_owner(connection: &Connection, person: &str) -> rusqlite::Result<bool> {
    connection.query_row(
        "SELECT EXISTS(SELECT 1 FROM membership it WHERE it.person = ?1 AND it.role = 'owner'
           AND NOT EXISTS(SELECT 1 FROM membership other
             WHERE other.account = it.account AND other.person <> ?1 AND other.role = 'owner'))",
        [person],
        first_column,
    )
}

/// Returns what the first proof of a person's mailbox ends, by the organisations' names. The first
/// owner of an organisation is who made it, unless an operator did.
fn unproven(connection: &Connection, person: &str) -> rusqlite::Result<Vec<UnprovenOrganisation>> {
    let managed: Vec<(String, String, bool, bool)> = connection
        .prepare_cached(
            "SELECT a.id, a.organisation,
               m.role = 'owner' AND EXISTS(SELECT 1 FROM audit
                 WHERE object = m.account AND act = 'organisation.create'
                   AND actor = json_extract(after, '$.person')),
               EXISTS(SELECT 1 FROM membership other
                 WHERE other.account = m.account AND other.person <> ?1 AND other.role = 'owner')
             FROM membership m JOIN account a ON a.id = m.account
             WHERE m.person = ?1 AND m.role IN ('owner', 'admin')
             ORDER BY lower(a.organisation), a.id",
        )?
        .query_map([person], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })?
        .collect::<Result<_, _>>()?;
    let mut found = Vec::new();
    for (account, name, is_self_made, has_other_owners) in managed {
        let ends = match (is_self_made, has_other_owners) {
            (true, false) => FirstProofEnds::Others,
            (true, true) => FirstProofEnds::Membership,
            (false, _) => {
                let guests = guests(connection, &account, person)?;
                let webhook = has_webhook_of(connection, &account, person, &guests)?;
                let emails: Vec<_> = guests.into_iter().map(|guest| guest.email).collect();
                if emails.is_empty() && !webhook {
                    continue;
                }
                FirstProofEnds::Guests { emails, webhook }
            }
        };
        found.push(UnprovenOrganisation {
            account,
            name,
            ends,
        });
    }
    Ok(found)
}

struct Guest {
    person: String,
    email: String,
    role: OrganisationRole,
}

/// Returns the members of an organisation whom a person invited, and those whom these invited.
fn guests(connection: &Connection, account: &str, person: &str) -> rusqlite::Result<Vec<Guest>> {
    connection
        .prepare_cached(
            "WITH RECURSIVE guest(person) AS (VALUES(?2) UNION
               SELECT m.person FROM guest g
               JOIN audit a ON a.actor = g.person AND a.act = 'organisation.invite' AND a.object = ?1
               JOIN account p ON p.email = json_extract(a.after, '$.email')
               JOIN membership m ON m.account = ?1 AND m.person = p.id)
             SELECT p.id, p.email, m.role FROM guest g
             JOIN account p ON p.id = g.person
             JOIN membership m ON m.account = ?1 AND m.person = p.id
             WHERE p.id <> ?2 ORDER BY p.email",
        )?
        .query_map([account, person], |row| {
            Ok(Guest {
                person: row.get(0)?,
                email: row.get(1)?,
                role: role_at(row, 2)?,
            })
        })?
        .collect()
}

/// Returns whether an organisation has a webhook that only a person and the guests could have set.
fn has_webhook_of(
    connection: &Connection,
    account: &str,
    person: &str,
    guests: &[Guest],
) -> rusqlite::Result<bool> {
    let has_webhook: bool = connection.query_row(
        "SELECT EXISTS(SELECT 1 FROM webhook WHERE account = ?1)",
        [account],
        first_column,
    )?;
    let managers: Vec<String> = connection
        .prepare_cached(
            "SELECT person FROM membership WHERE account = ?1 AND role IN ('owner', 'admin')",
        )?
        .query_map([account], first_column)?
        .collect::<Result<_, _>>()?;
    let is_theirs =
        |manager: &String| manager == person || guests.iter().any(|guest| guest.person == *manager);
    Ok(has_webhook && managers.iter().all(is_theirs))
}

/// Ends what a stranger who signed up with the address of a person could have made in
/// organisations, and the person's invitations. Returns the organisations of the person alone: the
/// caller ends their keys, like the person's. `act` is the first proof of the mailbox.
pub(crate) fn end_unproven(
    transaction: &Transaction<'_>,
    person: &str,
    act: &AuditEntry<'_>,
    now_ms: i64,
) -> rusqlite::Result<Vec<String>> {
    let mut own = Vec::new();
    for UnprovenOrganisation { account, ends, .. } in unproven(transaction, person)? {
        let members = match &ends {
            FirstProofEnds::Others => others(transaction, &account, person)?,
            FirstProofEnds::Membership => vec![(person.to_owned(), OrganisationRole::Owner)],
            FirstProofEnds::Guests { .. } => guests(transaction, &account, person)?
                .into_iter()
                .map(|guest| (guest.person, guest.role))
                .collect(),
        };
        for (member, role) in members {
            append_removal(transaction, &account, (&member, role), act)?;
            end_membership(transaction, &account, &member)?;
            transaction.execute(
                "DELETE FROM member_invite WHERE account = ?1 AND invited_by = ?2",
                [&account, &member],
            )?;
            end_keys(transaction, &account, &member, None, now_ms)?;
        }
        if matches!(
            ends,
            FirstProofEnds::Others | FirstProofEnds::Guests { webhook: true, .. }
        ) {
            webhooks::remove(transaction, &account, now_ms)?;
        }
        if ends == FirstProofEnds::Others {
            transaction.execute("DELETE FROM member_invite WHERE account = ?1", [&account])?;
            own.push(account);
        }
    }
    transaction.execute("DELETE FROM member_invite WHERE invited_by = ?1", [person])?;
    Ok(own)
}

/// Returns the members of an organisation but one.
fn others(
    connection: &Connection,
    account: &str,
    person: &str,
) -> rusqlite::Result<Vec<(String, OrganisationRole)>> {
    connection
        .prepare("SELECT person, role FROM membership WHERE account = ?1 AND person <> ?2")?
        .query_map([account, person], |row| Ok((row.get(0)?, role_at(row, 1)?)))?
        .collect()
}

/// Adds the line that a member was removed with the keys.
fn append_removal(
    transaction: &Transaction<'_>,
    organisation: &str,
    (person, role): (&str, OrganisationRole),
    act: &AuditEntry<'_>,
) -> rusqlite::Result<()> {
    let before = json!({"person": person, "role": role.name()}).to_string();
    let after = json!({"person": person, "role": null, "keys_to": null}).to_string();
    let entry = AuditEntry {
        act: "organisation.remove",
        object: organisation,
        before: &before,
        after: &after,
        ..*act
    };
    audit::append(transaction, &entry)
}

/// Ends a membership, and records that there was one. Returns the number of rows.
fn end_membership(
    transaction: &Transaction<'_>,
    account: &str,
    person: &str,
) -> rusqlite::Result<usize> {
    if let Some(mailbox) = hash_of_account(transaction, person)? {
        record_member(transaction, account, &mailbox)?;
    }
    transaction.execute(
        "DELETE FROM membership WHERE account = ?1 AND person = ?2",
        [account, person],
    )
}

/// Ends the memberships and invitations of a deleted account with the hash of its mailbox: of a
/// person, or of an organisation. Each organisation that a person was in has a line in the audit
/// log. `act` is the deletion.
pub(crate) fn end_memberships(
    transaction: &Transaction<'_>,
    account: &str,
    mailbox: &[u8; 32],
    act: &AuditEntry<'_>,
) -> rusqlite::Result<()> {
    let memberships: Vec<(String, OrganisationRole)> = transaction
        .prepare("SELECT account, role FROM membership WHERE person = ?1 ORDER BY account")?
        .query_map([account], |row| Ok((row.get(0)?, role_at(row, 1)?)))?
        .collect::<Result<_, _>>()?;
    for (organisation, role) in memberships {
        append_removal(transaction, &organisation, (account, role), act)?;
        record_member(transaction, &organisation, mailbox)?;
    }
    transaction.execute("DELETE FROM past_member WHERE account = ?1", [account])?;
    transaction.execute(
        "DELETE FROM membership WHERE person = ?1 OR account = ?1",
        [account],
    )?;
    transaction.execute("DELETE FROM domain_claim WHERE account = ?1", [account])?;
    transaction
        .execute(
            "DELETE FROM member_invite WHERE account = ?1 OR invited_by = ?1",
            [account],
        )
        .map(drop)
}

pub(crate) fn role_of(
    transaction: &Transaction<'_>,
    account: &str,
    person: &str,
) -> rusqlite::Result<Option<OrganisationRole>> {
    transaction
        .query_row(
            "SELECT role FROM membership WHERE account = ?1 AND person = ?2",
            [account, person],
            |row| role_at(row, 0),
        )
        .optional()
}

/// What an organisation allows a member beside the role.
#[derive(Clone, Default)]
struct MemberTerms {
    budget: Option<SpendLimit>,
    models: Vec<String>,
}

/// Returns the role and the terms of a member.
fn find_member(
    transaction: &Transaction<'_>,
    account: &str,
    person: &str,
) -> rusqlite::Result<Option<(OrganisationRole, MemberTerms)>> {
    transaction
        .query_row(
            "SELECT role, budget, models FROM membership WHERE account = ?1 AND person = ?2",
            [account, person],
            |row| {
                let (budget, models) = (budget_at(row, 1)?, models_at(row, 2)?);
                Ok((role_at(row, 0)?, MemberTerms { budget, models }))
            },
        )
        .optional()
}

/// Reads allowed models from a column.
fn models_at(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<String>> {
    let text: String = row.get(column)?;
    Ok(decode_models(&text))
}

/// Reads a budget from a column.
fn budget_at(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<SpendLimit>> {
    let text: Option<String> = row.get(column)?;
    text.map(|text| text.parse()).transpose().map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
    })
}

/// Reads a role from a column.
pub(crate) fn role_at(row: &Row<'_>, column: usize) -> rusqlite::Result<OrganisationRole> {
    let name: String = row.get(column)?;
    // The table admits no other names. The least role is safe.
    Ok(OrganisationRole::parse(&name).unwrap_or(OrganisationRole::Member))
}

fn is_person(transaction: &Transaction<'_>, id: &str) -> rusqlite::Result<bool> {
    transaction.query_row(
        "SELECT EXISTS(SELECT 1 FROM account
           WHERE id = ?1 AND deleted_at_ms IS NULL AND organisation IS NULL)",
        [id],
        first_column,
    )
}

fn is_organisation(transaction: &Transaction<'_>, id: &str) -> rusqlite::Result<bool> {
    transaction.query_row(
        "SELECT EXISTS(SELECT 1 FROM account
           WHERE id = ?1 AND deleted_at_ms IS NULL AND organisation IS NOT NULL)",
        [id],
        first_column,
    )
}

fn owners(transaction: &Transaction<'_>, account: &str) -> rusqlite::Result<i64> {
    transaction.query_row(
        "SELECT count(*) FROM membership WHERE account = ?1 AND role = 'owner'",
        [account],
        first_column,
    )
}

pub(crate) fn is_full(
    transaction: &Transaction<'_>,
    account: &str,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    let count: i64 = transaction.query_row(
        &format!(
            "SELECT (SELECT count(*) FROM membership WHERE account = ?1)
               + (SELECT count(*) FROM member_invite i WHERE i.account = ?1 AND {IS_OPEN})"
        ),
        params![account, now_ms],
        first_column,
    )?;
    Ok(count >= MAX_MEMBERS)
}

pub(crate) fn insert_member(
    transaction: &Transaction<'_>,
    account: &str,
    person: &str,
    role: OrganisationRole,
    now_ms: i64,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO membership(account, person, role, since_ms) VALUES(?1, ?2, ?3, ?4)";
    transaction
        .execute(sql, params![account, person, role.name(), now_ms])
        .map(drop)
}

/// Ends the invitations that their sender may not send any more.
fn end_invites(
    transaction: &Transaction<'_>,
    account: &str,
    sender: &str,
    role: Option<OrganisationRole>,
) -> rusqlite::Result<()> {
    let sent = "SELECT hash, role FROM member_invite WHERE account = ?1 AND invited_by = ?2";
    let sent: Vec<([u8; 32], OrganisationRole)> = transaction
        .prepare(sent)?
        .query_map([account, sender], |row| Ok((row.get(0)?, role_at(row, 1)?)))?
        .collect::<Result<_, _>>()?;
    for (hash, invited) in sent {
        if !role.is_some_and(|role| role.may_change(None, Some(invited))) {
            transaction.execute("DELETE FROM member_invite WHERE hash = ?1", [hash])?;
        }
    }
    Ok(())
}

/// Returns whether a member with the role `own` may end the open invitation of `email`.
fn may_end_invite(
    transaction: &Transaction<'_>,
    own: OrganisationRole,
    account: &str,
    email: &str,
) -> rusqlite::Result<bool> {
    let invited = transaction
        .query_row(
            "SELECT role FROM member_invite WHERE account = ?1 AND email = ?2",
            [account, email],
            |row| role_at(row, 0),
        )
        .optional()?;
    Ok(invited.is_none_or(|invited| own.may_change(None, Some(invited))))
}

/// Returns the number of keys that the member `to` would have with those of `person`. Expired keys
/// do not count, as when a key is made, nor what is not handed over.
fn keys_of_both(
    transaction: &Transaction<'_>,
    account: &str,
    [person, to]: [&str; 2],
    now_ms: i64,
) -> rusqlite::Result<i64> {
    transaction.query_row(
        "SELECT count(*) FROM api_key
         WHERE account = ?1 AND member IN (?2, ?3) AND status <> 'revoked' AND (settings = ''
           OR ifnull(settings ->> '$.expires_at_ms', ?4 + 1) > ?4
             AND (member = ?3 OR settings ->> '$.playground_session' IS NULL
               AND id NOT IN (SELECT key FROM login)))",
        params![account, person, to, now_ms],
        first_column,
    )
}

/// Revokes the keys of a member, or hands them over to `to`. The playground's and logins are
/// revoked: their session or program is not the other's.
fn end_keys(
    transaction: &Transaction<'_>,
    account: &str,
    person: &str,
    to: Option<&str>,
    now_ms: i64,
) -> rusqlite::Result<()> {
    if let Some(to) = to {
        transaction.execute(
            "UPDATE api_key SET member = ?3 WHERE account = ?1 AND member = ?2
             AND (settings = '' OR settings ->> '$.playground_session' IS NULL)
             AND id NOT IN (SELECT key FROM login)",
            [account, person, to],
        )?;
    }
    transaction
        .execute(
            "UPDATE api_key SET status = 'revoked', revoked_at_ms = ?3
             WHERE account = ?1 AND member = ?2 AND status <> 'revoked'",
            params![account, person, now_ms],
        )
        .map(drop)
}

fn find_invite(
    connection: &rusqlite::Connection,
    hash: &[u8; 32],
    now_ms: i64,
) -> rusqlite::Result<Option<MemberInviteRow>> {
    connection
        .prepare_cached(&format!(
            "SELECT i.hash, i.account, a.organisation, i.email, i.role, i.invited_by,
               i.created_at_ms, i.expires_at_ms
             FROM member_invite i JOIN account a ON a.id = i.account
             WHERE i.hash = ?1 AND {IS_OPEN}"
        ))?
        .query_row(params![hash, now_ms], invite_row)
        .optional()
}

fn invite_row(row: &Row<'_>) -> rusqlite::Result<MemberInviteRow> {
    Ok(MemberInviteRow {
        hash: row.get(0)?,
        account: row.get(1)?,
        organisation: row.get(2)?,
        email: row.get(3)?,
        role: role_at(row, 4)?,
        invited_by: row.get(5)?,
        created_at_ms: row.get(6)?,
        expires_at_ms: row.get(7)?,
    })
}
