//! Splits [`Accounts`] into views, one for each subject, so that callers see only related
//! functions.
//!
//! This file must not contain behaviour; each view is implemented in its own file.

use super::accounts::Accounts;
use crate::db::MailRows;

/// Authenticates and manages API keys and their settings.
#[derive(Clone, Copy)]
pub struct ApiKeys<'a>(pub(crate) &'a Accounts);

/// Manages dashboard sessions and passwords.
#[derive(Clone, Copy)]
pub struct Logins<'a>(pub(crate) &'a Accounts);

/// Manages one-time links and verified e-mails.
#[derive(Clone, Copy)]
pub struct OneTimeLinks<'a>(pub(crate) &'a Accounts);

/// Identities at providers, and sign-ins that are under way.
#[derive(Clone, Copy)]
pub struct Identities<'a>(pub(crate) &'a Accounts);

#[derive(Clone, Copy)]
pub struct AccountDirectory<'a>(pub(crate) &'a Accounts);

/// Merges of accounts into others.
#[derive(Clone, Copy)]
pub struct Merges<'a>(pub(crate) &'a Accounts);

/// Reads the logged actions of administrators.
#[derive(Clone, Copy)]
pub struct AuditLog<'a>(pub(crate) &'a Accounts);

/// Codes that are redeemed for credits.
#[derive(Clone, Copy)]
pub struct Codes<'a>(pub(crate) &'a Accounts);

/// Sign-ins of programs, and the logins that they get.
#[derive(Clone, Copy)]
pub struct DeviceLogins<'a>(pub(crate) &'a Accounts);

/// Manages organisations, their members and invitations.
#[derive(Clone, Copy)]
pub struct Organisations<'a>(pub(crate) &'a Accounts);

/// Lists invitations for administrators.
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

    pub fn identities(&self) -> Identities<'_> {
        Identities(self)
    }

    /// Returns the queue of mails, which `notify/mail.rs` fills and empties.
    pub fn mails(&self) -> MailRows<'_> {
        self.db.mail()
    }

    pub fn directory(&self) -> AccountDirectory<'_> {
        AccountDirectory(self)
    }

    pub fn merges(&self) -> Merges<'_> {
        Merges(self)
    }

    pub fn audit_log(&self) -> AuditLog<'_> {
        AuditLog(self)
    }

    pub fn codes(&self) -> Codes<'_> {
        Codes(self)
    }

    pub fn device_logins(&self) -> DeviceLogins<'_> {
        DeviceLogins(self)
    }

    pub fn organisations(&self) -> Organisations<'_> {
        Organisations(self)
    }

    pub fn invitations(&self) -> Invitations<'_> {
        Invitations(self)
    }
}
