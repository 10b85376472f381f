//! The canonical form of a domain name, in which domains of addresses are compared.
//!
//! This file must not depend on an address.

use idna::AsciiDenyList;
use idna::uts46::{DnsLength, Hyphens, Uts46};

/// Returns a domain in lower case, with IDNA encoding for characters other than letters, digits and
/// hyphens. `None` for invalid domains, such as one with a trailing dot.
pub fn canonical_domain(domain: &str) -> Option<String> {
    let (deny, hyphens) = (AsciiDenyList::STD3, Hyphens::CheckFirstLast);
    let ascii = Uts46::new().to_ascii(domain.as_bytes(), deny, hyphens, DnsLength::Verify);
    let is_address = |domain: &str| {
        let last = domain.rsplit('.').next().unwrap_or_default();
        let digits = last.strip_prefix("0x").unwrap_or(last);
        digits.len() < last.len() && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
            || last.bytes().all(|byte| byte.is_ascii_digit())
    };
    ascii
        .ok()
        .filter(|domain| !is_address(domain))
        .map(Into::into)
}

/// Returns the domain of a canonical address.
pub fn domain_of(email: &str) -> &str {
    email.rsplit_once('@').map_or("", |(_, domain)| domain)
}
