//! Splits [`AppDb`] into views, one for each subject, so that callers see only related functions.
//!
//! This file must not contain behaviour; each view is implemented beside its SQL statements.

use super::AppDb;

#[derive(Clone, Copy)]
pub struct AccountRows<'a>(pub(crate) &'a AppDb);

/// Reads and writes merges of accounts into others.
#[derive(Clone, Copy)]
pub struct MergeRows<'a>(pub(crate) &'a AppDb);

#[derive(Clone, Copy)]
pub struct InviteRows<'a>(pub(crate) &'a AppDb);

/// Reads and writes API keys and the log of their changes.
#[derive(Clone, Copy)]
pub struct KeyRows<'a>(pub(crate) &'a AppDb);

/// Reads and writes alert rules and fired alerts.
#[derive(Clone, Copy)]
pub struct AlertRows<'a>(pub(crate) &'a AppDb);

/// Reads and appends the administrators' actions, which hashes chain.
#[derive(Clone, Copy)]
pub struct AuditRows<'a>(pub(crate) &'a AppDb);

/// Reads and writes automatic top-ups and saved payment methods.
#[derive(Clone, Copy)]
pub struct AutoTopUpRows<'a>(pub(crate) &'a AppDb);

/// Reads and writes one-time links and verified e-mails.
#[derive(Clone, Copy)]
pub struct LinkRows<'a>(pub(crate) &'a AppDb);

/// Identities at providers, and sign-ins that are under way.
#[derive(Clone, Copy)]
pub struct IdentityRows<'a>(pub(crate) &'a AppDb);

/// Codes that are redeemed for credits.
#[derive(Clone, Copy)]
pub struct CodeRows<'a>(pub(crate) &'a AppDb);

/// Reads and writes sign-ins of programs, and their logins.
#[derive(Clone, Copy)]
pub struct DeviceLoginRows<'a>(pub(crate) &'a AppDb);

#[derive(Clone, Copy)]
pub struct MailRows<'a>(pub(crate) &'a AppDb);

/// Reads and writes organisations, their members and invitations.
#[derive(Clone, Copy)]
pub struct OrganisationRows<'a>(pub(crate) &'a AppDb);

/// Reads and writes orders of credits.
#[derive(Clone, Copy)]
pub struct PaymentRows<'a>(pub(crate) &'a AppDb);

/// Records which part of paid orders is taken back.
#[derive(Clone, Copy)]
pub struct ClawbackRows<'a>(pub(crate) &'a AppDb);

/// Records which events of the payment provider were handled.
#[derive(Clone, Copy)]
pub struct PaymentEventRows<'a>(pub(crate) &'a AppDb);

impl<'a> PaymentRows<'a> {
    pub fn clawbacks(self) -> ClawbackRows<'a> {
        ClawbackRows(self.0)
    }

    pub fn events(self) -> PaymentEventRows<'a> {
        PaymentEventRows(self.0)
    }
}

/// What operators read of all payments and order for them.
#[derive(Clone, Copy)]
pub struct PaymentBookRows<'a>(pub(crate) &'a AppDb);

#[derive(Clone, Copy)]
pub struct SessionRows<'a>(pub(crate) &'a AppDb);

/// Reads and writes webhooks and the queue of their deliveries.
#[derive(Clone, Copy)]
pub struct WebhookRows<'a>(pub(crate) &'a AppDb);

impl AppDb {
    pub fn people(&self) -> AccountRows<'_> {
        AccountRows(self)
    }

    pub fn merges(&self) -> MergeRows<'_> {
        MergeRows(self)
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

    pub fn auto_topups(&self) -> AutoTopUpRows<'_> {
        AutoTopUpRows(self)
    }

    pub fn identities(&self) -> IdentityRows<'_> {
        IdentityRows(self)
    }

    pub fn links(&self) -> LinkRows<'_> {
        LinkRows(self)
    }

    pub fn mail(&self) -> MailRows<'_> {
        MailRows(self)
    }

    pub fn codes(&self) -> CodeRows<'_> {
        CodeRows(self)
    }

    pub fn device_logins(&self) -> DeviceLoginRows<'_> {
        DeviceLoginRows(self)
    }

    pub fn organisations(&self) -> OrganisationRows<'_> {
        OrganisationRows(self)
    }

    pub fn payments(&self) -> PaymentRows<'_> {
        PaymentRows(self)
    }

    pub fn payment_book(&self) -> PaymentBookRows<'_> {
        PaymentBookRows(self)
    }

    pub fn sessions(&self) -> SessionRows<'_> {
        SessionRows(self)
    }

    pub fn webhooks(&self) -> WebhookRows<'_> {
        WebhookRows(self)
    }
}
