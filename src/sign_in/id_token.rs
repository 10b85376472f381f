//! ID tokens: signature and claims (OpenID Connect Core, 3.1.3.7).
//!
//! The table of algorithms has no `none` and no algorithm with a shared secret, and each algorithm
//! takes keys of its own type alone: so a public key never counts as a secret. Must not request
//! anything.

use super::claims::Claims;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, VerificationAlgorithm};
use serde::Deserialize;
use serde_json::Value;

/// How far the clocks of the provider and the gateway may differ, in seconds.
const CLOCK_TOLERANCE_S: i64 = 60;
/// Maximum number of keys that are tried.
const MAX_KEYS: usize = 50;

/// How a signature is checked.
enum Algorithm {
    Rsa(&'static RsaParameters),
    /// With a key of `x` and `y`, on the curve of this name.
    Curve(&'static str, &'static dyn VerificationAlgorithm),
    /// With a key of `x`, on the curve of this name.
    Edwards(&'static str, &'static dyn VerificationAlgorithm),
}

const ALGORITHMS: [(&str, Algorithm); 9] = [
    (
        "RS256",
        Algorithm::Rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
    ),
    (
        "RS384",
        Algorithm::Rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
    ),
    (
        "RS512",
        Algorithm::Rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
    ),
    (
        "PS256",
        Algorithm::Rsa(&signature::RSA_PSS_2048_8192_SHA256),
    ),
    (
        "PS384",
        Algorithm::Rsa(&signature::RSA_PSS_2048_8192_SHA384),
    ),
    (
        "PS512",
        Algorithm::Rsa(&signature::RSA_PSS_2048_8192_SHA512),
    ),
    (
        "ES256",
        Algorithm::Curve("P-256", &signature::ECDSA_P256_SHA256_FIXED),
    ),
    (
        "ES384",
        Algorithm::Curve("P-384", &signature::ECDSA_P384_SHA384_FIXED),
    ),
    ("EdDSA", Algorithm::Edwards("Ed25519", &signature::ED25519)),
];

/// Why a token is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenFault {
    #[error("the ID token is not a signed JWT")]
    Format,
    #[error("the ID token is signed with {0}, which the gateway does not accept")]
    Algorithm(String),
    #[error("the ID token is signed with a key that the provider does not list")]
    Signature,
    #[error("the ID token is of the issuer {0}")]
    Issuer(String),
    #[error("the ID token is for another client than `client_id`")]
    Audience,
    #[error("the ID token has expired, or a clock is wrong by more than {CLOCK_TOLERANCE_S} s")]
    Expired,
    #[error("the ID token is of the future: a clock is wrong by more than {CLOCK_TOLERANCE_S} s")]
    Future,
    #[error("the ID token is of another sign-in (`nonce`)")]
    Nonce,
}

/// What a token must say.
pub struct ExpectedToken<'a> {
    pub issuer: &'a str,
    pub audience: &'a str,
    pub nonce: &'a str,
    /// Seconds since 1970 UTC.
    pub now_s: i64,
}

/// The public keys of a provider (RFC 7517).
#[derive(Debug, Clone, Deserialize)]
pub struct JwkSet {
    keys: Vec<Jwk>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
    crv: String,
    n: String,
    e: String,
    x: String,
    y: String,
}

#[derive(Deserialize)]
struct TokenHeader {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    /// Extensions that a reader must understand: the gateway knows none.
    #[serde(default)]
    crit: Option<Value>,
}

/// Checks a token and returns its claims.
pub fn verify(
    token: &str,
    keys: &JwkSet,
    expected: &ExpectedToken<'_>,
) -> Result<Claims, TokenFault> {
    let (signed, signature) = token.rsplit_once('.').ok_or(TokenFault::Format)?;
    let (header, payload) = signed.split_once('.').ok_or(TokenFault::Format)?;
    let header: TokenHeader =
        serde_json::from_slice(&decode(header)?).map_err(|_| TokenFault::Format)?;
    let (name, algorithm) = ALGORITHMS
        .iter()
        .find(|(name, _)| *name == header.alg)
        .ok_or_else(|| TokenFault::Algorithm(quote(&header.alg)))?;
    if header.crit.is_some() {
        return Err(TokenFault::Format);
    }
    let signature = decode(signature)?;
    let is_meant = |key: &&Jwk| {
        (header.kid.is_none() || key.kid == header.kid)
            && key.purpose.as_deref().is_none_or(|it| it == "sig")
            && key.alg.as_deref().is_none_or(|it| it == *name)
    };
    let mut meant = keys.keys.iter().take(MAX_KEYS).filter(is_meant);
    if !meant.any(|key| key.has_signed(algorithm, signed.as_bytes(), &signature)) {
        return Err(TokenFault::Signature);
    }
    let claims: Claims =
        serde_json::from_slice(&decode(payload)?).map_err(|_| TokenFault::Format)?;
    check(&claims, expected)?;
    Ok(claims)
}

fn check(claims: &Claims, expected: &ExpectedToken<'_>) -> Result<(), TokenFault> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let issuer = text("iss").unwrap_or_default();
    if issuer != expected.issuer {
        return Err(TokenFault::Issuer(quote(issuer)));
    }
    let audiences: Vec<_> = match claims.get("aud") {
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(one)) => vec![one.as_str()],
        _ => Vec::new(),
    };
    // Of several clients, the one that asked is the authorized party.
    let party = match (text("azp"), audiences.len()) {
        (None, 2..) => return Err(TokenFault::Audience),
        (party, _) => party.unwrap_or(expected.audience),
    };
    if !audiences.contains(&expected.audience) || party != expected.audience {
        return Err(TokenFault::Audience);
    }
    let time = |name: &str| claims.get(name).and_then(Value::as_i64);
    let ends = time("exp").ok_or(TokenFault::Expired)?;
    if ends.saturating_add(CLOCK_TOLERANCE_S) <= expected.now_s {
        return Err(TokenFault::Expired);
    }
    let begins = time("iat").max(time("nbf")).ok_or(TokenFault::Future)?;
    if begins > expected.now_s.saturating_add(CLOCK_TOLERANCE_S) {
        return Err(TokenFault::Future);
    }
    if text("nonce") != Some(expected.nonce) {
        return Err(TokenFault::Nonce);
    }
    Ok(())
}

impl Jwk {
    /// Whether this key made the signature. False for a key of another type than the algorithm's.
    fn has_signed(&self, algorithm: &Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let part = |text: &str| decode(text).unwrap_or_default();
        match algorithm {
            Algorithm::Rsa(parameters) if self.kty == "RSA" => {
                let (n, e) = (part(&self.n), part(&self.e));
                let key = RsaPublicKeyComponents { n: &n, e: &e };
                key.verify(parameters, message, signature).is_ok()
            }
            Algorithm::Curve(curve, check) if self.kty == "EC" && self.crv == *curve => {
                let point = [vec![4], part(&self.x), part(&self.y)].concat();
                let key = signature::UnparsedPublicKey::new(*check, point);
                key.verify(message, signature).is_ok()
            }
            Algorithm::Edwards(curve, check) if self.kty == "OKP" && self.crv == *curve => {
                let key = signature::UnparsedPublicKey::new(*check, part(&self.x));
                key.verify(message, signature).is_ok()
            }
            _ => false,
        }
    }
}

/// A text of the token, for a message: at most 200 characters, and no control characters.
fn quote(text: &str) -> String {
    let text: String = text.chars().take(200).collect();
    format!("{text:?}")
}

fn decode(text: &str) -> Result<Vec<u8>, TokenFault> {
    URL_SAFE_NO_PAD.decode(text).map_err(|_| TokenFault::Format)
}
