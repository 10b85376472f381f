//! `model-gateway org …`: organisations, whose account several people share.
//!
//! Works while the gateway runs, and before its first start. The balance, the keys and the rate
//! limits of an organisation are those of its account: `account` and `key` take its id.

use super::account::{CommandContext, command_line_actor, find, print};
use crate::shared_credit::wait_until_published;
use accounts::{Account, Member, MemberAuthority, OrganisationRole, complete_sign_ups};
use anyhow::{Context as _, bail};
use base::clock::rfc3339;
use clap::Subcommand;
use serde_json::{Value, json};

#[derive(Debug, Subcommand)]
pub enum OrganisationCommand {
    /// Create an organisation. Its account has no trial credits: add some with `account grant`.
    Create {
        /// Name, at most 64 characters.
        name: String,
        /// E-mail or account id of the person who becomes its owner.
        #[arg(long)]
        owner: String,
    },
    /// List all organisations.
    List,
    /// Show an organisation and its members.
    Show {
        /// Account id of the organisation.
        organisation: String,
    },
    /// Add, remove or change a member.
    #[command(subcommand)]
    Member(MemberCommand),
}

#[derive(Debug, Subcommand)]
pub enum MemberCommand {
    /// Add a person who has an account, without an invitation.
    Add {
        /// Account id of the organisation.
        organisation: String,
        /// E-mail or account id of the person.
        person: String,
        /// Role: owner, admin, billing or member.
        #[arg(long, value_parser = parse_role, default_value = "member")]
        role: OrganisationRole,
    },
    /// Remove a member, whose keys in the organisation are revoked.
    Remove {
        /// Account id of the organisation.
        organisation: String,
        /// E-mail or account id of the person.
        person: String,
    },
    /// Change the role of a member.
    Set {
        /// Account id of the organisation.
        organisation: String,
        /// E-mail or account id of the person.
        person: String,
        /// New role: owner, admin, billing or member.
        #[arg(long, value_parser = parse_role)]
        role: OrganisationRole,
    },
}

fn parse_role(name: &str) -> Result<OrganisationRole, String> {
    OrganisationRole::parse(name)
        .ok_or_else(|| "the roles are owner, admin, billing and member".to_owned())
}

/// # Errors
/// Returns an error that says what could not be done, and why.
pub fn run(command: OrganisationCommand, context: &CommandContext<'_>) -> anyhow::Result<()> {
    let by = command_line_actor();
    let acting = context.accounts.with_actor(&by, context.now_ms);
    match command {
        OrganisationCommand::Create { name, owner } => {
            let owner = find(context, &owner)?;
            let created = acting
                .create_organisation(&name, &owner.id)
                .with_context(|| format!("cannot create the organisation {name:?}"))?;
            complete_sign_ups(context.accounts, context.billing.ledger(), context.now_ms)?;
            show(context, &created)
        }
        OrganisationCommand::List => {
            let all = context.accounts.directory().list()?;
            let all: Vec<_> = all
                .into_iter()
                .filter(|account| account.organisation.is_some())
                .collect();
            let lines = all
                .iter()
                .map(|one| format!("{} {} {}\n", one.id, one.status.name(), one.label()));
            let text: String = lines.collect();
            let values: Vec<_> = all.iter().map(document).collect();
            print(context.json, &json!({"organisations": values}), &text)
        }
        OrganisationCommand::Show { organisation } => {
            show(context, &find_organisation(context, &organisation)?)
        }
        OrganisationCommand::Member(command) => {
            let (organisation, person, role, is_new) = match command {
                MemberCommand::Add {
                    organisation,
                    person,
                    role,
                } => (organisation, person, Some(role), true),
                MemberCommand::Remove {
                    organisation,
                    person,
                } => (organisation, person, None, false),
                MemberCommand::Set {
                    organisation,
                    person,
                    role,
                } => (organisation, person, Some(role), false),
            };
            let organisation = find_organisation(context, &organisation)?;
            let person = find(context, &person)?;
            let keys = context.accounts.api_keys();
            let keys = keys.live_of_member(&organisation.id, &person.id)?;
            let changed = match role.filter(|_| is_new) {
                Some(role) => acting.add_member(&organisation.id, &person.id, role),
                None => acting.change_member(
                    MemberAuthority::Operator,
                    &organisation.id,
                    &person.id,
                    role,
                    None,
                ),
            };
            changed.with_context(|| {
                format!(
                    "cannot change {} in {}",
                    person.label(),
                    organisation.label()
                )
            })?;
            // If the store does not answer for one key, it does not for the others either.
            let _ = keys
                .iter()
                .all(|key| wait_until_published(context.accounts, key));
            show(context, &organisation)
        }
    }
}

fn find_organisation(context: &CommandContext<'_>, id: &str) -> anyhow::Result<Account> {
    let account = find(context, id)?;
    if account.organisation.is_none() {
        bail!("the account {id} is a person's, not an organisation's (`org list` shows them)");
    }
    Ok(account)
}

fn document(organisation: &Account) -> Value {
    json!({
        "account_id": organisation.id,
        "name": organisation.organisation,
        "status": organisation.status.name(),
        "created_at": rfc3339(organisation.created_at_ms),
    })
}

fn show(context: &CommandContext<'_>, organisation: &Account) -> anyhow::Result<()> {
    let members = context.accounts.organisations();
    let members = members.members(&organisation.id)?;
    let lines = members
        .iter()
        .map(|member| format!("  {} {}\n", member.email, member.role.name()));
    let text = format!(
        "{} {} {}\n{}",
        organisation.id,
        organisation.status.name(),
        organisation.label(),
        lines.collect::<String>()
    );
    let member = |member: &Member| {
        json!({
            "account_id": member.person,
            "email": member.email,
            "role": member.role.name(),
            "since": rfc3339(member.since_ms),
        })
    };
    let mut value = document(organisation);
    value["members"] = members.iter().map(member).collect();
    print(context.json, &value, &text)
}
