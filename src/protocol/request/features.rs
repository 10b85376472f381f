//! What makes a vendor read or do more than one pass over the body's own bytes.
//!
//! It must not price anything, nor believe a word in a text, a schema or a tool's input: features
//! are found by where they stand. Where a vendor's reading is in doubt it errs towards seeing the
//! feature: that makes a hold larger, never a bill.
//!
//! Read next: `protocol/request/rewrite.rs`.

use super::content::Content;
use super::extensions::Extension;
use super::vendor_state::{self, VendorObject, VendorReference};
use crate::protocol::Protocol;
use crate::protocol::carrier;
use crate::protocol::rules::names;
use crate::protocol::scan::{Broken, Kind, Scan, Span, Text};
use crate::usage::{InferenceGeo, PerTool, ServerTool, ServiceTier, Speed};

/// The features of a body.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// Image blocks or parts, tool results' own included.
    pub images: u32,
    /// Documents, files and videos, whose tokens cannot be told from their bytes. Plain text
    /// documents are text.
    pub documents_or_files: bool,
    /// Audio to be heard.
    pub audio_input: bool,
    /// Audio to be spoken.
    pub audio_output: bool,
    /// Anything the vendor fetches from an address.
    pub url_sources: bool,
    /// The first reference to an object in the vendor account.
    pub vendor_reference: Option<VendorReference>,
    /// Tools that run at the vendor, whose results become input, and that have no price key.
    pub server_tools: bool,
    /// Chat: the first member that asks for one of them.
    pub server_tool_member: Option<&'static str>,
    /// Those that have one, by tool, all of a kind together.
    pub tool_offers: PerTool<Option<ToolOffer>>,
    /// Responses: uses of server tools at most, of all kinds together. The larger where it is given
    /// twice.
    pub max_tool_calls: Option<u64>,
    /// Passes over the conversation that shorten it.
    pub compaction: bool,
    /// Only a tier that is not the default, and asked for by name.
    pub service_tier: Option<ServiceTier>,
    /// The default tier and no other is asked for by name.
    pub usual_tier: bool,
    /// Tools are on offer, or the conversation holds calls of some. In doubt, yes.
    pub tools: bool,
    /// Chat: no reasoning is wanted.
    pub no_reasoning: bool,
    /// Words to stop at are given.
    pub stops: bool,
    /// Only a speed that is not the standard one.
    pub speed: Option<Speed>,
    /// Only a region that is not `global`.
    pub inference_geo: Option<InferenceGeo>,
    /// The region `global` and no other is asked for by name.
    pub usual_geo: bool,
    /// Other models may answer instead.
    pub fallback_models: bool,
    /// A `cache_control` anywhere.
    pub cache_markers: bool,
    /// One of them asks for an hour.
    pub cache_markers_1h: bool,
    /// Something of another vendor may stand in the conversation, which this one would refuse:
    /// `request/strip.rs` reads the body for it. In doubt, yes.
    pub leftovers: Leftovers,
    /// What the body holds, by kind.
    pub content: Content,
}

/// A server tool that the vendor may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ToolOffer {
    /// How many at most, of all tools together; `None` where one of them does not say.
    pub max_uses: Option<u64>,
}

/// What another vendor's answer may have left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Leftovers {
    /// A thinking block without a signature of a messages vendor.
    pub unsigned_thinking: bool,
    /// A call id that a messages vendor does not take.
    pub odd_ids: bool,
    /// A call id that is too long for a chat vendor.
    pub long_ids: bool,
    /// A call id that is not nine letters or digits, which is all that some chat vendors take.
    pub other_than_nine: bool,
    /// Thinking blocks with a signature of a messages vendor.
    pub thoughts: u32,
    /// Results of tools, of the messages protocol.
    pub tool_results: u32,
    /// Members of the messages protocol, and of reasoning, that chat's own vendor does not know.
    pub members: bool,
    /// Members by which the vendor would use, or keep something in, the operator's account: see
    /// `request/strip.rs`.
    pub account_members: bool,
    /// Output limits by another name than the surface's, or among a vendor's own options.
    pub second_limits: bool,
}

/// The longest call id that chat's own vendor takes.
const CHAT_ID_LETTERS_MAX: usize = 40;

impl Features {
    /// Reads a top-level member. A member of a name not known here has no features.
    pub(super) fn member(
        &mut self,
        protocol: Protocol,
        name: &str,
        scan: &mut Scan<'_>,
    ) -> Result<(), Broken> {
        if let Some(extension) = Extension::at_top(protocol, name) {
            return self.extension(protocol, extension, scan);
        }
        match name {
            "messages" | "system" | "prediction" => self.content(scan),
            "tools" => {
                let is_chat = protocol == Protocol::Chat;
                scan.array_or_skip(|scan| self.tool(scan, is_chat))
                    .map(drop)
            }
            "max_tool_calls" => {
                self.max_tool_calls = scan.count_or_skip()?.max(self.max_tool_calls);
                Ok(())
            }
            "functions" => some(scan, &mut self.tools),
            "stop" | "stop_sequences" => some(scan, &mut self.stops),
            "store" | "user_profile_id" | "workspace_id" | "diagnostics" => {
                self.leftovers.account_members |= !matches!(scan.kind()?, Kind::Null | Kind::False);
                scan.skip().map(drop)
            }
            "cache_control" => self.cache_marker(scan),
            "thinking" | "reasoning" | "output_config" | "top_k" => {
                self.leftovers.members = true;
                scan.skip().map(drop)
            }
            "modalities" => scan
                .array_or_skip(|scan| {
                    self.audio_output |= is_text(scan, "audio")?;
                    Ok::<(), Broken>(())
                })
                .map(drop),
            "audio" => some(scan, &mut self.audio_output),
            "speed" => {
                let speed = word(scan)?;
                self.speed = speed
                    .filter(|speed| *speed != Speed::said("standard"))
                    .or(self.speed);
                Ok(())
            }
            "inference_geo" => {
                let geo = word(scan)?;
                self.usual_geo |= geo == Some(InferenceGeo::said("global"));
                self.inference_geo = geo
                    .filter(|geo| *geo != InferenceGeo::said("global"))
                    .or(self.inference_geo);
                Ok(())
            }
            "mcp_servers" => {
                let mut is_given = false;
                some(scan, &mut is_given)?;
                if is_given {
                    self.offer(ServerTool::Mcp, None);
                }
                Ok(())
            }
            "container" => {
                if scan.kind()? != Kind::Null {
                    self.offer(ServerTool::CodeExecution, None);
                }
                vendor_state::container(&mut self.vendor_reference, scan)
            }
            "attachments" => vendor_state::walk(&mut self.vendor_reference, scan),
            "fallbacks" | "models" => some(scan, &mut self.fallback_models),
            "compaction" => some(scan, &mut self.compaction),
            "context_management" => self.context_management(scan),
            _ => scan.skip().map(drop),
        }
    }
}

/// What a chat part holds.
struct Media<'a> {
    is_given: bool,
    data: Option<Text<'a>>,
}

/// No address is longer: some servers take bare base64 in the place of one.
const ADDRESS_BYTES_MAX: usize = 8_192;

/// What one object under `messages` or `system` turned out to be, its members in any order.
#[derive(Default)]
struct Block<'a> {
    is_image: bool,
    is_document: bool,
    has_text_source: bool,
    is_thinking: bool,
    is_signed: bool,
    /// Given next to a text source it wins: which of two a vendor reads is not ours to guess.
    has_other_source: bool,
    /// What its source or its address holds itself.
    data: Option<Text<'a>>,
    /// Its member `data`, which encrypted reasoning has.
    own_data: Option<Text<'a>>,
    is_encrypted: bool,
    /// A call of the vendor's interpreter, which goes from the conversation: see
    /// `request/strip/responses.rs`.
    is_interpreter_call: bool,
    has_other_type: bool,
    container: Option<VendorReference>,
}

impl Features {
    /// Messages, blocks and parts, at any depth.
    fn content(&mut self, scan: &mut Scan<'_>) -> Result<(), Broken> {
        match scan.kind()? {
            Kind::Array => scan.array(|scan| self.content(scan)).map(drop),
            Kind::Object => self.object(scan, |_, _| ()),
            _ => scan.skip().map(drop),
        }
    }

    /// One of the messages. `member` is told each of its members.
    pub(super) fn message(
        &mut self,
        scan: &mut Scan<'_>,
        member: impl FnMut(&str, Span),
    ) -> Result<(), Broken> {
        if scan.kind()? == Kind::Object {
            self.object(scan, member)
        } else {
            self.content(scan)
        }
    }

    fn object(
        &mut self,
        scan: &mut Scan<'_>,
        mut member: impl FnMut(&str, Span),
    ) -> Result<(), Broken> {
        let mut block = Block::default();
        scan.object(|scan, key| {
            let name = key.name();
            scan.kind()?;
            let start = scan.at();
            self.block_member(&mut block, &name, scan)?;
            member(
                &name,
                Span {
                    start,
                    end: scan.at(),
                },
            );
            Ok(())
        })?;
        let goes = block.is_interpreter_call && !block.has_other_type;
        self.vendor_reference = self.vendor_reference.or(block.container.filter(|_| !goes));
        self.images = self.images.saturating_add(u32::from(block.is_image));
        let is_text = block.has_text_source && !block.has_other_source;
        self.documents_or_files |= block.is_document && !is_text;
        self.hold(&block);
        self.leftovers.unsigned_thinking |= block.is_thinking && !block.is_signed;
        self.leftovers.thoughts = self
            .leftovers
            .thoughts
            .saturating_add(u32::from(block.is_thinking && block.is_signed));
        Ok(())
    }

    /// Counts what the block holds beside text. Data of a block that is not sure to be an image
    /// stays text.
    fn hold(&mut self, block: &Block<'_>) {
        let data = block.data.as_ref();
        if block.is_image {
            self.content
                .image(data.filter(|_| !block.is_document && !block.has_text_source));
        } else if block.is_document && (!block.has_text_source || block.has_other_source) {
            self.content.document(data);
        }
        block
            .own_data
            .iter()
            .filter(|_| block.is_encrypted)
            .for_each(|data| self.content.encrypted(data));
    }

    /// Some servers go by a part's `type`, some by the member that holds it: either counts.
    fn block_member<'a>(
        &mut self,
        block: &mut Block<'a>,
        name: &str,
        scan: &mut Scan<'a>,
    ) -> Result<(), Broken> {
        if let Some(object) = VendorObject::by_name(name) {
            let is_container = object == VendorObject::Container;
            let found = if is_container {
                &mut block.container
            } else {
                &mut self.vendor_reference
            };
            return vendor_state::note(found, object, scan);
        }
        match name {
            "type" => {
                let kind = scan.text_or_skip()?;
                self.block_type(block, &kind.map(|kind| kind.name()).unwrap_or_default());
                Ok(())
            }
            // What a model wrote for a tool is text to every model.
            name if vendor_state::is_data(name) => scan.skip().map(drop),
            "cache_control" => self.cache_marker(scan),
            // Items of the responses protocol bring tools along.
            "tools" => scan.array_or_skip(|scan| self.tool(scan, false)).map(drop),
            "signature" => {
                if let Some(text) = scan.text_or_skip()? {
                    block.is_signed = carrier::is_vendors(&text.name());
                    self.content.binary(&text);
                }
                Ok(())
            }
            "id" | "tool_use_id" | "tool_call_id" => {
                let id = scan.text_or_skip()?.map(|id| id.name()).unwrap_or_default();
                self.leftovers.odd_ids |= !names::is_plain(&id);
                self.leftovers.long_ids |= id.len() > CHAT_ID_LETTERS_MAX;
                self.leftovers.other_than_nine |= !names::is_nine(&id);
                Ok(())
            }
            "tool_calls" | "function_call" => {
                self.tools |= scan.kind()? != Kind::Null;
                self.content(scan)
            }
            "reasoning_content" | "reasoning_details" | "thinking_blocks" => {
                self.leftovers.members = true;
                self.content(scan)
            }
            "source" => self.source(block, scan),
            "image_url" | "input_image" => {
                let media = self.media(scan)?;
                block.is_image |= media.is_given;
                block.data = media.data;
                Ok(())
            }
            "file" | "input_file" | "video_url" | "input_video" => {
                let media = self.media(scan)?;
                block.is_document |= media.is_given;
                block.data = media.data;
                Ok(())
            }
            "input_audio" | "audio" | "audio_url" => {
                let media = self.media(scan)?;
                self.audio_input |= media.is_given;
                media.data.iter().for_each(|data| self.content.audio(data));
                Ok(())
            }
            "file_data" => {
                block.data = scan.text_or_skip()?;
                Ok(())
            }
            "data" if scan.kind()? == Kind::String => {
                block.own_data = scan.text_or_skip()?;
                Ok(())
            }
            "encrypted_content" => {
                scan.text_or_skip()?
                    .iter()
                    .for_each(|data| self.content.encrypted(data));
                Ok(())
            }
            _ => self.content(scan),
        }
    }

    fn block_type(&mut self, block: &mut Block<'_>, kind: &str) {
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
            "tool_use" => self.tools = true,
            "tool_result" => {
                self.tools = true;
                self.leftovers.tool_results = self.leftovers.tool_results.saturating_add(1);
            }
            _ => {}
        }
    }

    /// `source` of a messages block. Its own `content` may hold blocks.
    fn source<'a>(&mut self, block: &mut Block<'a>, scan: &mut Scan<'a>) -> Result<(), Broken> {
        scan.object_or_skip(|scan, key| {
            match key.name().as_ref() {
                "type" => {
                    let kind = scan.text_or_skip()?;
                    match kind.map(|kind| kind.name()).unwrap_or_default().as_ref() {
                        "text" | "content" => block.has_text_source = true,
                        "url" => self.url_sources = true,
                        "file" => self.documents_or_files = true,
                        _ => block.has_other_source = true,
                    }
                }
                "url" => {
                    self.url_sources |= scan.kind()? != Kind::Null;
                    let at = scan.at();
                    if let Some(address) = scan.text_or_skip()? {
                        vendor_state::note_address(&mut self.vendor_reference, &address.name(), at);
                    }
                }
                "data" => block.data = scan.text_or_skip()?,
                name => match VendorObject::by_name(name) {
                    Some(object) => vendor_state::note(&mut self.vendor_reference, object, scan)?,
                    None => self.content(scan)?,
                },
            }
            Ok(())
        })
        .map(drop)
    }

    /// What a chat part holds: an address, or an object with one in `url`, or with the data itself.
    fn media<'a>(&mut self, scan: &mut Scan<'a>) -> Result<Media<'a>, Broken> {
        match scan.kind()? {
            Kind::String => Ok(Media {
                is_given: true,
                data: self.address(scan)?,
            }),
            Kind::Object => {
                let mut data = None;
                scan.object(|scan, key| {
                    match key.name().as_ref() {
                        "url" => data = self.address(scan)?,
                        "file_data" | "data" => data = scan.text_or_skip()?,
                        // Of an answer's audio.
                        "id" => vendor_state::note(
                            &mut self.vendor_reference,
                            VendorObject::Audio,
                            scan,
                        )?,
                        name => match VendorObject::by_name(name) {
                            Some(object) => {
                                vendor_state::note(&mut self.vendor_reference, object, scan)?
                            }
                            None => drop(scan.skip()?),
                        },
                    }
                    Ok::<(), Broken>(())
                })?;
                Ok(Media {
                    is_given: true,
                    data,
                })
            }
            _ => scan.skip().map(|_| Media {
                is_given: false,
                data: None,
            }),
        }
    }

    /// The address, if it is a data URL, or no address at all but bare base64.
    fn address<'a>(&mut self, scan: &mut Scan<'a>) -> Result<Option<Text<'a>>, Broken> {
        scan.kind()?;
        let at = scan.at();
        let Some(address) = scan.text_or_skip()? else {
            return Ok(None);
        };
        // Escaped or in capitals it may be a `data:` still; taking it for an address is the safe
        // side.
        let is_far = !address.raw.starts_with("data:");
        self.url_sources |= is_far;
        if is_far {
            vendor_state::note_address(&mut self.vendor_reference, &address.name(), at);
        }
        let is_bare = address.raw.len() > ADDRESS_BYTES_MAX;
        Ok(Some(address).filter(|_| !is_far || is_bare))
    }

    /// A tool definition: its schema is not looked into. `is_chat`: by the rules of the chat
    /// protocol, where a tool that is neither a function nor custom is the vendor's own, also
    /// without a type.
    fn tool(&mut self, scan: &mut Scan<'_>, is_chat: bool) -> Result<(), Broken> {
        self.tools = true;
        let (mut runs_at_vendor, mut max_uses) = (PerTool::<bool>::default(), None);
        let (mut is_function, mut is_vendors) = (false, false);
        scan.object_or_skip(|scan, key| {
            match key.name().as_ref() {
                "type" => {
                    let kind = scan.text_or_skip()?.map(|kind| kind.name());
                    is_vendors |= kind
                        .as_deref()
                        .is_some_and(|kind| !matches!(kind, "function" | "custom"));
                    is_function |= kind.is_some();
                    match kind.as_deref().and_then(server_tool) {
                        Some(tool) => *runs_at_vendor.get_mut(tool) = true,
                        None => self.server_tools |= !kind.as_deref().is_none_or(is_client_tool),
                    }
                }
                // Given twice, either may be the one that is read.
                "max_uses" => max_uses = scan.count_or_skip()?.max(max_uses),
                "cache_control" => self.cache_marker(scan)?,
                "container" => vendor_state::container(&mut self.vendor_reference, scan)?,
                // Those of a namespace.
                "tools" => drop(scan.array_or_skip(|scan| self.tool(scan, is_chat))?),
                "function" => {
                    is_function = true;
                    scan.object_or_skip(|scan, key| {
                        if key.name() == "cache_control" {
                            return self.cache_marker(scan);
                        }
                        scan.skip().map(drop)
                    })?;
                }
                // A function without its wrapping, and Gemini's list of some.
                "name" | "custom" | "function_declarations" | "functionDeclarations" => {
                    is_function = true;
                    scan.skip()?;
                }
                name if is_chat && Extension::is_vendor_tool(name) => {
                    is_vendors |= !matches!(scan.kind()?, Kind::Null | Kind::False);
                    vendor_state::walk(&mut self.vendor_reference, scan)?;
                }
                name if vendor_state::is_data(name) => drop(scan.skip()?),
                name => match VendorObject::by_name(name) {
                    Some(object) => vendor_state::note(&mut self.vendor_reference, object, scan)?,
                    None => vendor_state::walk(&mut self.vendor_reference, scan)?,
                },
            }
            Ok::<(), Broken>(())
        })?;
        if is_chat && (is_vendors || !is_function) {
            self.server_tools = true;
            self.server_tool_member.get_or_insert("tools");
        }
        for tool in ServerTool::ALL
            .into_iter()
            .filter(|tool| *runs_at_vendor.get(*tool))
        {
            self.offer(tool, max_uses);
        }
        Ok(())
    }

    fn offer(&mut self, tool: ServerTool, max_uses: Option<u64>) {
        let offer = self.tool_offers.get_mut(tool);
        let before = offer.unwrap_or(ToolOffer { max_uses: Some(0) });
        let all = before
            .max_uses
            .zip(max_uses)
            .map(|(before, uses)| before.saturating_add(uses));
        *offer = Some(ToolOffer { max_uses: all });
    }

    fn cache_marker(&mut self, scan: &mut Scan<'_>) -> Result<(), Broken> {
        // Null is no marker, but a member all the same.
        self.leftovers.members = true;
        if scan.kind()? != Kind::Null {
            self.cache_markers = true;
        }
        scan.object_or_skip(|scan, key| {
            if key.name() == "ttl" {
                // Any lifetime but the usual one is held for at the dearer price.
                self.cache_markers_1h |= is_other_than(scan, "5m")?;
                return Ok(());
            }
            scan.skip().map(drop)
        })
        .map(drop)
    }

    /// A list of edits in the responses protocol, an object with one in messages.
    fn context_management(&mut self, scan: &mut Scan<'_>) -> Result<(), Broken> {
        if scan.kind()? == Kind::Array {
            return self.edits(scan);
        }
        scan.object_or_skip(|scan, key| {
            if key.name() == "edits" {
                self.edits(scan)
            } else {
                scan.skip().map(drop)
            }
        })
        .map(drop)
    }

    fn edits(&mut self, scan: &mut Scan<'_>) -> Result<(), Broken> {
        scan.array_or_skip(|scan| {
            scan.object_or_skip(|scan, key| {
                if key.name() != "type" {
                    return scan.skip().map(drop);
                }
                let kind = scan.text_or_skip()?;
                self.compaction |= kind.is_some_and(|kind| kind.name().starts_with("compact"));
                Ok(())
            })
            .map(drop)
        })
        .map(drop)
    }
}

/// Tools that the client runs: plain functions, the forms of its own that responses has for some,
/// and the vendor's dated schemas of this list. All else that has a type (`web_search_20250305`,
/// `code_execution_…`, `mcp_toolset`, whatever comes) is taken to run at the vendor.
fn is_client_tool(kind: &str) -> bool {
    const DATED: [&str; 4] = ["bash_20", "text_editor_20", "computer_20", "memory_20"];
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

/// The tools whose uses can be counted: dated on messages, by several names on responses.
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

/// Sets `is_given` if the next value is anything but null and the empty list.
fn some(scan: &mut Scan<'_>, is_given: &mut bool) -> Result<(), Broken> {
    match scan.kind()? {
        Kind::Null => drop(scan.skip()?),
        Kind::Array => {
            scan.array(|scan| {
                *is_given = true;
                scan.skip().map(drop)
            })?;
        }
        _ => {
            *is_given = true;
            scan.skip()?;
        }
    }
    Ok(())
}

/// The word that the next value is; `None` for null. What is no word is one that no price list has.
fn word(scan: &mut Scan<'_>) -> Result<Option<ServiceTier>, Broken> {
    match scan.kind()? {
        Kind::Null => scan.skip().map(|_| None),
        Kind::String => Ok(Some(ServiceTier::said(&scan.string()?.name()))),
        _ => scan.skip().map(|_| Some(ServiceTier::said("?"))),
    }
}

/// The next value is neither null nor this text.
fn is_other_than(scan: &mut Scan<'_>, usual: &str) -> Result<bool, Broken> {
    match scan.kind()? {
        Kind::Null => scan.skip().map(|_| false),
        Kind::String => Ok(scan.string()?.name() != usual),
        _ => scan.skip().map(|_| true),
    }
}

fn is_text(scan: &mut Scan<'_>, wanted: &str) -> Result<bool, Broken> {
    Ok(scan
        .text_or_skip()?
        .is_some_and(|text| text.name() == wanted))
}
