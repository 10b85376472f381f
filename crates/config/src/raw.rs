//! The keys that the config file may contain, each with its default. The reader, the JSON Schema
//! (`model-gateway schema`) and the documentation all derive from this one definition.
//!
//! Must not check how keys combine: that is `config.rs`.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The whole config file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub listen: Listen,
    /// Public URL of the gateway, as the catalog, the dashboard and the snippets print it. No
    /// trailing slash.
    pub base_url: String,
    /// Directory of the databases, the journal and the upgrade socket. Created with mode 0700.
    pub data_dir: String,
    #[serde(default)]
    pub store: Store,
    #[serde(default)]
    pub signup: Signup,
    #[serde(default)]
    pub mail: Option<Mail>,
    #[serde(default)]
    pub notifications: Notifications,
    /// Whom account holders ask for help, on pages that say so: a text, or an address that begins
    /// with `https://`, `http://` or `mailto:`, which becomes a link. At most 200 characters.
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
    /// Destination of the access log, one line of JSON per request: `off` (default), `stdout`, or
    /// the path of a file. SIGHUP reopens the file. The log holds no bodies, headers or secrets.
    #[serde(default)]
    pub access_log: Option<String>,
    #[serde(default)]
    pub telemetry: Telemetry,
    #[serde(default)]
    pub cors: Cors,
    /// Reload settings automatically (default: true). The gateway watches this file, the
    /// certificate's files and the files that `file:` values name. It reloads them once a change
    /// has been stable for one second. False: it reloads on SIGHUP only. If a changed file has
    /// faults, the gateway keeps the current settings.
    #[serde(default = "yes")]
    pub auto_reload: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// Public addresses, `ip:port`. They accept HTTP/1.0, HTTP/1.1 and h2c; with `tls`, h2 in place
    /// of h2c.
    pub edge: Vec<String>,
    /// Private address of the dashboard, the catalog and the account API; the edge forwards to it.
    pub sidecar: String,
    /// Private address of /metrics, /healthz and /readyz. It answers only requests whose host is an
    /// address, `localhost`, a name without a dot, or one of `admin_names`.
    pub admin: String,
    /// Names with a dot by which others call the `admin` address, such as `edge-1.example.com`
    /// where Prometheus scrapes it by that name.
    #[serde(default)]
    pub admin_names: Vec<String>,
    #[serde(default)]
    pub tls: Option<Tls>,
    /// Trusted proxies in front of the gateway, as addresses or networks (`10.0.0.0/8`), up to 256.
    /// For a request from one of them, the client's address is the last address in
    /// `X-Forwarded-For` that is not a trusted proxy (in `Forwarded`, if the request has no
    /// `X-Forwarded-For`), and `X-Forwarded-Proto: https` makes cookies Secure. The gateway ignores
    /// these headers from any other sender. Of the connection limits, only `limits.connections`
    /// applies to a trusted proxy.
    #[serde(default)]
    pub trust_proxy: Vec<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    pub traces: Option<Traces>,
}

/// Mail to account holders: links to set a password or to verify an e-mail, and alerts. Default: no
/// mail; pages then say whom to ask.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mail {
    /// The mail server: `smtps://HOST` (TLS, port 465) or `smtp://HOST` (STARTTLS is required, port
    /// 587), or with another `:PORT`. `smtp+plain://` (port 25) sends without encryption, and only
    /// to this machine.
    pub smtp: String,
    /// User at the mail server. Default: the gateway does not log in.
    #[serde(default)]
    pub user: Option<String>,
    /// Password of that user: literal, `${ENV}` or `file:/path`. Never printed, never logged.
    #[serde(default)]
    pub password: Option<String>,
    /// Sender of the mail, such as `Model gateway <gateway@example.com>`.
    pub from: String,
    /// A new account gets its trial only after its holder has opened a link sent to the e-mail.
    #[serde(default)]
    pub verify_sign_ups: bool,
    /// Maximum number of mails in an hour, all together: 1 to 100000. Over it, mail waits.
    #[serde(default = "five_hundred")]
    pub per_hour: u32,
}

fn five_hundred() -> u32 {
    500
}

/// What account holders may let the gateway send them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Notifications {
    /// Offer webhooks: the gateway then calls addresses that account holders set.
    pub webhooks: bool,
    /// Networks that webhooks may reach although they are private, such as `10.0.0.0/8`, up to 256.
    /// The gateway refuses all other private, loopback and link-local addresses.
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

/// The ledger: where it is, and its upkeep. The gateway seals its oldest entries into files, so
/// that `ledger.db` does not grow without end, and can move these files to another folder.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LedgerUpkeep {
    /// Where the ledger and the accounts are. A change takes effect at the next start.
    pub kind: LedgerKind,
    /// For `postgres`: `postgres://user:password@host:port/database`, `${ENV}` or `file:/path`. It
    /// can name several hosts, of which the one that accepts writes is used. `sslmode=require` uses
    /// TLS and checks the server's certificate.
    pub url: Option<String>,
    /// For `postgres`: refuse a server without a synchronous standby (default: true). Without one,
    /// the loss of the server's disk loses debits.
    pub require_standby: bool,
    pub seal: SealRules,
    /// Move old segments to another folder. Default: they stay in `data_dir`.
    pub retention: Option<RetentionRules>,
    /// Days in which you refund responses. `retention.keep_days` must not be less.
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
    /// Number of entries of a full segment, which is sealed at once.
    pub entries: u64,
    /// Number of whole days (UTC) after which the entries of a day are sealed.
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
    /// Folder that receives them. It must exist. Receipts and refunds of entries in it work as long
    /// as it can be read.
    pub archive: String,
}

/// Web pages of other origins that may call the API from a browser. Does not apply to dashboard
/// pages or cookies. Default: none.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cors {
    /// Origins as browsers send them, `https://app.example.com` or `http://localhost:3000`, up to
    /// 256; or `*` alone for every origin. Anyone who opens a page can read a key that it contains,
    /// so give such a key a spend limit and an expiry.
    pub origins: Vec<String>,
}

/// Export of traces, with one span per request and one per upstream attempt, in OTLP over HTTP
/// (JSON). Spans hold no bodies, headers or secrets. Default: no export. A change takes effect at
/// the next start or upgrade.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Traces {
    /// URL of a collector next to the gateway, `http://127.0.0.1:4318/v1/traces`.
    pub endpoint: String,
    /// Share of requests to trace, from 0 to 1. A client's `traceparent` sets the trace ID, but
    /// does not influence whether the gateway samples the request.
    #[serde(default = "one_in_a_hundred")]
    pub sample_ratio: Decimal,
    /// Send a `traceparent` to vendors too. It names the span of the attempt, or, for a request
    /// that is not traced, repeats the client's own `traceparent`.
    #[serde(default)]
    pub to_vendors: bool,
}

fn one_in_a_hundred() -> Decimal {
    Decimal("0.01".into())
}

/// Highest rate limit that can be set, per minute or concurrent.
pub const MAX_RATE: u64 = 1_000_000_000;

/// Default rate limits for each key, and for all keys of an account together. A limit set for a
/// single key or account (`key set`, `account limit`) takes precedence.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RateLimits {
    pub key: Rates,
    pub account: Rates,
}

/// Rate limits. 0 = no limit; at most 1 000 000 000.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rates {
    /// Requests per minute. Over the limit: 429.
    pub requests_per_minute: u64,
    /// Tokens per minute. At admission a request counts its estimated input and its output limit;
    /// at its end the gateway corrects this to the actual usage. Over the limit: 429.
    pub tokens_per_minute: u64,
    /// Concurrent requests. Over the limit: 429.
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
    /// For `redis`: address of a single server, `redis://[user:password@]host:port[/database]`. Use
    /// `${ENV}` to keep a password out of the file.
    #[serde(default)]
    pub url: Option<String>,
    /// For `redis`, instead of `url`: addresses of some nodes of a Redis Cluster, in the same form.
    #[serde(default)]
    pub cluster: Vec<String>,
    /// For `redis`, instead of `url`: Sentinels that know which server is the primary.
    #[serde(default)]
    pub sentinel: Option<Sentinel>,
    /// For `redis`: start even if the server is configured so that it can lose data (a
    /// `maxmemory-policy` other than noeviction, or no `appendonly`). If such a server restarts,
    /// all open holds are lost, and requests that run at that time may end as write-offs.
    #[serde(default)]
    pub allow_volatile: bool,
    /// For `redis`: time in milliseconds that an edge waits for an answer of the store, 20 to 1000.
    /// A request whose answer comes later is refused with 503. Raise it to four round trips of the
    /// network or more if one takes longer than 50 ms.
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
    /// Up to 16 Sentinels: `redis://[user:password@]host:port`. User and password are those of the
    /// Sentinel itself. Use `rediss://` for all of them if the servers use TLS.
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
    /// Credits granted at sign-up.
    pub trial_credits: Decimal,
    /// Length of the trial in days; may be a fraction; 0 = no trial.
    pub trial_days: Decimal,
    /// Total credits that the trials of one day (UTC) may grant. Once it is used up, sign-up is
    /// refused until the next day. 0 = no limit.
    pub trial_budget_per_day: Decimal,
    /// Refuse a sign-up whose e-mail address reaches the same mailbox as an existing account under
    /// another spelling (dots and +tags of Gmail).
    pub one_account_per_mailbox: bool,
}

impl Default for Signup {
    fn default() -> Self {
        Self {
            mode: SignupMode::Open,
            trial_credits: Decimal("300".into()),
            trial_days: Decimal("7".into()),
            trial_budget_per_day: Decimal("0".into()),
            one_account_per_mailbox: false,
        }
    }
}

/// Who can sign up on the dashboard.
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

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Vendor {
    /// Defaults for a well-known vendor: `openai`, `anthropic`, `azure-openai`, `gemini`, `xai`,
    /// `mistral`, `deepseek`, `groq`, `openrouter`, `together`, `fireworks`, `deepseek-messages`,
    /// `moonshot`, `moonshot-messages`, `zhipu`, `zhipu-messages`, `qwen`, `qwen-messages`,
    /// `minimax`, `cerebras`, `cohere`, `perplexity`, `nvidia`, `huggingface`, `bedrock`,
    /// `bedrock-openai`, `claude-aws`, `azure-foundry`, `vllm`, `ollama`, `llama-cpp`, `lm-studio`,
    /// `sglang` or `tgi`. Sets `protocol`, `official`, `endpoints`, `path`, `auth`,
    /// `version_header`, the `profile` and the `capabilities` of the vendor's known models. Keys
    /// set in this file take precedence. `model-gateway models import PRESET` prints the models
    /// with their prices.
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
    /// The vendor's key: literal, `${ENV}` or `file:/path`. An empty value disables the vendor. The
    /// gateway never prints or logs it. Required unless `auth` is `none`.
    #[serde(default)]
    pub api_key: Option<String>,
    #[serde(default)]
    pub version_header: Option<VersionHeader>,
    /// Send all turns of a conversation to the same endpoint while that endpoint is healthy, so
    /// that the vendor's prompt cache can be used (default: true). False: balance every request
    /// separately.
    #[serde(default = "yes")]
    pub sticky: bool,
    /// Default `path` of the endpoints.
    #[serde(default)]
    pub path: Option<String>,
    /// Default `query` of the endpoints, merged with each endpoint's own; if both set a name, the
    /// endpoint's value wins.
    #[serde(default)]
    pub query: BTreeMap<String, String>,
    /// Default `headers` of the endpoints, merged with each endpoint's own; if both set a name, the
    /// endpoint's value wins.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Default `auth` of the endpoints.
    #[serde(default)]
    pub auth: Option<AuthKey>,
    /// Default `http_version` of the endpoints.
    #[serde(default)]
    pub http_version: Option<HttpVersionKey>,
    /// What the vendor's server takes. Keys that are left out have the values of the `preset`;
    /// without one, of the vendor that defined the protocol if `official`, else of a server that
    /// takes the least. `model-gateway vendors learn` finds it out.
    #[serde(default)]
    pub profile: Profile,
}

/// What a vendor's server takes beyond the base of its protocol, and what it refuses.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Members that the server takes beyond those that every server of the protocol takes, such as
    /// `stream_options`, `parallel_tool_calls`, `safety_identifier`, `prompt_cache_key`,
    /// `service_tier`, `reasoning_content` (of a message) or `document_url` (a kind of part). The
    /// gateway writes no other member of its own accord.
    #[serde(default)]
    pub request: Option<Vec<String>>,
    /// Members that the server refuses. The gateway removes them from requests in the server's own
    /// protocol too, wherever they stand, and says so in `x-gateway-warnings`.
    #[serde(default)]
    pub drop: Option<Vec<String>>,
    /// The server refuses every member that it does not know (default: false). The gateway then
    /// removes those that are neither in the base of the protocol nor in `request`.
    #[serde(default)]
    pub strict: Option<bool>,
    #[serde(default)]
    pub roles: Roles,
    #[serde(default)]
    pub thinking: ProfileThinking,
    /// Where the server's answers have what must go back to it as it came, such as
    /// `extra_content.google.thought_signature` of a call or `message.pondering` of the message
    /// (`message.` may be left out of the members for reasoning). What a call had goes back with
    /// that call, and what a message had with that message, through every surface.
    #[serde(default)]
    pub state: Option<Vec<String>>,
    /// What goes in the first place of `state` where a turn with calls comes from another vendor:
    /// in its first call, or in the message if the place is there. It may be empty.
    #[serde(default)]
    pub state_placeholder: Option<String>,
    /// Where the server's answers, or the chunks of a stream, have their usage, such as
    /// `meta.billed`, beside the places that the gateway knows: `usage`, `x_groq.usage` and that of
    /// a choice. A list on the way stands for each of its items. The object is read by the names
    /// of chat (`prompt_tokens`) or of responses (`input_tokens`). Says too that the server counts
    /// a stream without being asked (chat).
    #[serde(default)]
    pub usage: Option<Vec<String>>,
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

/// How a server's reasoning is switched, where `reasoning_effort` alone does not (chat). Applies to
/// models with `reasoning`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProfileThinking {
    /// Members that turn reasoning on, such as `{enable_thinking: true}`, beside the effort, for a
    /// server where it is off by default.
    #[serde(default)]
    pub on: Option<BTreeMap<String, serde_json::Value>>,
    /// Members that turn it off, such as `{thinking: {type: disabled}}`. They take the place of
    /// `reasoning_effort: none`, for models with `none` in `effort_values`.
    #[serde(default)]
    pub off: Option<BTreeMap<String, serde_json::Value>>,
}

/// Which messages a server takes in which order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Roles {
    /// Where instructions may stand: `first`, in one message before all others, or `anywhere`.
    /// Later instructions become a reminder in the user's name. Default of all models'
    /// `mid_system`.
    #[serde(default)]
    pub system: Option<SystemPlace>,
    /// Whether the server knows the role `developer`. If not, it gets `system` (chat).
    #[serde(default)]
    pub developer: Option<bool>,
    /// Whether a user's message may directly follow a tool's (default: true). If not, the gateway
    /// puts an assistant's message between them (chat).
    #[serde(default)]
    pub user_after_tool: Option<bool>,
    /// Whether the server takes `prefix: true` on a final assistant message, which the answer then
    /// continues (default: false; chat).
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
    /// `/messages`, `/chat/completions` or `/responses`, and `/v1` before it unless the address
    /// contains a version: at its end (`/v1`, `/v4`, `/v1beta`), or for chat and responses vendors
    /// anywhere in its path (`/v1beta/openai`). `model-gateway check` prints the resulting URLs.
    pub url: String,
    /// Overrides the whole path of generation requests. Must begin with `/`; `url` must have no
    /// path then. If it ends in `/chat/completions`, `/messages` or `/responses`, other calls use
    /// sibling paths. Otherwise the gateway counts tokens itself, and `upstream_protocol` is not
    /// available.
    #[serde(default)]
    pub path: Option<String>,
    /// Query parameters added to every request, such as `api-version`. Do not put secrets here:
    /// servers log URLs.
    #[serde(default)]
    pub query: BTreeMap<String, String>,
    /// Header fields added to every request: literal, `${ENV}` or `file:/path`. The gateway never
    /// prints or logs the values. It refuses fields that it sets itself, hop-by-hop fields and
    /// fields that carry a key.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// How to send the key: `bearer` (`authorization: Bearer KEY`; default for chat and responses
    /// vendors), `x-api-key` (default for messages vendors), `api-key`, `none`, or `{header: NAME}`
    /// for another field that holds the bare key.
    #[serde(default)]
    pub auth: Option<AuthKey>,
    /// `auto` (default): HTTP/2 or HTTP/1.1, negotiated by ALPN, with TLS; HTTP/1.1 without TLS.
    /// `1`: HTTP/1.1 only. `2`: HTTP/2 only, with prior knowledge (h2c) if there is no TLS.
    #[serde(default)]
    pub http_version: Option<HttpVersionKey>,
    /// Weight in load balancing, 1 to 1000.
    #[serde(default = "one")]
    pub weight: u32,
    /// Concurrent requests allowed at this endpoint, 1 to 65536. Over the limit, the gateway uses
    /// the next endpoint; if none is left, it responds 503. Default: no limit.
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

/// Active health check: the gateway probes the endpoint at intervals, without a key and
/// independently of clients' requests.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HealthCheck {
    /// Path of a GET request. A status below 400 passes. The path of the base address is not
    /// prepended.
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
    /// Consecutive failures after which the endpoint receives no more requests, 1 to 100.
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
    /// Name of the header field, both from clients and to the vendor.
    pub name: String,
    /// Value to send if the client sends none.
    pub value: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Catalog id: letters, digits and `. _ : - / @`.
    pub id: String,
    /// Up to 32 other names that clients may use for the model. One `*` in a name matches any text.
    /// Ids take precedence over exact aliases, and exact aliases over those with a `*`, of which
    /// the longest match wins. Responses, bills and logs show the id. Key restrictions and
    /// `fallback` refer to ids.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// A key of `vendors`.
    pub vendor: String,
    /// The model's name at the vendor.
    pub upstream_model: String,
    /// `responses`: the chat vendor also serves this model at `/v1/responses`. The gateway uses
    /// that API for requests of the responses surface. If `tools_with_reasoning` is not `any`, it
    /// also uses it for chat requests with tools that do not switch reasoning off, and for requests
    /// of the messages surface, except those with stop sequences and without tools. Default: use
    /// the vendor's own protocol only.
    #[serde(default)]
    pub upstream_protocol: Option<UpstreamProtocol>,
    pub context_tokens: u64,
    pub max_output_tokens: u64,
    #[serde(default)]
    pub capabilities: Capabilities,
    /// Repair requests that need no translation (default: true). If such a request contains
    /// something that `capabilities` says the model refuses, the gateway changes it as a
    /// translation would, and names each change in `x-gateway-warnings`. False: the gateway
    /// forwards it unchanged, and the vendor refuses it.
    #[serde(default = "yes")]
    pub repair: bool,
    /// Messages vendors: `auto` (default): the gateway marks translated requests for the vendor's
    /// prompt cache, if the vendor's `profile` takes `cache_control` and the caller set no marker
    /// itself. It marks conversations: requests with an earlier answer, with tools that the model
    /// may choose, or with a `prompt_cache_key`. `off`: it marks none.
    #[serde(default)]
    pub cache_marks: CacheMarks,
    pub price: Price,
    /// Up to 3 ids of fallback models, tried in order. The gateway falls back if every endpoint of
    /// this model fails, is overloaded or asks for a pause, or if the vendor refuses the gateway's
    /// key, has no credit left for it, or does not know the model. It does so only if the client
    /// has received no useful output yet. The hold covers the most expensive of the models; the one
    /// that responds is billed and named. The `fallback` of a fallback model is not followed.
    #[serde(default)]
    pub fallback: Vec<String>,
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

/// Features that the model accepts. Translation between the protocols uses this description. The
/// default of each key comes from the vendor's `preset` for this `upstream_model`, else from the
/// shipped catalog for this id, else from the protocol's common subset. Repair (`repair`) uses it
/// too, but only values from this file, from the preset, or shipped for this id; defaults of the
/// protocol change no request.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Capabilities {
    /// Messages vendors: `free` (temperature up to 1, top_p, top_k), `one_of` (temperature or
    /// top_p), `fixed` (only the default). Chat and responses vendors: whether a temperature and
    /// top_p other than 1 are accepted.
    pub sampling: Option<SamplingKey>,
    /// Messages vendors: values of `thinking.type` that do not draw a 400.
    pub thinking_types: Option<Vec<ThinkingTypeKey>>,
    /// Messages vendors: behaviour if `thinking` is left out.
    pub thinking_default: Option<OnOff>,
    /// Messages vendors: levels of `output_config.effort`. Empty: none is accepted.
    pub effort_levels: Option<Vec<EffortKey>>,
    /// Messages vendors: a final assistant turn is allowed.
    pub prefill: Option<bool>,
    /// Messages and chat vendors: instructions may stand between other messages. Default: the
    /// `roles` of the vendor's `profile`.
    pub mid_system: Option<bool>,
    /// Messages vendors: `output_config.format` and a tool's `strict` are allowed.
    pub structured: Option<bool>,
    /// Messages vendors: server tools that may be used. `web_search` is included exactly if it has
    /// a price.
    pub server_tools: Option<Vec<String>>,
    /// Messages vendors: the fewest tokens of a prompt that the vendor caches. The gateway marks no
    /// shorter one (`cache_marks`). Default: 4096.
    pub min_cache_tokens: Option<u64>,
    /// Chat vendors: which field sets the output limit.
    pub output_limit_field: Option<OutputLimitField>,
    /// Chat and responses vendors: a reasoning effort is accepted.
    pub reasoning: Option<bool>,
    /// Chat and responses vendors: accepted levels of reasoning effort.
    pub effort_values: Option<Vec<EffortKey>>,
    /// Chat vendors: whether function tools work while the model reasons.
    pub tools_with_reasoning: Option<ToolsWithReasoningKey>,
    /// Chat vendors: `stop` is accepted.
    pub stop: Option<bool>,
    /// Chat and responses vendors: `prompt_cache_breakpoint` is accepted.
    pub cache_breakpoints: Option<bool>,
    /// Chat and responses vendors: `verbosity` is accepted.
    pub verbosity: Option<bool>,
    /// Chat vendors: the role of system instructions.
    pub system_role: Option<SystemRole>,
    /// Chat vendors: whether the server expects its reasoning to be sent back, and in which member.
    /// `reasoning_content_in_turn`: only the reasoning of the current turn, and only where it calls
    /// tools.
    pub reasoning_replay: Option<ReasoningReplayKey>,
    /// Chat vendors: `top_k` is accepted.
    pub top_k: Option<bool>,
    /// Chat vendors: tools of type `custom` are accepted. If false, custom tools of the responses
    /// surface are sent as functions.
    pub custom_tools: Option<bool>,
    /// Chat vendors: whether `parallel_tool_calls` is accepted. `with_auto_choice`: only if
    /// `tool_choice` is `auto` or left out.
    pub parallel_tool_calls: Option<ParallelToolCallsKey>,
    /// Chat vendors: format of tool call ids. `nine`: exactly nine letters or digits; the gateway
    /// replaces other ids, the same id always by the same replacement.
    pub tool_call_ids: Option<ToolCallIdsKey>,
    /// Responses vendors: `reasoning.summary` is accepted. Default: yes if the model reasons.
    pub summaries: Option<bool>,
    /// Responses vendors: the server accepts only tools of type `function`. The gateway then sends
    /// custom tools, namespaces and client-run tools as functions, and restores their original form
    /// in the response. It translates requests of the responses surface for this.
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
pub enum OutputLimitField {
    MaxCompletionTokens,
    MaxTokens,
}

/// Credits per 1 000 000 tokens, by token class, and the other prices of the vendor's price list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Price {
    pub input: Decimal,
    pub output: Decimal,
    /// Default: `input`.
    #[serde(default)]
    pub cache_read: Option<Decimal>,
    /// The shorter lifetime of the vendor's cache: 5 minutes at Anthropic, 30 at OpenAI. Default:
    /// `input`.
    #[serde(default)]
    pub cache_write_5m: Option<Decimal>,
    /// The longer lifetime: an hour at Anthropic, 12 hours at OpenAI. Default: `cache_write_5m`.
    #[serde(default)]
    pub cache_write_1h: Option<Decimal>,
    /// Long-context prices, in strictly ascending order. The highest tier whose threshold the input
    /// exceeds applies to the whole request.
    #[serde(default)]
    pub tiers: Option<Vec<PriceTier>>,
    /// Chat vendors: credits per 1 000 000 tokens of audio input. If unset, requests with audio are
    /// refused.
    #[serde(default)]
    pub audio_input: Option<Decimal>,
    /// Chat vendors: credits per 1 000 000 tokens of audio output. If unset, requests for audio are
    /// refused.
    #[serde(default)]
    pub audio_output: Option<Decimal>,
    /// Messages and responses vendors: credits per 1 000 web searches; 0 is a valid price. If
    /// unset, messages requests with the vendor's search tool are refused, and the tool is removed
    /// from responses requests.
    #[serde(default)]
    pub web_search: Option<Decimal>,
    /// Messages vendors: credits per 1 000 uses of the web fetch tool; 0 is a valid price. If
    /// unset, requests with it are refused.
    #[serde(default)]
    pub web_fetch: Option<Decimal>,
    /// Messages and responses vendors: credits per 1 000 uses of the code execution tool, or of the
    /// code interpreter; 0 is a valid price. If unset, requests with it are refused.
    #[serde(default)]
    pub code_execution: Option<Decimal>,
    /// Messages vendors: credits per 1 000 uses of the tool search tool; 0 is a valid price. If
    /// unset, requests with it are refused.
    #[serde(default)]
    pub tool_search: Option<Decimal>,
    /// Messages and responses vendors: credits per 1 000 calls of remote MCP servers' tools; 0 is a
    /// valid price. If unset, requests with MCP servers are refused.
    #[serde(default)]
    pub mcp: Option<Decimal>,
    /// Price factor per service tier, by the vendor's name of the tier: a multiple of the token
    /// prices above, more than 0 and at most 1 000. `fast` and `priority` are one tier: either name
    /// prices both. Requests for a tier that is not listed are refused.
    #[serde(default)]
    pub service_tier: BTreeMap<String, Decimal>,
    /// Messages vendors: price factor per region, by the vendor's name of the region
    /// (`inference_geo`), such as `us: 1.1`. Requests for a region that is not listed are refused,
    /// except `global`.
    #[serde(default)]
    pub inference_geo: BTreeMap<String, Decimal>,
    /// Messages vendors: price factor per speed, by the vendor's name of the speed, such as `fast:
    /// 6`. Requests for a speed that is not listed are refused, except `standard`.
    #[serde(default)]
    pub speed: BTreeMap<String, Decimal>,
}

/// Prices for requests whose input exceeds a threshold; they apply to the whole request, input and
/// output. Credits per 1 000 000 tokens. A price that is unset is inherited from the tier below.
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
#[derive(Debug, Clone)]
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
pub const RANGES: [(&str, &str, u64, u64); 17] = [
    ("Endpoint", "weight", 1, 1_000),
    ("Endpoint", "max_concurrent", 1, 65_536),
    ("HealthCheck", "interval_seconds", 1, 3_600),
    ("HealthCheck", "timeout_seconds", 1, 60),
    ("HealthCheck", "passes_after", 1, 100),
    ("HealthCheck", "fails_after", 1, 100),
    ("LedgerUpkeep", "refund_days", 0, 3_650),
    ("Mail", "per_hour", 1, 100_000),
    ("Model", "context_tokens", 1, 100_000_000),
    ("Model", "max_output_tokens", 1, 100_000_000),
    ("PriceTier", "above_input_tokens", 1, 100_000_000),
    ("RetentionRules", "keep_days", 1, 3_650),
    ("SealRules", "entries", 1_000, 4_000_000),
    ("SealRules", "after_days", 1, 3_650),
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
        /// Every buffer, queue, timeout and attempt count, with its unit in its name.
        #[derive(Debug, Clone, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct Limits {
            $( $(#[doc = $doc])* pub $name: u64, )*
            /// Further names under which clients send the messages protocol's version header.
            pub version_header_aliases: Vec<String>,
            /// Sync the journal to disk before the last byte of a response is sent, so that a power
            /// cut loses no debit; costs one sync per request. False (default): the journal
            /// survives a crash of the process, and the next ledger commit is on disk within about
            /// 15 ms (on an edge: once the shared store has the entry). A change takes effect at
            /// the next start or upgrade.
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
    /// Object members and array items in one request body. Over the limit: 400. Agents send about
    /// 20 for each tool call and its result.
    body_values = 200_000, 1_000..=10_000_000;
    /// Memory of this process. From 90 % of it on, the gateway refuses new work with 503 and
    /// finishes running requests. 0: the limit of the control group or the memory that is currently
    /// free on the machine, whichever is less.
    memory_bytes = 0, 0..=1_099_511_627_776;
    /// Bytes of all request bodies held at one time, counting those received so far. Over the
    /// limit: 503.
    bodies_in_flight_bytes = 1_073_741_824, 1_048_576..=68_719_476_736;
    /// Share of `bodies_in_flight_bytes` that the requests of one account may use together, but at
    /// least one `body_bytes`. Over the limit: 429.
    account_bodies_percent = 25, 1..=100;
    /// Share of `bodies_in_flight_bytes` that the requests over one client connection may use
    /// together, but at least one `body_bytes`. Over the limit: 429. Does not apply to a proxy in
    /// `listen.trust_proxy`, whose connections carry the requests of many clients.
    connection_bodies_percent = 6, 1..=100;
    /// Threads for jobs on bodies of more than 256 KiB, or with a content coding, and as many again
    /// for jobs on bodies of more than 2 MiB. 0: one less than the number of cores, at least 1.
    cpu_threads = 0, 0..=1_024;
    /// Such jobs (decoding, parsing, translating) that may wait for a thread, of each of the two
    /// sizes. Over the limit: 503.
    cpu_queue = 1_024, 1..=65_536;
    /// Waiting jobs of one account and size. A queue serves accounts in turn.
    cpu_queue_per_account = 128, 1..=65_536;
    /// Longest wait of such a job. After it: 503.
    cpu_queue_seconds = 10, 1..=600;
    /// Time from the end of a request's header to the end of its body. After it: 408.
    body_read_seconds = 60, 1..=3_600;
    /// Minimum rate of a request body, measured over `body_rate_seconds`. A slower body: 408. 0: no
    /// minimum.
    body_bytes_per_second = 1_024, 0..=1_073_741_824;
    /// Window over which the rate of a body is measured.
    body_rate_seconds = 30, 1..=3_600;
    /// Size of the request line and header fields together. Over the limit: 431.
    header_bytes = 32_768, 1_024..=262_144;
    /// Number of header fields in a request. Over the limit: 431.
    header_fields = 64, 8..=256;
    /// Time from the first byte of a header, or from the start of a connection, to the end of the
    /// header (HTTP/1). After it, the gateway closes the connection.
    header_read_seconds = 30, 1..=3_600;
    /// Client connections of this process. Over the limit, the gateway closes the connections that
    /// have been idle longest; if none is idle, it closes new ones at once. 0: no limit. At start
    /// the gateway lowers the value to fit the limit on open files.
    connections = 20_000, 0..=1_000_000;
    /// Client connections from one address (IPv6: one /64). Over the limit, the gateway closes new
    /// ones at once. 0: no limit. Does not apply to a proxy in `listen.trust_proxy`, whose address
    /// all its clients share.
    connections_per_address = 1_024, 0..=1_000_000;
    /// Page requests (everything outside `/v1`: dashboard, sign-up, docs) that this process serves
    /// at one time. Over the limit: 503. Live balances have limits of their own. 0: no limit.
    open_pages = 512, 0..=1_000_000;
    /// Page requests served at one time to one address (IPv6: one /64). Over the limit: 429. 0: no
    /// limit. Does not apply to a proxy in `listen.trust_proxy` that does not name its client.
    open_pages_per_address = 64, 0..=1_000_000;
    /// Size of the body of a page request. Over the limit: 413.
    page_body_bytes = 65_536, 1_024..=65_536;
    /// Time from the end of a page request's header to the end of its body. After it: 408.
    page_body_read_seconds = 10, 1..=3_600;
    /// Live balances (event streams of the dashboard) that this process serves at one time. Over
    /// the limit: 503, and the page keeps showing the balance from when it was loaded. 0: no limit.
    live_streams = 4_096, 0..=1_000_000;
    /// Live balances served at one time to one address (IPv6: one /64). Over the limit: 429. 0: no
    /// limit. Does not apply to a proxy in `listen.trust_proxy` that does not name its client.
    live_streams_per_address = 256, 0..=1_000_000;
    /// Live balances and downloads of one account at one time. Over the limit: 503.
    live_streams_per_account = 8, 1..=65_536;
    /// Requests over one client connection (HTTP/1), after which the gateway closes it.
    keepalive_requests = 1_000, 1..=1_000_000;
    /// Requests of one account that may be open at one time. Over the limit: 429.
    open_requests_per_account = 256, 1..=65_536;
    /// Free requests of one account per minute: model lists, credits, receipts, and token counts,
    /// each of which counts as ten. Requests that are refused because of their bodies have a
    /// separate limit of the same size. Over the limit: 429. A key or account with
    /// `requests_per_minute` has ten times that value instead. Each edge counts separately. 0: no
    /// limit on any of these.
    free_requests_per_minute = 6_000, 0..=MAX_RATE;
    /// Look-ups per second, by one edge, of keys that it has not seen valid, in the shared store: a
    /// bound on floods of made-up keys. Valid keys are not counted. Over the limit: 429.
    unknown_key_lookups_per_second = 1_000, 1..=1_000_000;
    /// Lookups of receipts and usage of one account at one time. Over the limit: 429.
    receipt_lookups_per_account = 32, 1..=65_536;
    /// Sign-ups from one address (IPv6: one /64) per hour. Over the limit: 429. Does not apply to
    /// loopback, as long as `base_url` is there too and no proxy says that it speaks for others.
    sign_ups_per_address_per_hour = 3, 1..=1_000_000;
    /// Requests that may be open at one time in this process. Over the limit: 503.
    open_requests = 20_000, 1..=65_536;
    /// Timeout of TCP and TLS connects to a vendor.
    connect_seconds = 5, 1..=60;
    /// Time from the end of the request to the vendor's header. Models may reason for minutes
    /// without output, and non-streaming responses may take ten minutes. If the vendor's machine is
    /// gone, TCP keep-alive detects it in about a minute, whatever this value is.
    first_byte_seconds = 600, 1..=3_600;
    /// Longest gap between two pieces of a vendor's body.
    idle_seconds = 600, 1..=3_600;
    /// Timeout of one write to a vendor that does not read.
    vendor_write_seconds = 60, 1..=3_600;
    /// After the vendor's 2xx, the gateway sends a stream's client a keep-alive whenever this time
    /// passes without a byte: a comment, or a `ping` on the messages surface.
    stream_keep_alive_seconds = 15, 1..=300;
    /// Longest duration of a whole request.
    total_seconds = 3_600, 1..=MAX_TOTAL_SECONDS;
    /// Time in which a client must take 64 KiB of its response, or what is left of it. One that
    /// does not has left.
    client_write_seconds = 60, 1..=3_600;
    /// Time after which the gateway closes an idle client connection. It must be longer than the
    /// idle time-out of a proxy or load balancer in front, often 60, which otherwise sends requests
    /// into connections that are just being closed.
    keepalive_seconds = 75, 1..=3_600;
    /// Endpoints tried for one request, for each model that may answer it.
    attempts = 2, 1..=MAX_ATTEMPTS;
    /// Time after which the gateway no longer repeats a request that was sent completely, at any
    /// endpoint or model: the vendor may still be processing it, and would charge twice. Does not
    /// apply if the vendor refused the request with a status or an error.
    repeat_within_seconds = 10, 0..=3_600;
    /// Retries at one vendor's endpoints over 10 seconds, in percent of the requests to that
    /// vendor. Over the limit, the client receives the vendor's failure. Failed connection attempts
    /// and requests that the vendor did not start to process do not count.
    retry_budget_percent = 20, 0..=100;
    /// Number of retries that is always allowed, whatever `retry_budget_percent` is: at least
    /// `breaker_failures` for each endpoint of the vendor, unless this is 0.
    retry_budget_min = 3, 0..=100_000;
    /// Consecutive failures that open an endpoint's circuit breaker. 0: consecutive failures do not
    /// open it.
    breaker_failures = 5, 0..=1_000;
    /// Failure rate within a window that opens the circuit breaker, in percent.
    breaker_failure_percent = 50, 1..=100;
    /// Length of that window.
    breaker_window_seconds = 30, 1..=3_600;
    /// Minimum number of requests in a window for the failure rate to count.
    breaker_window_requests = 20, 1..=1_000_000;
    /// Time that a circuit breaker stays open. It doubles each further time, and up to a quarter is
    /// added at random.
    breaker_open_seconds = 5, 1..=3_600;
    /// Upper limit of the time that a circuit breaker stays open.
    breaker_open_max_seconds = 120, 1..=86_400;
    /// Longest `retry-after` of a vendor that the gateway observes. 0: it ignores `retry-after`.
    cool_down_max_seconds = 60, 0..=60;
    /// Interval of probes during a `retry-after`. If no other endpoint is available, the gateway
    /// sends one request per interval to the endpoint all the same; if that succeeds, it sends all
    /// of them again. 0: no probes.
    cool_down_probe_seconds = 1, 0..=60;
    /// Time that a resolved address of an endpoint is used before the gateway resolves the name
    /// again.
    dns_refresh_seconds = 30, 1..=86_400;
    /// Time that the last known addresses remain in use while no resolver answers.
    dns_stale_seconds = 3_600, 1..=604_800;
    /// Size of one event of a vendor's stream. An event may have all of a tool call's arguments,
    /// and the last one of a stream the whole response: set it no lower than
    /// `response_buffer_bytes`.
    event_bytes = 33_554_432, 1_024..=268_435_456;
    /// Size of a vendor's response that is not a stream.
    response_buffer_bytes = 33_554_432, 1_024..=268_435_456;
    /// Lowest output limit, in tokens, to which the gateway may clamp a request.
    min_output_tokens = 256, 1..=100_000;
    /// After SIGTERM, `/readyz` returns 503 for this long while the gateway still accepts requests,
    /// so that a load balancer stops sending before the listener closes. 0 (default): the listener
    /// closes at once. Behind a load balancer: 5, or longer than the balancer needs to notice.
    lame_duck_seconds = 0, 0..=300;
    /// Time that running requests then have to finish. After it, the gateway ends a stream with an
    /// error event and charges for the output so far; any other request gets an error and is free.
    drain_seconds = 120, 1..=MAX_DRAIN_SECONDS;
    /// Time that the gateway reads a stream on after its client disconnected, to learn its usage.
    drain_after_client_seconds = 5, 1..=600;
    /// That time for models that hide their reasoning, and for long requests for which only the
    /// vendor can report the number of cached tokens.
    drain_reasoning_seconds = 60, 1..=600;
    /// Size of the largest response that is stored for an idempotency key.
    idempotency_body_bytes = 1_048_576, 1_024..=268_435_456;
    /// Time that an idempotency key and its response are kept.
    idempotency_seconds = 86_400, 1..=604_800;
    /// Idempotency keys that are kept. Over the limit, the gateway drops the oldest. One account
    /// may have a quarter of them.
    idempotency_entries = 1_000_000, 1_000..=100_000_000;
    /// Size of all stored responses together. Over the limit, the gateway drops the oldest
    /// responses, but keeps their keys. One account may have a quarter of it.
    idempotency_store_bytes = 4_294_967_296, 1_048_576..=1_099_511_627_776;
    /// Access log lines that may wait to be written. Over the limit, the gateway drops lines and
    /// counts them.
    access_log_lines = 16_384, 16..=1_048_576;
    /// With a shared store: size of the stored responses of one account, and of all accounts. Over
    /// the limit, the gateway drops the oldest. Each key counts as 1 KiB of the second limit.
    idempotency_shared_account_bytes = 8_388_608, 1_024..=1_099_511_627_776;
    idempotency_shared_bytes = 268_435_456, 1_048_576..=1_099_511_627_776;
    /// Size of one journal segment, after which the gateway begins the next.
    journal_segment_bytes = 67_108_864, 65_536..=1_073_741_824;
    /// Space reserved on the journal's disk, so that running requests can still be journaled when
    /// the disk is full.
    journal_reserve_bytes = 8_388_608, 65_536..=1_073_741_824;
    /// Time that the ledger may need, at the measured rate, for the ended requests that wait for
    /// it. From a quarter of it on, new requests wait before they are admitted, for up to a second;
    /// from three quarters on, accounts with more than their share of what waits get 429; at the
    /// limit everybody gets 503.
    ledger_backlog_seconds = 10, 1..=3_600;
    /// Ended requests that may wait for the ledger, as a bound on memory. It acts like
    /// `ledger_backlog_seconds`: requests are slowed from a quarter of it on and refused at it.
    journal_pending = 65_536, 1_024..=1_048_576;
    /// Bytes of the ended requests that may wait for the ledger at an edge with a shared store,
    /// as a bound on memory and on the journal's disk: each needs as many in memory, and fewer in
    /// the journal. It acts in the same steps.
    journal_bytes = 268_435_456, 1_048_576..=17_179_869_184;
}
