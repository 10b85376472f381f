//! A refused request, and those that wait for a write: how many are kept.
//!
//! This file must not know where they are written.

use llm_protocol::Protocol;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Days for which refusals are kept.
pub const KEPT_DAYS: i64 = 30;
/// Maximum number of an account's refusals that are listed: the newest. Others are only counted.
pub const MAX_LISTED: u32 = 1_000;

/// Maximum numbers of refusals that wait for a write, of all accounts and of one. Over them, the
/// oldest of the account, or the new one, is only counted.
pub const MAX_WAITING: usize = 10_000;
pub const MAX_WAITING_OF_ACCOUNT: usize = 200;
/// Maximum number of accounts whose refusals wait. Over it, a refusal is not recorded.
pub const MAX_WAITING_ACCOUNTS: usize = 10_000;
/// Maximum number of characters of a message that are kept.
pub const MAX_MESSAGE_CHARS: usize = 600;

/// A request that the gateway refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedRequest {
    pub request_id: String,
    pub account: Arc<str>,
    pub at_ms: i64,
    pub status: u16,
    /// Why, in one word, as the client got it.
    pub code: String,
    /// Why, in a sentence, as the client got it.
    pub message: String,
    pub surface: &'static str,
    /// Empty if the gateway did not get to know it.
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

/// What the next write enters.
#[derive(Default)]
pub struct WaitingRefusals {
    pub accounts: HashMap<Arc<str>, WaitingOfAccount>,
    /// Number of refusals with their details, of all accounts.
    pub listed: usize,
}

#[derive(Default)]
pub struct WaitingOfAccount {
    pub listed: VecDeque<RefusedRequest>,
    /// Number of refusals by day, status and code.
    pub counts: HashMap<(i64, u16, String), u64>,
}

impl WaitingRefusals {
    /// The account's part; `None` if too many accounts wait.
    fn account(&mut self, account: &Arc<str>) -> Option<&mut WaitingOfAccount> {
        if !self.accounts.contains_key(account) && self.accounts.len() >= MAX_WAITING_ACCOUNTS {
            return None;
        }
        Some(self.accounts.entry(Arc::clone(account)).or_default())
    }

    /// Counts refusals of an account. `reason`: day, status and code.
    pub fn count(&mut self, account: &Arc<str>, reason: (i64, u16, String), requests: u64) {
        if let Some(account) = self.account(account) {
            *account.counts.entry(reason).or_default() += requests;
        }
    }

    /// Adds a refusal to those that are listed, in the place of the account's oldest one if there
    /// are too many.
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

/// The surface with this name; empty for one that this version does not know.
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
