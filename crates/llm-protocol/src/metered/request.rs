//! Reads what admission needs from the body of a metered request, in one pass that skips the rest,
//! and sets the model's name in it.
//!
//! It must not check what the vendor checks itself, nor build a tree: token ids alone can be
//! 300 000 values.

use super::audio;
use super::content::MeteredContent;
use super::form::{self, FormPart};
use super::table::{MemberRule, MeteredEndpoint, ModelKind, NO_REFERENCE};
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
    /// `None`: the endpoint has a default.
    pub model: Option<String>,
    pub content: MeteredContent,
    /// The model's value, or the place where it is inserted.
    model_span: Span,
    /// The parts of a form; none for JSON.
    parts: Vec<FormPart>,
}

impl MeteredRequest {
    /// Reads a body. `content_type`: that of the request. `values_max`: the most inputs; token ids
    /// do not count.
    ///
    /// # Errors
    /// Returns 400 if the body is not of the endpoint's form, lacks a model or its content, has one
    /// of them twice, or asks for something that the gateway does not serve.
    pub fn read(
        endpoint: &MeteredEndpoint,
        content_type: Option<&str>,
        body: &[u8],
        values_max: u64,
    ) -> Result<Self, Failure> {
        match endpoint.is_form {
            true => Self::read_form(endpoint, content_type, body),
            false => Self::read_json(endpoint, body, values_max),
        }
    }

    fn read_form(
        endpoint: &MeteredEndpoint,
        content_type: Option<&str>,
        body: &[u8],
    ) -> Result<Self, Failure> {
        let parts = form::split(content_type, body)?;
        let mut reader = Reader::new(endpoint, u64::MAX, Span::default());
        for part in &parts {
            let value = body.get(part.value.start..part.value.end);
            let outcome = reader.part_of_form(part, value.unwrap_or_default());
            outcome.map_err(|refused| failure(refused, u64::MAX))?;
        }
        let request = reader.finish()?;
        Ok(MeteredRequest { parts, ..request })
    }

    /// Returns the parts of a form without its boundary, which differs each time that a client
    /// sends the form; `None` for JSON.
    pub fn parts_of_form(&self, body: &[u8]) -> Option<Vec<u8>> {
        if self.parts.is_empty() {
            return None;
        }
        let mut parts = Vec::with_capacity(body.len());
        for part in &self.parts {
            let value = body.get(part.value.start..part.value.end);
            for bytes in [part.name.as_bytes(), value.unwrap_or_default()] {
                parts.extend_from_slice(&bytes.len().to_le_bytes());
                parts.extend_from_slice(bytes);
            }
        }
        Some(parts)
    }

    fn read_json(
        endpoint: &MeteredEndpoint,
        body: &[u8],
        values_max: u64,
    ) -> Result<Self, Failure> {
        let text = std::str::from_utf8(body).map_err(|fault| invalid_json(fault.valid_up_to()))?;
        let mut scan = JsonScanner::new(text, MAX_DEPTH);
        if scan.kind() != Ok(JsonKind::Object) {
            return Err(match scan.skip().and_then(|()| scan.end()) {
                Ok(()) => Failure::body_is_no_object(),
                Err(broken) => scan_failure(broken, values_max),
            });
        }
        let place = Span::at(scan.position().saturating_add(1));
        let mut reader = Reader::new(endpoint, values_max, place);
        scan.object(|scan, key| reader.member(scan, &key.name()))
            .and_then(|()| scan.end().map_err(RequestParseError::Broken))
            .map_err(|refused| failure(refused, values_max))?;
        reader.finish()
    }

    /// Returns the body with the vendor's own name of the model; every other byte stays.
    pub fn with_model(&self, body: &Bytes, upstream_model: &str) -> Bytes {
        if self.model.as_deref() == Some(upstream_model) {
            return body.clone();
        }
        let mut name = match self.parts.is_empty() {
            true => edit::json_string(upstream_model),
            false => upstream_model.to_owned(),
        };
        if self.model_span.start == self.model_span.end {
            // The body has content, so that a member follows.
            name = format!("\"model\":{name},");
        }
        let mut rewritten = Vec::with_capacity(body.len().saturating_add(name.len()));
        let mut edits = [JsonEdit::new(self.model_span, name)];
        edit::apply_edits(body, &mut edits, &mut rewritten);
        Bytes::from(rewritten)
    }
}

struct Reader<'e> {
    endpoint: &'e MeteredEndpoint,
    values_max: u64,
    model: Option<String>,
    model_span: Span,
    /// Which members of the row have occurred.
    seen: Vec<bool>,
    content: MeteredContent,
}

impl<'e> Reader<'e> {
    fn new(endpoint: &'e MeteredEndpoint, values_max: u64, model_span: Span) -> Self {
        Self {
            endpoint,
            values_max,
            model: None,
            model_span,
            seen: vec![false; endpoint.members().len()],
            content: MeteredContent::default(),
        }
    }

    /// Reads a part of a form by the rule of its name.
    fn part_of_form(&mut self, part: &FormPart, value: &[u8]) -> ParseResult {
        let name = part.name.as_str();
        self.check_spelling(name)?;
        let size = u64::try_from(value.len()).unwrap_or(u64::MAX);
        let text = || {
            let text = std::str::from_utf8(value).ok().filter(|_| !part.is_file);
            text.ok_or_else(|| wrong_type(name, "a text"))
        };
        if name == "model" {
            if self.model.is_some() {
                return Err(refuse(name, TWICE));
            }
            self.model = Some(text()?.to_owned());
            self.model_span = part.value;
            return Ok(());
        }
        let plain = name.strip_suffix("[]").unwrap_or(name);
        let members = self.endpoint.members().iter().zip(&mut self.seen);
        let Some(((_, rule), seen)) = members.into_iter().find(|((known, _), _)| *known == plain)
        else {
            return match self.endpoint.counts_outputs(name, !part.is_file) {
                true => Err(refuse(name, OTHER_COUNT)),
                false if part.is_file || !self.may_refer(name) => Ok(()),
                false => self.media(name, name, text()?),
            };
        };
        let was_seen = std::mem::replace(seen, true);
        match rule {
            MemberRule::Files | MemberRule::OptionalFile => {
                if !part.is_file {
                    return Err(wrong_type(name, "a file"));
                }
                let is_audio = self.endpoint.kind == ModelKind::Transcription;
                if was_seen && is_audio {
                    return Err(refuse(name, TWICE));
                }
                if is_audio {
                    self.content.audio = audio::length(value);
                }
                self.content.file_bytes = self.content.file_bytes.saturating_add(size);
                Ok(())
            }
            _ if was_seen => Err(refuse(name, TWICE)),
            rule => self.text(rule, name, Some(text()?)),
        }
    }

    /// Reads a text by a rule that does not depend on the form of the body.
    fn text(&mut self, rule: &MemberRule, name: &str, text: Option<&str>) -> ParseResult {
        match rule {
            MemberRule::Refused(why) => return Err(refuse(name, why)),
            MemberRule::OneOf(allowed) => return one_of(name, allowed, text),
            MemberRule::Outputs => {
                return self.outputs(name, text.and_then(|text| text.trim().parse().ok()));
            }
            _ => {}
        }
        let text = text.ok_or_else(|| wrong_type(name, "a string"))?;
        let size = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        match rule {
            MemberRule::Query => self.content.query = size(text.len()),
            MemberRule::Spoken => self.content.characters = size(text.chars().count()).max(1),
            MemberRule::Prompt | MemberRule::Hint => return self.push(size(text.len())),
            _ => {}
        }
        Ok(())
    }

    fn outputs(&mut self, name: &str, count: Option<u64>) -> ParseResult {
        let count = count.filter(|count| (1..=MAX_OUTPUTS).contains(count));
        let message = format!("Expected a whole number from 1 to {MAX_OUTPUTS}.");
        self.content.outputs = Some(count.ok_or_else(|| refuse(name, &message))?);
        Ok(())
    }

    fn member(&mut self, scan: &mut JsonScanner<'_>, name: &str) -> ParseResult {
        self.check_spelling(name)?;
        if name == "model" {
            return self.model(scan);
        }
        let members = self.endpoint.members().iter().zip(&mut self.seen);
        let Some(((_, rule), seen)) = members.into_iter().find(|((known, _), _)| *known == name)
        else {
            self.check_count(name, name, scan.kind()?)?;
            if self.may_refer(name) {
                return self.media_in(scan, name, name);
            }
            return Ok(scan.skip()?);
        };
        if std::mem::replace(seen, true) {
            return Err(refuse(name, TWICE));
        }
        if scan.kind()? == JsonKind::Null {
            *seen = false;
            return Ok(scan.skip()?);
        }
        match rule {
            MemberRule::Inputs | MemberRule::InputLists | MemberRule::Parts => {
                self.inputs(scan, name, rule)
            }
            MemberRule::Documents => {
                if scan.kind()? != JsonKind::Array {
                    return Err(wrong_type(name, DOCUMENTS));
                }
                scan.array(|scan| self.document(scan, name))
            }
            MemberRule::Name if scan.kind()? == JsonKind::String => self.media_in(scan, name, name),
            MemberRule::Files | MemberRule::OptionalFile => Err(wrong_type(name, "a file")),
            MemberRule::Outputs => {
                let span = scan.skip_span()?;
                self.text(rule, name, Some(scan.text_from(span.start)))
            }
            rule => {
                let text = scan.string_or_skip()?.and_then(|text| text.value());
                self.text(rule, name, text.as_deref())
            }
        }
    }

    /// Refuses a number of images beside `n`. `key`: its own name, in the member `name`.
    fn check_count(&self, key: &str, name: &str, kind: JsonKind) -> ParseResult {
        let is_number = kind == JsonKind::Number;
        match kind != JsonKind::Null && self.endpoint.counts_outputs(key, is_number) {
            true => Err(refuse(name, OTHER_COUNT)),
            false => Ok(()),
        }
    }

    /// Whether the vendor may fetch what a member names that no rule is for.
    fn may_refer(&self, name: &str) -> bool {
        let kinds = [
            ModelKind::Image,
            ModelKind::Speech,
            ModelKind::Transcription,
        ];
        kinds.contains(&self.endpoint.kind) && !OF_THE_CALLER.contains(&name)
    }

    /// Reads the texts in a member that may name media. `key`: the innermost name of the value.
    fn media_in(&mut self, scan: &mut JsonScanner<'_>, name: &str, key: &str) -> ParseResult {
        match scan.kind()? {
            JsonKind::String => {
                let text = scan.string()?;
                self.media(name, key, text.value().as_deref().unwrap_or_default())
            }
            JsonKind::Array => scan.array(|scan| self.media_in(scan, name, key)),
            JsonKind::Object => scan.object(|scan, key| {
                let key = key.name();
                self.check_count(&key, name, scan.kind()?)?;
                self.media_in(scan, name, &key)
            }),
            _ => Ok(scan.skip()?),
        }
    }

    /// Refuses media at another place, and counts those that are in the request.
    fn media(&mut self, name: &str, key: &str, text: &str) -> ParseResult {
        let begin = text.as_bytes().get(..SCHEME_BYTES.min(text.len()));
        let has_scheme = begin.is_some_and(|begin| begin.windows(3).any(|part| part == b"://"));
        if has_scheme || key.ends_with("file_id") {
            return Err(refuse(name, NO_REFERENCE));
        }
        let is_coded = text.len() >= MIN_MEDIA_BYTES && !text.contains(' ');
        if text.starts_with("data:") || is_coded {
            let size = u64::try_from(text.len()).unwrap_or(u64::MAX);
            self.content.file_bytes = self.content.file_bytes.saturating_add(size);
        }
        Ok(())
    }

    /// Refuses a member that differs from a known one only in case: some servers ignore case.
    fn check_spelling(&self, name: &str) -> ParseResult {
        let members = self.endpoint.members().iter().map(|(known, _)| *known);
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
        if self.model_span.start < self.model_span.end {
            return Err(refuse("model", TWICE));
        }
        if scan.kind()? == JsonKind::Null {
            self.model_span = scan.skip_span()?;
            return Ok(());
        }
        let token = scan.string_or_skip()?;
        let Some(name) = token.as_ref().and_then(StringToken::value) else {
            return Err(wrong_type("model", "a string"));
        };
        self.model = Some(name.into_owned());
        self.model_span = token.map(|token| token.span).unwrap_or_default();
        Ok(())
    }

    /// Reads a document: a text, or an object whose texts the vendor joins.
    fn document(&mut self, scan: &mut JsonScanner<'_>, name: &str) -> ParseResult {
        match scan.kind()? {
            JsonKind::String => self.push_text(scan),
            JsonKind::Object => {
                let start = scan.position();
                scan.object(|scan, key| {
                    let member = key.name().to_ascii_lowercase();
                    let is_media = MEDIA.iter().any(|media| member.contains(media));
                    match scan.kind()? {
                        _ if is_media => Err(refuse(name, MEDIA_REFUSED)),
                        // A list or an object can hold an image in forms of a vendor's own.
                        JsonKind::Array | JsonKind::Object => Err(refuse(name, MEDIA_REFUSED)),
                        _ => ParseResult::Ok(scan.skip()?),
                    }
                })?;
                // Names and marks count too, because a vendor may write them between the texts.
                let bytes = scan.position().saturating_sub(start);
                self.push(u64::try_from(bytes).unwrap_or(u64::MAX))
            }
            _ => Err(wrong_type(name, DOCUMENTS)),
        }
    }

    /// Reads one part of a moderation: `{"type":"text","text":…}`, or an image as a data URL. Any
    /// other form is refused, because the gateway cannot tell what a vendor counts for it.
    fn part(&mut self, scan: &mut JsonScanner<'_>, name: &str) -> ParseResult {
        let mut is_read = false;
        scan.object(|scan, key| match &*key.name() {
            "type" => Ok(scan.skip()?),
            "text" if !std::mem::replace(&mut is_read, true) => match scan.string_or_skip()? {
                Some(text) => self.push(text.decoded_bytes()),
                None => Err(wrong_type(name, PARTS)),
            },
            "image_url" if !std::mem::replace(&mut is_read, true) => self.image(scan, name),
            _ => Err(wrong_type(name, PARTS)),
        })?;
        match is_read {
            true => Ok(()),
            false => Err(wrong_type(name, PARTS)),
        }
    }

    fn image(&mut self, scan: &mut JsonScanner<'_>, name: &str) -> ParseResult {
        if scan.kind()? != JsonKind::Object {
            return Err(wrong_type(name, PARTS));
        }
        self.content.images = self.content.images.saturating_add(1);
        let mut has_data = false;
        scan.object(|scan, key| {
            if key.name() != "url" {
                return Err(wrong_type(name, PARTS));
            }
            let url = scan.string_or_skip()?;
            has_data = url.is_some_and(|url| url.name().starts_with("data:"));
            match has_data {
                true => Ok(()),
                false => Err(refuse(name, "Send images as data URLs.")),
            }
        })?;
        match has_data {
            true => Ok(()),
            false => Err(wrong_type(name, PARTS)),
        }
    }

    fn inputs(&mut self, scan: &mut JsonScanner<'_>, name: &str, rule: &MemberRule) -> ParseResult {
        let takes_parts = matches!(rule, MemberRule::Parts);
        let takes_lists = matches!(rule, MemberRule::InputLists);
        match scan.kind()? {
            JsonKind::String => self.push_text(scan),
            JsonKind::Array => {
                let mut ids = 0_u64;
                scan.array(|scan| match scan.kind()? {
                    JsonKind::Number => {
                        ids = ids.saturating_add(1);
                        Ok(scan.skip()?)
                    }
                    JsonKind::Array if takes_lists => {
                        scan.array(|scan| match scan.string_or_skip()? {
                            Some(text) => self.push(text.decoded_bytes()),
                            None => Err(wrong_type(name, LISTS)),
                        })
                    }
                    JsonKind::Array => self.token_ids(scan, name),
                    JsonKind::Object if takes_parts => self.part(scan, name),
                    JsonKind::String => self.push_text(scan),
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

    fn push_text(&mut self, scan: &mut JsonScanner<'_>) -> ParseResult {
        let text = scan.string()?;
        self.push(text.decoded_bytes())
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
        let model = self.model.filter(|model| !model.is_empty());
        if model.is_none() && !self.endpoint.has_default_model {
            return Err(missing("model"));
        }
        for ((name, rule), seen) in self.endpoint.members().iter().zip(&self.seen) {
            let is_optional = matches!(
                rule,
                MemberRule::Hint
                    | MemberRule::OptionalFile
                    | MemberRule::Outputs
                    | MemberRule::Name
                    | MemberRule::OneOf(_)
                    | MemberRule::Refused(_)
            );
            if !is_optional && !seen {
                return Err(missing(name));
            }
        }
        Ok(MeteredRequest {
            model,
            content: self.content,
            model_span: self.model_span,
            parts: Vec::new(),
        })
    }
}

/// The most images that one request may ask for. Source: `ImageGenerateParams` of openai 3.57 for
/// Python.
const MAX_OUTPUTS: u64 = 10;

const OTHER_COUNT: &str = "Say the number of images as 'n': the gateway cannot bill another one.";

const TWICE: &str = "This member occurs more than once.";

fn one_of(name: &str, allowed: &str, value: Option<&str>) -> ParseResult {
    match value.is_some_and(|value| allowed.split(' ').any(|word| word == value)) {
        true => Ok(()),
        false => Err(refuse(
            name,
            &format!("Expected one of: {}.", allowed.replace(' ', ", ")),
        )),
    }
}

const INPUTS: &str = "a string, an array of strings, or arrays of token ids";

const LISTS: &str = "lists of strings";

/// Parts of the names of members whose value a vendor may fetch or count as more than text.
const MEDIA: [&str; 7] = ["image", "url", "uri", "pdf", "file", "audio", "video"];

/// Members that say who asks, which no vendor fetches.
const OF_THE_CALLER: [&str; 3] = ["user", "safety_identifier", "metadata"];

/// The least size of an image as text: a PNG of one pixel has 67 bytes, 92 in base64.
const MIN_MEDIA_BYTES: usize = 80;

/// The bytes of an address that hold its scheme.
const SCHEME_BYTES: usize = 16;

const MEDIA_REFUSED: &str =
    "Documents with images or other media are not supported: send objects with texts.";

const PARTS: &str = "a string, or parts of the type `text` or `image_url`";

const DOCUMENTS: &str = "an array of strings, or of objects with texts";

fn failure(refused: RequestParseError, values_max: u64) -> Failure {
    match refused {
        RequestParseError::Refused(failure) => *failure,
        RequestParseError::Broken(broken) => scan_failure(broken, values_max),
    }
}

fn wrong_type(name: &str, expected: &str) -> RequestParseError {
    refuse(
        name,
        &format!("Invalid type for '{name}': expected {expected}."),
    )
}

fn refuse(name: &str, message: &str) -> RequestParseError {
    RequestParseError::Refused(Failure::invalid_param(Protocol::Chat, name, message).into())
}
