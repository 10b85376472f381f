//! Identities at providers: who signs in without a password, and which account that is.
//!
//! An identity is issuer and subject, and belongs to one account; an address never finds it. A
//! sign-in that is under way is known by a secret of 256 bits in the browser's cookie, of which the
//! database has the SHA-256: once it is used or too old, nobody can use it. Must not know HTTP or a
//! provider's protocol.

use super::accounts::{Account, Accounts};
use super::audit::{Actor, AuditChange, AuditedAccounts};
use super::error::AccountError;
use super::session::{encode_hex, hash_token, new_token};
use super::views::Identities;
use crate::db::Role;
use crate::db::identities::{IdentityRow, NewIdentityRow};
pub use crate::db::provider_sign_in::UnlinkOutcome;
use crate::db::provider_sign_in::{GroupRole, LinkIdentityOutcome};
use ledger::StoreError;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

/// How long a browser may take from the first button to the last, 10 minutes.
const FLOW_LIFETIME_MS: i64 = 10 * 60_000;
/// Maximum number of sign-ins that are under way. One more ends the oldest.
const MAX_FLOWS: i64 = 10_000;
/// Number of bytes of the hash in an identity's id.
const ID_BYTES: usize = 16;

/// A person, as a provider reports them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderIdentity {
    /// Id of the provider in the config file.
    pub provider: String,
    pub issuer: String,
    pub subject: String,
    /// Empty if the provider reports none.
    pub email: String,
    /// Whether the provider has verified that the person receives mail there.
    pub email_verified: bool,
    /// Name of the role that the person's groups have.
    pub role: String,
}

impl ProviderIdentity {
    pub(crate) fn to_new_row(&self) -> NewIdentityRow<'_> {
        NewIdentityRow {
            issuer: &self.issuer,
            subject: &self.subject,
            provider: &self.provider,
            email: &self.email,
        }
    }

    /// Who acts, for the audit log.
    pub fn to_actor(&self, address: String) -> Actor {
        Actor {
            actor: format!("provider {}", self.provider),
            address,
        }
    }
}

/// An identity that is linked to an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub id: String,
    pub provider: String,
    pub issuer: String,
    pub subject: String,
    /// The address at the provider, as it was last.
    pub email: String,
    pub linked_at_ms: i64,
    pub used_at_ms: Option<i64>,
}

impl From<IdentityRow> for Identity {
    fn from(row: IdentityRow) -> Self {
        Self {
            id: identity_id(&row.issuer, &row.subject),
            provider: row.provider,
            issuer: row.issuer,
            subject: row.subject,
            email: row.email,
            linked_at_ms: row.linked_at_ms,
            used_at_ms: row.used_at_ms,
        }
    }
}

fn identity_id(issuer: &str, subject: &str) -> String {
    let hash = Sha256::digest(format!("{issuer}\u{1f}{subject}").as_bytes());
    encode_hex(hash.get(..ID_BYTES).unwrap_or_default())
}

impl Identities<'_> {
    /// Returns the identities of an account, oldest first.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn list(&self, account: &str) -> Result<Vec<Identity>, StoreError> {
        let rows = self.0.db.identities().identities(account)?;
        Ok(rows.into_iter().map(Identity::from).collect())
    }

    /// Signs in by an identity: records its use, and gives the account the role of its groups.
    /// Returns `None` if the identity belongs to no account.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn sign_in(
        &self,
        identity: &ProviderIdentity,
        address: &str,
        now_ms: i64,
    ) -> Result<Option<Account>, StoreError> {
        let rows = self.0.db.identities();
        let Some(account) = rows.account_of(&identity.issuer, &identity.subject)? else {
            return Ok(None);
        };
        let by = identity.to_actor(address.to_owned());
        let groups = GroupRole {
            role: Role::parse(&identity.role).unwrap_or(Role::Member),
            actor: &by.actor,
            address: &by.address,
        };
        rows.record_use(&identity.to_new_row(), &groups, now_ms)?;
        self.0.find(&account)
    }

    /// Links an identity to the account of a person who has just entered its password. The
    /// provider has verified the account's e-mail. Returns false if the identity or the account
    /// does not allow it.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn link(
        &self,
        account: &str,
        identity: &ProviderIdentity,
        address: &str,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        let by = Actor {
            actor: account.to_owned(),
            address: address.to_owned(),
        };
        let outcome = link_as(self.0, account, identity, true, (&by, now_ms))?;
        Ok(outcome == LinkIdentityOutcome::Done)
    }

    /// Unlinks an identity (by id) for its account holder, unless it is the last way in.
    /// `password_counts`: whether people sign in with passwords.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn unlink(
        &self,
        by: &Actor,
        id: &str,
        password_counts: bool,
        now_ms: i64,
    ) -> Result<UnlinkOutcome, StoreError> {
        let mut own = self.0.db.identities().identities(&by.actor)?.into_iter();
        match own.find(|row| identity_id(&row.issuer, &row.subject) == id) {
            Some(row) => unlink_as(self.0, &row, Some(password_counts), (by, now_ms)),
            None => Ok(UnlinkOutcome::NotFound),
        }
    }

    /// Begins a sign-in at a provider. Returns its secret for the browser's cookie.
    ///
    /// # Errors
    /// Returns an error if there is no randomness, or if the database fails.
    pub fn begin_flow(&self, provider: &str, now_ms: i64) -> Result<String, AccountError> {
        let secret = new_token()?;
        self.write_flow(&secret, provider, "", now_ms)?;
        Ok(secret)
    }

    /// Uses up a sign-in that the provider has answered. Returns false if it was not begun in this
    /// browser for this provider, or is used or too old.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn take_flow(&self, secret: &str, provider: &str, now_ms: i64) -> Result<bool, StoreError> {
        let (rows, hash) = (self.0.db.identities(), hash_token(secret));
        let is_open = rows.flow(&hash, provider, now_ms)?.as_deref() == Some("");
        Ok(is_open && rows.end_flow(&hash)?)
    }

    /// Keeps what the provider said, until the person has entered a password or an invitation code.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn hold_flow(
        &self,
        secret: &str,
        identity: &ProviderIdentity,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let text = json!(identity).to_string();
        self.write_flow(secret, &identity.provider, &text, now_ms)
    }

    /// Returns what [`Identities::hold_flow`] kept.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn held_flow(
        &self,
        secret: &str,
        provider: &str,
        now_ms: i64,
    ) -> Result<Option<ProviderIdentity>, StoreError> {
        let hash = hash_token(secret);
        let text = self.0.db.identities().flow(&hash, provider, now_ms)?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// Ends a sign-in that was held.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn end_flow(&self, secret: &str) -> Result<(), StoreError> {
        let hash = hash_token(secret);
        self.0.db.identities().end_flow(&hash).map(drop)
    }

    fn write_flow(
        &self,
        secret: &str,
        provider: &str,
        identity: &str,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.0.db.identities().insert_flow(
            &hash_token(secret),
            (provider, identity),
            now_ms.saturating_add(FLOW_LIFETIME_MS),
            (now_ms, MAX_FLOWS),
        )
    }
}

impl AuditedAccounts<'_> {
    /// Links an identity to an account for an operator, who vouches for both. Returns false if the
    /// identity belongs to an account already.
    ///
    /// # Errors
    /// Returns an error if the account is deleted, or if the database fails.
    pub fn link_identity(
        &self,
        account: &str,
        identity: &ProviderIdentity,
    ) -> Result<bool, AccountError> {
        let by = (self.by(), self.now_ms());
        match link_as(self.accounts, account, identity, false, by)? {
            LinkIdentityOutcome::Done => Ok(true),
            LinkIdentityOutcome::Taken => Ok(false),
            LinkIdentityOutcome::NoAccount => Err(AccountError::NoAccount),
        }
    }

    /// Unlinks the identities that an account has at a provider, even the last way in. Returns
    /// their number.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn unlink_identities(&self, account: &str, provider: &str) -> Result<usize, StoreError> {
        let mut count = 0;
        for row in self.accounts.db.identities().identities(account)? {
            if row.provider == provider {
                let by = (self.by(), self.now_ms());
                let outcome = unlink_as(self.accounts, &row, None, by)?;
                count += usize::from(outcome == UnlinkOutcome::Done);
            }
        }
        Ok(count)
    }
}

fn link_as(
    accounts: &Accounts,
    account: &str,
    identity: &ProviderIdentity,
    verifies_email: bool,
    (by, now_ms): (&Actor, i64),
) -> Result<LinkIdentityOutcome, StoreError> {
    let what = json!({"provider": identity.provider, "subject": identity.subject});
    let change = AuditChange::new("account.link", account, &what);
    let (row, entry) = (identity.to_new_row(), change.to_entry(by, now_ms));
    accounts
        .db
        .identities()
        .link(account, &row, verifies_email, &entry)
}

/// `password_counts`: `None` takes the last way in too.
fn unlink_as(
    accounts: &Accounts,
    row: &IdentityRow,
    password_counts: Option<bool>,
    (by, now_ms): (&Actor, i64),
) -> Result<UnlinkOutcome, StoreError> {
    let what = json!({"provider": row.provider, "subject": row.subject});
    let change = AuditChange::new("account.unlink", &row.account, &what);
    accounts.db.identities().unlink(
        row,
        password_counts.is_some(),
        password_counts.unwrap_or_default(),
        &change.to_entry(by, now_ms),
    )
}
