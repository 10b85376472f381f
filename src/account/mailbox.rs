//! Which mailbox an e-mail address reaches, where its host is known to give one mailbox many
//! addresses.
//!
//! Kept of every account, and looked at where the settings give one mailbox one account. Must not
//! change how an account is named: its e-mail stays as it was typed.

/// The mailbox, where it can have another spelling; `None`: the address itself.
pub fn of(email: &str) -> Option<String> {
    let (local, domain) = email.split_once('@')?;
    if !matches!(domain, "gmail.com" | "googlemail.com") {
        return None;
    }
    let name = local.split('+').next().unwrap_or_default().replace('.', "");
    Some(format!("{name}@gmail.com"))
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn dots_and_plus_lead_to_one_mailbox_where_they_are_known_to() {
        let one = Some("annlee@gmail.com".to_owned());
        for address in [
            "annlee@gmail.com",
            "ann.lee@gmail.com",
            "a.n.n.lee+x.y@googlemail.com",
            "annlee+@gmail.com",
        ] {
            assert_eq!(of(address), one, "{address}");
        }
        assert_eq!(of("ann.lee+x@example.com"), None);
        assert_eq!(of("ann.lee@gmail.com.example"), None);
    }
}
