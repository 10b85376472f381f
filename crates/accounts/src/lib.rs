//! Manages accounts, their API keys and their dashboard sessions. They determine who can call, and
//! which account pays.
//!
//! An edge needs only [`ApiKeys::authenticate`]; with a shared store, it reads the keys there. The
//! owner of a key is cached (`crates/ledger/src/sqlite/row_cache.rs`): a revocation by this process
//! applies to the next request, and one by another process at most 50 ms later. This module must
//! not depend on HTTP or money. Read next: `accounts.rs` and `api_key.rs`, `key.rs` (the format of
//! a key), `sign_up.rs`, `session.rs`, `db.rs` and `db/rows.rs` (the rows).

#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test reads from top to bottom")
)]

mod account_merge;
mod accounts;
mod api_key;
mod audit;
mod code;
pub mod db;
mod delete;
mod device_logins;
mod directory;
mod error;
mod id;
mod identities;
mod invite;
mod key;
mod key_move;
mod key_settings;
mod limits;
mod links;
mod mailbox;
mod membership;
mod organisations;
mod password;
mod playground;
pub mod prices;
mod principal;
mod session;
mod settings;
mod sign_up;
#[cfg(test)]
mod tests;
mod views;

pub use crate::account_merge::{MovedParts, StoredMerge};
pub use crate::accounts::{Account, AccountStatus, Accounts};
pub use crate::db::{KeyMember, Role, membership_id};
pub use crate::key_settings::{KeyScope, KeySettings, KeySettingsPatch, RateSettings, RatesPatch};
pub use api_key::{ApiKey, ApiKeyStatus, KeyHolder, NewKey};
pub use audit::{Actor, AuditLogReport, AuditedAccounts, MERGE_REFERENCES};
pub use code::{CodeState, CreatedCodes, NewCodes, code_id, hash_code};
pub use delete::CloseAccountOutcome;
pub use device_logins::{
    DEVICE_REQUEST_MS, DevicePoll, LOGIN_TOKEN_MS, LoginRefresh, LoginTokens, NewDeviceRequest,
};
pub use directory::AccountCounts;
pub use error::{AccountError, KeyMoveRefusal, MergeRefusal};
pub use identities::{Identity, ProviderIdentity, UnlinkOutcome};
pub use invite::{Invite, InviteState};
#[cfg(any(test, feature = "fixtures"))]
pub use key::generate as generate_key;
pub use key::{
    PREFIX as KEY_PREFIX, hash as hash_key, is_well_formed as parse_key,
    shown_text as shown_key_text,
};
pub use limits::{
    MAX_CODE_CREDITS, MAX_CODE_MS, MAX_CODES_PER_BATCH, MAX_INVITE_MS, MAX_INVITES_PER_BATCH,
    MAX_KEY_NAME_CHARS, MAX_LIVE_KEYS, MAX_ORGANISATION_NAME_CHARS,
};
pub use links::{LinkPurpose, NewOneTimeLink, OneTimeLink};
pub use mailbox::email_key;
pub use membership::{MemberAction, OrganisationRole};
pub use organisations::{
    FirstProofEnds, Member, MemberAuthority, MemberEdit, MemberInvite, Membership, NewMemberInvite,
    UnprovenOrganisation,
};
pub use password::{
    MAX_CHARS as PASSWORD_MOST_CHARS, MIN_CHARS as PASSWORD_LEAST_CHARS,
    generate as random_password,
};
pub use playground::NewPlaygroundKey;
pub use principal::{AuthError, KeyIdentity, Principal};
pub use session::{NewSession, Session, SessionOrigin, SessionSummary, csrf_token, session_id};
pub use sign_up::{
    NewAccount, SignUpForm, SignUpResult, complete_sign_ups, open_account, open_account_as,
    open_without_credit, sign_up, sign_up_unverified, sign_up_with_identity,
};
pub use views::{
    AccountDirectory, ApiKeys, AuditLog, Codes, DeviceLogins, Identities, Invitations, Logins,
    OneTimeLinks, Organisations,
};
