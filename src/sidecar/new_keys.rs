//! Stores the new keys that pages currently show, and the tickets that open those pages.
//!
//! A ticket is valid only in the session that created the key. The key in plain text stays in
//! memory for about [`KEY_SHOWN_MS`], and a restart forgets it. This file must not write a key to
//! disk or to a log, and must not depend on a form or a page.

use super::display::Timestamp;
use accounts::NewKey;
use base::clock::now_ms;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// Time in ms for which the page of a new key shows it: 5 minutes.
pub const KEY_SHOWN_MS: i64 = 5 * 60_000;

/// Maximum number of keys in the table. At the limit, the oldest is dropped.
const MAX_SHOWN_KEYS: usize = 1_000;

/// Maximum number of keys of one session, so that no session displaces the keys of others.
const MAX_SHOWN_KEYS_PER_SESSION: usize = 20;

/// Interval at which expired keys are removed from memory, while there are any.
const REMOVAL_INTERVAL: Duration = Duration::from_secs(30);

/// Bytes of a nonce, and of each half of a ticket. The first half is a hash of the form, and the
/// second one a hash of the first. Both hashes include the session's token.
const TICKET_HALF_BYTES: usize = 8;

/// A key that a page currently shows.
pub struct TicketedKey {
    pub new: NewKey,
    /// Time until which the replaced key works.
    pub old_until: Option<Timestamp>,
    /// Id of the client whose set-up the page shows; empty if none was chosen.
    pub client: String,
}

/// The keys that pages currently show, by their tickets.
#[derive(Clone, Default)]
pub struct NewKeyTickets {
    table: Arc<Mutex<TicketTable>>,
    /// Held while a key is created, so that a form sent twice at once creates one key.
    creating: Arc<AsyncMutex<()>>,
}

#[derive(Default)]
struct TicketTable {
    /// Entries in the order of creation, the oldest first.
    entries: VecDeque<TicketEntry>,
    /// True if a task that removes expired entries is running.
    has_remover: bool,
}

struct TicketEntry {
    request: KeyRequest,
    until_ms: i64,
    key: Arc<TicketedKey>,
}

#[derive(Clone)]
pub struct KeyRequest {
    pub ticket: String,
    /// Hash of the session's token.
    pub session: [u8; 32],
}

/// Returns a random nonce for a form. The same form sent again has the same nonce.
///
/// # Errors
/// Returns an error if the system has no randomness.
pub fn new_nonce() -> Result<String, getrandom::Error> {
    let mut bytes = [0; TICKET_HALF_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(encode_hex(&bytes))
}

/// Returns whether a form's field has the shape of a nonce.
pub fn is_nonce(text: &str) -> bool {
    text.len() == 2 * TICKET_HALF_BYTES
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the ticket for a form of this session. The fields are part of the ticket, so a form that
/// was changed and sent again requests another key, whose page has another URL. A ticket is as long
/// as a token, so logs mask it.
pub fn ticket(session_token: &str, nonce: &str, fields_hash: &[u8; 32]) -> String {
    let fields = encode_hex(fields_hash);
    let text = format!("new key form of {session_token}, number {nonce}, fields {fields}");
    let hash = Sha256::digest(text.as_bytes());
    sign_form(session_token, &encode_hex(&hash[..TICKET_HALF_BYTES]))
}

/// Completes a ticket by appending the half that proves its session.
fn sign_form(session_token: &str, form: &str) -> String {
    let text = format!("new key ticket of {session_token} for {form}");
    let hash = Sha256::digest(text.as_bytes());
    format!("{form}{}", encode_hex(&hash[..TICKET_HALF_BYTES]))
}

/// Returns whether the ticket belongs to a form of this session, regardless of its age.
pub fn is_own_ticket(session_token: &str, text: &str) -> bool {
    text.get(..2 * TICKET_HALF_BYTES)
        .is_some_and(|form| sign_form(session_token, form) == text)
}

impl NewKeyTickets {
    /// Returns the key of a ticket, if the key's page still shows it.
    pub fn key(&self, ticket: &str, now_ms: i64) -> Option<Arc<TicketedKey>> {
        let table = self.lock_table();
        let is_shown =
            |entry: &&TicketEntry| entry.request.ticket == ticket && now_ms < entry.until_ms;
        let entry = table.entries.iter().find(is_shown)?;
        Some(Arc::clone(&entry.key))
    }

    /// Waits until no other key is being created.
    pub async fn lock_creation(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.creating).lock_owned().await
    }

    /// Adds a key. A task on `runtime` removes the key when its time is over.
    pub fn insert(&self, request: KeyRequest, key: TicketedKey, now_ms: i64, runtime: &Handle) {
        let mut table = self.lock_table();
        table.remove_expired(now_ms);
        let of_session = |entry: &TicketEntry| entry.request.session == request.session;
        let own = table.entries.iter().filter(|entry| of_session(entry));
        if own.count() >= MAX_SHOWN_KEYS_PER_SESSION {
            let oldest = table.entries.iter().position(of_session);
            oldest.and_then(|oldest| table.entries.remove(oldest));
        } else if table.entries.len() >= MAX_SHOWN_KEYS {
            table.entries.pop_front();
        }
        table.entries.push_back(TicketEntry {
            request,
            until_ms: now_ms.saturating_add(KEY_SHOWN_MS),
            key: Arc::new(key),
        });
        if !table.has_remover {
            table.has_remover = true;
            runtime.spawn(self.clone().remove_in_time(REMOVAL_INTERVAL));
        }
    }

    /// Removes expired keys until none are left.
    async fn remove_in_time(self, interval: Duration) {
        loop {
            tokio::time::sleep(interval).await;
            let mut table = self.lock_table();
            table.remove_expired(now_ms());
            if table.entries.is_empty() {
                table.has_remover = false;
                return;
            }
        }
    }

    fn lock_table(&self) -> MutexGuard<'_, TicketTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TicketTable {
    fn remove_expired(&mut self, now_ms: i64) {
        // A time later than any new one was stored before the clock was set back.
        let latest_ms = now_ms.saturating_add(KEY_SHOWN_MS);
        self.entries
            .retain(|entry| (now_ms + 1..=latest_ms).contains(&entry.until_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(session: u8, index: usize) -> KeyRequest {
        KeyRequest {
            ticket: ticket(
                &format!("session {session}"),
                &format!("{index:016x}"),
                &[0; 32],
            ),
            session: [session; 32],
        }
    }

    fn key(name: &str) -> TicketedKey {
        let new = NewKey {
            key_id: format!("key_{name}"),
            key: format!("text of {name}"),
            name: name.to_owned(),
        };
        TicketedKey {
            new,
            old_until: None,
            client: String::new(),
        }
    }

    fn shown(tickets: &NewKeyTickets, request: &KeyRequest, now_ms: i64) -> Option<String> {
        let key = tickets.key(&request.ticket, now_ms)?;
        Some(key.new.name.clone())
    }

    #[tokio::test]
    async fn a_key_is_shown_for_five_minutes() {
        let (tickets, runtime) = (NewKeyTickets::default(), Handle::current());
        tickets.insert(request(1, 1), key("a"), 1_000, &runtime);
        let of = request(1, 1);
        assert_eq!(shown(&tickets, &of, 300_999).as_deref(), Some("a"));
        assert_eq!(shown(&tickets, &of, 301_000), None);
        assert_eq!(shown(&tickets, &request(1, 2), 1_000), None);
        let mut table = tickets.lock_table();
        table.remove_expired(300_999);
        assert_eq!(table.entries.len(), 1);
        table.remove_expired(301_000);
        assert!(table.entries.is_empty(), "nothing is left in memory");
    }

    #[tokio::test]
    async fn the_number_of_shown_keys_has_a_limit_for_a_session_and_for_all() {
        let (tickets, runtime) = (NewKeyTickets::default(), Handle::current());
        for index in 0..=MAX_SHOWN_KEYS_PER_SESSION {
            tickets.insert(request(1, index), key("a"), 0, &runtime);
        }
        assert_eq!(
            tickets.lock_table().entries.len(),
            MAX_SHOWN_KEYS_PER_SESSION
        );
        assert_eq!(shown(&tickets, &request(1, 0), 0), None, "the oldest goes");
        assert!(shown(&tickets, &request(1, 1), 0).is_some());
        let sessions = u8::try_from(MAX_SHOWN_KEYS / MAX_SHOWN_KEYS_PER_SESSION).unwrap();
        for session in 2..=sessions + 1 {
            for index in 0..MAX_SHOWN_KEYS_PER_SESSION {
                tickets.insert(request(session, index), key("b"), 0, &runtime);
            }
        }
        assert_eq!(tickets.lock_table().entries.len(), MAX_SHOWN_KEYS);
        assert_eq!(shown(&tickets, &request(1, 1), 0), None);
        assert!(shown(&tickets, &request(2, 0), 0).is_some());
    }

    #[tokio::test]
    async fn a_key_whose_time_is_over_leaves_the_memory_by_itself() {
        let tickets = NewKeyTickets::default();
        // So long ago by the real clock that its time is over.
        tickets.insert(request(1, 1), key("a"), 0, &Handle::current());
        assert!(tickets.lock_table().has_remover);
        let remover = tickets.clone().remove_in_time(Duration::from_millis(1));
        remover.await;
        let table = tickets.lock_table();
        assert!(table.entries.is_empty() && !table.has_remover);
    }

    #[test]
    fn a_form_has_the_same_ticket_until_a_field_changes() {
        let of = |session: &str, nonce: &str, fields| ticket(session, nonce, &[fields; 32]);
        let own = of("session 1", "0123456789abcdef", 7);
        assert_eq!(of("session 1", "0123456789abcdef", 7), own);
        let others = [
            of("session 1", "0123456789abcdef", 8),
            of("session 1", "0123456789abcdee", 7),
            of("session 2", "0123456789abcdef", 7),
        ];
        for other in others {
            let first_half = |ticket: &str| ticket[..2 * TICKET_HALF_BYTES].to_owned();
            assert_ne!(first_half(&other), first_half(&own));
        }
    }

    #[test]
    fn a_ticket_opens_nothing_for_another_session() {
        let own = ticket("session 1", "0123456789abcdef", &[7; 32]);
        assert_eq!(own.len(), 32);
        assert!(is_own_ticket("session 1", &own));
        assert!(!is_own_ticket("session 2", &own));
        for other in ["", "x", "ä0123456789abcde", &own[..31], &format!("{own}0")] {
            assert!(!is_own_ticket("session 1", other), "{other}");
        }
        let path = format!("/dashboard/keys/new/{own}");
        let logged = base::telemetry::log_path::loggable_path(path.as_bytes());
        assert_eq!(logged, "/dashboard/keys/new/[masked]");
    }
}
