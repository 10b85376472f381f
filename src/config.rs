//! Turns the config file into [`Settings`]: resolves values, gives them types, validates them as a
//! whole, and reports all faults together.
//!
//! The only place that reads the environment and the config file. Must not open sockets or stores.
//! Next: `config/raw.rs` (the keys), `config/vendors.rs`, `config/price.rs`, `config/yaml.rs` (how
//! faults find their lines).

mod aliases;
mod capabilities;
mod command;
mod cors;
mod import;
pub mod presets;
mod price;
pub mod raw;
mod reference;
mod source;
mod store;
pub(crate) mod suggest;
mod vendors;
mod yaml;

use crate::address::{Network, TrustedProxies};
use crate::catalog::{Catalog, CatalogModel, CatalogVendor, Secret, VendorEndpoint};
use crate::store::redis::{RedisAddress, SentinelAddress};
use crate::telemetry::access::LogDestination;
use crate::telemetry::traces;
pub use command::{CommandSettings, load_for_command};
pub use cors::CorsOrigins;
use credits::money::Micro;
use credits::price_list::PriceList;
pub use import::ConfigNames;
use llm_protocol::Protocol;
use llm_protocol::capabilities::ModelCapabilities;
use llm_protocol::capabilities::repair_rules::KnownCapabilities;
pub use raw::{
    Limits, MAX_ATTEMPTS, MAX_DRAIN_SECONDS, MAX_RATE, MAX_TOTAL_SECONDS, RateLimits, Rates,
    SignupMode,
};
pub use source::{FileStamp, SourceFile};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vendors::VendorEntry;

/// Maximum number of trusted proxies or networks: each request is compared with all of them.
const MAX_PROXIES: usize = 256;

/// Maximum number of fallbacks of one model: the gateway quotes each of them at admission.
pub const MAX_FALLBACKS: usize = 3;

/// All settings of the process.
#[derive(Debug)]
pub struct Settings {
    pub edge: Vec<SocketAddr>,
    /// Proxies whose forwarding headers determine a client's address.
    pub trust_proxy: TrustedProxies,
    pub sidecar: SocketAddr,
    pub admin: SocketAddr,
    /// Certificate chain and private key, PEM files.
    pub tls: Option<(PathBuf, PathBuf)>,
    pub base_url: String,
    pub data_dir: PathBuf,
    pub store: StoreSettings,
    /// The shared store may be configured so that it can lose data.
    pub allow_volatile: bool,
    pub signup: SignupSettings,
    pub catalog: Catalog,
    /// Rate limits of keys and accounts that have no limits of their own.
    pub rate_limits: RateLimits,
    pub limits: Limits,
    pub access_log: LogDestination,
    /// Names of the messages protocol's version header that clients may use, lower case.
    pub version_headers: Vec<String>,
    pub traces: Option<traces::TraceExportConfig>,
    /// Origins whose pages may call the API from a browser.
    pub cors: CorsOrigins,
    /// Whether to watch the files in `sources` and reload them after a change.
    pub auto_reload: bool,
    /// The config file itself and the files that it names.
    pub sources: Vec<SourceFile>,
}

/// The store that decides on keys, balances and holds.
#[derive(Debug, Clone)]
pub enum StoreSettings {
    /// This process and its `data_dir`.
    Embedded,
    /// One Redis server.
    Redis(Secret),
    /// Some nodes of a Redis Cluster.
    RedisCluster(Vec<Secret>),
    /// The server that the Sentinels report as the primary.
    RedisSentinel(SentinelAddress),
}

#[derive(Debug, Clone, Copy)]
pub struct SignupSettings {
    pub mode: SignupMode,
    pub trial_credits: Micro,
    /// 0 = no trial.
    pub trial_ms: i64,
    /// 0 = no limit.
    pub trial_budget_per_day: Micro,
    pub one_account_per_mailbox: bool,
}

impl StoreSettings {
    pub fn kind_name(&self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Redis(_) | Self::RedisCluster(_) | Self::RedisSentinel(_) => "redis",
        }
    }

    /// Address of the shared store; `None` if there is no shared store.
    pub fn address(&self) -> Option<RedisAddress> {
        match self {
            Self::Embedded => None,
            Self::Redis(url) => Some(RedisAddress::One(url.reveal().to_owned())),
            Self::RedisCluster(nodes) => Some(RedisAddress::Cluster(
                nodes.iter().map(|node| node.reveal().to_owned()).collect(),
            )),
            Self::RedisSentinel(sentinel) => Some(RedisAddress::Sentinel(sentinel.clone())),
        }
    }
}

/// One fault in a config file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFault {
    pub line: u64,
    /// Path of the key, `models[2].price.input`; empty for the file as a whole.
    pub key: String,
    pub message: String,
}

/// Error for a config file that cannot be used: all of its faults.
#[derive(Debug, thiserror::Error)]
pub struct ConfigError {
    pub file: PathBuf,
    pub faults: Vec<ConfigFault>,
    /// The files that were read or should have been read.
    pub sources: Vec<SourceFile>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.faults.len();
        write!(
            f,
            "{}: {count} fault{}",
            self.file.display(),
            if count == 1 { "" } else { "s" }
        )?;
        for ConfigFault { line, key, message } in &self.faults {
            let key = if key.is_empty() {
                String::new()
            } else {
                format!("{key}: ")
            };
            write!(f, "\n{}:{line}: {key}{message}", self.file.display())?;
        }
        Ok(())
    }
}

/// Reads the file, with this process's environment.
///
/// # Errors
/// Returns all faults of the file.
pub fn load(file: &Path) -> Result<Settings, ConfigError> {
    let mut sources = vec![SourceFile::from_path(file)];
    let outcome = std::fs::read_to_string(file).map_err(|error| {
        let message = format!("cannot read the config file: {error}");
        vec![ConfigFault {
            line: 0,
            key: String::new(),
            message,
        }]
    });
    match outcome.and_then(|text| validate(&text, &environment, &mut sources)) {
        Ok(settings) => Ok(Settings {
            sources,
            ..settings
        }),
        Err(faults) => Err(ConfigError {
            file: file.to_owned(),
            faults,
            sources,
        }),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the environment is read"
)]
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The JSON Schema of the config file.
pub fn schema() -> serde_json::Value {
    yaml::schema()
}

/// The config reference, as Markdown.
pub fn reference() -> String {
    reference::markdown(&schema())
}

/// Parses `text`; `env` returns the value of an environment variable.
///
/// # Errors
/// Returns all faults of the text.
pub fn parse(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Settings, Vec<ConfigFault>> {
    validate(text, env, &mut Vec::new())
}

/// Parses and validates `text`, and adds the files that it names to `sources`.
fn validate(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    sources: &mut Vec<SourceFile>,
) -> Result<Settings, Vec<ConfigFault>> {
    let (config, lines) = yaml::read_config(text, env)?;
    let mut judge = ConfigValidator::new(lines);
    let settings = judge.settings(config);
    judge.faults.sort_by_key(|fault| fault.line);
    sources.append(&mut judge.sources);
    match settings {
        Some(settings) if judge.faults.is_empty() => Ok(settings),
        _ => Err(judge.faults),
    }
}

fn access_log_destination(access_log: Option<&str>) -> LogDestination {
    match access_log {
        None | Some("" | "off") => LogDestination::Off,
        Some("stdout") => LogDestination::Stdout,
        Some(path) => LogDestination::File(path.into()),
    }
}

/// Collects faults while it builds the settings. A part with a fault becomes `None`, and validation
/// continues with the rest.
struct ConfigValidator {
    lines: yaml::YamlNode,
    faults: Vec<ConfigFault>,
    sources: Vec<SourceFile>,
    /// Puts a placeholder in place of each vendor's key, and does not read the keys.
    withholds_vendor_keys: bool,
}

impl ConfigValidator {
    fn new(lines: yaml::YamlNode) -> Self {
        Self {
            lines,
            faults: Vec::new(),
            sources: Vec::new(),
            withholds_vendor_keys: false,
        }
    }

    fn add_fault(&mut self, key: impl Into<String>, message: impl Into<String>) {
        let key = key.into();
        self.faults.push(ConfigFault {
            line: self.lines.line_of(&key),
            key,
            message: message.into(),
        });
    }

    fn settings(&mut self, config: raw::Config) -> Option<Settings> {
        if config.listen.edge.is_empty() {
            self.add_fault("listen.edge", "needs at least one address");
        }
        let edge: Vec<_> = config
            .listen
            .edge
            .iter()
            .enumerate()
            .map(|(index, text)| self.parse_address(&format!("listen.edge[{index}]"), text))
            .collect();
        let sidecar = self.parse_address("listen.sidecar", &config.listen.sidecar);
        let admin = self.parse_address("listen.admin", &config.listen.admin);
        let trust_proxy = self.parse_proxies(&config.listen.trust_proxy);
        let mut seen = HashSet::new();
        for address in edge.iter().copied().chain([sidecar, admin]).flatten() {
            if !seen.insert(address) {
                self.add_fault("listen", format!("{address} is listed twice"));
            }
        }
        for (key, value, least, most) in config.limits.bounds() {
            if !(least..=most).contains(&value) {
                self.add_fault(
                    format!("limits.{key}"),
                    format!("must be {least} to {most}, not {value}"),
                );
            }
        }
        if !config.base_url.starts_with("http://") && !config.base_url.starts_with("https://") {
            self.add_fault("base_url", "must begin with http:// or https://");
        }
        if config.data_dir.is_empty() {
            self.add_fault("data_dir", "must name a directory");
        }
        let allow_volatile = config.store.allow_volatile;
        let store = self.store(config.store);
        let signup = self.signup(&config.signup);
        self.check_rates("rate_limits.key", &config.rate_limits.key);
        self.check_rates("rate_limits.account", &config.rate_limits.account);
        let vendors = self.vendors(config.vendors);
        let version_headers = version_headers(&config.limits, &vendors);
        let catalog = self.catalog(config.models, &vendors);
        let cors = self.cors(&config.cors);
        let traces = config
            .telemetry
            .traces
            .and_then(|traces| self.traces(&traces));
        for file in config
            .listen
            .tls
            .iter()
            .flat_map(|tls| [&tls.cert, &tls.key])
        {
            self.sources.push(SourceFile::from_path(Path::new(file)));
        }
        Some(Settings {
            edge: edge.into_iter().collect::<Option<_>>()?,
            trust_proxy,
            sidecar: sidecar?,
            admin: admin?,
            tls: config
                .listen
                .tls
                .map(|tls| (tls.cert.into(), tls.key.into())),
            base_url: config.base_url.trim_end_matches('/').to_owned(),
            data_dir: config.data_dir.into(),
            store: store?,
            allow_volatile,
            signup: signup?,
            catalog,
            rate_limits: config.rate_limits,
            limits: config.limits,
            access_log: access_log_destination(config.access_log.as_deref()),
            version_headers,
            traces,
            cors,
            auto_reload: config.auto_reload,
            sources: Vec::new(),
        })
    }

    fn parse_address(&mut self, key: &str, text: &str) -> Option<SocketAddr> {
        match text.parse::<SocketAddr>() {
            Ok(address) if address.port() != 0 => Some(address),
            Ok(_) => {
                self.add_fault(
                    key,
                    "must have a port other than 0, which clients can connect to",
                );
                None
            }
            Err(_) => {
                self.add_fault(key, format!("not an ip:port address: {text:?}"));
                None
            }
        }
    }

    fn traces(&mut self, traces: &raw::Traces) -> Option<traces::TraceExportConfig> {
        let sample = self.parse_amount("telemetry.traces.sample_ratio", &traces.sample_ratio)?;
        let share = u32::try_from(sample.get())
            .ok()
            .filter(|share| *share <= traces::SAMPLE_ALL);
        if share.is_none() {
            self.add_fault(
                "telemetry.traces.sample_ratio",
                "must be a number from 0 to 1",
            );
        }
        let endpoint = vendors::parse_base_url(&traces.endpoint).filter(|endpoint| !endpoint.tls);
        if endpoint.is_none() {
            let says = "must be an http:// URL: the gateway has no TLS for traces; send them to a local collector, which can forward them over TLS";
            self.add_fault("telemetry.traces.endpoint", says);
        }
        let endpoint = endpoint?;
        let path = if endpoint.path.is_empty() {
            "/".to_owned()
        } else {
            endpoint.path
        };
        let host = if endpoint.host.contains(':') {
            format!("[{}]", endpoint.host)
        } else {
            endpoint.host
        };
        let authority = format!("{host}:{}", endpoint.port);
        Some(traces::TraceExportConfig {
            authority,
            path,
            share: share?,
            to_vendors: traces.to_vendors,
        })
    }

    fn parse_proxies(&mut self, listed: &[String]) -> TrustedProxies {
        if listed.len() > MAX_PROXIES {
            self.add_fault(
                "listen.trust_proxy",
                format!(
                    "has {} entries; at most {MAX_PROXIES} are allowed",
                    listed.len()
                ),
            );
        }
        let mut proxies = Vec::new();
        for (index, text) in listed.iter().enumerate() {
            let key = format!("listen.trust_proxy[{index}]");
            match text.parse::<Network>() {
                Ok(network) if network.covers_all() => {
                    self.add_fault(
                        key,
                        "covers every address, so any client could claim any address: list only your proxies",
                    );
                }
                Ok(network) => proxies.push(network),
                Err(error) => self.add_fault(key, format!("{error}: {text:?}")),
            }
        }
        proxies.into_iter().collect()
    }

    fn parse_amount(&mut self, key: &str, text: &raw::Decimal) -> Option<Micro> {
        match text.0.parse::<Micro>() {
            Ok(amount) if amount >= Micro::ZERO => Some(amount),
            Ok(_) => {
                self.add_fault(key, "must not be negative");
                None
            }
            Err(error) => {
                self.add_fault(key, error.to_string());
                None
            }
        }
    }

    fn check_rates(&mut self, key: &str, rates: &raw::Rates) {
        let raw::Rates {
            requests_per_minute,
            tokens_per_minute,
            concurrent,
        } = *rates;
        let named = [
            ("requests_per_minute", requests_per_minute),
            ("tokens_per_minute", tokens_per_minute),
            ("concurrent", concurrent),
        ];
        for (name, _) in named.into_iter().filter(|(_, rate)| *rate > MAX_RATE) {
            self.add_fault(
                format!("{key}.{name}"),
                format!("must be at most {MAX_RATE}; 0 means no limit"),
            );
        }
    }

    fn signup(&mut self, signup: &raw::Signup) -> Option<SignupSettings> {
        let trial_credits = self.parse_amount("signup.trial_credits", &signup.trial_credits);
        // Amounts have six decimals. Six decimals of a day are finer than a tenth of a second, so
        // the parser of amounts reads days too.
        let days = self.parse_amount("signup.trial_days", &signup.trial_days)?;
        let trial_ms = days.get().saturating_mul(864) / 10;
        let trial_budget_per_day =
            self.parse_amount("signup.trial_budget_per_day", &signup.trial_budget_per_day)?;
        let trial_credits = trial_credits?;
        if trial_budget_per_day.is_positive()
            && trial_ms > 0
            && trial_budget_per_day < trial_credits
        {
            self.add_fault(
                "signup.trial_budget_per_day",
                "is less than signup.trial_credits, so nobody could sign up",
            );
        }
        let one_account_per_mailbox = signup.one_account_per_mailbox;
        Some(SignupSettings {
            mode: signup.mode,
            trial_credits,
            trial_ms,
            trial_budget_per_day,
            one_account_per_mailbox,
        })
    }

    fn secret(&mut self, key: &str, text: &str) -> Option<Secret> {
        let Some(path) = text.strip_prefix("file:") else {
            return Some(Secret::new(text.to_owned()));
        };
        self.sources.push(SourceFile::from_path(Path::new(path)));
        match std::fs::read_to_string(path) {
            // An empty variable disables a vendor. An empty file is a fault: it was probably not
            // written completely.
            Ok(text) if text.trim().is_empty() => {
                self.add_fault(key, format!("{path} is empty"));
                None
            }
            Ok(text) => Some(Secret::new(text.trim_end().to_owned())),
            Err(error) => {
                self.add_fault(key, format!("cannot read {path}: {error}"));
                None
            }
        }
    }

    fn check_fallbacks(&mut self, models: &[raw::Model]) {
        let ids: HashSet<_> = models.iter().map(|model| model.id.as_str()).collect();
        for (index, model) in models.iter().enumerate() {
            let key = format!("models[{index}].fallback");
            if model.fallback.len() > MAX_FALLBACKS {
                self.add_fault(
                    key.clone(),
                    format!("at most {MAX_FALLBACKS} models are allowed"),
                );
            }
            let mut seen = HashSet::from([model.id.as_str()]);
            for (place, id) in model.fallback.iter().enumerate() {
                let key = format!("{key}[{place}]");
                if !ids.contains(id.as_str()) {
                    let owner = models.iter().find(|model| model.aliases.contains(id));
                    let meant = match owner {
                        Some(owner) => format!("; it is an alias of {:?}: use that id", owner.id),
                        None => suggest::hint(id, ids.iter().copied()),
                    };
                    self.add_fault(key, format!("no model has the id {id:?}{meant}"));
                } else if !seen.insert(id) {
                    self.add_fault(
                        key,
                        format!("{id:?} would be tried twice for one request: remove it"),
                    );
                }
            }
        }
    }

    fn catalog(
        &mut self,
        models: Vec<raw::Model>,
        vendors: &HashMap<String, VendorEntry>,
    ) -> Catalog {
        self.check_fallbacks(&models);
        self.check_aliases(&models);
        let mut ids = HashSet::new();
        let mut usable = Vec::new();
        for (index, model) in models.into_iter().enumerate() {
            let key = format!("models[{index}]");
            if !ids.insert(model.id.clone()) {
                self.add_fault(
                    format!("{key}.id"),
                    format!("{:?} is listed twice", model.id),
                );
            }
            let plain = |c: char| c.is_ascii_alphanumeric() || "._:-/@".contains(c);
            if model.id.is_empty() || model.id.len() > 128 || !model.id.chars().all(plain) {
                self.add_fault(
                    format!("{key}.id"),
                    "must be 1 to 128 letters, digits and . _ : - / @",
                );
            }
            if model.upstream_model.is_empty() || !model.upstream_model.chars().all(plain) {
                self.add_fault(
                    format!("{key}.upstream_model"),
                    "must be letters, digits and . _ : - / @",
                );
            }
            if model.max_output_tokens == 0 || model.context_tokens == 0 {
                self.add_fault(
                    key.clone(),
                    "context_tokens and max_output_tokens must be above 0",
                );
            }
            if model.max_output_tokens > 100_000_000 || model.context_tokens > 100_000_000 {
                self.add_fault(
                    key.clone(),
                    "context_tokens and max_output_tokens must be at most 100000000",
                );
            }
            let price = self.price(&format!("{key}.price"), &model.price, model.context_tokens);
            match vendors.get(&model.vendor) {
                None => {
                    let meant = suggest::hint(&model.vendor, vendors.keys().map(String::as_str));
                    self.add_fault(
                        format!("{key}.vendor"),
                        format!("no vendor is named {:?}{meant}", model.vendor),
                    );
                }
                Some(VendorEntry { vendor: None, .. }) => {}
                Some(VendorEntry {
                    vendor: Some(vendor),
                    preset,
                }) => {
                    self.check_route(&key, &model, vendor);
                    let known = preset.map(|preset| preset.capabilities_of(&model.upstream_model));
                    usable.extend(
                        price.map(|price| self::build_model(model, vendor, price, known.as_ref())),
                    );
                }
            }
        }
        if usable.is_empty() && self.faults.is_empty() {
            self.add_fault(
                "models",
                "no model can be served: every vendor's api_key is empty",
            );
        }
        Catalog::new(usable)
    }

    /// Checks the keys of a model that its vendor's protocol or endpoints do not support.
    fn check_route(&mut self, key: &str, model: &raw::Model, vendor: &CatalogVendor) {
        let also = model
            .upstream_protocol
            .map(|raw::UpstreamProtocol::Responses| Protocol::Responses);
        if also.is_some() && vendor.protocol == Protocol::Messages {
            self.add_fault(
                format!("{key}.upstream_protocol"),
                "not allowed: vendors with `protocol: messages` support no other protocol",
            );
        } else if also.is_some() && !vendor.endpoints.iter().all(VendorEndpoint::has_other_paths) {
            let message = "cannot be used: the `path` of the vendor's endpoint does not end in /chat/completions, so the \
                           path of responses is unknown";
            self.add_fault(format!("{key}.upstream_protocol"), message);
        }
        for name in capabilities::misplaced_keys([Some(vendor.protocol), also], &model.capabilities)
        {
            let message = format!(
                "has no effect for a model of a {} vendor: remove it",
                vendor.protocol
            );
            self.add_fault(format!("{key}.capabilities.{name}"), message);
        }
        for name in price::misplaced_keys([Some(vendor.protocol), also], &model.price) {
            let message = format!("has no effect: a {} vendor never bills it", vendor.protocol);
            self.add_fault(format!("{key}.price.{name}"), message);
        }
    }
}

/// Enables web search for a messages model exactly if its price list has a price for it.
fn set_search_by_price(mut accepts: ModelCapabilities, price: &PriceList) -> ModelCapabilities {
    if let ModelCapabilities::Messages(model) = &mut accepts {
        model.set_web_search(price.features.web_search.is_some());
    }
    accepts
}

/// Builds a model. `known`: capabilities of the model from the vendor's preset.
fn build_model(
    mut model: raw::Model,
    vendor: &Arc<CatalogVendor>,
    price: PriceList,
    known: Option<&raw::Capabilities>,
) -> CatalogModel {
    let price = Arc::new(price);
    if let Some(known) = known {
        model.capabilities = std::mem::take(&mut model.capabilities).or(known);
    }
    let by = |protocol| CatalogModel {
        id: model.id.clone(),
        aliases: model.aliases.clone(),
        vendor: Arc::clone(vendor),
        upstream_model: model.upstream_model.clone(),
        context_tokens: model.context_tokens,
        max_output_tokens: model.max_output_tokens,
        accepts: set_search_by_price(
            capabilities::resolve(&model.id, protocol, &model.capabilities),
            &price,
        ),
        repairs: match model.repair {
            true => capabilities::known_capabilities(&model.id, protocol, &model.capabilities),
            false => KnownCapabilities::NONE,
        },
        price: Arc::clone(&price),
        fallback: model.fallback.clone(),
        by_responses: None,
    };
    let has_both = model.upstream_protocol.is_some() && vendor.protocol == Protocol::Chat;
    let by_responses = has_both.then(|| Arc::new(by(Protocol::Responses)));
    CatalogModel {
        by_responses,
        ..by(vendor.protocol)
    }
}

fn version_headers(limits: &Limits, vendors: &HashMap<String, VendorEntry>) -> Vec<String> {
    let headers = vendors
        .values()
        .filter_map(|judged| judged.vendor.as_ref()?.version_header.as_ref());
    let own = headers.map(|(name, _)| name.clone());
    let mut names: Vec<_> = own
        .chain(
            limits
                .version_header_aliases
                .iter()
                .map(|name| name.to_ascii_lowercase()),
        )
        .chain(["compat-version".to_owned()])
        .collect();
    names.sort();
    names.dedup();
    names
}
