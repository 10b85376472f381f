//! Real payloads, in folders: the client's request, the request that the vendor must get, the
//! vendor's response, and the response that the client must get. One runner runs them all:
//! `tests/vectors/<pair>/<case>/`.
//!
//! The expected side is written from the two protocols, never from the translator's output. The SDK
//! suite reads the same files with the official clients. A folder that nothing runs, a file that
//! nothing reads, and a listed case without a vector each fail the tests.

#![allow(
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods
)]

use llm_protocol::Protocol;
use llm_protocol::capabilities::repair_rules::{KnownCapabilities, RepairRules};
use llm_protocol::capabilities::{
    ChatModel, FieldMapping, MessagesModel, ModelCapabilities, ParallelToolCalls, ReasoningReplay,
    ResponsesModel, SamplingSupport, ThinkingType, ToolCallIds, ToolsWithReasoning,
    TranslationTarget,
};
use llm_protocol::failure::Failure;
use llm_protocol::ir::Effort;
use llm_protocol::passthrough::{self, StreamPassthrough};
use llm_protocol::profile::VendorProfile;
use llm_protocol::request::{self, ContentSize, PassthroughContext, RequestEdits};
use llm_protocol::responses::kinds::KINDS;
use llm_protocol::translate::{self, StreamTranslation, TranslationRequest};
use llm_protocol::usage::{MeteredUsage, MeteringTerms, Usage, UsageEstimator, UsageVerdict};
use llm_protocol::vendor_response::ResponseStream as _;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// This environment variable limits a run to the vectors whose name contains its value.
/// `scripts/test` removes it.
const ONLY: &str = "VECTORS_ONLY";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    title: String,
    covers: Vec<String>,
    model: String,
    #[serde(default)]
    warnings: Vec<String>,
    /// Warnings that arise from the answer.
    #[serde(default)]
    answer_warnings: Vec<String>,
    #[serde(default)]
    strict: bool,
    #[serde(default)]
    output_limit: Option<u64>,
    #[serde(default = "yes")]
    official: bool,
    /// Name of a preset: `model` is then the vendor's own name for one of its models.
    #[serde(default)]
    preset: Option<String>,
    /// The profile of a vendor that only the config describes, and what it says of the model.
    #[serde(default)]
    profile: Option<Value>,
    #[serde(default)]
    capabilities: Option<Value>,
    /// All capabilities of the model are known: the gateway repairs what the model refuses of its
    /// own protocol.
    #[serde(default)]
    repair: bool,
}

fn yes() -> bool {
    true
}

/// The class of models whose requests the gateway translates although client and vendor speak the
/// same protocol.
const FUNCTIONS_ONLY: &str = "B-R-functions";

struct Vector {
    folder: PathBuf,
    surface: Protocol,
    vendor: Protocol,
    case: Case,
    seen: std::cell::RefCell<BTreeSet<String>>,
}

impl Vector {
    fn text(&self, name: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.folder.join(name)).ok()?;
        self.seen.borrow_mut().insert(name.to_owned());
        Some(text)
    }

    fn json(&self, name: &str) -> Option<Value> {
        let text = self.text(name)?;
        Some(
            serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("{}: {name}: {error}", self.name())),
        )
    }

    fn name(&self) -> String {
        let parts: Vec<_> = self
            .folder
            .iter()
            .rev()
            .take(2)
            .map(|part| part.to_string_lossy())
            .collect();
        format!("{}/{}", parts[1], parts[0])
    }

    fn is_crossing(&self) -> bool {
        self.surface != self.vendor || self.case.model == FUNCTIONS_ONLY
    }
}

fn vectors() -> Vec<Vector> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let mut found = Vec::new();
    for (pair, surface, vendor) in [
        ("chat-to-messages", Protocol::Chat, Protocol::Messages),
        ("messages-to-chat", Protocol::Messages, Protocol::Chat),
        (
            "responses-to-messages",
            Protocol::Responses,
            Protocol::Messages,
        ),
        ("responses-to-chat", Protocol::Responses, Protocol::Chat),
        ("chat-to-chat", Protocol::Chat, Protocol::Chat),
        (
            "messages-to-messages",
            Protocol::Messages,
            Protocol::Messages,
        ),
        ("chat-to-responses", Protocol::Chat, Protocol::Responses),
        (
            "messages-to-responses",
            Protocol::Messages,
            Protocol::Responses,
        ),
        (
            "responses-to-responses",
            Protocol::Responses,
            Protocol::Responses,
        ),
    ] {
        for folder in folders(&root.join(pair)) {
            let text = std::fs::read_to_string(folder.join("case.json"))
                .unwrap_or_else(|error| panic!("{}: case.json: {error}", folder.display()));
            let case = serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
            let seen = BTreeSet::from(["case.json".to_owned()]).into();
            found.push(Vector {
                folder,
                surface,
                vendor,
                case,
                seen,
            });
        }
    }
    found
}

fn folders(root: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<_> = std::fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    folders.retain(|path| path.is_dir());
    folders.sort();
    folders
}

fn efforts(names: &[&str]) -> Vec<Effort> {
    names
        .iter()
        .map(|name| Effort::parse(name).unwrap())
        .collect()
}

/// The model classes that the cases name.
fn accepts(class: &str) -> ModelCapabilities {
    let messages = |sampling, thinking: &[ThinkingType], levels: &[&str]| MessagesModel {
        sampling,
        thinking_types: thinking.to_vec(),
        thinks_by_default: false,
        effort_levels: efforts(levels),
        prefill: sampling != SamplingSupport::Fixed,
        mid_system: false,
        structured: sampling != SamplingSupport::Free,
        server_tools: Vec::new(),
        min_cache_tokens: None,
    };
    let all = ["low", "medium", "high", "xhigh", "max"];
    let manual = [ThinkingType::Enabled, ThinkingType::Disabled];
    let adaptive = [ThinkingType::Adaptive, ThinkingType::Disabled];
    let plain = ChatModel::default();
    let reason = ChatModel {
        reasoning: true,
        effort_values: efforts(&["none", "low", "medium", "high", "xhigh"]),
        tools_with_reasoning: ToolsWithReasoning::EffortNone,
        sampling: false,
        stop: false,
        cache_breakpoints: true,
        verbosity: true,
        system_role: "developer",
        ..ChatModel::default()
    };
    match class {
        "A-free" => ModelCapabilities::Messages(messages(SamplingSupport::Free, &manual, &[])),
        "A-oneof" | "A-manual" => {
            ModelCapabilities::Messages(messages(SamplingSupport::OneOf, &manual, &[]))
        }
        "A-fixed" => ModelCapabilities::Messages(messages(SamplingSupport::Fixed, &adaptive, &all)),
        "A-adaptive" => ModelCapabilities::Messages(MessagesModel {
            mid_system: true,
            ..messages(SamplingSupport::Fixed, &adaptive, &all)
        }),
        // The vendor caches any prompt: real payloads are long, vectors short.
        "A-cache" => ModelCapabilities::Messages(MessagesModel {
            mid_system: true,
            min_cache_tokens: Some(1),
            ..messages(SamplingSupport::Fixed, &adaptive, &all)
        }),
        "A-search" => ModelCapabilities::Messages(MessagesModel {
            mid_system: true,
            server_tools: vec!["web_search".to_owned()],
            ..messages(SamplingSupport::Fixed, &adaptive, &all)
        }),
        "A-always" => ModelCapabilities::Messages(MessagesModel {
            mid_system: true,
            thinks_by_default: true,
            ..messages(
                SamplingSupport::Fixed,
                &[ThinkingType::Adaptive, ThinkingType::BetweenTools],
                &all,
            )
        }),
        "B-plain" => ModelCapabilities::Chat(plain),
        "B-custom" => ModelCapabilities::Chat(ChatModel {
            custom_tools: true,
            ..plain
        }),
        "B-reason" => ModelCapabilities::Chat(reason),
        "B-think" => ModelCapabilities::Chat(ChatModel {
            tools_with_reasoning: ToolsWithReasoning::Any,
            ..reason
        }),
        "B-responses" => ModelCapabilities::Chat(ChatModel {
            tools_with_reasoning: ToolsWithReasoning::ResponsesOnly,
            ..reason
        }),
        "B-third" => ModelCapabilities::Chat(ChatModel {
            reasoning_replay: ReasoningReplay::ReasoningContent,
            ..ChatModel::default()
        }),
        "B-third-details" => ModelCapabilities::Chat(ChatModel {
            reasoning_replay: ReasoningReplay::ReasoningDetails,
            ..ChatModel::default()
        }),
        "B-R" => ModelCapabilities::Responses(ResponsesModel {
            reasoning: true,
            effort_values: efforts(&["none", "low", "medium", "high", "xhigh"]),
            summaries: true,
            verbosity: true,
            ..ResponsesModel::default()
        }),
        FUNCTIONS_ONLY => ModelCapabilities::Responses(ResponsesModel {
            reasoning: true,
            effort_values: efforts(&["none", "low", "medium", "high"]),
            summaries: true,
            functions_only: true,
            ..ResponsesModel::default()
        }),
        "B-R-plain" => ModelCapabilities::Responses(ResponsesModel {
            sampling: true,
            ..ResponsesModel::default()
        }),
        other => peculiar(other),
    }
}

/// Models of vendors with their own restrictions.
fn peculiar(class: &str) -> ModelCapabilities {
    match class {
        "B-in-turn" => ModelCapabilities::Chat(ChatModel {
            reasoning_replay: ReasoningReplay::ReasoningContentInTurn,
            ..ChatModel::default()
        }),
        "B-nine" => ModelCapabilities::Chat(ChatModel {
            tool_call_ids: ToolCallIds::Nine,
            parallel_tool_calls: ParallelToolCalls::WithAutoChoice,
            ..ChatModel::default()
        }),
        other => panic!("no such model class: {other}"),
    }
}

/// The request for a vendor response whose case has no request of its own.
fn usual_request(surface: Protocol, streams: bool) -> Value {
    let mut request = match surface {
        Protocol::Responses => json!({"model": "public-model", "input": "Hi"}),
        Protocol::Chat | Protocol::Messages => {
            json!({"model": "public-model", "messages": [{"role": "user", "content": "Hi"}]})
        }
    };
    if streams {
        request["stream"] = json!(true);
    }
    if surface == Protocol::Messages {
        request["max_tokens"] = json!(1000);
    }
    request
}

/// The model that a case names, and its vendor.
struct Target {
    accepts: ModelCapabilities,
    known: KnownCapabilities,
    profile: VendorProfile,
    output_limit_field: &'static str,
}

fn target(vector: &Vector) -> Target {
    let Case {
        model,
        official,
        repair,
        preset,
        ..
    } = &vector.case;
    if let Some(preset) = preset {
        let key = match preset.as_str() {
            "vllm" | "ollama" | "llama-cpp" | "lm-studio" | "sglang" | "tgi" => "",
            _ => ", api_key: k",
        };
        return configured_target(&format!("{{preset: {preset}{key}}}"), model, &json!({}));
    }
    if let Some(profile) = &vector.case.profile {
        let vendor = json!({"protocol": vector.vendor.to_string(), "api_key": "k", "profile": profile,
            "endpoints": [{"url": "https://vendor.example"}]});
        let capabilities = vector.case.capabilities.clone().unwrap_or(json!({}));
        return configured_target(&vendor.to_string(), model, &capabilities);
    }
    let (profile, known) = (
        match official {
            true => VendorProfile::official(vector.vendor),
            false => VendorProfile::compatible(),
        },
        match repair {
            true => KnownCapabilities::ALL,
            false => KnownCapabilities::NONE,
        },
    );
    Target {
        accepts: accepts(model),
        known,
        profile: profile.clone(),
        output_limit_field: match vector.vendor {
            Protocol::Chat => "max_completion_tokens",
            Protocol::Messages => "max_tokens",
            Protocol::Responses => "max_output_tokens",
        },
    }
}

/// The model of a vendor with this entry in the config.
fn configured_target(vendor: &str, model: &str, capabilities: &Value) -> Target {
    let local = include_str!("../conf/local.yaml");
    let head = local.split("vendors:").next().unwrap();
    let text = format!(
        "{head}vendors:\n  v: {vendor}\nmodels:\n  - {{id: public-model, vendor: v, upstream_model: \"{model}\", \
         context_tokens: 200000, max_output_tokens: 128000, capabilities: {capabilities}, \
         price: {{input: \"1\", output: \"1\"}}}}\n"
    );
    let settings =
        config::parse(&text, &|_| None).unwrap_or_else(|faults| panic!("{vendor}: {faults:?}"));
    let model = &settings.catalog.models()[0];
    Target {
        accepts: model.accepts.clone(),
        known: model.repairs,
        profile: model.vendor.profile.clone(),
        output_limit_field: model.output_limit_field(),
    }
}

fn ask(vector: &Vector, body: &[u8]) -> Result<translate::TranslatedRequest, Failure> {
    let Target {
        accepts, profile, ..
    } = target(vector);
    let max_output_tokens = if vector.vendor == Protocol::Messages {
        64_000
    } else {
        128_000
    };
    let content = request::read_summary(vector.surface, body)
        .map_or_else(|_| ContentSize::default(), |read| read.features.content);
    let estimator = UsageEstimator::from_input_tokens(content.estimated_tokens());
    let asked = TranslationRequest {
        surface: vector.surface,
        body,
        target: TranslationTarget {
            upstream_model: "upstream-model",
            public_model: "public-model",
            max_output_tokens,
            profile: &profile,
            accepts: &accepts,
        },
        account_id: "acct_1",
        output_limit: vector.case.output_limit,
        strict: vector.case.strict,
        clock: || 1_700_000_000,
        request_id: "req_0",
        estimator,
    };
    translate::translate_request(&asked, false)
}

/// Returns the first difference of two JSON values; `"*"` on the expected side equals anything.
fn differs(expected: &Value, found: &Value, path: &str) -> Option<String> {
    match (expected, found) {
        (Value::String(star), _) if star == "*" => None,
        (Value::Object(expected), Value::Object(found)) => {
            let keys: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
            keys.into_iter().find_map(|key| {
                let here = format!("{path}.{key}");
                match (expected.get(key), found.get(key)) {
                    (Some(expected), Some(found)) => differs(expected, found, &here),
                    (Some(expected), None) => Some(format!("{here}: missing; expected {expected}")),
                    (None, Some(found)) => Some(format!("{here}: unexpected {found}")),
                    (None, None) => None,
                }
            })
        }
        (Value::Array(one), Value::Array(other)) => {
            if one.len() != other.len() {
                return Some(format!("{path}: expected {expected}, found {found}"));
            }
            let pairs = one.iter().zip(other).enumerate();
            pairs
                .into_iter()
                .find_map(|(index, (one, other))| differs(one, other, &format!("{path}[{index}]")))
        }
        (Value::Number(one), Value::Number(other)) if one.as_f64() == other.as_f64() => None,
        _ if expected == found => None,
        _ => Some(format!("{path}: expected {expected}, found {found}")),
    }
}

/// The events of a stream: the name, and the data as JSON if it is JSON.
fn events(stream: &str) -> Vec<(String, Value)> {
    let mut events = Vec::new();
    for event in stream.replace("\r\n", "\n").split("\n\n") {
        let (mut name, mut data) = (String::new(), Vec::new());
        for line in event.lines() {
            if let Some(value) = line.strip_prefix("event:") {
                name = value.trim_start().to_owned();
            } else if let Some(value) = line.strip_prefix("data:") {
                data.push(value.strip_prefix(' ').unwrap_or(value));
            }
        }
        if data.is_empty() {
            continue;
        }
        let data = data.join("\n");
        events.push((
            name,
            serde_json::from_str(&data).unwrap_or(Value::String(data)),
        ));
    }
    events
}

fn compare_streams(expected: &str, found: &str) -> Option<String> {
    let (expected, found) = (events(expected), events(found));
    for (index, (one, other)) in expected.iter().zip(&found).enumerate() {
        if one.0 != other.0 {
            return Some(format!(
                "event {index}: expected `{}`, found `{}` {}",
                one.0, other.0, other.1
            ));
        }
        if let Some(difference) = differs(&one.1, &other.1, &format!("event {index}")) {
            return Some(difference);
        }
    }
    let show = |rest: &[(String, Value)]| format!("{:?}", rest);
    match expected.len().cmp(&found.len()) {
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Less => Some(format!(
            "{} too many: {}",
            found.len() - expected.len(),
            show(&found[expected.len()..])
        )),
        std::cmp::Ordering::Greater => Some(format!(
            "{} missing: {}",
            expected.len() - found.len(),
            show(&expected[found.len()..])
        )),
    }
}

/// The result of a vendor's response.
struct Told {
    body: String,
    failure: Option<Failure>,
    usage: Option<Usage>,
    /// Of a whole response. A stream has comments.
    warnings: Vec<&'static str>,
}

/// Passes a stream on, in pieces of `piece` bytes.
fn tell_stream(vector: &Vector, request: &[u8], vendor: &str, piece: usize) -> Told {
    let mut out = Vec::new();
    let mut failure = None;
    if !vector.is_crossing() {
        let outline = request::read_summary(vector.surface, request).unwrap();
        let mut pass = StreamPassthrough::new(
            vector.surface,
            "public-model",
            !outline.include_usage,
            1 << 20,
        )
        .with_request(terms(vector), 1)
        .with_call_repair(Some("req_0"));
        for piece in vendor.as_bytes().chunks(piece) {
            if let Err(fault) = pass.push(piece, &mut out) {
                failure = Some(fault.to_failure(
                    VendorProfile::official(vector.vendor),
                    "upstream-model",
                    "public-model",
                ));
                break;
            }
        }
        if failure.is_none()
            && let Err(fault) = pass.finish(&mut out)
        {
            failure = Some(fault.to_failure(
                VendorProfile::official(vector.vendor),
                "upstream-model",
                "public-model",
            ));
        }
        return Told {
            body: String::from_utf8(out).unwrap(),
            failure,
            usage: pass.usage().and_then(counted),
            warnings: Vec::new(),
        };
    }
    let recall = ask(vector, request)
        .unwrap_or_else(|failure| panic!("{}: {}", vector.name(), failure.message))
        .response_context;
    let streamed = serde_json::from_slice::<Value>(request).unwrap()["stream"] == json!(true);
    let mut stream =
        StreamTranslation::new(vector.vendor, vector.surface, recall, streamed, 1 << 20);
    for piece in vendor.as_bytes().chunks(piece) {
        if let Err(fault) = stream.push(piece, &mut out) {
            failure = Some(fault.to_failure(
                VendorProfile::official(vector.vendor),
                "upstream-model",
                "public-model",
            ));
            break;
        }
    }
    if failure.is_none()
        && let Err(fault) = stream.finish(&mut out)
    {
        failure = Some(fault.to_failure(
            VendorProfile::official(vector.vendor),
            "upstream-model",
            "public-model",
        ));
    }
    assert_eq!(
        stream.is_complete(),
        failure.is_none(),
        "{}: completed",
        vector.name()
    );
    Told {
        body: String::from_utf8(out).unwrap(),
        failure,
        usage: stream.usage().and_then(counted),
        warnings: match streamed {
            true => Vec::new(),
            false => stream.warnings().to_vec(),
        },
    }
}

fn terms(vector: &Vector) -> MeteringTerms {
    MeteringTerms::default().with_usage_paths(target(vector).profile.usage)
}

/// The usage that the vendor counted; `None` if it is an estimate.
fn counted(metered: MeteredUsage) -> Option<Usage> {
    (metered.verdict != UsageVerdict::Estimated).then_some(metered.usage)
}

fn tell_whole(vector: &Vector, request: &[u8], vendor: &str) -> Told {
    if !vector.is_crossing() {
        return match passthrough::rewrite_response(
            vector.surface,
            "public-model",
            vendor.as_bytes().to_vec().into(),
            &terms(vector),
            Some("req_0"),
        ) {
            Ok(whole) => Told {
                body: String::from_utf8(whole.body.to_vec()).unwrap(),
                failure: None,
                usage: whole.usage.and_then(counted),
                warnings: whole.warnings,
            },
            Err(fault) => {
                let failure = fault.to_failure(
                    VendorProfile::official(vector.vendor),
                    "upstream-model",
                    "public-model",
                );
                Told {
                    body: String::new(),
                    failure: Some(failure),
                    usage: None,
                    warnings: Vec::new(),
                }
            }
        };
    }
    let recall = ask(vector, request)
        .unwrap_or_else(|failure| panic!("{}: {}", vector.name(), failure.message))
        .response_context;
    match translate::translate_response(
        vector.vendor,
        vector.surface,
        recall,
        false,
        vendor.as_bytes(),
    ) {
        Ok(whole) => Told {
            body: String::from_utf8(whole.body.to_vec()).unwrap(),
            failure: None,
            usage: whole.usage.and_then(counted),
            warnings: whole.warnings,
        },
        Err(fault) => {
            let failure = fault.to_failure(
                VendorProfile::official(vector.vendor),
                "upstream-model",
                "public-model",
            );
            Told {
                body: String::new(),
                failure: Some(failure),
                usage: None,
                warnings: Vec::new(),
            }
        }
    }
}

fn check_request(vector: &Vector) -> Result<(), String> {
    let Some(text) = vector.text("client_request.json") else {
        return Ok(());
    };
    if let Some(refusal) = vector.json("refusal.json") {
        let failure = match ask(vector, text.as_bytes()) {
            Ok(translated) => {
                return Err(format!(
                    "not refused: {}",
                    String::from_utf8_lossy(&translated.body)
                ));
            }
            Err(failure) => failure,
        };
        let rendered = failure.render(vector.surface, "req_0");
        let body: Value = serde_json::from_slice(&rendered.body).unwrap();
        let mut told = json!({"status": rendered.status, "message": body["error"]["message"]});
        for key in ["param", "code", "type", "details"] {
            told[key] = body["error"][key].clone();
        }
        for (key, value) in refusal.as_object().unwrap() {
            if let Some(difference) = differs(value, &told[key], key) {
                return Err(format!("{difference}\n  told: {told}"));
            }
        }
        return Ok(());
    }
    let (body, warnings) = if vector.is_crossing() {
        let translated = ask(vector, text.as_bytes())
            .map_err(|failure| format!("refused: {}", failure.message))?;
        (translated.body, translated.warnings)
    } else {
        passed(vector, &text)
    };
    if let Some(expected) = vector.json("vendor_request.json") {
        let found = serde_json::from_slice(&body).map_err(|error| {
            format!(
                "vendor_request: {error}: {}",
                String::from_utf8_lossy(&body)
            )
        })?;
        if let Some(difference) = differs(&expected, &found, "vendor_request") {
            return Err(format!("{difference}\n  sent: {found}"));
        }
    }
    if warnings != vector.case.warnings {
        return Err(format!(
            "warnings: expected {:?}, found {warnings:?}",
            vector.case.warnings
        ));
    }
    Ok(())
}

/// Cleans and rewrites a request whose vendor speaks the client's protocol. Returns the body and
/// the warnings.
fn passed(vector: &Vector, text: &str) -> (bytes::Bytes, Vec<String>) {
    let body = bytes::Bytes::from(text.to_owned());
    let outline = request::read_summary(vector.surface, &body).unwrap();
    let Target {
        accepts,
        known,
        profile,
        output_limit_field,
    } = target(vector);
    let edits = RequestEdits {
        model: "upstream-model",
        output_limit: vector.case.output_limit,
        output_limit_field,
        thinking_budget: None,
        include_usage: vector.surface == Protocol::Chat
            && outline.stream
            && profile.takes("stream_options"),
    };
    let repair = RepairRules {
        accepts: &accepts,
        known,
        max_output_tokens: 64_000,
        output_limit: vector.case.output_limit,
        thinking_budget: None,
        is_interleaved: false,
    };
    let stripped = match vector.surface {
        Protocol::Responses => {
            let sender = PassthroughContext {
                account_id: "acct_1",
                profile: &profile,
                sold: Default::default(),
                without_reasoning: false,
                model: "public-model",
                repair,
            };
            request::clean_responses_request(&body, &outline, &sender)
                .unwrap()
                .0
        }
        surface => request::clean_request(surface, &profile, &body, &outline, Some(&repair)),
    };
    let warnings = stripped.warnings.clone();
    (
        request::rewrite_cleaned(&body, &outline, &edits, stripped),
        warnings,
    )
}

fn check_answer(vector: &Vector) -> Result<(), String> {
    let (vendor, streams) = match (
        vector.text("vendor_response.json"),
        vector.text("vendor_response.sse"),
    ) {
        (Some(whole), None) => (whole, false),
        (None, Some(stream)) => (stream, true),
        (None, None) => return Ok(()),
        (Some(_), Some(_)) => return Err("two vendor responses".to_owned()),
    };
    let request = match vector.text("client_request.json") {
        Some(text) => text,
        None => usual_request(vector.surface, streams).to_string(),
    };
    let pieces: &[usize] = if streams {
        &[usize::MAX, 1, 7, 64]
    } else {
        &[0]
    };
    for piece in pieces {
        let told = match streams {
            true => tell_stream(vector, request.as_bytes(), &vendor, *piece),
            false => tell_whole(vector, request.as_bytes(), &vendor),
        };
        compare_answer(vector, &told).map_err(|error| format!("in pieces of {piece}: {error}"))?;
    }
    Ok(())
}

fn compare_answer(vector: &Vector, told: &Told) -> Result<(), String> {
    // The gateway may pass on more than an official client accepts: the SDK suite does not read
    // `passed_on.sse`.
    if let Some(expected) = vector
        .text("client_response.sse")
        .or_else(|| vector.text("passed_on.sse"))
        && let Some(difference) = compare_streams(&expected, &told.body)
    {
        return Err(format!("{difference}\n  told:\n{}", told.body));
    }
    if let Some(expected) = vector.json("client_response.json") {
        if let Some(failure) = &told.failure {
            return Err(format!("failed: {}", failure.reason()));
        }
        let found =
            serde_json::from_str(&told.body).map_err(|error| format!("{error}: {}", told.body))?;
        if let Some(difference) = differs(&expected, &found, "client_response") {
            return Err(format!("{difference}\n  told: {found}"));
        }
    }
    let comments = told
        .body
        .lines()
        .filter_map(|line| line.strip_prefix(": x-gateway-warnings: "));
    let warnings: Vec<_> = comments.chain(told.warnings.iter().copied()).collect();
    if vector.case.answer_warnings != warnings {
        return Err(format!(
            "warnings of the answer: {warnings:?}\n  told:\n{}",
            told.body
        ));
    }
    let expected = vector
        .json("client_failure.json")
        .map(|failure| failure["kind"].as_str().unwrap().to_owned());
    let found = told
        .failure
        .as_ref()
        .map(|failure| failure.reason().to_owned());
    if expected != found {
        return Err(format!(
            "failure: expected {expected:?}, found {found:?}\n  told:\n{}",
            told.body
        ));
    }
    if let Some(expected) = vector.json("usage.json") {
        let found = serde_json::to_value(told.usage).unwrap();
        if let Some(difference) = differs(&expected, &found, "usage") {
            return Err(format!("{difference}; found {found}"));
        }
    }
    Ok(())
}

#[test]
fn every_vector_holds() {
    let only = std::env::var(ONLY).unwrap_or_default();
    let mut faults = Vec::new();
    let vectors: Vec<_> = vectors()
        .into_iter()
        .filter(|vector| vector.name().contains(&only))
        .collect();
    assert!(!vectors.is_empty(), "no vector's name contains {only:?}");
    for vector in &vectors {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            check_request(vector).and_then(|()| check_answer(vector))
        }));
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => faults.push(format!(
                "{} ({})\n  {fault}",
                vector.name(),
                vector.case.title
            )),
            Err(_) => faults.push(format!(
                "{} ({})\n  panicked",
                vector.name(),
                vector.case.title
            )),
        }
        let files = std::fs::read_dir(&vector.folder).unwrap().flatten();
        for file in files.map(|entry| entry.file_name().to_string_lossy().into_owned()) {
            if !vector.seen.borrow().contains(&file) {
                faults.push(format!("{}: {file} is read by nobody", vector.name()));
            }
        }
        if vector.seen.borrow().len() < 2 {
            faults.push(format!("{}: expects nothing", vector.name()));
        }
    }
    assert!(
        faults.is_empty(),
        "{} of {} vectors:\n{}",
        faults.len(),
        vectors.len(),
        faults.join("\n")
    );
}

/// Whether a row decides about a member: its own row, or a row above it that covers everything
/// below. A row covers everything below if its member is dropped or refused, or if there are no
/// rows below it.
fn decided(fields: &BTreeMap<&str, FieldMapping>, path: &str) -> bool {
    let has_rows_below = |row: &str| {
        fields
            .range(row..)
            .skip(1)
            .take_while(|(path, _)| path.starts_with(row))
            .any(|(path, _)| matches!(path.as_bytes()[row.len()], b'.' | b'['))
    };
    let speaks = |row: &str| {
        fields
            .get(row)
            .is_some_and(|outcome| *outcome != FieldMapping::Map || !has_rows_below(row))
    };
    let ends = path
        .char_indices()
        .filter(|(_, letter)| ".[]".contains(*letter));
    let above = ends.map(|(at, letter)| &path[..at + usize::from(letter == ']')]);
    let other_type = path.split_once('[').and_then(|(list, rest)| {
        let (kind, _) = rest.split_once(']').filter(|(kind, _)| !kind.is_empty())?;
        let own = format!("{list}[{kind}]");
        let known = fields.contains_key(own.as_str()) || has_rows_below(&own);
        (!known).then(|| format!("{list}[*]"))
    });
    let block = path.strip_prefix("messages[].content[").and_then(|rest| {
        let own = format!("messages[].content[{}]", rest.split_once(']')?.0);
        let known = fields.contains_key(own.as_str()) || has_rows_below(&own);
        (!known).then(|| "messages[].content[*]".to_owned())
    });
    fields.contains_key(path)
        || above.into_iter().any(speaks)
        || other_type
            .or(block)
            .is_some_and(|row| fields.contains_key(row.as_str()))
}

#[test]
fn every_member_of_the_official_request_types_has_one_outcome() {
    for surface in [Protocol::Chat, Protocol::Messages, Protocol::Responses] {
        let rows = translate::field_mappings(surface);
        let fields: BTreeMap<_, _> = rows.iter().copied().collect();
        assert_eq!(fields.len(), rows.len(), "{surface}: a path stands twice");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/fields");
        let list = std::fs::read_to_string(root.join(format!("{surface}.txt"))).unwrap();
        let undecided: Vec<_> = list
            .lines()
            .filter(|path| !decided(&fields, path))
            .collect();
        assert!(
            list.lines().count() > 100 && undecided.is_empty(),
            "{surface}: {undecided:?}"
        );
    }
}

/// The responses protocol distinguishes items, tools and events by their type. Each type that the
/// official types name has one row, and no row is about an unknown type.
#[test]
fn every_kind_of_item_tool_and_event_has_one_outcome() {
    let list =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/fields/responses-kinds.txt");
    let list = std::fs::read_to_string(list).unwrap();
    let mut listed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (of, name) in list.lines().map(|line| line.split_once(' ').unwrap()) {
        listed.entry(of).or_default().insert(name);
    }
    for (of, rows) in KINDS {
        let told: BTreeSet<_> = rows.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            (told.len(), Some(&told)),
            (rows.len(), listed.get(of)),
            "{of}"
        );
    }
    assert_eq!(listed.len(), KINDS.len());
}

/// Reads the usage of an answer of the vendor that has this usage object and these members.
fn usage_of(protocol: Protocol, usage: &Value, members: &Value) -> Usage {
    let mut answer = match protocol {
        Protocol::Chat => {
            json!({"choices": [{"finish_reason": "stop", "message": {"content": ""}}]})
        }
        Protocol::Messages => json!({"type": "message", "content": [], "stop_reason": "end_turn"}),
        Protocol::Responses => json!({"object": "response", "status": "completed", "output": []}),
    };
    answer["usage"] = usage.clone();
    for (name, value) in members.as_object().into_iter().flatten() {
        answer[name] = value.clone();
    }
    let body = answer.to_string();
    passthrough::read_usage(protocol, body.as_bytes(), &MeteringTerms::default()).unwrap()
}

/// The table of answers says of each count whether it decides the bill: a count that does changes
/// the usage, and one that does not leaves it.
#[test]
fn the_counts_that_decide_the_bill_are_those_that_the_table_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/fields/answers.txt");
    let table = std::fs::read_to_string(root).unwrap();
    let rows: Vec<(Protocol, &str, &str)> = table
        .lines()
        .filter_map(|line| {
            let (surface, rest) = line.split_once(" member ")?;
            let (path, verdict) = rest.rsplit_once(' ')?;
            let protocol = match surface {
                "chat" => Protocol::Chat,
                "messages" => Protocol::Messages,
                _ => Protocol::Responses,
            };
            let is_count = path.starts_with("usage.") || path == "service_tier";
            is_count.then_some((protocol, path, verdict))
        })
        .collect();
    let mut checked = 0;
    for (protocol, path, verdict) in &rows {
        let is_object = |other: &str| other.starts_with(&format!("{path}."));
        if rows
            .iter()
            .any(|(of, other, _)| of == protocol && is_object(other))
        {
            continue;
        }
        let mut base = match protocol {
            Protocol::Chat => json!({"prompt_tokens": 1_000, "completion_tokens": 1_000}),
            _ => json!({"input_tokens": 1_000, "output_tokens": 1_000}),
        };
        let before = usage_of(*protocol, &base, &json!({}));
        let value = match path.rsplit('.').next() {
            Some("service_tier" | "inference_geo" | "speed") => json!("odd"),
            Some("iterations") => json!([{"type": "compaction", "output_tokens": 5}]),
            Some("fallback_credit") => json!({"status": {"type": "redeemed"}}),
            _ => json!(5_000),
        };
        let after = match path.strip_prefix("usage.") {
            Some(inner) => {
                let mut at = &mut base;
                for name in inner.split('.') {
                    at = &mut at[name];
                }
                *at = value;
                usage_of(*protocol, &base, &json!({}))
            }
            None => usage_of(*protocol, &base, &json!({ *path: value })),
        };
        assert_eq!(before != after, *verdict == "bill", "{protocol} {path}");
        checked += 1;
    }
    assert!(checked > 25, "{checked}");
}

/// Each test that the page on protocols names exists.
#[test]
fn every_decision_that_is_told_names_its_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/protocols.md")).unwrap();
    let mut held = 0;
    for (file, what) in page.lines().filter_map(|line| {
        let (_, last) = line.strip_suffix("` |")?.rsplit_once('`')?;
        last.split_once("::")
    }) {
        let source = std::fs::read_to_string(root.join(file))
            .unwrap_or_else(|error| panic!("{file}: {error}"));
        // In a vector, the text must be the whole of a string: its title, or a case that it covers.
        let wanted = if file.ends_with(".json") {
            format!("\"{what}\"")
        } else {
            what.to_owned()
        };
        assert!(source.contains(&wanted), "{file}: {what}");
        held += 1;
    }
    assert!(held > 25, "{held}");
}

/// Each case of the list has a vector that shows it, or names a test elsewhere.
#[test]
fn every_case_of_the_list_has_a_vector_or_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("tests/vectors/cases.json")).unwrap();
    let list: BTreeMap<String, BTreeMap<String, String>> = serde_json::from_str(&text).unwrap();
    let listed: BTreeSet<&String> = ["mapping", "breakage", "responses"]
        .iter()
        .flat_map(|part| list[*part].keys())
        .collect();
    let vectors = vectors();
    let shown: BTreeSet<&String> = vectors
        .iter()
        .flat_map(|vector| &vector.case.covers)
        .collect();
    for (case, place) in &list["elsewhere"] {
        let (file, test) = place.split_once("::").unwrap();
        let source = std::fs::read_to_string(root.join(file))
            .unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(
            source.contains(test) && listed.contains(case),
            "{case}: {place}"
        );
    }
    let missing: Vec<_> = listed
        .iter()
        .filter(|case| !shown.contains(*case) && !list["elsewhere"].contains_key(**case))
        .collect();
    assert!(
        listed.len() == 169 && missing.is_empty(),
        "nothing shows {missing:?}"
    );
    let unknown: Vec<_> = shown.difference(&listed).collect();
    assert!(
        unknown.is_empty(),
        "vectors show what is not listed: {unknown:?}"
    );
}
