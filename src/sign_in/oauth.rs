//! OAuth 2 alone, as GitHub and servers like it have it: the person and the addresses are requests
//! with an access token.
//!
//! Must not take an address that is not the primary one, or that is not verified.

use super::claims::Person;
use super::endpoint::{self, Authorization};
use super::error::SignInError;
use super::request::SignInRequest;
use config::sign_in::OAuthApi;
use serde::Deserialize;

#[derive(Deserialize)]
struct AccessAnswer {
    access_token: String,
}

/// The person, whose number never changes; a name can.
#[derive(Deserialize)]
struct PersonAnswer {
    id: u64,
}

#[derive(Deserialize)]
struct AddressAnswer {
    email: String,
    #[serde(default)]
    primary: bool,
    #[serde(default)]
    verified: bool,
}

/// Redeems a code and returns who signed in.
pub async fn identify(
    request: &SignInRequest<'_>,
    api: &OAuthApi,
    code: &str,
) -> Result<Person, SignInError> {
    let provider = request.provider;
    let verifier = request.secrets.verifier();
    let fields = [
        ("grant_type", "authorization_code"),
        ("code", code),
        ("redirect_uri", request.redirect_uri),
        ("code_verifier", &verifier),
    ];
    let access: AccessAnswer = endpoint::redeem(provider, &api.token, &fields, false).await?;
    let bearer = || Authorization::Bearer(&access.access_token);
    let person: PersonAnswer = endpoint::get(provider, "the person", &api.person, bearer()).await?;
    let addresses: Vec<AddressAnswer> =
        endpoint::get(provider, "the list of addresses", &api.addresses, bearer()).await?;
    let address = addresses.into_iter().find(|it| it.primary && it.verified);
    Ok(Person {
        subject: person.id.to_string(),
        email_verified: address.is_some(),
        email: address.map(|it| it.email).unwrap_or_default(),
        groups: Vec::new(),
    })
}
