//! Manages the identity of an installation: its id, and the key that signs its segments.
//!
//! This file must not store the key: the ledger does.

use crate::entry::hex::encode_hex;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};

/// The identity of an installation. It signs the installation's segments.
pub struct InstallationKey {
    pub id: String,
    pair: Ed25519KeyPair,
}

impl InstallationKey {
    /// Creates an identity. Returns its random id and its key as PKCS #8.
    ///
    /// # Errors
    /// Returns an error if the system has no randomness.
    pub fn generate() -> Result<(String, Vec<u8>), String> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|error| error.to_string())?;
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        let pkcs8 = pkcs8.map_err(|error| error.to_string())?;
        Ok((encode_hex(&id), pkcs8.as_ref().to_vec()))
    }

    /// Parses a stored key.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a key.
    pub fn from_pkcs8(id: String, pkcs8: &[u8]) -> Result<Self, String> {
        let pair = Ed25519KeyPair::from_pkcs8(pkcs8);
        let pair = pair.map_err(|error| format!("the installation's key is damaged: {error}"))?;
        Ok(Self { id, pair })
    }

    /// Returns the public key of the segments in hexadecimal digits.
    pub fn public_key(&self) -> String {
        encode_hex(self.pair.public_key().as_ref())
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(message).as_ref().to_vec()
    }
}
