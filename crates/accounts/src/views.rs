//! The calls of the accounts, grouped by subject. Functions take the whole [`Accounts`].
//!
//! This file must not contain behaviour: each is implemented in a file of its own.

use super::accounts::Accounts;

/// API keys: who calls, and with which settings.
#[derive(Clone, Copy)]
pub struct ApiKeys<'a>(pub(crate) &'a Accounts);

/// Dashboard sessions, and passwords in them.
#[derive(Clone, Copy)]
pub struct Logins<'a>(pub(crate) &'a Accounts);

/// One-time links, and proofs of mailboxes.
#[derive(Clone, Copy)]
pub struct OneTimeLinks<'a>(pub(crate) &'a Accounts);

/// The queue of mail.
#[derive(Clone, Copy)]
pub struct MailQueue<'a>(pub(crate) &'a Accounts);

/// Lists and counts of accounts.
#[derive(Clone, Copy)]
pub struct AccountDirectory<'a>(pub(crate) &'a Accounts);

/// The actions of administrators, as they were logged.
#[derive(Clone, Copy)]
pub struct AuditLog<'a>(pub(crate) &'a Accounts);

/// Invitations, as administrators see them.
#[derive(Clone, Copy)]
pub struct Invitations<'a>(pub(crate) &'a Accounts);

impl Accounts {
    pub fn api_keys(&self) -> ApiKeys<'_> {
        ApiKeys(self)
    }

    pub fn logins(&self) -> Logins<'_> {
        Logins(self)
    }

    pub fn one_time_links(&self) -> OneTimeLinks<'_> {
        OneTimeLinks(self)
    }

    pub fn mails(&self) -> MailQueue<'_> {
        MailQueue(self)
    }

    pub fn directory(&self) -> AccountDirectory<'_> {
        AccountDirectory(self)
    }

    pub fn audit_log(&self) -> AuditLog<'_> {
        AuditLog(self)
    }

    pub fn invitations(&self) -> Invitations<'_> {
        Invitations(self)
    }
}
