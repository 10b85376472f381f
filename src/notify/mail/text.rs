//! Writes the texts of mails in plain English. One paragraph describes the event, and one the
//! action to take.
//!
//! This file must not send mail.

use super::kind::MailKind;
use serde_json::Value;

/// Maximum length of a value in a text, in characters.
const MAX_VALUE_CHARS: usize = 200;

/// Subject and body of a mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MailText {
    pub subject: String,
    pub body: String,
}

impl MailText {
    /// Creates the text. `detail` is a JSON object with the values of this kind, `link` is set for
    /// kinds that have one, and `product` is the name of the product.
    pub(super) fn new(
        kind: MailKind,
        detail: &str,
        link: Option<&str>,
        base_url: &str,
        product: &str,
    ) -> Self {
        let detail: Value = serde_json::from_str(detail).unwrap_or_default();
        let value = |name: &str| printable(detail[name].as_str().unwrap_or("?"));
        let link = link.unwrap_or(base_url);
        let own_subject = value("subject");
        let (subject, text) = match kind {
            MailKind::Reset => (
                "Set a new password",
                format!(
                    "Somebody asked for a new password for your account at {base_url}.\n\n\
                     To set it, open this link. It works once, for 60 minutes:\n\n{link}\n\n\
                     If it was not you, ignore this mail: your password stays as it is.\n"
                ),
            ),
            MailKind::Setup => (
                "Set your password",
                format!(
                    "You have an account at {base_url}.\n\n\
                     To set its password, open this link. It works once, for 72 hours:\n\n{link}\n"
                ),
            ),
            MailKind::Verify => (
                "Confirm your e-mail",
                format!(
                    "Somebody opened an account at {base_url} with this e-mail.\n\n\
                     If it was you, open this link. It works once, for 24 hours:\n\n{link}\n\n\
                     If it was not you, ignore this mail.\n"
                ),
            ),
            MailKind::LowBalance => (
                "Your balance is low",
                format!(
                    "Your account at {base_url} has {} credits left. You asked for a mail below \
                     {} credits.\n\n\
                     Without credits, the gateway refuses your requests.\n",
                    value("balance"),
                    value("threshold")
                ),
            ),
            MailKind::Spend => (
                "You have spent more than you planned",
                format!(
                    "Your account at {base_url} has spent {} credits in this {}. You asked for a \
                     mail above {} credits.\n\n\
                     The gateway does not stop your requests for that. To limit a key, open \
                     {base_url}/dashboard/keys\n",
                    value("spent"),
                    value("period"),
                    value("threshold")
                ),
            ),
            MailKind::Payment => (
                own_subject.as_str(),
                format!(
                    "At {base_url}: {}\n\nTo see the payments, open {}\n",
                    value("text"),
                    value("page")
                ),
            ),
            MailKind::WebhookDisabled => (
                "Your webhook was turned off",
                format!(
                    "The gateway at {base_url} no longer calls your webhook {}: {}\n\n\
                     To turn it on again, open {base_url}/dashboard/alerts\n",
                    value("url"),
                    value("because")
                ),
            ),
            MailKind::Test => (
                "Test mail",
                format!("This mail shows that the gateway at {base_url} can send mail.\n"),
            ),
        };
        Self {
            subject: format!("{product}: {subject}"),
            body: text,
        }
    }
}

/// Returns a text on one line, truncated to the maximum length.
pub(super) fn printable(text: &str) -> String {
    text.chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(MAX_VALUE_CHARS)
        .collect()
}
