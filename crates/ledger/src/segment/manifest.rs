//! Defines the manifest of a segment, which describes its content and the parts of its file, and
//! the signature over the manifest.
//!
//! This file must not read or write a file.

use super::fault::SegmentFault;
use crate::entry::hex::{decode_hex, encode_hex};
use credits::money::Micro;
use ring::signature::{ED25519, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Version of the file format that this program writes and reads.
pub(crate) const FORMAT: u32 = 1;
/// The first and the last bytes of the file.
pub(crate) const MAGIC: &[u8; 8] = b"MGSEGMT1";
pub(crate) const END_MAGIC: &[u8; 8] = b"MGSEGEND";
pub(crate) const SIGNATURE_BYTES: usize = 64;
/// Number of bytes after the manifest: length (u32, little-endian), signature, and last bytes.
pub(crate) const FOOTER_BYTES: usize = 4 + SIGNATURE_BYTES + 8;
pub(crate) const MAX_MANIFEST_BYTES: usize = 64 << 10;
/// Text that is signed in front of the manifest, so that the signature is valid for manifests only.
pub(crate) const SIGNED_PREFIX: &[u8] = b"model-gateway ledger segment\n";

/// The balance of an account at the end of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedBalance {
    pub account: String,
    pub paid: Micro,
    pub trial: Micro,
    /// Sum of all credits that were ever bought or granted, without the trial.
    pub credited: Micro,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentPart {
    pub offset: u64,
    pub bytes: u64,
    /// SHA-256 of the part, in hexadecimal digits.
    pub sha256: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentManifest {
    pub format: u32,
    /// Id of the installation to which the ledger belongs.
    pub installation: String,
    /// Public key (Ed25519) in hexadecimal digits.
    pub public_key: String,
    pub first: i64,
    pub last: i64,
    /// Hash of the entry before the first, which is the predecessor's `last_hash`. Zeroes in the
    /// first segment.
    pub previous_hash: String,
    pub last_hash: String,
    pub kinds: BTreeMap<String, u64>,
    /// Time of the earliest entry, in ms since 1970.
    pub from_ms: i64,
    pub to_ms: i64,
    /// Number of accounts whose balances are in the segment.
    pub accounts: u64,
    pub sealed_at_ms: i64,
    /// Version of the program that wrote the segment.
    pub program: String,
    pub(crate) blocks: SegmentPart,
    pub(crate) balances: SegmentPart,
    pub(crate) directory: SegmentPart,
    pub(crate) index: SegmentPart,
    pub(crate) index_pages: SegmentPart,
}

impl SegmentManifest {
    pub fn entries(&self) -> u64 {
        self.last
            .saturating_sub(self.first)
            .saturating_add(1)
            .try_into()
            .unwrap_or_default()
    }

    pub fn endings(&self) -> u64 {
        let of_kind = |kind: &&str| self.kinds.get(*kind);
        ["debit", "void"].iter().filter_map(of_kind).sum()
    }

    /// Checks the signature of the manifest's bytes with the key in the manifest.
    pub(crate) fn check_signature(
        &self,
        text: &[u8],
        signature: &[u8],
    ) -> Result<(), SegmentFault> {
        let key = decode_hex(&self.public_key).unwrap_or_default();
        UnparsedPublicKey::new(&ED25519, key)
            .verify(&[SIGNED_PREFIX, text].concat(), signature)
            .map_err(|_| SegmentFault::damaged("its signature is not valid"))
    }

    /// Checks that the parts cover the file without gaps, from the first byte to the manifest.
    pub(crate) fn check_parts(&self, manifest_offset: u64) -> Result<(), SegmentFault> {
        let mut offset = MAGIC.len() as u64;
        for part in [
            &self.blocks,
            &self.balances,
            &self.directory,
            &self.index,
            &self.index_pages,
        ] {
            if part.offset != offset {
                return Err(SegmentFault::damaged("its parts overlap"));
            }
            offset = offset
                .checked_add(part.bytes)
                .ok_or_else(|| SegmentFault::damaged("a part has no end"))?;
        }
        if offset != manifest_offset || self.first < 1 || self.last < self.first {
            return Err(SegmentFault::damaged("its manifest does not fit the file"));
        }
        Ok(())
    }
}

pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    encode_hex(&Sha256::digest(bytes))
}
