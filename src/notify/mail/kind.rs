//! What a mail is about, and for how long it is worth sending.
//!
//! This file must not know a text.

use accounts::LinkPurpose;

const HOUR_MS: i64 = 3_600_000;

/// Time after which a mail that could not be sent fails.
pub(super) const LIFETIME_MS: i64 = 24 * HOUR_MS;

/// The same for a link that resets a password: its holder has asked for another one by then.
const RESET_LIFETIME_MS: i64 = HOUR_MS;

/// What a mail is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailKind {
    /// A link that sets a new password.
    Reset,
    /// A link that sets the first password.
    Setup,
    /// A link that verifies the e-mail.
    Verify,
    /// The balance is below a threshold: `balance`, `threshold`.
    LowBalance,
    /// The spend of a period is above a threshold: `spent`, `threshold`, `period`.
    Spend,
    /// The gateway no longer calls a webhook: `url`, `because`.
    WebhookDisabled,
    /// An operator tries whether mail works.
    Test,
}

impl MailKind {
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Setup,
        Self::Verify,
        Self::LowBalance,
        Self::Spend,
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
            Self::WebhookDisabled => "webhook_disabled",
            Self::Test => "test",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// What the link in the mail is for, if it has one.
    pub(super) fn link_purpose(self) -> Option<LinkPurpose> {
        match self {
            Self::Reset => Some(LinkPurpose::Reset),
            Self::Setup => Some(LinkPurpose::Setup),
            Self::Verify => Some(LinkPurpose::Verify),
            Self::LowBalance | Self::Spend | Self::WebhookDisabled | Self::Test => None,
        }
    }

    /// Time after which a mail of this kind that could not be sent fails.
    pub(super) fn lifetime_ms(self) -> i64 {
        if self == Self::Reset {
            RESET_LIFETIME_MS
        } else {
            LIFETIME_MS
        }
    }
}
