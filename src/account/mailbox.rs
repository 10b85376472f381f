//! The mailbox that an e-mail address reaches, for hosts known to have several addresses for one
//! mailbox.
//!
//! It is stored for every account, and checked if the settings allow only one account per mailbox.
//! Must not change an account's name: its e-mail stays as its holder entered it.

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
