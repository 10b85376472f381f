//! Signs messages according to Standard Webhooks, version `v1`.
//!
//! This file must not store a secret.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Prefix by which a receiver's library recognises a secret.
const SECRET_PREFIX: &str = "whsec_";

/// Returns a secret in the form in which its account holder gives it to the receiver.
pub fn secret_text(secret: &[u8; 32]) -> String {
    format!("{SECRET_PREFIX}{}", STANDARD.encode(secret))
}

/// Returns the value of `webhook-signature`, which has one signature for each secret. `timestamp`
/// is in seconds since 1970.
pub fn sign(secrets: &[[u8; 32]], id: &str, timestamp: i64, body: &str) -> String {
    let signature = |secret: &[u8; 32]| {
        // HMAC accepts keys of any length, so this call cannot fail.
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
        mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
        let code = STANDARD.encode(mac.finalize().into_bytes());
        Some(format!("v1,{code}"))
    };
    let signatures: Vec<_> = secrets.iter().filter_map(signature).collect();
    signatures.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Standard Webhooks' own libraries.
    #[test]
    fn the_signature_is_the_one_of_the_standard() {
        let text = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let key = STANDARD.decode(&text[SECRET_PREFIX.len()..]).unwrap();
        // The example has 24 bytes; zeros behind a short key do not change an HMAC.
        let mut secret = [0; 32];
        secret[..key.len()].copy_from_slice(&key);
        let body = "{\"test\": 2432232314}";
        let signed = sign(
            &[secret],
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            body,
        );
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_message_is_signed_with_each_secret() {
        let one = sign(&[[1; 32]], "msg_1", 7, "{}");
        let two = sign(&[[2; 32]], "msg_1", 7, "{}");
        let both = sign(&[[1; 32], [2; 32]], "msg_1", 7, "{}");
        assert_eq!(both, format!("{one} {two}"));
        assert_eq!(sign(&[], "msg_1", 7, "{}"), "");
        let text = secret_text(&[7; 32]);
        assert_eq!(text, "whsec_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=");
    }
}
