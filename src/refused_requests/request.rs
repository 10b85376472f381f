//! Defines a refused request, the refusals that wait for a write, and the limits on their number.
//!
//! This file must not write refusals.

use llm_protocol::Protocol;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of days for which refusals are kept.
pub const KEPT_DAYS: i64 = 30;
/// Maximum number of an account's newest refusals that are listed. Others are only counted.
pub const MAX_LISTED: u32 = 1_000;

/// Maximum number of refusals that wait for a write. Above it, the oldest refusal of the account,
/// or the new one, is only counted.
pub const MAX_WAITING: usize = 10_000;
pub const MAX_WAITING_OF_ACCOUNT: usize = 200;
/// Maximum number of accounts whose refusals wait for a write. Above it, a refusal is not recorded.
pub const MAX_WAITING_ACCOUNTS: usize = 10_000;
/// Maximum number of characters that are kept of a message.
pub const MAX_MESSAGE_CHARS: usize = 600;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedRequest {
    pub request_id: String,
    pub account: Arc<str>,
    pub at_ms: i64,
    pub status: u16,
    /// The reason in one word, as sent to the client.
    pub code: String,
    /// The reason as a sentence, as sent to the client.
    pub message: String,
    pub surface: &'static str,
    /// Id of the model. Empty if the refusal came before the model was known.
    pub model: String,
    pub key_id: Arc<str>,
    pub key_shown: Arc<str>,
}

impl RefusedRequest {
    pub fn shorten_message(&mut self) {
        if let Some((end, _)) = self.message.char_indices().nth(MAX_MESSAGE_CHARS) {
            self.message.truncate(end);
            self.message.push('…');
        }
    }
}

/// The refusals for the next write.
#[derive(Default)]
pub struct WaitingRefusals {
    pub accounts: HashMap<Arc<str>, WaitingOfAccount>,
    /// Number of refusals with details, over all accounts.
    pub listed: usize,
}

#[derive(Default)]
pub struct WaitingOfAccount {
    pub listed: VecDeque<RefusedRequest>,
    /// Number of refusals by day, status and code.
    pub counts: HashMap<(i64, u16, String), u64>,
}

impl WaitingRefusals {
    /// Returns the account's waiting refusals, or `None` if too many accounts wait.
    fn account(&mut self, account: &Arc<str>) -> Option<&mut WaitingOfAccount> {
        if !self.accounts.contains_key(account) && self.accounts.len() >= MAX_WAITING_ACCOUNTS {
            return None;
        }
        Some(self.accounts.entry(Arc::clone(account)).or_default())
    }

    /// Counts a refusal of an account. `reason` is the day, status and code.
    pub fn count(&mut self, account: &Arc<str>, reason: (i64, u16, String), requests: u64) {
        if let Some(account) = self.account(account) {
            *account.counts.entry(reason).or_default() += requests;
        }
    }

    /// Adds a refusal with its details. At the limit, it replaces the account's oldest.
    pub fn list(&mut self, refused: RefusedRequest) {
        let is_full = self.listed >= MAX_WAITING;
        let Some(account) = self.account(&refused.account) else {
            return;
        };
        let mut change = 0;
        if account.listed.len() >= MAX_WAITING_OF_ACCOUNT {
            account.listed.pop_front();
            account.listed.push_back(refused);
        } else if !is_full {
            account.listed.push_back(refused);
            change = 1;
        }
        self.listed += change;
    }
}

/// Returns the surface with this name, or an empty text for a name that this version does not know.
pub fn known_surface(name: &str) -> &'static str {
    [Protocol::Chat, Protocol::Messages, Protocol::Responses]
        .map(Protocol::as_str)
        .into_iter()
        .find(|known| *known == name)
        .unwrap_or_default()
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
