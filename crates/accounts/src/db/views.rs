//! The calls of `app.db`, grouped by subject. Functions take the whole [`AppDb`].
//!
//! This file must not contain behaviour: each is implemented where its statements are.

use super::AppDb;

/// Accounts, and who was deleted.
#[derive(Clone, Copy)]
pub struct AccountRows<'a>(pub(crate) &'a AppDb);

/// Invitations.
#[derive(Clone, Copy)]
pub struct InviteRows<'a>(pub(crate) &'a AppDb);

/// API keys, and the log of their changes.
#[derive(Clone, Copy)]
pub struct KeyRows<'a>(pub(crate) &'a AppDb);

/// Thresholds of alerts, and which have fired.
#[derive(Clone, Copy)]
pub struct AlertRows<'a>(pub(crate) &'a AppDb);

/// The administrators' actions, chained by hashes.
#[derive(Clone, Copy)]
pub struct AuditRows<'a>(pub(crate) &'a AppDb);

/// One-time links, and proofs of mailboxes.
#[derive(Clone, Copy)]
pub struct LinkRows<'a>(pub(crate) &'a AppDb);

/// The queue of mail.
#[derive(Clone, Copy)]
pub struct MailRows<'a>(pub(crate) &'a AppDb);

/// Orders of credits, and the payment provider's events.
#[derive(Clone, Copy)]
pub struct PaymentRows<'a>(pub(crate) &'a AppDb);

/// Dashboard sessions.
#[derive(Clone, Copy)]
pub struct SessionRows<'a>(pub(crate) &'a AppDb);

/// Webhooks, and the queue of their deliveries.
#[derive(Clone, Copy)]
pub struct WebhookRows<'a>(pub(crate) &'a AppDb);

impl AppDb {
    pub fn people(&self) -> AccountRows<'_> {
        AccountRows(self)
    }

    pub fn invites(&self) -> InviteRows<'_> {
        InviteRows(self)
    }

    pub fn keys(&self) -> KeyRows<'_> {
        KeyRows(self)
    }

    pub fn alerts(&self) -> AlertRows<'_> {
        AlertRows(self)
    }

    pub fn audit(&self) -> AuditRows<'_> {
        AuditRows(self)
    }

    pub fn links(&self) -> LinkRows<'_> {
        LinkRows(self)
    }

    pub fn mail(&self) -> MailRows<'_> {
        MailRows(self)
    }

    pub fn payments(&self) -> PaymentRows<'_> {
        PaymentRows(self)
    }

    pub fn sessions(&self) -> SessionRows<'_> {
        SessionRows(self)
    }

    pub fn webhooks(&self) -> WebhookRows<'_> {
        WebhookRows(self)
    }
}
