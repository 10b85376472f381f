//! Finds the features that make a vendor read or do more than one pass over the body's own bytes.
//!
//! This file must not price anything. It finds features by their position, and ignores names inside
//! a text, a schema or a tool's input. If a vendor may read a body in two ways, the feature counts
//! as present, which makes the reservation larger but not the bill.
//!
//! Read next: `request/extensions.rs`, `request/rewrite.rs`.

use super::{Features, ToolOffer};
use crate::Protocol;
use crate::capabilities::identifiers;
use crate::fields::messages::is_advisor;
use crate::json::{JsonKind, JsonScanner, ScanResult, Span, StringToken};
use crate::openai::billing_header;
use crate::reasoning_token;
use crate::request::extensions::Extension;
use crate::request::vendor_state::{self, FirstReference, VendorObject};
use crate::usage::{InferenceGeo, PerTool, ServerTool, ServiceTier, Speed};

/// Maximum length of a call id at the vendor of the chat protocol.
const MAX_CHAT_ID_CHARS: usize = 40;

impl Features {
    /// Reads a top-level member. An unknown member is no feature.
    pub(in crate::request) fn read_member(
        &mut self,
        protocol: Protocol,
        name: &str,
        scan: &mut JsonScanner<'_>,
    ) -> ScanResult {
        if let Some(extension) = Extension::from_top_level(protocol, name) {
            return self.read_extension(protocol, extension, scan);
        }
        match name {
            "system" => self.read_system(scan),
            "messages" | "prediction" => self.read_content(scan),
            "tools" => {
                let is_chat = protocol == Protocol::Chat;
                scan.array_or_skip(|scan| self.read_tool(scan, is_chat))
            }
            "max_tool_calls" => {
                self.max_tool_calls = scan.count_or_skip()?.max(self.max_tool_calls);
                Ok(())
            }
            "input" => read_presence(scan, &mut self.other_shape),
            "functions" => read_presence(scan, &mut self.tools),
            "stop" | "stop_sequences" => read_presence(scan, &mut self.stops),
            "store" | "user_profile_id" | "workspace_id" | "diagnostics" => {
                self.leftovers.account_members |=
                    !matches!(scan.kind()?, JsonKind::Null | JsonKind::False);
                scan.skip()
            }
            "cache_control" => self.read_cache_marker(scan),
            "prompt_cache_options" => self.read_cache_lifetime(scan, "30m"),
            "thinking" | "reasoning" | "output_config" | "top_k" => {
                self.leftovers.members = true;
                scan.skip()
            }
            "modalities" => scan.array_or_skip(|scan| {
                self.audio_output |= equals_text(scan, "audio")?;
                ScanResult::Ok(())
            }),
            "audio" => read_presence(scan, &mut self.audio_output),
            "speed" => {
                let speed = read_tier(scan)?;
                self.speed = speed
                    .filter(|speed| *speed != Speed::from_wire("standard"))
                    .or(self.speed);
                Ok(())
            }
            "inference_geo" => {
                let geo = read_tier(scan)?;
                self.usual_geo |= geo == Some(InferenceGeo::from_wire("global"));
                self.inference_geo = geo
                    .filter(|geo| *geo != InferenceGeo::from_wire("global"))
                    .or(self.inference_geo);
                Ok(())
            }
            "mcp_servers" => self.read_mcp_servers(scan),
            "container" => {
                if scan.kind()? != JsonKind::Null {
                    self.add_tool_offer(ServerTool::CodeExecution, None);
                }
                self.vendor_reference.record_container(scan)
            }
            "attachments" => self.vendor_reference.scan(scan),
            "fallbacks" | "models" => read_presence(scan, &mut self.fallback_models),
            "compaction" => read_presence(scan, &mut self.compaction),
            "context_management" => self.read_context_management(scan),
            _ => scan.skip(),
        }
    }
}

struct MediaPart<'a> {
    is_present: bool,
    data: Option<StringToken<'a>>,
}

/// Maximum length of a URL in bytes. A longer text is bare base64, which some servers accept
/// instead of a URL.
const MAX_URL_BYTES: usize = 8_192;

/// The facts about one object under `messages` or `system`, whose members may come in any order.
#[derive(Default)]
struct BlockFeatures<'a> {
    is_image: bool,
    is_document: bool,
    has_text_source: bool,
    is_thinking: bool,
    is_signed: bool,
    /// True if the object has a source other than text. Such a source takes precedence, because the
    /// gateway does not know which one the vendor reads.
    has_other_source: bool,
    /// Inline data of the object's source or data URL.
    data: Option<StringToken<'a>>,
    /// The member `data`, which encrypted reasoning has.
    own_data: Option<StringToken<'a>>,
    is_encrypted: bool,
    /// True if the object is a call of the vendor's code interpreter. The gateway removes such a
    /// call from the conversation: see `request/foreign_fields/responses.rs`.
    is_interpreter_call: bool,
    has_other_type: bool,
    container: FirstReference,
}

impl Features {
    /// Reads messages, blocks and parts, at any depth.
    fn read_content(&mut self, scan: &mut JsonScanner<'_>) -> ScanResult {
        match scan.kind()? {
            JsonKind::Array => scan.array(|scan| self.read_content(scan)),
            JsonKind::Object => self.read_object(scan, |_, _| ()),
            _ => scan.skip(),
        }
    }

    /// Reads one message. Calls `member` with each of its members.
    pub(in crate::request) fn read_message(
        &mut self,
        scan: &mut JsonScanner<'_>,
        member: impl FnMut(&str, Span),
    ) -> ScanResult {
        if scan.kind()? == JsonKind::Object {
            self.read_object(scan, member)
        } else {
            self.read_content(scan)
        }
    }

    fn read_object(
        &mut self,
        scan: &mut JsonScanner<'_>,
        mut member: impl FnMut(&str, Span),
    ) -> ScanResult {
        let mut block = BlockFeatures::default();
        scan.object(|scan, key| {
            let name = key.name();
            scan.kind()?;
            let start = scan.position();
            self.read_block_member(&mut block, &name, scan)?;
            member(&name, scan.span_from(start));
            Ok(())
        })?;
        let goes = block.is_interpreter_call && !block.has_other_type;
        if !goes {
            self.vendor_reference.add(block.container);
        }
        self.images = self.images.saturating_add(u32::from(block.is_image));
        let is_text = block.has_text_source && !block.has_other_source;
        self.documents_or_files |= block.is_document && !is_text;
        self.count_media(&block);
        let is_own_token =
            |data: &StringToken<'_>| data.raw.starts_with(reasoning_token::TOKEN_PREFIX);
        self.leftovers.unsigned_thinking |= block.is_thinking && !block.is_signed
            || block.is_encrypted && block.own_data.as_ref().is_some_and(is_own_token);
        self.leftovers.thoughts = self
            .leftovers
            .thoughts
            .saturating_add(u32::from(block.is_thinking && block.is_signed));
        Ok(())
    }

    fn read_system(&mut self, scan: &mut JsonScanner<'_>) -> ScanResult {
        scan.kind()?;
        let start = scan.position();
        self.read_content(scan)?;
        let system = scan.text_from(start);
        self.leftovers.billing_header |= billing_header::begins_with_header(system);
        Ok(())
    }

    fn read_mcp_servers(&mut self, scan: &mut JsonScanner<'_>) -> ScanResult {
        let mut is_present = false;
        read_presence(scan, &mut is_present)?;
        if is_present {
            self.add_tool_offer(ServerTool::Mcp, None);
        }
        Ok(())
    }

    fn read_call_id(&mut self, scan: &mut JsonScanner<'_>) -> ScanResult {
        let id = scan
            .string_or_skip()?
            .map(|id| id.name())
            .unwrap_or_default();
        self.leftovers.odd_ids |= !identifiers::is_plain_name(&id);
        self.leftovers.long_ids |= id.len() > MAX_CHAT_ID_CHARS;
        self.leftovers.other_than_nine |= !identifiers::is_nine_char_id(&id);
        Ok(())
    }

    fn read_signature<'a>(
        &mut self,
        block: &mut BlockFeatures<'a>,
        scan: &mut JsonScanner<'a>,
    ) -> ScanResult {
        if let Some(text) = scan.string_or_skip()? {
            block.is_signed = reasoning_token::is_vendor_signature(&text.name());
            self.content.add_binary(&text);
        }
        Ok(())
    }

    fn read_audio(&mut self, scan: &mut JsonScanner<'_>) -> ScanResult {
        let media = self.read_media(scan)?;
        self.audio_input |= media.is_present;
        media
            .data
            .iter()
            .for_each(|data| self.content.add_audio(data));
        Ok(())
    }

    /// Adds the block's content other than text. The data of a block that may not be an image
    /// counts as text.
    fn count_media(&mut self, block: &BlockFeatures<'_>) {
        let data = block.data.as_ref();
        if block.is_image {
            self.content
                .add_image(data.filter(|_| !block.is_document && !block.has_text_source));
        } else if block.is_document && (!block.has_text_source || block.has_other_source) {
            self.content.add_document(data);
        }
        block
            .own_data
            .iter()
            .filter(|_| block.is_encrypted)
            .for_each(|data| self.content.add_encrypted(data));
    }

    /// Reads a member of a block. Some servers use a part's `type`, and others the name of the
    /// member with the content, so either counts.
    fn read_block_member<'a>(
        &mut self,
        block: &mut BlockFeatures<'a>,
        name: &str,
        scan: &mut JsonScanner<'a>,
    ) -> ScanResult {
        if let Some(object) = VendorObject::from_member(name) {
            let is_container = object == VendorObject::Container;
            let found = if is_container {
                &mut block.container
            } else {
                &mut self.vendor_reference
            };
            return found.record(object, scan);
        }
        match name {
            "type" => {
                let kind = scan.string_or_skip()?;
                self.record_block_type(block, &kind.map(|kind| kind.name()).unwrap_or_default());
                Ok(())
            }
            // A tool's input is text for every model.
            name if vendor_state::is_client_data(name) => scan.skip(),
            "cache_control" => self.read_cache_marker(scan),
            // Items of the responses protocol may add tools.
            "tools" => scan.array_or_skip(|scan| self.read_tool(scan, false)),
            "signature" => self.read_signature(block, scan),
            "id" | "tool_use_id" | "tool_call_id" => self.read_call_id(scan),
            "tool_calls" | "function_call" => {
                self.tools |= scan.kind()? != JsonKind::Null;
                self.read_content(scan)
            }
            "reasoning_content" | "reasoning" | "reasoning_details" | "thinking_blocks"
            | "extra_content" => {
                self.leftovers.members = true;
                self.read_content(scan)
            }
            "source" => self.read_source(block, scan),
            "image_url" | "input_image" => {
                let media = self.read_media(scan)?;
                block.is_image |= media.is_present;
                block.data = media.data;
                Ok(())
            }
            "file" | "input_file" | "video_url" | "input_video" => {
                let media = self.read_media(scan)?;
                block.is_document |= media.is_present;
                block.data = media.data;
                Ok(())
            }
            "input_audio" | "audio" | "audio_url" => self.read_audio(scan),
            "file_data" => {
                block.data = scan.string_or_skip()?;
                Ok(())
            }
            "data" if scan.kind()? == JsonKind::String => {
                block.own_data = scan.string_or_skip()?;
                Ok(())
            }
            "encrypted_content" => {
                let data = scan.string_or_skip()?;
                data.iter()
                    .for_each(|data| self.content.add_encrypted(data));
                Ok(())
            }
            _ => self.read_content(scan),
        }
    }

    fn record_block_type(&mut self, block: &mut BlockFeatures<'_>, kind: &str) {
        block.has_other_type |= kind != "code_interpreter_call";
        match kind {
            "image" | "image_url" | "input_image" => block.is_image = true,
            "document" | "file" | "input_file" | "container_upload" | "video" | "video_url"
            | "input_video" => block.is_document = true,
            "audio" | "input_audio" | "audio_url" => self.audio_input = true,
            "thinking" => block.is_thinking = true,
            "code_interpreter_call" => block.is_interpreter_call = true,
            "redacted_thinking" => {
                block.is_encrypted = true;
                self.leftovers.thoughts = self.leftovers.thoughts.saturating_add(1);
            }
            "reasoning.encrypted" => block.is_encrypted = true,
            "input_text" | "output_text" => self.other_shape = true,
            "tool_use" => {
                self.tools = true;
                self.other_shape = true;
            }
            "tool_result" => {
                self.tools = true;
                self.other_shape = true;
                self.leftovers.tool_results = self.leftovers.tool_results.saturating_add(1);
            }
            _ => {}
        }
    }

    /// Reads the `source` of a messages block. The source's `content` may contain blocks.
    fn read_source<'a>(
        &mut self,
        block: &mut BlockFeatures<'a>,
        scan: &mut JsonScanner<'a>,
    ) -> ScanResult {
        scan.object_or_skip(|scan, key| {
            match key.name().as_ref() {
                "type" => {
                    let kind = scan.string_or_skip()?;
                    match kind.map(|kind| kind.name()).unwrap_or_default().as_ref() {
                        "text" | "content" => block.has_text_source = true,
                        "url" => self.url_sources = true,
                        "file" => self.documents_or_files = true,
                        _ => block.has_other_source = true,
                    }
                }
                "url" => {
                    self.url_sources |= scan.kind()? != JsonKind::Null;
                    let at = scan.position();
                    if let Some(address) = scan.string_or_skip()? {
                        self.vendor_reference
                            .record_storage_url(&address.name(), at);
                    }
                }
                "data" => block.data = scan.string_or_skip()?,
                name => match VendorObject::from_member(name) {
                    Some(object) => self.vendor_reference.record(object, scan)?,
                    None => self.read_content(scan)?,
                },
            }
            Ok(())
        })
    }

    /// Reads the media of a chat part: a URL, or an object with a URL in `url` or with inline data.
    fn read_media<'a>(&mut self, scan: &mut JsonScanner<'a>) -> ScanResult<MediaPart<'a>> {
        match scan.kind()? {
            JsonKind::String => Ok(MediaPart {
                is_present: true,
                data: self.read_url(scan)?,
            }),
            JsonKind::Object => {
                let mut data = None;
                scan.object(|scan, key| {
                    match key.name().as_ref() {
                        "url" => data = self.read_url(scan)?,
                        "file_data" | "data" => data = scan.string_or_skip()?,
                        // The id refers to the audio of an earlier answer.
                        "id" => self.vendor_reference.record(VendorObject::Audio, scan)?,
                        name => match VendorObject::from_member(name) {
                            Some(object) => self.vendor_reference.record(object, scan)?,
                            None => scan.skip()?,
                        },
                    }
                    ScanResult::Ok(())
                })?;
                Ok(MediaPart {
                    is_present: true,
                    data,
                })
            }
            _ => scan.skip().map(|_| MediaPart {
                is_present: false,
                data: None,
            }),
        }
    }

    /// Reads a URL. Returns its text if it is a data URL, or bare base64 instead of a URL.
    fn read_url<'a>(&mut self, scan: &mut JsonScanner<'a>) -> ScanResult<Option<StringToken<'a>>> {
        scan.kind()?;
        let at = scan.position();
        let Some(address) = scan.string_or_skip()? else {
            return Ok(None);
        };
        // A URL in capitals or with escapes may still be a `data:` URL. Treating it as remote is
        // safe.
        let is_far = !address.raw.starts_with("data:");
        self.url_sources |= is_far;
        if is_far {
            self.vendor_reference
                .record_storage_url(&address.name(), at);
        }
        let is_bare = address.raw.len() > MAX_URL_BYTES;
        Ok(Some(address).filter(|_| !is_far || is_bare))
    }

    /// Reads a tool definition, but not its schema. `is_chat` applies the rules of the chat
    /// protocol, where every tool other than a function or a custom tool runs at the vendor, even
    /// without a type.
    fn read_tool(&mut self, scan: &mut JsonScanner<'_>, is_chat: bool) -> ScanResult {
        self.tools = true;
        let (mut runs_at_vendor, mut max_uses) = (PerTool::<bool>::default(), None);
        let (mut is_function, mut is_vendors) = (false, false);
        let (mut has_name, mut has_wrapper) = (false, false);
        scan.object_or_skip(|scan, key| {
            match key.name().as_ref() {
                "type" => {
                    let kind = scan.string_or_skip()?.map(|kind| kind.name());
                    is_vendors |= kind
                        .as_deref()
                        .is_some_and(|kind| !matches!(kind, "function" | "custom"));
                    is_function |= kind.is_some();
                    self.leftovers.advisors |= kind.as_deref().is_some_and(is_advisor);
                    match kind.as_deref().and_then(server_tool) {
                        Some(tool) => *runs_at_vendor.get_mut(tool) = true,
                        None => self.server_tools |= !kind.as_deref().is_none_or(is_client_tool),
                    }
                }
                // If the member is duplicated, the vendor may read either.
                "max_uses" => max_uses = scan.count_or_skip()?.max(max_uses),
                "cache_control" => self.read_cache_marker(scan)?,
                "container" => self.vendor_reference.record_container(scan)?,
                // A namespace contains further tools.
                "tools" => scan.array_or_skip(|scan| self.read_tool(scan, is_chat))?,
                "function" => {
                    (is_function, has_wrapper) = (true, true);
                    scan.object_or_skip(|scan, key| {
                        if key.name() == "cache_control" {
                            return self.read_cache_marker(scan);
                        }
                        scan.skip()
                    })?;
                }
                // The member belongs to a function without its wrapper object, or is Gemini's list
                // of functions.
                name @ ("name" | "custom" | "function_declarations" | "functionDeclarations") => {
                    is_function = true;
                    has_name |= name == "name";
                    has_wrapper |= name == "custom";
                    scan.skip()?;
                }
                name if is_chat && Extension::is_vendor_tool(name) => {
                    is_vendors |= !matches!(scan.kind()?, JsonKind::Null | JsonKind::False);
                    self.vendor_reference.scan(scan)?;
                }
                name if vendor_state::is_client_data(name) => scan.skip()?,
                name => match VendorObject::from_member(name) {
                    Some(object) => self.vendor_reference.record(object, scan)?,
                    None => self.vendor_reference.scan(scan)?,
                },
            }
            ScanResult::Ok(())
        })?;
        self.other_shape |= is_chat && has_name && !has_wrapper;
        if is_chat && (is_vendors || !is_function) {
            self.server_tools = true;
            self.server_tool_member.get_or_insert("tools");
        }
        for tool in ServerTool::ALL
            .into_iter()
            .filter(|tool| *runs_at_vendor.get(*tool))
        {
            self.add_tool_offer(tool, max_uses);
        }
        Ok(())
    }

    fn add_tool_offer(&mut self, tool: ServerTool, max_uses: Option<u64>) {
        let offer = self.tool_offers.get_mut(tool);
        let before = offer.unwrap_or(ToolOffer { max_uses: Some(0) });
        let all = before
            .max_uses
            .zip(max_uses)
            .map(|(before, uses)| before.saturating_add(uses));
        *offer = Some(ToolOffer { max_uses: all });
    }

    fn read_cache_marker(&mut self, scan: &mut JsonScanner<'_>) -> ScanResult {
        // A null value is not a marker, but the member is foreign all the same.
        self.leftovers.members = true;
        if scan.kind()? != JsonKind::Null {
            self.cache_markers = true;
        }
        self.read_cache_lifetime(scan, "5m")
    }

    /// Reads an object with the lifetime of a cache. For any lifetime other than the vendor's
    /// default, the reservation uses the higher price.
    fn read_cache_lifetime(&mut self, scan: &mut JsonScanner<'_>, default: &str) -> ScanResult {
        scan.object_or_skip(|scan, key| {
            if key.name() == "ttl" {
                self.cache_markers_1h |= differs_from(scan, default)?;
                return Ok(());
            }
            match VendorObject::from_member(&key.name()) {
                Some(object) => self.vendor_reference.record(object, scan),
                None => scan.skip(),
            }
        })
    }

    /// Reads the context edits: a list (responses) or an object with a list (messages).
    fn read_context_management(&mut self, scan: &mut JsonScanner<'_>) -> ScanResult {
        if scan.kind()? == JsonKind::Array {
            return self.read_edits(scan);
        }
        scan.object_or_skip(|scan, key| {
            if key.name() == "edits" {
                self.read_edits(scan)
            } else {
                scan.skip()
            }
        })
    }

    fn read_edits(&mut self, scan: &mut JsonScanner<'_>) -> ScanResult {
        scan.array_or_skip(|scan| {
            scan.object_or_skip(|scan, key| {
                if key.name() != "type" {
                    return scan.skip();
                }
                let kind = scan.string_or_skip()?;
                self.compaction |= kind.is_some_and(|kind| kind.name().starts_with("compact"));
                Ok(())
            })
        })
    }
}

/// Returns whether the client runs the tool: plain functions, the responses protocol's own client
/// tools, and the vendor's dated types of this list. Every other tool with a type
/// (`web_search_20250305`, `code_execution_…`, `mcp_toolset`, unknown ones) is assumed to run at
/// the vendor.
fn is_client_tool(kind: &str) -> bool {
    const DATED: [&str; 6] = [
        "bash_20",
        "text_editor_20",
        "computer_20",
        "computer_toolset_20",
        "browser_toolset_20",
        "memory_20",
    ];
    const OWN: [&str; 7] = [
        "function",
        "custom",
        "namespace",
        "tool_search",
        "local_shell",
        "shell",
        "apply_patch",
    ];
    OWN.contains(&kind) || DATED.iter().any(|prefix| is_dated(kind, prefix))
}

/// Returns the tool if its uses can be counted. A messages tool has a type name with a date, and a
/// responses tool several names.
fn server_tool(kind: &str) -> Option<ServerTool> {
    const DATED: [(&str, ServerTool); 5] = [
        ("web_search_20", ServerTool::WebSearch),
        ("web_fetch_20", ServerTool::WebFetch),
        ("code_execution_20", ServerTool::CodeExecution),
        ("tool_search_tool_regex_20", ServerTool::ToolSearch),
        ("tool_search_tool_bm25_20", ServerTool::ToolSearch),
    ];
    match kind {
        "web_search" | "web_search_2025_08_26" => Some(ServerTool::WebSearch),
        "code_interpreter" => Some(ServerTool::CodeExecution),
        "tool_search_tool_regex" | "tool_search_tool_bm25" => Some(ServerTool::ToolSearch),
        "mcp" | "mcp_toolset" => Some(ServerTool::Mcp),
        kind if kind.starts_with("web_search_preview") => Some(ServerTool::WebSearch),
        kind => DATED
            .iter()
            .find(|(prefix, _)| is_dated(kind, prefix))
            .map(|(_, tool)| *tool),
    }
}

fn is_dated(kind: &str, prefix: &str) -> bool {
    kind.strip_prefix(prefix)
        .is_some_and(|date| date.len() == 6 && date.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Sets `is_present` if the next value is neither null nor an empty list.
fn read_presence(scan: &mut JsonScanner<'_>, is_present: &mut bool) -> ScanResult {
    match scan.kind()? {
        JsonKind::Null => scan.skip()?,
        JsonKind::Array => {
            scan.array(|scan| {
                *is_present = true;
                scan.skip()
            })?;
        }
        _ => {
            *is_present = true;
            scan.skip()?;
        }
    }
    Ok(())
}

/// Reads a tier name, or `None` for null. A value that is not a string becomes a name without a
/// price.
fn read_tier(scan: &mut JsonScanner<'_>) -> ScanResult<Option<ServiceTier>> {
    match scan.kind()? {
        JsonKind::Null => scan.skip().map(|_| None),
        JsonKind::String => Ok(Some(ServiceTier::from_wire(&scan.string()?.name()))),
        _ => scan.skip().map(|_| Some(ServiceTier::from_wire("?"))),
    }
}

/// Returns whether the next value is neither null nor `usual`.
fn differs_from(scan: &mut JsonScanner<'_>, usual: &str) -> ScanResult<bool> {
    match scan.kind()? {
        JsonKind::Null => scan.skip().map(|_| false),
        JsonKind::String => Ok(scan.string()?.name() != usual),
        _ => scan.skip().map(|_| true),
    }
}

fn equals_text(scan: &mut JsonScanner<'_>, expected: &str) -> ScanResult<bool> {
    Ok(scan
        .string_or_skip()?
        .is_some_and(|text| text.name() == expected))
}
