//! Keyed hashes of mailboxes, which stay when their accounts are deleted: who had a trial, and who
//! was a member of an organisation. Only somebody with `app.db` can test addresses against them.

use super::rows::first_column;
use crate::mailbox::canonical_address;
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use sha2::{Digest, Sha256};

/// Returns the hash of the mailbox that an address reaches.
pub(crate) fn mailbox_hash(connection: &Connection, email: &str) -> rusqlite::Result<[u8; 32]> {
    let key: [u8; 32] = connection
        .prepare_cached("SELECT key FROM past_trial_key")?
        .query_row([], first_column)?;
    let mailbox = canonical_address(email).unwrap_or_else(|| email.to_owned());
    // The secret key has a fixed length and comes first, so nobody can extend the hashed text
    // without the key.
    let hash = Sha256::new().chain_update(key).chain_update(mailbox);
    Ok(hash.finalize().into())
}

/// Returns the hash of an account's mailbox. `None` if the account is deleted.
pub(crate) fn hash_of_account(
    transaction: &Transaction<'_>,
    account: &str,
) -> rusqlite::Result<Option<[u8; 32]>> {
    let email: Option<String> = transaction
        .prepare_cached("SELECT email FROM account WHERE id = ?1 AND deleted_at_ms IS NULL")?
        .query_row([account], first_column)
        .optional()?;
    email
        .map(|email| mailbox_hash(transaction, &email))
        .transpose()
}

/// Records that the holder of a mailbox was a member of an organisation.
pub(crate) fn record_member(
    transaction: &Transaction<'_>,
    organisation: &str,
    mailbox: &[u8; 32],
) -> rusqlite::Result<()> {
    let sql = "INSERT OR IGNORE INTO past_member(account, mailbox) VALUES(?1, ?2)";
    transaction
        .execute(sql, params![organisation, mailbox])
        .map(drop)
}

/// Returns whether the holder of an account's mailbox was a member of an organisation.
pub(crate) fn was_member(
    transaction: &Transaction<'_>,
    organisation: &str,
    account: &str,
) -> rusqlite::Result<bool> {
    let Some(mailbox) = hash_of_account(transaction, account)? else {
        return Ok(false);
    };
    transaction
        .prepare_cached("SELECT 1 FROM past_member WHERE account = ?1 AND mailbox = ?2")?
        .exists(params![organisation, mailbox])
}
