//! Changes organisations for the pages, the admin API and the command line alike, and describes
//! them as JSON.
//!
//! The rules are in `accounts/src/membership.rs`. This file must not decide what a role may do.

use crate::billing::Billing;
use crate::document;
use crate::shared_credit::wait_until_published;
use accounts::{
    Account, AccountError, Accounts, Actor, Member, MemberAuthority, MemberEdit, MemberInvite,
    complete_sign_ups, membership_id,
};
use base::clock::{now_ms, rfc3339};
use credits::limits::Period;
use ledger::StoreError;
use serde_json::{Value, json};

/// A change of a member.
#[derive(Debug)]
pub struct MemberUpdate<'a> {
    pub authority: MemberAuthority,
    /// Id of the organisation.
    pub organisation: &'a str,
    /// Id of the person's own account.
    pub person: &'a str,
    pub edit: MemberEdit,
    /// The member who gets the keys of a removed one; `None`: they are revoked.
    pub keys_to: Option<&'a str>,
}

/// Creates an organisation with its first owner (by id).
///
/// # Errors
/// Returns an error if the name or the owner is not valid, or if the database or the ledger fails.
pub fn create_organisation(
    accounts: &Accounts,
    billing: &Billing,
    by: &Actor,
    name: &str,
    owner: &str,
) -> Result<Account, AccountError> {
    let now_ms = now_ms();
    let created = accounts
        .with_actor(by, now_ms)
        .create_organisation(name, owner)?;
    complete_sign_ups(accounts, billing.ledger(), now_ms)?;
    Ok(created)
}

/// Changes a member, and waits until the edges know what this changes of the keys.
///
/// # Errors
/// Returns the errors of [`accounts::AuditedAccounts::change_member`].
pub fn change_member(
    accounts: &Accounts,
    by: &Actor,
    change: MemberUpdate<'_>,
) -> Result<(), AccountError> {
    let MemberUpdate {
        authority,
        organisation,
        person,
        edit,
        keys_to,
    } = change;
    let keys = accounts.api_keys().live_of_member(organisation, person)?;
    let acting = accounts.with_actor(by, now_ms());
    acting.change_member(authority, organisation, person, edit, keys_to)?;
    // If the store does not answer for one key, it does not for the others either.
    let _ = keys.iter().all(|key| wait_until_published(accounts, key));
    Ok(())
}

/// Describes an organisation with its domains, its members with what they spent, and its open
/// invitations.
///
/// # Errors
/// Returns an error if the database or the ledger cannot be read.
pub fn describe_organisation(
    accounts: &Accounts,
    billing: &Billing,
    organisation: &Account,
) -> Result<Value, StoreError> {
    let (found, now_ms) = (accounts.organisations(), now_ms());
    let member = |member: &Member| {
        let id = membership_id(&organisation.id, &member.person);
        let period = member.budget.map_or(Period::Total, |budget| budget.period);
        let spend = billing.key_spend(&id, period, now_ms)?;
        Ok(json!({
            "account_id": member.person,
            "email": member.email,
            "role": member.role.name(),
            "since": rfc3339(member.since_ms),
            "budget": member.budget.map(|budget| budget.to_string()),
            "models": member.allowed_models,
            "spent": spend.spent,
        }))
    };
    let invite = |invite: &MemberInvite| {
        json!({
            "invite_id": invite.id,
            "email": invite.email,
            "role": invite.role.name(),
            "expires_at": rfc3339(invite.expires_at_ms),
        })
    };
    let mut value = document::organisation(organisation);
    value["domains"] = json!(found.domains(&organisation.id)?);
    let members = found.members(&organisation.id)?;
    value["members"] = members
        .iter()
        .map(member)
        .collect::<Result<_, StoreError>>()?;
    let invites = found.invites(&organisation.id, now_ms)?;
    value["invites"] = invites.iter().map(invite).collect();
    Ok(value)
}
