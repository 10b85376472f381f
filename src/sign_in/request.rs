//! What a step of a sign-in needs to know.

use super::flow_secrets::FlowSecrets;
use config::sign_in::IdentityProvider;

/// One sign-in at a provider.
#[derive(Debug, Clone, Copy)]
pub struct SignInRequest<'a> {
    pub provider: &'a IdentityProvider,
    /// Where the provider sends the browser back to.
    pub redirect_uri: &'a str,
    pub secrets: &'a FlowSecrets,
}
