//! Parses forms like Stripe: names have brackets, and each name occurs once.
//!
//! This file must not depend on a parameter.

use super::errors::StripeRefusal;
use std::collections::BTreeMap;

/// Parameters of a call by name, such as `line_items[0][quantity]`. Arrays that were sent with `[]`
/// have indices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StripeForm(BTreeMap<String, String>);

impl StripeForm {
    /// Parses a body or a query.
    pub fn parse(text: &str) -> Result<Self, StripeRefusal> {
        let mut fields = BTreeMap::new();
        let mut next = BTreeMap::<String, u32>::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (mut name, value) = (decode(name)?, decode(value)?);
            if let Some(array) = name.strip_suffix("[]").map(str::to_owned) {
                let index = next.entry(array.clone()).or_default();
                name = format!("{array}[{index}]");
                *index += 1;
            }
            if fields.insert(name.clone(), value).is_some() {
                let message = format!("You passed the parameter {name} more than once.");
                return Err(StripeRefusal::invalid("parameter_invalid", &name, message));
            }
        }
        Ok(Self(fields))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns the integer of a parameter that was checked.
    pub fn integer(&self, name: &str) -> Option<i64> {
        self.get(name)?.parse().ok()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Returns the members of a map, whose names are `PREFIX[KEY]`.
    pub fn map(&self, prefix: &str) -> serde_json::Map<String, serde_json::Value> {
        let members = self.iter().filter_map(|(name, value)| {
            let key = name.strip_prefix(prefix)?.strip_prefix('[')?;
            Some((key.strip_suffix(']')?.to_owned(), value.into()))
        });
        members.collect()
    }
}

/// Returns the parts of a name: `a[b][0]` has `a`, `b` and `0`. `None` if the brackets do not
/// match.
pub fn segments(name: &str) -> Option<Vec<&str>> {
    let Some((first, rest)) = name.split_once('[') else {
        return (!name.is_empty() && !name.contains(']')).then(|| vec![name]);
    };
    let mut parts = vec![first];
    for part in rest.strip_suffix(']')?.split("][") {
        if part.is_empty() || part.contains(['[', ']']) {
            return None;
        }
        parts.push(part);
    }
    (!first.is_empty()).then_some(parts)
}

fn decode(text: &str) -> Result<String, StripeRefusal> {
    let wrong = || StripeRefusal::new(400, "Invalid request: the form is not encoded correctly.");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                let value = digit().zip(digit()).ok_or_else(wrong)?;
                u8::try_from(value.0 * 16 + value.1).map_err(|_| wrong())?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}
