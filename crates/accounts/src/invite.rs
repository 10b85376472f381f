//! Manages invitations. If sign-up is by invitation only, each invitation code opens one account.
//!
//! A code is 128 random bits; the database has only its SHA-256. The transaction that opens the
//! account uses the code up, so only one of several simultaneous sign-ups with it succeeds. This
//! file must not depend on HTTP.

use super::audit::{AuditChange, AuditedAccounts};
use super::error::AccountError;
use super::limits::{MAX_INVITE_MS, MAX_INVITES_PER_BATCH};
use super::views::Invitations;
use crate::db::invites::InviteRow;
use ledger::StoreError;
use serde_json::json;
use sha2::{Digest, Sha256};

const PREFIX: &str = "invite-";

const MAX_OPEN_INVITES: i64 = 10_000;

/// An invitation without its code, for administrators.
#[derive(Debug, Clone)]
pub struct Invite {
    /// Start of the hash. It identifies the invitation and reveals nothing about the code.
    pub id: String,
    pub created_at_ms: i64,
    pub expires_at_ms: i64,
    pub created_by: String,
    pub used_by: Option<String>,
    pub withdrawn_at_ms: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InviteState {
    Open,
    Used,
    Withdrawn,
    Expired,
}

impl InviteState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Used => "used",
            Self::Withdrawn => "withdrawn",
            Self::Expired => "expired",
        }
    }
}

impl Invite {
    pub fn state(&self, now_ms: i64) -> InviteState {
        match (&self.used_by, self.withdrawn_at_ms) {
            (Some(_), _) => InviteState::Used,
            (None, Some(_)) => InviteState::Withdrawn,
            (None, None) if self.expires_at_ms <= now_ms => InviteState::Expired,
            (None, None) => InviteState::Open,
        }
    }
}

impl Invitations<'_> {
    /// Returns invitations, newest first; `before` is the id of the previous page's last one.
    /// Returns none if `before` is not a valid id.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn list(&self, before: Option<&str>, limit: u32) -> Result<Vec<Invite>, StoreError> {
        let before = match before.map(hash_prefix_from_id) {
            Some(None) => return Ok(Vec::new()),
            before => before.flatten(),
        };
        Ok(self
            .0
            .db
            .invites()
            .invites(before.as_ref(), limit)?
            .into_iter()
            .map(Invite::from)
            .collect())
    }

    /// Returns whether an invitation, by its id or its code, can still be used.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn is_open(&self, code_or_id: &str, now_ms: i64) -> Result<bool, StoreError> {
        hash_prefix(code_or_id).map_or(Ok(false), |start| {
            self.0.db.invites().is_open_invite(&start, now_ms)
        })
    }
}

impl AuditedAccounts<'_> {
    /// Creates `count` invitations with a lifetime of `good_for_ms`. The database has only the
    /// hashes, so the returned codes are the only copy.
    ///
    /// # Errors
    /// Returns an error if the count or the lifetime is too large, if there is no randomness, or if
    /// the database fails.
    pub fn create_invites(
        &self,
        count: u32,
        good_for_ms: i64,
    ) -> Result<Vec<String>, AccountError> {
        if !(1..=MAX_INVITES_PER_BATCH).contains(&count)
            || !(1..=MAX_INVITE_MS).contains(&good_for_ms)
        {
            return Err(AccountError::BadInvite);
        }
        let expires_at_ms = self.now_ms().saturating_add(good_for_ms);
        let codes = (0..count)
            .map(|_| generate_code())
            .collect::<Result<Vec<_>, _>>()?;
        let row = |code: &String| InviteRow {
            hash: hash_code(code),
            created_at_ms: self.now_ms(),
            expires_at_ms,
            created_by: self.actor().to_owned(),
            used_by: None,
            withdrawn_at_ms: None,
        };
        let rows: Vec<_> = codes.iter().map(row).collect();
        let ids: Vec<_> = rows.iter().map(|row| id_from_hash(&row.hash)).collect();
        let change = AuditChange::new(
            "invite.create",
            "sign-up",
            &json!({"ids": ids, "expires_at_ms": expires_at_ms}),
        );
        let is_inserted = self.accounts.db.invites().insert_invites(
            &rows,
            MAX_OPEN_INVITES,
            &self.audit_entry(&change),
        )?;
        if is_inserted {
            Ok(codes)
        } else {
            Err(AccountError::TooManyInvites)
        }
    }

    /// Revokes an open invitation, by its id or its code. Returns false if there is none.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn revoke_invite(&self, code_or_id: &str) -> Result<bool, StoreError> {
        let Some(start) = hash_prefix(code_or_id) else {
            return Ok(false);
        };
        let change = AuditChange::new(
            "invite.withdraw",
            &id_from_hash(&start),
            &json!({"status": "withdrawn"}),
        );
        self.accounts
            .db
            .invites()
            .revoke_invite(&start, self.now_ms(), &self.audit_entry(&change))
    }
}

impl From<InviteRow> for Invite {
    fn from(row: InviteRow) -> Self {
        let InviteRow {
            hash,
            created_at_ms,
            expires_at_ms,
            created_by,
            used_by,
            withdrawn_at_ms,
        } = row;
        Self {
            id: id_from_hash(&hash),
            created_at_ms,
            expires_at_ms,
            created_by,
            used_by,
            withdrawn_at_ms,
        }
    }
}

fn generate_code() -> Result<String, AccountError> {
    let mut bits = [0u8; 16];
    getrandom::fill(&mut bits).map_err(AccountError::Random)?;
    Ok(bits.iter().fold(PREFIX.to_owned(), |text, byte| {
        text + &format!("{byte:02x}")
    }))
}

/// Hashes a code. Blanks around the code are ignored, because people copy codes from e-mails.
pub(crate) fn hash_code(code: &str) -> [u8; 32] {
    Sha256::digest(code.trim().as_bytes()).into()
}

const ID_PREFIX: &str = "inv_";

/// Number of bytes of the hash in an id, enough to make ids unique.
const ID_BYTES: usize = 8;

fn id_from_hash(hash: &[u8]) -> String {
    hash.iter()
        .take(ID_BYTES)
        .fold(ID_PREFIX.to_owned(), |text, byte| {
            text + &format!("{byte:02x}")
        })
}

/// Returns the start of the hash of a code or an id; `None` if the text is neither.
fn hash_prefix(code_or_id: &str) -> Option<[u8; ID_BYTES]> {
    let text = code_or_id.trim();
    if text.starts_with(PREFIX) {
        return hash_code(text).first_chunk().copied();
    }
    hash_prefix_from_id(text)
}

fn hash_prefix_from_id(id: &str) -> Option<[u8; ID_BYTES]> {
    let digits = id
        .strip_prefix(ID_PREFIX)
        .filter(|digits| digits.len() == 2 * ID_BYTES)?;
    let number = digits
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit())
        .then(|| u64::from_str_radix(digits, 16).ok())?;
    number.map(u64::to_be_bytes)
}
