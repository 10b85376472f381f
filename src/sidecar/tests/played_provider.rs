//! An identity provider that answers on this machine, rightly or as a test wants it.

use super::*;
use axum::Json;
use axum::extract::{Form, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::sync::Mutex;

/// How the provider answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    Rightly,
    /// It signs with no algorithm.
    Unsigned,
    /// It signs by HMAC, with its public key as the secret.
    WithPublicKeyAsSecret,
    /// With a key that it does not list.
    WithUnlistedKey,
    /// It takes requests and answers none.
    Never,
    With5xx,
    /// Its discovery document has 5 MB.
    AtLength,
}

pub struct Play {
    key: EcdsaKeyPair,
    key_id: String,
    pub answers: Answers,
    /// Claims in the ID token that replace the right ones; null removes one.
    pub claims: Value,
    /// Further claims, at the endpoint for them.
    pub userinfo: Value,
    /// Addresses, as servers without ID tokens list them.
    pub addresses: Value,
    pub discovery: Value,
    /// Codes that were not redeemed, with nonce and challenge.
    codes: HashMap<String, (String, String)>,
}

#[derive(Clone)]
pub struct PlayedProvider {
    pub issuer: String,
    play: Arc<Mutex<Play>>,
}

/// A sign-in that a browser has begun.
pub struct BegunSignIn {
    pub cookie: String,
    pub state: String,
    pub nonce: String,
    pub challenge: String,
    pub redirect_uri: String,
}

fn new_key() -> EcdsaKeyPair {
    let random = SystemRandom::new();
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random).unwrap()
}

impl PlayedProvider {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let provider = Self {
            issuer: format!("http://{}", listener.local_addr().unwrap()),
            play: Arc::new(Mutex::new(Play {
                key: new_key(),
                key_id: "1".into(),
                answers: Answers::Rightly,
                claims: json!({}),
                userinfo: json!({}),
                addresses: json!([]),
                discovery: json!({}),
                codes: HashMap::new(),
            })),
        };
        let router = axum::Router::new()
            .route("/.well-known/openid-configuration", get(discovery))
            .route("/keys", get(keys))
            .route("/token", post(token))
            .route("/login/oauth/access_token", post(token))
            .route("/userinfo", get(userinfo))
            .route("/api/v3/user", get(person))
            .route("/api/v3/user/emails", get(addresses))
            .with_state(provider.clone());
        tokio::spawn(async { axum::serve(listener, router).await });
        provider
    }

    pub fn play<T>(&self, change: impl FnOnce(&mut Play) -> T) -> T {
        change(&mut self.play.lock().unwrap())
    }

    /// Replaces the key: the old one is listed no more.
    pub fn rotate(&self) {
        self.play(|play| {
            play.key = new_key();
            play.key_id += "0";
        });
    }

    /// Makes a code for a sign-in, as the provider's page does.
    pub fn grant(&self, begun: &BegunSignIn) -> String {
        let code = format!("code{}", begun.nonce);
        let grant = (begun.nonce.clone(), begun.challenge.clone());
        self.play(|play| play.codes.insert(code.clone(), grant));
        code
    }
}

async fn discovery(State(provider): State<PlayedProvider>) -> Response {
    let issuer = provider.issuer.clone();
    let (answers, changed) = provider.play(|play| (play.answers, play.discovery.clone()));
    let mut document = json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize?tenant=1"),
        "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/keys"),
        "userinfo_endpoint": format!("{issuer}/userinfo"),
    });
    match answers {
        Answers::Never => std::future::pending().await,
        Answers::With5xx => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Answers::AtLength => document["more"] = json!("x".repeat(5_000_000)),
        _ => {}
    }
    merge(&mut document, &changed);
    Json(document).into_response()
}

fn merge(into: &mut Value, changed: &Value) {
    for (name, value) in changed.as_object().unwrap() {
        match value {
            Value::Null => drop(into.as_object_mut().unwrap().remove(name)),
            value => into[name] = value.clone(),
        }
    }
}

async fn keys(State(provider): State<PlayedProvider>) -> Json<Value> {
    provider.play(|play| {
        let point = play.key.public_key().as_ref();
        let part = |range| URL_SAFE_NO_PAD.encode(&point[range]);
        Json(json!({"keys": [
            {"kty": "oct", "kid": "other"},
            {"kty": "EC", "crv": "P-256", "kid": play.key_id, "use": "sig", "x": part(1..33), "y": part(33..65)},
        ]}))
    })
}

async fn token(
    State(provider): State<PlayedProvider>,
    headers: HeaderMap,
    Form(fields): Form<HashMap<String, String>>,
) -> Response {
    let field = |name: &str| fields.get(name).map_or("", String::as_str);
    let basic = STANDARD.encode("gateway:s%26cret");
    let is_known = headers
        .get("authorization")
        .is_some_and(|it| *it == format!("Basic {basic}"))
        || (field("client_id"), field("client_secret")) == ("gateway", "s&cret");
    let refused =
        |error: &str| (StatusCode::BAD_REQUEST, Json(json!({"error": error}))).into_response();
    if !is_known {
        return refused("invalid_client");
    }
    let issuer = provider.issuer.clone();
    provider.play(|play| {
        let Some((nonce, challenge)) = play.codes.remove(field("code")) else {
            return refused("invalid_grant");
        };
        let verifier = Sha256::digest(field("code_verifier").as_bytes());
        if URL_SAFE_NO_PAD.encode(verifier) != challenge {
            return refused("invalid_grant");
        }
        let now = now_ms() / 1_000;
        let mut claims = json!({
            "iss": issuer, "aud": "gateway", "sub": "s1", "nonce": nonce, "iat": now, "exp": now + 300,
            "email": "ann@example.com", "email_verified": true,
        });
        merge(&mut claims, &play.claims);
        let id_token = play.sign(&claims);
        Json(json!({"access_token": "a1", "token_type": "Bearer", "id_token": id_token})).into_response()
    })
}

impl Play {
    fn sign(&self, claims: &Value) -> String {
        let algorithm = match self.answers {
            Answers::Unsigned => "none",
            Answers::WithPublicKeyAsSecret => "HS256",
            _ => "ES256",
        };
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let header = json!({"alg": algorithm, "kid": self.key_id});
        let signed = format!("{}.{}", part(&header), part(claims));
        let by = |key: &EcdsaKeyPair| {
            let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
            signature.as_ref().to_vec()
        };
        let signature = match self.answers {
            Answers::Unsigned => Vec::new(),
            Answers::WithPublicKeyAsSecret => {
                let secret = self.key.public_key().as_ref();
                let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
                ring::hmac::sign(&key, signed.as_bytes()).as_ref().to_vec()
            }
            Answers::WithUnlistedKey => by(&new_key()),
            _ => by(&self.key),
        };
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// What a request with the access token gets.
fn with_access(headers: &HeaderMap, answer: impl FnOnce() -> Value) -> Response {
    match headers
        .get("authorization")
        .is_some_and(|it| it == "Bearer a1")
    {
        true => Json(answer()).into_response(),
        false => StatusCode::UNAUTHORIZED.into_response(),
    }
}

async fn userinfo(State(provider): State<PlayedProvider>, headers: HeaderMap) -> Response {
    with_access(&headers, || provider.play(|play| play.userinfo.clone()))
}

async fn person(headers: HeaderMap) -> Response {
    with_access(&headers, || json!({"id": 583_231, "login": "ann"}))
}

async fn addresses(State(provider): State<PlayedProvider>, headers: HeaderMap) -> Response {
    with_access(&headers, || provider.play(|play| play.addresses.clone()))
}
