//! Reads what admission needs from the body of a metered request, in one skipping pass, and sets
//! the model's name in it.
//!
//! It must not check what the vendor checks itself, nor build a tree: token ids alone can be
//! 300 000 values.

use super::content::MeteredContent;
use super::table::{MemberRule, MeteredEndpoint};
use crate::Protocol;
use crate::failure::Failure;
use crate::json::edit::{self, JsonEdit};
use crate::json::scanner::StringToken;
use crate::json::{JsonError, JsonKind, JsonScanner, MAX_DEPTH, Span};
use crate::request::{ParseResult, RequestParseError, invalid_json, scan_failure};
use bytes::Bytes;

/// What a body asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeteredRequest {
    pub model: String,
    pub content: MeteredContent,
    model_span: Span,
}

impl MeteredRequest {
    /// Reads a body. `values_max`: the most inputs; token ids do not count.
    ///
    /// # Errors
    /// Returns 400 if the body is not a JSON object, lacks a model or its content, has one of them
    /// twice, or asks for something that the gateway does not serve.
    pub fn read(endpoint: &MeteredEndpoint, body: &[u8], values_max: u64) -> Result<Self, Failure> {
        let text = std::str::from_utf8(body).map_err(|fault| invalid_json(fault.valid_up_to()))?;
        let mut scan = JsonScanner::new(text, MAX_DEPTH);
        if scan.kind() != Ok(JsonKind::Object) {
            return Err(match scan.skip().and_then(|()| scan.end()) {
                Ok(()) => Failure::body_is_no_object(),
                Err(broken) => scan_failure(broken, values_max),
            });
        }
        let mut reader = Reader {
            endpoint,
            values_max,
            model: None,
            seen: vec![false; endpoint.members.len()],
            content: MeteredContent::default(),
        };
        let outcome = scan
            .object(|scan, key| reader.member(scan, &key.name()))
            .and_then(|()| scan.end().map_err(RequestParseError::Broken));
        match outcome {
            Ok(()) => reader.finish(),
            Err(RequestParseError::Broken(broken)) => Err(scan_failure(broken, values_max)),
            Err(RequestParseError::Refused(failure)) => Err(*failure),
        }
    }

    /// Returns the body with the vendor's own name of the model; every other byte stays.
    pub fn with_model(&self, body: &Bytes, upstream_model: &str) -> Bytes {
        if self.model == upstream_model {
            return body.clone();
        }
        let name = edit::json_string(upstream_model);
        let mut rewritten = Vec::with_capacity(body.len().saturating_add(name.len()));
        let mut edits = [JsonEdit::new(self.model_span, name)];
        edit::apply_edits(body, &mut edits, &mut rewritten);
        Bytes::from(rewritten)
    }
}

struct Reader<'e> {
    endpoint: &'e MeteredEndpoint,
    values_max: u64,
    model: Option<(String, Span)>,
    /// Which members of the row have occurred.
    seen: Vec<bool>,
    content: MeteredContent,
}

impl Reader<'_> {
    fn member(&mut self, scan: &mut JsonScanner<'_>, name: &str) -> ParseResult {
        self.check_spelling(name)?;
        if name == "model" {
            return self.model(scan);
        }
        let members = self.endpoint.members.iter().zip(&mut self.seen);
        let Some(((_, rule), seen)) = members.into_iter().find(|((known, _), _)| *known == name)
        else {
            return Ok(scan.skip()?);
        };
        if std::mem::replace(seen, true) {
            return Err(refuse(name, "This member occurs more than once."));
        }
        if scan.kind()? == JsonKind::Null {
            *seen = false;
            return Ok(scan.skip()?);
        }
        match rule {
            MemberRule::Inputs => self.inputs(scan, name),
            MemberRule::OneOf(allowed) => {
                let value = scan.string_or_skip()?.map(|value| value.name());
                match value.is_some_and(|value| allowed.contains(&&*value)) {
                    true => Ok(()),
                    false => Err(refuse(
                        name,
                        &format!("Expected one of: {}.", allowed.join(", ")),
                    )),
                }
            }
            MemberRule::Refused(why) => Err(refuse(name, why)),
        }
    }

    /// Refuses a member that differs from a known one only in case: some servers ignore case.
    fn check_spelling(&self, name: &str) -> ParseResult {
        let members = self.endpoint.members.iter().map(|(known, _)| *known);
        let known = std::iter::once("model").chain(members);
        let mut alike = known.filter(|known| known.eq_ignore_ascii_case(name) && *known != name);
        match alike.next() {
            None => Ok(()),
            Some(known) => Err(refuse(
                name,
                &format!("Unknown member; did you mean '{known}'?"),
            )),
        }
    }

    fn model(&mut self, scan: &mut JsonScanner<'_>) -> ParseResult {
        if self.model.is_some() {
            return Err(refuse("model", "This member occurs more than once."));
        }
        let token = scan.string_or_skip()?;
        let Some(name) = token.as_ref().and_then(StringToken::value) else {
            return Err(wrong_type("model", "a string"));
        };
        let span = token.map(|token| token.span).unwrap_or_default();
        self.model = Some((name.into_owned(), span));
        Ok(())
    }

    fn inputs(&mut self, scan: &mut JsonScanner<'_>, name: &str) -> ParseResult {
        match scan.kind()? {
            JsonKind::String => {
                let text = scan.string()?;
                self.push(text.decoded_bytes())
            }
            JsonKind::Array => {
                let mut ids = 0_u64;
                scan.array(|scan| match scan.kind()? {
                    JsonKind::Number => {
                        ids = ids.saturating_add(1);
                        Ok(scan.skip()?)
                    }
                    JsonKind::Array => self.token_ids(scan, name),
                    JsonKind::String => {
                        let text = scan.string()?;
                        self.push(text.decoded_bytes())
                    }
                    _ => Err(wrong_type(name, INPUTS)),
                })?;
                self.push_ids(ids)
            }
            _ => Err(wrong_type(name, INPUTS)),
        }
    }

    /// Reads one input that is an array of token ids.
    fn token_ids(&mut self, scan: &mut JsonScanner<'_>, name: &str) -> ParseResult {
        let mut ids = 0_u64;
        scan.array(|scan| {
            if scan.kind()? != JsonKind::Number {
                return Err(wrong_type(name, INPUTS));
            }
            ids = ids.saturating_add(1);
            ParseResult::Ok(scan.skip()?)
        })?;
        self.push_ids(ids)
    }

    fn push_ids(&mut self, ids: u64) -> ParseResult {
        if ids == 0 {
            return Ok(());
        }
        self.content.token_ids = self.content.token_ids.saturating_add(ids);
        self.push(ids)
    }

    fn push(&mut self, size: u64) -> ParseResult {
        self.content.sizes.push(size);
        match u64::try_from(self.content.sizes.len()) {
            Ok(count) if count <= self.values_max => Ok(()),
            _ => Err(JsonError::TooManyValues.into()),
        }
    }

    fn finish(self) -> Result<MeteredRequest, Failure> {
        let missing = |name: &str| {
            let message = format!("Missing required parameter: '{name}'.");
            Failure::invalid_param(Protocol::Chat, name, message)
                .with_code("missing_required_parameter")
        };
        let Some((model, model_span)) = self.model.filter(|(model, _)| !model.is_empty()) else {
            return Err(missing("model"));
        };
        for ((name, rule), seen) in self.endpoint.members.iter().zip(&self.seen) {
            if matches!(rule, MemberRule::Inputs) && !seen {
                return Err(missing(name));
            }
        }
        Ok(MeteredRequest {
            model,
            content: self.content,
            model_span,
        })
    }
}

const INPUTS: &str = "a string, an array of strings, or arrays of token ids";

fn wrong_type(name: &str, expected: &str) -> RequestParseError {
    refuse(
        name,
        &format!("Invalid type for '{name}': expected {expected}."),
    )
}

fn refuse(name: &str, message: &str) -> RequestParseError {
    RequestParseError::Refused(Failure::invalid_param(Protocol::Chat, name, message).into())
}
