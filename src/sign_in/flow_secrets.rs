//! The values that bind a provider's answer to the browser that began the sign-in.
//!
//! All derive from one secret in the browser's cookie, so nothing else is stored, and none reveals
//! the secret or another value. Must not know a cookie.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;

/// Number of digits of a secret: 256 bits in hex.
const SECRET_DIGITS: usize = 64;

/// The secret of one sign-in.
#[derive(Clone)]
pub struct FlowSecrets(String);

impl fmt::Debug for FlowSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("********")
    }
}

impl FlowSecrets {
    /// Takes the value of a cookie. `None` if it is no secret.
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        (text.len() == SECRET_DIGITS && is_hex).then(|| Self(text.to_owned()))
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The value that the provider returns with its answer.
    pub fn state(&self) -> String {
        self.derive("state")
    }

    pub fn has_state(&self, state: &str) -> bool {
        bool::from(self.state().as_bytes().ct_eq(state.as_bytes()))
    }

    /// The value that the ID token must have.
    pub fn nonce(&self) -> String {
        self.derive("nonce")
    }

    /// The value that redeems a code (RFC 7636), which only the gateway sends.
    pub fn verifier(&self) -> String {
        self.derive("code verifier")
    }

    /// What the provider knows of [`FlowSecrets::verifier`].
    pub fn challenge(&self) -> String {
        URL_SAFE_NO_PAD.encode(Sha256::digest(self.verifier().as_bytes()))
    }

    fn derive(&self, name: &str) -> String {
        URL_SAFE_NO_PAD.encode(Sha256::digest(
            format!("{name} of a sign-in with {}", self.0).as_bytes(),
        ))
    }
}
