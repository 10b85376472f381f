//! Finds references to objects in the operator's account at a vendor: files, containers, threads,
//! stored responses.
//!
//! The vendor returns such an object to anyone who uses the operator's credentials, so one account
//! could read another account's files. The gateway records no ownership, so it refuses every
//! reference. This module has the names of the members and the texts of the refusals;
//! `request/features/read.rs` decides where a member counts. It must ignore schemas, tool arguments
//! and texts, where the same names are data.
//!
//! Read next: `request/features.rs`.

use super::member_name::is_same_name;
use crate::Protocol;
use crate::failure::{Failure, Kind as FailureKind};
use crate::json::{JsonKind, JsonScanner, MAX_DEPTH, ScanResult};

/// Maximum length in bytes of a member's path in a refusal.
const MAX_PATH_BYTES: usize = 256;

/// A kind of object in the vendor account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VendorObject {
    File,
    Container,
    Thread,
    /// An earlier response, referenced as a whole.
    Response,
    Conversation,
    PromptTemplate,
    VectorStore,
    Skill,
    Assistant,
    /// Audio of an earlier answer.
    Audio,
    /// Content that was stored in the vendor's cache before the request.
    CachedContent,
    /// Request settings, or a part of them, stored at the vendor.
    Preset,
    /// An answer that the vendor stores for later retrieval.
    DeferredAnswer,
    /// Cache blocks on another of the operator's machines.
    CacheTransfer,
    /// A file named by its address in the vendor's storage.
    StoredFile,
}

/// A reference in a body, and the position of its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VendorReference {
    pub object: VendorObject,
    at: usize,
}

/// Top-level members with references that only some compatible vendors support.
const COMPATIBLE_MEMBERS: [(&str, VendorObject); 3] = [
    // OpenRouter documents this member in docs/features/presets.
    ("preset", VendorObject::Preset),
    // xAI documents this member in docs/guides/deferred-chat-completions.
    ("deferred", VendorObject::DeferredAnswer),
    // vLLM documents this member in docs/features/disagg_prefill.
    ("kv_transfer_params", VendorObject::CacheTransfer),
];

impl VendorObject {
    /// Returns the object type to which a member of this name refers, at any level. The comparison
    /// ignores case, because some servers do.
    pub(super) fn from_member(name: &str) -> Option<Self> {
        const NAMES: [(&str, VendorObject); 8] = [
            ("file_id", VendorObject::File),
            ("file_ids", VendorObject::File),
            ("container_id", VendorObject::Container),
            ("previous_response_id", VendorObject::Response),
            ("comparison_response_id", VendorObject::Response),
            ("vector_store_id", VendorObject::VectorStore),
            ("vector_store_ids", VendorObject::VectorStore),
            ("skill_id", VendorObject::Skill),
        ];
        // All names end in "d", "s" or "t". This check rejects most members of a body.
        match name.as_bytes().last() {
            Some(b'd' | b'D' | b's' | b'S') => find(&NAMES, name),
            // Gemini documents this member as `extra_body.google.cached_content` ("OpenAI
            // compatibility") and as `cachedContent` ("generateContent").
            Some(b't' | b'T') if is_same_name("cached_content", name) => Some(Self::CachedContent),
            _ => None,
        }
    }

    /// Returns the object type to which a top-level value refers, if the value is an object.
    pub(super) fn from_value(protocol: Protocol, name: &str, kind: JsonKind) -> Option<Self> {
        let is_template = protocol == Protocol::Chat
            && kind == JsonKind::Object
            && name.eq_ignore_ascii_case("prompt");
        is_template.then_some(Self::PromptTemplate)
    }

    /// Returns the object type to which a top-level member refers.
    pub(super) fn from_top_level_member(protocol: Protocol, name: &str) -> Option<Self> {
        const NAMES: [(&str, VendorObject); 6] = [
            ("thread", VendorObject::Thread),
            ("thread_id", VendorObject::Thread),
            ("previous_message_id", VendorObject::Thread),
            ("conversation", VendorObject::Conversation),
            ("conversation_id", VendorObject::Conversation),
            ("assistant_id", VendorObject::Assistant),
        ];
        // In other protocols, `prompt` may be a text.
        if protocol == Protocol::Responses && name.eq_ignore_ascii_case("prompt") {
            return Some(Self::PromptTemplate);
        }
        // With the exact spelling of the protocol, the member may be an object without an id, which
        // `record_container` handles.
        if name != "container" && name.eq_ignore_ascii_case("container") {
            return Some(Self::Container);
        }
        let of_compatible_vendors = || {
            COMPATIBLE_MEMBERS
                .iter()
                .find(|(known, _)| is_same_name(known, name))
                .map(|(_, object)| *object)
        };
        find(&NAMES, name)
            .or_else(|| Self::from_member(name))
            .or_else(of_compatible_vendors)
    }

    fn message(self, field: &str, id: &str) -> String {
        let what = match self {
            Self::Response => {
                return format!(
                    "Previous response with id '{id}' not found. This endpoint keeps no responses: send the whole \
                     conversation in 'input' with store=false."
                );
            }
            Self::Conversation => {
                "Conversations are not available on this endpoint; send the whole conversation."
            }
            Self::PromptTemplate => "Prompt templates are not available on this endpoint.",
            Self::File => "is not available on this endpoint; send the data instead.",
            Self::Container => {
                "is not available on this endpoint: every request gets a container of its own."
            }
            Self::VectorStore => "is not available on this endpoint; send the documents instead.",
            Self::Skill => {
                "is not available on this endpoint: only skills of the vendor's own can be used."
            }
            Self::Assistant => {
                "is not available on this endpoint; send its instructions and tools instead."
            }
            Self::Audio => {
                "of an earlier answer is not available on this endpoint; send its transcript as text."
            }
            Self::Thread => "is not available on this endpoint; send the whole conversation.",
            Self::CachedContent => "is not available on this endpoint; send the content itself.",
            Self::Preset => "is not available on this endpoint; send its settings instead.",
            Self::DeferredAnswer => {
                "is not available on this endpoint; wait for the answer, or stream it."
            }
            Self::CacheTransfer => "is not available on this endpoint.",
            Self::StoredFile => {
                "must be an https address or a data URL: the vendor's storage is not available here."
            }
        };
        match self {
            Self::Conversation | Self::PromptTemplate => what.to_owned(),
            _ => format!("{field} {what}"),
        }
    }
}

fn find(names: &[(&str, VendorObject)], name: &str) -> Option<VendorObject> {
    names
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, object)| *object)
}

impl VendorReference {
    /// Builds the refusal, which names the member. `text` is the body with the reference.
    pub(super) fn to_failure(self, surface: Protocol, text: &str) -> Failure {
        let mut path = String::new();
        // The scan cannot fail, because the body was scanned before.
        let _ = find_path(&mut JsonScanner::new(text, MAX_DEPTH), self.at, &mut path);
        if self.object == VendorObject::Thread {
            return Failure::from_kind(FailureKind::ThreadUnsupported).with_param(path);
        }
        let field = path.rsplit('.').next().unwrap_or_default();
        let field = field.split('[').next().unwrap_or_default();
        let id = id_at(text, self.at);
        let failure = Failure::invalid_param(surface, &path, self.object.message(field, &id));
        failure.with_code(match self.object {
            VendorObject::Response => "previous_response_not_found",
            VendorObject::Conversation
            | VendorObject::PromptTemplate
            | VendorObject::CachedContent
            | VendorObject::Preset
            | VendorObject::DeferredAnswer
            | VendorObject::CacheTransfer => "unsupported_parameter",
            _ => "unsupported_value",
        })
    }
}

/// The first reference in a body, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FirstReference(pub(super) Option<VendorReference>);

impl FirstReference {
    /// Adds a reference found later, which counts only if there was none.
    pub(super) fn add(&mut self, later: Self) {
        self.0 = self.0.or(later.0);
    }

    /// Records a reference if the vendor reads the file URL at `at` with the operator's
    /// credentials.
    pub(super) fn record_storage_url(&mut self, address: &str, at: usize) {
        if is_vendor_storage(address) && self.0.is_none() {
            self.0 = Some(VendorReference {
                object: VendorObject::StoredFile,
                at,
            });
        }
    }

    /// Consumes the next value and records a reference to `object`. Null, false and an empty list
    /// are no reference.
    pub(super) fn record(
        &mut self,
        object: VendorObject,
        scan: &mut JsonScanner<'_>,
    ) -> ScanResult {
        let kind = scan.kind()?;
        let at = scan.position();
        let mut is_present = !matches!(kind, JsonKind::Null | JsonKind::False | JsonKind::Array);
        if kind == JsonKind::Array {
            scan.array(|scan| {
                is_present = true;
                scan.skip()
            })?;
        } else {
            scan.skip()?;
        }
        // A thread takes precedence: after its refusal the client resends the whole conversation,
        // which may be valid.
        let is_first = self
            .0
            .is_none_or(|first| object == VendorObject::Thread && first.object != object);
        if is_present && is_first {
            self.0 = Some(VendorReference { object, at });
        }
        Ok(())
    }

    /// Records the references in a value that is neither a message nor a tool, such as a tool's
    /// environment.
    pub(super) fn scan(&mut self, scan: &mut JsonScanner<'_>) -> ScanResult {
        match scan.kind()? {
            JsonKind::Array => scan.array(|scan| self.scan(scan)),
            JsonKind::Object => {
                let (mut is_public, mut skill) = (false, FirstReference::default());
                scan.object(|scan, key| {
                    let name = key.name();
                    match VendorObject::from_member(&name) {
                        // A skill that the vendor offers to everybody does not belong to the
                        // account.
                        Some(VendorObject::Skill) => skill.record(VendorObject::Skill, scan),
                        Some(object) => self.record(object, scan),
                        None if is_client_data(&name) => scan.skip(),
                        None if name == "type" => {
                            let kind = scan.string_or_skip()?;
                            is_public = kind.is_some_and(|kind| kind.name() == "anthropic");
                            Ok(())
                        }
                        None => self.scan(scan),
                    }
                })?;
                if !is_public {
                    self.add(skill);
                }
                Ok(())
            }
            _ => scan.skip(),
        }
    }

    /// Reads the container of a request or a tool. The value is an id, or an object that may
    /// contain an id.
    pub(super) fn record_container(&mut self, scan: &mut JsonScanner<'_>) -> ScanResult {
        match scan.kind()? {
            JsonKind::Object => scan.object(|scan, key| match key.name().as_ref() {
                "id" => self.record(VendorObject::Container, scan),
                name => match VendorObject::from_member(name) {
                    Some(object) => self.record(object, scan),
                    None => self.scan(scan),
                },
            }),
            _ => self.record(VendorObject::Container, scan),
        }
    }
}

/// Returns whether the URL names the vendor's own storage (`gs://`, `s3://`) or machine
/// (`file://`). Every scheme except http and https counts as such. Gemini's files also count: the
/// vendor reads their https URLs without a key of the client.
fn is_vendor_storage(address: &str) -> bool {
    let Some((scheme, rest)) = address.trim_start().split_once("://") else {
        return false;
    };
    // The data of a data URL begins after a comma.
    if scheme.contains(',') {
        return false;
    }
    if !scheme.eq_ignore_ascii_case("https") && !scheme.eq_ignore_ascii_case("http") {
        return true;
    }
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let host = host
        .split(':')
        .next()
        .unwrap_or_default()
        .trim_end_matches('.');
    host.eq_ignore_ascii_case("generativelanguage.googleapis.com")
}

/// Returns whether the member holds the client's own data, at any level.
pub(super) fn is_client_data(name: &str) -> bool {
    matches!(
        name,
        "input"
            | "arguments"
            | "metadata"
            | "env"
            | "headers"
            | "schema"
            | "json_schema"
            | "input_schema"
            | "output_schema"
            | "parameters"
            | "input_examples"
            | "structured_content"
            | "structuredContent"
    )
}

/// Appends the path of the value at `target` to `path`. Returns false and restores `path` if the
/// next value does not contain it.
fn find_path(scan: &mut JsonScanner<'_>, target: usize, path: &mut String) -> ScanResult<bool> {
    let kind = scan.kind()?;
    if scan.position() == target {
        scan.skip()?;
        return Ok(true);
    }
    let (parent, mut is_found, mut index) = (path.len(), false, 0_usize);
    let mut step = |scan: &mut JsonScanner<'_>, name: &str| {
        if is_found || parent.saturating_add(name.len()) > MAX_PATH_BYTES {
            return scan.skip();
        }
        path.push_str(name);
        is_found = find_path(scan, target, path)?;
        if !is_found {
            path.truncate(parent);
        }
        ScanResult::Ok(())
    };
    match kind {
        JsonKind::Object => scan.object(|scan, key| {
            let dot = if parent == 0 { "" } else { "." };
            step(scan, &format!("{dot}{}", key.name()))
        })?,
        JsonKind::Array => scan.array(|scan| {
            let name = format!("[{index}]");
            index = index.saturating_add(1);
            step(scan, &name)
        })?,
        _ => scan.skip()?,
    }
    Ok(is_found)
}

/// Returns the id at `at`, truncated for use in a refusal.
fn id_at(text: &str, at: usize) -> String {
    const ID_CHARS_MAX: usize = 64;
    let mut scan = JsonScanner::new(text.get(at..).unwrap_or_default(), MAX_DEPTH);
    let id = scan
        .string_or_skip()
        .ok()
        .flatten()
        .map(|id| id.name().into_owned());
    id.unwrap_or_default()
        .chars()
        .filter(|letter| !letter.is_control())
        .take(ID_CHARS_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::Protocol::{self, Chat, Messages, Responses};
    use crate::failure::{Failure, Kind};
    use crate::request::read_summary;
    use serde_json::{Value, json};

    /// Returns the refusal of a body with these members.
    fn refusal(protocol: Protocol, members: &str) -> Option<Failure> {
        read_summary(protocol, format!(r#"{{"model":"m",{members}}}"#).as_bytes()).err()
    }

    fn param(protocol: Protocol, members: &Value) -> Option<String> {
        let mut members = members.to_string();
        members.pop();
        refusal(protocol, &members[1..]).map(|failure| failure.param.unwrap())
    }

    fn message_with(part: Value) -> Value {
        json!({"messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": ["hi", part]}]})
    }

    fn item(item: Value) -> Value {
        json!({"input": [{"role": "user", "content": "hi"}, item]})
    }

    fn tool(tool: Value) -> Value {
        json!({"tools": [{"type": "function", "name": "f", "function": {"name": "f"}}, tool]})
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "one table")]
    fn every_place_that_names_an_object_of_the_vendor_account_is_refused_by_its_path() {
        let source = json!({"type": "file", "file_id": "file_1"});
        let document = json!({"type": "document", "source": source});
        let image = json!({"type": "image", "source": source});
        let result =
            |block: &Value| json!({"type": "tool_result", "tool_use_id": "t", "content": [block]});
        let part = "messages[1].content[1]";
        let cases = [
            (
                Chat,
                message_with(json!({"type": "file", "file": {"file_id": "f"}})),
                format!("{part}.file.file_id"),
            ),
            (
                Chat,
                message_with(json!({"type": "input_file", "file_id": "f"})),
                format!("{part}.file_id"),
            ),
            (
                Chat,
                message_with(json!({"type": "input_audio", "input_audio": {"file_id": "f"}})),
                format!("{part}.input_audio.file_id"),
            ),
            (
                Chat,
                message_with(json!({"type": "image_url", "image_url": {"file_id": "f"}})),
                format!("{part}.image_url.file_id"),
            ),
            (
                Chat,
                message_with(json!({"type": "image_file", "image_file": {"file_id": "f"}})),
                format!("{part}.image_file.file_id"),
            ),
            (
                Chat,
                json!({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}),
                "messages[0].audio.id".into(),
            ),
            (
                Chat,
                json!({"messages": [{"role": "user", "attachments": [{"file_id": "f"}]}]}),
                "messages[0].attachments[0].file_id".into(),
            ),
            (
                Chat,
                json!({"assistant_id": "asst_1"}),
                "assistant_id".into(),
            ),
            (
                Chat,
                json!({"conversation": "conv_1"}),
                "conversation".into(),
            ),
            (
                Chat,
                json!({"previous_response_id": "resp_1"}),
                "previous_response_id".into(),
            ),
            (Chat, json!({"file_ids": ["f"]}), "file_ids".into()),
            (
                Chat,
                json!({"cached_content": "cachedContents/1"}),
                "cached_content".into(),
            ),
            (
                Chat,
                json!({"cachedContent": "cachedContents/1"}),
                "cachedContent".into(),
            ),
            (
                Chat,
                json!({"extra_body": {"google": {"cached_content": "cachedContents/1"}}}),
                "extra_body.google.cached_content".into(),
            ),
            (
                Chat,
                json!({"google": {"cachedContent": "cachedContents/1"}}),
                "google.cachedContent".into(),
            ),
            (
                Chat,
                json!({"extra_body": {"file_ids": ["f"]}}),
                "extra_body.file_ids".into(),
            ),
            (Chat, json!({"preset": "cheap"}), "preset".into()),
            (Chat, json!({"deferred": true}), "deferred".into()),
            (
                Chat,
                json!({"kv_transfer_params": {"remote_host": "x"}}),
                "kv_transfer_params".into(),
            ),
            (Chat, json!({"prompt": {"id": "pmpt_1"}}), "prompt".into()),
            (
                Chat,
                json!({"prediction": {"type": "content", "content": [{"type": "file", "file": {"file_id": "f"}}]}}),
                "prediction.content[0].file.file_id".into(),
            ),
            (
                Chat,
                message_with(
                    json!({"type": "image_url", "image_url": {"url": "gs://bucket/a.png"}}),
                ),
                format!("{part}.image_url.url"),
            ),
            (
                Chat,
                message_with(json!({"type": "image_url", "image_url": "file:///etc/passwd"})),
                format!("{part}.image_url"),
            ),
            (
                Chat,
                message_with(json!({"type": "image_url", "image_url":
                    {"url": "https://x@GenerativeLanguage.googleapis.com:443/v1beta/files/a"}})),
                format!("{part}.image_url.url"),
            ),
            (
                Messages,
                message_with(
                    json!({"type": "image", "source": {"type": "url", "url": "s3://bucket/a.png"}}),
                ),
                format!("{part}.source.url"),
            ),
            (
                Messages,
                json!({"Container": "container_1"}),
                "Container".into(),
            ),
            (
                Responses,
                json!({"instructions": [{"type": "item_reference", "id": "i"}]}),
                "instructions".into(),
            ),
            (
                Chat,
                tool(json!({"type": "file_search", "file_search": {"vector_store_ids": ["v"]}})),
                "tools[1].file_search.vector_store_ids".into(),
            ),
            (
                Messages,
                message_with(document.clone()),
                format!("{part}.source.file_id"),
            ),
            (
                Messages,
                message_with(image.clone()),
                format!("{part}.source.file_id"),
            ),
            (
                Messages,
                message_with(result(&document)),
                format!("{part}.content[0].source.file_id"),
            ),
            (
                Messages,
                message_with(result(&image)),
                format!("{part}.content[0].source.file_id"),
            ),
            (
                Messages,
                message_with(
                    json!({"type": "document", "source": {"type": "content", "content": [image]}}),
                ),
                format!("{part}.source.content[0].source.file_id"),
            ),
            (
                Messages,
                message_with(json!({"type": "container_upload", "file_id": "f"})),
                format!("{part}.file_id"),
            ),
            (
                Messages,
                json!({"system": [document]}),
                "system[0].source.file_id".into(),
            ),
            (
                Messages,
                json!({"container": "container_1"}),
                "container".into(),
            ),
            (
                Messages,
                json!({"container": {"id": "container_1", "skills": []}}),
                "container.id".into(),
            ),
            (
                Messages,
                json!({"container": {"skills": [{"type": "anthropic", "skill_id": "pdf"},
                    {"skill_id": "skill_1", "type": "custom"}]}}),
                "container.skills[1].skill_id".into(),
            ),
            (
                Messages,
                json!({"thread": {"type": "create"}}),
                "thread".into(),
            ),
            (
                Messages,
                json!({"previous_message_id": "msg_1"}),
                "previous_message_id".into(),
            ),
            (
                Responses,
                json!({"previous_response_id": "resp_1"}),
                "previous_response_id".into(),
            ),
            (
                Responses,
                json!({"prompt_cache_options": {"ttl": "30m", "comparison_response_id": "resp_1"}}),
                "prompt_cache_options.comparison_response_id".into(),
            ),
            (
                Responses,
                json!({"conversation": {"id": "conv_1"}}),
                "conversation".into(),
            ),
            (
                Responses,
                json!({"prompt": {"id": "pmpt_1"}}),
                "prompt".into(),
            ),
            (
                Responses,
                item(json!({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]})),
                "input[1].content[0].file_id".into(),
            ),
            (
                Responses,
                item(json!({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]})),
                "input[1].content[0].file_id".into(),
            ),
            (
                Responses,
                item(
                    json!({"type": "function_call_output", "output": [{"type": "input_file", "file_id": "f"}]}),
                ),
                "input[1].output[0].file_id".into(),
            ),
            (
                Responses,
                item(
                    json!({"type": "computer_call_output", "output": {"type": "computer_screenshot", "file_id": "f"}}),
                ),
                "input[1].output.file_id".into(),
            ),
            (
                Responses,
                item(json!({"type": "code_interpreter_calls", "container_id": "c"})),
                "input[1].container_id".into(),
            ),
            (
                Responses,
                item(json!({"type": "shell_call", "environment": {"container_id": "c"}})),
                "input[1].environment.container_id".into(),
            ),
            (
                Responses,
                tool(json!({"type": "code_interpreter", "container": "cntr_1"})),
                "tools[1].container".into(),
            ),
            (
                Responses,
                tool(
                    json!({"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["f"]}}),
                ),
                "tools[1].container.file_ids".into(),
            ),
            (
                Responses,
                tool(
                    json!({"type": "shell", "environment": {"type": "container_reference", "container_id": "c"}}),
                ),
                "tools[1].environment.container_id".into(),
            ),
            (
                Responses,
                tool(
                    json!({"type": "shell", "environment": {"type": "container_auto",
                    "skills": [{"type": "skill_reference", "skill_id": "s"}]}}),
                ),
                "tools[1].environment.skills[0].skill_id".into(),
            ),
            (
                Responses,
                tool(json!({"type": "file_search", "vector_store_ids": ["v"]})),
                "tools[1].vector_store_ids".into(),
            ),
            (
                Responses,
                tool(json!({"type": "image_generation", "input_image_mask": {"file_id": "f"}})),
                "tools[1].input_image_mask.file_id".into(),
            ),
            (
                Responses,
                tool(
                    json!({"type": "namespace", "tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}),
                ),
                "tools[1].tools[0].vector_store_ids".into(),
            ),
            (
                Responses,
                item(
                    json!({"type": "additional_tools", "tools": [{"type": "code_interpreter", "container": "c"}]}),
                ),
                "input[1].tools[0].container".into(),
            ),
        ];
        for (protocol, members, path) in cases {
            assert_eq!(
                param(protocol, &members).as_deref(),
                Some(path.as_str()),
                "{members}"
            );
        }
    }

    #[test]
    fn neither_spelling_nor_repetition_hides_a_reference() {
        let of = |source: &str| {
            format!(
                r#""messages":[{{"role":"user","content":[{{"type":"image","source":{{{source}}}}}]}}]"#
            )
        };
        for (protocol, members) in [
            (Messages, of(r#""type":"file","file\u005fid":"f""#)),
            (Messages, of(r#""type":"file","\u0066ile_id":"f""#)),
            (Messages, of(r#""type":"file","File_ID":"f""#)),
            (
                Messages,
                of(r#""type":"base64","data":"AA","file_id":null,"file_id":"f""#),
            ),
            (
                Messages,
                of(r#""type":"base64","data":"AA","file_id":"f","file_id":null"#),
            ),
            (Messages, r#""container":null,"container":"c""#.into()),
            (Messages, r#""c\u006fntainer":"c""#.into()),
            (
                Messages,
                r#""thread":null,"thread":{"type":"continue","previous_message_id":"m"}"#.into(),
            ),
            (
                Responses,
                r#""previous_response_id":null,"previous\u005fresponse_id":"r""#.into(),
            ),
            (Responses, r#""CONVERSATION":"c""#.into()),
            (
                Responses,
                r#""input":[{"type":"code_interpreter_call","container_id":"c","type":"message"}]"#
                    .into(),
            ),
            (
                Responses,
                r#""input":[{"type":"message","container_id":"c","type":"code_interpreter_call"}]"#
                    .into(),
            ),
        ] {
            assert!(refusal(protocol, &members).is_some(), "{members}");
        }
    }

    #[test]
    fn the_same_names_are_data_in_schemas_arguments_and_texts() {
        let schema = json!({"type": "object", "properties": {"file_id": {"type": "string"}, "thread_id": {}},
            "required": ["file_id"]});
        let text = r#"{"file_id":"f","container":"c"}"#;
        let input = json!({"file_id": "f", "source": {"type": "file", "file_id": "f"}, "container_id": "c"});
        for (protocol, members) in [
            (Chat, message_with(json!({"type": "text", "text": text}))),
            (
                Chat,
                json!({"tools": [{"type": "function", "function": {"name": "file_id", "parameters": schema}}]}),
            ),
            (
                Chat,
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}),
            ),
            (
                Chat,
                json!({"metadata": {"thread_id": "t", "file_id": "f"}, "prompt": "hi"}),
            ),
            (
                Chat,
                json!({"messages": [{"role": "assistant", "tool_calls":
                    [{"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}]}]}),
            ),
            (
                Chat,
                json!({"messages": [{"role": "assistant", "tool_calls":
                    [{"id": "c", "type": "function", "function": {"name": "f", "arguments": input}}]}]}),
            ),
            (
                Messages,
                message_with(
                    json!({"type": "tool_use", "id": "t", "name": "file_id", "input": input}),
                ),
            ),
            (
                Messages,
                message_with(json!({"type": "tool_result", "tool_use_id": "t", "content": text})),
            ),
            (
                Messages,
                json!({"tools": [{"name": "f", "input_schema": schema, "input_examples": [input]}]}),
            ),
            (
                Messages,
                json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
            ),
            (
                Messages,
                json!({"container": {"skills": [{"type": "anthropic", "skill_id": "pdf"}]}}),
            ),
            (
                Messages,
                message_with(
                    json!({"type": "text", "text": "x", "citations": [{"type": "char_location", "file_id": null}]}),
                ),
            ),
            (
                Responses,
                tool(json!({"type": "function", "name": "g", "parameters": schema})),
            ),
            (
                Responses,
                tool(
                    json!({"type": "mcp", "server_url": "https://x", "headers": {"file_id": "f"}}),
                ),
            ),
            (
                Responses,
                json!({"text": {"format": {"type": "json_schema", "schema": schema}}}),
            ),
            (
                Responses,
                json!({"client_metadata": {"thread_id": "t", "session_id": "s"}}),
            ),
            (
                Responses,
                item(
                    json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": text}),
                ),
            ),
            (
                Responses,
                item(json!({"type": "tool_search_call", "call_id": "c", "arguments": input})),
            ),
            (
                Responses,
                item(
                    json!({"type": "local_shell_call", "action": {"type": "exec", "env": {"FILE_ID": "f", "file_id": "f"}}}),
                ),
            ),
            (
                Responses,
                item(json!({"type": "function_call_output", "call_id": "c", "output": text})),
            ),
            (
                Responses,
                tool(
                    json!({"type": "code_interpreter", "container": {"type": "auto", "file_ids": []}}),
                ),
            ),
            // The gateway removes it from the conversation before it sends the request.
            (
                Responses,
                item(
                    json!({"type": "code_interpreter_call", "id": "ci", "container_id": "c", "code": "1"}),
                ),
            ),
            (
                Responses,
                json!({"previous_response_id": null, "conversation": null, "prompt": null}),
            ),
            (Responses, json!({"instructions": null})),
            (
                Chat,
                json!({"deferred": false, "cached_content": null, "preset": null}),
            ),
            (
                Chat,
                json!({"prediction": {"type": "content", "content": "file_id"}}),
            ),
            (
                Chat,
                message_with(
                    json!({"type": "image_url", "image_url": {"url": "https://x/a?u=gs://b"}}),
                ),
            ),
            (
                Chat,
                message_with(
                    json!({"type": "image_url", "image_url": {"url": "data:text/plain,gs://b"}}),
                ),
            ),
        ] {
            assert_eq!(param(protocol, &members), None, "{members}");
        }
    }

    #[test]
    fn a_thread_comes_before_all_else_because_its_client_then_sends_the_whole_conversation() {
        let thread = r#""container":"c","thread":{"type":"continue","previous_message_id":"m"}"#;
        for protocol in [Chat, Messages, Responses] {
            let failure = refusal(protocol, thread).unwrap();
            assert_eq!(
                (failure.kind, failure.param.as_deref()),
                (Kind::ThreadUnsupported, Some("thread"))
            );
        }
    }

    #[test]
    fn a_refusal_never_names_a_path_longer_than_its_limit() {
        let path = |bytes: usize| {
            let name = "n".repeat(bytes);
            let members = format!(r#""messages":[{{"{name}":{{"file_id":"f"}}}}]"#);
            refusal(Chat, &members).unwrap().param.unwrap()
        };
        assert_eq!(
            path(super::MAX_PATH_BYTES - 20).len(),
            super::MAX_PATH_BYTES
        );
        assert!(
            path(super::MAX_PATH_BYTES - 19).len() < 20,
            "a longer one is left out"
        );
    }
}
