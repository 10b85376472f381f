//! What may be written in the config file, key for key, with each key's default: the one definition
//! that the reader, the JSON Schema (`model-gateway schema`) and the documentation share.
//!
//! Must not judge what keys mean together: that is `config.rs`.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The whole file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub listen: Listen,
    /// What the catalog, the dashboard and the snippets print. No trailing slash.
    pub base_url: String,
    /// Folder of the databases, the journal and the upgrade socket. Created with mode 0700.
    pub data_dir: String,
    #[serde(default)]
    pub store: Store,
    #[serde(default)]
    pub signup: Signup,
    pub vendors: BTreeMap<String, Vendor>,
    pub models: Vec<Model>,
    #[serde(default)]
    pub rate_limits: RateLimits,
    #[serde(default)]
    pub limits: Limits,
    /// Where a line of JSON goes for each request: `off` (default), `stdout`, or the path of a
    /// file, which is opened anew on SIGHUP. No bodies, no headers, no secrets.
    #[serde(default)]
    pub access_log: Option<String>,
    #[serde(default)]
    pub telemetry: Telemetry,
    #[serde(default)]
    pub cors: Cors,
    /// Whether this file, the certificate's files and those that `file:` names are read anew when
    /// they have been changed and have looked the same for a second (default). False: on SIGHUP
    /// alone. A file that is no good changes nothing.
    #[serde(default = "yes")]
    pub watch: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// Public addresses, `ip:port`: HTTP/1.1 and h2c; with `tls`, HTTP/1.1 and h2.
    pub edge: Vec<String>,
    /// Private address of the dashboard, the catalog and the account API; the edge forwards to it.
    pub sidecar: String,
    /// Private address of /metrics, /healthz and /readyz.
    pub admin: String,
    #[serde(default)]
    pub tls: Option<Tls>,
    /// Proxies in front, as addresses or networks (`10.0.0.0/8`), up to 256: of a request that one
    /// of them sends, the client's address is the last in `X-Forwarded-For` (without one: in
    /// `Forwarded`) that is no proxy's, and `X-Forwarded-Proto: https` makes cookies Secure. From
    /// everybody else these headers count for nothing. Of the limits on connections
    /// `limits.connections` alone holds for such a proxy.
    #[serde(default)]
    pub trust_proxy: Vec<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    pub traces: Option<Traces>,
}

/// Web pages of other origins that may call the API from a browser. Dashboard pages and cookies
/// take no part. Left out: none.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cors {
    /// Origins as browsers send them, `https://app.example.com` or `http://localhost:3000`, up to
    /// 256; or `*` alone for every one. A key in a page can be read by everybody who opens it: give
    /// it a spend limit and an expiry.
    pub origins: Vec<String>,
}

/// Spans of requests and of the attempts at vendors, in OTLP over HTTP (JSON). No bodies, no
/// headers, no secrets. Left out: none. Taken at a start or upgrade.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Traces {
    /// A collector beside the gateway, `http://127.0.0.1:4318/v1/traces`.
    pub endpoint: String,
    /// The share of the requests that are traced, from 0 to 1. A caller's `traceparent` names the
    /// trace, and decides nothing.
    #[serde(default = "one_in_a_hundred")]
    pub sample: Decimal,
    /// Vendors get a `traceparent` too: of the attempt's span, or the caller's own where the
    /// request is not traced.
    #[serde(default)]
    pub to_vendors: bool,
}

fn one_in_a_hundred() -> Decimal {
    Decimal("0.01".into())
}

/// The most that a rate may be, per minute or at one time.
pub const RATE_MAX: u64 = 1_000_000_000;

/// How much may be asked for, by each key and by all keys of an account together. What is set for
/// one key or account (`key set`, `account limit`) goes before this.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RateLimits {
    pub key: Rates,
    pub account: Rates,
}

/// 0 = no limit; at most 1 000 000 000.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rates {
    /// Requests in a minute; past it, 429.
    pub requests_per_minute: u64,
    /// Tokens in a minute: input as estimated and the output limit at first, what was used in truth
    /// at the end; past it, 429.
    pub tokens_per_minute: u64,
    /// Requests that run at one time; past it, 429.
    pub concurrent: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// Certificate chain, PEM file.
    pub cert: String,
    /// Private key, PEM file.
    pub key: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Store {
    pub kind: StoreKind,
    /// Of `redis`: one server, `redis://[user:password@]host:port[/database]`. `${ENV}` keeps a
    /// password out of the file.
    #[serde(default)]
    pub url: Option<String>,
    /// Of `redis`, instead of `url`: some nodes of a Redis Cluster, each an address as above.
    #[serde(default)]
    pub cluster: Vec<String>,
    /// Of `redis`, instead of `url`: Sentinels that know which server is the primary.
    #[serde(default)]
    pub sentinel: Option<Sentinel>,
    /// Of `redis`: start although the server's settings let it forget (`maxmemory-policy` other
    /// than noeviction, no `appendonly`). A restart of such a server loses all open holds, and
    /// requests that run then may be a write-off.
    #[serde(default)]
    pub allow_volatile: bool,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            kind: StoreKind::Embedded,
            url: None,
            cluster: Vec::new(),
            sentinel: None,
            allow_volatile: false,
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sentinel {
    /// What the Sentinels call the primary (`sentinel monitor NAME …`).
    pub master: String,
    /// Up to 16 of them: `redis://[user:password@]host:port`, where user and password are a
    /// Sentinel's own; all `rediss://` where the servers are spoken to over TLS.
    pub nodes: Vec<String>,
    /// The servers' own user, password (`${ENV}` or `file:/path`) and database.
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
    /// One machine: everything is in `data_dir`.
    Embedded,
    /// Many edges: keys, balances and holds are in Redis; the ledger is in the sidecar's
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
    /// Credits that all trials of one day (UTC) may promise together; past it nobody signs up until
    /// the next. 0 = no limit.
    pub trial_budget_per_day: Decimal,
    /// Refuse an e-mail that reaches a mailbox with an account under another spelling (dots and
    /// +tags of Gmail).
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

/// Who may sign up on the dashboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SignupMode {
    /// Everybody.
    Open,
    /// Who has an invitation's code, which opens one account (`model-gateway account invite`, or
    /// the operator's view).
    Invite,
    /// Nobody: accounts are made with `model-gateway account create`.
    Closed,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Vendor {
    /// Defaults of a well-known vendor: `openai`, `anthropic`, `azure-openai`, `gemini`, `xai`,
    /// `mistral`, `deepseek`, `groq`, `openrouter`, `together`, `fireworks`, `vllm`, `ollama`,
    /// `llama-cpp` or `lm-studio`. Sets `protocol`, `official`, `endpoints`, `path`, `auth`,
    /// `version_header` and the `capabilities` of the vendor's known models. Keys that are written
    /// take precedence. `model-gateway models import PRESET` prints the models with their prices.
    #[serde(default)]
    pub preset: Option<String>,
    /// Required without a `preset`.
    #[serde(default)]
    pub protocol: Option<VendorProtocol>,
    /// True for the vendor that defined the protocol; false (default) for a compatible server.
    #[serde(default)]
    pub official: Option<bool>,
    /// Required without a `preset` that has an address.
    #[serde(default)]
    pub endpoints: Vec<Endpoint>,
    /// The vendor's key: literal, `${ENV}` or `file:/path`. Empty switches the vendor off. Never
    /// printed or logged. Required unless `auth` is `none`.
    #[serde(default)]
    pub api_key: Option<String>,
    #[serde(default)]
    pub version_header: Option<VersionHeader>,
    /// The turns of a conversation go to one endpoint for as long as that is well, so that the
    /// vendor's prompt cache serves (default). False: every request goes to the endpoint whose turn
    /// it is.
    #[serde(default = "yes")]
    pub sticky: bool,
    /// `path` of all endpoints that have none of their own.
    #[serde(default)]
    pub path: Option<String>,
    /// `query` of all endpoints, merged with their own; the endpoint's value of a name takes
    /// precedence.
    #[serde(default)]
    pub query: BTreeMap<String, String>,
    /// `headers` of all endpoints, merged with their own; the endpoint's value of a name takes
    /// precedence.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// `auth` of all endpoints that have none of their own.
    #[serde(default)]
    pub auth: Option<AuthKey>,
    /// `http_version` of all endpoints that have none of their own.
    #[serde(default)]
    pub http_version: Option<HttpVersionKey>,
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
    /// Query parameters of every request, such as `api-version`. Do not put secrets here: servers
    /// log URLs.
    #[serde(default)]
    pub query: BTreeMap<String, String>,
    /// Header fields of every request: literal, `${ENV}` or `file:/path`. Never printed or logged.
    /// Fields that the gateway sets itself, hop-by-hop fields and fields that carry a key are
    /// refused.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// How the key is sent: `bearer` (`authorization: Bearer KEY`; the default of chat and
    /// responses vendors), `x-api-key` (of messages vendors), `api-key`, `none`, or
    /// `{header: NAME}` for another field whose value is the key.
    #[serde(default)]
    pub auth: Option<AuthKey>,
    /// `auto` (default): with TLS HTTP/2 or HTTP/1.1, negotiated by ALPN, without TLS HTTP/1.1.
    /// `1`: HTTP/1.1 only. `2`: HTTP/2 only; without TLS by prior knowledge (h2c).
    #[serde(default)]
    pub http_version: Option<HttpVersionKey>,
    /// Share of the requests, 1 to 1000.
    #[serde(default = "one")]
    pub weight: u32,
    /// Requests that may run there at one time, 1 to 65536; past it the next endpoint is taken, at
    /// last 503. Default: any number.
    #[serde(default)]
    pub max_concurrent: Option<u32>,
    #[serde(default)]
    pub health_check: Option<HealthCheck>,
}

/// How the key is sent.
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

/// Asks an endpoint from time to time whether it is well, without a key and besides the clients'
/// requests.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HealthCheck {
    /// Path of a GET that answers below 400; the base address's own path is not put before it.
    pub path: String,
    /// From one check to the next, 1 to 3600.
    #[serde(default = "ten")]
    pub interval_seconds: u64,
    /// Of one check, 1 to 60.
    #[serde(default = "two")]
    pub timeout_seconds: u64,
    /// Checks in a row that pass before requests are sent again, 1 to 100.
    #[serde(default = "one")]
    pub passes_after: u32,
    /// Checks in a row that fail before no more requests are sent, 1 to 100.
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
    /// Header sent to the vendor, and taken from clients.
    pub name: String,
    /// Value sent where the client gave none.
    pub value: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Catalog id: letters, digits and `. _ : - / @`.
    pub id: String,
    /// Up to 32 other names that clients may use for the model. One `*` in a name matches any text.
    /// Ids take precedence over exact aliases, and these over aliases with a `*`, of which the
    /// longest match wins. Responses, bills and logs show the id; keys are bound to ids, and
    /// `fallback` takes ids.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// A key of `vendors`.
    pub vendor: String,
    /// The model's name at the vendor.
    pub upstream_model: String,
    /// `responses`: its chat vendor serves the model at `/v1/responses` too, and is asked there
    /// whatever it does better there: callers of that surface, and where `tools_with_reasoning` is
    /// not `any` all with tools who did not switch reasoning off, and the messages surface. Left
    /// out: by the vendor's own protocol alone.
    #[serde(default)]
    pub upstream_protocol: Option<UpstreamProtocol>,
    pub context_tokens: u64,
    pub max_output_tokens: u64,
    #[serde(default)]
    pub capabilities: Capabilities,
    /// A request that keeps its protocol but says what `capabilities` says this model refuses is
    /// changed as translation would, and `x-gateway-warnings` names each change (default). False:
    /// it goes as it came, and the vendor refuses it.
    #[serde(default = "yes")]
    pub repair: bool,
    pub price: Price,
    /// Up to 3 ids of other models, asked in their order where every endpoint of this one fails, is
    /// overloaded or asks to be left alone, or the vendor refuses the gateway's key, has no credit
    /// left for it, or does not know the model; and nothing useful was sent to the client yet. The
    /// hold is for the dearest of them, and the one that answers is billed and named. Their own
    /// `fallback` is not followed.
    #[serde(default)]
    pub fallback: Vec<String>,
}

/// What the model accepts: the descriptor that translation between the protocols goes by. The
/// default of each key is the value of the vendor's `preset` for this `upstream_model`, else that
/// of the shipped catalog for this id, else what every model of the protocol accepts. Requests that
/// keep their protocol are repaired by it too (`repair`), but only by what is written here, in the
/// preset or shipped for this id: a default of the last kind changes none of them.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Capabilities {
    /// Messages vendors: `free` (temperature up to 1, top_p, top_k), `one_of` (temperature or
    /// top_p), `fixed` (only the default). Chat and responses vendors: whether a temperature and
    /// top_p other than 1 are accepted.
    pub sampling: Option<SamplingKey>,
    /// Messages vendors: values of `thinking.type` that do not draw a 400.
    pub thinking_types: Option<Vec<ThinkingTypeKey>>,
    /// Messages vendors: what happens if `thinking` is left out.
    pub thinking_default: Option<OnOff>,
    /// Messages vendors: levels of `output_config.effort`; empty: none is accepted.
    pub effort_levels: Option<Vec<EffortKey>>,
    /// Messages vendors: a final assistant turn is allowed.
    pub prefill: Option<bool>,
    /// Messages vendors: `role: system` inside `messages` is allowed.
    pub mid_system: Option<bool>,
    /// Messages vendors: `output_config.format` and a tool's `strict` are allowed.
    pub structured: Option<bool>,
    /// Messages vendors: server tools that may be used. `web_search` is one of them wherever it has
    /// a price, and only there.
    pub server_tools: Option<Vec<String>>,
    /// Chat vendors: which field sets the output limit.
    pub output_limit_field: Option<OutputLimitField>,
    /// Chat and responses vendors: an effort of reasoning is accepted.
    pub reasoning: Option<bool>,
    /// Chat and responses vendors: levels of that effort.
    pub effort_values: Option<Vec<EffortKey>>,
    /// Chat vendors: whether function tools work while the model reasons.
    pub tools_with_reasoning: Option<ToolsWithReasoningKey>,
    /// Chat vendors: `stop` is accepted.
    pub stop: Option<bool>,
    /// Chat and responses vendors: `prompt_cache_breakpoint` is accepted.
    pub cache_breakpoints: Option<bool>,
    /// Chat and responses vendors: `verbosity` is accepted.
    pub verbosity: Option<bool>,
    /// Chat vendors: the role of instructions.
    pub system_role: Option<SystemRole>,
    /// Chat vendors: whether the server wants its reasoning back, and how;
    /// `reasoning_content_in_turn`: only of the turn that is going on, and only where it calls
    /// tools.
    pub reasoning_replay: Option<ReasoningReplayKey>,
    /// Chat vendors: `top_k` is accepted.
    pub top_k: Option<bool>,
    /// Chat vendors: tools of type `custom` are accepted. Without, those of the responses surface
    /// go as functions.
    pub custom_tools: Option<bool>,
    /// Chat vendors: whether `parallel_tool_calls` is accepted; `with_auto_choice`: not beside a
    /// `tool_choice` other than `auto`.
    pub parallel_tool_calls: Option<ParallelToolCallsKey>,
    /// Chat vendors: `nine`: ids of tool calls have exactly nine letters or digits; others are
    /// replaced by such, the same for the same id.
    pub tool_call_ids: Option<ToolCallIdsKey>,
    /// Responses vendors: `reasoning.summary` is accepted. Left out: where the model reasons.
    pub summaries: Option<bool>,
    /// Responses vendors: the server knows tools of type `function` alone. Custom tools, namespaces
    /// and tools that clients run themselves then go as functions, and come back as what they were;
    /// requests of the responses surface are translated for that.
    pub functions_only: Option<bool>,
}

/// A word for messages vendors, true or false for all others.
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

/// Credits per 1 000 000 tokens, by class, and what else the vendor's price list has.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Price {
    pub input: Decimal,
    pub output: Decimal,
    /// Default: `input`.
    #[serde(default)]
    pub cache_read: Option<Decimal>,
    /// Default: `input`.
    #[serde(default)]
    pub cache_write_5m: Option<Decimal>,
    /// Default: `cache_write_5m`.
    #[serde(default)]
    pub cache_write_1h: Option<Decimal>,
    /// Long-context prices, strictly ascending. The last one that the input passes is in force for
    /// the whole request.
    #[serde(default)]
    pub tiers: Option<Vec<PriceTier>>,
    /// Chat vendors: credits per 1 000 000 tokens of audio that is heard. Left out, requests with
    /// audio are refused.
    #[serde(default)]
    pub audio_input: Option<Decimal>,
    /// Chat vendors: credits per 1 000 000 tokens of audio that is spoken. Left out, requests for
    /// audio are refused.
    #[serde(default)]
    pub audio_output: Option<Decimal>,
    /// Messages and responses vendors: credits per 1 000 web searches; 0 is a price too. Left out,
    /// messages requests with the vendor's search tool are refused, and responses requests go
    /// without it.
    #[serde(default)]
    pub web_search: Option<Decimal>,
    /// Messages vendors: credits per 1 000 uses of the web fetch tool; 0 is a price too. Left out,
    /// requests with it are refused.
    #[serde(default)]
    pub web_fetch: Option<Decimal>,
    /// Messages and responses vendors: credits per 1 000 uses of the code execution tool, or of the
    /// code interpreter; 0 is a price too. Left out, requests with it are refused.
    #[serde(default)]
    pub code_execution: Option<Decimal>,
    /// Messages vendors: credits per 1 000 uses of the tool search tool; 0 is a price too. Left
    /// out, requests with it are refused.
    #[serde(default)]
    pub tool_search: Option<Decimal>,
    /// Messages and responses vendors: credits per 1 000 calls of remote MCP servers' tools; 0 is a
    /// price too. Left out, requests with MCP servers are refused.
    #[serde(default)]
    pub mcp: Option<Decimal>,
    /// By the vendor's name of a service tier, what its tokens cost as a multiple of the prices
    /// above, from above 0 to 1 000. A tier that is not named is refused.
    #[serde(default)]
    pub service_tier: BTreeMap<String, Decimal>,
    /// Messages vendors: by the vendor's name of a region (`inference_geo`), what tokens cost there
    /// as a multiple, such as `us: 1.1`. A region that is not named is refused, but for `global`.
    #[serde(default)]
    pub inference_geo: BTreeMap<String, Decimal>,
    /// Messages vendors: by the vendor's name of a speed, what tokens cost at it as a multiple,
    /// such as `fast: 6`. A speed that is not named is refused, but for `standard`.
    #[serde(default)]
    pub speed: BTreeMap<String, Decimal>,
}

/// Prices of a whole request, input and output, whose input is larger than a threshold. Credits per
/// 1 000 000 tokens; what is left out costs what it costs below.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PriceTier {
    /// Input tokens of all classes together, cached ones too; the tier begins one token above.
    /// Below `context_tokens`.
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

/// Ceilings of limits that a process is made to measure for.
pub const TOTAL_SECONDS_MAX: u64 = 86_400;
pub const DRAIN_SECONDS_MAX: u64 = 3_600;
pub const ATTEMPTS_MAX: u64 = 8;

macro_rules! limits {
    ($( $(#[doc = $doc:literal])* $name:ident = $default:literal, $least:literal ..= $most:expr; )*) => {
        /// Every buffer, queue, timeout and attempt count, with its unit in its name.
        #[derive(Debug, Clone, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct Limits {
            $( $(#[doc = $doc])* pub $name: u64, )*
            /// Further names under which clients send the messages protocol's version header.
            pub version_header_aliases: Vec<String>,
            /// Whether the journal is on disk before an answer's last byte is sent, so that a power
            /// cut loses no debit: one sync a request. False (default): it outlives the process,
            /// and the ledger's next commit is on disk within some 15 ms (an edge's: once the
            /// shared store has it). Taken at a start or upgrade.
            pub journal_sync: bool,
        }

        impl Default for Limits {
            fn default() -> Self {
                let version_header_aliases = vec!["anthropic-version".into()];
                Self { $( $name: $default, )* version_header_aliases, journal_sync: false }
            }
        }

        impl Limits {
            /// Each numeric limit: its key, its value, the least and the most it may be.
            pub fn bounds(&self) -> Vec<(&'static str, u64, u64, u64)> {
                vec![$( (stringify!($name), self.$name, $least, $most), )*]
            }
        }
    };
}

limits! {
    /// One request's body.
    body_bytes = 33_554_432, 1_024..=268_435_456;
    /// Members of objects and items of arrays in one request's body; past it, 400. Agents send
    /// about 20 for each tool call and its result.
    body_values = 200_000, 1_000..=10_000_000;
    /// Memory of this process; from 90 % of it on, new work is refused with 503 and what runs is
    /// finished. 0: what the control group allows, or what the machine has free at the time,
    /// whichever is less.
    memory_bytes = 0, 0..=1_099_511_627_776;
    /// All request bodies held at one time, by what has come of them; past it, 503.
    bodies_in_flight_bytes = 1_073_741_824, 1_048_576..=68_719_476_736;
    /// The part of it that the requests of one account may hold together, but at least one
    /// `body_bytes`; past it, 429.
    account_bodies_percent = 25, 1..=100;
    /// The part of it that the requests over one client connection may hold together, but at least
    /// one `body_bytes`; past it, 429. Not asked of a proxy in `listen.trust_proxy`, whose
    /// connections carry the requests of many clients.
    connection_bodies_percent = 6, 1..=100;
    /// Jobs on bodies of more than 64 KiB that run at one time. 0: one less than there are cores,
    /// at least 1.
    cpu_threads = 0, 0..=1_024;
    /// Jobs on bodies of more than 64 KiB (decoding, reading, translating) that wait for a thread;
    /// past it, 503.
    cpu_queue = 1_024, 1..=65_536;
    /// The same of one account. Accounts take turns.
    cpu_queue_per_account = 128, 1..=65_536;
    /// How long such a job waits; past it, 503.
    cpu_queue_seconds = 10, 1..=600;
    /// From a request's header to the end of its body; past it, 408.
    body_read_seconds = 60, 1..=3_600;
    /// A body that comes more slowly than this over `body_rate_seconds`: 408. 0: however slowly.
    body_bytes_per_second = 1_024, 0..=1_073_741_824;
    /// What a body's rate is measured over.
    body_rate_seconds = 30, 1..=3_600;
    /// A request's line and header fields together; past it, 431.
    header_bytes = 32_768, 1_024..=262_144;
    /// A request's header fields; past it, 431.
    header_fields = 64, 8..=256;
    /// From a header's first byte, or a new connection, to the header's end (HTTP/1), and for the TLS
    /// handshake of a new connection; past it, the connection is closed.
    header_read_seconds = 30, 1..=3_600;
    /// Client connections of this process; past it, the idle ones that have waited longest are
    /// closed, or where there are none, new ones at once. 0: no limit. At the start the gateway
    /// lowers it to what the limit on open files allows.
    connections = 20_000, 0..=1_000_000;
    /// Client connections from one address (IPv6: one /64); past it, new ones are closed at once.
    /// 0: no limit. Not asked of a proxy in `listen.trust_proxy`, whose address all clients share.
    connections_per_address = 1_024, 0..=1_000_000;
    /// Pages (everything outside `/v1`: dashboard, sign-up, docs) that this process serves at one
    /// time; past it, 503. Live balances have limits of their own. 0: no limit.
    open_pages = 512, 0..=1_000_000;
    /// Pages served at one time to one address (IPv6: one /64); past it, 429. 0: no limit. Does not
    /// apply to a proxy in `listen.trust_proxy` that does not name its client.
    open_pages_per_address = 64, 0..=1_000_000;
    /// The body of a request for a page; past it, 413.
    page_body_bytes = 65_536, 1_024..=65_536;
    /// From the header of a request for a page to the end of its body; past it, 408.
    page_body_read_seconds = 10, 1..=3_600;
    /// Live balances (event streams of the dashboard) that this process serves at one time; past
    /// it, 503, and the page shows the balance of when it was loaded. 0: no limit.
    live_streams = 4_096, 0..=1_000_000;
    /// Live balances served at one time to one address (IPv6: one /64); past it, 429. 0: no limit.
    /// Does not apply to a proxy in `listen.trust_proxy` that does not name its client.
    live_streams_per_address = 256, 0..=1_000_000;
    /// Live balances and downloads of one account at one time; past it, 503.
    live_streams_per_account = 8, 1..=65_536;
    /// Requests over one client connection (HTTP/1), before it is closed.
    keepalive_requests = 1_000, 1..=1_000_000;
    /// Requests of one account that may be open at one time; past it, 429.
    open_requests_per_account = 256, 1..=65_536;
    /// What costs nothing, of one account in a minute: the model list, credits, receipts, and token
    /// counts, each of which counts as ten; as many requests may be refused for what their bodies
    /// say. Past it, 429. A key or account with `requests_per_minute` has ten times that instead.
    /// Each edge counts for itself. 0: no limit on any of these.
    free_requests_per_minute = 6_000, 0..=RATE_MAX;
    /// Receipts of one account that may be looked up at one time, each for up to 2 s; past it, 429.
    receipt_lookups_per_account = 32, 1..=65_536;
    /// Sign-ups from one address (IPv6: one /64) in an hour; past it, 429. Loopback is not counted,
    /// unless it is a trusted proxy that names nobody.
    sign_ups_per_address_per_hour = 3, 1..=1_000_000;
    /// Requests that may be open at one time in this process; past it, 503.
    open_requests = 20_000, 1..=65_536;
    /// TCP and TLS to a vendor.
    connect_seconds = 5, 1..=60;
    /// From the request's end to the vendor's header. Models reason in silence for minutes, and
    /// whole answers take ten: a vendor whose machine is gone is found by TCP keep-alive in about a
    /// minute, whatever stands here.
    first_byte_seconds = 600, 1..=3_600;
    /// Between two pieces of a vendor's body.
    idle_seconds = 600, 1..=3_600;
    /// One write to a vendor that does not read.
    vendor_write_seconds = 60, 1..=3_600;
    /// Once the vendor's 2xx has come, after this long without a byte a stream's client gets a
    /// keep-alive: a comment, or a `ping` on the messages surface.
    stream_keep_alive_seconds = 15, 1..=300;
    /// A whole request.
    total_seconds = 3_600, 1..=TOTAL_SECONDS_MAX;
    /// One write to a client that has stopped reading.
    client_write_seconds = 60, 1..=3_600;
    /// A client connection without a request.
    keepalive_seconds = 60, 1..=3_600;
    /// Endpoints tried for one request, of each model that may answer it.
    attempts = 2, 1..=ATTEMPTS_MAX;
    /// After this long, a request that was sent whole is not sent again, to any endpoint or model:
    /// the vendor may be at work on it, and would be paid twice. What the vendor refused in words,
    /// by a status or an error, may be.
    repeat_within_seconds = 10, 0..=3_600;
    /// Repeats at a vendor's endpoints over 10 seconds, in percent of the requests to that vendor;
    /// past it, the vendor's failure is the answer. Connections that could not be made, and
    /// requests that the vendor did not begin, do not count.
    retry_budget_percent = 20, 0..=100;
    /// The same as a number that is always allowed.
    retry_budget_min = 3, 0..=100_000;
    /// Failures in a row that open an endpoint's breaker; 0: none does.
    breaker_failures = 5, 0..=1_000;
    /// Failed requests of a window, in percent, that open it.
    breaker_failure_percent = 50, 1..=100;
    /// How long that window is.
    breaker_window_seconds = 30, 1..=3_600;
    /// How many requests it must hold to count.
    breaker_window_requests = 20, 1..=1_000_000;
    /// How long an open breaker keeps requests away; each further time twice as long, and up to a
    /// quarter more by chance.
    breaker_open_seconds = 5, 1..=3_600;
    /// The longest of these times.
    breaker_open_max_seconds = 120, 1..=86_400;
    /// The longest `retry-after` of a vendor that is heeded; 0: none is.
    cool_down_max_seconds = 60, 0..=60;
    /// While it is heeded and nobody else can be asked, one request in so long tries all the same,
    /// and if it is answered well, all are sent again; 0: none does.
    cool_down_probe_seconds = 1, 0..=60;
    /// How long a resolved name of an endpoint is used before it is looked up again.
    name_refresh_seconds = 30, 1..=86_400;
    /// How long its last addresses serve where no resolver answers.
    name_stale_seconds = 3_600, 1..=604_800;
    /// One event of a vendor's stream.
    event_bytes = 1_048_576, 1_024..=16_777_216;
    /// A vendor's answer that is not a stream.
    response_buffer_bytes = 33_554_432, 1_024..=268_435_456;
    /// The least output limit that a clamp may leave, in tokens.
    min_output_tokens = 256, 1..=100_000;
    /// After SIGTERM, `/readyz` is 503 for this long while requests are still accepted, so that a
    /// load balancer sends no more before the listener closes. 0 (default): the listener closes at
    /// once. Behind a balancer: 5, or longer than it takes to notice.
    lame_duck_seconds = 0, 0..=300;
    /// From there on, running requests have this long to finish. Then a stream ends with an error
    /// event and is debited for what was generated; another request gets an error and is free.
    drain_seconds = 120, 1..=DRAIN_SECONDS_MAX;
    /// Reading a stream on after its client left, to learn its usage.
    drain_after_client_seconds = 5, 1..=600;
    /// The same, for models that hide their reasoning, and for long requests of which only the
    /// vendor can say how much was cached.
    drain_hidden_seconds = 60, 1..=600;
    /// The largest answer that is kept for its idempotency key.
    idempotency_body_bytes = 1_048_576, 1_024..=268_435_456;
    /// How long a key counts and its answer is kept.
    idempotency_seconds = 86_400, 1..=604_800;
    /// Keys that are kept; past it the oldest are forgotten.
    idempotency_entries = 1_000_000, 1_000..=100_000_000;
    /// All kept answers together; past it the oldest are forgotten, their keys are not.
    idempotency_store_bytes = 4_294_967_296, 1_048_576..=1_099_511_627_776;
    /// Lines of the access log that wait to be written; past it, lines are dropped and counted.
    access_log_lines = 16_384, 16..=1_048_576;
    /// Where edges share a store: all kept answers of one account, and of all; past it the oldest
    /// are forgotten. A key counts as 1 KiB of the latter.
    idempotency_shared_account_bytes = 8_388_608, 1_024..=1_099_511_627_776;
    idempotency_shared_bytes = 268_435_456, 1_048_576..=1_099_511_627_776;
    /// One file of the journal, before the next is begun.
    journal_segment_bytes = 67_108_864, 65_536..=1_073_741_824;
    /// Set aside on the journal's disk: where that is full, running requests still end in it.
    journal_reserve_bytes = 8_388_608, 65_536..=1_073_741_824;
    /// Settled responses that may wait for the ledger; past it no request is admitted.
    journal_pending = 65_536, 1_024..=1_048_576;
}
