//! Plans the answer to a call: path, key, checks, and the vendor's headers.
//!
//! This file must not write to the network (`sender.rs` does). Read next: `request.rs`, then
//! `chat.rs`, `messages.rs` and `responses.rs`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::behaviour::{Behaviour, ErrorBody, MalformedShape};
use super::dialect::{self, Dialect};
use super::errors::{self, FixedError, SimVendor, SimulatedError};
use super::events::{SimEventStream, SimResponse};
use super::http_message::SimRequest;
use super::metered::{self, MeteredCall};
use super::options::{AcceptedKeys, SimulatedFault, SimulatorOptions};
use super::request::SimParsedBody;
use super::stats::{Stats, hex};
use super::stripe::{SimStripe, StripeAnswer};
use super::usage::SimUsage;
use super::{chat, checks, media, messages, outline, request, responses};

const MODELS: [&str; 3] = ["sim-small", "sim-medium", "sim-large"];
const MODELS_CREATED: &str = "2026-01-01T00:00:00Z";
const MODELS_CREATED_S: i64 = 1_767_225_600;

pub struct SimServer {
    pub options: SimulatorOptions,
    pub stats: Stats,
    serial: AtomicU64,
    /// Number of calls of `/_sim/release`.
    pub releases: AtomicU64,
    /// Random text that distinguishes the ids of two simulators.
    salt: String,
}

/// An answer that is ready to be sent, perhaps with faults.
pub struct SimResponsePlan {
    pub status: u16,
    /// The vendor's header lines, each with its line end.
    pub head: String,
    pub behaviour: Behaviour,
    pub body: SimBody,
    /// Usage of a model's answer.
    pub usage: Option<SimUsage>,
}

pub enum SimBody {
    Whole {
        content_type: &'static str,
        bytes: Vec<u8>,
    },
    Stream(Box<SimEventStream>),
}

impl SimServer {
    pub fn new(options: SimulatorOptions) -> Self {
        let mut salt = [0; 3];
        // Without randomness, the only effect is that ids of two simulators may collide.
        let _ = getrandom::fill(&mut salt);
        Self {
            options,
            stats: Stats::default(),
            serial: AtomicU64::new(0),
            releases: AtomicU64::new(0),
            salt: hex(&salt),
        }
    }

    /// Returns the answer to a call; `None` if the endpoint's fault is to send none.
    pub fn plan(&self, request: &SimRequest) -> Option<SimResponsePlan> {
        if SimStripe::is_call(request.path()) {
            return plan_stripe(self.options.stripe.answer(request));
        }
        let serial = format!("{}{:010}", self.salt, self.serial.fetch_add(1, Relaxed));
        let (named, path) = dialect::split_path(request.path());
        let dialect = named.or(self.options.profile.as_deref()).map(dialect::find);
        let vendor = vendor_of(request, path);
        let (dialect, unknown) = match dialect.transpose() {
            Ok(dialect) => (dialect.filter(|own| own.protocol == vendor), None),
            Err(error) => (None, Some(error)),
        };
        let call = SimCall {
            server: self,
            request,
            path: vendor_path(path, dialect),
            vendor,
            dialect,
            serial,
        };
        let planned = match self.options.fault {
            Some(SimulatedFault::CloseAfterRequest) => return None,
            Some(SimulatedFault::Status(status)) => {
                Err(SimulatedError::from_status(vendor, status))
            }
            None => match unknown {
                Some(error) => Err(SimulatedError::new(404, error)),
                None => call.plan(),
            },
        };
        Some(planned.unwrap_or_else(|problem| call.error_response(&problem, Behaviour::default())))
    }
}

/// Returns the answer to a call of the payment provider; `None` if its fault is to send none.
fn plan_stripe(answer: StripeAnswer) -> Option<SimResponsePlan> {
    (!answer.is_cut).then(|| SimResponsePlan {
        status: answer.status,
        head: answer.head,
        behaviour: answer.behaviour,
        body: SimBody::Whole {
            content_type: "application/json",
            bytes: answer.body.into_bytes(),
        },
        usage: None,
    })
}

/// A call that is being answered.
struct SimCall<'a> {
    server: &'a SimServer,
    request: &'a SimRequest,
    path: &'a str,
    vendor: SimVendor,
    dialect: Option<&'static Dialect>,
    serial: String,
}

impl SimCall<'_> {
    fn plan(&self) -> Result<SimResponsePlan, SimulatedError> {
        let request = self.request;
        match (request.method.as_str(), self.path) {
            ("POST", "/v1/chat/completions") => {
                self.check_key()?;
                self.generate(request::read_chat(&request.body)?)
            }
            ("POST", "/v1/completions") => {
                self.check_key()?;
                self.generate(request::read_completion(&request.body)?)
            }
            ("POST", "/v1/fim/completions") => {
                self.check_key()?;
                self.generate(request::read_fim(&request.body)?)
            }
            ("POST", "/v1/embeddings") => {
                self.check_key()?;
                self.answer_metered(metered::embeddings(&request.body)?)
            }
            ("POST", "/v1/contextualizedembeddings") => {
                self.check_key()?;
                self.answer_metered(metered::voyage_embeddings(&request.body)?)
            }
            ("POST", path @ ("/v1/embed" | "/v2/embed")) => {
                self.check_key()?;
                let version = path.get(2..3).unwrap_or_default();
                self.answer_metered(metered::cohere_embeddings(&request.body, version)?)
            }
            ("POST", "/v1/rerank" | "/v2/rerank") => {
                self.check_key()?;
                self.answer_metered(metered::rerank(&request.body)?)
            }
            ("POST", "/v1/moderations") => {
                self.check_key()?;
                self.answer_metered(metered::moderations(&request.body)?)
            }
            ("POST", "/v1/images/generations") => {
                self.check_key()?;
                self.answer_metered(media::generate_images(&request.body)?)
            }
            ("POST", "/v1/images/edits") => {
                self.check_key()?;
                self.answer_metered(media::edit_images(content_type(request), &request.body)?)
            }
            ("POST", "/v1/audio/speech") => {
                self.check_key()?;
                self.answer_metered(media::speak(&request.body)?)
            }
            (
                "POST",
                path @ ("/v1/audio/transcriptions"
                | "/v2/audio/transcriptions"
                | "/v1/audio/translations"),
            ) => {
                self.check_key()?;
                let translates = path.ends_with("translations");
                let kind = content_type(request);
                self.answer_metered(media::transcribe(kind, &request.body, translates)?)
            }
            ("POST", "/v1/responses") => {
                self.check_key()?;
                self.generate(request::read_responses(&request.body)?)
            }
            ("POST", "/v1/messages") => {
                self.check_key()?;
                self.check_version()?;
                self.generate(request::read_messages(&request.body, false)?)
            }
            ("POST", "/v1/messages/count_tokens") => {
                self.check_key()?;
                self.check_version()?;
                self.count_tokens(&request::read_messages(&request.body, true)?)
            }
            ("GET", "/v1/models") => {
                self.check_key()?;
                Ok(self.json(200, models(self.vendor).to_string(), Behaviour::default()))
            }
            (method, _) => Err(SimulatedError::no_such_path(
                self.vendor,
                method,
                &request.target,
            )),
        }
    }

    fn generate(&self, mut parsed: SimParsedBody) -> Result<SimResponsePlan, SimulatedError> {
        self.server.stats.count_model(&parsed.turn.model);
        let mut behaviour = self.check(&parsed)?;
        if behaviour.outline {
            behaviour.text = Some(outline::describe(&parsed.body));
        }
        if behaviour.tool.is_none() && behaviour.blocks.is_none() {
            behaviour.tool = required_tool(&parsed.body);
        }
        if let Some(dialect) = self.dialect {
            dialect.apply(&mut parsed, &mut behaviour);
        }
        let turn = parsed.turn;
        let marker_error = behaviour.status.map(|status| match self.dialect {
            Some(dialect) => dialect.error_from_marker(status, &behaviour),
            None => SimulatedError::from_marker(self.vendor, status, &behaviour),
        });
        if let Some(problem) = marker_error
            .as_ref()
            .filter(|_| behaviour.error_event.is_none() || !turn.stream)
        {
            return Ok(self.error_response(problem, behaviour));
        }
        let streams = turn.stream;
        let serial = format!("Sim{}", self.serial);
        let error = marker_error.unwrap_or_else(|| match self.vendor {
            SimVendor::Chat | SimVendor::Responses => SimulatedError::from_status(self.vendor, 500),
            SimVendor::Messages => SimulatedError::from_status(self.vendor, 529),
        });
        let error = error.with_marker_overrides(&behaviour);
        if behaviour.shape == Some(MalformedShape::Error) && !streams {
            return Ok(self.json(200, error.body(self.vendor, &self.request_id()), behaviour));
        }
        let (whole, usage, response) = match self.vendor {
            SimVendor::Chat => {
                let created = Timestamp::now().as_second();
                let response = chat::SimChatResponse::new(turn, behaviour.clone(), serial, created);
                (
                    (!streams).then(|| response.whole()),
                    response.usage(),
                    SimResponse::Chat(response),
                )
            }
            SimVendor::Responses => {
                let created = Timestamp::now().as_second();
                let response =
                    responses::SimResponsesResponse::new(turn, behaviour.clone(), serial, created);
                (
                    (!streams).then(|| response.whole()),
                    response.usage(),
                    SimResponse::Responses(response),
                )
            }
            SimVendor::Messages => {
                let response = messages::SimMessagesResponse::new(
                    turn,
                    behaviour.clone(),
                    format!("01{serial}"),
                );
                (
                    (!streams).then(|| response.whole()),
                    response.usage(),
                    SimResponse::Messages(response),
                )
            }
        };
        if let Some(whole) = whole {
            let whole = self
                .dialect
                .map_or(whole.clone(), |own| own.rewrite(&whole));
            return Ok(SimResponsePlan {
                usage: Some(usage),
                ..self.json(200, whole, behaviour)
            });
        }
        let error = error.event(self.vendor, &self.request_id());
        let dialect = self.dialect;
        let body = SimBody::Stream(Box::new(SimEventStream {
            response,
            error,
            dialect,
        }));
        Ok(SimResponsePlan {
            status: 200,
            head: self.head(),
            behaviour,
            body,
            usage: Some(usage),
        })
    }

    fn answer_metered(&self, call: MeteredCall) -> Result<SimResponsePlan, SimulatedError> {
        let MeteredCall {
            behaviour,
            answer,
            content_type,
            usage,
        } = call;
        if let Some(status) = behaviour.status {
            let problem = SimulatedError::from_marker(self.vendor, status, &behaviour);
            return Ok(self.error_response(&problem, behaviour));
        }
        if behaviour.shape == Some(MalformedShape::Error) {
            let error = SimulatedError::from_status(self.vendor, 500);
            let error = error.with_marker_overrides(&behaviour);
            return Ok(self.json(200, error.body(self.vendor, &self.request_id()), behaviour));
        }
        Ok(SimResponsePlan {
            usage: Some(usage),
            body: SimBody::Whole {
                content_type,
                bytes: answer,
            },
            ..self.json(200, String::new(), behaviour)
        })
    }

    /// Returns the behaviour that the call selects, if the call passes the vendor's checks.
    fn check(&self, parsed: &SimParsedBody) -> Result<Behaviour, SimulatedError> {
        let behaviour = Behaviour::parse(&parsed.turn.user_text)
            .map_err(|fault| SimulatedError::from_bad_marker(&fault))?;
        let is_lenient = behaviour.lenient.unwrap_or(self.server.options.lenient);
        let is_chat = !parsed.turn.is_prompt;
        if let Some(dialect) = self.dialect.filter(|_| !is_lenient && is_chat) {
            dialect.check(&parsed.body)?;
        }
        let is_chat_dialect = self.dialect.is_some() && self.vendor == SimVendor::Chat;
        if !is_lenient && !is_chat_dialect && is_chat {
            let previews = self
                .request
                .headers
                .iter()
                .filter(|(name, _)| name == "anthropic-beta");
            let previews: Vec<&str> = previews.map(|(_, value)| value.as_str()).collect();
            let signed = self.dialect.map(|own| own.sign_thinking(&parsed.body));
            let body = signed.as_ref().unwrap_or(&parsed.body);
            let (model, previews) = (&parsed.turn.model, &previews.join(","));
            checks::SimRequestCheck {
                model,
                body,
                behaviour: &behaviour,
                previews,
            }
            .check(self.vendor)?;
        }
        Ok(behaviour)
    }

    fn count_tokens(&self, parsed: &SimParsedBody) -> Result<SimResponsePlan, SimulatedError> {
        let behaviour = self.check(parsed)?;
        let turn = &parsed.turn;
        if let Some(status) = behaviour.status {
            let problem = SimulatedError::from_marker(self.vendor, status, &behaviour);
            return Ok(self.error_response(&problem, behaviour));
        }
        let count = behaviour.input.unwrap_or(turn.input_tokens);
        Ok(self.json(200, format!(r#"{{"input_tokens":{count}}}"#), behaviour))
    }

    fn error_response(&self, problem: &SimulatedError, behaviour: Behaviour) -> SimResponsePlan {
        let body = match behaviour.error_body {
            ErrorBody::Html => errors::html(problem.status),
            ErrorBody::Empty => String::new(),
            _ => problem.body(self.vendor, &self.request_id()),
        };
        let is_html = behaviour.error_body == ErrorBody::Html;
        let retry_after = behaviour.retry_after;
        let mut plan = self.json(problem.status, body, behaviour);
        if let (true, SimBody::Whole { content_type, .. }) = (is_html, &mut plan.body) {
            *content_type = "text/html";
        }
        if let Some(seconds) = retry_after {
            plan.head.push_str(&format!("retry-after: {seconds}\r\n"));
        }
        if self.vendor == SimVendor::Messages {
            let retry = matches!(problem.status, 408 | 409 | 429 | 500..);
            plan.head.push_str(&format!("x-should-retry: {retry}\r\n"));
        }
        if (300..400).contains(&problem.status) {
            plan.head
                .push_str("location: https://redirected.invalid/\r\n");
        }
        plan
    }

    fn json(&self, status: u16, text: String, behaviour: Behaviour) -> SimResponsePlan {
        let body = SimBody::Whole {
            content_type: "application/json",
            bytes: text.into_bytes(),
        };
        SimResponsePlan {
            status,
            head: self.head(),
            behaviour,
            body,
            usage: None,
        }
    }

    fn check_key(&self) -> Result<(), SimulatedError> {
        if self.dialect.is_some_and(|dialect| dialect.keyless) {
            return Ok(());
        }
        let key = match self.vendor {
            SimVendor::Chat | SimVendor::Responses => self
                .request
                .header("authorization")
                .and_then(|value| value.strip_prefix("Bearer ")),
            SimVendor::Messages => self.request.header("x-api-key"),
        };
        let key = key.filter(|key| !key.is_empty());
        let is_accepted = key.is_some_and(|key| match &self.server.options.keys {
            AcceptedKeys::AnyVendor => !key.starts_with("gw-"),
            AcceptedKeys::Only(keys) => keys.iter().any(|accepted| accepted == key),
        });
        if is_accepted {
            Ok(())
        } else {
            Err(SimulatedError::invalid_key(self.vendor, key))
        }
    }

    fn check_version(&self) -> Result<(), SimulatedError> {
        // Only the vendor that defined the protocol requires a version.
        if self.dialect.is_some() {
            return Ok(());
        }
        let version = self.request.header("anthropic-version");
        match version.or_else(|| self.request.header("compat-version")) {
            Some(_) => Ok(()),
            None => Err(FixedError::MessagesVersion.into()),
        }
    }

    fn request_id(&self) -> String {
        match self.vendor {
            SimVendor::Chat | SimVendor::Responses => format!("req_{}{:016x}", self.serial, 0x51),
            SimVendor::Messages => format!("req_011Sim{}", self.serial),
        }
    }

    /// Returns the header lines of every answer of the vendor.
    fn head(&self) -> String {
        let (id, serial) = (self.request_id(), &self.serial);
        let now = Timestamp::now();
        let date = now.strftime("%a, %d %b %Y %H:%M:%S GMT");
        let shared = format!(
            "date: {date}\r\nserver: cloudflare\r\ncf-ray: {serial}-SIM\r\ncf-cache-status: DYNAMIC\r\n\
             set-cookie: __cf_bm=sim{serial}; path=/; HttpOnly; Secure; SameSite=None\r\n\
             x-robots-tag: none\r\nstrict-transport-security: max-age=31536000; includeSubDomains\r\n"
        );
        match self.vendor {
            SimVendor::Chat | SimVendor::Responses => format!(
                "{shared}x-request-id: {id}\r\nopenai-organization: org-simulated\r\n\
                 openai-project: proj_simulated\r\nopenai-processing-ms: 7\r\nopenai-version: 2020-10-01\r\n\
                 x-ratelimit-limit-requests: 10000\r\nx-ratelimit-limit-tokens: 2000000\r\n\
                 x-ratelimit-remaining-requests: 9999\r\nx-ratelimit-remaining-tokens: 1999000\r\n\
                 x-ratelimit-reset-requests: 6ms\r\nx-ratelimit-reset-tokens: 30ms\r\n\
                 access-control-expose-headers: X-Request-ID\r\nalt-svc: h3=\":443\"; ma=86400\r\n"
            ),
            SimVendor::Messages => {
                let reset = now.strftime("%Y-%m-%dT%H:%M:%SZ");
                format!(
                    "{shared}request-id: {id}\r\nanthropic-organization-id: 00000000-51e0-4000-8000-000000000000\r\n\
                     anthropic-ratelimit-requests-limit: 4000\r\nanthropic-ratelimit-requests-remaining: 3999\r\n\
                     anthropic-ratelimit-requests-reset: {reset}\r\nvia: 1.1 google\r\n"
                )
            }
        }
    }
}

/// Returns the standard path for a dialect's path, because the vendors use different base paths.
fn vendor_path<'a>(path: &'a str, dialect: Option<&Dialect>) -> &'a str {
    match dialect {
        Some(_) if path.ends_with("/chat/completions") => "/v1/chat/completions",
        Some(_) if path.ends_with("/responses") => "/v1/responses",
        Some(_) if path.ends_with("/models") => "/v1/models",
        _ => path,
    }
}

fn vendor_of(request: &SimRequest, path: &str) -> SimVendor {
    let is_messages = path.starts_with("/v1/messages")
        || (!path.starts_with("/v1/chat") && request.header("x-api-key").is_some());
    match path {
        _ if path.ends_with("/responses") => SimVendor::Responses,
        _ if is_messages => SimVendor::Messages,
        _ => SimVendor::Chat,
    }
}

fn models(vendor: SimVendor) -> Value {
    match vendor {
        SimVendor::Chat | SimVendor::Responses => {
            let data = MODELS
                .map(|id| json!({"id": id, "object": "model", "created": MODELS_CREATED_S, "owned_by": "simulator"}));
            json!({"object": "list", "data": data})
        }
        SimVendor::Messages => {
            let data =
                MODELS.map(|id| json!({"type": "model", "id": id, "display_name": id, "created_at": MODELS_CREATED}));
            json!({"data": data, "has_more": false, "first_id": MODELS[0], "last_id": MODELS[2]})
        }
    }
}

/// Returns the first tool, if the request forces the model to call one.
fn required_tool(body: &Value) -> Option<String> {
    let choice = &body["tool_choice"];
    if choice != "required" && choice["type"] != "any" {
        return None;
    }
    let tool = &body["tools"][0];
    let name = tool["function"]["name"].as_str().or(tool["name"].as_str());
    name.map(str::to_owned)
}

/// The content type of a request.
fn content_type(request: &SimRequest) -> &str {
    let mut headers = request.headers.iter();
    let found = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    found.map_or("", |(_, value)| value.as_str())
}
