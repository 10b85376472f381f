//! ID tokens that other programs signed, and the values that bind an answer to a browser.
//! `sidecar/tests/providers.rs` has the flow, and the tokens that are not believed.

use super::flow_secrets::FlowSecrets;
use super::id_token::{ExpectedToken, JwkSet, TokenFault, verify};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// Modulus of the RSA key, and the Ed25519 key, with which `cryptography` 48.0 signed the tokens.
const MODULUS: &str = "6qR-fLnvGPAeSfj3-4ktZAbsC5pklVSCV6Fh2Iv_9xV1R-pUoVJ5f72psKqmH-PeFXhilB7Or4yt7kBwm_vRDww6yDgp5cJtEZXi2LY8ZxlUYd\
    xVv9GN8ful-a-7PhqT0MKADu5Z1Sgtit7IqOE-2YO2brVI6RUqTjsSd7bcGa_DMo6oS0UmexkZHY7r1bSbaorGe9TjG3P5-I3lVGcX61d1B7j4\
    XnxJORzZPqmUwXtUG7FsYdct7a6Z5BfPW9T1OqQRghqtViufUdC96YjHgRedBMUmeOWIefSQvOgWZxdPo82yLxUGo-dUetjNG8n5gp2ZylUB6G\
    YBMdHvm2OBVQ";
const POINT: &str = "Oyzu3a1iD5UleqOOG_maZWEZwAG37ky8r9WitqN0xsY";
const RS256: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGUuY29tIiwiYXVkIjoiZ2F0ZXdheSIsInN1YiI6InM\
    xIiwibm9uY2UiOiJuMSIsImlhdCI6MTgwMDAwMDAwMCwiZXhwIjoxODAwMDAwMzAwfQ.gpZwPnknkIVp0xAIgmrmAGK2oVA-bYgNLuBw9ZkXIm\
    NDTHwkKy2y9HZ5zlX9yCDGHatsHtYfJmkwqViXMq2A_3T0AFb5qmaLf64sRTkWlAk5KgNAFtiZTNLDLp46ysfxQqJZQKT-rywXgsvon4BPQN5D\
    -igAWSy1_Xklf9NEE2eoaZiuIagtDQzqVz49cQWLuaBR0s9b1GzdUOwNX0tsMr1ryMdpRLCaOnkeBadFTHf-tegwk2_b2HxeRAq_N5jyP2ARjf\
    lL3EIpTLkMFFf56dYxsn_2Y1uq8wlo71_49wdwtYv9nG9i2Qv6j-FwZ3eJrzdpjKdH8CdatlmgbgPXag";
const PS256: &str = "eyJhbGciOiJQUzI1NiIsImtpZCI6IjEifQ.eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGUuY29tIiwiYXVkIjoiZ2F0ZXdheSIsInN1YiI6InM\
    xIiwibm9uY2UiOiJuMSIsImlhdCI6MTgwMDAwMDAwMCwiZXhwIjoxODAwMDAwMzAwfQ.N07TQFKj7y6K-sz5sM4x6WL1fsb5s1TWM-9zkee-4q\
    L7gorsdlRUOrfblsbO84g1gPP96Ip56La_4eyHteHCajC__eRXUgGPdCDQF2dA_d81lKCPMc3BNW_DKKyMhQ2mPgYqy4iKH6S_iK8CWHFnhczC\
    elEeMsf-60l4CKGlVJ15DBtABx1-szcKo3WPpP6gSVMMWKY63fTc_Kghq4Ex3Ah3SKDb8-lOUlrX7vqgoaBinjA39TyoT3ZKqdiZ3Y1xHGxTC2\
    KewXZJNPE2zm4qjYk0QkBH2IwSbqKCeR1C8Zxn9UTIijU0g-mCYeLvpyxNDnAR0wLkfMEnAmTq-peJcA";
const ED_DSA: &str = "eyJhbGciOiJFZERTQSIsImtpZCI6IjEifQ.eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGUuY29tIiwiYXVkIjoiZ2F0ZXdheSIsInN1YiI6InM\
    xIiwibm9uY2UiOiJuMSIsImlhdCI6MTgwMDAwMDAwMCwiZXhwIjoxODAwMDAwMzAwfQ.PXF4al7vk10SEPdKpht84oOpJ2I6VdTZO0AfCz3xsv\
    xbmIosVVStfly-Ymf4f_wGnlPzc66AidT3CYNQ-hziAw";
const SIGNED_AT_S: i64 = 1_800_000_000;

fn keys(change: Value) -> JwkSet {
    let mut rsa = json!({"kty": "RSA", "kid": "1", "n": MODULUS, "e": "AQAB"});
    for (name, value) in change.as_object().unwrap() {
        rsa[name] = value.clone();
    }
    let edwards = json!({"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": POINT});
    serde_json::from_value(json!({"keys": [edwards, rsa]})).unwrap()
}

fn check(token: &str, keys: &JwkSet, now_s: i64) -> Result<(), TokenFault> {
    let expected = ExpectedToken {
        issuer: "https://id.example.com",
        audience: "gateway",
        nonce: "n1",
        now_s,
    };
    verify(token, keys, &expected).map(|claims| assert_eq!(claims["sub"], "s1"))
}

#[test]
fn a_token_that_another_program_signed_is_believed_for_its_time() {
    for token in [RS256, PS256, ED_DSA] {
        let at = |now_s| check(token, &keys(json!({})), now_s);
        assert_eq!(at(SIGNED_AT_S), Ok(()), "{token}");
        assert_eq!(at(SIGNED_AT_S - 60), Ok(()));
        assert_eq!(at(SIGNED_AT_S - 61), Err(TokenFault::Future));
        assert_eq!(at(SIGNED_AT_S + 359), Ok(()));
        assert_eq!(at(SIGNED_AT_S + 360), Err(TokenFault::Expired));
    }
}

#[test]
fn a_signature_counts_with_the_key_that_is_meant_for_it() {
    for change in [
        json!({"kid": "2"}),
        json!({"use": "enc"}),
        json!({"alg": "RS512"}),
        json!({"kty": "oct"}),
        json!({"n": POINT}),
        json!({"n": "?"}),
    ] {
        let refused = check(RS256, &keys(change.clone()), SIGNED_AT_S);
        assert_eq!(refused, Err(TokenFault::Signature), "{change}");
    }
    let (signed, _) = RS256.rsplit_once('.').unwrap();
    let (_, other) = PS256.rsplit_once('.').unwrap();
    for signature in ["", "AAAA", other] {
        let token = format!("{signed}.{signature}");
        let refused = check(&token, &keys(json!({})), SIGNED_AT_S);
        assert_eq!(refused, Err(TokenFault::Signature), "{signature}");
    }
    for text in ["", "a", "a.b", "a.b.c", "..", "e30.e30.e30"] {
        assert_eq!(
            check(text, &keys(json!({})), SIGNED_AT_S),
            Err(TokenFault::Format),
            "{text}"
        );
    }
}

#[test]
fn the_values_of_a_sign_in_differ_and_do_not_show_its_secret() {
    let secret = "ab".repeat(32);
    let secrets = FlowSecrets::parse(&secret).unwrap();
    let values = [
        secrets.state(),
        secrets.nonce(),
        secrets.verifier(),
        secrets.challenge(),
    ];
    for (index, value) in values.iter().enumerate() {
        assert_eq!(URL_SAFE_NO_PAD.decode(value).unwrap().len(), 32);
        assert!(!values[..index].contains(value) && !value.contains(&secret));
    }
    assert!(secrets.has_state(&values[0]) && !secrets.has_state(&values[1]));
    assert!(!format!("{secrets:?}").contains(&secret));
    for text in ["", "ab", &"xy".repeat(32), &"ab".repeat(33)] {
        assert!(FlowSecrets::parse(text).is_none(), "{text}");
    }
}
