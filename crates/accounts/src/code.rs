//! Codes that account holders redeem for credits: `gw-code-`, 20 base32 digits of 100 random bits,
//! 4 base32 digits of their CRC-32.
//!
//! The database has only the SHA-256 of a code. With the checksum, a typo never reaches the
//! database. `payments/codes.rs` of the gateway enters the credits.

use super::audit::{AuditChange, AuditedAccounts};
use super::error::AccountError;
use super::id::new_id;
use super::limits::{MAX_CODE_CREDITS, MAX_CODE_MS, MAX_CODES_PER_BATCH};
use super::views::Codes;
use crate::db::codes::{CodeBatch, CodeRow};
use credits::money::Micro;
use ledger::StoreError;
use serde_json::json;
use sha2::{Digest, Sha256};

pub const PREFIX: &str = "gw-code-";
/// Digits of the random bits.
const BODY_DIGITS: usize = 20;
/// Digits of the checksum: the low 20 bits of the CRC-32.
const CHECK_DIGITS: usize = 4;
/// Base 32 of RFC 4648, in lower case.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

const BATCH_PREFIX: &str = "codes_";
const ID_PREFIX: &str = "code_";

/// Codes to create.
#[derive(Debug, Clone, Copy)]
pub struct NewCodes {
    /// Of each code.
    pub credits: Micro,
    pub count: u32,
    pub expires_at_ms: i64,
    /// How many of them one account can redeem.
    pub per_account: u32,
}

/// Codes that were created. The texts are the only copy.
#[derive(Debug, Clone)]
pub struct CreatedCodes {
    pub batch: String,
    pub codes: Vec<String>,
}

/// The state of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeState {
    Open,
    Redeemed,
    Voided,
    Expired,
}

impl CodeState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Redeemed => "redeemed",
            Self::Voided => "voided",
            Self::Expired => "expired",
        }
    }
}

impl CodeRow {
    /// The start of the hash: it identifies the code and reveals nothing about it. The ledger's
    /// entry has it as its reference.
    pub fn id(&self) -> String {
        code_id(&self.hash)
    }

    pub fn state(&self, now_ms: i64) -> CodeState {
        match (&self.redeemed_by, self.voided_at_ms) {
            (Some(_), _) => CodeState::Redeemed,
            (None, Some(_)) => CodeState::Voided,
            (None, None) if self.expires_at_ms <= now_ms => CodeState::Expired,
            (None, None) => CodeState::Open,
        }
    }
}

/// Returns the id of the code with this hash, or with a hash that begins so.
pub fn code_id(hash: &[u8]) -> String {
    let start = hash.iter().take(8);
    start.fold(ID_PREFIX.to_owned(), |id, byte| id + &format!("{byte:02x}"))
}

/// Returns the hash of a code as a person wrote it, with spaces and in either case; `None` if it is
/// no code.
pub fn hash_code(text: &str) -> Option<[u8; 32]> {
    let text: String = text
        .split_whitespace()
        .collect::<String>()
        .to_ascii_lowercase();
    let digits = text.strip_prefix(PREFIX)?.as_bytes();
    let is_code = digits.len() == BODY_DIGITS + CHECK_DIGITS
        && digits[BODY_DIGITS..] == checksum(&digits[..BODY_DIGITS]);
    is_code.then(|| Sha256::digest(text.as_bytes()).into())
}

fn generate() -> Result<String, AccountError> {
    let mut bits = [0u8; BODY_DIGITS];
    getrandom::fill(&mut bits).map_err(AccountError::Random)?;
    // 256 is a multiple of 32: every digit is equally likely.
    let body = bits.map(|byte| ALPHABET[usize::from(byte % 32)]);
    let digits = body
        .iter()
        .chain(&checksum(&body))
        .map(|&it| char::from(it))
        .collect::<String>();
    Ok(format!("{PREFIX}{digits}"))
}

fn checksum(body: &[u8]) -> [u8; CHECK_DIGITS] {
    let mut rest = crc32fast::hash(body);
    let mut digits = [b'a'; CHECK_DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[usize::try_from(rest % 32).unwrap_or(0)];
        rest /= 32;
    }
    digits
}

impl Codes<'_> {
    /// Returns batches before the batch `before` (empty: from the newest on), newest first.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn batches(&self, before: &str, limit: u32) -> Result<Vec<CodeBatch>, StoreError> {
        self.0.db.codes().code_batches(before, limit)
    }

    /// Returns the codes of a batch; none if there is no such batch.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn codes_of(&self, batch: &str) -> Result<Vec<CodeRow>, StoreError> {
        self.0.db.codes().codes_of(batch)
    }
}

impl AuditedAccounts<'_> {
    /// Creates codes. The database has only their hashes: the returned texts are the only copy.
    ///
    /// # Errors
    /// Returns an error if a value is out of range, if there is no randomness, or if the database
    /// fails.
    pub fn create_codes(&self, new: &NewCodes) -> Result<CreatedCodes, AccountError> {
        let lifetime_ms = new.expires_at_ms.saturating_sub(self.now_ms());
        if !(1..=MAX_CODES_PER_BATCH).contains(&new.count)
            || !(1..=MAX_CODE_MS).contains(&lifetime_ms)
            || !new.credits.is_positive()
            || new.credits > MAX_CODE_CREDITS
            || new.per_account == 0
        {
            return Err(AccountError::BadCodes);
        }
        let batch = new_id(BATCH_PREFIX, self.now_ms())?;
        let codes = (0..new.count)
            .map(|_| generate())
            .collect::<Result<Vec<_>, _>>()?;
        let row = |code: &String| CodeRow {
            hash: Sha256::digest(code.as_bytes()).into(),
            batch: batch.clone(),
            credits: new.credits,
            per_account: new.per_account,
            created_at_ms: self.now_ms(),
            created_by: self.actor().to_owned(),
            expires_at_ms: new.expires_at_ms,
            voided_at_ms: None,
            redeemed_by: None,
            redeemed_at_ms: None,
        };
        let rows: Vec<_> = codes.iter().map(row).collect();
        let what = json!({
            "count": new.count, "credits": new.credits, "per_account": new.per_account,
            "expires_at_ms": new.expires_at_ms,
        });
        let change = AuditChange::new("code.create", &batch, &what);
        let entry = self.audit_entry(&change);
        self.accounts.db.codes().insert_codes(&rows, &entry)?;
        Ok(CreatedCodes { batch, codes })
    }

    /// Voids a batch by its id, or one code by its id or its text. Codes that are redeemed stay.
    /// Returns how many are void now that were not; `None` if there is no such batch or code.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn void_codes(&self, name: &str) -> Result<Option<usize>, StoreError> {
        let name = name.trim();
        let rows = self.accounts.db.codes();
        let start = hash_code(name)
            .and_then(|hash| hash.first_chunk().copied())
            .or_else(|| hash_start(name));
        // Not the text of a code: it must be in no log.
        let object = match &start {
            Some(start) => code_id(start),
            None => name.to_owned(),
        };
        if start.is_none() && !rows.has_batch(name)? {
            return Ok(None);
        }
        let change = AuditChange::new("code.void", &object, &json!({}));
        let entry = self.audit_entry(&change);
        let batch = if start.is_none() { name } else { "" };
        let count = rows.void_codes(batch, start.as_ref(), self.now_ms(), &entry)?;
        Ok((start.is_none() || count > 0).then_some(count))
    }
}

/// The start of the hash that an id has.
fn hash_start(id: &str) -> Option<[u8; 8]> {
    let digits = id.strip_prefix(ID_PREFIX).filter(|it| it.len() == 16)?;
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = is_hex.then(|| u64::from_str_radix(digits, 16).ok())?;
    number.map(u64::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_found_as_people_write_it_and_a_typo_is_none() {
        let code = generate().unwrap();
        assert_eq!(code.len(), PREFIX.len() + 24);
        let hash = hash_code(&code);
        assert!(hash.is_some());
        let (start, end) = code.split_at(15);
        assert_eq!(hash_code(&format!(" {start} {end}\n").to_uppercase()), hash);
        let last = if code.ends_with('a') { "b" } else { "a" };
        assert_eq!(hash_code(&(code[..code.len() - 1].to_owned() + last)), None);
        for wrong in ["", PREFIX, &code[1..], &code[..code.len() - 1], "gw-sk-abc"] {
            assert_eq!(hash_code(wrong), None, "{wrong}");
        }
        assert_ne!(generate().unwrap(), code);
    }
}
