//! Holds the name of a vendor's service tier, region or speed, in the vendor's spelling.
//!
//! This file must not list the tiers: the price list does.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Name of a service tier. The type is small enough to be copied with its usage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceTier {
    /// ASCII letters, followed by zeros.
    letters: [u8; ServiceTier::MAX_LETTERS],
}

/// Region where a vendor runs a request, such as `us`. Its names have the form of tier names.
pub type InferenceGeo = ServiceTier;

/// Speed at which a vendor runs a request, such as `fast`. Its names have the form of tier names.
pub type Speed = ServiceTier;

impl ServiceTier {
    /// Maximum length of a name in bytes.
    const MAX_LETTERS: usize = 24;

    /// Converts a word of a vendor or a client. An unusual letter becomes `?`, and a word longer
    /// than any name is cut, so that neither can be mistaken for a name with a price.
    pub fn from_wire(word: &str) -> Self {
        let mut letters = [0; Self::MAX_LETTERS];
        for (letter, byte) in letters.iter_mut().zip(word.bytes()) {
            *letter = if is_letter(byte) { byte } else { b'?' };
        }
        Self { letters }
    }

    /// Parses the name of a tier in a price list. Returns `None` unless the name has 1 to 23 of the
    /// characters `a`–`z`, `0`–`9`, `_` and `-`.
    pub fn from_price_list(name: &str) -> Option<Self> {
        let fits = (1..Self::MAX_LETTERS).contains(&name.len());
        (fits && name.bytes().all(is_letter)).then(|| Self::from_wire(name))
    }

    fn as_str(&self) -> &str {
        let end = self
            .letters
            .iter()
            .position(|letter| *letter == 0)
            .unwrap_or(Self::MAX_LETTERS);
        self.letters
            .get(..end)
            .and_then(|letters| std::str::from_utf8(letters).ok())
            .unwrap_or_default()
    }
}

fn is_letter(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-')
}

impl fmt::Display for ServiceTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ServiceTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl Serialize for ServiceTier {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ServiceTier {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Ok(Self::from_wire(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_list_can_hold_is_no_listed_name() {
        let longest = "a".repeat(23);
        assert_eq!(
            ServiceTier::from_price_list(&longest).map(|tier| tier.to_string()),
            Some(longest.clone())
        );
        for no in ["", "Priority", "a b", "ä", "a\0", &format!("{longest}a")] {
            assert_eq!(ServiceTier::from_price_list(no), None, "{no:?}");
            let tier = ServiceTier::from_wire(no);
            assert!(
                ServiceTier::from_price_list(&tier.to_string()).is_none(),
                "{tier:?}"
            );
        }
        let listed = ServiceTier::from_price_list("on_demand-2").unwrap();
        assert_eq!(
            (listed, listed.to_string()),
            (ServiceTier::from_wire("on_demand-2"), "on_demand-2".into())
        );
        assert_ne!(listed, ServiceTier::from_wire("on_demand-2\0"));
        let json = serde_json::to_string(&listed).unwrap();
        assert_eq!(
            (json.as_str(), serde_json::from_str(&json).ok()),
            ("\"on_demand-2\"", Some(listed))
        );
    }
}
