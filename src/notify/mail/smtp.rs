//! Makes one attempt to send a mail: connects, encrypts, logs in, and hands the mail over.
//!
//! A fault of the connection or the login concerns every mail, so the mail is sent again later.
//! Only a server's refusal of this mail is permanent. This file must not put a password, a link or
//! a token into an error: servers quote the text that they refuse.

use super::text::{MailText, printable};
use config::{MailEncryption, MailSettings};
use lettre::message::header::{ContentTransferEncoding, ContentType, HeaderName, HeaderValue};
use lettre::message::{Body, Mailbox, Message};
use lettre::transport::smtp::Error;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use std::time::Duration;

/// Minimum length of a run of letters and digits that may be a part of a token.
const MIN_TOKEN_CHARS: usize = 16;

/// Maximum length of a line in a mail, without the line break (RFC 5322).
const MAX_LINE_BYTES: usize = 998;

/// The error of an attempt. The text is for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SendFailure {
    pub text: String,
    /// True if another attempt would fail too.
    pub is_permanent: bool,
}

impl SendFailure {
    pub(super) fn later(text: &str) -> Self {
        Self {
            text: without_tokens(&printable(text)),
            is_permanent: false,
        }
    }

    pub(super) fn never(text: &str) -> Self {
        Self {
            is_permanent: true,
            ..Self::later(text)
        }
    }
}

/// Builds a mail. All attempts of one mail have the same Message-ID, so that a receiver can
/// recognise a repetition.
pub(super) fn build(
    mail: &MailSettings,
    id: &str,
    to: &str,
    text: MailText,
) -> Result<Message, SendFailure> {
    let never = |what: &str| SendFailure::never(&format!("the {what} is not valid for mail"));
    let from = mail.from.address.parse();
    let from = from.map_err(|_| never("address of the sender"))?;
    let name = Some(mail.from.name.clone()).filter(|name| !name.is_empty());
    let to = to.parse().map_err(|_| never("e-mail of the account"))?;
    let mut message = Message::builder()
        .from(Mailbox::new(name, from))
        .to(Mailbox::new(None, to))
        .subject(text.subject)
        .message_id(Some(format!("<{id}@{}>", sender_domain(mail))))
        .header(ContentType::TEXT_PLAIN)
        .body(plain_body(text.body))
        .map_err(|error| SendFailure::never(&error.to_string()))?;
    // This header keeps vacation notices from answering the mail.
    message.headers_mut().insert_raw(HeaderValue::new(
        HeaderName::new_from_ascii_str("Auto-Submitted"),
        "auto-generated".to_owned(),
    ));
    Ok(message)
}

/// Leaves the text unchanged if every mail server accepts it. Other encodings break a link into
/// lines, which some programs display.
fn plain_body(text: String) -> Body {
    let is_plain = text.is_ascii() && text.lines().all(|line| line.len() <= MAX_LINE_BYTES);
    if is_plain {
        let text = text.replace('\n', "\r\n");
        Body::dangerous_pre_encoded(text.into_bytes(), ContentTransferEncoding::SevenBit)
    } else {
        Body::new(text)
    }
}

fn sender_domain(mail: &MailSettings) -> &str {
    let parts = mail.from.address.rsplit_once('@');
    parts.map_or("localhost", |(_, domain)| domain)
}

/// Sends a mail within a time limit for the whole attempt.
pub(super) async fn send(
    mail: &MailSettings,
    message: Message,
    timeout: Duration,
) -> Result<(), SendFailure> {
    let attempt = async {
        let mut connection = connect(mail, timeout)
            .await
            .map_err(|error| SendFailure::later(&describe(mail, &error)))?;
        let sent = connection
            .send(message.envelope(), &message.formatted())
            .await;
        // The mail is handed over, so errors at the end of the connection do not matter.
        connection.abort().await;
        sent.map(drop).map_err(|error| SendFailure {
            is_permanent: error.is_permanent(),
            ..SendFailure::later(&describe(mail, &error))
        })
    };
    match tokio::time::timeout(timeout, attempt).await {
        Ok(result) => result,
        Err(_) => Err(SendFailure::later(&format!(
            "{}:{} did not answer within {} s",
            mail.host,
            mail.port,
            timeout.as_secs_f32()
        ))),
    }
}

async fn connect(mail: &MailSettings, timeout: Duration) -> Result<AsyncSmtpConnection, Error> {
    let hello = ClientId::Domain(sender_domain(mail).to_owned());
    let tls = match mail.encryption {
        MailEncryption::Plain => None,
        MailEncryption::Tls | MailEncryption::StartTls => {
            Some(TlsParameters::builder(mail.host.clone()).build_rustls()?)
        }
    };
    let (from_start, after_hello) = match mail.encryption {
        MailEncryption::Tls => (tls, None),
        MailEncryption::StartTls | MailEncryption::Plain => (None, tls),
    };
    let server = (mail.host.as_str(), mail.port);
    let mut connection =
        AsyncSmtpConnection::connect_tokio1(server, Some(timeout), &hello, from_start, None)
            .await?;
    if let Some(tls) = after_hello {
        // The call fails if the server does not offer TLS, so no data is sent without encryption.
        connection.starttls(tls, &hello).await?;
    }
    if let Some((user, password)) = &mail.login {
        let credentials = Credentials::new(user.clone(), password.reveal().to_owned());
        connection.auth(DEFAULT_MECHANISMS, &credentials).await?;
    }
    Ok(connection)
}

/// Describes an error, with its causes.
fn describe(mail: &MailSettings, error: &Error) -> String {
    format!("{}:{}: {error}", mail.host, mail.port)
}

/// Masks words that may be a part of a token, because a server may quote a link.
fn without_tokens(text: &str) -> String {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric();
    let mut out = String::with_capacity(text.len());
    for part in text.split_inclusive(|letter: char| !is_letter(letter)) {
        let word = part.trim_end_matches(|letter: char| !is_letter(letter));
        let is_token =
            word.len() >= MIN_TOKEN_CHARS && word.bytes().any(|byte| byte.is_ascii_digit());
        if is_token {
            out.push_str("[masked]");
            out.push_str(&part[word.len()..]);
        } else {
            out.push_str(part);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_never_has_a_token_or_a_second_line() {
        let token = "0f".repeat(32);
        for text in [
            format!("550 spam: https://gw.example/dashboard/link/{token}"),
            format!("550 {token}. Bye"),
            format!("550 ({}", &token[..20]),
        ] {
            let failure = SendFailure::never(&text);
            assert!(failure.text.contains("[masked]"), "{}", failure.text);
            assert!(!failure.text.contains(&token[..16]), "{}", failure.text);
        }
        let failure = SendFailure::later("421 busy\r\nRCPT TO:<x>\u{7}");
        assert_eq!(failure.text, "421 busy  RCPT TO:<x> ");
        assert!(SendFailure::later(&"x".repeat(9_000)).text.len() <= 200);
        let plain = "mail.example:465: permanent error (550): no such user";
        assert_eq!(SendFailure::never(plain).text, plain);
    }
}
