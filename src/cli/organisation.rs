//! `model-gateway org …`: organisations, whose account several people share.
//!
//! Works while the gateway runs, and before its first start. The balance, the keys and the rate
//! limits of an organisation are those of its account: `account` and `key` take its id.

use super::account::{CommandContext, command_line_actor, find, print};
use super::settings::parse_models;
use crate::document;
use crate::organisations::{
    MemberUpdate, change_member, create_organisation, describe_organisation,
};
use accounts::{Account, MemberAuthority, MemberEdit, OrganisationRole};
use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use credits::limits::{Period, SpendLimit, SpendLimitParseError};
use credits::money::Micro;
use serde_json::json;

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
    /// Claim a domain: who proves to have a mailbox of it becomes a member.
    #[command(subcommand)]
    Domain(DomainCommand),
    /// Revoke an open invitation, by the id that `org show` prints.
    RevokeInvite {
        /// Account id of the organisation.
        organisation: String,
        /// Id of the invitation.
        invite: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum DomainCommand {
    /// Claim a domain for an organisation.
    Add {
        /// Account id of the organisation.
        organisation: String,
        /// Domain, such as example.com.
        domain: String,
    },
    /// Release a domain. Its members stay.
    Remove {
        /// Account id of the organisation.
        organisation: String,
        /// Domain, such as example.com.
        domain: String,
    },
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
        #[command(flatten)]
        terms: TermArgs,
    },
    /// Remove a member, whose keys in the organisation are revoked or handed over.
    Remove {
        /// Account id of the organisation.
        organisation: String,
        /// E-mail or account id of the person.
        person: String,
        /// Hand the keys over to this member, by e-mail or account id, instead of revoking them.
        #[arg(long, value_name = "PERSON")]
        keys_to: Option<String>,
    },
    /// Change the role, the budget or the allowed models of a member.
    Set {
        /// Account id of the organisation.
        organisation: String,
        /// E-mail or account id of the person.
        person: String,
        /// New role: owner, admin, billing or member.
        #[arg(long, value_parser = parse_role)]
        role: Option<OrganisationRole>,
        #[command(flatten)]
        terms: TermArgs,
    },
}

/// What an organisation allows a member beside the role.
#[derive(Debug, Args)]
pub struct TermArgs {
    /// Credits that the member may spend in a period (UTC): 100/day, 100/week, 100/month or
    /// 100/total; `none` removes the budget.
    #[arg(long, value_name = "CREDITS/PERIOD", value_parser = parse_budget, conflicts_with = "budget_credits")]
    budget: Option<NewBudget>,
    /// Credits of the budget, with --budget-per: the same as --budget.
    #[arg(long, value_name = "CREDITS", requires = "budget_per")]
    budget_credits: Option<Micro>,
    /// Period of --budget-credits: day, week, month or total.
    #[arg(long, value_name = "PERIOD", value_parser = parse_period, requires = "budget_credits")]
    budget_per: Option<Period>,
    /// Models that the keys of the member may use, as catalog ids separated by commas; `all`
    /// removes the restriction.
    #[arg(long, value_name = "MODEL,...", value_delimiter = ',')]
    models: Option<Vec<String>>,
}

impl TermArgs {
    /// Returns the changes that the given arguments make.
    fn edits(&self, context: &CommandContext<'_>) -> anyhow::Result<Vec<MemberEdit>> {
        let mut edits = Vec::new();
        if let Some(NewBudget(limit)) = self.budget {
            edits.push(MemberEdit::Budget(limit));
        }
        if let Some((credits, period)) = self.budget_credits.zip(self.budget_per) {
            let limit = format!("{credits}/{}", period.name());
            edits.push(MemberEdit::Budget(Some(limit.parse::<SpendLimit>()?)));
        }
        if let Some(models) = &self.models {
            let models = parse_models("a member", models, context.settings)?;
            edits.push(MemberEdit::Models(models));
        }
        Ok(edits)
    }
}

fn parse_period(name: &str) -> Result<Period, String> {
    let mut periods = Period::ALL.into_iter();
    let found = periods.find(|period| period.name() == name);
    found.ok_or_else(|| "the periods are day, week, month and total".to_owned())
}

fn parse_role(name: &str) -> Result<OrganisationRole, String> {
    OrganisationRole::parse(name)
        .ok_or_else(|| "the roles are owner, admin, billing and member".to_owned())
}

/// A budget as typed; `None` removes it.
#[derive(Debug, Clone, Copy)]
pub struct NewBudget(Option<SpendLimit>);

fn parse_budget(text: &str) -> Result<NewBudget, SpendLimitParseError> {
    let limit = (text != "none").then(|| text.parse()).transpose()?;
    Ok(NewBudget(limit))
}

/// # Errors
/// Returns an error that says what could not be done, and why.
pub fn run(command: OrganisationCommand, context: &CommandContext<'_>) -> anyhow::Result<()> {
    let by = command_line_actor();
    let acting = context.accounts.with_actor(&by, context.now_ms);
    match command {
        OrganisationCommand::Create { name, owner } => {
            let owner = find(context, &owner)?;
            let (accounts, billing) = (context.accounts, context.billing);
            let created = create_organisation(accounts, billing, &by, &name, &owner.id)
                .with_context(|| format!("cannot create the organisation {name:?}"))?;
            show(context, &created)
        }
        OrganisationCommand::List => {
            let all = context.accounts.directory();
            let all = all.organisations(None, u32::MAX)?;
            let lines = all
                .iter()
                .map(|one| format!("{} {} {}\n", one.id, one.status.name(), one.label()));
            let text: String = lines.collect();
            let values: Vec<_> = all.iter().map(document::organisation).collect();
            print(context.json, &json!({"organisations": values}), &text)
        }
        OrganisationCommand::Show { organisation } => {
            show(context, &find_organisation(context, &organisation)?)
        }
        OrganisationCommand::Domain(command) => {
            let (organisation, domain, is_claimed) = match command {
                DomainCommand::Add {
                    organisation,
                    domain,
                } => (organisation, domain, true),
                DomainCommand::Remove {
                    organisation,
                    domain,
                } => (organisation, domain, false),
            };
            let organisation = find_organisation(context, &organisation)?;
            acting
                .set_domain(&organisation.id, &domain, is_claimed)
                .with_context(|| format!("cannot change the claim to the domain {domain}"))?;
            show(context, &organisation)
        }
        OrganisationCommand::RevokeInvite {
            organisation,
            invite,
        } => {
            let organisation = find_organisation(context, &organisation)?;
            acting
                .revoke_member_invite(MemberAuthority::Operator, &organisation.id, &invite)
                .with_context(|| {
                    let name = organisation.label();
                    format!("cannot revoke the invitation {invite} to {name}")
                })?;
            show(context, &organisation)
        }
        OrganisationCommand::Member(command) => change_members(command, context),
    }
}

fn change_members(command: MemberCommand, context: &CommandContext<'_>) -> anyhow::Result<()> {
    let by = command_line_actor();
    let mut keys_to = None;
    let (organisation, person, new, edits) = match command {
        MemberCommand::Add {
            organisation,
            person,
            role,
            terms,
        } => (organisation, person, Some(role), terms.edits(context)?),
        MemberCommand::Remove {
            organisation,
            person,
            keys_to: to,
        } => {
            keys_to = to.map(|to| find(context, &to)).transpose()?;
            (organisation, person, None, vec![MemberEdit::Remove])
        }
        MemberCommand::Set {
            organisation,
            person,
            role,
            terms,
        } => {
            let mut edits = terms.edits(context)?;
            edits.extend(role.map(MemberEdit::Role));
            if edits.is_empty() {
                bail!("name what to change: --role, --budget or --models");
            }
            (organisation, person, None, edits)
        }
    };
    let organisation = find_organisation(context, &organisation)?;
    let person = find(context, &person)?;
    let change = |edit| MemberUpdate {
        authority: MemberAuthority::Operator,
        organisation: &organisation.id,
        person: &person.id,
        edit,
        keys_to: keys_to.as_ref().map(|to| to.id.as_str()),
    };
    let acting = context.accounts.with_actor(&by, context.now_ms);
    let added = new.map_or(Ok(()), |role| {
        acting.add_member(&organisation.id, &person.id, role)
    });
    let changed = added.and_then(|()| {
        let mut edits = edits.into_iter();
        edits.try_for_each(|edit| change_member(context.accounts, &by, change(edit)))
    });
    changed.with_context(|| {
        format!(
            "cannot change {} in {}",
            person.label(),
            organisation.label()
        )
    })?;
    show(context, &organisation)
}

fn find_organisation(context: &CommandContext<'_>, id: &str) -> anyhow::Result<Account> {
    let account = find(context, id)?;
    if account.organisation.is_none() {
        bail!("the account {id} is a person's, not an organisation's (`org list` shows them)");
    }
    Ok(account)
}

fn show(context: &CommandContext<'_>, organisation: &Account) -> anyhow::Result<()> {
    let found = context.accounts.organisations();
    let domains = found.domains(&organisation.id)?.into_iter();
    let members = found.members(&organisation.id)?.into_iter();
    let members = members.map(|member| {
        let budget = member.budget.map(|budget| format!(" {budget}"));
        let models = member.allowed_models.join(",");
        let models = (!models.is_empty()).then(|| format!(" models={models}"));
        let (email, role) = (&member.email, member.role.name());
        let (budget, models) = (budget.unwrap_or_default(), models.unwrap_or_default());
        format!("{email} {role}{budget}{models}")
    });
    let invites = found.invites(&organisation.id, context.now_ms)?.into_iter();
    let invites = invites.map(|invite| {
        let (id, email, role) = (&invite.id, &invite.email, invite.role.name());
        format!("invitation {id} {email} {role}")
    });
    let domains = domains.map(|domain| format!("domain {domain}"));
    let lines = members.chain(invites).chain(domains);
    let text = format!(
        "{} {} {}\n{}",
        organisation.id,
        organisation.status.name(),
        organisation.label(),
        lines.map(|line| format!("  {line}\n")).collect::<String>()
    );
    let value = describe_organisation(context.accounts, context.billing, organisation)?;
    print(context.json, &value, &text)
}
