//! Defines the errors of actions on accounts.
//!
//! The messages are for people: the dashboard and the command line show them as they are. This file
//! must not depend on HTTP.

use super::limits::{
    MAX_CLAIMS, MAX_CODE_CREDITS, MAX_CODE_MS, MAX_CODES_PER_BATCH, MAX_INVITE_MS,
    MAX_INVITES_PER_BATCH, MAX_KEY_NAME_CHARS, MAX_LIVE_KEYS, MAX_MEMBERS,
    MAX_ORGANISATION_NAME_CHARS, MAX_OWNED,
};
use super::password::{self, MAX_CHARS as PASSWORD_MOST_CHARS, MIN_CHARS as PASSWORD_LEAST_CHARS};
use config::MAX_RATE;
use ledger::StoreError;
use std::fmt::Display;

#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    #[error(
        "this is not a valid e-mail address: it must be name@domain, at most 254 characters, without quotes, comments or brackets"
    )]
    BadEmail,
    #[error("this e-mail already has an account")]
    EmailTaken,
    #[error(
        "a password must have {PASSWORD_LEAST_CHARS} to {PASSWORD_MOST_CHARS} characters and must not be a common password or the account's e-mail"
    )]
    BadPassword,
    #[error("a key's name must have 1 to {MAX_KEY_NAME_CHARS} characters")]
    BadKeyName,
    #[error(
        "a key's name must be one line without invisible characters, such as tabs and zero-width spaces"
    )]
    HiddenCharInKeyName,
    #[error(
        "an account, or a member of an organisation, can have at most {MAX_LIVE_KEYS} active keys: revoke one first"
    )]
    TooManyKeys,
    #[error("the account does not exist")]
    NoAccount,
    #[error("the key does not exist or is revoked")]
    NoKey,
    #[error("a login has no key to rotate: its program does that every hour. To end it, revoke it")]
    IsLogin,
    #[error("a key can be restricted to at most 100 models, by their catalog ids")]
    BadModels,
    #[error("a rate limit must be at most {MAX_RATE}; 0 means no limit")]
    BadRate,
    #[error("sign-up is closed")]
    SignUpClosed,
    #[error("only addresses of these domains can sign up: {0}")]
    OtherDomain(String),
    #[error("the invite code is unknown, used or expired")]
    NoInvite,
    #[error("no trials are left today: the next ones are available from 00:00 UTC")]
    TrialsSpent,
    #[error("the number must be 1 to {MAX_INVITES_PER_BATCH}, and the validity at most {} days", MAX_INVITE_MS / 86_400_000)]
    BadInvite,
    #[error("give 1 to {MAX_CODES_PER_BATCH} codes, at most {MAX_CODE_CREDITS} credits each, an expiry within {} days, and at least 1 for each account", MAX_CODE_MS / 86_400_000)]
    BadCodes,
    #[error("too many invitations are open: revoke some, or wait until some are used or expire")]
    TooManyInvites,
    #[error(
        "an organisation's name must be one line of 1 to {MAX_ORGANISATION_NAME_CHARS} characters, none of them invisible"
    )]
    BadOrganisationName,
    #[error("a person can own at most {MAX_OWNED} organisations")]
    TooManyOrganisations,
    #[error("an organisation can have at most {MAX_MEMBERS} members and open invitations")]
    TooManyMembers,
    #[error("there is no such organisation, member, claimed domain or open invitation")]
    NoMember,
    #[error("your role in this organisation does not allow this: ask one of its owners")]
    NotAllowed,
    #[error("an organisation needs an owner: make another member an owner first")]
    LastOwner,
    #[error("this person is a member of the organisation already")]
    AlreadyMember,
    #[error("this invitation is for another e-mail: sign in with that one")]
    OtherAddress,
    #[error("this is not a domain: write what follows the @ of an address, such as example.com")]
    BadDomain,
    #[error("this domain is claimed already: `org show` of its organisation lists it")]
    DomainTaken,
    #[error("an organisation can claim at most {MAX_CLAIMS} domains")]
    TooManyClaims,
    #[error("cannot read random numbers: {0}")]
    Random(getrandom::Error),
    #[error(transparent)]
    KeyMove(#[from] KeyMoveRefusal),
    #[error(transparent)]
    Merge(#[from] MergeRefusal),
    #[error(transparent)]
    Password(#[from] password::HashError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The rule by which a key stays in its account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyMoveRefusal {
    #[error("the key belongs to this account already: choose another one")]
    SameAccount,
    #[error(
        "a login or a key of the playground is not moved: revoke it, and sign in or open the playground in the other account"
    )]
    StaysWithPerson,
    #[error("the key has expired: create a new one in the other account")]
    Expired,
    #[error(
        "the account that gets the key is deleted, suspended, or held because a payment was taken back: resume it first, or choose another one"
    )]
    ClosedAccount,
    #[error(
        "the account that gets the key is an administrator's, and the key could be used at the admin API: create a new key there"
    )]
    Administrator,
    #[error(
        "a key that is moved to an organisation becomes a member's: name a member of it with the role owner, admin or member"
    )]
    NoMember,
    #[error("only the keys of an organisation have a member: name none for a person's account")]
    NoOrganisation,
}

/// The rule by which an account is not merged into another one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeRefusal {
    #[error("an account cannot be merged into itself: name two accounts")]
    SameAccount,
    #[error("the account is deleted: there is nothing to merge")]
    Deleted,
    #[error(
        "the account is active: suspend it first, so that no request begins while it is merged"
    )]
    NotSuspended,
    #[error(
        "running requests hold credits of the account: merge it when they have ended (`account show` has nothing held)"
    )]
    Held,
    #[error(
        "credits of a payment that was taken back are still to be taken from the account: merge it when they are"
    )]
    OwesPayment,
    #[error(
        "the account that gets everything is deleted, suspended, or held because a payment was taken back: resume it first, or choose another one"
    )]
    ClosedAccount,
    #[error("an administrator's account is not merged: change its role first")]
    Administrator,
    #[error(
        "members of an organisation cannot become members of a person's account: remove them first, or merge it into an organisation"
    )]
    Members,
    #[error("the account of the member ends by the merge: name another member")]
    MemberEnds,
    #[error("the account was merged into {0}, and is deleted")]
    Merged(String),
    #[error("a merge of one of the accounts has not ended: complete it first with `{0}`")]
    Unfinished(String),
    #[error(
        "the merge has begun, but running requests still use credits of the account ({why}): complete it with `{command}` when they have ended"
    )]
    Running { why: String, command: String },
    #[error("the other account would have more credits than an account can have")]
    TooManyCredits,
}

/// An error of an action that the audit log records.
pub trait ActError: From<StoreError> + Display {
    /// Returns whether a rule forbade the action, so that nothing changed. Otherwise, a component
    /// failed.
    fn is_refusal(&self) -> bool;
}

impl ActError for StoreError {
    fn is_refusal(&self) -> bool {
        match self {
            Self::Sqlite { .. }
            | Self::SharedStore { .. }
            | Self::Postgres { .. }
            | Self::Io { .. } => false,
            Self::Unusable(_)
            | Self::NotHolder(_)
            | Self::Refused(_)
            | Self::Held(_)
            | Self::Unknown(_)
            | Self::SegmentUnavailable(_)
            | Self::ReferenceUsed(_) => true,
        }
    }
}

impl ActError for AccountError {
    fn is_refusal(&self) -> bool {
        match self {
            Self::Store(error) => error.is_refusal(),
            Self::Random(_) | Self::Password(_) => false,
            _ => true,
        }
    }
}
