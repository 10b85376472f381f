//! OpenID Connect: discovery, the token endpoint, keys, and the endpoint with further claims.
//!
//! Must not check a token: `id_token.rs` does.

use super::claims::{Claims, Person, subject};
use super::endpoint::{self, Authorization};
use super::error::SignInError;
use super::id_token::{self, ExpectedToken, JwkSet};
use super::request::SignInRequest;
use config::sign_in::IdentityProvider;
use serde::Deserialize;

/// What is read of a discovery document.
#[derive(Deserialize)]
struct DiscoveryDocument {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    #[serde(default)]
    userinfo_endpoint: Option<String>,
    /// Without it, the gateway's secret is in a header.
    #[serde(default)]
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct TokenAnswer {
    id_token: String,
    #[serde(default)]
    access_token: String,
}

/// Returns the address of the provider's page.
pub async fn authorization_endpoint(provider: &IdentityProvider) -> Result<String, SignInError> {
    let document = discover(provider).await?;
    let what = "the authorization endpoint";
    endpoint::check(provider, what, &document.authorization_endpoint)?;
    Ok(document.authorization_endpoint)
}

/// Redeems a code and returns who signed in.
pub async fn identify(
    request: &SignInRequest<'_>,
    code: &str,
    now_ms: i64,
) -> Result<Person, SignInError> {
    let provider = request.provider;
    let document = discover(provider).await?;
    let verifier = request.secrets.verifier();
    let fields = [
        ("grant_type", "authorization_code"),
        ("code", code),
        ("redirect_uri", request.redirect_uri),
        ("code_verifier", &verifier),
    ];
    let methods = &document.token_endpoint_auth_methods_supported;
    let is_basic = (methods.as_ref())
        .is_none_or(|methods| methods.iter().any(|method| method == "client_secret_basic"));
    let tokens: TokenAnswer =
        endpoint::redeem(provider, &document.token_endpoint, &fields, is_basic).await?;
    let what = "the list of keys";
    let keys: JwkSet =
        endpoint::get(provider, what, &document.jwks_uri, Authorization::None).await?;
    let nonce = request.secrets.nonce();
    let expected = ExpectedToken {
        issuer: &provider.issuer,
        audience: &provider.client_id,
        nonce: &nonce,
        now_s: now_ms.div_euclid(1_000),
    };
    let mut claims = id_token::verify(&tokens.id_token, &keys, &expected)
        .map_err(|fault| SignInError::invalid(fault.to_string()))?;
    let needs_groups = !provider.roles.is_empty() && !claims.contains_key(&provider.groups_claim);
    if let Some(url) = &document.userinfo_endpoint
        && (needs_groups || !claims.contains_key("email"))
    {
        add_claims(provider, url, &tokens.access_token, &mut claims).await?;
    }
    Person::new(provider, &claims)
}

/// Adds the claims that the ID token does not have.
async fn add_claims(
    provider: &IdentityProvider,
    url: &str,
    access_token: &str,
    claims: &mut Claims,
) -> Result<(), SignInError> {
    let bearer = Authorization::Bearer(access_token);
    let more: Claims = endpoint::get(provider, "the userinfo endpoint", url, bearer).await?;
    if subject(&more)? != subject(claims)? {
        let says = "the userinfo endpoint is about another person than the ID token";
        return Err(SignInError::invalid(says));
    }
    for (name, value) in more {
        claims.entry(name).or_insert(value);
    }
    Ok(())
}

async fn discover(provider: &IdentityProvider) -> Result<DiscoveryDocument, SignInError> {
    let issuer = provider.issuer.trim_end_matches('/');
    let url = format!("{issuer}/.well-known/openid-configuration");
    let what = "the discovery document";
    let document: DiscoveryDocument =
        endpoint::get(provider, what, &url, Authorization::None).await?;
    let (shown, written) = (&document.issuer, &provider.issuer);
    if shown != written {
        return Err(SignInError::invalid(format!(
            "{what} is of the issuer {shown:?}, not of {written:?}: write `issuer` exactly as the \
             document has it"
        )));
    }
    Ok(document)
}
