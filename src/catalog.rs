//! What may be asked for and what it costs: models, their routes to vendors, and their prices.
//!
//! Immutable once built from the config; a reload builds a new one and a running request keeps the one it was
//! admitted under. Must not do I/O.

use crate::money::Micro;
use crate::protocol::Protocol;
use crate::protocol::rules::{Accepts, ThinkingType};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Every model that can be asked for, in the order of the config file.
#[derive(Debug, Default)]
pub struct Catalog {
    models: Vec<Arc<Model>>,
    by_id: HashMap<String, Arc<Model>>,
}

/// One catalog id and the route behind it.
#[derive(Debug)]
pub struct Model {
    pub id: String,
    pub vendor: Arc<Vendor>,
    /// The name the vendor knows it by.
    pub upstream_model: String,
    pub context_tokens: u64,
    pub max_output_tokens: u64,
    /// What translated requests go by.
    pub accepts: Accepts,
    pub price: Arc<Price>,
}

impl Model {
    /// The field to set where a caller gave no output limit.
    pub fn output_limit_field(&self) -> &'static str {
        match &self.accepts {
            Accepts::Messages(_) => "max_tokens",
            Accepts::Chat(model) => model.output_limit_field,
        }
    }

    /// It may reason without showing all of it, so that what it shows tells little of what it generates.
    pub fn hides_reasoning(&self) -> bool {
        match &self.accepts {
            Accepts::Messages(model) => {
                model.thinks_by_default || model.thinking_types.iter().any(|kind| *kind != ThinkingType::Disabled)
            }
            Accepts::Chat(model) => model.reasoning,
        }
    }
}

/// Whom we call.
#[derive(Debug)]
pub struct Vendor {
    pub name: String,
    pub protocol: Protocol,
    pub official: bool,
    pub endpoints: Vec<Endpoint>,
    pub api_key: Secret,
    /// Header name and the value sent where the client gave none (messages vendors).
    pub version_header: Option<(String, String)>,
}

/// One address of a vendor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    /// Value of the `host` header: the port is left out where it is the scheme's own.
    pub authority: String,
    /// Path prefix before `/v1`, without a trailing slash.
    pub prefix: String,
    pub weight: u32,
}

/// Prices in µc per 1 000 000 tokens, by class. Immutable: its version is the hash of what it says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Price {
    pub version: String,
    pub input: Micro,
    pub cache_read: Micro,
    pub cache_write_5m: Micro,
    pub cache_write_1h: Micro,
    pub output: Micro,
}

impl Price {
    /// Prices in the order input, cache read, 5-minute and 1-hour cache write, output.
    pub fn new([input, cache_read, cache_write_5m, cache_write_1h, output]: [Micro; 5]) -> Self {
        let text = format!("{input}|{cache_read}|{cache_write_5m}|{cache_write_1h}|{output}");
        let digest = Sha256::digest(text.as_bytes());
        let version = digest.iter().take(8).fold(String::from("pv_"), |text, byte| text + &format!("{byte:02x}"));
        Self { version, input, cache_read, cache_write_5m, cache_write_1h, output }
    }

    /// `version` is the hash of these prices.
    pub fn is_version(&self, version: &str) -> bool {
        let classes = [self.input, self.cache_read, self.cache_write_5m, self.cache_write_1h, self.output];
        self.version == version && Self::new(classes).version == version
    }
}

impl Catalog {
    pub fn new(models: Vec<Model>) -> Self {
        let models: Vec<_> = models.into_iter().map(Arc::new).collect();
        let by_id = models.iter().map(|model| (model.id.clone(), Arc::clone(model))).collect();
        Self { models, by_id }
    }

    pub fn find(&self, id: &str) -> Option<&Arc<Model>> {
        self.by_id.get(id)
    }

    pub fn models(&self) -> &[Arc<Model>] {
        &self.models
    }
}

/// A text that is never printed, logged or serialised.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself, for the one header it belongs in.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("********")
    }
}
