//! Implements `model-gateway account …` and `model-gateway key …`, which manage accounts and keys.
//!
//! The commands work while the gateway runs, and before its first start. Plaintext keys are printed
//! once, at creation. This file must not read the config file, because the caller passes the
//! settings.

use super::settings::{self, DurationArg, KeyArgs, RateArgs};
use crate::account_merge::{AccountMerge, merge_accounts};
use crate::billing::{Balance, Billing};
use crate::document;
use crate::shared_credit::wait_until_published;
use accounts::db::KeyFilter;
use accounts::{
    Account, AccountStatus, Accounts, Actor, ApiKey, CloseAccountOutcome, Invite, KeyHolder,
    KeySettings, LinkPurpose, NewAccount, NewKey, NewOneTimeLink, ProviderIdentity, Role,
    StoredMerge, open_account_as, random_password,
};
use anyhow::{Context as _, bail};
use base::clock::rfc3339;
use clap::Subcommand;
use config::CommandSettings;
use credits::limits::Period;
use credits::money::Micro;
use ledger::{BalanceChange, BalanceChangeKind, KeySpend};
use serde_json::{Value, json};
use std::io::{Read, Write};

/// Maximum length of a password read from stdin, in bytes.
const MAX_PASSWORD_BYTES: u64 = 4_096;

/// Address in links if the config file has none that the command can read.
const DEFAULT_BASE_URL: &str = "http://127.0.0.1:8080";

#[derive(Debug, Subcommand)]
pub enum AccountCommand {
    /// Create an account, with the trial credits that `signup` in the config file grants. Without a
    /// password, print a link by which the account holder sets one: it works once, for 72 hours.
    Create {
        /// E-mail address of the account holder, who signs in to the dashboard with it.
        #[arg(long)]
        email: String,
        /// Read a dashboard password from stdin (one line).
        #[arg(long)]
        password_stdin: bool,
        /// Make it an administrator account.
        #[arg(long, conflicts_with = "viewer")]
        admin: bool,
        /// Give read-only access to the operator pages.
        #[arg(long)]
        viewer: bool,
        /// Grant no trial credits.
        #[arg(long)]
        no_trial: bool,
    },
    /// List all accounts.
    List,
    /// Show an account and its balance.
    Show {
        /// Account id or e-mail.
        account: String,
    },
    /// Add credits that do not expire.
    Grant {
        /// Account id or e-mail.
        account: String,
        /// Number of credits, a decimal such as 25.5.
        credits: Micro,
        /// What the credits are for, such as an invoice number. A reference is posted only once,
        /// even if the command is repeated.
        #[arg(long = "ref")]
        reference: String,
    },
    /// Add credits that the account holder bought. Like `grant`, but recorded as a purchase in the
    /// ledger.
    TopUp {
        /// Account id or e-mail.
        account: String,
        /// Number of credits, a decimal such as 25.5.
        credits: Micro,
        /// Reference of the payment, such as an invoice number. A reference is posted only once,
        /// even if the command is repeated.
        #[arg(long = "ref")]
        reference: String,
    },
    /// Show or set the rate limits of an account, which apply to all its keys together.
    Limit {
        /// Account id or e-mail.
        account: String,
        #[command(flatten)]
        rates: RateArgs,
    },
    /// Create invite codes and print them; they cannot be shown again. Each code opens one account
    /// if `signup.mode` is `invite`.
    Invite {
        /// Number of codes, 1 to 100.
        #[arg(long, default_value_t = 1)]
        count: u32,
        /// Time until the codes expire, such as 24h or 7d.
        #[arg(long, default_value = "7d")]
        expires_in: DurationArg,
    },
    /// List the latest invitations, without their codes.
    Invites,
    /// Revoke an unused invitation.
    RevokeInvite {
        /// Invitation id, as `account invites` shows it, or the code.
        invite: String,
    },
    /// Set an account's dashboard password and end all its sessions. Use it for an account without
    /// a password, or if the account holder forgot it.
    SetPassword {
        /// Account id or e-mail.
        account: String,
        /// Read the password from stdin (one line). Without it a random password is generated and
        /// printed once.
        #[arg(long)]
        password_stdin: bool,
    },
    /// Create a link that sets a new password, and print it; it cannot be shown again. It works
    /// once, for 60 minutes. Use it if the account holder forgot the password.
    ResetLink {
        /// Account id or e-mail.
        account: String,
    },
    /// Link a person at an identity provider to an account, which the person then signs in to. Use
    /// it if the account has no password, or if the address at the provider is another one.
    Link {
        /// Account id or e-mail.
        account: String,
        /// Provider, as `sign_in.providers[].id` in the config file names it.
        #[arg(long)]
        provider: String,
        /// Id of the person at the provider: the claim `sub`, or the number of a GitHub user.
        #[arg(long)]
        subject: String,
    },
    /// Unlink an account from a provider: nobody signs in to it there any more. Its sessions stay.
    Unlink {
        /// Account id or e-mail.
        account: String,
        /// Provider, as `account show` names it.
        #[arg(long)]
        provider: String,
    },
    /// Change what an account may do besides using its own keys. The last administrator who can
    /// sign in keeps the role.
    Role {
        /// Account id or e-mail.
        account: String,
        /// `operator` changes all accounts, `viewer` reads the operator pages, `holder` has
        /// neither.
        #[arg(value_parser = parse_role)]
        role: Role,
    },
    /// Merge an account into another one: its members, keys and credits go there, and it is
    /// deleted. Suspend it first. The same command completes a merge that was interrupted.
    Merge {
        /// Id or e-mail of the account that ends.
        from: String,
        /// Id or e-mail of the account that gets everything.
        #[arg(long)]
        into: String,
        /// E-mail or account id of the member who gets the keys, if the other account is an
        /// organisation's. Members of an organisation keep theirs.
        #[arg(long)]
        member: Option<String>,
    },
    /// Refuse all keys of an account until it is resumed.
    Suspend {
        /// Account id or e-mail.
        account: String,
    },
    /// Accept the keys of a suspended account again.
    Resume {
        /// Account id or e-mail.
        account: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Create a key and print it; it cannot be shown again. With several edges, it returns once all
    /// accept the key, or says after three seconds that they do not yet.
    Create {
        /// Account id or e-mail.
        #[arg(long)]
        account: String,
        /// Name that distinguishes the key from others, 1 to 64 characters.
        #[arg(long)]
        name: String,
        /// E-mail or account id of the member whose key it is, if the account is an organisation's.
        #[arg(long)]
        member: Option<String>,
        #[command(flatten)]
        settings: KeyArgs,
    },
    /// Change the settings of a key from the next request on. Settings that are not named stay
    /// unchanged.
    Set {
        /// Key id, as `key list` shows it.
        key_id: String,
        #[command(flatten)]
        settings: KeyArgs,
    },
    /// Create a new key with the same settings and print it; it cannot be shown again. The old key
    /// works for a while longer. Use it to replace a key without downtime.
    Rotate {
        /// Key id, as `key list` shows it.
        key_id: String,
        /// Time that the old key continues to work, such as 90m, 24h or 7d.
        #[arg(long, default_value = "24h")]
        overlap: DurationArg,
    },
    /// Move a key to another account, whose balance pays from the next request on. Its client keeps
    /// it; it gets a new id there, and what it has spent so far stays with the old one.
    Move {
        /// Key id, as `key list` shows it.
        key_id: String,
        /// Account id or e-mail.
        #[arg(long)]
        to: String,
        /// E-mail or account id of the member whose key it becomes, if the account is an
        /// organisation's. Default: the person who has the key.
        #[arg(long)]
        member: Option<String>,
    },
    /// List the keys of an account.
    List {
        /// Account id or e-mail.
        #[arg(long)]
        account: String,
    },
    /// Refuse a key from the next request on, until it is enabled again.
    Disable {
        /// Key id, as `key list` shows it.
        key_id: String,
    },
    /// Accept a disabled key again.
    Enable {
        /// Key id, as `key list` shows it.
        key_id: String,
    },
    /// Revoke a key permanently; it is refused from the next request on.
    Revoke {
        /// Key id, as `key list` shows it.
        key_id: String,
    },
}

pub struct CommandContext<'a> {
    pub accounts: &'a Accounts,
    pub billing: &'a Billing,
    pub settings: &'a CommandSettings,
    /// True to print one JSON document instead of text.
    pub json: bool,
    pub now_ms: i64,
}

/// # Errors
/// Returns an error that names the failed operation and its cause.
pub fn run_account(command: AccountCommand, context: &CommandContext<'_>) -> anyhow::Result<()> {
    match command {
        AccountCommand::Create {
            email,
            password_stdin,
            admin,
            viewer,
            no_trial,
        } => {
            let role = match (admin, viewer) {
                (true, _) => Role::Admin,
                (false, true) => Role::Viewer,
                (false, false) => Role::Member,
            };
            create(context, &email, password_stdin, role, no_trial)
        }
        AccountCommand::List => list(context),
        AccountCommand::Show { account } => show(context, &find(context, &account)?),
        AccountCommand::Grant {
            account,
            credits,
            reference,
        } => post_credits(
            context,
            BalanceChangeKind::Grant,
            &find(context, &account)?,
            credits,
            &reference,
        ),
        AccountCommand::TopUp {
            account,
            credits,
            reference,
        } => post_credits(
            context,
            BalanceChangeKind::TopUp,
            &find(context, &account)?,
            credits,
            &reference,
        ),
        AccountCommand::Limit { account, rates } => {
            set_rate_limits(context, &find(context, &account)?, &rates)
        }
        AccountCommand::Invite { count, expires_in } => create_invites(context, count, expires_in),
        AccountCommand::Invites => list_invites(context),
        AccountCommand::RevokeInvite { invite } => revoke_invite(context, &invite),
        AccountCommand::SetPassword {
            account,
            password_stdin,
        } => set_password(context, &find(context, &account)?, password_stdin),
        AccountCommand::ResetLink { account } => {
            print_reset_link(context, &find(context, &account)?)
        }
        AccountCommand::Link {
            account,
            provider,
            subject,
        } => link(context, &find(context, &account)?, &provider, &subject),
        AccountCommand::Unlink { account, provider } => {
            unlink(context, &find(context, &account)?, &provider)
        }
        AccountCommand::Role { account, role } => {
            set_role(context, &find(context, &account)?, role)
        }
        AccountCommand::Merge { from, into, member } => {
            merge(context, &from, &into, member.as_deref())
        }
        AccountCommand::Suspend { account } => {
            set_status(context, &account, AccountStatus::Suspended)
        }
        AccountCommand::Resume { account } => set_status(context, &account, AccountStatus::Active),
    }
}

fn create_invites(
    context: &CommandContext<'_>,
    count: u32,
    expires_in: DurationArg,
) -> anyhow::Result<()> {
    let by = command_line_actor();
    let acting = context.accounts.with_actor(&by, context.now_ms);
    let codes = acting
        .create_invites(count, expires_in.ms)
        .context("cannot create invite codes")?;
    let text: String = codes.iter().map(|code| format!("{code}\n")).collect();
    let expires_at = rfc3339(context.now_ms.saturating_add(expires_in.ms));
    let value = json!({"codes": codes, "expires_at": expires_at});
    print(context.json, &value, &text)
}

fn revoke_invite(context: &CommandContext<'_>, invite: &str) -> anyhow::Result<()> {
    let by = command_line_actor();
    let acting = context.accounts.with_actor(&by, context.now_ms);
    if !acting.revoke_invite(invite)? {
        bail!(
            "cannot revoke the invitation: no open invitation has this id or code (`account invites` shows the ids)"
        );
    }
    print(context.json, &json!({"state": "withdrawn"}), "revoked\n")
}

/// # Errors
/// Returns an error that names the failed operation and its cause.
pub fn run_key(command: KeyCommand, context: &CommandContext<'_>) -> anyhow::Result<()> {
    match command {
        KeyCommand::Create {
            account,
            name,
            member,
            settings,
        } => create_key(context, &account, &name, member.as_deref(), &settings),
        KeyCommand::Set { key_id, settings } => set_key(context, &key_id, &settings),
        KeyCommand::Rotate { key_id, overlap } => rotate_key(context, &key_id, overlap),
        KeyCommand::Move { key_id, to, member } => {
            move_key(context, &key_id, &to, member.as_deref())
        }
        KeyCommand::List { account } => list_keys(context, &find(context, &account)?),
        KeyCommand::Disable { key_id } => set_enabled(context, &key_id, false),
        KeyCommand::Enable { key_id } => set_enabled(context, &key_id, true),
        KeyCommand::Revoke { key_id } => revoke_key(context, &key_id),
    }
}

fn set_key(context: &CommandContext<'_>, key_id: &str, settings: &KeyArgs) -> anyhow::Result<()> {
    settings.check(context.settings)?;
    let keys = context.accounts.api_keys();
    let patch = settings.patch(context.now_ms);
    let change = || keys.change_key(None, key_id, |set| set.apply(&patch));
    let changed = match keys.key(None, key_id)? {
        Some((_, key)) => {
            let before = json!({"settings": key.settings});
            let mut set = key.settings;
            set.apply(&patch);
            let changes = (&before, &json!({"settings": set}));
            let by = command_line_actor();
            let acting = context.accounts.with_actor(&by, context.now_ms);
            acting.record_setting_then_run("key.set", key_id, changes, change)
        }
        None => change(),
    };
    let set = changed
        .with_context(|| format!("cannot change the key {key_id:?} (`key list` shows the ids)"))?;
    wait_until_published(context.accounts, key_id);
    let text = format!("{key_id}{}\n", settings::format_key_settings(&set));
    let mut value = document::key_settings(&set);
    value["key_id"] = json!(key_id);
    print(context.json, &value, &text)
}

fn rotate_key(
    context: &CommandContext<'_>,
    key_id: &str,
    overlap: DurationArg,
) -> anyhow::Result<()> {
    let (what, by) = (json!({"overlap_ms": overlap.ms}), command_line_actor());
    let acting = context.accounts.with_actor(&by, context.now_ms);
    let new = acting.record_then_run("key.rotate", key_id, &what, || {
        let keys = context.accounts.api_keys();
        keys.rotate_key(None, key_id, overlap.ms, context.now_ms)
    });
    let new = new
        .with_context(|| format!("cannot rotate the key {key_id:?} (`key list` shows the ids)"))?;
    print_new_key(context, &new)
}

fn move_key(
    context: &CommandContext<'_>,
    key_id: &str,
    to: &str,
    member: Option<&str>,
) -> anyhow::Result<()> {
    let to = find(context, to)?;
    let member = member.map(|member| find(context, member)).transpose()?;
    let member = member.as_ref().map(|member| member.id.as_str());
    let by = command_line_actor();
    let acting = context.accounts.with_actor(&by, context.now_ms);
    let new_id = acting
        .move_key(key_id, &to.id, member)
        .with_context(|| format!("cannot move the key {key_id:?} (`key list` shows the ids)"))?;
    let in_store = wait_until_published(context.accounts, &new_id);
    let text = format!("{new_id} of {} was {key_id}\n", to.label());
    let value = document::moved_key(key_id, &new_id, &to, in_store);
    print(context.json, &value, &text)
}

fn list_keys(context: &CommandContext<'_>, account: &Account) -> anyhow::Result<()> {
    let (mut text, mut values) = (String::new(), Vec::new());
    let status = account.status;
    for key in all_keys(context, &account.id)? {
        // For a key without a limit, show its total spend.
        let limit = key.settings.spend_limit;
        let period = limit.map_or(Period::Total, |limit| limit.period);
        let spend = context.billing.key_spend(&key.id, period, context.now_ms)?;
        text += &key_line(&key, status, &spend);
        values.push(document::api_key(&key, status, &spend, context.now_ms));
    }
    print(context.json, &Value::Array(values), &text)
}

fn revoke_key(context: &CommandContext<'_>, key_id: &str) -> anyhow::Result<()> {
    let by = command_line_actor();
    let acting = context.accounts.with_actor(&by, context.now_ms);
    if !acting.revoke_key(key_id)? {
        bail!(
            "cannot revoke a key: no active key has the id {key_id:?} (`key list` shows the ids)"
        );
    }
    wait_until_published(context.accounts, key_id);
    let value = json!({"key_id": key_id, "status": "revoked"});
    print(context.json, &value, &format!("{key_id} is revoked\n"))
}

/// Creates a key of an account, or of a member of an organisation.
fn create_key(
    context: &CommandContext<'_>,
    account: &str,
    name: &str,
    member: Option<&str>,
    settings: &KeyArgs,
) -> anyhow::Result<()> {
    let keys = context.accounts.api_keys();
    let account = find(context, account)?;
    let member = member.map(|member| find(context, member)).transpose()?;
    let member = member.as_ref().map(|member| member.id.as_str());
    settings.check(context.settings)?;
    let mut set = KeySettings::default();
    set.apply(&settings.patch(context.now_ms));
    let mut what = json!({"name": name, "settings": set});
    if let Some(member) = member {
        what["person"] = json!(member);
    }
    let by = command_line_actor();
    let acting = context.accounts.with_actor(&by, context.now_ms);
    let new = acting.record_then_run("key.create", &account.id, &what, || {
        let holder = KeyHolder {
            account: &account.id,
            member,
        };
        keys.create_key_of(holder, name, &set, context.now_ms)
    });
    print_new_key(context, &new.context("cannot create a key")?)
}

/// All keys of an account, newest first.
fn all_keys(context: &CommandContext<'_>, account: &str) -> anyhow::Result<Vec<ApiKey>> {
    const KEYS_PER_READ: u32 = 1_000;
    let filter = KeyFilter {
        now_ms: context.now_ms,
        ..KeyFilter::default()
    };
    let mut keys: Vec<ApiKey> = Vec::new();
    loop {
        let after = keys.last().map(|key| key.id.clone());
        let api_keys = context.accounts.api_keys();
        let page = api_keys.page(account, &filter, after.as_deref(), KEYS_PER_READ)?;
        if page.is_empty() {
            return Ok(keys);
        }
        keys.extend(page);
    }
}

/// Prints a new key once edges accept it, or after the waiting time with a note that they do not
/// yet.
fn print_new_key(context: &CommandContext<'_>, new: &NewKey) -> anyhow::Result<()> {
    let in_store = wait_until_published(context.accounts, &new.key_id);
    let text = format!("{}\n", new.key);
    print(
        context.json,
        &json!({"key_id": new.key_id, "key": new.key, "name": new.name, "in_store": in_store}),
        &text,
    )
}

/// Returns the actor for the audit log, who is the user of this machine.
pub fn command_line_actor() -> Actor {
    Actor {
        actor: format!("uid {}", rustix::process::getuid().as_raw()),
        address: "command line".to_owned(),
    }
}

pub fn find(context: &CommandContext<'_>, id_or_email: &str) -> anyhow::Result<Account> {
    let found = context.accounts.find(id_or_email)?;
    found.with_context(|| format!("no account has the id or e-mail {id_or_email:?}"))
}

fn create(
    context: &CommandContext<'_>,
    email: &str,
    password_stdin: bool,
    role: Role,
    no_trial: bool,
) -> anyhow::Result<()> {
    let password = if password_stdin {
        Some(read_password()?)
    } else {
        None
    };
    let new = NewAccount {
        password: password.as_deref(),
        role,
        ..NewAccount::new(email)
    };
    let new = if no_trial {
        new
    } else {
        new.with_trial(context.settings.signup()?, context.now_ms)
    };
    let account = open_account_as(
        context.accounts,
        context.billing.ledger(),
        &new,
        &command_line_actor(),
        context.now_ms,
    )
    .with_context(|| format!("cannot create the account {email:?}"))?;
    let balance = context
        .billing
        .balance(&account.id, context.now_ms)?
        .balance;
    let trial_ends_at = new.trial.map(|trial| rfc3339(trial.ends_at_ms));
    let mut text = format!("{} {} balance {balance}\n", account.id, account.email);
    let mut value = json!({
        "account_id": account.id, "email": account.email, "balance": balance, "trial_ends_at": trial_ends_at,
    });
    if password.is_none() {
        let link = create_link(context, &account, LinkPurpose::Setup)
            .with_context(|| format!("the account {} exists, but has no password", account.id))?;
        let (url, expires_at) = (link.url(base_url(context)), rfc3339(link.expires_at_ms));
        text += &format!("set a password, once, until {expires_at}: {url}\n");
        value["setup_link"] = json!(url);
        value["setup_link_expires_at"] = json!(expires_at);
    }
    print(context.json, &value, &text)
}

fn create_link(
    context: &CommandContext<'_>,
    account: &Account,
    purpose: LinkPurpose,
) -> anyhow::Result<NewOneTimeLink> {
    context
        .accounts
        .with_actor(&command_line_actor(), context.now_ms)
        .create_one_time_link(&account.id, purpose)
        .context("cannot create a link that sets the password")
}

/// Returns the address of the gateway for links. The service may have another one, by an
/// environment variable that this shell lacks.
fn base_url<'a>(context: &'a CommandContext<'_>) -> &'a str {
    let base_url = context.settings.base_url().unwrap_or(DEFAULT_BASE_URL);
    let is_here = ["127.0.0.1", "localhost", "[::1]"]
        .iter()
        .any(|host| base_url.contains(host));
    if is_here && !context.json {
        eprintln!(
            "The link begins with {base_url}, as `base_url` says in this shell. From another \
             machine, open it at the public address of the gateway."
        );
    }
    base_url
}

/// Requires that somebody can sign in to an account, with a password and a role.
fn require_person(account: &Account) -> anyhow::Result<()> {
    anyhow::ensure!(
        account.organisation.is_none(),
        "account {} is an organisation: its members sign in to their own accounts",
        account.id
    );
    Ok(())
}

fn print_reset_link(context: &CommandContext<'_>, account: &Account) -> anyhow::Result<()> {
    require_person(account)?;
    anyhow::ensure!(
        account.status == AccountStatus::Active,
        "cannot create a link: account {} is {}",
        account.id,
        account.status.name()
    );
    let link = create_link(context, account, LinkPurpose::Reset)?;
    let (url, expires_at) = (link.url(base_url(context)), rfc3339(link.expires_at_ms));
    let value = json!({
        "account_id": account.id, "email": account.email, "link": url, "expires_at": expires_at,
    });
    let text = format!("{url}\nworks once, until {expires_at}\n");
    print(context.json, &value, &text)
}

fn set_password(
    context: &CommandContext<'_>,
    account: &Account,
    password_stdin: bool,
) -> anyhow::Result<()> {
    require_person(account)?;
    let password = if password_stdin {
        read_password()?
    } else {
        random_password().context("cannot generate a password")?
    };
    let by = command_line_actor();
    let is_set = context
        .accounts
        .with_actor(&by, context.now_ms)
        .set_password(&account.id, &password);
    anyhow::ensure!(
        is_set.context("cannot set the password")?,
        "cannot set the password: account {} is deleted",
        account.id
    );
    let mut value = json!({"account_id": account.id, "email": account.email});
    if password_stdin {
        return print(
            context.json,
            &value,
            &format!(
                "set the password of {} and ended its sessions\n",
                account.email
            ),
        );
    }
    value["password"] = json!(password);
    print(context.json, &value, &format!("{password}\n"))
}

fn read_password() -> anyhow::Result<String> {
    let mut text = String::new();
    std::io::stdin()
        .lock()
        .take(MAX_PASSWORD_BYTES)
        .read_to_string(&mut text)
        .context("cannot read the password from stdin")?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn list(context: &CommandContext<'_>) -> anyhow::Result<()> {
    let accounts = context.accounts.directory().list()?;
    let text = accounts
        .iter()
        .map(|account| {
            let role = match account.role {
                Role::Member => "",
                Role::Viewer => " viewer",
                Role::Admin => " admin",
            };
            let at = rfc3339(account.created_at_ms);
            format!(
                "{} {at} {} {}{role}\n",
                account.id,
                account.status.name(),
                account.email
            )
        })
        .collect::<String>();
    let value = accounts.iter().map(document::account).collect();
    print(context.json, &Value::Array(value), &text)
}

/// Maximum number of invitations that `account invites` lists, the latest first.
const MAX_INVITES_LISTED: u32 = 100;

fn list_invites(context: &CommandContext<'_>) -> anyhow::Result<()> {
    let (mut text, mut values) = (String::new(), Vec::new());
    for invite in context
        .accounts
        .invitations()
        .list(None, MAX_INVITES_LISTED)?
    {
        let state = invite.state(context.now_ms).name();
        let Invite {
            id,
            created_by,
            used_by,
            ..
        } = &invite;
        let [created_at, expires_at] = [invite.created_at_ms, invite.expires_at_ms].map(rfc3339);
        text += &format!(
            "{id} {created_at} {expires_at} {state} {}\n",
            used_by.as_deref().unwrap_or_default()
        );
        values.push(json!({
            "id": id, "created_at": created_at, "expires_at": expires_at, "created_by": created_by, "state": state,
            "used_by": used_by,
        }));
    }
    print(context.json, &Value::Array(values), &text)
}

fn show(context: &CommandContext<'_>, account: &Account) -> anyhow::Result<()> {
    let has = context.billing.balance(&account.id, context.now_ms)?;
    let Balance {
        balance,
        held,
        available,
        trial,
    } = &has;
    let mut text = format!(
        "account   {}\ne-mail    {}\nstatus    {}\nbalance   {balance}\nheld      {held}\navailable {available}\n",
        account.id,
        account.email,
        account.status.name(),
    );
    let identities = context.accounts.identities().list(&account.id)?;
    for identity in &identities {
        text += &format!("provider  {} {}\n", identity.provider, identity.subject);
    }
    if let Some(trial) = trial {
        let what = if trial.active { "ends" } else { "ended" };
        text += &format!(
            "trial     {} left, {what} {}\n",
            trial.credits_left,
            rfc3339(trial.ends_at_ms)
        );
    }
    let merges = context.accounts.merges().list(Some(&account.id))?;
    let merges: Vec<_> = merges.iter().map(StoredMerge::describe).collect();
    for merge in &merges {
        text += &format!("merge     {merge}\n");
    }
    let mut value = document::account_with_balance(account, &has);
    value["merges"] = json!(merges);
    value["identities"] = identities.iter().map(document::identity).collect();
    print(context.json, &value, &text)
}

fn post_credits(
    context: &CommandContext<'_>,
    kind: BalanceChangeKind<'_>,
    account: &Account,
    credits: Micro,
    reference: &str,
) -> anyhow::Result<()> {
    let at_ms = context.now_ms;
    let change = BalanceChange {
        kind,
        reference,
        account: &account.id,
        amount: credits,
        actor: None,
        at_ms,
    };
    let by = command_line_actor();
    let acting = context.accounts.with_actor(&by, at_ms);
    let counted = acting
        .record_then_post(&change, || {
            context.billing.corrections().post_change(&change)
        })?
        .is_new;
    let balance = context
        .billing
        .balance(&account.id, context.now_ms)?
        .balance;
    let text = if counted {
        format!(
            "added {credits}; the balance of {} is {balance}\n",
            account.email
        )
    } else {
        format!(
            "reference {reference:?} was already posted, so nothing changed; the balance is {balance}\n"
        )
    };
    let value = json!({
        "account_id": account.id, "credits": credits, "ref": reference, "counted": counted, "balance": balance,
    });
    print(context.json, &value, &text)
}

fn set_rate_limits(
    context: &CommandContext<'_>,
    account: &Account,
    arguments: &RateArgs,
) -> anyhow::Result<()> {
    let before = context.accounts.account_rates(&account.id)?;
    let mut rates = before;
    rates.apply(arguments.patch());
    if rates != before {
        let by = command_line_actor();
        context
            .accounts
            .with_actor(&by, context.now_ms)
            .set_account_rates(&account.id, &rates)
            .context("cannot set the rate limits of the account")?;
    }
    let text = format!("{}{}\n", account.email, settings::format_rates(&rates));
    let value =
        json!({"account_id": account.id, "email": account.email, "rates": document::rates(&rates)});
    print(context.json, &value, &text)
}

fn parse_role(name: &str) -> Result<Role, String> {
    Role::parse(name).ok_or_else(|| "the roles are operator, viewer and holder".to_owned())
}

fn set_role(context: &CommandContext<'_>, account: &Account, role: Role) -> anyhow::Result<()> {
    require_person(account)?;
    let by = command_line_actor();
    let acting = context.accounts.with_actor(&by, context.now_ms);
    match acting.set_role(&account.id, role)? {
        CloseAccountOutcome::Done => {}
        CloseAccountOutcome::NoAccount => {
            bail!("cannot change the role: account {} is deleted", account.id)
        }
        CloseAccountOutcome::LastAdministrator | CloseAccountOutcome::LastOwner => bail!(
            "cannot change the role of {}: it is the only administrator who can sign in; make \
             another account an operator first",
            account.email
        ),
    }
    let account = Account {
        role,
        ..account.clone()
    };
    let text = format!("{} is {}\n", account.email, role.name());
    print(context.json, &document::account(&account), &text)
}

fn merge(
    context: &CommandContext<'_>,
    from: &str,
    into: &str,
    member: Option<&str>,
) -> anyhow::Result<()> {
    let (from, to) = (find(context, from)?, find(context, into)?);
    let member = member.map(|member| find(context, member)).transpose()?;
    let merge = AccountMerge {
        from: &from,
        to: &to,
        member: member.as_ref().map(|member| &*member.id),
        actor: None,
    };
    let by = command_line_actor();
    let merged = merge_accounts(context.accounts, context.billing, &by, &merge)
        .with_context(|| format!("cannot merge {} into {}", from.label(), to.label()))?;
    let (id, label, credits) = (&from.id, to.label(), merged.credits);
    let text = match merged.is_new {
        true => format!(
            "merged {id} into {label}: {credits} credits, {} keys, {} members\n",
            merged.moved.keys.len(),
            merged.moved.members.len()
        ),
        false => format!("{id} was already merged into {label}, with {credits} credits\n"),
    };
    print(context.json, &merged.to_json(&merge), &text)
}

fn link(
    context: &CommandContext<'_>,
    account: &Account,
    provider: &str,
    subject: &str,
) -> anyhow::Result<()> {
    let known = context.settings.sign_in()?.provider(provider);
    let known = known.with_context(|| {
        format!("no provider of `sign_in.providers` in the config file has the id {provider}")
    })?;
    anyhow::ensure!(
        (1..=255).contains(&subject.len()),
        "cannot link: a subject has 1 to 255 bytes"
    );
    let identity = ProviderIdentity {
        provider: provider.to_owned(),
        issuer: known.issuer.clone(),
        subject: subject.to_owned(),
        email: String::new(),
        email_verified: false,
        role: Role::Member.name().to_owned(),
    };
    let by = command_line_actor();
    let acting = context.accounts.with_actor(&by, context.now_ms);
    let is_linked = acting
        .link_identity(&account.id, &identity)
        .context("cannot link")?;
    anyhow::ensure!(
        is_linked,
        "cannot link: the subject {subject} at {provider} belongs to an account already; unlink \
         it there first"
    );
    let text = format!("{} signs in with {provider}\n", account.email);
    print_identities(context, account, &text)
}

fn unlink(context: &CommandContext<'_>, account: &Account, provider: &str) -> anyhow::Result<()> {
    let by = command_line_actor();
    let acting = context.accounts.with_actor(&by, context.now_ms);
    let count = acting.unlink_identities(&account.id, provider)?;
    anyhow::ensure!(
        count > 0,
        "cannot unlink: {} is not linked to the provider {provider}",
        account.email
    );
    let text = format!(
        "{} does not sign in with {provider} any more\n",
        account.email
    );
    print_identities(context, account, &text)
}

fn print_identities(
    context: &CommandContext<'_>,
    account: &Account,
    text: &str,
) -> anyhow::Result<()> {
    let identities = context.accounts.identities().list(&account.id)?;
    let identities: Vec<_> = identities.iter().map(document::identity).collect();
    let value = json!({"account_id": account.id, "email": account.email, "identities": identities});
    print(context.json, &value, text)
}

fn set_status(
    context: &CommandContext<'_>,
    account: &str,
    status: AccountStatus,
) -> anyhow::Result<()> {
    let account = find(context, account)?;
    if !context
        .accounts
        .with_actor(&command_line_actor(), context.now_ms)
        .set_status(&account.id, status)?
    {
        bail!(
            "cannot change the account's status: account {} is deleted",
            account.id
        );
    }
    let text = format!("{} is {}\n", account.email, status.name());
    print(context.json, &document::status(&account, status), &text)
}

fn set_enabled(context: &CommandContext<'_>, key_id: &str, enabled: bool) -> anyhow::Result<()> {
    if !context
        .accounts
        .with_actor(&command_line_actor(), context.now_ms)
        .set_key_enabled(key_id, enabled)?
    {
        bail!(
            "cannot change the key's status: no active key has the id {key_id:?} (`key list` shows the ids)"
        );
    }
    wait_until_published(context.accounts, key_id);
    let text = format!(
        "{key_id} is {}\n",
        if enabled { "active" } else { "disabled" }
    );
    print(context.json, &document::key_status(key_id, enabled), &text)
}

fn key_line(key: &ApiKey, account: AccountStatus, spend: &KeySpend) -> String {
    let (at, set) = (
        rfc3339(key.created_at_ms),
        settings::format_key_settings(&key.settings),
    );
    let used = spend
        .used_at_ms
        .map(|at| format!(" last-used={}", rfc3339(at)))
        .unwrap_or_default();
    let spent = spend.spent;
    let of_account = match account {
        AccountStatus::Active => String::new(),
        other => format!(" account={}", other.name()),
    };
    format!(
        "{} {at} {} {} {} spent={spent}{used}{set}{of_account}\n",
        key.id,
        key.status.name(),
        key.shown,
        key.name
    )
}

/// Prints one JSON document or the text. Stdout receives nothing else.
pub fn print(json: bool, value: &Value, text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{value}")
    } else {
        out.write_all(text.as_bytes())
    }
    .context("cannot write to stdout")
}
