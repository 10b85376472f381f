//! The keys that the config file may contain, each with its default. The reader, the JSON Schema
//! (`model-gateway schema`) and the documentation all derive from this one definition.
//!
//! This file must not check how keys combine: that is `lib.rs`.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The whole config file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub listen: Listen,
    /// Public URL of the gateway, as the catalog, the dashboard and the snippets print it, without
    /// a trailing slash.
    pub base_url: String,
    /// Directory of the databases, the journal and the upgrade socket, created with mode 0700.
    pub data_dir: String,
    #[serde(default)]
    pub store: Store,
    #[serde(default)]
    pub signup: Signup,
    #[serde(default)]
    pub sign_in: SignIn,
    /// Whether account holders can create organisations: accounts that several people share, each
    /// with a role.
    #[serde(default)]
    pub organisations: bool,
    #[serde(default)]
    pub mail: Option<Mail>,
    #[serde(default)]
    pub payments: Option<PaymentOptions>,
    #[serde(default)]
    pub notifications: Notifications,
    #[serde(default)]
    pub brand: Brand,
    /// Whom account holders ask for help: a text of at most 200 characters. If it begins with
    /// `https://`, `http://` or `mailto:`, it becomes a link.
    #[serde(default)]
    pub support: String,
    #[serde(default)]
    pub ledger: LedgerUpkeep,
    pub vendors: BTreeMap<String, Vendor>,
    pub models: Vec<Model>,
    #[serde(default)]
    pub rate_limits: RateLimits,
    #[serde(default)]
    pub limits: Limits,
    /// Destination of the access log, one line of JSON per request: `off` (default), `stdout`, or a
    /// file, which SIGHUP reopens. It holds no bodies, headers or secrets.
    #[serde(default)]
    pub access_log: Option<String>,
    #[serde(default)]
    pub telemetry: Telemetry,
    #[serde(default)]
    pub cors: Cors,
    /// Reload settings once a changed file has been stable for one second: this file, the
    /// certificate's files, and those that `file:` values name. False: only on SIGHUP. If a changed
    /// file has faults, the current settings stay.
    #[serde(default = "yes")]
    pub auto_reload: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// Public addresses, `ip:port`, for HTTP/1.0, HTTP/1.1 and h2c; with `tls`, h2 in place of h2c.
    pub edge: Vec<String>,
    /// Private address of the dashboard, the catalog and the account API. The edge forwards to it.
    pub sidecar: String,
    /// Private address of /metrics, /healthz and /readyz. It answers only requests whose host is an
    /// address, `localhost`, a name without a dot, or one of `admin_names`.
    pub admin: String,
    /// Names with a dot for the `admin` address, such as `edge-1.example.com` if Prometheus scrapes
    /// that name.
    #[serde(default)]
    pub admin_names: Vec<String>,
    #[serde(default)]
    pub tls: Option<Tls>,
    /// Trusted proxies in front of the gateway, as addresses or networks (`10.0.0.0/8`), up to 256.
    /// In their requests, the client's address is the last one in `X-Forwarded-For` (or else in
    /// `Forwarded`) that is not a trusted proxy, and `X-Forwarded-Proto: https` makes cookies
    /// Secure. The gateway ignores these headers from any other sender. Of the connection limits,
    /// only `limits.connections` applies to a trusted proxy.
    #[serde(default)]
    pub trust_proxy: Vec<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    pub traces: Option<Traces>,
}

/// Mail to account holders: alerts, and links to set a password or to verify an e-mail. Default: no
/// mail; pages then say whom to ask.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mail {
    /// Mail server: `smtps://HOST` (TLS, port 465) or `smtp://HOST` (requires STARTTLS, port 587),
    /// or another `:PORT`. `smtp+plain://` (port 25) sends without encryption, and only to this
    /// machine.
    pub smtp: String,
    /// User at the mail server. Default: no login.
    #[serde(default)]
    pub user: Option<String>,
    /// Password of `user`: literal, `${ENV}` or `file:/path`. Never printed or logged.
    #[serde(default)]
    pub password: Option<String>,
    /// Sender of the mail, such as `Model gateway <gateway@example.com>`.
    pub from: String,
    /// Give a new account its trial only after its holder has opened a link sent to the e-mail.
    #[serde(default)]
    pub verify_sign_ups: bool,
    /// Mails per hour, all together, 1 to 100000. Over it, mail waits.
    #[serde(default = "five_hundred")]
    pub per_hour: u32,
}

fn five_hundred() -> u32 {
    500
}

/// How the product shows itself, on pages and in mails.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Brand {
    /// Name of the product, in titles, pages and mails: a text of at most 40 characters, none of
    /// them invisible.
    pub name: String,
    /// File of the logo, which is also the icon of the browser's tab: SVG or PNG, at most 32768
    /// bytes. An SVG file has the attribute `xmlns`, and may only draw: no scripts, event handlers,
    /// styles, images, or references to anything outside of the file. Without a logo, pages
    /// show a built-in mark.
    pub logo: Option<String>,
    /// Accent colour of links and buttons, such as `"#3b5bdb"`. Pages darken or lighten it where
    /// text would be hard to read.
    pub accent: Option<String>,
}

impl Default for Brand {
    fn default() -> Self {
        Self {
            name: brand_name(),
            logo: None,
            accent: None,
        }
    }
}

pub(super) fn brand_name() -> String {
    "Model gateway".to_owned()
}

/// How account holders get credits: they buy them on the dashboard, or redeem codes. Default:
/// neither, and no page names payments. With `provider`, the keys `secret_key`, `webhook_secret`,
/// `currency` and `credit_price` are required. Amounts are in `currency`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PaymentOptions {
    /// Default: no credits are sold, and of this section only `codes` counts.
    #[serde(default)]
    pub provider: Option<PaymentProviderName>,
    /// Whether account holders can redeem codes for credits, which operators create. Needs no
    /// provider.
    #[serde(default = "yes")]
    pub codes: bool,
    /// Whether account holders can save a card and have their balance topped up from it.
    #[serde(default = "yes")]
    pub auto_top_up: bool,
    /// Secret or restricted API key of the provider: literal, `${ENV}` or `file:/path`. Never
    /// printed or logged.
    #[serde(default)]
    pub secret_key: Option<String>,
    /// Signing secret of the provider's webhook to `BASE_URL/webhooks/stripe`, as for `secret_key`;
    /// a list of two while you replace it.
    #[serde(default)]
    pub webhook_secret: Option<OneOrMoreTexts>,
    /// Three-letter code of the currency, such as `usd`.
    #[serde(default)]
    pub currency: Option<String>,
    /// Price of one credit.
    #[serde(default)]
    pub credit_price: Option<Decimal>,
    /// Amounts that the page offers, up to 12. Default: none; the holder enters one.
    #[serde(default)]
    pub amounts: Vec<Decimal>,
    /// Smallest amount of a payment.
    #[serde(default = "five")]
    pub min: Decimal,
    /// Largest amount of a payment.
    #[serde(default = "one_thousand")]
    pub max: Decimal,
    /// Credits on top of those bought, up to 12 steps. The largest `from` that the amount reaches
    /// counts.
    #[serde(default)]
    pub bonus: Vec<PaymentBonus>,
    /// The most that one account can order in 24 hours, against fraud.
    #[serde(default = "two_thousand")]
    pub per_account_per_day: Decimal,
    /// Address of the provider's API. Default: the provider's own. `http://` is allowed on loopback
    /// only, for a stand-in.
    #[serde(default)]
    pub api_base: Option<String>,
}

/// A step of `payments.bonus`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PaymentBonus {
    /// Smallest amount that gets this bonus.
    pub from: Decimal,
    /// Bonus in percent of the credits bought, above 0 and at most 100.
    pub percent: Decimal,
}

/// Who takes the payments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PaymentProviderName {
    /// Stripe Checkout.
    Stripe,
}

fn five() -> Decimal {
    Decimal("5".to_owned())
}

fn one_thousand() -> Decimal {
    Decimal("1000".to_owned())
}

fn two_thousand() -> Decimal {
    Decimal("2000".to_owned())
}

/// A text, or a list of texts.
#[derive(Debug)]
pub struct OneOrMoreTexts(pub Vec<String>);

impl<'de> Deserialize<'de> for OneOrMoreTexts {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => Ok(Self(vec![text])),
            list @ serde_json::Value::Array(_) => serde_json::from_value(list)
                .map(Self)
                .map_err(|_| serde::de::Error::custom("not a list of texts")),
            _ => Err(serde::de::Error::custom("not a text or a list of texts")),
        }
    }
}

impl JsonSchema for OneOrMoreTexts {
    fn schema_name() -> Cow<'static, str> {
        "OneOrMoreTexts".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "description": "A text, or a list of texts.",
            "type": ["string", "array"],
            "items": { "type": "string" }
        })
    }
}

/// What account holders may let the gateway send them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Notifications {
    /// Offer webhooks: the gateway calls addresses that account holders set.
    pub webhooks: bool,
    /// Private networks that webhooks may reach, such as `10.0.0.0/8`, up to 256. All other
    /// private, loopback and link-local addresses are refused.
    pub private_networks: Vec<String>,
}

impl Default for Notifications {
    fn default() -> Self {
        Self {
            webhooks: true,
            private_networks: Vec::new(),
        }
    }
}

/// Where the ledger is, and when its oldest entries leave `ledger.db` for files (`seal`) and for
/// another folder (`retention`).
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LedgerUpkeep {
    /// Where the ledger and the accounts are. A change takes effect at the next start.
    pub kind: LedgerKind,
    /// For `postgres`: `postgres://user:password@host:port/database`, `${ENV}` or `file:/path`. Of
    /// several hosts, the one that accepts writes is used. `sslmode=require` uses TLS and checks
    /// the server's certificate.
    pub url: Option<String>,
    /// For `postgres`: refuse a server without a synchronous standby. Without one, the loss of the
    /// server's disk loses debits.
    pub require_standby: bool,
    pub seal: SealRules,
    /// Move old segments to another folder. Default: they stay in `data_dir`.
    pub retention: Option<RetentionRules>,
    /// Days in which you refund responses; at most `retention.keep_days`.
    pub refund_days: u32,
}

impl Default for LedgerUpkeep {
    fn default() -> Self {
        Self {
            kind: LedgerKind::Sqlite,
            url: None,
            require_standby: true,
            seal: SealRules::default(),
            retention: None,
            refund_days: 30,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LedgerKind {
    /// In the files `ledger.db` and `app.db` in `data_dir`.
    Sqlite,
    /// In PostgreSQL; the files are copies. Needs `store.kind: redis`. Several sidecars can run:
    /// one holds the ledger, another one takes over when it ends.
    Postgres,
}

/// When entries leave `ledger.db` for a segment, a file of the folder `segments` in `data_dir`. The
/// gateway finds them there.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SealRules {
    /// Entries of a full segment, which is sealed at once.
    pub entries: u64,
    /// Whole days (UTC) after which the entries of a day are sealed.
    pub after_days: u32,
}

impl Default for SealRules {
    fn default() -> Self {
        Self {
            entries: 1_000_000,
            after_days: 1,
        }
    }
}

/// Which segments move, and where to.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetentionRules {
    /// Days for which segments stay in `data_dir`.
    pub keep_days: u32,
    /// Existing folder for them. Receipts and refunds of entries in it work as long as it can be
    /// read.
    pub archive: String,
}

/// Web pages of other origins that may call the API from a browser. Does not apply to dashboard
/// pages or cookies. Default: none.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cors {
    /// Origins as browsers send them, `https://app.example.com` or `http://localhost:3000`, up to
    /// 256; or `*` alone for all. Anyone who opens a page can read a key in it, so give that key a
    /// spend limit and an expiry.
    pub origins: Vec<String>,
}

/// Traces in OTLP over HTTP (JSON): one span per request and one per upstream attempt, without
/// bodies, headers or secrets. Default: none. A change takes effect at the next start or upgrade.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Traces {
    /// URL of a collector next to the gateway, `http://127.0.0.1:4318/v1/traces`.
    pub endpoint: String,
    /// Share of requests to trace, 0 to 1 (default: 0.01). A client's `traceparent` sets the trace
    /// ID, but does not decide on sampling.
    #[serde(default = "one_in_a_hundred")]
    pub sample_ratio: Decimal,
    /// Send a `traceparent` to vendors too: of the attempt's span, or, for a request that is not
    /// traced, the client's own.
    #[serde(default)]
    pub to_vendors: bool,
}

fn one_in_a_hundred() -> Decimal {
    Decimal("0.01".into())
}

/// Highest rate limit that can be set, per minute or concurrent.
pub const MAX_RATE: u64 = 1_000_000_000;

/// Default rate limits of each key, and of all keys of an account together. Those of a single key
/// or account (`key set`, `account limit`) take precedence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RateLimits {
    pub key: Rates,
    pub account: Rates,
}

/// 0: no limit; at most 1 000 000 000.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rates {
    /// Requests per minute. Over it: 429.
    pub requests_per_minute: u64,
    /// Tokens per minute: at admission the estimated input and the output limit, corrected at the
    /// end to the actual usage. Over it: 429.
    pub tokens_per_minute: u64,
    /// Concurrent requests. Over it: 429.
    pub concurrent: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// Path of the certificate chain, PEM.
    pub cert: String,
    /// Path of the private key, PEM.
    pub key: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Store {
    pub kind: StoreKind,
    /// For `redis`: a single server, `redis://[user:password@]host:port[/database]`. Use `${ENV}`
    /// to keep a password out of the file.
    #[serde(default)]
    pub url: Option<String>,
    /// For `redis`, instead of `url`: some nodes of a Redis Cluster, in the same form.
    #[serde(default)]
    pub cluster: Vec<String>,
    /// For `redis`, instead of `url`: Sentinels that know the primary.
    #[serde(default)]
    pub sentinel: Option<Sentinel>,
    /// For `redis`: start even if the server can lose data (a `maxmemory-policy` other than
    /// noeviction, or no `appendonly`). Its restart then loses all open holds, and requests of that
    /// time may end as write-offs.
    #[serde(default)]
    pub allow_volatile: bool,
    /// For `redis`: milliseconds that an edge waits for an answer of the store, 20 to 1000. Over
    /// it: 503. If a round trip takes longer than 50 ms, set at least four round trips.
    #[serde(default = "default_reply_timeout_ms")]
    #[schemars(range(min = 20, max = 1000))]
    pub reply_timeout_ms: u64,
}

fn default_reply_timeout_ms() -> u64 {
    200
}

impl Default for Store {
    fn default() -> Self {
        Self {
            kind: StoreKind::Embedded,
            url: None,
            cluster: Vec::new(),
            sentinel: None,
            allow_volatile: false,
            reply_timeout_ms: default_reply_timeout_ms(),
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sentinel {
    /// Name of the primary in the Sentinels' configuration (`sentinel monitor NAME …`).
    pub master: String,
    /// Up to 16 Sentinels: `redis://[user:password@]host:port`, with the Sentinel's own user and
    /// password. Use `rediss://` for all if the servers use TLS.
    pub nodes: Vec<String>,
    /// User, password (`${ENV}` or `file:/path`) and database of the Redis servers themselves.
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub password: Option<String>,
    #[serde(default)]
    pub database: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// One machine: all data is in `data_dir`.
    Embedded,
    /// Several edges: keys, balances and holds are in Redis; the ledger is in the sidecar's
    /// `data_dir`.
    Redis,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Signup {
    pub mode: SignupMode,
    /// Credits granted at sign-up (default: 300).
    pub trial_credits: Decimal,
    /// Days of the trial; may be a fraction (default: 7). 0: no trial.
    pub trial_days: Decimal,
    /// Credits that all trials of one day (UTC) may grant; over it, sign-up is refused until the
    /// next day. 0 (default): no limit.
    pub trial_budget_per_day: Decimal,
    /// Refuse a sign-up whose e-mail address is another spelling of an existing account's mailbox
    /// (dots and +tags of Gmail).
    pub one_account_per_mailbox: bool,
    /// Domains whose e-mail addresses may sign up, such as `example.com`, up to 256; a subdomain is
    /// another domain. Empty (default): all.
    pub domains: Vec<String>,
}

impl Default for Signup {
    fn default() -> Self {
        Self {
            mode: SignupMode::Open,
            trial_credits: Decimal("300".into()),
            trial_days: Decimal("7".into()),
            trial_budget_per_day: Decimal("0".into()),
            one_account_per_mailbox: false,
            domains: Vec::new(),
        }
    }
}

/// Who can sign up on the dashboard. Default: `open`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SignupMode {
    /// Anyone.
    Open,
    /// Anyone with an invitation code. Each code opens one account. Create codes with
    /// `model-gateway account invite` or on the operator pages.
    Invite,
    /// No one. Create accounts with `model-gateway account create`.
    Closed,
}

/// How people sign in to the dashboard. Default: with a password alone.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SignIn {
    /// Offer sign-in and sign-up with a password. False: only with `providers`; an operator can
    /// still let somebody in with `model-gateway account reset-link`.
    pub password: bool,
    /// Identity providers, up to 8, in the order of their buttons.
    pub providers: Vec<SignInProvider>,
    /// Let programs in a terminal sign in: `/login` of Claude Code, `model-gateway login`. A person
    /// approves each at `BASE_URL/device`: `docs/sign-in.md`.
    pub device: bool,
    /// JSON file with the settings that Claude Code takes over after `/login`, as in its
    /// `managed-settings.json`; at most 256 KiB. Needs `device`. Default: none.
    pub managed_settings: Option<String>,
}

impl Default for SignIn {
    fn default() -> Self {
        Self {
            password: true,
            providers: Vec::new(),
            device: false,
            managed_settings: None,
        }
    }
}

/// An identity provider.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignInProvider {
    /// Name in paths and commands: 1 to 32 of a-z, 0-9 and `-`. The provider redirects to
    /// `BASE_URL/dashboard/sign-in/ID/callback`.
    pub id: String,
    /// `oidc` for any OpenID Connect provider, or `google`, `microsoft`, `gitlab` or `github`.
    pub kind: String,
    /// Name on the button. Default: that of the kind, or `id`.
    #[serde(default)]
    pub name: Option<String>,
    /// Issuer URL, exactly as the provider's discovery document has it. Required for `oidc` and
    /// `microsoft`. `http://` is allowed on loopback only.
    #[serde(default)]
    pub issuer: Option<String>,
    /// Id of the gateway at the provider.
    pub client_id: String,
    /// Secret of the gateway at the provider: literal, `${ENV}` or `file:/path`. Never printed or
    /// logged.
    pub client_secret: String,
    /// Scopes to ask for besides those of the kind, such as `groups`.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// Claim that lists a person's groups. Default: that of the kind, mostly `groups`.
    #[serde(default)]
    pub groups_claim: Option<String>,
    /// Role of the members of a group, set at each sign-in. Who leaves the group loses it.
    #[serde(default)]
    pub roles: BTreeMap<String, SignInRole>,
    /// Maximum time for the provider's answers to one step of a sign-in, 1 to 60.
    #[serde(default = "ten")]
    pub timeout_seconds: u64,
}

/// A role that a group gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SignInRole {
    /// Reads the operator pages.
    Viewer,
    /// Changes all accounts.
    Operator,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Vendor {
    /// Defaults for a well-known vendor, such as `openai`, `anthropic`, `groq` or `vllm`:
    /// `docs/vendors.md` and `model-gateway models import --help` list the presets. Sets
    /// `protocol`, `official`, `endpoints`, `path`, `auth`, `version_header`, `profile`, and
    /// `capabilities` of known models; keys in this file win. `model-gateway models import PRESET`
    /// prints the models with their prices.
    #[serde(default)]
    pub preset: Option<String>,
    /// Required without a `preset`.
    #[serde(default)]
    pub protocol: Option<VendorProtocol>,
    /// True for the vendor that defined the protocol; false (default) for a compatible server.
    #[serde(default)]
    pub official: Option<bool>,
    /// Required unless the `preset` defines an address.
    #[serde(default)]
    pub endpoints: Vec<Endpoint>,
    /// The vendor's key: literal, `${ENV}` or `file:/path`. Never printed or logged. An empty value
    /// disables the vendor. Required unless `auth` is `none`.
    #[serde(default)]
    pub api_key: Option<String>,
    #[serde(default)]
    pub version_header: Option<VersionHeader>,
    /// Send all turns of a conversation to the same endpoint while it is healthy, for the vendor's
    /// prompt cache. False: balance every request separately.
    #[serde(default = "yes")]
    pub sticky: bool,
    /// Default `path` of the endpoints.
    #[serde(default)]
    pub path: Option<String>,
    /// Default `query` of the endpoints. If both set a name, the endpoint's value wins.
    #[serde(default)]
    pub query: BTreeMap<String, String>,
    /// Default `headers` of the endpoints. If both set a name, the endpoint's value wins.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Default `auth` of the endpoints.
    #[serde(default)]
    pub auth: Option<AuthKey>,
    /// Default `http_version` of the endpoints.
    #[serde(default)]
    pub http_version: Option<HttpVersionKey>,
    /// Which members the vendor's server accepts. A key that is missing here has the value of the
    /// `preset`; without a preset, that of the vendor that defined the protocol if `official`, and
    /// otherwise the value for a server that accepts least. `model-gateway vendors learn` tests a
    /// server and prints its profile.
    #[serde(default)]
    pub profile: Profile,
}

/// What a vendor's server takes beyond the base of its protocol, and what it refuses.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Members that the server takes beyond the base of its protocol, such as `stream_options`,
    /// `parallel_tool_calls`, `safety_identifier`, `prompt_cache_key`, `service_tier`,
    /// `reasoning_content` (of a message) or `document_url` (a kind of part). The gateway adds no
    /// other member to a request.
    #[serde(default)]
    pub request: Option<Vec<String>>,
    /// Members that the server refuses. The gateway removes them everywhere, also in the server's
    /// own protocol, and says so in `x-gateway-warnings`; `messages.name` is removed from messages
    /// alone (chat).
    #[serde(default)]
    pub drop: Option<Vec<String>>,
    /// The server refuses members that it does not know (default: false; chat, messages). The
    /// gateway then removes those that are neither in the base of the protocol nor in `request`,
    /// also of messages, parts, calls and tools.
    #[serde(default)]
    pub strict: Option<bool>,
    #[serde(default)]
    pub roles: Roles,
    #[serde(default)]
    pub thinking: ProfileThinking,
    /// Where the server's answers have what must go back unchanged, such as
    /// `extra_content.google.thought_signature` of a call or `message.pondering` of the message
    /// (`message.` may be left out of the members for reasoning). It goes back with the call or
    /// message that had it, through every surface; clients of chat completions must return the
    /// member themselves, or get the warning `inserted:messages.pondering`.
    #[serde(default)]
    pub state: Option<Vec<String>>,
    /// Value in the first place of `state` if a turn with calls comes from another vendor: in its
    /// first call, or in the message if the place is there. May be empty.
    #[serde(default)]
    pub state_placeholder: Option<String>,
    /// In a request with tools, also an answer without calls needs the `state` of its message
    /// (default: false), or the placeholder.
    #[serde(default)]
    pub state_in_answers: Option<bool>,
    /// Values of `service_tier` that the server takes (default: all). The gateway leaves out
    /// others.
    #[serde(default)]
    pub service_tiers: Option<Vec<String>>,
    /// Where the server's answers or chunks have their usage, such as `meta.billed`, beside
    /// `usage`, `x_groq.usage` and that of a choice. A list on the way stands for each of its
    /// items. Counters have the names of chat (`prompt_tokens`) or of responses (`input_tokens`).
    /// Also says that the server counts a stream unasked, so that it gets `stream_options` only if
    /// `request` lists it (chat).
    #[serde(default)]
    pub usage: Option<Vec<String>>,
    /// The server takes the preview flags of `anthropic-beta` (messages; default: official vendors
    /// only).
    #[serde(default)]
    pub betas: Option<bool>,
    #[serde(default)]
    pub errors: ProfileErrors,
}

/// How a server words its errors, beside the words that the gateway knows.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProfileErrors {
    /// Parts of its messages, in any case, that say that a request does not fit the model's
    /// context. Clients then get the error by which they compact a conversation.
    #[serde(default)]
    pub full_context: Option<Vec<String>>,
}

/// How a server's reasoning is switched, where `reasoning_effort` alone does not (chat), for models
/// with `reasoning`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProfileThinking {
    /// Members that turn reasoning on, such as `{enable_thinking: true}`, beside the effort, where
    /// it is off by default.
    #[serde(default)]
    pub on: Option<BTreeMap<String, serde_json::Value>>,
    /// Members that turn it off, such as `{thinking: {type: disabled}}`, in place of
    /// `reasoning_effort: none`, for models with `none` in `effort_values`.
    #[serde(default)]
    pub off: Option<BTreeMap<String, serde_json::Value>>,
    /// The server's answers can show reasoning (default: true). If not, callers who ask to see it
    /// get a warning.
    #[serde(default)]
    pub shown: Option<bool>,
}

/// Which messages a server takes in which order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Roles {
    /// Where instructions may stand: `first`, in one message before all others, or `anywhere`.
    /// Later ones become a reminder in the user's name. Default of all models' `mid_system`.
    #[serde(default)]
    pub system: Option<SystemPlace>,
    /// The server knows the role `developer`. If not, it gets `system` (chat).
    #[serde(default)]
    pub developer: Option<bool>,
    /// A user's message may directly follow a tool's (default: true). If not, the gateway puts an
    /// assistant's message between them (chat).
    #[serde(default)]
    pub user_after_tool: Option<bool>,
    /// Messages of the user and of the assistant must alternate, as in the chat templates of some
    /// open models (default: false). If so, the gateway joins consecutive ones (chat).
    #[serde(default)]
    pub alternate: Option<bool>,
    /// The server takes `prefix: true` on a final assistant message, which the answer then
    /// continues (chat). With `false`, it gets no such message of a messages caller; by default, it
    /// gets a plain one.
    #[serde(default)]
    pub prefix: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SystemPlace {
    First,
    Anywhere,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VendorProtocol {
    Messages,
    Chat,
    Responses,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Base address, as the vendor's own SDK takes it, with or without `/v1`. The gateway adds
    /// `/messages`, `/chat/completions` or `/responses`, and `/v1` before it unless the address has
    /// a version: at its end (`/v1`, `/v4`, `/v1beta`), or for chat and responses vendors anywhere
    /// in its path (`/v1beta/openai`). `model-gateway check` prints the URLs.
    pub url: String,
    /// Whole path of generation requests. Must begin with `/`; `url` must have no path then. If it
    /// ends in `/chat/completions`, `/messages` or `/responses`, other calls use sibling paths.
    /// Otherwise the gateway counts tokens itself, and `upstream_protocol` is not available.
    #[serde(default)]
    pub path: Option<String>,
    /// Query parameters of every request, such as `api-version`. Put no secrets here: servers log
    /// URLs.
    #[serde(default)]
    pub query: BTreeMap<String, String>,
    /// Header fields of every request: literal, `${ENV}` or `file:/path`. Never printed or logged.
    /// Refused: fields that the gateway sets itself, hop-by-hop fields and fields that carry a key.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// How to send the key: `bearer` (`authorization: Bearer KEY`; default for chat and responses
    /// vendors), `x-api-key` (default for messages vendors), `api-key`, `none`, or `{header: NAME}`
    /// for the bare key in another field.
    #[serde(default)]
    pub auth: Option<AuthKey>,
    /// `auto` (default): with TLS, HTTP/2 or HTTP/1.1 by ALPN; without, HTTP/1.1. `1`: HTTP/1.1
    /// only. `2`: HTTP/2 only; without TLS, with prior knowledge (h2c).
    #[serde(default)]
    pub http_version: Option<HttpVersionKey>,
    /// Weight in load balancing, 1 to 1000.
    #[serde(default = "one")]
    pub weight: u32,
    /// Concurrent requests at this endpoint, 1 to 65536. Over it, the next endpoint serves; if none
    /// is left: 503. Default: no limit.
    #[serde(default)]
    pub max_concurrent: Option<u32>,
    #[serde(default)]
    pub health_check: Option<HealthCheck>,
}

/// How to send the key.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuthKey {
    Bearer,
    XApiKey,
    ApiKey,
    None,
    #[serde(untagged)]
    Header {
        header: String,
    },
}

impl JsonSchema for AuthKey {
    fn schema_name() -> Cow<'static, str> {
        "AuthKey".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "anyOf": [
                {"type": "string", "enum": ["bearer", "x-api-key", "api-key", "none"]},
                {
                    "type": "object",
                    "properties": {"header": {"type": "string"}},
                    "required": ["header"],
                    "additionalProperties": false
                }
            ]
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpVersionKey {
    Auto,
    One,
    Two,
}

impl<'de> Deserialize<'de> for HttpVersionKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(word) if word == "auto" => Ok(Self::Auto),
            serde_json::Value::Number(number) if number.as_u64() == Some(1) => Ok(Self::One),
            serde_json::Value::Number(number) if number.as_u64() == Some(2) => Ok(Self::Two),
            _ => Err(serde::de::Error::custom(
                "http_version: expected auto, 1 or 2",
            )),
        }
    }
}

impl JsonSchema for HttpVersionKey {
    fn schema_name() -> Cow<'static, str> {
        "HttpVersionKey".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({"enum": ["auto", 1, 2]})
    }
}

/// Active health check: the gateway probes the endpoint at intervals, without a key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HealthCheck {
    /// Path of a GET request, without that of the base address. A status below 400 passes.
    pub path: String,
    /// Interval between checks, 1 to 3600.
    #[serde(default = "ten")]
    pub interval_seconds: u64,
    /// Timeout of one check, 1 to 60.
    #[serde(default = "two")]
    pub timeout_seconds: u64,
    /// Consecutive passes after which the endpoint receives requests again, 1 to 100.
    #[serde(default = "one")]
    pub passes_after: u32,
    /// Consecutive failures after which it receives no more, 1 to 100.
    #[serde(default = "three")]
    pub fails_after: u32,
}

fn two() -> u64 {
    2
}

fn three() -> u32 {
    3
}

fn ten() -> u64 {
    10
}

fn one() -> u32 {
    1
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VersionHeader {
    /// Name of the header field, from clients and to the vendor.
    pub name: String,
    /// Value to send if the client sends none.
    pub value: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Catalog id: letters, digits and `. _ : - / @`.
    pub id: String,
    /// Up to 32 other names for the model. One `*` in a name matches any text. Ids win over exact
    /// aliases, and these over those with a `*`, of which the longest wins. Responses, bills and
    /// logs show the id; key restrictions and `fallback` refer to ids.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// A key of `vendors`.
    pub vendor: String,
    /// The model's name at the vendor.
    pub upstream_model: String,
    /// What the model computes: `chat` (default) serves chat completions, messages and responses,
    /// `embedding` `/v1/embeddings` (Cohere's also `/v1/embed` and `/v2/embed`, Voyage's
    /// `/v1/contextualizedembeddings`), `rerank` `/v1/rerank` and `/v2/rerank`, `moderation`
    /// `/v1/moderations`, `image` `/v1/images/generations` and `/v1/images/edits`, `speech`
    /// `/v1/audio/speech`, `transcription` `/v1/audio/transcriptions` (Cohere's also
    /// `/v2/audio/transcriptions`) and `/v1/audio/translations`. Other kinds than `chat` need a
    /// vendor with `protocol: chat`, and have no `capabilities` and no `fallback`.
    #[serde(default)]
    pub kind: ModelKindKey,
    /// `responses`: the chat vendor also serves this model at `/v1/responses`, and gets requests of
    /// the responses surface there. If `tools_with_reasoning` is not `any`, also chat requests with
    /// tools that do not switch reasoning off, and messages requests, except those with stop
    /// sequences and without tools. Default: only the vendor's own protocol.
    #[serde(default)]
    pub upstream_protocol: Option<UpstreamProtocol>,
    /// Most input and output tokens together; of an embedding model, most tokens of one input; of
    /// other kinds, most tokens of the text and the media of a request.
    pub context_tokens: u64,
    /// Required for `kind: chat`, and for images and transcriptions that are billed by tokens: then
    /// most tokens of one image or of one text.
    #[serde(default)]
    pub max_output_tokens: Option<u64>,
    /// `kind: transcription`: longest audio in seconds, as far as its size allows. A longer one is
    /// billed up to here.
    #[serde(default)]
    pub max_audio_seconds: Option<u64>,
    #[serde(default)]
    pub capabilities: Capabilities,
    /// Change a request that needs no translation, where `capabilities` says that the model would
    /// refuse it, and name each change in `x-gateway-warnings`. False: forward it unchanged; the
    /// vendor refuses it.
    #[serde(default = "yes")]
    pub repair: bool,
    /// Messages vendors: `auto` (default): the gateway marks translated conversations for the
    /// vendor's prompt cache: requests with an earlier answer, with tools that the model may
    /// choose, or with a `prompt_cache_key`; if the vendor's `profile` takes `cache_control` and
    /// the caller set no marker. `off`: it marks none.
    #[serde(default)]
    pub cache_marks: CacheMarks,
    pub price: Price,
    /// Up to 3 ids of models, tried in order if every endpoint of this one fails, is overloaded or
    /// asks for a pause, or if the vendor refuses the gateway's key, has no credit left for it, or
    /// does not know the model; only while the client has received no useful output. The hold
    /// covers the most expensive; the one that responds is billed and named. Their own `fallback`
    /// is not followed.
    #[serde(default)]
    pub fallback: Vec<String>,
}

/// What a model computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ModelKindKey {
    #[default]
    Chat,
    Embedding,
    Rerank,
    Moderation,
    Image,
    Speech,
    Transcription,
}

impl From<ModelKindKey> for llm_protocol::metered::ModelKind {
    fn from(kind: ModelKindKey) -> Self {
        match kind {
            ModelKindKey::Chat => Self::Chat,
            ModelKindKey::Embedding => Self::Embedding,
            ModelKindKey::Rerank => Self::Rerank,
            ModelKindKey::Moderation => Self::Moderation,
            ModelKindKey::Image => Self::Image,
            ModelKindKey::Speech => Self::Speech,
            ModelKindKey::Transcription => Self::Transcription,
        }
    }
}

/// Whether the gateway marks requests for a vendor's prompt cache. `off` without quotes is `false`
/// in YAML.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CacheMarks {
    #[default]
    Auto,
    Off,
}

impl<'de> Deserialize<'de> for CacheMarks {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::Bool(false) => Ok(Self::Off),
            serde_json::Value::String(word) if word == "off" => Ok(Self::Off),
            serde_json::Value::String(word) if word == "auto" => Ok(Self::Auto),
            _ => Err(serde::de::Error::custom(
                "cache_marks: expected auto or off",
            )),
        }
    }
}

impl JsonSchema for CacheMarks {
    fn schema_name() -> Cow<'static, str> {
        "CacheMarks".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "description": "auto or off.",
            "enum": ["auto", "off", false]
        })
    }
}

/// Features that the model accepts, for translation between the protocols. Default of each key: the
/// vendor's `preset` for this `upstream_model`, else the shipped catalog for this id, else the
/// protocol's common subset. `repair` uses them too, but not that subset.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Capabilities {
    /// Messages vendors: `free` (temperature up to 1, top_p, top_k), `one_of` (temperature or
    /// top_p), `fixed` (only the default). Others: a temperature and top_p other than 1 are
    /// accepted.
    pub sampling: Option<SamplingKey>,
    /// Messages vendors: accepted values of `thinking.type`.
    pub thinking_types: Option<Vec<ThinkingTypeKey>>,
    /// Messages vendors: thinking if `thinking` is left out.
    pub thinking_default: Option<OnOff>,
    /// Messages vendors: levels of `output_config.effort`. Empty: none.
    pub effort_levels: Option<Vec<EffortKey>>,
    /// Messages vendors: a final assistant turn.
    pub prefill: Option<bool>,
    /// Messages and chat vendors: instructions between other messages. Default: the `roles` of the
    /// vendor's `profile`.
    pub mid_system: Option<bool>,
    /// Messages vendors: `output_config.format` and a tool's `strict`.
    pub structured: Option<bool>,
    /// Messages vendors: server tools that may be used; `web_search` exactly if it has a price.
    pub server_tools: Option<Vec<String>>,
    /// Messages vendors: fewest tokens of a prompt that the vendor caches; the gateway marks no
    /// shorter one. Default: 4096.
    pub min_cache_tokens: Option<u64>,
    /// Chat vendors: field of the output limit.
    pub output_limit_field: Option<OutputLimitField>,
    /// Chat and responses vendors: a reasoning effort.
    pub reasoning: Option<bool>,
    /// Chat and responses vendors: accepted reasoning efforts.
    pub effort_values: Option<Vec<EffortKey>>,
    /// Chat vendors: whether function tools work with reasoning. `unforced`: they do, but a
    /// `tool_choice` that forces one turns reasoning off.
    pub tools_with_reasoning: Option<ToolsWithReasoningKey>,
    /// Chat vendors: `stop`.
    pub stop: Option<bool>,
    /// Chat and responses vendors: `prompt_cache_breakpoint`.
    pub cache_breakpoints: Option<bool>,
    /// Chat and responses vendors: `verbosity`.
    pub verbosity: Option<bool>,
    /// Chat vendors: role of system instructions.
    pub system_role: Option<SystemRole>,
    /// Chat vendors: whether the server expects its reasoning back, and in which member.
    /// `reasoning_content_in_turn`: only that of the current turn, where it calls tools.
    pub reasoning_replay: Option<ReasoningReplayKey>,
    /// Chat vendors: `top_k`.
    pub top_k: Option<bool>,
    /// Chat vendors: tools of type `custom`. If false, those of the responses surface are sent as
    /// functions.
    pub custom_tools: Option<bool>,
    /// Chat vendors: `parallel_tool_calls`. `with_auto_choice`: only if `tool_choice` is `auto` or
    /// left out.
    pub parallel_tool_calls: Option<ParallelToolCallsKey>,
    /// Chat vendors: format of tool call ids. `nine`: exactly nine letters or digits; the gateway
    /// replaces other ids, the same id always alike.
    pub tool_call_ids: Option<ToolCallIdsKey>,
    /// Chat vendors: the API that continues prompts. `text`: `/v1/completions`; `fim`: Mistral's
    /// `/v1/fim/completions`. Default: none.
    pub completions: Option<CompletionsKey>,
    /// Responses vendors: `reasoning.summary`. Default: yes if the model reasons.
    pub summaries: Option<bool>,
    /// Responses vendors: only tools of type `function`. The gateway then translates requests of
    /// the responses surface: it sends custom tools, namespaces and client-run tools as functions,
    /// and restores them in the response.
    pub functions_only: Option<bool>,
}

/// A sampling mode for messages vendors; a boolean for all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplingKey {
    Free,
    OneOf,
    Fixed,
    Accepted(bool),
}

impl<'de> Deserialize<'de> for SamplingKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::Bool(accepted) => Ok(Self::Accepted(accepted)),
            serde_json::Value::String(word) if word == "free" => Ok(Self::Free),
            serde_json::Value::String(word) if word == "one_of" => Ok(Self::OneOf),
            serde_json::Value::String(word) if word == "fixed" => Ok(Self::Fixed),
            _ => Err(serde::de::Error::custom(
                "capabilities.sampling: expected free, one_of, fixed, true or false",
            )),
        }
    }
}

impl JsonSchema for SamplingKey {
    fn schema_name() -> Cow<'static, str> {
        "SamplingKey".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "description": "free, one_of or fixed (messages vendors); true or false (chat and responses vendors).",
            "enum": ["free", "one_of", "fixed", true, false]
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThinkingTypeKey {
    Enabled,
    Adaptive,
    BetweenTools,
    Disabled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnOff {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EffortKey {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UpstreamProtocol {
    Responses,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolsWithReasoningKey {
    Any,
    Unforced,
    EffortNone,
    ResponsesOnly,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SystemRole {
    Developer,
    System,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningReplayKey {
    None,
    Reasoning,
    ReasoningContent,
    ReasoningContentInTurn,
    ReasoningDetails,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ParallelToolCallsKey {
    Accepted,
    WithAutoChoice,
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolCallIdsKey {
    Any,
    Nine,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CompletionsKey {
    Text,
    Fim,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputLimitField {
    MaxCompletionTokens,
    MaxTokens,
}

/// Credits per 1 000 000 tokens, by token class, and the vendor's other prices.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Required, except for a model that is billed by another unit: `search_unit`, `image`,
    /// `character` or `second`.
    #[serde(default)]
    pub input: Option<Decimal>,
    /// Required for `kind: chat`, and for a transcription that is billed by tokens.
    #[serde(default)]
    pub output: Option<Decimal>,
    /// Default: `input`.
    #[serde(default)]
    pub cache_read: Option<Decimal>,
    /// Shorter lifetime of the vendor's cache: 5 minutes at Anthropic, 30 at OpenAI. Default:
    /// `input`.
    #[serde(default)]
    pub cache_write_5m: Option<Decimal>,
    /// Longer lifetime: an hour at Anthropic, 12 hours at OpenAI. Default: `cache_write_5m`.
    #[serde(default)]
    pub cache_write_1h: Option<Decimal>,
    /// Long-context prices, in strictly ascending order. The highest tier whose threshold the input
    /// exceeds applies to the whole request.
    #[serde(default)]
    pub tiers: Option<Vec<PriceTier>>,
    /// Per 1 000 000 tokens of audio input. Unset: chat requests with audio are refused; a
    /// transcription costs `input`.
    #[serde(default)]
    pub audio_input: Option<Decimal>,
    /// Chat vendors: per 1 000 000 tokens of audio output. Unset: requests for audio are refused.
    #[serde(default)]
    pub audio_output: Option<Decimal>,
    /// Messages and responses vendors: per 1 000 web searches; may be 0. Unset: messages requests
    /// with the vendor's search tool are refused; responses requests lose the tool.
    #[serde(default)]
    pub web_search: Option<Decimal>,
    /// Messages vendors: per 1 000 uses of web fetch; may be 0. Unset: requests with it are
    /// refused.
    #[serde(default)]
    pub web_fetch: Option<Decimal>,
    /// Messages and responses vendors: per 1 000 uses of code execution, or of the code
    /// interpreter; may be 0. Unset: requests with it are refused.
    #[serde(default)]
    pub code_execution: Option<Decimal>,
    /// Messages vendors: per 1 000 uses of tool search; may be 0. Unset: requests with it are
    /// refused.
    #[serde(default)]
    pub tool_search: Option<Decimal>,
    /// Messages and responses vendors: per 1 000 calls of remote MCP servers' tools; may be 0.
    /// Unset: requests with MCP servers are refused.
    #[serde(default)]
    pub mcp: Option<Decimal>,
    /// `kind: rerank`, in the place of `input`: per 1 000 search units, as Cohere bills: a query
    /// with up to 100 documents of up to 500 tokens.
    #[serde(default)]
    pub search_unit: Option<Decimal>,
    /// `kind: image`, in the place of all other prices: per 1 000 images.
    #[serde(default)]
    pub image: Option<Decimal>,
    /// `kind: image`: per 1 000 000 tokens of the images that are edited. Default: `input`.
    #[serde(default)]
    pub image_input: Option<Decimal>,
    /// `kind: image`, with `input`: per 1 000 000 tokens of the generated images.
    #[serde(default)]
    pub image_output: Option<Decimal>,
    /// `kind: speech`: per 1 000 characters of the text that is spoken.
    #[serde(default)]
    pub character: Option<Decimal>,
    /// `kind: transcription`, in the place of all other prices: per 1 000 seconds of audio.
    #[serde(default)]
    pub second: Option<Decimal>,
    /// Price factor per service tier, by the vendor's name: a multiple of the token prices, more
    /// than 0 and at most 1 000. `fast` and `priority` are one tier: either name prices both. Other
    /// tiers are refused.
    #[serde(default)]
    pub service_tier: BTreeMap<String, Decimal>,
    /// Messages vendors: price factor per region (`inference_geo`), by the vendor's name, such as
    /// `us: 1.1`. Other regions are refused, except `global`.
    #[serde(default)]
    pub inference_geo: BTreeMap<String, Decimal>,
    /// Messages vendors: price factor per speed, by the vendor's name, such as `fast: 6`. Other
    /// speeds are refused, except `standard`.
    #[serde(default)]
    pub speed: BTreeMap<String, Decimal>,
}

impl Price {
    /// The names of all its keys.
    pub const KEYS: [&str; 22] = [
        "input",
        "output",
        "cache_read",
        "cache_write_5m",
        "cache_write_1h",
        "tiers",
        "audio_input",
        "audio_output",
        "web_search",
        "web_fetch",
        "code_execution",
        "tool_search",
        "mcp",
        "search_unit",
        "image",
        "image_input",
        "image_output",
        "character",
        "second",
        "service_tier",
        "inference_geo",
        "speed",
    ];
}

/// Credits per 1 000 000 tokens, input and output, of requests whose input exceeds a threshold. A
/// price that is unset is inherited from the tier below.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PriceTier {
    /// Threshold in input tokens of all classes together, including cached ones. The tier applies
    /// from one token above it. Must be below `context_tokens`.
    pub above_input_tokens: u64,
    #[serde(default)]
    pub input: Option<Decimal>,
    #[serde(default)]
    pub cache_read: Option<Decimal>,
    #[serde(default)]
    pub cache_write_5m: Option<Decimal>,
    #[serde(default)]
    pub cache_write_1h: Option<Decimal>,
    #[serde(default)]
    pub output: Option<Decimal>,
}

/// A decimal number, quoted or not.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Decimal(pub String);

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => Ok(Self(text)),
            serde_json::Value::Number(number) => Ok(Self(number.to_string())),
            other => Err(serde::de::Error::custom(format!("not a number: {other}"))),
        }
    }
}

impl JsonSchema for Decimal {
    fn schema_name() -> Cow<'static, str> {
        "Decimal".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "description": "A decimal number, quoted or not.",
            "type": ["string", "number"]
        })
    }
}

/// Numbers outside `limits` that have a range: the section's type, the key, minimum and maximum.
pub const RANGES: [(&str, &str, u64, u64); 19] = [
    ("Endpoint", "weight", 1, 1_000),
    ("Endpoint", "max_concurrent", 1, 65_536),
    ("HealthCheck", "interval_seconds", 1, 3_600),
    ("HealthCheck", "timeout_seconds", 1, 60),
    ("HealthCheck", "passes_after", 1, 100),
    ("HealthCheck", "fails_after", 1, 100),
    ("LedgerUpkeep", "refund_days", 0, 3_650),
    ("Mail", "per_hour", 1, 100_000),
    ("Model", "context_tokens", 1, 100_000_000),
    ("Model", "max_audio_seconds", 1, 86_400),
    ("Model", "max_output_tokens", 1, 100_000_000),
    ("PriceTier", "above_input_tokens", 1, 100_000_000),
    ("RetentionRules", "keep_days", 1, 3_650),
    ("SealRules", "entries", 1_000, 4_000_000),
    ("SealRules", "after_days", 1, 3_650),
    ("SignInProvider", "timeout_seconds", 1, 60),
    ("Rates", "requests_per_minute", 0, MAX_RATE),
    ("Rates", "tokens_per_minute", 0, MAX_RATE),
    ("Rates", "concurrent", 0, MAX_RATE),
];

/// Upper bounds of limits by which other parts of the process are dimensioned.
pub const MAX_TOTAL_SECONDS: u64 = 86_400;
pub const MAX_DRAIN_SECONDS: u64 = 3_600;
pub const MAX_ATTEMPTS: u64 = 8;

macro_rules! limits {
    ($( $(#[doc = $doc:literal])* $name:ident = $default:literal, $min:literal ..= $max:expr; )*) => {
        /// Every buffer, queue, timeout and attempt count, with its unit in its name. "Over it":
        /// the response above the limit.
        #[derive(Debug, Clone, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct Limits {
            $( $(#[doc = $doc])* pub $name: u64, )*
            /// Further names of the messages protocol's version header, from clients.
            pub version_header_aliases: Vec<String>,
            /// Sync the journal to disk before the last byte of a response, so that a power cut
            /// loses no debit; costs one sync per request. Otherwise the journal survives a crash
            /// of the process, and the next ledger commit is on disk within 250 ms (on an
            /// edge: once the shared store has the entry). A change takes effect at the next start
            /// or upgrade.
            pub journal_sync: bool,
        }

        impl Default for Limits {
            fn default() -> Self {
                let version_header_aliases = vec!["anthropic-version".into()];
                Self { $( $name: $default, )* version_header_aliases, journal_sync: false }
            }
        }

        impl Limits {
            /// Each numeric limit: its key, value, minimum and maximum.
            pub fn bounds(&self) -> Vec<(&'static str, u64, u64, u64)> {
                vec![$( (stringify!($name), self.$name, $min, $max), )*]
            }
        }
    };
}

limits! {
    /// Size of one request body.
    body_bytes = 33_554_432, 1_024..=268_435_456;
    /// Object members and array items in one request body: agents send about 20 for each tool call
    /// and its result. Over it: 400.
    body_values = 200_000, 1_000..=10_000_000;
    /// Memory of this process. From 90 % of it on, new work gets 503, and running requests finish.
    /// 0: the limit of the control group or the memory that is free on the machine, whichever is
    /// less.
    memory_bytes = 0, 0..=1_099_511_627_776;
    /// Request bodies held at one time, as far as received. Over it: 503.
    bodies_in_flight_bytes = 1_073_741_824, 1_048_576..=68_719_476_736;
    /// Share of `bodies_in_flight_bytes` for the requests of one account, but at least one
    /// `body_bytes`. Over it: 429.
    account_bodies_percent = 25, 1..=100;
    /// Share of `bodies_in_flight_bytes` for the requests over one client connection, but at least
    /// one `body_bytes`. Over it: 429. Not for a proxy in `listen.trust_proxy`.
    connection_bodies_percent = 6, 1..=100;
    /// Threads for jobs on bodies of more than 256 KiB, or with a content coding, and as many again
    /// for bodies of more than 2 MiB. 0: one less than the number of cores, at least 1.
    cpu_threads = 0, 0..=1_024;
    /// Jobs (decoding, parsing, translating) that may wait for one of `cpu_threads`, of each of the
    /// two sizes. Over it: 503.
    cpu_queue = 1_024, 1..=65_536;
    /// Waiting jobs of one account and size. A queue serves accounts in turn.
    cpu_queue_per_account = 128, 1..=65_536;
    /// Longest wait of a job in `cpu_queue`. After it: 503.
    cpu_queue_seconds = 10, 1..=600;
    /// Time from the end of a request's header to the end of its body. After it: 408.
    body_read_seconds = 60, 1..=3_600;
    /// Minimum rate of a request body over `body_rate_seconds`. Below it: 408. 0: none.
    body_bytes_per_second = 1_024, 0..=1_073_741_824;
    /// Window of `body_bytes_per_second`.
    body_rate_seconds = 30, 1..=3_600;
    /// Size of the request line and header fields together. Over it: 431.
    header_bytes = 32_768, 1_024..=262_144;
    /// Header fields of a request. Over it: 431.
    header_fields = 64, 8..=256;
    /// Time from the first byte of a header, or the start of a connection, to the end of the header
    /// (HTTP/1). Then the gateway closes the connection.
    header_read_seconds = 30, 1..=3_600;
    /// Client connections of this process. Over it, the gateway closes those that have been idle
    /// longest, or else new ones at once. 0: no limit. At start the gateway lowers it to fit the
    /// limit on open files.
    connections = 20_000, 0..=1_000_000;
    /// Client connections from one address (IPv6: one /64). Over it, the gateway closes new ones at
    /// once. 0: no limit. Not for a proxy in `listen.trust_proxy`.
    connections_per_address = 1_024, 0..=1_000_000;
    /// Page requests (everything outside `/v1`) at one time in this process. Over it: 503. Live
    /// balances have their own limits. 0: no limit.
    open_pages = 512, 0..=1_000_000;
    /// Page requests of one address at one time (IPv6: one /64). Over it: 429. 0: no limit. Not for
    /// a proxy in `listen.trust_proxy` that does not name its client.
    open_pages_per_address = 64, 0..=1_000_000;
    /// Body of a page request. Over it: 413.
    page_body_bytes = 65_536, 1_024..=65_536;
    /// Time from the end of a page request's header to the end of its body. After it: 408.
    page_body_read_seconds = 10, 1..=3_600;
    /// Live balances (event streams of the dashboard) at one time in this process. Over it: 503,
    /// and the page keeps the balance from when it was loaded. 0: no limit.
    live_streams = 4_096, 0..=1_000_000;
    /// Live balances of one address at one time (IPv6: one /64). Over it: 429. 0: no limit. Not for
    /// a proxy in `listen.trust_proxy` that does not name its client.
    live_streams_per_address = 256, 0..=1_000_000;
    /// Live balances and downloads of one person at one time. Over it: 503.
    live_streams_per_account = 8, 1..=65_536;
    /// Requests over one client connection (HTTP/1), after which the gateway closes it.
    keepalive_requests = 1_000, 1..=1_000_000;
    /// Open requests of one account. Over it: 429.
    open_requests_per_account = 256, 1..=65_536;
    /// Free requests of one account per minute, at each edge: model lists, credits, receipts, and
    /// token counts, which count as ten. Requests that are refused because of their bodies have a
    /// separate limit of the same size. Over it: 429. A key or account with `requests_per_minute`
    /// has ten times that value instead. 0: no limit.
    free_requests_per_minute = 6_000, 0..=MAX_RATE;
    /// Look-ups per second in the shared store, by one edge, of keys that it has not seen valid,
    /// against floods of made-up keys. Over it: 429.
    unknown_key_lookups_per_second = 1_000, 1..=1_000_000;
    /// Lookups of receipts and usage of one account at one time. Over it: 429.
    receipt_lookups_per_account = 32, 1..=65_536;
    /// Sign-ups from one address (IPv6: one /64) per hour. Over it: 429. Not for loopback, as long
    /// as `base_url` is there too and no proxy says that it speaks for others.
    sign_ups_per_address_per_hour = 3, 1..=1_000_000;
    /// Open requests of this process. Over it: 503.
    open_requests = 20_000, 1..=65_536;
    /// Timeout of TCP and TLS connects to a vendor.
    connect_seconds = 5, 1..=60;
    /// Time from the end of the request to the vendor's header. Models may reason for minutes. TCP
    /// keep-alive detects a machine that is gone in about a minute all the same.
    first_byte_seconds = 600, 1..=3_600;
    /// Longest gap between two pieces of a vendor's body.
    idle_seconds = 600, 1..=3_600;
    /// Timeout of one write to a vendor that does not read.
    vendor_write_seconds = 60, 1..=3_600;
    /// Silence after which the gateway sends a stream's client a keep-alive, once the vendor has
    /// answered 2xx: a comment, or a `ping` on the messages surface.
    stream_keep_alive_seconds = 15, 1..=300;
    /// Longest duration of a whole request.
    total_seconds = 3_600, 1..=MAX_TOTAL_SECONDS;
    /// Time in which a client must take 64 KiB of its response, or what is left of it. Otherwise it
    /// counts as disconnected.
    client_write_seconds = 60, 1..=3_600;
    /// Time after which the gateway closes an idle client connection. It must exceed the idle
    /// time-out of a proxy or load balancer in front, often 60, which otherwise uses connections
    /// that are just being closed.
    keepalive_seconds = 75, 1..=3_600;
    /// Endpoints tried for one request, for each model that may answer it.
    attempts = 2, 1..=MAX_ATTEMPTS;
    /// Time after which the gateway no longer repeats a request that was sent completely: the
    /// vendor may still process it, and would charge twice. Does not apply if the vendor refused it
    /// with a status or an error.
    repeat_within_seconds = 10, 0..=3_600;
    /// Retries at one vendor's endpoints over 10 seconds, in percent of the requests to it. Over
    /// it, the client receives the vendor's failure. Failed connects, and requests that the vendor
    /// did not start to process, do not count.
    retry_budget_percent = 20, 0..=100;
    /// Retries that are always allowed, whatever `retry_budget_percent` is: at least
    /// `breaker_failures` for each endpoint of the vendor, unless this is 0.
    retry_budget_min = 3, 0..=100_000;
    /// Consecutive failures that open an endpoint's circuit breaker. 0: they do not.
    breaker_failures = 5, 0..=1_000;
    /// Failure rate in a window that opens the circuit breaker, in percent.
    breaker_failure_percent = 50, 1..=100;
    /// Length of the circuit breaker's window.
    breaker_window_seconds = 30, 1..=3_600;
    /// Minimum number of requests in the window for the failure rate to count.
    breaker_window_requests = 20, 1..=1_000_000;
    /// Time that a circuit breaker stays open. It doubles each further time, and up to a quarter is
    /// added at random.
    breaker_open_seconds = 5, 1..=3_600;
    /// Longest time that a circuit breaker stays open.
    breaker_open_max_seconds = 120, 1..=86_400;
    /// Longest `retry-after` of a vendor that the gateway observes. 0: none.
    cool_down_max_seconds = 60, 0..=60;
    /// Interval at which the gateway sends one request to an endpoint during its `retry-after`, if
    /// no other is available; if that succeeds, it sends all of them. 0: never.
    cool_down_probe_seconds = 1, 0..=60;
    /// Time after which the gateway resolves an endpoint's name again.
    dns_refresh_seconds = 30, 1..=86_400;
    /// Time that the last known addresses remain in use while no resolver answers.
    dns_stale_seconds = 3_600, 1..=604_800;
    /// Size of one event of a vendor's stream. One may have the whole response: set it no lower
    /// than `response_buffer_bytes`.
    event_bytes = 33_554_432, 1_024..=268_435_456;
    /// Size of a vendor's response that is not a stream.
    response_buffer_bytes = 33_554_432, 1_024..=268_435_456;
    /// Lowest output limit, in tokens, to which the gateway may clamp a request.
    min_output_tokens = 256, 1..=100_000;
    /// After SIGTERM, time for which `/readyz` returns 503 while the gateway still accepts
    /// requests, so that a load balancer stops sending. 0: the listener closes at once. Behind a
    /// load balancer: 5, or longer than it needs to notice.
    lame_duck_seconds = 0, 0..=300;
    /// Time for running requests after `lame_duck_seconds`. Then a stream ends with an error event
    /// and is charged for the output so far; any other request gets an error and is free.
    drain_seconds = 120, 1..=MAX_DRAIN_SECONDS;
    /// Time that the gateway reads a stream on after its client disconnected, to learn its usage.
    drain_after_client_seconds = 5, 1..=600;
    /// `drain_after_client_seconds` of models that hide their reasoning, and of long requests for
    /// which only the vendor can report the number of cached tokens.
    drain_reasoning_seconds = 60, 1..=600;
    /// Largest response that is stored for an idempotency key.
    idempotency_body_bytes = 1_048_576, 1_024..=268_435_456;
    /// Time that an idempotency key and its response are kept.
    idempotency_seconds = 86_400, 1..=604_800;
    /// Idempotency keys that are kept. Over it, the gateway drops the oldest. One account may have
    /// a quarter of them.
    idempotency_entries = 1_000_000, 1_000..=100_000_000;
    /// Size of all stored responses. Over it, the gateway drops the oldest, but keeps their keys.
    /// One account may have a quarter of it.
    idempotency_store_bytes = 4_294_967_296, 1_048_576..=1_099_511_627_776;
    /// Access log lines that may wait to be written. Over it, the gateway drops lines and counts
    /// them.
    access_log_lines = 16_384, 16..=1_048_576;
    /// With a shared store: size of the stored responses of one account. Over it, the gateway drops
    /// the oldest.
    idempotency_shared_account_bytes = 8_388_608, 1_024..=1_099_511_627_776;
    /// With a shared store: size of those of all accounts; each key counts as 1 KiB.
    idempotency_shared_bytes = 268_435_456, 1_048_576..=1_099_511_627_776;
    /// Size of a journal segment, after which the next begins.
    journal_segment_bytes = 67_108_864, 65_536..=1_073_741_824;
    /// Reserve on the journal's disk, to journal running requests when the disk is full.
    journal_reserve_bytes = 8_388_608, 65_536..=1_073_741_824;
    /// Time that the ledger may need, at the measured rate, for the ended requests that wait for
    /// it. From a quarter of it on, new requests wait up to a second; from three quarters on,
    /// accounts with more than their share get 429; at the limit everybody gets 503.
    ledger_backlog_seconds = 10, 1..=3_600;
    /// Ended requests that may wait for the ledger, as a bound on memory. Same steps as
    /// `ledger_backlog_seconds`.
    journal_pending = 65_536, 1_024..=1_048_576;
    /// Bytes of the ended requests that may wait for the ledger at an edge with a shared store.
    /// They need as many bytes of memory, and fewer of the journal's disk. It acts in the same
    /// steps as `ledger_backlog_seconds`.
    journal_bytes = 268_435_456, 1_048_576..=17_179_869_184;
}
