//! Chains entries by hashes. Each entry contains the hash of its predecessor, so that no entry can
//! be changed, removed or inserted without notice.
//!
//! This file must not run a query: `statements/chain.rs` does.

use super::hex::encode_hex;
use crate::entry::LedgerEntry;
use sha2::{Digest, Sha256};
use std::fmt;
use std::io::{self, Write};

pub(crate) const HASH_BYTES: usize = 32;

/// Position and hash of an entry in the chain. Before the first entry, the position is 0 and the
/// hash consists of zeroes.
#[derive(Clone, PartialEq, Eq)]
pub struct ChainHead {
    pub seq: i64,
    pub hash: Vec<u8>,
}

impl ChainHead {
    /// Returns the head of an empty ledger.
    pub fn genesis() -> Self {
        Self {
            seq: 0,
            hash: vec![0; HASH_BYTES],
        }
    }
}

impl fmt::Display for ChainHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hash = encode_hex(&self.hash);
        write!(
            f,
            "entry {} (#{})",
            self.seq,
            hash.get(..16).unwrap_or(&hash)
        )
    }
}

impl fmt::Debug for ChainHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns an entry's hash, over the previous entry's hash and all fields of the entry.
pub fn entry_hash(entry: &LedgerEntry) -> Vec<u8> {
    EntryHasher::default().hash(entry).to_vec()
}

/// Computes the hashes of many entries, and reuses one buffer.
#[derive(Default)]
pub struct EntryHasher {
    text: Vec<u8>,
}

impl EntryHasher {
    /// Returns the hash of [`entry_hash`].
    pub fn hash(&mut self, entry: &LedgerEntry) -> [u8; 32] {
        self.text.clear();
        // Writing to a `Vec` cannot fail.
        let _ = self.write_text(entry);
        let mut hash = Sha256::new();
        hash.update(&entry.prev);
        hash.update(&self.text);
        hash.finalize().into()
    }

    /// Writes `SEQ␟KIND␟REF␟ACCOUNT␟AT_MS␟[D_PAID, D_TRIAL, BAL_PAID, BAL_TRIAL, WRITEOFF]␟DETAIL`.
    /// This text must never change: every stored hash covers it.
    fn write_text(&mut self, entry: &LedgerEntry) -> io::Result<()> {
        let text = &mut self.text;
        write!(text, "{}\x1f", entry.seq)?;
        for field in [&entry.kind, &entry.reference, &entry.account] {
            text.extend_from_slice(field.as_bytes());
            text.push(b'\x1f');
        }
        write!(text, "{}\x1f[{}", entry.at_ms, entry.d_paid.get())?;
        for amount in [
            entry.d_trial,
            entry.bal_paid,
            entry.bal_trial,
            entry.writeoff,
        ] {
            write!(text, ", {}", amount.get())?;
        }
        text.extend_from_slice(b"]\x1f");
        text.extend_from_slice(entry.detail.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use credits::money::Micro;

    fn entry_of(seq: i64, at_ms: i64, amounts: [i64; 5], detail: &str) -> LedgerEntry {
        let [d_paid, d_trial, bal_paid, bal_trial, writeoff] = amounts.map(Micro::new);
        let parts = (d_paid, d_trial);
        LedgerEntry {
            seq,
            bal_paid,
            bal_trial,
            writeoff,
            prev: vec![7; 32],
            ..LedgerEntry::new("debit", "req_é", "acct_1", at_ms, parts, detail.into())
        }
    }

    #[test]
    fn the_hash_of_an_entry_is_what_it_was_in_every_version() {
        // sha256(07 × 32 || "12␟debit␟req_é␟acct_1␟1800000000000␟[-5, 0, 95, 7, 3]␟{\"a\":1}")
        let entry = entry_of(12, 1_800_000_000_000, [-5, 0, 95, 7, 3], "{\"a\":1}");
        let hex: String = entry_hash(&entry)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            hex,
            "dd9c0c6532ae18da2c104209ca7169b51d12a3b54139337210711c2e7b6bf7e7"
        );
    }

    #[test]
    fn a_hasher_forgets_the_entry_before() {
        let long = entry_of(i64::MAX, i64::MIN, [i64::MIN; 5], &"x".repeat(5_000));
        let short = entry_of(0, 0, [0; 5], "");
        let mut hasher = EntryHasher::default();
        for entry in [&long, &short, &long] {
            let mut hash = Sha256::new();
            hash.update(&entry.prev);
            let numbers = [
                entry.d_paid,
                entry.d_trial,
                entry.bal_paid,
                entry.bal_trial,
                entry.writeoff,
            ]
            .map(Micro::get);
            let LedgerEntry {
                seq,
                kind,
                reference,
                account,
                at_ms,
                detail,
                ..
            } = entry;
            // The form in which the documentation of `ledger export` gives it.
            hash.update(format!(
                "{seq}\x1f{kind}\x1f{reference}\x1f{account}\x1f{at_ms}\x1f{numbers:?}\x1f{detail}"
            ));
            assert_eq!(hasher.hash(entry).as_slice(), hash.finalize().as_slice());
        }
    }
}
