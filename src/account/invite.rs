//! Invitations: codes that open one account each, where sign-up is for the invited.
//!
//! A code is 128 random bits; only its SHA-256 is kept. It is used up in the transaction that opens
//! the account, so of many who try it at once one gets in. Must not know HTTP.

use super::audit::Told;
use super::{AccountError, Accounts, Acting};
use crate::store::StoreError;
use crate::store::app::people::InviteRow;
use serde_json::json;
use sha2::{Digest, Sha256};

const PREFIX: &str = "invite-";

/// Codes made at one time.
pub const INVITES_AT_ONCE_MAX: u32 = 100;

/// Invitations that are open at one time.
const OPEN_MAX: i64 = 10_000;

/// How long an invitation may be good.
pub const INVITE_MS_MAX: i64 = 365 * 86_400_000;

/// An invitation as an administrator sees it afterwards.
#[derive(Debug, Clone)]
pub struct Invite {
    /// Enough to tell invitations apart: the start of the hash, which tells nothing of the code.
    pub id: String,
    pub created_at_ms: i64,
    pub expires_at_ms: i64,
    pub created_by: String,
    pub used_by: Option<String>,
    pub withdrawn_at_ms: Option<i64>,
}

/// What an invitation is good for.
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

impl Accounts {
    /// Invitations, the newest first; `before` is the id of the last one of the page before. Behind
    /// what is no id of any there are none.
    ///
    /// # Errors
    /// The store failed.
    pub fn invites(&self, before: Option<&str>, limit: u32) -> Result<Vec<Invite>, StoreError> {
        let before = match before.map(start_of_id) {
            Some(None) => return Ok(Vec::new()),
            before => before.flatten(),
        };
        Ok(self
            .db
            .invites(before.as_ref(), limit)?
            .into_iter()
            .map(Invite::from)
            .collect())
    }
}

impl Acting<'_> {
    /// Makes `count` invitations that are good for `good_for_ms`. Only their hashes are kept: the
    /// codes in the answer are all there will ever be.
    ///
    /// # Errors
    /// Too many or too long, no randomness, or the store failed.
    pub fn invite(&self, count: u32, good_for_ms: i64) -> Result<Vec<String>, AccountError> {
        if !(1..=INVITES_AT_ONCE_MAX).contains(&count)
            || !(1..=INVITE_MS_MAX).contains(&good_for_ms)
        {
            return Err(AccountError::BadInvite);
        }
        let expires_at_ms = self.now_ms().saturating_add(good_for_ms);
        let codes = (0..count)
            .map(|_| new_code())
            .collect::<Result<Vec<_>, _>>()?;
        let row = |code: &String| InviteRow {
            hash: hash(code),
            created_at_ms: self.now_ms(),
            expires_at_ms,
            created_by: self.actor().to_owned(),
            used_by: None,
            withdrawn_at_ms: None,
        };
        let rows: Vec<_> = codes.iter().map(row).collect();
        let ids: Vec<_> = rows.iter().map(|row| id(&row.hash)).collect();
        let told = Told::new(
            "invite.create",
            "sign-up",
            &json!({"ids": ids, "expires_at_ms": expires_at_ms}),
        );
        let is_kept = self
            .accounts
            .db
            .insert_invites(&rows, OPEN_MAX, &self.act(&told))?;
        if is_kept {
            Ok(codes)
        } else {
            Err(AccountError::TooManyInvites)
        }
    }

    /// Takes an invitation back, by its id or its code. Says whether there was such an open one.
    ///
    /// # Errors
    /// The store failed.
    pub fn withdraw_invite(&self, code_or_id: &str) -> Result<bool, StoreError> {
        let Some(start) = start_of(code_or_id) else {
            return Ok(false);
        };
        let told = Told::new(
            "invite.withdraw",
            &id(&start),
            &json!({"status": "withdrawn"}),
        );
        self.accounts
            .db
            .withdraw_invite(&start, self.now_ms(), &self.act(&told))
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
            id: id(&hash),
            created_at_ms,
            expires_at_ms,
            created_by,
            used_by,
            withdrawn_at_ms,
        }
    }
}

fn new_code() -> Result<String, AccountError> {
    let mut bits = [0u8; 16];
    getrandom::fill(&mut bits).map_err(AccountError::Random)?;
    Ok(bits.iter().fold(PREFIX.to_owned(), |text, byte| {
        text + &format!("{byte:02x}")
    }))
}

/// As it was copied out of a mail: blanks around it do not count.
pub(super) fn hash(code: &str) -> [u8; 32] {
    Sha256::digest(code.trim().as_bytes()).into()
}

const ID_PREFIX: &str = "inv_";

/// Bytes of the hash: enough that no two invitations share an id.
const ID_BYTES: usize = 8;

fn id(hash: &[u8]) -> String {
    hash.iter()
        .take(ID_BYTES)
        .fold(ID_PREFIX.to_owned(), |text, byte| {
            text + &format!("{byte:02x}")
        })
}

/// The start of the hash that a code has or an id names; `None` where it is neither.
fn start_of(code_or_id: &str) -> Option<[u8; ID_BYTES]> {
    let text = code_or_id.trim();
    if text.starts_with(PREFIX) {
        return hash(text).first_chunk().copied();
    }
    start_of_id(text)
}

fn start_of_id(id: &str) -> Option<[u8; ID_BYTES]> {
    let digits = id
        .strip_prefix(ID_PREFIX)
        .filter(|digits| digits.len() == 2 * ID_BYTES)?;
    let number = digits
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit())
        .then(|| u64::from_str_radix(digits, 16).ok())?;
    number.map(u64::to_be_bytes)
}
