//! Reads the section `mail`, with the mail server and the sender of the gateway's mail.
//!
//! This file must not resolve a name or open a connection.

use super::raw;
use super::validator::ConfigValidator;
use crate::catalog::Secret;
use std::fmt;
use std::net::IpAddr;

/// Maximum length of the sender's name, in characters.
const MAX_NAME_CHARS: usize = 100;

/// Maximum length of an address, in bytes (RFC 5321).
const MAX_ADDRESS_BYTES: usize = 254;

/// The connection to the mail server, and the limits on mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailSettings {
    pub encryption: MailEncryption,
    /// Host name or address, without brackets.
    pub host: String,
    pub port: u16,
    /// User and password at the server.
    pub login: Option<(String, Secret)>,
    pub from: MailSender,
    /// True if a new account gets its trial only after its e-mail was verified.
    pub verify_sign_ups: bool,
    /// Maximum number of mails in an hour, over all accounts.
    pub per_hour: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailEncryption {
    /// The connection uses TLS from the first byte.
    Tls,
    /// The connection begins without TLS, and must switch to it before any data is sent.
    StartTls,
    /// The connection has no TLS, which is allowed to this machine only.
    Plain,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailSender {
    /// Display name. Empty if only the address is shown.
    pub name: String,
    pub address: String,
}

impl fmt::Display for MailSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => f.write_str(&self.address),
            name => write!(f, "{name} <{}>", self.address),
        }
    }
}

impl ConfigValidator {
    pub(super) fn mail(&mut self, mail: raw::Mail) -> Option<MailSettings> {
        let server = parse_server(&mail.smtp);
        if let Err(fault) = server {
            self.add_fault("mail.smtp", fault);
        }
        let from = parse_sender(&mail.from);
        if let Err(fault) = &from {
            self.add_fault("mail.from", *fault);
        }
        self.check_range("mail", ("Mail", "per_hour"), mail.per_hour.into());
        let password = match &mail.password {
            None => None,
            Some(text) => Some(self.secret("mail.password", text)?),
        };
        let login = match (mail.user, password) {
            (None, None) => None,
            (Some(user), Some(password)) if !user.is_empty() => Some((user, password)),
            _ => {
                self.add_fault(
                    "mail",
                    "needs `user` and `password`, or neither if the server asks for none",
                );
                return None;
            }
        };
        let (encryption, host, port) = server.ok()?;
        Some(MailSettings {
            encryption,
            host,
            port,
            login,
            from: from.ok()?,
            verify_sign_ups: mail.verify_sign_ups,
            per_hour: mail.per_hour,
        })
    }
}

fn parse_server(url: &str) -> Result<(MailEncryption, String, u16), &'static str> {
    const FORM: &str = "must be smtps://HOST (TLS, port 465) or smtp://HOST (STARTTLS, port 587)";
    let uri: http::Uri = url.parse().map_err(|_| FORM)?;
    let (encryption, default_port) = match uri.scheme_str() {
        Some("smtps") => (MailEncryption::Tls, 465),
        Some("smtp") => (MailEncryption::StartTls, 587),
        Some("smtp+plain") => (MailEncryption::Plain, 25),
        _ => return Err(FORM),
    };
    let authority = uri.authority().ok_or(FORM)?;
    if authority.as_str().contains('@') {
        return Err("must not have a user or a password: use the keys `user` and `password`");
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err("must not have a path or a query");
    }
    let host = authority.host().trim_matches(['[', ']']);
    let port = match authority.as_str().strip_prefix(authority.host()) {
        Some("") => default_port,
        _ => authority.port_u16().filter(|port| *port != 0).ok_or(FORM)?,
    };
    let is_here = host == "localhost" || host.parse().is_ok_and(|it: IpAddr| it.is_loopback());
    if encryption == MailEncryption::Plain && !is_here {
        return Err(
            "smtp+plain:// sends mail without encryption, so it may only name this machine: use \
             smtps:// or smtp:// (STARTTLS)",
        );
    }
    if host.is_empty() {
        return Err(FORM);
    }
    Ok((encryption, host.to_owned(), port))
}

/// Parses a sender of the form `Name <address>`, or an address alone.
fn parse_sender(text: &str) -> Result<MailSender, &'static str> {
    const FORM: &str = "must be an address, such as \"Model gateway <gateway@example.com>\"";
    let (name, address) = match text.trim().strip_suffix('>') {
        Some(text) => text.split_once('<').ok_or(FORM)?,
        None => ("", text.trim()),
    };
    let name = name.trim().trim_matches('"').trim();
    let is_name_letter = |letter: char| !letter.is_control() && !"<>\"".contains(letter);
    if !name.chars().all(is_name_letter) || name.chars().count() > MAX_NAME_CHARS {
        return Err("has a name that mail cannot show: use at most 100 letters, without < > \"");
    }
    let (local, domain) = address.split_once('@').ok_or(FORM)?;
    let is_plain = |part: &str| {
        let is_letter = |byte: u8| byte.is_ascii_graphic() && !b"<>()[]\\,;:\"@".contains(&byte);
        !part.is_empty() && part.bytes().all(is_letter)
    };
    if !is_plain(local) || !is_plain(domain) || address.len() > MAX_ADDRESS_BYTES {
        return Err(FORM);
    }
    Ok(MailSender {
        name: name.to_owned(),
        address: address.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_reached_with_encryption_unless_it_is_this_machine() {
        use MailEncryption::{Plain, StartTls, Tls};
        for (url, encryption, host, port) in [
            ("smtps://mail.example", Tls, "mail.example", 465),
            ("smtps://mail.example:4650/", Tls, "mail.example", 4650),
            ("smtp://mail.example", StartTls, "mail.example", 587),
            ("smtp://[2001:db8::1]:25", StartTls, "2001:db8::1", 25),
            ("smtp+plain://localhost", Plain, "localhost", 25),
            ("smtp+plain://127.0.0.9:2525", Plain, "127.0.0.9", 2525),
            ("smtp+plain://[::1]:2525", Plain, "::1", 2525),
        ] {
            let expected = (encryption, host.to_owned(), port);
            assert_eq!(parse_server(url), Ok(expected), "{url}");
        }
        for (url, fault) in [
            ("", "must be smtps://"),
            ("mail.example:465", "must be smtps://"),
            ("https://mail.example", "must be smtps://"),
            ("smtps://", "must be smtps://"),
            ("smtps://mail.example:0", "must be smtps://"),
            ("smtps://mail.example:99999", "must be smtps://"),
            ("smtps://mail.example:x", "must be smtps://"),
            ("smtps://ann:secret@mail.example", "must not have a user"),
            ("smtps://mail.example/inbox", "must not have a path"),
            ("smtps://mail.example?x=1", "must not have a path"),
            ("smtp+plain://mail.example", "without encryption"),
            ("smtp+plain://10.0.0.1", "without encryption"),
        ] {
            let error = parse_server(url).unwrap_err();
            assert!(error.contains(fault), "{url}: {error}");
            assert!(!error.contains("secret"));
        }
    }

    #[test]
    fn a_sender_is_an_address_with_or_without_a_name() {
        let sender = |text: &str| parse_sender(text).map(|sender| sender.to_string());
        for (text, shown) in [
            ("gateway@example.com", "gateway@example.com"),
            (" a.b+c@example.com ", "a.b+c@example.com"),
            ("<gateway@example.com>", "gateway@example.com"),
            ("Gateway <g@example.com>", "Gateway <g@example.com>"),
            (
                "\"Gateway, Ltd.\" <g@example.com>",
                "Gateway, Ltd. <g@example.com>",
            ),
        ] {
            assert_eq!(sender(text).unwrap(), shown, "{text}");
        }
        for bad in [
            "",
            "gateway",
            "gateway@",
            "@example.com",
            "a@b@example.com",
            "a b@example.com",
            "Gateway <g@example.com",
            "Gateway g@example.com>",
            "Gate\r\nBcc: x@example.com <g@example.com>",
            "g@example.com\r\nBcc: x@example.com",
            &format!("{}@example.com", "x".repeat(254)),
            &format!("{} <g@example.com>", "x".repeat(101)),
        ] {
            assert!(sender(bad).is_err(), "{bad:?}");
        }
    }
}
