//! Reads the section `notifications`, with the messages to account holders, and the key `support`,
//! with the contact for their questions.
//!
//! This file must not open a connection.

use super::raw;
use super::validator::ConfigValidator;
use crate::address::Network;

/// Maximum number of private networks. The number is bounded because each address of a webhook is
/// compared with all of them.
const MAX_PRIVATE_NETWORKS: usize = 256;

/// Maximum length of `support`, in characters.
const MAX_SUPPORT_CHARS: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotificationSettings {
    /// True if account holders may set a webhook.
    pub webhooks: bool,
    /// Private networks that webhooks may reach.
    pub private_networks: Vec<Network>,
}

/// The contact for account holders' questions, which pages show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupportContact {
    pub text: String,
    /// True if the text is an address to which a page may link.
    pub is_link: bool,
}

impl SupportContact {
    /// Returns the text for readers, which is a mail address without its scheme.
    pub fn shown(&self) -> &str {
        self.text.strip_prefix("mailto:").unwrap_or(&self.text)
    }
}

impl ConfigValidator {
    pub(super) fn notifications(&mut self, section: &raw::Notifications) -> NotificationSettings {
        let listed = &section.private_networks;
        if listed.len() > MAX_PRIVATE_NETWORKS {
            self.add_fault(
                "notifications.private_networks",
                format!(
                    "has {} entries; at most {MAX_PRIVATE_NETWORKS} are allowed",
                    listed.len()
                ),
            );
        }
        let mut private_networks = Vec::new();
        for (index, text) in listed.iter().enumerate() {
            let key = format!("notifications.private_networks[{index}]");
            match text.parse::<Network>() {
                Ok(network) if network.covers_all() => self.add_fault(
                    key,
                    "covers every address, so any account holder could reach any service of your \
                     network: list only the networks of the receivers",
                ),
                Ok(network) => private_networks.push(network),
                Err(error) => self.add_fault(key, format!("{error}: {text:?}")),
            }
        }
        NotificationSettings {
            webhooks: section.webhooks,
            private_networks,
        }
    }

    pub(super) fn support(&mut self, text: &str) -> Option<SupportContact> {
        let text = text.trim();
        let length = text.chars().count();
        if length > MAX_SUPPORT_CHARS {
            let says = format!("must have at most {MAX_SUPPORT_CHARS} characters, not {length}");
            self.add_fault("support", says);
        }
        if text.chars().any(char::is_control) {
            self.add_fault("support", "must be one line, without control characters");
        }
        let is_link = ["https://", "http://", "mailto:"]
            .iter()
            .any(|scheme| text.starts_with(scheme));
        if is_link && text.contains(char::is_whitespace) {
            self.add_fault(
                "support",
                "is an address with a space: write a text or an address",
            );
        }
        (!text.is_empty()).then(|| SupportContact {
            text: text.to_owned(),
            is_link,
        })
    }
}
