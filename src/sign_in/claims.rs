//! The claims about a person, from an ID token or from the endpoint with more of them.
//!
//! Must not decide who may sign in.

use super::error::SignInError;
use config::sign_in::IdentityProvider;
use serde_json::{Map, Value};

/// Maximum length of a subject, in bytes (OpenID Connect Core, 2).
const MAX_SUBJECT_BYTES: usize = 255;
/// Maximum number of groups that are looked at.
const MAX_GROUPS: usize = 1_000;

pub type Claims = Map<String, Value>;

/// A person as the provider reports them.
pub struct Person {
    pub subject: String,
    /// Empty if there is none.
    pub email: String,
    pub email_verified: bool,
    pub groups: Vec<String>,
}

impl Person {
    pub fn new(provider: &IdentityProvider, claims: &Claims) -> Result<Self, SignInError> {
        let groups = match claims.get(&provider.groups_claim) {
            Some(Value::Array(all)) => (all.iter().take(MAX_GROUPS))
                .filter_map(Value::as_str)
                .map(ToOwned::to_owned)
                .collect(),
            Some(Value::String(one)) => vec![one.clone()],
            _ => Vec::new(),
        };
        let email = claims.get("email").and_then(Value::as_str);
        Ok(Self {
            subject: subject(claims)?.to_owned(),
            email: email.unwrap_or_default().to_owned(),
            email_verified: claims
                .get(&provider.verified_claim)
                .is_some_and(is_affirmed),
            groups,
        })
    }
}

/// The subject, which must be there.
pub fn subject(claims: &Claims) -> Result<&str, SignInError> {
    claims
        .get("sub")
        .and_then(Value::as_str)
        .filter(|subject| (1..=MAX_SUBJECT_BYTES).contains(&subject.len()))
        .ok_or_else(|| SignInError::invalid("it names no subject of 1 to 255 bytes"))
}

/// Whether a claim says yes. Some providers write a text or a number.
fn is_affirmed(claim: &Value) -> bool {
    match claim {
        Value::Bool(it) => *it,
        Value::String(it) => it == "true" || it == "1",
        Value::Number(it) => it.as_i64() == Some(1),
        _ => false,
    }
}
