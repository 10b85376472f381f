//! Secret texts of the config: the vendors' keys and the addresses that contain a password.
//!
//! This file must not implement `Display` or `Serialize`.

use std::fmt;

/// A text that the gateway never prints, logs or serialises.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns the text itself, for the one header that carries it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("********")
    }
}
