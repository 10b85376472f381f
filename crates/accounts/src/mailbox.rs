//! Normalizes e-mail addresses, and finds the mailbox of an address for hosts with several
//! addresses per mailbox.
//!
//! To a mail server, `"bob"@x` and `bob@x` are the same mailbox. So the gateway accepts only
//! addresses that have one spelling. That spelling names the account, is hashed for the trial and
//! receives the mail. This file must not change the e-mail of an existing account.

use super::error::AccountError;
use config::canonical_domain;

/// Maximum length of an e-mail address, and of its part before the @, in bytes (RFC 5321).
const MAX_EMAIL_BYTES: usize = 254;
const MAX_LOCAL_BYTES: usize = 64;

/// Returns the canonical address if the mailbox can have several addresses; otherwise `None`.
pub fn canonical_address(email: &str) -> Option<String> {
    let (local, domain) = email.split_once('@')?;
    if !matches!(domain, "gmail.com" | "googlemail.com") {
        return None;
    }
    let name = local.split('+').next().unwrap_or_default().replace('.', "");
    Some(format!("{name}@gmail.com"))
}

/// Returns the form in which a new account's e-mail is stored, compared and used for mail.
pub(crate) fn normalize_email(text: &str) -> Result<String, AccountError> {
    let (local, domain) = text.trim().split_once('@').ok_or(AccountError::BadEmail)?;
    let domain = canonical_domain(domain).ok_or(AccountError::BadEmail)?;
    let email = format!("{}@{domain}", local.to_ascii_lowercase());
    if !is_plain_local(local) || email.len() > MAX_EMAIL_BYTES {
        return Err(AccountError::BadEmail);
    }
    Ok(email)
}

/// Returns the form by which the account with this e-mail is found and counted. Accounts of older
/// versions may have addresses that [`normalize_email`] refuses.
pub fn email_key(text: &str) -> String {
    normalize_email(text).unwrap_or_else(|_| {
        let text: String = text.trim().chars().take(MAX_EMAIL_BYTES).collect();
        text.to_ascii_lowercase()
    })
}

/// Returns whether the part before the @ is a dot-atom (RFC 5322, 3.2.3), which has no second
/// spelling. `%` and `!` are refused too, because mail servers may read a route to another address
/// in them (Postfix: `allow_percent_hack`, `swap_bangpath`), and a part that begins with a hyphen,
/// because a mailer may take it for an option.
fn is_plain_local(local: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"#$&'*+-/=?^_`{|}~".contains(&byte);
    local.len() <= MAX_LOCAL_BYTES
        && !local.starts_with('-')
        && local
            .split('.')
            .all(|atom| !atom.is_empty() && atom.bytes().all(is_letter))
}

#[cfg(test)]
mod tests {
    use super::{canonical_address, email_key, normalize_email};

    #[test]
    fn dots_and_plus_lead_to_one_mailbox_where_they_are_known_to() {
        let one = Some("annlee@gmail.com".to_owned());
        for address in [
            "annlee@gmail.com",
            "ann.lee@gmail.com",
            "a.n.n.lee+x.y@googlemail.com",
            "annlee+@gmail.com",
        ] {
            assert_eq!(canonical_address(address), one, "{address}");
        }
        assert_eq!(canonical_address("ann.lee+x@example.com"), None);
        assert_eq!(canonical_address("ann.lee@gmail.com.example"), None);
    }

    #[test]
    fn an_address_has_one_spelling_which_the_mailer_reads_as_it_is() {
        let label = "x".repeat(63);
        let long = format!("{}@{label}.{label}.{label}", "a".repeat(62));
        for (text, canonical) in [
            (" Ann.Lee+x@Example.COM ", "ann.lee+x@example.com"),
            (
                "o'hara/x=y#$&*?^_`{|}~-@a-b.example",
                "o'hara/x=y#$&*?^_`{|}~-@a-b.example",
            ),
            ("root@localhost", "root@localhost"),
            ("ann@B\u{fc}cher.example", "ann@xn--bcher-kva.example"),
            ("ann@xn--bcher-KVA.example", "ann@xn--bcher-kva.example"),
            ("ann@example\u{3002}com", "ann@example.com"),
            (&long, &long),
        ] {
            assert_eq!(normalize_email(text).unwrap(), canonical, "{text}");
            assert_eq!(email_key(text), canonical);
            let mailed: lettre::Address = canonical.parse().unwrap();
            assert_eq!(mailed.to_string(), canonical);
        }
    }

    #[test]
    fn an_address_with_a_second_spelling_is_refused_but_found_as_its_text() {
        for bad in [
            "\"bob\"@example.com",
            "\"b\\ob\"@example.com",
            "b\\ob@example.com",
            "(x)bob@example.com",
            "bob@192.0.2.1",
            "bob@example.1",
            "bob@0xc0000201",
            "bob@192.0.2.0x1",
            "<bob@example.com>",
            "a,b@example.com",
            "a;b@example.com",
            "a:b@example.com",
            "[a]@example.com",
            ".bob@example.com",
            "bob.@example.com",
            "b..ob@example.com",
            "-ox@example.com",
            "bob%example.com@example.com",
            "example.com!bob@example.com",
            "b\u{f6}b@example.com",
            "bob@example.com.",
            "bob@example..com",
            "bob@.example.com",
            "bob@-example.com",
            "bob@example-.com",
            "bob@ex_ample.com",
            "bob@[192.0.2.1]",
            "bob@xn--a",
            "bob@a@example.com",
        ] {
            assert!(normalize_email(bad).is_err(), "{bad}");
            assert_eq!(email_key(&format!(" {bad} ")), bad);
        }
        for long in [
            format!("{}@example.com", "a".repeat(65)),
            format!("bob@{}.com", "x".repeat(64)),
            format!("bob@{}com", "x.".repeat(125)),
            "x".repeat(9_000),
        ] {
            assert!(normalize_email(&long).is_err(), "{long}");
            assert!(email_key(&long).len() <= 254);
        }
    }
}
