//! Lists the kinds of mail, and the time for which each one is worth sending.
//!
//! This file must not contain a text.

use accounts::LinkPurpose;

const HOUR_MS: i64 = 3_600_000;

/// Time in ms after which a mail that could not be sent fails.
pub(super) const LIFETIME_MS: i64 = 24 * HOUR_MS;

/// Lifetime in ms of a mail that resets a password. After that time, its recipient has probably
/// requested another one.
const RESET_LIFETIME_MS: i64 = HOUR_MS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailKind {
    /// A link that sets a new password.
    Reset,
    /// A link that sets the first password.
    Setup,
    /// A link that verifies the e-mail.
    Verify,
    /// The balance is below a threshold. The values are `balance` and `threshold`.
    LowBalance,
    /// The spend of a period is above a threshold. The values are `spent`, `threshold` and
    /// `period`.
    Spend,
    /// A notice about a payment. The values are `subject`, `text` and `page`.
    Payment,
    /// The gateway no longer calls a webhook. The values are `url` and `because`.
    WebhookDisabled,
    /// An operator tests whether mail works.
    Test,
}

impl MailKind {
    pub const ALL: [Self; 8] = [
        Self::Reset,
        Self::Setup,
        Self::Verify,
        Self::LowBalance,
        Self::Spend,
        Self::Payment,
        Self::WebhookDisabled,
        Self::Test,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Setup => "setup",
            Self::Verify => "verify",
            Self::LowBalance => "low_balance",
            Self::Spend => "spend",
            Self::Payment => "payment",
            Self::WebhookDisabled => "webhook_disabled",
            Self::Test => "test",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the purpose of the link in the mail, if it has a link.
    pub(super) fn link_purpose(self) -> Option<LinkPurpose> {
        match self {
            Self::Reset => Some(LinkPurpose::Reset),
            Self::Setup => Some(LinkPurpose::Setup),
            Self::Verify => Some(LinkPurpose::Verify),
            Self::LowBalance | Self::Spend | Self::Payment | Self::WebhookDisabled | Self::Test => {
                None
            }
        }
    }

    /// Returns the time in ms after which a mail of this kind that could not be sent fails.
    pub(super) fn lifetime_ms(self) -> i64 {
        if self == Self::Reset {
            RESET_LIFETIME_MS
        } else {
            LIFETIME_MS
        }
    }
}
