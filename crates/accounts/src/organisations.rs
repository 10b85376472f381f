//! Manages organisations: accounts that several people share, each with a role.
//!
//! An organisation's account has a balance and keys like any other, and nobody signs in to it: a
//! session belongs to a person, and shows one account of theirs. A person's own account is the row
//! by which they sign in. An organisation gets no trial, or anybody could multiply theirs.
//!
//! An invitation is a link with 256 random bits, of which the database has the SHA-256. It is for
//! one address, works once, and ends with the rights of its sender. The audit log has what an
//! operator was refused; of members it has what they did, because they could fill it. Must not know
//! HTTP.

use super::accounts::Account;
use super::audit::{AuditChange, AuditedAccounts};
use super::error::AccountError;
use super::id::new_id;
use super::limits::MAX_ORGANISATION_NAME_CHARS;
use super::mailbox::normalize_email;
use super::session::{encode_hex, hash_token, new_token};
use super::views::{Logins, Organisations};
use crate::db::Role;
use crate::db::audit::NewAuditLine;
pub use crate::db::organisations::{
    FirstProofEnds, Member, MemberEdit, Membership, UnprovenOrganisation,
};
use crate::db::organisations::{MemberChange, MemberInviteRow, MemberOutcome};
use crate::membership::OrganisationRole;
use crate::settings::validate_models;
use base::readable_name::is_readable;
use config::canonical_domain;
use ledger::StoreError;
use serde_json::json;

#[cfg(test)]
pub(crate) mod tests;

/// Lifetime of an invitation to an organisation: 7 days.
pub const MEMBER_INVITE_MS: i64 = 7 * 86_400_000;
/// Path of the page that opens an invitation, without its token.
const JOIN_PATH: &str = "/dashboard/join/";
/// Number of hash bytes in an invitation's id.
const ID_BYTES: usize = 8;

/// An open invitation to an organisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberInvite {
    pub id: String,
    pub account: String,
    /// Name of the organisation.
    pub organisation: String,
    pub email: String,
    pub role: OrganisationRole,
    pub expires_at_ms: i64,
}

/// The token of a new invitation, which is stored nowhere else.
pub struct NewMemberInvite {
    pub token: String,
    pub expires_at_ms: i64,
}

impl NewMemberInvite {
    /// Returns the address for the receiver. The gateway's own address is `base_url`.
    pub fn url(&self, base_url: &str) -> String {
        format!("{base_url}{JOIN_PATH}{}", self.token)
    }
}

/// Who changes a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberAuthority {
    /// An operator of the gateway, who may do everything.
    Operator,
    /// The actor is a member, whose role decides.
    Member,
}

impl From<MemberInviteRow> for MemberInvite {
    fn from(row: MemberInviteRow) -> Self {
        Self {
            id: encode_hex(row.hash.get(..ID_BYTES).unwrap_or_default()),
            account: row.account,
            organisation: row.organisation,
            email: row.email,
            role: row.role,
            expires_at_ms: row.expires_at_ms,
        }
    }
}

impl Organisations<'_> {
    /// Returns the organisations of a person (by id), by their names.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn memberships(&self, person: &str) -> Result<Vec<Membership>, StoreError> {
        self.0.db.organisations().memberships(person)
    }

    /// Returns the organisations in which the first proof of a person's mailbox (by id) ends
    /// something, by their names.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn unproven(&self, person: &str) -> Result<Vec<UnprovenOrganisation>, StoreError> {
        self.0.db.organisations().unproven(person)
    }

    /// Returns the members of an organisation (by id), by their addresses.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn members(&self, account: &str) -> Result<Vec<Member>, StoreError> {
        self.0.db.organisations().members(account)
    }

    /// Returns the open invitations of an organisation, by their addresses.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn invites(&self, account: &str, now_ms: i64) -> Result<Vec<MemberInvite>, StoreError> {
        let rows = self.0.db.organisations().invites(account, now_ms)?;
        Ok(rows.into_iter().map(MemberInvite::from).collect())
    }

    /// Returns the domains that an organisation (by id) has claimed.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn domains(&self, account: &str) -> Result<Vec<String>, StoreError> {
        self.0.db.organisations().domains(account)
    }

    /// Returns the open invitation with this token; `None` if it is unknown, used, revoked or
    /// ended. The caller cannot distinguish these cases.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn invite(&self, token: &str, now_ms: i64) -> Result<Option<MemberInvite>, StoreError> {
        let found = self.0.db.organisations();
        let found = found.invite(&hash_token(token), now_ms)?;
        Ok(found.map(MemberInvite::from))
    }
}

impl Logins<'_> {
    /// Sets the account that a session shows: an organisation of its person, or with `None` the
    /// person's own account. Returns false if the person is no member.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn show_account(&self, token: &str, account: Option<&str>) -> Result<bool, StoreError> {
        self.0.db.organisations().show(&hash_token(token), account)
    }
}

impl AuditedAccounts<'_> {
    /// Creates the account of an organisation with its first owner (by id). The ledger has it after
    /// [`crate::complete_sign_ups`].
    ///
    /// # Errors
    /// Returns an error if the name is not valid, if there is no such person or the person owns too
    /// many organisations, or if the database fails.
    pub fn create_organisation(&self, name: &str, owner: &str) -> Result<Account, AccountError> {
        let name = name.trim();
        let is_valid =
            (1..=MAX_ORGANISATION_NAME_CHARS).contains(&name.chars().count()) && is_readable(name);
        if !is_valid {
            return Err(AccountError::BadOrganisationName);
        }
        let id = new_id("acct_", self.now_ms())?;
        // The pseudonym is not a valid e-mail, so nobody can register it.
        let email = format!("organisation-{id}");
        let what = json!({"name": name, "person": owner});
        let change = AuditChange::new("organisation.create", &id, &what);
        let rows = self.accounts.db.organisations();
        let outcome = rows.insert((&id, &email, name), owner, &self.audit_entry(&change))?;
        let authority = match self.actor() == owner {
            true => MemberAuthority::Member,
            false => MemberAuthority::Operator,
        };
        self.conclude(
            authority,
            &change,
            check(outcome, AccountError::TooManyOrganisations),
        )?;
        Ok(Account {
            id,
            email,
            role: Role::Member,
            status: super::AccountStatus::Active,
            created_at_ms: self.now_ms(),
            organisation: Some(name.to_owned()),
        })
    }

    /// Adds a person (by id) to an organisation for an operator.
    ///
    /// # Errors
    /// Returns an error if there is no such organisation or person, if the person is a member or
    /// the organisation is full, or if the database fails.
    pub fn add_member(
        &self,
        account: &str,
        person: &str,
        role: OrganisationRole,
    ) -> Result<(), AccountError> {
        let what = json!({"person": person, "role": role.name()});
        let change = AuditChange::new("organisation.add", account, &what);
        let rows = self.accounts.db.organisations();
        let outcome = rows.add(account, person, role, &self.audit_entry(&change))?;
        let result = check(outcome, AccountError::TooManyMembers);
        self.conclude(MemberAuthority::Operator, &change, result)
    }

    /// Changes or removes a member from the next request on. Keys that the person may no longer use
    /// are handed over to `keys_to`, or revoked.
    ///
    /// # Errors
    /// Returns an error if there is no such member, if the role of the actor does not allow it, if
    /// the models are not valid, if the organisation would have no owner, if `keys_to` is no other
    /// member with keys or would have too many, or if the database fails.
    pub fn change_member(
        &self,
        authority: MemberAuthority,
        account: &str,
        person: &str,
        edit: MemberEdit,
        keys_to: Option<&str>,
    ) -> Result<(), AccountError> {
        let (act, what) = match &edit {
            MemberEdit::Role(role) => ("organisation.role", json!({"role": role.name()})),
            MemberEdit::Budget(budget) => {
                let budget = budget.map(|budget| budget.to_string());
                ("organisation.budget", json!({"budget": budget}))
            }
            MemberEdit::Models(models) => {
                validate_models(models)?;
                ("organisation.models", json!({"models": models}))
            }
            MemberEdit::Remove => ("organisation.remove", json!({"keys_to": keys_to})),
        };
        let mut refused = what;
        refused["person"] = json!(person);
        let outcome = self.accounts.db.organisations().change(
            &MemberChange {
                account,
                person,
                edit: &edit,
                by: (authority == MemberAuthority::Member).then_some(self.actor()),
                keys_to,
            },
            self.new_line(act, account),
        )?;
        let result = check(outcome, AccountError::TooManyKeys);
        let refused = AuditChange::new(act, account, &refused);
        self.conclude(authority, &refused, result)
    }

    /// Invites an address to an organisation, in the name of the member who acts. The invitation
    /// replaces an earlier one for the address.
    ///
    /// # Errors
    /// Returns an error if the address is not valid or a member's, if the role of the actor does
    /// not allow it, if the organisation is full, if there is no randomness, or if the database
    /// fails.
    pub fn invite_member(
        &self,
        account: &str,
        email: &str,
        role: OrganisationRole,
    ) -> Result<NewMemberInvite, AccountError> {
        let email = normalize_email(email)?;
        let token = new_token()?;
        let what = json!({"email": email, "role": role.name()});
        let change = AuditChange::new("organisation.invite", account, &what);
        let expires_at_ms = self.now_ms().saturating_add(MEMBER_INVITE_MS);
        let row = MemberInviteRow {
            hash: hash_token(&token),
            account: account.to_owned(),
            organisation: String::new(),
            email,
            role,
            invited_by: self.actor().to_owned(),
            created_at_ms: self.now_ms(),
            expires_at_ms,
        };
        let rows = self.accounts.db.organisations();
        let outcome = rows.put_invite(&row, &self.audit_entry(&change))?;
        check(outcome, AccountError::TooManyMembers)?;
        Ok(NewMemberInvite {
            token,
            expires_at_ms,
        })
    }

    /// Revokes an open invitation, by its id, from now on.
    ///
    /// # Errors
    /// Returns an error if there is no such invitation, if the role of the actor does not allow it,
    /// or if the database fails.
    pub fn revoke_member_invite(
        &self,
        authority: MemberAuthority,
        account: &str,
        id: &str,
    ) -> Result<(), AccountError> {
        let open = self.accounts.organisations();
        let open = open.invites(account, self.now_ms())?.into_iter();
        let invite = open.into_iter().find(|invite| invite.id == id);
        let email = invite.ok_or(AccountError::NoMember)?.email;
        let change = AuditChange::new("organisation.revoke", account, &json!({"email": email}));
        let entry = self.audit_entry(&change);
        let rows = self.accounts.db.organisations();
        let by = (authority == MemberAuthority::Member).then_some(self.actor());
        let outcome = rows.revoke_invite(account, &email, by, &entry)?;
        check(outcome, AccountError::TooManyMembers)
    }

    /// Enters for an operator that an organisation claims a domain, or with `is_claimed` unset that
    /// it does not any more. Who proves a mailbox of the domain from now on becomes a member.
    ///
    /// # Errors
    /// Returns an error if the domain is not valid or claimed already, if there is no such
    /// organisation or claim, if the organisation has too many, or if the database fails.
    pub fn set_domain(
        &self,
        account: &str,
        domain: &str,
        is_claimed: bool,
    ) -> Result<(), AccountError> {
        let domain = canonical_domain(domain.trim());
        // A name without a dot is a top-level domain, or one of a local network: nobody's own.
        let domain = domain.filter(|domain| !is_claimed || domain.contains('.'));
        let domain = domain.ok_or(AccountError::BadDomain)?;
        let what = json!({"domain": domain});
        let act = match is_claimed {
            true => "organisation.claim",
            false => "organisation.release",
        };
        let change = AuditChange::new(act, account, &what);
        let (rows, entry) = (self.accounts.db.organisations(), self.audit_entry(&change));
        let outcome = match is_claimed {
            true => rows.claim(account, &domain, &entry)?,
            false => rows.release(account, &domain, &entry)?,
        };
        let result = check(outcome, AccountError::TooManyClaims);
        self.conclude(MemberAuthority::Operator, &change, result)
    }

    /// Makes the actor a member by the invitation with this token, and uses it up.
    ///
    /// # Errors
    /// Returns an error if the invitation is not open or is for another address, or if the database
    /// fails.
    pub fn join_organisation(&self, token: &str) -> Result<(), AccountError> {
        let outcome = self.accounts.db.organisations().join(
            &hash_token(token),
            self.actor(),
            self.new_line("organisation.join", ""),
        )?;
        check(outcome, AccountError::TooManyMembers)
    }

    /// Returns the result of a change, and logs what an operator was refused.
    fn conclude(
        &self,
        authority: MemberAuthority,
        change: &AuditChange,
        result: Result<(), AccountError>,
    ) -> Result<(), AccountError> {
        match (result, authority) {
            (Err(refusal), MemberAuthority::Operator) => self.record_refusal(change, refusal),
            (result, _) => result,
        }
    }

    pub(crate) fn new_line(&self, act: &'static str, object: &str) -> NewAuditLine {
        let by = self.by();
        NewAuditLine {
            at_ms: self.now_ms(),
            actor: by.actor.clone(),
            address: by.address.clone(),
            act,
            object: object.to_owned(),
            before: String::new(),
            after: String::new(),
        }
    }
}

fn check(outcome: MemberOutcome, limit: AccountError) -> Result<(), AccountError> {
    Err(match outcome {
        MemberOutcome::Done => return Ok(()),
        MemberOutcome::NotFound => AccountError::NoMember,
        MemberOutcome::NotAllowed => AccountError::NotAllowed,
        MemberOutcome::LastOwner => AccountError::LastOwner,
        MemberOutcome::AlreadyMember => AccountError::AlreadyMember,
        MemberOutcome::LimitReached => limit,
        MemberOutcome::OtherAddress => AccountError::OtherAddress,
        MemberOutcome::DomainTaken => AccountError::DomainTaken,
    })
}
