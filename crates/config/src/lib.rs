//! Turns the config file into [`Settings`]: resolves values, gives them types, validates them as a
//! whole, and reports all faults together.
//!
//! No other crate reads the environment and the config file. This crate must not open sockets or
//! stores. Next: `raw.rs` (the keys), `vendors.rs`, `models.rs`, `price.rs`, `validator.rs` (what
//! the sections share), `reader.rs` (how faults find their lines).

#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test reads from top to bottom")
)]

pub mod address;
mod aliases;
mod base_url;
mod brand;
mod capabilities;
pub mod catalog;
mod certificate;
mod command;
mod cors;
mod domain;
mod endpoint;
mod environment;
mod fault;
mod files;
mod import;
mod ledger;
mod listen;
mod mail;
mod model_kind;
mod models;
mod notifications;
mod partial;
pub mod payments;
pub mod presets;
mod price;
mod profile_faults;
mod public_url;
pub mod raw;
mod reader;
pub mod redis_address;
mod reference;
mod shape;
pub mod sign_in;
mod signup;
mod source;
mod store;
pub mod suggest;
mod traces;
mod validator;
mod variables;
mod vendors;
mod wrong_type;
mod yaml;

use crate::address::TrustedProxies;
use crate::catalog::Catalog;
use base::telemetry::access::LogDestination;
use base::telemetry::traces::TraceExportConfig;
pub use base_url::ProviderAddress;
pub use brand::{BrandLogo, BrandSettings, LogoKind};
pub use certificate::load_certificate;
pub use command::{CommandSettings, load_for_command};
pub use cors::CorsOrigins;
pub use domain::{canonical_domain, domain_of};
use environment::environment;
pub use fault::{ConfigError, ConfigFault};
pub use import::ConfigNames;
pub use ledger::{LedgerSettings, PostgresLedger, RetentionSettings};
pub use mail::{MailEncryption, MailSender, MailSettings};
pub use models::MAX_FALLBACKS;
pub use notifications::{NotificationSettings, SupportContact};
pub use payments::PaymentSettings;
pub use profile_faults::is_chat_only;
pub use raw::{
    Limits, MAX_ATTEMPTS, MAX_DRAIN_SECONDS, MAX_RATE, MAX_TOTAL_SECONDS, RateLimits, Rates,
    SignInRole, SignupMode,
};
use serde::Serialize;
pub use sign_in::SignInSettings;
pub use signup::SignupSettings;
use source::cannot_read;
pub use source::{FileChecks, FileStamp, SourceFile};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
pub use store::StoreSettings;
use validator::ConfigValidator;
use vendors::VendorEntry;

#[derive(Debug)]
pub struct Settings {
    pub edge: Vec<SocketAddr>,
    /// Proxies whose forwarding headers determine a client's address.
    pub trust_proxy: TrustedProxies,
    pub sidecar: SocketAddr,
    pub admin: SocketAddr,
    /// Names with a dot under which the admin listener may be called.
    pub admin_names: Arc<[String]>,
    /// Paths of the PEM files with the certificate chain and the private key.
    pub tls: Option<(PathBuf, PathBuf)>,
    pub base_url: String,
    pub data_dir: PathBuf,
    pub store: StoreSettings,
    /// True if the shared store may have settings that can lose data.
    pub allow_volatile: bool,
    /// Time that an edge waits for an answer of the shared store.
    pub store_reply_timeout: Duration,
    pub signup: SignupSettings,
    pub sign_in: Arc<SignInSettings>,
    /// Whether there are organisations, whose account several people share.
    pub organisations: bool,
    /// Mail server. `None` if the gateway sends no mail.
    pub mail: Option<MailSettings>,
    /// Payment provider. `None` if no credits are sold.
    pub payments: Option<Arc<PaymentSettings>>,
    /// Whether account holders can redeem codes.
    pub codes: bool,
    pub notifications: NotificationSettings,
    pub brand: BrandSettings,
    pub support: Option<SupportContact>,
    /// The settings for sealing entries and archiving segments.
    pub ledger: LedgerSettings,
    pub catalog: Catalog,
    /// Vendors without a key, whose models are not served.
    pub skipped_vendors: Vec<SkippedVendor>,
    /// Rate limits of keys and accounts that have no limits of their own.
    pub rate_limits: RateLimits,
    pub limits: Limits,
    pub access_log: LogDestination,
    /// Names of the messages protocol's version header that clients may use, in lower case.
    pub version_headers: Vec<String>,
    pub traces: Option<TraceExportConfig>,
    /// Origins whose pages may call the API from a browser.
    pub cors: CorsOrigins,
    /// True to watch the files in `sources` and reload them after a change.
    pub auto_reload: bool,
    /// The config file itself, and the files that it names.
    pub sources: Vec<SourceFile>,
    /// Faults with which the gateway runs all the same.
    pub warnings: Vec<ConfigFault>,
}

/// A vendor that the gateway does not use, because its `api_key` is empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedVendor {
    pub name: String,
    /// Ids of the vendor's models, which are not served.
    pub models: Vec<String>,
}

impl std::fmt::Display for SkippedVendor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, models } = self;
        write!(
            formatter,
            "vendor {name} is skipped, because its api_key is empty; "
        )?;
        match models.as_slice() {
            [] => write!(formatter, "it has no models"),
            models => write!(
                formatter,
                "its models are not served: {}",
                models.join(", ")
            ),
        }
    }
}

/// Reads the file with this process's environment, and checks the files that it names.
///
/// # Errors
/// Returns all faults of the file.
pub fn load(file: &Path, checks: FileChecks) -> Result<Settings, ConfigError> {
    let mut sources = vec![SourceFile::from_path(file)];
    let outcome = source::read_config(file, source::PIPE_READ_LIMIT).map_err(|error| {
        vec![ConfigFault {
            line: 0,
            key: String::new(),
            message: cannot_read(file, &error),
        }]
    });
    match outcome.and_then(|text| validate(&text, &environment, checks, &mut sources)) {
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

pub fn schema() -> serde_json::Value {
    reader::schema()
}

pub fn reference() -> String {
    reference::markdown(&schema())
}

/// Parses `text`; `env` returns the value of an environment variable. Of the files that the text
/// names, only those of `file:` values are read.
///
/// # Errors
/// Returns all faults of the text.
pub fn parse(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Settings, Vec<ConfigFault>> {
    validate(text, env, FileChecks::Secrets, &mut Vec::new())
}

/// Parses and validates `text`, and adds the files that it names to `sources`.
fn validate(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    checks: FileChecks,
    sources: &mut Vec<SourceFile>,
) -> Result<Settings, Vec<ConfigFault>> {
    let (config, lines, of_form) = reader::read_config(text, env)?;
    let mut validator = ConfigValidator::new(lines);
    validator.file_checks = checks;
    validator.faults.clone_from(&of_form);
    let settings = validator.settings(config);
    let mut found = validator.faults.split_off(of_form.len());
    let is_set = |key: &str| validator.is_set(key);
    found.retain(|fault| !partial::follows_from(fault, &of_form, &is_set));
    validator.faults.append(&mut found);
    validator.faults.sort_by_key(|fault| fault.line);
    sources.append(&mut validator.sources);
    match settings {
        Some(settings) if validator.faults.is_empty() => Ok(Settings {
            warnings: validator.warnings,
            ..settings
        }),
        _ => Err(validator.faults),
    }
}

fn access_log_destination(access_log: Option<&str>) -> LogDestination {
    match access_log {
        None | Some("" | "off") => LogDestination::Off,
        Some("stdout") => LogDestination::Stdout,
        Some(path) => LogDestination::File(path.into()),
    }
}

impl ConfigValidator {
    fn settings(&mut self, config: raw::Config) -> Option<Settings> {
        let (edge, [sidecar, admin]) = self.listen_addresses(&config);
        let admin_names = self.network().parse_admin_names(&config.listen.admin_names);
        let trust_proxy = self.network().parse_proxies(&config.listen.trust_proxy);
        let tls = config.listen.tls.as_ref();
        for file in tls.iter().flat_map(|tls| [&tls.cert, &tls.key]) {
            self.sources.push(SourceFile::from_path(Path::new(file)));
        }
        let access_log = access_log_destination(config.access_log.as_deref());
        self.check_files(&config, &access_log);
        self.check_limit_ranges(&config.limits);
        let base_url = self.network().public_url(&config.base_url);
        self.check_data_dir_name(&config.data_dir);
        let allow_volatile = config.store.allow_volatile;
        let store_reply_timeout = Duration::from_millis(config.store.reply_timeout_ms);
        let store = self.store(config.store);
        let signup = self.signup(&config.signup);
        let sign_in = self.sign_in(&config.sign_in);
        let ledger = self.ledger(&config.ledger, signup.as_ref());
        self.check_ledger_home(&ledger, store.as_ref(), sidecar);
        let mail = config.mail.and_then(|mail| self.mail(mail));
        let codes = config.payments.as_ref().is_some_and(|it| it.codes);
        let payments = config.payments.and_then(|section| self.payments(&section));
        let notifications = self.notifications(&config.notifications);
        let brand = self.brand(&config.brand);
        let support = self.support(&config.support);
        self.check_rate_limits(&config.rate_limits);
        let vendors = self.vendors().vendors(config.vendors);
        let version_headers = version_headers(&config.limits, &vendors);
        self.models()
            .check_min_output(config.limits.min_output_tokens, &config.models);
        let skipped_vendors = skipped_vendors(&vendors, &config.models);
        let catalog = self.models().catalog(config.models, &vendors);
        let cors = self.network().cors(&config.cors);
        let traces = config
            .telemetry
            .traces
            .and_then(|traces| self.traces(&traces));
        Some(Settings {
            edge: edge.into_iter().collect::<Option<_>>()?,
            trust_proxy,
            sidecar: sidecar?,
            admin: admin?,
            admin_names,
            tls: config
                .listen
                .tls
                .map(|tls| (tls.cert.into(), tls.key.into())),
            base_url,
            data_dir: config.data_dir.into(),
            store: store?,
            allow_volatile,
            store_reply_timeout,
            signup: signup?,
            sign_in: Arc::new(sign_in?),
            organisations: config.organisations,
            mail,
            payments: payments.map(Arc::new),
            codes,
            notifications,
            brand,
            support,
            ledger,
            catalog,
            skipped_vendors,
            rate_limits: config.rate_limits,
            limits: config.limits,
            access_log,
            version_headers,
            traces,
            cors,
            auto_reload: config.auto_reload,
            sources: Vec::new(),
            warnings: Vec::new(),
        })
    }

    /// Returns the addresses of the edge, of the sidecar and of the admin API. An address with a
    /// fault is `None`.
    fn listen_addresses(
        &mut self,
        config: &raw::Config,
    ) -> (Vec<Option<SocketAddr>>, [Option<SocketAddr>; 2]) {
        let listen = &config.listen;
        if listen.edge.is_empty() {
            self.add_fault("listen.edge", "needs at least one address");
        }
        let mut network = self.network();
        let edge: Vec<_> = listen
            .edge
            .iter()
            .enumerate()
            .map(|(index, text)| network.parse_address(&format!("listen.edge[{index}]"), text))
            .collect();
        let private = [
            network.parse_address("listen.sidecar", &listen.sidecar),
            network.parse_address("listen.admin", &listen.admin),
        ];
        network.check_listeners(&edge, private, config.store.kind);
        (edge, private)
    }

    fn check_limit_ranges(&mut self, limits: &Limits) {
        for (key, value, min, max) in limits.bounds() {
            if !(min..=max).contains(&value) {
                self.add_fault(
                    format!("limits.{key}"),
                    format!("must be {min} to {max}, not {value}"),
                );
            }
        }
    }

    fn check_rate_limits(&mut self, limits: &RateLimits) {
        self.check_rates("rate_limits.key", &limits.key);
        self.check_rates("rate_limits.account", &limits.account);
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
}

/// Returns the vendors that are not used, by name. In a file without faults, they are the vendors
/// without a key.
fn skipped_vendors(
    vendors: &HashMap<String, VendorEntry>,
    models: &[raw::Model],
) -> Vec<SkippedVendor> {
    let unused = vendors.iter().filter(|(_, entry)| entry.vendor.is_none());
    let mut skipped: Vec<_> = unused
        .map(|(name, _)| SkippedVendor {
            name: name.clone(),
            models: (models.iter())
                .filter(|model| model.vendor == *name)
                .map(|model| model.id.clone())
                .collect(),
        })
        .collect();
    skipped.sort_by(|one, other| one.name.cmp(&other.name));
    skipped
}

fn version_headers(limits: &Limits, vendors: &HashMap<String, VendorEntry>) -> Vec<String> {
    let headers = vendors
        .values()
        .filter_map(|entry| entry.vendor.as_ref()?.version_header.as_ref());
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
