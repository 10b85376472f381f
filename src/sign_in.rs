//! Sign-in at an identity provider: the way to its page, and who comes back from there.
//!
//! OpenID Connect with discovery, the code flow, PKCE, state and nonce; or OAuth 2 alone for a
//! provider that has no ID tokens. Discovery document and keys are read anew for each sign-in: a
//! new key of the provider works at once, and a withdrawn one no more. Off without
//! `sign_in.providers` in the config. Must not know a page or an account. Next:
//! `sign_in/openid.rs` and `sign_in/oauth.rs` (the providers), `sign_in/id_token.rs` (what is
//! believed), `sign_in/flow_secrets.rs` (what binds an answer to a browser).

mod claims;
mod endpoint;
mod error;
mod flow_secrets;
mod id_token;
mod oauth;
mod openid;
mod request;
#[cfg(test)]
mod tests;

use accounts::{ProviderIdentity, Role};
use claims::Person;
use config::SignInRole;
use config::sign_in::IdentityProvider;
pub use error::SignInError;
pub use flow_secrets::FlowSecrets;
pub use request::SignInRequest;
use std::future::Future;

/// Returns the address of the provider's page for a sign-in.
///
/// # Errors
/// Returns an error if the provider does not answer in time, or not as it must.
pub async fn authorization_url(request: SignInRequest<'_>) -> Result<String, SignInError> {
    let provider = request.provider;
    let endpoint = async {
        match &provider.api {
            Some(api) => Ok(api.authorize.clone()),
            None => openid::authorization_endpoint(provider).await,
        }
    };
    let endpoint = bounded(provider, endpoint).await?;
    let scope = provider.scopes.join(" ");
    let (nonce, challenge) = (request.secrets.nonce(), request.secrets.challenge());
    let state = request.secrets.state();
    let mut fields = vec![
        ("response_type", "code"),
        ("client_id", &provider.client_id),
        ("redirect_uri", request.redirect_uri),
        ("scope", &scope),
        ("state", &state),
        ("code_challenge", &challenge),
        ("code_challenge_method", "S256"),
    ];
    if provider.api.is_none() {
        fields.push(("nonce", &nonce));
    }
    let separator = if endpoint.contains('?') { '&' } else { '?' };
    let query = crate::provider_client::encode_form(&fields);
    Ok(format!("{endpoint}{separator}{query}"))
}

/// Redeems the code that the browser brought back, and returns who signed in. `now_ms`: ms since
/// 1970 UTC.
///
/// # Errors
/// Returns an error if the provider does not answer in time, refuses the code, or says what cannot
/// be believed.
pub async fn identify(
    request: SignInRequest<'_>,
    code: &str,
    now_ms: i64,
) -> Result<ProviderIdentity, SignInError> {
    let provider = request.provider;
    let person = bounded(provider, async {
        match &provider.api {
            Some(api) => oauth::identify(&request, api, code).await,
            None => openid::identify(&request, code, now_ms).await,
        }
    });
    let Person {
        subject,
        email,
        email_verified,
        groups,
    } = person.await?;
    let role = match provider.role(groups.iter().map(String::as_str)) {
        Some(SignInRole::Operator) => Role::Admin,
        Some(SignInRole::Viewer) => Role::Viewer,
        None => Role::Member,
    };
    Ok(ProviderIdentity {
        provider: provider.id.clone(),
        issuer: provider.issuer.clone(),
        subject,
        email: accounts::email_key(&email),
        email_verified,
        role: role.name().to_owned(),
    })
}

/// Bounds all answers of one step together.
async fn bounded<T>(
    provider: &IdentityProvider,
    step: impl Future<Output = Result<T, SignInError>>,
) -> Result<T, SignInError> {
    let timeout = provider.timeout;
    let late = || SignInError::Away(format!("no answer within {} s", timeout.as_secs()));
    tokio::time::timeout(timeout, step)
        .await
        .unwrap_or_else(|_| Err(late()))
}
