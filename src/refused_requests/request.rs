//! Defines a refused request, what waits for a write, and the limits on its number.
//!
//! This file must not know where it is written.

use super::note::RequestNote;
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
    /// Number of notes, of all accounts.
    pub noted: usize,
}

#[derive(Default)]
pub struct WaitingOfAccount {
    pub listed: VecDeque<RefusedRequest>,
    pub notes: VecDeque<RequestNote>,
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
        self.listed += usize::from(push_bounded(&mut account.listed, refused, is_full));
    }

    /// Adds a note, in the place of the account's oldest one if there are too many.
    pub fn note(&mut self, note: RequestNote) {
        let is_full = self.noted >= MAX_WAITING;
        let Some(account) = self.account(&note.account) else {
            return;
        };
        self.noted += usize::from(push_bounded(&mut account.notes, note, is_full));
    }
}

/// Returns whether the queue is longer now. `is_full`: there is no room for one more of any
/// account.
fn push_bounded<T>(queue: &mut VecDeque<T>, item: T, is_full: bool) -> bool {
    let is_replaced = queue.len() >= MAX_WAITING_OF_ACCOUNT;
    if is_replaced {
        queue.pop_front();
    } else if is_full {
        return false;
    }
    queue.push_back(item);
    !is_replaced
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
