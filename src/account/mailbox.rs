//! E-mail addresses: the form in which they are unique, and the mailbox that an address reaches,
//! for hosts known to have several addresses for one mailbox.
//!
//! The mailbox is stored for every account, and checked if the settings allow only one account per
//! mailbox. Must not change an account's name: its e-mail stays as its holder entered it.

use super::error::AccountError;

/// Maximum length of an e-mail address, in bytes.
const MAX_EMAIL_BYTES: usize = 254;

/// Returns the mailbox's canonical address if the mailbox can have several addresses; `None` if the
/// address is the only one.
pub fn canonical_address(email: &str) -> Option<String> {
    let (local, domain) = email.split_once('@')?;
    if !matches!(domain, "gmail.com" | "googlemail.com") {
        return None;
    }
    let name = local.split('+').next().unwrap_or_default().replace('.', "");
    Some(format!("{name}@gmail.com"))
}

/// Trims an e-mail and converts it to lower case: the form in which e-mails are unique.
pub(super) fn normalize_email(text: &str) -> Result<String, AccountError> {
    let email = text.trim().to_ascii_lowercase();
    let (local, domain) = email.split_once('@').ok_or(AccountError::BadEmail)?;
    let plain = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'@')
    };
    if email.len() > MAX_EMAIL_BYTES || !plain(local) || !plain(domain) {
        return Err(AccountError::BadEmail);
    }
    Ok(email)
}

#[cfg(test)]
mod tests {
    use super::canonical_address;

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
}
