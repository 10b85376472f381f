//! The section `sign_in`: whether people sign in with passwords, and the identity providers.
//!
//! The kinds of providers are the table `sign_in/kinds.yaml`, which is compiled in. Must not open a
//! connection.

mod managed_settings;

use super::base_url::ProviderAddress;
use super::raw::{self, SignInRole};
use super::suggest;
use super::validator::{ConfigValidator, PLACEHOLDER, header_fault};
use crate::catalog::Secret;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use managed_settings::ManagedSettings;

const KINDS: &str = include_str!("sign_in/kinds.yaml");

/// Maximum number of providers: each has a button.
const MAX_PROVIDERS: usize = 8;
/// Maximum number of groups with a role, per provider.
const MAX_GROUPS: usize = 100;
/// Maximum length of an id and of a name, in characters.
const MAX_NAME_CHARS: usize = 32;

/// The defaults of a kind of providers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderKind {
    name: Option<String>,
    issuer: Option<String>,
    /// Without `issuer`: an example of what the operator must write.
    issuer_example: Option<String>,
    scopes: Vec<String>,
    #[serde(default = "groups")]
    groups_claim: String,
    #[serde(default = "email_verified")]
    verified_claim: String,
    api: Option<KindApi>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KindApi {
    authorize: String,
    token: String,
    person: String,
    addresses: String,
    own_person: String,
    own_addresses: String,
}

fn groups() -> String {
    "groups".to_owned()
}

fn email_verified() -> String {
    "email_verified".to_owned()
}

fn kinds() -> &'static BTreeMap<String, ProviderKind> {
    static PARSED: OnceLock<BTreeMap<String, ProviderKind>> = OnceLock::new();
    // A test parses the table, so a build that passed its tests has it.
    PARSED.get_or_init(|| serde_saphyr::from_str(KINDS).unwrap_or_default())
}

/// How people sign in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignInSettings {
    /// Whether a password is a way in.
    pub password: bool,
    /// In the order of their buttons.
    pub providers: Vec<Arc<IdentityProvider>>,
    /// Whether programs sign in, each approved by a person.
    pub device: bool,
    /// Settings that these programs take over.
    pub managed_settings: Option<ManagedSettings>,
}

/// An identity provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityProvider {
    pub id: String,
    /// For buttons and messages.
    pub name: String,
    pub issuer: String,
    pub client_id: String,
    pub client_secret: Secret,
    /// All that the gateway asks for.
    pub scopes: Vec<String>,
    pub groups_claim: String,
    pub verified_claim: String,
    pub roles: BTreeMap<String, SignInRole>,
    /// For the provider's answers to one step of a sign-in.
    pub timeout: Duration,
    /// `None`: OpenID Connect, with the endpoints of its discovery document.
    pub api: Option<OAuthApi>,
}

/// The URLs of a provider with OAuth 2 alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OAuthApi {
    pub authorize: String,
    pub token: String,
    /// JSON of the signed-in person, with an `id` that never changes.
    pub person: String,
    /// JSON list of addresses, with `email`, `primary` and `verified`.
    pub addresses: String,
}

impl SignInSettings {
    pub fn provider(&self, id: &str) -> Option<&Arc<IdentityProvider>> {
        self.providers.iter().find(|provider| provider.id == id)
    }
}

impl IdentityProvider {
    /// Returns the highest role of these groups.
    pub fn role<'a>(&self, groups: impl IntoIterator<Item = &'a str>) -> Option<SignInRole> {
        groups
            .into_iter()
            .filter_map(|group| self.roles.get(group).copied())
            .max()
    }
}

impl ConfigValidator {
    /// Returns `None` if the section has a fault.
    pub(super) fn sign_in(&mut self, section: &raw::SignIn) -> Option<SignInSettings> {
        let faults_before = self.faults.len();
        let count = section.providers.len();
        if count > MAX_PROVIDERS {
            let says = format!("has {count} entries; at most {MAX_PROVIDERS} are allowed");
            self.add_fault("sign_in.providers", says);
        }
        if !section.password && count == 0 {
            let says = "is false and there are no `providers`: nobody could sign in";
            self.add_fault("sign_in.password", says);
        }
        let mut providers: Vec<Arc<IdentityProvider>> = Vec::new();
        for (index, written) in section.providers.iter().enumerate() {
            let key = format!("sign_in.providers[{index}]");
            if providers.iter().any(|known| known.id == written.id) {
                let says = "is the id of another provider: write a different one";
                self.add_fault(format!("{key}.id"), says);
            }
            providers.extend(self.sign_in_provider(&key, written).map(Arc::new));
        }
        let managed_settings = (section.managed_settings.as_deref())
            .and_then(|file| self.managed_settings(file, section.device));
        (self.faults.len() == faults_before).then_some(SignInSettings {
            password: section.password,
            providers,
            device: section.device,
            managed_settings,
        })
    }

    fn sign_in_provider(
        &mut self,
        key: &str,
        written: &raw::SignInProvider,
    ) -> Option<IdentityProvider> {
        let at = |name: &str| format!("{key}.{name}");
        let is_letter = |letter: u8| matches!(letter, b'a'..=b'z' | b'0'..=b'9' | b'-');
        if !(1..=MAX_NAME_CHARS).contains(&written.id.len()) || !written.id.bytes().all(is_letter) {
            self.add_fault(at("id"), "must be 1 to 32 of a-z, 0-9 and -");
        }
        let range = ("SignInProvider", "timeout_seconds");
        self.check_range(key, range, written.timeout_seconds);
        if let Some(fault) = (written.name.as_deref()).and_then(name_fault) {
            self.add_fault(at("name"), fault);
        }
        if written.roles.len() > MAX_GROUPS {
            let says = format!("has more than {MAX_GROUPS} groups: list those with a role");
            self.add_fault(at("roles"), says);
        }
        for scope in &written.scopes {
            if scope.is_empty() || scope.contains(|it: char| !it.is_ascii_graphic()) {
                self.add_fault(at("scopes"), "has a scope with a space: write one an entry");
            }
        }
        if written.client_id.trim().is_empty() {
            self.add_fault(
                at("client_id"),
                "is empty: write the id of the gateway there",
            );
        }
        let client_secret = match self.withholds_vendor_keys {
            true => Some(Secret::new(PLACEHOLDER.to_owned())),
            false => self.secret(&at("client_secret"), &written.client_secret),
        };
        if let Some(secret) = &client_secret {
            let text = secret.reveal();
            let empty = text.is_empty().then_some("is empty: write the secret");
            if let Some(fault) = empty.or_else(|| header_fault(text)) {
                self.add_fault(at("client_secret"), fault);
            }
        }
        let Some(kind) = kinds().get(&written.kind) else {
            let names: Vec<_> = kinds().keys().map(String::as_str).collect();
            let hint = suggest::hint(&written.kind, names.iter().copied());
            let says = format!("must be one of {}{hint}", names.join(", "));
            self.add_fault(at("kind"), says);
            return None;
        };
        let issuer = self.issuer(&at("issuer"), written.issuer.as_deref(), kind)?;
        let scopes = kind.scopes.iter().chain(&written.scopes);
        Some(IdentityProvider {
            id: written.id.clone(),
            name: (written.name.clone())
                .or_else(|| kind.name.clone())
                .unwrap_or_else(|| capitalize(&written.id)),
            api: (kind.api.as_ref()).map(|api| oauth_api(api, &issuer, kind.issuer.as_deref())),
            issuer,
            client_id: written.client_id.clone(),
            client_secret: client_secret?,
            scopes: scopes.cloned().collect(),
            groups_claim: (written.groups_claim.clone())
                .unwrap_or_else(|| kind.groups_claim.clone()),
            verified_claim: kind.verified_claim.clone(),
            roles: written.roles.clone(),
            timeout: Duration::from_secs(written.timeout_seconds),
        })
    }

    fn issuer(&mut self, key: &str, written: Option<&str>, kind: &ProviderKind) -> Option<String> {
        let example = (kind.issuer.as_deref())
            .or(kind.issuer_example.as_deref())
            .unwrap_or("https://id.example.com");
        let Some(issuer) = written.or(kind.issuer.as_deref()) else {
            let says = format!("is required for this kind, such as {example}");
            self.add_fault(key, says);
            return None;
        };
        // A value from the environment of the service, which a command does not have.
        if issuer != PLACEHOLDER && ProviderAddress::parse(issuer).is_none() {
            let says = format!(
                "must be an https:// URL without a query, such as {example}; http:// sends secrets \
                 unencrypted, so it may only name this machine"
            );
            self.add_fault(key, says);
            return None;
        }
        Some(issuer.to_owned())
    }
}

fn oauth_api(api: &KindApi, issuer: &str, default_issuer: Option<&str>) -> OAuthApi {
    let base = issuer.trim_end_matches('/');
    let own = |path: &str| format!("{base}{path}");
    let (person, addresses) = match default_issuer == Some(base) {
        true => (api.person.clone(), api.addresses.clone()),
        false => (own(&api.own_person), own(&api.own_addresses)),
    };
    OAuthApi {
        authorize: own(&api.authorize),
        token: own(&api.token),
        person,
        addresses,
    }
}

fn name_fault(name: &str) -> Option<&'static str> {
    let count = name.trim().chars().count();
    let is_bad = !(1..=MAX_NAME_CHARS).contains(&count) || name.chars().any(char::is_control);
    is_bad.then_some("must be one line of 1 to 32 characters")
}

fn capitalize(id: &str) -> String {
    let mut letters = id.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests;
