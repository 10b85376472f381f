//! Why a provider did not sign somebody in. No text has a secret.

/// Why nobody was signed in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignInError {
    /// The provider cannot be reached, or has a fault of its own.
    #[error("it does not answer: {0}")]
    Away(String),
    /// The provider does not take the code, or the gateway's id or secret.
    #[error("it refused to sign in: {0}")]
    Refused(String),
    /// The provider's answer is malformed, or a check of it failed.
    #[error("its answer is not valid: {0}")]
    Invalid(String),
}

impl SignInError {
    pub fn invalid(why: impl Into<String>) -> Self {
        Self::Invalid(why.into())
    }
}
