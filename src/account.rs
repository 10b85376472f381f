//! Accounts, their API keys and their dashboard sessions: who can call, and which account pays.
//!
//! The edge needs only [`Accounts::authenticate`], or [`SharedKeys`] with a shared store. The owner
//! of a key is cached (`store/row_cache.rs`): a change by this process (a revocation, a suspension)
//! applies to the next request, a change by another process at most a millisecond later. Must not
//! know HTTP or money. Read next: `account/accounts.rs` and `account/api_key.rs`, `account/key.rs`
//! (the format of a key), `account/sign_up.rs`, `account/session.rs`, `store/app.rs` and
//! `store/app/rows.rs` (the rows).

mod accounts;
mod api_key;
mod audit;
mod delete;
mod error;
mod id;
mod invite;
mod key;
mod limits;
mod links;
mod lookup_budget;
mod mail;
mod mailbox;
mod password;
mod playground;
mod principal;
mod publication;
mod search;
mod session;
mod settings;
mod shared;
mod sign_up;
#[cfg(test)]
mod tests;
mod usage;

pub use crate::store::app::Role;
pub use crate::store::key_settings::{KeyScope, KeySettings, RateSettings};
pub use accounts::{Account, AccountStatus, Accounts};
pub use api_key::{ApiKey, ApiKeyStatus, NewKey};
pub use audit::{Actor, AuditLogReport, AuditedAccounts};
pub use delete::CloseAccountOutcome;
pub use error::AccountError;
pub use invite::{Invite, InviteState};
#[cfg(test)]
pub use key::generate as generate_key;
pub use key::is_well_formed as parse_key;
pub use limits::{MAX_INVITE_MS, MAX_INVITES_PER_BATCH, MAX_KEY_NAME_CHARS, MAX_LIVE_KEYS};
pub use links::{LinkPurpose, NewOneTimeLink, OneTimeLink};
pub use mailbox::email_key;
pub use password::{
    MAX_CHARS as PASSWORD_MOST_CHARS, MIN_CHARS as PASSWORD_LEAST_CHARS,
    generate as random_password,
};
pub use playground::NewPlaygroundKey;
pub use principal::{AuthError, Principal};
pub use search::AccountCounts;
pub use session::{NewSession, Session, SessionOrigin, SessionSummary, csrf_token, session_id};
pub use shared::SharedKeys;
pub use sign_up::{
    NewAccount, SignUpForm, SignUpResult, complete_sign_ups, open_account, open_account_as,
    open_without_credit, sign_up, sign_up_unverified,
};
